"""Repairs a disk store whose database is damaged: builds a new database from the entries that are readable and unaltered.

Nothing is thrown away: the damaged database stays in the directory under another name, and the value files are not touched.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from diskcache.core import DBNAME, MODE_BINARY

from ..errors import StoreError, StoreUnavailable
from . import Bytes
from .cache import BytesDisk, Unreadable, blank, close_all, gate, hides, size_of
from .filesystem import explained
from .locks import in_use, lock_file
from .salvage import Found, rows
from .upkeep import value_files

_INSERT = (
    "INSERT INTO Cache(key, raw, store_time, expire_time, access_time, access_count, tag, size, mode, filename, value)"
    " VALUES (?, 1, ?, NULL, ?, 0, NULL, ?, ?, ?, ?)"
)

Sound = Callable[[str, Bytes], bool]
Missing = Callable[[Mapping[str, Bytes]], Mapping[str, int]]


@dataclass(frozen=True)
class Salvaged:
    """The result of a repair. `aside` is the path of the damaged database; empty if nothing was wrong."""

    aside: str = ""
    recovered: int = 0  # entries
    unsound: list[str] = field(default_factory=list[str])  # keys of entries that were altered
    adopted: list[str] = field(default_factory=list[str])  # keys whose rows were lost but whose value files were found


def repair(directory: str, sound: Sound, missing: Missing) -> Salvaged:
    """Repair the store in `directory`. Refused while another process has it open.

    `sound(key, data)` tells whether these bytes are what was written under the key. `missing(entries)` is called with all small
    sound entries and returns the keys and sizes of the large entries that they refer to and that may have lost only their rows.
    """
    path = os.path.join(directory, DBNAME)
    try:
        with gate:  # keeps other threads of this process from opening it
            close_all(path)
            hold = lock_file(f"{path}-locks").acquire("\0create")
            if hold is None or in_use(path):
                raise StoreUnavailable(
                    f"could not repair the store {directory}: another process has it open (stop that process and try again)"
                )
            try:
                return Salvaged() if _is_whole(path) else _rebuild(directory, path, sound, missing)
            finally:
                hold.release()
    except (OSError, sqlite3.Error) as error:
        if isinstance(error, StoreError):
            raise
        raise explained(error, "repair", directory) from error


def _is_whole(path: str) -> bool:
    """Whether SQLite's integrity check finds no damage."""
    connection = None
    try:
        # Read-only, so that closing it does not touch the journal of a damaged database.
        connection = sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=ro", uri=True, isolation_level=None)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return {"Cache", "Settings"} <= tables and connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    except (sqlite3.Error, UnicodeError):
        return False
    finally:
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _rebuild(directory: str, path: str, sound: Sound, missing: Missing) -> Salvaged:
    values = BytesDisk(directory)
    candidates: dict[str, list[Found]] = {}
    for row in rows(_content(path), _content(_journal(path))):
        candidates.setdefault(row.key, []).append(row)
    kept: dict[str, Found] = {}
    small: dict[str, Bytes] = {}
    unsound: list[str] = []
    for key, found in candidates.items():
        for row in sorted(found, key=lambda row: row.rowid, reverse=True):
            data = _value(values, row)
            if data is not None and sound(key, data):
                kept[key] = row
                if row.filename is None:
                    small[key] = data
                break
        else:
            unsound.append(key)
    adopted = _adopt(directory, kept, sound, missing(small))
    kept.update(adopted)
    aside = _replace(directory, path, kept)
    return Salvaged(aside, len(kept), sorted(unsound), sorted(adopted))


def _value(values: BytesDisk, row: Found) -> Bytes | None:
    """The value of a row; None if it is not completely readable."""
    try:
        return values.fetch(row.mode, row.filename, row.value, False)
    except Unreadable:
        return None


def _journal(path: str) -> str:
    """The path of the journal; a repair that was killed may have renamed it already."""
    folder, name = os.path.split(path)
    for other in os.listdir(folder):
        aside = os.path.join(folder, other)
        if other.startswith(f"{name}.damaged-") and os.path.exists(f"{aside}-wal") and os.path.samefile(aside, path):
            return f"{aside}-wal"
    return f"{path}-wal"


def _content(path: str) -> bytes | mmap.mmap:
    if not os.path.exists(path) or not os.path.getsize(path):
        return b""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _adopt(directory: str, kept: Mapping[str, Found], sound: Sound, missing: Mapping[str, int]) -> dict[str, Found]:
    """Rows for missing entries whose value files were found."""
    values, taken = BytesDisk(directory), {row.filename for row in kept.values()}
    by_size: dict[int, list[str]] = {}
    for name in value_files(directory) if missing else ():
        if name not in taken:
            by_size.setdefault(size_of(name) or 0, []).append(name)
    adopted: dict[str, Found] = {}
    for key, size in missing.items():
        for name in by_size.get(size, ()):
            row = Found(0, key, MODE_BINARY, name, None)
            data = _value(values, row)
            if key not in kept and data is not None and sound(key, data):
                adopted[key] = row
                break
    return adopted


def _replace(directory: str, path: str, kept: Mapping[str, Found]) -> str:
    """Replace the damaged database by one with these rows; returns the damaged one's new path."""
    new = f"{path}.new-{os.urandom(8).hex()}"
    aside = f"{path}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.close(descriptor)
    try:
        blank(new, hidden=hides(directory))
        connection, now = sqlite3.connect(new, isolation_level=None), time.time()
        try:
            connection.execute("BEGIN")
            connection.executemany(
                _INSERT,
                (
                    (row.key, now, now, size_of(row.filename) or 0, row.mode, row.filename, row.value)
                    for row in kept.values()
                ),
            )
            connection.execute("COMMIT")
        finally:
            connection.close()
        os.link(path, aside)
        for suffix in ("-wal", "-shm"):  # move them away first: SQLite would merge them into the new database
            with contextlib.suppress(FileNotFoundError):
                os.rename(path + suffix, aside + suffix)
        os.rename(new, path)
    finally:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new + suffix)
    return aside
