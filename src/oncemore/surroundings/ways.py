"""How objects of each type are looked into and changed in place."""

from __future__ import annotations

import array
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from ..file import File, FileChange
from ..modules import loaded

ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented)))
# Types that cannot change, by name: most programs never load them.
_IMMUTABLE = frozenset(
    [
        "datetime.datetime",
        "datetime.date",
        "datetime.time",
        "datetime.timedelta",
        "datetime.timezone",
        "zoneinfo.ZoneInfo",
        "re.Pattern",
        "decimal.Decimal",
        "fractions.Fraction",
        "uuid.UUID",
        "ipaddress.IPv4Address",
        "ipaddress.IPv6Address",
    ]
)
_HEAPTYPE = 1 << 9

T = TypeVar("T")


def _once_per_type(function: Callable[[type], T]) -> Callable[[type], T]:
    return lru_cache(maxsize=4096)(function)


class Way(NamedTuple):
    """How one type of object is looked into and changed in place."""

    children: Callable[[Any], Iterable[Any]]
    content: Callable[[Any], Any]
    assign: Callable[[Any, Any], None]
    heavy: Callable[[Any], bool] | None = None  # large and without children: worth a digest of its own
    possible: Callable[[Any], bool] | None = None  # whether this very object's content can be kept and put back

    def can(self, obj: Any) -> bool:
        return self.possible is None or self.possible(obj)


class Role(NamedTuple):
    """What objects of one type are to the walk through an argument."""

    children: Callable[[Any], Iterable[Any]]
    changes: bool  # or they are only looked through
    alone: bool  # some of them are compared one by one


@_once_per_type
def fixed(kind: type) -> bool:
    """Whether objects of this type never change."""
    if kind in ATOMS or f"{kind.__module__}.{kind.__qualname__}" in _IMMUTABLE:
        return True
    if issubclass(kind, (type, ModuleType, Enum)):  # classes change by patching code
        return True
    paths = loaded("pathlib")
    if paths is not None and issubclass(kind, paths.PurePath):
        return True
    numpy = loaded("numpy")
    return numpy is not None and issubclass(kind, (numpy.generic, numpy.dtype)) and not issubclass(kind, numpy.void)


@_once_per_type
def role(kind: type) -> Role | None:
    """None for types whose objects never change."""
    if fixed(kind):
        return None
    inside, how = through(kind), way(kind)
    if inside is not None:
        return Role(inside, changes=False, alone=False)
    if how is None:
        return Role(_nothing, changes=True, alone=True)
    return Role(how.children, changes=True, alone=bool(how.heavy or how.possible))


@_once_per_type
def way(kind: type) -> Way | None:
    """How objects of this type are changed in place; None if that is not known."""
    found = _WAYS.get(kind) or _library_way(kind)
    if found is not None:
        return found
    if kind.__module__.partition(".")[0] in ("pandas", "polars", "pyarrow"):
        return None  # what they are made of changes without their content changing: caches
    base = next((b for b in kind.__mro__ if b in _WAYS), None)
    layout = _layout(kind)
    if base is not None:
        return _with_attributes(_WAYS[base]) if layout in (base, OrderedDict) else None
    # an object is its attributes, unless something written in C keeps more of it
    transparent = (object, SimpleNamespace, int, float, complex, str, bytes)
    return _PLAIN if layout in transparent and (kind.__dictoffset__ or _slots(kind)) else None


@_once_per_type
def through(kind: type) -> Callable[[Any], Iterable[Any]] | None:
    """How to see what is inside something that cannot be changed itself; None if it is not such a thing."""
    if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return tuple.__iter__
    if issubclass(kind, FunctionType):
        return _captured
    if issubclass(kind, (MethodType, BuiltinFunctionType)):
        return lambda obj: (obj.__self__,)
    if kind is partial:
        return lambda obj: (obj.func, obj.args, obj.keywords)
    return None


