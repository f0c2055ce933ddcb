"""Locks that the operating system owns: when their process dies, they are free at that moment.

They are POSIX record locks on single bytes of one file. Two of their habits shape this module: they belong to the
process, so that this module has to tell apart who holds what inside it, and closing *any* descriptor of the file drops
all of them, so that there is one descriptor per file, open from the first hold to the last release.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections import Counter

from blake3 import blake3

from .filesystem import describe

_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


class LockFile:
    """The locks of one store in this process. Get it from `lock_file`: there is one per path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.forget()

    def forget(self) -> None:
        """Start as a process that holds nothing: a new one, or the child of a fork, which inherits no record locks."""
        self._mutex = threading.Lock()
        self._descriptor: int | None = None
        self._keys: set[str] = set()
        self._bytes: Counter[int] = Counter()  # two keys may share a byte
        self.epoch = object()  # holds of another epoch, such as those of the process that forked, release nothing

    def inherited(self) -> None:
        """Close what came over from the parent. It drops this process's locks on the file: there are none yet."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self.forget()

    def acquire(self, key: str) -> FileHold | None:
        """Hold `key`, or None while anyone does, in this process or another."""
        offset = int.from_bytes(blake3(key.encode("utf-8", "surrogatepass")).digest(length=8), "big") >> 2
        with self._mutex:
            if key in self._keys:
                return None
            if not self._bytes[offset] and not self._lock(offset):
                return None
            self._keys.add(key)
            self._bytes[offset] += 1
            return FileHold(self, key, offset)

    def release(self, key: str, offset: int) -> None:
        """Let go of `key`, and of its byte when no other key needs that."""
        with self._mutex:
            self._keys.discard(key)
            self._bytes[offset] -= 1
            if not self._bytes[offset]:
                del self._bytes[offset]
                if self._keys and self._descriptor is not None:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, offset)
            self._close_if_idle()

    def _lock(self, offset: int) -> bool:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            # Where nothing can be written, nothing can be recorded twice: threads of this process are enough.
            if error.errno in _UNWRITABLE:
                return True
            raise describe(error, "lock a key of", os.path.dirname(self._path)) from error
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
        except (BlockingIOError, PermissionError):
            self._close_if_idle()
            return False
        except OSError as error:
            self._close_if_idle()
            raise describe(error, "lock a key of", os.path.dirname(self._path)) from error
        return True

    def _close_if_idle(self) -> None:
        if self._descriptor is not None and not self._keys:
            os.close(self._descriptor)
            self._descriptor = None


class FileHold:
    """A key held until released, or until this process ends."""

    def __init__(self, file: LockFile, key: str, offset: int) -> None:
        self._file = file
        self._key = key
        self._offset = offset
        self._epoch: object | None = file.epoch

    def release(self) -> None:
        """Let go. Again, or in a forked child, which holds nothing: no effect."""
        epoch, self._epoch = self._epoch, None
        if epoch is self._file.epoch:
            self._file.release(self._key, self._offset)


_files: dict[str, LockFile] = {}
_files_mutex = threading.Lock()


def lock_file(path: str) -> LockFile:
    """This process's locks in the file at `path`."""
    with _files_mutex:
        return _files.setdefault(path, LockFile(path))


def _in_child() -> None:
    global _files_mutex
    _files_mutex = threading.Lock()
    for file in _files.values():
        file.inherited()


os.register_at_fork(after_in_child=_in_child)
