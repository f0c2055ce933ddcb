"""Random generators: the global ones of `random`, numpy and torch, if these are imported, and unseeded ones of project modules.

If a step draws numbers, the state of a global generator before it is one of its reads, and the state after it is its effect.
So later steps draw the same numbers as without a skip, and another seed runs the steps that draw again. In a worker process,
the state depends on what the worker did before; there it is no read.

A resumed scope sets unseeded generators to the states with which the first attempt opened. So a script that draws numbers
without a seed can be resumed, and its steps are recalled. A generator is unseeded if

* it is that of `random`, and in the state it had when oncemore was imported;
* it is that of numpy, and in the state in which the library creates it;
* a project module or class holds it, directly or in a dict or list, and the statement that created it has no seed.

A scope that is opened again in the same process may be the next cell of a notebook, or the same cell run again. So it starts
with the generators as they are. If a checkpoint of the first step that reads them was recorded with the states that an
earlier scope started from, they are set back to those.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ..identity.code.statements import binding
from ..identity.values import digest, identity
from ..modules import canonical_name, is_project_module, loaded, module_of
from .mutable_types import mutator_of, same_state
from .protocol import CallContext, Surrounding
from .references import walk_from

# Prefix of the name of a generator that a concurrent step read: its state before all of the concurrent steps. Alone, it is the
# key in the effect for when the step ended.
_CONCURRENT = "~"


class Generators(Surrounding):
    name = "random"
    per_item = True

    def before(self, context: CallContext) -> dict[str, Any]:
        note, member = states(), context.member
        if member is not None and not member.group.generators:
            member.group.generators = note
        if context.first:
            context.generators_before = note
        return note

    def after(self, context: CallContext, note: dict[str, Any]) -> dict[str, Any] | None:
        # the generator of a library that the step itself imported counts as changed
        with context.run.group.lock:  # of two concurrent steps, the one with the later stamp has the later state
            now, ended = states(), context.run.concurrent.stamp()
        found = {name: state for name, state in now.items() if name not in note or not same_state(state, note[name])}
        if not found or context.run.joined:
            return found or None
        epochs, member = context.run.beside.epochs, context.member
        if member is not None and member.shares:
            first = {**note, **member.group.generators}
            for name in found.keys() & first.keys():
                [then] = epochs.first([(f"random:{name}", state_digest(first[name]))], busy=True)
                context.reads[f"random:{_CONCURRENT}{name}"] = then.hex()
            found[_CONCURRENT] = ended
        else:
            first = context.generators_before  # a generator step is looked up before its first item
            for name in found:
                if name in first:
                    context.reads[f"random:{name}"] = state_digest(first[name]).hex()
        epochs.leave((f"random:{name}", state_digest(now[name])) for name in found if name != _CONCURRENT)
        return found

    def digest(self, run: Any, name: str) -> str:
        generators, bare = _generators(), name.removeprefix(_CONCURRENT)
        if bare not in generators:
            return "not loaded"
        group = run.beside
        entered, busy = group.entered, bool(group)
        now = state_digest(generators[bare][0]())
        if name == bare:
            return now.hex()
        with group.lock:
            [first] = group.epochs.first([(f"random:{bare}", now)], busy=busy or group.entered != entered)
        return str(first.hex())

    def label(self, name: str) -> str:
        bare = name.removeprefix(_CONCURRENT)
        return "random generator" if bare == "random" else f"{bare}'s random generator"

    def change(self, name: str) -> str:
        return f"{self.label(name)} was seeded differently"

    def restore(self, context: CallContext | None, effect: dict[str, Any]) -> None:
        run: Any = None if context is None else context.run
        ended = effect.get(_CONCURRENT)
        if ended is not None and run is not None:
            if ended < run.concurrent.ended:
                return  # of concurrent steps, the one that ended last determines the state
            run.concurrent.ended = ended
        for name, state in effect.items():
            if name == _CONCURRENT:
                continue
            if name in _MODULES:
                importlib.import_module(_MODULES[name])
            _generators()[name][1](state)
            if run is not None:
                run.beside.epochs.leave([(f"random:{name}", state_digest(state))])

    def repeat(self, context: CallContext, effect: dict[str, Any]) -> None:
        """Nothing is set back: other code may have drawn numbers since."""


def state_digest(state: Any) -> bytes:
    """The digest of a state, whatever its type."""
    found = identity(state) if type(state) in (tuple, dict) else None
    return found or digest(pickle.dumps(state))


def states() -> dict[str, Any]:
    """The states of all generators, as `Generators.restore` takes them."""
    return _states(_generators())


_MODULES = {"numpy": "numpy.random", "torch": "torch"}  # `import numpy` alone does not import its generator
Handles = dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]  # how to get and set a state, by name


def _generators() -> Handles:
    found: Handles = {"random": (random.getstate, random.setstate)}
    numpy, torch = loaded("numpy.random"), loaded("torch")
    if numpy is not None and hasattr(numpy, "set_state"):
        found["numpy"] = partial(numpy.get_state, legacy=False), numpy.set_state  # works for any kind of generator
    if torch is not None and hasattr(torch, "set_rng_state"):
        found["torch"] = torch.get_rng_state, torch.set_rng_state
    return found


# -- unseeded generators


_HOLDERS = (dict, list, tuple)
_MOST = 100  # objects that are searched in each of them: this costs time in every step

_imported = digest(random.getstate())
_openings: dict[str, list[Opening]] = {}  # the scopes that this process opened, by run
_MOST_OPENINGS = 8
_latest: deque[Opening] = deque()  # those that keep their states: 30 KB, for each of thousands of runs
_MOST_STATES = 100


class Opening:
    """The states of the global generators when a scope opened; empty once many others have opened since."""

    __slots__ = ("digests", "left", "states")

    def __init__(self) -> None:
        self.states = _states(_global())
        self.digests = _digests(self.states)
        self.left: dict[str, bytes] = {}  # their digests when the scope closed
        if _latest and _latest[-1].digests == self.digests:  # most scopes draw no numbers
            self.states, self.digests = _latest[-1].states, _latest[-1].digests
        _latest.append(self)
        if len(_latest) > _MOST_STATES:
            _latest.popleft().states = {}


class Unseeded:
    """The unseeded generators of this process when a scope opens, and their states; none if the run was open before."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._earlier = _openings.setdefault(run, [])[-_MOST_OPENINGS:]
        self._found = {} if self._earlier else {**_global_unseeded(), **_of_modules()}
        self._opening = Opening()
        self.chosen: Opening | None = None
        _openings[run] = [*self._earlier, self._opening]
        self.states = _states(self._found)
        self.written = not self.states  # nothing to store
        self._lacks_numpy = not self._earlier and loaded("numpy") is None

    def look_again(self, recorded: Callable[[], dict[str, Any] | None]) -> None:
        """Check whether numpy has been imported since. `recorded` returns the states of the first attempt."""
        if not self._lacks_numpy or loaded("numpy") is None:
            return
        self._lacks_numpy = False
        for name, (take, give) in _global_unseeded().items():
            if name not in self._found:
                self._found[name] = take, give
                known = (recorded() or {}).get(name)
                if known is not None:
                    give(known)
                self.states[name] = take()
                self.written = self.written and known is not None

    def take(self, states: dict[str, Any]) -> None:
        """Set the generators to the states with which the first attempt opened."""
        _set(self._found, states)
        _openings[self._run][-1] = self._opening = Opening()
        self.written = self.states.keys() <= states.keys()
        self.states = {**self.states, **states}

    def leave(self) -> None:
        """The scope is being left."""
        left = _digests(_states(_global()))
        self._opening.left = self._opening.digests if left == self._opening.digests else left

    def earlier(self) -> list[Opening]:
        """The earlier openings in this process, newest first; none if a generator was seeded or used since the last one."""
        if not self._earlier or self.chosen is not None or self._earlier[-1].left != self._opening.digests:
            return []
        untouched = self._opening.digests == _digests(_states(_global()))
        return [each for each in self._earlier[::-1] if each.states] if untouched else []

    def digests_then(self, now: Callable[[str], str]) -> Iterator[tuple[Opening, Callable[[str], str]]]:
        """Earlier openings that a step may have drawn numbers after, each with a function like `now`: the digest of a read then.

        Once one is chosen, only reads of concurrent steps ("~") refer to it: generators may be reset for another step.
        """
        openings = self.earlier()  # before `chosen` is read: another thread may choose one in between
        chosen = self.chosen
        prefix = "random:" if chosen is None else "random:~"
        for opening in openings if chosen is None else [chosen]:

            def then(read: str, opening: Opening = opening) -> str:
                known = opening.digests.get(read.replace("~", "", 1)) if read.startswith(prefix) else None
                return now(read) if known is None else known.hex()

            yield opening, then

    def choose(self, opening: Opening) -> bool:
        """Set the generators to the states of an earlier opening. False if that has been done already, or they are gone."""
        if self.chosen is not None or not opening.states:
            return False
        self.chosen = opening
        _set(_global(), opening.states)
        return True


