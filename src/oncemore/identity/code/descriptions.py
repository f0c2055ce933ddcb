"""Describes what code refers to, one kind at a time: wrappers, partials, methods, library objects, types, inert objects."""

from __future__ import annotations

import contextlib
import contextvars
import enum
import functools
import gc
import inspect
import operator
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from ...modules import is_project_file, is_project_module, module_of
from ..values import digest
from ..values.builtin_types import INERT
from ..values.parts import canonical_module
from .bytecode_reads import reads
from .data import ABSENT, Slot, in_cell, in_context
from .syntax import class_text, hashed, own

if TYPE_CHECKING:
    from .walk import Walk

_INERT = INERT.keys() | {"_thread._local"}
_DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_INSIDE: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    staticmethod: lambda v: (v.__func__,),
    classmethod: lambda v: (v.__func__,),
    property: lambda v: (v.fget, v.fset, v.fdel),
    functools.cached_property: lambda v: (v.func,),
    functools.partial: lambda v: (v.func, *v.args, *sorted(v.keywords), *(v.keywords[k] for k in sorted(v.keywords))),
    functools.partialmethod: lambda v: (v.func, v.args, v.keywords),
    functools.singledispatchmethod: lambda v: (v.func, v.dispatcher),
}


def is_data(value: object) -> bool:
    """Whether it is not code of any kind."""
    return not (is_unit(value) or isinstance(value, ModuleType) or callable(value))


def is_unit(value: object) -> TypeGuard[FunctionType | type]:
    """Whether it is really a function or a class, unlike a proxy, or `list[int]` on Python 3.10, for which isinstance lies."""
    return type(value) is FunctionType or issubclass(type(value), type)


def is_project_unit(unit: object) -> bool:
    """Whether it is a function or class of the project."""
    if is_unit(unit) and not isinstance(unit, FunctionType):
        return is_project_module(module_of(unit))
    return type(unit) is FunctionType and is_project_file(unit.__code__.co_filename)


def held(function: FunctionType) -> Iterator[tuple[str, object, Slot | None]]:
    """The name, value and slot of everything a function holds: defaults, closure variables, the function it wraps."""
    code = function.__code__
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        yield f"default `{name}`", value, None
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"default `{name}`", value, None
    for name, cell, value in _cells(function):
        yield f"closure `{name}`", value, in_cell(cell, name)
    if "__wrapped__" in function.__dict__:
        yield "wrapped", function.__dict__["__wrapped__"], None


def describe(walk: Walk, value: Any) -> bytes:
    """Describe anything except a function or class."""
    kind = type(value)
    if isinstance(value, ModuleType):
        if is_project_module(value.__name__):
            return walk.module(value)
        walk.foreign.add(value.__name__.partition(".")[0])
        return hashed("module", value.__name__)
    inside = _INSIDE.get(kind)
    if inside is not None:
        return hashed("of", kind.__name__, *map(walk.describe, inside(value)))
    if kind is MethodType or kind is types.BuiltinFunctionType:
        return _method(walk, value)
    if kind in _DESCRIPTORS:
        return walk.foreign_code("descriptor", value)
    if kind is contextvars.ContextVar:
        slot = in_context(value)
        walk.add_data(slot.get(), slot)
        return hashed("context variable", value.name)
    if is_holder(value):
        return hashed("holder", kind.__name__, *map(walk.describe, held_by(value)))
    bare = without_step(value)
    if bare is not value:
        return hashed(walk.describe(bare), step_part(walk, value))
    inert = _inert(walk, value)
    if inert is not None:
        return inert
    if callable(value) and not is_project_module(kind.__module__):
        if _is_named(value):
            return walk.foreign_code("callable", value)
        wrapped = getattr(value, "__wrapped__", None)
        if callable(wrapped):
            functions = [wrapped, getattr(value, "_self_wrapper", None)]  # the latter is wrapt's
            return hashed(walk.foreign_code("wrapper", kind), *map(walk.describe, functions))
    return walk.value(value)


