"""Many calls of one step, several at a time: `run.map`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .errors import UsageError
from .flight import Path, drive, drive_async

if TYPE_CHECKING:
    from .session import Session

OnError = Literal["raise", "collect"]
Progress = AbstractContextManager[Callable[[], None]]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What stands in the place of a result that could not be computed; it is tried again in the next run."""

    index: int
    item: Any
    error: Exception


class Results(list[Any]):
    """The results in the order of the items. Where a call failed, a `Failure` stands; `failures` has them all."""

    @property
    def failures(self) -> list[Failure]:
        return [each for each in self if isinstance(each, Failure)]


def map_items(
    run: Session,
    step: Callable[[Any], Any],
    items: Iterable[Any],
    concurrency: int,
    on_error: OnError,
    name: str | None,
) -> Results | Coroutine[Any, Any, Results]:
    """`step(item)` for every item; a coroutine if the step is one."""
    if concurrency < 1:
        raise UsageError(f"concurrency is at least 1, not {concurrency}")
    if on_error not in ("raise", "collect"):
        raise UsageError(f"on_error is 'raise' or 'collect', not {on_error!r}")
    todo = list(items)
    progress = _progress(run, step, name, len(todo))
    beside = run.beside.map() if concurrency > 1 else nullcontext()
    ahead = _look_ahead(step) if concurrency > 1 else None
    calls = _Calls(step, todo, concurrency, on_error, progress, beside, ahead)
    return _gather(calls) if inspect.iscoroutinefunction(step) else _spread(calls)


class _Calls(NamedTuple):
    """The calls that a map is to make, and how."""

    step: Callable[[Any], Any]
    items: Sequence[Any]
    concurrency: int
    on_error: OnError
    progress: Progress
    beside: AbstractContextManager[None]
    ahead: Callable[[Any], Path[Any]] | None

    def failed(self, index: int, error: Exception) -> Failure:
        """What stands in the place of the result; or the error is raised."""
        if self.on_error == "raise":
            raise error
        return Failure(index=index, item=self.items[index], error=error)

    def one(self, index: int, call: Callable[[], Any], advance: Callable[[], None]) -> Any:
        """The result of one call."""
        try:
            return call()
        except Exception as error:
            return self.failed(index, error)
        finally:
            advance()

    def skip(self, looked: Sequence[Any], advance: Callable[[], None]) -> dict[int, Any]:
        """Skip the calls that can be, in the order in which they ended; their results by place. What raised is called."""
        hits = [(i, hit) for i, hit in enumerate(looked) if hit is not None and not isinstance(hit, BaseException)]
        hits.sort(key=lambda each: each[1].ended)
        return {i: copy_context().run(self.one, i, hit.reuse, advance) for i, hit in hits if hit.whole()}


def _look_ahead(step: Any) -> Callable[[Any], Path[Any]] | None:
    """How to look up what is kept of the step's calls, before any of them is made; None for anything but a step.

    The calls of the first run changed globals in the order in which they ended. So those that can be skipped are skipped in
    that order, before the others run: a step that reads such a global later finds what it found then.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(step, partial):
        args, kwargs, step = (*step.args, *args), {**step.keywords, **kwargs}, step.func
    if not hasattr(step, "_self_parts"):
        return None
    bare, first = step._self_parts()
    definition = bare._self_definition
    run = None if definition.yields else definition.find_run(bare._self_reference)
    if run is None or not definition.may_skip(run):
        return None
    return lambda item: definition.ahead(run, (*first, *args, item), kwargs)


def _progress(run: Session, step: Callable[[Any], Any], name: str | None, total: int) -> Progress:
    """What is to be entered around the calls, and gives what is to be called after each."""
    if run.report is None or not total:
        return nullcontext(lambda: None)
    parts = getattr(step, "_self_parts", None)  # of a step, bound or not
    return run.report.progress(
        name or str(getattr(step, "__name__", "map")),
        parts()[0]._self_definition.name if parts is not None else "",
        total,
    )


def _spread(this: _Calls) -> Results:
    items, ahead = this.items, this.ahead
    advance: Callable[[], None]

    def spread(function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[Future[Any]]:
        calls: list[Future[Any]] = [pool.submit(copy_context().run, function, *each) for each in arguments]
        try:
            wait(calls, return_when=FIRST_EXCEPTION)
        finally:  # after a failure or Ctrl-C, what has not begun does not begin
            for call in calls:
                call.cancel()
        wait(call for call in calls if not call.cancelled())  # as leaving the pool would
        return calls

    def look(item: Any) -> Any:
        assert ahead is not None
        try:
            return drive(ahead(item))
        except Exception:
            return None  # the call itself raises it

    if this.concurrency == 1:  # in this thread: each reads what the one before it has changed, as in a plain loop
        with this.progress as advance:
            return Results(this.one(i, partial(this.step, item), advance) for i, item in enumerate(items))
    with this.beside, this.progress as advance, ThreadPoolExecutor(this.concurrency, "oncemore") as pool:
        looked = [] if ahead is None else spread(look, ((item,) for item in items))
        found = this.skip([each.result() for each in looked], advance)
        rest = [i for i in range(len(items)) if i not in found]
        calls = spread(this.one, ((i, partial(this.step, items[i]), advance) for i in rest))
        begun = [call for call in calls if not call.cancelled()]
        for call in begun:
            call.result()  # the first failure in the order of the items
        found.update((i, call.result()) for i, call in zip(rest, calls))
        return Results(found[i] for i in range(len(items)))


async def _gather(this: _Calls) -> Results:
    items, ahead = this.items, this.ahead
    import asyncio  # loaded already: somebody awaits this

    free = asyncio.Semaphore(this.concurrency)
    advance: Callable[[], None]

    async def one(index: int) -> Any:
        async with free:
            try:
                return await this.step(items[index])
            except Exception as error:
                return this.failed(index, error)
            finally:
                advance()

    async def look(item: Any) -> Any:
        assert ahead is not None
        async with free:
            return await drive_async(ahead(item))

    async def gather(calls: Iterable[Coroutine[Any, Any, Any]], *, collect: bool = False) -> list[Any]:
        tasks = [asyncio.ensure_future(call) for call in calls]
        try:
            return await asyncio.gather(*tasks, return_exceptions=collect)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    with this.beside, this.progress as advance:
        looked = [] if ahead is None else await gather(map(look, items), collect=True)
        found = this.skip(looked, advance)
        rest = [i for i in range(len(items)) if i not in found]
        found.update(zip(rest, await gather(map(one, rest))))
        return Results(found[i] for i in range(len(items)))
