"""Inert types: objects that only coordinate or display, such as locks, loggers and progress bars.

Which one a step is given does not change its outcome. Types are recognised by name, so that nothing need be imported;
subclasses have the same category.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...modules import module_of

_LOCKS = "Lock Event Condition Semaphore Barrier"
_CATEGORIES = {
    "lock": {
        "_thread": "lock RLock",
        "threading": "_RLock Condition Event Semaphore Barrier",
        "asyncio.locks": _LOCKS,
        "multiprocessing.synchronize": "SemLock Condition Event",
        "multiprocessing.managers": "AcquirerProxy EventProxy BarrierProxy",
        "anyio": "Lock Event Condition Semaphore CapacityLimiter",
        "trio": "Lock Event Condition Semaphore CapacityLimiter",
        "filelock._api": "BaseFileLock",
        "aiolimiter.leakybucket": "AsyncLimiter",
    },
    "executor": {
        "concurrent.futures._base": "Executor",
        "multiprocessing.pool": "Pool",
        "joblib.parallel": "Parallel",
        "asyncio.events": "AbstractEventLoop",
        "asyncio.taskgroups": "TaskGroup",
    },
    "logger": {
        "logging": "Logger LoggerAdapter Handler",
        "loguru._logger": "Logger",
        "structlog._base": "BoundLoggerBase",
        "structlog._config": "BoundLoggerLazyProxy",
    },
    "display": {
        "tqdm.std": "tqdm",
        "rich.console": "Console",
        "rich.progress": "Progress",
        "rich.live": "Live",
        "rich.status": "Status",
    },
    "context variable": dict.fromkeys(("_contextvars", "contextvars", "builtins"), "ContextVar"),
    "run": {"oncemore.run": "Run"},
}
INERT = {
    f"{module}.{name}": category
    for category, modules in _CATEGORIES.items()
    for module, names in modules.items()
    for name in names.split()
}


T = TypeVar("T")


def once_per_type(function: Callable[[type], T]) -> Callable[[type], T]:
    """Cache a function of types."""
    known: dict[int, tuple[type, T]] = {}  # by id, because a metaclass may define equality

    def cached(kind: type) -> T:
        found = known.get(id(kind))
        if found is None:
            if len(known) > 4096:  # the program keeps making classes
                known.clear()
            found = known[id(kind)] = kind, function(kind)
        return found[1]

    return cached


@once_per_type
def category(kind: type) -> str | None:
    """The category of an inert type; None for other types."""
    return next(filter(None, (INERT.get(f"{module_of(base)}.{base.__qualname__}") for base in kind.__mro__)), None)
