"""The path of one call of a step: bind, identify, recall; else lease, watch, run, record.

`Definition.path` is written once, for functions and coroutines: it says what it wants done (see flight.py), and the edge
does it at once or awaits it. Steps that yield share all of it but the part in the middle (see generators.py).
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from . import current, generators, intents, joining
from .blobs import keeping
from .codec import Decoded
from .current import current_run, run_here
from .durations import seconds
from .errors import CodecError, FingerprintError, IntegrityError, OutputMissing, StoreError, UsageError, warn
from .fingerprint import Arguments, Identity, Part
from .flight import Blocking, Lease, Path, acquire, drive, drive_async
from .looking import called_plainly
from .nodes import GONE, LEFT_OUT, NEW, Kept, Node, inside, steps_around
from .reasons import Explanation, Facts, Reason, compare
from .records import Reference
from .runs import Run
from .shelf import Lookup, Shelf
from .stores import Bytes
from .surroundings import Moment, Scene, careful, restore, verify
from .surroundings.patterns import check_outputs
from .surroundings.state import depend


class Invoke:
    """Let the user's function run."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.now = functools.partial(function, *args, **kwargs)

    async def later(self) -> Any:
        return await self.now()


class Call:
    """One call of a step: what was passed, what identifies that, and the node it is."""

    __slots__ = ("args", "arguments", "damaged", "kwargs", "node", "run", "shelf")

    def __init__(
        self,
        run: Run,
        shelf: Shelf,
        node: Node,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: Arguments,
    ) -> None:
        self.run, self.shelf, self.node = run, shelf, node
        self.args, self.kwargs, self.arguments = args, kwargs, arguments
        self.damaged = False  # an entry is there that cannot be trusted

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
    moment: Moment | None = None
    why: str | None = None


