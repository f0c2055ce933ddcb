"""A writer killed at any instant: the store opens again, and everything it acknowledged is there and whole."""

from __future__ import annotations

import os
import random
import signal
import struct
import time
from pathlib import Path

from oncemore.stores.disk import DiskStore

ROUNDS = 60
FRESH_EVERY = 6  # rounds, so that creating a store is interrupted too


def content(number: int) -> bytes:
    """Small, just inline, just a file, and large."""
    return struct.pack(">Q", number) * (1, 4000, 4096, 30_000)[number % 4]


def write_until_killed(path: Path, acknowledge: int) -> None:
    store = DiskStore(path)
    number = sum(1 for _ in store.scan("log/")) + 1
    while True:
        assert store.commit(
            put={f"entry/{number:08}": [content(number)], "head": [content(number)]},
            append={"log/": [struct.pack(">Q", number)]},
            delete=[f"entry/{number - 40:08}"],
        )
        os.write(acknowledge, struct.pack(">Q", number))
        number += 1


def kill_a_writer(path: Path, delay: float) -> list[int]:
    """The numbers that it acknowledged."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            write_until_killed(path, writer)
        finally:
            os._exit(1)
    os.close(writer)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    with open(reader, "rb") as file:
        data = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return [number for (number,) in struct.iter_unpack(">Q", data)]


def check(path: Path, acknowledged: int) -> int:
    """Look at the store as the next process would; the number of commits that it holds."""
    store = DiskStore(path)
    log = [(key, bytes(value or b"")) for key, value in store.scan("log/")]
    last = len(log)
    assert log == [(f"log/{number:016x}", struct.pack(">Q", number)) for number in range(1, last + 1)]
    assert acknowledged <= last <= acknowledged + 1
    entries = {key: bytes(value or b"") for key, value in store.scan("entry/")}
    kept = range(max(1, last - 39), last + 1)
    assert entries == {f"entry/{number:08}": content(number) for number in kept}
    head = store.get("head")
    assert (head is None) if last == 0 else (bytes(head or b"") == content(last))
    return last


def test_every_acknowledged_commit_survives_sigkill_and_no_half_one_is_seen(tmp_path):
    random_ = random.Random(2024)
    path, last = tmp_path, 0
    for turn in range(ROUNDS):
        if turn % FRESH_EVERY == 0:
            path, last = tmp_path / f"store {turn}", 0
            delay = random_.uniform(0, 0.015)
        else:
            delay = random_.uniform(0.001, 0.06)
        numbers = kill_a_writer(path, delay)
        assert numbers == list(range(last + 1, last + 1 + len(numbers)))
        last = check(path, last + len(numbers))
        if turn % FRESH_EVERY == FRESH_EVERY - 1:
            found = DiskStore(path).maintain(older_than=-1)
            assert found.damaged == []
            files = len(list(path.glob("??/??/*.val")))
            rows = [content(number) for number in range(max(1, last - 39), last + 1)] + [content(last)] * (last > 0)
            assert files == sum(len(value) >= 1 << 15 for value in rows)
            assert not [name for name in os.listdir(path) if ".new-" in name]
            check(path, last)


def test_a_writer_killed_in_its_transaction_blocks_nobody(tmp_path):
    store = DiskStore(tmp_path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        connection = store._cache._session().connection
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO Cache(key, raw, mode, value) VALUES ('half', 1, 1, x'00')")
        os.write(writer, b"x")
        time.sleep(60)
        os._exit(1)
    os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    began = time.monotonic()
    assert store.commit(put={"a": [b"1"]})
    assert time.monotonic() - began < 1
    assert [key for key, _ in store.scan("")] == ["a"]
