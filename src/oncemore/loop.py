"""Long loops that a later run continues: `run.loop`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from itertools import chain, islice, takewhile
from operator import length_hint
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from blake3 import blake3

from . import current
from .errors import CodecError, FingerprintError, StoreError, UsageError, warn
from .events import SnapshotSaved
from .identity.values import Digests, digest
from .identity.values.builtin_types import ATOMS
from .settings import Duration, seconds
from .surroundings.loop_variables import Variables
from .surroundings.process import Changes, Process, Taken, record, stop
from .surroundings.references import Frozen, Roots, View, Walk, walk_from
from .surroundings.rng import every_state, put_back
from .surroundings.state import State

if TYPE_CHECKING:
    from .session import Session


Every = Union[int, Duration]

_enclosing: ContextVar[tuple[str, ...]] = ContextVar("oncemore_loops", default=())  # the loops around us, with indexes


def loop(run: Session, name: str, items: Iterable[Any], every: Every, body: FrameType) -> Iterator[Any]:
    """Yield the items that no earlier run has completed, with a snapshot after `every` so many of them.

    `body` is the frame that the loop's body runs in.
    """
    due, enclosing = _Due(every), _enclosing.get()
    if run.disabled:
        yield from items
        return
    current.declared.add(name)
    snapshots = _Snapshots(run, name, items, enclosing, body)
    rest = snapshots.resume(items)
    seen = first = snapshots.prefix.count
    with _progress_line(run, name, first, items, snapshots.spans) as begin_item:
        for index, item in enumerate(rest, first):
            if index == first:
                run.will_run_without_node(
                    name,
                    f"a loop that continues after {first} items" if first else "a loop that starts from its first item",
                )
            snapshots.prefix.add(item)  # now: the body may change it
            _enclosing.set((*enclosing, f"{name}={index}"))
            record(*snapshots.begin.recorders)
            try:
                begin_item(index + 1)
                yield item
            finally:
                stop(*snapshots.begin.recorders)
                _enclosing.set(enclosing)
            seen = index + 1
            if due(seen) and snapshots.cheap:
                snapshots.save(done=False)
        if seen > first or not snapshots.complete:
            snapshots.save(done=True)
        run.loops[snapshots.path] = None


def _progress_line(
    run: Session, name: str, first: int, items: Iterable[Any], spans: Sequence[tuple[float, float]]
) -> AbstractContextManager[Callable[[int], None]]:
    """The loop's progress line: a context around it, whose value is called with the number of each item."""
    if run.report is None:
        return nullcontext(lambda number: None)
    return run.report.loop(name, first, length_hint(items), sum(end - start for start, end in spans))


class _Due:
    """Whether a snapshot is due."""

    def __init__(self, every: Every) -> None:
        if isinstance(every, bool) or (isinstance(every, int) and every < 1):
            raise UsageError(f"every={every!r} must be a number of items (1 or more) or a duration like '5min'")
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
    """A digest of all items; empty if they have no identity, or can't be read without consuming them."""
    if isinstance(items, (list, tuple, range)):
        try:
            return digest(items).hex()
        except FingerprintError:
            pass
    return ""


_MARKS = 256  # digests of items that are stored, so that a message can name the one that changed
_LOOKAHEAD = 1000  # items of an iterator held in memory while they are compared with those of the last run
_SMALL = 32 << 10  # bytes; a snapshot up to this size is taken however short the iterations are
_MOST_OTHERS = 8  # stored snapshots of a loop with other items than the current ones


class _Prefix:
    """The items so far: their number, a digest over all of them, and the digests (`marks`) after every `stride` items."""

    def __init__(self, count: int = 0, whole: str = "", stride: int = 1, marks: Iterable[Sequence[Any]] = ()) -> None:
        self.count, self.whole, self._stride = count, whole, stride
        self.marks = [(number, mark) for number, mark in marks]

    def add(self, item: Any) -> None:
        try:
            found = digest(item)
        except FingerprintError:
            found = b"?"  # only its position is known
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
    """A snapshot's key, parsed: the number and digest of the items before it, that of all items if known, and `done`."""

    seen: int
    prefix: str
    items: str
    done: bool
    key: str

    @staticmethod
    def from_key(key: str) -> _Snapshot:
        seen, prefix, items, done = key.rpartition("/")[2].split(".")
        return _Snapshot(int(seen), prefix, items, bool(done), key)