def _captured(function: FunctionType) -> Iterable[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet bound
            continue


def _layout(kind: type) -> type:
    """The nearest base that was not made by a class statement."""
    for base in kind.__mro__:
        made = vars(base).get("__new__")
        if not base.__flags__ & _HEAPTYPE or (isinstance(made, BuiltinFunctionType) and made.__self__ is base):
            return base
    return object


def _nothing(obj: Any) -> Iterable[Any]:
    return ()


# -- containers, through the methods of their builtin base: a subclass may have other plans with its own


def _keyed(obj: Any) -> Any:
    return OrderedDict if isinstance(obj, OrderedDict) else dict


def _entries(obj: Any) -> list[tuple[Any, Any]]:
    return list(_keyed(obj).items(obj))


def _assign_entries(obj: Any, content: list[tuple[Any, Any]]) -> None:
    base = _keyed(obj)
    base.clear(obj)
    for key, value in content:
        base.__setitem__(obj, key, value)


def _assign_default(obj: Any, content: tuple[Any, list[tuple[Any, Any]]]) -> None:
    obj.default_factory = content[0]
    _assign_entries(obj, content[1])


def _assign_items(obj: Any, content: Any) -> None:
    base: Any = list if isinstance(obj, list) else bytearray
    base.__setitem__(obj, slice(None), content)


def _assign_elements(obj: Any, content: Any) -> None:
    set.clear(obj)
    set.update(obj, content)


def _assign_queue(obj: Any, content: Any) -> None:
    deque.clear(obj)
    deque.extend(obj, content)


def _assign_numbers(obj: Any, content: Any) -> None:
    obj[:] = content


def _values_and_keys(obj: Any) -> Iterable[Any]:
    entries = _entries(obj)
    return [*(value for _, value in entries), *(key for key, _ in entries)]


def _of_fixed(obj: Any) -> bool:
    return all(map(_fixed_through, set.__iter__(obj)))  # a set's order is no name for its elements


def _fixed_through(obj: Any) -> bool:
    if isinstance(obj, (tuple, frozenset)):
        return all(map(_fixed_through, obj))
    return fixed(type(obj))


_WAYS: dict[type, Way] = {
    list: Way(list.__iter__, lambda obj: list(list.__iter__(obj)), _assign_items),
    dict: Way(_values_and_keys, _entries, _assign_entries),
    defaultdict: Way(_values_and_keys, lambda obj: (obj.default_factory, _entries(obj)), _assign_default),
    set: Way(_nothing, lambda obj: list(set.__iter__(obj)), _assign_elements, possible=_of_fixed),
    deque: Way(deque.__iter__, lambda obj: list(deque.__iter__(obj)), _assign_queue),
    bytearray: Way(_nothing, bytes, _assign_items, heavy=lambda obj: True),
    File: Way(_nothing, FileChange, lambda obj, change: change.make(obj), heavy=lambda obj: True),
    array.array: Way(_nothing, lambda obj: obj[:], _assign_numbers, heavy=lambda obj: True),
}


# -- plain objects


@_once_per_type
def _slots(kind: type) -> tuple[str, ...]:
    names: set[str] = set()
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            names.add(f"_{base.__name__.lstrip('_')}{name}" if hidden else name)
    return tuple(sorted(names - {"__dict__", "__weakref__"}))


def _attributes(obj: Any) -> dict[str, Any]:
    return {
        **getattr(obj, "__dict__", {}),
        **{name: getattr(obj, name) for name in _slots(type(obj)) if hasattr(obj, name)},
    }


def _assign_attributes(obj: Any, content: dict[str, Any]) -> None:
    slots, state = _slots(type(obj)), getattr(obj, "__dict__", None)
    for name in slots:
        if name not in content and hasattr(obj, name):
            object.__delattr__(obj, name)
    if state is not None:
        state.clear()
        state.update((name, value) for name, value in content.items() if name not in slots)
    for name in slots:
        if name in content:
            object.__setattr__(obj, name, content[name])  # also where the class forbids it: a frozen dataclass's cache


def _sorted_attributes(obj: Any) -> Iterable[Any]:
    found = _attributes(obj) if _slots(type(obj)) else getattr(obj, "__dict__", {})
    return [found[name] for name in sorted(found)]


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
        possible=base.possible,
    )


