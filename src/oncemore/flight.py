"""Leases: a node is computed once, however many threads, tasks and processes call it at the same time.

Within a process, a table of leases decides which thread or task computes; between processes, the store's locks do, which
the operating system frees when their owner dies. A path never waits itself: it yields requests (`Blocking`, `Pause`,
`Wait`), which `drive` carries out for functions and `drive_async` awaits for coroutines.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from .errors import StoreError, log, trimmed, warn
from .events import lane, named, on_behalf_of
from .keys import WAITING
from .stores import Bytes, Hold, Store

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
_CHECK_OWNER_EVERY = 1.0  # seconds after which a waiter checks that the lease still has an owner
_REPORT_AFTER = 30.0  # seconds after which a waiter says what it is waiting for


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


stopping: ContextVar[threading.Event | None] = ContextVar(
    "oncemore_stopping", default=None
)  # set when a map ends early


class Stopped(BaseException):
    """Ends a call that is only waiting, because its map ends early: another call failed, or Ctrl-C."""


class Pause:
    """A request to sleep."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> None:
        event = stopping.get()
        if event is None:
            time.sleep(self._seconds)
        elif event.wait(self._seconds):
            raise Stopped

    async def later(self) -> None:
        import asyncio

        await asyncio.sleep(self._seconds)


class Completion:
    """Signals waiters in this process that `owner` has finished, or has been garbage-collected."""

    # No lock: Ctrl-C could leave it locked.

    def __init__(self, owner: object) -> None:
        self._owner = weakref.ref(owner)
        self._lane = lane()
        self._ended = False
        self._waiting: list[Callable[[], object]] = []

    @property
    def over(self) -> bool:
        return self._ended or self._owner() is None

    def holder(self) -> str:
        """The thread or task that is to finish, for messages."""
        pid, _, name = self._lane.partition("/")
        return f"{f'thread or task {name}' if name else 'the main thread'} of this process ({named(int(pid))})"

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
    """A request to wait, at most a second, until another thread or task of this process has finished with a key.

    The answer says whether it has finished.
    """

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._waiter: Any = None  # one for all waits, so that a long wait leaves no more than one behind

    def now(self) -> bool:
        if self._waiter is None:
            waiting = self._waiter = threading.Lock()  # not an Event: the lease may be released inside this very wait
            waiting.acquire()

            def notify() -> None:
                with suppress(RuntimeError):  # it was released before
                    waiting.release()

            self._completion.then(notify)
        return self._waiter.acquire(timeout=_CHECK_OWNER_EVERY) or self._completion.over

    async def later(self) -> bool:
        import asyncio

        if self._waiter is None:
            loop, over = asyncio.get_running_loop(), asyncio.Event()
            self._waiter = over

            def notify() -> None:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(over.set)

            self._completion.then(notify)
        if not self._completion.over:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._waiter.wait(), _CHECK_OWNER_EVERY)
        return self._waiter.is_set() or self._completion.over


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


def holder_of(store: Store, key: str) -> str:
    """Who holds a key that this thread could not acquire, for messages."""
    holder: Callable[[str], int | None] | None = getattr(store, "holder", None)  # only stores on this machine know it
    pid = None if holder is None else holder(key)
    if pid is None:
        return "another process"
    who = "another thread of this process" if pid == os.getpid() else "another process"
    return f"{who} ({named(pid)})"


class Waiting:
    """A call that waits for a lease while it holds others: those of the nodes `around` it.

    Two such calls may wait for each other, in threads, tasks or processes, and so may more of them in a circle. So a call that
    has waited for a second leaves a mark in the store that says what it holds and what it waits for. If the marks form a
    circle, the call with the lowest mark goes on without the lease.
    """

    def __init__(self, store: Store, key: str, around: Sequence[str]) -> None:
        self._store, self._key, self._around = store, key, around
        self._mark = ""  # its key
        self._hold: Hold | None = None
        self._began = time.monotonic()
        self._reported = False

    def may_go_on(self, what: str, holder: Callable[[], str]) -> bool:
        """Whether this call is to compute without the lease, since nobody could go on otherwise."""
        if time.monotonic() - self._began >= _REPORT_AFTER and not self._reported:
            self._reported = True
            warn(f"still waiting for {what} after {_REPORT_AFTER:.0f} s: {holder()} is computing it")
        if not self._around:
            return False  # it holds nothing that anybody could wait for
        try:
            if self._hold is None:
                self._mark = f"{WAITING}{os.urandom(8).hex()}"
                self._hold = self._store.hold(self._mark)
                mark = json.dumps({"holds": list(self._around), "waits": self._key})
                self._store.commit(put={self._mark: [mark.encode()]})
            found = {key: bytes(data) for key, data in self._store.scan(WAITING) if data is not None}
            live = self._store.held(found)
            self._store.commit(delete=[key for key in found if key not in live])  # of calls that were killed
            marks = {key: json.loads(found[key]) for key in live}
        except (StoreError, ValueError) as error:
            log("looking for calls that wait for each other: %s", error)
            return False
        return self._mark == min(_circle(marks, self._mark), default="")

    def end(self) -> None:
        if self._hold is not None:
            with suppress(StoreError):
                self._store.commit(delete=[self._mark])
            self._hold.release()


def _circle(marks: Mapping[str, Mapping[str, Any]], start: str) -> set[str]:
    """The calls that wait for `start` and that `start` waits for, directly or through others; empty if there are none."""

    def reached(waits_for: Callable[[str, str], bool]) -> set[str]:
        found: set[str] = set()
        pending = [start]
        while pending:
            one = pending.pop()
            more = [other for other in marks if other not in found and waits_for(one, other)]
            found.update(more)
            pending += more
        return found

    def direct(one: str, other: str) -> bool:
        return marks[one]["waits"] in marks[other]["holds"]

    return reached(direct) & reached(lambda one, other: direct(other, one)) if start in marks else set()


def acquire(
    store: Store,
    key: str,
    look: Callable[[Bytes | None], T],
    *,
    name: str = "",
    around: Sequence[str] = (),
    required: bool = False,
) -> Path[Lease[T] | None]:
    """Acquire the lease on `key` and call `look` with the entry there; None after waiting for another owner in this process.

    If the store fails, a warning says so and the lease is granted anyway, unless it is `required`. A call that waits for one of
    the nodes `around` this one does not keep it waiting forever (see `Waiting`).
    """
    lease, pause = Lease[T](store, key), _FIRST_PAUSE
    waiting, next_look = Waiting(store, key, around), time.monotonic() + _CHECK_OWNER_EVERY

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

    def go_on(holder: Callable[[], str]) -> bool:
        if not waiting.may_go_on(name or key, holder):
            return False
        computed = f"{name or key} is being computed by {holder()}, which waits for a step around this call"
        if required:
            raise StoreError(computed)
        warn(f"{computed}. It runs here, too")
        lease.seen = look(store.get(key))
        return True

    try:
        other = lease.take()
        if other is not None:
            wait = Wait(other)
            while not (yield wait):
                if (yield Blocking(go_on, other.holder)):
                    return lease
            return None
        while not (yield Blocking(take)):
            yield Pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _CHECK_OWNER_EVERY
                if (yield Blocking(go_on, partial(holder_of, store, key))):
                    return lease
        return lease
    except BaseException:
        lease.release()
        raise
    finally:
        waiting.end()


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
