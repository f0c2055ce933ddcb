"""Removes checkpoints that a retention policy does not keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

from .. import records
from ..codec import tombstone
from ..events import CheckpointsPruned, Event, SnapshotSaved
from ..files.blobs import release
from ..keys import ALIASES, REMOVED, SHARED, listing_key, log_of
from ..node import PRUNED
from ..records import Outdated, Record, stamp
from ..retention import Policy, Pruned
from ..settings import secret
from ..stores import Bytes, Frames, Store
from ..stores.layered import innermost
from .checkpoints import Checkpoint, checkpoints_of
from .rollback import clean, clear, entry_of, forks_of
from .timeline import Counted, count, timeline

_BATCH = 200


@runtime_checkable
class Shrinking(Protocol):
    """A store that can free the space of removed entries."""

    def shrink(self) -> None: ...


def free_space(store: Store) -> None:
    """Return the space of removed entries to the file system, if the store supports it."""
    if isinstance(found := innermost(store), Shrinking):
        found.shrink()


def prune(store: Store, policy: Policy, runs: Iterable[str], *, dry_run: bool, own: str | None = None) -> Pruned:
    """Remove the checkpoints of each run that the policy does not keep. Skips running ones except the caller's `own`."""
    gone: list[Checkpoint] = []
    skipped: list[str] = []
    looked_at: list[tuple[Record, str]] = []
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
        looked_at.append((record, run_id))
    if not dry_run and own is None:
        # Forks before their parents: an alias that a fork has no use for any more may be the last to reach a parent's entry.
        for record, run_id in sorted(looked_at, key=lambda each: -len(each[0].forebears)):
            clear(store, record.uid, run_id)
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
    every = (each for fork in forks_of(store, record.uid) for each in timeline(store, log_of(fork)).ever())
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
        keys = [c.entry for c in batch if c.entry and not c.entry.startswith(SHARED)]
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
