"""The `diskcache.Cache` under a disk store, hardened: bytes only, nothing evicted, safe across forks and interrupts.

diskcache provides the tables, the value files, `get`, `set`, `add`, `delete` and `transact`. This module adds the rest:

* Values are bytes. Nothing is unpickled, and a row can only name a file that `BytesDisk` could have made. A value that is
  damaged or unreadable is distinguished from one that is absent.
* Value files are complete before a transaction begins, and replaced ones are removed after it ends. diskcache removes them
  inside the transaction, where a kill would lose both the old and the new value.
* Each thread has a connection, and SQLite forbids using one across a fork: the child would mistake its parent's locks for
  its own, and the last one to close would delete the journal that the other still uses. All connections are closed before a
  fork and reopened on demand in both processes.
* SQLite's locks are held twice, so that a script that opens and closes its store's files itself does not drop them.
* A database appears complete or not at all. A missing, empty, read-only or destroyed one is recognized.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote
from weakref import finalize

import diskcache
from diskcache.core import DBNAME, MODE_BINARY, MODE_RAW

from ..errors import IntegrityError, StoreDamaged, StoreError, StoreUnavailable, warn
from . import Bytes, Frames
from .buffers import allocate
from .filesystem import READ_ONLY, destroyed, explained, share, share_folder
from .locks import LockFile, guard

FORMAT = 1  # of the store
INLINE = 1 << 15  # values below this size live in their row
TIMEOUT = 60.0  # seconds that a writer waits for other writers
CHUNK = 500  # parameters per statement; every SQLite accepts 999

SETTINGS: dict[str, Any] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 62,
    "statistics": 0,
    "disk_min_file_size": INLINE,
    "sqlite_auto_vacuum": 2,  # incremental: maintenance frees space, not every commit
    "sqlite_mmap_size": 0,  # reading a mapped database that was truncated kills the process
}
_IGNORE, _HIDE = ".gitignore", b"*\n"
_RECHECK = 0.05  # seconds between checks that the database file was not replaced: one costs as much as a small read
_MODES = ("mode=rw", "mode=ro", "immutable=1")  # the last ignores the journal and needs no new file
_NOT_A_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}-([0-9a-f]{1,16})\.val")

Row = tuple[int, int, "str | None", "bytes | None"]  # the columns size, mode, filename, value
Given = ParamSpec("Given")
Result = TypeVar("Result")


# -- values


class Unreadable(Exception):
    """Carries the StoreError that says why a value can't be read: `Cache.get` treats every OSError as absence."""


