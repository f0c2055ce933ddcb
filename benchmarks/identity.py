"""Identity: what it costs to know a value again."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pandas as pd
from blake3 import blake3

from oncemore import checkpoint_scope, checkpointed
from oncemore.fingerprint.values import digest

from .harness import OURS, Bench, Contender, Goal, Task, clock

Way = Callable[[Any], object]


def _ways(value: object, peers: dict[str, Way], limits: dict[str, Way]) -> list[Contender]:
    def contender(name: str, way: Way, limit: bool) -> Contender:
        def work(number: int) -> None:
            way(value)

        return Contender(name, work, limit=limit)

    return [
        contender(OURS, digest, False),
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
        _ways(value, {"joblib.hash": joblib.hash}, {"pickle.dumps": pickle.dumps}),
        [Goal(1.0, "pickle.dumps"), Goal(1 / 25, "joblib.hash", "25 x faster than joblib.hash")],
        unit="ms",
    )


def array(bench: Bench) -> Task:
    size = bench.size(100_000_000, 20_000_000)
    value = np.random.default_rng(1).random(size // 8)
    return Task(
        f"identity of a {size // 10**6} MB array",
        _ways(value, {"joblib.hash": joblib.hash}, {"BLAKE3": _raw, "memory scan": lambda array: array.sum()}),
        [Goal(1.2, "BLAKE3"), Goal(1 / 4, "joblib.hash", "4 x faster than joblib.hash")],
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
        _ways(value, {"joblib.hash": joblib.hash}, {"pickle.dumps": pickle.dumps}),
        [Goal(1 / 4, "joblib.hash", "4 x faster than joblib.hash")],
        unit="ms",
    )


class _Tree:
    """What a library keeps of a decision tree: arrays, a few numbers, nested lists and dicts."""

    def __init__(self, number: int, nodes: int) -> None:
        random = np.random.default_rng(number)
        self.name, self.depth = f"tree{number}", 10 + number % 7
        self.feature = random.integers(0, 20, nodes)
        self.threshold = random.random(nodes)
        self.left, self.right = (random.integers(0, nodes, nodes).astype("i4") for _ in range(2))
        self.value = random.random((nodes, 2))
        self.options = {"criterion": "gini", "splits": [1, 2, 3], "range": {"low": 0.0, "high": 1.0}}
        self.history = [[0, 0.5], [1, 0.25], {"seed": number}]


class _Model:
    def __init__(self, trees: int) -> None:
        self.trees = [_Tree(number, 1050) for number in range(trees)]
        self.options = {"trees": trees, "weights": [0.5, 0.5]}


@checkpointed(code="version", version="1")
def _use(model: _Model, number: int) -> int:
    return number


def model(bench: Bench) -> Task:
    trees = bench.size(1200, 120)
    value, store = _Model(trees), bench.folder / "model"

    def call(number: int) -> float:
        """A call in a run of its own: the first of a number is a miss, the others are hits."""
        with checkpoint_scope("model", store=store):
            start = clock()
            _use(value, number)
            return clock() - start

    call(-1)
    walk, miss = "one walk", f"{OURS}, a miss"
    return Task(
        f"a hit with a model of {trees:,} trees as an argument",
        [
            Contender(OURS, lambda number: call(-1)),
            Contender(miss, call),
            *_ways(value, {"joblib.hash": joblib.hash}, {walk: digest})[1:],
        ],
        [
            Goal(1.1, walk, "at most 1.1 walks"),
            Goal(2.5, walk, "a miss takes at most 2.5 walks", ours=miss),
            Goal(1 / 2, "joblib.hash", "2 x faster than joblib.hash"),
        ],
        unit="ms",
    )


TASKS = [small_objects, array, frame, model]
