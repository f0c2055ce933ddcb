"""Values to frames of bytes and back. See docs/explanation/format.md for the layout.

An entry is `magic, version, MAC, body`. The MAC is a keyed BLAKE3 over the entry's key and its body; nothing in the body is
looked at before the MAC has been found right, so neither the decompressor nor pickle ever sees a byte that we did not
write under that key.
"""

from __future__ import annotations

import functools
import io
import json
import pickle
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import cloudpickle
from blake3 import blake3

from . import compression
from .errors import CodecError, IntegrityError
from .modules import canonical_name

Bytes = Union[bytes, bytearray, memoryview]
Naming = Callable[[Any], Any]  # the name of an object that is not kept by value, or None
Finding = Callable[[Any], Any]  # the object of that name

MAGIC = b"ONCE"
VERSION = 1
_ENVELOPE = len(MAGIC) + 1 + 32
_COUNT = struct.Struct("<I")
_FRAME = struct.Struct("<BBQQ")  # packing, item size, bytes here, bytes unpacked
_ALIGNED = 64  # buffers begin at multiples of this, counted from the entry's beginning: an array is used where it lies


def seal(frames: Sequence[Bytes], key: str, secret: bytes) -> list[Bytes]:
    """The frames as a signed entry that counts under `key` only."""
    return [MAGIC + bytes((VERSION,)) + _mac(frames, key, secret), *frames]


def unseal(data: Bytes, key: str, secret: bytes) -> memoryview:
    """The body of a signed entry; IntegrityError unless it was signed with `secret` for `key`."""
    view = memoryview(data)
    if view.nbytes < _ENVELOPE or bytes(view[:4]) != MAGIC:
        raise IntegrityError(f"entry {key} is not an entry of oncemore: cut short or overwritten")
    if view[4] != VERSION:
        raise IntegrityError(f"entry {key} has format {view[4]}; this oncemore reads format {VERSION}")
    body = view[_ENVELOPE:]
    if _mac([body], key, secret) != bytes(view[5:_ENVELOPE]):
        raise IntegrityError(f"entry {key} was altered, moved from another key, or signed with another secret")
    return body


def _mac(frames: Sequence[Bytes], key: str, secret: bytes) -> bytes:
    name = key.encode()
    mac = blake3(_COUNT.pack(len(name)) + name, key=secret)
    for frame in frames:
        mac.update(frame)
    return mac.digest()


@dataclass(frozen=True)
class Encoded:
    """An entry ready to be written under `key`."""

    key: str
    frames: list[Bytes]
    raw_bytes: int

    @property
    def stored_bytes(self) -> int:
        return sum(memoryview(frame).nbytes for frame in self.frames)


def encode(value: object, meta: Mapping[str, Any], *, key: str, secret: bytes, name: Naming | None = None) -> Encoded:
    """`value` with its metadata as a signed entry. CodecError names what in the value cannot be pickled.

    Objects for which `name` gives a name are kept as that name instead of by value.
    """
    stream, buffers = _pickle(value, name)
    if b"__main__" in stream:
        meta = {**meta, "main": canonical_name("__main__")}
    parts: list[Bytes | pickle.PickleBuffer] = [json.dumps(meta, separators=(",", ":")).encode(), stream, *buffers]
    packed = [compression.pack(part) for part in parts]
    table = b"".join(_FRAME.pack(p.packing, p.item, memoryview(p.data).nbytes, p.raw) for p in packed)
    frames: list[Bytes] = [_COUNT.pack(len(packed)) + table]
    offset = len(frames[0])
    for number, p in enumerate(packed):
        gap = _gap(number, offset)
        frames += [bytes(gap), p.data] if gap else [p.data]
        offset += gap + memoryview(p.data).nbytes
    return Encoded(key, seal(frames, key, secret), sum(p.raw for p in packed))


def _gap(number: int, offset: int) -> int:
    """Bytes that are left out before a frame; the first two, metadata and pickle stream, follow at once."""
    return -(_ENVELOPE + offset) % _ALIGNED if number >= 2 else 0


_BARE = 4096  # bytes
# In the metadata: there is more to the entry than its value. A text among the metadata may look like it, which does no harm.
_MORE = re.compile(rb'"(?:effects|roots|reads|readings|items|forgotten)"')
_SECONDS = re.compile(rb'"seconds":([-+.e0-9]+)')
_GLOBAL = b"\x93"  # the operation of a pickle that names a class; in a text it may stand, too, which does no harm here


