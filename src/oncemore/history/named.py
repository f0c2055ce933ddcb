"""Named checkpoints of a scope, matched with those of earlier scopes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..events import CheckpointSaved
from ..identity.values import digest
from ..records import read_log
from ..session import Session
from .checkpoints import Checkpoint, made
from .timeline import Timeline, timeline


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
