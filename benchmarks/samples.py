"""Arguments as users pass them, for the benchmarks and for the guard. Knows nothing of oncemore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd


@dataclass
class Settings:
    seed: int
    name: str = "baseline"
    rate: float = 0.1
    rounds: int = 100
    columns: list[str] = field(default_factory=lambda: ["age", "income", "region"])
    limits: dict[str, float] = field(default_factory=lambda: {"low": 0.0, "high": 1.0})


def record(number: int) -> dict[str, Any]:
    """A dict of 10 keys."""
    return {
        "id": number,
        "name": f"record {number}",
        "price": number / 7,
        "active": True,
        "note": None,
        "tags": ["a", "b"],
        "size": (3, 4),
        "owner": "someone",
        "currency": "EUR",
        "weight": 12.5,
    }


def array(number: int) -> Any:
    """1 MB of floats that do not compress."""
    return np.random.default_rng(number).random(125_000)


def frame(number: int) -> Any:
    """10,000 rows of five numeric columns."""
    random = np.random.default_rng(number)
    ints = {f"i{column}": random.integers(0, 1 << 40, 10_000) for column in range(2)}
    return pd.DataFrame({**ints, **{f"f{column}": random.random(10_000) for column in range(3)}})


# Each makes the argument of that number: equal for equal numbers, different for different ones.
KINDS: dict[str, Callable[[int], Any]] = {
    "scalar": lambda number: number,
    "dict": record,
    "list": lambda number: [number, *(f"item {at}" for at in range(9))],
    "long list": lambda number: [number, *(f"item {at}" for at in range(999))],
    "dataclass": Settings,
    "array": array,
    "frame": frame,
}


class Tree:
    """A decision tree as libraries keep it: a few small arrays."""

    def __init__(self, random: Any, nodes: int = 63) -> None:
        self.feature = random.integers(0, 30, nodes)
        self.threshold = random.random(nodes)
        self.left = random.integers(0, nodes, nodes)
        self.right = random.integers(0, nodes, nodes)
        self.value = random.random((nodes, 1))


class Forest:
    """A model of many trees."""

    def __init__(self, seed: int, trees: int = 1200) -> None:
        random = np.random.default_rng(seed)
        self.seed, self.depth, self.names = seed, 6, [f"feature {at}" for at in range(30)]
        self.trees = [Tree(random) for _ in range(trees)]
