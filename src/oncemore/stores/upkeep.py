"""Maintenance of a disk store while jobs are running: leftover files, disk space, damaged entries."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from functools import partial

from diskcache.core import DBNAME, MODE_BINARY, MODE_RAW

from .cache import CHUNK, Cache, size_of

_NOT_INLINE = (
    "SELECT key FROM Cache WHERE raw = 1 AND typeof(key) = 'text'"
    " AND NOT (mode = 1 AND filename IS NULL AND typeof(value) = 'blob') ORDER BY key"
)


@dataclass(frozen=True)
class Maintenance:
    """What maintenance found and did."""

    orphans_removed: int  # value files and unfinished databases left by killed processes
    bytes_freed: int
    damaged: list[str] = field(default_factory=list[str])  # keys of entries that were altered


def maintain(cache: Cache, older_than: float) -> Maintenance:
    """See `DiskStore.maintain`."""
    before, sizes = _database_size(cache.path), list[int]()

    def remove(names: list[str]) -> None:
        for name in cache.without_row(names):
            with contextlib.suppress(OSError):
                path = os.path.join(cache.directory, name)
                size = os.lstat(path).st_size
                os.unlink(path)
                sizes.append(size)

    old = cache.use("tidy", _old_files, cache, older_than)
    for start in range(0, len(old), CHUNK):
        # A commit that uses one of these files either has written its row by now, or checks for the file after this.
        cache.use("tidy", cache.change, partial(remove, old[start : start + CHUNK]))
    for folder in cache.use("tidy", _folders, cache.directory):  # including those of killed processes
        with contextlib.suppress(OSError):
            os.removedirs(folder)  # a writer creates missing folders again
    rows = cache.use("read", lambda: cache._sql(_NOT_INLINE).fetchall())
    damaged = [key for (key,) in rows if not cache.use("read", _intact, cache, key)]
    shrink(cache)
    return Maintenance(len(sizes), sum(sizes) + max(0, before - _database_size(cache.path)), damaged)


def orphans(cache: Cache, older_than: float) -> list[str]:
    """See `DiskStore.orphans`."""
    old = cache.use("look into", _old_files, cache, older_than)
    found = cache.use("read", cache.without_row, old)
    # Leave out files that were removed meanwhile.
    return sorted(name for name in found if os.path.lexists(os.path.join(cache.directory, name)))


def shrink(cache: Cache) -> None:
    """See `DiskStore.shrink`. Also empties the journal, if no one is using it."""

    def vacuum() -> None:
        cache._con.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after one page
        cache._sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    cache.use("tidy", cache.exclusively, vacuum)


def _old_files(cache: Cache, older_than: float) -> list[str]:
    """The names, relative to the store, of old files that a process may have abandoned."""
    limit, found = time.time() - older_than, list[str]()
    for folder in [cache.directory, *_folders(cache.directory)]:
        for path in _listed(folder):
            name = path[len(cache.directory) + 1 :]
            if size_of(name) is not None or name.startswith(f"{DBNAME}.new-"):
                with contextlib.suppress(FileNotFoundError):
                    if os.lstat(path).st_mtime < limit:
                        found.append(name)
    return found


def value_files(directory: str) -> list[str]:
    """The names of all value files, relative to the store."""
    found = (path[len(directory) + 1 :] for folder in _folders(directory) for path in _listed(folder))
    return sorted(name for name in found if size_of(name) is not None)


def _folders(directory: str) -> list[str]:
    """The folders of value files, `ab/cd`, each `ab` after its subfolders."""
    outer = [path for path in _listed(directory) if _is_pair(path)]
    return [inner for path in outer for inner in [*filter(_is_pair, _listed(path)), path]]


def _listed(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except FileNotFoundError:  # removed meanwhile
        return []


def _is_pair(path: str) -> bool:
    return len(os.path.basename(path)) == 2 and os.path.isdir(path) and not os.path.islink(path)


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
