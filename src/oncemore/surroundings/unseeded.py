"""Unseeded random generators: a resumed scope sets them to the states with which the first attempt opened.

So a script that draws numbers without a seed can be resumed, and its steps are recalled. A generator is unseeded if

* it is that of `random`, and in the state it had when oncemore was imported;
* it is that of numpy, and in the state in which the library creates it;
* a project module or class holds it, directly or in a dict or list, and the statement that created it has no seed;
* an object there holds it, and the statement in `__init__` that created it has no seed.

A scope that is opened again in the same process may be the next cell of a notebook, or the same cell run again. So it starts
with the generators as they are. If a checkpoint of the first step that reads them was recorded with the states that an
earlier scope started from, they are set back to those.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ..identity.code.statements import GENERATORS, Statement, binding, filled, makes_generator, unseeded_by
from ..identity.values import digest
from ..modules import canonical_name, is_project_module, loaded, module_of
from .mutable_types import mutator_of
from .references import walk_from
from .rng import Generators, state_digest, states

_HOLDERS = (dict, list, tuple)
_MOST = 100  # objects that are searched in each of them: this costs time in every step

_imported = digest(random.getstate())
_openings: dict[str, list[Opening]] = {}  # the scopes that this process opened, by run
_MOST_OPENINGS = 8


Handles = Iterator[tuple[str, tuple[Callable[[], Any], Callable[[Any], object]]]]  # how to get and set a state, by name


class Opening:
    """The states of the global generators when a scope opened."""

    def __init__(self) -> None:
        self.states = {name: take() for name, (take, _) in _global()}
        self.digests = {name: state_digest(state) for name, state in self.states.items()}
        self.left: dict[str, bytes] = {}  # their digests when the scope closed

    def is_now(self) -> bool:
        """Whether they are still in these states."""
        return all(state_digest(take()) == self.digests.get(name) for name, (take, _) in _global())

    def put_back(self) -> None:
        for name, (_, give) in _global():
            if name in self.states:
                with contextlib.suppress(ValueError, TypeError):  # now a generator of another kind
                    give(self.states[name])


class Unseeded:
    """The unseeded generators of this process when a scope opens, and their states; none if the run was open before."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._earlier = _openings.setdefault(run, [])[-_MOST_OPENINGS:]
        self._found = {} if self._earlier else {**dict(_find_global()), **dict(_of_modules())}
        self._opening = Opening()
        self.chosen: Opening | None = None
        _openings[run] = [*self._earlier, self._opening]
        self.states = {name: take() for name, (take, _) in self._found.items()}
        self.written = not self.states  # nothing to store
        self._lacks_numpy = not self._earlier and loaded("numpy") is None

    def look_again(self, recorded: Callable[[], dict[str, Any] | None]) -> None:
        """Check whether numpy has been imported since. `recorded` returns the states of the first attempt."""
        if not self._lacks_numpy or loaded("numpy") is None:
            return
        self._lacks_numpy = False
        for name, (take, give) in _find_global():
            if name not in self._found:
                self._found[name] = take, give
                known = (recorded() or {}).get(name)
                if known is not None:
                    give(known)
                self.states[name] = take()
                self.written = self.written and known is not None

    def take(self, states: dict[str, Any]) -> None:
        """Set the generators to the states with which the first attempt opened."""
        for name, state in states.items():
            if name in self._found:
                with contextlib.suppress(ValueError, TypeError):  # the state of a generator of another kind
                    self._found[name][1](state)
        _openings[self._run][-1] = self._opening = Opening()
        self.written = self.states.keys() <= states.keys()
        self.states = {**self.states, **states}

    def leave(self) -> None:
        """The scope is being left."""
        self._opening.left = {name: state_digest(take()) for name, (take, _) in _global()}

    def earlier(self) -> list[Opening]:
        """The earlier openings in this process, newest first; none if a generator was seeded or used since the last one."""
        untouched = self._earlier and self._earlier[-1].left == self._opening.digests and self._opening.is_now()
        return self._earlier[::-1] if untouched and self.chosen is None else []

    def choose(self, opening: Opening) -> bool:
        """Set the generators to the states of an earlier opening. False if that has been done already."""
        if self.chosen is not None:
            return False
        self.chosen = opening
        opening.put_back()
        return True


