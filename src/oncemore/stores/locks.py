"""Locks that the operating system owns: when their process dies, they are free at that moment.

`LockFile` locks single bytes of one file. Its locks belong to the process, so that this module has to tell apart who holds
what inside it; there is one descriptor per file, open from the first hold to the last release. `Guard` keeps SQLite's own
files locked.

A POSIX record lock goes when *any* descriptor of its file is closed in the process: a script that copies the folder of its
store would drop them all. Linux has locks that belong to an open file instead, and they are used there. Elsewhere (macOS)
they are POSIX locks, and no script may open a store's files.

Ctrl-C may come between any two operations, and a notebook goes on after it. So a key is held as long as its hold exists: no
code of ours has to run for it to be free again, and the next operation unlocks what is left. (There is no `__del__`: Python
drops a Ctrl-C that comes while one runs.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Collection

from blake3 import blake3

from ..errors import HoldLost, StoreUnavailable, UsageError
from . import Bytes, Hold
from .filesystem import explained

_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_BUSY = (errno.EAGAIN, errno.EACCES)
_SET: int = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK) if sys.platform == "linux" else fcntl.F_SETLK
_GET: int = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK) if sys.platform == "linux" else fcntl.F_GETLK
OWNED_BY_OPEN_FILES = _SET != fcntl.F_SETLK  # whether locks stay when another descriptor of the file is closed


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
        self._held: dict[str, weakref.ref[FileHold]] = {}

    def acquire(self, key: str) -> FileHold | None:
        """Hold `key`, or None while anyone does, in this process or another."""
        hold = FileHold(self, key)
        with self._mutex:
            if self._descriptor is not None and not self._in_place():
                # The store was deleted or moved. Others lock the new file: what was held through the old one is lost.
                self._close()
                self._held = {}
            self._free_abandoned()
            if key in self._held:
                return None
            self._held[key] = hold.reference
            if self._lock(hold.offset):
                return hold
            del self._held[key]
            return None

    def release(self, hold: FileHold) -> None:
        """Let go of its key, and of the key's byte when no other key needs that. No effect if it is not held by this hold."""
        with self._mutex:
            self._free_abandoned()
            if self._held.get(hold.key) is hold.reference:
                self._free(hold.key)

    def _free_abandoned(self) -> None:
        """Free the keys whose holds are gone, because Ctrl-C came before they were handed out or while they were released."""
        for key, reference in self._held.copy().items():
            if reference() is None:
                self._free(key)

    def _free(self, key: str) -> None:
        # Only then out of the table: if Ctrl-C comes in between, it is done again.
        hold, others = self._held[key](), [each() for other, each in self._held.copy().items() if other != key]
        offset = _offset(key) if hold is None else hold.offset
        if self._descriptor is not None and not any(hold is not None and hold.offset == offset for hold in others):
            _set(self._descriptor, fcntl.F_UNLCK, offset)
        if not others:
            self._close()
        self._held.pop(key, None)

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
            held = self._held.get(hold.key) is hold.reference
            if held and self._descriptor is not None:  # else no lock file can be made, see `_lock`
                # Locked again, which changes nothing if it is still locked: closing a descriptor may have unlocked it.
                held = self._in_place() and self._lock(hold.offset)
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
            return _set(self._descriptor, fcntl.F_WRLCK, offset)
        except OSError as error:
            if self._descriptor is None and error.errno in _UNWRITABLE:
                return True  # where nothing can be written, nothing can be recorded twice: our own threads are enough
            raise explained(error, "lock a key of", os.path.dirname(self._path)) from error

    def _close(self) -> None:
        # First out of our hands: a number closed twice may be somebody else's file by then.
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class FileHold:
    """A key held until released, until nobody has the hold any more, or until this process ends."""

    entry: Bytes | None = None

    def __init__(self, file: LockFile, key: str) -> None:
        self.file, self.key, self.offset = file, key, _offset(key)
        self.reference = weakref.ref(self)  # what tells it from an earlier hold of the key, and from one of the parent

    def release(self) -> None:
        """Let go. Again, or in a forked child, which holds nothing: no effect."""
        self.file.release(self)


def _offset(key: str) -> int:
    """The byte of the file that stands for a key."""
    return int.from_bytes(blake3(key.encode()).digest(length=8), "big") >> 2


def _flock(kind: int, offset: int, length: int) -> tuple[bytes, str, int]:
    """A `struct flock`, its layout, and where its kind stands."""
    if sys.platform == "darwin":
        return struct.pack("qqihh", offset, length, 0, kind, os.SEEK_SET), "qqihh", 3
    return struct.pack("hhqqi", kind, os.SEEK_SET, offset, length, 0), "hhqqi", 0


