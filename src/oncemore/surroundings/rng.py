"""Random generators: those of `random`, of numpy and of torch, as far as they are loaded.

A step that drew numbers has read their states before it, and leaves those after it: later steps draw what they would have
drawn, and another seed runs the steps that draw again. In a worker of a pool, where they are depends on what it did before:
there they do not count.
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

_BESIDE = "~"  # before the name of a generator that was read by a step beside others: as it was before they all began


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
        # a library that was loaded by the step itself counts as changed: its generator is where the step left it
        with context.run.group.lock:  # of two steps side by side, the later one has the later state
            now, ended = states(), context.run.concurrent.stamp()
        found = {name: state for name, state in now.items() if name not in note or not same_state(state, note[name])}
        if not found or context.run.joined:
            return found or None
        epochs, member = context.run.beside.epochs, context.member
        if member is not None and member.shares:
            first = {**note, **member.group.generators}
            for name in found.keys() & first.keys():
                [then] = epochs.first([(f"random:{name}", state_digest(first[name]))], busy=True)
                context.reads[f"random:{_BESIDE}{name}"] = then.hex()
            found[_BESIDE] = ended
        else:  # also where a generator function draws after its first items: it is looked up before them
            begun = {
                f"random:{name}": context.generators_before[name] for name in found if name in context.generators_before
            }
            context.reads.update({read: state_digest(state).hex() for read, state in begun.items()})
        epochs.leave((f"random:{name}", state_digest(now[name])) for name in found if name != _BESIDE)
        return found

    def digest(self, run: Any, name: str) -> str:
        generators, bare = _generators(), name.removeprefix(_BESIDE)
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
        bare = name.removeprefix(_BESIDE)
        return "random generator" if bare == "random" else f"{bare}'s random generator"

    def change(self, name: str) -> str:
        return f"{self.label(name)} was seeded differently"

    def restore(self, context: CallContext | None, effect: dict[str, Any]) -> None:
        run: Any = None if context is None else context.run
        ended = effect.get(_BESIDE)
        if ended is not None and run is not None:
            if ended < run.concurrent.ended:
                return  # of steps that ran side by side, the one that ended last left the generator as it was then
            run.concurrent.ended = ended
        for name, state in effect.items():
            if name == _BESIDE:
                continue
            if name in _MODULES:
                __import__(_MODULES[name])
            _generators()[name][1](state)
            if run is not None:
                run.beside.epochs.leave([(f"random:{name}", state_digest(state))])

    def repeat(self, context: CallContext, effect: dict[str, Any]) -> None:
        """Others have drawn since: nothing is wound back."""


def state_digest(state: Any) -> bytes:
    """What identifies a state, whatever a library makes it of."""
    found = identity(state) if type(state) in (tuple, dict) else None
    return found or digest(pickle.dumps(state))


def states() -> dict[str, Any]:
    """Where all generators are now, as `Generators.restore` takes it."""
    return {name: take() for name, (take, _) in _generators().items()}


_MODULES = {"numpy": "numpy.random", "torch": "torch"}  # `import numpy` alone loads no generator
_PYTHON = random.getstate, random.setstate


def _generators() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """How to take and to set the state of each generator."""
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {"random": _PYTHON}
    numpy, torch = loaded("numpy.random"), loaded("torch")
    if numpy is not None and hasattr(numpy, "set_state"):
        found["numpy"] = partial(numpy.get_state, legacy=False), numpy.set_state  # whatever kind of generator it is
    if torch is not None and hasattr(torch, "set_rng_state"):
        found["torch"] = torch.get_rng_state, torch.set_rng_state
    return found
