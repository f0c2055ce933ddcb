"""Compression of one buffer: none, zstd, or zstd of shuffled numbers, whichever pays.

Shuffled means all first bytes of the numbers, then all second bytes, and so on. The high bytes are similar and compress well,
the low bytes are noise that zstd skips quickly. So both directions are at least about twice as fast as without shuffling. A
few samples are tried first; data that does not shrink is never compressed.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import zstandard

from ..errors import CodecError
from ..stores import Bytes
from ..stores.buffers import allocate, processors

RAW, ZSTD, SHUFFLED = range(3)

SMALL = 512  # bytes; less is not worth the time and the zstd header
_FEW = 4096  # bytes of numbers; less is not worth shuffling
_BLOCK = 1 << 22  # bytes; numbers are shuffled block by block, so that a large buffer is not copied as a whole
_SAMPLE = 1 << 14
_WORTH, _WORTH_OF_NUMBERS = 0.9, 0.8  # ratios that pay; floats always shrink a little, but reading them takes time
_QUICKER = 1.05  # shuffled may be this much larger than plain zstd, as it is about twice as fast
_HARDLY = 0.02  # the ratio of zeros and the like, for which nothing is faster than plain zstd
_THREADED = 1 << 22
_MOST = 1 << 15  # the highest ratio possible: a zstd block of 128 KiB takes at least 4 bytes
_LEVEL = 1

_local = threading.local()  # zstandard's objects must not be shared between threads


class Packed(NamedTuple):
    """A buffer as it is stored."""

    packing: int
    item: int  # bytes of a number, if shuffled; otherwise 1
    pieces: Sequence[Bytes]
    size: int  # of all pieces
    raw: int  # size unpacked


def pack(buffer: Bytes | pickle.PickleBuffer) -> Packed:
    """Compress a buffer if it pays. Data that does not shrink is returned as a view, not a copy."""
    if isinstance(buffer, pickle.PickleBuffer):
        typed, view = memoryview(buffer), buffer.raw()
    else:
        typed = view = memoryview(buffer)
    raw = view.nbytes
    plain = Packed(RAW, 1, [view], raw, raw)
    if raw < SMALL:
        return plain
    numbers = raw >= _FEW and typed.itemsize in (2, 4, 8, 16) and "numpy" in sys.modules
    item = min(typed.itemsize, 8) if numbers else 1  # a complex number is two numbers
    samples = _samples(view, item)
    tried = sum(map(len, samples))
    packing, trials = ZSTD, [_compress(sample, 1) for sample in samples]
    if numbers and _size(trials) > tried * _HARDLY:
        shuffled = [_compress(sample, item) for sample in samples]
        if _size(shuffled) <= _size(trials) * _QUICKER:
            packing, trials = SHUFFLED, shuffled
    if _size(trials) > tried * (_WORTH_OF_NUMBERS if numbers else _WORTH):
        return plain
    item = item if packing == SHUFFLED else 1
    pieces = trials[0] if tried == raw else _compress(view, item)
    return Packed(packing, item, pieces, _size([pieces]), raw)


def unpack(packing: int, item: int, data: memoryview, raw: int) -> Bytes:
    """Decompress a buffer into new writable memory. Uncompressed `data` that is writable is returned as is."""
    if packing == RAW:
        return bytearray(data) if data.readonly else data
    if raw > data.nbytes * _MOST:
        raise CodecError(f"{data.nbytes} bytes cannot unpack to {raw}")
    room = allocate(raw)
    with _decompressor().stream_reader(data) as reader:
        if packing == ZSTD:
            _fill(room, reader)
        elif packing == SHUFFLED:
            _unshuffle(room, item, reader)
        else:
            raise CodecError(f"unknown packing {packing}")
    return room


def _samples(view: memoryview, item: int) -> list[memoryview]:
    """The beginning, the middle and the end, as one part alone is often not representative."""
    if view.nbytes <= 3 * _SAMPLE:
        return [view]
    middle = view.nbytes // 2 // item * item
    return [view[:_SAMPLE], view[middle : middle + _SAMPLE], view[-_SAMPLE:]]


def _size(parts: Sequence[Sequence[Bytes]]) -> int:
    return sum(len(piece) for pieces in parts for piece in pieces)


def _compress(view: memoryview, item: int) -> list[Bytes]:
    """Compress into one zstd frame, shuffled if `item`, the size of a number, is more than 1."""
    if view.nbytes < _THREADED:
        return _pieces(_compressor(), view, item)
    # Not cached: a compressor's threads don't survive a fork, and the child would wait for them forever.
    try:
        return _pieces(zstandard.ZstdCompressor(level=_LEVEL, threads=processors()), view, item)
    except zstandard.ZstdError:  # no thread could be started
        return _pieces(_compressor(), view, item)


def _pieces(compressor: zstandard.ZstdCompressor, view: memoryview, item: int) -> list[Bytes]:
    stream = compressor.compressobj(size=view.nbytes)
    pieces = [stream.compress(_shuffled(block, item) if item > 1 else block) for block in _blocks(view)]
    return [piece for piece in (*pieces, stream.flush()) if piece]


def _blocks(view: memoryview) -> Iterator[memoryview]:
    return (view[start : start + _BLOCK] for start in range(0, view.nbytes, _BLOCK))


def _shuffled(block: memoryview, item: int) -> Any:
    import numpy as np

    return np.ascontiguousarray(np.frombuffer(block, np.uint8).reshape(-1, item).T)


def _unshuffle(room: memoryview, item: int, reader: zstandard.ZstdDecompressionReader) -> None:
    import numpy as np

    scratch = np.empty(min(room.nbytes, _BLOCK), np.uint8)
    for block in _blocks(room):
        shuffled = scratch[: block.nbytes]
        _fill(shuffled.data, reader)
        numbers = np.frombuffer(block, np.uint8).reshape(-1, item)
        for index, plane in enumerate(shuffled.reshape(item, -1)):  # faster than assigning the whole transposed array
            numbers[:, index] = plane


def _fill(room: memoryview, reader: zstandard.ZstdDecompressionReader) -> None:
    """Decompress exactly as many bytes as there is room for."""
    filled = 0
    while filled < room.nbytes and (count := reader.readinto(room[filled:])):
        filled += count
    if filled != room.nbytes:
        raise CodecError(f"a frame unpacked to {filled} bytes instead of {room.nbytes}")


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    found: zstandard.ZstdCompressor = _local.compressor
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    found: zstandard.ZstdDecompressor = _local.decompressor
    return found
