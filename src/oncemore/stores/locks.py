"""Locks owned by the operating system, which frees them as soon as their process dies.

`LockFile` locks single bytes of one file. Its locks belong to the process, so this module tracks which hold inside the
process has which key. There is one descriptor per file, open from the first acquisition to the last release. `Guard` keeps
SQLite's own files locked.

A POSIX record lock is dropped when *any* descriptor of its file is closed in the process: a script that copies its store's
folder would drop them all. Linux has locks that belong to an open file instead, which are used there. Elsewhere (macOS) POSIX
locks are used, and a script must not open a store's files.

Ctrl-C may arrive between any two operations, and a notebook goes on after it. So a key is held as long as its hold object
exists: no code has to run to free it, and the next operation unlocks the byte. (There is no `__del__`: Python drops a Ctrl-C
that arrives while one runs.)
"""

from __future__ import annotations

import contextlib
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

from ..errors import HoldLost, StoreUnavailable, UsageError, warn
from . import Bytes, Hold
from .filesystem import explained

_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_BUSY = (errno.EAGAIN, errno.EACCES)
_SET: int = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK) if sys.platform == "linux" else fcntl.F_SETLK
_GET: int = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK) if sys.platform == "linux" else fcntl.F_GETLK
OWNED_BY_OPEN_FILES = _SET != fcntl.F_SETLK  # whether locks survive closing another descriptor of the file


class LockFile:
    """The locks of one store in this process. Use `lock_file`, which returns one object per path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.forget()

    def forget(self) -> None:
        """Start without holds: in a new process, or in the child of a fork, which inherits no record locks."""
        self._close()
        self._mutex = threading.RLock()  # reentrant: garbage collection may release a hold during another operation
        self._held: dict[str, weakref.ref[FileHold]] = {}

    def acquire(self, key: str) -> FileHold | None:
        """Acquire `key`; None if it is held, in this process or another."""
        hold = FileHold(self, key)
        with self._mutex:
            if self._descriptor is not None and not self._is_current():
                # The store was deleted or moved. Others lock the new file, so holds in the old one are lost.
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
        """Release the hold's key, and its byte unless another key shares it. No effect if the hold was already released."""
        with self._mutex:
            self._free_abandoned()
            if self._held.get(hold.key) is hold.reference:
                self._free(hold.key)

    def _free_abandoned(self) -> None:
        """Free the keys whose hold objects no longer exist, because Ctrl-C interrupted their acquisition or release."""
        for key, reference in self._held.copy().items():
            if reference() is None:
                self._free(key)

    def _free(self, key: str) -> None:
        # The key leaves the table last: if Ctrl-C arrives before that, the next operation repeats this.
        hold, others = self._held[key](), [each() for other, each in self._held.copy().items() if other != key]
        offset = _offset(key) if hold is None else hold.offset
        if self._descriptor is not None and not any(hold is not None and hold.offset == offset for hold in others):
            _set(self._descriptor, fcntl.F_UNLCK, offset)
        if not others:
            self._close()
        self._held.pop(key, None)

    def held(self, keys: Collection[str]) -> set[str]:
        """The keys that are held, in this process or another. Acquires none of them."""
        with self._mutex:
            others = [key for key in keys if key not in self._held]
            found = set(keys) - set(others)
            try:
                descriptor = os.open(self._path, os.O_RDONLY) if self._descriptor is None else self._descriptor
                try:
                    return found | {key for key in others if _is_locked(descriptor, _offset(key))}
                finally:
                    if self._descriptor is None:  # this process has no lock on the file that closing could drop
                        os.close(descriptor)
            except OSError as error:
                if error.errno in (errno.ENOENT, *_UNWRITABLE):
                    return found
                raise explained(error, "check the locks of", os.path.dirname(self._path)) from error

    def holder(self, key: str) -> int | None:
        """The process that holds `key`; None if nobody does, or if the system does not tell."""
        with self._mutex:
            return os.getpid() if key in self._held else owner(self._path, self._descriptor, _offset(key))

    def require(self, hold: Hold) -> None:
        """Raise `HoldLost` unless `hold` still excludes others; UsageError if it belongs to another store."""
        if not isinstance(hold, FileHold) or hold.file is not self:
            raise UsageError(f"{hold!r} is not a hold of this store")
        with self._mutex:
            held = self._held.get(hold.key) is hold.reference
            if held and self._descriptor is not None:  # else the directory is read-only, see `_lock`
                # Lock again, in case closing another descriptor dropped the lock; no effect if it is still there.
                held = self._is_current() and self._lock(hold.offset)
            if not held:
                raise HoldLost(
                    f"the hold on {hold.key!r} was released, or {self._path} was replaced: nothing was written"
                )

    def _is_current(self) -> bool:
        """Whether the open file is still the one at this path."""
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
            folder = os.path.dirname(self._path)
            if self._descriptor is None and error.errno in _UNWRITABLE and not os.access(folder, os.W_OK):
                return True  # nothing can be recorded in a read-only directory, so excluding our own threads is enough
            raise explained(error, "lock a key of", folder) from error

    def _close(self) -> None:
        # Forget the descriptor first: closing it twice might close another file that got the same number.
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class FileHold:
    """A key held until this object is released or garbage collected, or the process ends."""

    entry: Bytes | None = None

    def __init__(self, file: LockFile, key: str) -> None:
        self.file, self.key, self.offset = file, key, _offset(key)
        # Identifies this hold among earlier ones of the key and those of a parent process.
        self.reference = weakref.ref(self)

    def release(self) -> None:
        """Release the key. No effect the second time, or in a forked child."""
        self.file.release(self)