def without_step(value: Any) -> Any:
    """The function of a step; any other value as it is."""
    while module_of(type(value)).startswith("oncemore.") and hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value


def step_part(walk: Walk, value: Any) -> bytes:
    """A digest of the options that a step declares to be part of its code."""
    declared = getattr(value, "__checkpoint_code__", None) if module_of(type(value)).startswith("oncemore.") else None
    return b"" if declared is None else digest(declared)


# --- objects that hide functions ------------------------------------------------------------------------------------

HOLDERS = frozenset(["numpy.ufunc", "_ctypes.CFuncPtr", "functools.KeyWrapper"])


def is_holder(value: object) -> bool:
    """Whether it is an object whose functions only the garbage collector can find, or a weak reference."""
    lineage = type(value).__mro__
    return weakref.ReferenceType in lineage or any(
        f"{module_of(each)}.{each.__qualname__}" in HOLDERS for each in lineage
    )


def held_by(value: Any) -> list[Any]:
    """The content of a holder: the project's functions, and how they are called."""
    if isinstance(value, weakref.ReferenceType):
        return [value()]
    known = [getattr(value, name, None) for name in ("__name__", "nin", "nout", "signature", "identity")]
    kinds = [getattr(value, "argtypes", None), getattr(value, "restype", None)]
    inside = [each for each in gc.get_referents(value) if callable(each) and each is not type(value)]
    return [*known, *kinds, *(each for each in inside if is_ours(each))]


def is_ours(value: Any) -> bool:
    """Whether something found in a library belongs to the project: a function, a class, or an object that holds one."""
    for _ in range(5):
        value = without_step(value)
        if type(value) in _INSIDE:
            value = _INSIDE[type(value)](value)[0]
        elif type(value) is MethodType:
            value = value.__func__
        elif type(value) is FunctionType and not is_project_unit(value):
            value = value.__dict__.get("__wrapped__", value)
    if is_unit(value) or isinstance(value, ModuleType):
        return is_project_unit(value)
    kind, inside = type(value), getattr(value, "__dict__", None)
    if module_of(kind) in sys.modules and is_project_unit(kind):
        return True
    return type(inside) is dict and any(map(is_project_unit, list(inside.values())))


