"""Many bytes at once: hashed on several processors, used where they lie in a file, and the same as ever."""

from __future__ import annotations

import mmap
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from oncemore import bulk
from oncemore.bulk import Headed, allocate, hasher, mapped
from oncemore.codec import Decoded, encode
from oncemore.fingerprint.values import digest
from oncemore.stores.values import BytesDisk, Row, _fill
from tests.processes import Script

RNG = random.Random(1)
SIZES = [0, 1, (1 << 21) - 1, 1 << 21, (1 << 21) + 1, 1 << 22, (1 << 23) + 4097]


@pytest.mark.parametrize("size", SIZES)
def test_a_hash_is_the_same_on_however_many_processors(size: int) -> None:
    data, key = RNG.randbytes(size), RNG.randbytes(32)
    assert hasher(size).update(data).digest() == blake3(data).digest()
    assert hasher(size, key=key).update(data).digest() == blake3(data, key=key).digest()


@pytest.mark.parametrize("size", SIZES)
def test_memory_is_as_large_as_asked_for_and_writable(size: int) -> None:
    room = allocate(size)
    assert room.nbytes == size
    assert not any(room[:5000])
    room[:] = data = RNG.randbytes(size)
    assert bytes(room) == data


def test_a_child_has_its_own_copy_of_memory() -> None:
    room = allocate(1 << 22)
    child = os.fork()
    if not child:
        room[0] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert room[0] == 0


