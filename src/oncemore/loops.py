"""Many calls and long loops: `run.map` and `run.loop`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, takewhile
from operator import length_hint
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union

from blake3 import blake3

from .durations import Duration, seconds
from .errors import CodecError, FingerprintError, StoreError, UsageError, warn
from .events import SnapshotSaved
from .flight import Path, drive, drive_async
from .identity.values import Digests, digest
from .surroundings.loop_variables import Variables
from .surroundings.mutable_types import ATOMS
from .surroundings.process import Changes, Process, Taken, record, stop
from .surroundings.references import Frozen, Roots, View, Walk, walk_from
from .surroundings.state import State
from .surroundings.unseeded import every_state, put_back

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
    home = None if definition.yields else definition.home(bare._self_reference)
    if home is None or not definition.may_skip(home):
        return None
    return lambda item: definition.ahead(home, (*first, *args, item), kwargs)


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


Every = Union[int, Duration]

_around: ContextVar[tuple[str, ...]] = ContextVar("oncemore_loops", default=())  # the loops that we are in, and where


def loop(run: Session, name: str, items: Iterable[Any], every: Every, body: FrameType) -> Iterator[Any]:
    """The items that no earlier run has seen the end of; what their turns changed is kept after each `every`.

    `body` is the frame that the turns run in.
    """
    due, around = _Due(every), _around.get()
    if run.disabled:
        yield from items
        return
    snapshots = _Snapshots(run, name, items, around, body)
    rest = snapshots.resume(items)
    seen = first = snapshots.prefix.count
    for index, item in enumerate(rest, first):
        if index == first:
            run.will_go(name, f"a loop with {first} items behind it" if first else "a loop at its beginning")
        snapshots.prefix.add(item)  # now: the turn may change it
        _around.set((*around, f"{name}={index}"))
        record(*snapshots.begin.recorders)
        try:
            with nullcontext() if run.report is None else run.report.turn(name, index + 1, length_hint(items)):
                yield item
        finally:
            stop(*snapshots.begin.recorders)
            _around.set(around)
        seen = index + 1
        if due(seen) and snapshots.cheap:
            snapshots.save(done=False)
    if seen > first or not snapshots.complete:
        snapshots.save(done=True)
    run.loops[snapshots.path] = None


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


def _identity(items: Iterable[Any]) -> str:
    """What identifies all of the items; nothing for those that cannot be looked at without being used up."""
    if isinstance(items, (list, tuple, range)):
        try:
            return digest(items).hex()
        except FingerprintError:
            pass
    return ""


_MARKS = 256  # items of a loop whose digests are kept, so that one which changed can be named
_AHEAD = 1000  # items of an iterator that are held in memory while they are compared with those of the last run
_SMALL = 32 << 10  # bytes of a snapshot that is kept however short the turns are
_KEPT = 8  # snapshots of a loop for other items than those of the last one


class _Prefix:
    """The items so far: their number, a digest over all of them, and the digests after every `stride` of them."""

    def __init__(self, count: int = 0, whole: str = "", stride: int = 1, marks: Iterable[Sequence[Any]] = ()) -> None:
        self.count, self.whole, self._stride = count, whole, stride
        self.marks = [(number, mark) for number, mark in marks]

    def add(self, item: Any) -> None:
        try:
            found = digest(item)
        except FingerprintError:
            found = b"?"  # it counts as one item
        self.count += 1
        self.whole = blake3(self.whole.encode() + found).hexdigest(length=16)
        if self.count % self._stride == 0:
            self.marks.append((self.count, self.whole))
            if len(self.marks) > _MARKS:
                self._stride *= 2
                self.marks = [mark for mark in self.marks if mark[0] % self._stride == 0]

    def to_json(self) -> list[Any]:
        return [self.count, self.whole, self._stride, self.marks]


class _Snapshot(NamedTuple):
    """What the key of a snapshot says of it: the items that were behind, all items if they are known, whether it is the end."""

    seen: int
    prefix: str
    items: str
    done: bool
    key: str

    @staticmethod
    def of(key: str) -> _Snapshot:
        seen, prefix, items, done = key.rpartition("/")[2].split(".")
        return _Snapshot(int(seen), prefix, items, bool(done), key)


def _after(items: Iterable[Any], first: int) -> Iterator[Any]:
    return islice(items, first, None)


def _furthest(snapshot: _Snapshot) -> tuple[int, bool]:
    return snapshot.seen, snapshot.done


class _Begin:
    """A run as it was when one of its loops began, in this scope."""

    variables: Variables

    def __init__(self, run: Session) -> None:
        self.state, self.generators = run.state.values_by_key(), every_state()
        self.recorders = self.changes, self.taken = Changes(), Taken()
        self.restored: set[str] = set()  # state keys and generators that a snapshot brought
        self.roots = Roots(self._look, walk=self._walk)
        for key in self.state:
            self.roots.add("state", key)
        self.notes = {key: self.roots.note("state", key) for key in self.state}
        self._frozen: dict[str, Frozen] = {}
        for key, note in self.notes.items():
            with suppress(CodecError):  # then it is as a turn that failed left it
                self._frozen[key] = Frozen(note.walk)

    def look(self, variables: Variables) -> None:
        """The variables of the script when the loop begins, or is tried again: then they may be those of another call."""
        self.roots.forget("global")
        self.variables = variables
        variables.note(self.roots)
        self.roots.list()

    def _look(self, kind: str, name: str) -> Any:
        return self.state.get(name) if kind == "state" else self.variables.data[name].value

    def _walk(self, kind: str, name: str, value: Any) -> Walk:
        return walk_from(value, () if kind == "state" else self.variables.data[name].opaque)

    def rewind(self, state: State) -> None:
        """Put the state back: the loop is tried again in the same scope."""
        for key in [key for key in state.values_by_key() if key not in self.state]:
            del state[key]
        for key, value in self.state.items():
            if key in self._frozen:
                self._frozen[key].thaw()
            if key not in state.values_by_key() or state.bare(key) is not value:
                state[key] = value


class _Snapshots:
    """What the turns of one loop changed, as it was after some of them: state, variables, generators, environment, calls.

    Objects that were in the state when the loop began are kept by name: a script that holds one (`model = run.state.model`
    before the loop) holds the same one after the loop was resumed. What the turns left alone is not brought back: it is what
    the script has made of it since.
    """

    def __init__(self, run: Session, name: str, items: Iterable[Any], around: tuple[str, ...], body: FrameType) -> None:
        self._run, self._name, self._body = run, name, body
        self.path = "/".join((*around, name))
        if run.loops.get(self.path, run) is None:
            raise UsageError(
                f"a loop {name!r} has been completed in this scope already; each loop needs a name of its own"
            )
        self._again = self.path in run.loops
        self.begin: _Begin = run.loops[self.path] if self._again else _Begin(run)
        self.begin.look(Variables(name, body, items))
        run.loops[self.path] = self.begin
        self.prefix = _Prefix()
        self.complete = False  # what was found is the end of a loop
        self._items = ""
        self._last = ""  # the key of the snapshot that the next one replaces
        self._others: list[_Snapshot] = []
        self._ended = self._took = 0.0  # when the last one was kept, and the seconds that this took, if it was large

    # -- going on

    def resume(self, items: Iterable[Any]) -> Iterator[Any]:
        """Put everything back to the furthest snapshot that fits the items; those after it."""
        self._items = _identity(items)
        try:
            found = [_Snapshot.of(key) for key in self._run.entries.find_loops(self.path)]
        except StoreError as error:
            self._refuse(error)
            return iter(items)
        self._others = found
        same = [each for each in found if each.items == self._items != ""]
        chosen: _Snapshot | None = max(same, key=_furthest, default=None)
        rest: Callable[[int], Iterator[Any]] = partial(_after, items)
        if found and not same:
            chosen, rest = self._compare(items, found)
        return rest(chosen.seen if chosen is not None and self._restore(chosen) else 0)

    def _compare(
        self, items: Iterable[Any], found: list[_Snapshot]
    ) -> tuple[_Snapshot | None, Callable[[int], Iterator[Any]]]:
        """The furthest snapshot whose items are the first of these, and what gives the items from one on."""
        furthest = max(found, key=_furthest)
        marks = dict(self._marks(furthest))
        wanted = {*marks, *(each.seen for each in found)}
        source, generators = iter(items), digest(every_state())
        once = source is items
        ahead: list[Any] | None = [] if once else None
        ours, at = _Prefix(), {0: ""}
        for item in islice(source, furthest.seen):
            ours.add(item)
            if ahead is not None:
                ahead.append(item)
                if len(ahead) > _AHEAD:
                    ahead = None
            if ours.count in wanted:
                at[ours.count] = ours.whole
        fits = [each for each in found if at.get(each.seen) == each.prefix]
        if furthest not in fits and digest(every_state()) != generators:
            fits = [
                each for each in found if each.seen <= ours.count
            ]  # drawn items are others without the turns between
        chosen = max(fits, key=_furthest, default=None)
        first = 0 if chosen is None else chosen.seen
        if chosen is None or not (chosen is furthest or (chosen.done and ours.count == first)):
            how = f"goes on after {first} items" if first else "begins anew"
            warn(f"loop {self._name} {how}: {_difference(ours, at, furthest, marks)}")

        def rest(first: int) -> Iterator[Any]:
            if first == ours.count:
                return source
            if ahead is not None:
                return chain(ahead[first:], source)
            if once:
                raise UsageError(
                    f"loop {self._name} has to begin again after {first} items, and its iterator is used up. "
                    f"Pass a list instead, or give the loop another name"
                )
            return _after(items, first)

        return chosen, rest

    def _marks(self, snapshot: _Snapshot) -> Iterable[tuple[int, str]]:
        try:
            entry = self._run.entries.read(snapshot.key)
            return [] if entry is None else _Prefix(*entry.meta["prefix"]).marks
        except StoreError:
            return []  # using it tells

    def _refuse(self, why: object) -> None:
        if isinstance(why, Exception) and self._run.strict:
            raise why
        warn(f"loop {self._name} begins anew, its snapshot cannot be used: {why}")

    def _restore(self, chosen: _Snapshot) -> bool:
        run, begin = self._run, self.begin
        try:
            entry = run.entries.read(chosen.key)
            if entry is None:
                return False
            for root in entry.meta["roots"]:
                if tuple(root) not in begin.roots.listed:
                    return self._begin_anew(f"run.state[{root[1]!r}]" if root[0] == "state" else root[1])
            kept = entry.load(begin.roots.find)
            other = begin.variables.differs(kept["variables"])
            if other is not None:
                return self._begin_anew(other)
            gone = Process().verify(None, kept["process"])
            if gone is not None:
                self._refuse(gone)
                return False
        except (StoreError, CodecError) as error:
            self._refuse(error)
            return False
        if self._again:
            begin.rewind(run.state)
            run.applied.clear()
        self._restore_state(kept)
        begin.variables.restore(kept["variables"], self._body)
        run.beside.epochs.resume(kept["epochs"])
        put_back(kept["generators"])
        begin.restored |= kept["generators"].keys()
        record(*begin.recorders)
        Process().restore(None, kept["process"])
        self._count(kept["calls"])
        stop(*begin.recorders)
        self.prefix, self.complete = _Prefix(*entry.meta["prefix"]), chosen.done
        self._last = "" if chosen.done else chosen.key
        run.reused[self._name] += chosen.seen
        if run.report is not None and chosen.seen:
            run.report.reused(self._name, 0, chosen.seen)
        return True

    def _begin_anew(self, name: str) -> bool:
        warn(f"loop {self._name} begins anew: {name} was initialized differently this time")
        return False

    def _restore_state(self, kept: Mapping[str, Any]) -> None:
        state, begin = self._run.state, self.begin
        for key, content in kept["contents"].items():
            state.get(key)  # a step around this loop has now looked at it
            begin.roots.assign("state", key, content)
        now = {**state.values_by_key(), **kept["set"]}
        before = iter(begin.state)
        staying = list(takewhile(lambda key: key in before, kept["order"]))  # where they were; the others were added
        added = {key: now.pop(key) for key in kept["order"][len(staying) :] if key in now}
        state.replace({**{key: now[key] for key in now if key not in kept["deleted"]}, **added})
        begin.restored |= kept["set"].keys()

    def _count(self, calls: Mapping[str, int]) -> None:
        """Take as many numbers for identical calls as the turns had; those of a turn that failed are given back."""
        for call in {*calls, *self.begin.taken.numbers}:
            taken = list(self.begin.taken.numbers.get(call, ()))
            for number in taken[calls.get(call, 0) :]:
                self._run.give_back(call, number)
            for _ in range(calls.get(call, 0) - len(taken)):
                self._run.take(call)

    # -- keeping

    @property
    def cheap(self) -> bool:
        """Whether the turns since the last snapshot took as long as it did, if it was large: no more than that can be lost."""
        return time.perf_counter() - self._ended >= self._took

    def save(self, *, done: bool) -> None:
        run, begin, seen, started = self._run, self.begin, self.prefix.count, time.perf_counter()
        roots: list[tuple[str, str, str]] = []
        meta = {"seen": seen, "done": done, "prefix": self.prefix.to_json(), "roots": roots}
        kind = f"{seen}.{self.prefix.whole}.{self._items}.{'done' if done else ''}"
        listed = {root[:2]: root for root in begin.roots.listed}

        def named(obj: Any) -> Any:
            if type(obj) in ATOMS:
                return None
            found = begin.roots.changeable(obj)
            if found is not None:
                place = (found.name if isinstance(found, View) else found)[:2]
                if listed[place] not in roots:
                    roots.append(listed[place])
            return found

        try:
            value = self._changed()
            roots += [listed["state", key] for key in value["contents"]]
            roots += [listed["global", name] for name in value["variables"]["changed"]]
            fact = SnapshotSaved(loop=self._name, seen=seen)
            write = partial(run.entries.write_loop, self.path, kind, value, meta, named, fact, self._replaced())
            try:
                self._last, size = write()
            except CodecError:
                begin.variables.without_refused(value["variables"], named)
                self._last, size = write()
            if done:
                self._last = ""
            self._ended = time.perf_counter()
            self._took = self._ended - started if size > _SMALL else 0.0
        except (CodecError, StoreError) as error:
            warn(f"loop {self._name}: the snapshot after {seen} items was not kept: {error}")
        finally:
            begin.roots.forget_contents()

    def _replaced(self) -> list[str]:
        """The one before, and of those for other items the ones that are least work to do again, if there are many."""
        others = sorted(each for each in self._others if each.key != self._last)
        gone = [each.key for each in others[: max(0, len(others) - _KEPT)]]
        return [key for key in (self._last, *gone) if key]

    def _changed(self) -> dict[str, Any]:
        """What is another than when the loop began."""
        begin, state, digests = self.begin, self._run.state.values_by_key(), Digests()
        touched = begin.restored & begin.notes.keys()
        for key, note in begin.notes.items():
            if any(then is None for then in note.before.values()) or any(True for _ in note.changed(now=digests)):
                touched.add(key)  # also what nobody can compare
        set_ = {
            key: value
            for key, value in state.items()
            if key in touched or key in begin.restored or key not in begin.state or begin.state[key] is not value
        }
        now = every_state()
        return {
            "set": set_,
            "contents": {key: begin.roots.contents("state", key) for key in begin.notes if key in touched},
            "deleted": [key for key in begin.state if key not in state],
            "order": list(state),
            "generators": {
                name: state
                for name, state in now.items()
                if name in begin.restored
                or name not in begin.generators
                or digest(begin.generators[name]) != digest(state)
            },
            "variables": begin.variables.changed(self._body),
            "epochs": self._run.beside.epochs.known(),
            "process": begin.changes.effect() or {},
            "calls": begin.taken.counts(),
        }


def _difference(ours: _Prefix, at: Mapping[int, str], furthest: _Snapshot, marks: Mapping[int, str]) -> str:
    """What is another about the items than when the furthest snapshot was kept."""
    same = 0
    for number in sorted(number for number in {*marks, furthest.seen} if number in at):
        if at[number] != marks.get(number, furthest.prefix):
            which = f"item {number}" if number == same + 1 else f"one of the items {same + 1} to {number}"
            return f"{which} is not that of the last run"
        same = number
    return f"there are {ours.count} items now, and only what was changed by {furthest.seen} is kept"
