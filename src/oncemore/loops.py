"""Many calls and long loops: `run.map` and `run.loop`."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

from .durations import Duration, seconds
from .errors import CodecError, FingerprintError, StoreError, UsageError, warn
from .events import SnapshotSaved
from .fingerprint.values import digest
from .progress import Progress
from .surroundings.rng import Generators

if TYPE_CHECKING:
    from .runs import Run

OnError = Literal["raise", "collect"]


@dataclass(frozen=True)
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
    run: Run, step: Callable[[Any], Any], items: Iterable[Any], concurrency: int, on_error: OnError, name: str | None
) -> Results | Coroutine[Any, Any, Results]:
    """`step(item)` for every item; a coroutine if the step is one."""
    if concurrency < 1:
        raise UsageError(f"concurrency is at least 1, not {concurrency}")
    if on_error not in ("raise", "collect"):
        raise UsageError(f"on_error is 'raise' or 'collect', not {on_error!r}")
    todo = list(items)
    progress = Progress(run, name or getattr(step, "__name__", "map"), len(todo))
    if inspect.iscoroutinefunction(step):
        return _gather(step, todo, concurrency, on_error, progress)
    return _spread(step, todo, concurrency, on_error, progress)


def _spread(
    step: Callable[[Any], Any], items: Sequence[Any], concurrency: int, on_error: OnError, progress: Progress
) -> Results:
    def one(index: int, item: Any) -> Any:
        try:
            return step(item)
        except Exception as error:
            if on_error == "raise":
                raise
            return Failure(index, item, error)
        finally:
            progress.step()

    with progress, ThreadPoolExecutor(concurrency, thread_name_prefix="oncemore") as pool:
        calls: list[Future[Any]] = [pool.submit(copy_context().run, one, i, item) for i, item in enumerate(items)]
        try:
            wait(calls, return_when=FIRST_EXCEPTION)
        finally:  # after a failure or Ctrl-C, what has not begun does not begin
            for call in calls:
                call.cancel()
        for call in calls:
            if call.done() and not call.cancelled():
                call.result()  # the first failure in the order of the items
        return Results(call.result() for call in calls)


async def _gather(
    step: Callable[[Any], Any], items: Sequence[Any], concurrency: int, on_error: OnError, progress: Progress
) -> Results:
    free = asyncio.Semaphore(concurrency)

    async def one(index: int, item: Any) -> Any:
        async with free:
            try:
                return await step(item)
            except Exception as error:
                if on_error == "raise":
                    raise
                return Failure(index, item, error)
            finally:
                progress.step()

    with progress:
        tasks = [asyncio.ensure_future(one(i, item)) for i, item in enumerate(items)]
        try:
            return Results(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


Every = Union[int, Duration]


def loop(run: Run, name: str, items: Iterable[Any], every: Every) -> Iterator[Any]:
    """The items that no earlier run has seen the end of; state and generators are kept as they were after each `every`."""
    due = _Due(every)
    if run.disabled:
        yield from items
        return
    known = _identity(items)
    first, done = _resume(run, name, known)
    if done:
        return
    generators, now = Generators(), None
    if first:
        now = generators.before(None)  # skipping may draw from them: a shuffled loader does
    for index, item in enumerate(items):
        if index < first:
            continue
        if index == first and now is not None:
            generators.restore(None, now)
        yield item
        if due(index + 1):
            _snapshot(run, name, known, index + 1, done=False)
        first = index + 1
    _snapshot(run, name, known, first, done=True)


class _Due:
    """Whether it is time for a snapshot."""

    def __init__(self, every: Every) -> None:
        if isinstance(every, bool) or (isinstance(every, int) and every < 1):
            raise UsageError(f"every={every!r}: a number of items from 1, or a duration like '5min'")
        self._count = every if isinstance(every, int) else None
        self._period = seconds(every)
        self._last = time.monotonic()

    def __call__(self, seen: int) -> bool:
        if self._count is not None:
            return seen % self._count == 0
        if time.monotonic() - self._last < self._period:
            return False
        self._last = time.monotonic()
        return True


def _identity(items: Iterable[Any]) -> str | None:
    """What tells whether a later run loops over the same items; None for an iterator, which cannot be looked at."""
    if isinstance(items, (list, tuple, range)):
        try:
            return digest(items).hex()
        except FingerprintError:
            return None
    return None


def _resume(run: Run, name: str, known: str | None) -> tuple[int, bool]:
    """Put state and generators back to the last snapshot: how many items it had seen, and whether those were all."""
    try:
        entry = run.shelf.find_loop(name)
        if entry is None:
            return 0, False
        if entry.meta["items"] != known:
            warn(f"loop {name} begins anew: its items are not those of the last run")
            return 0, False
        state, generators = entry.load()
    except (StoreError, CodecError) as error:
        if run.strict:
            raise
        warn(f"loop {name} begins anew, its snapshot cannot be used: {error}")
        return 0, False
    run.state.replace(state)
    Generators().restore(None, generators)
    run.reused[name] += entry.meta["seen"]
    return entry.meta["seen"], entry.meta["done"]


def _snapshot(run: Run, name: str, known: str | None, seen: int, *, done: bool) -> None:
    value = (run.state.values_by_key(), Generators().before(None))
    try:
        meta = {"items": known, "seen": seen, "done": done}
        key = run.shelf.loop_key(name)
        run.shelf.put(key, value, meta, [SnapshotSaved(loop=name, seen=seen, entry=key)])
    except (CodecError, StoreError) as error:
        warn(f"loop {name}: the snapshot after {seen} items was not kept: {error}")
