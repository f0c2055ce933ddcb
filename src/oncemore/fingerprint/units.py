"""What the things that code holds are, one by one: wrappers, partials, classes, what libraries made, what is inert."""

from __future__ import annotations

import functools
import operator
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from ..modules import is_project_file, is_project_module
from .kinds import home
from .reach import rebinds
from .syntax import hashed

if TYPE_CHECKING:
    from .walk import Walk
    from .watch import Watch

EMPTY = object()

# Tools of a program, not data: which lock it is changes nothing. By the names of their types, so as to import none.
_INERT = frozenset(
    ["_thread.lock", "_thread.RLock", "_thread._local", "logging.Logger", "logging.LoggerAdapter"]
    + ["_contextvars.ContextVar", "contextvars.ContextVar", "builtins.ContextVar"]
    + [f"threading.{name}" for name in ("Condition", "Event", "Semaphore", "Barrier", "_RLock")]
    + [f"asyncio.locks.{name}" for name in ("Lock", "Event", "Condition", "Semaphore")]
    + [f"multiprocessing.synchronize.{name}" for name in ("SemLock", "Event", "Condition")]
)
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


def describe_root(walk: Walk, root: Any) -> None:
    """The parts of a function or class itself."""
    if type(root) is FunctionType and is_project_unit(root):
        walk.record("code", lambda: hashed("code", walk.scan(root)), root)
        for name, value in held(walk.watch, root):
            walk.record(name, lambda: hashed("empty") if value is EMPTY else walk.describe(value), value)  # noqa: B023
    else:
        walk.record("code", lambda: walk.token(root) if is_unit(root) else walk.describe(root), root)


def is_unit(value: object) -> TypeGuard[FunctionType | type]:
    """Whether it is a function or a class; a proxy says so of itself, and is not."""
    return type(value) is FunctionType or isinstance(value, type)


def is_project_unit(unit: object) -> bool:
    """Whether it is a function or class of the user's own."""
    if isinstance(unit, type):
        return is_project_module(unit.__module__)
    return type(unit) is FunctionType and is_project_file(unit.__code__.co_filename)


