"""Which checkpoints of a run are valid: one fold over its events. Nothing else decides it.

A run's log records what happened in it. The log of a fork begins with an event that says what it inherits from its parent. An
event that makes checkpoints valid or invalid is handled in `Timeline.apply` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from .. import events
from ..events import Event
from ..keys import prefix_of
from ..records import Record, read_events, read_log
from ..stores import Store

_Recorded = events.StepCompleted | events.StateSaved | events.SnapshotSaved


class Counted(NamedTuple):
    """An event whose checkpoint, or whose loop snapshot, is valid.

    `run` is the id that the run it was inherited from had then; empty for the run's own events. `result` and `state` are False
    if an import left them out.
    """

    event: _Recorded
    log: str
    run: str = ""
    pinned: bool = False
    result: bool = True
    state: bool = True

    @property
    def suffix(self) -> str:
        """The key of its entry without the prefix. Of two events with the same suffix, only the newer is valid."""
        if isinstance(self.event, events.StateSaved):
            return f"{self.log}{self.event.seq}"
        return suffix_of(self.event.entry)


def suffix_of(entry: str) -> str:
    """The key of an entry without its prefix."""
    return entry[len(prefix_of(entry)) :]


class Timeline:
    """The valid checkpoints of a run after the events applied so far.

    `cuts` maps the logs of its ancestors, oldest first, to the last event in each that belongs to this run's past.
    """

    def __init__(self, log: str, inherited: Iterable[Counted] = (), cuts: Mapping[str, int] = {}) -> None:
        self.log, self.cuts = log, cuts
        self.last = 0  # the number of the last event
        self._now = {each.suffix: each for each in inherited}  # valid now, oldest first
        self._undo: list[dict[str, Counted]] = []  # what was valid before each rollback

    def apply(self, event: Event) -> None:
        """Apply the next event of the log."""
        self.last = event.seq
        if isinstance(event, (events.StepCompleted, events.StateSaved, events.SnapshotSaved)):
            new = Counted(event, self.log, pinned=isinstance(event, events.CheckpointSaved) and event.pinned)
            self._now.pop(new.suffix, None)
            if "@" in new.suffix:  # a variant: from now on, the node's own entry only points to it
                self._now.pop(new.suffix.partition("@")[0], None)
            self._now[new.suffix] = new
        elif isinstance(event, events.StepForgotten):
            node = suffix_of(event.entry)
            self._drop(lambda each: each.suffix.partition("@")[0] == node, everywhere=event.everywhere)
        elif isinstance(event, events.CheckpointsPruned):  # also those that a rollback made invalid
            gone = set(event.checkpoints)
            self._drop(lambda each: each.log == self.log and each.event.seq in gone)
        elif isinstance(event, events.RolledBack):
            self._undo.append(self._now)
            self._now = {each.suffix: each for each in self.until(event.log or self.log, event.to)}
        elif isinstance(event, events.RollbackUndone):
            self._now = self._undo.pop() if self._undo else self._now
        elif isinstance(event, events.CheckpointPinned):
            which = event.log or self.log, event.checkpoint
            for known in (self._now, *self._undo):
                known.update(
                    (suffix, each._replace(pinned=event.pinned))
                    for suffix, each in list(known.items())
                    if (each.log, each.event.seq) == which
                )
        elif isinstance(event, events.RunImported):
            for known in (self._now, *self._undo):
                for suffix, each in known.items():
                    if each.log == self.log:
                        known[suffix] = each._replace(result=each.event.seq not in event.without, state=False)

    def _drop(self, which: Callable[[Counted], bool], *, everywhere: bool = True) -> None:
        """Make events invalid; `everywhere`: also if a rollback that made them invalid is undone."""
        for known in (self._now, *(self._undo if everywhere else ())):
            for suffix in [suffix for suffix, each in known.items() if which(each)]:
                del known[suffix]

    def until(self, log: str, number: int) -> list[Counted]:
        """The valid events up to event `number` of one of its logs."""
        cuts = self.cuts_at(log, number)
        return [each for each in self._now.values() if each.event.seq <= cuts.get(each.log, 0)]

    def cuts_at(self, log: str, number: int) -> dict[str, int]:
        """The last event of each log that was in the run's past at event `number` of `log`."""
        found: dict[str, int] = {}
        for known, cut in (*self.cuts.items(), (self.log, number)):
            found[known] = number if known == log else cut
            if known == log:
                return found
        return {}

    def counted(self) -> list[Counted]:
        """All valid events, loop snapshots included, oldest first."""
        return list(self._now.values())

    def checkpoints(self) -> list[Counted]:
        """The valid checkpoints, oldest first."""
        return [each for each in self._now.values() if not isinstance(each.event, events.SnapshotSaved)]

    def ever(self) -> list[Counted]:
        """All events that are valid now or would be after undoing rollbacks."""
        every = (each for known in (self._now, *self._undo) for each in known.values())
        return list({(each.log, each.event.seq): each for each in every}.values())


def timeline(store: Store, log: str, until: int | None = None) -> Timeline:
    """The timeline of the run with this log, up to event number `until`."""
    line: Timeline | None = None
    for event in read_log(store, log):
        if until is not None and event.seq > until:
            break
        if line is None:
            line = _initial(store, log, event)
        line.apply(event)
    return line or Timeline(log)


def _initial(store: Store, log: str, first: Event) -> Timeline:
    """The timeline a run starts with: empty, or what its first event says it inherits."""
    if not isinstance(first, events.Forked) or not first.log:
        return Timeline(log)
    parent, at = timeline(store, first.log, first.until), (first.within or first.log, first.at)
    inherited = (each._replace(run=each.run or first.parent) for each in parent.until(*at))
    return Timeline(log, inherited, parent.cuts_at(*at))


# -- the numbers in a run's record


def totals(counted: Iterable[Counted]) -> tuple[int, int]:
    """The number of nodes with checkpoints, and the bytes of those."""
    steps = [each for each in counted if isinstance(each.event, events.StepCompleted)]
    nodes = {each.suffix.partition("@")[0] for each in steps}
    return len(nodes), sum(each.event.stored_bytes for each in steps if isinstance(each.event, events.StepCompleted))


def count(store: Store, record: Record) -> None:
    """Update the record's numbers, from the events since the last count alone if none of them invalidates anything."""
    only_additions = True
    for number, fields in list(read_events(store, record.log, record.counted)):
        kind, replaces = fields["event"], fields.get("replaces", False)
        if kind == "StepCompleted":
            record.entries += fields["entry"].startswith(record.prefix) and not replaces
            record.nodes += 1
            record.bytes += fields["stored_bytes"]
        only_additions = (
            only_additions and not replaces and kind not in ("StepForgotten", "RolledBack", "RollbackUndone")
        )
        record.counted = number
    if not only_additions:
        line = timeline(store, record.log, record.counted)
        record.nodes, record.bytes = totals(line.counted())
