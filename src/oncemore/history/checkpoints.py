"""The checkpoints of a run, as its timeline says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple, Union, overload

from .. import events
from ..blobs import keeping
from ..codec import Decoded, loads
from ..errors import CodecError, NotRecorded, StoreError, UsageError, warn
from ..records import Record
from ..secret import secret
from ..stores import Store
from .timeline import Counted, place_of, timeline

When = Union[float, datetime]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is kept of a completed node, or of the run under a name or at the end of a scope.

    `id` is `run:n`, n being the number of its event; `index` counts the run's checkpoints from 0. The state snapshot and
    the result are loaded when asked for. `behind` is 0 if it has a state of its own; otherwise so many steps have run since
    the nearest snapshot before it.
    """

    id: str
    index: int
    run: str
    workflow: str | None
    name: str | None
    step: str | None
    node: str | None
    next_node: str | None
    time: datetime
    metadata: Mapping[str, Any]
    pinned: bool
    stored_bytes: int
    entry: str
    snapshot: str
    behind: int
    log: str
    number: int
    _store: Store = field(repr=False, compare=False)

    def state(self) -> dict[str, Any]:
        """The run's state as it was then, a fresh copy; NotRecorded if no snapshot was taken then."""
        if self.behind:
            raise NotRecorded(
                f"checkpoint {self.id} has no state of its own: the state was too large for a snapshot after every step, or held "
                f"something that can't be kept. To keep a large state at a certain point, call run.checkpoint(name) there"
            )
        state: dict[str, Any] = self.surroundings()["state"]
        return state

    def surroundings(self) -> dict[str, Any]:
        """State and random generators as they were then, or `behind` steps earlier."""
        return {"state": {}, "generators": {}} if not self.snapshot else self._load(self._read(self.snapshot))

    def result(self) -> Any:
        """What the step returned (a generator: the list of its items); NotRecorded if there is no such value (any more)."""
        if not self.entry:
            raise NotRecorded(f"checkpoint {self.id} is no step's: it has a state, no result")
        entry = self._read(self.entry)
        if "items" in entry.meta:
            return list(self._items(entry))
        loaded = self._load(entry)
        return loaded[0] if entry.meta.get("effects") else loaded

    def _items(self, entry: Decoded) -> Iterator[Any]:
        """What a generator yielded."""
        for key in entry.chunks:
            chunk = self._read(key)
            for pickled in self._load(chunk):
                with keeping(self._store, reading=True):
                    item, _ = loads(pickled, chunk.meta.get("main", ""), CallersOwn._make)
                yield item

    def _load(self, entry: Decoded) -> Any:
        with keeping(self._store, reading=True):
            return entry.load(CallersOwn._make)

    def _read(self, key: str) -> Decoded:
        data = self._store.get(key)
        entry = None if data is None else Decoded(data, key=key, secret=secret())
        if entry is None or entry.is_tombstone:
            raise NotRecorded(f"checkpoint {self.id}: {key} was removed")
        return entry

    @property
    def place(self) -> str:
        """Where its entry stands, whatever the home: of two with the same place, the newer counts."""
        return place_of(self.entry)

    @property
    def node_key(self) -> str:
        """The same for all checkpoints of a node, whatever state they read."""
        return self.place.partition("@")[0]

    def proof(self) -> tuple[str, int]:
        """The key of what is kept (the result; of one made by name the state) and its size, its signature verified just now."""
        key = self.entry or self.snapshot
        if not key:
            raise NotRecorded(f"checkpoint {self.id} was made by name while the run had no state")
        self._read(key)
        return key, len(self._store.get(key) or b"")

    def meta(self) -> dict[str, Any]:
        """What was noted of the step with its result; nothing for a checkpoint that is no step's."""
        entry = self._read(self.entry) if self.entry else None
        return {} if entry is None else {**entry.meta, "seconds": entry.seconds, "time": entry.time}

    def as_dict(self) -> dict[str, Any]:
        """What is known of it, for JSON."""
        hidden = ("_store", "entry", "snapshot", "log", "number")
        fields = {name: value for name, value in vars(self).items() if name not in hidden}
        return {**fields, "time": self.time.isoformat(), "metadata": dict(self.metadata)}


class CallersOwn(NamedTuple):
    """Stands in a result for an object that is the caller's own: the step returned (part of) its argument."""

    kind: str
    name: str
    place: int


