"""Locks that the operating system owns: when their process dies, they are free at that moment.

They are POSIX record locks on single bytes of one file. Two of their habits shape this module: they belong to the
process, so that this module has to tell apart who holds what inside it, and closing *any* descriptor of the file drops
all of them, so that there is one descriptor per file, open from the first hold to the last release.

Ctrl-C may come between any two operations, and a notebook goes on after it: what is half done is undone by the hold, at
the latest when that is garbage collected.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Collection

from blake3 import blake3

from ..errors import HoldLost, UsageError
from . import Bytes, Hold
from .filesystem import explained

_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


class LockFile:
    """The locks of one store in this process. Get it from `lock_file`: there is one per path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.forget()

    def forget(self) -> None:
        """Start as a process that holds nothing: a new one, or the child of a fork, which inherits no record locks."""
        self._close()
        self._mutex = threading.RLock()  # a hold may be garbage collected, and let go, in the midst of something else
        self._held: dict[str, _Ticket] = {}

    def acquire(self, key: str) -> FileHold | None:
        """Hold `key`, or None while anyone does, in this process or another."""
        offset = _offset(key)
        ticket = _Ticket(offset)
        hold = FileHold(self, key, ticket)
        with self._mutex:
            if self._descriptor is not None and not self._in_place():
                # The store was deleted or moved. Others lock the new file: what was held through the old one is lost.
                self._close()
                self._held = {}
            if key in self._held:
                return None
            try:
                self._held[key] = ticket
                if self._lock(offset):
                    return hold
            except BaseException:
                hold.release()
                raise
            hold.release()
            return None

    def release(self, key: str, ticket: _Ticket) -> None:
        """Let go of `key`, and of its byte when no other key needs that. No effect if it is not held by this ticket."""
        with self._mutex:
            if self._held.get(key) is not ticket:
                return
            del self._held[key]
            shared = any(other.offset == ticket.offset for other in self._held.values())
            if self._held and not shared and self._descriptor is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, ticket.offset)
            if not self._held:
                self._close()

    def held(self, keys: Collection[str]) -> set[str]:
        """Those of the keys that anyone holds, in this process or another. Takes none of them."""
        with self._mutex:
            others = [key for key in keys if key not in self._held]
            found = set(keys) - set(others)
            try:
                descriptor = os.open(self._path, os.O_RDONLY) if self._descriptor is None else self._descriptor
                try:
                    return found | {key for key in others if _is_locked(descriptor, _offset(key))}
                finally:
                    if self._descriptor is None:  # no lock of ours is on the file, so that none goes with this
                        os.close(descriptor)
            except OSError as error:
                if error.errno in (errno.ENOENT, *_UNWRITABLE):
                    return found
                raise explained(error, "look at the locks of", os.path.dirname(self._path)) from error

    def require(self, hold: Hold) -> None:
        """Raise `HoldLost` unless `hold` is one of ours and still keeps others out."""
        if not isinstance(hold, FileHold) or hold.file is not self:
            raise UsageError(f"{hold!r} is not a hold of this store")
        with self._mutex:
            held = self._held.get(hold.key) is hold.ticket
            if held and self._descriptor is not None:  # else no lock file can be made, see `_lock`
                # Locked again, which changes nothing if it is still locked: closing any descriptor of the file unlocks it.
                held = self._in_place() and self._lock(hold.ticket.offset)
            if not held:
                raise HoldLost(f"the hold on {hold.key!r} was released, or {self._path} replaced: nothing was written")

    def _in_place(self) -> bool:
        """Whether the file that is open is the one that others find."""
        try:
            return os.path.samestat(os.fstat(self._descriptor or 0), os.stat(self._path))
        except OSError:
            return False

    def _lock(self, offset: int) -> bool:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            return True
        except OSError as error:
            if self._descriptor is None and error.errno in _UNWRITABLE:
                return True  # where nothing can be written, nothing can be recorded twice: our own threads are enough
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise explained(error, "lock a key of", os.path.dirname(self._path)) from error

    def _close(self) -> None:
        # First out of our hands: a number closed twice may be somebody else's file by then.
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class _Ticket:
    """Tells one hold of a key from an earlier one, and from one of the process that forked."""

    __slots__ = ("offset",)

    def __init__(self, offset: int) -> None:
        self.offset = offset


class FileHold:
    """A key held until released, or until this process ends."""

    entry: Bytes | None = None
    _over = False

    def __init__(self, file: LockFile, key: str, ticket: _Ticket) -> None:
        self.file = file
        self.key = key
        self.ticket = ticket

    def release(self) -> None:
        """Let go. Again, or in a forked child, which holds nothing: no effect."""
        if not self._over:
            self.file.release(self.key, self.ticket)
            self._over = True

    __del__ = release


def _offset(key: str) -> int:
    """The byte of the file that stands for a key."""
    return int.from_bytes(blake3(key.encode()).digest(length=8), "big") >> 2


def _is_locked(descriptor: int, offset: int) -> bool:
    """Whether another process has locked a byte. Does not lock it, so that nobody is refused because of the look."""
    if sys.platform == "darwin":  # the order in its struct flock is another
        layout, values, kind = "qqihh", (offset, 1, 0, fcntl.F_WRLCK, os.SEEK_SET), 3
    else:
        layout, values, kind = "hhqqi", (fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0), 0
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(layout, *values))
    return bool(struct.unpack(layout, answer)[kind] != fcntl.F_UNLCK)


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
        file.forget()


os.register_at_fork(after_in_child=_in_child)
