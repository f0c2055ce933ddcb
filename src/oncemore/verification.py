"""Whether a store holds what its runs refer to, and nothing in it was altered. Reads everything, changes nothing.

Jobs may run meanwhile: what looks wrong is looked at a second time, and only what is wrong both times is told.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from . import records
from .blobs import use
from .checkpoints import Checkpoint, fold
from .codec import Decoded, unseal
from .errors import CheckpointWarning, IntegrityError, UsageError
from .events import RunImported, StepForgotten
from .records import Record, read_log, run_id_of, sealed_as
from .reshape import owners
from .secret import secret
from .stores import Bytes, Store

Progress = Callable[[int, int], object]
Kind = Literal["damaged", "dangling", "orphan"]

_KINDS = frozenset(("blob", "code", "damaged", "event", "gone", "need", "node", "pending", "run", "shared", "use"))


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


@dataclass
class _Seen:
    """What the walk over all entries remembers of them."""

    keys: set[str] = field(default_factory=set[str])
    bytes: int = 0
    damaged: dict[str, str] = field(default_factory=dict[str, str])
    parts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])  # of what has items or blobs


@runtime_checkable
class Littered(Protocol):
    """A store that can have files which belong to no entry."""

    def orphans(self) -> list[str]: ...


def verify(store: Store, progress: Progress | None = None) -> Verified:
    """See `History.verify`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # what they would tell is found
        return _verify(store, progress or (lambda done, all: None))


def _verify(store: Store, progress: Progress) -> Verified:
    seen = _walk(store, progress)
    runs = dict(records.scan(store))
    owner = {record.uid: run_id for run_id, record in runs.items()}
    findings = [
        Finding(kind="damaged", key=key, said=said, run=_run_of(key, owner)) for key, said in seen.damaged.items()
    ]
    findings += _gaps(store, seen.keys, owner)
    for run_id in runs:
        findings += _twice(partial(_missing_of_run, store, run_id, seen.keys))
    for key in seen.parts:
        findings += _twice(partial(_missing_parts, store, key, _run_of(key, owner), seen.keys))
    findings += _twice(partial(_orphans, store, seen))
    if isinstance(store, Littered):
        said = "a file that belongs to no entry"
        findings += (Finding(kind="orphan", key=name, said=said) for name in store.orphans())
    return Verified(entries=len(seen.keys), bytes=seen.bytes, runs=len(runs), findings=tuple(findings))


def _walk(store: Store, progress: Progress) -> _Seen:
    """Check every signature."""
    total = sum(1 for _ in store.scan("", most=0))
    seen = _Seen()
    for key, data in store.scan(""):
        try:
            data = store.get(key) if data is None else data  # damaged, or gone meanwhile: this tells
            if data is None:
                continue
            seen.bytes += len(data)
            _check(key, data, seen)
        except IntegrityError as error:
            seen.damaged[key] = str(error)
        seen.keys.add(key)
        progress(len(seen.keys), max(total, len(seen.keys)))
    return seen


def _check(key: str, data: Bytes, seen: _Seen) -> None:
    kind, name = key.partition("/")[0], sealed_as(key)
    if name is None or kind == "damaged" or kind not in _KINDS:
        return
    if kind in ("node", "shared"):
        meta = Decoded(data, key=key, secret=secret()).meta
        if meta.keys() & {"items", "blobs"}:
            seen.parts[key] = {part: meta[part] for part in ("items", "chunks", "blobs") if part in meta}
    else:
        unseal(data, name, secret())


def _run_of(key: str, owner: dict[str, str]) -> str:
    """The id of the run that an entry belongs to, if it belongs to one that is there."""
    kind, _, rest = key.partition("/")
    if kind == "run":
        return run_id_of(key)
    return owner.get(rest.partition("/")[0].partition(".")[0], "") if kind in ("node", "event") else ""


