"""Many calls of one step, several at a time: `run.map` and `run.starmap`."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .errors import RunPaused, UsageError
from .flight import Path, Pause, Stopped, drive, drive_async, stopping
from .settings import seconds

if TYPE_CHECKING:
    from .call import Call, Definition, Recalled
    from .session import Session

OnError = Literal["raise", "collect"]
CONCURRENCY = 8  # calls at a time, by default
Progress = AbstractContextManager[Callable[[], None]]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Takes the place of a result when the call failed; the next run tries it again.

    `item` is the item, or the tuple of arguments if the step took several.
    """

    index: int
    item: Any
    error: Exception


class Results(list[Any]):
    """The results in the order of the items, with a `Failure` for each call that failed; `failures` lists those."""

    @property
    def failures(self) -> list[Failure]:
        return [each for each in self if isinstance(each, Failure)]


def map_items(
    run: Session,
    step: Callable[..., Any],
    iterables: Sequence[Iterable[Any]],
    constants: Mapping[str, Any],
    concurrency: int | None,
    on_error: OnError | None,
    name: str | None,
    rate: str | None,
) -> Results | Coroutine[Any, Any, Results]:
    """Call the step with one item of each iterable, and the constants; a coroutine if the step is a coroutine function."""
    columns = [list(items) for items in iterables]
    if len({len(items) for items in columns}) > 1:
        lengths = ", ".join(str(len(items)) for items in columns)
        raise UsageError(f"run.map needs as many items in each iterable, not {lengths}; shorten the longer ones")
    many = len(columns) > 1
    return call_with(run, step, list(zip(*columns)), constants, concurrency, on_error, name, rate, many=many)


def call_with(
    run: Session,
    step: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    constants: Mapping[str, Any],
    concurrency: int | None,
    on_error: OnError | None,
    name: str | None,
    rate: str | None,
    *,
    many: bool = True,
) -> Results | Coroutine[Any, Any, Results]:
    """Call the step with each tuple of arguments, and the constants. Unless `many`, the tuples have one item."""
    given = {"concurrency": concurrency, "on_error": on_error, "name": name, "rate": rate}
    _reject_ambiguous(step, arguments, [option for option, value in given.items() if value is not None])
    concurrency = CONCURRENCY if concurrency is None else concurrency
    on_error = on_error or "raise"
    if concurrency < 1:
        raise UsageError(f"concurrency must be at least 1, not {concurrency}")
    if on_error not in ("raise", "collect"):
        raise UsageError(f"on_error must be 'raise' or 'collect', not {on_error!r}")
    pace = None if rate is None else Pace(rate, _step_of(step))
    progress = _progress(run, step, name, len(arguments))
    side_by_side = run.beside.map() if concurrency > 1 else nullcontext()
    call: Callable[..., Any] = partial(step, **constants) if constants else step
    find_skippable = _skippable_finder(call) if concurrency > 1 else None
    calls = _Calls(call, arguments, many, concurrency, on_error, pace, progress, side_by_side, find_skippable)
    return _map_in_tasks(calls) if inspect.iscoroutinefunction(step) else _map_in_threads(calls)


def _reject_ambiguous(step: Any, arguments: Sequence[tuple[Any, ...]], options: Collection[str]) -> None:
    """UsageError if one of the map's options that are given may have been meant for the step's parameter of that name."""
    try:
        parameters = list(inspect.signature(step).parameters.values()) if options else []
    except (TypeError, ValueError):  # a function of C without a signature
        return
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    bound = set(positional[: min(map(len, arguments), default=None)])
    name: str = getattr(step, "__name__", "step")
    while isinstance(step, partial):
        bound.update(step.keywords)
        step = step.func
        name = getattr(step, "__name__", name)
    for each in parameters:
        by_keyword = each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        if each.name in options and each.name not in bound and by_keyword:
            raise UsageError(
                f"{each.name}= is an option of run.map, and {name} has a parameter of that name, too. Bind the parameter with "
                f"functools.partial({name}, {each.name}=...); then {each.name}= is the option"
            )


