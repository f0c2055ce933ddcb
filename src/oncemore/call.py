"""The path of one call of a step: bind, identify, recall; on a miss: lease, watch, run, record.

`Definition.path` serves functions and coroutines alike: it yields requests (see flight.py), which a driver carries out at
once or awaits. Generator steps differ only in the middle of the path (see generators.py).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from . import current, effects_once, generators, timeouts
from .codec import Decoded, loads
from .current import current_session
from .entries import Lookup, RunEntries
from .errors import CodecError, FingerprintError, IntegrityError, OutputMissing, RunPaused, StoreError, UsageError, warn
from .events import StepRetried
from .files.blobs import keeping
from .flight import Blocking, Lease, Path, Pause, acquire, drive, drive_async, stopping
from .history.explain import Dependencies, Reason, compare
from .identity import Arguments, Behaviour, Identity
from .map import pacing
from .modules import loaded
from .node import ASKED, GONE, LEFT_OUT, NEW, PUT, CheckpointData, Node, inside, steps_around
from .retries import Policy, policy_of
from .session import RunningStep, Session, shared_only
from .settings import Duration, seconds
from .stores import Bytes
from .surroundings import CallContext, Watcher, depend, digest_of, inputs, obstacles, repeated, restore, verifying
from .surroundings.outputs import check_outputs
from .surroundings.overlap import Member
from .surroundings.process import applied
from .surroundings.rng import Opening
from .timeouts import Limit


class Invoke:
    """A request to call the user's function."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.now = functools.partial(function, *args, **kwargs)

    async def later(self) -> Any:
        return await self.now()


class InvokeWithin:
    """A request to call the user's function, which computes a node, within a time limit."""

    def __init__(self, limit: Limit, node: Node, call: Invoke) -> None:
        self._limit, self._node, self._call = limit, node, call

    def now(self) -> Any:
        return self._limit.call(self._here)

    def _here(self) -> Any:
        self._node.thread = threading.get_ident()  # the limit may need a thread of its own
        return self._call.now()

    async def later(self) -> Any:
        return await self._limit.wait_for(self._call.later)


class Tries:
    """The attempts at one call; without a policy there is only one."""

    def __init__(self, policy: Policy | None) -> None:
        self._attempts = None if policy is None else policy.attempts()
        self._limits: list[Limit] = []
        self._running: RunningStep | None = None
        self.wait = 0.0  # seconds until the next one

    def begin(self, run: Session, node: Node) -> None:
        """An attempt is about to be made."""
        self._running = self._running or run.begin(node)
        if self._attempts is not None:
            self._attempts.begin()

    def end(self, run: Session) -> None:
        """There is no further attempt."""
        if self._running is not None:
            run.started.end(self._running)

    def limit(self, node: Node, seconds: float) -> Limit:
        """The time limit of the attempt."""
        self._limits.append(Limit(node.id, seconds))
        return self._limits[-1]

    def ended(self, error: Exception) -> bool:
        """Whether the attempt has raised this because its time was up."""
        return any(limit.error is error for limit in self._limits)

    @property
    def running_late(self) -> bool:
        """Whether an attempt whose time was up is still running."""
        return any(limit.running_late for limit in self._limits)

    def want_another(self, error: Exception) -> bool:
        """Whether there is to be another attempt."""
        wait = None if self._attempts is None else self._attempts.wait_after(error)
        self.wait = wait or 0.0
        return wait is not None

    def event(self, node: Node, error: Exception, seconds: float) -> StepRetried:
        """The attempt has failed, and there is another one."""
        assert self._attempts is not None
        message = f"{type(error).__name__}: {error}"
        number, most = self._attempts.number - 1, self._attempts.most
        return StepRetried(**node.about(), attempt=number, most=most, error=message, wait=self.wait, seconds=seconds)


