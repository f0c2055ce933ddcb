"""An empty database, as diskcache makes it."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

import diskcache

from .values import FORMAT, INLINE

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


class Blank(diskcache.Cache):
    """An empty database at `path`. diskcache expands `$` in the names it is given, so it gets none but the root."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            super().__init__(os.sep, **_SETTINGS)
            for statement in _FINISH:
                self._connection.execute(statement)
        finally:
            self._connection.close()

    @property
    def _con(self) -> sqlite3.Connection:
        return self._connection
