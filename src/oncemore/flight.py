"""Leases: one computation of one node, however many threads, tasks and processes ask for it.

Within a process a table of leases tells threads and tasks apart; between processes the store's own locks do, which the
operating system frees when their owner dies. Waiting is described (`Pause`, `Wait`), not done, here: the same path
serves functions and coroutines, and `drive` or `drive_async` at its edge does the waiting.
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
from contextvars import copy_context
from typing import Any, Generic, Protocol, TypeVar

from .errors import StoreError, log, trimmed, warn
from .events import lane, on_behalf_of
from .stores import Bytes, Hold, Store

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
_LOOK_AGAIN = 1.0  # seconds until a waiter makes sure that there is still somebody to wait for
_REPORT_AFTER = 30.0  # seconds until a waiter says what it waits for
WAITING = "waiting/"  # where the marks of calls are that wait for a lease


class Request(Protocol):
    """Something a path wants done before it goes on: at once in a function, awaited in a coroutine."""

    def now(self) -> Any: ...

    async def later(self) -> Any: ...


Path = Generator[Request, Any, T]


class Blocking(Generic[T]):
    """Call something that may wait for a disk or a network. It has returned, even for one who was cancelled meanwhile."""

    def __init__(self, function: Callable[..., T], *args: Any) -> None:
        self._function, self._args = function, args

    def now(self) -> T:
        return self._function(*self._args)

    async def later(self) -> T:
        import asyncio  # a coroutine runs in a program that has loaded it; others need not wait for that

        # a future, not a task: a loop that is shut down cancels tasks
        context = copy_context()
        context.run(on_behalf_of.set, lane())
        work = asyncio.get_running_loop().run_in_executor(_threads(), context.run, self.now)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done():  # a thread cannot be stopped: it must not go on behind the back of who cancelled
                try:
                    await asyncio.wait([work])
                except asyncio.CancelledError:
                    pass  # told once more; the first is thrown on
            raise


class Pause:
    """Let some time pass."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> None:
        time.sleep(self._seconds)

    async def later(self) -> None:
        import asyncio

        await asyncio.sleep(self._seconds)


class Completion:
    """Tells waiters of this process that `owner` has finished. It has, too, if nobody has `owner` any more."""

    # Without a lock, which Ctrl-C might leave half taken.

    def __init__(self, owner: object) -> None:
        self._owner = weakref.ref(owner)
        self._ended = False
        self._waiting: list[Callable[[], object]] = []

    @property
    def over(self) -> bool:
        return self._ended or self._owner() is None

    def then(self, notify: Callable[[], object]) -> None:
        """Call `notify` when it ends, in whichever thread that is; maybe twice."""
        self._waiting.append(notify)  # first: else it might end in between, and nobody would be notified
        if self._ended:
            notify()

    def end(self) -> None:
        """Notify the waiters. To be called again if Ctrl-C came in between."""
        self._ended = True
        for notify in self._waiting:
            notify()


class Wait:
    """Wait until another thread or task of this process has finished with a key, for a second at most. Whether it has."""

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
        return self._waiter.acquire(timeout=_LOOK_AGAIN) or self._completion.over

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
                await asyncio.wait_for(self._waiter.wait(), _LOOK_AGAIN)
        return self._waiter.is_set() or self._completion.over


class Thrown:
    """An error on its way through a path: Python may give it another context where a generator raises it again."""

    def __init__(self, error: BaseException) -> None:
        self.error, self._context = error, error.__context__

    @staticmethod
    def restore(thrown: Thrown | None, error: BaseException) -> None:
        """Make it what the user's function raised, without the frames of ours that lead there."""
        if thrown is not None and error is thrown.error:
            error.__context__ = thrown._context
        error.__traceback__ = trimmed(error.__traceback__)


def drive(path: Path[T]) -> T:
    """Follow a path to its end in this thread."""
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
        path.close()  # Ctrl-C may have come between two requests
        if thrown is not None and isinstance(thrown.error, StopIteration) and error.__cause__ is thrown.error:
            raise thrown.error from None  # which a generator that passes it on makes a RuntimeError of
        Thrown.restore(thrown, error)
        raise error  # not a bare `raise`: Python 3.10 puts the whole traceback back


