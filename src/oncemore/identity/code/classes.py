"""Describes a class: its bases, methods and attributes.

What Python and code generators (dataclasses, attrs, enum) add by themselves is left out; what they are given (fields,
members) is included.
"""

from __future__ import annotations

import abc
import copyreg
import enum
import re
import sys
import types
from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ...errors import FingerprintError
from ...modules import is_project_file, is_project_module, module_of
from ..values import digest
from .data import DATA, Slot, in_class, in_mapping
from .descriptions import annotated

if TYPE_CHECKING:
    from .walk import Walk

_ADDED = (
    "__module__ __qualname__ __dict__ __weakref__ __doc__ __slots__ __classcell__ __annotations__ __annotate__ "
    "__annotate_func__ __annotations_cache__ __conditional_annotations__ __firstlineno__ __static_attributes__ "
    "__parameters__ __orig_bases__ __type_params__ __final__ _abc_impl __abstractmethods__ _is_protocol "
    "_is_runtime_protocol __protocol_attrs__ __non_callable_proto_members__ __dataclass_fields__ __dataclass_params__ "
    "__attrs_attrs__ __attrs_own_setattr__ __attrs_props__ __attrs_base_of_slotted__ _fields "
    "_field_defaults __callable_proto_members_only__ __required_keys__ __optional_keys__ __readonly_keys__ "
    "__mutable_keys__ __total__ __closed__ __extra_items__ __slotnames__"
)
_VOLATILE = frozenset(_ADDED.split())
_METHODS = (
    "__init__ __repr__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __new__ __setattr__ __delattr__ __getstate__ "
    "__setstate__ __replace__"
)
_GENERATED = frozenset(_METHODS.split())
_GENERATORS = frozenset(["dataclasses", "typing", "typing_extensions", "collections", "enum", "attr", "attrs"])
_ENUM_MACHINERY = frozenset(["__new__", "__new_member__", "_new_member_", "_generate_next_value_"])


def class_pieces(walk: Walk, klass: type) -> Iterator[bytes | str]:
    """Everything that identifies a class, in a fixed order."""
    is_enum = isinstance(klass, enum.EnumMeta)
    for base in (*klass.__bases__, type(klass)):
        if base not in (object, type, enum.EnumMeta):
            yield walk.describe(base)
    yield from walk.subclasses(klass)
    yield from walk.introspected(klass)
    if isinstance(klass, abc.ABCMeta):
        yield from map(walk.unit, _registered(klass))
        walk.watch.equal(abc.get_cache_token)
    if "__slots__" in vars(klass):
        yield "slots"
    if klass in copyreg.dispatch_table:
        yield walk.describe(copyreg.dispatch_table[klass])
    yield from _declared(walk, klass)
    foreign_made = is_foreign_made(klass)
    for name, value in sorted(klass.__dict__.items()):
        if name in _VOLATILE or name.startswith("__pydantic_") or _is_generated(klass, name, value):
            continue
        if is_enum and not _is_own_in_enum(klass, name, value):
            continue
        if foreign_made and name.startswith("__") and not _is_project_function(value):
            continue
        if foreign_made and _root(type(value)) == _root(type(klass)):
            continue  # the library's own, such as a mapper or a registry of tables
        if isinstance(value, types.MemberDescriptorType) or type(value).__name__ == "_tuplegetter":
            yield from (name, "slot")
        elif (described := _describe(walk, value, name, in_class(klass, name))) != DATA:
            yield from (name, described)


def _registered(klass: type) -> list[type]:
    """The classes registered as virtual subclasses of an abstract class."""
    registry: Any = abc
    found = (reference() for reference in registry._get_dump(klass)[0])
    return sorted((each for each in found if each is not None), key=lambda each: (each.__module__, each.__qualname__))


def _describe(walk: Walk, value: object, name: str, slot: Slot | None = None) -> bytes:
    try:
        return walk.describe_at(f"attribute `{name}`", value, slot)
    except FingerprintError as error:
        raise FingerprintError(error.kind, f".{name}{error.path}", error.part) from error


def _is_project_function(value: Any) -> bool:
    """Whether it is a project function, or a classmethod, property or the like made from one."""
    for name in ("__func__", "fget", "func"):
        value = getattr(value, name, value) if type(value) is not FunctionType else value
    return type(value) is FunctionType and is_project_file(value.__code__.co_filename)


def _is_generated(klass: type, name: str, value: Any) -> bool:
    function = getattr(value, "__func__", value)
    if type(function) is not FunctionType:
        return False
    while type(inner := function.__dict__.get("__wrapped__")) is FunctionType:
        function = inner  # a dataclass wraps its __repr__
    path = function.__code__.co_filename
    if path.startswith("<attrs generated"):
        return True
    if not is_project_file(path):
        return str(function.__globals__.get("__name__")).partition(".")[0] in _GENERATORS
    # In a program without a file, <string> may also be the user's own code, so it is included.
    has_file = getattr(sys.modules.get(module_of(klass)), "__file__", None) is not None
    makes = "__dataclass_fields__" in klass.__dict__ or "_fields" in klass.__dict__
    return path == "<string>" and name in _GENERATED and has_file and makes


