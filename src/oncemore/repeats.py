"""Matching repeated calls and named checkpoints of a scope with those of earlier scopes."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from .codec import Decoded, encode
from .events import CheckpointSaved
from .history.timeline import Timeline, timeline
from .identity.values import digest
from .records import read_log
from .secret import secret
from .stores import Bytes, Store

if TYPE_CHECKING:
    from .history.checkpoints import Checkpoint
    from .session import Session


class SeenCheckpoints:
    """The named checkpoints of earlier scopes; each is found once, when this scope reaches the same point again."""

    def __init__(self) -> None:
        self._earlier: dict[tuple[Any, ...], list[Checkpoint]] | None = None  # those not found yet
        self._timeline: Timeline | None = None

    def find_or_save(
        self, run: Session, name: str, metadata: Mapping[str, Any], next_node: str | None, pinned: bool
    ) -> Checkpoint:
        """Return the checkpoint that an earlier scope saved at this point, or save a new one."""
        event = CheckpointSaved(
            name=name,
            next_node=next_node,
            metadata=json.loads(json.dumps(dict(metadata))),
            snapshot="",
            state=digest(run.state.values_by_key()).hex(),
            pinned=pinned,
        )
        known = self._find(event, run) if run.resumed else None
        if known is not None:
            return known
        snapshot = run.snapshot()
        event = replace(event, snapshot=snapshot.key)
        run.entries.write_snapshot(snapshot.entry, event)
        run.snapshots.written(snapshot)
        run.notify(event)
        saved = self._saved(event, run)
        run.retain()
        return saved

    def _find(self, event: CheckpointSaved, run: Session) -> Checkpoint | None:
        from .history.checkpoints import made

        if self._earlier is None:
            self._earlier = {}
            for index, counted in enumerate(timeline(run.store, run.log).checkpoints()):
                if isinstance(counted.event, CheckpointSaved):
                    checkpoint = made(run.store, run.id, run.workflow, counted, index)
                    self._earlier.setdefault(_identity(counted.event), []).append(checkpoint)
        equal = self._earlier.get(_identity(event))
        return equal.pop(0) if equal else None

    def _saved(self, saved: CheckpointSaved, run: Session) -> Checkpoint:
        """The checkpoint that was just saved, with its number. After the first time, reads only what is new in the log."""
        from .history.checkpoints import made

        self._timeline = self._timeline or timeline(run.store, run.log)
        for event in read_log(run.store, self._timeline.log, self._timeline.last):
            self._timeline.apply(event)
        for index, counted in reversed([*enumerate(self._timeline.checkpoints())]):
            event = counted.event
            if isinstance(event, CheckpointSaved) and (event.time, event.lane) == (saved.time, saved.lane):
                return made(run.store, run.id, run.workflow, counted, index)
        raise AssertionError(f"the log {self._timeline.log} has lost an event")


def _identity(event: CheckpointSaved) -> tuple[Any, ...]:
    return event.name, event.state, event.next_node, json.dumps(event.metadata, sort_keys=True)


class Ordinals:
    """Numbers identical calls. A failed call gives its ordinal back, so that a retry is the same node."""

    def __init__(self, first: int = 0, free: Iterable[int] = ()) -> None:
        self._numbers, self._next, self._free = count(first), first, sorted(free)

    def peek(self) -> int:
        return min(self._free, default=self._next)

    def take(self) -> int:
        # Threads do this concurrently. Each operation is atomic; a lock could be copied by a fork while it is held.
        try:
            return self._free.pop(0)
        except IndexError:
            number = next(self._numbers)
            self._next = max(self._next, number + 1)
            return number

    def give_back(self, number: int) -> None:
        if number not in self._free:
            insort(self._free, number)

    def state(self) -> dict[str, Any]:
        return {"next": self._next, "free": list(self._free)}


class SharedOrdinals:
    """Ordinals for all processes that take part in one scope, stored until the scope ends.

    Each ordinal goes to one call, in whichever process. Which of several identical calls gets which is up to chance, but every
    attempt hands out the same ones. `before` has those that this process, or its parent before a fork, handed out alone.
    """

    def __init__(self, store: Store, key: str, before: Ordinals | None = None) -> None:
        self._store, self._key, self._before = store, key, before or Ordinals()

    def _read(self) -> tuple[Bytes | None, dict[str, Any]]:
        data = self._store.get(self._key)
        return data, self._before.state() if data is None else Decoded(data, key=self._key, secret=secret()).meta

    def publish(self) -> None:
        """Store the ordinals handed out so far, unless another process has already done so."""
        self._write(None, self._before.state())

    def peek(self) -> int:
        state = self._read()[1]
        number: int = min(state["free"], default=state["next"])
        return number

    def take(self) -> int:
        while True:
            data, state = self._read()
            number: int = min(state["free"], default=state["next"])
            free = [other for other in state["free"] if other != number]
            if self._write(data, {"next": max(state["next"], number + 1), "free": free}):
                return number

    def give_back(self, number: int) -> None:
        while True:
            data, state = self._read()
            if self._write(data, {**state, "free": sorted({*state["free"], number})}):
                return

    def _write(self, expected: Bytes | None, state: Mapping[str, Any]) -> bool:
        """Write the state, unless another process has written since `expected` was read."""
        entry = encode(None, state, key=self._key, secret=secret())
        return self._store.commit(put={self._key: entry.frames}, expect={self._key: expected})
