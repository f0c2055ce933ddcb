"""Whether a store holds what its runs refer to, and nothing in it was altered. Reads everything, changes nothing.

Jobs may run meanwhile: what looks wrong is looked at a second time, and only what is wrong both times is told.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from . import records
from .blobs import use
from .checkpoints import Checkpoint, fold
from .codec import Decoded, unseal
from .errors import CheckpointWarning, IntegrityError
from .events import RunImported, StepForgotten
from .records import Record, home_of, read_log, run_id_of, sealed_as
from .reshape import owners
from .secret import secret
from .stores import Bytes, Store

Progress = Callable[[int, int], object]
Kind = Literal["damaged", "dangling", "orphan"]

_KINDS = frozenset(
    ("blob", "changed", "code", "damaged", "event", "gone", "need", "node", "pending", "run", "shared", "use")
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is not as it should be, and where.

    damaged: an entry is not what was written there. dangling: something is referred to and not there. orphan: something is
    there that nothing refers to; it takes space and does no harm.
    """

    kind: Kind
    key: str
    said: str
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What a verification looked at, and found."""

    entries: int
    bytes: int
    runs: int
    findings: tuple[Finding, ...]

    @property
    def well(self) -> bool:
        """Whether nothing is damaged and nothing missing."""
        return all(finding.kind == "orphan" for finding in self.findings)


@runtime_checkable
class Littered(Protocol):
    """A store that can have files which belong to no entry."""

    def orphans(self) -> list[str]: ...


def verify(store: Store, progress: Progress | None = None) -> Verified:
    """See `History.verify`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # what they would tell is found
        verifier = _Verifier(store)
        verifier.walk(progress or (lambda done, all: None))
        found = verifier.look()
        if found:
            first = set(found)
            found = [finding for finding in verifier.look() if finding in first]
        entries, runs = len(verifier.keys), len(verifier.runs)
        return Verified(entries=entries, bytes=verifier.bytes, runs=runs, findings=(*verifier.damaged(), *found))


