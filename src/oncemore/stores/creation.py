"""How the database of a disk store comes into being: all at once.

diskcache makes its tables and settings in a file beside the final one, which is renamed when complete. A process killed
meanwhile leaves no half store, and an empty database file can only be a destroyed one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Generator
from typing import Any

import diskcache
from diskcache.core import DBNAME

from ..errors import StoreError, warn
from .locks import LockFile
from .values import INLINE, BytesDisk, sync_directory

FORMAT = 1
_PATIENCE = 60.0  # seconds
_IGNORE = ".gitignore"

_SETTINGS: dict[str, Any] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 62,
    "statistics": 0,
    "disk_min_file_size": INLINE,
    "sqlite_auto_vacuum": 2,  # incremental: maintenance gives space back, not every commit
    "sqlite_mmap_size": 0,  # a database truncated under a map kills the process that reads it
}
_FINISH = (
    # Nothing here is counted and nothing expires: without these a commit is a third faster.
    "DROP TRIGGER IF EXISTS Settings_count_insert",
    "DROP TRIGGER IF EXISTS Settings_count_delete",
    "DROP TRIGGER IF EXISTS Settings_size_insert",
    "DROP TRIGGER IF EXISTS Settings_size_update",
    "DROP TRIGGER IF EXISTS Settings_size_delete",
    "DROP INDEX IF EXISTS Cache_expire_time",
    # Maintenance asks which files have a row.
    "CREATE INDEX Cache_filename ON Cache(filename) WHERE filename IS NOT NULL",
    f"INSERT INTO Settings VALUES ('oncemore_format', {FORMAT})",
)


class _Blank(diskcache.Cache):
    """An empty database at `path`. diskcache expands `$` in the names it is given, so it gets none but the root."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            super().__init__(os.sep, disk=BytesDisk, **_SETTINGS)
            for statement in _FINISH:
                self._connection.execute(statement)
        finally:
            self._connection.close()

    @property
    def _con(self) -> sqlite3.Connection:
        return self._connection


def create(directory: str, locks: LockFile, *, durable: bool) -> None:
    """Make the store in `directory`, unless another process does so first."""
    final = os.path.join(directory, DBNAME)
    os.makedirs(directory, 0o700, exist_ok=True)
    with _alone(directory, locks):
        if os.path.lexists(final):
            return
        found = os.listdir(directory)
        _set_aside_journal(final)
        _make(final)
        # Not into a directory with other things in it: they are not ours to hide.
        if all(name == "locks" or name.startswith(DBNAME) for name in found):
            _write_new(os.path.join(directory, _IGNORE), b"*\n")
        if durable:
            sync_directory(directory)
    if _IGNORE in found:
        warn(f"the database of the store {directory} is gone: {final}. It starts empty")


def _make(final: str) -> None:
    path = f"{final}.new-{os.urandom(8).hex()}"
    try:
        _write_new(path, b"")  # made here for its mode, which SQLite gives to the journal too
        _Blank(path)
        os.rename(path, final)
    finally:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.unlink(path + suffix)


def _set_aside_journal(final: str) -> None:
    # Left by a database that was deleted or moved away; SQLite would write it into the new one.
    with contextlib.suppress(FileNotFoundError):
        os.replace(f"{final}-wal", f"{final}-wal.stray")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{final}-shm")


def _write_new(path: str, content: bytes) -> None:
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)


@contextlib.contextmanager
def _alone(directory: str, locks: LockFile) -> Generator[None, None, None]:
    deadline = time.monotonic() + _PATIENCE
    while (hold := locks.acquire("\0create")) is None:
        if time.monotonic() > deadline:
            raise StoreError(f"another process has been creating the store {directory} for too long: see which")
        time.sleep(0.002)
    try:
        yield
    finally:
        hold.release()
