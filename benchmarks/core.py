"""The core's costs as ratios, in one interleaved run: hits and misses beside raw diskcache and joblib.Memory, identity beside
pickle and joblib.hash.

    python benchmarks/core.py [--json]

Needs joblib and numpy. Every contender does the same work in turn, again and again; the minimum and the median of the rounds
are shown, and how often the slowest is as fast as ours. Other load on the machine shows in the distance between the two.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import diskcache
import joblib
import numpy as np
from blake3 import blake3

from oncemore import checkpoint_scope, checkpointed
from oncemore.fingerprint.values import digest

CALLS, ROUNDS = 500, 7


@checkpointed
def step(number: int) -> int:
    return number


def plain(number: int) -> int:
    return number


def measure(contenders: dict[str, Callable[[int], object]], per: int) -> dict[str, dict[str, float]]:
    """Microseconds per call: each contender in turn, `ROUNDS` times; the argument is the number of the round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(ROUNDS):
        for name, work in contenders.items():
            start = time.perf_counter()
            work(number)
            times[name].append((time.perf_counter() - start) / per * 1e6)
    return {name: {"min": min(taken), "median": statistics.median(taken)} for name, taken in times.items()}


def calls(folder: str) -> dict[str, dict[str, dict[str, float]]]:
    cache = diskcache.Cache(os.path.join(folder, "diskcache"), eviction_policy="none")
    memory = joblib.Memory(os.path.join(folder, "joblib"), verbose=0).cache(plain)
    memoized = cache.memoize()(plain)
    store = os.path.join(folder, "store")

    def ours(run: str, first: int) -> None:
        with checkpoint_scope(run, store=store):
            for number in range(first, first + CALLS):
                step(number)

    def each(work: Callable[[int], object]) -> Callable[[int], None]:
        return lambda first: [work(number) for number in range(first * CALLS, (first + 1) * CALLS)] and None

    misses = measure(
        {
            "oncemore": lambda number: ours(f"run {number}", 0),
            "diskcache set": each(lambda number: cache.set(("raw", number), number)),
            "diskcache.memoize": each(memoized),
            "joblib.Memory": each(memory),
        },
        CALLS,
    )
    hits = measure(
        {
            "oncemore": lambda number: ours(f"run {number}", 0),
            "diskcache get": each(lambda number: cache.get(("raw", number))),
            "diskcache.memoize": each(memoized),
            "joblib.Memory": each(memory),
        },
        CALLS,
    )
    return {"miss, tiny result": misses, "hit in a resumed run, scope included": hits}


def identities() -> dict[str, dict[str, dict[str, float]]]:
    rows = [{"name": f"n{i}", "values": [i, i / 2, None], "pair": (i, "x")} for i in range(50_000)]
    array = np.random.default_rng(1).integers(0, 1 << 60, 4_000_000)
    nested = {"oncemore": digest, "pickle.dumps": pickle.dumps, "joblib.hash": joblib.hash}
    arrays = {"oncemore": digest, "raw BLAKE3": lambda a: blake3(a.data.cast("B")).digest(), "joblib.hash": joblib.hash}
    return {
        "identity of 400,000 small objects": measure({n: lambda _, f=f: f(rows) for n, f in nested.items()}, 1),
        "identity of a 32 MB array": measure({n: lambda _, f=f: f(array) for n, f in arrays.items()}, 1),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = {**calls(folder), **identities()}
    if "--json" in sys.argv:
        print(json.dumps(results, indent=1))
        return
    for task, contenders in results.items():
        print(f"\n{task}")
        ours = contenders["oncemore"]["min"]
        for name, taken in contenders.items():
            print(
                f"  {name:20} {taken['min']:12.1f} us  median {taken['median']:12.1f}  {taken['min'] / ours:7.2f} x ours"
            )


if __name__ == "__main__":
    main()