def is_patch(space: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether the project, or a test's mock, replaced a name in a library's module."""
    if value is ABSENT or name.startswith("__") or not callable(value):
        return False
    if isinstance(value, functools.partial) and getattr(value.func, "__name__", None) == name:
        return True
    module = str(getattr(value if is_unit(value) else type(value), "__module__", None)).partition(".")[0]
    package = str(space.get("__name__")).partition(".")[0]
    if module == "unittest" and package != "unittest":
        return True
    return is_ours(value) or (
        is_unit(value) and package in sys.stdlib_module_names and module not in sys.stdlib_module_names
    )


# --- part of the identity only if the code introspects it -----------------------------------------------------------


def docstring(unit: FunctionType | type) -> str:
    found = undented(vars(unit).get("__doc__") if isinstance(unit, type) else unit.__doc__)
    return "" if isinstance(unit, enum.EnumMeta) and found == "An enumeration." else found  # Python 3.10 adds it


def undented(text: object) -> str:
    """A docstring as Python 3.13 compiles it: without the indentation of its lines."""
    if not isinstance(text, str):
        return ""
    first, *rest = text.expandtabs().split("\n")
    margin = min([len(line) - len(line.lstrip()) for line in rest if line.strip()], default=0)
    return "\n".join([first.lstrip(), *(line[margin:] for line in rest)])


def annotated(unit: FunctionType | type) -> list[tuple[str, object]]:
    """The annotations, and which keys of a typed dict are required."""
    found: dict[str, object] = {}
    with contextlib.suppress(NameError):  # a name that exists for type checkers only
        found = dict(inspect.get_annotations(unit))
    required = vars(unit).get("__required_keys__") if isinstance(unit, type) else None
    if isinstance(required, frozenset):
        found["__required_keys__"] = tuple(sorted(required))
    return list(found.items())


def source(unit: FunctionType | type) -> str:
    if isinstance(unit, FunctionType):
        return own(unit.__code__, unit.__globals__).text
    space = space_of(unit) or {}
    return class_text(unit.__qualname__, str(space.get("__file__", "")), space)[1]


def space_of(unit: Any) -> dict[str, Any] | None:
    """The namespace of the module that a function or class belongs to."""
    module = sys.modules.get(module_of(unit) if isinstance(unit, type) else str(getattr(unit, "__module__", None)))
    around: dict[str, Any] | None = getattr(module, "__dict__", None)
    space: dict[str, Any] | None = unit.__globals__ if isinstance(unit, FunctionType) else around
    if isinstance(unit, FunctionType) and unit.__globals__.get("__name__") != unit.__module__:
        return around  # a wrapper belongs to the module of the function it wraps
    if isinstance(unit, type) and unit.__module__ == "__mp_main__" and space is not None:
        return _of_worker(space)
    if isinstance(unit, type) and (space is None or space.get(unit.__qualname__.partition(".")[0]) is None):
        # A class that was sent from another process belongs to the module of its methods.
        methods = [value for value in vars(unit).values() if type(value) is FunctionType]
        known = [f.__globals__ for f in methods if f.__globals__.get("__name__") == unit.__module__]
        return known[0] if known else None if unit.__module__ == "__main__" else space
    return space


def _of_worker(space: dict[str, Any]) -> dict[str, Any]:
    """The namespace of the script in a multiprocessing worker. The module there is a copy; its functions use another."""
    functions = [value for value in map(without_step, space.values()) if type(value) is FunctionType]
    methods = [v for kind in space.values() if isinstance(kind, type) for v in map(without_step, vars(kind).values())]
    for function in functions + [value for value in methods if type(value) is FunctionType]:
        if function.__globals__.get("__name__") == "__mp_main__":
            return function.__globals__
    return space


def namespace_of(unit: FunctionType | type) -> dict[str, Any] | None:
    """The namespace in which the unit is bound to its own name, if any."""
    if "<" in unit.__qualname__ or (isinstance(unit, FunctionType) and "." in unit.__qualname__):
        return None  # methods are described in their classes
    space = space_of(unit)
    if space is None:
        return None
    first, *rest = unit.__qualname__.split(".")
    value = space.get(first)
    for word in rest:
        value = vars(value).get(word) if isinstance(value, type) else None
    return space if without_step(value) is unit else None


def _is_named(value: Any) -> bool:
    """Whether this very object is in a library's module, under the object's own name."""
    module = str(getattr(value, "__module__", None))
    if is_project_module(module) and not binary_of(module):  # a wrapper has the name of what it wraps
        return False
    name = getattr(value, "__qualname__", None)
    return isinstance(name, str) and getattr(sys.modules.get(module), name, None) is value


def _method(walk: Walk, value: Any) -> bytes:
    owner = value.__self__
    if owner is None or isinstance(owner, ModuleType):
        return walk.foreign_code("builtin", value)
    module = type(owner).__module__
    if not is_project_module(module) and getattr(sys.modules.get(module), value.__name__, None) == value:
        walk.foreign.add(module.partition(".")[0])  # such as `random.randint`, a method of a hidden object
        return hashed("foreign", "method", module, value.__name__)
    function = walk.describe(value.__func__) if type(value) is MethodType else hashed("builtin", value.__name__)
    return hashed("method", function, walk.describe(owner))


def _inert(walk: Walk, value: Any) -> bytes | None:
    kind = type(value)
    if kind.__module__ in ("typing", "typing_extensions") or isinstance(value, (types.GenericAlias, types.UnionType)):
        if kind.__name__.endswith("SpecialForm"):
            return walk.foreign_code("class", value)  # `typing.Any` is a class since Python 3.11
        name = "" if getattr(value, "__args__", None) else _name(value)
        return hashed("typing", kind.__name__, name, *_of_type(walk, value))
    if not any(f"{base.__module__}.{base.__qualname__}" in _INERT for base in kind.__mro__):
        return None
    return hashed("inert", walk.unit(kind), _name(value))


def _of_type(walk: Walk, value: Any) -> Iterator[bytes | str]:
    """The parts of a type: `Optional[int]`, `Annotated[int, check]`, a type variable, a new type."""
    for name in ("__args__", "__metadata__", "__constraints__"):
        for each in getattr(value, name, None) or ():
            yield from (name, walk.describe(each))
    for name in ("__origin__", "__bound__", "__supertype__", "__forward_arg__", "__value__"):
        each = None
        with contextlib.suppress(NameError):  # evaluated lazily, with a name that exists for type checkers only
            each = getattr(value, name, None)
        if each is not None and (name != "__origin__" or getattr(value, "__args__", None)):
            yield from (name, walk.describe(each))


def _name(value: Any) -> str:
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    return name if isinstance(name, str) else ""


_binaries: dict[tuple[str, int, int], bytes] = {}


def binary_of(module: str) -> bytes:
    """A digest of a compiled project module's file; empty for other modules. It has no source to compare."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if not path or path.endswith((".py", ".pyc")) or not is_project_file(path):
        return b""
    status = os.stat(path)
    key = (path, status.st_mtime_ns, status.st_size)
    if key not in _binaries:
        with open(path, "rb") as file:
            _binaries[key] = hashed(file.read())
    return _binaries[key]


def names_of(named: Any) -> tuple[str, str]:
    """The module and name of a library's function or class: those of its own code, not of what it wraps."""
    if type(named) is not FunctionType:
        module = getattr(named, "__module__", None) or getattr(named, "__objclass__", type(named)).__module__
        return canonical_module(module), str(
            getattr(named, "__qualname__", None) or _name(named) or type(named).__qualname__
        )
    code, space = named.__code__, named.__globals__
    name = getattr(code, "co_qualname", None)
    if name is None:  # before Python 3.11, the code of an inner function has no qualified name
        around = [f for f in space.values() if type(f) is FunctionType and code in f.__code__.co_consts]
        name = f"{around[0].__qualname__}.<locals>.{code.co_name}" if around else named.__qualname__
    return str(space.get("__name__")), name


def carried(walk: Walk, function: FunctionType) -> Iterator[bytes]:
    """Describe project code inside a library's function: what it wraps, dispatches to, or has in its closure."""
    methods = function.__dict__.get("registry")
    if isinstance(methods, Mapping) and "dispatch" in function.__dict__:  # functools.singledispatch
        walk.watch.mapping(methods)
        for kind in sorted(methods, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}"):
            yield walk.describe(kind)
            yield walk.describe(methods[kind])
        return
    if "__wrapped__" in function.__dict__:
        yield walk.describe(function.__dict__["__wrapped__"])
    changing = reads(function.__code__).rebound if function.__closure__ else frozenset[str]()
    for name, cell, found in _cells(function):
        value: Any = found
        if type(found) is MethodType and not (is_ours(found) or is_project_unit(type(found.__self__))):
            value = found.__func__  # it is bound to an object of the library
        if type(value) in (FunctionType, MethodType, type, bool, int, float, str, bytes) and name not in changing:
            walk.watch.bound(in_cell(cell, name).get, found)
            yield hashed(name, walk.describe_at(f"closure `{name}`", value))


def _cells(function: FunctionType) -> Iterator[tuple[str, types.CellType, object]]:
    """The variables of a closure, sorted by name, because Python versions order them differently."""
    for name, cell in sorted(
        zip(function.__code__.co_freevars, function.__closure__ or (), strict=True), key=operator.itemgetter(0)
    ):
        try:
            yield name, cell, cell.cell_contents
        except ValueError:  # not bound yet
            yield name, cell, ABSENT