def _twice(look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What is found both times: a job may have changed something while we looked."""
    first = list(look())
    return [finding for finding in look() if finding in first] if first else []


def _dangling(key: str, said: str, run_id: str) -> Finding:
    return Finding(kind="dangling", key=key, said=said, run=run_id)


def _is_there(store: Store, key: str, keys: set[str]) -> bool:
    return not key or key in keys or any(found == key for found, _ in store.scan(key, limit=1, most=0))


def _gaps(store: Store, keys: set[str], owner: dict[str, str]) -> Iterator[Finding]:
    """Events are numbered without gaps."""
    logs: dict[str, list[int]] = {}
    for key in keys:
        if key.startswith("event/"):
            log, _, digits = key.rpartition("/")
            logs.setdefault(log, []).append(int(digits, 16))
    for log, numbers in sorted(logs.items()):
        absent = set(range(1, max(numbers) + 1)) - set(numbers)
        for number in sorted(absent):
            key = f"{log}/{number:016x}"
            if store.get(key) is None and any(True for _ in store.scan(f"{log}/", limit=1)):
                yield _dangling(key, f"event {number} is gone from its log", _run_of(key, owner))


def _missing_of_run(store: Store, run_id: str, keys: set[str]) -> list[Finding]:
    """What a run's record and events tell of and is not there."""
    try:
        record = records.read(store, run_id)
    except (UsageError, IntegrityError):
        return []  # deleted meanwhile, or told already
    found: list[Finding] = []
    for owner in sorted(owners(record) - {record.uid}):
        mark = f"need/{owner}/{record.uid}"
        if not _is_there(store, mark, keys):
            found.append(_dangling(mark, "the mark is gone that keeps what this fork shares", run_id))
    checkpoints = fold(store, run_id, record)
    absent = _Absent(store, record)  # read after them: it knows at least as much
    for checkpoint in checkpoints:
        if not _is_there(store, checkpoint.entry, keys) and not absent.result(checkpoint):
            said = f"the result of checkpoint {checkpoint.id} is gone"
            found.append(_dangling(checkpoint.entry, said, run_id))
        if not _is_there(store, checkpoint.snapshot, keys) and not absent.state(checkpoint):
            said = f"the state of checkpoint {checkpoint.id} is gone"
            found.append(_dangling(checkpoint.snapshot, said, run_id))
    return found


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


def _missing_parts(store: Store, key: str, run_id: str, keys: set[str]) -> list[Finding]:
    """The chunks and blobs that an entry needs and that are not there."""
    try:
        data = store.get(key)
        meta = {} if data is None else Decoded(data, key=key, secret=secret()).meta
    except IntegrityError:
        return []  # told already
    wanted = [f"{meta['items']}{number:08x}" for number in range(meta["chunks"])] if "items" in meta else []
    for blob in meta.get("blobs", ()):
        home = key[: key.index("/", 5) + 1] if key.startswith("node/") else "shared/"
        wanted += [blob, *use(home, key, blob)]
    return [_dangling(part, f"{key} needs it", run_id) for part in wanted if not _is_there(store, part, keys)]


def _orphans(store: Store, seen: _Seen) -> list[Finding]:
    """What nothing refers to. A step that is under way may be about to: then its parts are not told of."""
    runs = [record for _, record in records.scan(store)]
    known = {record.uid for record in runs}
    busy = any(records.status(store, record) == "running" for record in runs)
    needed = {mark.split("/")[1] for mark, _ in store.scan("need/", most=0) if mark.count("/") > 1}
    gone = {mark.partition("/")[2] for mark, _ in store.scan("gone/", most=0)}
    items = {meta["items"] for meta in seen.parts.values() if "items" in meta}
    used = {"/".join(mark.split("/")[1:3]) for mark, _ in store.scan("use/", most=0) if mark.count("/") > 2}
    groups: dict[tuple[str, str], int] = {}

    def tell(prefix: str, said: str) -> None:
        groups[prefix, said] = groups.get((prefix, said), 0) + 1

    for key in sorted(seen.keys):
        kind, _, rest = key.partition("/")
        uid = rest.partition("/")[0].partition(".")[0]
        if kind not in _KINDS:
            tell(key, "is nothing of oncemore's")
        elif kind == "damaged":
            tell(key, "was set aside because it could not be trusted")
        elif kind in ("node", "event") and uid != "shared" and uid not in known | needed | gone:
            tell(f"{kind}/{uid}", "belongs to a run that is not there")
        elif kind == "gone" and uid not in needed:
            tell(key, "was left by a removal that was cut off; the next one completes it")
        elif kind == "need" and "/" in rest and rest.rpartition("/")[2] not in known:
            tell(key, "marks what a fork shares that is not there")
        elif busy:
            continue
        elif kind == "pending":
            tell(key, "was left by a step that was cut off; the next clean-up removes it")
        elif kind == "blob" and key not in used:
            tell(key, "is a part of a file that no checkpoint needs")
        elif "/#/" in key and key.rpartition("/")[0] + "/" not in items:
            tell(key.rpartition("/")[0] + "/", "are items of a generator that no checkpoint needs")
    return [
        Finding(kind="orphan", key=prefix, said=said if count == 1 else f"{said} ({count} entries)")
        for (prefix, said), count in groups.items()
        if any(True for _ in store.scan(prefix, limit=1, most=0))  # not removed meanwhile
    ]
