"""The database of a disk store: diskcache's tables, with connections that survive what processes do.

Connections belong to threads. SQLite forbids carrying one across a fork: the child would take its parent's locks for
its own, and whoever closes last would delete the journal under the other's feet. So all are closed before a fork, and
reopen by themselves on both sides.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet, finalize

from ..errors import StoreDamaged, StoreError, UsageError, warn
from ..modules import loading
from ..quoting import quote
from .filesystem import describe
from .locks import LockFile
from .values import DBNAME, FORMAT, BytesDisk

TIMEOUT = 60.0  # seconds that a writer waits for the others
_MOMENT = 0.05  # seconds

_MODES = ("mode=rw", "mode=ro", "immutable=1")  # the last ignores the journal, and needs no file to be made
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


Given = ParamSpec("Given")
Result = TypeVar("Result")


class Session:
    """One thread's connection, locked while in use or being closed, so that a fork or `close` in another thread waits for it.

    What a fork finds open, SQLite takes in the child for locked by the child, which it is not: others would remove the
    journal that the child writes to, and its commits with it. So none is left to the garbage collector.
    """

    __slots__ = ("__weakref__", "connection", "identity", "lock")

    def __init__(self, connection: sqlite3.Connection, identity: tuple[int, int]) -> None:
        self.connection: sqlite3.Connection | None = connection
        self.identity = identity  # of the file behind it, to notice when another takes its place
        self.lock = threading.RLock()
        _sessions.add(self)

    def close(self) -> None:
        """Let go of the connection."""
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
    """Ends with the thread, or with the database, that a session is for."""


class Database:
    """The tables of the store in `directory`."""

    def __init__(self, directory: str, locks: LockFile, *, durable: bool) -> None:
        self._directory = directory
        self.path = os.path.join(directory, DBNAME)
        self._locks = locks
        self._durable = durable
        self.values = BytesDisk(directory)
        self.values.fsync = durable
        self._local = threading.local()
        self._sessions: WeakSet[Session] = WeakSet()
        self._mode = _MODES[0]
        self._looked = 0.0  # when the file was last seen at its place
        self._refusal: StoreError | None = None  # why nothing can be written, if so
        self.renew()

    def renew(self) -> None:
        """Open the store that is at this place now, or make it: it may have been deleted, or have become writable."""
        with opening:
            self.close()
            try:
                if not os.path.lexists(self.path):
                    with loading:
                        from .creation import create
                    with _gate:  # no fork while diskcache has it open
                        create(self._directory, self._locks, durable=self._durable)
                empty = not os.path.getsize(self.path)
            except StoreError:
                raise
            except OSError as error:
                raise describe(error, "open", self._directory) from error
            except sqlite3.Error as error:
                raise self.explained(error, "create") from error
            if empty:
                raise self._destroyed("it is empty")
            self._attach()

    def require_writable(self) -> None:
        """Raise unless the database can be written; open it anew if another has taken its place."""
        now = time.monotonic()
        # Looked at before a commit unless that was a moment ago: it costs as much as a small read.
        if now - self._looked > _MOMENT or self._refusal is not None:
            self._looked = now
            if self._refusal is not None or not self.present():
                self.renew()
            if self._refusal is not None:
                raise StoreError(str(self._refusal))

    def present(self) -> bool:
        """Whether the database that this thread knows is still at its place."""
        return self._session().identity == _identity(self.path)

    def use(
        self,
        doing: str,
        work: Callable[Concatenate[sqlite3.Connection, Given], Result],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Result:
        """Call `work` with this thread's connection, for a few statements; what goes wrong is explained."""
        try:
            while True:
                session = self._session()
                with session.lock:
                    if session.connection is not None:  # else a fork came between
                        return work(session.connection, *given, **named)
        except (sqlite3.Error, UnicodeError) as error:
            raise self.explained(error, doing) from error

    def explained(self, error: Exception, doing: str) -> StoreError | UsageError:
        """A driver's error as ours."""
        cause = str(error)
        if isinstance(error, UnicodeEncodeError):
            return UsageError(f"the key {error.object!r} is not valid text")
        # SQLite's messages quote what they complain of: a decoding error is one about garbage.
        damage = isinstance(error, UnicodeError) or any(sign in cause for sign in _DAMAGE)
        if damage or type(error) is sqlite3.DatabaseError:
            return self._destroyed(cause)
        remedy = _REMEDIES.get(cause, "see whether the disk is in order")
        return StoreError(f"could not {doing} the store {self._directory}: {cause} ({remedy})")

    def close(self) -> None:
        """Close the connections of all threads; each opens again when needed."""
        for session in list(self._sessions):
            session.close()

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
        self._sessions.add(session)
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
            raise self.explained(error, "open") from error

    def _attach(self) -> None:
        problem = self._unwritable()
        for mode in _MODES[1:] if problem else _MODES:
            try:
                found = self._format(mode)
            except StoreDamaged:
                raise
            except StoreError as error:
                # A full disk has no room for the journal's index, yet what was stored before can be read.
                problem = problem or error
                if _LOCKED in str(error):
                    raise
            else:
                self._mode, self._refusal = mode, problem
                break
        else:
            assert problem is not None
            raise problem
        self._check(found)
        if self._mode == "immutable=1" and _size(self.path + "-wal"):
            warn(f"the store {self._directory} cannot be written, nor its journal read: its last entries are not seen")

    def _format(self, mode: str) -> list[tuple[Any, ...]]:
        with _gate:
            session = self._connect(mode)
            assert session.connection is not None
            try:
                rows = fetch(session.connection, "SELECT value FROM Settings WHERE key = 'oncemore_format'")
            except (sqlite3.Error, UnicodeError) as error:
                session.close()
                raise self.explained(error, "open") from error
            self._adopt(session)
            return rows

    def _unwritable(self) -> StoreError | None:
        for path in (self._directory, self.path):
            if not os.access(path, os.W_OK):
                return StoreError(f"could not write to the store {self._directory}: {path} is read-only ({_READ_ONLY})")
        return None

    def _check(self, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            raise StoreError(f"{self.path} was made by another program: name a directory of its own for the store")
        ((found,),) = rows
        if found != FORMAT:
            raise StoreError(
                f"the store {self._directory} was made by a newer oncemore (format {found}; this one knows {FORMAT}): "
                f"upgrade oncemore, or name another directory"
            )

    def _destroyed(self, cause: str) -> StoreDamaged:
        return StoreDamaged(
            f"the database of a store is destroyed: {self.path}: {cause}. Put back a copy of the directory, or move "
            f"{self._directory} aside: the next run starts fresh"
        )


def fetch(connection: sqlite3.Connection, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query: a statement left open would keep its thread from committing."""
    return connection.execute(query, parameters).fetchall()


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
