"""Maintenance: what nobody refers to goes, all else stays, beside running jobs."""

from __future__ import annotations

import os
import threading
import time

import diskcache
import pytest

from oncemore.errors import StoreError
from oncemore.stores.disk import DiskStore
from oncemore.testing import bytes_of, in_threads


def value_files(path):
    return sorted(file for file in path.glob("??/??/*.val"))


def orphan(path, age: float = 3600):
    name = path / "ab" / "cd" / ("0" * 28 + "-3e8.val")
    name.parent.mkdir(parents=True, exist_ok=True)
    name.write_bytes(b"x" * 1000)
    os.utime(name, (time.time() - age, time.time() - age))
    return name


def test_an_orphan_goes_once_it_is_old_and_nothing_else_does(tmp_path):
    store = DiskStore(tmp_path)
    store.commit(put={"large": [b"x" * 50_000], "small": [b"s"]})
    for file in value_files(tmp_path):
        os.utime(file, (1, 1))
    old = orphan(tmp_path)
    half = tmp_path / "cache.db.new-0123"
    half.write_bytes(b"")
    os.utime(half, (1, 1))
    (tmp_path / "ab" / "cd" / "notes.txt").write_text("not ours")
    (tmp_path / "my file").write_text("not ours")
    found = store.maintain()
    assert (found.orphans_removed, found.damaged) == (2, [])
    assert found.bytes_freed >= 1000
    assert not old.exists()
    assert not half.exists()
    assert (tmp_path / "ab" / "cd" / "notes.txt").exists()
    assert (tmp_path / "my file").exists()
    assert bytes_of(store, "large") == b"x" * 50_000
    young = orphan(tmp_path, age=10)
    assert store.maintain().orphans_removed == 0
    assert young.exists()


def test_empty_folders_that_a_kill_left_go(tmp_path):
    store = DiskStore(tmp_path)
    store.commit(put={"large": [b"x" * 50_000]})
    (tmp_path / "ab").mkdir(exist_ok=True)
    (tmp_path / "cd" / "ef").mkdir(parents=True, exist_ok=True)
    orphan(tmp_path)
    store.maintain()
    with diskcache.Cache(str(tmp_path)) as cache:
        assert cache.check() == []
    assert bytes_of(store, "large") == b"x" * 50_000


def test_replaced_and_deleted_values_leave_no_file(tmp_path):
    store = DiskStore(tmp_path)
    store.commit(put={"a": [b"1" * 50_000], "b": [b"2" * 50_000]})
    store.commit(put={"a": [b"3" * 50_000]})
    assert len(value_files(tmp_path)) == 2
    store.commit(put={"a": [b"small"]}, delete=["b"])
    assert value_files(tmp_path) == []


def test_a_refused_or_failed_commit_leaves_no_file(tmp_path):
    store = DiskStore(tmp_path)
    assert not store.commit(put={"a": [b"1" * 50_000]}, expect={"b": b"there"})
    with pytest.raises(TypeError):
        store.commit(put={"a": [b"1" * 50_000], "b": [b"2" * 50_000, 3]})
    assert value_files(tmp_path) == []


def test_space_is_given_back(tmp_path):
    store = DiskStore(tmp_path)
    store.commit(put={f"k{number}": [b"x" * 20_000] for number in range(200)})
    store.maintain()
    before = (tmp_path / "cache.db").stat().st_size
    store.commit(delete=[f"k{number}" for number in range(200)])
    assert store.maintain().bytes_freed > 3_000_000
    assert (tmp_path / "cache.db").stat().st_size < before / 10


def test_damaged_entries_are_named_and_stay(tmp_path):
    store = DiskStore(tmp_path)
    store.commit(put={key: [key.encode() * 50_000] for key in "abc"} | {"small": [b"s"]})
    rows = (
        store._cache._session()
        .connection.execute("SELECT key, filename FROM Cache WHERE filename IS NOT NULL")
        .fetchall()
    )
    names = dict(rows)
    (tmp_path / names["a"]).unlink()
    (tmp_path / names["b"]).write_bytes(b"short")
    store._cache._session().connection.execute("UPDATE Cache SET mode = 4 WHERE key = 'small'")
    assert store.maintain().damaged == ["a", "b", "small"]


def test_maintenance_beside_writers_takes_nothing_that_is_in_use(tmp_path):
    store, stop, refusals = DiskStore(tmp_path), threading.Event(), []

    def work(number: int) -> None:
        if number == 0:
            while not stop.is_set():
                store.maintain(older_than=-1)  # even the files that are being written count as old
            return
        for turn in range(40):
            try:
                store.commit(put={f"k{turn % 3}": [b"%d" % turn * 40_000]})
            except StoreError as error:
                refusals.append(str(error))
        stop.set()

    in_threads(2, work)
    assert all("removed before its commit" in refusal for refusal in refusals)
    assert store.maintain(older_than=-1).damaged == []
    for _, value in store.scan(""):
        assert value is not None
