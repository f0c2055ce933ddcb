"""An open run from the inside: where steps are counted and recorded, and listeners notified."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from blake3 import blake3

from . import current, effects_once, events, records
from .entries import RunEntries
from .errors import CodecError, FingerprintError, HoldLost, StoreError, UsageError, did_you_mean, log, logger, warn
from .events import Event
from .history.explain import Reason
from .history.timeline import count
from .identity import Packages, check_packages
from .identity.calls import Variants
from .identity.values import digest
from .keys import SHARED, alive_key, counters_of, log_of, reused_of
from .node import ASKED, CheckpointData, Node, group_of
from .records import Opened, Record, Reference, ending, open_run, read_log
from .reuse import Inbox, Outbox, Reuse
from .settings import Refresh, disabled, refresh_from_environment
from .stores import Store
from .surroundings.inputs import OBSERVED
from .surroundings.ordinals import Ordinals, SharedOrdinals
from .surroundings.overlap import Concurrent, Group
from .surroundings.process import applied, gave_back, took
from .surroundings.rng import Unseeded, every_state
from .surroundings.snapshots import Snapshot, Snapshots
from .surroundings.state import State

if TYPE_CHECKING:
    from .history.named import SeenCheckpoints
    from .report.progress import Report
    from .retention import Policy
    from .run import Run

E = TypeVar("E", bound=Event)

_PRUNE_EVERY = 32  # checkpoints
_STARTED_AFTER = 0.5  # seconds; a step that ends sooner leaves one event instead of two


class RunningStep:
    """A step that is being computed: when and where it started."""

    __slots__ = ("about", "lane", "time")

    def __init__(self, about: dict[str, Any]) -> None:
        self.about, self.time, self.lane = about, time.time(), events.lane()

    def event(self) -> events.StepStarted:
        return events.StepStarted(**self.about, time=self.time, lane=self.lane)


# Rewrites the path to something that can't be pickled, if result and effects were pickled together: `the result[0]...` is
# in the result, `the result[1]...['global `x`']` in an effect.
_IN_EFFECTS = (
    re.compile(r"^the result\[(?:0\](?P<inside>\S*)|1\]\['\w+'\](?:\['\w+'\])*?\['(?P<name>[^']*`)'\]\S*)"),
    lambda found: f"what it put into {found['name']}" if found["name"] else f"the result{found['inside']}",
)


class StartNotifier:
    """Writes `StepStarted` for steps that take a while, so that others see what runs, and where a killed run died.

    One thread serves all steps of a run, from the first step to the end of the scope. Steps never wait for it.
    """

    def __init__(self, write: Callable[[events.StepStarted], None]) -> None:
        self._write = write
        self._running: dict[int, RunningStep] = {}
        self._owner = 0  # the process that has the thread; a forked child needs its own
        self._stopped = threading.Event()

    def begin(self, about: dict[str, Any]) -> RunningStep:
        if self._owner != os.getpid():
            self._owner, self._running, self._stopped = os.getpid(), {}, threading.Event()
            watched = self._running, self._stopped
            threading.Thread(target=self._watch, args=watched, name="oncemore-started", daemon=True).start()
        step = RunningStep(about)
        self._running[id(step)] = step
        return step

    def end(self, step: RunningStep) -> None:
        self._running.pop(id(step), None)

    def stop(self) -> None:
        """End the thread, since the scope ends. A later step starts a new one."""
        self._owner = 0
        self._stopped.set()

    def _watch(self, running: dict[int, RunningStep], stopped: threading.Event) -> None:
        while not stopped.wait(_STARTED_AFTER):
            for key, step in list(running.items()):
                if time.time() - step.time >= _STARTED_AFTER and running.pop(key, None) is not None:
                    try:
                        self._write(step.event())
                    except StoreError:
                        pass  # recording the step will report the problem


class Workers:
    """What the workers of a scope have done so far, as seen from the process that opened it. `look` reads what is new."""

    def __init__(self, run: Session) -> None:
        self._run, self._since = run, run.record.counted
        self._lock = threading.Lock()
        self._inbox, self._others = Inbox(run.store, run.entries.owner), dict[str, Reuse]()
        self.ran, self.failed, self.reuse = Counter[str](), Counter[str](), Reuse()

    def look(self) -> None:
        """Count what the workers did since the last look, and show it in the report."""
        run, report = self._run, self._run.report
        with self._lock:
            try:
                for event in read_log(run.store, run.record.log, self._since):
                    self._since = event.seq
                    if isinstance(event, events.StepEvent) and event.scope == run.attempt:
                        if isinstance(event, (events.StepCompleted, events.StepNotKept)):
                            self.ran[event.step] += 1
                        elif isinstance(event, events.StepFailed):
                            self.failed[event.step] += 1
                        if report is not None:
                            report.notify(event)
                new = self._inbox.take(lambda scope: scope == run.attempt).get(run.attempt, Reuse())
            except StoreError as error:
                log("run %s: what its workers did cannot be read: %s", run.id, error)
                return
            self.reuse.update(new)
            if report is not None:
                report.reused_by_workers(new)

    @property
    def reported(self) -> list[str]:
        """The keys of what they reported to have reused, to be deleted once it is written as events."""
        return self._inbox.keys

    def left_over(self) -> list[Event]:
        """What was reported to scopes that ended before they could write it as events."""
        run = self._run

        def is_over(scope: str) -> bool:
            return scope != run.attempt and not records.alive(run.store, run.record, scope)

        try:
            found = self._inbox.take(is_over)
        except StoreError:
            return []
        return [event for reuse in found.values() for event in reuse.events()]


class Session:
    """A run opened in this process: by a scope, or by a worker that takes part in one."""

    public: Callable[[Session], Run]  # makes the object that users get; set in run.py

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
        refresh: bool | Collection[str] = False,
        packages: str = "record",
    ) -> None:
        self.id, self.store, self.workflow, self.strict = run_id, store, workflow, strict
        self._run: weakref.ref[Run] | None = None
        if inputs not in (None, OBSERVED):
            raise UsageError(f"run {run_id}: inputs={inputs!r} is not supported; use inputs='observed'")
        self.observes = inputs == OBSERVED  # whether the content of files that steps read is part of their identity
        check_packages(f"run {run_id}", packages)
        self.compares_versions = (
            packages == "compare"
        )  # whether the versions of packages are part of the identity of steps
        self.pid = os.getpid()
        self.resumed = False
        self.attempt = ""  # the mark of this scope; in a worker, of the scope it takes part in
        self.opened = time.time()  # when the scope was opened; what was recorded since belongs to other calls of it
        self.followed: Mapping[str, Any] = {}  # in a worker: the record and change marks when it last looked
        self.joined = False  # whether this is a worker in another process's scope
        self.disabled = disabled()
        self.ran: Counter[str] = Counter()
        self.reuse = Reuse()
        self.failed: Counter[str] = Counter()
        self._outbox: Outbox | None = None  # in a worker
        self._workers: Workers | None = None  # once other processes may take part
        self._refresh_here = Refresh(
            refresh is True,
            frozenset(() if isinstance(refresh, bool) else [refresh] if isinstance(refresh, str) else refresh),
        )
        self._refresh_environment = refresh_from_environment()
        self.refresh = self._refresh_here | self._refresh_environment
        self._refreshed: set[tuple[str, str]] = set()
        self.last: dict[str, str] = {}  # by step: the checkpoint that its last call in this scope used or replaced
        self.used_nodes: set[str] = set()  # keys of the nodes that ran or were reused in this scope
        self.applied: set[str] = set()  # keys of the entries whose effects this scope has; cleared by a rollback
        self.warned_performed: set[str] = set()  # effect="once" steps with a warning that they are not performed again
        self.variants = Variants()
        self._ordinals: dict[str, Ordinals] = {}  # by call of an `every_call` step, while no other process takes part
        self._next_ordinal: dict[str, int] = {}  # by such a call: above all that this process has taken
        self.distributed = False  # other processes may take part, so ordinals are taken from the store
        self.loops: dict[str, Any] = {}  # the loops begun in this scope: the run as it was then; None once completed
        self.blocks: dict[Any, Any] = {}  # the definitions of blocks, see block.py
        self._listeners: list[tuple[type[Event], Callable[[Any], object]]] = []
        self.report: Report | None = None  # the lines on the terminal, if there is one
        self.unkept: dict[str, str] = {}  # steps that could not be recorded, and why
        self.unseeded: Unseeded | None = None
        self.files: Any = None  # see surroundings/inputs.py
        self.group, self.concurrent = Group(), Concurrent()
        self.started = StartNotifier(lambda event: self.entries.append([event]))
        self._opened: Opened
        self.snapshots = Snapshots()
        self.seen_checkpoints: SeenCheckpoints | None = None  # the named checkpoints of earlier scopes, once needed
        self._retention, self._since_pruned, self._reuse_written = retention, 0, False
        self.state = State(state)
        self.entries: RunEntries
        self.shared: RunEntries

    @property
    def run(self) -> Run:
        """The object that users get; the same one as long as anything refers to it."""
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
        """This scope's mark in the record, which says that the run is open."""
        return self._opened.mark

    @property
    def log(self) -> str:
        """The current key prefix of the run's events."""
        return records.read(self.store, self.id).log

    @property
    def attempt_number(self) -> int:
        """The number of this scope among those of the run; in a worker, of the scope it takes part in."""
        return self._opened.record.attempts if self.id else 0

    def share(self) -> Reference:
        """What a worker needs to take part in this scope. From now on, identical calls are numbered in the store."""
        self.distributed = bool(self.attempt)
        try:
            for call, ordinals in list(self._ordinals.items()) if self.distributed else ():
                SharedOrdinals(self.store, self._counter(call), ordinals).publish()
                self._ordinals.pop(call, None)  # only now: they would be lost with a store that fails
        except StoreError as error:
            warn(f"run {self.id}: identical calls are numbered in each process separately: {error}")
        if self.report is not None:
            self.report.lines.changed()  # workers may be all that there is to see
        inputs = OBSERVED if self.observes else None
        refresh = self._refresh_here.everything or tuple(sorted(self._refresh_here.names))
        packages: Packages = "compare" if self.compares_versions else "record"
        state = self.state.sent()
        options = inputs, refresh, packages, self.opened
        return Reference(self.id, self.store.url, self.strict, self.attempt, state, *options)

    # -- workers

    @property
    def is_worker(self) -> bool:
        """Whether this process works for a scope that another one has opened: it joined it, or was forked from it."""
        return bool(self.attempt) and (self.joined or self.pid != os.getpid())

    def _about(self, node: Node) -> dict[str, Any]:
        """The fields of an event about a node."""
        return {**node.about(), "scope": self.attempt} if self.is_worker else node.about()

    def _report_reuse(self, step: str, ended: float, seconds: float) -> None:
        if self._outbox is None or self._outbox.process != os.getpid():
            self._outbox = Outbox(self.store, f"{reused_of(self.entries.owner)}{self.attempt}/")
        self._outbox.add(step, ended, seconds)

    @property
    def workers(self) -> Workers | None:
        """What the workers of this scope do; None if there are none."""
        if self._workers is None and self.distributed and not self.is_worker:
            self._workers = Workers(self)
        return self._workers

    # -- opening and leaving

    def open(self, *, announce: bool = True) -> Session:
        """Find or create the run in its store. Workers that take part in another process's scope do not `announce` it."""
        self._opened = open_run(self, announce=announce)
        self.resumed = self._opened.resumed
        self.attempt = self._opened.mark or self.attempt
        self.use(self._opened.record)
        self.state.update(self._opened.record.state)
        self.joined = not announce
        if self.joined:
            self._outbox = Outbox(self.store, f"{reused_of(self.entries.owner)}{self.attempt}/")
        if not self.disabled:
            current.engage(self)
            if announce:
                self.unseeded = Unseeded(self.entries.owner)
                if self.resumed and self.unseeded.states:
                    self.unseeded.take(self.entries.opening() or {})
        return self

    def use(self, record: Record) -> None:
        """Read and write entries where the record says."""
        self.entries, self.shared = self.entries_in(self.store, record)
        self.snapshots.forget()  # the last one may not be valid there

    def _moved(self, prefix: str) -> RunEntries:
        """The entries under the run's new prefix, now that `prefix` is closed."""
        from .history.rollback import reopen

        if self.entries.prefix == prefix:
            self.use(reopen(self.store, self.id, prefix))
        return self.entries

    def entries_in(self, store: Store, record: Record) -> tuple[RunEntries, RunEntries]:
        """The entries of the run, and those that all runs share."""
        own = RunEntries(store, record.uid, record.prefix, record.log, self._moved, record.adopted, record.entries)
        return own, RunEntries(store, "shared", SHARED, record.log)

    def leave(self, error: BaseException | None) -> None:
        """Close the scope: record how it ended and what was reused in it."""
        self._warn_unknown_refresh()
        if self.snapshots.lacking:
            self._save_final_state()
        self.retain(every=1)
        workers = self.workers
        if workers is not None:
            workers.look()
            self.ran.update(workers.ran)
            self.failed.update(workers.failed)
            self.reuse.update(workers.reuse)
        last = [*self.unwritten(), *([] if workers is None else workers.left_over()), ending(error)]

        def end(record: Record) -> list[Event]:
            count(self.store, record)
            others = [mark for mark in record.open if mark != self._opened.mark]
            record.open = [mark for mark in others if records.alive(self.store, record, mark)]
            record.ending = type(last[-1]).__name__.removeprefix("Run").lower()
            return last

        try:
            records.change(self.store, self.id, end, delete=() if workers is None else workers.reported)
            self._reuse_written = True
            for event in last:
                self.notify(event)
        except (StoreError, UsageError) as trouble:
            warn(f"run {self.id}: the end of its scope could not be recorded: {trouble}")
        finally:
            if self.unkept and self.report is None:
                logger.warning("run %s: %s", self.id, self.unkept_line)  # each had a warning of its own
            self._forget_counters()
            if self.unseeded is not None:
                self.unseeded.leave()
            self.started.stop()
            self._opened.close()

    def _counter(self, call: str) -> str:
        return f"{counters_of(self.entries.owner)}{self.attempt}/{blake3(call.encode()).hexdigest(length=16)}"

    def _forget_counters(self) -> None:
        """Remove the ordinals of this scope, and of scopes that were killed: they are valid within one scope."""
        if not self.distributed:
            return
        try:
            keys = [key for key, _ in self.store.scan(counters_of(self.entries.owner), most=0)]
            marks = {key: key.split("/")[3] for key in keys}
            live = self.store.held([alive_key(self.entries.owner, mark) for mark in {*marks.values()} - {self.attempt}])
            self.store.commit(delete=[key for key in keys if alive_key(self.entries.owner, marks[key]) not in live])
        except StoreError as error:
            log("run %s: the ordinals of identical calls could not be removed: %s", self.id, error)

    # -- events

    def retain(self, every: int = _PRUNE_EVERY) -> None:
        """Apply the scope's retention policy at every `every`-th call: that reads all events of the run."""
        self._since_pruned += 1
        if self._retention is not None and self._since_pruned >= every and self.pid == os.getpid():
            self._since_pruned = 0
            from .history.prune import prune

            try:
                prune(self.store, self._retention, [self.id], dry_run=False, own=self.id)
                if self.snapshots.last.key and not self.store.get_many([self.snapshots.last.key], most=0):
                    self.snapshots.forget()
            except StoreError as error:
                warn(f"run {self.id}: old checkpoints could not be removed: {error}")

    def notify(self, event: Event) -> None:
        """Call the listeners in this process. If one fails, that is logged."""
        log("run %s: %s", self.id, event)
        for kind, callback in self._listeners:
            if isinstance(event, kind):
                try:
                    callback(event)
                except Exception:
                    logger.exception("run %s: a listener for %s failed", self.id, kind.__name__)

    def on(self, kind: type[E], callback: Callable[[E], object]) -> None:
        """Call `callback` with every event of that kind in this scope (`Event`: every event)."""
        self._listeners.append((kind, callback))

    @property
    def reused(self) -> Counter[str]:
        return self.reuse.times

    @property
    def seconds_saved(self) -> float:
        """The time that the steps reused in this scope took on the clock when they ran."""
        return self.reuse.seconds()

    def unwritten(self) -> Iterable[Event]:
        """Events of reuse, one per step, which are written when the scope ends."""
        return [] if self._reuse_written else self.reuse.events()

    # -- nodes

    @property
    def beside(self) -> Group:
        """The steps that run concurrently with one called here."""
        return group_of(self.group)

    def entries_of(self, node: Node) -> RunEntries:
        return self.shared if node.owner == "shared" else self.entries

    def ordinals(self, call: str) -> Ordinals | SharedOrdinals:
        """The ordinals of identical calls in this scope; `call` is the step and its arguments."""
        if self.distributed:
            return SharedOrdinals(self.store, self._counter(call), self._ordinals.get(call))
        return self._ordinals.setdefault(call, Ordinals(self._next_ordinal.get(call, 0)))

    def take(self, call: str) -> int:
        """Take the ordinal of a call that is about to be made, or was made inside a step that is skipped."""
        try:
            number = self.ordinals(call).take()
        except StoreError as error:
            warn(f"run {self.id}: identical calls are numbered in each process separately: {error}")
            self.distributed, self._ordinals = False, {}  # continue above those that this process has taken
            number = self.ordinals(call).take()
        self._next_ordinal[call] = max(self._next_ordinal.get(call, 0), number + 1)
        took(call, number)
        return number

    def give_back(self, call: str, number: int) -> None:
        """The call failed: the next identical one is the same node."""
        self.ordinals(call).give_back(number)
        gave_back(call, number)
        for begin in self.loops.values():  # the step around a loop may fail after the loop
            if begin is not None:
                begin.taken.drop(call, number)

    def wants_fresh(self, node: Node, *, once: bool) -> bool:
        """Whether the scope or `ONCEMORE_REFRESH` requests that this node run again, which it does once per scope.

        An effect="once" step has to be named.
        """
        requested = node.step in self.refresh.names or (self.refresh.everything and not once)
        return requested and (node.step, node.fingerprint) not in self._refreshed

    def fresh_reason(self, node: Node) -> str:
        """Who requests it."""
        here, environment = self._refresh_here, self._refresh_environment
        by_scope = node.step in here.names or (here.everything and node.step not in environment.names)
        return ASKED[0] if by_scope else ASKED[1]

    def reject_unknown_refresh(self) -> None:
        """UsageError if `ONCEMORE_REFRESH` has a name that no step or loop of this process, or of the run so far, has."""
        unknown = self._refresh_environment.names - current.declared
        if not unknown or not self.resumed:  # in a new run, modules may be loaded late: only its end can tell
            return
        logs = [*(log_of(uid) for uid in self.record.forebears), self.record.log]
        past = [vars(event) for each in logs for event in read_log(self.store, each)]
        known = current.declared | {str(fields[name]) for fields in past for name in ("step", "loop") if name in fields}
        if unknown - known:
            name = min(unknown - known)
            raise UsageError(_unknown_refresh(f"ONCEMORE_REFRESH={name}", name, known))

    def _warn_unknown_refresh(self) -> None:
        """Warn about names to refresh that no step, loop or block has. Only now: modules may be loaded late."""
        environment = set() if self.resumed else self._refresh_environment.names  # see `reject_unknown_refresh`
        for name in sorted((self._refresh_here.names | environment) - current.declared):
            where = f"ONCEMORE_REFRESH={name}" if name in environment else f"refresh=[{name!r}]"
            warn(_unknown_refresh(where, name, current.declared))

    def count_iterations(self, loop: str, number: int, spans: Iterable[tuple[float, float]]) -> None:
        """A resumed loop does not repeat its first items, which earlier scopes have iterated over then."""
        with self.group.lock:
            for start, end in spans:
                self.reuse.add(loop, end, end - start, times=0)
            self.reuse.times[loop] += number

    def count_run(self, node: Node) -> None:
        with self.group.lock:  # `+=` is not atomic
            self.ran[node.step] += 1

    def count_reuse(self, step: str, key: str, ended: float, seconds: float) -> None:
        self.used_nodes.add(key)
        self.last[step] = key
        if key.startswith(SHARED):
            self.shared.mark_used(step)
        with self.group.lock:
            self.reuse.add(step, ended, seconds)
        if self.report is not None:
            self.report.reused(step, ended, seconds)
        if self.is_worker:
            self._report_reuse(step, ended, seconds)

    def will_run(self, node: Node, why: str, *, once: bool) -> None:
        """A step is about to run. A dry run stops the script here."""

    def will_run_without_node(self, name: str, why: str) -> None:
        """A loop, or a step that can't be identified, is about to run. A dry run stops the script here."""

    @property
    def unkept_line(self) -> str:
        """Which steps could not be recorded, in one line; empty if there are none."""
        if not self.unkept:
            return ""
        steps = [f"{step} ({why.partition(';')[0].partition('. ')[0]})" for step, why in self.unkept.items()]
        return f"{len(steps)} step{'s' * (len(steps) > 1)} could not be saved: {', '.join(steps)}"

    def begin(self, node: Node) -> RunningStep:
        running = self.started.begin(self._about(node))
        if self._listeners or logger.isEnabledFor(logging.DEBUG):
            self.notify(running.event())
        return running

    def snapshot(self) -> Snapshot:
        """The state and generators as they are now. Call `self.snapshots.written` once it is stored."""
        started = self.snapshots.clock()
        value = {"state": self.state.values_by_key(), "generators": every_state()}
        content = digest(value).hex()
        if content == self.snapshots.last.content:
            return self.snapshots.last._replace(entry=None, seconds=self.snapshots.clock() - started)
        entry = self.entries.encode_snapshot(content, value)
        return Snapshot(entry.key, entry, content, self.snapshots.clock() - started)

    def _save_final_state(self) -> None:
        """Save the state at the end of a scope whose last step has no snapshot of its own."""
        token = current.enter(None)
        try:
            snapshot = self._snapshot_if_due(force=True)
        finally:
            current.leave(token)
        if snapshot.key and not snapshot.behind:
            event = events.StateSaved(snapshot=snapshot.key)
            try:
                self.entries.write_snapshot(snapshot.entry, event)
                self.snapshots.written(snapshot)
                self.notify(event)
            except StoreError as error:
                warn(f"run {self.id}: its final state could not be saved: {error}")

    def _snapshot_if_due(self, *, force: bool = False) -> Snapshot:
        """A new snapshot if one is due, otherwise the last one. An empty state needs none."""
        state, started = self.state._values, self.snapshots.clock()
        if not state:
            return Snapshot()
        if not force and not self.snapshots.due(state):
            return self.snapshots.nearest()
        try:
            return self.snapshot()
        except (FingerprintError, CodecError) as error:
            self.snapshots.failed(self.snapshots.clock() - started)
            log("run %s: the state could not be saved: %s", self.id, error)
            return self.snapshots.nearest()

    def record_result(
        self, node: Node, data: CheckpointData, *, reason: Reason, seconds: float, ran: bool = True
    ) -> None:
        """Write the checkpoint of a completed node. If that fails, a warning says so and the program continues.

        A value that was put, which no function `ran` for, can't be computed again: then the error is raised.
        """
        self._refreshed.add((node.step, node.fingerprint))
        self.used_nodes.add(node.key)
        data.meta = {"step": node.step, "reason": reason.text, **data.meta}
        if reason.compared_with not in ("", node.key):
            self.last[node.step] = reason.compared_with
            data.meta["instead"] = reason.compared_with.removeprefix(node.prefix)
        if data.once:
            data.meta.update(effects_once.about(node), settled=effects_once.COMPLETED)
        token = current.enter(None)  # a step inside the value is pickled without a reference to this run
        entries = self.entries_of(node)
        try:
            packed = entries.pack(node, data, seconds=seconds, time=time.time())
            snapshot = self._snapshot_if_due()
            data.snapshot = snapshot.entry
            unseeded = self.unseeded
            if unseeded is not None and not unseeded.written:
                data.opening, unseeded.written = self.entries.encode_opening(unseeded.states), True
            fields = {
                **self._about(node),
                **reason.fields(),
                "seconds": seconds,
                "snapshot": snapshot.key,
                "behind": snapshot.behind,
            }
            written = entries.write(node, packed, data, fields)
            if ran:
                self.count_run(node)
            if written is None:
                if data.opening is not None and unseeded is not None:
                    unseeded.written = False
                log("run %s: %s was recorded by another attempt first; its checkpoint stays", self.id, node.id)
                return
            applied(self, written.entry)
            self.snapshots.written(snapshot, written.stored_bytes)
            self.notify(written)
            self.retain()
        except HoldLost as error:
            if not ran:
                raise
            self.count_run(node)
            log("run %s: %s is not recorded: %s", self.id, node.id, error)
        except (CodecError, StoreError) as error:
            if not ran:
                raise
            message = str(error) if "effects" not in data.meta else re.sub(*_IN_EFFECTS, str(error))
            self.not_saved(node, f"{message}. The step will run again next time", seconds=seconds)
        finally:
            current.leave(token)

    def not_saved(self, node: Node, why: str, *, seconds: float) -> None:
        """Warn and record that a step returned a result that could not be saved."""
        self.count_run(node)
        self.unkept.setdefault(node.step, why)
        warn(f"step {node.step}: the result was not saved: {why}")
        event = events.StepNotKept(**self._about(node), reason=why, seconds=seconds)
        try:
            self.entries.append([event])
        except StoreError:
            pass  # the warning above names the problem with the store
        self.notify(event)

    def record_question(self, node: Node, **fields: Any) -> events.Asked:
        """Write a question that the run waits for, and the state, which the answer will be a checkpoint of."""
        token = current.enter(None)
        try:
            snapshot = self._snapshot_if_due(force=True)
        finally:
            current.leave(token)
        event = events.Asked(**node.about(), **fields, snapshot=snapshot.key, behind=snapshot.behind)
        self.entries.write_snapshot(snapshot.entry, event)
        self.snapshots.written(snapshot)
        self.notify(event)
        return event

    def record_failure(self, node: Node, error: Exception, *, reason: Reason, seconds: float) -> None:
        """Record that a step raised. A store that fails does not stop the program."""
        with self.group.lock:
            self.failed[node.step] += 1
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        message = f"{type(error).__name__}: {error}"
        event = events.StepFailed(
            **self._about(node), **reason.fields(), seconds=seconds, error=message, traceback=trace
        )
        self.record_event(event)

    def record_event(self, event: Event) -> None:
        """Write an event and notify the listeners. A store that fails does not stop the program."""
        try:
            self.entries.append([event])
        except StoreError as problem:
            warn(f"run {self.id}: {type(event).__name__} could not be written: {problem}")
        self.notify(event)


def _unknown_refresh(where: str, name: str, known: Collection[str]) -> str:
    names = f"Known are {', '.join(sorted(known))}, and all" if known else "There is none"
    return f"{where}: no step or loop has this name.{did_you_mean(name, known)} {names}"


def shared_only(run: Session) -> Session:
    """Make a new session one without a history, for shared results."""
    run.entries = run.shared = RunEntries(run.store, "shared", SHARED, None)
    return run


def _before_fork() -> None:
    """A forked child has the runs that are open here, and may take part in them."""
    for run in list(current.opened):
        run.distributed = bool(run.attempt)  # published later: the stores have closed their connections


os.register_at_fork(before=_before_fork)
