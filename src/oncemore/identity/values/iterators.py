"""Python's builtin iterators over data: what is left in them, and how to advance one to where a step left it.

`__reduce__` reveals both without taking an item. Those of itertools have it up to Python 3.13 (deprecated since 3.12).
Without it, or with a generator as the source, an iterator has no identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sized
from typing import Any

_EITHER: list[Any] = [[], range(0), {}]
_OVER: list[Any] = [*_EITHER, (), range(1 << 99), "", "\xe9", b"", bytearray(), {}.values(), {}.items()]
LEAVES: frozenset[type] = frozenset(
    [*(type(iter(each)) for each in _OVER), *(type(reversed(each)) for each in _EITHER), reversed]
)
MADE_OF: frozenset[type] = frozenset(
    [
        enumerate,
        itertools.chain,
        itertools.combinations,
        itertools.combinations_with_replacement,
        itertools.cycle,
        itertools.islice,
        itertools.permutations,
        itertools.product,
        itertools.repeat,
        itertools.zip_longest,
    ]
)
# These have no position of their own, only that of their sources, and may call a function for each item.
THROUGH: frozenset[type] = frozenset([zip, map, filter, itertools.starmap, itertools.filterfalse, itertools.compress])
_ALL = LEAVES | MADE_OF | THROUGH
NAMES = [f"{kind.__module__}.{kind.__qualname__}" for kind in _ALL]


class Lost(LookupError):
    """An iterator that cannot be inspected, or never reaches the position it should be advanced to."""


def parts(iterator: Any) -> list[Any]:
    """What it consists of, which may include other iterators. `Lost` if it cannot be inspected."""
    try:
        return list(iterator.__reduce__()[1:])
    except (TypeError, RuntimeError, DeprecationWarning):  # no `__reduce__`; the dict has changed; warnings are errors
        raise Lost from None


def sources(iterator: Any) -> Iterable[Any]:
    """The iterators that a `THROUGH` iterator takes from, and the function it calls."""
    try:
        return list(parts(iterator)[0])
    except Lost:
        return ()


def place(iterator: Any) -> Any:
    """Its position, as numbers. `Lost` if it calls functions, or has a source that cannot be inspected."""
    if type(iterator) not in LEAVES | MADE_OF | {zip}:
        raise Lost
    made_from, *state = parts(iterator)
    return [len(each) if isinstance(each, Sized) else _place(each) for each in made_from], _place(tuple(state))


def _place(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(map(_place, part))
    if isinstance(part, Sized):
        return len(part)
    if hasattr(type(part), "__next__"):
        return place(part)
    return part if isinstance(part, int) else None


def can_go_on(iterator: Any) -> bool:
    try:
        place(iterator)
    except Lost:
        return False
    return True


def go_on(iterator: Any, to: Any) -> None:
    """Take items until it reaches a later position, as the skipped step would have."""
    begin = now = place(iterator)
    while now != to:
        try:
            next(iterator)
        except StopIteration:
            if place(iterator) == to:
                return
            raise Lost from None
        now = place(iterator)
        if now == begin:
            raise Lost
