"""The path of one call of a step: bind, identify, recall; else lease, watch, run, record.

`Definition.path` is written once, for functions and coroutines: it says what it wants done (see flight.py), and the edge
does it at once or awaits it. Steps that yield share all of it but the part in the middle (see generators.py).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from . import current, effects_once, generators, joining
from .blobs import keeping
from .codec import Decoded, loads
from .current import current_session, session_here
from .dry_run import called_plainly
from .durations import seconds
from .entries import Lookup, RunEntries
from .errors import CodecError, FingerprintError, IntegrityError, OutputMissing, StoreError, UsageError, log, warn
from .flight import Blocking, Lease, Path, acquire, drive, drive_async
from .identity import Arguments, Behaviour, CallIdentity, Identity
from .node import ASKED, GONE, LEFT_OUT, NEW, CheckpointData, Node, inside, steps_around
from .overlap import Member
from .reasons import Dependencies, Explanation, Reason, compare
from .records import Reference
from .session import Session
from .stores import Bytes
from .surroundings import CallContext, Watcher, depend, digest_of, inputs, obstacles, repeated, restore, verifying
from .surroundings.globals import InOrder
from .surroundings.output_patterns import check_outputs
from .surroundings.unseeded import Opening, Unseeded


class Invoke:
    """Let the user's function run."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.now = functools.partial(function, *args, **kwargs)

    async def later(self) -> Any:
        return await self.now()


class Call:
    """One call of a step: what was passed, what identifies that, the code and what it reads, and the node it is."""

    __slots__ = (
        "args",
        "arguments",
        "behaviour",
        "beside",
        "damaged",
        "entries",
        "intent",
        "kwargs",
        "node",
        "opening",
        "run",
    )

    def __init__(
        self,
        run: Session,
        entries: RunEntries,
        node: Node,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: Arguments,
        behaviour: Behaviour,
    ) -> None:
        self.run, self.entries, self.node = run, entries, node
        self.args, self.kwargs, self.arguments, self.behaviour = args, kwargs, arguments, behaviour
        self.damaged = False  # an entry is there that cannot be trusted
        self.opening: Opening | None = None  # to which the generators are to be put back, if it is skipped
        self.beside: Node | None = None  # what the node is called if steps run side by side
        self.intent: Bytes | None = None  # of an effect="once" step, as it stands under the lease

    def take_beside(self) -> None:
        """Be the node that it is if steps run side by side."""
        assert self.beside is not None
        node, self.beside = self.beside, None
        node.call, node.identity, node.doubt = self.node.call, self.node.identity, self.node.doubt
        node.variants = self.node.variants
        self.node = node

    @property
    def recursive(self) -> bool:
        """Whether the node is being computed around this very call."""
        around = steps_around()
        return bool(around) and self.node.key in [node.key for node in around]


class Found(NamedTuple):
    """What recall brought: an entry with its value and effects, or the reason why there is none."""

    entry: Decoded | None = None
    value: Any = None
    effects: Mapping[str, Any] = MappingProxyType({})
    context: CallContext | None = None
    why: str | None = None


_NOTHING = Found()
PARTED = "what it changed was recorded with a step that ran at the same time and is not skipped"


class Ahead(NamedTuple):
    """A call that can be skipped: `ended` says when it ran, beside others, and `reuse` skips it and gives its value.

    `whole`: whether all of its changes can be made, now that those that ended before it have been skipped. If not, it runs.
    """

    ended: int
    reuse: Callable[[], Any]
    whole: Callable[[], bool]


