"""Objects that can be changed in place, found again in another process.

`walk` lists what is reachable from an argument or a state value in an order that depends on content and sharing only. An
object is named by its root and its place in that list; equal arguments of a later run have an equal list, so the name leads
to the caller's own object there.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from blake3 import blake3

from ..codec import dumps, loads

Name = tuple[str, str, int]  # kind of root, its name, place in the walk

_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, range, slice, type(...), frozenset))
_SEALED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)  # changed in place only by patching code


class Way(NamedTuple):
    """How one type of object is looked into and changed in place."""

    children: Callable[[Any], Iterable[Any]]
    content: Callable[[Any], Any]
    assign: Callable[[Any, Any], None]


def _nothing(obj: Any) -> Iterable[Any]:
    return ()


def _assign_items(obj: Any, content: Any) -> None:
    obj[:] = content


def _assign_entries(obj: Any, content: Any) -> None:
    obj.clear()
    obj.update(content)


def _assign_queue(obj: Any, content: Any) -> None:
    obj.clear()
    obj.extend(content)


def _entries(obj: dict[Any, Any]) -> Iterable[Any]:
    return (child for entry in obj.items() for child in entry)


_WAYS: dict[type, Way] = {
    list: Way(iter, list, _assign_items),
    dict: Way(_entries, lambda obj: list(obj.items()), _assign_entries),
    set: Way(_nothing, list, _assign_entries),  # a set's order is no name for its elements
    deque: Way(iter, list, _assign_queue),
    bytearray: Way(_nothing, bytes, _assign_items),
}


def _slots(obj: Any) -> list[str]:
    names = {s for kind in type(obj).__mro__ for s in _tupled(vars(kind).get("__slots__", ()))}
    return sorted(n for n in names if n not in ("__dict__", "__weakref__") and hasattr(obj, n))


def _tupled(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _attributes(obj: Any) -> dict[str, Any]:
    return {**getattr(obj, "__dict__", {}), **{name: getattr(obj, name) for name in _slots(obj)}}


def _assign_attributes(obj: Any, content: dict[str, Any]) -> None:
    for name in set(_slots(obj)) - set(content):
        object.__delattr__(obj, name)
    state = getattr(obj, "__dict__", None)
    if state is not None:
        for name in [name for name in state if name not in content]:
            del state[name]
    for name, value in content.items():
        if state is not None and name not in _slots(obj):
            state[name] = value
        else:
            object.__setattr__(obj, name, value)  # also where the class forbids it: a frozen dataclass's cache


def _sorted_attributes(obj: Any) -> Iterable[Any]:
    return (value for _, value in sorted(_attributes(obj).items()))


_PLAIN = Way(_sorted_attributes, _attributes, _assign_attributes)


def _with_attributes(base: Way) -> Way:
    """For subclasses of containers: their items and their attributes."""

    def assign(obj: Any, content: tuple[Any, dict[str, Any]]) -> None:
        base.assign(obj, content[0])
        _assign_attributes(obj, content[1])

    return Way(
        lambda obj: (*base.children(obj), *_sorted_attributes(obj)),
        lambda obj: (base.content(obj), _attributes(obj)),
        assign,
    )


def _assign_array(obj: Any, content: Any) -> None:
    if obj.shape != content.shape:
        obj.resize(content.shape, refcheck=False)
    obj[...] = content


def _library_way(kind: type) -> Way | None:
    """Arrays, frames and generators, of libraries that are loaded anyway."""
    numpy, pandas, torch = (sys.modules.get(name) for name in ("numpy", "pandas", "torch"))
    if numpy is not None:
        if issubclass(kind, numpy.ndarray):
            return Way(lambda obj: obj.flat if obj.dtype.hasobject else (), lambda obj: obj.view(), _assign_array)
        if issubclass(kind, numpy.random.Generator):
            return Way(_nothing, lambda obj: obj.bit_generator.state, lambda obj, s: setattr(obj.bit_generator, "state", s))
        if issubclass(kind, numpy.random.RandomState):
            return Way(_nothing, lambda obj: obj.get_state(), lambda obj, content: obj.set_state(content))
    if pandas is not None and issubclass(kind, (pandas.DataFrame, pandas.Series)):
        return Way(_nothing, lambda obj: obj.copy(deep=False), lambda obj, content: obj._update_inplace(content))
    if torch is not None and issubclass(kind, torch.Tensor):
        return Way(_nothing, lambda obj: obj.detach(), lambda obj, content: obj.data.set_(content.data))
    return None


def way(obj: Any) -> Way | None:
    """How `obj` is changed in place; None if that is not known."""
    kind = type(obj)
    found = _WAYS.get(kind)
    if found is None:
        found = _library_way(kind)
        if found is None and issubclass(kind, random.Random):
            found = Way(_nothing, lambda obj: obj.getstate(), lambda obj, content: obj.setstate(content))
        if found is None:
            base = next((_WAYS[b] for b in kind.__mro__ if b in _WAYS), None)
            found = _with_attributes(base) if base is not None else None
        if found is None and (hasattr(obj, "__dict__") or _slots(obj)) and not isinstance(obj, BaseException):
            found = _PLAIN
    return found


def walk(root: Any) -> list[Any]:
    """Every object reachable from `root` that can be changed in place, the root first."""
    found: list[Any] = []
    passed: dict[int, Any] = {}
    todo = deque([root])
    while todo:
        obj = todo.popleft()
        if type(obj) in _ATOMS or id(obj) in passed or isinstance(obj, _SEALED):
            continue
        passed[id(obj)] = obj
        if type(obj) is tuple or (isinstance(obj, tuple) and hasattr(obj, "_fields")):
            todo.extend(obj)
            continue
        found.append(obj)
        inside = way(obj)
        if inside is not None:
            todo.extend(child for child in inside.children(obj) if type(child) not in _ATOMS)
    return found


class Roots:
    """The objects that a call shares with its caller, by name."""

    def __init__(self, lookup: Callable[[str, str], Any]) -> None:
        self._lookup = lookup
        self._found: dict[tuple[str, str], list[Any]] = {}
        self._names: dict[int, Name] = {}
        self._shapes: dict[tuple[str, str], str] = {}
        self.used: list[tuple[str, str, str]] = []  # roots that names led to, with their shapes; grows while pickling

    def add(self, kind: str, name: str) -> list[Any]:
        """Learn the objects under a root."""
        place = (kind, name)
        if place not in self._found:
            self._found[place] = walk(self._lookup(kind, name))
            for i, obj in enumerate(self._found[place]):
                self._names.setdefault(id(obj), (kind, name, i))
        return self._found[place]

    def __bool__(self) -> bool:
        return bool(self._names)

    def name(self, obj: Any) -> Name | None:
        """The name of an object that the caller has, too; pickles hold it instead of a copy."""
        found = self._names.get(id(obj))
        if found is not None:
            root = (*found[:2], self.shape(*found[:2]))
            if root not in self.used:
                self.used.append(root)
        return found

    def find(self, name: Name) -> Any:
        """The caller's own object of that name."""
        kind, root, place = name
        return self.add(kind, root)[place]

    def shape(self, kind: str, name: str) -> str:
        """What the walk from a root meets: names count only where it meets the same."""
        place = (kind, name)
        if place not in self._shapes:
            met = ",".join(type(obj).__qualname__ for obj in self.add(kind, name))
            self._shapes[place] = blake3(met.encode()).hexdigest(length=8)
        return self._shapes[place]

    def contents(self, kind: str, name: str) -> dict[int, Any]:
        """The content of every object under a root, children by reference."""
        ways = ((i, obj, way(obj)) for i, obj in enumerate(self.add(kind, name)))
        return {i: inside.content(obj) for i, obj, inside in ways if inside is not None}

    def assign(self, kind: str, name: str, contents: dict[int, Any]) -> None:
        """Give the objects under a root these contents, in place."""
        for i, content in contents.items():
            obj = self.find((kind, name, i))
            inside = way(obj)
            assert inside is not None, f"{type(obj)} had a way to be changed when it was recorded"
            inside.assign(obj, content)

    def freeze(self, value: Any) -> bytes:
        """A copy of `value` as bytes, in which the caller's objects stay references."""
        return dumps(value, self.name)

    def thaw(self, frozen: bytes) -> Any:
        """What `freeze` took."""
        return loads(frozen, find=self.find)
