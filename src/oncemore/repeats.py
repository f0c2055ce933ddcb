"""Calls and checkpoints that a scope makes again: which of the earlier ones each is."""

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
    """The named checkpoints of earlier scopes, each to be found once when this scope comes by again."""

    def __init__(self) -> None:
        self._ahead: dict[tuple[Any, ...], list[Checkpoint]] | None = None
        self._line: Timeline | None = None

    def reach(
        self, run: Session, name: str, metadata: Mapping[str, Any], next_node: str | None, pinned: bool
    ) -> Checkpoint:
        """The run's state is to be kept under a name: the checkpoint that an earlier scope left here, or a new one."""
        fact = CheckpointSaved(
            name=name,
            next_node=next_node,
            metadata=json.loads(json.dumps(dict(metadata))),
            snapshot="",
            state=digest(run.state.values_by_key()).hex(),
            pinned=pinned,
        )
        known = self._find(fact, run) if run.resumed else None
        if known is not None:
            return known
        snapshot = run.snapshot()
        fact = replace(fact, snapshot=snapshot.key)
        run.entries.write_snapshot(snapshot.entry, fact)
        run.snapshots.written(snapshot)
        run.notify(fact)
        saved = self._saved(fact, run)
        run.retain()
        return saved

    def _find(self, fact: CheckpointSaved, run: Session) -> Checkpoint | None:
        from .history.checkpoints import made

        if self._ahead is None:
            self._ahead = {}
            for index, counted in enumerate(timeline(run.store, run.log).checkpoints()):
                if isinstance(counted.event, CheckpointSaved):
                    checkpoint = made(run.store, run.id, run.workflow, counted, index)
                    self._ahead.setdefault(_sameness(counted.event), []).append(checkpoint)
        waiting = self._ahead.get(_sameness(fact))
        return waiting.pop(0) if waiting else None

    def _saved(self, fact: CheckpointSaved, run: Session) -> Checkpoint:
        """The checkpoint that was just made, with its number. Reads only what is new in the log, after the first time."""
        from .history.checkpoints import made

        self._line = self._line or timeline(run.store, run.log)
        for event in read_log(run.store, self._line.log, self._line.last):
            self._line.apply(event)
        for index, counted in reversed([*enumerate(self._line.checkpoints())]):
            event = counted.event
            if isinstance(event, CheckpointSaved) and (event.time, event.lane) == (fact.time, fact.lane):
                return made(run.store, run.id, run.workflow, counted, index)
        raise AssertionError(f"the log {self._line.log} has lost an event")


def _sameness(fact: CheckpointSaved) -> tuple[Any, ...]:
    return fact.name, fact.state, fact.next_node, json.dumps(fact.metadata, sort_keys=True)


class Ordinals:
    """Numbers for identical calls. A failed call gives its number back, so that a retry is the same call."""

    def __init__(self, first: int = 0, free: Iterable[int] = ()) -> None:
        self._numbers, self._next, self._free = count(first), first, sorted(free)

    def peek(self) -> int:
        return min(self._free, default=self._next)

    def take(self) -> int:
        # Threads take numbers at once. No lock, which a fork could copy while held: each of these is one operation.
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
    """The same for the processes that take part in one scope: the numbers taken stand in the store as long as it is open.

    Each number is given to one call, in whichever process: which of identical calls gets which is for chance to say, but the
    numbers given are the same in every attempt. `before` are those that this process, or the one it was forked from, gave
    before there were others.
    """

    def __init__(self, store: Store, key: str, before: Ordinals | None = None) -> None:
        self._store, self._key, self._before = store, key, before or Ordinals()

    def _read(self) -> tuple[Bytes | None, dict[str, Any]]:
        data = self._store.get(self._key)
        return data, self._before.state() if data is None else Decoded(data, key=self._key, secret=secret()).meta

    def publish(self) -> None:
        """Let the others know what was given before; unless one of them does already."""
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

    def _write(self, then: Bytes | None, state: Mapping[str, Any]) -> bool:
        entry = encode(None, state, key=self._key, secret=secret())
        return self._store.commit(put={self._key: entry.frames}, expect={self._key: then})
