"""What many bytes at once are handled with: hashing on several processors, and memory that is fast to fill, or is a file."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Union, overload

from blake3 import blake3

Bytes = Union[bytes, bytearray, memoryview]
LARGE = 1 << 21  # bytes; for fewer, starting threads takes longer than they save
_HUGE = 1 << 21  # bytes of a huge page; what is smaller gets none
_POPULATE_READ = 22  # of madvise(2), Linux 5.14; the mmap module has no name for it
_MOST = 100  # files mapped at once: each keeps a descriptor open
FIXED = 1 << 16  # bytes at the beginning of what is mapped that do not change even if somebody writes to the file


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


_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def mapped(descriptor: int, size: int) -> memoryview | None:
    """A file's content as writable memory, not copied; None if that cannot be had. What is written there goes to no file.

    For files that nobody writes to any more; who does so all the same changes what is here, but for the first `FIXED` bytes.
    All of it has been read once: where a disk fails, that is an error now, and not the end of the process (SIGBUS) later.
    """
    if len(_maps) >= _MOST:
        return None
    try:
        block = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        block.madvise(mmap.MADV_WILLNEED)
        block.madvise(_POPULATE_READ)
        block[:FIXED] = block[:FIXED]  # a page that is written to is a copy of our own
    except (OSError, ValueError):
        return None
    _maps.add(block)
    return memoryview(block)


def is_mapped(data: Bytes) -> bool:
    """Whether this is memory from `mapped`."""
    return isinstance(data, memoryview) and isinstance(data.obj, mmap.mmap) and data.obj in _maps


def copied(data: Bytes) -> memoryview:
    """The same bytes in memory of their own."""
    room = allocate(len(data))
    room[:] = data
    return room


class Headed(Sequence[Bytes]):
    """Pieces whose first, the head, is made from the others, `body`: in another thread, once `begin` was called.

    Who can write the head last need not wait for it before.
    """

    def __init__(self, size: int, body: Sequence[Bytes], make: Callable[[Sequence[Bytes]], bytes]) -> None:
        self.size, self.body, self._make = size, body, make
        self._head: bytes | None = None

    def begin(self) -> Callable[[], bytes]:
        """Start to make the head; what is returned waits for it."""
        thread = threading.Thread(target=self.head, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be had
            return self.head

        def wait() -> bytes:
            thread.join()
            return self.head()

        return wait

    def head(self) -> bytes:
        if self._head is None:
            self._head = self._make(self.body)
        return self._head

    def __len__(self) -> int:
        return 1 + len(self.body)

    @overload
    def __getitem__(self, at: int) -> Bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Bytes]: ...
    def __getitem__(self, at: int | slice) -> Bytes | Sequence[Bytes]:
        return [self.head(), *self.body][at]
