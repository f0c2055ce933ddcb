"""The `diskcache.Cache` under a disk store, hardened: bytes only, nothing evicted, safe across forks and interrupts.

diskcache gives the tables, the value files, `get`, `set`, `add`, `delete` and `transact`. What it does not give is here:

* Values are bytes. Nothing is unpickled, and a row can only name a file that `BytesDisk` could have made. A value that is
  damaged or cannot be read is told from one that is absent.
* Value files are complete before a transaction begins, and those that lose their row are removed after its COMMIT. diskcache
  removes them inside the transaction: a kill there would lose both the old and the new value.
* Connections belong to threads, and SQLite forbids carrying one across a fork: the child would take its parent's locks for
  its own, and whoever closes last would delete the journal under the other's feet. All are closed before a fork, and reopen
  by themselves on both sides.
* A database appears complete or not at all. One that is missing, empty, read-only or destroyed is recognised as such.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote
from weakref import WeakSet, finalize

import diskcache
from diskcache.core import DBNAME, MODE_BINARY, MODE_RAW

from ..bulk import allocate
from ..errors import StoreDamaged, StoreError, StoreUnavailable, UsageError, warn
from . import Bytes, Frames
from .filesystem import LOCAL_FILE_SYSTEMS, describe, file_system
from .locks import LockFile

FORMAT = 1  # of the store
INLINE = 1 << 15  # values below this size live in their row
TIMEOUT = 60.0  # seconds that a writer waits for the others
CHUNK = 500  # parameters of a statement: every SQLite takes 999
COLUMNS = "size, mode, filename, value"

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
_ALLOCATED = 1 << 20  # room for a file of this size is asked for at once: a full disk is found before the write
_LOOK_AGAIN = 0.05  # seconds after which a commit looks again whether the database is still in its place
_MODES = ("mode=rw", "mode=ro", "immutable=1")  # the last ignores the journal, and needs no file to be made
_NOT_A_FILE = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)
_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}-([0-9a-f]{1,16})\.val")

_LOCKED = "database is locked"
_READ_ONLY = "put the store on a disk that can be written"
_REMEDIES = {
    _LOCKED: "another process has been writing for too long: see which, or try again",
    "database or disk is full": "the disk is full: free some space",
    "attempt to write a readonly database": f"it is read-only: {_READ_ONLY}",
    "disk I/O error": "the disk may be full, over quota or failing: see df, quota and the system log",
    "unable to open database file": "it is missing, or permission or disk space is: see the directory",
}
_DAMAGE = ("malformed", "not a database", "no such table", "no such column", "unsupported file format", "not decode")

Row = tuple[int, int, "str | None", "bytes | None"]  # the columns size, mode, filename, value
Given = ParamSpec("Given")
Result = TypeVar("Result")


# -- values


class Missing(Exception):
    """A value file is not there: the entry was replaced or deleted meanwhile, or is damaged."""


class Damaged(Exception):
    """A row or a value file is not what was written. Not an OSError, which `Cache.get` would take for absence."""


class Failed(Exception):
    """A value file cannot be read; holds the StoreError that says why."""


class _Files(threading.local):
    """What one thread's transaction makes of the value files."""

    def __init__(self) -> None:
        self.written: list[Row] = []
        self.replaced: list[str] = []


