"""Many calls and long loops: `run.map` and `run.loop`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from operator import length_hint
from typing import TYPE_CHECKING, Any, Literal, Union

from .durations import Duration, seconds
from .errors import CodecError, FingerprintError, StoreError, UsageError, warn
from .events import SnapshotSaved
from .fingerprint.values import digest
from .surroundings.objects import Roots
from .surroundings.rng import Generators, states

if TYPE_CHECKING:
    from .runs import Run

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
    run: Run, step: Callable[[Any], Any], items: Iterable[Any], concurrency: int, on_error: OnError, name: str | None
) -> Results | Coroutine[Any, Any, Results]:
    """`step(item)` for every item; a coroutine if the step is one."""
    if concurrency < 1:
        raise UsageError(f"concurrency is at least 1, not {concurrency}")
    if on_error not in ("raise", "collect"):
        raise UsageError(f"on_error is 'raise' or 'collect', not {on_error!r}")
    todo = list(items)
    progress = _progress(run, step, name, len(todo))
    if inspect.iscoroutinefunction(step):
        return _gather(step, todo, concurrency, on_error, progress)
    return _spread(step, todo, concurrency, on_error, progress)


def _progress(run: Run, step: Callable[[Any], Any], name: str | None, total: int) -> Progress:
    """What is to be entered around the calls, and gives what is to be called after each."""
    if run.report is None or not total:
        return nullcontext(lambda: None)
    parts = getattr(step, "_self_parts", None)  # of a step, bound or not
    return run.report.progress(
        name or str(getattr(step, "__name__", "map")),
        parts()[0]._self_definition.name if parts is not None else "",
        total,
    )


def _spread(
    step: Callable[[Any], Any], items: Sequence[Any], concurrency: int, on_error: OnError, progress: Progress
) -> Results:
    advance: Callable[[], None]

    def one(index: int, item: Any) -> Any:
        try:
            return step(item)
        except Exception as error:
            if on_error == "raise":
                raise
            return Failure(index=index, item=item, error=error)
        finally:
            advance()

    with progress as advance, ThreadPoolExecutor(concurrency, thread_name_prefix="oncemore") as pool:
        calls: list[Future[Any]] = [pool.submit(copy_context().run, one, i, item) for i, item in enumerate(items)]
        try:
            wait(calls, return_when=FIRST_EXCEPTION)
        finally:  # after a failure or Ctrl-C, what has not begun does not begin
            for call in calls:
                call.cancel()
        begun = [call for call in calls if not call.cancelled()]
        wait(begun)  # as leaving the pool would
        for call in begun:
            call.result()  # the first failure in the order of the items
        return Results(call.result() for call in calls)


async def _gather(
    step: Callable[[Any], Any], items: Sequence[Any], concurrency: int, on_error: OnError, progress: Progress
) -> Results:
    import asyncio  # loaded already: somebody awaits this

    free = asyncio.Semaphore(concurrency)
    advance: Callable[[], None]

    async def one(index: int, item: Any) -> Any:
        async with free:
            try:
                return await step(item)
            except Exception as error:
                if on_error == "raise":
                    raise
                return Failure(index=index, item=item, error=error)
            finally:
                advance()

    with progress as advance:
        tasks = [asyncio.ensure_future(one(i, item)) for i, item in enumerate(items)]
        try:
            return Results(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


Every = Union[int, Duration]

_around: ContextVar[tuple[str, ...]] = ContextVar("oncemore_loops", default=())  # the loops that we are in, and where


def loop(run: Run, name: str, items: Iterable[Any], every: Every) -> Iterator[Any]:
    """The items that no earlier run has seen the end of; state and generators are kept as they were after each `every`."""
    due, around = _Due(every), _around.get()
    if run.disabled:
        yield from items
        return
    snapshots = _Snapshots(run, name, around, _identity(items))
    first, done = snapshots.resume()
    if done:
        return
    now, seen = states(), first
    for index, item in enumerate(items):
        if index < first:
            continue
        if index == first:
            run.will_go(name, f"a loop with {first} items behind it" if first else "a loop at its beginning")
        if index == first > 0:
            Generators().restore(None, now)  # skipping may have drawn from them: a shuffled loader does
        _around.set((*around, f"{name}={index}"))
        try:
            with nullcontext() if run.report is None else run.report.turn(name, index + 1, length_hint(items)):
                yield item
        finally:
            _around.set(around)
        if due(index + 1):
            snapshots.save(index + 1, done=False)
        seen = index + 1
    snapshots.save(seen, done=True)


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


class _Snapshots:
    """State and generators of a run as they were at some turns of one loop.

    Objects that were in the state when the loop began are kept by name: a script that holds one (`model = run.state.model`
    before the loop) holds the same one after the loop was resumed.
    """

    def __init__(self, run: Run, name: str, around: tuple[str, ...], items: str | None) -> None:
        self._run, self._name, self._items = run, name, items
        self._path = "/".join((*around, name))
        if run.loops.get(self._path, run) is None:
            raise UsageError(
                f"a loop {name!r} has been completed in this scope already; each loop needs a name of its own"
            )
        if self._path not in run.loops:
            run.loops[self._path] = Roots(lambda kind, key: run.state.bare(key))
            for key in run.state.values_by_key():
                run.loops[self._path].add("state", key)
            run.loops[self._path].list()
        self._roots: Roots = run.loops[self._path]

    def resume(self) -> tuple[int, bool]:
        """Put everything back to the last snapshot: how many items it had seen, and whether those were all."""
        run, roots, name = self._run, self._roots, self._name
        try:
            entry = run.shelf.find_loop(self._path)
            if entry is None:
                return 0, False
            if entry.meta["items"] != self._items:
                warn(f"loop {name} begins anew: its items are not those of the last run")
                return 0, False
            if entry.meta.get("roots", ()) != [list(root) for root in roots.listed]:
                warn(f"loop {name} begins anew: run.state is made of other objects before it than in the last run")
                return 0, False
            values, contents, generators, calls = entry.load(roots.find)
        except (StoreError, CodecError) as error:
            if run.strict:
                raise
            warn(f"loop {name} begins anew, its snapshot cannot be used: {error}")
            return 0, False
        for key, content in contents.items():
            run.state[key]  # a step around this loop has now looked at it
            roots.assign("state", key, content)
        run.state.replace(values)
        Generators().restore(None, generators)
        run.calls = calls
        run.reused[name] += entry.meta["seen"]
        if run.report is not None and entry.meta["seen"]:
            run.report.reused(name, 0, entry.meta["seen"])
        self._end(entry.meta["done"])
        return entry.meta["seen"], entry.meta["done"]

    def save(self, seen: int, *, done: bool) -> None:
        run, roots = self._run, self._roots
        contents = {key: roots.contents(kind, key) for kind, key, _ in roots.listed}
        value = (run.state.values_by_key(), contents, states(), run.calls)
        meta = {"items": self._items, "seen": seen, "done": done, "roots": roots.listed}
        try:
            fact = SnapshotSaved(loop=self._name, seen=seen)
            run.shelf.write_loop(self._path, value, meta, roots.changeable, fact)
        except (CodecError, StoreError) as error:
            warn(f"loop {self._name}: the snapshot after {seen} items was not kept: {error}")
        self._end(done)

    def _end(self, done: bool) -> None:
        if done:
            self._run.loops[self._path] = None
