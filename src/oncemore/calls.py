"""The path of one call of a step, from its arguments to its value.

`Definition.path` is written once, for functions and coroutines: it says what it wants done (see flight.py), and the edge
does it at once or awaits it.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import current, quick
from .asked import Asked, Call, Found, around, inside
from .blobs import keeping
from .codec import Decoded
from .current import current_run, run_here
from .earlier import GONE, LEFT_OUT
from .errors import (
    CodecError,
    FingerprintError,
    IntegrityError,
    OutputMissing,
    StoreError,
    UsageError,
    warn,
)
from .fingerprint import Identity, Part
from .flight import Blocking, Path, Seat, board, drive, drive_async
from .functions import kind_of, name_of
from .looking import called_plainly
from .modules import loading
from .nodes import NEW, Kept
from .records import Reference
from .runs import Run
from .surroundings import Moment, Scene, careful, restore, verify
from .surroundings.state import depend

if TYPE_CHECKING:
    from .reasons import Explanation


class Definition:
    """A step as it was declared."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function, self.options = function, options
        self.name: str = options["name"] or name_of(function)
        self.share: bool = options["share"]
        self.every_call: bool = options["every_call"]
        if options["effect"] not in (None, "once"):
            raise UsageError(f"step {self.name}: effect={options['effect']!r} is not 'once'")
        self.once = options["effect"] == "once"
        self.expires: float | None = None
        if options["expires"] is not None:
            with loading:
                from .durations import seconds
            self.expires = seconds(options["expires"])
        taken = {name: options[name] for name in ("version", "ignore", "key", "code", "inputs", "redact")}
        self.identity = Identity(function, step=self.name, **taken)
        if options["outputs"] != ():
            with loading:
                from .surroundings.patterns import check_outputs
            check_outputs(options["outputs"], self.identity.names, self.name)
        self._follow: Callable[[Any], Any] = drive
        self._item_by_item = False
        kind = kind_of(function)
        if kind == "coroutine":  # the outermost: a wrapper may make a plain function of a coroutine's
            self._follow = drive_async
        elif kind in ("generator", "async generator"):
            generators = _generators()
            self._follow, self._item_by_item = generators.drive if kind == "generator" else generators.drive_async, True
        whole = not (self.every_call or self._item_by_item or options["outputs"]) and self.expires is None
        self.quick = whole and self.identity.plain
        if self.once and self._item_by_item:
            raise UsageError(f"step {self.name}: effect='once' is for steps that return, not for generators")

    def call(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call: the value, or what awaits it, or what yields its items."""
        if not self.quick or not run.quick:
            return self.enter(run, args, kwargs)
        if self._follow is not drive:
            return self._follow(self._short(run, args, kwargs))
        found = quick.recall(self, run, args, kwargs)  # as `_short` does it: not even a generator is made
        if type(found) is Asked:
            return drive(self.settle(found))
        return found if found is not quick.UNKNOWN else self.enter(run, args, kwargs)

    def plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that belongs to no run."""
        called_plainly(self.name)
        return self.function(*args, **kwargs)

    def enter(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], *, fresh: bool = False) -> Any:
        """Begin a call: the value, or what awaits it, or what yields its items."""
        if self._item_by_item:
            body = self.function(*args, **kwargs)  # nothing of it runs yet
            return self._follow(_generators().path(self, body, run, args, kwargs, fresh=fresh))
        return self._follow(self.path(run, args, kwargs, fresh=fresh))

    # -- the path of one call

    def path(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], *, fresh: bool = False) -> Path[Any]:
        asked = self.ask(run, args, kwargs)
        if asked is None:
            return (yield Call(self.function, args, kwargs))
        return (yield from self.settle(asked, fresh=fresh))

    def _short(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Path[Any]:
        found = quick.recall(self, run, args, kwargs)
        if type(found) is Asked and run.resumed and found.shelf.near.cold:
            yield from found.shelf.near.warm()
            found = quick.recall(self, run, args, kwargs)
        if found is quick.UNKNOWN:
            return (yield from self.path(run, args, kwargs))
        return (yield from self.settle(found)) if type(found) is Asked else found

    def settle(self, asked: Asked, *, fresh: bool = False) -> Path[Any]:
        """The value of a node: kept, or computed and kept."""
        if around(asked.node):  # it calls itself
            return (yield Call(self.function, asked.args, asked.kwargs))
        run, found = asked.run, Found()
        try:
            if run.resumed and not fresh:
                found = yield Blocking(self.recall, asked)
                if found.entry is not None:
                    return self.reuse(asked, found)
            while (taken := (yield from self._board(asked, found.why, fresh=fresh))) is None:
                found = Found() if fresh else (yield Blocking(self.recall, asked, found.why))
                if found.entry is not None:
                    return self.reuse(asked, found)
            seat, seen = taken
            try:
                return (yield from self._compute(asked, seen)) if isinstance(seen, str) else self.reuse(asked, seen)
            finally:
                seat.release()
        except BaseException:
            self.give_back(asked)
            raise

    def _board(self, asked: Asked, told: str | None, *, fresh: bool) -> Path[tuple[Seat, Found | str] | None]:
        """The seat, and what another process had completed before we got it, or why the step is to run."""

        def look() -> Found | str:
            found = Found(why="refreshed") if fresh else self.recall(asked, told)
            return found if found.entry is not None else found.why or self.reason(asked)

        return board(asked.run.store, asked.node.key, look)

    def _compute(self, asked: Asked, why: str) -> Path[Any]:
        run, node = asked.run, asked.node
        parts, code = self.parts(asked)  # now: the function may change its arguments
        run.will_run(node, why, once=self.once)
        settled = (yield Blocking(_intents().begin, asked.shelf, node)) if self.once else None
        here, leave = current.enter(run if run.id else current_run()), inside(node)
        try:
            scene = Scene(self.moment(asked, runs=True))
            begun, started = run.begin(node), time.perf_counter()
            try:
                value = (yield Call(self.function, asked.args, asked.kwargs)) if settled is None else settled.load()
                if scene.waiting:
                    yield Blocking(scene.returned)
            except BaseException as error:
                scene.failed()
                took = time.perf_counter() - started
                if isinstance(error, Exception):
                    yield Blocking(functools.partial(self._failed, asked, error, reason=why, seconds=took))
                elif run.report is not None:
                    run.report.interrupted(node.step, took)
                raise
            finally:
                run.scribe.end(begun)
        finally:
            leave()
            current.leave(here)
        took = time.perf_counter() - started
        try:
            effects = scene.effects()
        except (CodecError, StoreError) as error:
            yield Blocking(functools.partial(run.not_kept, node, str(error), seconds=took))
            return value
        kept = self.kept(asked, value, effects, scene.moment, parts, code)
        yield Blocking(functools.partial(run.record, node, kept, reason=why, seconds=took))
        return value

    def _failed(self, asked: Asked, error: Exception, *, reason: str, seconds: float) -> None:
        if self.once and not isinstance(error, OutputMissing):  # there, the body did finish
            _intents().withdraw(asked.shelf, asked.node)
        asked.run.record_failure(asked.node, error, reason=reason, seconds=seconds)

    # -- its pieces

    def ask(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], *, take: bool = True) -> Asked | None:
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
        return Asked(run, shelf, shelf.node(self.name, arguments.digest, code), args, kwargs, arguments)

    def give_back(self, asked: Asked) -> None:
        """The call failed: the next identical one is the same node."""
        if asked.arguments.ordinal is not None:
            asked.run.ordinals(self.name, asked.arguments.content).give_back(asked.arguments.ordinal)

    def recall(self, asked: Asked, told: str | None = None) -> Found:
        """The value kept for the node, or why it does not count; `told` has been said about it already."""
        entry, why = self.find(asked, told)
        if entry is None:
            return Found(why=why)
        try:
            if self.quick and entry.alone and not careful:  # then this is all that the rest would do
                return Found(entry, entry.load())
            value, effects, moment = self.load(asked, entry)
            why = verify(moment, effects)
            return Found(entry, value, effects, moment) if why is None else Found(why=why)
        except CodecError as error:
            if str(error) != told:
                warn(f"step {self.name} runs again: {error}")
            return Found(why=str(error))

    def reuse(self, asked: Asked, found: Found) -> Any:
        """Skip the step: leave the world as if it had run."""
        assert found.entry is not None
        asked.run.count_reuse(asked.node.step, asked.node.key, found.entry.meta["seconds"])
        depend(asked.run.state, found.entry.meta.get("reads", ()))
        if found.effects:
            restore(found.moment, found.effects)
        return found.value

    def find(self, asked: Asked, told: str | None = None) -> tuple[Decoded | None, str | None]:
        """The node's checkpoint if it counts now, or None and the reason if that is known."""
        run, node = asked.run, asked.node
        if run.wants_fresh(node, once=self.once):
            return None, "ONCEMORE_REFRESH"
        try:
            entry, why = asked.shelf.find(node, run.state.digest), None
        except StoreError as error:
            if run.strict and isinstance(error, IntegrityError):
                raise
            why = f"entry damaged: {error}"
            if why != told:
                warn(f"step {self.name} runs again, its checkpoint is damaged: {error}")
            return None, why
        if entry is None and run.resumed:
            why = asked.shelf.fate(node, run.state.digest)
            if why == GONE:
                why = f"entry damaged: {GONE}"
                if run.strict:
                    raise IntegrityError(f"step {self.name}: entry {node.key} is gone from the store")
                if why != told:
                    warn(f"step {self.name} runs again: its checkpoint {node.key} is gone from the store")
            elif why == LEFT_OUT != told:
                warn(f"step {self.name} runs again: its result or what else it did was {LEFT_OUT}")
        if entry is not None and self.expires is not None:
            age = time.time() - entry.meta["time"]
            if age > self.expires:
                return None, f"expired: {age:.0f} s old, kept for {self.expires:.0f} s"
        return entry, why

    def load(self, asked: Asked, entry: Decoded, moment: Moment | None = None) -> tuple[Any, dict[str, Any], Moment]:
        """The value and the effects of an entry. CodecError if the caller's objects are not shared as they were then."""
        if moment is None:
            moment = self.meet(asked, entry, ("argument", "state"))
        with keeping(asked.run.store):
            loaded = entry.load(moment.roots.find)
        value, effects = loaded if entry.meta.get("effects") else (loaded, {})
        return value, effects, moment

    def look(self, asked: Asked, entry: Decoded) -> Any:
        """The value, or a generator of the items, for one who only looks."""
        if self._item_by_item:
            return self._follow(_generators().look(self, asked, entry))
        return self.load(asked, entry)[0]

    def meet(self, asked: Asked, entry: Decoded, kinds: tuple[str, ...] = ("argument",)) -> Moment:
        """The call, its objects known by the names that they have in the entry."""
        moment, roots = self.moment(asked), entry.meta.get("roots", ())
        for name in moment.arguments if roots else ():
            moment.roots.add("argument", name)  # in the order in which they were named then
        moment.roots.meet(roots, kinds)
        return moment

    def moment(self, asked: Asked, *, runs: bool = False) -> Moment:
        """The call as its surroundings see it."""
        arguments, counted = dict(zip(self.identity.names, asked.arguments.bound)), self.identity.contents
        if not self.identity.plain:  # sharing is told from those that count to the others
            arguments = {**{name: arguments[name] for name in counted}, **arguments}
        digests = asked.arguments.take_digests() if runs else None
        return Moment(self.name, asked.run, arguments, counted, self.options, digests, asked.node.key)

    def parts(self, asked: Asked) -> tuple[dict[str, Part], dict[str, Part]]:
        """What the node's arguments and code consist of."""
        return asked.arguments.parts, self.identity.code_parts()

    def reason(self, asked: Asked) -> str:
        """Why the node runs though nothing is wrong with a checkpoint of it: something it depends on changed, or it is new."""
        return self.compare(asked).reason if asked.run.resumed else NEW

    def compare(self, asked: Asked) -> Explanation:
        """What differs from the nearest checkpoint of the step that this scope has not come by."""
        with loading:
            from .reasons import Explanation, Facts, changes, sentence
        now = Facts(*self.parts(asked), self.identity.packages())
        found = changes(asked.shelf, asked.node, now, asked.run.state, asked.run.passed)
        return Explanation(self.name, asked.node.id, False, sentence(found), found or ())

    def kept(
        self,
        asked: Asked,
        value: Any,
        effects: dict[str, Any],
        moment: Moment,
        parts: dict[str, Part],
        code: dict[str, Part],
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
        return Kept(
            (value, effects) if effects else value,
            meta,
            code,
            self.identity.packages,
            moment.reads,
            name,
            once=self.once,
        )

    def home(self, reference: Reference | None = None) -> Run | None:
        """The run that a call belongs to: the current one, the one it came from, or for a shared step the default store's."""
        run = run_here()
        if run is None or (reference is not None and run.pid != os.getpid()):  # a run that a fork left here is not ours
            if reference is None and not self.share:
                return None
            with loading:
                from .joining import join, outside
            run = outside() if reference is None else join(reference)
        return None if run.disabled else run


def _intents() -> Any:
    """What keeps effects from happening twice, from when there is one that must not."""
    with loading:
        from . import intents
    return intents


def _generators() -> Any:
    """What follows steps that yield, from when there is one."""
    with loading:
        from . import generators
    return generators
