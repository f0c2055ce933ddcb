"""The size of a run is what it takes in the store: snapshots, items, events and files included."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, Iterator

import pytest

from oncemore import File, History, Run, checkpoint_scope, checkpointed, open_store
from oncemore.history.sizes import Sizes
from oncemore.records import read

MEGABYTE = 1_000_000


@checkpointed
def noise(seed: int) -> bytes:
    return random.Random(seed).randbytes(MEGABYTE)


@checkpointed
def noises(seed: int) -> Iterator[bytes]:
    for number in range(2):
        yield random.Random(seed + number).randbytes(MEGABYTE)


@checkpointed
def written(path: str) -> File:
    Path(path).write_bytes(random.Random(99).randbytes(2 * MEGABYTE))
    return File(path)


@checkpointed
def same(value: Any) -> Any:
    return value


def _loop(run: Run) -> None:
    run.state["seen"] = []
    for number in run.loop("numbers", range(3)):
        run.state["seen"].append(random.Random(number).randbytes(MEGABYTE))


KINDS = {
    "a result": lambda run, folder: noise(1),
    "the items of a generator": lambda run, folder: list(noises(2)),
    "a file": lambda run, folder: written(str(folder / "a.bin")),
    "the copy of a result": lambda run, folder: same([random.Random(5).randbytes(MEGABYTE)]),
    "a snapshot of the state": lambda run, folder: (
        run.state.update(x=random.Random(3).randbytes(MEGABYTE)),
        run.checkpoint("saved"),
    ),
    "the snapshot of a loop": lambda run, folder: _loop(run),
    "results before a rollback": lambda run, folder: (
        run.checkpoint("begin"),
        noise(7),
        run.rollback(to="begin"),
        noise(8),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_a_run_agrees_with_the_disk(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store"
    with checkpoint_scope("r", store=store) as run:
        KINDS[kind](run, tmp_path)
    open_store(store).maintain()  # type: ignore[attr-defined]
    (listed,) = History(store).runs()
    disk = sum(os.stat(path).st_size for path in store.rglob("*") if path.is_file() and path.suffix not in (".db-shm",))
    assert listed.bytes > 0.9 * MEGABYTE
    assert abs(disk - listed.bytes) < 0.05 * disk + 150_000, (disk, listed.bytes)


def test_what_runs_share_counts_for_each_that_recorded_it_and_not_for_forks(tmp_path: Path) -> None:
    with checkpoint_scope("a"):
        written(str(tmp_path / "a.bin"))
    with checkpoint_scope("b"):
        written(str(tmp_path / "b.bin"))
    history = History()
    history.fork("a", "c")
    sizes = {run.id: run.bytes for run in history.runs()}
    assert sizes["a"] > 2 * MEGABYTE and sizes["b"] > 2 * MEGABYTE
    assert sizes["c"] < 0.1 * MEGABYTE


def test_one_runs_size_does_not_contain_anothers() -> None:
    with checkpoint_scope("a"):
        noise(1)
    with checkpoint_scope("b"):
        same(1)
    store = History().store
    assert Sizes(store).of(read(store, "b")) < 0.1 * MEGABYTE < Sizes(store).of(read(store, "a"))
