"""What a value is taken apart into, and how the way to a part is written in an error."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..errors import FingerprintError

Label: TypeAlias = Callable[[Sequence[Any], int], str]


def by_nothing(_children: Sequence[Any], _at: int) -> str:
    """The part is not something the user wrote, so it adds nothing to the path of an error."""
    return ""


def by_index(_children: Sequence[Any], at: int) -> str:
    return f"[{at}]"


def by_key(children: Sequence[Any], at: int) -> str:
    """Keys and values stand in turn."""
    return f"[{reprlib.repr(children[at - 1])}]" if at % 2 else f".keys()[{at // 2}]"


def by_attribute(children: Sequence[Any], at: int) -> str:
    """A name stands before its value; what has no name before it is no attribute."""
    name = children[at - 1] if at else None
    return f".{name}" if type(name) is str else ""


def by_element(_children: Sequence[Any], _at: int) -> str:
    """The elements of a set have no place to name."""
    return "{*}"


def columns_in(children: Sequence[Any]) -> range:
    """Where the columns of a table stand: last, and the first part says how many they are."""
    return range(len(children) - children[0], len(children))


def by_column(children: Sequence[Any], at: int) -> str:
    columns = columns_in(children)
    return f"[{at - columns.start}]" if at in columns else ""


class Parts(NamedTuple):
    """A value taken apart. Equal tags with equal parts mean equal values."""

    tag: str
    children: Sequence[Any] = ()
    label: Label = by_nothing
    unordered: bool = False


Describe: TypeAlias = Callable[[Any], Parts]


def name_of(kind: type) -> str:
    """The name of a type as a reader knows it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def refuse(value: object) -> Parts:
    """The value has no stable identity."""
    raise FingerprintError(name_of(type(value)))
