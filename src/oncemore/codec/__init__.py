"""Values to frames of bytes and back. See docs/explanation/format.md for the layout.

An entry is `magic, version, body, MAC`. The MAC is a keyed BLAKE3 over the entry's key and all bytes before the MAC; nothing
in the body is looked at before the MAC has been found right, so neither the decompressor nor pickle ever sees a byte that we
did not write under that key.

The body of a value has a binary header: a hit needs neither the metadata, which is JSON, nor anything else parsed but that
header and the pickle.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from hmac import compare_digest
from typing import Any, NamedTuple

from blake3 import blake3

from ..buffers import Bytes, hasher
from ..errors import CodecError, IntegrityError
from ..events import to_json
from ..modules import canonical_name
from . import compression
from .pickling import Finding, Naming, from_pickle, offender, to_pickle

__all__ = [
    "ALIAS",
    "FILES",
    "GLOBALS",
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
    "loads",
    "offender",
    "pack",
    "seal",
    "tombstone",
    "unseal",
    "unsigned",
]

MAGIC = b"ONCE"
VERSION = 1
_HEAD = MAGIC + bytes((VERSION,))
_MAC = 32
_LENGTH = struct.Struct("<I")
_HEADER = struct.Struct("<HddI")  # flags, seconds, time, number of frames
_FRAME = struct.Struct("<BBQQ")  # packing, item size, bytes here, bytes unpacked
_FIRST = struct.Struct("<HddIBBQQBBQQ")  # the header with the first two frames, which every entry has
_ALIGNED = 64  # buffers begin at multiples of this, counted from the entry's beginning: an array is used where it lies
_WHOLE = 1 << 16  # bytes; below this, an entry is one piece

# Flags of an entry.
VALUE_ONLY = (
    1  # the value is all there is: no effects, reads, items or written files, and loading it needs nothing of the call
)
TOMBSTONE = 2  # the node has no checkpoint any more; "hides" in the metadata says why
GLOBALS = 4  # the pickle names classes or functions
NAMES = 8  # the pickle has names for objects of the caller
MAIN = 16  # the pickle mentions the script; "main" in the metadata is what it was called
FILES = 32  # the step read files; "files" in the metadata says which
ALIAS = 64  # the entry is the one under another key; "to" in the metadata says which

_MORE = (
    "effects",
    "roots",
    "reads",
    "readings",
    "items",
    "hides",
    "blobs",
    "beside",
    "needs",
    "to",
)  # metadata of what is more than a value


# --- the envelope ---------------------------------------------------------------------------------------------------


def seal(frames: Sequence[Bytes], key: str, secret: bytes) -> list[Bytes]:
    """The frames as a signed entry that counts under `key` only."""
    content: list[Bytes] = [_HEAD, *frames]
    if sum(map(len, frames)) < _WHOLE:
        whole = b"".join(content)
        return [whole + _mac(key, secret, whole)]
    return [*content, _mac(key, secret, *content)]


def unseal(data: Bytes, key: str, secret: bytes) -> memoryview:
    """The body of a signed entry; IntegrityError unless it was signed with `secret` for `key`."""
    view = memoryview(data)
    if view.nbytes < len(_HEAD) + _MAC or data[:4] != MAGIC:
        raise IntegrityError(f"entry {key} is not an entry of oncemore: cut short or overwritten")
    if view[4] != VERSION:
        raise IntegrityError(f"entry {key} has format {view[4]}; this oncemore reads format {VERSION}")
    if not compare_digest(_mac(key, secret, view[:-_MAC]), view[-_MAC:]):
        raise IntegrityError(f"entry {key} was altered, moved from another key, or signed with another secret")
    return view[len(_HEAD) : -_MAC]


def unsigned(data: Bytes) -> memoryview:
    """The body of a signed entry whose signature is not looked at: something else must vouch for every byte."""
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
    """A value pickled and compressed, not yet signed. `stored_bytes` is the size of the entry that it will be."""

    frames: Sequence[Bytes]
    raw_bytes: int
    stored_bytes: int

    def seal(self, key: str, secret: bytes) -> Encoded:
        """The entry that counts under `key` only."""
        return Encoded(key, seal(self.frames, key, secret), self.raw_bytes, self.stored_bytes)


def pack(
    value: object,
    meta: Mapping[str, Any],
    *,
    name: Naming | None = None,
    seconds: float = 0.0,
    time: float = 0.0,
    flags: int = 0,
) -> Packed:
    """`value` with its metadata, how long it took and when it was kept. CodecError names what cannot be pickled.

    Objects for which `name` gives a name are kept as that name instead of by value.
    """
    stream, buffers, has_globals, has_names = to_pickle(value, name)
    if has_globals:
        flags |= GLOBALS
    if has_names:
        flags |= NAMES
    elif not any(map(meta.get, _MORE)):  # asked now: pickling adds to the metadata
        flags |= VALUE_ONLY
    if meta.get("files"):
        flags |= FILES
    if b"_main__" in stream:  # in a spawned process it is called __mp_main__
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
    """An entry that says that the node has no checkpoint any more, and why."""
    return pack(None, {"hides": why}, flags=TOMBSTONE).seal(key, secret).frames


def alias(key: str, secret: bytes, to: str) -> Sequence[Bytes]:
    """An entry that stands for the one under the key `to`."""
    return pack(None, {"to": to}, flags=ALIAS).seal(key, secret).frames


def _gap(number: int, offset: int) -> int:
    """The zeros before a frame; the first two, metadata and pickle stream, follow at once."""
    return -(len(_HEAD) + offset) % _ALIGNED if number >= 2 else 0


# --- entries to values ----------------------------------------------------------------------------------------------


class Decoded:
    """An entry whose signature was right. Metadata and value are read when asked for."""

    __slots__ = ("_body", "_first", "_meta", "flags", "key", "seconds", "time")

    def __init__(self, data: Bytes, *, key: str, secret: bytes) -> None:
        self._body = body = unseal(data, key, secret)
        try:
            self._first = first = _FIRST.unpack_from(body)
        except struct.error:
            raise IntegrityError(f"entry {key} is not a value") from None
        self.key = key
        self.flags: int
        self.flags, self.seconds, self.time = first[:3]
        self._meta: dict[str, Any] | None = None

    @property
    def value_only(self) -> bool:
        """Whether the value is all there is, and needs nothing of the call to be loaded."""
        return self.flags & VALUE_ONLY != 0

    @property
    def read_files(self) -> bool:
        """Whether the step read files, whose changes are told or count."""
        return self.flags & FILES != 0

    @property
    def is_tombstone(self) -> bool:
        """Whether it says that there is no checkpoint any more."""
        return self.flags & TOMBSTONE != 0

    @property
    def alias_of(self) -> str:
        """The key of the entry that this one stands for; empty if it stands for itself."""
        return self.meta["to"] if self.flags & ALIAS else ""

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata. Skipping a step that is nothing but a value does without."""
        if self._meta is None:
            packing, item, frame, raw = next(self._frames())
            fields: dict[str, Any] = json.loads(bytes(compression.unpack(packing, item, frame, raw)))
            self._meta = fields
        return self._meta

    @property
    def chunks(self) -> list[str]:
        """The keys of the items that a generator yielded, some under each."""
        return [f"{self.meta['items']}{number:08x}" for number in range(self.meta.get("chunks", 0))]

    def holds(self, other: Decoded) -> bool:
        """Whether what is stored of the value is the same, byte for byte; if not, the values may still be equal."""
        return list(self._frames())[1:] == list(other._frames())[1:]

    def is_stored_as(self, data: Bytes) -> bool:
        """Whether these are the bytes that it was read from; their signature is not looked at."""
        return unsigned(data) == self._body

    def load(self, find: Finding | None = None) -> Any:
        """A fresh value; `find` gives the objects kept by name.

        It shares no memory with what another call returned, unless the entry is in writable memory: that is the caller's own,
        and arrays in the value are used where they lie in it.
        """
        try:
            _, _, _, count, _, _, about, _, packing, item, size, raw = self._first
            start = _HEADER.size + count * _FRAME.size + about
            here = self._body[start : start + size]
            stream = here if packing == compression.RAW else compression.unpack(packing, item, here, raw)
            if count == 2 and not self.flags & (GLOBALS | NAMES):
                return pickle.loads(stream)
            buffers = [compression.unpack(*frame) for frame in list(self._frames())[2:]]
            main = self.meta["main"] if self.flags & MAIN else ""
            return from_pickle(stream, buffers, main=main, find=find)
        except Exception as error:  # a pickle runs the user's classes: anything can come out of it
            raise CodecError(f"entry {self.key} cannot be read back: {type(error).__name__}: {error}") from error

    def _frames(self) -> Iterator[tuple[int, int, memoryview, int]]:
        """The frames: packing, item size, bytes here, size unpacked."""
        body, count = self._body, self._first[3]
        offset = _HEADER.size + count * _FRAME.size
        for number, (packing, item, size, raw) in enumerate(_FRAME.iter_unpack(body[_HEADER.size : offset])):
            offset += _gap(number, offset)
            yield packing, item, body[offset : offset + size], raw
            offset += size


# --- values inside other entries ------------------------------------------------------------------------------------


def dumps(value: object, name: Naming | None = None) -> bytes:
    """One value as bytes, for those that are kept inside another entry or in memory."""
    return to_pickle(value, name, apart=False).stream


def loads(data: bytes, main: str = "__main__", find: Finding | None = None) -> Any:
    """The value again; `main` is what the script was called that `dumps` ran in."""
    return from_pickle(data, main=main, find=find)
