"""Identity: what it costs to know a large argument again. Ours is a whole hit, of which identity is nearly all."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pandas as pd
from blake3 import blake3

from oncemore import checkpoint_scope, checkpointed

from .harness import OURS, Bench, Contender, Goal, Seconds, Task, clock

Way = Callable[[Any], object]


@checkpointed
def know(value: Any) -> None: ...


def _ways(bench: Bench, value: object, peers: dict[str, Way], limits: dict[str, Way]) -> list[Contender]:
    def ours(number: int) -> Seconds:
        with checkpoint_scope("identity", store=bench.folder):
            know(value)
            start = clock()
            know(value)
            return clock() - start

    def contender(name: str, way: Way, limit: bool) -> Contender:
        def work(number: int) -> None:
            way(value)

        return Contender(name, work, limit=limit)

    return [
        Contender(OURS, ours),
        *(contender(name, way, True) for name, way in limits.items()),
        *(contender(name, way, False) for name, way in peers.items()),
    ]


def _raw(array: Any) -> bytes:
    return blake3(memoryview(array).cast("B")).digest()


def small_objects(bench: Bench) -> Task:
    rows = bench.size(125_000, 12_500)  # eight objects each
    value = [{"name": f"n{i}", "values": [i, i / 2, None], "pair": (i, "x")} for i in range(rows)]
    return Task(
        f"identity of {8 * rows:,} small nested objects",
        _ways(bench, value, {"joblib.hash": joblib.hash}, {"pickle.dumps": pickle.dumps}),
        [Goal(1.0, "pickle.dumps")],
        unit="ms",
    )


def array(bench: Bench) -> Task:
    size = bench.size(100_000_000, 20_000_000)
    value = np.random.default_rng(1).random(size // 8)
    return Task(
        f"identity of a {size // 10**6} MB array",
        _ways(bench, value, {"joblib.hash": joblib.hash}, {"BLAKE3": _raw, "memory scan": lambda array: array.sum()}),
        [Goal(1.2, "BLAKE3")],
        unit="ms",
    )


def frame(bench: Bench) -> Task:
    rows = bench.size(2_500_000, 500_000)
    random = np.random.default_rng(1)
    value = pd.DataFrame(
        {
            **{f"i{n}": random.integers(0, 1 << 40, rows) for n in range(2)},
            **{f"f{n}": random.random(rows) for n in range(2)},
            "s": np.char.add("s", random.integers(0, 10**6, rows).astype(str)),
        }
    )
    size = int(value.memory_usage(deep=True).sum())
    return Task(
        f"identity of a {size // 10**6} MB DataFrame of ints, floats and strings",
        _ways(bench, value, {"joblib.hash": joblib.hash}, {"pickle.dumps": pickle.dumps}),
        [Goal(1 / 4, "joblib.hash", "4 x faster than joblib.hash")],
        unit="ms",
    )


TASKS = {"small_objects": small_objects, "array": array, "frame": frame}
