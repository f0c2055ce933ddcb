"""A script that reads the files of its own store: SQLite's POSIX locks go when it closes them, and nothing must be lost by that."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading

import pytest

from oncemore.stores.disk import DiskStore
from oncemore.testing import finish, in_processes, start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no locks of open files")


def _write(store: DiskStore, key: str) -> None:
    store.commit(put={key: [b"other"]})
    store.close()


def _find(store: DiskStore, keys: list[str]) -> None:
    assert [key for key, _ in store.scan("")] == keys


@pytest.mark.parametrize("name", ["", "cache.db", "cache.db-shm", "cache.db-wal", "cache.db-locks"])
def test_what_is_committed_after_the_folder_was_copied_is_there_for_others(tmp_path, name):
    store = DiskStore(tmp_path / "store")
    store.commit(put={"before": [b"1"]})
    if name:
        (tmp_path / "store" / name).read_bytes()
    else:
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    assert (
        finish(start((_write, store, "other"))) == 0
    )  # it takes itself for the last one, and would delete the journal
    store.commit(put={"after": [b"1"]})
    assert finish(start((_find, store, ["after", "before", "other"]))) == 0


def test_the_last_one_to_close_still_leaves_one_file(tmp_path):
    store = DiskStore(tmp_path / "store")
    store.commit(put={"a": [b"1"]})
    assert finish(start((_write, store, "b"))) == 0
    assert (tmp_path / "store" / "cache.db-wal").exists()
    store.close()
    assert sorted(os.listdir(tmp_path / "store")) == [".gitignore", "cache.db", "cache.db-locks"]


def _write_many_beside_a_thread_that_reads_the_files(store: DiskStore, prefix: str) -> None:
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            for name in ("cache.db", "cache.db-shm", "cache.db-wal"):
                with contextlib.suppress(OSError):
                    os.close(os.open(os.path.join(store.path, name), os.O_RDONLY))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(400):
            store.commit(put={f"{prefix}{number}": [b"v" * 200]}, append={"log": [b"row"]})
    finally:
        over.set()
        reader.join()


def test_processes_that_write_while_threads_of_theirs_read_the_files_lose_and_destroy_nothing(tmp_path):
    store = DiskStore(tmp_path / "store")
    store.close()
    in_processes(3, lambda number: (_write_many_beside_a_thread_that_reads_the_files, store, "abc"[number]))
    assert {prefix: sum(1 for _ in store.scan(prefix)) for prefix in "abc"} == {"a": 400, "b": 400, "c": 400}
    assert store._cache.use("check", lambda: store._cache._sql("PRAGMA integrity_check").fetchall()) == [("ok",)]
