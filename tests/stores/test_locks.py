"""Holding keys: what record locks need from us."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from oncemore.errors import HoldLost, IntegrityError, UsageError
from oncemore.stores import locks
from oncemore.stores.disk import DiskStore
from oncemore.stores.memory import MemoryStore
from oncemore.testing import finish, hold_forever, in_fork, in_threads, start


class _OneByte:
    """A hash under which all keys share one byte of the lock file."""

    def __init__(self, data: bytes) -> None:
        pass

    def digest(self, length: int) -> bytes:
        return bytes(length)


def test_two_keys_on_one_byte_are_held_apart_in_a_process(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "blake3", _OneByte)
    store = DiskStore(tmp_path)
    first, second = store.hold("a"), store.hold("b")
    assert first is not None
    assert second is not None
    assert store.hold("a") is None
    first.release()
    # The byte is still ours: a process that hashes as we do is kept out.
    assert in_fork(lambda: 7 if store.hold("c") is None else 0) == 7
    assert store.hold("b") is None
    second.release()
    assert in_fork(lambda: 0 if store.hold("c") else 7) == 0


def test_many_threads_get_a_key_once(tmp_path):
    store, got = DiskStore(tmp_path), []
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait()
        hold = store.hold("key")
        if hold is not None:
            got.append(hold)

    in_threads(8, work)
    assert len(got) == 1
    got[0].release()


def test_no_descriptor_stays_open_when_nothing_is_held(tmp_path):
    store = DiskStore(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    holds = [store.hold(f"key {number}") for number in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for hold in holds:
        assert hold is not None
        hold.release()
    assert len(os.listdir("/proc/self/fd")) == before


def test_being_refused_leaves_the_other_keys_held(tmp_path):
    store = DiskStore(tmp_path)
    holder = start((hold_forever, store, "theirs"))
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    mine = store.hold("mine")
    assert mine is not None
    assert store.hold("theirs") is None
    assert in_fork(lambda: 7 if store.hold("mine") is None else 0) == 7
    mine.release()
    assert store.hold("theirs") is None
    holder.kill()
    finish(holder)


def test_a_hold_of_the_parent_cannot_be_released_by_its_child(tmp_path):
    store = DiskStore(tmp_path)
    hold = store.hold("key")
    assert hold is not None

    def child() -> int:
        hold.release()
        return 7 if store.hold("key") is None else 0

    assert in_fork(child) == 7
    assert in_fork(child) == 7
    hold.release()
    assert in_fork(child) == 0


def test_a_child_that_outlives_its_parent_does_not_keep_its_holds(tmp_path):
    store = DiskStore(tmp_path)
    reader, writer = os.pipe()
    begun, begins = os.pipe()

    def parent() -> int:
        held = store.hold("key")
        assert held is not None
        if os.fork() == 0:
            os.write(begins, b"x")
            os.read(reader, 1)  # alive until the test is done
            os._exit(0)
        os.read(begun, 1)  # else the child may not even have begun to be one when its parent ends
        return 0

    assert in_fork(parent) == 0
    hold = store.hold("key")
    assert hold is not None
    hold.release()
    os.write(writer, b"x")
    for descriptor in (reader, writer, begun, begins):
        os.close(descriptor)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    path.rename(path.with_name("aside"))
    path.touch()


@pytest.mark.parametrize("lose", [delete, replace])
def test_a_hold_whose_file_is_gone_is_lost(tmp_path, lose):
    store = DiskStore(tmp_path)
    hold = store.hold("key")
    assert hold is not None
    lose(tmp_path / "cache.db-locks")
    with pytest.raises(HoldLost, match="'key'"):
        store.commit(put={"key": [b"x" * 50_000]}, under=hold)
    assert store.get("key") is None
    assert list(tmp_path.glob("??/??/*")) == []
    hold.release()
    again = store.hold("key")
    assert store.commit(put={"key": [b"1"]}, under=again)


@pytest.mark.parametrize("lose", [delete, replace])
def test_what_is_held_after_the_file_was_replaced_is_held_for_everybody(tmp_path, lose):
    store = DiskStore(tmp_path)
    stays = store.hold("stays")  # as long as its owner lives: the file is not closed meanwhile
    assert stays is not None
    lose(tmp_path / "cache.db-locks")
    hold = store.hold("key")
    assert hold is not None
    assert in_fork(lambda: 7 if store.hold("key") is None else 0) == 7
    assert store.commit(put={"key": [b"1"]}, under=hold)
    with pytest.raises(HoldLost, match="'stays'"):
        store.commit(put={"stays": [b"1"]}, under=stays)
    stays.release()


def test_a_hold_stays_when_the_script_reads_and_closes_the_lock_file(tmp_path):
    store = DiskStore(tmp_path)
    hold = store.hold("key")
    assert hold is not None
    (tmp_path / "cache.db-locks").read_bytes()  # closing any descriptor of a file drops the POSIX locks of the process
    assert in_fork(lambda: 7 if store.held(["key"]) == {"key"} and store.hold("key") is None else 0) == 7
    assert store.commit(put={"key": [b"1"]}, under=hold)


def test_a_forked_child_cannot_commit_under_a_hold_of_its_parent(tmp_path):
    store = DiskStore(tmp_path)
    hold = store.hold("key")
    assert hold is not None

    def child() -> int:
        with pytest.raises(HoldLost):
            store.commit(put={"key": [b"child"]}, under=hold)
        return 0

    assert in_fork(child) == 0
    assert store.commit(put={"key": [b"parent"]}, under=hold)


def test_a_hold_of_another_store_is_refused(tmp_path):
    store, other, memory = DiskStore(tmp_path / "a"), DiskStore(tmp_path / "b"), MemoryStore(str(tmp_path))
    for one, two in ((store, other), (store, memory), (memory, store)):
        hold = two.hold("key")
        with pytest.raises(UsageError, match="not a hold of this store"):
            one.commit(put={"key": [b"1"]}, under=hold)
        assert hold is not None
        hold.release()


def test_a_damaged_entry_does_not_keep_anyone_from_holding_its_key(tmp_path):
    store = DiskStore(tmp_path)
    store.commit(put={"key": [b"x" * 50_000]})
    (file,) = tmp_path.glob("??/??/*.val")
    file.write_bytes(b"cut short")
    hold = store.hold("key")
    assert hold is not None
    assert hold.entry is None
    with pytest.raises(IntegrityError):
        store.get("key")
    assert store.commit(put={"key": [b"healed"]}, under=hold)
    assert store.get("key") == b"healed"


def test_looking_at_what_is_held_makes_no_file_and_drops_no_lock(tmp_path):
    store = DiskStore(tmp_path)
    (tmp_path / "cache.db-locks").unlink()
    assert store.held(["key"]) == set()
    assert not (tmp_path / "cache.db-locks").exists()
    hold = store.hold("key")
    assert store.held(["key", "other"]) == {"key"}
    assert in_fork(lambda: 7 if store.held(["key", "other"]) == {"key"} else 0) == 7
    assert in_fork(lambda: 7 if store.hold("key") is None else 0) == 7
    assert hold is not None
    hold.release()
