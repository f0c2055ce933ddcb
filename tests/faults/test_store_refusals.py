"""Full, read-only, limited and locked: a clear error for the commit, and everything stored before stays readable."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from oncemore.errors import CheckpointWarning, StoreError, StoreUnavailable
from oncemore.stores import cache, locks
from oncemore.stores.disk import DiskStore
from oncemore.testing import bytes_of, in_fork


def mount(*arguments: str) -> bool:
    if shutil.which("mount") is None or os.getuid() != 0:
        return False
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    """A disk of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)):
        pytest.skip("cannot mount here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(store: DiskStore, size: int) -> tuple[dict[str, bytes], str]:
    """Commit until the disk is full; what was acknowledged, and the error."""
    kept: dict[str, bytes] = {}
    for number in range(10_000):
        value = b"%04d" % number * (size // 4)
        try:
            store.commit(put={f"k{number:04}": [value]}, append={"log/": [b"e"]})
        except StoreError as error:
            return kept, str(error)
        kept[f"k{number:04}"] = value
    raise AssertionError("the disk never filled")


def fill_completely(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def check_kept(store: DiskStore, kept: dict[str, bytes]) -> None:
    assert {key: bytes(value or b"") for key, value in store.scan("k")} == kept
    assert len(list(store.scan("log/"))) == len(kept)


@pytest.mark.parametrize("size", [400, 20_000, 100_000])
def test_a_full_disk_refuses_the_commit_and_keeps_what_was_there(small_disk, size):
    store = DiskStore(small_disk / "s")
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1_000_000))
    kept, error = fill(store, size)
    assert error.startswith(f"could not write to the store {store.path}: ")
    assert "full" in error
    check_kept(store, kept)
    store.close()
    check_kept(DiskStore(small_disk / "s"), kept)
    filler.unlink()
    assert store.commit(put={"k9999": [b"room again"]}, append={"log/": [b"e"]})
    check_kept(store, kept | {"k9999": b"room again"})
    assert store.maintain(older_than=-1).orphans_removed == 0


def test_a_store_can_be_read_on_a_disk_without_room_for_a_journal(small_disk):
    store = DiskStore(small_disk / "s")
    store.commit(put={"small": [b"1"], "large": [b"2" * 50_000]})
    store.close()
    filler = fill_completely(small_disk)
    opened = DiskStore(small_disk / "s")
    assert bytes_of(opened, "small") == b"1"
    assert bytes_of(opened, "large") == b"2" * 50_000
    with pytest.raises(StoreError, match="could not"):
        opened.commit(put={"more": [b"3"]})
    filler.unlink()
    assert opened.commit(put={"more": [b"3"]})
    assert bytes_of(DiskStore(small_disk / "s"), "more") == b"3"


def test_a_store_on_a_full_disk_cannot_be_made_and_says_so(small_disk):
    filler = fill_completely(small_disk)
    with pytest.raises(StoreError, match=str(small_disk / "s")):
        DiskStore(small_disk / "s")
    filler.unlink()
    assert DiskStore(small_disk / "s").commit(put={"a": [b"1"]})


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_a_read_only_disk_can_be_read_and_says_what_it_is(small_disk, killed):
    def write() -> int:
        store = DiskStore(small_disk / "s")
        store.commit(put={"small": [b"1"], "large": [b"2" * 50_000]})
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        store.close()
        return 0

    in_fork(write)
    assert (small_disk / "s" / "cache.db-wal").exists() == killed
    assert mount("-o", "remount,ro", str(small_disk))
    store = DiskStore(small_disk / "s")
    for _ in range(2):
        assert bytes_of(store, "small") == b"1"
        assert bytes_of(store, "large") == b"2" * 50_000
        assert [key for key, _ in store.scan("")] == ["large", "small"]
        with pytest.raises(StoreError, match="read-only"):
            store.commit(put={"a": [b"1"]})
        with pytest.raises(StoreError, match="read-only"):
            store.maintain()
        store.close()
    hold = store.hold("key")
    assert hold is not None
    assert store.hold("key") is None
    hold.release()
    with pytest.raises(StoreError, match="read-only"):
        DiskStore(small_disk / "another")
    assert mount("-o", "remount,rw", str(small_disk))
    assert store.commit(put={"a": [b"1"]})


def test_a_disk_that_becomes_read_only_refuses_and_recovers(small_disk):
    store = DiskStore(small_disk / "s")
    store.commit(put={"a": [b"1"]})
    store.close()
    assert mount("-o", "remount,ro", str(small_disk))
    assert store.get("a") == b"1"
    with pytest.raises(StoreError, match="read-only"):
        store.commit(put={"a": [b"2"]})
    assert store.get("a") == b"1"
    assert mount("-o", "remount,rw", str(small_disk))
    assert store.commit(put={"a": [b"3"]})
    assert store.get("a") == b"3"


def test_a_journal_that_cannot_be_read_is_said_aloud(small_disk):
    def write() -> int:
        store = DiskStore(small_disk / "s")
        store.commit(put={"early": [b"1"]})
        store.close()
        store.commit(put={"late": [b"2"]})
        os._exit(0)

    in_fork(write)
    (small_disk / "s" / "cache.db-shm").unlink()
    assert mount("-o", "remount,ro", str(small_disk))
    with pytest.warns(CheckpointWarning, match="latest entries are missing"):
        store = DiskStore(small_disk / "s")
    assert store.get("early") == b"1"
    assert store.get("late") is None


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_a_directory_without_permission_to_write_can_be_read():
    folder = tempfile.mkdtemp()
    try:
        store = DiskStore(Path(folder, "s"))
        store.commit(put={"small": [b"1"], "large": [b"2" * 50_000]})
        store.close()
        for place, folders, files in os.walk(folder, topdown=False):
            for name in [*folders, *files]:
                os.chown(os.path.join(place, name), 65534, 65534)
                os.chmod(os.path.join(place, name), 0o500)
        os.chmod(folder, 0o755)

        def nobody() -> int:
            os.setgid(65534)
            os.setuid(65534)
            opened = DiskStore(Path(folder, "s"))
            assert bytes_of(opened, "small") == b"1"
            assert bytes_of(opened, "large") == b"2" * 50_000
            assert opened.hold("key") is not None
            for attempt in (lambda: opened.commit(put={"a": [b"1"]}), lambda: DiskStore(Path(folder, "other"))):
                with pytest.raises(StoreError, match=r"read-only|permission"):
                    attempt()
            return 0

        assert in_fork(nobody) == 0
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
@pytest.mark.parametrize("shared", ["with root", "with a group"])
def test_a_store_that_users_share_has_files_that_each_of_them_can_use(shared: str) -> None:
    """As `sudo` once, then without it again; and as a folder of a team, whose database its group may write to."""
    owner, other, group = 1001, 0 if shared == "with root" else 1002, 2000
    folder = tempfile.mkdtemp()
    place = Path(folder, "s")

    def as_user(user: int, work: Callable[[DiskStore], object]) -> None:
        def child() -> int:
            os.umask(0o077)
            os.setgroups([group] if user else [])
            os.setgid(user)
            os.setuid(user)
            work(DiskStore(place))
            return 0

        assert in_fork(child) == 0

    def write(number: int) -> Callable[[DiskStore], object]:
        return lambda store: store.commit(put={f"{number}-{n}": [bytes([n]) * 50_000] for n in range(40)})

    def take_over(store: DiskStore) -> None:
        assert all(bytes_of(store, f"2-{n}") == bytes([n]) * 50_000 for n in range(40))
        assert store.commit(put={f"2-{n}": [b"3" * 60_000] for n in range(40)})
        assert store.hold("key") is not None

    try:
        os.chmod(folder, 0o755)
        place.mkdir()
        os.chown(place, owner, group)
        as_user(owner, write(1))
        if shared == "with a group":
            for path in [place, *place.rglob("*")]:
                os.chown(path, owner, group)
                os.chmod(path, 0o770 if path.is_dir() else 0o660)
        as_user(other, write(2))
        as_user(owner, take_over)
        as_user(other, lambda store: store.commit(delete=[f"{number}-{n}" for number in (1, 2) for n in range(40)]))
        assert list(place.rglob("*.val")) == []
        for path in place.rglob("*"):  # nobody else can read it
            assert not path.stat().st_mode & (0o077 if shared == "with root" else 0o007), path
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_a_lock_file_that_this_user_may_not_open_is_an_error_and_not_taken_for_free(tmp_path: Path) -> None:
    folder = tempfile.mkdtemp()
    try:
        DiskStore(Path(folder, "s")).commit(put={"a": [b"1"]})
        for path in [Path(folder), *Path(folder).rglob("*")]:
            os.chmod(path, 0o777 if path.is_dir() else 0o600 if path.name.endswith("-locks") else 0o666)

        def nobody() -> int:
            os.setgid(65534)
            os.setuid(65534)
            with pytest.raises(StoreError, match="could not lock a key of the store .*check its permissions"):
                DiskStore(Path(folder, "s")).hold("key")
            return 0

        assert in_fork(nobody) == 0
    finally:
        shutil.rmtree(folder)


def test_a_limit_on_file_sizes_refuses_the_commit_and_keeps_what_was_there(tmp_path):
    def limited() -> int:
        store = DiskStore(tmp_path / "s")
        store.commit(put={"before": [b"1" * 50_000]})
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        with pytest.raises(StoreError, match="ulimit"):
            store.commit(put={"before": [b"2"], "large": [b"x" * 400_000]})
        _, error = fill(store, 20_000)
        assert "could not write" in error
        assert bytes_of(store, "before") == b"1" * 50_000
        return 0

    assert in_fork(limited) == 0
    store = DiskStore(tmp_path / "s")
    assert bytes_of(store, "before") == b"1" * 50_000
    kept = [key for key, _ in store.scan("k")]
    assert kept
    assert all(bytes_of(store, key) == key[1:].encode() * 5000 for key in kept)
    assert store.maintain(older_than=-1).orphans_removed == 0


@pytest.mark.skipif(not locks.OWNED_BY_OPEN_FILES, reason="a process can't have a lock twice here")
def test_a_long_wait_for_another_writer_names_it_and_ends_for_all_threads(tmp_path, monkeypatch):
    clock = [0.0]  # what passes on it is what was slept
    monkeypatch.setattr(cache.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(cache.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    store = DiskStore(tmp_path)
    store.commit(put={"a": [b"1"]})
    other = locks.Guard(store._cache.path)  # with a descriptor of its own, as another process has
    other.hold()
    other.lock_writer(0.0, 0.0)
    try:
        with pytest.warns(CheckpointWarning, match=r"after 30 s: another process \(pid \d+\) is writing"):
            with pytest.raises(StoreUnavailable, match=r"another process \(pid \d+\) has been writing for 60 s"):
                store.commit(put={"b": [b"1"]})
        ended = clock[0]
        with pytest.raises(StoreUnavailable, match="for 60 s"):  # a thread that began to wait meanwhile
            store._cache._guard.lock_writer(ended - 61, cache.TIMEOUT)
        assert clock[0] == ended
    finally:
        other.unlock_writer()
        other.forget()
    assert store.commit(put={"b": [b"1"]})


def test_a_database_locked_for_too_long_is_a_clear_error_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "TIMEOUT", 0.1)
    store = DiskStore(tmp_path)
    store.commit(put={"a": [b"1"]})
    other = sqlite3.connect(tmp_path / "cache.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="another process has been writing"):
        store.commit(put={"b": [b"x" * 50_000]})
    assert store.get("a") == b"1"
    other.close()
    assert list(tmp_path.glob("??/??/*.val")) == []
    assert store.commit(put={"b": [b"2"]})