def is_foreign_made(klass: object) -> bool:
    """Whether a library's metaclass made the class, and may have added to it."""
    module = module_of(type(klass))
    return module.partition(".")[0] not in sys.stdlib_module_names and not is_project_module(module)


def _root(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def has_schema(unit: object) -> bool:
    """Whether it is a pydantic class. Its schema includes its docstring."""
    return isinstance(unit, type) and "__pydantic_fields__" in unit.__dict__


def _is_own_in_enum(klass: type, name: str, value: object) -> bool:
    """Whether an attribute of an enum is neither a member nor machinery."""
    if name in _ENUM_MACHINERY or name in getattr(klass, "_member_map_", ()):
        return False
    return _is_project_function(value) or not name.startswith("_")


def _declared(walk: Walk, klass: type) -> Iterator[bytes | str]:
    """The declarations that a dataclass, attrs class, named tuple, enum or pydantic class was generated from."""
    known: Any = klass.__dict__
    if "__dataclass_fields__" in known:
        params = known.get("__dataclass_params__")
        yield "".join(f"{name}={getattr(params, name, None)} " for name in ("init", "repr", "eq", "order", "frozen"))
        yield str(getattr(params, "unsafe_hash", None))
        for field in known["__dataclass_fields__"].values():
            yield from (field.name, str(field._field_type), str(field.init), str(field.compare), str(field.hash))
            yield from (str(field.kw_only is True), str(field.repr))
            yield from _values(walk, field.name, field.default, field.default_factory)
            yield b"-" if not field.metadata else digest(dict(field.metadata))
    for field in known.get("__attrs_attrs__", ()):
        factory = getattr(field.default, "factory", None)
        yield from (field.name, str(field.init), str(field.eq), str(field.order), str(field.kw_only), str(field.hash))
        yield from (str(getattr(field, "alias", "")), str(field.repr is True))
        yield from _values(walk, field.name, factory or field.default, field.converter, field.validator)
        how = (field.eq_key, field.order_key, field.on_setattr, None if isinstance(field.repr, bool) else field.repr)
        yield from _values(walk, field.name, *how)
        yield b"-" if not field.metadata else digest(dict(field.metadata))
    if "_fields" in known and issubclass(klass, tuple):
        yield from _values(walk, "_fields", known["_fields"], known.get("_field_defaults"))
    if isinstance(klass, enum.EnumMeta):
        members: dict[str, Any] = dict(klass.__members__)
        for name, member in members.items():
            yield name
            yield from _values(walk, name, member._value_)
            for attribute, value in sorted(vars(member).items()):
                if attribute[0] != "_":
                    described = _describe(walk, value, f"{name}.{attribute}", in_mapping(vars(member), attribute))
                    yield from (attribute, described) if described != DATA else ()
        boundary = known.get("_boundary_")
        if boundary is not getattr(klass.__base__, "_boundary_", None):
            yield str(boundary)
        maker = known.get("_new_member_") or known.get("__new_member__")
        if _is_project_function(maker):
            yield walk.describe(maker)
    if is_foreign_made(klass) or has_schema(klass):
        yield from _annotations(walk, klass)


def _values(walk: Walk, name: str, *found: object) -> Iterator[bytes]:
    for value in found:
        # MISSING (dataclasses) and NOTHING (attrs) mean that there is no default.
        empty = type(value) is dict and not value  # `value == {}` fails for an array
        missing = type(value).__name__ in ("_MISSING_TYPE", "_Nothing") or value is None or empty
        yield b"-" if missing else _describe(walk, value, name)


def _annotations(walk: Walk, klass: Any) -> Iterator[bytes | str]:
    """The fields and validators of a class that a library, such as pydantic, makes from annotations."""
    for name, kind in sorted(annotated(klass)):
        yield from (name, walk.annotation(name, kind, klass))
    fields = klass.__dict__.get("__pydantic_fields__") or klass.__dict__.get("__fields__") or {}
    for name, field in sorted(fields.items()):
        yield f"{name} = {_text(field)}"
        given: dict[str, Any] = {"metadata": getattr(field, "metadata", ()), **getattr(field, "_attributes_set", {})}
        for option in sorted(given.keys() - {"annotation"}):
            yield from (option, _content(given[option]))
    decorators = klass.__dict__.get("__pydantic_decorators__")
    for group in getattr(decorators, "__dataclass_fields__", ()):
        for name, decorator in sorted(getattr(decorators, group).items()):
            yield from (name, _content(decorator.info))


def _content(value: object) -> bytes:
    """A digest of an option that a library's class was made with, of its text if it has no identity."""
    try:
        return digest(value)
    except FingerprintError:
        return digest(_text(value))


def _text(value: object) -> str:
    return value.__qualname__ if isinstance(value, type) else re.sub(r" at 0x[0-9a-f]+", "", str(value))