_NOTHING = Found()


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

    def call(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], *, fresh: bool = False) -> Any:
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

    def path(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], *, fresh: bool = False) -> Path[Any]:
        """The value of a call: recalled, or computed and recorded."""
        call = self.identify(run, args, kwargs)
        if call is None or call.recursive:
            return (yield Invoke(self.function, args, kwargs))
        try:
            found = _NOTHING
            while True:
                if not fresh:
                    stored = run.resumed or self.share or call.shelf.past  # else there is only what this process wrote
                    if stored and self._follow is drive_async and not call.shelf.at_hand(call.node):
                        yield from call.shelf.fetch(call.node)
                    if call.shelf.at_hand(call.node):
                        found = self.recall(call, found.why)
                    elif stored or call.shelf.has(call.node):
                        found = yield Blocking(self.recall, call, found.why)
                    if found.entry is not None:
                        return self.reuse(call, found)
                look = functools.partial(self._look_again, call, fresh=fresh, told=found.why)
                lease = yield from acquire(run.store, call.node.key, look, required=self.once)
                if lease is not None:  # else another thread or task had it: look at what came of that
                    break
            try:
                if isinstance(lease.seen, Found):
                    return self.reuse(call, lease.seen)
                return (yield from self._compute(call, lease, lease.seen))
            finally:
                lease.release()
        except BaseException:
            self.give_back(call)
            raise

    def _look_again(self, call: Call, entry: Bytes | None, *, fresh: bool, told: str | None) -> Found | Reason:
        """What another process completed before we had the lease, under which `entry` stands; or why the step is to run."""
        if fresh:
            return Reason("refreshed")
        if entry is not None:
            call.shelf.learn(call.node, entry)
            found = self.recall(call, told)
            if found.entry is not None:
                return found
            told = found.why
        return Reason(told) if told else self.reason(call)

    def _compute(self, call: Call, lease: Lease[Any], why: Reason) -> Path[Any]:
        run, node = call.run, call.node
        parts, code = call.arguments.parts, self.identity.code_parts()  # now: the function may change its arguments
        run.will_run(node, why.text, once=self.once)
        settled = (yield Blocking(intents.begin, call.shelf, node)) if self.once else None
        here, leave = current.enter(run if run.id else current_run()), inside(node)
        try:
            scene = Scene(self.moment(call, runs=True))
            begun, started = run.begin(node), time.perf_counter()
            try:
                value = (yield Invoke(self.function, call.args, call.kwargs)) if settled is None else settled.load()
                if scene.waiting:
                    yield Blocking(scene.returned)
            except BaseException as error:
                scene.failed()
                took = time.perf_counter() - started
                if isinstance(error, Exception):
                    yield Blocking(functools.partial(self._failed, call, error, reason=why, seconds=took))
                elif run.report is not None:
                    run.report.interrupted(node.step, took)
                raise
            finally:
                run.started.end(begun)
        finally:
            leave()
            current.leave(here)
        took = time.perf_counter() - started
        try:
            effects = scene.effects()
        except (CodecError, StoreError) as error:
            yield Blocking(functools.partial(run.not_kept, node, str(error), seconds=took))
            return value
        kept = self.kept(call, value, effects, scene.moment, parts, code)
        kept.hold, kept.seen, kept.damaged = lease.hold, lease.entry, call.damaged
        yield Blocking(functools.partial(run.record, node, kept, reason=why, seconds=took))
        return value

    def _failed(self, call: Call, error: Exception, *, reason: Reason, seconds: float) -> None:
        if self.once and not isinstance(error, OutputMissing):  # there, the body did finish
            intents.withdraw(call.shelf, call.node)
        call.run.record_failure(call.node, error, reason=reason, seconds=seconds)

    # -- identity

    def identify(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], *, take: bool = True) -> Call | None:
        """Which node this call is. None if the code has no identity: that is told, and the function just runs."""
        try:
            bound = self.identity.bind(*args, **kwargs)
        except TypeError:
            return None  # calling the function itself gives the error that the user knows
        try:
            code = self.identity.code()
        except FingerprintError as error:
            warn(f"{error}. Until then it runs every time")
            if take:
                run.will_go(self.name, str(error))
            return None
        arguments = self.identity.identify(bound, args, kwargs)
        if self.every_call:
            ordinals = run.ordinals(self.name, arguments.content)
            arguments.number(ordinals.take() if take else ordinals.peek())
        shelf = run.shared if self.share else run.shelf
        return Call(run, shelf, shelf.node(self.name, arguments.digest, code), args, kwargs, arguments)

    def give_back(self, call: Call) -> None:
        """The call failed: the next identical one is the same node."""
        if call.arguments.ordinal is not None:
            call.run.ordinals(self.name, call.arguments.content).give_back(call.arguments.ordinal)

    # -- recall

    def recall(self, call: Call, told: str | None = None) -> Found:
        """The value kept for the node, or why it does not count; `told` has been said about it already."""
        entry, why = self.find(call, told, again=False)
        if entry is None:
            return Found(why=why)
        try:
            if entry.value_only and not careful and not self.options["outputs"]:
                return Found(entry, entry.load())
            value, effects, moment = self.load(call, entry)
            why = verify(moment, effects)
            return Found(entry, value, effects, moment) if why is None else Found(why=why)
        except CodecError as error:
            if str(error) != told:
                warn(f"step {self.name} runs again: {error}")
            return Found(why=str(error))

    def reuse(self, call: Call, found: Found) -> Any:
        """Skip the step: leave the world as if it had run."""
        assert found.entry is not None
        call.run.count_reuse(self.name, call.node.key, found.entry.seconds)
        if found.moment is not None:
            depend(call.run.state, found.entry.meta.get("reads", ()))
            restore(found.moment, found.effects)
        return found.value

    def find(self, call: Call, told: str | None = None, *, again: bool = True) -> Lookup:
        """The node's checkpoint if it counts now, or None and the reason if that is known."""
        run, node = call.run, call.node
        if run.wants_fresh(node, once=self.once):
            return Lookup(None, "ONCEMORE_REFRESH")
        try:
            entry, why = call.shelf.find(node, run.state.digest, again=again)
        except StoreError as error:
            if run.strict and isinstance(error, IntegrityError):
                raise
            call.damaged = True
            why = f"entry damaged: {error}"
            if why != told:
                warn(f"step {self.name} runs again, its checkpoint is damaged: {error}")
            return Lookup(None, why)
        if why is not None and why != told:
            if GONE in why:
                if run.strict:
                    raise IntegrityError(f"step {self.name}: entry {node.key} is gone from the store")
                warn(f"step {self.name} runs again: its checkpoint {node.key} is gone from the store")
            elif why == LEFT_OUT:
                warn(f"step {self.name} runs again: its result or what else it did was {LEFT_OUT}")
        if entry is not None and self.expires is not None:
            age = time.time() - entry.time
            if age > self.expires:
                return Lookup(None, f"expired: {age:.0f} s old, kept for {self.expires:.0f} s")
        return Lookup(entry, why)

    def load(self, call: Call, entry: Decoded, moment: Moment | None = None) -> tuple[Any, dict[str, Any], Moment]:
        """The value and the effects of an entry. CodecError if the caller's objects are not shared as they were then."""
        if moment is None:
            moment = self.meet(call, entry, ("argument", "state"))
        with keeping(call.run.store):
            loaded = entry.load(moment.roots.find)
        value, effects = loaded if entry.meta.get("effects") else (loaded, {})
        return value, effects, moment

    def look(self, call: Call, entry: Decoded) -> Any:
        """The value, or a generator of the items, for one who only looks."""
        if self.yields:
            return self._follow(generators.look(self, call, entry))
        return self.load(call, entry)[0]

    def meet(self, call: Call, entry: Decoded, kinds: tuple[str, ...] = ("argument",)) -> Moment:
        """The call, its objects known by the names that they have in the entry."""
        moment, roots = self.moment(call), entry.meta.get("roots", ())
        for name in moment.arguments if roots else ():
            moment.roots.add("argument", name)  # in the order in which they were named then
        moment.roots.meet(roots, kinds)
        return moment

    def moment(self, call: Call, *, runs: bool = False) -> Moment:
        """The call as its surroundings see it."""
        arguments, counted = dict(zip(self.identity.names, call.arguments.bound)), self.identity.contents
        if not self.identity.plain:  # sharing is told from those that count to the others
            arguments = {**{name: arguments[name] for name in counted}, **arguments}
        digests = call.arguments.take_digests() if runs else None
        return Moment(self.name, call.run, arguments, counted, self.options, digests, call.node.key)

    # -- why it runs, and what is kept of it

    def reason(self, call: Call) -> Reason:
        """Why the node runs though nothing is wrong with a checkpoint of it: something it depends on changed, or it is new."""
        return self._compared(call) if call.run.resumed else Reason(NEW)

    def compare(self, call: Call) -> Explanation:
        """What differs from the nearest checkpoint of the step that this scope has not used."""
        reason = self._compared(call)
        return Explanation(self.name, call.node.id, False, reason.text, reason.changes)

    def _compared(self, call: Call) -> Reason:
        now = Facts(call.arguments.parts, self.identity.code_parts(), self.identity.packages())
        return compare(call.shelf, call.node, now, call.run.state, call.run.passed)

    def kept(
        self,
        call: Call,
        value: Any,
        effects: dict[str, Any],
        moment: Moment,
        parts: Mapping[str, Part],
        code: Mapping[str, Part],
    ) -> Kept:
        """What is to be kept of a completed node."""
        shown = {name: part.told() for name, part in parts.items() if part.shown}
        meta: dict[str, Any] = {"arguments": {name: part.digest for name, part in parts.items()}, "shown": shown}
        if moment.reads:
            meta["reads"] = moment.reads
            shown.update(moment.shown)
        if effects:
            meta["effects"] = sorted(effects)
        name = None
        if moment.roots:
            name, meta["roots"] = moment.roots.name, moment.roots.listed
        packages = self.identity.packages
        return Kept((value, effects) if effects else value, meta, code, packages, moment.reads, name, once=self.once)

    def home(self, reference: Reference | None = None) -> Run | None:
        """The run that a call belongs to: the current one, the one it came from, or for a shared step the default store's."""
        run = run_here()
        if run is None or (reference is not None and run.pid != os.getpid()):  # a run that a fork left here is not ours
            if reference is None and not self.share:
                return None
            run = joining.outside() if reference is None else joining.join(reference)
        return None if run.disabled else run


def step_name(function: Any) -> str:
    """What a step is called if it is given no name."""
    target = function
    while not hasattr(target, "__qualname__") and hasattr(target, "func"):  # a partial
        target = target.func
    name = getattr(target, "__qualname__", None) or type(target).__qualname__
    return str(name)
