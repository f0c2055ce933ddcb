"""How any object is described: by what its author says identifies it, as a kind we know, or by its attributes."""

from __future__ import annotations

import copyreg
import types
from collections.abc import Callable
from typing import Any

from ..errors import FingerprintError, UsageError
from . import arrays, kinds, tables
from .kinds import Describe, Parts, attributes, home, name_of, refuse

_LIBRARIES = {
    **dict.fromkeys(("numpy", "torch"), arrays.describer),
    **dict.fromkeys(("pandas", "polars", "pyarrow"), tables.describer),
}
_PLAIN = (type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset)
_DEFAULT_STATE = getattr(object, "__getstate__", None)  # there is one since Python 3.11

_registered: dict[type, Callable[[Any], object]] = {}
_chosen: dict[type, Describe] = {}


def register_identity(kind: type, function: Callable[[Any], object]) -> None:
    """Let `function(value)` give what identifies a value of `kind` or of a subclass: anything simpler than itself."""
    if kind in _PLAIN or kind is object:
        raise UsageError(f"the identity of {kind.__name__} is its content: it cannot be replaced")
    _registered[kind] = function
    _chosen.clear()


def describe(value: Any) -> Parts:
    """Take the value apart; FingerprintError if it has no stable identity."""
    kind = type(value)
    found = _chosen.get(kind)
    if found is None:
        if len(_chosen) > 4096:  # a program that makes classes without end must not fill the memory
            _chosen.clear()
        found = _chosen[kind] = _choose(kind, value)
    return found(value)


def _choose(kind: type[Any], sample: object) -> Describe:
    stated = _stated(kind)
    if stated is not None:
        return stated
    if kind in kinds.EXACT:
        return kinds.EXACT[kind]
    if kind.__module__ == "typing" and not issubclass(kind, type):
        return kinds.typing_form
    lineage = [(base, f"{base.__module__}.{base.__qualname__}") for base in kind.__mro__]  # pyright: ignore[reportGeneralTypeIssues]
    for _, name in lineage:
        if name in kinds.WHOLE:
            return kinds.WHOLE[name]
        library = _LIBRARIES.get(name.partition(".")[0])
        known = library(kind) if library else None
        if known is not None:
            return known
    for base, name in lineage:
        if name in kinds.REFUSED:
            return refuse
        if name in kinds.CONTENT:
            return _with_content(kind, base, kinds.CONTENT[name])
        if base is not object and ("__reduce__" in vars(base) or "__reduce_ex__" in vars(base)):
            break
    return _by_convention(kind, sample)


def _stated(kind: type) -> Describe | None:
    """What the user said about the type, or about the nearest of its bases."""
    for base in kind.__mro__:
        if base in _registered:
            return _identified_by(_registered[base])
        if "__checkpoint_identity__" in vars(base):
            return _identified_by(lambda value: value.__checkpoint_identity__())
    return None


def _identified_by(function: Callable[[Any], object]) -> Describe:
    def describe_by_identity(value: Any) -> Parts:
        identity = function(value)
        if identity is value:  # it would stand for itself, and every other value of its class as well
            return refuse(value)
        return Parts("identity", [type(value), identity])

    return describe_by_identity


def _with_content(kind: type, base: type, content: kinds.Content) -> Describe:
    tag = f"{home(base.__module__)}.{base.__qualname__}"
    if kind is base:
        return lambda value: Parts(tag, content(value))
    state = _state(kind, kind.__mro__[: kind.__mro__.index(base)])
    tag = f"subclass of {tag}"
    return lambda value: Parts(tag, [type(value), *content(value), *state(value)], "attribute")


def _state(kind: type, bases: tuple[type, ...]) -> Callable[[Any], list[Any]]:
    """How to read what these classes add to a value: `__getstate__` if one wrote it, else attributes and slots."""
    written = any("__getstate__" in vars(base) for base in bases if base is not object)
    getstate = getattr(kind, "__getstate__", _DEFAULT_STATE)
    # Dataclasses with slots bring a `__getstate__` on some Python versions and not on others.
    if written and getattr(getstate, "__module__", "") != "dataclasses":
        return _written_state
    slots = [
        (name, member.__get__)
        for base in bases
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    ]
    if not slots:
        return attributes

    def attributes_and_slots(value: Any) -> list[Any]:
        filled: dict[str, Any] = {}
        for name, read in slots:
            try:
                filled[name] = read(value)
            except AttributeError:  # a slot that was never set
                continue
        return attributes(value, filled)

    return attributes_and_slots


def _written_state(value: Any) -> list[Any]:
    try:
        state = value.__getstate__()
    except Exception as error:
        raise FingerprintError(name_of(type(value))) from error
    return _named(value, "__getstate__()", state)


def _named(value: object, name: str, state: Any) -> list[Any]:
    """A state made of the value's own attributes is in no order; any other is taken as it is."""
    if state is None:
        return []
    if type(state) is dict and state.keys() <= getattr(value, "__dict__", {}).keys():
        return attributes(None, state)
    return [name, state]


def _by_convention(kind: Any, sample: object) -> Describe:
    """Attributes if that is all there is to the value, else what its `__reduce__` gives."""
    if isinstance(getattr(kind, "__next__", None), types.WrapperDescriptorType):
        return refuse  # an iterator written in C: to look at its content is to consume it
    custom = kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__
    if (
        custom
        or kind in copyreg.dispatch_table
        or hasattr(kind, "__getnewargs__")
        or hasattr(kind, "__getnewargs_ex__")
    ):
        return _by_reduce
    state = _state(kind, kind.__mro__)
    if state is not _written_state:
        try:
            object.__reduce_ex__(sample, 2)
        except Exception:  # it holds something that is not among its attributes
            return refuse
    return lambda value: Parts("object", [type(value), *state(value)], "attribute")


def _by_reduce(value: Any) -> Parts:
    kind = type(value)
    try:
        special = copyreg.dispatch_table.get(kind)
        reduced = special(value) if special else value.__reduce_ex__(4)
    except Exception as error:
        raise FingerprintError(name_of(kind)) from error
    if isinstance(reduced, str):
        return Parts("global", [home(getattr(value, "__module__", None) or kind.__module__), reduced])
    function, args, *more = reduced
    state, items, pairs, setter = (*more, None, None, None, None)[:4]
    children = [kind, function, args, items and list(items), pairs and list(pairs), setter]
    children += _named(value, "__reduce__()", state)
    return Parts("reduced", children, "attribute")