# -- arrays, frames and generators, of libraries that are loaded anyway


def _assign_array(obj: Any, content: Any) -> None:
    if obj.shape != content.shape:
        obj.resize(content.shape, refcheck=False)
    obj[...] = content


def _assign_frame(obj: Any, content: Any) -> None:
    obj._update_inplace(content)
    obj.attrs = content.attrs
    if obj.ndim == 1:
        obj.name = content.name


def _array_way(kind: type) -> Way:
    return Way(
        lambda obj: obj.flat if obj.dtype.hasobject else (),
        lambda obj: obj.view(),
        _assign_array,
        heavy=lambda obj: not obj.dtype.hasobject,
        possible=lambda obj: bool(obj.flags.writeable),
    )


def _gradient(obj: Any) -> Iterable[Any]:
    return (obj.grad,) if obj.is_leaf and obj.grad is not None else ()


def _tensor_content(obj: Any) -> tuple[Any, bool, Any]:
    return obj.detach(), obj.requires_grad, next(iter(_gradient(obj)), None)


def _assign_tensor(obj: Any, content: tuple[Any, bool, Any]) -> None:
    data, requires_grad, grad = content
    if obj.shape == data.shape and obj.dtype == data.dtype:
        obj.data.copy_(data)  # where it lies: other tensors may be views of it
    else:
        obj.data = data
    if obj.is_leaf:
        obj.requires_grad_(requires_grad)
        obj.grad = grad


def _plain_tensor(obj: Any) -> bool:
    """Whether each number has a place of its own that may be written to."""
    if obj.layout is not sys.modules["torch"].strided or obj.is_nested or obj.is_inference():
        return False
    return all(stride or size < 2 for size, stride in zip(obj.shape, obj.stride()))


def _library_way(kind: type) -> Way | None:
    numpy, pandas, polars, torch = (loaded(name) for name in ("numpy", "pandas", "polars", "torch"))
    if issubclass(kind, random.Random):
        return Way(_nothing, lambda obj: obj.getstate(), lambda obj, content: obj.setstate(content))
    if numpy is not None:
        if issubclass(kind, numpy.ndarray):
            return _array_way(kind)
        if issubclass(kind, numpy.random.Generator):
            return Way(
                _nothing, lambda obj: obj.bit_generator.state, lambda obj, s: setattr(obj.bit_generator, "state", s)
            )
        if issubclass(kind, numpy.random.RandomState):
            return Way(_nothing, lambda obj: obj.get_state(legacy=False), lambda obj, content: obj.set_state(content))
    if pandas is not None and issubclass(kind, (pandas.DataFrame, pandas.Series)):
        return Way(_nothing, lambda obj: obj.copy(deep=False), _assign_frame, heavy=lambda obj: True)
    if polars is not None and issubclass(kind, (polars.DataFrame, polars.Series)):
        inner = "_df" if issubclass(kind, polars.DataFrame) else "_s"
        swap: Callable[[Any, Any], None] = lambda obj, content: setattr(obj, inner, getattr(content, inner))  # noqa: E731
        return Way(_nothing, lambda obj: obj.clone(), swap, heavy=lambda obj: True)
    if torch is not None and issubclass(kind, torch.Tensor):
        return Way(_gradient, _tensor_content, _assign_tensor, heavy=lambda obj: True, possible=_plain_tensor)
    if issubclass(kind, getattr(torch, "Generator", ())):
        return Way(_nothing, lambda obj: obj.get_state(), lambda obj, content: obj.set_state(content))
    return None
