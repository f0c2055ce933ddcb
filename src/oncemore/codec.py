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
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from blake3 import blake3

from . import compression
from .bulk import FIXED, LARGE, Bytes, Headed, copied, hasher, is_mapped
from .errors import CodecError, IntegrityError
from .events import to_json
from .facts import dataclass
from .modules import canonical_name, loading

Naming = Callable[[Any], Any]  # the name of an object that is not kept by value, or None
Finding = Callable[[Any], Any]  # the object of that name

MAGIC = b"ONCE"
VERSION = 1
_HEAD = MAGIC + bytes((VERSION,))
_ENVELOPE = len(_HEAD) + 32
_COUNT = struct.Struct("<I")
_FRAME = struct.Struct("<BBQQ")  # packing, item size, bytes here, bytes unpacked
_ALIGNED = 64  # buffers begin at multiples of this, counted from the entry's beginning: an array is used where it lies


_PLAIN = frozenset([type(None), bool, int, float, str, bytes])
_GLOBAL = b"\x93"  # the operation of a pickle that names a class; in a text it may stand, too, which does no harm
_MORE = frozenset(["effects", "roots", "reads", "readings", "items", "forgotten", "blobs"])  # said of more than a value
_BARE = 0  # in the place of the item size of the metadata: `pickle.loads` of the pickle gives all that there is
_SECONDS = struct.Struct("<d")
_GLANCE = 4096  # bytes; what is larger is not kept in memory

# A small entry has two frames, both as they are. `glance` knows where things are in it.
_SMALL = struct.Struct("<I" + 2 * "BBQQ")
_GLANCED = _SMALL.pack(2, compression.RAW, _BARE, 0, 0, 0, 0, 0, 0)[:6]  # how the body begins
_PACKING = _ENVELOPE + _COUNT.size + _FRAME.size
_LENGTH = slice(_ENVELOPE + len(_GLANCED), _ENVELOPE + len(_GLANCED) + 8)  # of the metadata
_META = _ENVELOPE + _SMALL.size
_TOOK = b'{"seconds":'  # how the metadata of a step's checkpoint begins


def seal(frames: Sequence[Bytes], key: str, secret: bytes) -> Sequence[Bytes]:
    """The frames as a signed entry that counts under `key` only."""
    size = sum(map(len, frames))
    if size >= LARGE:
        return Headed(_ENVELOPE, frames, lambda frames: _HEAD + _mac(frames, key, secret, size))
    return [_HEAD + _mac(frames, key, secret), *frames]


def unseal(data: Bytes, key: str, secret: bytes) -> memoryview:
    """The body of a signed entry; IntegrityError unless it was signed with `secret` for `key`."""
    view = memoryview(data)
    if view.nbytes < _ENVELOPE or bytes(view[:4]) != MAGIC:
        raise IntegrityError(f"entry {key} is not an entry of oncemore: cut short or overwritten")
    if view[4] != VERSION:
        raise IntegrityError(f"entry {key} has format {view[4]}; this oncemore reads format {VERSION}")
    body = view[_ENVELOPE:]
    if _mac([body], key, secret, body.nbytes) != bytes(view[5:_ENVELOPE]):
        raise IntegrityError(f"entry {key} was altered, moved from another key, or signed with another secret")
    return body


_spare: dict[bytes, list[Any]] = {}  # hashers by their secret: one costs more to make than to use on a small entry


def _mac(frames: Sequence[Bytes], key: str, secret: bytes, size: int = 0) -> bytes:
    name = key.encode()
    large = size >= LARGE
    try:
        mac = hasher(size, key=secret) if large else _spare[secret].pop()
    except LookupError:
        mac = blake3(key=secret)
    mac.update(_COUNT.pack(len(name)) + name)
    for frame in frames:
        mac.update(frame)
    found: bytes = mac.digest()
    if not large:
        mac.reset()
        _spare.setdefault(secret, []).append(mac)
    return found


@dataclass
class Encoded:
    """An entry ready to be written under `key`."""

    key: str
    frames: Sequence[Bytes]
    raw_bytes: int
    stored_bytes: int
    small: bytes | None = None  # what `glance` would give