def _offset(key: str) -> int:
    """The offset of the byte that represents a key."""
    return int.from_bytes(blake3(key.encode()).digest(length=8), "big") >> 2


def _flock(kind: int, offset: int, length: int) -> tuple[bytes, str, int]:
    """A `struct flock`, its layout, and the index of the lock type in it."""
    if sys.platform == "darwin":
        return struct.pack("qqihh", offset, length, 0, kind, os.SEEK_SET), "qqihh", 3
    return struct.pack("hhqqi", kind, os.SEEK_SET, offset, length, 0), "hhqqi", 0


def _set(descriptor: int, kind: int, offset: int, length: int = 1) -> bool:
    """Lock or unlock bytes; False if another process has locked them."""
    try:
        fcntl.fcntl(descriptor, _SET, _flock(kind, offset, length)[0])
        return True
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise


def _is_locked(descriptor: int, offset: int, length: int = 1) -> bool:
    """Whether another process has locked some of the bytes. Only queries, so that no other process is refused."""
    query, layout, index = _flock(fcntl.F_WRLCK, offset, length)
    return bool(struct.unpack(layout, fcntl.fcntl(descriptor, _GET, query)[: len(query)])[index] != fcntl.F_UNLCK)


def owner(path: str, descriptor: int | None, offset: int) -> int | None:
    """The process that has locked this byte of a file; None if the system does not tell, as of other users' processes.

    A lock that belongs to an open file is listed with each process that has the file open (see proc(5), fdinfo).
    """
    if not OWNED_BY_OPEN_FILES:
        if descriptor is None:  # opening the file only to ask would drop the locks of this process
            return None
        query, layout, index = _flock(fcntl.F_WRLCK, offset, 1)
        found = struct.unpack(layout, fcntl.fcntl(descriptor, _GET, query)[: len(query)])
        return None if found[index] == fcntl.F_UNLCK else int(found[2 if index else 4])
    for process in filter(str.isdigit, _listed("/proc")):
        for number in _listed(f"/proc/{process}/fdinfo"):
            with contextlib.suppress(OSError):  # it has ended, or closed the file
                with open(f"/proc/{process}/fdinfo/{number}", encoding="ascii") as file:
                    locks = [line.split() for line in file if line.startswith("lock:")]
                locked = any("WRITE" in lock for lock in locks if lock[-2] == str(offset))
                if locked and os.path.samestat(os.stat(f"/proc/{process}/fd/{number}"), os.stat(path)):
                    return int(process)
    return None


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