def _set(descriptor: int, kind: int, offset: int, length: int = 1) -> bool:
    """Lock or unlock bytes; False if somebody else has locked them."""
    try:
        fcntl.fcntl(descriptor, _SET, _flock(kind, offset, length)[0])
        return True
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise


def _is_locked(descriptor: int, offset: int, length: int = 1) -> bool:
    """Whether another process has locked some of the bytes. Does not lock them, so that nobody is refused because of the look."""
    asked, layout, kind = _flock(fcntl.F_WRLCK, offset, length)
    return bool(struct.unpack(layout, fcntl.fcntl(descriptor, _GET, asked)[: len(asked)])[kind] != fcntl.F_UNLCK)


class Guard:
    """Holds SQLite's locks a second time, so that they last when the script closes a descriptor of the database.

    SQLite has POSIX locks. Without the shared lock on the database, another process takes itself for the last one when it
    closes, and deletes the journal that this process goes on writing to: its commits would be lost. Without the one on the
    index of the journal, the next process to open it would empty the index. Without the writer's lock, two could write at
    the same place. The first two are held here while there is a connection, the third during a transaction.
    """

    _SHARED = 0x40000002, 510  # bytes of the database that every connection has a shared lock on
    _INDEX = 128, 1  # the byte of the index that every process with a connection has a shared lock on
    _WRITER = 0x40000400  # a byte of the database that SQLite never uses, nor locks

    def __init__(self, path: str) -> None:
        self._path = path
        self._open: list[tuple[int, tuple[int, int]]] = []  # descriptors, and what each has locked
        self.forget()

    def forget(self) -> None:
        """Start as the child of a fork, in which no connection is open."""
        self._mutex, self.writing, self._users = threading.RLock(), threading.RLock(), 0
        self._close()

    def enter(self) -> None:
        """A connection is about to be opened."""
        with self._mutex:
            self._users += 1
            self._lock(fcntl.F_RDLCK)  # if the last user is just about to close

    def hold(self) -> None:
        """The connection is open: SQLite has its locks, so hold them here, too."""
        with self._mutex:
            if OWNED_BY_OPEN_FILES and not self._open:
                for path, where in ((self._path, self._SHARED), (f"{self._path}-shm", self._INDEX)):
                    try:
                        descriptor = os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
                    except OSError:  # nobody can write there, or it is taken to be immutable
                        continue
                    self._open.append((descriptor, where))
                self._lock(fcntl.F_RDLCK)

    def leave(self) -> None:
        """The connection is about to be closed. If it is the last one, SQLite may delete the journal."""
        with self._mutex:
            self._users -= 1
            if not self._users:
                self._lock(fcntl.F_UNLCK)

    def end(self) -> None:
        """The connection is closed. Only now: closing these descriptors drops SQLite's locks as well."""
        with self._mutex:
            if not self._users:
                self._close()

    def lock_writer(self, seconds: float) -> None:
        """Be the one who writes. To be called with `writing` held."""
        pause, deadline = 0.0005, time.monotonic() + seconds
        while self._open and not _set(self._open[0][0], fcntl.F_WRLCK, self._WRITER):
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"could not write to the store {os.path.dirname(self._path)}: "
                    f"another process has been writing for {seconds:.0f} s: see which, or try again"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def unlock_writer(self) -> None:
        if self._open:
            _set(self._open[0][0], fcntl.F_UNLCK, self._WRITER)

    def _lock(self, kind: int) -> None:
        for descriptor, where in self._open:
            _set(descriptor, kind, *where)

    def _close(self) -> None:
        descriptors, self._open = self._open, []
        for descriptor, _ in descriptors:
            os.close(descriptor)


def in_use(path: str) -> bool:
    """Whether another process has the database at `path` open. This one must not: closing the file would drop its locks."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return _is_locked(descriptor, Guard._SHARED[0], Guard._SHARED[1])
    finally:
        os.close(descriptor)


_files: dict[str, LockFile] = {}
_guards: dict[str, Guard] = {}
_files_mutex = threading.Lock()


def lock_file(path: str) -> LockFile:
    """This process's locks in the file at `path`."""
    with _files_mutex:
        return _files.setdefault(path, LockFile(path))


def guard(path: str) -> Guard:
    """This process's guard of the database at `path`."""
    with _files_mutex:
        return _guards.setdefault(path, Guard(path))


def _in_child() -> None:
    global _files_mutex
    _files_mutex = threading.Lock()
    for file in _files.values():
        file.forget()
    for each in _guards.values():
        each.forget()


os.register_at_fork(after_in_child=_in_child)