class _Verifier:
    """What is known of all entries of a store after the walk over them, and what is wrong with them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.keys: set[str] = set()
        self.bytes = 0
        self.runs: dict[str, str] = {}  # their ids, by uid
        self._altered: dict[str, str] = {}
        self._parts: dict[str, list[str]] = {}  # the chunks and blobs that an entry needs, with the marks of these

    def walk(self, progress: Progress) -> None:
        """Check every signature."""
        total = sum(1 for _ in self.store.scan("", most=0))
        for key, data in self.store.scan(""):
            try:
                data = self.store.get(key) if data is None else data  # damaged, or gone meanwhile: this tells
                if data is None:
                    continue
                self.bytes += len(data)
                self._check(key, data)
            except IntegrityError as error:
                self._altered[key] = str(error)
            self.keys.add(key)
            progress(len(self.keys), max(total, len(self.keys)))

    def _check(self, key: str, data: Bytes) -> None:
        kind, name = key.partition("/")[0], sealed_as(key)
        if name is None or kind == "damaged" or kind not in _KINDS:
            return
        if kind not in ("node", "shared"):
            unseal(data, name, secret())
        elif parts := _parts(key, data):
            self._parts[key] = parts

    def damaged(self) -> list[Finding]:
        """The entries whose signatures are wrong."""
        found = self._altered.items()
        return [Finding(kind="damaged", key=key, said=said, run=self._run_of(key)) for key, said in found]

    def look(self) -> list[Finding]:
        """What runs refer to that is not there, and what is there that nothing refers to."""
        runs = dict(records.scan(self.store))
        self.runs = {record.uid: run_id for run_id, record in runs.items()}
        missing = [(key, said, self._run_of(at)) for key, said, at in (*self._gaps(), *self._missing_parts())]
        for run_id, record in runs.items():
            missing += ((key, said, run_id) for key, said in self._missing_of_run(run_id, record))
        findings = [Finding(kind="dangling", key=key, said=said, run=run) for key, said, run in missing]
        return findings + [Finding(kind="orphan", key=key, said=said) for key, said in self._orphans(runs.values())]

    def _run_of(self, key: str) -> str:
        """The id of the run that an entry belongs to, if it belongs to one that is there."""
        kind, _, rest = key.partition("/")
        if kind == "run":
            return run_id_of(key)
        return self.runs.get(rest.partition("/")[0].partition(".")[0], "") if kind in ("node", "event") else ""

    def _is_there(self, key: str) -> bool:
        return not key or key in self.keys or key in self.store.get_many([key], most=0)

    def _gaps(self) -> Iterator[tuple[str, str, str]]:
        """Events are numbered without gaps."""
        logs: dict[str, set[int]] = {}
        for key in self.keys:
            if key.startswith("event/"):
                log, _, digits = key.rpartition("/")
                logs.setdefault(log, set()).add(int(digits, 16))
        for log, numbers in sorted(logs.items()):
            for number in sorted(set(range(1, max(numbers) + 1)) - numbers):
                key = f"{log}/{number:016x}"
                if not self._is_there(key) and any(True for _ in self.store.scan(f"{log}/", limit=1)):
                    yield key, f"event {number} is gone from its log", key

    def _missing_of_run(self, run_id: str, record: Record) -> Iterator[tuple[str, str]]:
        """What a run's record and events tell of and is not there."""
        for owner in sorted(owners(record) - {record.uid}):
            mark = f"need/{owner}/{record.uid}"
            if not self._is_there(mark):
                yield mark, "the mark is gone that keeps what this fork shares"
        checkpoints = fold(self.store, run_id, record)
        absent = _Absent(self.store, record)  # read after them: it knows at least as much
        for checkpoint in checkpoints:
            if not self._is_there(checkpoint.entry) and not absent.result(checkpoint):
                yield checkpoint.entry, f"the result of checkpoint {checkpoint.id} is gone"
            own = checkpoint.snapshot if not checkpoint.behind else ""  # an earlier one may have been pruned meanwhile
            if not self._is_there(own) and not absent.state(checkpoint):
                yield checkpoint.snapshot, f"the state of checkpoint {checkpoint.id} is gone"

    def _missing_parts(self) -> Iterator[tuple[str, str, str]]:
        """The chunks and blobs that an entry needs and that are not there."""
        for key, parts in self._parts.items():
            missing = [part for part in parts if not self._is_there(part)]
            try:
                data = self.store.get(key) if missing else None  # it may have been replaced since
                needed = [] if data is None else _parts(key, data)
            except IntegrityError:
                continue  # another finding
            yield from ((part, f"{key} needs it", key) for part in missing if part in needed)

    def _orphans(self, runs: Iterable[Record]) -> Iterator[tuple[str, str]]:
        """What nothing refers to. A step that is under way may be about to: then its parts are not told of."""
        busy = any(records.status(self.store, record) == "running" for record in runs)
        needed = {mark.split("/")[1] for mark, _ in self.store.scan("need/", most=0) if mark.count("/") > 1}
        gone = {mark.partition("/")[2] for mark, _ in self.store.scan("gone/", most=0)}
        uids = {*self.runs, *needed, *gone, "shared"}
        used = {"/".join(mark.split("/")[1:3]) for mark, _ in self.store.scan("use/", most=0) if mark.count("/") > 2}
        parts = {part for parts in self._parts.values() for part in parts}
        found: Counter[tuple[str, str]] = Counter()
        for key in sorted(self.keys):
            kind, _, rest = key.partition("/")
            uid = rest.partition("/")[0].partition(".")[0]
            if kind not in _KINDS:
                found[key, "is nothing of oncemore's"] += 1
            elif kind == "damaged":
                found[key, "was set aside because it could not be trusted"] += 1
            elif kind in ("node", "event", "changed") and uid not in uids:
                found[f"{kind}/{uid}", "belongs to a run that is not there"] += 1
            elif kind == "gone" and uid not in needed:
                found[key, "was left by a removal that was cut off; the next one completes it"] += 1
            elif kind == "need" and "/" in rest and rest.rpartition("/")[2] not in self.runs:
                found[key, "marks what a fork shares that is not there"] += 1
            elif busy:
                continue
            elif kind == "pending":
                found[key, "was left by a step that was cut off; the next clean-up removes it"] += 1
            elif kind == "blob" and key not in used:
                found[key, "is a part of a file that no checkpoint needs"] += 1
            elif "/#/" in key and key not in parts:
                found[key.rpartition("/")[0] + "/", "are items of a generator that no checkpoint needs"] += 1
        for (prefix, said), count in found.items():
            if any(True for _ in self.store.scan(prefix, limit=1, most=0)):  # not removed meanwhile
                yield prefix, said if count == 1 else f"{said} ({count} entries)"
        if isinstance(self.store, Littered):
            yield from ((name, "a file that belongs to no entry") for name in self.store.orphans())


def _parts(key: str, data: Bytes) -> list[str]:
    """The keys of the chunks and blobs that an entry needs, and of the marks that keep these."""
    meta = Decoded(data, key=key, secret=secret()).meta
    chunks = [f"{meta['items']}{number:08x}" for number in range(meta["chunks"])] if "items" in meta else []
    home = home_of(key)
    return chunks + [part for blob in meta.get("blobs", ()) for part in (blob, *use(home, key, blob))]


class _Absent:
    """What the events tell of and is rightly not there: it was forgotten, or JSON could not hold it."""

    def __init__(self, store: Store, record: Record) -> None:
        self._forgotten: dict[str, int] = {}  # up to which event of its log
        self._imported: dict[str, int] = {}
        self._without: set[tuple[str, int]] = set()
        for log in {g.log for g in record.generations}:
            for event in read_log(store, log):
                if isinstance(event, StepForgotten):
                    self._forgotten[event.entry] = event.seq
                elif isinstance(event, RunImported):
                    self._imported[log] = event.seq
                    self._without.update((log, number) for number in event.without)

    def result(self, checkpoint: Checkpoint) -> bool:
        forgotten = self._forgotten.get(checkpoint.entry.partition("@")[0], 0)
        return forgotten > checkpoint.number or (checkpoint.log, checkpoint.number) in self._without

    def state(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.number < self._imported.get(checkpoint.log, 0)
