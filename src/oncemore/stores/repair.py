"""Repairs a disk store whose database is damaged: builds a new database from the entries that are readable and unaltered.

Nothing is thrown away: the damaged database stays in the directory under another name, and the value files are not touched.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from diskcache.core import DBNAME, MODE_BINARY

from ..errors import StoreError, StoreUnavailable
from . import Bytes
from .cache import BytesDisk, Unreadable, blank, close_all, gate, hides, size_of, value_files
from .filesystem import explained, share
from .locks import in_use, lock_file

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
    recovered: dict[str, Found] = {}
    small: dict[str, Bytes] = {}
    unsound: list[str] = []
    for key, found in candidates.items():
        for row in sorted(found, key=lambda row: row.rowid, reverse=True):
            data = _fetched(values, row)
            if data is not None and sound(key, data):
                recovered[key] = row
                if row.filename is None:
                    small[key] = data
                break
        else:
            unsound.append(key)
    adopted = _adopt(directory, recovered, sound, missing(small))
    recovered.update(adopted)
    aside = _replace(directory, path, recovered)
    return Salvaged(aside, len(recovered), sorted(unsound), sorted(adopted))


def _fetched(values: BytesDisk, row: Found) -> Bytes | None:
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


def _adopt(
    directory: str, recovered: Mapping[str, Found], sound: Sound, missing: Mapping[str, int]
) -> dict[str, Found]:
    """Rows for missing entries whose value files were found."""
    values, taken = BytesDisk(directory), {row.filename for row in recovered.values()}
    by_size: dict[int, list[str]] = {}
    for name in value_files(directory) if missing else ():
        if name not in taken:
            by_size.setdefault(size_of(name) or 0, []).append(name)
    adopted: dict[str, Found] = {}
    for key, size in missing.items():
        for name in by_size.get(size, ()):
            row = Found(0, key, MODE_BINARY, name, None)
            data = _fetched(values, row)
            if key not in recovered and data is not None and sound(key, data):
                adopted[key] = row
                break
    return adopted


def _replace(directory: str, path: str, recovered: Mapping[str, Found]) -> str:
    """Replace the damaged database by one with these rows; returns the damaged one's new path."""
    new = f"{path}.new-{os.urandom(8).hex()}"
    aside = f"{path}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    share(descriptor, path)
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
                    for row in recovered.values()
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


# -- the rows of a damaged database, read page by page. SQLite finds rows through a tree, and one bad page near its root hides
#    thousands of good ones. The rows themselves are in leaf pages, each of which can be read on its own. The sqlite3 shell's
#    `.recover` works this way; Python's sqlite3 does not have it. The rows found may be altered or outdated, so the caller has
#    to check their values. The format is documented at https://sqlite.org/fileformat2.html

_LEAF = 13  # the first byte of a page with rows of a table
_PAGE = 4096  # bytes, unless the header says otherwise; diskcache never changes it
_HEADER = 100
_COLUMNS = 12  # of diskcache's table: rowid, key, raw, four times and counts, tag, size, mode, filename, value
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # bytes, by type
_LARGEST = 1 << 30  # bytes of a row


class Found(NamedTuple):
    """A row of the store's table, as found on its page."""

    rowid: int
    key: str
    mode: object
    filename: object
    value: object


class _Unreadable(Exception):
    """Not a row of the table, or not a complete one."""


def rows(database: bytes | mmap.mmap, journal: bytes | mmap.mmap = b"") -> Iterator[Found]:
    """All readable rows of diskcache's table, in no particular order. A key may occur several times."""
    pages = _Pages(database, journal)
    free = pages.free()
    for number in range(1, pages.count + 1):
        if number not in free:
            yield from _leaf(pages, number)


