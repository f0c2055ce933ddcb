"""What many bytes at once are handled with: hashing on several processors, and memory that is fast to fill."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any, Union

from blake3 import blake3

Bytes = Union[bytes, bytearray, memoryview]
LARGE = 1 << 21  # bytes; for fewer, starting threads takes longer than they save
_BLOCK = 8 << 20  # bytes of a file in memory at a time
_HUGE = 1 << 21  # bytes of a huge page; what is smaller gets none


def processors(most: int = 4) -> int:
    """How many may work at once here; beyond a few, memory is what limits."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, most)


class _Threads:
    refused = False


def hasher(size: int, **options: Any) -> blake3:
    """BLAKE3 for about `size` bytes; `options` are its own.

    The threads are the hasher's own and end with it: a pool of the whole process would not live on in a forked child.
    """
    if size >= LARGE and not _Threads.refused and (threads := processors()) > 1:
        try:
            return blake3(max_threads=threads, **options)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            _Threads.refused = True  # no thread can be had: blake3 does not raise an Exception, and says so on stderr
    return blake3(**options)


def content_digest(path: str) -> bytes:
    """BLAKE3 of a file's content."""
    found = blake3()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.digest()


def allocate(size: int) -> memoryview:
    """Writable memory of zeros. If it is large it comes in huge pages, which are there several times as fast."""
    if size < _HUGE:
        return memoryview(bytearray(size))
    # Whole huge pages are laid where such pages can begin. Private: memory that a forked child would share with its
    # parent is not the caller's own.
    block = mmap.mmap(-1, -(-size // _HUGE) * _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            block.madvise(mmap.MADV_HUGEPAGE, 0, (size + _HUGE // 2) // _HUGE * _HUGE)  # the last if it is half used
    return memoryview(block)[:size]