def _skip(items: Iterable[Any], first: int) -> Iterator[Any]:
    return islice(items, first, None)


def _progress(snapshot: _Snapshot) -> tuple[int, bool]:
    return snapshot.seen, snapshot.done


class _Begin:
    """The run as it was when a loop began in this scope."""

    variables: Variables

    def __init__(self, run: Session) -> None:
        self.state, self.generators = run.state.values_by_key(), every_state()
        self.recorders = self.changes, self.taken = Changes(), Taken()
        self.restored: set[str] = set()  # state keys and generators restored from a snapshot
        self.saved = False  # whether this scope has saved a snapshot
        self.roots = Roots(self._find, walk=self._walk)
        for key in self.state:
            self.roots.add("state", key)
        self.notes = {key: self.roots.note("state", key) for key in self.state}
        self._frozen: dict[str, Frozen] = {}
        for key, note in self.notes.items():
            with suppress(CodecError):  # then a retry finds it as the failed iteration left it
                self._frozen[key] = Frozen(note.walk)

    def note_variables(self, variables: Variables) -> None:
        """Note the script's variables when the loop begins or is retried; a retry may be in another call of the function."""
        self.roots.forget("global")
        self.variables = variables
        variables.note(self.roots)
        self.roots.list()

    def _find(self, kind: str, name: str) -> Any:
        return self.state.get(name) if kind == "state" else self.variables.data[name].value

    def _walk(self, kind: str, name: str, value: Any) -> Walk:
        return walk_from(value, () if kind == "state" else self.variables.data[name].opaque)

    def rewind(self, state: State) -> None:
        """Put the state back, because the loop is retried in the same scope."""
        for key in [key for key in state.values_by_key() if key not in self.state]:
            del state[key]
        for key, value in self.state.items():
            if key in self._frozen:
                self._frozen[key].thaw()
            if key not in state.values_by_key() or state.bare(key) is not value:
                state[key] = value


