"""Tidying a disk store, safely beside running jobs."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import cast

from ..facts import dataclass, field
from .database import Database, fetch
from .transaction import CHUNK, SELECT
from .values import DBNAME, MODE_BINARY, MODE_RAW, BytesDisk, Row

_NOT_INLINE = (
    "SELECT key FROM Cache WHERE raw = 1 AND NOT (mode = 1 AND filename IS NULL AND typeof(value) = 'blob')"
    " ORDER BY key"
)


@dataclass(frozen=True)
class Maintenance:
    """What maintenance found and did."""

    orphans_removed: int  # value files, and halves of databases, that a killed process left
    bytes_freed: int
    damaged: list[str] = field(default_factory=list[str])  # keys of entries that cannot be what was written


def maintain(database: Database, older_than: float) -> Maintenance:
    """See `DiskStore.maintain`."""
    folder = os.path.dirname(database.path)
    before = _database_size(database.path)
    sizes: list[int] = []
    candidates = list(_old_files(folder, database.values, time.time() - older_than))
    for start in range(0, len(candidates), CHUNK):
        chunk = candidates[start : start + CHUNK]
        sizes += database.use("tidy", _remove_orphans, folder, chunk)
    damaged = [key for (key,) in database.use("read", fetch, _NOT_INLINE) if not _intact(database, key)]
    database.use("tidy", shrink)
    freed = sum(sizes) + max(0, before - _database_size(database.path))
    return Maintenance(len(sizes), freed, damaged)


def orphans(database: Database, older_than: float) -> list[str]:
    """See `DiskStore.orphans`."""
    folder = os.path.dirname(database.path)
    candidates = list(_old_files(folder, database.values, time.time() - older_than))
    found: list[str] = []
    for start in range(0, len(candidates), CHUNK):
        found += database.use("read", _without_row, candidates[start : start + CHUNK])
    return sorted(name for name in found if os.path.lexists(os.path.join(folder, name)))  # not removed meanwhile


def _without_row(connection: sqlite3.Connection, names: Sequence[str]) -> set[str]:
    marks = ",".join("?" * len(names))
    rows = fetch(connection, f"SELECT filename FROM Cache WHERE filename IN ({marks})", names)
    return set(names) - {name for (name,) in rows}


def _old_files(folder: str, values: BytesDisk, limit: float) -> Iterator[str]:
    """The names, relative to the store, of files that some process wrote and may have abandoned."""
    for entry in os.scandir(folder):
        if len(entry.name) == 2 and entry.is_dir(follow_symlinks=False):
            found = [(f"{entry.name}/{file.name}", file) for file in os.scandir(entry.path)]
            ours = [(name, file) for name, file in found if values.owns(name)]
        else:
            ours = [(entry.name, entry)] if entry.name.startswith(f"{DBNAME}.new-") else []
        for name, file in ours:
            with contextlib.suppress(FileNotFoundError):
                if file.stat(follow_symlinks=False).st_mtime < limit:
                    yield name


def _remove_orphans(connection: sqlite3.Connection, folder: str, names: Sequence[str]) -> list[int]:
    """Remove those of the files that have no row; their sizes."""
    sizes: list[int] = []
    # A commit that names one of these either has its row in by now, or looks for its file after we are done.
    try:
        connection.execute("BEGIN IMMEDIATE")
        for name in _without_row(connection, names):
            with contextlib.suppress(OSError):
                path = os.path.join(folder, name)
                size = os.lstat(path).st_size
                os.unlink(path)
                sizes.append(size)
    finally:
        connection.rollback()
    return sizes


def shrink(connection: sqlite3.Connection) -> None:
    """Give free pages back; the journal too, if nobody is in it."""
    connection.executescript("PRAGMA incremental_vacuum")  # a plain execute would stop after one page
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _intact(database: Database, key: str) -> bool:
    """Whether an entry that should have a file has it now; an entry deleted meanwhile has all it needs."""
    rows = database.use("read", fetch, SELECT, (key,))
    if not rows:
        return True
    row = cast(Row, rows[0])
    if row[1] == MODE_RAW:
        return row[2] is None and type(row[3]) is bytes
    return row[1] == MODE_BINARY and row[3] is None and database.values.complete(row)


def _database_size(path: str) -> int:
    total = 0
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            total += os.stat(path + suffix).st_size
    return total
