"""How values are taken apart (`Parts`), and where objects store their attributes (`Layout`)."""

from __future__ import annotations

import contextlib
import functools
import reprlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from ...errors import FingerprintError
from ...modules import canonical_name, is_project_module, module_of, of_class, once_per_type
from ..code.statements import made_when_needed

ATTRS_HASH = "_attrs_cached_hash"  # where attrs caches a hash, which depends on PYTHONHASHSEED
_MOVED = {"pathlib._local": "pathlib"}  # moved in Python 3.13


class Parts(NamedTuple):
    """A value taken apart. Values with equal tags and equal parts are equal.

    `by` says how an error writes the path to a part; empty for parts that the user did not write.
    """

    tag: str
    children: Sequence[Any] = ()
    by: Literal["", "index", "key", "attribute", "element", "column"] = ""
    unordered: bool = False

    @property
    def columns(self) -> range:
        """The indices of a table's columns. They come last, and the first part is their number."""
        return range(len(self.children) - self.children[0], len(self.children))

    def path_to(self, at: int) -> str:
        """The path to a part, as an error writes it."""
        before = self.children[at - 1] if at > 0 else None
        if self.by == "index":
            return f"[{at}]"
        if self.by == "element":  # of a set: it has no index
            return "{*}"
        if self.by == "key":  # keys and values alternate
            return f"[{reprlib.repr(before)}]" if at % 2 else f".keys()[{at // 2}]"
        if self.by == "attribute" and type(before) is str:  # the value follows its name
            return f".{before}"
        if self.by == "column" and at in self.columns:
            return f"[{at - self.columns.start}]"
        return ""


Describe: TypeAlias = Callable[[Any], Parts]


def name_of(kind: type) -> str:
    """The name of a type, for people."""
    module = module_of(kind)
    return kind.__qualname__ if module in ("builtins", "") else f"{module}.{kind.__qualname__}"


def refuse(value: object) -> Parts:
    """Raise FingerprintError: the value has no stable identity."""
    raise FingerprintError(name_of(type(value)))


def canonical_module(module: object) -> str:
    """The name of a module, the same in every process and on every Python."""
    name = canonical_name(str(module))
    return _MOVED.get(name, name)


class Layout(NamedTuple):
    """Where the objects of a class store their attributes."""

    space: Any  # the descriptor of `__dict__`, None if they have none
    slots: dict[str, Any]  # the descriptors of slots, by name
    caches: frozenset[str]  # attributes that cache what can be computed again
    lazy: dict[str, bool]  # attributes that a method fills on first use; whether they are absent until then

    def space_of(self, value: object) -> dict[str, Any]:
        """The object's own `__dict__`, by way of the class, because the object may define `__getattribute__`."""
        found = self.space.__get__(value, type(value)) if self.space is not None else None
        return found if isinstance(found, dict) else {}

    def read(self, value: object) -> dict[str, Any]:
        """The attributes that identify the object, by name: without caches, and lazy ones as before their first use."""
        found = self._all(value)
        for name in self.caches & found.keys():
            del found[name]
        for name in self.made(found):
            if self.lazy[name]:
                del found[name]
            else:
                found[name] = None
        return found

    def made(self, found: dict[str, Any]) -> dict[str, Any]:
        """The clients and the like among these attributes that a method created on first use, and would create again.

        They are identified by their value before that, which is what remains when a step is skipped.
        """
        if not self.lazy:
            return {}
        from . import is_client  # which is built on this module

        return {name: found[name] for name in self.lazy if name in found and is_client(found[name])}

    def cached(self, value: object) -> dict[str, Any]:
        """The attributes that are caches, by name."""
        found = self._all(value)
        return {name: found[name] for name in sorted(self.caches & found.keys())}

    def _all(self, value: object) -> dict[str, Any]:
        found = {**self.space_of(value)}
        for name, slot in self.slots.items():
            with contextlib.suppress(AttributeError):  # never set
                found[name] = slot.__get__(value)
        return found


@once_per_type
def layout_of(kind: type) -> Layout:
    """The layout of a class."""
    slots: dict[str, Any] = {}
    caches = {ATTRS_HASH, "__networkx_cache__"}
    shadowed: set[str] = set()
    for base in kind.__mro__:
        space = vars(base)
        fields = {field.name for field in space.get("__attrs_attrs__", ())}
        for name, member in space.items():
            if isinstance(member, types.MemberDescriptorType):
                if "__slots__" in space:
                    slots.setdefault(name, member)
                    if "__attrs_attrs__" in space and name not in fields:
                        caches.add(name)  # attrs turns a cached property into a slot
            elif name not in shadowed:
                caches.update(_cache_of(name, member))
        shadowed.update(space)
    lazy = made_when_needed(kind) if is_project_module(module_of(kind)) else {}
    return Layout(of_class(kind, "__dict__"), slots, frozenset(caches), lazy)


_OTHERS = ("__set__", "__delete__", "__call__")  # which cached properties do not have
_METHODS = (types.FunctionType, classmethod, staticmethod, functools.partialmethod, functools.singledispatchmethod)


def _cache_of(name: str, member: Any) -> Iterator[str]:
    """The attribute in which a `functools.cached_property`, or a library's equivalent, stores its value.

    A library's is recognised by its structure: it holds a function of its own name, and is a non-data descriptor, so that
    an attribute of that name takes precedence.
    """
    kind = type(member)
    if kind in _METHODS:
        return
    if isinstance(member, functools.cached_property):
        yield name
    elif kind.__name__ in ("CachedProperty", "CachedAttribute") and of_class(kind, "__get__") is not None:
        found = getattr(member, "cachename", None)
        yield found if isinstance(found, str) else "_cache"  # pandas and statsmodels store all of them in one dict
    elif isinstance(member, property):
        if "cached" in kind.__name__:
            yield name
    elif of_class(kind, "__get__") is not None and not any(of_class(kind, other) for other in _OTHERS):
        held = getattr(member, "__dict__", {}).values()
        if any(type(each) is types.FunctionType and each.__name__ == name for each in held):
            yield name


def is_named(found: object) -> bool:
    """Whether it is a dict with nothing but strings as keys, like an object's `__dict__`."""
    return type(found) is dict and {str}.issuperset(map(type, found))


def attributes(value: object, found: dict[str, Any] | None = None) -> list[Any]:
    """Alternating names and values, sorted by name, because the order in which attributes were set is irrelevant."""
    found = layout_of(type(value)).read(value) if found is None else found
    if not is_named(found):
        return ["__dict__", found]
    return [part for name in sorted(found) for part in (name, found[name])]
