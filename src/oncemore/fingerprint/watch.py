"""Whether anything that an identity was made of has changed since, told in a few microseconds."""

from __future__ import annotations

import enum
import operator
from collections.abc import Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

_mro_of = operator.attrgetter("__mro__")

# Objects that are the same as long as they are the same object. Functions and classes are watched by themselves.
_FIXED: frozenset[type] = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, slice}
    | {FunctionType, BuiltinFunctionType, ModuleType}
)
_CONTAINERS = frozenset({dict, list, set, tuple, frozenset})
_FIXED_BY_NAME = frozenset(
    [f"datetime.{name}" for name in ("date", "time", "datetime", "timedelta")]
    + [f"{module}.{name}" for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "PurePosixPath")]
    + ["decimal.Decimal", "fractions.Fraction", "re.Pattern", "uuid.UUID"]
)


def containers_of(value: object) -> list[Any] | None:
    """The containers that a small value consists of, if all else in it stays the same; None if not."""
    found, pending, room = [], [value], 200
    while pending:
        each: Any = pending.pop()
        kind = type(each)
        if kind in _CONTAINERS:
            room -= len(each)
            if room < 0:
                return None
            found.append(each)
            pending.extend(each)
            pending.extend(each.values() if kind is dict else ())
        elif not (
            kind in _FIXED
            or isinstance(each, (type, enum.Enum))
            or f"{kind.__module__}.{kind.__qualname__}" in _FIXED_BY_NAME
        ):
            return None
    return found


class Watch:
    """The objects that were seen, and where. It keeps them alive, so that an address stands for one object."""

    def __init__(self) -> None:
        self._spaces: dict[int, tuple[Mapping[str, Any], dict[str, Any], set[str]]] = {}
        self._functions: list[tuple[FunctionType, CodeType, object]] = []
        self._cells: list[tuple[CellType, object]] = []
        self._mappings: list[tuple[Mapping[Any, Any], list[Any], list[Any], list[int]]] = []
        self._classes: list[type] = []
        self._mros: list[object] = []
        self._lists: list[tuple[Any, list[Any], list[int]]] = []
        self.values: list[tuple[object, bytes]] = []  # what can change inside, and the digest it had

    def name(self, space: Mapping[str, Any], name: str, seen: object) -> None:
        self._spaces.setdefault(id(space), (space, {}, set()))[1][name] = seen

    def absence(self, space: Mapping[str, Any], name: str) -> None:
        self._spaces.setdefault(id(space), (space, {}, set()))[2].add(name)

    def function(self, function: FunctionType) -> None:
        self._functions.append((function, function.__code__, function.__defaults__))
        if function.__kwdefaults__:
            self.mapping(function.__kwdefaults__)

    def cell(self, cell: CellType, seen: object) -> None:
        self._cells.append((cell, seen))

    def mapping(self, mapping: Mapping[Any, Any]) -> None:
        values = list(mapping.values())
        self._mappings.append((mapping, list(mapping), values, list(map(id, values))))

    def klass(self, klass: type) -> None:
        self._classes.append(klass)
        self._mros.append(klass.__mro__)
        self.mapping(klass.__dict__)

    def containers(self, found: list[Any]) -> None:
        for each in found:
            if isinstance(each, dict):
                self.mapping(each)
            else:
                items = list(each)
                self._lists.append((each, items, list(map(id, items))))

    def value(self, value: object, digest: bytes) -> None:
        self.values.append((value, digest))

    def seal(self) -> None:
        """Bring what was seen into the form in which it is compared fastest: long lists, compared in C."""
        self._names = []
        for space, seen, _ in self._spaces.values():
            if seen:
                names = [*seen, next(iter(seen))]  # one name alone would not give a tuple
                self._names.append((space, operator.itemgetter(*names), [id(seen[name]) for name in names]))
        self._absences = [(space, absent) for space, _, absent in self._spaces.values() if absent]

    def unchanged(self) -> bool:
        """Whether every look-up still gives what it gave, but for `values`."""
        try:
            for space, get, ids in self._names:
                if list(map(id, get(space))) != ids:
                    return False
            for cell, seen in self._cells:
                if cell.cell_contents is not seen:
                    return False
        except (KeyError, ValueError):  # a name, or a cell's content, is gone
            return False
        for function, code, defaults in self._functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
        for space, absent in self._absences:
            if not space.keys().isdisjoint(absent):
                return False
        for mapping, keys, _, ids in self._mappings:
            if list(map(id, mapping.values())) != ids or list(mapping) != keys:
                return False
        for items, _, ids in self._lists:
            if list(map(id, items)) != ids:
                return False
        return not self._classes or list(map(_mro_of, self._classes)) == self._mros
