"""Whether random generators have drawn numbers, told in a microsecond by looking at their memory.

`random.getstate` makes 625 numbers, numpy's `get_state` takes 40 µs: twice for each step that runs, they would be a third of the
time of a miss. Where a generator is not laid out as we think, which is tried out first, its state is taken as it is.
"""

from __future__ import annotations

import _random
import random
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..modules import loading

Look = Callable[[], Any]  # gives something that is equal as long as no number was drawn, and the generator was not set

_SIZE = 4 * 624 + 4  # bytes of a Mersenne Twister: its words, and its place in them
_GAUSS = -1.2345678901234567e-7  # no byte of it is 0
_HEAD = object.__basicsize__  # what all objects begin with: the number of references changes


def look() -> Any:
    """How the generator of `random` looks now."""
    return (_of_python() or random.getstate)()


def look_numpy(module: Any) -> Any:
    """How the generator behind the functions of `numpy.random` looks now."""
    legacy = getattr(getattr(module, "mtrand", None), "_rand", None)
    generator = getattr(legacy, "_bit_generator", None)  # another numpy may keep it elsewhere
    seen = None if generator is None else _of_numpy(module, legacy, generator)
    return seen() if seen is not None else module.get_state(legacy=False)


def _memory(address: int, size: int) -> Look:
    with loading:
        import ctypes

    block = (ctypes.c_char * size).from_address(address)
    return lambda: bytes(block)


@lru_cache(1)
def _of_python() -> Look | None:
    try:
        generator: Any = random._inst  # random.random and the others are its methods
        if _random.Random.__basicsize__ < _HEAD + _SIZE:
            return None
        block = _memory(id(generator) + _HEAD, _SIZE)
    except (ImportError, AttributeError, ValueError):  # another Python than ours
        return None
    words = array("I", block())
    words.append(words.pop(0))  # the place comes first here, and last there
    return (lambda: (block(), generator.gauss_next)) if tuple(words) == random.getstate()[1] else None


@lru_cache(1)
def _of_numpy(module: Any, legacy: Any, generator: Any) -> Look | None:
    """The cache keeps all three: an address stands for what is there as long as it is there."""
    place = _place_of_the_rest(module)
    return None if place is None else _both(legacy, generator, place)


def _both(legacy: Any, generator: Any, place: slice) -> Look | None:
    """The words of a generator, and in the object around it what is left over from drawing pairs."""
    try:
        if type(generator).__name__ != "MT19937":
            return None
        around = _memory(id(legacy) + _HEAD, type(legacy).__basicsize__ - _HEAD)
        words = _memory(generator.ctypes.state_address, _SIZE)
    except (ImportError, AttributeError, ValueError):
        return None
    return lambda: (around()[place], words())


@lru_cache(1)
def _place_of_the_rest(module: Any) -> slice | None:
    """Where in such an object it is noted whether a number is left over, and which: found out with one that nobody else has."""
    trial = module.RandomState(1)
    view = _both(trial, trial._bit_generator, slice(None))
    if view is None:
        return None
    state = trial.get_state(legacy=False)
    without = view()
    trial.set_state({**state, "has_gauss": 1, "gauss": _GAUSS})
    between = view()
    differing = [at for at, pair in enumerate(zip(without[0], between[0])) if pair[0] != pair[1]]
    trial.random_sample()
    seen = without[1] == between[1] != view()[1] and len(differing) == 9  # one byte says whether, eight are a number
    return slice(differing[0], differing[-1] + 1) if seen and differing[-1] - differing[0] < 16 else None
