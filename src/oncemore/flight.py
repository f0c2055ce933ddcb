"""Leases: a node is computed once, however many threads, tasks and processes call it at the same time.

Within a process, a table of leases decides which thread or task computes; between processes, the store's locks do, which
the operating system frees when their owner dies. A path never waits itself: it yields requests (`Blocking`, `Pause`,
`Wait`), which `drive` carries out for functions and `drive_async` awaits for coroutines.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, Protocol, TypeVar

from .errors import StoreError, trimmed, warn
from .events import lane, on_behalf_of
from .stores import Bytes, Hold, Store

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
_CHECK_OWNER_EVERY = 1.0  # seconds after which a waiter checks that the lease still has an owner


class Request(Protocol):
    """What a path needs done before it continues: `now` for a function, `later`, awaited, for a coroutine."""

    def now(self) -> Any: ...

    async def later(self) -> Any: ...


Path = Generator[Request, Any, T]


class Blocking(Generic[T]):
    """A request to call something that may wait for a disk or network. It always runs to its end, even if cancelled."""

    def __init__(self, function: Callable[..., T], *args: Any) -> None:
        self._function, self._args = function, args

    def now(self) -> T:
        return self._function(*self._args)

    async def later(self) -> T:
        import asyncio  # here: a program without coroutines need not import it

        # A future, not a task: a loop that shuts down cancels tasks.
        context = copy_context()
        context.run(on_behalf_of.set, lane())
        work = asyncio.get_running_loop().run_in_executor(_threads(), context.run, self.now)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done():  # a thread can't be stopped, and must not keep working after the cancellation
                try:
                    await asyncio.wait([work])
                except asyncio.CancelledError:
                    pass  # cancelled once more; the first cancellation is raised below
            raise


class Pause:
    """A request to sleep."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> None:
        time.sleep(self._seconds)

    async def later(self) -> None:
        import asyncio

        await asyncio.sleep(self._seconds)


class Completion:
    """Signals waiters in this process that `owner` has finished, or has been garbage-collected."""

    # No lock: Ctrl-C could leave it locked.

    def __init__(self, owner: object) -> None:
        self._owner = weakref.ref(owner)
        self._ended = False
        self._waiting: list[Callable[[], object]] = []

    @property
    def over(self) -> bool:
        return self._ended or self._owner() is None

    def then(self, notify: Callable[[], object]) -> None:
        """Call `notify` when it ends, in whichever thread that happens; possibly twice."""
        self._waiting.append(notify)  # before the check, so that an end in between is not missed
        if self._ended:
            notify()

    def end(self) -> None:
        """Notify the waiters. Safe to repeat if Ctrl-C interrupted it."""
        self._ended = True
        for notify in self._waiting:
            notify()