class _Calls(NamedTuple):
    """The calls that a map makes, and how."""

    step: Callable[..., Any]
    arguments: Sequence[tuple[Any, ...]]
    many: bool  # whether a call has several arguments, besides constants
    concurrency: int
    on_error: OnError
    pace: Pace | None
    progress: Progress
    side_by_side: AbstractContextManager[None]
    find_skippable: Callable[..., Path[_Skippable | None]] | None

    def failed(self, index: int, error: Exception) -> Failure:
        """Raise the error, or return the `Failure` that takes the place of the result."""
        if self.on_error == "raise":
            raise error
        given = self.arguments[index]
        return Failure(index=index, item=given if self.many else given[0], error=error)

    def one(self, index: int, call: Callable[[], Any], advance: Callable[[], None]) -> Any:
        """The result of one call."""
        token = pacing.set(self.pace)
        try:
            if self.pace is not None and self.pace.step is None:
                Pause(self.pace.wait()).now()
            return call()
        except RunPaused as pause:  # the other calls may have questions of their own
            return pause
        except Exception as error:
            return self.failed(index, error)
        finally:
            pacing.reset(token)
            advance()

    def skip(self, found: Sequence[Any], advance: Callable[[], None]) -> dict[int, Any]:
        """Skip recorded calls in the order in which they ended; returns their results by index.

        `found` has, for each call, the recorded one, None, or the error that looking it up raised: the call raises it again.
        """
        hits = [(i, hit) for i, hit in enumerate(found) if hit is not None and not isinstance(hit, BaseException)]
        hits.sort(key=lambda each: each[1].ended)
        return {i: copy_context().run(self.one, i, hit.reuse, advance) for i, hit in hits if hit.is_complete()}


class Pace:
    """When each call of a map may begin, at a rate like "10/s": evenly spaced, whichever thread or task makes it.

    A step waits for its turn only when it is about to run, on its path (see call.py). Anything else that is mapped has no
    `step` here, and the map itself waits.
    """

    def __init__(self, rate: str, step: Definition | None) -> None:
        count, slash, unit = str(rate).partition("/")
        try:
            self._interval = seconds(unit if unit[:1].isdigit() else f"1{unit}") / float(count)
        except (UsageError, ValueError, ZeroDivisionError):
            self._interval = -1.0
        if not slash or not 0 < self._interval < float("inf"):
            raise UsageError(f"rate={rate!r} is not a rate; use calls per time: '10/s', '600/min', '1000/h'")
        self.step = step
        self._lock, self._next = threading.Lock(), 0.0

    def wait(self) -> float:
        """Take the next turn: the seconds until then."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._interval
            return turn - now


pacing: ContextVar[Pace | None] = ContextVar("oncemore_pacing", default=None)  # of the map whose call this is


def _step_of(step: Any) -> Definition | None:
    """The step that is mapped; None for a plain function, or a step whose calls are not recorded here."""
    while isinstance(step, partial):
        step = step.func
    if not hasattr(step, "_self_parts"):
        return None
    unbound = step._self_parts()[0]
    definition: Definition = unbound._self_definition
    if definition.yields:
        raise UsageError(
            f"step {definition.name} is a generator, which runs when it is read: rate= has no effect on it"
        )
    return definition if unbound._self_find_run() is not None else None


class _Skippable(NamedTuple):
    """A recorded call that has not been skipped yet."""

    step: Definition
    call: Call
    found: Recalled

    @property
    def ended(self) -> int:
        """When it ended, which orders it among the steps that ran concurrently."""
        return 0 if self.found.context is None else self.found.entry.meta.get("ended", 0)

    def reuse(self) -> Any:
        return self.step.reuse(self.call, self.found)

    def is_complete(self) -> bool:
        """Whether the concurrent steps that some of its changes may be recorded with have been skipped as well.

        To be asked once the steps that ended before it have been skipped. If they have not, it runs.
        """
        if self.step.once or self.found.context is None:
            return True
        concurrent, needs = self.call.run.concurrent, self.found.entry.meta.get("needs", ())
        if concurrent.made.issuperset(needs):
            return True
        concurrent.parted.add(self.call.node.key)
        self.step.give_back(self.call)
        return False


def _skippable_finder(step: Any) -> Callable[..., Path[_Skippable | None]] | None:
    """A function that looks up the recorded call for given arguments; None if `step` is no step, or has no checkpoints.

    The calls of the first run changed globals in the order in which they ended. So recorded calls are skipped in that order,
    before the others run: a step that reads such a global later finds what it found in the first run.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(step, partial):
        args, kwargs, step = (*step.args, *args), {**step.keywords, **kwargs}, step.func
    if not hasattr(step, "_self_parts"):
        return None
    unbound, first = step._self_parts()
    definition: Definition = unbound._self_definition
    run = None if definition.yields else unbound._self_find_run()
    if run is None or not definition.may_skip(run):
        return None

    def find(*given: Any) -> Path[_Skippable | None]:
        call, found = definition.identify(run, (*first, *args, *given), kwargs), None
        if call is None:
            return None
        try:
            if not call.recursive:
                found = yield from definition.try_recall(call)
        finally:
            if found is None:
                definition.give_back(call)
        return None if found is None else _Skippable(definition, call, found)

    return find


