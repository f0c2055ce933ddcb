"""The `diskcache.Cache` under a disk store, hardened: bytes only, nothing evicted, safe across forks and interrupts.

diskcache gives the tables, the value files, `get`, `set`, `add`, `delete` and `transact`. What it does not give is here:

* Values are bytes. Nothing is unpickled, and a row can only name a file that `BytesDisk` could have made. A value that is
  damaged or cannot be read is told from one that is absent.
* Value files are complete before a transaction begins, and those without a row are removed after its end. diskcache
  removes them inside the transaction: a kill there would lose both the old and the new value.
* Connections belong to threads, and SQLite forbids carrying one across a fork: the child would take its parent's locks for
  its own, and whoever closes last would delete the journal under the other's feet. All are closed before a fork, and reopen
  by themselves on both sides.
* SQLite's locks are held twice, so that a script which opens and closes the files of its store by itself does not drop them.
* A database appears complete or not at all. One that is missing, empty, read-only or destroyed is recognised as such.
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
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote
from weakref import finalize

import diskcache
from diskcache.core import DBNAME, MODE_BINARY, MODE_RAW

from ..buffers import allocate
from ..errors import IntegrityError, StoreDamaged, StoreError, StoreUnavailable, warn
from . import Bytes, Frames
from .filesystem import READ_ONLY, destroyed, explained
from .locks import LockFile, guard

FORMAT = 1  # of the store
INLINE = 1 << 15  # values below this size live in their row
TIMEOUT = 60.0  # seconds that a writer waits for the others
CHUNK = 500  # parameters of a statement: every SQLite takes 999

SETTINGS: dict[str, Any] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 62,
    "statistics": 0,
    "disk_min_file_size": INLINE,
    "sqlite_auto_vacuum": 2,  # incremental: upkeep gives space back, not every commit
    "sqlite_mmap_size": 0,  # a database truncated under a map kills the process that reads it
}
_IGNORE, _HIDE = ".gitignore", b"*\n"
_LOOK_AGAIN = 0.05  # seconds after which a commit looks again: that costs as much as a small read
_MODES = ("mode=rw", "mode=ro", "immutable=1")  # the last ignores the journal, and needs no file to be made
_NOT_A_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}-([0-9a-f]{1,16})\.val")

Row = tuple[int, int, "str | None", "bytes | None"]  # the columns size, mode, filename, value
Given = ParamSpec("Given")
Result = TypeVar("Result")


# -- values


class Unreadable(Exception):
    """Holds the StoreError that says why a value cannot be had: `Cache.get` takes every OSError for absence."""


class _Touched(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


class BytesDisk(diskcache.Disk):
    """Text keys and byte values: small values in their row, large ones in a file of their own, whose name ends in its size."""

    def __init__(self, directory: str, *, durable: bool = False) -> None:
        super().__init__(directory, min_file_size=INLINE)
        self._durable = durable
        self.touched = _Touched()  # value files that this thread's commit has written, or taken out of their rows

    def put(self, key: str) -> tuple[str, bool]:
        """A key as it stands in a row."""
        return key, True

    def get(self, key: Any, raw: bool) -> Any:
        """A key from a row, as it is: diskcache would unpickle one that is not raw."""
        return key

    def prepare(self, frames: Frames) -> Row:
        """The columns for a value, made before the transaction that stores them; its file, if any, is complete."""
        size = sum([memoryview(frame).nbytes for frame in frames])
        if size < INLINE:
            return 0, MODE_RAW, None, b"".join(frames)
        name = f"{self.filename()[0].removesuffix('.val')}-{size:x}.val"
        self.touched.names.append(name)
        try:
            self._write_file(os.path.join(self._directory, name), frames)
        except OSError as error:
            raise explained(error, "write to", self._directory) from error
        return size, MODE_BINARY, name, None

    def store(self, value: Row, read: bool, key: object = None) -> Row:
        """What `Cache.set` puts into the row: the columns, which `prepare` has made."""
        return value

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> Bytes:
        """The value behind these columns, which anyone may have altered. Raises `Unreadable`."""
        if mode == MODE_RAW and filename is None and type(value) is bytes:
            return value
        size = size_of(filename)
        if not isinstance(filename, str) or size is None or mode != MODE_BINARY or value is not None:
            raise Unreadable(IntegrityError(f"its row was altered (mode {mode}, file {filename!r})"))
        try:
            with open(os.path.join(self._directory, filename), "rb", buffering=0, opener=_plain) as file:
                about = os.fstat(file.fileno())
                if not stat.S_ISREG(about.st_mode) or about.st_size != size:
                    raise Unreadable(IntegrityError(f"its file {filename} has {about.st_size} bytes instead of {size}"))
                buffer, done = allocate(size), 0
                while done < size:
                    count = file.readinto(buffer[done:])
                    if not count:
                        raise Unreadable(IntegrityError(f"its file {filename} was cut short while it was read"))
                    done += count
                return buffer
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise Unreadable(IntegrityError(f"its file {filename} is missing or replaced")) from error
            raise Unreadable(explained(error, f"read {filename} of", self._directory)) from error

    def complete(self, filename: object) -> bool:
        """Whether the value file of this name is there in full."""
        try:
            return os.lstat(os.path.join(self._directory, str(filename))).st_size == size_of(filename)
        except OSError:
            return False

    def remove(self, file_path: str) -> None:
        """Note that a file has lost its row: diskcache calls this before the COMMIT, `discard` comes after that."""
        if size_of(file_path) is not None:
            self.touched.names.append(file_path)

    def discard(self, names: Iterable[str]) -> None:
        """Remove value files, and the folders that become empty."""
        for name in names:
            super().remove(name)

    def _write_file(self, path: str, frames: Frames) -> None:
        with open(path, "xb", opener=_private) as file:
            file.writelines(frames)  # a large frame goes past the buffer: it is not copied
            if self._durable:
                file.flush()
                os.fsync(file.fileno())
        if self._durable:
            inner = os.path.dirname(path)
            for folder in (inner, os.path.dirname(inner), self._directory):
                _sync_directory(folder)


def size_of(filename: object) -> int | None:
    """The size that a value file's name tells. None: not a name of ours, so nothing to read or to remove."""
    found = _NAME.fullmatch(filename) if isinstance(filename, str) else None
    return None if found is None else int(found[1], 16)


