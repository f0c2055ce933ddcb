"""Values to frames of bytes and back. See docs/explanation/format.md for the layout.

An entry is `magic, version, body, MAC`. The MAC is a keyed BLAKE3 over the entry's key and all bytes before the MAC. Nothing in
the body is used before the MAC is verified, so neither the decompressor nor pickle ever sees a byte that was not written under
that key with our secret.

The body of a value has a binary header. A hit parses only that header and the pickle, not the metadata, which is JSON.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from hmac import compare_digest
from typing import Any, NamedTuple

from blake3 import blake3

from ..errors import CodecError, IntegrityError
from ..events import to_json
from ..modules import canonical_name
from ..stores import Bytes
from ..stores.buffers import hasher
from . import compression
from .pickling import Finding, Naming, from_pickle, offender, to_pickle

__all__ = [
    "ALIAS",
    "ENCRYPTED",
    "FILES",
    "GLOBALS",
    "INSTEAD",
    "MAGIC",
    "MAIN",
    "NAMES",
    "TOMBSTONE",
    "VALUE_ONLY",
    "VERSION",
    "Decoded",
    "Encoded",
    "Finding",
    "Naming",
    "Packed",
    "alias",
    "dumps",
    "encode",
    "header_of",
    "loads",
    "offender",
    "pack",
    "resigned",
    "seal",
    "tombstone",
    "unseal",
    "unsigned",
]

MAGIC = b"ONCE"
VERSION = 1
ENCRYPTED = 2  # the version of an encrypted entry, see encryption.py
_HEAD = MAGIC + bytes((VERSION,))
_MAC = 32
_LENGTH = struct.Struct("<I")
_HEADER = struct.Struct("<HddI")  # flags, seconds, time, number of frames
_FRAME = struct.Struct("<BBQQ")  # packing, item size, bytes here, bytes unpacked
_FIRST = struct.Struct("<HddIBBQQBBQQ")  # the header with the first two frames, which every entry has
_ALIGNED = 64  # buffers start at multiples of this in the entry, so that arrays can use them in place
_WHOLE = 1 << 16  # bytes; a smaller entry is joined into one piece

# Flags of an entry.
VALUE_ONLY = 1  # only a value: no effects, reads, items or files, and no references to the caller's objects
TOMBSTONE = 2  # the node has no checkpoint any more; "hides" in the metadata says why
GLOBALS = 4  # the pickle may refer to classes or functions
NAMES = 8  # the pickle has references to the caller's objects
MAIN = 16  # the pickle refers to the script; "main" in the metadata is the script's name
FILES = 32  # the step read files, listed in "files" in the metadata
ALIAS = 64  # an alias; "to" in the metadata is the key of its target

INSTEAD = 128  # its step ran again; "instead" in the metadata says which checkpoint it replaced

# An entry with any of these in its metadata is more than a value.
_MORE = ("effects", "roots", "reads", "readings", "items", "hides", "blobs", "beside", "needs", "to")


# --- the envelope ---------------------------------------------------------------------------------------------------


def seal(frames: Sequence[Bytes], key: str, secret: bytes) -> list[Bytes]:
    """The frames as a signed entry, which is valid under `key` only."""
    content: list[Bytes] = [_HEAD, *frames]
    if sum(map(len, frames)) < _WHOLE:
        whole = b"".join(content)
        return [whole + _mac(key, secret, whole)]
    return [*content, _mac(key, secret, *content)]


def unseal(data: Bytes, key: str, secret: bytes) -> memoryview:
    """Verify an entry and return its body; IntegrityError unless it was signed with `secret` for `key`."""
    view = memoryview(data)
    if view.nbytes < len(_HEAD) + _MAC or data[:4] != MAGIC:
        raise IntegrityError(f"entry {key} was truncated or overwritten")
    if view[4] == ENCRYPTED:
        raise IntegrityError(f"entry {key} is encrypted, but the store is not: set ONCEMORE_ENCRYPT=1 if it should be")
    if view[4] != VERSION:
        raise IntegrityError(f"entry {key} has format {view[4]}; this version of oncemore reads format {VERSION}")
    if not compare_digest(_mac(key, secret, view[:-_MAC]), view[-_MAC:]):
        raise IntegrityError(f"entry {key} was altered, moved from another key, or signed with another secret")
    return view[len(_HEAD) : -_MAC]


def resigned(data: Bytes, key: str, before: bytes, secret: bytes) -> Bytes:
    """An entry that was signed with the secret `before`, signed with `secret`. A writable buffer is changed in place."""
    unseal(data, key, before)
    mac = _mac(key, secret, memoryview(data)[:-_MAC])
    if memoryview(data).readonly:
        return bytes(data[:-_MAC]) + mac
    memoryview(data)[-_MAC:] = mac
    return data


def unsigned(data: Bytes) -> memoryview:
    """The body of an entry, without verification. Only for bytes that are verified in another way."""
    return memoryview(data)[len(_HEAD) : -_MAC]


def _mac(key: str, secret: bytes, *content: Bytes) -> bytes:
    name = key.encode()
    prefix = _LENGTH.pack(len(name)) + name
    if len(content) == 1 and len(content[0]) < _WHOLE:
        return blake3(prefix + content[0], key=secret).digest()
    mac = hasher(sum(map(len, content)), key=secret).update(prefix)
    for piece in content:
        mac.update(piece)
    return mac.digest()


# --- values to entries ----------------------------------------------------------------------------------------------


class Encoded(NamedTuple):
    """An entry ready to be written under `key`."""

    key: str
    frames: Sequence[Bytes]
    raw_bytes: int
    stored_bytes: int


class Packed(NamedTuple):
    """A value pickled and compressed, but not signed yet. `stored_bytes` is the size of the signed entry."""

    frames: Sequence[Bytes]
    raw_bytes: int
    stored_bytes: int

    def seal(self, key: str, secret: bytes) -> Encoded:
        """The signed entry, which is valid under `key` only."""
        return Encoded(key, seal(self.frames, key, secret), self.raw_bytes, self.stored_bytes)


def pack(
    value: object,
    meta: Mapping[str, Any],
    *,
    name: Naming | None = None,
    seconds: float = 0.0,
    time: float = 0.0,
    flags: int = 0,
    named: Callable[[], Mapping[str, Any]] = dict,
) -> Packed:
    """Encode a value with its metadata, how long it took and when it was saved. CodecError names what cannot be pickled.

    Objects that `name` returns a name for are saved as that name instead of by value. If there are any, `named` returns more
    metadata.
    """
    stream, buffers, has_globals, has_names = to_pickle(value, name)
    if has_names:
        more = named()  # before the next line: it may add to `meta`, too
        meta = {**meta, **more}
    if has_globals:
        flags |= GLOBALS
    if has_names:
        flags |= NAMES
    elif not any(map(meta.get, _MORE)):  # after pickling, which may add to the metadata
        flags |= VALUE_ONLY
    if meta.get("files"):
        flags |= FILES
    if meta.get("instead"):
        flags |= INSTEAD
    if b"_main__" in stream:  # __main__, or __mp_main__ in a spawned process
        flags |= MAIN
        meta = {**meta, "main": canonical_name("__main__")}
    about = to_json(dict(meta))
    if not buffers and len(about) < compression.SMALL and len(stream) < compression.SMALL:
        sizes = (0, 1, len(about), len(about), 0, 1, len(stream), len(stream))
        body = _FIRST.pack(flags, seconds, time, 2, *sizes) + about + stream
        return Packed([body], len(about) + len(stream), len(_HEAD) + len(body) + _MAC)
    parts: list[Bytes | pickle.PickleBuffer] = [about, stream, *buffers]
    packed = [compression.pack(part) for part in parts]
    table = b"".join([_FRAME.pack(p.packing, p.item, p.size, p.raw) for p in packed])
    frames: list[Bytes] = [_HEADER.pack(flags, seconds, time, len(packed)) + table]
    offset = len(frames[0])
    for number, p in enumerate(packed):
        gap = _gap(number, offset)
        frames += [bytes(gap), *p.pieces] if gap else p.pieces
        offset += gap + p.size
    return Packed(frames, sum(p.raw for p in packed), len(_HEAD) + offset + _MAC)


def encode(
    value: object,
    meta: Mapping[str, Any],
    *,
    key: str,
    secret: bytes,
    name: Naming | None = None,
    seconds: float = 0.0,
    time: float = 0.0,
) -> Encoded:
    """`pack` and `seal` in one."""
    return pack(value, meta, name=name, seconds=seconds, time=time).seal(key, secret)


def tombstone(key: str, secret: bytes, why: str) -> Sequence[Bytes]:
    """An entry which says that the node has no checkpoint any more, and why."""
    return pack(None, {"hides": why}, flags=TOMBSTONE).seal(key, secret).frames


def alias(key: str, secret: bytes, to: str, time: float = 0.0) -> Sequence[Bytes]:
    """An entry that refers to the one under the key `to`, and has its time."""
    return pack(None, {"to": to}, flags=ALIAS, time=time).seal(key, secret).frames


def _gap(number: int, offset: int) -> int:
    """The number of padding bytes before a frame. The first two, metadata and pickle stream, have none."""
    return -(len(_HEAD) + offset) % _ALIGNED if number >= 2 else 0


# --- entries to values ----------------------------------------------------------------------------------------------


class Decoded:
    """A verified entry. Metadata and value are decoded on demand."""

    __slots__ = ("_body", "_first", "_meta", "flags", "key", "seconds", "time")

    def __init__(self, data: Bytes, *, key: str, secret: bytes) -> None:
        self._body = body = unseal(data, key, secret)
        try:
            self._first = first = _FIRST.unpack_from(body)
        except struct.error:
            raise IntegrityError(f"entry {key} does not hold a value") from None
        self.key = key
        self.flags: int
        self.flags, self.seconds, self.time = first[:3]
        self._meta: dict[str, Any] | None = None

    @property
    def value_only(self) -> bool:
        """Whether the entry is only a value, which can be loaded without the call's arguments."""
        return self.flags & VALUE_ONLY != 0

    @property
    def read_files(self) -> bool:
        """Whether the step read files."""
        return self.flags & FILES != 0

    @property
    def is_tombstone(self) -> bool:
        """Whether the entry says that there is no checkpoint any more."""
        return self.flags & TOMBSTONE != 0

    @property
    def alias_of(self) -> str:
        """The key of the target, if this is an alias; otherwise empty."""
        return self.meta["to"] if self.flags & ALIAS else ""

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata, parsed on first use. A hit on an entry that is only a value never needs it."""
        if self._meta is None:
            packing, item, frame, raw = next(self._frames())
            fields: dict[str, Any] = json.loads(bytes(compression.unpack(packing, item, frame, raw)))
            self._meta = fields
        return self._meta

    @property
    def chunks(self) -> list[str]:
        """The keys of the chunks of items that a generator yielded."""
        return [f"{self.meta['items']}{number:08x}" for number in range(self.meta.get("chunks", 0))]

    def holds(self, other: Decoded) -> bool:
        """Whether the stored values are equal byte for byte. If not, the values may still be equal."""
        return list(self._frames())[1:] == list(other._frames())[1:]

    def is_stored_as(self, data: Bytes) -> bool:
        """Whether these are the bytes that the entry was read from. Does not verify them."""
        return unsigned(data) == self._body

    def load(self, find: Finding | None = None) -> Any:
        """Load a new copy of the value. `find` returns the objects that were saved by name.

        Copies share no memory, unless the entry was read into writable memory: arrays in the value then use it in place.
        """
        try:
            _, _, _, count, _, _, about, _, packing, item, size, raw = self._first
            start = _HEADER.size + count * _FRAME.size + about
            frame = self._body[start : start + size]
            stream = frame if packing == compression.RAW else compression.unpack(packing, item, frame, raw)
            if count == 2 and not self.flags & (GLOBALS | NAMES):
                return pickle.loads(stream)
            buffers = [compression.unpack(*each) for each in list(self._frames())[2:]]
            main = self.meta["main"] if self.flags & MAIN else ""
            return from_pickle(stream, buffers, main=main, find=find)
        except Exception as error:  # unpickling runs the user's classes, which may raise anything
            raise CodecError(f"entry {self.key} cannot be loaded: {type(error).__name__}: {error}") from error

    def _frames(self) -> Iterator[tuple[int, int, memoryview, int]]:
        """The frames: packing, item size, content, size unpacked."""
        body, count = self._body, self._first[3]
        offset = _HEADER.size + count * _FRAME.size
        for number, (packing, item, size, raw) in enumerate(_FRAME.iter_unpack(body[_HEADER.size : offset])):
            offset += _gap(number, offset)
            yield packing, item, body[offset : offset + size], raw
            offset += size


def header_of(data: Bytes) -> tuple[int, float]:
    """The flags and the time of an entry that is not verified; those of a tombstone if it is none."""
    view = memoryview(data)[len(_HEAD) :]
    flags, _, time, _ = _HEADER.unpack_from(view) if len(view) >= _HEADER.size else (TOMBSTONE, 0.0, 0.0, 0)
    return flags, time


# --- values inside other entries ------------------------------------------------------------------------------------


def dumps(value: object, name: Naming | None = None) -> bytes:
    """Pickle a value that is stored inside another entry or in memory."""
    return to_pickle(value, name, out_of_band=False).stream


def loads(data: bytes, main: str = "__main__", find: Finding | None = None) -> Any:
    """Load a value that `dumps` has pickled; `main` is the name that the script had then."""
    return from_pickle(data, main=main, find=find)
