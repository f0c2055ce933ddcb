"""Random generators: those of `random`, of numpy and of torch, as far as they are loaded.

A step that drew numbers leaves their states after it, so that later steps draw what they would have drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from ..modules import loaded
from . import Moment, Surrounding


class Generators(Surrounding):
    name = "random"
    per_item = True

    def before(self, moment: Moment) -> dict[str, Any]:
        return states()

    def after(self, moment: Moment, note: dict[str, Any]) -> dict[str, Any] | None:
        # a library that was loaded by the step itself counts as changed: its generator is where the step left it
        return {
            name: state for name, state in states().items() if name not in note or not _same(state, note[name])
        } or None

    def restore(self, moment: Moment | None, effect: dict[str, Any]) -> None:
        for name, state in effect.items():
            if name in _MODULES:
                __import__(_MODULES[name])
            _generators()[name][1](state)


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


def _same(one: Any, other: Any) -> bool:
    if type(one) is dict is type(other):  # a state of numpy's
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)  # a tensor, or anything else
