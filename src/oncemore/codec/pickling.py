"""Pickling: plain pickle first, cloudpickle for what it refuses (lambdas, local classes, modules).

Classes and functions of the script are pickled by name where possible, and are found again however the script is started: as
`__main__`, with `python -m`, or imported. Objects that `name` returns a name for are replaced by that name. Where a type's own
pickle would not restore the object as it was, the object is pickled in another way (`_Reducers`), or refused.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import io
import itertools
import operator
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import (
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import cloudpickle

from ..errors import CodecError
from ..modules import (
    canonical_name,
    ended_early,
    global_generator,
    global_generators,
    import_for_classes,
    loaded,
    of_class,
)
from ..stores import Bytes

Naming = Callable[[Any], Any]  # returns the name of an object that is not saved by value, or None
Finding = Callable[[Any], Any]  # returns the object with that name

_GLOBAL = b"\x93"  # the opcode STACK_GLOBAL, for classes and functions
_SCALARS = frozenset([type(None), bool, int, float, str, bytes])


class Pickled(NamedTuple):
    """A pickle stream and its out-of-band buffers (large arrays), which are not copied.

    `has_globals`: the stream may refer to classes or functions. `has_names`: it contains names returned by `name`.
    """

    stream: bytes
    buffers: Sequence[pickle.PickleBuffer]
    has_globals: bool
    has_names: bool


def to_pickle(value: object, name: Naming | None = None, *, out_of_band: bool = True) -> Pickled:
    """Pickle a value. CodecError says what in it cannot be pickled."""
    buffers: list[pickle.PickleBuffer] = []
    separate = buffers if out_of_band else None
    has_names = False
    try:
        if type(value) in _SCALARS:
            stream = pickle.dumps(value, 5)
        else:
            stream, has_names = _dump(_Pickler if name is None else _NamingPickler, value, name, separate)
    except Exception:  # from pickle or from a class of the user's; cloudpickle may still succeed
        buffers.clear()
        try:
            stream, has_names = _dump(_CloudPickler, value, name, separate)
        except Exception as error:
            if isinstance(error.__cause__, RecursionError):
                raise CodecError("the result is nested deeper than pickle can follow") from error
            raise CodecError(_trouble(value, error)) from error
    # The opcode's byte may also be part of a string or a number. Then loading is slower, but still correct.
    has_globals = type(value) not in _SCALARS and _GLOBAL in stream
    return Pickled(stream, buffers, has_globals, has_names)


def from_pickle(
    stream: Bytes, buffers: Sequence[Bytes] = (), *, main: str = "__main__", find: Finding | None = None
) -> Any:
    """Load a value. `main` is the name that the script had when it was pickled; `find` returns the objects saved by name."""
    return _Unpickler(stream, buffers, main, find).load()


class _Pickler(pickle.Pickler):
    _name: Naming | None
    has_names = False

    def __init__(self, file: io.BytesIO, protocol: int, *, buffer_callback: Any) -> None:
        self.dispatch_table = _Reducers(copyreg.dispatch_table)
        super().__init__(file, protocol, buffer_callback=buffer_callback)


class _Names:
    """Mixin for picklers that replace objects by names. Slower, as it is called for every object."""

    _name: Naming | None
    has_names = False

    def persistent_id(self, obj: Any, /) -> Any:
        found = None if self._name is None else self._name(obj)
        if found is not None:
            self.has_names = True
        return found


class _NamingPickler(_Names, _Pickler):
    pass


class _CloudPickler(_Names, cloudpickle.Pickler):
    """cloudpickle, but pickles what the script defines by name, so that a recalled object has the script's own class."""

    def __init__(self, file: io.BytesIO, protocol: int, *, buffer_callback: Any) -> None:
        self.dispatch_table = _Reducers(type(self).dispatch_table)
        super().__init__(file, protocol, buffer_callback=buffer_callback)

    def reducer_override(self, obj: Any) -> Any:
        # In an effect, a lock that nobody holds can be replaced by a new one.
        if self._name is not None and isinstance(obj, _LOCKS) and not _is_held(obj):
            return (threading.RLock if isinstance(obj, _LOCKS[1]) else threading.Lock), ()
        if getattr(obj, "__module__", None) == "__main__" and isinstance(getattr(obj, "__qualname__", None), str):
            try:
                if pickle.loads(pickle.dumps(obj)) is obj:
                    return NotImplemented
            except Exception:  # not reachable by name: pickled by value
                pass
        reduced: Any = super().reducer_override(obj)
        if isinstance(reduced, tuple) and len(reduced) == 6:  # by value
            if isinstance(obj, type):
                _complete(obj, reduced)
            elif type(obj) is FunctionType:
                return _in_module(obj, reduced)
        return reduced


