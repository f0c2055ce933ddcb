"""Which run is current, and which steps are being computed around here: for each thread and task.

A task has what was around it where it was made: that is what context variables do. A thread starts without any, so what a step
hands to other threads takes it along: `threading.Thread.start` and `ThreadPoolExecutor.submit` note which step called them.
Only our own variables travel; those of the script stay as Python has them.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from .session import Session

    def wrap_function_wrapper(target: object, name: str, wrapper: Callable[..., Any]) -> object: ...

else:
    from wrapt import wrap_function_wrapper

T = TypeVar("T")

_NOT_SET: Any = object()
_current: ContextVar[Session | None] = ContextVar(
    "oncemore_run", default=_NOT_SET
)  # not set where no scope was entered
rehearsal: Any = None  # a `Look`, while a script is run to look, not to do (see dry_run.py)
opened: dict[
    Session, tuple[Session | None, int]
] = {}  # the runs open in this process: the run around each, and its thread
engaged: set[object] = set()  # references to runs that keep something, and to rehearsals: without any, calls are plain


def engage(keeper: object) -> None:
    """From now on calls may be more than plain ones, as long as `keeper` exists: a task may go on in a scope that was left."""
    engaged.add(weakref.ref(keeper, engaged.discard))


# -- the current run


def current_session() -> Session | None:
    """The run whose scope this thread or task is in, or None."""
    run = _current.get()
    if run is not _NOT_SET:
        return run
    origin = _origin()
    return None if origin is None else origin.run


def session_here(*, sends: bool = False) -> Session | None:
    """The run that a step called here belongs to, or, with `sends`, one that is pickled here.

    Threads of pools enter no scope. While one run is open in the process (or one inside the others), theirs is that. A pool
    pickles what it sends in a thread of its own, which serves all runs, whoever started it.
    """
    run = _current.get()
    if run is not _NOT_SET:
        return run
    origin = None if sends else _origin()
    if origin is not None:
        return origin.run
    runs = dict(opened)
    around = {outer for outer, _ in runs.values()}
    here = [run for run in runs if run not in around]
    if threading.get_ident() in {thread for _, thread in runs.values()}:
        return None
    return here[-1] if len({(run.id, run.store.url) for run in here}) == 1 else None


def enter(run: Session | None) -> Token[Session | None]:
    """Make `run` current in this thread or task."""
    return _current.set(run)


def leave(token: Token[Session | None]) -> None:
    _current.reset(token)


# -- what is around a thread or task


class Around(Generic[T]):
    """What code is inside of, the outermost first: steps that are being computed, or something that belongs to them.

    `open` are all that are not over, in whichever thread. A task, or a thread, may outlive the step that started it; what is
    over is around it no longer.
    """

    def __init__(self, name: str) -> None:
        self._items: ContextVar[tuple[T, ...] | None] = ContextVar(name, default=None)
        self.open: set[T] = set()
        _all.append(self)

    def get(self) -> tuple[T, ...]:
        """What is around here."""
        items = self._items.get()
        if items is None:
            origin = _origin()
            items = () if origin is None else origin.around[self]
        while items and items[-1] not in self.open:
            items = items[:-1]
        return items

    def set(self, items: tuple[T, ...]) -> Token[tuple[T, ...] | None]:
        """From now on `items` are around here; the last of them begins, if it is new."""
        self.open.update(items[-1:])
        return self._items.set(items)

    def reset(self, token: Token[tuple[T, ...] | None]) -> None:
        """Take back what `set` did; what began with it is over."""
        items = self._items.get() or ()
        self._items.reset(token)
        if items[-1:] != (self._items.get() or ())[-1:]:
            self.open.difference_update(items[-1:])

    def is_set(self) -> bool:
        return self._items.get() is not None


def known(*, sends: bool = False) -> bool:
    """Whether it is known what is around here. It is not in a thread that works for whoever comes.

    With `sends`, who started the thread does not count (see `session_here`).
    """
    inside = _current.get() is not _NOT_SET or any(around.is_set() for around in _all)
    return inside or (not sends and _origin() is not None)


class _Origin(NamedTuple):
    """What was around where a thread was started, or work for another thread was handed over."""

    run: Session | None
    around: dict[Around[Any], tuple[Any, ...]]

    def do(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do some work as if it were done there."""
        tokens = [(around, around._items.set(items)) for around, items in self.around.items()]
        entered = _current.set(self.run) if any(self.around.values()) else None
        try:
            return function(*args, **kwargs)
        finally:
            if entered is not None:
                _current.reset(entered)
            for around, token in tokens:
                around._items.reset(token)  # it is over where it began, not here


_all: list[Around[Any]] = []
# The threads that steps started, with what was around there. Weak: a thread of a pool may live much longer than the step.
_started: weakref.WeakKeyDictionary[threading.Thread, Callable[[], _Origin]] = weakref.WeakKeyDictionary()
_any_started = False
starting: list[Callable[[threading.Thread], object]] = []  # who is told before a thread starts


def _origin() -> _Origin | None:
    """Where this thread was started, if a step did that which is not over."""
    if not _any_started:
        return None
    started = _started.get(threading.current_thread())
    origin = None if started is None else started()
    return origin if origin is not None and any(origin.around.values()) else None


def _here() -> _Origin:
    return _Origin(current_session(), {around: around.get() for around in _all})


def _weakly(origin: _Origin) -> Callable[[], _Origin]:
    """The origin as far as it is not over."""
    run = None if origin.run is None else weakref.ref(origin.run)
    kept = {around: [weakref.ref(item) for item in items] for around, items in origin.around.items()}

    def now() -> _Origin:
        found = {around: [ref() for ref in refs] for around, refs in kept.items()}
        live = {around: tuple(item for item in items if item in around.open) for around, items in found.items()}
        return _Origin(None if run is None else run(), live)

    return now


def _start(wrapped: Callable[[], None], thread: threading.Thread, args: Any, kwargs: Any) -> None:
    global _any_started
    if any(around.open for around in _all):
        origin = _here()
        if any(origin.around.values()):
            _any_started = True
            _started[thread] = _weakly(origin)
    for tell in starting:
        tell(thread)
    wrapped(*args, **kwargs)


def _submit(wrapped: Callable[..., Any], pool: ThreadPoolExecutor, args: Any, kwargs: Any) -> Any:
    if args and known():
        args = functools.partial(_here().do, args[0]), *args[1:]
    return wrapped(*args, **kwargs)


wrap_function_wrapper(threading.Thread, "start", _start)
wrap_function_wrapper(ThreadPoolExecutor, "submit", _submit)


def _after_fork() -> None:
    """A forked child has only the thread that forked: what others compute is not computed here."""
    for around in _all:
        around.open.intersection_update(around.get())


os.register_at_fork(after_in_child=_after_fork)
