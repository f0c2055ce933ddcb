"""Chooses how any object is taken apart: by its registered identity, as a type known to us, or by its attributes."""

from __future__ import annotations

import copyreg
import itertools
import types
import typing
from collections.abc import Callable
from typing import Any

from ...errors import FingerprintError, UsageError
from ...modules import is_project_module, module_of, of_class
from . import builtin_types, data_libraries
from .builtin_types import category
from .parts import Describe, Parts, attributes, canonical_module, is_named, layout_of, name_of, refuse

_HEAP_TYPE = 1 << 9  # CPython's flag for a class made at run time, not compiled into the interpreter
_PLAIN = (type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset)

_registered: dict[type, Callable[[Any], object]] = {}
_chosen: dict[int, tuple[type, Describe]] = {}  # by id, because a metaclass may define equality


def register_identity(kind: type, function: Callable[[Any], object]) -> None:
    """Identify values of `kind` and its subclasses by `function(value)`, which must not return the value itself."""
    if kind in _PLAIN or kind is object:
        raise UsageError(f"the identity of {kind.__name__} is its content: it cannot be replaced")
    _registered[kind] = function
    _chosen.clear()


def describe(value: Any) -> Parts:
    """Take the value apart; FingerprintError if it has no stable identity."""
    kind = type(value)
    found = _chosen.get(id(kind))
    if found is None:
        if len(_chosen) > 4096:  # the program keeps making classes
            _chosen.clear()
        found = _chosen[id(kind)] = kind, _choose(kind, value)
    return found[1](value)


def _choose(kind: type[Any], sample: object) -> Describe:
    declared = _declared(kind)
    if declared is not None:
        return declared
    if kind in builtin_types.EXACT:
        return builtin_types.EXACT[kind]
    if module_of(kind) == "typing" and getattr(typing, kind.__name__, None) is kind and not issubclass(kind, type):
        return builtin_types.typing_form
    lineage = [(base, f"{module_of(base)}.{base.__qualname__}") for base in kind.__mro__]  # pyright: ignore[reportGeneralTypeIssues]
    for _, name in lineage:
        if name in builtin_types.WHOLE:
            return builtin_types.WHOLE[name]
        known = data_libraries.describer(kind) if name.partition(".")[0] in data_libraries.LIBRARIES else None
        if known is not None:
            return known
    for base, name in lineage:
        if name in builtin_types.REFUSED:
            return refuse
        if name in builtin_types.CONTENT:
            return _with_content(kind, base, builtin_types.CONTENT[name])
        if base is not object and ("__reduce__" in vars(base) or "__reduce_ex__" in vars(base)):
            break
    return _by_convention(kind, sample)


def is_its_attributes(kind: type[Any]) -> bool:
    """Whether objects of this type are identified by their attributes and the content of a builtin base alone."""
    if _declared(kind) is not None or kind in copyreg.dispatch_table:
        return False
    names = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
    made = [base for base in kind.__mro__ if base.__flags__ & _HEAP_TYPE and base.__module__ != "collections"]
    written = [base for base in made if any(name in vars(base) for name in names)]
    return all(getattr(vars(base).get("__getstate__"), "__module__", "") == "dataclasses" for base in written)


def _declared(kind: type) -> Describe | None:
    """The identity that the user declared for the type or its nearest base."""
    for base in kind.__mro__:
        if base in _registered:
            return _identified_by(_registered[base])
        if "__checkpoint_identity__" in vars(base):
            return _identified_by(lambda value: value.__checkpoint_identity__())
    return None


def _identified_by(function: Callable[[Any], object]) -> Describe:
    def describe_by_identity(value: Any) -> Parts:
        identity = function(value)
        if identity is value:  # all values of the class would have one digest
            return refuse(value)
        return Parts("identity", [type(value), identity])

    return describe_by_identity


def _with_content(kind: type, base: type, content: builtin_types.Content) -> Describe:
    tag = f"{canonical_module(base.__module__)}.{base.__qualname__}"
    if kind is base:
        return lambda value: Parts(tag, content(value))
    state = _state(kind, kind.__mro__[: kind.__mro__.index(base)])
    tag = f"subclass of {tag}"
    return lambda value: Parts(tag, [type(value), *content(value), *state(value)], "attribute")