class _Snapshots:
    """The snapshots of one loop: what its iterations changed in state, variables, generators, environment and ordinals.

    Objects that were in the state when the loop began are saved by name: a script that holds one (`model = run.state.model`
    before the loop) still holds the same one after the loop was resumed. What the iterations did not change is not restored:
    it stays as the script has set it up this time.
    """

    def __init__(
        self, run: Session, name: str, items: Iterable[Any], enclosing: tuple[str, ...], body: FrameType
    ) -> None:
        self._run, self._name, self._body = run, name, body
        self.path = "/".join((*enclosing, name))
        if run.loops.get(self.path, run) is None:
            raise UsageError(
                f"loop {name!r} has already been completed in this scope; give each loop a name of its own"
            )
        self._is_retry = self.path in run.loops
        self.begin: _Begin = run.loops[self.path] if self._is_retry else _Begin(run)
        self.begin.note_variables(Variables(name, body, items))
        run.loops[self.path] = self.begin
        self.prefix = _Prefix()
        self.complete = False  # whether it was resumed from the snapshot at its end
        self._items = ""
        self._last = ""  # key of the snapshot that the next one replaces
        self._others: list[_Snapshot] = []
        self._refreshed: list[str] = []  # refreshed loops: keys of the snapshots that the first new one replaces
        self.spans: list[tuple[float, float]] = []  # when earlier scopes iterated over the items before `first`
        self._began = time.time()
        self._saved_at = self._save_seconds = 0.0  # of the last snapshot; 0 seconds if it was small

    # -- resuming

    def resume(self, items: Iterable[Any]) -> Iterator[Any]:
        """Restore the furthest snapshot that fits the items; returns the items after it."""
        run, self._items = self._run, _identity(items)
        try:
            found = [_Snapshot.from_key(key) for key in run.entries.find_loops(self.path)]
        except StoreError as error:
            self._refuse(error)
            return iter(items)
        if (run.refresh.everything or self._name in run.refresh.names) and not self.begin.saved:
            self._refreshed = [each.key for each in found]
            return iter(items)
        self._others = found
        same = [each for each in found if each.items == self._items != ""]
        chosen: _Snapshot | None = max(same, key=_progress, default=None)
        items_after: Callable[[int], Iterator[Any]] = partial(_skip, items)
        if found and not same:
            chosen, items_after = self._compare(items, found)
        return items_after(chosen.seen if chosen is not None and self._restore(chosen) else 0)

    def _compare(
        self, items: Iterable[Any], found: list[_Snapshot]
    ) -> tuple[_Snapshot | None, Callable[[int], Iterator[Any]]]:
        """The furthest snapshot whose items are the first of these, and a function that gives the items after the n-th."""
        furthest = max(found, key=_progress)
        marks = dict(self._marks(furthest))
        wanted = {*marks, *(each.seen for each in found)}
        source, generators = iter(items), digest(every_state())
        is_iterator = source is items
        read: list[Any] | None = [] if is_iterator else None
        ours, at = _Prefix(), {0: ""}
        for item in islice(source, furthest.seen):
            ours.add(item)
            if read is not None:
                read.append(item)
                if len(read) > _LOOKAHEAD:
                    read = None
            if ours.count in wanted:
                at[ours.count] = ours.whole
        fits = [each for each in found if at.get(each.seen) == each.prefix]
        if furthest not in fits and digest(every_state()) != generators:
            # Items drawn from a generator differ if the iterations do not draw from it in between.
            fits = [each for each in found if each.seen <= ours.count]
        chosen = max(fits, key=_progress, default=None)
        first = 0 if chosen is None else chosen.seen
        if chosen is None or not (chosen is furthest or (chosen.done and ours.count == first)):
            how = f"continues after {first} items" if first else "starts over"
            warn(f"loop {self._name} {how}: {_difference(ours, at, furthest, marks)}")

        def items_after(first: int) -> Iterator[Any]:
            if first == ours.count:
                return source
            if read is not None:
                return chain(read[first:], source)
            if is_iterator:
                raise UsageError(
                    f"loop {self._name} has to continue after {first} items, but its iterator is used up. "
                    f"Pass a list instead, or give the loop another name"
                )
            return _skip(items, first)

        return chosen, items_after

    def _marks(self, snapshot: _Snapshot) -> Iterable[tuple[int, str]]:
        try:
            entry = self._run.entries.read(snapshot.key)
            return [] if entry is None else _Prefix(*entry.meta["prefix"]).marks
        except StoreError:
            return []  # restoring it will report the problem

    def _refuse(self, why: object) -> None:
        if isinstance(why, Exception) and self._run.strict:
            raise why
        warn(f"loop {self._name} starts over: its snapshot cannot be used: {why}")

    def _restore(self, chosen: _Snapshot) -> bool:
        run, begin = self._run, self.begin
        try:
            entry = run.entries.read(chosen.key)
            if entry is None:
                return False
            for root in entry.meta["roots"]:
                if tuple(root) not in begin.roots.listed:
                    return self._start_over(f"run.state[{root[1]!r}]" if root[0] == "state" else root[1])
            saved = entry.load(begin.roots.find)
            different = begin.variables.differs(saved["variables"])
            if different is not None:
                return self._start_over(different)
            gone = Process().verify(None, saved["process"])
            if gone is not None:
                self._refuse(gone)
                return False
        except (StoreError, CodecError) as error:
            self._refuse(error)
            return False
        if self._is_retry:
            begin.rewind(run.state)
            run.applied.clear()
        self._restore_state(saved)
        begin.variables.restore(saved["variables"], self._body)
        run.beside.epochs.resume(saved["epochs"])
        put_back(saved["generators"])
        begin.restored |= saved["generators"].keys()
        record(*begin.recorders)
        Process().restore(None, saved["process"])
        self._restore_ordinals(saved["calls"])
        stop(*begin.recorders)
        self.prefix, self.complete = _Prefix(*entry.meta["prefix"]), chosen.done
        self._last = "" if chosen.done else chosen.key
        self.spans = [(start, end) for start, end in entry.meta.get("spans", ())]
        if chosen.seen:
            run.count_iterations(self._name, chosen.seen, self.spans)
        return True

    def _start_over(self, name: str) -> bool:
        warn(f"loop {self._name} starts over: {name} was initialized differently this time")
        return False

    def _restore_state(self, saved: Mapping[str, Any]) -> None:
        state, begin = self._run.state, self.begin
        for key, content in saved["contents"].items():
            state.get(key)  # so that a step around this loop has read it
            begin.roots.assign("state", key, content)
        now = {**state.values_by_key(), **saved["set"]}
        before = iter(begin.state)
        in_place = list(takewhile(lambda key: key in before, saved["order"]))  # the keys after these were added
        added = {key: now.pop(key) for key in saved["order"][len(in_place) :] if key in now}
        state.replace({**{key: now[key] for key in now if key not in saved["deleted"]}, **added})
        begin.restored |= saved["set"].keys()

    def _restore_ordinals(self, calls: Mapping[str, int]) -> None:
        """Take as many ordinals of identical calls as the iterations did, and give back those of a failed iteration."""
        for call in {*calls, *self.begin.taken.numbers}:
            taken = list(self.begin.taken.numbers.get(call, ()))
            for number in taken[calls.get(call, 0) :]:
                self._run.give_back(call, number)
            for _ in range(calls.get(call, 0) - len(taken)):
                self._run.take(call)

    # -- saving

    @property
    def cheap(self) -> bool:
        """Whether the iterations since the last snapshot took at least as long as saving it; always so for a small one."""
        return time.perf_counter() - self._saved_at >= self._save_seconds

    def save(self, *, done: bool) -> None:
        """Write a snapshot of what the iterations have changed so far; `done` after the last one."""
        run, begin, seen, started = self._run, self.begin, self.prefix.count, time.perf_counter()
        roots: list[tuple[str, str, str]] = []
        spans = [*self.spans, (self._began, time.time())]
        meta = {"seen": seen, "done": done, "prefix": self.prefix.to_json(), "roots": roots, "spans": spans}
        kind = f"{seen}.{self.prefix.whole}.{self._items}.{'done' if done else ''}"
        listed = {root[:2]: root for root in begin.roots.listed}

        def named(obj: Any) -> Any:
            if type(obj) in ATOMS:
                return None
            found = begin.roots.changeable(obj)
            if found is not None:
                root = listed[(found.name if isinstance(found, View) else found)[:2]]
                if root not in roots:
                    roots.append(root)
            return found

        try:
            value = self._changed()
            roots += [listed["state", key] for key in value["contents"]]
            roots += [listed["global", name] for name in value["variables"]["changed"]]
            event = SnapshotSaved(loop=self._name, seen=seen)
            write = partial(run.entries.write_loop, self.path, kind, value, meta, named, event, self._replaced())
            try:
                self._last, size = write()
            except CodecError:
                begin.variables.without_refused(value["variables"], named)
                self._last, size = write()
            run.notify(event)
            begin.saved, self._refreshed = True, []
            if done:
                self._last = ""
            self._saved_at = time.perf_counter()
            self._save_seconds = self._saved_at - started if size > _SMALL else 0.0
        except (CodecError, StoreError) as error:
            warn(f"loop {self._name}: the snapshot after {seen} items was not saved: {error}")
        finally:
            begin.roots.forget_contents()

    def _replaced(self) -> list[str]:
        """The keys to remove: the previous snapshot, and those for other items that have least progress, if there are many."""
        others = sorted(each for each in self._others if each.key != self._last)
        excess = [each.key for each in others[: max(0, len(others) - _MOST_OTHERS)]]
        return [key for key in (self._last, *excess, *self._refreshed) if key]

    def _changed(self) -> dict[str, Any]:
        """What differs from when the loop began."""
        begin, state, digests = self.begin, self._run.state.values_by_key(), Digests()
        touched = begin.restored & begin.notes.keys()
        for key, note in begin.notes.items():
            if any(then is None for then in note.before.values()) or any(True for _ in note.changed(now=digests)):
                touched.add(key)  # also if it can't be compared
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
    """How the items differ from those before the furthest snapshot."""
    same = 0
    for number in sorted(number for number in {*marks, furthest.seen} if number in at):
        if at[number] != marks.get(number, furthest.prefix):
            which = f"item {number}" if number == same + 1 else f"one of the items {same + 1} to {number}"
            return f"{which} differs from that of the last run"
        same = number
    return f"there are only {ours.count} items now, but the snapshot was taken after {furthest.seen}"
