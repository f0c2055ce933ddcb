"""Large values: written and read back through a whole call of a step, and as plain files."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import zstandard

from oncemore import checkpoint_scope, checkpointed

from .harness import OURS, Bench, Contender, Goal, Task, peak_beyond, stash


@checkpointed
def produce(number: int) -> Any:
    return __import__("benchmarks_stash").value


def _write(store: Path, run: str) -> None:
    with checkpoint_scope(run, store=store):
        produce(0)


def _stored(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.val"))


def _array(bench: Bench) -> Any:
    return np.random.default_rng(1).integers(-(1 << 63), (1 << 63) - 1, bench.size(100_000_000, 20_000_000) // 8)


def _files(folder: Path, value: Any) -> list[Contender]:
    """Ways to write the value to a file, which is removed after each round."""

    def contender(name: str, write: Callable[[Path], object], limit: bool = False) -> Contender:
        path = folder / f"{name.replace('.', '-')}.npy"

        def work(number: int) -> None:
            write(path)

        return Contender(name, work, after=lambda number: path.unlink(), limit=limit)

    memory = joblib.Memory(folder / "memory", verbose=0).cache(produce.__wrapped__)

    def memorized(number: int) -> None:
        memory(number)

    return [
        contender("plain file", lambda path: path.write_bytes(memoryview(value).cast("B")), limit=True),
        contender("numpy.save", lambda path: np.save(path, value)),
        contender("joblib.dump", lambda path: joblib.dump(value, path)),
        Contender("joblib.Memory", memorized, after=lambda number: memory.clear(warn=False)),
    ]


def write_random(bench: Bench) -> Task:
    value = stash.value = _array(bench)  # type: ignore[attr-defined]
    store = bench.folder / "store"
    _write(store, "first")  # the store is open, the code known

    def work(number: int) -> None:
        _write(store, f"run {number}")

    memory = peak_beyond(lambda: _write(store, "memory"), value.nbytes)
    return Task(
        f"write an incompressible array of {value.nbytes // 10**6} MB",
        [Contender(OURS, work, after=lambda number: _remove(store)), *_files(bench.folder, value)],
        [Goal(1.0, "joblib.dump", "no slower than joblib's uncompressed dump")],
        unit="ms",
        note=_peak(memory),
    )


def _peak(memory: float | None) -> str:
    return "" if memory is None else f"Peak memory beyond what was there before: {memory:.2f} x the value."


def _remove(store: Path) -> None:
    """The value files: a hundred megabytes a round would fill the disk, and the page cache."""
    for path in store.rglob("*.val"):
        path.unlink()


KINDS: dict[str, Callable[[Any, int], Any]] = {
    "sorted ints": lambda random, count: np.sort(random.integers(0, 1 << 40, count)),
    "times": lambda random, count: np.cumsum(random.integers(0, 1 << 31, count)) + 1_700_000_000_000_000_000,
    "labels": lambda random, count: random.integers(0, 100, count),
    "a signal": lambda random, count: (np.sin(np.arange(2 * count) / 500) + random.normal(0, 0.01, 2 * count)).astype(
        "f4"
    ),
    "prices": lambda random, count: random.normal(100, 15, count).round(2),
}


def write_numbers(kind: str, bench: Bench) -> Task:
    count = bench.size(100_000_000, 20_000_000) // 8
    value = stash.value = KINDS[kind](np.random.default_rng(1), count)  # type: ignore[attr-defined]
    store = bench.folder / "store"
    _write(store, "first")
    _remove(store)

    def ours(number: int) -> None:
        _write(store, f"run {number}")

    def bare(number: int) -> None:
        zstandard.ZstdCompressor(level=1).compress(value)

    _write(store, "size")
    size, plain = _stored(store), len(zstandard.ZstdCompressor(level=1).compress(value))
    _remove(store)
    path, limit = bench.folder / "plain", "zstandard level 1"
    return Task(
        f"write {value.nbytes // 10**6} MB of {kind}",
        [
            Contender(OURS, ours, after=lambda number: _remove(store)),
            Contender(limit, bare, limit=True),
            Contender("plain file", lambda number: path.write_bytes(value) and None, limit=True),
            Contender("joblib.dump, zlib", lambda number: joblib.dump(value, path, compress=1) and None),
        ],
        [
            Goal(1 / 2, limit, "2 x faster than zstandard level 1 on the bare bytes"),
            Goal(1.0, text="stored at no more than the size by zstandard level 1", known=size / plain),
        ],
        unit="ms",
        note=f"Stored: {size / value.nbytes:.3f} of the value's size; zstandard level 1: {plain / value.nbytes:.3f}.",
    )


def read_back(bench: Bench) -> Task:
    value = stash.value = _array(bench)  # type: ignore[attr-defined]
    size = value.nbytes
    store, dumped, saved, plain = (bench.folder / name for name in ("store", "dumped", "saved.npy", "plain"))
    _write(store, "run")
    joblib.dump(value, dumped)
    np.save(saved, value)
    plain.write_bytes(value)
    del value
    stash.value = None  # type: ignore[attr-defined]

    def ours() -> Any:
        with checkpoint_scope("run", store=store):
            found = produce(0)
        assert found.nbytes == size
        return found

    def into() -> bytearray:
        with open(plain, "rb") as file:
            room = bytearray(os.fstat(file.fileno()).st_size)
            file.readinto(room)
        return room

    def contender(name: str, read: Callable[[], object], limit: bool = False) -> Contender:
        def work(number: int) -> None:
            read()

        return Contender(name, work, limit=limit)

    ours()
    memory = peak_beyond(ours, size)
    return Task(
        f"read back {size // 10**6} MB",
        [
            contender(OURS, ours),
            contender("plain file", into, limit=True),
            contender("numpy.load", lambda: np.load(saved)),
            contender("joblib.load", lambda: joblib.load(dumped)),
        ],
        [Goal(1.7, "joblib.load", "at most 1.7 x joblib's load")],
        unit="ms",
        note=f"From the page cache; a whole hit, scope included, signature verified. {_peak(memory)}",
    )


TASKS = {
    "write_random": write_random,
    **{f"write_{kind.split()[-1]}": partial(write_numbers, kind) for kind in KINDS},
    "read_back": read_back,
}