@dataclass(eq=False, slots=True)
class Call:
    """One call of a step: its arguments and their identity, the code and the data it reads, and the resulting node."""

    run: Session
    entries: RunEntries
    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: Arguments
    behaviour: Behaviour
    why: str | None = None  # why the last look-up found no valid checkpoint, if that is known
    damaged: bool = False  # the node has an entry that can't be trusted
    opening: Opening | None = None  # a hit resets the random generators to this earlier opening
    concurrent_node: Node | None = (
        None  # the node if the step runs concurrently with others (see surroundings/overlap.py)
    )
    stale: bool = False  # the look-up found a result that has expired and is served once more
    intent: Bytes | None = None  # effect="once" only: the stored intent, read under the lease

    def use_concurrent_node(self) -> None:
        """Identify this call by the data as it was before concurrent steps changed it."""
        assert self.concurrent_node is not None
        node, self.concurrent_node = self.concurrent_node, None
        node.call, node.identity, node.doubt = self.node.call, self.node.identity, self.node.doubt
        node.variants = self.node.variants
        self.node = node

    @property
    def recursive(self) -> bool:
        """Whether this call happens while its own node is being computed."""
        return self.node.key in [node.key for node in steps_around()]


class Recalled(NamedTuple):
    """A valid entry of a node with its value and effects. Without a `context`, it is only a value."""

    entry: Decoded
    value: Any
    effects: Mapping[str, Any] = MappingProxyType({})
    context: CallContext | None = None


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What is recorded of a call, for the option `validate`."""

    step: str
    time: float  # when it was recorded, in seconds since 1970
    seconds: float  # how long it took
    arguments: Mapping[str, Any]  # those of the call at hand, by parameter, with defaults filled in

    @property
    def age(self) -> float:
        """Seconds since it was recorded."""
        return time.time() - self.time


_refreshing: set[str] = set()  # the nodes whose stale results are being refreshed in this process
_tasks: set[Any] = set()  # an event loop holds its tasks weakly

_OF_IDENTITY = ("version", "ignore", "key", "code", "inputs", "redact", "packages")
_SHARED = frozenset(
    ["arguments", "globals", "state", "random"]
)  # effects on what the body of another attempt can change
_CHANGES_ELSEWHERE = "its changes were recorded with a step that ran at the same time and is not skipped"


class Definition:
    """A step as declared, and the path that its calls take."""

    defaults: Mapping[str, Any] = {}  # of all options; set in step.py

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function, self.options = function, options
        self.name: str = options["name"] or default_name(function)
        current.declared.add(self.name)
        self.share: bool = options["share"]
        self.every_call: bool = options["every_call"]
        if options["effect"] not in (None, "once"):
            raise UsageError(f"step {self.name}: effect={options['effect']!r} is not supported; use effect='once'")
        self.once = options["effect"] == "once"
        self.only_by_name = self.once  # whether it runs again only if a refresh names it
        if options["store"] is not None and not self.share:
            raise UsageError(
                f"step {self.name}: store= is for results that are shared; use @memoized(store=...). The checkpoints of a run "
                "are in the store of its scope"
            )
        self._limit(options["expires"], options["stale"])
        self.policy = policy_of(options["retries"], self.name)
        self.timeout = None if options["timeout"] is None else seconds(options["timeout"])
        if self.timeout is not None and not 0 < self.timeout <= threading.TIMEOUT_MAX:
            raise UsageError(f"step {self.name}: timeout={options['timeout']!r} is not a time that can be waited for")
        identity_options = {name: options[name] for name in _OF_IDENTITY}
        if options["inputs"] == inputs.OBSERVED:
            identity_options["inputs"] = ()
        self.identity = Identity(function, step=self.name, **identity_options)
        if options["outputs"] != ():
            check_outputs(options["outputs"], self.identity.names, self.name)
        # The outermost function decides: a wrapper may turn a coroutine function into a plain one.
        self._drive: Callable[[Any], Any] = drive_async if inspect.iscoroutinefunction(function) else drive
        self.yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if self.yields:
            self._drive = generators.drive if inspect.isgeneratorfunction(function) else generators.drive_async
        if self.yields:
            for option in ("effect", "retries", "timeout"):
                if options[option]:
                    raise UsageError(
                        f"step {self.name}: {option}={options[option]!r} does not work on generators; return a list instead"
                    )

    def _limit(self, expires: Duration | None, stale: Duration | None) -> None:
        self.expires = None if expires is None else seconds(expires)
        self.stale = 0.0 if stale is None else seconds(stale)
        if stale is not None and (expires is None or not self.share):
            raise UsageError(f"step {self.name}: stale= is for shared results that expire; use @memoized(expires=...)")

    def within(self, expires: Duration | None, stale: Duration | None = None) -> Definition:
        """The same step with another maximum age."""
        other = copy.copy(self)
        other.options = {**self.options, "expires": expires, "stale": stale}
        other._limit(expires, stale)
        return other

    @property
    def is_plain(self) -> bool:
        """Whether it is a plain function: no coroutine function and no generator."""
        return self._drive is drive

    def call(self, run: Session, args: tuple[Any, ...], kwargs: dict[str, Any], *, fresh: bool = False) -> Any:
        """Call the step: the value, a coroutine, or a generator. `fresh` runs it even if it has a checkpoint."""
        if self.yields:
            body = self.function(*args, **kwargs)  # none of its code runs yet
            return self._drive(generators.path(self, body, run, args, kwargs, fresh=fresh))
        return self._drive(self.path(run, args, kwargs, fresh=fresh))

    def call_plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function outside any run."""
        if current.rehearsal is not None:
            current.rehearsal.forbid_plain_call(self.name)
        return self.function(*args, **kwargs)

    # -- the path of one call

    def path(self, run: Session, args: tuple[Any, ...], kwargs: dict[str, Any], *, fresh: bool = False) -> Path[Any]:
        """The value of a call: recalled, or computed and recorded."""
        call = self.identify(run, args, kwargs)
        if call is None or call.recursive:
            yield from self._wait_for_turn()
            return (yield Invoke(self.function, args, kwargs))
        leases: list[Lease[Any]] = []
        try:
            while not leases:
                found = None if fresh else (yield from self.try_recall(call))
                if found is not None:
                    if call.stale:
                        self._refresh_behind(call)
                    return self.reuse(call, found)
                leases = yield from self._acquire(call, fresh)  # none if another thread or task had it: recall again
            lease = leases[-1]
            if isinstance(lease.seen, Recalled):
                return self.reuse(call, lease.seen)
            return (yield from self._compute(call, lease, lease.seen))
        except BaseException:
            self.give_back(call)
            raise
        finally:
            for held in reversed(leases):
                held.release()

    # -- bind and identify

    def identify(
        self, run: Session, args: tuple[Any, ...], kwargs: dict[str, Any], *, take: bool = True
    ) -> Call | None:
        """Which node this call is. None if the arguments don't fit, or if the code has no identity, with a warning.

        `take` uses up an ordinal of a step with `every_call`; without it, the next call is described.
        """
        try:
            bound = self.identity.bind(*args, **kwargs)
        except TypeError:
            return None  # calling the function raises the error that users know
        if run.unseeded is not None:
            run.unseeded.look_again(run.entries.opening)
        group = run.beside
        entered, busy = group.entered, bool(group)
        try:
            behaviour = self.identity.look(versions=run.compares_versions)
        except FingerprintError as error:
            warn(f"{error}. Until then, the step runs every time")
            run.unkept.setdefault(self.name, str(error))
            if take:
                run.will_run_without_node(self.name, str(error))
            return None
        arguments = self.identity.identify(bound, args, kwargs)
        if self.every_call:
            name = f"{self.name}/{arguments.content}"
            arguments.number(run.take(name) if take else run.ordinals(name).peek())
        entries = run.shared if self.share else run.entries
        node = entries.node(self.name, arguments.digest, behaviour.digest)
        call = Call(run, entries, node, args, kwargs, arguments, behaviour)
        if self.once:
            node.identity = self.identity.name_call(arguments, behaviour, run.variants.closure_of(self.identity.naming))
            node.variants = run.variants
            node.call = node.identity.digest
        if behaviour.data:
            with group.lock:  # so that no step enters and leaves between the question and the use of its answer
                busy = busy or group.entered != entered  # a concurrent step may have changed the data while we read it
                first = group.epochs.first(zip(self._data_names(call), behaviour.digests), busy=busy)
            code = behaviour.with_data(first)
            if code != behaviour.digest:
                call.concurrent_node = entries.node(self.name, arguments.digest, code)
                if busy or group.apart or self.name in run.concurrent.steps:
                    call.use_concurrent_node()
        return call

    def _data_names(self, call: Call) -> Iterator[str]:
        """Names, unique within the run, of the data that the code reads; data outside modules belongs to the step."""
        for datum in call.behaviour.data:
            own = datum.slot is None or datum.slot.space is None
            yield f"{self.name}/{datum.name}" if own else datum.name

    def give_back(self, call: Call) -> None:
        """The call failed: the next identical one is the same node."""
        if call.arguments.ordinal is not None:
            call.run.give_back(f"{self.name}/{call.arguments.content}", call.arguments.ordinal)

    # -- recall

    def may_skip(self, run: Session) -> bool:
        """Whether any call of this step can have a checkpoint."""
        return run.resumed or self.share or run.entries.has_aliases or self.name in run.ran or self.name in run.reused

    def try_recall(self, call: Call) -> Path[Recalled | None]:
        """Recall the node if it can have a checkpoint.

        In a new run, only this process can have written anything, so an entry that is not in memory does not exist.
        """
        stored = call.run.resumed or self.share or call.entries.has_aliases
        if stored and self._drive is drive_async and not call.entries.at_hand(call.node):
            yield from call.entries.fetch(call.node)
        if call.entries.at_hand(call.node):
            return self._recall(call)
        found: Recalled | None = None
        if stored or call.entries.has(call.node):
            found = yield Blocking(self._recall, call)
        return found

    def _recall(self, call: Call) -> Recalled | None:
        """Load the node's checkpoint; None if it is not valid, and `call.why` says why not."""
        warned = call.why
        entry = self.find(call, again=False).entry
        if entry is None:
            return None
        if call.node.key in call.run.concurrent.parted and not self.once:
            call.why = _CHANGES_ELSEWHERE
            return None
        try:
            if entry.value_only and not verifying and not self.options["outputs"]:
                return Recalled(entry, entry.load())
            context = self.match_objects(call, entry, ("argument", "global", "state"))
            value, effects = self.load(call, entry, context)
            for kind, obstacle in obstacles(context, effects, self.repeated(call, entry)):
                if not self.once:
                    call.why = obstacle
                    return None
                warn(f"step {self.name} is not performed again, but its effects cannot be restored: {obstacle}")
                effects.pop(kind, None)
            return Recalled(entry, value, effects, context)
        except CodecError as error:
            if call.entries.replaced(entry):
                call.why = warned
                return self._recall(call)
            if self.once:
                raise CodecError(
                    f"step {self.name} was performed on {effects_once.at(entry)} and is not performed again, but its recorded "
                    f"result cannot be read: {error}. {effects_once.remedy(self.name)}"
                ) from error
            if str(error) != warned:
                warn(f"step {self.name} runs again: {error}")
            call.why = str(error)
            return None

    def find(self, call: Call, *, again: bool = True) -> Lookup:
        """The node's checkpoint if it is valid now; otherwise None, with the reason if it is known, as in `call.why`.

        For an effect="once" call that was performed but has no valid checkpoint, the record of its performance.
        """
        if call.run.wants_fresh(call.node, once=self.only_by_name):
            found = Lookup(None, call.run.fresh_reason(call.node))
        else:
            found = self._find_checkpoint(call, again)
            if found.entry is None and self.once:
                performed, doubt = effects_once.performed(call.entries, call.node), call.node.doubt
                found = Lookup(
                    performed, found.why if doubt is None else f"it may have been performed: {doubt['doubt']}"
                )
        call.why = found.why
        return found

    def _find_checkpoint(self, call: Call, again: bool) -> Lookup:
        run, node = call.run, call.node
        try:
            entry, why = self._look_up(call, again)
        except StoreError as error:
            if run.strict and isinstance(error, IntegrityError):
                raise
            call.damaged = True
            why = f"entry damaged: {error}"
            self._warn_runs_again(call, why, f"its checkpoint is damaged: {error}")
            return Lookup(None, why)
        if why is not None and GONE in why:
            if run.strict and why != call.why:
                raise IntegrityError(f"step {self.name}: entry {node.key} is gone from the store")
            self._warn_runs_again(call, why, f"its checkpoint {node.key} is gone from the store")
        elif why == LEFT_OUT:
            self._warn_runs_again(call, why, f"its result, or one of its effects, was {LEFT_OUT}")
        if entry is not None and self.expires is not None:
            age = time.time() - entry.time
            call.stale = self.expires < age <= self.expires + self.stale and entry.value_only
            if age > self.expires and not call.stale:
                return Lookup(None, f"expired: {age:.0f} s old, valid for {self.expires:.0f} s")
        if entry is not None and self.options["validate"] is not None:
            arguments = dict(zip(self.identity.names, call.arguments.bound))
            recorded = Recorded(step=self.name, time=entry.time, seconds=entry.seconds, arguments=arguments)
            if not self.options["validate"](recorded):
                return Lookup(None, "rejected by validate=")
        if entry is not None and entry.read_files and inputs.observes(run, self.options):
            changed = inputs.changed(run, entry.meta["files"])  # recorded before inputs="observed" was set
            if changed is not None:
                return Lookup(None, changed)
        return Lookup(entry, why)

    def _look_up(self, call: Call, again: bool) -> Lookup:
        """The node's entry; else that of the same call while other steps ran, or after an earlier opening of the scope."""
        run, now = call.run, functools.partial(digest_of, call.run)
        entry, why = call.entries.find(call.node, now, again=again)
        if entry is None and call.concurrent_node is not None:
            other = call.entries.find(call.concurrent_node, now, again=again).entry
            if other is not None and other.meta.get("beside"):
                entry = other
                call.use_concurrent_node()
        if entry is None and run.unseeded is not None and call.entries.drew_numbers(call.node):
            for opening, then in run.unseeded.digests_then(now):
                entry = call.entries.find(call.node, then).entry
                if entry is not None:
                    call.opening = opening
                    break
        if entry is not None and not entry.value_only and entry.meta.get("beside"):
            run.concurrent.steps.add(self.name)
        return Lookup(entry, why)

    def _warn_runs_again(self, call: Call, why: str, text: str) -> None:
        """Warn, unless the look-up before this one did so, or the step was performed and so doesn't run again."""
        if why != call.why and not (self.once and effects_once.find(call.entries, call.node) is not None):
            warn(f"step {self.name} runs again: {text}")

    def load(self, call: Call, entry: Decoded, context: CallContext) -> tuple[Any, dict[str, Any]]:
        """An entry's value and effects. CodecError if the caller's objects are not shared as they were then."""
        with keeping(call.run.store):
            loaded = entry.load(context.roots.find)
        return loaded if entry.meta.get("effects") else (loaded, {})

    def read(self, call: Call, entry: Decoded) -> Any:
        """An entry's value, or a generator of its items. Nothing is restored or counted as reused."""
        if self.yields:
            return self._drive(generators.read(self, call, entry))
        return self.load(call, entry, self.match_objects(call, entry, ("argument", "global", "state")))[0]

    # -- skip the step

    def reuse(self, call: Call, found: Recalled) -> Any:
        """Skip the step: restore its effects, so that everything is as if it had run, and return its value."""
        entry, value, _, context = found
        run, again = call.run, self.repeated(call, entry) if context is not None else set[str]()
        run.count_reuse(self.name, call.node.key, entry.time, entry.seconds)
        if entry.key == call.node.intent:
            effects_once.warn_performed(run, call.node, entry, call.why or self.compare(call).text)
        if entry.read_files or self.identity.inputs:
            self.check_files(call, entry)
        if context is not None:
            depend(run, entry.meta.get("reads", ()))
            if call.opening is not None and run.unseeded is not None and run.unseeded.choose(call.opening):
                run.beside.epochs.restart(call.opening.digests.items())
            member = context.member = run.beside.enter()  # so that its changes are not taken for the script's own
            try:
                with member.group.lock:
                    run.concurrent.skipped(entry.meta.get("ended", 0))
                    value, effects = self._load_in_order(call, found, context)
                    restore(context, effects, repeated=again)
                    self._note_changes(call, effects)
            finally:
                member.leave()
            applied(run, entry.key)
        return value

    def _load_in_order(self, call: Call, found: Recalled, context: CallContext) -> tuple[Any, Mapping[str, Any]]:
        """The value and effects, loaded now that the steps that ended before it have been skipped; see `InOrder`."""
        in_order = found.effects.get("globals", {}).get("in order")
        if in_order is not None:
            with keeping(call.run.store), contextlib.suppress(LookupError):  # the data has different content now
                value, effects = loads(in_order, found.entry.meta.get("main", ""), context.roots.find)
                return value, effects
        return found.value, found.effects

    def _note_changes(self, call: Call, effects: Mapping[str, Any]) -> None:
        """Note that this step, not the script, changed the data that its code reads."""
        if "globals" in effects:
            with call.run.beside.lock:  # read and noted together, so that the last to read has the last word
                call.run.beside.epochs.leave(zip(self._data_names(call), call.behaviour.look_again()))

    def check_files(self, call: Call, entry: Decoded) -> None:
        """Warn about files that changed since the step read them; see `inputs.reused`."""
        read, arguments = entry.meta.get("files", {}), dict(zip(self.identity.names, call.arguments.bound))
        inputs.reused(call.run, self.name, call.node.key, self.options, arguments, read)

    def repeated(self, call: Call, entry: Decoded) -> set[str]:
        """The kinds of effects not to apply twice, if this scope has applied those of the entry before."""
        return repeated(entry.meta.get("reads", ())) if entry.key in call.run.applied else set()

    # -- lease

    def _acquire(self, call: Call, fresh: bool) -> Path[list[Lease[Any]]]:
        """The lease on the node; with effect="once", first one on the call, whose key does not depend on code.

        Empty if another thread or task of this process had one of them.
        """
        node = call.node
        around = [key for other in steps_around() for key in (other.key, *([other.intent] if other.call else []))]

        def read_intent(intent: Bytes | None) -> None:
            call.intent = intent

        wanted: list[tuple[str, Callable[[Bytes | None], Any]]] = [(node.intent, read_intent)] if self.once else []
        wanted.append((node.key, functools.partial(self._recall_under_lease, call, fresh)))
        leases: list[Lease[Any]] = []
        try:
            for key, look in wanted:
                lease = yield from acquire(call.run.store, key, look, name=node.id, around=around, required=self.once)
                if lease is None:
                    return []
                leases.append(lease)
            return leases
        finally:
            if len(leases) < len(wanted):
                for lease in leases:
                    lease.release()

    def _recall_under_lease(self, call: Call, fresh: bool, entry: Bytes | None) -> Recalled | Reason:
        """What another process recorded before we got the lease, or the reason to run. `entry` is the node's entry now."""
        if fresh:
            return Reason(ASKED[0])
        if entry is not None:
            call.entries.learn(call.node, entry)
        if entry is not None or call.intent is not None:
            found = self._recall(call)
            if found is not None:
                return found
        return Reason(call.why) if call.why else self.reason(call)

    # -- watch, run, record

    def _compute(self, call: Call, lease: Lease[Any], why: Reason) -> Path[Any]:
        """Run the function, again if it fails and the step has `retries`, and record its result and effects."""
        run, node = call.run, call.node
        dependencies = self.dependencies(call)  # now: the function may change what it depends on
        run.will_run(node, why.text, once=self.once)
        tries = Tries(self.policy)
        try:
            while (ran := (yield from self._try(call, why, tries))) is None:
                try:
                    yield Pause(tries.wait)
                except BaseException:
                    if run.report is not None:
                        run.report.interrupted(node, 0.0)
                    raise
        finally:
            tries.end(run)
        watcher, elapsed = ran
        member, value = watcher.context.member, watcher.context.value
        assert member is not None
        try:
            effects = watcher.effects()
            if tries.running_late and not _SHARED.isdisjoint(effects):
                raise CodecError(
                    "an attempt that took too long was still running, and may have made some of the changes"
                )
        except (CodecError, StoreError) as error:
            yield Blocking(functools.partial(run.not_saved, node, str(error), seconds=elapsed))
            return value
        else:
            self._note_changes(call, effects)
        finally:
            member.leave()
        data = CheckpointData.of(value, effects, watcher.context, dependencies, once=self.once)
        data.hold, data.seen, data.damaged = lease.hold, lease.entry, call.damaged
        if member.overlapped and call.behaviour.data:
            run.concurrent.steps.add(self.name)
            data.meta["beside"] = True
        if member.needs:
            data.meta["needs"] = member.needs
        if member.overlapped and (effects or member.needs):
            data.meta["ended"] = member.ended or run.concurrent.stamp()
        run.concurrent.parted.discard(node.key)
        yield Blocking(functools.partial(run.record_result, node, data, reason=why, seconds=elapsed))
        return value

    def _try(self, call: Call, why: Reason, tries: Tries) -> Path[tuple[Watcher, float] | None]:
        """Run the function: its watcher, which has the value, and the seconds it took. None if it failed and is tried again."""
        run, node = call.run, call.node
        yield from self._wait_for_turn()
        tries.begin(
            run, node
        )  # before anything is watched or written: it may call a function of the policy, which may raise
        begin = functools.partial(effects_once.begin, call.entries, node, call.intent, requested=why.text in ASKED)
        settled = (yield Blocking(begin)) if self.once else None
        member, node.group = run.beside.enter(), None
        failure: Exception | None = None
        try:
            token, leave = current.enter(self._scope_inside(run)), inside(node)
            stop = stopping.set(None)  # a body that runs is not stopped
            try:
                watcher = Watcher(self.context(call, runs=True, member=member))
                invoke: Any = Invoke(self.function, call.args, call.kwargs)
                if self.timeout is not None:
                    invoke = InvokeWithin(tries.limit(node, self.timeout), node, invoke)
                started = time.perf_counter()
                try:
                    watcher.context.value = (yield invoke) if settled is None else settled.load()
                    timeouts.check()
                    if watcher.waiting:
                        yield Blocking(watcher.returned)
                    elapsed = time.perf_counter() - started
                    return watcher, elapsed
                except BaseException as error:
                    watcher.failed()
                    elapsed = time.perf_counter() - started
                    if not isinstance(error, Exception) or isinstance(error, RunPaused):
                        if run.report is not None:
                            run.report.interrupted(node, elapsed, paused=isinstance(error, RunPaused))
                        raise
                    failure = error
            finally:
                stopping.reset(stop)
                leave()
                current.leave(token)
            # an effect may have happened if the body was cut off, or failed only after it had returned
            unknown = self.once and (tries.ended(failure) or isinstance(failure, OutputMissing))
            again = not unknown and tries.want_another(failure)
            if self.policy is not None:
                again = self._undo(watcher, again)
            if self.once and not unknown:
                yield Blocking(functools.partial(effects_once.withdraw, call.entries, node))
            if not again:
                tries.end(run)
                yield Blocking(functools.partial(run.record_failure, node, failure, reason=why, seconds=elapsed))
                raise failure
            yield Blocking(functools.partial(run.record_event, tries.event(node, failure, elapsed)))
            member.leave()
            return None
        except BaseException:
            member.leave()
            raise
        finally:
            del failure  # it refers to this frame

    def _undo(self, watcher: Watcher, again: bool) -> bool:
        """Put back what a failed attempt changed. Whether to make another one."""
        try:
            watcher.undo()
        except CodecError as error:
            if again:
                warn(f"step {self.name} is not tried again: {error}")
            return False
        return again

    def _wait_for_turn(self) -> Path[None]:
        """If this is a call of a map with a rate, wait until it may begin."""
        pace = pacing.get()
        if pace is not None and pace.step is self:
            yield Pause(pace.wait())

    def _scope_inside(self, run: Session) -> Session | None:
        """The run that is current inside the function. None if its results are of no run, and must not depend on one."""
        return None if self.options["store"] is not None else run if run.id else current_session()

    # -- results that do not come from running the function here and now

    def put(self, call: Call, value: Any) -> None:
        """Record a value that the function did not compute."""
        if self.once or self.yields:
            remedy = "run.resolve(...) settles what it did" if self.once else "put() has no items to record"
            raise UsageError(f"step {self.name}: a result can't be put for effect='once' or a generator; {remedy}")
        leases: list[Lease[Any]] = []
        while not leases:
            leases = drive(self._acquire(call, True))
        try:
            data = CheckpointData.of(value, {}, self.context(call), self.dependencies(call), once=False)
            data.hold, data.seen, data.damaged = leases[0].hold, leases[0].entry, call.damaged
            call.run.record_result(call.node, data, reason=Reason(PUT), seconds=0.0, ran=False)
        finally:
            leases[0].release()

    def _refresh_behind(self, call: Call) -> None:
        """Compute a new result for a stale one, in a thread or task of its own, with a copy of the arguments."""
        key = call.node.key
        if key in _refreshing or current.rehearsal is not None:
            return
        ignored, memo = self.options["ignore"], dict[int, Any]()
        for name, value in zip(self.identity.names, call.arguments.bound):
            if name in ignored:
                memo[id(value)] = value  # passed as it is: a client, say
        try:
            args, kwargs = copy.deepcopy((call.args, call.kwargs), memo)
        except Exception as error:  # copying runs the user's classes
            warn(f"step {self.name}: its stale result is used, but not refreshed: an argument can't be copied: {error}")
            return
        _refreshing.add(key)
        session, fresh = shared_only(Session("", call.run.store)), self.within(self.expires)

        def done(error: BaseException | None) -> None:
            _refreshing.discard(key)
            call.entries.drop_cache()
            if error is not None:
                warn(f"step {self.name}: its stale result could not be refreshed: {type(error).__name__}: {error}")

        if self._drive is drive_async:
            asyncio: Any = loaded("asyncio")
            task = asyncio.get_running_loop().create_task(fresh.call(session, args, kwargs))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)
            task.add_done_callback(lambda task: done(None if task.cancelled() else task.exception()))
            return

        def refresh() -> None:
            try:
                fresh.call(session, args, kwargs)
            except BaseException as error:
                done(error)
            else:
                done(None)

        threading.Thread(target=refresh, name=f"oncemore-refresh-{self.name}").start()

    # -- what the surroundings see, and why the step runs

    def match_objects(self, call: Call, entry: Decoded, kinds: tuple[str, ...] = ("argument",)) -> CallContext:
        """The call's context, with the caller's objects under the names that they have in the entry."""
        context, roots = self.context(call), entry.meta.get("roots", ())
        for name in context.arguments if roots else ():
            context.roots.add("argument", name)  # in the order in which they were named when it was recorded
        context.roots.match(roots, kinds)
        return context

    def context(self, call: Call, *, runs: bool = False, member: Member | None = None) -> CallContext:
        """The call as its surroundings see it; `runs` if the function is about to be called."""
        arguments, counted = dict(zip(self.identity.names, call.arguments.bound)), self.identity.contents
        if not self.identity.plain:  # identified arguments first: objects shared with ignored ones are named after them
            arguments = {**{name: arguments[name] for name in counted}, **arguments}
        data, spaces = call.behaviour.reached(call.arguments)
        digests = call.arguments.take_digests() if runs else None
        node = call.node.key
        return CallContext(self.name, call.run, arguments, counted, self.options, data, spaces, digests, node, member)

    def reason(self, call: Call) -> Reason:
        """Why a node without a checkpoint runs: something it depends on changed, or it is new."""
        return self.compare(call) if call.run.resumed else Reason(NEW)

    def compare(self, call: Call) -> Reason:
        """What differs from the checkpoint that stood where this call stands, and is not used in this scope.

        A worker does not know which calls the other processes have made, so it knows no places.
        """
        after = None if call.run.is_worker else call.run.last.get(self.name, "")
        return compare(call.entries, call.node, self.dependencies(call), call.run, after)

    def dependencies(self, call: Call) -> Dependencies:
        """What the call depends on, as far as that is known before it runs."""
        behaviour = call.behaviour
        closure = call.run.variants.closure_of(self.identity.naming)
        call.node.name = functools.partial(self.identity.key_of, call.arguments, closure)
        return Dependencies(call.arguments.parts, behaviour.parts, behaviour.packages, behaviour.data_parts)


def default_name(function: Any) -> str:
    """The name of a step that is given none."""
    target = function
    while not hasattr(target, "__qualname__") and hasattr(target, "func"):  # a partial
        target = target.func
    name = getattr(target, "__qualname__", None) or type(target).__qualname__
    return str(name)
