"""Checks that a store has everything its runs refer to, and that nothing was altered. Reads everything, changes nothing.

Jobs may be running meanwhile, so references are checked twice, and only problems found both times are reported.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from .. import records
from ..codec import Decoded, unseal
from ..codec.keyed import Keyed, owner_of
from ..errors import CheckpointWarning, IntegrityError
from ..events import SnapshotSaved, StepCompleted
from ..keys import (
    DELETED,
    EVENTS,
    OTHERS,
    OWNER,
    PENDING,
    SHARED,
    THREADS,
    fork_mark,
    listing_key,
    pending_blob,
    prefix_of,
    run_id_of,
    sealed_as,
    written_since,
)
from ..records import Record
from ..settings import secret
from ..stores import Bytes, Store
from ..stores.layered import Within, innermost
from .rollback import forks_of, targets
from .timeline import timeline

Progress = Callable[[int, int], object]
Kind = Literal["damaged", "dangling", "orphan", "foreign"]

_VALUES = frozenset(
    ("node", "once", "shared", "langgraph")
)  # entries that can need others: items, file contents, values
_OWNED = frozenset(("calls", "event", "items", "node", "once", "reused", "state", "wrote"))  # belong to a run
_KINDS = (
    _VALUES
    | _OWNED
    | {
        "blob",
        "changed",
        "code",
        "damaged",
        "files",
        "forks",
        "gone",
        "joblib",
        "key",
        "other",
        "pending",
        "run",
        "used",
        "waiting",
    }
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem found in a store.

    damaged: an entry was altered since it was written. dangling: something that a run refers to is missing. orphan: nothing
    refers to this; it is harmless, but takes up space. foreign: the store was made with another key, and its entries can only be
    checked with that key.
    """

    kind: Kind
    key: str
    message: str
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The result of a verification: what was checked, and the findings."""

    entries: int
    bytes: int
    runs: int
    findings: tuple[Finding, ...]

    @property
    def well(self) -> bool:
        """Whether nothing is damaged, missing or foreign."""
        return all(finding.kind == "orphan" for finding in self.findings)


@runtime_checkable
class Littered(Protocol):
    """A store that can have files that belong to no entry."""

    def orphans(self) -> list[str]: ...


def verify(store: Store, progress: Progress | None = None) -> Verified:
    """See `History.verify`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # the findings cover them
        verifier = _Verifier(store)
        verifier.check_signatures(progress or (lambda done, all: None))
        found = verifier.check_references()
        if found:
            first = set(found)
            found = [finding for finding in verifier.check_references() if finding in first]
        entries, runs = len(verifier.keys), len(verifier.runs)
        findings = (*_foreign(store), *verifier.damaged(), *found)
        return Verified(entries=entries, bytes=verifier.bytes, runs=runs, findings=findings)


def _foreign(store: Store) -> Iterator[Finding]:
    store = store.below if isinstance(store, Keyed) else store
    if isinstance(store, Within):
        unchecked = sum(1 for key, _ in store.below.scan("", most=0) if not key.startswith((OTHERS, OWNER)))
        message = f"the store was made with another key ({owner_of(store.below)}): {unchecked} of its entries were not checked"
        yield Finding(kind="foreign", key=OWNER, message=message)


