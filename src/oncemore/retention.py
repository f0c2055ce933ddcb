"""Which checkpoints to keep. Policies compose: `keep_first() | keep_last(20)` keeps what either keeps, `&` what both keep.

Nothing is ever removed unasked.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from . import records
from .blobs import parting, release, waiting
from .checkpoints import Checkpoint, fold
from .codec import Decoded, tombstone
from .durations import Duration, seconds
from .errors import IntegrityError, UsageError
from .events import CheckpointsPruned, Event
from .nodes import PRUNED
from .past import count
from .records import Record
from .reshape import clean, ever
from .secret import secret
from .stores import Frames, Store

_BATCH = 200


class Policy:
    """Says which of a run's checkpoints, given oldest first, to keep."""

    def __init__(self, name: str, keep: Callable[[Sequence[Checkpoint]], Iterable[Checkpoint]]) -> None:
        self._name, self._keep = name, keep

    def __repr__(self) -> str:
        return self._name

    def keeps(self, checkpoints: Sequence[Checkpoint]) -> set[str]:
        """The ids of those that stay."""
        return {checkpoint.id for checkpoint in self._keep(checkpoints)}

    def __or__(self, other: Policy) -> Policy:
        def either(all: Sequence[Checkpoint]) -> Iterable[Checkpoint]:
            kept = self.keeps(all) | other.keeps(all)
            return (c for c in all if c.id in kept)

        return Policy(f"{self} | {other}", either)

    def __and__(self, other: Policy) -> Policy:
        """Both must keep it. A limit on the right counts only what the left side keeps."""

        def both(all: Sequence[Checkpoint]) -> Iterable[Checkpoint]:
            mine = self.keeps(all)
            return other._keep([c for c in all if c.id in mine])

        return Policy(f"({self}) & {other}", both)


def keep_first(count: int = 1) -> Policy:
    """The oldest."""
    return Policy(f"keep_first({count})", lambda all: all[: _positive(count)])


def keep_last(count: int = 1) -> Policy:
    """The newest."""
    return Policy(f"keep_last({count})", lambda all: all[-_positive(count) :])


def keep_latest_of_each_name() -> Policy:
    """The newest of each name; for nodes without a name, the newest of each step."""
    return Policy("keep_latest_of_each_name()", lambda all: {c.name or c.step: c for c in all}.values())


def keep_newer_than(age: Duration) -> Policy:
    """Those of the last "30d", "12h"..."""
    limit = seconds(age)
    return Policy(
        f"keep_newer_than({age!r})", lambda all: [c for c in all if time.time() - c.time.timestamp() <= limit]
    )


def keep_named() -> Policy:
    """Those that were made by name."""
    return Policy("keep_named()", lambda all: [c for c in all if c.name is not None])


def at_most(count: int) -> Policy:
    """No more than so many, the newest."""
    return Policy(f"at_most({count})", lambda all: all[-_positive(count) :])


def at_most_bytes(limit: int) -> Policy:
    """The newest that fit into so many stored bytes together."""

    def fitting(all: Sequence[Checkpoint]) -> Iterable[Checkpoint]:
        room = limit
        for checkpoint in reversed(all):
            room -= checkpoint.stored_bytes
            if room < 0:
                return
            yield checkpoint

    return Policy(f"at_most_bytes({limit})", fitting)


pinned = Policy("pinned", lambda all: [c for c in all if c.pinned])


def _positive(count: int) -> int:
    if count < 1:
        raise UsageError(f"a policy keeps at least 1 checkpoint, not {count}")
    return count


@runtime_checkable
class Shrinking(Protocol):
    """A store that can give the space of removed entries back."""

    def shrink(self) -> None: ...


def give_back(store: Store) -> None:
    """Give the space of removed entries back to the file system, where there is one."""
    if isinstance(store, Shrinking):
        store.shrink()


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What a policy removed, or would."""

    checkpoints: tuple[str, ...]
    bytes: int
    dry_run: bool
    skipped: tuple[str, ...] = ()  # runs that are running: they may be about to reuse what would go


def prune(store: Store, policy: Policy, runs: Iterable[str], *, dry_run: bool, own: str | None = None) -> Pruned:
    """Remove the checkpoints that the policy does not keep, run by run; of running ones only the caller's `own`."""
    gone: list[Checkpoint] = []
    skipped: list[str] = []
    for run_id in runs:
        record = records.read(store, run_id)
        if run_id != own and records.status(store, record) == "running":
            skipped.append(run_id)
            continue
        every = fold(store, run_id, record)
        mine = [c for c in every if c.log == record.log]  # a forebear's are not ours to remove
        kept, needed = policy.keeps(mine), _needed(store, record)
        going = [c for c in mine if c.id not in kept and c.number > needed]
        gone += going
        if going and not dry_run:
            _remove(store, run_id, record, every, going)
    if not dry_run and own is None:
        clean(store)
        if gone:
            give_back(store)
    return Pruned(
        checkpoints=tuple(c.id for c in gone),
        bytes=sum(c.stored_bytes for c in gone),
        dry_run=dry_run,
        skipped=tuple(skipped),
    )


def _remove(
    store: Store, run_id: str, record: Record, every: Sequence[Checkpoint], going: Sequence[Checkpoint]
) -> None:
    """The event goes with the entries: killed midway, the rest goes with the next prune."""
    ids = {c.id for c in going}
    everything = fold(store, run_id, ever(record), superseded=True)  # also what a rollback put aside, or a fork needs
    staying = [c for c in everything if c.id not in ids]
    snapshots = {c.snapshot for c in staying}
    left = Counter(c.node_key for c in every if c.entry)
    for start in range(0, len(going), _BATCH):
        batch = going[start : start + _BATCH]
        keys = [c.entry for c in batch if c.entry and not c.entry.startswith("shared/")]
        metas = [(key, _meta(store, key)) for key in keys]
        chunks = [key for _, meta in metas if "items" in meta for key, _ in store.scan(meta["items"], most=0)]
        keys += [c.snapshot for c in batch if c.snapshot and c.snapshot not in snapshots]
        put: dict[str, Frames] = {key: tombstone(key, secret(), PRUNED) for key, _ in metas}
        gone = [key for key in (*keys, *chunks) if key not in put]
        filed = [key for key, meta in metas if "blobs" in meta]
        for key in filed:
            parted, marked = parting(store, records.home_of(key), key, key)
            put.update(parted)
            gone += marked
        left.subtract(c.node_key for c in batch if c.entry)
        nodes = len({c.node_key for c in batch if c.entry and not left[c.node_key]})
        records.change(store, run_id, partial(_without, store, run_id, batch, nodes), put=put, delete=gone)
        for key in filed:
            release(store, waiting(store, key))


def _without(store: Store, run_id: str, batch: Sequence[Checkpoint], nodes: int, record: Record) -> list[Event]:
    """Take the checkpoints, and nodes that have none any more, out of the record's numbers."""
    count(store, run_id, record)
    record.nodes -= nodes
    record.bytes -= sum(c.stored_bytes for c in batch)
    return [CheckpointsPruned(checkpoints=[c.number for c in batch])]


def _needed(store: Store, record: Record) -> int:
    """Up to which event forks of the run need its checkpoints."""
    return max((int(bytes(cut or b"0")) for _, cut in store.scan(f"need/{record.uid}/")), default=0)


def _meta(store: Store, entry: str) -> dict[str, Any]:
    """What an entry says of itself; nothing if it is gone or damaged."""
    try:
        data = store.get(entry)
        return {} if data is None else Decoded(data, key=entry, secret=secret()).meta
    except IntegrityError:
        return {}
