"""Whether and how to compress one buffer: raw, zstd, or byte-shuffled then zstd, whichever pays.

A few samples are tried first; data that does not shrink is never compressed.
"""

from __future__ import annotations

import pickle
import sys
import threading
from typing import NamedTuple, Union

import zstandard

from .errors import CodecError

Bytes = Union[bytes, bytearray, memoryview]

RAW, ZSTD, SHUFFLED = 0, 1, 2

SMALL = 512  # below this, a zstd frame's own header and the time for it are not won back
_SAMPLE = 1 << 14
_WORTH = 0.9  # a packing that saves less than a tenth costs more time on reading than it saves
_THREADED = 1 << 22
_LEVEL = 1

_local = threading.local()  # zstandard's objects must not be shared between threads


class Packed(NamedTuple):
    packing: int
    item: int
    data: Bytes
    raw: int


def pack(buffer: Bytes | pickle.PickleBuffer) -> Packed:
    """The buffer as it should be stored. Incompressible data comes back as a view, not a copy."""
    if isinstance(buffer, pickle.PickleBuffer):
        item, view = memoryview(buffer).itemsize, buffer.raw()
    else:
        item, view = 1, memoryview(buffer)
    size = view.nbytes
    if size < SMALL:
        return Packed(RAW, 1, view, size)
    item = item if item in (2, 4, 8, 16) and size % item == 0 and "numpy" in sys.modules else 1
    sample = _sample(view, item)
    plain = len(_compressor().compress(sample)) / len(sample)
    shuffled = len(_compressor().compress(_shuffle(sample, item))) / len(sample) if item > 1 else 1.0
    if min(plain, shuffled) > _WORTH:
        return Packed(RAW, 1, view, size)
    if shuffled < plain * _WORTH:
        return Packed(SHUFFLED, item, _squeeze(_shuffle(view, item)), size)
    return Packed(ZSTD, 1, _squeeze(view), size)


def unpack(packing: int, item: int, data: memoryview, raw: int) -> Bytes:
    """The buffer again, writable and the caller's own. A writable `data` is the caller's already and is not copied."""
    if packing == RAW:
        return bytearray(data) if data.readonly else data
    plain = bytearray(raw)
    with _decompressor().stream_reader(data) as reader:
        filled = 0
        with memoryview(plain) as room:
            while filled < raw and (count := reader.readinto(room[filled:])):
                filled += count
    if filled != raw:
        raise CodecError(f"a frame unpacked to {filled} bytes instead of {raw}")
    return _unshuffle(plain, item) if packing == SHUFFLED else plain


def _sample(view: memoryview, item: int) -> bytes:
    """The beginning, the middle and the end: one stretch alone is too often not like the rest."""
    flat = view.cast("B")
    if flat.nbytes <= 3 * _SAMPLE:
        return bytes(flat)
    middle = flat.nbytes // 2 // item * item
    return bytes(flat[:_SAMPLE]) + bytes(flat[middle : middle + _SAMPLE]) + bytes(flat[-_SAMPLE:])


def _squeeze(data: Bytes) -> bytes:
    if memoryview(data).nbytes < _THREADED:
        return _compressor().compress(data)
    # Not kept: a compressor's threads do not live on in a forked child, which would wait for them forever.
    return zstandard.ZstdCompressor(level=_LEVEL, threads=-1).compress(data)


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


def _shuffle(data: Bytes, item: int) -> Bytes:
    """All first bytes of the items, then all second bytes...: numbers of one size become long runs."""
    import numpy as np

    table = np.frombuffer(data, np.uint8).reshape(-1, item)
    return np.ascontiguousarray(table.T).data.cast("B")


def _unshuffle(data: Bytes, item: int) -> Bytes:
    import numpy as np

    table = np.frombuffer(data, np.uint8).reshape(item, -1)
    return np.ascontiguousarray(table.T).data.cast("B")