class Definition:
    """A step as it was declared, and what its calls do."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function, self.options = function, options
        self.name: str = options["name"] or step_name(function)
        self.share: bool = options["share"]
        self.every_call: bool = options["every_call"]
        if options["effect"] not in (None, "once"):
            raise UsageError(f"step {self.name}: effect={options['effect']!r} is not 'once'")
        self.once = options["effect"] == "once"
        self.expires: float | None = None if options["expires"] is None else seconds(options["expires"])
        taken = {name: options[name] for name in ("version", "ignore", "key", "code", "inputs", "redact")}
        if options["inputs"] == inputs.OBSERVED:
            taken["inputs"] = ()
        self.identity = Identity(function, step=self.name, **taken)
        if options["outputs"] != ():
            check_outputs(options["outputs"], self.identity.names, self.name)
        # the outermost function decides: a wrapper may make a plain function of a coroutine's
        self._follow: Callable[[Any], Any] = drive
        self.yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if inspect.iscoroutinefunction(function):
            self._follow = drive_async
        elif self.yields:
            self._follow = generators.drive if inspect.isgeneratorfunction(function) else generators.drive_async
        if self.once and self.yields:
            raise UsageError(f"step {self.name}: effect='once' is for steps that return, not for generators")

    def call(self, run: Session, args: tuple[Any, ...], kwargs: dict[str, Any], *, fresh: bool = False) -> Any:
        """A call: the value, or what awaits it, or what yields its items. `fresh` runs it whatever is kept."""
        if self.yields:
            body = self.function(*args, **kwargs)  # nothing of it runs yet
            return self._follow(generators.path(self, body, run, args, kwargs, fresh=fresh))
        return self._follow(self.path(run, args, kwargs, fresh=fresh))

    def plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that belongs to no run."""
        called_plainly(self.name)
        return self.function(*args, **kwargs)

    # -- the path of one call

    def path(self, run: Session, args: tuple[Any, ...], kwargs: dict[str, Any], *, fresh: bool = False) -> Path[Any]:
        """The value of a call: recalled, or computed and recorded."""
        call = self.identify(run, args, kwargs)
        if call is None or call.recursive:
            return (yield Invoke(self.function, args, kwargs))
        leases: list[Lease[Any]] = []
        try:
            found = _NOTHING
            while True:
                if not fresh:
                    found = yield from self._look(call, found)
                    if found.entry is not None:
                        return self.reuse(call, found)
                look = functools.partial(self._look_again, call, fresh=fresh, warned=found.why)
                leases = yield from self._acquire(call, look)
                if leases:  # else another thread or task had it: look at what came of that
                    break
            lease = leases[0]
            if isinstance(lease.seen, Found):
                return self.reuse(call, lease.seen)
            return (yield from self._compute(call, lease, lease.seen))
        except BaseException:
            self.give_back(call)
            raise
        finally:
            for held in leases:
                held.release()

    def ahead(self, run: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Path[Ahead | None]:
        """What is kept of a call that is about to be made, if anything is: to be skipped when its turn comes."""
        call = self.identify(run, args, kwargs)
        found = _NOTHING
        try:
            if call is not None and not call.recursive:
                found = yield from self._look(call, found)
        finally:
            if call is not None and found.entry is None:
                self.give_back(call)
        if call is None or found.entry is None:
            return None
        ended = 0 if found.context is None else found.entry.meta.get("ended", 0)
        return Ahead(ended, functools.partial(self.reuse, call, found), functools.partial(self._is_whole, call, found))

    def _is_whole(self, call: Call, found: Found) -> bool:
        assert found.entry is not None
        concurrent = call.run.concurrent
        if self.once or found.context is None or concurrent.made.issuperset(found.entry.meta.get("needs", ())):
            return True
        concurrent.parted.add(call.node.key)
        self.give_back(call)
        return False

    def may_skip(self, run: Session) -> bool:
        """Whether anything can be kept of its calls."""
        return run.resumed or self.share or run.entries.has_aliases or self.name in run.ran or self.name in run.reused

    def _look(self, call: Call, found: Found) -> Path[Found]:
        """What is kept for the node; `found` is what came of the last look."""
        stored = (
            call.run.resumed or self.share or call.entries.has_aliases
        )  # else there is only what this process wrote
        if stored and self._follow is drive_async and not call.entries.at_hand(call.node):
            yield from call.entries.fetch(call.node)
        if call.entries.at_hand(call.node):
            return self.recall(call, found.why)
        if stored or call.entries.has(call.node):
            found = yield Blocking(self.recall, call, found.why)
        return found

    def _acquire(self, call: Call, look: Callable[[Bytes | None], Any]) -> Path[list[Lease[Any]]]:
        """The lease on the node; for effect="once" also that on the call, whatever its code. None if others had one."""
        guard: Lease[Bytes | None] | None = None
        around = [key for node in steps_around() for key in (node.key, *([node.intent] if node.call else []))]
        if self.once:
            intent = call.node.intent
            guard = yield from acquire(call.run.store, intent, lambda entry: entry, around=around, required=True)
            if guard is None:
                return []
            call.intent = guard.seen
        try:
            lease = yield from acquire(call.run.store, call.node.key, look, around=around, required=self.once)
        except BaseException:
            if guard is not None:
                guard.release()
            raise
        if guard is None:
            return [] if lease is None else [lease]
        if lease is None:
            guard.release()
            return []
        return [lease, guard]

    def _look_again(self, call: Call, entry: Bytes | None, *, fresh: bool, warned: str | None) -> Found | Reason:
        """What another process completed before we had the lease, under which `entry` stands; or why the step is to run."""
        if fresh:
            return Reason(ASKED[0])
        if entry is not None:
            call.entries.learn(call.node, entry)
        if entry is not None or call.intent is not None:
            found = self.recall(call, warned)
            if found.entry is not None:
                return found
            warned = found.why
        return Reason(warned) if warned else self.reason(call)

    def _compute(self, call: Call, lease: Lease[Any], why: Reason) -> Path[Any]:
        run, node = call.run, call.node
        dependencies = self.dependencies(call)  # now: the function may change what it depends on
        run.will_run(node, why.text, once=self.once)
        begin = functools.partial(effects_once.begin, call.entries, node, call.intent, requested=why.text in ASKED)
        settled = (yield Blocking(begin)) if self.once else None
        member = run.beside.enter()
        here, leave = current.enter(run if run.id else current_session()), inside(node)
        try:
            watcher = Watcher(self.context(call, runs=True, member=member))
            begun, started = run.begin(node), time.perf_counter()
            try:
                value = (yield Invoke(self.function, call.args, call.kwargs)) if settled is None else settled.load()
                if watcher.waiting:
                    yield Blocking(watcher.returned)
            except BaseException as error:
                watcher.failed()
                took = time.perf_counter() - started
                if isinstance(error, Exception):
                    yield Blocking(functools.partial(self._failed, call, error, reason=why, seconds=took))
                elif run.report is not None:
                    run.report.interrupted(node.step, took)
                raise
            finally:
                run.started.end(begun)
        except BaseException:
            member.leave()
            raise
        finally:
            leave()
            current.leave(here)
        took = time.perf_counter() - started
        watcher.context.value = value
        try:
            effects = watcher.effects()
        except (CodecError, StoreError) as error:
            yield Blocking(functools.partial(run.not_kept, node, str(error), seconds=took))
            return value
        else:
            self._changed(call, effects)
        finally:
            member.leave()
        beside = member.overlapped and bool(call.behaviour.data)
        if beside:
            run.concurrent.steps.add(self.name)
        kept = self.kept(value, effects, watcher.context, dependencies)
        kept.hold, kept.seen, kept.damaged = lease.hold, lease.entry, call.damaged
        if beside:
            kept.meta["beside"] = True
        if member.needs:
            kept.meta["needs"] = member.needs
        if member.overlapped and (effects or member.needs):
            kept.meta["ended"] = member.ended or run.concurrent.stamp()
        run.concurrent.parted.discard(node.key)
        yield Blocking(functools.partial(run.record_result, node, kept, reason=why, seconds=took))
        return value

    def _failed(self, call: Call, error: Exception, *, reason: Reason, seconds: float) -> None:
        if self.once and not isinstance(error, OutputMissing):  # there, the body did finish
            effects_once.withdraw(call.entries, call.node)
        call.run.record_failure(call.node, error, reason=reason, seconds=seconds)

    # -- identity

    def identify(
        self, run: Session, args: tuple[Any, ...], kwargs: dict[str, Any], *, take: bool = True
    ) -> Call | None:
        """Which node this call is. None if the code has no identity: that is told, and the function just runs."""
        try:
            bound = self.identity.bind(*args, **kwargs)
        except TypeError:
            return None  # calling the function itself gives the error that the user knows
        if run.unseeded is not None:
            run.unseeded.look_again(run.entries.opening)
        group = run.beside
        entered, busy = group.entered, bool(group)
        try:
            behaviour = self.identity.look()
        except FingerprintError as error:
            warn(f"{error}. Until then it runs every time")
            run.unkept.setdefault(self.name, str(error))
            if take:
                run.will_go(self.name, str(error))
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
            busy = busy or group.entered != entered  # then a step may be changing the data, or may have meanwhile
            code = behaviour.with_data(group.epochs.first(zip(self._names(call), behaviour.digests), busy=busy))
            call.beside = entries.node(self.name, arguments.digest, code) if code != behaviour.digest else None
            if call.beside is not None and (busy or group.apart or self.name in run.concurrent.steps):
                call.take_beside()
        return call

    def _names(self, call: Call) -> Iterator[str]:
        """What the data that the code reads is called within the run: what belongs to no module is the step's own."""
        for datum in call.behaviour.data:
            own = datum.slot is None or datum.slot.space is None
            yield f"{self.name}/{datum.name}" if own else datum.name

    def _changed(self, call: Call, effects: Mapping[str, Any]) -> None:
        """Note that it was a step that changed the data which its code reads."""
        if "globals" in effects:
            with call.run.beside.lock:  # looked at and noted together: the last to look has the last word
                call.run.beside.epochs.leave(zip(self._names(call), call.behaviour.look_again()))

    def give_back(self, call: Call) -> None:
        """The call failed: the next identical one is the same node."""
        if call.arguments.ordinal is not None:
            call.run.give_back(f"{self.name}/{call.arguments.content}", call.arguments.ordinal)

    # -- recall

    def recall(self, call: Call, warned: str | None = None) -> Found:
        """The value kept for the node, or why it does not count; `told` has been said about it already."""
        entry, why = self.find(call, warned, again=False)
        if entry is None:
            return Found(why=why)
        if call.node.key in call.run.concurrent.parted and not self.once:
            return Found(why=PARTED)
        try:
            if entry.value_only and not verifying and not self.options["outputs"]:
                return Found(entry, entry.load(), why=why)
            value, effects, context = self.load(call, entry)
            for kind, obstacle in obstacles(context, effects, self.repeated(call, entry)):
                if not self.once:
                    return Found(why=obstacle)
                warn(f"step {self.name} is not performed again, but what it did cannot be restored: {obstacle}")
                effects.pop(kind, None)
            return Found(entry, value, effects, context, why)
        except CodecError as error:
            if call.entries.replaced(entry):
                return self.recall(call, warned)
            if self.once:
                raise CodecError(
                    f"step {self.name} was performed on {effects_once.at(entry)} and is not performed again, but its recorded "
                    f"result cannot be read: {error}. {effects_once.remedy(self.name)}"
                ) from error
            if str(error) != warned:
                warn(f"step {self.name} runs again: {error}")
            return Found(why=str(error))

    def reuse(self, call: Call, found: Found) -> Any:
        """Skip the step: leave the world as if it had run."""
        assert found.entry is not None
        value = found.value
        again = found.context is not None and self.repeated(call, found.entry)
        call.run.count_reuse(self.name, call.node.key, found.entry.seconds)
        if found.entry.key == call.node.intent:
            self._tell_performed(call, found)
        if found.entry.read_files or self.identity.inputs:
            self.reused_files(call, found.entry)
        if found.context is not None:
            depend(call.run, found.entry.meta.get("reads", ()))
            if call.opening is not None and call.run.unseeded is not None and call.run.unseeded.choose(call.opening):
                call.run.beside.epochs.restart(call.opening.digests.items())
            member = call.run.beside.enter()  # so that nobody takes what it changes now for the script's doing
            try:
                found.context.member = member
                with member.group.lock:
                    call.run.concurrent.skipped(found.entry.meta.get("ended", 0))
                    value, effects = self._in_order(call, found)
                    restore(found.context, effects, repeated=again or ())
                    self._changed(call, effects)
            finally:
                member.leave()
            call.run.applied.add(found.entry.key)
        return value

    def _in_order(self, call: Call, found: Found) -> tuple[Any, Mapping[str, Any]]:
        """What the step returned and did, now that those that ended before it have been skipped; see `InOrder`."""
        assert found.entry is not None and found.context is not None
        in_order = found.effects.get("globals", {}).get("in order")
        if in_order is not None:
            with keeping(call.run.store), contextlib.suppress(LookupError):  # then the data holds something else now
                value, effects = loads(in_order, found.entry.meta.get("main", ""), found.context.roots.find)
                return value, effects
        return found.value, found.effects

    def reused_files(self, call: Call, entry: Decoded) -> None:
        """See `inputs.reused`."""
        read, arguments = entry.meta.get("files", {}), dict(zip(self.identity.names, call.arguments.bound))
        inputs.reused(call.run, self.name, call.node.key, self.options, arguments, read)

    def repeated(self, call: Call, entry: Decoded) -> set[str]:
        """The kinds of effects of which this scope has seen those of an entry already, and others have maybe changed them."""
        return repeated(entry.meta.get("reads", ())) if entry.key in call.run.applied else set()

    def _tell_performed(self, call: Call, found: Found) -> None:
        """Say that an effect="once" call was performed though its checkpoint does not count; of each step once in a scope."""
        assert found.entry is not None
        why = found.why or self._compared(call).text
        explanation = (
            f"its checkpoint does not count any more: {why}" if why != NEW else "it has no checkpoint any more"
        )
        was, now = CallIdentity.from_json(found.entry.meta["identity"]), call.node.identity
        if now is not None and now.digest != was.digest:
            explanation = f"it was recorded as {was.step}({', '.join(was.values)}), before the step was edited"
        performed = f"step {self.name} was performed on {effects_once.at(found.entry)} and is not performed again ({explanation})"
        if self.name in call.run.performed:
            log("run %s: %s", call.run.id, performed)
            return
        call.run.performed.add(self.name)
        warn(
            f"{performed}. Its recorded result is returned, as for every other such call in this scope. "
            f"{effects_once.remedy(self.name)}"
        )

    def find(self, call: Call, warned: str | None = None, *, again: bool = True) -> Lookup:
        """The node's checkpoint if it counts now, or None and the reason if that is known.

        What an effect="once" call has done counts whatever became of its checkpoint: then it is the record of that.
        """
        if call.run.wants_fresh(call.node, once=self.once):
            return Lookup(None, ASKED[1])
        found = self._find_checkpoint(call, warned, again)
        if found.entry is None and self.once:
            performed, doubt = effects_once.performed(call.entries, call.node), call.node.doubt
            return Lookup(performed, found.why if doubt is None else f"it may have been performed: {doubt['doubt']}")
        return found

    def _find_earlier(self, call: Call, unseeded: Unseeded) -> Decoded | None:
        """What was kept of a step that drew when the generators were as an earlier scope of this process found them."""
        noted = call.entries.readings(call.node)
        if noted is None or not any(read.startswith("random:") for read in noted["reads"]):
            return None
        openings = unseeded.earlier()  # first: another thread may choose one meanwhile
        chosen = unseeded.chosen
        mark = (
            "random:" if chosen is None else "random:~"
        )  # of a step beside others, they may have been put back for another
        for opening in openings if chosen is None else [chosen]:

            def then(read: str, opening: Opening = opening) -> str:
                known = opening.digests.get(read.replace("~", "", 1)) if read.startswith(mark) else None
                return digest_of(call.run, read) if known is None else known.hex()

            found = call.entries.find(call.node, then).entry
            if found is not None:
                call.opening = opening
                return found
        return None

    def _find_checkpoint(self, call: Call, warned: str | None, again: bool) -> Lookup:
        run, node = call.run, call.node

        def tell(text: str) -> None:
            if not self.once or effects_once.find(call.entries, node) is None:  # else it does not run again
                warn(text)

        try:
            entry, why = call.entries.find(node, functools.partial(digest_of, run), again=again)
            if entry is None and call.beside is not None:
                entry = call.entries.find(call.beside, functools.partial(digest_of, run), again=again).entry
                if entry is not None and not entry.meta.get("beside"):
                    entry = None
                if entry is not None:
                    call.take_beside()
            if entry is None and run.unseeded is not None:
                entry = self._find_earlier(call, run.unseeded) or entry
            if entry is not None and not entry.value_only and entry.meta.get("beside"):
                run.concurrent.steps.add(self.name)
        except StoreError as error:
            if run.strict and isinstance(error, IntegrityError):
                raise
            call.damaged = True
            why = f"entry damaged: {error}"
            if why != warned:
                tell(f"step {self.name} runs again, its checkpoint is damaged: {error}")
            return Lookup(None, why)
        if why is not None and why != warned:
            if GONE in why:
                if run.strict:
                    raise IntegrityError(f"step {self.name}: entry {node.key} is gone from the store")
                tell(f"step {self.name} runs again: its checkpoint {node.key} is gone from the store")
            elif why == LEFT_OUT:
                tell(f"step {self.name} runs again: its result or what else it did was {LEFT_OUT}")
        if entry is not None and self.expires is not None:
            age = time.time() - entry.time
            if age > self.expires:
                return Lookup(None, f"expired: {age:.0f} s old, kept for {self.expires:.0f} s")
        if entry is not None and entry.read_files and inputs.observes(run, self.options):
            changed = inputs.changed(run, entry.meta["files"])  # kept when it did not count yet
            if changed is not None:
                return Lookup(None, changed)
        return Lookup(entry, why)

    def load(
        self, call: Call, entry: Decoded, context: CallContext | None = None
    ) -> tuple[Any, dict[str, Any], CallContext]:
        """The value and the effects of an entry. CodecError if the caller's objects are not shared as they were then."""
        if context is None:
            context = self.match_objects(call, entry, ("argument", "global", "state"))
        with keeping(call.run.store):
            loaded = entry.load(context.roots.find)
        value, effects = loaded if entry.meta.get("effects") else (loaded, {})
        return value, effects, context

    def look(self, call: Call, entry: Decoded) -> Any:
        """The value, or a generator of the items, for one who only looks."""
        if self.yields:
            return self._follow(generators.look(self, call, entry))
        return self.load(call, entry)[0]

    def match_objects(self, call: Call, entry: Decoded, kinds: tuple[str, ...] = ("argument",)) -> CallContext:
        """The call, its objects known by the names that they have in the entry."""
        context, roots = self.context(call), entry.meta.get("roots", ())
        for name in context.arguments if roots else ():
            context.roots.add("argument", name)  # in the order in which they were named then
        context.roots.match(roots, kinds)
        return context

    def context(self, call: Call, *, runs: bool = False, member: Member | None = None) -> CallContext:
        """The call as its surroundings see it."""
        arguments, counted = dict(zip(self.identity.names, call.arguments.bound)), self.identity.contents
        if not self.identity.plain:  # sharing is told from those that count to the others
            arguments = {**{name: arguments[name] for name in counted}, **arguments}
        data, spaces = call.behaviour.reached(call.arguments)
        digests = call.arguments.take_digests() if runs else None
        node = call.node.key
        return CallContext(self.name, call.run, arguments, counted, self.options, data, spaces, digests, node, member)

    # -- why it runs, and what is kept of it

    def reason(self, call: Call) -> Reason:
        """Why the node runs though nothing is wrong with a checkpoint of it: something it depends on changed, or it is new."""
        return self._compared(call) if call.run.resumed else Reason(NEW)

    def compare(self, call: Call) -> Explanation:
        """What differs from the nearest checkpoint of the step that this scope has not used."""
        reason = self._compared(call)
        return Explanation(self.name, call.node.id, False, reason.text, reason.changes)

    def _compared(self, call: Call) -> Reason:
        return compare(call.entries, call.node, self.dependencies(call), call.run, call.run.used_nodes)

    def dependencies(self, call: Call) -> Dependencies:
        """What the call depends on, as far as that is known before it runs."""
        behaviour = call.behaviour
        closure = call.run.variants.closure_of(self.identity.naming)
        call.node.name = functools.partial(self.identity.key_of, call.arguments, closure)
        return Dependencies(call.arguments.parts, behaviour.parts, behaviour.packages, behaviour.data_parts)

    def kept(
        self, value: Any, effects: dict[str, Any], context: CallContext, dependencies: Dependencies
    ) -> CheckpointData:
        """What is to be kept of a completed node."""
        shown = {
            name: part.to_json()
            for name, part in (*dependencies.arguments.items(), *dependencies.reads.items())
            if part.shown
        }
        meta: dict[str, Any] = {
            "arguments": {name: part.digest for name, part in dependencies.arguments.items()},
            "shown": shown,
        }
        if context.roots.routes:
            in_order = InOrder(value, effects, context.roots.name_in_order)
            effects["globals"] = {**effects.get("globals", {}), "in order": in_order}
        if dependencies.reads:
            meta["data"] = {name: part.digest for name, part in dependencies.reads.items()}
        if context.reads:
            meta["reads"] = context.reads
            shown.update(context.shown)
        if context.files:
            meta["files"] = context.files
        if effects:
            meta["effects"] = sorted(effects)
        name = None
        if context.roots or "globals" in effects:
            name, meta["roots"] = context.roots.name, context.roots.listed
        kept = (value, effects) if effects else value
        return CheckpointData(kept, meta, dependencies.code, dependencies.packages, context.reads, name, once=self.once)

    def find_run(self, reference: Reference | None = None) -> Session | None:
        """The run that a call belongs to: the current one, the one it came from, or for a shared step the default store's."""
        run = session_here()
        forked = run is not None and run.pid != os.getpid()
        if run is None or (reference is not None and forked):  # a run that a fork left here is not ours
            if reference is None and not self.share:
                return None
            run = joining.outside() if reference is None else joining.join(reference)
        elif forked:
            joining.follow(run)
        return None if run.disabled else run


def step_name(function: Any) -> str:
    """What a step is called if it is given no name."""
    target = function
    while not hasattr(target, "__qualname__") and hasattr(target, "func"):  # a partial
        target = target.func
    name = getattr(target, "__qualname__", None) or type(target).__qualname__
    return str(name)
