"""What our calls consist of: `python -m benchmarks.pieces miss` beside a `set` of diskcache, `... pipeline` beside plain files.

Functions along the way are wrapped, so that all of it takes a little longer than it does otherwise. Both sides take turns;
the first quartile of each piece is told, without the pieces inside it.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diskcache
from blake3 import blake3

from oncemore import calls, checkpoint_scope, checkpointed, codec, flight, quick, runs, shelf
from oncemore.stores.cache import Cache
from oncemore.stores.disk import DiskStore

from .calls import fill_stash, produce
from .harness import stash

MISS: list[tuple[str, Any, str]] = [
    ("arguments bound and hashed, code looked at", quick, "recall"),
    ("lock of the operating system", DiskStore, "hold"),
    ("look once more", calls.Definition, "recall"),
    ("parts of the arguments, for explanations", calls.Definition, "parts"),
    ("surroundings before", calls.Scene, "__init__"),
    ("surroundings before", calls.Definition, "moment"),
    ("surroundings after", calls.Scene, "effects"),
    ("beginning noted", runs.Run, "begin"),
    ("pickle, metadata, signature", shelf.Shelf, "encode"),
    ("event and its signature", shelf.Shelf, "_appended"),
    ("transaction", Cache, "change"),
    ("around the transaction", DiskStore, "commit"),
    ("what is to be kept, put together", runs.Run, "record"),
    ("lock given back", flight.Seat, "release"),
]
PIPELINE: list[tuple[str, Any, str]] = [
    ("signatures", codec, "_mac"),
    ("rows and files read", DiskStore, "get"),
    ("unpickled", codec.Decoded, "load"),
]
REST = "between them"


class Pieces:
    """Time by piece, without what is inside it."""

    def __init__(self) -> None:
        self.taken: defaultdict[str, float] = defaultdict(float)
        self._inside = [0.0]

    def timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - start
                self.taken[label] += taken - self._inside.pop()
                self._inside[-1] += taken

        return wrapper


@checkpointed
def step(number: int) -> int:
    return number


def misses(pieces: Pieces, folder: Path) -> Iterator[int]:
    """Rounds of ten misses and ten sets; gives by how many to divide."""
    ours = pieces.timed(REST, step)
    put = pieces.timed("a set of diskcache", diskcache.Cache(str(folder / "theirs"), eviction_policy="none").set)
    with checkpoint_scope("pieces", store=folder / "ours", quiet=True):
        for number in range(2000):
            ours(number)
            put(str(number), number)
            if number % 10 == 9:
                yield 10


def reruns(pieces: Pieces, folder: Path) -> Iterator[int]:
    """Rounds of one re-run, and of what it could not do without."""
    steps = range(200)
    fill_stash(folder, len(steps))

    def rerun() -> None:
        with checkpoint_scope("pieces", store=folder / "ours", quiet=True):
            for at in steps:
                produce(at)

    def read(at: int) -> Any:
        return pickle.loads((folder / str(at)).read_bytes())

    def bare() -> None:
        for at in steps:
            read(at)

    def hashed(threads: int) -> None:
        for value in content:
            blake3(value, max_threads=threads)

    rerun()
    stash.values = None  # type: ignore[attr-defined]
    content = [memoryview(read(at)).cast("B") for at in steps]
    ours, plain = pieces.timed(REST, rerun), pieces.timed("plain files, unpickled", bare)
    alone, together = pieces.timed("BLAKE3, one processor", hashed), pieces.timed("BLAKE3, all processors", hashed)
    for _ in range(20):
        ours()
        plain()
        alone(1)
        together(blake3.AUTO)
        yield 1


def show(along: list[tuple[str, Any, str]], work: Callable[[Pieces, Path], Iterator[int]]) -> None:
    pieces, found = Pieces(), defaultdict[str, list[float]](list)
    for label, owner, name in along:
        setattr(owner, name, pieces.timed(label, getattr(owner, name)))
    with tempfile.TemporaryDirectory() as folder:
        for per in work(pieces, Path(folder)):
            for label, seconds in pieces.taken.items():
                found[label].append(seconds / per * 1e6)
            pieces.taken.clear()
    quartile = {label: sorted(each)[len(each) // 4] for label, each in found.items()}
    ours = {REST, *(label for label, _, _ in along)}
    for label in sorted(ours & quartile.keys(), key=lambda label: -quartile[label]):
        print(f"{quartile[label]:10,.1f} µs  {label}")
    print(f"{sum(quartile[label] for label in ours & quartile.keys()):10,.1f} µs  all of it\n")
    for label in quartile.keys() - ours:
        print(f"{quartile[label]:10,.1f} µs  {label}")


if __name__ == "__main__":
    asked = {"miss": (MISS, misses), "pipeline": (PIPELINE, reruns)}
    show(*asked[sys.argv[1] if len(sys.argv) > 1 else "miss"])