def _global() -> Handles:
    """The global generators that can be unseeded: torch's has a fixed seed."""
    if loaded("numpy") is not None:  # it imports numpy.random lazily
        importlib.import_module("numpy.random")
    return {f"random:{name}": handle for name, handle in _generators().items() if name != "torch"}


def _global_unseeded() -> Handles:
    found: Handles = {}
    for name, (take, give) in _global().items():
        state = take()
        words = state.get("state", {}) if isinstance(state, dict) else {}
        # numpy creates its generator in this state; an explicit seed leaves another
        unseeded = words.get("pos") == 623 and "key" in words and int(words["key"][0]) == 1 << 31
        if unseeded or digest(state) == _imported:
            found[name] = take, give
    return found


def _states(generators: Handles) -> dict[str, Any]:
    return {name: take() for name, (take, _) in generators.items()}


def _digests(states: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: state_digest(state) for name, state in states.items()}


def _set(generators: Handles, states: Mapping[str, Any]) -> None:
    for name, (_, give) in generators.items():
        if name in states:
            with contextlib.suppress(ValueError, TypeError):  # now a generator of another kind
                give(states[name])


def every_state() -> dict[str, Any]:
    """The states of all generators: the global ones, and those that project modules hold."""
    return {**states(), **_states(_of_modules(seeded=True))}


