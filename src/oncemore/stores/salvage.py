"""Reads the rows of a damaged database page by page.

SQLite finds rows through a tree, and one bad page near its root hides thousands of good ones. The rows themselves are in leaf
pages, each of which can be read on its own. The sqlite3 shell's `.recover` works this way; Python's sqlite3 does not have it. The
rows found may be altered or outdated, so the caller has to check their values.

The format is documented at https://sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

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
