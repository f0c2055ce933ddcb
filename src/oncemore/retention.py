"""Policies that say which checkpoints to keep. `keep_first() | keep_last(20)` keeps what either keeps, `&` what both keep.

Nothing is ever removed unless you ask for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

from . import records
from .blobs import release
from .codec import tombstone
from .durations import Duration, seconds
from .errors import UsageError
from .events import CheckpointsPruned, Event, SnapshotSaved
from .history.checkpoints import Checkpoint, checkpoints_of
from .history.rollback import clean, clear, entry_of, forks_of
from .history.timeline import Counted, count, timeline
from .keys import ALIASES, REMOVED, listing_key
from .node import PRUNED
from .records import Outdated, Record, stamp
from .secret import secret
from .stores import Bytes, Frames, Store

_BATCH = 200


class Policy:
    """Decides which of a run's checkpoints to keep; they are passed oldest first."""

    def __init__(self, name: str, keep: Callable[[Sequence[Checkpoint]], Iterable[Checkpoint]]) -> None:
        self._name, self._keep = name, keep

    def __repr__(self) -> str:
        return self._name

    def keeps(self, checkpoints: Sequence[Checkpoint]) -> set[str]:
        """The ids of the checkpoints to keep."""
        return {checkpoint.id for checkpoint in self._keep(checkpoints)}

    def __or__(self, other: Policy) -> Policy:
        def either(all: Sequence[Checkpoint]) -> Iterable[Checkpoint]:
            kept = self.keeps(all) | other.keeps(all)
            return (c for c in all if c.id in kept)

        return Policy(f"{self} | {other}", either)

    def __and__(self, other: Policy) -> Policy:
        """Keep what both keep. A limit on the right applies to what the left side keeps."""

        def both(all: Sequence[Checkpoint]) -> Iterable[Checkpoint]:
            kept = self.keeps(all)
            return other._keep([c for c in all if c.id in kept])

        return Policy(f"({self}) & {other}", both)


def keep_first(count: int = 1) -> Policy:
    """Keep the oldest checkpoints of each run."""
    return Policy(f"keep_first({count})", lambda all: all[: _positive(count)])


def keep_last(count: int = 1) -> Policy:
    """Keep the newest checkpoints of each run."""
    return Policy(f"keep_last({count})", lambda all: all[-_positive(count) :])


def keep_latest_of_each_name() -> Policy:
    """Keep the newest checkpoint of each name, and of each step."""
    return Policy("keep_latest_of_each_name()", lambda all: {c.name or c.step: c for c in all}.values())


def keep_newer_than(age: Duration) -> Policy:
    """Keep the checkpoints of the last "30d", "12h"..."""
    limit = seconds(age)
    return Policy(
        f"keep_newer_than({age!r})", lambda all: [c for c in all if time.time() - c.time.timestamp() <= limit]
    )


def keep_named() -> Policy:
    """Keep named checkpoints."""
    return Policy("keep_named()", lambda all: [c for c in all if c.name is not None])


def at_most(count: int) -> Policy:
    """Keep at most `count` checkpoints, the newest."""
    return Policy(f"at_most({count})", lambda all: all[-_positive(count) :])


def at_most_bytes(limit: int) -> Policy:
    """Keep the newest checkpoints that together have at most `limit` stored bytes."""

    def fitting(all: Sequence[Checkpoint]) -> Iterable[Checkpoint]:
        remaining = limit
        for checkpoint in reversed(all):
            remaining -= checkpoint.stored_bytes
            if remaining < 0:
                return
            yield checkpoint

    return Policy(f"at_most_bytes({limit})", fitting)


pinned = Policy("pinned", lambda all: [c for c in all if c.pinned])


def _positive(count: int) -> int:
    if count < 1:
        raise UsageError(f"a policy must keep at least 1 checkpoint, not {count}")
    return count


@runtime_checkable
class Shrinking(Protocol):
    """A store that can free the space of removed entries."""

    def shrink(self) -> None: ...


