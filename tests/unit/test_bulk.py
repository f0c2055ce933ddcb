"""Many bytes at once: hashed on several processors, read by two threads, and the same as ever."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from blake3 import blake3

from oncemore.bulk import allocate, hasher
from oncemore.stores.values import BytesDisk, Row
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


def test_where_no_thread_can_be_had_it_is_done_without(script: Script, tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(RNG.randbytes(1 << 23))
    done = script(
        f"""
        import os, resource, threading
        from blake3 import blake3
        from oncemore.bulk import allocate, hasher
        from oncemore.stores.values import _fill_by_two
        file = os.open({str(tmp_path / "value")!r}, os.O_RDONLY)
        if os.getuid() == 0:
            os.setuid(65534)  # the limit is not for everybody
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        try:
            threading.Thread(target=print).start()
        except RuntimeError:
            print("no threads")
        room = allocate(os.fstat(file).st_size)
        assert _fill_by_two(file, room)
        assert bytes(room) == os.pread(file, 1 << 30, 0)
        for _ in range(2):
            assert hasher(room.nbytes).update(room).digest() == blake3(room).digest()
        print("done")
        """
    )
    assert done.out.split("\n")[:2] == ["no threads", "done"], done.err


# --- value files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 20, (1 << 23) - 1, 1 << 23, (1 << 23) + 1])
def test_a_value_file_is_read_as_it_was_written(size: int, tmp_path: Path) -> None:
    disk, data = BytesDisk(str(tmp_path)), RNG.randbytes(size)
    row = disk.store([data[:37], data[37:]])
    assert disk.complete(row)
    found = fetched(disk, row)
    assert bytes(found) == data
    assert not memoryview(found).readonly


@pytest.mark.parametrize("size", [1 << 20, 1 << 23])
@pytest.mark.parametrize("left", [0.0, 0.3, 0.7])
def test_a_value_file_that_is_cut_short_while_it_is_read_is_told(size: int, left: float, tmp_path: Path) -> None:
    from oncemore.stores.values import _fill, _fill_by_two

    path = tmp_path / "value"
    path.write_bytes(bytes(int(size * left)))
    with open(path, "rb") as file:
        assert not _fill(file.fileno(), allocate(size), 0, size)
        assert not _fill_by_two(file.fileno(), allocate(size))


def test_a_value_file_that_cannot_be_read_is_told_from_either_half(tmp_path: Path) -> None:
    from oncemore.stores.values import _fill_by_two

    with open(tmp_path / "value", "wb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        _fill_by_two(file.fileno(), allocate(1 << 23))  # not open for reading


def fetched(disk: BytesDisk, row: Row) -> bytes | bytearray | memoryview:
    size, mode, filename, value = row
    return disk.fetch(mode, filename, value, size=size)
