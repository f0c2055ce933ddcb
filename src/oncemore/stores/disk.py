"""The store in a directory: a `diskcache.Cache`, with small entries in its SQLite database and large ones in value files.

The directory contains `cache.db` (with its journal), `00` to `ff` (value files), `cache.db-locks` and a `.gitignore`. Any
number of threads and processes on one machine can use it at once. diskcache itself can open it and read every entry by key.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Literal
from urllib.parse import quote, unquote_to_bytes
from weakref import WeakValueDictionary

from diskcache.core import DBNAME, MODE_BINARY, MODE_RAW

from ..errors import IntegrityError, StoreError, UsageError
from . import LAST, BaseStore, Bytes, Change, Hold, checked, key_range, last_number, log_key
from .cache import CHUNK, Cache, Unreadable, gate, listed, size_of, value_folders
from .filesystem import network_file_system
from .locks import lock_file
from .repair import Missing, Salvaged, Sound
from .repair import repair as repair_folder

_ROWS = (  # the second column: whether the entry is small enough
    "SELECT key, max(size, coalesce(length(value), 0)) <= ?, mode, filename, CASE WHEN length(value) <= ? THEN value END"
    " FROM Cache WHERE raw = 1 AND "
)
_SIZES = (
    "SELECT key, max(size, coalesce(length(value), 0)) FROM Cache WHERE raw = 1 AND key >= ? AND key < ? ORDER BY key"
)
_NOT_INLINE = (
    "SELECT key FROM Cache WHERE raw = 1 AND typeof(key) = 'text'"
    " AND NOT (mode = 1 AND filename IS NULL AND typeof(value) = 'blob') ORDER BY key"
)
_LAST = "SELECT key FROM Cache WHERE key BETWEEN ? AND ? AND raw = 1 ORDER BY key DESC"
_DURABLE: dict[str, Literal["process", "power"]] = {"process": "process", "power": "power"}
_ABOVE_TEXT = b""  # SQLite sorts every blob above every text


class _Unexpected(Exception):
    """The precondition of a commit does not hold; raised to roll back the transaction."""


@dataclass(frozen=True)
class Maintenance:
    """What maintenance found and did."""

    orphans_removed: int  # value files and unfinished databases left by killed processes
    bytes_freed: int
    damaged: list[str] = field(default_factory=list[str])  # keys of entries that were altered


class DiskStore(BaseStore):
    """A store in the directory `path`.

    With `durable="process"`, commits survive the death of the process; with `"power"`, also a power cut (each commit waits
    for the disk). Refuses a network file system unless `allow_network_filesystem`: there, locks do not work between machines.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: Literal["process", "power"] = "process",
        allow_network_filesystem: bool = False,
    ) -> None:
        if durable not in _DURABLE:
            raise UsageError(f"unknown durable={durable!r}; use 'process' or 'power'")
        self.path = _real_path(path)
        kind = None if allow_network_filesystem else network_file_system(self.path)
        if kind is not None:
            raise StoreError(
                f"the store {self.path} is on a network file system ({kind}), where locks do not work between "
                f"machines. Put it on a local disk, or add ?network=allow if only one machine uses it"
            )
        options = [f"durable={durable}"] * (durable != "process") + ["network=allow"] * allow_network_filesystem
        self.url = f"disk://{quote(os.fsencode(self.path))}" + ("?" + "&".join(options) if options else "")
        # The name makes diskcache treat it as its own: `Cache.check` reports, and may remove, unknown files.
        self._locks = lock_file(os.path.join(self.path, f"{DBNAME}-locks"))
        self._cache = Cache(self.path, self._locks, durable=durable == "power")

    def get(self, key: str) -> Bytes | None:
        """See `Store.get`."""
        return self._cache.use("read", self._get, checked(key))

    def _get(self, key: str) -> Bytes | None:
        before = ""
        while True:
            try:
                found: Bytes | None = self._cache.get(key)
                return found
            except Unreadable as error:
                problem: StoreError = error.args[0]
                if not isinstance(problem, IntegrityError):
                    raise problem from error.__cause__
                # The file may have been removed since the row was read; then there is a newer row, or none. So try again.
                if str(problem) == before:
                    raise IntegrityError(
                        f"entry {key!r} of the store {self.path} is damaged: {problem}"
                    ) from error.__cause__
                before = str(problem)

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        """See `Store.get_many`."""
        found: dict[str, Bytes | None] = {}
        remaining = iter(keys)
        while chunk := [checked(key) for key in islice(remaining, CHUNK)]:
            found.update(self._values(self._rows(f"key IN ({','.join('?' * len(chunk))})", chunk, most)))
        return found

    def _page(self, start: str, end: str | None, size: int, most: int | None) -> Iterator[tuple[str, Bytes | None]]:
        condition, values = "key >= ? AND key < ? ORDER BY key LIMIT ?", (start, end or _ABOVE_TEXT, size)
        return self._values(self._rows(condition, values, most))

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See `Measured.sizes`."""
        start, end = key_range(prefix)
        found: list[tuple[str, int]] = self._cache.use(
            "read", lambda: self._cache._sql(_SIZES, (start, end or _ABOVE_TEXT)).fetchall()
        )
        return iter(found)

    def _rows(self, condition: str, values: Sequence[object], most: int | None) -> list[tuple[Any, ...]]:
        """All rows that match, fetched at once: an open statement would prevent this thread from committing."""
        most = sys.maxsize if most is None else most
        return self._cache.use("read", lambda: self._cache._sql(_ROWS + condition, (most, most, *values)).fetchall())

    def _values(self, rows: list[tuple[Any, ...]]) -> Iterator[tuple[str, Bytes | None]]:
        """The keys and values of rows; None for a value that is too large or damaged."""
        for key, small, mode, filename, value in rows:
            if not small:
                yield key, None
            elif mode == MODE_RAW and filename is None and type(value) is bytes:
                yield key, value
            else:
                try:
                    yield key, self.get(key)
                except IntegrityError:
                    yield key, None

    def _commit(self, change: Change) -> bool:
        cache, values = self._cache, self._cache.values
        cache.require_writable()

        def apply() -> None:
            if change.under is not None:
                self._locks.require(change.under)
            for key, expected in change.expect.items():
                if (expected is not None or key not in puts) and not _same(self._get(key), expected):
                    raise _Unexpected
            for log, rows in appends.items():
                keys = (key for (key,) in cache._sql(_LAST, (log_key(log, 0), log_key(log, LAST))))
                for number, row in enumerate(rows, last_number(log, keys) + 1):
                    cache.set(log_key(log, number), row)
            for key, row in puts.items():
                if change.expect.get(key, b"") is not None:
                    cache.set(key, row)
                elif not cache.add(key, row):
                    raise _Unexpected
            for key in change.delete:
                cache.delete(key)

        try:
            # Large values are written to files before the transaction, during which other processes wait.
            puts = {key: values.prepare(frames) for key, frames in change.put.items()}
            appends = {log: [values.prepare((entry,)) for entry in entries] for log, entries in change.append.items()}
            cache.use("write to", cache.change, apply)
        except _Unexpected:
            return False
        finally:
            cache.tidy()
        return True

    def hold(self, key: str) -> Hold | None:
        """See `Store.hold`."""
        hold = self._locks.acquire(checked(key))
        if hold is not None:
            try:
                hold.entry = self.get(key)
            except StoreError:
                pass  # see `Hold.entry`
            except BaseException:
                hold.release()
                raise
        return hold

    def held(self, keys: Collection[str]) -> set[str]:
        """See `Store.held`."""
        return self._locks.held([checked(key) for key in keys])

    def holder(self, key: str) -> int | None:
        """The process that holds `key`; None if nobody does, or if the system does not tell."""
        return self._locks.holder(checked(key))

    def maintain(self, *, older_than: float = 600.0) -> Maintenance:
        """Remove value files that no entry refers to and that are older than `older_than` seconds, and free disk space.

        Safe while jobs are running. Damaged entries are reported, not removed.
        """
        cache, sizes = self._cache, list[int]()
        cache.require_writable()
        before = _database_size(cache.path)

        def remove(names: list[str]) -> None:
            for name in cache.without_row(names):
                with contextlib.suppress(OSError):
                    path = os.path.join(self.path, name)
                    size = os.lstat(path).st_size
                    os.unlink(path)
                    sizes.append(size)

        old = cache.use("tidy", _old_files, self.path, older_than)
        for start in range(0, len(old), CHUNK):
            # A commit that uses one of these files either has written its row by now, or checks for the file after this.
            cache.use("tidy", cache.change, partial(remove, old[start : start + CHUNK]))
        for folder in cache.use("tidy", value_folders, self.path):  # including those of killed processes
            with contextlib.suppress(OSError):
                os.removedirs(folder)  # a writer creates missing folders again
        rows = cache.use("read", lambda: cache._sql(_NOT_INLINE).fetchall())
        damaged = [key for (key,) in rows if not cache.use("read", _intact, cache, key)]
        self.shrink()
        return Maintenance(len(sizes), sum(sizes) + max(0, before - _database_size(cache.path)), damaged)

    def orphans(self, *, older_than: float = 600.0) -> list[str]:
        """The files that `maintain` would remove. Changes nothing."""
        old = self._cache.use("look into", _old_files, self.path, older_than)
        found = self._cache.use("read", self._cache.without_row, old)
        # Leave out files that were removed meanwhile.
        return sorted(name for name in found if os.path.lexists(os.path.join(self.path, name)))

    def shrink(self) -> None:
        """Return the space of removed entries to the file system. Reads no entries."""

        def vacuum() -> None:
            self._cache._con.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after one page
            self._cache._sql(
                "PRAGMA wal_checkpoint(TRUNCATE)"
            ).fetchall()  # also empties the journal, if it is not in use

        self._cache.require_writable()
        self._cache.use("tidy", self._cache.exclusively, vacuum)

    def close(self) -> None:
        """Close the connections of all threads. A later call opens them again."""
        self._cache.close()


def _old_files(directory: str, older_than: float) -> list[str]:
    """The names, relative to the store, of old files that a process may have abandoned."""
    limit, found = time.time() - older_than, list[str]()
    for folder in [directory, *value_folders(directory)]:
        for path in listed(folder):
            name = path[len(directory) + 1 :]
            if size_of(name) is not None or name.startswith(f"{DBNAME}.new-"):
                with contextlib.suppress(FileNotFoundError):
                    if os.lstat(path).st_mtime < limit:
                        found.append(name)
    return found


def _intact(cache: Cache, key: str) -> bool:
    """Whether an entry's row is valid and its value file complete. An entry deleted meanwhile is intact."""
    row = cache._sql("SELECT mode, filename, typeof(value) FROM Cache WHERE key = ? AND raw = 1", (key,)).fetchone()
    if row is None:
        return True
    mode, filename, value = row
    if mode == MODE_RAW:
        return filename is None and value == "blob"
    return mode == MODE_BINARY and value == "null" and cache.values.complete(filename)


