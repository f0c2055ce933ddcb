"""Upkeep of a disk store, safe beside running jobs: files that killed processes left, space, damaged entries."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from diskcache.core import DBNAME, MODE_BINARY, MODE_RAW

from .cache import CHUNK, COLUMNS, Cache, remove_folders

_NOT_INLINE = (
    "SELECT key FROM Cache WHERE raw = 1 AND typeof(key) = 'text'"
    " AND NOT (mode = 1 AND filename IS NULL AND typeof(value) = 'blob') ORDER BY key"
)


@dataclass(frozen=True)
class Maintenance:
    """What maintenance found and did."""

    orphans_removed: int  # value files, and halves of databases, that a killed process left
    bytes_freed: int
    damaged: list[str] = field(default_factory=list[str])  # keys of entries that cannot be what was written


def maintain(cache: Cache, older_than: float) -> Maintenance:
    """See `DiskStore.maintain`."""
    before, limit = _database_size(cache.path), time.time() - older_than
    sizes: list[int] = []
    for names in _chunks(list(_old_files(cache, limit))):
        # A commit that names one of these either has its row in by now, or looks for its file after we are done.
        cache.use("tidy", cache.change, partial(_remove_orphans, cache, names, sizes))
    _remove_empty_folders(cache)
    damaged = [key for key in cache.use("read", _keys_to_check, cache) if not cache.use("read", _intact, cache, key)]
    shrink(cache)
    return Maintenance(len(sizes), sum(sizes) + max(0, before - _database_size(cache.path)), damaged)


def orphans(cache: Cache, older_than: float) -> list[str]:
    """See `DiskStore.orphans`."""
    found: list[str] = []
    for names in _chunks(list(_old_files(cache, time.time() - older_than))):
        found += cache.use("read", _without_row, cache, names)
    return sorted(
        name for name in found if os.path.lexists(os.path.join(cache.directory, name))
    )  # not removed meanwhile


def shrink(cache: Cache) -> None:
    """See `DiskStore.shrink`; the journal is emptied too, if nobody is in it."""

    def vacuum() -> None:
        cache._con.executescript("PRAGMA incremental_vacuum")  # a plain execute would stop after one page
        cache._sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    cache.use("tidy", vacuum)


def _chunks(names: list[str]) -> Iterator[list[str]]:
    return (names[start : start + CHUNK] for start in range(0, len(names), CHUNK))


def _without_row(cache: Cache, names: Sequence[str]) -> set[str]:
    marks = ",".join("?" * len(names))
    rows = cache._sql(f"SELECT filename FROM Cache WHERE filename IN ({marks})", names).fetchall()
    return set(names) - {name for (name,) in rows}


def _old_files(cache: Cache, limit: float) -> Iterator[str]:
    """The names, relative to the store, of files that some process wrote and may have abandoned."""
    for entry in os.scandir(cache.directory):
        if entry.name.startswith(f"{DBNAME}.new-") and _is_old(entry, limit):
            yield entry.name
    for folder in _folders(cache):
        with contextlib.suppress(FileNotFoundError):
            for file in os.scandir(os.path.join(cache.directory, folder)):
                if cache.values.size_of(f"{folder}/{file.name}") is not None and _is_old(file, limit):
                    yield f"{folder}/{file.name}"


def _folders(cache: Cache) -> Iterator[str]:
    """The folders of value files, `ab/cd`."""
    return (f"{outer.name}/{inner.name}" for outer in _pairs(cache.directory) for inner in _pairs(outer.path))


def _pairs(folder: str) -> list[os.DirEntry[str]]:
    """The folders inside one whose names have two characters; none if it is gone meanwhile."""
    try:
        return [each for each in os.scandir(folder) if len(each.name) == 2 and each.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _is_old(entry: os.DirEntry[str], limit: float) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime < limit
    except FileNotFoundError:
        return False


def _remove_orphans(cache: Cache, names: Sequence[str], sizes: list[int]) -> None:
    """Remove those of the files that have no row, and note their sizes."""
    for name in _without_row(cache, names):
        with contextlib.suppress(OSError):
            path = os.path.join(cache.directory, name)
            size = os.lstat(path).st_size
            os.unlink(path)
            sizes.append(size)


def _remove_empty_folders(cache: Cache) -> None:
    """Also those that a kill left between removing a file and its folder. Whoever writes a file makes its folders anew."""
    for folder in list(_folders(cache)):
        remove_folders(os.path.join(cache.directory, folder))
    for outer in _pairs(cache.directory):
        with contextlib.suppress(OSError):
            os.rmdir(outer.path)


def _keys_to_check(cache: Cache) -> list[str]:
    return [key for (key,) in cache._sql(_NOT_INLINE).fetchall()]


def _intact(cache: Cache, key: str) -> bool:
    """Whether an entry that should have a file has it now; an entry deleted meanwhile has all it needs."""
    row = cache._sql(f"SELECT {COLUMNS} FROM Cache WHERE key = ? AND raw = 1", (key,)).fetchone()
    if row is None:
        return True
    _, mode, filename, value = row
    if mode == MODE_RAW:
        return filename is None and type(value) is bytes
    return mode == MODE_BINARY and value is None and cache.values.complete(row)


def _database_size(path: str) -> int:
    total = 0
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            total += os.stat(path + suffix).st_size
    return total
