"""An open run from the inside: what its steps are recorded with, counted by and notified through."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import traceback
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from blake3 import blake3

from . import current, effects_once, events, records
from .entries import RunEntries
from .errors import CodecError, FingerprintError, HoldLost, StoreError, UsageError, log, logger, warn
from .events import Event
from .history.timeline import count
from .identity.calls import Variants
from .identity.values import digest
from .keys import counters_of
from .node import CheckpointData, Node, group_of
from .opening import Opened, disabled, ending, open_run
from .overlap import Concurrent, Group
from .reasons import Reason
from .records import Record, Reference
from .repeats import Ordinals, SeenCheckpoints, SharedOrdinals
from .snapshots import Snapshot, Snapshots
from .stores import Store
from .surroundings.inputs import OBSERVED
from .surroundings.process import gave_back, took
from .surroundings.state import State
from .surroundings.unseeded import Unseeded, every_state

if TYPE_CHECKING:
    from .report.terminal import Report
    from .retention import Policy
    from .run import Run

T = TypeVar("T")
E = TypeVar("E", bound=Event)

_PRUNE_EVERY = 32  # checkpoints
_STARTED_AFTER = 0.5  # seconds; a step that is over by then leaves one event instead of two


class Begun:
    """A step that is under way: when and where it began."""

    __slots__ = ("lane", "node", "time")

    def __init__(self, node: Node) -> None:
        self.node, self.time, self.lane = node, time.time(), events.lane()

    def event(self) -> events.StepStarted:
        return events.StepStarted(**self.node.about(), time=self.time, lane=self.lane)


# Where something stands that cannot be pickled, if effects stand beside the result; and what people call that.
_IN_EFFECTS = (
    re.compile(r"^the result\[(?:0\](?P<inside>\S*)|1\]\['\w+'\](?:\['\w+'\])*?\['(?P<name>[^']*`)'\]\S*)"),
    lambda found: f"what it put into {found['name']}" if found["name"] else f"the result{found['inside']}",
)


class StartNotifier:
    """Writes down that a step has begun if it takes a while, so that others see what runs, and a dead run shows where it died.

    One thread for all steps of a run, from the first step to the end of the scope. Steps never wait for it.
    """

    def __init__(self, write: Callable[[events.StepStarted], None]) -> None:
        self._write = write
        self._begun: dict[int, Begun] = {}
        self._owner = 0  # the process that has the thread: a forked child needs one of its own

    def begin(self, node: Node) -> Begun:
        if self._owner != os.getpid():
            self._owner, self._begun = os.getpid(), {}
            threading.Thread(target=self._watch, args=(self._begun,), name="oncemore-started", daemon=True).start()
        begun = Begun(node)
        self._begun[id(begun)] = begun
        return begun

    def end(self, begun: Begun) -> None:
        self._begun.pop(id(begun), None)

    def stop(self) -> None:
        """The scope ends; a step after this begins anew."""
        self._owner = 0

    def _watch(self, begun: dict[int, Begun]) -> None:
        while self._owner == os.getpid() and self._begun is begun:
            time.sleep(_STARTED_AFTER)
            for key, each in list(begun.items()):
                if time.time() - each.time >= _STARTED_AFTER and begun.pop(key, None) is not None:
                    try:
                        self._write(each.event())
                    except StoreError:
                        pass  # the step's own end will tell of a store that cannot be written


class Session:
    """One opening of a run in this process: by a scope, or by a worker that takes part in one."""

    public: Callable[[Session], Run]  # what people see of it, see run.py

    def __init__(
        self,
        run_id: str,
        store: Store,
        *,
        workflow: str | None = None,
        strict: bool = False,
        state: Mapping[str, Any] = {},
        retention: Policy | None = None,
        inputs: str | None = None,
    ) -> None:
        self.id, self.store, self.workflow, self.strict = run_id, store, workflow, strict
        self._run: weakref.ref[Run] | None = None
        if inputs not in (None, OBSERVED):
            raise UsageError(f"run {run_id}: inputs={inputs!r} is not 'observed'")
        self.observes = inputs == OBSERVED  # whether the files that steps read count
        self.pid = os.getpid()
        self.resumed = False
        self.attempt = ""  # the mark of the scope, in workers that of the scope they work for
        self.seen: Mapping[str, Any] = {}  # the record and marks of changes, in processes that did not open the run
        self.joined = False  # as a worker of another process's scope
        self.disabled = disabled()
        self.ran: Counter[str] = Counter()
        self.reused: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._saved: defaultdict[str, float] = defaultdict(float)
        self._refresh = set(filter(None, map(str.strip, os.environ.get("ONCEMORE_REFRESH", "").split(","))))
        self._refreshed: set[tuple[str, str]] = set()
        self.used_nodes: set[str] = set()  # the entries of nodes that ran or were reused in this scope
        self.applied: set[str] = set()  # entries whose effects this scope has seen; empty again when it is put back
        self.performed: set[str] = set()  # effect="once" steps of which was said that they are not performed again
        self.variants = Variants()
        self.calls: dict[str, Ordinals] = {}  # of steps that count every call, as long as only this process makes some
        self.spread = False  # other processes take part, or may: numbers for identical calls are taken from the store
        self.loops: dict[str, Any] = {}  # those begun in this scope, with what they know of the state; None: completed
        self._listeners: list[tuple[type[Event], Callable[[Any], object]]] = []
        self.report: Report | None = None  # tells people, if any look
        self.unkept: dict[str, str] = {}  # the steps of which nothing could be kept, and why
        self.unseeded: Unseeded | None = None
        self.group, self.concurrent = Group(), Concurrent()
        self.started = StartNotifier(lambda event: self.entries.append([event]))
        self._opened: Opened
        self.snapshots = Snapshots()
        self.seen_checkpoints = SeenCheckpoints()
        self._retention, self._since_pruned, self._left = retention, 0, False
        self.state = State(state)
        self.entries: RunEntries
        self.shared: RunEntries

    @property
    def run(self) -> Run:
        """What people see of it; the same object as long as anybody has it."""
        run = None if self._run is None else self._run()
        if run is None:
            run = type(self).public(self)
            self._run = weakref.ref(run)
        return run

    @property
    def record(self) -> Record:
        """The run's record, as it was when the scope was opened."""
        return self._opened.record

    @property
    def mark(self) -> str:
        """What shows in the record that this scope has the run open."""
        return self._opened.mark

    @property
    def log(self) -> str:
        """The prefix of the run's events, now."""
        return records.read(self.store, self.id).log

    @property
    def attempt_number(self) -> int:
        """The number of this opening of the run; workers have that of the scope they take part in."""
        return self._opened.record.attempts if self.id else 0

    def reference(self) -> Reference:
        """What a worker needs to take part."""
        return Reference(
            self.id, self.store.url, self.strict, self.attempt, self.state.sent(), OBSERVED if self.observes else None
        )

    def share(self) -> Reference:
        """What a worker needs to take part in this scope; from here on, identical calls are counted in the store."""
        self.spread = bool(self.attempt)
        try:
            while self.spread and self.calls:
                call, numbers = self.calls.popitem()
                SharedOrdinals(self.store, self._counter(call), numbers).publish()
        except StoreError as error:
            warn(f"run {self.id}: identical calls in other processes are not counted: {error}")
        return self.reference()

    # -- opening and leaving

    def open(self, *, announce: bool = True) -> Session:
        """Find or make the run in its store. `announce` is off for workers that take part in another's scope."""
        self._opened = open_run(self, announce=announce)
        self.resumed = self._opened.resumed
        self.attempt = self._opened.mark or self.attempt
        self.use(self._opened.record)
        self.state.update(self._opened.record.state)
        self.joined = not announce
        if not self.disabled:
            current.engage(self)
            if announce:
                self.unseeded = Unseeded(self.entries.owner)
                if self.resumed and self.unseeded.states:
                    self.unseeded.take(self.entries.opening() or {})
        return self

    def use(self, record: Record) -> None:
        """Take entries from, and put them to, where the record says."""
        self.entries, self.shared = self.shelves(self.store, record)
        self.snapshots.forget()  # the last may not count there

    def _moved(self, prefix: str) -> RunEntries:
        """Where the run goes on, whose prefix was closed."""
        from .history.rollback import reopen

        if self.entries.prefix == prefix:
            self.use(reopen(self.store, self.id, prefix))
        return self.entries

    def shelves(self, store: Store, record: Record) -> tuple[RunEntries, RunEntries]:
        """The entries of the run, and those that it shares with others."""
        own = RunEntries(store, record.uid, record.prefix, record.log, self._moved, record.adopted, record.entries)
        return own, RunEntries(store, "shared", "shared/", record.log)

    def leave(self, error: BaseException | None) -> None:
        """Record how the scope ended, and what was reused in it."""
        if self.snapshots.lacking:
            self._save_state()
        self.retain(every=1)
        facts = [*self.unwritten(), ending(error)]

        def end(record: Record) -> list[Event]:
            count(self.store, record)
            others = [mark for mark in record.open if mark != self._opened.mark]
            record.open = [mark for mark in others if records.alive(self.store, record, mark)]
            record.ending = type(facts[-1]).__name__.removeprefix("Run").lower()
            return facts

        try:
            records.change(self.store, self.id, end)
            self._left = True
            for fact in facts:
                self.notify(fact)
        except (StoreError, UsageError) as trouble:
            warn(f"run {self.id}: how it ended could not be written: {trouble}")
        finally:
            if self.unkept and self.report is None:
                logger.warning("run %s: %s", self.id, self.unkept_line)  # each has been warned of
            self._forget_counters()
            if self.unseeded is not None:
                self.unseeded.leave()
            self.started.stop()
            self._opened.close()

    def _counter(self, call: str) -> str:
        return f"{counters_of(self.entries.owner)}{self.attempt}/{blake3(call.encode()).hexdigest(length=16)}"

    def _forget_counters(self) -> None:
        """Numbers count within one attempt: those of this one, and of others that were killed, go."""
        if not self.spread:
            return
        try:
            keys = [key for key, _ in self.store.scan(counters_of(self.entries.owner), most=0)]
            marks = {key: key.split("/")[3] for key in keys}
            live = self.store.held(
                [f"alive/{self.entries.owner}/{mark}" for mark in {*marks.values()} - {self.attempt}]
            )
            self.store.commit(delete=[key for key in keys if f"alive/{self.entries.owner}/{marks[key]}" not in live])
        except StoreError as error:
            log("run %s: counters of identical calls are left: %s", self.id, error)

    # -- events

    def emit(self, *facts: Event) -> None:
        """Write events; a store that cannot take them does not stop the program."""
        try:
            self.entries.append(facts)
        except StoreError as error:
            warn(f"run {self.id}: {type(facts[-1]).__name__} could not be written: {error}")
        for fact in facts:
            self.notify(fact)

    def retain(self, every: int = _PRUNE_EVERY) -> None:
        """Apply the scope's retention policy, now and then: it reads the run's events."""
        self._since_pruned += 1
        if self._retention is not None and self._since_pruned >= every and self.pid == os.getpid():
            self._since_pruned = 0
            from .retention import prune

            try:
                prune(self.store, self._retention, [self.id], dry_run=False, own=self.id)
                if self.snapshots.last.key and not self.store.get_many([self.snapshots.last.key], most=0):
                    self.snapshots.forget()
            except StoreError as error:
                warn(f"run {self.id}: old checkpoints could not be removed: {error}")

    def notify(self, fact: E) -> E:
        """Call the listeners in this process. One that fails harms nobody."""
        log("run %s: %s", self.id, fact)
        for kind, callback in self._listeners:
            if isinstance(fact, kind):
                try:
                    callback(fact)
                except Exception:
                    logger.exception("run %s: a listener for %s failed", self.id, kind.__name__)
        return fact

    def on(self, kind: type[E], callback: Callable[[E], object]) -> None:
        """Call `callback` with every event of that kind that happens in this scope (`Event`: with all)."""
        self._listeners.append((kind, callback))

    @property
    def seconds_saved(self) -> float:
        """How long the steps that were reused in this scope took when they ran."""
        return sum(self._saved.values())

    def unwritten(self) -> Iterable[Event]:
        return [
            events.StepReused(step=step, times=times, seconds_saved=self._saved[step])
            for step, times in sorted(self.reused.items() if not self._left else ())
        ]

    # -- nodes

    @property
    def beside(self) -> Group:
        """The steps that are being computed beside one that is called here."""
        return group_of(self.group)

    def entries_of(self, node: Node) -> RunEntries:
        return self.shared if node.owner == "shared" else self.entries

    def ordinals(self, call: str) -> Ordinals | SharedOrdinals:
        """Which of the identical calls of a step are under way or done in this scope; `call` is the step and its arguments."""
        if self.spread:
            return SharedOrdinals(self.store, self._counter(call), self.calls.get(call))
        return self.calls.setdefault(call, Ordinals())

    def take(self, call: str) -> int:
        """The number of a call that is about to be made, or was made by a step that is skipped."""
        try:
            number = self.ordinals(call).take()
        except StoreError as error:
            warn(f"run {self.id}: identical calls in other processes are not counted: {error}")
            self.spread = False
            number = self.ordinals(call).take()
        took(call, number)
        return number

    def give_back(self, call: str, number: int) -> None:
        """The call failed: the next identical one is the same node."""
        self.ordinals(call).give_back(number)
        gave_back(call, number)
        for begin in self.loops.values():  # of a step that fails after its loop
            if begin is not None:
                begin.taken.drop(call, number)

    def wants_fresh(self, node: Node, *, once: bool) -> bool:
        """Whether `ONCEMORE_REFRESH` asks for this node to run again; once in a scope."""
        return node.step in self._refresh and (node.step, node.fingerprint) not in self._refreshed

    def count_reuse(self, step: str, key: str, seconds: float) -> None:
        self.used_nodes.add(key)
        self.reused[step] += 1
        self._saved[step] += seconds
        if self.report is not None:
            self.report.reused(step, seconds)

    def will_run(self, node: Node, why: str, *, once: bool) -> None:
        """A step is about to run. Who only looks at a run forbids it here."""

    def will_go(self, name: str, why: str) -> None:
        """Something else is about to run: a loop, a step of which nothing can be kept."""

    @property
    def unkept_line(self) -> str:
        """Which steps could not be kept, in one line; empty if there are none."""
        if not self.unkept:
            return ""
        steps = [f"{step} ({why.partition(';')[0].partition('. ')[0]})" for step, why in self.unkept.items()]
        return f"{len(steps)} step{'s' * (len(steps) > 1)} could not be kept: {', '.join(steps)}"

    def begin(self, node: Node) -> Begun:
        begun = self.started.begin(node)
        if self._listeners or logger.isEnabledFor(logging.INFO):
            self.notify(begun.event())
        return begun

    def snapshot(self) -> Snapshot:
        """The state and generators as they are now. Say `self.snapshots.written` when it is."""
        started = self.snapshots.clock()
        value = {"state": self.state.values_by_key(), "generators": every_state()}
        content = digest(value).hex()
        if content == self.snapshots.last.content:
            return self.snapshots.last._replace(entry=None, seconds=self.snapshots.clock() - started)
        entry = self.entries.encode_snapshot(content, value)
        return Snapshot(entry.key, entry, content, self.snapshots.clock() - started)

    def _save_state(self) -> None:
        """The scope ends, and its last step has no snapshot of its own."""
        token = current.enter(None)
        try:
            snapshot = self._snapshot(always=True)
        finally:
            current.leave(token)
        if snapshot.key and not snapshot.behind:
            fact = events.StateSaved(snapshot=snapshot.key)
            try:
                self.entries.write_snapshot(snapshot.entry, fact)
                self.snapshots.written(snapshot)
                self.notify(fact)
            except StoreError as error:
                warn(f"run {self.id}: the state at the end could not be written: {error}")

    def _snapshot(self, *, always: bool) -> Snapshot:
        """A snapshot if it is time for one, or the one before. An empty state needs none."""
        state, started = self.state._values, self.snapshots.clock()
        if not state:
            return Snapshot()
        if not always and not self.snapshots.due(state):
            return self.snapshots.nearest()
        try:
            return self.snapshot()
        except (FingerprintError, CodecError) as error:
            self.snapshots.failed(self.snapshots.clock() - started)
            log("run %s: no snapshot of the state: %s", self.id, error)
            return self.snapshots.nearest()

    def record_result(self, node: Node, kept: CheckpointData, *, reason: Reason, seconds: float) -> None:
        """Keep the result of a completed node. What cannot be kept is told, and the program goes on."""
        self._refreshed.add((node.step, node.fingerprint))
        self.used_nodes.add(node.key)
        kept.meta = {"step": node.step, "reason": reason.text, **kept.meta}
        if kept.once:
            kept.meta.update(effects_once.about(node), settled=effects_once.COMPLETED)
        token = current.enter(None)  # a step inside the value is kept as itself, not as part of this run
        entries = self.entries_of(node)
        try:
            packed = entries.pack(node, kept, seconds=seconds, time=time.time())
            snapshot = self._snapshot(always=False)
            kept.snapshot = snapshot.entry
            unseeded = self.unseeded
            if unseeded is not None and not unseeded.written:
                kept.opening, unseeded.written = self.entries.encode_opening(unseeded.states), True
            fields = {
                **node.about(),
                **reason.fields(),
                "seconds": seconds,
                "snapshot": snapshot.key,
                "behind": snapshot.behind,
            }
            written = entries.write(node, packed, kept, fields)
            self.ran[node.step] += 1
            if written is None:
                if kept.opening is not None and unseeded is not None:
                    unseeded.written = False
                log("run %s: %s was kept by another attempt first; that one stays", self.id, node.id)
                return
            self.applied.add(written.entry)
            self.snapshots.written(snapshot, written.stored_bytes)
            self.notify(written)
            self.retain()
        except HoldLost as error:
            self.ran[node.step] += 1
            log("run %s: %s is not kept: %s", self.id, node.id, error)
        except (CodecError, StoreError) as error:
            message = str(error) if "effects" not in kept.meta else re.sub(*_IN_EFFECTS, str(error))
            self.not_kept(node, f"{message}. It will run again next time", seconds=seconds)
        finally:
            current.leave(token)

    def not_kept(self, node: Node, why: str, *, seconds: float) -> None:
        """Say that a step's result is returned but will not be there next time."""
        self.ran[node.step] += 1
        self.unkept.setdefault(node.step, why)
        warn(f"step {node.step}: the result was not kept: {why}")
        fact = events.StepNotKept(**node.about(), reason=why, seconds=seconds)
        try:
            self.entries.append([fact])
        except StoreError:
            pass  # the same store that could not take the result; the warning above said so
        self.notify(fact)

    def record_failure(self, node: Node, error: Exception, *, reason: Reason, seconds: float) -> None:
        """Keep what went wrong; the step runs again next time."""
        self.failed[node.step] += 1
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        message = f"{type(error).__name__}: {error}"
        self.emit(events.StepFailed(**node.about(), **reason.fields(), seconds=seconds, error=message, traceback=trace))


def _before_fork() -> None:
    """A child has the runs that are open here, too, and may take part in them."""
    for run in list(current.opened):
        run.spread = bool(run.attempt)  # nothing is written here: the stores have closed their connections


os.register_at_fork(before=_before_fork)
