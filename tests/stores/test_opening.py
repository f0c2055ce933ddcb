"""Opening stores: paths, URLs, one instance per place, and what an opened directory looks like."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import diskcache
import pytest

from oncemore import stores
from oncemore.errors import CheckpointWarning, StoreError, UsageError
from oncemore.stores import open_store, store_exists
from oncemore.stores.disk import DiskStore
from oncemore.stores.memory import MemoryStore
from oncemore.testing import append_many, bytes_of, check_log, in_processes, in_threads

ODD_NAMES = [
    "a b",
    "100%",
    "%41",
    "what?",
    "a?durable=power",
    "#1",
    "é😀",
    "$HOME",
    "a:b",
    "back\\slash",
    "~",
    "'\"",
    "new\nline",
]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_a_store_is_returned_as_it_is(tmp_path):
    store = DiskStore(tmp_path / "s")
    assert open_store(store) is store


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_path_of_any_characters_is_opened_there_and_travels(tmp_path, name):
    store = open_store(tmp_path / name)
    store.commit(put={"a": [b"1"]})
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name / "cache.db").exists()
    assert open_store(str(tmp_path / name)) is store
    assert open_store(store.url) is store
    assert pickle.loads(pickle.dumps(store)) is store
    assert store.url.startswith("disk:///")


def test_a_path_that_is_not_valid_text_is_opened_and_travels(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    store = open_store(path)
    assert open_store(store.url) is store
    assert os.listdir(os.fsencode(tmp_path)) == [b"\xff"]


def test_the_same_place_is_the_same_store_however_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store("s")
    (tmp_path / "link").symlink_to("s")
    for other in (
        "./s",
        "x/../s",
        Path("s"),
        "disk:s",
        "disk:./s",
        f"disk://{tmp_path}/s",
        "~/s",
        "disk:~/s",
        Path("~/s"),
        "link",
        f"/{tmp_path}/s",
        "DISK:s",
        "disk:s?durable=process",
    ):
        assert open_store(other) is store, other
    assert open_store("disk:s?durable=power") is not store


def test_the_url_keeps_the_options(tmp_path):
    store = open_store(f"disk://{tmp_path}/s?durable=power&network=allow")
    assert store.url == f"disk://{tmp_path}/s?durable=power&network=allow"
    assert open_store(store.url) is store
    assert repr(store) == f"<DiskStore {store.url}>"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("", "not a valid path"),
        ("a\0b", "not a valid path"),
        ("disk:", "not a valid path"),
        ("disk://host/path", "disk:///absolute/path"),
        ("disk:x?durable=maybe", "unknown option"),
        ("disk:x?colour=red", "unknown option"),
        ("memory://x?size=3", "no options"),
        ("ftp://x", "known: disk:, memory:"),
        ("postgresql://x", "not supported in this version"),
        ("redis://x", "not supported in this version"),
        ("s3://bucket", "not supported in this version"),
    ],
)
def test_what_cannot_be_right_is_refused_with_what_can(target, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said):
        open_store(target)
    assert os.listdir(tmp_path) == []


def test_a_drive_letter_is_no_scheme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("C:store")
    assert isinstance(store, DiskStore)
    assert store.path == str(tmp_path / "C:store")


def test_an_unknown_durability_is_refused(tmp_path):
    with pytest.raises(UsageError, match="'process' or 'power'"):
        DiskStore(tmp_path, durable="maybe")


def test_memory_stores_of_one_name_are_one():
    open_store("memory://one%20name").commit(put={"a": [b"1"]})
    assert MemoryStore("one name").get("a") == b"1"
    assert open_store("memory:one name").get("a") == b"1"
    assert open_store("memory://another").get("a") is None
    assert repr(MemoryStore("a/b")) == "<MemoryStore memory://a%2Fb>"


def test_only_the_owner_can_read_what_is_stored(tmp_path):
    before = os.umask(0o000)
    try:
        store = open_store(tmp_path / "parent" / "s")
        store.commit(put={"large": [b"x" * 50_000]})
    finally:
        os.umask(before)
    for folder, _, files in os.walk(tmp_path / "parent" / "s"):
        assert mode_of(Path(folder)) == 0o700
        assert {mode_of(Path(folder, name)) for name in files} <= {0o600}


def test_a_new_store_hides_from_git(tmp_path):
    open_store(tmp_path / "s")
    assert (tmp_path / "s" / ".gitignore").read_text() == "*\n"


def test_a_directory_with_other_things_in_it_is_not_hidden_from_git(tmp_path):
    (tmp_path / "main.py").write_text("")
    before = mode_of(tmp_path)
    open_store(tmp_path).commit(put={"a": [b"1"]})
    assert not (tmp_path / ".gitignore").exists()
    assert mode_of(tmp_path) == before


def test_opening_again_changes_no_file(tmp_path):
    store = DiskStore(tmp_path / "s")
    store.commit(put={"a": [b"1"]})
    store.close()
    before = (tmp_path / "s" / "cache.db").read_bytes()
    again = DiskStore(tmp_path / "s")
    assert again.get("a") == b"1"
    again.close()
    assert (tmp_path / "s" / "cache.db").read_bytes() == before


def test_eight_processes_may_create_a_store_at_once(tmp_path):
    store = DiskStore(tmp_path / "s")
    shutil.rmtree(tmp_path / "s")  # it travels as its URL: each process finds nothing there
    in_processes(8, lambda number: (append_many, store, f"process {number}", 2))
    check_log(DiskStore(tmp_path / "s"), 8, 2)
    assert not [name for name in os.listdir(tmp_path / "s") if ".new-" in name]


def test_threads_opening_one_place_get_one_store(tmp_path):
    found: list[object] = []
    in_threads(8, lambda number: found.append(open_store(tmp_path / "s")))
    assert len(set(map(id, found))) == 1


def test_the_directory_of_another_program_is_refused(tmp_path):
    with diskcache.Cache(str(tmp_path)) as cache:
        cache["theirs"] = object
    with pytest.raises(StoreError, match="made by another program"):
        DiskStore(tmp_path)


@pytest.mark.parametrize(
    ("version", "said"),
    [(2, r"a newer oncemore \(format 2.*Upgrade oncemore"), (0, r"an older oncemore \(format 0.*Use that version")],
)
def test_a_store_of_another_version_is_refused(tmp_path, version, said):
    DiskStore(tmp_path).close()
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        connection.execute("UPDATE Settings SET value = ? WHERE key = 'oncemore_format'", (version,))
    connection.close()
    with pytest.raises(StoreError, match=said):
        DiskStore(tmp_path)


def test_a_place_that_cannot_be_a_directory_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere/store"), tmp_path / ("x" * 300)):
        with pytest.raises(StoreError, match="could not open the store") as caught:
            DiskStore(path)
        assert str(path) in str(caught.value)


def test_a_store_deleted_while_open_starts_fresh_and_keeps_what_follows(tmp_path):
    store = open_store(tmp_path / "s")
    store.commit(put={"old": [b"1"]})
    shutil.rmtree(tmp_path / "s")
    assert open_store(tmp_path / "s") is store
    assert store.get("old") is None
    shutil.rmtree(tmp_path / "s")
    time.sleep(0.06)
    assert store.commit(put={"new": [b"2" * 50_000]})
    store.close()
    assert bytes_of(DiskStore(tmp_path / "s"), "new") == b"2" * 50_000


def test_a_deleted_database_is_said_aloud_and_its_journal_does_not_come_back(tmp_path):
    store = DiskStore(tmp_path / "s")
    store.commit(put={"old": [b"1"]})
    assert (tmp_path / "s" / "cache.db-wal").stat().st_size
    journal = (tmp_path / "s" / "cache.db-wal").read_bytes()
    store.close()
    (tmp_path / "s" / "cache.db").unlink()
    (tmp_path / "s" / "cache.db-wal").write_bytes(journal)
    with pytest.warns(CheckpointWarning, match="starts empty"):
        fresh = DiskStore(tmp_path / "s")
    assert list(fresh.scan("")) == []
    assert fresh.commit(put={"new": [b"1"]})


def test_importing_the_contract_loads_neither_database_nor_hash():
    code = "import sys, oncemore.stores; print(sorted({'diskcache', 'sqlite3', 'blake3'} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout in ("[]\n", "['blake3']\n")


THIRD_PARTY = """
from oncemore.stores.memory import MemoryStore