class Checkpoints(Sequence[Checkpoint]):
    """A run's checkpoints that count, oldest first."""

    def __init__(self, checkpoints: Iterable[Checkpoint]) -> None:
        self._all = list(checkpoints)

    @overload
    def __getitem__(self, index: int) -> Checkpoint: ...
    @overload
    def __getitem__(self, index: slice) -> Checkpoints: ...
    def __getitem__(self, index: int | slice) -> Checkpoint | Checkpoints:
        return Checkpoints(self._all[index]) if isinstance(index, slice) else self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._all)

    def __repr__(self) -> str:
        return f"<{len(self)} checkpoints{f', the last is {self._all[-1].id}' if self._all else ''}>"

    @property
    def first(self) -> Checkpoint | None:
        return self._all[0] if self._all else None

    def latest(self, name: str | None = None) -> Checkpoint | None:
        """The newest, or the newest of a name, node or step."""
        return next((c for c in reversed(self._all) if name is None or name in (c.name, c.node, c.step)), None)

    def get(self, id: str) -> Checkpoint | None:
        """The one with that id (`run:n`)."""
        return next((c for c in self._all if c.id == id), None)

    def named(self, name: str) -> list[Checkpoint]:
        """Those of a name, newest first."""
        return [c for c in reversed(self._all) if c.name == name]

    def of(self, node: str) -> list[Checkpoint]:
        """Those of a node or step, oldest first."""
        return [c for c in self._all if node in (c.node, c.step)]

    def since(self, time: When) -> Checkpoints:
        """Those not older than `time`."""
        return Checkpoints(c for c in self._all if c.time >= aware(time))

    def between(self, start: When, end: When) -> Checkpoints:
        """Those from `start` to `end`, both included."""
        return Checkpoints(c for c in self._all if aware(start) <= c.time <= aware(end))

    def find(self, which: str) -> Checkpoint:
        """The newest that `which` may mean: an id, a name, a node or a step. UsageError if there is none."""
        found = self.get(which) or self.latest(which)
        if found is None:
            known = ", ".join(sorted({c.name or c.step or c.id for c in self._all})) or "none"
            raise UsageError(f"no checkpoint is called {which!r}; there are: {known}")
        return found


def aware(time: When) -> datetime:
    """A moment with its zone: seconds since 1970 in UTC, a datetime without a zone in the local one."""
    if isinstance(time, datetime):
        return time if time.tzinfo else time.astimezone()
    return datetime.fromtimestamp(time, timezone.utc)


def checkpoints_of(store: Store, run_id: str, record: Record) -> Checkpoints:
    """The checkpoints of a run that count, its forebears' included."""
    counted = timeline(store, record.log).checkpoints()
    return Checkpoints(made(store, run_id, record.workflow, each, index) for index, each in enumerate(counted))


def made(store: Store, run_id: str, workflow: str | None, counted: Counted, index: int) -> Checkpoint:
    """The checkpoint that a counted event tells of."""
    event, run_id = counted.event, counted.run or run_id
    step = event if isinstance(event, events.StepCompleted) else None
    name = event if isinstance(event, events.CheckpointSaved) else None
    return Checkpoint(
        id=f"{run_id}:{event.seq}",
        index=index,
        run=run_id,
        workflow=workflow,
        name=name.name if name else None,
        step=step.step if step else None,
        node=step.node if step else None,
        next_node=name.next_node if name else None,
        time=datetime.fromtimestamp(event.time, timezone.utc),
        metadata=name.metadata if name else {},
        pinned=counted.pinned,
        stored_bytes=step.stored_bytes if step else 0,
        entry=step.entry if step else "",
        snapshot=event.snapshot if not isinstance(event, events.SnapshotSaved) else "",
        behind=step.behind if step else 0,
        log=counted.log,
        number=event.seq,
        _store=store,
    )


def usable(checkpoints: Checkpoints, which: str | None) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint meant and what it kept; damaged ones give way to those before. If none is meant: the newest made by name.

    Only a run without named ones goes back to the newest snapshot of all: a program that jumps to `next_node` finds it in
    those it made itself. For a step without a snapshot of its own, the nearest before it serves.
    """
    if which is None:
        newest = [c for c in reversed(checkpoints) if c.snapshot]
        exact = [c for c in newest if not c.behind]
        candidates = [c for c in exact if c.name is not None] or exact or newest
    else:
        wanted = checkpoints.find(which)
        candidates = checkpoints.named(which) if wanted.name == which else [wanted]
    for candidate in candidates:
        taken = _nearest(checkpoints, candidate) if candidate.behind else candidate
        try:
            return taken, taken.surroundings()
        except (StoreError, CodecError, NotRecorded) as error:
            warn(f"checkpoint {taken.id} cannot be used, the one before serves: {error}")
    raise UsageError("there is no checkpoint to restore" + (f" called {which!r}" if which else ""))


def _nearest(checkpoints: Checkpoints, wanted: Checkpoint) -> Checkpoint:
    """The checkpoint whose state is the nearest before a step that has none of its own."""
    about = f"checkpoint {wanted.id} ({wanted.step}) has no state of its own"
    advice = "To keep the state at a certain point, call run.checkpoint(name) there"
    if not wanted.snapshot:
        raise UsageError(f"{about}, and there is no snapshot before it. {advice}")
    before = (c for c in reversed(checkpoints[: wanted.index]) if c.snapshot == wanted.snapshot and not c.behind)
    taken = next(before, wanted)  # its own checkpoint may have been pruned: then `behind` says how old the state is
    whose = f", that of {taken.id} ({taken.name or taken.step})" if taken is not wanted else ""
    warn(f"{about}. Restored the nearest before it{whose}. {advice}")
    return taken
