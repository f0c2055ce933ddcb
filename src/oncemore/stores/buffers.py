"""Large buffers: hashing on several processors, and memory that is fast to fill."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any, Union

from blake3 import blake3

Bytes = Union[bytes, bytearray, memoryview]
LARGE = 1 << 21  # bytes; for less, starting threads takes longer than it saves
_BLOCK = 8 << 20  # bytes of a file that are in memory at a time
_HUGE = 1 << 21  # bytes of a huge page


def processors(most: int = 4) -> int:
    """How many processors this process may use, up to `most`: beyond a few, memory is the bottleneck."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, most)


class _Threads:
    refused = False


def hasher(size: int, **options: Any) -> blake3:
    """A BLAKE3 hasher for about `size` bytes, with threads if they pay. `options` are passed to `blake3`.

    The threads end with the hasher. A pool shared by the process would not survive a fork.
    """
    if size >= LARGE and not _Threads.refused and (threads := processors()) > 1:
        try:
            return blake3(max_threads=threads, **options)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            _Threads.refused = True  # no thread could be started, which blake3 reports as a panic, on stderr as well
    return blake3(**options)


def content_digest(path: str) -> bytes:
    """BLAKE3 of a file's content."""
    digest = blake3()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.digest()


def allocate(size: int) -> memoryview:
    """Writable zeroed memory. A large block uses huge pages, which are several times faster to allocate."""
    if size < _HUGE:
        return memoryview(bytearray(size))
    # The kernel aligns a multiple of the huge page size. Private, so that a forked child does not share it with its parent.
    block = mmap.mmap(-1, -(-size // _HUGE) * _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            block.madvise(mmap.MADV_HUGEPAGE, 0, (size + _HUGE // 2) // _HUGE * _HUGE)  # the last one if half used
    return memoryview(block)[:size]