def free_space(store: Store) -> None:
    """Return the space of removed entries to the file system, if the store supports it."""
    if isinstance(store, Shrinking):
        store.shrink()


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What a policy removed, or would remove."""

    checkpoints: tuple[str, ...]
    bytes: int
    dry_run: bool
    skipped: tuple[str, ...] = ()  # running ones, which may be about to reuse what would be removed


def prune(store: Store, policy: Policy, runs: Iterable[str], *, dry_run: bool, own: str | None = None) -> Pruned:
    """Remove the checkpoints of each run that the policy does not keep. Skips running ones except the caller's `own`."""
    gone: list[Checkpoint] = []
    skipped: list[str] = []
    for run_id in runs:
        record = records.read(store, run_id)
        if run_id != own and records.status(store, record) == "running":
            skipped.append(run_id)
            continue
        while True:
            then = store.get(ALIASES)
            every = checkpoints_of(store, run_id, record)
            own_checkpoints = [c for c in every if c.log == record.log]  # inherited ones belong to the parent
            kept, needed = policy.keeps(own_checkpoints), _needed(store, record)
            going = [c for c in own_checkpoints if c.id not in kept and c.number not in needed.numbers]
            try:
                if going and not dry_run:
                    _remove(store, run_id, record, every, going, needed, then)
            except Outdated:  # a fork created meanwhile may need some of them: try again
                continue
            gone += going
            break
        if not dry_run and own is None:
            clear(store, record.uid, run_id)
    if not dry_run and own is None:
        clean(store)
        if gone:
            free_space(store)
    return Pruned(
        checkpoints=tuple(c.id for c in gone),
        bytes=sum(c.stored_bytes for c in gone),
        dry_run=dry_run,
        skipped=tuple(skipped),
    )


class _Needed(NamedTuple):
    """What a run shares with its forks: checkpoints, by event number, and state snapshots."""

    numbers: set[int]
    snapshots: set[str]


def _needed(store: Store, record: Record) -> _Needed:
    every = (each for fork in forks_of(store, record.uid) for each in timeline(store, f"event/{fork}/").ever())
    shared = [each for each in every if each.log == record.log]
    return _Needed({each.event.seq for each in shared}, _snapshots(shared))


def _snapshots(counted: Iterable[Counted]) -> set[str]:
    return {each.event.snapshot for each in counted if not isinstance(each.event, SnapshotSaved)}


def _remove(
    store: Store,
    run_id: str,
    record: Record,
    every: Sequence[Checkpoint],
    going: Sequence[Checkpoint],
    needed: _Needed,
    then: Bytes | None,
) -> None:
    """Remove checkpoints in batches, each in one transaction with its event. If killed midway, the next prune goes on."""
    numbers = {c.number for c in going}
    ever = timeline(store, record.log).ever()  # includes what a rollback made invalid
    staying = [each for each in ever if each.log != record.log or each.event.seq not in numbers]
    snapshots = needed.snapshots | _snapshots(staying)
    left = Counter(c.node_key for c in every if c.entry)
    for start in range(0, len(going), _BATCH):
        batch = going[start : start + _BATCH]
        keys = [c.entry for c in batch if c.entry and not c.entry.startswith("shared/")]
        entries = [entry for key in keys if (entry := entry_of(store, key)) is not None]
        put: dict[str, Frames] = {key: tombstone(key, secret(), PRUNED) for key in keys}
        put[REMOVED] = stamp()
        gone = [c.snapshot for c in batch if c.snapshot and c.snapshot not in snapshots]
        gone += [part for entry in entries for part in (*entry.chunks, listing_key(entry.key))]
        left.subtract(c.node_key for c in batch if c.entry)
        nodes = len({c.node_key for c in batch if c.entry and not left[c.node_key]})
        edit = partial(_without, store, batch, nodes)
        records.change(store, run_id, edit, put=put, delete=gone, expect={ALIASES: then})
        release(store, [blob for entry in entries for blob in entry.meta.get("blobs", ())])


def _without(store: Store, batch: Sequence[Checkpoint], nodes: int, record: Record) -> list[Event]:
    """Subtract removed checkpoints, and nodes left without any, from the record's numbers."""
    count(store, record)
    record.nodes -= nodes
    record.bytes -= sum(c.stored_bytes for c in batch)
    return [CheckpointsPruned(checkpoints=[c.number for c in batch])]
