"""Long loops that a later run goes on with: `run.loop`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from itertools import chain, islice, takewhile
from operator import length_hint
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from blake3 import blake3

from .durations import Duration, seconds
from .errors import CodecError, FingerprintError, StoreError, UsageError, warn
from .events import SnapshotSaved
from .identity.values import Digests, digest
from .surroundings.loop_variables import Variables
from .surroundings.mutable_types import ATOMS
from .surroundings.process import Changes, Process, Taken, record, stop
from .surroundings.references import Frozen, Roots, View, Walk, walk_from
from .surroundings.state import State
from .surroundings.unseeded import every_state, put_back

if TYPE_CHECKING:
    from .session import Session


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