async def drive_async(path: Path[T]) -> T:
    """Follow a path to its end in this task; the event loop goes on meanwhile."""
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
        raise error  # not a bare `raise`: Python 3.10 puts the whole traceback back


class Lease(Generic[T]):
    """The right to compute one key: until it is released, or until nobody has it any more because Ctrl-C came first.

    `hold` keeps other processes away (None: the store could not be asked), `entry` stands under the key now, and `seen` is
    what the caller made of that.
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
        """Take the key for this lease; or whose completion to wait for."""
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
                # not in a child that was forked while its parent had the lease
                if _taken.get(self._key) is self.completion:
                    self.completion.end()
                    del _taken[self._key]


_taken: dict[tuple[str, str], Completion] = {}  # by store and key: what is being computed in this process
_mutex = threading.RLock()


class Waiting:
    """A call that waits for a lease while it holds others: those of the nodes `around` it.

    Two such calls may wait for each other, in threads, tasks or processes, and so may more of them in a circle. So a call that
    has waited for a second leaves a mark in the store that says what it holds and what it waits for. If the marks form a
    circle, the call with the lowest mark goes on without the lease.
    """

    def __init__(self, store: Store, key: str, around: Sequence[str]) -> None:
        self._store, self._key, self._around = store, key, around
        self._mark = f"{WAITING}{os.urandom(8).hex()}"
        self._hold: Hold | None = None
        self._began = time.monotonic()
        self._reported = False

    def may_go_on(self, where: str) -> bool:
        """Whether this call is to compute without the lease, since nobody could go on otherwise."""
        if time.monotonic() - self._began >= _REPORT_AFTER and not self._reported:
            self._reported = True
            warn(f"still waiting for {self._key} after {_REPORT_AFTER:.0f} s: {where} is computing it")
        if not self._around:
            return False  # it holds nothing that anybody could wait for
        try:
            if self._hold is None:
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
    store: Store, key: str, look: Callable[[Bytes | None], T], *, around: Sequence[str] = (), required: bool = False
) -> Path[Lease[T] | None]:
    """The lease on `key`, with what `look` makes of the entry there; None after another of this process had it.

    A store that cannot be asked keeps nobody from computing, unless the lease is `required`. Neither does a call that waits for
    one of the nodes `around` this one (see `Waiting`).
    """
    lease, pause = Lease[T](store, key), _FIRST_PAUSE
    waiting, next_look = Waiting(store, key, around), time.monotonic() + _LOOK_AGAIN

    def take() -> bool:
        try:
            lease.hold = store.hold(key)
        except StoreError as error:
            if required:
                raise
            warn(f"could not take the lease on {key}; others may compute it, too: {error}")
        else:
            if lease.hold is None:
                return False
        lease.seen = look(lease.entry)
        return True

    def go_on(where: str) -> bool:
        if not waiting.may_go_on(where):
            return False
        if required:
            raise StoreError(f"{key} is being computed by {where}, which waits for a step around this call: a deadlock")
        warn(f"{key} is being computed by {where}, which waits for a step around this call. It is computed here, too")
        lease.seen = look(store.get(key))
        return True

    try:
        other = lease.take()
        if other is not None:
            wait = Wait(other)
            while not (yield wait):
                if (yield Blocking(go_on, "another thread or task")):
                    return lease
            return None
        while not (yield Blocking(take)):
            yield Pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_AGAIN
                if (yield Blocking(go_on, "another process")):
                    return lease
        return lease
    except BaseException:
        lease.release()
        raise
    finally:
        waiting.end()


_MOST_THREADS = 32  # store operations of coroutines that are under way at once
_pool: list[ThreadPoolExecutor] = []


def _threads() -> ThreadPoolExecutor:
    """Where coroutines wait for the store: threads of our own, since a loop has few and the program may need them."""
    if not _pool:
        _pool.append(ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="oncemore-store"))
    return _pool[0]


def _after_fork() -> None:
    """A forked child has none of the threads that hold leases or wait for stores."""
    global _mutex
    _mutex = threading.RLock()
    _taken.clear()
    _pool.clear()


os.register_at_fork(after_in_child=_after_fork)