class Guard:
    """Holds SQLite's locks a second time, so that they survive when the script closes a descriptor of the database.

    SQLite uses POSIX locks. Without the shared lock on the database, another process that closes it would consider itself the
    last one and delete the journal that this process still writes to: its commits would be lost. Without the lock on the
    journal's index, the next process to open it would empty the index. Without the writer's lock, two processes could write
    at once. The first two are held while there is a connection, the third during a transaction.
    """

    _SHARED = 0x40000002, 510  # (offset, length) in the database, share-locked by every connection
    _INDEX = 128, 1  # (offset, length) in the index, share-locked by every process with a connection
    _WRITER = 0x40000400  # a byte of the database that SQLite neither uses nor locks

    def __init__(self, path: str) -> None:
        self._path = path
        self._open: list[tuple[int, tuple[int, int]]] = []  # descriptors and the ranges they lock
        self.forget()

    def forget(self) -> None:
        """Start without connections, as in the child of a fork."""
        self._mutex, self.writing, self._users = threading.RLock(), threading.RLock(), 0
        self._close()

    def enter(self) -> None:
        """To be called before a connection is opened."""
        with self._mutex:
            self._users += 1
            self._lock(fcntl.F_RDLCK)  # in case the last user is just closing

    def hold(self) -> None:
        """To be called once the connection is open and SQLite has its locks: hold them here, too."""
        with self._mutex:
            if OWNED_BY_OPEN_FILES and not self._open:
                for path, byte_range in ((self._path, self._SHARED), (f"{self._path}-shm", self._INDEX)):
                    try:
                        descriptor = os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
                    except OSError:  # read-only, or opened as immutable
                        continue
                    self._open.append((descriptor, byte_range))
                self._lock(fcntl.F_RDLCK)

    def leave(self) -> None:
        """To be called before the connection is closed. If it is the last one, SQLite may delete the journal."""
        with self._mutex:
            self._users -= 1
            if not self._users:
                self._lock(fcntl.F_UNLCK)

    def end(self) -> None:
        """To be called after the connection is closed: closing these descriptors also drops SQLite's locks."""
        with self._mutex:
            if not self._users:
                self._close()

    def lock_writer(self, began: float, seconds: float) -> None:
        """Acquire the writer's lock, at most `seconds` after `began`. The caller holds `writing`."""
        pause, told = 0.0005, False
        while self._open and not _set(self._open[0][0], fcntl.F_WRLCK, self._WRITER):
            waited = time.monotonic() - began
            if waited > seconds or (waited > seconds / 2 and not told):
                pid, store = owner(self._path, self._open[0][0], self._WRITER), os.path.dirname(self._path)
                other = f"another process{'' if pid is None else f' (pid {pid})'}"
                if waited > seconds:
                    raise StoreUnavailable(
                        f"could not write to the store {store}: {other} has been writing for {seconds:.0f} s "
                        f"(find and stop it, or try again)"
                    )
                warn(f"still waiting to write to the store {store} after {waited:.0f} s: {other} is writing")
                told = True
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def unlock_writer(self) -> None:
        if self._open:
            _set(self._open[0][0], fcntl.F_UNLCK, self._WRITER)

    def _lock(self, kind: int) -> None:
        for descriptor, byte_range in self._open:
            _set(descriptor, kind, *byte_range)

    def _close(self) -> None:
        descriptors, self._open = self._open, []
        for descriptor, _ in descriptors:
            os.close(descriptor)


def in_use(path: str) -> bool:
    """Whether another process has the database at `path` open. This process must not: closing the file would drop its locks."""
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
