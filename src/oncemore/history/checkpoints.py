"""The valid checkpoints of a run, from its timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple, Union, overload

from .. import events
from ..codec import Decoded
from ..copies import result_of
from ..errors import CodecError, NotRecorded, StoreError, UsageError, did_you_mean, warn
from ..files.blobs import keeping
from ..identity import Part
from ..records import Record
from ..settings import secret
from ..stores import Store
from .timeline import Counted, suffix_of, timeline

When = Union[float, datetime]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The stored result of a completed node, or the run's state saved under a name or at the end of a scope.

    `id` is `run:n`, where n is the number of its event; `index` counts the run's checkpoints from 0. The state snapshot and
    the result are loaded on demand. `behind` is 0 if the checkpoint has a state of its own; otherwise it is the number of steps
    since the nearest earlier snapshot.
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
        """A copy of the run's state at that time; NotRecorded if no snapshot was taken then."""
        if self.behind:
            raise NotRecorded(
                f"checkpoint {self.id} has no state of its own: the state was too large for a snapshot after every step, or "
                f"contained something that can't be saved. To save a large state at some point, call run.checkpoint(name) there"
            )
        state: dict[str, Any] = self.surroundings()["state"]
        return state

    def surroundings(self) -> dict[str, Any]:
        """The state and random generators at that time, or `behind` steps earlier."""
        return {"state": {}, "generators": {}} if not self.snapshot else self._load(self._read(self.snapshot))

    def result(self) -> Any:
        """The value that the step returned (for a generator, the list of its items); NotRecorded if there is none."""
        if not self.entry:
            raise NotRecorded(f"checkpoint {self.id} does not belong to a step: it has a state() but no result")
        return result_of(self._store, self._read(self.entry), self.step or "the step", self._read)

    def _load(self, entry: Decoded) -> Any:
        with keeping(self._store, reading=True):
            return entry.load(CallersOwn._make)

    def _read(self, key: str) -> Decoded:
        data = self._store.get(key)
        entry = None if data is None else Decoded(data, key=key, secret=secret())
        if entry is None or entry.is_tombstone:
            raise NotRecorded(f"the entry {key} of checkpoint {self.id} was removed")
        return entry

    @property
    def suffix(self) -> str:
        """The key of its entry without the prefix. Of two checkpoints with the same suffix, only the newer is valid."""
        return suffix_of(self.entry)

    @property
    def node_key(self) -> str:
        """Identifies the node: equal for all its checkpoints, whatever state they read."""
        return self.suffix.partition("@")[0]

    def proof(self) -> tuple[str, int]:
        """The key and size of its entry (the result, or the state of a named one), after verifying the signature."""
        key = self.entry or self.snapshot
        if not key:
            raise NotRecorded(f"checkpoint {self.id} has no entry: the run had no state when it was saved")
        self._read(key)
        return key, len(self._store.get(key) or b"")

    def meta(self) -> dict[str, Any]:
        """The metadata stored with a step's result; empty if the checkpoint does not belong to a step."""
        entry = self._read(self.entry) if self.entry else None
        return {} if entry is None else {**entry.meta, "seconds": entry.seconds, "time": entry.time}

    def arguments(self) -> str:
        """The arguments of the step's call as short text, redacted ones as such; empty if there is none.

        Reads the node's own small entry where there is one, not the result.
        """
        for key in (self.entry.partition("@")[0], self.entry) if self.entry else ():
            meta = self._read(key).meta
            if "arguments" in meta:
                return shown_arguments(meta)
        return ""

    def as_dict(self) -> dict[str, Any]:
        """The public fields, for JSON."""
        hidden = ("_store", "entry", "snapshot", "log", "number")
        fields = {name: value for name, value in vars(self).items() if name not in hidden}
        return {**fields, "time": self.time.isoformat(), "metadata": dict(self.metadata)}


def shown_arguments(meta: Mapping[str, Any]) -> str:
    """The arguments of a recorded call as short text. Redacted ones stay redacted."""
    shown, digests = meta.get("shown", {}), meta.get("arguments", {})
    texts = {name: Part.from_json(digest, shown.get(name, "")).shown for name, digest in digests.items()}
    return ", ".join(f"{name.removeprefix('argument ').strip('`')}={text or '?'}" for name, text in texts.items())


class CallersOwn(NamedTuple):
    """Placeholder in a result for an object of the caller: the step returned its argument or a part of it."""

    kind: str
    name: str
    position: int