def _state(kind: type, bases: tuple[type, ...]) -> Callable[[Any], list[Any]]:
    """How to read the state that these classes add: by `__getstate__` if one defines it, else attributes and slots."""
    written = any("__getstate__" in vars(base) for base in bases if base is not object)
    getstate = of_class(kind, "__getstate__")
    # Only some Python versions add a `__getstate__` to dataclasses with slots.
    if written and getattr(getstate, "__module__", "") != "dataclasses":
        return _written_state
    whole = layout_of(kind)
    own = whole._replace(slots={name: slot for name, slot in whole.slots.items() if slot.__objclass__ in bases})
    return lambda value: attributes(None, own.read(value))


def _written_state(value: Any) -> list[Any]:
    try:
        state = value.__getstate__()
    except Exception as error:
        raise FingerprintError(name_of(type(value))) from error
    return _named(value, "__getstate__()", state)


def _named(value: object, name: str, state: Any) -> list[Any]:
    """The parts of a pickling state, without caches. A dict of the value's attributes is sorted, others are not."""
    if state is None:
        return []
    shape = layout_of(type(value))
    known, caches = shape.space_of(value), shape.caches
    if type(state) is dict and state.keys() <= known.keys():
        return attributes(None, {key: each for key, each in state.items() if key not in caches})
    if type(state) is tuple and len(state) == 2:  # attributes and slots, in Python's own format
        return [name, tuple(_without_caches(part, caches) for part in state)]
    if type(state) is dict and "__dict__" in state:  # pydantic's format
        return [name, {**state, "__dict__": _without_caches(state["__dict__"], caches)}]
    return [name, state]


def _without_caches(part: Any, caches: frozenset[str]) -> Any:
    return {key: part[key] for key in sorted(part) if key not in caches} if is_named(part) else part


def _by_convention(kind: Any, sample: object) -> Describe:
    """By attributes if the value consists of nothing else, otherwise by its `__reduce__`."""
    if isinstance(of_class(kind, "__next__"), types.WrapperDescriptorType):
        return refuse  # an iterator written in C: reading its content consumes it
    custom = any(of_class(kind, name) is not vars(object)[name] for name in ("__reduce_ex__", "__reduce__"))
    making = any(of_class(kind, name) is not None for name in ("__getnewargs__", "__getnewargs_ex__"))
    if custom or making or any(known is kind for known in copyreg.dispatch_table):
        return _by_reduce
    state = _state(kind, kind.__mro__)
    if state is not _written_state:
        try:
            object.__reduce_ex__(sample, 2)
        except Exception:
            # Either it has content besides its attributes, or only its `__getattr__` confuses pickle.
            if of_class(kind, "__getattr__") is None or not all(map(_is_written, kind.__mro__[:-1])):
                return refuse
    if is_project_module(module_of(kind)):
        return lambda value: Parts("object", [type(value), *state(value)], "attribute")

    def describe_foreign(value: Any) -> Parts:
        found = state(value)
        if any(category(type(each)) == "lock" for each in found):
            return refuse(value)  # a library's client, pool or engine: a handle to something outside the process
        return Parts("object", [type(value), *found], "attribute")

    return describe_foreign


def _is_written(kind: type) -> bool:
    """Whether a class statement made the class, so that its objects have no content besides attributes."""
    return bool(kind.__flags__ & _HEAP_TYPE) and not isinstance(vars(kind).get("__new__"), types.BuiltinFunctionType)


_MOST_ITEMS = 10_000_000


def _listed(kind: type, items: Any) -> list[Any]:
    """The items that `__reduce__` returned, unless they never end."""
    found = list(itertools.islice(items, _MOST_ITEMS + 1))
    if len(found) > _MOST_ITEMS:
        raise FingerprintError(f"{name_of(kind)} with more than {_MOST_ITEMS:,} items")
    return found


def _by_reduce(value: Any) -> Parts:
    kind = type(value)
    try:
        special = next((found for known, found in copyreg.dispatch_table.items() if known is kind), None)
        reduced = special(value) if special else value.__reduce_ex__(4)
    except Exception as error:
        raise FingerprintError(name_of(kind)) from error
    if isinstance(reduced, str):
        return Parts("global", [canonical_module(getattr(value, "__module__", None) or module_of(kind)), reduced])
    function, args, *more = reduced
    state, items, pairs, setter = (*more, None, None, None, None)[:4]
    children = [kind, function, args, items and _listed(kind, items), pairs and _listed(kind, pairs), setter]
    children += _named(value, "__reduce__()", state)
    return Parts("reduced", children, "attribute")
