"""Detects within microseconds whether anything that an identity was made from has changed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

_mro_of = operator.attrgetter("__mro__")


class Watch:
    """The objects that a walk has seen, and where. It keeps them alive, so that their ids stay unique."""

    def __init__(self) -> None:
        self._spaces: dict[int, tuple[Mapping[str, Any], dict[str, Any], set[str]]] = {}
        self._functions: list[tuple[FunctionType, CodeType, object]] = []
        self._bound: list[tuple[Callable[[], object], object]] = []
        self._mappings: list[tuple[Mapping[Any, Any], list[Any], list[Any], list[int]]] = []
        self._classes: list[type] = []
        self._mros: list[object] = []
        self._equal: dict[Callable[[], object], object] = {}
        self._several: list[tuple[Callable[[], Sequence[object]], list[int], Sequence[object]]] = []

    def name(self, space: Mapping[str, Any], name: str, seen: object) -> None:
        self._spaces.setdefault(id(space), (space, {}, set()))[1][name] = seen

    def absence(self, space: Mapping[str, Any], name: str) -> None:
        self._spaces.setdefault(id(space), (space, {}, set()))[2].add(name)

    def leave_out(self, space: Mapping[str, Any], name: str) -> None:
        """Stop watching a name. It is bound to data, which is hashed on every call."""
        _, seen, absent = self._spaces.setdefault(id(space), (space, {}, set()))
        seen.pop(name, None)
        absent.discard(name)

    def function(self, function: FunctionType) -> None:
        self._functions.append((function, function.__code__, function.__defaults__))
        if function.__kwdefaults__:
            self.mapping(function.__kwdefaults__)

    def bound(self, get: Callable[[], object], seen: object) -> None:
        self._bound.append((get, seen))

    def mapping(self, mapping: Mapping[Any, Any]) -> None:
        values = list(mapping.values())
        self._mappings.append((mapping, list(mapping), values, list(map(id, values))))

    def klass(self, klass: type) -> None:
        self._classes.append(klass)
        self._mros.append(klass.__mro__)
        self.mapping(klass.__dict__)

    def equal(self, look: Callable[[], object]) -> None:
        self._equal[look] = look()

    def several(self, look: Callable[[], Sequence[object]]) -> Sequence[object]:
        """Watch a look-up that returns several objects, compared by identity. Returns them."""
        seen = look()
        self._several.append((look, list(map(id, seen)), seen))
        return seen

    def seal(self) -> None:
        """Convert what was seen into the form that is quickest to compare: long lists, compared in C."""
        self._names = []
        for space, seen, _ in self._spaces.values():
            if seen:
                names = [*seen, next(iter(seen))]  # with a single name, `itemgetter` would not return a tuple
                self._names.append((space, operator.itemgetter(*names), [id(seen[name]) for name in names]))
        self._absences = [(space, absent) for space, _, absent in self._spaces.values() if absent]

    def unchanged(self) -> bool:
        """Whether every look-up gives the same result as before."""
        try:
            for space, get, ids in self._names:
                if list(map(id, get(space))) != ids:
                    return False
        except KeyError:  # a name is gone
            return False
        for look, seen in self._bound:
            if look() is not seen:
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
        for look, seen in self._equal.items():
            if look() != seen:
                return False
        for look_up, ids, _ in self._several:
            if list(map(id, look_up())) != ids:
                return False
        return not self._classes or list(map(_mro_of, self._classes)) == self._mros
