"""The current run, and the enclosing steps, of each thread and task.

A task inherits both through context variables. A new thread has no context variables, so `threading.Thread.start` and
`ThreadPoolExecutor.submit` are wrapped: they note which step called them, and the work in the other thread belongs to it. Only
oncemore's own variables are passed on, not those of the script.
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

from . import timeouts

if TYPE_CHECKING:
    from .rehearsal.dry_run import Look
    from .session import Session

    def wrap_function_wrapper(target: object, name: str, wrapper: Callable[..., Any]) -> object: ...

else:
    from wrapt import wrap_function_wrapper

T = TypeVar("T")

_NOT_SET: Any = object()
_current: ContextVar[Session | None] = ContextVar("oncemore_run", default=_NOT_SET)  # not set outside of any scope
rehearsal: Look | None = None  # during a dry run (see rehearsal/dry_run.py)
opened: dict[Session, tuple[Session | None, int]] = {}  # the runs open in this process: their outer runs and threads
declared: set[str] = set()  # the names of all steps and loops that this process has met
engaged: set[object] = set()  # references to active runs and dry runs; without any, a call is a plain function call


def engage(keeper: object) -> None:
    """Treat calls as steps while `keeper` exists, even after its scope has closed: a task may go on."""
    engaged.add(weakref.ref(keeper, engaged.discard))


# -- the current run


def current_session() -> Session | None:
    """The run whose scope this thread or task is in; None outside of any scope."""
    timeouts.check()
    run = _current.get()
    if run is not _NOT_SET:
        return run
    origin = _origin()
    return None if origin is None else origin.run


def session_here(*, sends: bool = False) -> Session | None:
    """The run of a step that is called here or, with `sends`, pickled here.

    A thread of a pool is in no scope. It belongs to the innermost open run, if that is unambiguous. A process pool pickles
    what it sends in a thread of its own, which serves all runs; so with `sends`, it does not matter who started the thread.
    """
    timeouts.check()
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


# -- the enclosing steps of a thread or task


class Around(Generic[T]):
    """The stack of items that enclose the code running here, outermost first: running steps, or objects that belong to them.

    `open` has the items of all threads that have not ended. A task or thread may outlive the step that started it; items that
    have ended enclose it no longer.
    """

    def __init__(self, name: str) -> None:
        self._items: ContextVar[tuple[T, ...] | None] = ContextVar(name, default=None)
        self.open: set[T] = set()
        _all.append(self)

    def get(self) -> tuple[T, ...]:
        """The items that enclose the caller."""
        items = self._items.get()
        if items is None:
            origin = _origin()
            items = () if origin is None else origin.around[self]
        while items and items[-1] not in self.open:
            items = items[:-1]
        return items

    def set(self, items: tuple[T, ...]) -> Token[tuple[T, ...] | None]:
        """Make `items` the enclosing ones. If the last of them is new, it begins."""
        self.open.update(items[-1:])
        return self._items.set(items)

    def reset(self, token: Token[tuple[T, ...] | None]) -> None:
        """Undo `set`. The item that began with it ends."""
        items = self._items.get() or ()
        self._items.reset(token)
        if items[-1:] != (self._items.get() or ())[-1:]:
            self.open.difference_update(items[-1:])

    def add(self, item: T) -> T:
        """The item begins, inside those that enclose it."""
        self.set((*self.get(), item))
        return item

    def remove(self, item: T) -> None:
        """The item ends. Without a token: a loop left by `break` may be closed much later, in another context."""
        self.open.discard(item)
        self._items.set(tuple(each for each in self._items.get() or () if each is not item) or None)

    def is_set(self) -> bool:
        return self._items.get() is not None


def known(*, sends: bool = False) -> bool:
    """Whether the enclosing steps are known. In a thread that works for anybody, they are not.

    With `sends`, it does not matter who started the thread (see `session_here`).
    """
    inside = _current.get() is not _NOT_SET or any(around.is_set() for around in _all)
    return inside or (not sends and _origin() is not None)


class _Origin(NamedTuple):
    """The run and the enclosing items where a thread was started, or work was submitted to a pool."""

    run: Session | None
    around: dict[Around[Any], tuple[Any, ...]]

    def do(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function as if it were called there."""
        tokens = [(around, around._items.set(items)) for around, items in self.around.items()]
        entered = _current.set(self.run) if any(self.around.values()) else None
        try:
            return function(*args, **kwargs)
        finally:
            if entered is not None:
                _current.reset(entered)
            for around, token in tokens:
                around._items.reset(token)  # not `reset`: the items end where they began


_all: list[Around[Any]] = []
# The threads that steps started, with their origins. Weak: a thread of a pool may live much longer than the step.
_started: weakref.WeakKeyDictionary[threading.Thread, Callable[[], _Origin]] = weakref.WeakKeyDictionary()
_any_started = False


def _origin() -> _Origin | None:
    """Where this thread was started, if a step did that and has not ended."""
    if not _any_started:
        return None
    started = _started.get(threading.current_thread())
    origin = None if started is None else started()
    return origin if origin is not None and any(origin.around.values()) else None


def _here() -> _Origin:
    return _Origin(current_session(), {around: around.get() for around in _all})


def _weakly(origin: _Origin) -> Callable[[], _Origin]:
    """A function that returns the origin without what has ended since, and that keeps nothing alive."""
    run = None if origin.run is None else weakref.ref(origin.run)
    weak = {around: [weakref.ref(item) for item in items] for around, items in origin.around.items()}

    def now() -> _Origin:
        found = {around: [ref() for ref in refs] for around, refs in weak.items()}
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
    wrapped(*args, **kwargs)


def _submit(wrapped: Callable[..., Any], pool: ThreadPoolExecutor, args: Any, kwargs: Any) -> Any:
    if args and known():
        args = functools.partial(_here().do, args[0]), *args[1:]
    return wrapped(*args, **kwargs)


wrap_function_wrapper(threading.Thread, "start", _start)
wrap_function_wrapper(ThreadPoolExecutor, "submit", _submit)


def _after_fork() -> None:
    """A forked child has only the thread that forked: steps of other threads do not run here."""
    for around in _all:
        around.open.intersection_update(around.get())


os.register_at_fork(after_in_child=_after_fork)