def _progress(run: Session, step: Callable[..., Any], name: str | None, total: int) -> Progress:
    """The progress line: a context around all calls, whose value is called after each of them."""
    if run.report is None or not total:
        return nullcontext(lambda: None)
    parts = getattr(step, "_self_parts", None)  # only steps have it
    return run.report.progress(
        name or str(getattr(step, "__name__", "map")),
        parts()[0]._self_definition.name if parts is not None else "",
        total,
    )


def _results(values: Iterable[Any]) -> Results:
    """The results. If calls have questions without an answer, the run is paused for all of them."""
    results = Results(values)
    pauses = [each for each in results if isinstance(each, RunPaused)]
    if pauses:
        raise RunPaused.joined(pauses)
    return results


def _map_in_threads(this: _Calls) -> Results:
    arguments, find_skippable = this.arguments, this.find_skippable
    advance: Callable[[], None]

    def submit_all(function: Callable[..., Any], each: Iterable[tuple[Any, ...]]) -> list[Future[Any]]:
        calls: list[Future[Any]] = [pool.submit(copy_context().run, function, *given) for given in each]
        wait(calls, return_when=FIRST_EXCEPTION)
        if not all(call.done() for call in calls):
            end()
            wait(call for call in calls if not call.cancelled())  # as leaving the pool would
        return calls

    def end() -> None:
        """After a failure or Ctrl-C, calls that have not started never start, and those that only wait end."""
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)

    def find(*given: Any) -> Any:
        assert find_skippable is not None
        try:
            return drive(find_skippable(*given))
        except Exception:
            return None  # the call itself raises it

    if this.concurrency == 1:  # in this thread, as in a plain loop: each call sees what the ones before it changed
        with this.progress as advance:
            return _results(this.one(i, partial(this.step, *given), advance) for i, given in enumerate(arguments))
    stop = threading.Event()
    with (
        this.side_by_side,
        this.progress as advance,
        ThreadPoolExecutor(this.concurrency, "oncemore") as pool,
        ExitStack() as ending,
    ):
        ending.callback(end)  # before the pool waits for its threads, wherever Ctrl-C comes
        found = [] if find_skippable is None else submit_all(find, arguments)
        results = this.skip([each.result() for each in found], advance)
        rest = [i for i in range(len(arguments)) if i not in results]
        token = stopping.set(stop)
        try:
            calls = submit_all(this.one, ((i, partial(this.step, *arguments[i]), advance) for i in rest))
        finally:
            stopping.reset(token)
        for call in calls:
            if not call.cancelled() and not isinstance(call.exception(), Stopped):
                call.result()  # raises the first failure in the order of the items
        results.update((i, call.result()) for i, call in zip(rest, calls))
        return _results(results[i] for i in range(len(arguments)))


async def _map_in_tasks(this: _Calls) -> Results:
    arguments, find_skippable = this.arguments, this.find_skippable
    import asyncio  # here: only programs with coroutines need it

    free = asyncio.Semaphore(this.concurrency)
    advance: Callable[[], None]

    async def one(index: int) -> Any:
        async with free:
            pacing.set(this.pace)  # in the context of this task
            try:
                if this.pace is not None and this.pace.step is None:
                    await Pause(this.pace.wait()).later()
                return await this.step(*arguments[index])
            except RunPaused as pause:
                return pause
            except Exception as error:
                return this.failed(index, error)
            finally:
                advance()

    async def find(given: tuple[Any, ...]) -> Any:
        assert find_skippable is not None
        async with free:
            return await drive_async(find_skippable(*given))

    async def gather(calls: Iterable[Coroutine[Any, Any, Any]], *, collect: bool = False) -> list[Any]:
        tasks = [asyncio.ensure_future(call) for call in calls]
        try:
            return await asyncio.gather(*tasks, return_exceptions=collect)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    with this.side_by_side, this.progress as advance:
        found = [] if find_skippable is None else await gather(map(find, arguments), collect=True)
        results = this.skip(found, advance)
        rest = [i for i in range(len(arguments)) if i not in results]
        results.update(zip(rest, await gather(map(one, rest))))
        return _results(results[i] for i in range(len(arguments)))