class _Verifier:
    """Collects what all entries of a store are and need, and finds problems."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.keys: set[str] = set()
        self.bytes = 0
        self.runs: dict[str, str] = {}  # their ids, by uid
        self._altered: dict[str, str] = {}
        self._parts: dict[str, list[str]] = {}  # keys that an entry needs: items, file contents, the target of an alias

    def check_signatures(self, progress: Progress) -> None:
        """Check every signature."""
        total = sum(1 for _ in self.store.scan("", most=0))
        for key, data in self.store.scan(""):
            try:
                if data is None and (data := self.store.get(key)) is None:  # raises if the entry is damaged
                    continue  # removed meanwhile
                self.bytes += len(data)
                self._check(key, data)
            except IntegrityError as error:
                self._altered[key] = str(error)
            self.keys.add(key)
            progress(len(self.keys), max(total, len(self.keys)))

    def _check(self, key: str, data: Bytes) -> None:
        kind, name = key.partition("/")[0], sealed_as(key)
        if kind == "event" and not re.fullmatch("event/[0-9a-f]+/[0-9a-f]{16}", key):
            raise IntegrityError(f"{key} is not a valid key of an event")
        if name is None or kind == "damaged" or kind not in _KINDS:
            return
        if kind not in _VALUES:
            unseal(data, name, secret())
        elif parts := _parts(key, data):
            self._parts[key] = parts

    def damaged(self) -> list[Finding]:
        """The entries whose signatures are wrong."""
        found = self._altered.items()
        return [Finding(kind="damaged", key=key, message=message, run=self._run_of(key)) for key, message in found]

    def check_references(self) -> list[Finding]:
        """Find what runs refer to but is missing, and what nothing refers to."""
        runs = dict(records.scan(self.store))
        self.runs = {record.uid: run_id for run_id, record in runs.items()}
        missing = [(key, message, self._run_of(at)) for key, message, at in (*self._gaps(), *self._missing_parts())]
        for run_id, record in runs.items():
            missing += ((key, message, run_id) for key, message in self._missing_of_run(run_id, record))
        findings = [Finding(kind="dangling", key=key, message=message, run=run) for key, message, run in missing]
        return findings + [
            Finding(kind="orphan", key=key, message=message) for key, message in self._orphans(runs.values())
        ]

    def _run_of(self, key: str) -> str:
        """The id of the run that an entry belongs to; empty if there is none."""
        kind, _, rest = key.partition("/")
        if kind == "run":
            return run_id_of(key)
        return self.runs.get(rest.partition("/")[0].partition(".")[0], "") if kind in _OWNED else ""

    def _exists(self, key: str) -> bool:
        return not key or key in self.keys or key in self.store.get_many([key], most=0)

    def _gaps(self) -> Iterator[tuple[str, str, str]]:
        """Missing events: each log is numbered without gaps."""
        logs: dict[str, set[int]] = {}
        for key in self.keys:
            if key.startswith(EVENTS) and key not in self._altered:  # a forged event may have any number
                log, _, digits = key.rpartition("/")
                logs.setdefault(log, set()).add(int(digits, 16))
        for log, numbers in sorted(logs.items()):
            for number in sorted(set(range(1, max(numbers) + 1)) - numbers):
                key = f"{log}/{number:016x}"
                if not self._exists(key) and any(True for _ in self.store.scan(f"{log}/", limit=1)):
                    yield key, f"event {number} is missing from its log", key

    def _missing_of_run(self, run_id: str, record: Record) -> Iterator[tuple[str, str]]:
        """What a run's record and events refer to but is missing."""
        for uid in record.forebears:
            mark = fork_mark(uid, record.uid)
            if not self._exists(mark):
                yield mark, "the mark that protects the entries this fork shares is missing"
        for counted in timeline(self.store, record.log).counted():
            event, about = counted.event, f"checkpoint {counted.run or run_id}:{counted.event.seq}"
            if isinstance(event, SnapshotSaved):
                continue  # replaced by a later one, or interchangeable with one
            step = event if isinstance(event, StepCompleted) else None
            if step is not None and counted.result:
                here = record.prefix + counted.suffix
                if not self._exists(step.entry):
                    yield step.entry, f"the result of {about} is missing"
                elif not step.entry.startswith(SHARED) and not self._exists(here):
                    yield here, f"{about} can't be found any more"
            # A snapshot of an earlier checkpoint may have been pruned.
            own_snapshot = event.snapshot if step is None or not step.behind else ""
            if not self._exists(own_snapshot) and counted.state:
                yield event.snapshot, f"the state of {about} is missing"

    def _missing_parts(self) -> Iterator[tuple[str, str, str]]:
        """What entries need but is missing."""
        for key, parts in self._parts.items():
            missing = [part for part in parts if not self._exists(part)]
            try:
                data = self.store.get(key) if missing else None  # the entry may have been replaced meanwhile
                needed = [] if data is None else _parts(key, data)
            except IntegrityError:
                continue  # reported as damaged
            yield from ((part, f"missing, but needed by {key}", key) for part in missing if part in needed)

    def _orphans(self, runs: Iterable[Record]) -> Iterator[tuple[str, str]]:
        """What nothing refers to. While a run is running, its steps may be about to refer to parts, so these are not reported."""
        busy = any(records.status(self.store, record) == "running" for record in runs)
        live = {prefix for run in runs for prefix in (run.prefix, *run.undo)}
        gone = {key.partition("/")[2] for key, _ in self.store.scan(DELETED, most=0)}
        uids = {"shared", *self.runs, *gone}
        reached = set().union(*targets(self.store, live).values())
        parts = {part for parts in self._parts.values() for part in parts}
        pending = {pending_blob(key) for key in self.keys if key.startswith(PENDING)}
        found: Counter[tuple[str, str]] = Counter()
        for key in sorted(self.keys):
            kind, _, rest = key.partition("/")
            uid = rest.partition("/")[0].partition(".")[0]
            if kind not in _KINDS:
                found[key, "was not written by oncemore"] += 1
            elif kind == "damaged":
                found[key, "was set aside because it could not be verified"] += 1
            elif kind in _OWNED and uid not in uids:
                found[f"{kind}/{uid}", "belongs to a run that does not exist"] += 1
            elif kind == "gone" and not forks_of(self.store, uid):
                found[key, "was left by an interrupted removal; the next one completes it"] += 1
            elif kind == "forks" and key.rpartition("/")[2] not in self.runs:
                found[key, "marks entries shared with a fork that does not exist"] += 1
            elif key.startswith(f"{THREADS}channel/") and key not in parts:
                found[key, "is a value of a graph that none of its checkpoints needs"] += 1
            elif key.startswith(f"{THREADS}write/") and not self._exists(written_since(key)):
                found[key, "was written by a task of a graph since a checkpoint that does not exist"] += 1
            elif kind == "waiting" and not self.store.held([key]):
                found[
                    key, "was left by a call that was killed while it waited; the next one that waits removes it"
                ] += 1
            elif busy:
                continue
            elif kind == "node" and prefix_of(key) not in live and key not in reached and not key.endswith("/^"):
                found[key, "is not reached by any run; the next prune removes it"] += 1
            elif kind == "pending":
                found[key, "was left by an interrupted step; the next clean-up removes it"] += 1
            elif kind == "blob" and key not in parts and key not in pending:
                found[key, "is a part of a file that no checkpoint needs"] += 1
            elif kind == "items" and key not in parts:
                found[key.rpartition("/")[0] + "/", "are items of a generator that no checkpoint needs"] += 1
            elif kind == "files" and key not in parts:
                found[key, "lists the file contents of a checkpoint that does not exist"] += 1
        for (prefix, message), count in found.items():
            if any(True for _ in self.store.scan(prefix, limit=1, most=0)):  # not removed meanwhile
                yield prefix, message if count == 1 else f"{message} ({count} entries)"
        if isinstance(found_in := innermost(self.store), Littered):
            yield from ((name, "is a file that belongs to no entry") for name in found_in.orphans())


def _parts(key: str, data: Bytes) -> list[str]:
    """The keys that an entry needs: its items, its file contents and their list, the target of an alias, a graph's values."""
    entry = Decoded(data, key=key, secret=secret())
    if key.startswith(THREADS):
        return list(entry.meta.get("values", {}).values())
    files = [*entry.meta["blobs"], listing_key(key)] if entry.meta.get("blobs") else []
    return entry.chunks + files + ([entry.alias_of] if entry.alias_of else [])
