"""What happened in a run, in order: one frozen class per kind of event. All other views of a run are derived from them."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar

from .modules import loaded
from .settings import duration

on_behalf_of: ContextVar[str] = ContextVar("oncemore_helped", default="")  # the lane of the caller, in a helper thread

_encode = json.JSONEncoder(separators=(",", ":")).encode


def to_json(fields: dict[str, Any]) -> bytes:
    """The stored form of events and metadata."""
    return _encode(fields).encode()


def lane() -> str:
    """Where in the program an event happens: the process, and the thread or task unless it is the main thread."""
    if on_behalf_of.get():
        return on_behalf_of.get()
    name = threading.current_thread().name
    asyncio = loaded("asyncio")  # a program that has not imported it has no tasks
    try:
        task = asyncio.current_task() if asyncio else None
    except RuntimeError:  # no event loop runs in this thread
        task = None
    if task is not None:
        name = task.get_name()
    return str(os.getpid()) if name == "MainThread" else f"{os.getpid()}/{name}"


def named(pid: int) -> str:
    """A process of this machine, for messages."""
    return f"pid {pid} on {platform.node()}"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened. `seq` is its number in the run's log, 0 until it is written; `time` is in seconds since 1970."""

    kinds: ClassVar[dict[str, type[Event]]] = {}
    rare: ClassVar[frozenset[str]] = frozenset()  # fields that are stored only if they are not empty

    time: float = field(default_factory=time.time)
    lane: str = field(default_factory=lane)
    seq: int = 0

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    def to_json(self) -> bytes:
        """The stored form, without `seq`, which is in the key."""
        fields = {"event": type(self).__name__, **vars(self)}
        for name in (*self.rare, "seq"):
            if name == "seq" or not fields[name]:
                del fields[name]
        return to_json(fields)

    @staticmethod
    def from_json(data: bytes, seq: int) -> Event:
        """Read a stored event. Fields unknown to this version are dropped; an event of an unknown kind becomes a plain `Event`."""
        fields: dict[str, Any] = json.loads(data)
        kind = Event.kinds.get(fields.pop("event"), Event)
        known = _field_names(kind.__name__)
        return kind(**{name: value for name, value in fields.items() if name in known}, seq=seq)


@cache
def _field_names(kind: str) -> frozenset[str]:
    return frozenset(each.name for each in fields(Event.kinds.get(kind, Event)))


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """A run id was used for the first time."""

    workflow: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunResumed(Event):
    """A scope opened an existing run."""


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """The scope ended normally."""


@dataclass(frozen=True, kw_only=True)
class RunFailed(Event):
    """An exception left the scope."""

    error: str = ""


@dataclass(frozen=True, kw_only=True)
class RunInterrupted(Event):
    """Ctrl-C, exit or cancellation left the scope."""


@dataclass(frozen=True, kw_only=True)
class RunPaused(Event):
    """The scope ended because `run.ask` has no answer yet."""


@dataclass(frozen=True, kw_only=True)
class StepEvent(Event):
    """An event about one node of a step. `fingerprint` consists of the digests of its arguments and its code.

    `scope`: in a worker, the mark of the scope that it works for.
    """

    rare = frozenset({"scope"})

    step: str
    node: str
    fingerprint: str
    scope: str = ""


@dataclass(frozen=True, kw_only=True)
class StepStarted(StepEvent):
    """A step has started. Written only for steps that take a while; of a short one, only its end is written."""


@dataclass(frozen=True, kw_only=True)
class StepCompleted(StepEvent):
    """A step completed. Written in the same transaction as its checkpoint.

    `reason` is one line; `changes` has the details, and `compared_with` is the key of the checkpoint they refer to. `entry`
    is the key of the new checkpoint, `snapshot` that of the run's state after the step, or of the state `behind` steps
    earlier. `replaces`: the node had a checkpoint before.
    """

    rare = StepEvent.rare | {"behind", "changes", "compared_with", "replaces"}

    reason: str
    seconds: float
    raw_bytes: int
    stored_bytes: int
    entry: str
    snapshot: str = ""
    behind: int = 0
    replaces: bool = False
    changes: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    compared_with: str = ""


@dataclass(frozen=True, kw_only=True)
class StepFailed(StepEvent):
    """A step raised an exception; it runs again next time."""

    rare = StepEvent.rare | {"changes", "compared_with"}

    reason: str
    seconds: float
    error: str
    traceback: str
    changes: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    compared_with: str = ""