def encode(value: object, meta: Mapping[str, Any], *, key: str, secret: bytes, name: Naming | None = None) -> Encoded:
    """`value` with its metadata as a signed entry. CodecError names what in the value cannot be pickled.

    Objects for which `name` gives a name are kept as that name instead of by value.
    """
    stream, buffers = _pickle(value, name)
    if b"__main__" in stream:
        meta = {**meta, "main": canonical_name("__main__")}
    about = to_json(dict(meta))
    plain = not buffers and name is None and _MORE.isdisjoint(meta)
    item = _BARE if plain and (type(value) in _PLAIN or _GLOBAL not in stream) else 1
    if not buffers and max(len(about), len(stream)) < compression.SMALL:
        frames: list[Bytes] = [
            _SMALL.pack(2, 0, item, len(about), len(about), 0, 1, len(stream), len(stream)) + about + stream
        ]
        small = stream + _SECONDS.pack(meta.get("seconds", 0.0)) if item == _BARE else None
        return Encoded(key, seal(frames, key, secret), len(about) + len(stream), _ENVELOPE + len(frames[0]), small)
    parts: list[Bytes | pickle.PickleBuffer] = [about, stream, *buffers]
    packed = [compression.pack(part) for part in parts]
    packed[0].item = item
    table = b"".join(_FRAME.pack(p.packing, p.item, p.size, p.raw) for p in packed)
    frames = [_COUNT.pack(len(packed)) + table]
    offset = len(frames[0])
    for number, p in enumerate(packed):
        gap = _gap(number, offset)
        frames += [bytes(gap), *p.pieces] if gap else p.pieces
        offset += gap + p.size
    return Encoded(key, seal(frames, key, secret), sum(p.raw for p in packed), _ENVELOPE + offset)


def _gap(number: int, offset: int) -> int:
    """Bytes that are left out before a frame; the first two, metadata and pickle stream, follow at once."""
    return -(_ENVELOPE + offset) % _ALIGNED if number >= 2 else 0


def glance(data: bytes, key: str, secret: bytes) -> bytes | None:
    """The pickle of a small bare entry, and after it how long the step took; None: it is to be decoded.

    One piece, which the garbage collector has no interest in: there may be very many. `pickle.loads` takes what it needs.
    """
    # Asked first, and believed only after the MAC: what is not bare is verified when it is decoded.
    if len(data) > _GLANCE or not data.startswith(_GLANCED, _ENVELOPE):
        return None
    if data[:5] != _HEAD or _mac((data[_ENVELOPE:],), key, secret) != data[5:_ENVELOPE]:
        return None
    if data[_PACKING] != compression.RAW or not data.startswith(_TOOK, _META):
        return None
    size = int.from_bytes(data[_LENGTH], "little")
    took = float(data[_META + len(_TOOK) : data.index(b",", _META)])
    return data[_META + size :] + _SECONDS.pack(took)


def took(small: bytes) -> float:
    """How long the step took, from what `glance` gave."""
    seconds: float = _SECONDS.unpack_from(small, len(small) - _SECONDS.size)[0]
    return seconds


def _table(body: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """The frames of an entry: packing, item size, where it begins, bytes there, bytes unpacked."""
    (count,) = _COUNT.unpack_from(body)
    offset = _COUNT.size + count * _FRAME.size
    for number, (packing, item, size, raw) in enumerate(_FRAME.iter_unpack(body[_COUNT.size : offset])):
        offset += _gap(number, offset)
        yield packing, item, offset, size, raw
        offset += size


def _lasting(data: Bytes) -> bool:
    """Whether all of a mapped entry that is looked into, not only handed on as an array's content, stands where it is fixed."""
    body, most = memoryview(data)[_ENVELOPE:], FIXED - _ENVELOPE
    try:
        if _COUNT.unpack_from(body)[0] > most // _FRAME.size:
            return False
        return all(
            at + size <= most or (number >= 2 and packing == compression.RAW)
            for number, (packing, _, at, size, _) in enumerate(_table(body))
        )
    except struct.error:
        return False


class Decoded:
    """An entry whose signature was right. Metadata and value are read when asked for."""

    def __init__(self, data: Bytes, *, key: str, secret: bytes) -> None:
        if is_mapped(data) and not _lasting(data):
            data = copied(data)  # what is verified must be what is then looked into
        body = unseal(data, key, secret)
        self._frames = [(packing, item, body[at : at + size], raw) for packing, item, at, size, raw in _table(body)]
        self.key = key
        self.bare = self._frames[0][1] == _BARE

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        """The metadata. Skipping a step that is nothing but a value does without."""
        facts: dict[str, Any] = json.loads(bytes(compression.unpack(*self._frames[0])))
        return facts

    @property
    def alone(self) -> bool:
        """Whether the value is all that there is, and needs nothing of the call to be loaded."""
        return self.bare or _MORE.isdisjoint(self.meta)

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
    with loading:
        from .byvalue import Pickler
    try:
        return _dump(Pickler, value, name, callback), buffers
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
    with loading:
        import cloudpickle
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
