"""Pickles: plain pickle first, cloudpickle for what it refuses (lambdas, local classes, modules).

What the script itself defines goes by name wherever that works, and is found again however the script was started then and
now: as `__main__`, with `python -m`, or imported. Some objects are not pickled at all: those for which `name` gives a name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle

from .bulk import Bytes
from .errors import CodecError
from .modules import canonical_name

Naming = Callable[[Any], Any]  # the name of an object that is not kept by value, or None
Finding = Callable[[Any], Any]  # the object of that name

_GLOBAL = b"\x93"  # the opcode that names a class or function
_SCALARS = frozenset([type(None), bool, int, float, str, bytes])


class Pickled(NamedTuple):
    """A pickle stream, and the large buffers (arrays) that are kept apart from it, not copied.

    `has_globals`: the stream names classes or functions. `has_names`: it has names that `name` gave.
    """

    stream: bytes
    buffers: Sequence[pickle.PickleBuffer]
    has_globals: bool
    has_names: bool


def to_pickle(value: object, name: Naming | None = None, *, apart: bool = True) -> Pickled:
    """The pickle of a value. CodecError says what in it cannot be pickled."""
    buffers: list[pickle.PickleBuffer] = []
    callback = buffers.append if apart else None
    has_names = False
    try:
        if name is None:
            stream = pickle.dumps(value, 5, buffer_callback=callback)
        else:
            stream, has_names = _dump(_Pickler, value, name, callback)
    except Exception:  # whatever pickle or a class of the user's raises: cloudpickle may still manage
        buffers.clear()
        try:
            stream, has_names = _dump(_CloudPickler, value, name, callback)
        except Exception as error:
            if isinstance(error.__cause__, RecursionError):
                raise CodecError("the result is nested deeper than pickle can follow") from error
            path, kind = offender(value)
            raise CodecError(f"{path} is a {kind}, which cannot be pickled ({error})") from error
    # The opcode's byte may also be part of a text or a number. Then a plain value takes the longer way, which does no harm.
    has_globals = type(value) not in _SCALARS and _GLOBAL in stream
    return Pickled(stream, buffers, has_globals, has_names)


def from_pickle(
    stream: Bytes, buffers: Sequence[Bytes] = (), *, main: str = "__main__", find: Finding | None = None
) -> Any:
    """The value again. `main` is the name of the script that it was pickled in, `find` gives the objects that have names."""
    return _Unpickler(stream, buffers, main, find).load()


class _Names:
    """The part of a pickler that asks for names."""

    _name: Naming | None
    has_names = False

    def persistent_id(self, obj: Any, /) -> Any:
        found = None if self._name is None else self._name(obj)
        if found is not None:
            self.has_names = True
        return found


class _Pickler(_Names, pickle.Pickler):
    pass


class _CloudPickler(_Names, cloudpickle.Pickler):
    """cloudpickle, but what the script defines goes by name, so that a recalled object is of the script's own class."""

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__" and isinstance(getattr(obj, "__qualname__", None), str):
            try:
                if pickle.loads(pickle.dumps(obj)) is obj:
                    return NotImplemented
            except Exception:  # not reachable by name: by value then
                pass
        return super().reducer_override(obj)


def _dump(kind: Callable[..., Any], value: object, name: Naming | None, callback: Any) -> tuple[bytes, bool]:
    file = io.BytesIO()
    pickler = kind(file, 5, buffer_callback=callback)
    pickler._name = name
    pickler.dump(value)
    return file.getvalue(), pickler.has_names


class _Unpickler(pickle.Unpickler):
    """Finds classes of the running script under its own name."""

    def __init__(self, stream: Bytes, buffers: Sequence[Bytes], main: str, find: Finding | None) -> None:
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self._main = main
        self._find = find

    def persistent_load(self, pid: Any, /) -> Any:
        if self._find is None:
            raise CodecError("it belongs to a call's arguments, and there is no call")
        return self._find(pid)

    def find_class(self, module: str, name: str, /) -> Any:
        home = self._main if module in ("__main__", "__mp_main__") and self._main else module
        return super().find_class("__main__" if home == canonical_name("__main__") else home, name)


def offender(value: object, path: str = "the result") -> tuple[str, str]:
    """Where in `value` the object sits that cannot be pickled, and its type."""
    seen: set[int] = set()
    while id(value) not in seen:
        seen.add(id(value))
        for step, child in _children(value):
            if not _picklable(child):
                value, path = child, path + step
                break
    return path, type(value).__name__


def _children(value: object) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{i}]", child) for i, child in enumerate(value)]
    return [(f".{name}", child) for name, child in getattr(value, "__dict__", {}).items()]


def _picklable(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
