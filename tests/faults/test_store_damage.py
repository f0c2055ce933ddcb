"""Altered, cut, swapped and planted entries; destroyed databases. Nothing runs, and every error names its place."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncemore.errors import IntegrityError, StoreDamaged, StoreError
from oncemore.stores.disk import DiskStore
from oncemore.testing import bytes_of

LARGE = 50_000


@pytest.fixture
def store(tmp_path):
    store = DiskStore(tmp_path / "s")
    store.commit(put={"damaged": [b"d" * LARGE], "small": [b"s"], "whole": [b"w" * LARGE]})
    return store


def file_of(store: DiskStore, key: str) -> Path:
    (name,) = store._cache._session().connection.execute("SELECT filename FROM Cache WHERE key = ?", (key,)).fetchone()
    return Path(store.path, name)


def alter(store: DiskStore, key: str, **columns: object) -> None:
    sets = ", ".join(f"{column} = ?" for column in columns)
    store._cache._session().connection.execute(f"UPDATE Cache SET {sets} WHERE key = ?", (*columns.values(), key))


def check_damage(store: DiskStore, key: str = "damaged") -> None:
    """The entry is refused by name, wherever it is met; the rest works, and a new value heals it."""
    with pytest.raises(IntegrityError, match=f"'{key}'") as caught:
        store.get(key)
    assert store.path in str(caught.value)
    for most in (None, 10**9):
        found = dict(store.scan("", most=most))
        assert found[key] is None
        assert found["whole"] == b"w" * LARGE
    with pytest.raises(IntegrityError):
        store.commit(put={"x": [b""]}, expect={key: b"d" * LARGE})
    assert store.get("x") is None
    assert bytes_of(store, "whole") == b"w" * LARGE
    assert store.commit(put={key: [b"healed"]})
    assert bytes_of(store, key) == b"healed"


def delete(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def truncate(file: Path) -> None:
    os.truncate(file, LARGE - 1)


def extend(file: Path) -> None:
    file.write_bytes(b"d" * (LARGE + 1))


def make_a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def link_to_a_secret(file: Path) -> None:
    secret = file.parent.parent.parent / "secret"
    secret.write_bytes(b"s" * LARGE)
    file.unlink()
    file.symlink_to(secret)


@pytest.mark.parametrize("damage", [delete, empty, truncate, extend, make_a_directory, make_a_pipe, link_to_a_secret])
def test_a_damaged_file_is_refused_and_named(store, damage):
    file = file_of(store, "damaged")
    damage(file)
    with pytest.raises(IntegrityError, match=file.name):
        store.get("damaged")
    check_damage(store)


def test_a_file_swapped_with_one_of_another_size_is_refused(store):
    store.commit(put={"other": [b"o" * (LARGE + 7)]})
    one, other = file_of(store, "damaged"), file_of(store, "other")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with pytest.raises(IntegrityError, match="'other'"):
        store.get("other")
    check_damage(store)


def test_a_flipped_bit_reaches_the_caller_who_checks_it_and_nobody_else(store):
    file = file_of(store, "damaged")
    content = bytearray(file.read_bytes())
    content[LARGE // 2] ^= 1
    file.write_bytes(content)
    assert bytes_of(store, "damaged") == content
    assert bytes_of(store, "whole") == b"w" * LARGE


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("mode", [0, 3, 4, 5, -1, None, "raw", b"1"])
def test_a_row_with_another_mode_is_refused_and_nothing_is_unpickled(store, tmp_path, mode):
    mark = tmp_path / "it ran"
    evil = pickle.dumps(Evil(mark))
    alter(store, "damaged", mode=mode, filename=None, value=evil)
    check_damage(store)
    store.commit(put={"damaged": [b"d" * LARGE]})
    file_of(store, "damaged").write_bytes(evil)
    alter(store, "damaged", mode=mode, size=len(evil))
    assert store.maintain().damaged == ["damaged"]
    check_damage(store)
    assert not mark.exists()


def test_a_pickled_key_is_never_opened(store, tmp_path):
    mark = tmp_path / "it ran"
    connection = store._cache._session().connection
    evil = pickle.dumps(Evil(mark))
    connection.execute("INSERT INTO Cache(key, raw, mode, value) VALUES (?, 0, 1, x'00')", (evil,))
    connection.execute("INSERT INTO Cache(key, raw, mode, value) VALUES ('planted', 0, 1, x'00')")
    connection.execute("INSERT INTO Cache(key, raw, mode, value) VALUES (?, 1, 1, x'00')", (b"blob",))
    assert [key for key, _ in store.scan("")] == ["damaged", "small", "whole"]
    assert store.get("planted") is None
    assert store.maintain().damaged == []
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    ["../../victim", "../victim", "/etc/hostname", "cache.db", "ab/../../../victim", ".gitignore", "", b"\xff", 7],
)
def test_a_file_name_that_is_not_ours_is_neither_read_nor_removed(store, tmp_path, name):
    victims = [tmp_path / "victim", tmp_path.parent / "victim"]
    for victim in victims:
        victim.write_bytes(b"v" * LARGE)
    alter(store, "damaged", filename=name)
    assert store.maintain(older_than=-1).damaged == ["damaged"]
    check_damage(store)
    store.commit(put={"damaged": [b"d" * LARGE]})
    alter(store, "damaged", filename=name)
    assert store.commit(delete=["damaged"])
    for victim in victims:
        assert victim.read_bytes() == b"v" * LARGE
    assert os.path.exists("/etc/hostname")
    assert Path(store.path, "cache.db").exists()


column = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["size", "mode", "filename", "value"]), column, min_size=1))
def test_whatever_stands_in_a_row_only_our_errors_come_out(store, columns):
    store.commit(put={"damaged": [b"d" * LARGE], "small": [b"s"]})
    for key in ("damaged", "small"):
        try:
            alter(store, key, **columns)
        except (sqlite3.Error, UnicodeEncodeError):
            continue
        try:
            found = store.get(key)
            assert found in (b"s", b"d" * LARGE, columns.get("value", b""))
        except IntegrityError:
            pass
        assert [name for name, _ in store.scan("")] == ["damaged", "small", "whole"]
        assert [name for name, _ in store.scan("", most=100)] == ["damaged", "small", "whole"]
        store.maintain()
    assert bytes_of(store, "whole") == b"w" * LARGE


def overwrite(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(file.stat().st_size))


def destroy_the_header(file: Path) -> None:
    file.write_bytes(bytes(100) + file.read_bytes()[100:])


def write_a_text(file: Path) -> None:
    file.write_text("this was not a good idea\n" * 100)


def cut_in_half(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2 + 100)


def destroy_the_tables(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100] + b"\xff" * (file.stat().st_size - 100))


def drop_the_table(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("DROP TABLE Cache")
    connection.close()


def use_the_database_of_something_else(file: Path) -> None:
    file.unlink()
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE other (x)")
    connection.close()


@pytest.mark.parametrize(
    "destroy",
    [
        empty,
        overwrite,
        destroy_the_header,
        write_a_text,
        cut_in_half,
        destroy_the_tables,
        drop_the_table,
        use_the_database_of_something_else,
    ],
)
def test_a_destroyed_database_is_a_clear_error_with_file_and_remedy(store, destroy):
    store.commit(put={f"k{number}": [b"x" * 5000] for number in range(50)})
    store.close()
    file = Path(store.path, "cache.db")
    destroy(file)
    with pytest.raises(StoreDamaged) as caught:
        list(DiskStore(store.path).scan(""))
    assert str(file) in str(caught.value)
    assert "aside" in str(caught.value)
    assert not isinstance(caught.value, sqlite3.Error)
    shutil.move(store.path, store.path + ".aside")
    fresh = DiskStore(store.path)
    assert list(fresh.scan("")) == []
    assert fresh.commit(put={"a": [b"1"]})


def test_something_else_in_the_place_of_the_database_is_a_clear_error(tmp_path):
    (tmp_path / "cache.db").mkdir()
    (tmp_path / "cache.db" / "x").touch()
    with pytest.raises(StoreError, match=str(tmp_path)):
        DiskStore(tmp_path)


def test_bytes_altered_anywhere_in_a_database_give_only_our_errors(tmp_path):
    original = DiskStore(tmp_path / "original")
    original.commit(
        put={f"k{number:03}": [b"%03d" % number * 300] for number in range(60)}, append={"log/": [b"e"] * 20}
    )
    original.close()
    random_ = random.Random(7)
    data = (tmp_path / "original" / "cache.db").read_bytes()
    for turn in range(60):
        path = tmp_path / str(turn)
        path.mkdir()
        altered = bytearray(data)
        for _ in range(random_.choice((1, 20, 400))):
            altered[random_.randrange(len(altered))] = random_.randrange(256)
        (path / "cache.db").write_bytes(altered)
        try:
            store = DiskStore(path)
            for number in range(60):
                store.get(f"k{number:03}")
            for most in (None, 100):
                list(store.scan("", most=most))
            store.commit(put={"k001": [b"new"], "z": [b"x" * LARGE]}, append={"log/": [b"f"]}, delete=["k002"])
            store.maintain()
        except StoreError:
            pass


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_destroyed_journal_is_no_error(tmp_path, suffix):
    child = os.fork()
    if child == 0:  # ends without closing, so that the journal stays
        store = DiskStore(tmp_path)
        store.commit(put={"a": [b"1"]})
        os._exit(0)
    os.waitpid(child, 0)
    journal = tmp_path / f"cache.db{suffix}"
    journal.write_bytes(random.Random(3).randbytes(journal.stat().st_size))
    store = DiskStore(tmp_path)
    assert store.get("a") == (None if suffix == "-wal" else b"1")
    assert store.commit(put={"b": [b"2"]})
    assert store.get("b") == b"2"