# --- classes and functions that are pickled by value ------------------------------------------------------------------


def _complete(kind: type, reduced: Any) -> None:
    """Add what cloudpickle omits of a class: its qualified name and its slots."""
    if not (isinstance(reduced[1][3], dict) and isinstance(reduced[2], tuple)):  # an enum, which is complete
        return
    making, attributes = reduced[1][3], reduced[2][0]
    if isinstance(vars(kind).get("__slots__"), (str, tuple, list)) and not issubclass(kind, tuple):
        making["__slots__"] = vars(kind)["__slots__"]
    for name in [name for name, each in attributes.items() if isinstance(each, MemberDescriptorType)]:
        del attributes[name]  # a slot with a private name, which the class creates by itself
    attributes["__qualname__"] = kind.__qualname__


def _in_module(function: FunctionType, reduced: Any) -> Any:
    """Pickle a function so that its globals, when it is loaded, are those of its module and not a copy."""
    space, name = function.__globals__, function.__globals__.get("__name__")
    if not isinstance(name, str) or getattr(sys.modules.get(name), "__dict__", None) is not space:
        return reduced
    code, _, _, _, closure = reduced[1]
    attributes, rest = reduced[2]
    del rest["__globals__"]
    is_script = name in ("__main__", "__mp_main__")
    return _function, (code, canonical_name(name), is_script, closure), (attributes, rest), None, None, _set_function


def _function(code: CodeType, module: str, is_script: bool, closure: Any) -> FunctionType:
    here = [sys.modules[alias] for alias in ("__main__", "__mp_main__") if alias in sys.modules]
    found = next((each for each in here if canonical_name(each.__name__) == module), None)
    if found is None:  # importing another script would run it
        found = sys.modules.get(module, ModuleType(module)) if is_script else import_module(module)
    return FunctionType(code, found.__dict__, None, None, closure)