class _TouchedFiles(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


class BytesDisk(diskcache.Disk):
    """Text keys and byte values. Small values are in their row, each large one in a file whose name ends in its size."""

    def __init__(self, directory: str, *, durable: bool = False) -> None:
        super().__init__(directory, min_file_size=INLINE)
        self._durable = durable
        self.touched = _TouchedFiles()  # value files that this thread's commit has written, or whose rows it removed

    def put(self, key: str) -> tuple[str, bool]:
        """A key as stored in a row."""
        return key, True

    def get(self, key: Any, raw: bool) -> Any:
        """A key from a row, unchanged: diskcache would unpickle one that is not raw."""
        return key

    def prepare(self, frames: Frames) -> Row:
        """The columns for a value. Writes its file, if it needs one, so that it is complete before the transaction."""
        size = sum([memoryview(frame).nbytes for frame in frames])
        if size < INLINE:
            return 0, MODE_RAW, None, b"".join(frames)
        try:
            name = f"{self.filename()[0].removesuffix('.val')}-{size:x}.val"  # may load a codec, which is a file, too
            self.touched.names.append(name)
            self._write_file(os.path.join(self._directory, name), frames)
        except OSError as error:
            raise explained(error, "write to", self._directory) from error
        return size, MODE_BINARY, name, None

    def store(self, value: Row, read: bool, key: object = None) -> Row:
        """The columns that `Cache.set` writes: those made by `prepare`."""
        return value

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> Bytes:
        """The value that these untrusted columns describe. Raises `Unreadable`."""
        if mode == MODE_RAW and filename is None and type(value) is bytes:
            return value
        size = size_of(filename)
        if not isinstance(filename, str) or size is None or mode != MODE_BINARY or value is not None:
            raise Unreadable(IntegrityError(f"its row was altered (mode {mode}, file {filename!r})"))
        try:
            with open(os.path.join(self._directory, filename), "rb", buffering=0, opener=_no_follow) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size != size:
                    raise Unreadable(
                        IntegrityError(f"its file {filename} has {status.st_size} bytes instead of {size}")
                    )
                buffer, done = allocate(size), 0
                while done < size:
                    count = file.readinto(buffer[done:])
                    if not count:
                        raise Unreadable(IntegrityError(f"its file {filename} was truncated while being read"))
                    done += count
                return buffer
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise Unreadable(IntegrityError(f"its file {filename} is missing or was replaced")) from error
            raise Unreadable(explained(error, f"read {filename} of", self._directory)) from error

    def complete(self, filename: object) -> bool:
        """Whether the value file exists with its full size."""
        try:
            return os.lstat(os.path.join(self._directory, str(filename))).st_size == size_of(filename)
        except OSError:
            return False

    def remove(self, file_path: str) -> None:
        """Note that a file lost its row. diskcache calls this before the COMMIT; `discard` removes the file afterwards."""
        if size_of(file_path) is not None:
            self.touched.names.append(file_path)

    def discard(self, names: Iterable[str]) -> None:
        """Remove value files, and folders that become empty."""
        for name in names:
            super().remove(name)

    def _write_file(self, path: str, frames: Frames) -> None:
        with open(path, "xb", opener=partial(_private, database=os.path.join(self._directory, DBNAME))) as file:
            file.writelines(frames)  # a large frame bypasses the buffer and is not copied
            if self._durable:
                file.flush()
                os.fsync(file.fileno())
        if self._durable:
            inner = os.path.dirname(path)
            for folder in (inner, os.path.dirname(inner), self._directory):
                _sync_directory(folder)


def size_of(filename: object) -> int | None:
    """The size encoded in a value file's name; None if it is not such a name, and must not be read or removed."""
    match = _NAME.fullmatch(filename) if isinstance(filename, str) else None
    return None if match is None else int(match[1], 16)


def value_files(directory: str) -> list[str]:
    """The names of all value files, relative to the store."""
    found = (path[len(directory) + 1 :] for folder in value_folders(directory) for path in listed(folder))
    return sorted(name for name in found if size_of(name) is not None)


def value_folders(directory: str) -> list[str]:
    """The folders of value files, `ab/cd`, each `ab` after its subfolders."""
    outer = [path for path in listed(directory) if _is_pair(path)]
    return [inner for path in outer for inner in [*filter(_is_pair, listed(path)), path]]


def listed(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except FileNotFoundError:  # removed meanwhile
        return []


def _is_pair(path: str) -> bool:
    return len(os.path.basename(path)) == 2 and os.path.isdir(path) and not os.path.islink(path)


def _no_follow(path: str, flags: int) -> int:
    """Open a file without following a link or waiting for a pipe or device."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _private(path: str, flags: int, *, database: str = "") -> int:
    """Create a file that only its owner can use, or those who can use the database; and its folders."""
    for _ in range(10):
        try:
            descriptor = os.open(path, flags, 0o600)
            break
        except FileNotFoundError:
            inner = os.path.dirname(path)
            for folder in (os.path.dirname(inner), inner):
                with contextlib.suppress(FileExistsError, FileNotFoundError):  # others remove folders that become empty
                    os.mkdir(folder, 0o700)
                    share_folder(folder, database)
    else:
        descriptor = os.open(path, flags, 0o600)
    share(descriptor, database)
    return descriptor


def _sync_directory(path: str) -> None:
    """Make the file names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # not supported by the file system
            raise
    finally:
        os.close(descriptor)


# -- connections


class Session:
    """One thread's connection, locked while it is used or closed, so that a fork or `close` in another thread waits.

    Always closed explicitly: a connection left to the garbage collector would still be open in a fork.
    """

    def __init__(self, path: str, mode: str, *, durable: bool) -> None:
        self.path, self.lock, self._guard = path, threading.RLock(), guard(path)
        self.identity = _identity(path)  # to notice when the file is replaced
        # A URI, never with `mode=rwc`: a missing file must not be replaced by an empty one.
        uri = f"file:{quote(os.fsencode(path))}?{mode}"
        self.connection: sqlite3.Connection | None = None
        self._entered = False
        _sessions.add(self)
        try:
            self._guard.enter()
            self._entered = True
            connection = sqlite3.connect(uri, uri=True, timeout=TIMEOUT, isolation_level=None, check_same_thread=False)
            self.connection = connection
            synchronous = "FULL" if durable else "NORMAL"
            for pragma in (f"synchronous={synchronous}", "cache_size=8192", "mmap_size=0", "trusted_schema=OFF"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("PRAGMA secure_delete=ON").fetchall()  # overwrite removed data, on every SQLite
            self.settings: dict[str, Any] = dict(connection.execute("SELECT key, value FROM Settings").fetchall())
            self._guard.hold()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self not in _sessions:  # already closed; in a forked child, a thread that no longer exists may hold the lock
            return
        with self.lock:
            connection, self.connection = self.connection, None
            entered, self._entered = self._entered, False
            if entered:
                self._guard.leave()
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
            if entered:
                self._guard.end()
            _sessions.discard(self)


class _Mark:
    """Garbage collected with the thread or the cache that a session belongs to, which closes the session."""


class _Transaction:
    """The context manager of `Cache.transact`. Only the outermost one of a thread begins and ends the transaction.

    diskcache uses a generator. If Ctrl-C abandoned it, its garbage collection would roll back a later transaction.
    """

    def __init__(self, cache: Cache) -> None:
        self._connection, self._remove = cache._con, cache.values.remove
        self._outermost = not self._connection.in_transaction

    def __enter__(self) -> Any:
        if self._outermost:
            self._connection.execute("BEGIN IMMEDIATE")
        return self._connection.execute, self._remove

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._outermost and kind is None:
            self._connection.execute("COMMIT")
        elif self._outermost:
            self._connection.rollback()


class Cache(diskcache.Cache):
    """The cache in `directory`. Use it through `use`, which locks the thread's connection and explains errors."""

    # Fixed here instead of read from the table, where another program may have changed them through diskcache.
    eviction_policy, cull_limit, statistics = SETTINGS["eviction_policy"], 0, 0

    def __init__(self, directory: str, locks: LockFile, *, durable: bool) -> None:
        # Does not call diskcache's own, which writes all settings on every opening and creates a missing database.
        self._directory, self._timeout = directory, TIMEOUT
        self._local = threading.local()
        self._disk = self.values = BytesDisk(directory, durable=durable)
        self._locks, self._durable = locks, durable
        self.path = os.path.join(directory, DBNAME)
        self._guard = guard(self.path)
        self._refusal: str | None = None  # why the store is read-only, if it is
        self._checked = 0.0  # when a commit last checked that the database file was not replaced
        self.use("open", lambda: None)

    def use(self, doing: str, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
        """Call `work`, which runs a few statements on this thread's connection, and explain its errors."""
        try:
            while True:
                session = self._session()
                with session.lock:
                    if session.connection is not None:  # else a fork closed it meanwhile
                        return work(*args, **kwargs)
        except StoreError:
            raise
        except (sqlite3.Error, UnicodeError, OSError) as error:
            raise explained(error, doing, self._directory) from error

    def transact(self, retry: bool = False, filename: str | None = None) -> _Transaction:
        """A context manager that runs its block in one transaction."""
        return _Transaction(self)

    _transact = transact  # the name that `set`, `add` and `delete` use

    def change(self, work: Callable[[], None]) -> None:
        """Call `work` in a transaction, which is rolled back if it raises. To be called through `use`."""
        names = self.values.touched.names
        written = len(names)
        self._undo()
        self.exclusively(self._transaction, work)
        del names[:written]  # these have rows now; the others have lost theirs
        self.values.discard(names)
        names.clear()

    def _transaction(self, work: Callable[[], None]) -> None:
        try:
            with self.transact():
                # Maintenance removes old files without a row, in a transaction; from here on it sees the rows of these.
                if not all(map(self.values.complete, self.values.touched.names)):
                    raise StoreUnavailable(
                        f"could not write to the store {self._directory}: a value file was removed before its commit; try again"
                    )
                work()
        finally:
            self._undo()

    def exclusively(self, work: Callable[Given, None], *args: Given.args, **kwargs: Given.kwargs) -> None:
        """Call `work`, which writes, while no other process writes. To be called through `use`."""
        began = time.monotonic()  # so that threads that wait for the same process do not wait one after the other
        with self._guard.writing:
            try:
                self._guard.lock_writer(began, TIMEOUT)
                work(*args, **kwargs)
            finally:
                self._guard.unlock_writer()

    def _undo(self) -> None:
        """Roll back a transaction that Ctrl-C left open."""
        if self._con.in_transaction:
            self._con.rollback()

    def tidy(self) -> None:
        """Remove value files that this thread's failed or interrupted commit left without a row.

        If the rows can't be read, the files stay for maintenance to find.
        """
        names, self.values.touched.names = self.values.touched.names, []
        if names:
            with contextlib.suppress(StoreError):
                self.values.discard(self.use("tidy", self.without_row, names))

    def without_row(self, names: Sequence[str]) -> set[str]:
        """The value files among `names` that no row refers to. To be called through `use`."""
        orphans = set(names)
        for start in range(0, len(names), CHUNK):
            chunk = names[start : start + CHUNK]
            marks = ",".join("?" * len(chunk))
            rows = self._sql(f"SELECT filename FROM Cache WHERE filename IN ({marks})", chunk).fetchall()
            orphans.difference_update(name for (name,) in rows)
        return orphans

    def require_writable(self) -> None:
        """Raise unless the database is writable. Reopens it if the file was replaced."""
        now = time.monotonic()
        if now - self._checked > _RECHECK or self._refusal is not None:
            self._checked = now
            self.renew()
        if self._refusal is not None:
            raise StoreError(self._refusal)

    def renew(self) -> None:
        """Reopen the database if the file was replaced, or if it was read-only and may be writable by now."""
        if self._refusal is not None or self.use("open", self._session).identity != _identity(self.path):
            self.close()
            self._refusal = None
            self.use("open", lambda: None)

    def close(self) -> None:
        """Close the connections of all threads. They reopen when needed."""
        close_all(self.path)

    @property
    def _con(self) -> sqlite3.Connection:
        session: Session | None = getattr(self._local, "session", None)
        if session is None or session.connection is None:
            # Reopening here would run the rest of a transaction outside of it.
            raise sqlite3.ProgrammingError("this process was forked during the operation")
        return session.connection

    def _session(self) -> Session:
        session: Session | None = getattr(self._local, "session", None)
        return self._connect() if session is None or session.connection is None else session

    def _connect(self) -> Session:
        """Connect this thread to the database, creating it if there is none."""
        with gate:  # a fork waits until the connection is registered
            if not os.path.lexists(self.path):
                self.close()
                _create(self._directory, self._locks, durable=self._durable)
            if not os.path.getsize(self.path):  # diskcache would silently create a new one
                raise destroyed(self._directory, "it is empty")
            session = self._open_session()
            mark = _Mark()
            finalize(mark, session.close).atexit = False  # `close_all` does it
            self._check(session)
            self._local.session, self._local.mark = session, mark
            return session

    def _open_session(self) -> Session:
        """Open the database in the first mode that works: writable, read-only, or immutable."""
        for path in (self._directory, self.path):
            if self._refusal is None and not os.access(path, os.W_OK):
                self._refusal = f"could not write to the store {self._directory}: {path} is read-only ({READ_ONLY})"
        modes = list(_MODES if self._refusal is None else _MODES[1:])
        while True:
            mode = modes.pop(0)
            try:
                session = Session(self.path, mode, durable=self._durable)
                break
            except (sqlite3.Error, UnicodeError) as error:
                problem = explained(error, "open", self._directory)
                if not modes or isinstance(problem, (StoreDamaged, StoreUnavailable)):
                    raise problem from error
                # On a full disk there is no room for the journal's index, but existing entries can be read.
                self._refusal = self._refusal or str(problem)
                self.close()  # no connection may write to a database opened as immutable
        if not modes and os.path.exists(journal := f"{self.path}-wal") and os.path.getsize(journal):
            warn(
                f"the store {self._directory} is read-only and its journal cannot be read, so its latest entries are missing. "
                f"Make the directory writable, or copy the store to a writable disk"
            )
        return session

    def _check(self, session: Session) -> None:
        found, connection = session.settings, session.connection
        if (version := found.get("oncemore_format")) is None:
            raise StoreError(f"{self.path} was made by another program; use another directory for the store")
        if version != FORMAT:
            older = isinstance(version, int) and version < FORMAT
            raise StoreError(
                f"the store {self._directory} was made by {'an older' if older else 'a newer'} oncemore (format {version}; "
                f"this version reads {FORMAT}). {'Use that version' if older else 'Upgrade oncemore'}, or use another directory"
            )
        changed = [(value, key) for key, value in SETTINGS.items() if found.get(key) != value]
        if changed and self._refusal is None and connection is not None:
            # Changed by a program that opened it with diskcache; the next one to do so would evict entries.
            with contextlib.suppress(sqlite3.Error):
                connection.executemany("UPDATE Settings SET value = ? WHERE key = ?", changed)


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


_sessions: set[Session] = set()  # the open ones
gate = threading.RLock()  # held while a store or a connection is opened; taken before a session's lock, never inside it


def close_all(path: str | None = None) -> None:
    for session in list(_sessions):
        if path is None or session.path == path:
            session.close()


def _before_fork() -> None:
    gate.acquire()
    close_all()


os.register_at_fork(before=_before_fork, after_in_parent=gate.release, after_in_child=gate.release)
# Closing the last connection merges the journal into the database, so that the file alone is complete.
atexit.register(close_all)


# -- creation: diskcache creates its tables in a temporary file that is renamed when complete. A process killed meanwhile
#    leaves no unfinished store, and an empty database file can only be a destroyed one


class _Blank(diskcache.Cache):
    """An empty database at `path`. diskcache expands `$` in directory names, so it is given only the root directory."""

    def __init__(self, path: str, *, hidden: bool) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            super().__init__(os.sep, **SETTINGS)
            execute = self._connection.execute
            execute("DROP INDEX IF EXISTS Cache_expire_time")  # unused, and a tenth of a small commit's time
            execute("CREATE INDEX Cache_filename ON Cache(filename) WHERE filename IS NOT NULL")  # for maintenance
            execute("INSERT INTO Settings VALUES ('oncemore_format', ?)", (FORMAT,))
            if hidden:
                # A normal entry, so that `Cache.check` knows the file. Its key is bytes, unlike those of a store.
                row = (_IGNORE.encode(), time.time(), len(_HIDE), MODE_BINARY, _IGNORE)
                execute("INSERT INTO Cache(key, raw, store_time, size, mode, filename) VALUES (?, 1, ?, ?, ?, ?)", row)
        finally:
            self._connection.close()

    @property
    def _con(self) -> sqlite3.Connection:
        return self._connection


def blank(path: str, *, hidden: bool) -> None:
    """Create an empty database in the empty file at `path`."""
    _Blank(path, hidden=hidden)


def hides(directory: str) -> bool:
    """Whether the store has its own .gitignore, which keeps it out of the user's repository."""
    with contextlib.suppress(OSError), open(os.path.join(directory, _IGNORE), "rb") as file:
        return file.read() == _HIDE
    return False


def _create(directory: str, locks: LockFile, *, durable: bool) -> None:
    """Create the store in `directory`, unless another process does so first."""
    final, ignore = os.path.join(directory, DBNAME), os.path.join(directory, _IGNORE)
    new = f"{final}.new-{os.urandom(8).hex()}"
    os.makedirs(directory, 0o700, exist_ok=True)
    deadline = time.monotonic() + TIMEOUT
    while (hold := locks.acquire("\0create")) is None:
        if time.monotonic() > deadline:
            pid = locks.holder("\0create")
            raise StoreUnavailable(
                f"the store {directory} is still being created by another process"
                f"{'' if pid is None else f' (pid {pid})'}: find and stop it, or try again"
            )
        time.sleep(0.002)
    try:
        if os.path.lexists(final):
            return
        found, was_hidden = os.listdir(directory), hides(directory)
        # Do not add a .gitignore to a directory with other files: they are not ours to hide.
        hidden = was_hidden or all(name.startswith(DBNAME) for name in found)
        for suffix in ("-wal", "-shm"):
            # Left by a database that was deleted or moved; SQLite would merge it into the new one.
            with contextlib.suppress(FileNotFoundError):
                os.replace(final + suffix, f"{final}{suffix}.stray")
        for path, content in ((new, b""), (f"{new}-ignore", _HIDE)):
            with open(path, "xb", opener=_private) as file:  # the journal gets the same mode from SQLite
                file.write(content)
        _Blank(new, hidden=hidden)
        if hidden:
            os.rename(f"{new}-ignore", ignore)
        os.rename(new, final)
        if durable:
            _sync_directory(directory)
        killed_before = any(name.startswith(f"{DBNAME}.new-") for name in found)  # while creating this store
        if was_hidden and not killed_before:
            warn(
                f"the database {final} of the store {directory} is missing, so the store starts empty. If that is not "
                f"intended, restore the file from a backup"
            )
    finally:
        for suffix in ("", "-wal", "-shm", "-ignore"):
            with contextlib.suppress(OSError):
                os.unlink(new + suffix)
        hold.release()
