"""Facts about a run, in order. One frozen class per fact; everything else is folded from them."""

from __future__ import annotations

import json
import os
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar

from .modules import loaded

on_behalf_of: ContextVar[str] = ContextVar("oncemore_helped", default="")  # the lane that a helping thread works for


_encode = json.JSONEncoder(separators=(",", ":")).encode


def to_json(fields: dict[str, Any]) -> bytes:
    """Facts and metadata as they are stored."""
    return _encode(fields).encode()


def lane() -> str:
    """Where in the program something happens: process, and the thread or task if not the main one."""
    if on_behalf_of.get():
        return on_behalf_of.get()
    name = threading.current_thread().name
    asyncio = loaded("asyncio")  # a program that has not loaded it has no tasks
    try:
        task = asyncio.current_task() if asyncio else None
    except RuntimeError:  # no event loop runs in this thread
        task = None
    if task is not None:
        name = task.get_name()
    return str(os.getpid()) if name == "MainThread" else f"{os.getpid()}/{name}"


@dataclass(frozen=True, kw_only=True)
class Event:
    """A fact. `seq` is its number in the run's log, 0 until it has been written; `time` is in seconds since 1970, UTC."""

    kinds: ClassVar[dict[str, type[Event]]] = {}
    rare: ClassVar[frozenset[str]] = frozenset()  # fields that are stored only if they say something

    time: float = field(default_factory=time.time)
    lane: str = field(default_factory=lane)
    seq: int = 0

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    def to_json(self) -> bytes:
        """The stored form. `seq` is not in it: the place in the log says it."""
        fields = {"event": type(self).__name__, **vars(self)}
        for name in (*self.rare, "seq"):
            if name == "seq" or not fields[name]:
                del fields[name]
        return to_json(fields)

    @staticmethod
    def from_json(data: bytes, seq: int) -> Event:
        """Read a stored event. Fields that this version does not know are left out; unknown kinds are plain events."""
        fields: dict[str, Any] = json.loads(data)
        kind = Event.kinds.get(fields.pop("event"), Event)
        known = _names(kind.__name__)
        return kind(**{name: value for name, value in fields.items() if name in known}, seq=seq)


@cache
def _names(kind: str) -> frozenset[str]:
    """The names of the fields of that kind of event."""
    return frozenset(each.name for each in fields(Event.kinds.get(kind, Event)))


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """A run id was used for the first time."""

    workflow: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunResumed(Event):
    """A scope opened a run that existed already."""


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """The scope was left at its end."""


@dataclass(frozen=True, kw_only=True)
class RunFailed(Event):
    """The scope was left by an exception."""

    error: str = ""


@dataclass(frozen=True, kw_only=True)
class RunInterrupted(Event):
    """The scope was left by Ctrl-C, exit or cancellation."""


@dataclass(frozen=True, kw_only=True)
class StepEvent(Event):
    """About one node of a step. `fingerprint` is the node's identity: the digests of its arguments and of its code."""

    step: str
    node: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class StepStarted(StepEvent):
    """A step has begun. Written only for steps that take a while: a short one's start is in its end."""


@dataclass(frozen=True, kw_only=True)
class StepCompleted(StepEvent):
    """A step ran to its end and its checkpoint was written in the same transaction.

    `changes` and `compared_with` say in full what `reason` says in a line. `entry` is the checkpoint's key in the store,
    `snapshot` that of the run's state after it, or `behind` steps earlier. `replaces` says that the node has had a
    checkpoint before.
    """

    rare = frozenset({"behind", "changes", "compared_with", "replaces"})

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
    """A step raised; it runs again next time."""

    rare = frozenset({"changes", "compared_with"})

    reason: str
    seconds: float
    error: str
    traceback: str
    changes: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    compared_with: str = ""


@dataclass(frozen=True, kw_only=True)
class StepNotKept(StepEvent):
    """A step ran to its end, and its result could not be kept: `reason` says why."""

    rare = frozenset({"changes", "compared_with"})

    reason: str
    seconds: float
    changes: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    compared_with: str = ""


@dataclass(frozen=True, kw_only=True)
class StepForgotten(StepEvent):
    """The checkpoint of a node was removed because somebody asked for it.

    `everywhere`: so was what rollbacks had put aside of it. Undoing them does not bring it back.
    """

    rare = frozenset({"everywhere"})

    entry: str
    everywhere: bool = False


@dataclass(frozen=True, kw_only=True)
class StepAdopted(Event):
    """Checkpoints made by an earlier code of a step count for the present one: `compared` nodes were run again and were equal."""

    step: str
    before: str
    after: str
    compared: int


@dataclass(frozen=True, kw_only=True)
class StepReused(Event):
    """How often a step was skipped in one scope; written once, when the scope ends."""

    step: str
    times: int
    seconds_saved: float


@dataclass(frozen=True, kw_only=True)
class SnapshotSaved(Event):
    """A loop kept the run's state and generators; `seen` items are behind it."""

    loop: str
    seen: int
    entry: str = ""


@dataclass(frozen=True, kw_only=True)
class StateSaved(Event):
    """The run's state was kept when the scope ended, because its last step has none. `snapshot` is the key of what is kept."""

    snapshot: str


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(StateSaved):
    """The script kept the run's state under a name. `state` is the digest of the state."""

    name: str
    next_node: str | None
    metadata: dict[str, Any]
    state: str
    pinned: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointPinned(Event):
    """A checkpoint is (`pinned`) or is no longer kept by the policy `pinned`. `log` is the forebear's that a fork has it from."""

    rare = frozenset({"log"})

    checkpoint: int
    pinned: bool
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointsPruned(Event):
    """These checkpoints, named by the numbers of their events, were removed by a retention policy."""

    checkpoints: list[int]


@dataclass(frozen=True, kw_only=True)
class RolledBack(Event):
    """What came after event `to` does not count any more. `log` is that of the event, if it is a forebear's."""

    rare = frozenset({"log"})

    to: int
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class RollbackUndone(Event):
    """The last rollback was taken back: what it had put aside counts again, what came since does not."""


@dataclass(frozen=True, kw_only=True)
class Forked(Event):
    """This run began as a copy of `parent` up to its event `at`.

    `log` is the parent's and `until` its last event then: it may have forgotten since what it had at `at`. `within` is the log
    that `at` counts in, if that is a forebear's of the parent.
    """

    rare = frozenset({"log", "until", "within"})

    parent: str
    at: int
    log: str = ""
    until: int = 0
    within: str = ""


@dataclass(frozen=True, kw_only=True)
class RunRenamed(Event):
    """The run has another id now."""

    before: str


@dataclass(frozen=True, kw_only=True)
class RunImported(Event):
    """The run came out of an archive. The results of these checkpoints, named by the numbers of their events, did not."""

    without: list[int] = field(default_factory=list[int])