def _set_function(function: FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, rest = state
    function.__dict__.update(attributes)
    del rest["_cloudpickle_submodules"]  # unpickling them has imported them
    for own, cell in zip(function.__closure__ or (), rest.pop("__closure__") or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            own.cell_contents = cell.cell_contents
    for name, value in rest.items():
        setattr(function, name, value)


_LOCKS = type(threading.Lock()), type(threading.RLock())


def _is_held(lock: Any) -> bool:
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


def _dump(
    kind: Callable[..., Any],
    value: object,
    name: Naming | None,
    buffers: list[pickle.PickleBuffer] | None,
    owners: Mapping[int, Any] = MappingProxyType({}),
) -> tuple[bytes, bool]:
    """The pickle, and whether it contains names. `owners` are arrays, by id, whose views are pickled as views."""
    file = io.BytesIO()
    pickler = kind(file, 5, buffer_callback=None if buffers is None else buffers.append)
    pickler._name = name
    reducers: _Reducers = pickler.dispatch_table
    reducers.owners.update(owners)
    if type(value) is itertools.count:  # allowed inside an object, where it numbers things
        _refuse(value)
    pickler.dump(value)
    if not owners:  # if a view came before its owner, pickle again, now that the owner is known
        shared = {at: owner for at, owner in reducers.shared().items() if name is None or name(owner) is None}
        if shared:
            if buffers is not None:
                buffers.clear()
            return _dump(kind, value, name, buffers, shared)
    return file.getvalue(), pickler.has_names


# --- objects that their own type's pickle would not restore as they were ----------------------------------------------


class _Reducers(dict[type, Callable[[Any], Any]]):
    """How objects of each type are pickled, chosen at the first object of the type: other hooks of a pickler are called for
    every object."""

    def __init__(self, known: Mapping[Any, Any]) -> None:
        super().__init__()
        self._known = known
        self.owners: dict[int, Any] = {}  # arrays in the pickle, by id; views of them are pickled as views
        self._copied: dict[int, list[Any]] = {}  # views that were pickled as copies, by the id of their owner

    def shared(self) -> dict[int, Any]:
        """Arrays, by id, whose views should not have been copied: the array is in the pickle, or its views cover half of it."""
        found = {id(owner): owner for owner in map(_owner, (views[0] for views in self._copied.values()))}
        return {
            at: owner
            for at, owner in found.items()
            if at in self.owners
            or (len(self._copied[at]) > 1 and owner.nbytes <= 2 * sum(view.nbytes for view in self._copied[at]))
        }

    def _plain_array(self, array: Any) -> Any:
        """Pickle an array of numpy's own type. A view of another array in the pickle stays a view of it."""
        owner = _owner(array)
        if owner is None:
            return _array(array)
        if owner is array:
            self.owners[id(array)] = array
        elif id(owner) in self.owners:
            at = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
            return _part, (owner, at, array.shape, array.strides, array.dtype, array.flags.writeable)
        elif array.size:
            self._copied.setdefault(id(owner), []).append(array)
        return _array(array)

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        found = _reducer(kind) or self._known.get(kind)
        if found is _array and kind is sys.modules["numpy"].ndarray:
            found = self._plain_array
        if found is None:
            if issubclass(kind, type):  # a class, which pickle pickles by name
                raise KeyError(kind)
            found = _as_it_says
        self[kind] = found
        return found


_as_it_says = operator.methodcaller("__reduce_ex__", 5)


class _Refused(pickle.PicklingError):
    """The object could be pickled, but would be something else when it is loaded."""


def _refuse(value: object) -> Any:
    raise _Refused(f"cannot pickle {type(value).__name__!r} object")


def _is_iterator(kind: type) -> bool:
    """Whether this is one of the iterators written in C. Those written in Python are pickled like any other object."""
    written_in_c = isinstance(of_class(kind, "__next__"), WrapperDescriptorType)
    return written_in_c and kind is not itertools.count and not issubclass(kind, io.IOBase)


def _reducer(kind: type) -> Callable[[Any], Any] | None:
    """How objects of this type are pickled; None if by the type's own pickle."""
    if kind is memoryview or _is_iterator(kind):
        return _refuse
    if kind is io.TextIOWrapper:
        return _stream
    if issubclass(kind, enum.Enum) and vars(enum.Enum)["__reduce_ex__"] is of_class(kind, "__reduce_ex__"):
        return _member
    if kind is functools.cached_property:
        return _property
    if kind is _CACHED:
        return _cached
    addresses = loaded("ipaddress")
    if addresses is not None and issubclass(kind, addresses.IPv6Address):
        return _as_text  # on older Pythons, its own pickle omits the scope
    mock = loaded("unittest.mock")
    if mock is not None and issubclass(kind, mock.NonCallableMock):
        return _refuse  # loading it fails
    numpy = loaded("numpy")
    shared = {type(each) for each in global_generators().values()}
    if kind in shared:
        return _generator
    if numpy is not None and issubclass(kind, numpy.ndarray):
        known = [vars(base).get(name) for base in (numpy.ndarray, numpy.ma.MaskedArray) for name in _ARRAYS_OWN]
        if all(of_class(kind, name) in known for name in _ARRAYS_OWN):  # otherwise the subclass has its own pickle
            return _array
    return None


def _stream(file: Any) -> Any:
    for name in ("stdout", "stderr", "stdin"):
        if file is getattr(sys, name) or file is getattr(sys, f"__{name}__"):
            return getattr, (sys, name if file is getattr(sys, name) else f"__{name}__")
    return _refuse(file)


def _as_text(value: Any) -> Any:
    return type(value), (str(value),)


def _property(found: Any) -> Any:
    """A cached_property of a class that is pickled by value. Before Python 3.12, it holds a lock."""
    return _make_property, (found.func, found.attrname)


def _make_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


_CACHED: type = type(functools.lru_cache(len))


def _cached(function: Any) -> Any:
    """Pickle an lru_cache function by name. One that cannot be found by name is restored with an empty cache."""
    try:
        found = functools.reduce(getattr, function.__qualname__.split("."), sys.modules[function.__module__])
    except (AttributeError, KeyError):
        found = None
    if found is function:
        return _as_it_says(function)
    return _make_cached, (function.__wrapped__, function.cache_parameters())


def _make_cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _generator(generator: Any) -> Any:
    name = global_generator(generator)
    return _as_it_says(generator) if name is None else (_global_generator, (name,))


def _global_generator(name: str) -> Any:
    if name.startswith("numpy"):
        import_module("numpy.random")
    return global_generators()[name]


def _member(member: Any) -> Any:
    """Pickle a member of an enum by name if its value is not hashable, as arrays are not; otherwise by value, as usual."""
    try:
        hash(member._value_)
    except TypeError:
        if member._name_ in type(member).__members__:
            return getattr, (type(member), member._name_)
    return _as_it_says(member)


_ARRAYS_OWN = ("__reduce__", "__reduce_ex__", "__setstate__")


def _owner(array: Any) -> Any:
    """The array that owns the memory, maybe the array itself; None if that is not one contiguous block of plain memory."""
    kind = sys.modules["numpy"].ndarray
    while isinstance(array.base, kind):
        array = array.base
    contiguous = array.flags.c_contiguous or array.flags.f_contiguous
    plain = array.dtype.isnative and not array.dtype.hasobject  # others are pickled differently
    return array if type(array) is kind and contiguous and plain else None


def _part(owner: Any, at: int, shape: Any, strides: Any, dtype: Any, writeable: bool) -> Any:
    memory = owner.ravel(order="K").view("u1")
    view = sys.modules["numpy"].ndarray(shape, dtype, memory, at, strides)
    if not writeable:
        view.flags.writeable = False
    return view


def _array(array: Any) -> Any:
    """Pickle an array with what numpy's own pickle omits: the byte order, if the array is not contiguous or of a subclass,
    and the attributes of a subclass."""
    numpy: Any = sys.modules["numpy"]
    if type(array) is not numpy.ndarray:
        attributes = {} if isinstance(array, numpy.memmap) else {**vars(array)}
        return _typed, (numpy.ndarray.view(array, numpy.ndarray), type(array)), attributes, None, None, _set_attributes
    if array.flags.c_contiguous or array.flags.f_contiguous or array.dtype.hasobject:
        if array.dtype.kind not in "mM" or array.dtype.isnative:
            return _as_it_says(array)
        numbers = array.view(array.dtype.str.replace(array.dtype.kind, "i", 1).partition("[")[0])
        return _typed, (numbers, array.dtype)
    whole = array.copy(order="C")
    whole.flags.writeable = array.flags.writeable
    return _array(whole)


def _typed(array: Any, kind: Any) -> Any:
    return array.view(kind)


def _set_attributes(array: Any, attributes: dict[str, Any]) -> None:
    vars(array).update(attributes)


class _Unpickler(pickle.Unpickler):
    """Finds the script's classes in the running script, whatever its module name is now."""

    def __init__(self, stream: Bytes, buffers: Sequence[Bytes], main: str, find: Finding | None) -> None:
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self._main = main
        self._find = find

    def persistent_load(self, pid: Any, /) -> Any:
        if self._find is None:
            raise CodecError("it refers to an argument of the call, and there is no call here")
        return self._find(pid)

    def find_class(self, module: str, name: str, /) -> Any:
        if module in ("__main__", "__mp_main__") and self._main:
            module = self._main
        if module == canonical_name("__main__"):
            return super().find_class("__main__", name)
        if module == self._main:
            import_for_classes(module)
        try:
            return super().find_class(module, name)
        except AttributeError as error:
            if module not in ended_early:
                raise
            raise AttributeError(
                f"the script {module} opens a run before it defines {name}: define it earlier, or open the run under "
                f'`if __name__ == "__main__":`'
            ) from error


# --- objects that cannot be pickled -----------------------------------------------------------------------------------


def _trouble(value: object, error: Exception) -> str:
    """What in `value` cannot be pickled, why, and what to return instead."""
    path, found = _innermost(value)
    kind = type(found)
    if any(base is io.IOBase.__base__ for base in kind.__mro__):
        return f"{path} is an open file ({kind.__name__}). Return its path or its content instead"
    if isinstance(of_class(kind, "__next__"), (FunctionType, WrapperDescriptorType)):
        return f"{path} is an iterator ({kind.__name__}), which can be read only once. Return a list instead"
    if kind is memoryview:
        return f"{path} is a memoryview of memory that others can change. Return bytes instead"
    return f"{path} is a {kind.__name__}, which cannot be pickled ({error})"


def offender(value: object, path: str = "the result") -> tuple[str, str]:
    """The path to the object inside `value` that cannot be pickled, and its type."""
    path, found = _innermost(value, path)
    return path, type(found).__name__


def _innermost(value: object, path: str = "the result") -> tuple[str, object]:
    """The innermost object that cannot be pickled, and the path to it."""
    seen: set[int] = set()
    while id(value) not in seen:
        seen.add(id(value))
        for step, child in _children(value):
            if not _picklable(child):
                value, path = child, path + step
                break
    return path, value


def _children(value: object) -> list[tuple[str, object]]:
    kind = type(value)  # not `isinstance`, which an object can fool
    if issubclass(kind, (dict, MappingProxyType)):
        pairs: Any = value
        return [(f"[{key!r}]", child) for key, child in pairs.items()]
    if issubclass(kind, (list, tuple, set, frozenset)):
        items: Any = value
        return [(f"[{i}]", child) for i, child in enumerate(items)]
    space = getattr(value, "__dict__", None)
    return [(f".{name}", child) for name, child in space.items()] if isinstance(space, dict) else []


def _picklable(value: object) -> bool:
    try:
        _dump(_CloudPickler, value, None, None)
    except Exception:
        return False
    return True
