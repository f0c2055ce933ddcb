"""What a miss consists of, beside a `set` of diskcache: `python -m benchmarks.pieces`.

Functions along the way are wrapped, so that all of it takes a little longer than it does otherwise. Misses and sets take turns;
the first quartile of each piece is told, in microseconds, without the pieces inside it.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import diskcache

from oncemore import calls, checkpoint_scope, checkpointed, flight, quick, runs, shelf
from oncemore.stores.disk import DiskStore
from oncemore.stores.transaction import Change

PIECES: list[tuple[str, Any, str]] = [
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
    ("transaction", Change, "apply"),
    ("around the transaction", DiskStore, "commit"),
    ("what is to be kept, put together", runs.Run, "record"),
    ("lock given back", flight.Seat, "release"),
]
ROUNDS, CALLS = 200, 10


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


def main() -> None:
    pieces, found = Pieces(), defaultdict[str, list[float]](list)
    for label, owner, name in PIECES:
        setattr(owner, name, pieces.timed(label, getattr(owner, name)))
    miss = pieces.timed("between them", step)
    with tempfile.TemporaryDirectory() as folder, checkpoint_scope("pieces", store=f"{folder}/ours", quiet=True):
        put = pieces.timed("diskcache set", diskcache.Cache(f"{folder}/theirs", eviction_policy="none").set)
        for number in range(ROUNDS):
            pieces.taken.clear()
            for call in range(number * CALLS, (number + 1) * CALLS):
                miss(call)
                put(str(call), call)
            for label, seconds in pieces.taken.items():
                found[label].append(seconds / CALLS * 1e6)
    quartile = {label: sorted(each)[len(each) // 4] for label, each in found.items()}
    bare = quartile.pop("diskcache set")
    for label, each in sorted(quartile.items(), key=lambda pair: -pair[1]):
        print(f"{each:7.1f}  {label}")
    print(
        f"{sum(quartile.values()):7.1f}  all of it: {sum(quartile.values()) / bare:.1f} x a set of diskcache, {bare:.1f}"
    )


if __name__ == "__main__":
    main()
