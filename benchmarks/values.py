"""Large values: written and read back through a whole call of a step, and as plain files."""

from __future__ import annotations

import os
from collections.abc import Callable
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


def write_incompressible(bench: Bench) -> Task:
    value = stash.value = _array(bench)  # type: ignore[attr-defined]
    store = bench.folder / "store"
    _write(store, "first")  # the store is open, the code known

    def work(number: int) -> None:
        _write(store, f"run {number}")

    memory = peak_beyond(lambda: _write(store, "memory"), value.nbytes)
    goals = [Goal(1.0, "joblib.dump", "no slower than joblib's uncompressed dump")]
    return Task(
        f"write an incompressible array of {value.nbytes // 10**6} MB",
        [Contender(OURS, work, after=lambda number: _remove(store)), *_files(bench.folder, value)],
        goals + ([Goal(0.05, text="extra peak memory at most 0.05 x", known=memory)] if memory is not None else []),
        unit="ms",
    )


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


def _compressible(bench: Bench, kind: str) -> Task:
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
            Goal(1.0, text="no larger than zstandard level 1", known=size / plain),
        ],
        unit="ms",
        note=f"Stored: {size / value.nbytes:.3f} of the value's size; zstandard level 1: {plain / value.nbytes:.3f}.",
    )


def write_sorted(bench: Bench) -> Task:
    return _compressible(bench, "sorted ints")


def write_times(bench: Bench) -> Task:
    return _compressible(bench, "times")


def write_labels(bench: Bench) -> Task:
    return _compressible(bench, "labels")


def write_signal(bench: Bench) -> Task:
    return _compressible(bench, "a signal")


def write_prices(bench: Bench) -> Task:
    return _compressible(bench, "prices")


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
    goals = [Goal(1.7, "joblib.load", "at most 1.7 x joblib's load, which verifies nothing")]
    return Task(
        f"read back {size // 10**6} MB",
        [
            contender(OURS, ours),
            contender("plain file", into, limit=True),
            contender("numpy.load", lambda: np.load(saved)),
            contender("joblib.load", lambda: joblib.load(dumped)),
        ],
        goals + ([Goal(1.05, text="peak memory at most 1.05 x", known=memory)] if memory is not None else []),
        unit="ms",
        note="From the page cache; a whole hit, scope included, signature verified.",
    )


TASKS = [write_incompressible, write_sorted, write_times, write_labels, write_signal, write_prices, read_back]