def test_a_forked_child_hashes_as_its_parent_did(script: Script) -> None:
    done = script(
        """
        import os, sys, warnings
        from oncemore.bulk import hasher
        warnings.simplefilter("ignore")
        data = bytes(1 << 23)
        hashes = [hasher(len(data)) for _ in range(2)]
        ours = hashes[0].update(data).digest()
        child = os.fork()
        if not child:
            os._exit(hasher(len(data)).update(data).digest() != ours)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert done.out.split() == ["0"]


def test_where_no_thread_can_be_had_it_is_done_without(script: Script) -> None:
    done = script(
        """
        import os, resource, threading
        from blake3 import blake3
        from oncemore.bulk import hasher
        if os.getuid() == 0:
            os.setuid(65534)  # the limit is not for everybody
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        try:
            threading.Thread(target=print).start()
        except RuntimeError:
            print("no threads")
        data = os.urandom(1 << 23)
        for _ in range(2):
            assert hasher(len(data)).update(data).digest() == blake3(data).digest()
        print("done")
        """
    )
    assert done.out.split("\n")[:2] == ["no threads", "done"], done.err


# --- value files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (1 << 23) + 4097])
def test_a_value_file_is_read_as_it_was_written(size: int, tmp_path: Path) -> None:
    disk, data = BytesDisk(str(tmp_path)), RNG.randbytes(size)
    row = disk.store([data[:37], data[37:]])
    assert disk.complete(row)
    found = fetched(disk, row)
    assert bytes(found) == data
    assert not memoryview(found).readonly


def test_what_is_written_to_a_mapped_value_reaches_neither_its_file_nor_who_else_reads_it(tmp_path: Path) -> None:
    disk, data = BytesDisk(str(tmp_path)), RNG.randbytes(1 << 21)
    row = disk.store(data)
    one, other = (memoryview(fetched(disk, row)) for _ in range(2))
    assert isinstance(one.obj, mmap.mmap)
    one[:5] = one[-5:] = b"mine!"
    assert bytes(other) == data == bytes(fetched(disk, row))


def test_only_a_file_that_nobody_writes_to_is_mapped(tmp_path: Path) -> None:
    disk, data = BytesDisk(str(tmp_path)), RNG.randbytes(1 << 21)
    row = disk.store(data)
    path = tmp_path / str(row[2])
    assert path.stat().st_mode & 0o777 == 0o400
    path.chmod(0o600)  # as an earlier oncemore made it
    found = memoryview(fetched(disk, row))
    assert bytes(found) == data
    assert found.obj not in bulk._maps


def test_a_mapped_value_stays_when_its_file_is_removed(tmp_path: Path) -> None:
    disk, data = BytesDisk(str(tmp_path)), RNG.randbytes(1 << 21)
    row = disk.store(data)
    found = fetched(disk, row)
    disk.remove(str(row[2]))
    assert bytes(found) == data


def test_any_number_of_values_can_be_held_with_few_descriptors(tmp_path: Path) -> None:
    disk = BytesDisk(str(tmp_path))
    row = disk.store(bytes(1 << 20))
    before = len(os.listdir("/proc/self/fd"))
    held = [fetched(disk, row) for _ in range(150)]
    assert len(os.listdir("/proc/self/fd")) - before <= 100
    del held
    assert len(os.listdir("/proc/self/fd")) == before
    assert isinstance(memoryview(fetched(disk, row)).obj, mmap.mmap)  # again


def test_a_file_that_is_shorter_than_said_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "value"
    path.write_bytes(bytes(1 << 20))
    with open(path, "rb") as file:
        os.truncate(path, 5000)
        assert mapped(file.fileno(), 1 << 20) is None
        assert not _fill(file.fileno(), allocate(1 << 20))


def test_on_a_file_system_that_is_not_known_to_be_local_values_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemore.stores.values.file_system", lambda path: "nfs4")
    disk, data = BytesDisk(str(tmp_path)), RNG.randbytes(1 << 21)
    found = memoryview(fetched(disk, disk.store(data)))
    assert bytes(found) == data
    assert found.obj not in bulk._maps


def headed(parts: int) -> Headed:
    body = [RNG.randbytes(1 << 20) for _ in range(parts)]
    return Headed(32, body, lambda body: blake3(b"".join(body)).digest())


@pytest.mark.parametrize("parts", [1, 3])
def test_pieces_whose_head_is_made_meanwhile_are_stored_as_if_it_had_been_there(parts: int, tmp_path: Path) -> None:
    disk, pieces = BytesDisk(str(tmp_path)), headed(parts)
    row = disk.store(pieces)
    assert bytes(fetched(disk, row)) == b"".join(pieces)
    assert (len(pieces), pieces[0], pieces[1:]) == (parts + 1, blake3(b"".join(pieces.body)).digest(), pieces.body)


def test_a_head_for_which_there_is_no_thread_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    disk, pieces = BytesDisk(str(tmp_path)), headed(2)
    assert bytes(fetched(disk, disk.store(pieces))) == b"".join(pieces)


def fetched(disk: BytesDisk, row: Row) -> bytes | bytearray | memoryview:
    size, mode, filename, value = row
    return disk.fetch(mode, filename, value, size=size)


# --- entries in mapped files ----------------------------------------------------------------------------------------

VALUES: dict[str, Callable[[], Any]] = {
    "an array": lambda: {"name": "x", "numbers": np.random.default_rng(1).integers(0, 1 << 62, 300_000)},
    "numbers that shrink": lambda: np.random.default_rng(1).integers(0, 1 << 40, 800_000),
    "a long pickle": lambda: [RNG.randbytes(5000) for _ in range(500)],
    "many arrays": lambda: [np.random.default_rng(n).integers(0, 1 << 62, 40) for n in range(5000)],
}


@pytest.mark.parametrize("name", VALUES)
def test_what_is_looked_into_is_what_was_verified_even_if_somebody_writes_to_the_file(
    name: str, tmp_path: Path
) -> None:
    disk, value, secret = BytesDisk(str(tmp_path)), VALUES[name](), RNG.randbytes(32)
    entry = encode(value, {"step": "s"}, key="k", secret=secret)
    row = disk.store(entry.frames)
    found = memoryview(fetched(disk, row))
    assert found.obj in bulk._maps
    decoded = Decoded(found, key="k", secret=secret)
    path = tmp_path / str(row[2])
    path.chmod(0o600)
    with open(path, "r+b") as file:  # in its place, as nobody should
        file.write(
            bytes((1 << 16) if name == "an array" else path.stat().st_size)
        )  # its content itself is where it lies
    assert decoded.meta == {"step": "s"}
    assert digest(decoded.load()) == digest(value)
