"""Repair of a disk store whose database is damaged: a new one is made of the entries that can be read and are sound.

Nothing is thrown away: the damaged database stays beside the new one, under another name. The value files stay where they are.
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
    """What a repair found. `aside` is the damaged database, empty if nothing was wrong."""

    aside: str = ""
    kept: int = 0  # entries
    unsound: list[str] = field(
        default_factory=list[str]
    )  # keys that were found with bytes that are not what was written
    adopted: list[str] = field(default_factory=list[str])  # keys whose rows were lost and whose value files were found


def repair(directory: str, sound: Sound, missing: Missing) -> Salvaged:
    """Repair the store in `directory`. Refused while another process has it open.

    `sound` says whether these bytes are what was written under a key. `missing` is given all small entries that are sound, and says
    which large ones should be there besides them, with their sizes: their value files may have lost nothing but their rows.
    """
    path = os.path.join(directory, DBNAME)
    try:
        with gate:  # no thread of this process opens it meanwhile
            close_all(path)
            hold = lock_file(f"{path}-locks").acquire("\0create")
            if hold is None or in_use(path):
                raise StoreUnavailable(
                    f"could not repair the store {directory}: another process has it open (stop what uses it, and try again)"
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
    """Whether SQLite finds nothing wrong with the database."""
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
    """The bytes behind a row, if they are there in full."""
    try:
        return values.fetch(row.mode, row.filename, row.value, False)
    except Unreadable:
        return None


def _journal(path: str) -> str:
    """The journal of the database; a repair that was killed may have set that aside already."""
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
    """The value files without a row that are the values of entries which should be there."""
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
    """Put a database with these rows in the place of the damaged one; the name that this one has now."""
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
        for suffix in ("-wal", "-shm"):  # gone before the new database is there: SQLite would write them into it
            with contextlib.suppress(FileNotFoundError):
                os.rename(path + suffix, aside + suffix)
        os.rename(new, path)
    finally:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new + suffix)
    return aside
