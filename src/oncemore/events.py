"""Facts about a run, in order. One frozen class per fact; everything else is folded from them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar


def lane() -> str:
    """Where in the program something happens: process, and the thread or task if not the main one."""
    name = threading.current_thread().name
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is not None:
        name = task.get_name()
    return str(os.getpid()) if name == "MainThread" else f"{os.getpid()}/{name}"


@dataclass(frozen=True, kw_only=True)
class Event:
    """A fact. `seq` is its number in the run's log, 0 until it has been written; `time` is in seconds since 1970, UTC."""

    kinds: ClassVar[dict[str, type[Event]]] = {}

    time: float = field(default_factory=time.time)
    lane: str = field(default_factory=lane)
    seq: int = 0

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    def to_json(self) -> bytes:
        """The stored form. `seq` is not in it: the place in the log says it."""
        facts = {name: value for name, value in vars(self).items() if name != "seq"}
        return json.dumps({"event": type(self).__name__, **facts}, separators=(",", ":")).encode()

    @staticmethod
    def from_json(data: bytes, seq: int) -> Event:
        """Read a stored event. Fields that this version does not know are left out; unknown kinds are plain events."""
        facts: dict[str, Any] = json.loads(data)
        kind = Event.kinds.get(facts.pop("event"), Event)
        known = {f.name for f in dataclasses.fields(kind)}
        return kind(**{name: value for name, value in facts.items() if name in known}, seq=seq)


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
class StepCompleted(Event):
    """A step ran to its end and its checkpoint was written in the same transaction."""

    step: str
    node: str
    reason: str
    seconds: float
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, kw_only=True)
class StepFailed(Event):
    """A step raised; it runs again next time."""

    step: str
    node: str
    reason: str
    seconds: float
    error: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class StepNotKept(Event):
    """A step ran to its end, and its result could not be kept."""

    step: str
    node: str
    reason: str
    seconds: float


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