class _Pages:
    """The pages of a database, with newer versions committed to its journal."""

    def __init__(self, database: bytes | mmap.mmap, journal: bytes | mmap.mmap) -> None:
        size = int.from_bytes(database[16:18], "big")
        size = 65536 if size == 1 else size
        self.size = size if size in (512, 1024, 2048, 8192, 16384, 32768, 65536) else _PAGE
        self._database, self._newer = database, _committed(journal, self.size)
        self.count = max([-(-len(database) // self.size), *self._newer])

    def get(self, number: int) -> bytes:
        if not 1 <= number <= self.count:
            raise _Unreadable
        if number in self._newer:
            return self._newer[number]
        page = self._database[(number - 1) * self.size : number * self.size]
        return page.ljust(self.size, b"\0")

    def free(self) -> set[int]:
        """The numbers of unused pages, as far as their list can be read."""
        found: set[int] = set()
        try:
            trunk = int.from_bytes(self.get(1)[32:36], "big")
            while trunk and trunk not in found:
                found.add(trunk)
                page = self.get(trunk)
                trunk, count = struct.unpack_from(">II", page)
                if count > self.size // 4 - 2:  # not a list of pages
                    return found
                found.update(struct.unpack_from(f">{count}I", page, 8))
        except _Unreadable:
            pass
        return found


def _committed(journal: bytes | mmap.mmap, size: int) -> dict[int, bytes]:
    """The pages of a write-ahead log up to its last commit. Pages with another salt are from before its last restart."""
    found: dict[int, bytes] = {}
    pending: dict[int, bytes] = {}
    if len(journal) < 32 or int.from_bytes(journal[8:12], "big") != size:
        return found
    for at in range(32, len(journal) - size - 23, size + 24):
        number, commit = struct.unpack_from(">II", journal, at)
        if journal[at + 8 : at + 16] != journal[16:24] or not number:
            break
        pending[number] = journal[at + 24 : at + 24 + size]
        if commit:
            found.update(pending)
            pending.clear()
    return found


def _leaf(pages: _Pages, number: int) -> Iterator[Found]:
    page, start = pages.get(number), _HEADER if number == 1 else 0
    if page[start] != _LEAF:
        return
    count = min(int.from_bytes(page[start + 3 : start + 5], "big"), (pages.size - start - 8) // 2)
    for cell in struct.unpack_from(f">{count}H", page, start + 8):
        try:
            yield _row(pages, page, cell)
        except (_Unreadable, IndexError, struct.error, UnicodeDecodeError):
            continue


def _row(pages: _Pages, page: bytes, at: int) -> Found:
    size, at = _varint(page, at)
    rowid, at = _varint(page, at)
    record = _payload(pages, page, at, size)
    length, at = _varint(record, 0)
    kinds: list[int] = []
    while at < length:
        kind, at = _varint(record, at)
        kinds.append(kind)
    if at != length or len(kinds) != _COLUMNS or kinds[0] != 0 or kinds[1] < 13 or not kinds[1] % 2:
        raise _Unreadable  # a row of another table, or one with a key that is not text
    values: list[object] = []
    for kind in kinds:
        value, at = _value(record, at, kind)
        values.append(value)
    key = values[1]
    if at != len(record) or not isinstance(key, str) or values[2] != 1:
        raise _Unreadable
    return Found(rowid, key, values[9], values[10], values[11])


def _payload(pages: _Pages, page: bytes, at: int, size: int) -> bytes:
    """The bytes of a row, from its page and from overflow pages."""
    usable = pages.size
    if not 0 < size <= _LARGEST:
        raise _Unreadable
    if size <= usable - 35:
        return _cut(page, at, size)
    least = (usable - 12) * 32 // 255 - 23
    here = least + (size - least) % (usable - 4)
    here = least if here > usable - 35 else here
    pieces, left = [_cut(page, at, here)], size - here
    (following,) = struct.unpack_from(">I", page, at + here)
    while left > 0:
        overflow = pages.get(following)
        (following,) = struct.unpack_from(">I", overflow)
        pieces.append(overflow[4 : 4 + min(left, usable - 4)])
        left -= usable - 4
    return b"".join(pieces)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer of one to nine bytes, and the position after it."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9


def _value(record: bytes, at: int, kind: int) -> tuple[object, int]:
    """The value of a column with this serial type, and the position after it."""
    if kind in (0, 8, 9):
        return (None, 0, 1)[max(0, kind - 7)], at
    if kind == 7:
        return struct.unpack_from(">d", record, at)[0], at + 8
    if kind in _INTEGERS:
        size = _INTEGERS[kind]
        return int.from_bytes(_cut(record, at, size), "big", signed=True), at + size
    if kind < 12:
        raise _Unreadable
    size = (kind - 12) // 2
    data = _cut(record, at, size)
    return data.decode() if kind % 2 else data, at + size


def _cut(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise _Unreadable
    return data[at : at + size]
