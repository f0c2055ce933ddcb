"""Random generators: those of `random`, of numpy and of torch, as far as they are loaded.

A step that drew numbers leaves their states after it, so that later steps draw what they would have drawn.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from . import Moment, Surrounding
from .twister import look


class Generators(Surrounding):
    name = "random"
    per_item = True

    def before(self, moment: Moment) -> dict[str, Any]:
        return {name: look() if name == "random" else take() for name, (take, _) in _generators().items()}

    def after(self, moment: Moment, note: dict[str, Any]) -> dict[str, Any] | None:
        changed: dict[str, Any] = {}
        for name, (take, _) in _generators().items():
            # a library that was loaded by the step itself counts as changed: its generator is where the step left it
            now = look() if name == "random" else take()
            if name not in note or not _SAME[name](now, note[name]):
                changed[name] = random.getstate() if name == "random" else now
        return changed or None

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
    # the submodule: a half-imported numpy has no generator yet
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "set_state"):
        found["numpy"] = partial(numpy.get_state, legacy=False), numpy.set_state  # whatever kind of generator it is
    if torch is not None and hasattr(torch, "set_rng_state"):
        found["torch"] = torch.get_rng_state, torch.set_rng_state
    return found


def _same_numpy(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same_numpy(one[name], other[name]) for name in one)
    return bool(one.tobytes() == other.tobytes()) if hasattr(one, "tobytes") else bool(one == other)


_SAME: dict[str, Callable[[Any, Any], bool]] = {
    "random": lambda one, other: bool(one == other),
    "numpy": _same_numpy,
    "torch": lambda one, other: bool((one == other).all()),
}
