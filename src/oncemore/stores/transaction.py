"""One change of a disk store: value files and rows, all of it or nothing.

Files are complete before the transaction begins; files that lost their row are removed after it ends. Whatever happens
in between, a row never names a file that is not there in full.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from ..errors import StoreError
from . import Bytes, Frames
from .keys import DIGITS, log_key, log_number
from .values import BytesDisk, Row

COLUMNS = "size, mode, filename, value"
SELECT = f"SELECT {COLUMNS} FROM Cache WHERE key = ? AND raw = 1"
CHUNK = 500  # parameters per statement: every SQLite takes 999

_COUNTERS = 1000  # logs whose last number is remembered
_LAST = "SELECT key FROM Cache WHERE key >= ? AND key <= ? AND raw = 1 ORDER BY key DESC"
_INSERT = (
    f"INSERT OR IGNORE INTO Cache(key, raw, store_time, access_time, access_count, {COLUMNS})"
    " VALUES (?, 1, ?, ?, 0, ?, ?, ?, ?)"
)
_APPEND = (  # after the entry that was the last one: it may be gone, or not be the last any more
    f"INSERT OR IGNORE INTO Cache(key, raw, store_time, access_time, access_count, {COLUMNS})"
    " SELECT ?, 1, ?, ?, 0, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM Cache WHERE key = ? AND raw = 1)"
)
_UPDATE = (
    "UPDATE Cache SET store_time = ?, access_time = ?, size = ?, mode = ?, filename = ?, value = ?"
    " WHERE key = ? AND raw = 1"
)


class Change:
    """What one `commit` is about to do."""

    def __init__(self, values: BytesDisk, last: dict[str, int]) -> None:
        self._values = values
        self._last = last  # the numbers that logs have come to, as far as this process knows
        self._puts: dict[str, Row] = {}
        self._appends: list[tuple[str, Row]] = []
        self._written: list[Row] = []  # the rows that have a file
        self._stale: list[str] = []  # files that lose their row
        self._applied: bool | None = False  # None: interrupted while committing, nobody knows

    def prepare(self, put: Mapping[str, Frames], append: Mapping[str, Sequence[Bytes]]) -> None:
        """Write the value files."""
        for key, frames in put.items():
            self._puts[key] = self._stored(frames)
        for log, entries in append.items():
            for entry in entries:
                self._appends.append((log, self._stored(entry)))

    def _stored(self, value: Bytes | Frames) -> Row:
        row = self._values.store(value)
        if row[2] is not None:
            self._written.append(row)
        return row

    def apply(
        self, connection: sqlite3.Connection, delete: Collection[str], expect: Mapping[str, Bytes | None]
    ) -> bool:
        """Make the change in one transaction; False when something else than expected is there."""
        execute = connection.execute
        if connection.in_transaction:  # left by an interrupt that hit the clean-up below
            connection.rollback()
        try:
            execute("BEGIN IMMEDIATE")
            for key, wanted in expect.items():
                if (wanted is not None or key not in self._puts) and not self._holds(execute, key, wanted):
                    return False
            if not self._write(execute, expect):
                return False
            if delete:
                self._delete(execute, delete)
            self._applied = None
            execute("COMMIT")
            self._applied = True
            return True
        except sqlite3.Error:
            self._applied = False
            raise
        finally:
            if connection.in_transaction:
                connection.rollback()
                self._applied = False

    def clean(self) -> None:
        """Remove the files that have no row now. In doubt they stay: maintenance finds them."""
        if self._applied:
            for filename in self._stale:
                self._values.remove(filename)
        elif self._applied is False:
            for row in self._written:
                self._values.remove(cast(str, row[2]))

    def _holds(self, execute: Callable[..., sqlite3.Cursor], key: str, wanted: Bytes | None) -> bool:
        row = cast("Row | None", execute(SELECT, (key,)).fetchone())
        if row is None or wanted is None:
            return row is None and wanted is None
        size, mode, filename, value = row
        try:
            found = self._values.fetch(mode, filename, value, size=size, key=key)
        except FileNotFoundError as error:
            raise self._values.damaged(key, f"its file {filename} is missing") from error
        return memoryview(found) == memoryview(wanted).cast("B")

    def _write(self, execute: Callable[..., sqlite3.Cursor], expect: Mapping[str, Bytes | None]) -> bool:
        # Maintenance removes old files without a row, in a transaction: from here on it finds the rows of ours.
        if not all(map(self._values.complete, self._written)):
            raise StoreError("could not write to the store: a value file was removed before its commit; try again")
        now = time.time()
        for log, row in self._appends:
            self._append(execute, log, now, row)
        for key, row in self._puts.items():
            # Most keys are new: one statement, which tells as well whether they are.
            if not execute(_INSERT, (key, now, now, *row)).rowcount:
                if key in expect and expect[key] is None:
                    return False
                self._note_stale(execute("SELECT filename FROM Cache WHERE key = ? AND raw = 1", (key,)))
                execute(_UPDATE, (now, now, *row, key))
        return True

    def _append(self, execute: Callable[..., sqlite3.Cursor], log: str, now: float, row: Row) -> None:
        last = self._last.get(log)
        if last:
            self._last[log] = last + 1
            given = (log_key(log, last + 1), now, now, *row, log_key(log, last))
            if execute(_APPEND, given).rowcount:
                return
        if len(self._last) > _COUNTERS:
            self._last.clear()
        number = self._last[log] = _last_number(execute, log) + 1
        execute(_INSERT, (log_key(log, number), now, now, *row))

    def _delete(self, execute: Callable[..., sqlite3.Cursor], delete: Collection[str]) -> None:
        keys = iter(delete)
        while chunk := tuple(islice(keys, CHUNK)):
            chosen = f"FROM Cache WHERE key IN ({','.join('?' * len(chunk))}) AND raw = 1"
            self._note_stale(execute(f"SELECT filename {chosen}", chunk))
            execute(f"DELETE {chosen}", chunk)

    def _note_stale(self, filenames: Iterator[Any]) -> None:
        self._stale.extend(name for (name,) in filenames if name is not None)


def _last_number(execute: Callable[..., sqlite3.Cursor], log: str) -> int:
    for (key,) in execute(_LAST, (log + "0" * DIGITS, log + "f" * DIGITS)):
        number = log_number(log, key)
        if number is not None:  # a key inside the range need not be an entry
            return number
    return 0
