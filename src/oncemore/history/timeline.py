"""Which checkpoints of a run count: one fold over its events. Nothing else decides it.

The log of a run says what happened in it; that of a fork begins with an event that says what it took over from its parent.
An event that changes what counts is taught to `Timeline.apply`, and to nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .. import events
from ..events import Event
from ..keys import prefix_of
from ..records import Record, read_events, read_log
from ..stores import Store

Made = events.StepCompleted | events.StateSaved | events.SnapshotSaved


class Counted(NamedTuple):
    """An event whose checkpoint, or whose snapshot of a loop, counts.

    `run` is what the run was called that it was inherited from, empty if it is the run's own. `result` and `state` are False
    if an import left them out.
    """

    event: Made
    log: str
    run: str = ""
    pinned: bool = False
    result: bool = True
    state: bool = True

    @property
    def place(self) -> str:
        """Where its entry is, whatever the prefix: of two with the same place, the newer counts."""
        if isinstance(self.event, events.StateSaved):
            return f"{self.log}{self.event.seq}"
        return place_of(self.event.entry)


def place_of(entry: str) -> str:
    """The key of an entry without its prefix."""
    return entry[len(prefix_of(entry)) :]


class Timeline:
    """What counts in a run after the events that were applied.

    `cuts` says of the logs of its forebears, oldest first, up to which event they are its own past.
    """

    def __init__(self, log: str, inherited: Iterable[Counted] = (), cuts: Mapping[str, int] = {}) -> None:
        self.log, self.cuts = log, cuts
        self.last = 0  # the number of the last event
        self._now = {each.place: each for each in inherited}  # oldest first
        self._undo: list[dict[str, Counted]] = []  # what rollbacks replaced

    def apply(self, event: Event) -> None:
        """The next event of the log."""
        self.last = event.seq
        if isinstance(event, (events.StepCompleted, events.StateSaved, events.SnapshotSaved)):
            made = Counted(event, self.log, pinned=isinstance(event, events.CheckpointSaved) and event.pinned)
            self._now.pop(made.place, None)
            if "@" in made.place:  # the node's own entry only points to it from now on
                self._now.pop(made.place.partition("@")[0], None)
            self._now[made.place] = made
        elif isinstance(event, events.StepForgotten):
            node = place_of(event.entry)
            for known in (self._now, *(self._undo if event.everywhere else ())):
                for place in [place for place in known if place.partition("@")[0] == node]:
                    del known[place]
        elif isinstance(event, events.CheckpointsPruned):  # also of what a rollback put aside
            gone = {(self.log, number) for number in event.checkpoints}
            for known in (self._now, *self._undo):
                for place in [place for place, each in known.items() if (each.log, each.event.seq) in gone]:
                    del known[place]
        elif isinstance(event, events.RolledBack):
            self._undo.append(self._now)
            self._now = {each.place: each for each in self.until(event.log or self.log, event.to)}
        elif isinstance(event, events.RollbackUndone):
            self._now = self._undo.pop() if self._undo else self._now
        elif isinstance(event, events.CheckpointPinned):
            which = event.log or self.log, event.checkpoint
            for known in (self._now, *self._undo):
                known.update(
                    (place, each._replace(pinned=event.pinned))
                    for place, each in list(known.items())
                    if (each.log, each.event.seq) == which
                )
        elif isinstance(event, events.RunImported):
            for known in (self._now, *self._undo):
                for place, each in known.items():
                    if each.log == self.log:
                        known[place] = each._replace(result=each.event.seq not in event.without, state=False)

    def until(self, log: str, number: int) -> list[Counted]:
        """What of it is not after an event of one of its logs."""
        cuts = self.cuts_at(log, number)
        return [each for each in self._now.values() if each.event.seq <= cuts.get(each.log, 0)]

    def cuts_at(self, log: str, number: int) -> dict[str, int]:
        """Up to which event each of its logs was its past at an event of one of them."""
        found: dict[str, int] = {}
        for known, cut in (*self.cuts.items(), (self.log, number)):
            found[known] = number if known == log else cut
            if known == log:
                return found
        return {}

    def counted(self) -> list[Counted]:
        """All that counts, snapshots of loops included, oldest first."""
        return list(self._now.values())

    def checkpoints(self) -> list[Counted]:
        """The checkpoints that count, oldest first."""
        return [each for each in self._now.values() if not isinstance(each.event, events.SnapshotSaved)]

    def ever(self) -> list[Counted]:
        """All that counts or would after undoing rollbacks."""
        every = (each for known in (self._now, *self._undo) for each in known.values())
        return list({(each.log, each.event.seq): each for each in every}.values())


def timeline(store: Store, log: str, until: int | None = None) -> Timeline:
    """What counts in the run with that log, up to event number `until`."""
    line: Timeline | None = None
    for event in read_log(store, log):
        if until is not None and event.seq > until:
            break
        if line is None:
            line = _begun(store, log, event)
        line.apply(event)
    return line or Timeline(log)


def _begun(store: Store, log: str, first: Event) -> Timeline:
    """What a run began with: nothing, or what its first event says that it took over."""
    if not isinstance(first, events.Forked) or not first.log:
        return Timeline(log)
    parent, at = timeline(store, first.log, first.until), (first.within or first.log, first.at)
    taken = (each._replace(run=each.run or first.parent) for each in parent.until(*at))
    return Timeline(log, taken, parent.cuts_at(*at))


# -- the numbers that a run's record has of it


def totals(counted: Iterable[Counted]) -> tuple[int, int]:
    """How many nodes have checkpoints, and their bytes."""
    steps = [each for each in counted if isinstance(each.event, events.StepCompleted)]
    nodes = {each.place.partition("@")[0] for each in steps}
    return len(nodes), sum(each.event.stored_bytes for each in steps if isinstance(each.event, events.StepCompleted))


def count(store: Store, record: Record) -> None:
    """Bring the record's numbers up to date, from the events since it was last counted if that is enough."""
    simple = True
    for number, fields in list(read_events(store, record.log, record.counted)):
        kind, replaces = fields["event"], fields.get("replaces", False)
        if kind == "StepCompleted":
            record.entries += fields["entry"].startswith(record.prefix) and not replaces
            record.nodes += 1
            record.bytes += fields["stored_bytes"]
        simple = simple and not replaces and kind not in ("StepForgotten", "RolledBack", "RollbackUndone")
        record.counted = number
    if not simple:
        line = timeline(store, record.log, record.counted)
        record.nodes, record.bytes = totals(line.counted())