def put_back(found: Mapping[str, Any]) -> None:
    """Set the generators to these states, which `every_state` returned."""
    held = _of_modules(seeded=True)
    for name in found.keys() & held.keys():
        held[name][1](found[name])
    Generators().restore(None, {name: state for name, state in found.items() if "." not in name})


def _of_modules(*, seeded: bool = False) -> Handles:
    """The unseeded generators that project modules hold; with `seeded`, all of them."""
    numpy = loaded("numpy.random")
    kinds: tuple[type, ...] = (random.Random,)
    if numpy is not None and hasattr(numpy, "Generator"):
        kinds = (random.Random, numpy.Generator, numpy.RandomState)
    handles, known = Handles(), set[int]()
    for module in sorted(name for name in list(sys.modules) if is_project_module(name)):
        space = getattr(sys.modules.get(module), "__dict__", None) or {}
        for name, value in _held(space, module):
            inside = [value] if isinstance(value, kinds) else []
            if type(value) in _HOLDERS or is_project_module(module_of(type(value))):
                inside = walk_from(value, most=_MOST).found
            found = [each for each in inside if isinstance(each, kinds) and id(each) not in known]
            statement = binding(space, name) if found else None
            if not found or not (seeded or (statement is not None and statement.unseeded)):
                continue
            for i, each in enumerate(found):
                mutator = mutator_of(type(each))
                if mutator is not None:
                    known.add(id(each))
                    # a generator that another statement creates is another generator
                    made = "" if statement is None else statement.digest.hex()[:8]
                    key = f"{canonical_name(module)}.{name}#{i} {made}"
                    handles[key] = partial(mutator.content, each), partial(mutator.assign, each)
    return handles


def _held(space: dict[str, Any], module: str) -> Iterator[tuple[str, Any]]:
    """The names and values in a module and in its classes."""
    for name, value in list(space.items()):
        yield name, value
        if isinstance(value, type) and value.__module__ == module:
            yield from ((f"{name}.{each}", inner) for each, inner in list(vars(value).items()) if each[:2] != "__")
