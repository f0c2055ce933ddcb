"""The stretches of a run's history before a rollback or a fork, and which of their entries still count."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from .codec import Decoded, Encoded, encode
from .errors import IntegrityError
from .events import SnapshotSaved, StepCompleted
from .records import Generation, home_of, read_log
from .secret import secret
from .stores import Store


class Older(NamedTuple):
    """An earlier stretch of the run's history: where its entries stand, and which of them still count (None: all).

    `replaced` are those that would count, had not a later one taken their place.
    """

    home: str
    entries: Collection[str] | None = None
    replaced: Collection[str] = frozenset()

    def counts(self, entry: str) -> bool:
        return self.entries is None or entry in self.entries


def earlier(store: Store, generations: Sequence[Generation]) -> list[Older]:
    """All stretches, oldest first. What counts of one that was cut was listed when it was cut; else its log tells."""
    return [Older(g.home) if g.cut is None else _listed(store, g) or _from_log(store, g) for g in generations]


def list_cut(store: Store, generation: Generation, key: str) -> Encoded:
    """What counts of a stretch that is being cut, as an entry: nobody has to read the log again."""
    older = _from_log(store, generation)
    assert older.entries is not None
    size = len(older.home)
    meta = {"entries": [e[size:] for e in older.entries], "replaced": [e[size:] for e in older.replaced]}
    return encode(None, meta, key=key, secret=secret())


def _listed(store: Store, generation: Generation) -> Older | None:
    try:
        data = store.get(generation.listed) if generation.listed else None
        meta = Decoded(data, key=generation.listed, secret=secret()).meta if data is not None else None
    except IntegrityError:
        return None
    if meta is None:
        return None
    home = generation.home
    return Older(home, {home + e for e in meta["entries"]}, {home + e for e in meta["replaced"]})


def _from_log(store: Store, generation: Generation) -> Older:
    entries: set[str] = set()
    replaced: set[str] = set()
    for event in read_log(store, generation.log):
        entry = getattr(event, "entry", "")
        if home_of(entry) != generation.home:
            continue
        if generation.counts(event.seq, entry):
            entries.add(entry)
        elif entry in entries and isinstance(event, (SnapshotSaved, StepCompleted)):
            entries.remove(entry)
            replaced.add(entry)
    return Older(generation.home, entries, replaced)


def completed(store: Store, log: str, home: str) -> set[str]:
    """The nodes under `home` that have a checkpoint by what the log tells."""
    entries = (event.entry for event in read_log(store, log) if isinstance(event, StepCompleted))
    return {entry.partition("@")[0] for entry in entries if entry.startswith(home)}
