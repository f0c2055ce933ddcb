"""Whether and how to compress one buffer: raw, zstd, or as numbers in blocks, whichever pays.

A few samples are tried first; data that does not shrink is never compressed.
"""

from __future__ import annotations

import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any

from .bulk import Bytes, allocate
from .errors import CodecError
from .facts import dataclass
from .modules import loading

if TYPE_CHECKING:
    import zstandard

    from . import numeric

RAW, ZSTD, SHUFFLED, BLOCKS = range(4)  # shuffled as a whole is read, but not written any more

SMALL = 512  # below this, a zstd frame's own header and the time for it are not won back
_FEW = 4096  # bytes of numbers; to look at fewer takes longer than they are worth
_SAMPLE = 1 << 14
_WORTH, _WORTH_OF_NUMBERS = 0.9, 0.8  # what saves less costs more time than that is worth; floats always save some
_HARDLY = 0.02  # what is left of zeros and the like; nothing makes that much smaller
_THREADED = 1 << 22
_LEVEL = 1
_FLOATS = ("f", "d", "Zd")  # as the buffer protocol calls them

_local = threading.local()  # zstandard's objects must not be shared between threads


@dataclass
class Packed:
    packing: int
    item: int
    pieces: list[Bytes]
    raw: int

    @property
    def size(self) -> int:
        return _size(self.pieces)


def pack(buffer: Bytes | pickle.PickleBuffer) -> Packed:
    """The buffer as it should be stored. Incompressible data comes back as a view, not a copy."""
    if isinstance(buffer, pickle.PickleBuffer):
        typed, view = memoryview(buffer), buffer.raw()
    else:
        typed = view = memoryview(buffer)
    raw = view.nbytes
    if raw < SMALL:
        return Packed(RAW, 1, [view], raw)
    numbers = raw >= _FEW and typed.itemsize in (2, 4, 8, 16) and "numpy" in sys.modules
    item = min(typed.itemsize, 8) if numbers else 1
    samples = _samples(view, item)
    tried = sum(map(len, samples))
    ways: list[numeric.Way | None] = [None]  # zstd of the bytes as they are
    trials = [_pieces(samples, item, None)]
    if numbers and _size(trials[0]) > _HARDLY * tried:
        ways += _numeric().ways(samples, item, typed.format in _FLOATS)
        trials += [_pieces(samples, item, way) for way in ways[1:]]
    least, best = min((_size(pieces), at) for at, pieces in enumerate(trials))
    if least > tried * (_WORTH_OF_NUMBERS if numbers else _WORTH):
        return Packed(RAW, 1, [view], raw)
    pieces = trials[best] if tried == raw else _pieces([view], item, ways[best])
    return Packed(BLOCKS if best else ZSTD, item if best else 1, pieces, raw)


def unpack(packing: int, item: int, data: memoryview, raw: int) -> Bytes:
    """The buffer again, writable and the caller's own. A writable `data` is the caller's already and is not copied."""
    if packing == RAW:
        return bytearray(data) if data.readonly else data
    room = allocate(raw)
    if packing == BLOCKS:
        _numeric().unpack(data, item, room, _inflate)
        return room
    _inflate(data, room)
    return _unshuffle(room, item) if packing == SHUFFLED else room


def _samples(view: memoryview, item: int) -> list[memoryview]:
    """The beginning, the middle and the end: one stretch alone is too often not like the rest."""
    if view.nbytes <= 3 * _SAMPLE:
        return [view]
    middle = view.nbytes // 2 // item * item
    return [view[:_SAMPLE], view[middle : middle + _SAMPLE], view[-_SAMPLE:]]


def _pieces(parts: list[memoryview], item: int, way: numeric.Way | None) -> list[Bytes]:
    if way is None:
        return [_squeeze(part) for part in parts]
    compress = _compressor().compress
    return [piece for part in parts for piece in _numeric().pack(part, item, way, compress)]


def _size(pieces: list[Bytes]) -> int:
    return sum(map(len, pieces))


def _squeeze(data: memoryview) -> bytes:
    if data.nbytes < _THREADED:
        return _compressor().compress(data)
    # Not kept: a compressor's threads do not live on in a forked child, which would wait for them forever.
    compressor: zstandard.ZstdCompressor = _zstandard().ZstdCompressor(level=_LEVEL, threads=-1)
    return compressor.compress(data)


def _numeric() -> Any:
    """What packs numbers, from when there are some."""
    with loading:
        from . import numeric
    return numeric


def _zstandard() -> Any:
    """The library, from when there is something to compress."""
    with loading:
        import zstandard
    return zstandard


def _inflate(data: memoryview, room: memoryview) -> None:
    """Decompress, and never to more than there is room for."""
    filled = 0
    with _decompressor().stream_reader(data) as reader:
        while filled < room.nbytes and (count := reader.readinto(room[filled:])):
            filled += count
    if filled != room.nbytes:
        raise CodecError(f"a frame unpacked to {filled} bytes instead of {room.nbytes}")


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_local, "compressor"):
        _local.compressor = _zstandard().ZstdCompressor(level=_LEVEL)
    found: zstandard.ZstdCompressor = _local.compressor
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = _zstandard().ZstdDecompressor()
    found: zstandard.ZstdDecompressor = _local.decompressor
    return found


def _unshuffle(data: Bytes, item: int) -> Bytes:
    """All first bytes of the items, then all second bytes...: the items again."""
    import numpy as np

    table = np.frombuffer(data, np.uint8).reshape(item, -1)
    return np.ascontiguousarray(table.T).data.cast("B")