@dataclass(frozen=True, kw_only=True)
class StepRetried(StepEvent):
    """A try of a step with `retries` raised an exception, and the step is tried again after `wait` seconds.

    `number` is that of the failed try, from 1, and `most` the maximum, 0 if unknown; `seconds` is
    how long it took.
    """

    number: int = 0
    most: int = 0
    error: str = ""
    wait: float = 0.0
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """What happens next: "try 2 of 4 in 3.1 s: TimeoutError: ..."."""
        of = f" of {self.most}" if self.most else ""
        return f"try {self.number + 1}{of} in {duration(self.wait, milliseconds=True)}: {self.error}"


@dataclass(frozen=True, kw_only=True)
class StepNotKept(StepEvent):
    """A step completed, but its result could not be saved: `reason` says why."""

    rare = StepEvent.rare | {"changes", "compared_with"}

    reason: str
    seconds: float
    changes: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    compared_with: str = ""


@dataclass(frozen=True, kw_only=True)
class Asked(StepEvent):
    """`run.ask` had no answer. `step` is the name of the question, `type` the type of the answer if there are no `choices`.

    `snapshot` is the key of the run's state then, or of that `behind` steps earlier.
    """

    rare = frozenset({"behind", "choices", "snapshot"})

    question: str = ""
    choices: list[Any] = field(default_factory=list[Any])
    type: str = "str"
    snapshot: str = ""
    behind: int = 0


@dataclass(frozen=True, kw_only=True)
class StepForgotten(StepEvent):
    """The checkpoint of a node was removed at the user's request.

    `everywhere`: also from what rollbacks can bring back, so that undoing one does not restore it.
    """

    rare = StepEvent.rare | {"everywhere"}

    entry: str
    everywhere: bool = False


@dataclass(frozen=True, kw_only=True)
class StepAdopted(Event):
    """Checkpoints of a step's code `before` are valid for the code `after`: `compared` nodes ran again with equal results."""

    step: str
    before: str
    after: str
    compared: int


@dataclass(frozen=True, kw_only=True)
class StepReused(Event):
    """How often a step was skipped in a scope. Written when the scope ends.

    `seconds_saved` is the time on the clock that the skipped calls had taken; `elsewhere` is how much of it counts for other
    steps, which ran at the same time or were called by one another.
    """

    rare = frozenset({"elsewhere"})

    step: str
    times: int
    seconds_saved: float
    elsewhere: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SnapshotSaved(Event):
    """A loop saved a snapshot of the run's state and generators, after `seen` items."""

    loop: str
    seen: int
    entry: str = ""


@dataclass(frozen=True, kw_only=True)
class StateSaved(Event):
    """The run's state was saved at the end of the scope, because the last step has no snapshot. `snapshot` is its key."""

    snapshot: str


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(StateSaved):
    """The script saved the run's state under a name. `state` is its digest."""

    name: str
    next_node: str | None
    metadata: dict[str, Any]
    state: str
    pinned: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointPinned(Event):
    """A checkpoint was pinned or unpinned. `log`: in a fork, the log of the run that it inherits the checkpoint from."""

    rare = frozenset({"log"})

    checkpoint: int
    pinned: bool
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointsPruned(Event):
    """A retention policy removed checkpoints, given by the numbers of their events."""

    checkpoints: list[int]


@dataclass(frozen=True, kw_only=True)
class RolledBack(Event):
    """Everything after event `to` became invalid. `log`: in a fork, the log of the run that it inherits the event from."""

    rare = frozenset({"log"})

    to: int
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class RollbackUndone(Event):
    """The last rollback was undone: what it had made invalid is valid again, what came after it is not."""


@dataclass(frozen=True, kw_only=True)
class Forked(Event):
    """This run started as a copy of `parent` up to the parent's event `at`.

    `log` is the parent's log, and `until` the number of its last event at the time of the fork: what it forgets later, the
    fork still has. `within` is the log that `at` is a number in, if the parent is a fork itself and inherited that event.
    """

    rare = frozenset({"log", "until", "within"})

    parent: str
    at: int
    log: str = ""
    until: int = 0
    within: str = ""


@dataclass(frozen=True, kw_only=True)
class RunRenamed(Event):
    """The run was renamed. `before` is its previous id."""

    before: str


@dataclass(frozen=True, kw_only=True)
class RunImported(Event):
    """The run was imported from an archive, `without` the results of some checkpoints, given by the numbers of their events."""

    without: list[int] = field(default_factory=list[int])