class Checkpoints(Sequence[Checkpoint]):
    """A run's valid checkpoints, oldest first."""

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
        return f"<{len(self)} checkpoints{f', last {self._all[-1].id}' if self._all else ''}>"

    @property
    def first(self) -> Checkpoint | None:
        return self._all[0] if self._all else None

    def latest(self, name: str | None = None) -> Checkpoint | None:
        """The newest checkpoint, or the newest with this name, node or step."""
        return next((c for c in reversed(self._all) if name is None or name in (c.name, c.node, c.step)), None)

    def get(self, id: str) -> Checkpoint | None:
        """The one with that id (`run:n`)."""
        return next((c for c in self._all if c.id == id), None)

    def named(self, name: str) -> list[Checkpoint]:
        """Those of a name, newest first."""
        return [c for c in reversed(self._all) if c.name == name]

    def of(self, node: str) -> list[Checkpoint]:
        """The checkpoints of a node or step, oldest first."""
        return [c for c in self._all if node in (c.node, c.step)]

    def since(self, time: When) -> Checkpoints:
        """The checkpoints not older than `time`."""
        return Checkpoints(c for c in self._all if c.time >= aware(time))

    def between(self, start: When, end: When) -> Checkpoints:
        """The checkpoints from `start` to `end`, both included."""
        return Checkpoints(c for c in self._all if aware(start) <= c.time <= aware(end))

    def find(self, which: str) -> Checkpoint:
        """The newest checkpoint with this id, name, node or step. UsageError if there is none."""
        found = self.get(which) or self.latest(which)
        if found is None:
            known = ", ".join(sorted({c.name or c.step or c.id for c in self._all})) or "none"
            hint = did_you_mean(which, (name for c in self._all for name in (c.name, c.step, c.node, c.id) if name))
            raise UsageError(f"there is no checkpoint {which!r}.{hint or f' Existing checkpoints: {known}'}")
        return found


def aware(time: When) -> datetime:
    """A datetime with a time zone. Numbers are seconds since 1970; a datetime without a zone is local time."""
    if isinstance(time, datetime):
        return time if time.tzinfo else time.astimezone()
    return datetime.fromtimestamp(time, timezone.utc)


def checkpoints_of(store: Store, run_id: str, record: Record) -> Checkpoints:
    """The valid checkpoints of a run, inherited ones included."""
    counted = timeline(store, record.log).checkpoints()
    return Checkpoints(made(store, run_id, record.workflow, each, index) for index, each in enumerate(counted))


def made(store: Store, run_id: str, workflow: str | None, counted: Counted, index: int) -> Checkpoint:
    """The checkpoint that a valid event recorded."""
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
    """The checkpoint to restore, with its surroundings. A damaged one is skipped in favor of the one before it.

    By default, it is the newest named one, because a program that jumps to `next_node` finds it only there; in a run without
    named checkpoints, the newest snapshot. A step without a snapshot of its own uses the nearest earlier one.
    """
    if which is None:
        newest = [c for c in reversed(checkpoints) if c.snapshot]
        exact = [c for c in newest if not c.behind]
        candidates = [c for c in exact if c.name is not None] or exact or newest
    else:
        wanted = checkpoints.find(which)
        candidates = checkpoints.named(which) if wanted.name == which else [wanted]
    for candidate in candidates:
        chosen = _nearest(checkpoints, candidate) if candidate.behind else candidate
        try:
            return chosen, chosen.surroundings()
        except (StoreError, CodecError, NotRecorded) as error:
            warn(f"checkpoint {chosen.id} cannot be restored, so an earlier one is used: {error}")
    raise UsageError(f"there is no usable checkpoint {which!r}" if which else "there is no checkpoint to restore")


def _nearest(checkpoints: Checkpoints, wanted: Checkpoint) -> Checkpoint:
    """The checkpoint with the nearest state before a step that has none of its own."""
    about = f"checkpoint {wanted.id} ({wanted.step}) has no state of its own"
    advice = "To save the state at a certain point, call run.checkpoint(name) there"
    if not wanted.snapshot:
        raise UsageError(f"{about}, and there is no earlier snapshot. {advice}")
    before = (c for c in reversed(checkpoints[: wanted.index]) if c.snapshot == wanted.snapshot and not c.behind)
    nearest = next(before, wanted)  # the snapshot's checkpoint may have been pruned; its state can still be used
    source = f", that of {nearest.id} ({nearest.name or nearest.step})" if nearest is not wanted else ""
    warn(f"{about}. Restored the nearest earlier state{source}. {advice}")
    return nearest
