"""The global random generators of `random`, numpy and torch, if these are imported.

If a step draws numbers, the generator's state before it is one of its reads, and the state after it is its effect. So later
steps draw the same numbers as without a skip, and another seed runs the steps that draw again. In a worker process, the state
depends on what the worker did before; there it is no read.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from ..identity.values import digest, identity
from ..modules import loaded
from . import CallContext, Surrounding
from .mutable_types import same_state

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
                __import__(_MODULES[name])
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
    return {name: take() for name, (take, _) in _generators().items()}


_MODULES = {"numpy": "numpy.random", "torch": "torch"}  # `import numpy` alone does not import its generator
_PYTHON = random.getstate, random.setstate


def _generators() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """How to get and set the state of each generator."""
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {"random": _PYTHON}
    numpy, torch = loaded("numpy.random"), loaded("torch")
    if numpy is not None and hasattr(numpy, "set_state"):
        found["numpy"] = partial(numpy.get_state, legacy=False), numpy.set_state  # works for any kind of generator
    if torch is not None and hasattr(torch, "set_rng_state"):
        found["torch"] = torch.get_rng_state, torch.set_rng_state
    return found