asked = []

def open_url(url):
    return MemoryStore(f"third party {url}")

def exists(url):
    asked.append(url)
    return url.endswith("there")
"""


@pytest.fixture
def third_party(tmp_path, monkeypatch):
    """An installed package that registers the scheme `shelf`."""
    site = tmp_path / "site"
    info = site / "shelf_store-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf-store\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[oncemore.stores]\nshelf = shelf_store:open_url\n")
    (site / "shelf_store.py").write_text(THIRD_PARTY)
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("shelf_store", None)


def test_another_package_registers_a_scheme_for_its_stores(third_party):
    store = open_store("shelf://one")
    store.commit(put={"a": [b"1"]})
    assert open_store("SHELF://one").get("a") is None  # the URL is the package's own
    assert open_store("shelf://one").get("a") == b"1"
    assert [store_exists(f"shelf://{name}") for name in ("here", "there")] == [False, True]
    with pytest.raises(UsageError, match="known: disk:, memory:, shelf:"):
        open_store("ftp://x")


def test_a_scheme_is_looked_up_in_other_packages_only_if_it_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_registered", lambda: pytest.fail("looked up"))
    open_store(tmp_path / "s")
    open_store(f"disk://{tmp_path}/other")
    open_store("memory://ours")


def test_asking_whether_a_store_exists_makes_nothing(tmp_path):
    assert not store_exists(tmp_path / "s")
    assert not store_exists(f"disk://{tmp_path}/a/b")
    assert os.listdir(tmp_path) == []
    open_store(tmp_path / "s")
    assert store_exists(tmp_path / "s")


def test_a_creation_that_was_killed_is_not_taken_for_a_deleted_database(tmp_path, recwarn):
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / "cache.db.new-0123").write_bytes(b"half")
    DiskStore(tmp_path).commit(put={"a": [b"1"]})
    assert not [each for each in recwarn if issubclass(each.category, CheckpointWarning)]


def test_a_gitignore_of_somebody_else_is_no_sign_of_an_earlier_store(tmp_path, recwarn):
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    DiskStore(tmp_path).commit(put={"a": [b"1"]})
    assert (tmp_path / ".gitignore").read_text() == "*.pyc\n"
    assert not [each for each in recwarn if issubclass(each.category, CheckpointWarning)]
