"""CVE-2025-69872: diskcache unpickles what it finds in its folder. A store never does, whatever a row says."""

from __future__ import annotations

import contextlib
import os
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import diskcache
import pytest
from diskcache.core import MODE_BINARY, MODE_NONE, MODE_PICKLE, MODE_RAW, MODE_TEXT

from oncemore import History, StoreError
from oncemore.stores.disk import DiskStore

MODES = {"none": MODE_NONE, "raw": MODE_RAW, "binary": MODE_BINARY, "text": MODE_TEXT, "pickle": MODE_PICKLE}


class Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def plant(folder: Path, mode: int, place: str, trap: bytes) -> None:
    """Let the row of the entry `key` hold a pickle, in the row itself or in a file."""
    name = f"ab/cd/{'0' * 28}-{len(trap):x}.val" if place == "file" else None
    if name is not None:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(trap)
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as database, database:
        changed = database.execute(
            "UPDATE Cache SET mode = ?, filename = ?, value = ?, size = ? WHERE key = 'key'",
            (mode, name, None if name else trap, len(trap) if name else 0),
        )
        assert changed.rowcount == 1


@pytest.mark.parametrize("place", ["row", "file"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_planted_pickle_is_never_unpickled_under_any_mode_of_diskcache(mode: int, place: str, tmp_path: Path) -> None:
    folder, mark = tmp_path / "store", tmp_path / "trapped"
    store = DiskStore(folder)
    store.commit(put={"key": [b"value"]})
    store.close()
    trap = pickle.dumps(Trap(mark))
    plant(folder, mode, place, trap)
    with contextlib.suppress(StoreError):
        assert store.get("key") == trap  # as bytes, if at all
    assert [key for key, _ in store.scan("")] == ["key"]
    store.get_many(["key"])
    with contextlib.suppress(StoreError):
        store.commit(put={"other": [b"1"]}, expect={"key": b"value"})
    store.maintain(older_than=0)
    History(store).verify()
    store.close()
    assert not mark.exists()


def test_the_planted_pickle_is_one_that_diskcache_itself_would_load(tmp_path: Path) -> None:
    folder, mark = tmp_path / "store", tmp_path / "trapped"
    store = DiskStore(folder)
    store.commit(put={"key": [b"value"]})
    store.close()
    plant(folder, MODE_PICKLE, "row", pickle.dumps(Trap(mark)))
    with diskcache.Cache(str(folder)) as cache:
        cache.get("key")
    assert mark.exists()
