"""Stores in programs that fork, thread and interrupt."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time

import pytest

from oncemore.stores.disk import DiskStore
from oncemore.stores.memory import MemoryStore
from oncemore.testing import append_many, bytes_of, check_log, in_fork, in_threads


def test_forking_while_threads_commit_neither_hangs_nor_loses_anything(tmp_path):
    store, stop = DiskStore(tmp_path), threading.Event()
    counts = [0, 0, 0]

    def write(number: int) -> None:
        while not stop.is_set():
            store.commit(append={f"thread {number}/": [b"x" * (50_000 if counts[number] % 10 == 0 else 10)]})
            counts[number] += 1

    def child(number: int) -> int:
        signal.alarm(20)  # a child that hangs fails the test instead of stopping it
        append_many(store, f"child {number}", 3)
        return 0

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    codes = [in_fork(lambda number=number: child(number)) for number in range(12)]
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 12
    check_log(store, 12, 3)
    for number, count in enumerate(counts):
        keys = [key for key, _ in store.scan(f"thread {number}/")]
        assert keys == [f"thread {number}/{entry:016x}" for entry in range(1, count + 1)]
    assert store.maintain(older_than=0).orphans_removed == 0


def test_what_a_child_commits_after_its_parent_has_closed_and_gone_is_kept(tmp_path):
    reader, writer = os.pipe()

    def parent() -> int:
        store = DiskStore(tmp_path)
        store.commit(put={"parent": [b"1"]})
        if os.fork() == 0:
            while os.getppid() == started:  # until the parent is gone, and has closed as last of all it knew
                time.sleep(0.001)
            append_many(store, "orphan", 50)
            os.write(writer, b"done")
            os._exit(0)
        store.get("parent")
        store.close()
        return 0

    def parent_with_pid() -> int:
        nonlocal started
        started = os.getpid()
        return parent()

    started = 0
    assert in_fork(parent_with_pid) == 0
    assert os.read(reader, 4) == b"done"
    os.close(reader)
    os.close(writer)
    check_log(DiskStore(tmp_path), 1, 50)


def test_threads_read_while_others_replace_large_values(tmp_path):
    store = DiskStore(tmp_path)
    store.commit(put={"a": [b"0" * 40_000]})
    stop = threading.Event()

    def read_or_write(number: int) -> None:
        if number == 0:
            for turn in range(150):
                store.commit(put={"a": [b"%d" % (turn % 10) * (40_000 + turn)]})
            stop.set()
        while not stop.is_set():
            value = bytes_of(store, "a")
            assert value == value[:1] * len(value)

    in_threads(3, read_or_write)


def test_the_connections_of_ended_threads_are_closed(tmp_path):
    store = DiskStore(tmp_path)
    store.commit(put={"a": [b"1"]})
    counts = []
    for _ in range(6):
        in_threads(4, lambda _: store.get("a"))
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    # SQLite keeps a few descriptors for the next connection while one is open: closing them would drop its locks.
    assert max(counts) <= counts[0] + 4
    store.close()
    assert len(os.listdir("/proc/self/fd")) < counts[0]


def test_a_fork_gives_a_memory_store_that_works(tmp_path):
    store = MemoryStore(str(tmp_path))
    hold = store.hold("key")
    assert hold is not None
    assert in_fork(lambda: 0 if store.hold("key") and store.commit(put={"a": [b"1"]}) else 7) == 0
    assert store.get("a") is None
    assert store.hold("key") is None


class Interrupted(BaseException):
    pass


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_leaves_all_or_nothing(tmp_path):
    def interrupt(*_: object) -> None:
        raise Interrupted

    store, random_ = DiskStore(tmp_path), random.Random(1)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(300):
            size = 40_000 if number % 2 else 100
            try:
                signal.setitimer(signal.ITIMER_REAL, random_.uniform(1e-6, 300e-6))
                store.commit(
                    put={f"k{number}": [b"x" * size], "same": [b"%d" % number * size]}, append={"log/": [b"e"]}
                )
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                pass
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    other = DiskStore(tmp_path)
    kept = [key for key, value in other.scan("k") if bytes(value or b"") == b"x" * len(value or b"")]
    assert len(kept) == len(list(other.scan("log/")))
    assert 0 < len(kept)
    assert other.commit(put={"still": [b"writable"]})
    assert other.maintain(older_than=0).damaged == []
    in_threads(1, lambda _: store.close())  # no lock was left behind