class BytesDisk(diskcache.Disk):
    """Text keys and byte values: small values in their row, large ones in a file of their own, whose name ends in its size."""

    def __init__(self, directory: str, *, durable: bool = False) -> None:
        super().__init__(directory, min_file_size=INLINE)
        self._durable = durable
        self.files = _Files()

    def put(self, key: str) -> tuple[str, bool]:
        """A key as it stands in a row."""
        return key, True

    def get(self, key: Any, raw: bool) -> Any:
        """A key from a row, as it is: diskcache would unpickle one that is not raw."""
        return key

    def prepare(self, frames: Frames) -> Row:
        """The columns for a value, made before the transaction that stores them; its file, if any, is complete."""
        first = frames[0] if len(frames) == 1 else None
        size = len(first) if type(first) is bytes else sum(memoryview(frame).nbytes for frame in frames)
        if size < INLINE:
            return 0, MODE_RAW, None, first if type(first) is bytes else b"".join(frames)
        name = f"{self.filename()[0].removesuffix('.val')}-{size:x}.val"
        row = (size, MODE_BINARY, name, None)
        self.files.written.append(row)
        self._write_frames(os.path.join(self._directory, name), frames, size)
        return row

    def store(self, value: Row, read: bool, key: object = None) -> Row:
        """What `Cache.set` puts into the row: the columns, which `prepare` has made."""
        return value

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> Bytes:
        """The value behind these columns, which anyone may have altered. Raises `Missing`, `Damaged` or `Failed`."""
        if mode == MODE_RAW and filename is None and type(value) is bytes:
            return value
        size = self.size_of(filename)
        if mode != MODE_BINARY or value is not None or size is None:
            raise Damaged(f"its row was altered (mode {mode}, file {filename!r})")
        try:
            return self._read_file(str(filename), size)
        except FileNotFoundError:
            raise Missing(filename) from None
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise Damaged(f"something else is in the place of its file {filename}") from error
            raise Failed(describe(error, f"read {filename} of", self._directory)) from error

    def size_of(self, filename: object) -> int | None:
        """The size that a value file's name tells. None: not a name of ours, so nothing to read or to remove."""
        found = _NAME.fullmatch(filename) if isinstance(filename, str) else None
        return None if found is None else int(found[1], 16)

    def complete(self, row: Row) -> bool:
        """Whether the file that a row names is there in full."""
        size, _, filename, _ = row
        try:
            return size == self.size_of(filename) == os.lstat(os.path.join(self._directory, str(filename))).st_size
        except OSError:
            return False

    def remove(self, file_path: str) -> None:
        """Note that a file has lost its row. diskcache calls this before the COMMIT; `discard` removes it after that."""
        self.files.replaced.append(file_path)

    def discard(self, names: Sequence[str | None]) -> None:
        """Remove value files and the folders that become empty. Files that are gone, or not ours, are left alone."""
        for name in names:
            if name is not None and self.size_of(name) is not None:
                path = os.path.join(self._directory, name)
                _unlink(path)
                remove_folders(os.path.dirname(path))

    @functools.cached_property
    def _on_local_disk(self) -> bool:
        return file_system(self._directory) in LOCAL_FILE_SYSTEMS

    def _write_frames(self, path: str, frames: Frames, size: int) -> None:
        with open(path, "xb", opener=_private) as file:
            if size >= _ALLOCATED and self._on_local_disk:
                with contextlib.suppress(OSError):  # what is wrong, writing will tell
                    os.posix_fallocate(file.fileno(), 0, size)
            file.writelines(frames)  # a large frame goes past the buffer: it is not copied
            if self._durable:
                file.flush()
                os.fsync(file.fileno())
        if self._durable:
            inner = os.path.dirname(path)
            for folder in (inner, os.path.dirname(inner), self._directory):
                _sync_directory(folder)

    def _read_file(self, filename: str, size: int) -> memoryview:
        # A link, a pipe or a device in the file's place is neither followed nor waited for.
        descriptor = os.open(os.path.join(self._directory, filename), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_size != size:
                raise Damaged(f"its file {filename} has {about.st_size} bytes instead of {size}")
            buffer, done = allocate(size), 0
            while done < size:
                count = os.preadv(descriptor, [buffer[done:]], done)
                if not count:
                    raise Damaged(f"its file {filename} was cut short while it was read")
                done += count
            return buffer
        finally:
            os.close(descriptor)


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


def remove_folders(path: str) -> None:
    """Remove the folder `ab/cd` of value files and the one around it, as far as they are empty."""
    with contextlib.suppress(OSError):
        os.rmdir(path)
        os.rmdir(os.path.dirname(path))


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

    __slots__ = ("__weakref__", "connection", "identity", "lock")

    def __init__(self, connection: sqlite3.Connection, identity: tuple[int, int]) -> None:
        self.connection: sqlite3.Connection | None = connection
        self.identity = identity  # of the file behind it, to notice when another takes its place
        self.lock = threading.RLock()
        _sessions.add(self)

    def close(self) -> None:
        """Close the connection."""
        if self not in _sessions:  # done; in a forked child, a thread that is no more may have the lock
            return
        with self.lock:
            try:
                if self.connection is not None:
                    self.connection.close()
            except sqlite3.Error:
                pass
            finally:
                self.connection = None
                _sessions.discard(self)


class _Mark:
    """Ends with the thread, or with the cache, that a session is for."""


class Cache(diskcache.Cache):
    """The cache in `directory`. Use it through `use` and `change`, which lock the thread's connection and explain errors."""

    # Fixed here and not read from the table, where whoever opens the store with diskcache may write others.
    eviction_policy, cull_limit, statistics = SETTINGS["eviction_policy"], 0, 0

    def __init__(self, directory: str, locks: LockFile, *, durable: bool) -> None:
        # Without diskcache's own, which writes all settings on every opening, and makes a database where there is none.
        self._directory, self._timeout, self._txn_id = directory, TIMEOUT, None
        self._local = threading.local()
        self._disk = self.values = BytesDisk(directory, durable=durable)
        self._locks, self._durable = locks, durable
        self.path = os.path.join(directory, DBNAME)
        self._open_sessions: WeakSet[Session] = WeakSet()
        self._mode = _MODES[0]
        self._looked = 0.0  # when the database was last seen in its place
        self._refusal: StoreError | None = None  # why nothing can be written, if so
        self.renew()

    def use(self, doing: str, work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
        """Call `work`, which uses this thread's connection for a few statements; what goes wrong is explained."""
        try:
            while True:
                session = self._session()
                with session.lock:
                    if session.connection is not None:  # else a fork came between
                        return work(*given, **named)
        except diskcache.Timeout as error:  # stands for whatever kept diskcache from beginning
            raise self._explained(error.__context__ or error, doing) from error
        except (sqlite3.Error, UnicodeError) as error:
            raise self._explained(error, doing) from error
        except Failed as error:
            raise error.args[0] from error.__cause__

    def change(self, work: Callable[[], None]) -> None:
        """Call `work` in a transaction; if it raises, nothing has happened. To be called by `use`.

        Value files that have no row afterwards are removed; in doubt they stay, and upkeep finds them.
        """
        files = self.values.files
        applied: bool | None = False
        written, files.written = files.written, []
        self._settle()
        files.replaced = []
        try:
            with self.transact():
                # Upkeep removes old files without a row, in a transaction: from here on it finds the rows of ours.
                if not all(map(self.values.complete, written)):
                    raise StoreUnavailable(
                        "could not write to the store: a value file was removed before its commit; try again"
                    )
                work()
                applied = None  # if interrupted from here on, nobody knows
            applied = True
        except sqlite3.Error:
            applied = False
            raise
        finally:
            if self._settle():
                applied = False
            if applied is not None:
                self.values.discard(files.replaced if applied else [row[2] for row in written])

    def _settle(self) -> bool:
        """Undo what Ctrl-C left open: diskcache notes that it has begun one step after it has. Whether there was something."""
        if self._txn_id == threading.get_ident():
            self._txn_id = None
        if left_open := self._con.in_transaction:
            self._con.rollback()
        return left_open

    def renew(self) -> None:
        """Open the database that is at this place now, or make it: it may have been deleted, or have become writable."""
        with opening:
            self.close()
            try:
                if not os.path.lexists(self.path):
                    with _gate:  # no fork while diskcache has it open
                        _create(self._directory, self._locks, durable=self._durable)
                empty = not os.path.getsize(self.path)
            except StoreError:
                raise
            except OSError as error:
                raise describe(error, "open", self._directory) from error
            except sqlite3.Error as error:
                raise self._explained(error, "create") from error
            if empty:  # diskcache would make it anew, silently
                raise self._destroyed("it is empty")
            self._attach()

    def require_writable(self) -> None:
        """Raise unless the database can be written; open it anew if another has taken its place."""
        now = time.monotonic()
        # Looked at before a commit unless that was a moment ago: it costs as much as a small read.
        if now - self._looked > _LOOK_AGAIN or self._refusal is not None:
            self._looked = now
            if self._refusal is not None or not self.present():
                self.renew()
            if self._refusal is not None:
                raise StoreError(str(self._refusal))

    def present(self) -> bool:
        """Whether the database that this thread knows is still in its place."""
        return self._session().identity == _identity(self.path)

    def close(self) -> None:
        """Close the connections of all threads; each opens again when needed."""
        for session in list(self._open_sessions):
            session.close()

    @property
    def _con(self) -> sqlite3.Connection:
        session: Session | None = getattr(self._local, "session", None)
        if (
            session is None or session.connection is None
        ):  # reopened here, the rest of a transaction would be on its own
            raise sqlite3.ProgrammingError("this process was forked in the midst of it")
        return session.connection

    def _session(self) -> Session:
        session: Session | None = getattr(self._local, "session", None)
        if session is None or session.connection is None:
            try:
                session = self._new_session()
            except StoreDamaged:
                raise
            except StoreError:  # it may have become read-only, or be gone
                self.renew()
                session = self._new_session()
        return session

    def _new_session(self) -> Session:
        with _gate:  # a fork waits until the connection is known
            return self._adopt(self._connect(self._mode))

    def _adopt(self, session: Session) -> Session:
        mark = self._local.mark = _Mark()
        finalize(mark, session.close).atexit = False  # `_at_exit` does it
        self._local.session = session
        self._open_sessions.add(session)
        return session

    def _connect(self, mode: str) -> Session:
        identity = _identity(self.path)
        # As a URI, and never `mode=rwc`: a missing file must not come back as an empty one.
        uri = f"file:{quote(os.fsencode(self.path))}?{mode}"
        synchronous = "FULL" if self._durable else "NORMAL"
        session: Session | None = None
        try:
            connection = sqlite3.connect(uri, uri=True, timeout=TIMEOUT, isolation_level=None, check_same_thread=False)
            session = Session(connection, identity)
            for pragma in (f"synchronous={synchronous}", "cache_size=8192", "mmap_size=0", "trusted_schema=OFF"):
                connection.execute(f"PRAGMA {pragma}")
            return session
        except (sqlite3.Error, UnicodeError) as error:
            if session is not None:
                session.close()
            raise self._explained(error, "open") from error

    def _attach(self) -> None:
        problem = self._unwritable()
        for mode in _MODES[1:] if problem else _MODES:
            try:
                found = self._settings(mode)
            except (StoreDamaged, StoreUnavailable):
                raise
            except StoreError as error:
                # A full disk has no room for the journal's index, yet what was stored before can be read.
                problem = problem or error
            else:
                self._mode, self._refusal = mode, problem
                break
        else:
            assert problem is not None
            raise problem
        self._check(found)
        if self._mode == "immutable=1" and _size(self.path + "-wal"):
            warn(f"the store {self._directory} cannot be written, nor its journal read: its last entries are not seen")

    def _settings(self, mode: str) -> dict[str, Any]:
        with _gate:
            session = self._connect(mode)
            assert session.connection is not None
            try:
                rows = session.connection.execute("SELECT key, value FROM Settings").fetchall()
            except (sqlite3.Error, UnicodeError) as error:
                session.close()
                raise self._explained(error, "open") from error
            self._adopt(session)
            return dict(rows)

    def _check(self, found: dict[str, Any]) -> None:
        if (version := found.get("oncemore_format")) is None:
            raise StoreError(f"{self.path} was made by another program: name a directory of its own for the store")
        if version != FORMAT:
            raise StoreError(
                f"the store {self._directory} was made by a newer oncemore (format {version}; this one knows {FORMAT}): "
                f"upgrade oncemore, or name another directory"
            )
        changed = [(value, key) for key, value in SETTINGS.items() if found.get(key) != value]
        if changed and self._refusal is None:
            # By somebody who opened it with diskcache and other settings: the next to do so would evict entries.
            with contextlib.suppress(StoreError):
                self.use("write to", self._con.executemany, "UPDATE Settings SET value = ? WHERE key = ?", changed)

    def _unwritable(self) -> StoreError | None:
        for path in (self._directory, self.path):
            if not os.access(path, os.W_OK):
                return StoreError(f"could not write to the store {self._directory}: {path} is read-only ({_READ_ONLY})")
        return None

    def _explained(self, error: BaseException, doing: str) -> StoreError | UsageError:
        """A driver's error as ours."""
        cause = str(error)
        if isinstance(error, UnicodeEncodeError):
            return UsageError(f"the key {error.object!r} is not valid text")
        # SQLite's messages quote what they complain of: a decoding error is one about garbage.
        damage = isinstance(error, UnicodeError) or any(sign in cause for sign in _DAMAGE)
        if damage or type(error) is sqlite3.DatabaseError:
            return self._destroyed(cause)
        remedy = _REMEDIES.get(cause, "see whether the disk is in order")
        kind = StoreUnavailable if cause == _LOCKED else StoreError
        return kind(f"could not {doing} the store {self._directory}: {cause} ({remedy})")

    def _destroyed(self, cause: str) -> StoreDamaged:
        return StoreDamaged(
            f"the database of a store is destroyed: {self.path}: {cause}. Put back a copy of the directory, or move "
            f"{self._directory} aside: the next run starts fresh"
        )


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


_sessions: set[Session] = set()  # those with a connection
opening = threading.RLock()  # held while a store is opened or made
_gate = threading.RLock()  # held while a connection is opened; taken after `opening`, never before


def _before_fork() -> None:
    opening.acquire()
    _gate.acquire()
    for session in list(_sessions):
        session.close()


def _after_fork() -> None:
    _gate.release()
    opening.release()


def _at_exit() -> None:
    # The last to close writes the journal into the database, so that the file by itself is the whole store.
    for session in list(_sessions):
        session.close()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
atexit.register(_at_exit)


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
                execute(
                    "INSERT INTO Cache(key, raw, store_time, access_time, size, mode, filename) VALUES (?, 1, ?, ?, ?, ?, ?)",
                    (_IGNORE.encode(), time.time(), time.time(), len(_HIDE), MODE_BINARY, _IGNORE),
                )
        finally:
            self._connection.close()

    @property
    def _con(self) -> sqlite3.Connection:
        return self._connection


def _create(directory: str, locks: LockFile, *, durable: bool) -> None:
    """Make the store in `directory`, unless another process does so first."""
    final, ignore = os.path.join(directory, DBNAME), os.path.join(directory, _IGNORE)
    new = f"{final}.new-{os.urandom(8).hex()}"
    os.makedirs(directory, 0o700, exist_ok=True)
    with _alone(directory, locks):
        if os.path.lexists(final):
            return
        found = os.listdir(directory)
        was_hidden = _IGNORE in found and _content(ignore) == _HIDE
        # Not in a directory with other things in it: they are not ours to hide.
        hidden = was_hidden or all(name.startswith(DBNAME) for name in found)
        _set_aside_journal(final)
        try:
            _write_new(new, b"")  # made here for its mode, which SQLite gives to the journal too
            _Blank(new, hidden=hidden)
            if hidden:
                _write_new(ignore, _HIDE)
            os.rename(new, final)
        except BaseException:
            if hidden and not was_hidden:
                _unlink(ignore)
            raise
        finally:
            for suffix in ("", "-wal", "-shm"):
                _unlink(new + suffix)
        if durable:
            _sync_directory(directory)
    if was_hidden and not any(name.startswith(f"{DBNAME}.new-") for name in found):  # those are left by a kill in here
        warn(f"the database of the store {directory} is gone: {final}. It starts empty")


def _set_aside_journal(final: str) -> None:
    # Left by a database that was deleted or moved away; SQLite would write it into the new one.
    with contextlib.suppress(FileNotFoundError):
        os.replace(f"{final}-wal", f"{final}-wal.stray")
    _unlink(f"{final}-shm")


def _write_new(path: str, content: bytes) -> None:
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(len(_HIDE) + 1)
    except OSError:
        return b""


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


@contextlib.contextmanager
def _alone(directory: str, locks: LockFile) -> Generator[None, None, None]:
    deadline = time.monotonic() + TIMEOUT
    while (hold := locks.acquire("\0create")) is None:
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"another process has been creating the store {directory} for too long: see which")
        time.sleep(0.002)
    try:
        yield
    finally:
        hold.release()
