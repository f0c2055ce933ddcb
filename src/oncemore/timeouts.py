"""Time limits: how the body of a step ends when it takes longer than `timeout=`.

A coroutine is cancelled. A plain function in the main thread is interrupted by a timer signal, as by Ctrl-C. Python can't
interrupt any other thread, so there the body gets a thread of its own, which is abandoned when the time is up: whatever it
calls goes on to its end, but it can't reach the run any more (see `check`). The same happens in the main thread if the program
uses the signal or the timer itself, or if the system lacks them.

Inside the body, a timeout is not an `Exception`: neither the body's own `except Exception` nor an inner step takes it
for an ordinary failure. Outside, it is a `StepTimeout`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from .errors import StepTimeout

T = TypeVar("T")


class Expired(BaseException):
    """Raised in a body whose time is up."""

    def __init__(self, limit: Limit) -> None:
        super().__init__()
        self.limit = limit


class Limit:
    """The time limit of one try at a node."""

    def __init__(self, node: str, seconds: float) -> None:
        self._node, self._seconds = node, seconds
        self._deadline = 0.0
        self._passed = False  # whether the body was interrupted
        self.error: StepTimeout | None = None  # what `call` or `wait_for` raised because the time was up
        self._abandoned = False
        self._around = _of_body.get()
        self._thread: threading.Thread | None = None

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for the body any more, or for one around it."""
        return self._abandoned or (self._around is not None and self._around.abandoned)

    @property
    def running_late(self) -> bool:
        """Whether the body was abandoned and is still running."""
        return self._abandoned and self._thread is not None and self._thread.is_alive()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function. `StepTimeout` if it takes longer."""
        self._deadline = time.monotonic() + self._seconds
        try:
            value = self._interruptibly(function) if _can_interrupt() else self._in_thread(function)
        except Expired as expired:
            if expired.limit is not self:
                raise  # the time of a step around this one
            raise self._too_late().with_traceback(expired.__traceback__) from None
        except Exception as error:
            if self._passed:  # the body turned the interruption into this
                raise self._too_late() from error
            raise
        return self._in_time(value)

    async def wait_for(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await a coroutine function. `StepTimeout` if it takes longer."""
        import asyncio  # here: a program without coroutines need not import it

        task: Any = asyncio.current_task()
        others = task.cancelling() if hasattr(task, "cancelling") else 0  # Python 3.11
        self._deadline = time.monotonic() + self._seconds

        def expire() -> None:
            self._passed = True
            task.cancel()

        timer = asyncio.get_running_loop().call_later(self._seconds, expire)
        try:
            value = await function()
        except (Exception, asyncio.CancelledError) as error:
            if not self._passed or (hasattr(task, "uncancel") and task.uncancel() > others):
                raise
            if isinstance(error, Exception):
                raise self._too_late() from error
            raise self._too_late().with_traceback(error.__traceback__) from None
        finally:
            timer.cancel()
        if self._passed and hasattr(task, "uncancel"):
            task.uncancel()  # the body swallowed the cancellation
        return self._in_time(value)

    def _in_time(self, value: T) -> T:
        """The value of a body that returned. `StepTimeout` if that was too late."""
        if time.monotonic() >= self._deadline:
            raise self._too_late()
        return value

    def _too_late(self) -> StepTimeout:
        self.error = StepTimeout(self._node, self._seconds)
        return self.error

    def _interruptibly(self, function: Callable[[], T]) -> T:
        try:
            try:
                _interruptible.append(self)
                _set_timer()
                return function()
            finally:
                self._leave()
        except Expired:
            self._leave()  # the signal may have come in the line above
            raise

    def _leave(self) -> None:
        if self in _interruptible:  # in a forked child it is not
            del _interruptible[_interruptible.index(self) :]  # with those whose own cleanup was interrupted
            _set_timer()

    def _in_thread(self, function: Callable[[], T]) -> T:
        context, outcome = copy_context(), Future[T]()
        context.run(_of_body.set, self)

        def body() -> None:
            try:
                outcome.set_result(context.run(function))
            except BaseException as error:
                outcome.set_exception(error)

        # A daemon: an abandoned body does not keep the process alive. The same name: events show where the call was made.
        self._thread = threading.Thread(target=body, name=threading.current_thread().name, daemon=True)
        self._thread.start()
        try:
            wait([outcome], self._seconds)
        finally:
            self._abandoned = not outcome.done()  # too late, or Ctrl-C
        if self._abandoned:
            self._passed = True
            raise Expired(self)
        here = copy_context()
        for variable, value in context.items():  # what the body set, the caller sees, as after an ordinary call
            if variable is not _of_body and (variable not in here or here[variable] is not value):
                variable.set(value)
        return outcome.result()


_of_body: ContextVar[Limit | None] = ContextVar("oncemore_limit", default=None)  # in a thread that may be abandoned


def check() -> None:
    """End an abandoned body, since it is about to use the run. For all others, nothing happens."""
    limit = _of_body.get()
    if limit is not None and limit.abandoned:
        raise Expired(limit)


# -- the timer signal: one for the process, used for all limits of bodies in the main thread

_interruptible: list[Limit] = []  # outermost first


def _can_interrupt() -> bool:
    """Whether this is the main thread, and neither signal nor timer are used by the program."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return False
    if _interruptible:
        return signal.getsignal(signal.SIGALRM) is _ring
    return signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and not any(signal.getitimer(signal.ITIMER_REAL))


def _set_timer() -> None:
    """Set the timer to the next deadline; without any, leave signal and timer as they were."""
    if signal.getsignal(signal.SIGALRM) not in (signal.SIG_DFL, _ring):
        return  # the body has set a handler of its own
    pending = [limit._deadline for limit in _interruptible if not limit._passed]
    if _interruptible:
        signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, max(1e-6, min(pending) - time.monotonic()) if pending else 0)
    if not _interruptible:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _ring(number: int, frame: object) -> None:
    now = time.monotonic()
    due = next((limit for limit in _interruptible if limit._deadline <= now and not limit._passed), None)
    if due is not None:
        due._passed = True
    _set_timer()
    if due is not None:
        raise Expired(due)


def _after_fork() -> None:
    """A forked child has neither the timer nor the threads; what it runs is not limited by the parent's steps."""
    _interruptible.clear()


os.register_at_fork(after_in_child=_after_fork)
