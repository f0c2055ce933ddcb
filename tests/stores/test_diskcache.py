"""A store is a cache of diskcache: whoever opens it as one finds everything, and harms nothing."""

from __future__ import annotations

import os
import sqlite3

import diskcache
import pytest

from oncemore.stores.cache import SETTINGS
from oncemore.stores.disk import DiskStore
from oncemore.testing import bytes_of, in_fork, keys_of

IGNORE = b".gitignore"  # an entry like any other, under a key that no store has


@pytest.fixture
def store(tmp_path):
    """A store with a past: entries of both kinds, some replaced, some deleted, and a log."""
    store = DiskStore(tmp_path / "s")
    store.commit(put={f"k{number}": [b"%d" % number * 40_000] for number in range(10)})
    store.commit(
        put={"k1": [b"small now"], "k2": [b"x" * 50_000], "new": [b"y" * 70_000]}, append={"log/": [b"a", b"b"]}
    )
    store.commit(delete=["k3", "k4", "nothing"])
    assert not store.commit(put={"refused": [b"z" * 50_000]}, expect={"k1": None})
    return store


def settings(store: DiskStore) -> dict[str, object]:
    connection = sqlite3.connect(os.path.join(store.path, "cache.db"))
    try:
        return dict(connection.execute("SELECT key, value FROM Settings"))
    finally:
        connection.close()


def test_diskcache_lists_counts_and_reads_every_entry(store):
    expected = {key: bytes_of(store, key) for key in keys_of(store, "")}
    with diskcache.Cache(store.path) as cache:
        assert {key: cache[key] for key in cache} == expected | {IGNORE: b"*\n"}
        assert len(cache) == len(expected) + 1
        assert sorted(key for key in cache.iterkeys() if key != IGNORE) == sorted(expected)


def test_diskcache_finds_nothing_to_complain_of(store):
    with diskcache.Cache(store.path) as cache:
        assert [str(each.message) for each in cache.check()] == []
    store.commit(delete=keys_of(store, ""))  # no empty folder stays behind
    with diskcache.Cache(store.path) as cache:
        assert [str(each.message) for each in cache.check()] == []
        assert list(cache) == [IGNORE]
        assert len(cache) == 1


def test_opened_and_repaired_by_diskcache_the_store_is_as_before(store):
    before = {key: bytes_of(store, key) for key in keys_of(store, "")}
    known, hold = settings(store), store.hold("key")
    with diskcache.Cache(store.path) as cache:
        cache.check(fix=True)
        cache.expire()
        cache.cull()
    assert settings(store) == known
    assert {key: bytes_of(store, key) for key in keys_of(store, "")} == before
    assert in_fork(lambda: 7 if store.hold("key") is None else 0) == 7  # the file of the locks is still the same
    assert store.commit(put={"k1": [b"and on"]}, under=hold)
    assert store.maintain(older_than=-1).damaged == []


def test_settings_that_somebody_else_has_written_evict_nothing(store):
    with diskcache.Cache(
        store.path, size_limit=1000, cull_limit=100, eviction_policy="least-recently-used", statistics=1
    ):
        pass
    before = keys_of(store, "")
    store.commit(put={"more": [b"x" * 100_000]})
    assert keys_of(store, "") == sorted([*before, "more"])
    assert DiskStore(store.path).get("k1") == b"small now"
    found = settings(store)  # opened by us again, they are what they were
    assert {key: found[key] for key in SETTINGS} == SETTINGS
    with diskcache.Cache(store.path) as cache:
        cache.set("theirs", b"1")
        assert len(cache) == len(before) + 3


def test_what_diskcache_writes_can_be_read_if_it_is_bytes(store):
    with diskcache.Cache(store.path) as cache:
        cache["small"] = b"s"
        cache["object"] = {"a": 1}
    assert bytes_of(store, "small") == b"s"
    assert dict(store.scan("obj")) == {"object": None}