def _plain(path: str, flags: int) -> int:
    """Open a file; a link, a pipe or a device in its place is neither followed nor waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _private(path: str, flags: int) -> int:
    """Open a new file that others cannot read, and make its folders."""
    for _ in range(10):
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            inner = os.path.dirname(path)
            for folder in (os.path.dirname(inner), inner):
                with contextlib.suppress(FileExistsError, FileNotFoundError):  # whoever empties a folder removes it
                    os.mkdir(folder, 0o700)
    return os.open(path, flags, 0o600)


def _sync_directory(path: str) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without it
            raise
    finally:
        os.close(descriptor)


# -- connections


class Session:
    """One thread's connection, locked while it is used or closed, so that a fork or `close` in another thread waits.

    None is left to the garbage collector: a fork would find it open.
    """

    def __init__(self, path: str, mode: str, *, durable: bool) -> None:
        self.path, self.lock, self._guard = path, threading.RLock(), guard(path)
        self.identity = _identity(path)  # to notice when another file takes its place
        # As a URI, and never `mode=rwc`: a missing file must not come back as an empty one.
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
            connection.execute("PRAGMA secure_delete=ON").fetchall()  # what is removed is overwritten, on every SQLite
            self.settings: dict[str, Any] = dict(connection.execute("SELECT key, value FROM Settings").fetchall())
            self._guard.hold()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self not in _sessions:  # done; in a forked child, a thread that is no more may have the lock
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
    """Ends with the thread, or with the cache, that a session is for."""


class _Transaction:
    """What `Cache.transact` gives: the outermost of a thread begins and ends the transaction.

    diskcache's is a generator. One that Ctrl-C leaves behind would roll back a later transaction when it is collected.
    """

    def __init__(self, cache: Cache) -> None:
        self._connection, self._noted = cache._con, cache.values.remove
        self._outermost = not self._connection.in_transaction

    def __enter__(self) -> Any:
        if self._outermost:
            self._connection.execute("BEGIN IMMEDIATE")
        return self._connection.execute, self._noted

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._outermost and kind is None:
            self._connection.execute("COMMIT")
        elif self._outermost:
            self._connection.rollback()


class Cache(diskcache.Cache):
    """The cache in `directory`. Use it through `use`, which locks the thread's connection and explains errors."""

    # Fixed here and not read from the table, where whoever opens the store with diskcache may write others.
    eviction_policy, cull_limit, statistics = SETTINGS["eviction_policy"], 0, 0

    def __init__(self, directory: str, locks: LockFile, *, durable: bool) -> None:
        # Without diskcache's own, which writes all settings on every opening, and makes a database where there is none.
        self._directory, self._timeout = directory, TIMEOUT
        self._local = threading.local()
        self._disk = self.values = BytesDisk(directory, durable=durable)
        self._locks, self._durable = locks, durable
        self.path = os.path.join(directory, DBNAME)
        self._guard = guard(self.path)
        self._refusal: str | None = None  # why nothing can be written, if so
        self._looked = 0.0  # when a commit last looked whether the database is in its place
        self.use("open", lambda: None)

    def use(self, doing: str, work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
        """Call `work`, which uses this thread's connection for a few statements; what goes wrong is explained."""
        try:
            while True:
                session = self._session()
                with session.lock:
                    if session.connection is not None:  # else a fork came between
                        return work(*given, **named)
        except StoreError:
            raise
        except (sqlite3.Error, UnicodeError, OSError) as error:
            raise explained(error, doing, self._directory) from error

    def transact(self, retry: bool = False, filename: str | None = None) -> _Transaction:
        """What is inside is one transaction."""
        return _Transaction(self)

    _transact = (
        transact  # for `set`, `add` and `delete`, which are given how to run SQL and how to name a file without row
    )

    def change(self, work: Callable[[], None]) -> None:
        """Call `work` in a transaction; if it raises, nothing has happened. To be called by `use`."""
        names = self.values.touched.names
        written = len(names)
        self._undo()
        self.alone(self._transaction, work)
        del names[:written]  # they have their rows; the others have lost theirs
        self.values.discard(names)
        names.clear()

    def _transaction(self, work: Callable[[], None]) -> None:
        try:
            with self.transact():
                # Upkeep removes old files without a row, in a transaction: from here on it finds the rows of ours.
                if not all(map(self.values.complete, self.values.touched.names)):
                    raise StoreUnavailable(
                        "could not write to the store: a value file was removed before its commit; try again"
                    )
                work()
        finally:
            self._undo()

    def alone(self, work: Callable[Given, None], *given: Given.args, **named: Given.kwargs) -> None:
        """Call `work`, which writes, while no other process writes. To be called by `use`."""
        with self._guard.writing:
            try:
                self._guard.lock_writer(TIMEOUT)
                work(*given, **named)
            finally:
                self._guard.unlock_writer()

    def _undo(self) -> None:
        """Roll back what Ctrl-C left open."""
        if self._con.in_transaction:
            self._con.rollback()

    def tidy(self) -> None:
        """Remove the value files that a commit of this thread, failed or cut off, has left without a row.

        If that cannot be told they stay: upkeep finds them.
        """
        names, self.values.touched.names = self.values.touched.names, []
        if names:
            with contextlib.suppress(StoreError):
                self.values.discard(self.use("tidy", self.without_row, names))

    def without_row(self, names: Sequence[str]) -> set[str]:
        """Those of the value files that no row names. To be called by `use`."""
        left = set(names)
        for start in range(0, len(names), CHUNK):
            chunk = names[start : start + CHUNK]
            marks = ",".join("?" * len(chunk))
            rows = self._sql(f"SELECT filename FROM Cache WHERE filename IN ({marks})", chunk).fetchall()
            left.difference_update(name for (name,) in rows)
        return left

    def require_writable(self) -> None:
        """Raise unless the database can be written; open it anew if another has taken its place."""
        now = time.monotonic()
        if now - self._looked > _LOOK_AGAIN or self._refusal is not None:
            self._looked = now
            self.renew()
        if self._refusal is not None:
            raise StoreError(self._refusal)

    def renew(self) -> None:
        """Open the database anew if another has taken its place, or if it could not be written and may be by now."""
        if self._refusal is not None or self.use("open", self._session).identity != _identity(self.path):
            self.close()
            self._refusal = None
            self.use("open", lambda: None)

    def close(self) -> None:
        """Close the connections of all threads; each opens again when needed."""
        close_all(self.path)

    @property
    def _con(self) -> sqlite3.Connection:
        session: Session | None = getattr(self._local, "session", None)
        if session is None or session.connection is None:
            # Reopened here, the rest of a transaction would be on its own.
            raise sqlite3.ProgrammingError("this process was forked in the midst of it")
        return session.connection

    def _session(self) -> Session:
        session: Session | None = getattr(self._local, "session", None)
        return self._connect() if session is None or session.connection is None else session

    def _connect(self) -> Session:
        """This thread's connection to the database that is at this place now, which is made if there is none."""
        with gate:  # a fork waits until the connection is known
            if not os.path.lexists(self.path):
                self.close()
                _create(self._directory, self._locks, durable=self._durable)
            if not os.path.getsize(self.path):  # diskcache would make it anew, silently
                raise destroyed(self._directory, "it is empty")
            session = self._first_that_works()
            mark = _Mark()
            finalize(mark, session.close).atexit = False  # `close_all` does it
            self._check(session)
            self._local.session, self._local.mark = session, mark
            return session

    def _first_that_works(self) -> Session:
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
                # A full disk has no room for the journal's index, yet what was stored before can be read.
                self._refusal = self._refusal or str(problem)
                self.close()  # nobody here writes to what is taken to be immutable
        if not modes and os.path.exists(journal := f"{self.path}-wal") and os.path.getsize(journal):
            warn(f"the store {self._directory} cannot be written, nor its journal read: its last entries are not seen")
        return session

    def _check(self, session: Session) -> None:
        found, connection = session.settings, session.connection
        if (version := found.get("oncemore_format")) is None:
            raise StoreError(f"{self.path} was made by another program: name a directory of its own for the store")
        if version != FORMAT:
            raise StoreError(
                f"the store {self._directory} was made by a newer oncemore (format {version}; this one knows {FORMAT}): "
                f"upgrade oncemore, or name another directory"
            )
        changed = [(value, key) for key, value in SETTINGS.items() if found.get(key) != value]
        if changed and self._refusal is None and connection is not None:
            # By somebody who opened it with diskcache and other settings: the next to do so would evict entries.
            with contextlib.suppress(sqlite3.Error):
                connection.executemany("UPDATE Settings SET value = ? WHERE key = ?", changed)


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


_sessions: set[Session] = set()  # those with a connection
gate = threading.RLock()  # held while a store or a connection is opened; taken before a session's lock, never inside it


def close_all(path: str | None = None) -> None:
    for session in list(_sessions):
        if path is None or session.path == path:
            session.close()


def _before_fork() -> None:
    gate.acquire()
    close_all()


os.register_at_fork(before=_before_fork, after_in_parent=gate.release, after_in_child=gate.release)
# The last to close writes the journal into the database, so that the file by itself is the whole store.
atexit.register(close_all)


# -- creation: diskcache makes its tables in a file beside the final one, which is renamed when complete. A process killed
#    meanwhile leaves no half store, and an empty database file can only be a destroyed one


class _Blank(diskcache.Cache):
    """An empty database at `path`. diskcache expands `$` in the names it is given, so it gets none but the root."""

    def __init__(self, path: str, *, hidden: bool) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            super().__init__(os.sep, **SETTINGS)
            execute = self._connection.execute
            execute("DROP INDEX IF EXISTS Cache_expire_time")  # nothing expires; it makes up a tenth of a small commit
            execute("CREATE INDEX Cache_filename ON Cache(filename) WHERE filename IS NOT NULL")  # for upkeep
            execute("INSERT INTO Settings VALUES ('oncemore_format', ?)", (FORMAT,))
            if hidden:
                # An entry like any other, so that `Cache.check` knows the file. No key of ours is made of bytes.
                row = (_IGNORE.encode(), time.time(), len(_HIDE), MODE_BINARY, _IGNORE)
                execute("INSERT INTO Cache(key, raw, store_time, size, mode, filename) VALUES (?, 1, ?, ?, ?, ?)", row)
        finally:
            self._connection.close()

    @property
    def _con(self) -> sqlite3.Connection:
        return self._connection


def blank(path: str, *, hidden: bool) -> None:
    """Make an empty database at `path`, where there is an empty file."""
    _Blank(path, hidden=hidden)


def hides(directory: str) -> bool:
    """Whether the store keeps itself out of its user's repository."""
    with contextlib.suppress(OSError), open(os.path.join(directory, _IGNORE), "rb") as file:
        return file.read() == _HIDE
    return False


def _create(directory: str, locks: LockFile, *, durable: bool) -> None:
    """Make the store in `directory`, unless another process does so first."""
    final, ignore = os.path.join(directory, DBNAME), os.path.join(directory, _IGNORE)
    new = f"{final}.new-{os.urandom(8).hex()}"
    os.makedirs(directory, 0o700, exist_ok=True)
    deadline = time.monotonic() + TIMEOUT
    while (hold := locks.acquire("\0create")) is None:
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"another process has been creating the store {directory} for too long: see which")
        time.sleep(0.002)
    try:
        if os.path.lexists(final):
            return
        found, was_hidden = os.listdir(directory), hides(directory)
        # Not in a directory with other things in it: they are not ours to hide.
        hidden = was_hidden or all(name.startswith(DBNAME) for name in found)
        for suffix in ("-wal", "-shm"):
            # Left by a database that was deleted or moved away; SQLite would write it into the new one.
            with contextlib.suppress(FileNotFoundError):
                os.replace(final + suffix, f"{final}{suffix}.stray")
        for path, content in ((new, b""), (f"{new}-ignore", _HIDE)):
            with open(path, "xb", opener=_private) as file:  # SQLite gives the mode of the database to the journal too
                file.write(content)
        _Blank(new, hidden=hidden)
        if hidden:
            os.rename(f"{new}-ignore", ignore)
        os.rename(new, final)
        if durable:
            _sync_directory(directory)
        if was_hidden and not any(
            name.startswith(f"{DBNAME}.new-") for name in found
        ):  # those are left by a kill in here
            warn(f"the database of the store {directory} is gone: {final}. It starts empty")
    finally:
        for suffix in ("", "-wal", "-shm", "-ignore"):
            with contextlib.suppress(OSError):
                os.unlink(new + suffix)
        hold.release()