def held(watch: Watch, function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function carries along: defaults, closure, the function that it wraps."""
    code = function.__code__
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        yield f"default `{name}`", value
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"default `{name}`", value
    for name, cell, value in _cells(function):
        watch.cell(cell, value)
        yield f"closure `{name}`", value
    if "__wrapped__" in function.__dict__:
        yield "wrapped", function.__dict__["__wrapped__"]


def describe(walk: Walk, value: Any) -> bytes:
    """Anything but a function or a class."""
    kind = type(value)
    if isinstance(value, ModuleType):
        walk.foreign.add(value.__name__.partition(".")[0])
        return hashed("module", walk.label(vars(value)) if is_project_module(value.__name__) else value.__name__)
    inside = _INSIDE.get(kind)
    if inside is not None:
        return hashed("of", kind.__name__, *map(walk.describe, inside(value)))
    if kind is MethodType or kind is types.BuiltinFunctionType:
        return _method(walk, value)
    if kind in _DESCRIPTORS:
        return walk.foreigner("descriptor", value)
    bare = without_step(value)
    if bare is not value:
        return hashed(walk.describe(bare), step_part(walk, value))
    inert = _inert(walk, value)
    if inert is not None:
        return inert
    if callable(value) and not is_project_module(kind.__module__):
        if _is_named(value):
            return walk.foreigner("callable", value)
        wrapped = getattr(value, "__wrapped__", None)
        if callable(wrapped):
            held_too = [wrapped, getattr(value, "_self_wrapper", None)]  # the latter is wrapt's
            return hashed(walk.foreigner("wrapper", kind), *map(walk.describe, held_too))
    return walk.data(value)


def without_step(value: Any) -> Any:
    """A step's function: that its results are kept does not change what it does."""
    while type(value).__module__.startswith("oncemore.") and hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value


def step_part(walk: Walk, value: Any) -> bytes:
    """What a step says about its code besides the code."""
    said = getattr(value, "__checkpoint_code__", None) if type(value).__module__.startswith("oncemore.") else None
    return b"" if said is None else walk.data(said)


def space_of(unit: Any) -> dict[str, Any] | None:
    """The namespace that a function or class belongs to."""
    module = sys.modules.get(str(getattr(unit, "__module__", None)))
    around: dict[str, Any] | None = getattr(module, "__dict__", None)
    space: dict[str, Any] | None = getattr(unit, "__globals__", None) or around
    if isinstance(unit, FunctionType) and unit.__globals__.get("__name__") != unit.__module__:
        return around  # a wrapper: it belongs where the function that it wraps does
    if isinstance(unit, type) and unit.__module__ == "__mp_main__" and space is not None:
        return _of_worker(space)
    if isinstance(unit, type) and (space is None or space.get(unit.__qualname__.partition(".")[0]) is None):
        # A class that was sent here from another process belongs where its methods do.
        methods = [value for value in vars(unit).values() if type(value) is FunctionType]
        known = [f.__globals__ for f in methods if f.__globals__.get("__name__") == unit.__module__]
        return known[0] if known else None if unit.__module__ == "__main__" else space
    return space


def _of_worker(space: dict[str, Any]) -> dict[str, Any]:
    """The namespace of the script in a multiprocessing worker, whose module is a copy of where its functions live."""
    functions = [value for value in map(without_step, space.values()) if type(value) is FunctionType]
    methods = [v for kind in space.values() if isinstance(kind, type) for v in map(without_step, vars(kind).values())]
    for function in functions + [value for value in methods if type(value) is FunctionType]:
        if function.__globals__.get("__name__") == "__mp_main__":
            return function.__globals__
    return space


def home_of(unit: FunctionType | type) -> dict[str, Any] | None:
    """The namespace in which the unit stands under its own name."""
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
    """Whether a library's module has exactly this object under the name that the object gives."""
    module = str(getattr(value, "__module__", None))
    if is_project_module(module) and not binary_of(module):  # a wrapper bears the name of what it wraps
        return False
    name = getattr(value, "__qualname__", None)
    return isinstance(name, str) and getattr(sys.modules.get(module), name, None) is value


def _method(walk: Walk, value: Any) -> bytes:
    owner = value.__self__
    if owner is None or isinstance(owner, ModuleType):
        return walk.foreigner("builtin", value)
    module = type(owner).__module__
    if not is_project_module(module) and getattr(sys.modules.get(module), value.__name__, None) == value:
        walk.foreign.add(module.partition(".")[0])  # such as `random.randint`: a method of an object nobody sees
        return hashed("foreign", "method", module, value.__name__)
    function = walk.describe(value.__func__) if type(value) is MethodType else hashed("builtin", value.__name__)
    return hashed("method", function, walk.describe(owner))


def _inert(walk: Walk, value: Any) -> bytes | None:
    kind = type(value)
    if kind.__module__ in ("typing", "typing_extensions") or kind in (types.GenericAlias, types.UnionType):
        arguments = (getattr(value, "__origin__", None), *getattr(value, "__args__", ()))
        return hashed("typing", kind.__name__, _name(value), *map(walk.describe, arguments if arguments[1:] else ()))
    if not any(f"{base.__module__}.{base.__qualname__}" in _INERT for base in kind.__mro__):
        return None
    return hashed("inert", walk.unit(kind), _name(value))


def _name(value: Any) -> str:
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    return name if isinstance(name, str) else ""


_binaries: dict[tuple[str, int, int], bytes] = {}


def binary_of(module: str) -> bytes:
    """The content of a compiled module of the project: there is nothing else to tell its versions apart."""
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
    """The module and the name of a library's function or class: where its code stands, whatever it wraps."""
    if type(named) is not FunctionType:
        module = getattr(named, "__module__", None) or getattr(named, "__objclass__", type(named)).__module__
        return home(module), str(getattr(named, "__qualname__", None) or _name(named) or type(named).__qualname__)
    code, space = named.__code__, named.__globals__
    name = getattr(code, "co_qualname", None)
    if name is None:  # before Python 3.11, a function inside another doesn't know its full name
        around = [f for f in space.values() if type(f) is FunctionType and code in f.__code__.co_consts]
        name = f"{around[0].__qualname__}.<locals>.{code.co_name}" if around else named.__qualname__
    return str(space.get("__name__")), name


def carried(walk: Walk, function: FunctionType) -> Iterator[bytes]:
    """What a library's function carries for the project: what it wraps, dispatches to, or was made with."""
    methods = function.__dict__.get("registry")
    if isinstance(methods, Mapping) and "dispatch" in function.__dict__:  # functools.singledispatch
        walk.watch.mapping(methods)
        for kind in sorted(methods, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}"):
            yield walk.describe(kind)
            yield walk.describe(methods[kind])
        return
    if "__wrapped__" in function.__dict__:
        yield walk.describe(function.__dict__["__wrapped__"])
    changing = rebinds(function.__code__) if function.__closure__ else frozenset[str]()
    for name, cell, value in _cells(function):
        if type(value) in (FunctionType, MethodType, type, bool, int, float, str, bytes) and name not in changing:
            walk.watch.cell(cell, value)
            yield hashed(name, walk.describe(value))


def _cells(function: FunctionType) -> Iterator[tuple[str, types.CellType, object]]:
    """The variables of a closure, by name: versions order them differently."""
    for name, cell in sorted(
        zip(function.__code__.co_freevars, function.__closure__ or (), strict=True), key=operator.itemgetter(0)
    ):
        try:
            yield name, cell, cell.cell_contents
        except ValueError:  # not filled yet
            yield name, cell, EMPTY