class Wait:
    """A request to wait until another thread or task of this process has finished with a key."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion

    def now(self) -> None:
        waiting = threading.Lock()  # not an Event: code that interrupts this very wait may release the lease
        waiting.acquire()

        def notify() -> None:
            with suppress(RuntimeError):  # already released
                waiting.release()

        self._completion.then(notify)
        while not waiting.acquire(timeout=_CHECK_OWNER_EVERY) and not self._completion.over:
            pass

    async def later(self) -> None:
        import asyncio

        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits any more
                loop.call_soon_threadsafe(over.set)

        self._completion.then(notify)
        while not (over.is_set() or self._completion.over):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(over.wait(), _CHECK_OWNER_EVERY)


class Thrown:
    """An error that passes through a path, with its original context: Python may replace that when a generator re-raises."""

    def __init__(self, error: BaseException) -> None:
        self.error, self._context = error, error.__context__

    @staticmethod
    def restore(thrown: Thrown | None, error: BaseException) -> None:
        """Give `error` back its context, and remove our own frames from its traceback."""
        if thrown is not None and error is thrown.error:
            error.__context__ = thrown._context
        error.__traceback__ = trimmed(error.__traceback__)


def drive(path: Path[T]) -> T:
    """Run a path to its end in this thread."""
    thrown: Thrown | None = None
    try:
        request = next(path)
        while True:
            try:
                answer = request.now()
            except BaseException as error:
                thrown = Thrown(error)
                request = path.throw(error)
            else:
                request = path.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    except BaseException as error:
        path.close()  # Ctrl-C may have hit between two requests
        if thrown is not None and isinstance(thrown.error, StopIteration) and error.__cause__ is thrown.error:
            raise thrown.error from None  # a generator that re-raises it turns it into a RuntimeError
        Thrown.restore(thrown, error)
        raise error  # not a bare `raise`: Python 3.10 would restore the whole traceback


async def drive_async(path: Path[T]) -> T:
    """Run a path to its end in this task; the event loop keeps running."""
    thrown: Thrown | None = None
    try:
        request = next(path)
        while True:
            try:
                answer = await request.later()
            except BaseException as error:
                thrown = Thrown(error)
                request = path.throw(error)
            else:
                request = path.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    except BaseException as error:
        path.close()
        Thrown.restore(thrown, error)
        raise error  # not a bare `raise`: Python 3.10 would restore the whole traceback


class Lease(Generic[T]):
    """The right to compute one key, until it is released, or garbage-collected because Ctrl-C came first.

    `hold` is the store's lock against other processes (None if the store failed), `entry` is what the key held when the
    lease was acquired, and `seen` is what the caller's `look` returned for it.
    """

    hold: Hold | None = None
    seen: T

    def __init__(self, store: Store, key: str) -> None:
        self.completion = Completion(self)
        self._key = (store.url, key)

    @property
    def entry(self) -> Bytes | None:
        return None if self.hold is None else self.hold.entry

    def take(self) -> Completion | None:
        """Claim the key within this process; otherwise return the completion to wait for."""
        with _mutex:
            other = _taken.get(self._key)
            if other is None or other.over:
                _taken[self._key] = self.completion
                return None
            return other

    def release(self) -> None:
        try:
            if self.hold is not None:
                self.hold.release()
        finally:
            with _mutex:
                if _taken.get(self._key) is self.completion:  # not in a child forked while its parent had the lease
                    self.completion.end()
                    del _taken[self._key]


_taken: dict[tuple[str, str], Completion] = {}  # by store and key: the computations in this process
_mutex = threading.RLock()


def acquire(
    store: Store, key: str, look: Callable[[Bytes | None], T], *, required: bool = False
) -> Path[Lease[T] | None]:
    """Acquire the lease on `key` and call `look` with the entry there; None after waiting for another owner in this process.

    If the store fails, a warning says so and the lease is granted anyway, unless it is `required`.
    """
    lease, pause = Lease[T](store, key), _FIRST_PAUSE

    def take() -> bool:
        try:
            lease.hold = store.hold(key)
        except StoreError as error:
            if required:
                raise
            warn(f"could not acquire the lease on {key}, so other processes may compute it, too: {error}")
        else:
            if lease.hold is None:
                return False
        lease.seen = look(lease.entry)
        return True

    try:
        other = lease.take()
        if other is not None:
            yield Wait(other)
            return None
        while not (yield Blocking(take)):
            yield Pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return lease
    except BaseException:
        lease.release()
        raise


_MOST_THREADS = 32  # concurrent store operations of coroutines
_pool: list[ThreadPoolExecutor] = []


def _threads() -> ThreadPoolExecutor:
    """Threads in which coroutines wait for the store. Not the event loop's: those are few, and the program may need them."""
    if not _pool:
        _pool.append(ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="oncemore-store"))
    return _pool[0]


def _after_fork() -> None:
    """Threads that hold leases or wait for stores do not exist in a forked child."""
    global _mutex
    _mutex = threading.RLock()
    _taken.clear()
    _pool.clear()


os.register_at_fork(after_in_child=_after_fork)
