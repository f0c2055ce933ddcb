"""Value files: written and read as they are, into memory of the reader's own."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from oncemore.stores.cache import INLINE, BytesDisk, Row
from oncemore.stores.disk import DiskStore

RNG = random.Random(1)


def fetched(disk: BytesDisk, row: Row) -> memoryview:
    _, mode, filename, value = row
    return memoryview(disk.fetch(mode, filename, value, False))


@pytest.mark.parametrize("size", [INLINE, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (1 << 23) + 4097])
def test_a_value_file_is_read_as_it_was_written(size: int, tmp_path: Path) -> None:
    disk, data = BytesDisk(str(tmp_path)), RNG.randbytes(size)
    row = disk.prepare([data[:37], data[37:]])
    assert disk.complete(row[2])
    assert (tmp_path / str(row[2])).read_bytes() == data
    found = fetched(disk, row)
    assert bytes(found) == data
    assert not found.readonly


def test_what_was_read_stays_as_it_is_whatever_happens_to_the_file(tmp_path: Path) -> None:
    disk, data = BytesDisk(str(tmp_path)), RNG.randbytes(3_000_000)
    row = disk.prepare([data])
    found = fetched(disk, row)
    with open(tmp_path / str(row[2]), "r+b") as file:
        file.write(bytes(len(data)))
    assert bytes(found) == data
    (tmp_path / "cache.db").touch()  # diskcache removes all folders that become empty
    disk.discard([str(row[2])])
    assert bytes(found) == data
    assert os.listdir(tmp_path) == ["cache.db"]


def test_any_number_of_values_is_held_without_open_files(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.commit(put={"a": [bytes(1 << 20)]})
    before = len(os.listdir("/proc/self/fd"))
    values = [store.get("a") for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    del values


def test_writers_and_removers_of_one_folder_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever removes the last file of a folder removes the folder, maybe just before another writes there."""
    disk, made = BytesDisk(str(tmp_path)), os.mkdir

    def removed_at_once(path: str, mode: int = 0o777) -> None:
        made(path, mode)
        if len(removed) < 3:
            removed.append(path)
            os.rmdir(path)

    removed: list[str] = []
    monkeypatch.setattr(os, "mkdir", removed_at_once)
    row = disk.prepare([bytes(INLINE)])
    assert disk.complete(row[2])
    assert len(removed) == 3