def _global() -> Handles:
    yield "random:random", (random.getstate, random.setstate)
    if loaded("numpy") is not None:  # it imports numpy.random lazily
        importlib.import_module("numpy.random")
    numpy = loaded("numpy.random")
    if numpy is not None and hasattr(numpy, "set_state"):
        yield "random:numpy", (lambda: numpy.get_state(legacy=False), numpy.set_state)


def _find_global() -> Handles:
    for name, (take, give) in _global():
        state = take()
        words = state.get("state", {}) if isinstance(state, dict) else {}
        # numpy creates its generator in this state; an explicit seed leaves another
        unseeded = words.get("pos") == 623 and "key" in words and int(words["key"][0]) == 1 << 31
        if unseeded or digest(state) == _imported:
            yield name, (take, give)


def every_state() -> dict[str, Any]:
    """The states of all generators: the global ones, and those that project modules hold."""
    return {**states(), **{name: take() for name, (take, _) in _of_modules(seeded=True)}}


def put_back(found: Mapping[str, Any]) -> None:
    """Set the generators to these states, which `every_state` returned."""
    held = dict(_of_modules(seeded=True))
    for name, state in found.items():
        if name in held:
            held[name][1](state)
    Generators().restore(None, {name: state for name, state in found.items() if "." not in name})


def _of_modules(*, seeded: bool = False) -> Handles:
    """The unseeded generators that project modules hold; with `seeded`, all of them."""
    numpy = loaded("numpy.random")
    kinds: tuple[type, ...] = (random.Random,)
    if numpy is not None and hasattr(numpy, "Generator"):
        kinds = (random.Random, numpy.Generator, numpy.RandomState)
    known: set[int] = set()
    for module in sorted(name for name in list(sys.modules) if is_project_module(name)):
        space = getattr(sys.modules.get(module), "__dict__", None) or {}
        for name, value in _held(space, module):
            inside = [value] if isinstance(value, kinds) else []
            if type(value) in _HOLDERS or is_project_module(module_of(type(value))):
                inside = walk_from(value, most=_MOST).found
            found = [each for each in inside if isinstance(each, kinds) and id(each) not in known]
            statement = binding(space, name) if found else None
            if not found or not (seeded or (statement and (statement.unseeded or _made_by(inside, statement)))):
                continue
            for i, each in enumerate(found):
                mutator = mutator_of(type(each))
                if mutator is not None:
                    known.add(id(each))
                    # a generator that another statement creates is another generator
                    made = "" if statement is None else statement.digest.hex()[:8]
                    key = f"{canonical_name(module)}.{name}#{i} {made}"
                    yield key, (partial(mutator.content, each), partial(mutator.assign, each))


def _made_by(objects: list[Any], statement: Statement) -> bool:
    """Whether project objects create all their generators without seeds. The statement creates the first of the objects.

    A seed that is a parameter of `__init__` does not count if its default is None and the statement does not pass it.
    """
    call = next((each for each in ast.walk(ast.parse(statement.text)) if isinstance(each, ast.Call)), None)
    plain = call is not None and not call.args and all(each.arg is not None for each in call.keywords)
    given = {each.arg for each in call.keywords} if call is not None else set()
    found = False
    for kind in {type(each): None for each in objects}:
        for field in getattr(kind, "__dataclass_fields__", {}).values():
            if getattr(field.default_factory, "__name__", "") in GENERATORS:
                if kind is not type(objects[0]) or not plain or field.name in given:
                    return False
                found = True
        for each in filled(kind):
            made = [call for call in ast.walk(each.value) if makes_generator(call)]
            for names in map(unseeded_by, made):
                known = plain and kind is type(objects[0]) and each.method == "__init__"
                if names is None or (names and not (known and names <= each.defaults and not names & given)):
                    return False
                found = True
    return found


def _held(space: dict[str, Any], module: str) -> Iterator[tuple[str, Any]]:
    """The names and values in a module and in its classes."""
    for name, value in list(space.items()):
        yield name, value
        if isinstance(value, type) and value.__module__ == module:
            yield from ((f"{name}.{each}", inner) for each, inner in list(vars(value).items()) if each[:2] != "__")
