"""What became of a run's earlier checkpoints: those that count before a rollback or a fork, and those that are no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .codec import encode
from .events import CheckpointsPruned, RunImported, SnapshotSaved, StepCompleted, StepForgotten
from .records import Generation, home_of, read_log
from .secret import secret
from .stores import Frames, Store


class Older(NamedTuple):
    """An earlier stretch of the run's history: where its entries stand, and which of them still count (None: all).

    `replaced` are those that would count, had not a later one taken their place.
    """

    home: str
    entries: set[str] | None
    replaced: set[str]

    def counts(self, entry: str) -> bool:
        return self.entries is None or entry in self.entries


def earlier(store: Store, generations: Sequence[Generation]) -> list[Older]:
    """All stretches, oldest first. Reads each log once, and only for stretches that were cut."""
    found = {g.home: Older(g.home, None if g.cut is None else set(), set()) for g in generations}
    for log in dict.fromkeys(g.log for g in generations if g.cut is not None):
        mine = {g.home: g for g in generations if g.log == log}
        for event in read_log(store, log):
            entry = getattr(event, "entry", "")
            g = mine.get(home_of(entry))
            entries = None if g is None else found[g.home].entries
            if g is None or entries is None:
                continue
            if g.counts(event.seq, entry):
                entries.add(entry)
            elif entry in entries and isinstance(event, (SnapshotSaved, StepCompleted)):
                entries.remove(entry)
                found[g.home].replaced.add(entry)
    return list(found.values())


def cover(key: str) -> Frames:
    """An entry that hides those of the same node in earlier stretches: the node has no checkpoint."""
    return encode(None, {"forgotten": True}, key=key, secret=secret()).frames


GONE = "the checkpoint is gone from the store"
FORGOTTEN = "forgotten"
ROLLED_BACK = "rolled back"
PRUNED = "removed by a retention policy"
LEFT_OUT = "not in the file that the run was imported from"


def fates(store: Store, log: str, counts: Callable[[str], bool]) -> dict[str, str]:
    """What became of the checkpoints that a log tells of, by their nodes' keys without the home; `counts` takes an entry."""
    nodes: dict[int, str] = {}
    fate: dict[str, str] = {}
    for event in read_log(store, log):
        if isinstance(event, StepCompleted) and not event.entry.startswith("shared/"):
            nodes[event.seq] = node = event.entry[len(home_of(event.entry)) :].partition("@")[0]
            fate[node] = GONE if counts(event.entry) else ROLLED_BACK
        elif isinstance(event, StepForgotten):
            fate[event.entry[len(home_of(event.entry)) :]] = FORGOTTEN
        elif isinstance(event, CheckpointsPruned):
            fate.update((nodes[seq], PRUNED) for seq in event.checkpoints if seq in nodes)
        elif isinstance(event, RunImported):
            fate.update((nodes[seq], LEFT_OUT) for seq in event.without if seq in nodes)
    return fate