class Decoded:
    """An entry whose signature was right. Metadata and value are read when asked for."""

    def __init__(self, data: Bytes, *, key: str, secret: bytes) -> None:
        body = unseal(data, key, secret)
        (count,) = _COUNT.unpack_from(body)
        offset = _COUNT.size + count * _FRAME.size
        self._frames: list[tuple[int, int, memoryview, int]] = []
        for number, (packing, item, size, raw) in enumerate(_FRAME.iter_unpack(body[_COUNT.size : offset])):
            offset += _gap(number, offset)
            self._frames.append((packing, item, body[offset : offset + size], raw))
            offset += size
        self.key = key
        self._about = compression.unpack(*self._frames[0])
        self.plain = _MORE.search(self._about) is None  # it is a value and nothing else

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        """The metadata. Skipping a step that is nothing but a value does without."""
        facts: dict[str, Any] = json.loads(bytes(self._about))
        return facts

    @property
    def seconds(self) -> float:
        """How long the step took."""
        found = _SECONDS.search(self._about)
        return float(found[1]) if found else 0.0

    def bare(self) -> bytes | None:
        """The pickle, if it is small and `pickle.loads` gives the whole value: no classes, no objects kept by name, no effects."""
        if not self.plain or len(self._frames) != 2 or self._frames[1][3] > _BARE:
            return None
        stream = bytes(compression.unpack(*self._frames[1]))
        return None if _GLOBAL in stream else stream

    def holds(self, other: Decoded) -> bool:
        """Whether what is stored of the value is the same, byte for byte; if not, the values may still be equal."""
        return [frame[2:] for frame in self._frames[1:]] == [frame[2:] for frame in other._frames[1:]]

    def load(self, find: Finding | None = None) -> Any:
        """A fresh value, sharing no memory with what any other call returned; `find` gives the objects kept by name."""
        try:
            stream = compression.unpack(*self._frames[1])
            buffers = [compression.unpack(*frame) for frame in self._frames[2:]]
            return _Unpickler(stream, buffers, self.meta.get("main", ""), find).load()
        except Exception as error:  # a pickle runs the user's classes: anything can come out of it
            raise CodecError(f"entry {self.key} cannot be read back: {type(error).__name__}: {error}") from error


def dumps(value: object, name: Naming | None = None) -> bytes:
    """One value as bytes, for those that are kept inside another entry or in memory."""
    return _pickle(value, name, apart=False)[0]


def loads(data: bytes, main: str = "__main__", find: Finding | None = None) -> Any:
    """The value again; `main` is what the script was called that `dumps` ran in."""
    return _Unpickler(data, (), main, find).load()


class _Unpickler(pickle.Unpickler):
    """Finds classes of the running script under its own name, however the script was started then and now."""

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


class _NamingPickler(pickle.Pickler):
    """pickle that keeps some objects by name."""

    def __init__(self, *args: Any, name: Naming, **options: Any) -> None:
        super().__init__(*args, **options)
        self._name = name

    def persistent_id(self, obj: Any, /) -> Any:
        return self._name(obj)


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, but what the script itself defines goes by name, so that a recalled object is of the script's own class."""

    def __init__(self, *args: Any, name: Naming | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._name = name

    def persistent_id(self, obj: Any, /) -> Any:
        return None if self._name is None else self._name(obj)

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__" and isinstance(getattr(obj, "__qualname__", None), str):
            try:
                if pickle.loads(pickle.dumps(obj)) is obj:
                    return NotImplemented
            except Exception:  # not reachable by name: by value then
                pass
        return super().reducer_override(obj)


def _pickle(value: object, name: Naming | None, *, apart: bool = True) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """The pickle stream, and `apart` from it the large buffers (arrays), not copied."""
    buffers: list[pickle.PickleBuffer] = []
    callback = buffers.append if apart else None
    try:
        if name is None:
            return pickle.dumps(value, 5, buffer_callback=callback), buffers
        return _dump(_NamingPickler, value, name, callback), buffers
    except Exception:  # lambdas, local classes, modules...: cloudpickle knows more
        buffers.clear()
    try:
        return _dump(_Pickler, value, name, callback), buffers
    except Exception as error:
        if isinstance(error.__cause__, RecursionError):
            raise CodecError("the result is nested deeper than pickle can follow") from error
        path, kind = offender(value)
        raise CodecError(f"{path} is a {kind}, which cannot be pickled ({error})") from error


def _dump(pickler: Any, value: object, name: Naming | None, callback: Any) -> bytes:
    file = io.BytesIO()
    pickler(file, 5, buffer_callback=callback, name=name).dump(value)
    return file.getvalue()


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