def _database_size(path: str) -> int:
    return sum(os.stat(each).st_size for each in (path, f"{path}-wal") if os.path.exists(each))


def _same(found: Bytes | None, expected: Bytes | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return memoryview(found) == memoryview(expected).cast("B")


def _real_path(path: str | os.PathLike[str]) -> str:
    """The absolute path of a store, without symbolic links."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise UsageError(f"{text!r} is not a valid path for a store")
    return "/" + os.path.realpath(os.path.expanduser(text)).lstrip("/")


_open: WeakValueDictionary[tuple[str, str, bool], DiskStore] = WeakValueDictionary()


def _parse(url: str) -> tuple[str, str, bool]:
    """The path and options in a `disk:` URL."""
    location, _, query = url.partition(":")[2].partition("?")
    if location.startswith("//"):
        location = location[2:]
        if not location.startswith("/"):
            raise UsageError(f"{url!r} is not a valid store URL; write disk:///absolute/path or disk:relative/path")
    options = {name: value for name, _, value in (pair.partition("=") for pair in query.split("&") if pair)}
    durable, network = options.pop("durable", "process"), options.pop("network", "refuse")
    if options or durable not in _DURABLE or network not in ("allow", "refuse"):
        raise UsageError(
            f"{url!r} has an unknown option or value; use durable=process or power, network=allow or refuse"
        )
    try:
        path = os.fsdecode(unquote_to_bytes(os.fsencode(location)))
    except UnicodeEncodeError:
        raise UsageError(f"{url!r} is not a valid store URL; it has characters that no path can have") from None
    return _real_path(path), durable, network == "allow"


def open_url(url: str) -> DiskStore:
    """Open the store at a `disk:` URL. The same path and options give the same object in this process."""
    path, durable, network = _parse(url)
    with gate:
        store = _open.get((path, durable, network))
        if store is None:
            store = DiskStore(path, durable=_DURABLE[durable], allow_network_filesystem=network)
            _open[path, durable, network] = store
        else:
            store._cache.renew()
        return store


def repair(url: str, sound: Sound, missing: Missing) -> Salvaged:
    """Repair the store at a `disk:` URL; see `repair.repair`."""
    return repair_folder(_parse(url)[0], sound, missing)


def exists(url: str) -> bool:
    """Whether a store exists at a `disk:` URL."""
    return os.path.lexists(os.path.join(_parse(url)[0], DBNAME))
