"""The store as it grows: beside half a million nodes a call should cost what it does beside a thousand."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oncemore import History, checkpoint_scope, checkpointed, open_store

from .harness import OURS, Bench, Contender, Seconds, Task, bodies, body, clock

SMALL = 1_000
BIG = "oncemore, large store"
CALLS = 200
step = checkpointed(body)


_DIGITS = re.compile("[0-9a-f]{16,}")


def _fill(folder: Path, nodes: int) -> Path:
    """A store with the entries of so many nodes of other runs: copies of a small run's, under keys with other hex digits.

    Digits that several keys share, such as a run's, are shared by the copies of 10,000 nodes.
    """
    with checkpoint_scope("model", store=folder):
        for number in range(10):
            step(number)
    store = open_store(folder)
    model = [(key, [bytes(data)]) for key, data in store.scan("") if data is not None]
    seen = Counter(digits for key, _ in model for digits in _DIGITS.findall(key))
    shared: dict[str, str] = {}

    def other(found: re.Match[str]) -> str:
        return shared.get(found[0]) or _other(found[0])

    for start in range(0, nodes // 10, 1000):
        shared.update((digits, _other(digits)) for digits, times in seen.items() if times > 1)
        copies = range(start, min(start + 1000, nodes // 10))
        store.commit(put={_DIGITS.sub(other, key): data for _ in copies for key, data in model})
    return folder


def _other(digits: str) -> str:
    return os.urandom(len(digits)).hex()[: len(digits)]


def _stores(bench: Bench) -> tuple[int, dict[str, Path]]:
    nodes = bench.size(500_000, 20_000)
    return nodes, {OURS: _fill(bench.folder / "small", SMALL), BIG: _fill(bench.folder / "large", nodes)}


def _both(
    name: str, bench: Bench, work: Callable[[Path, int], Seconds], per: int, before: Any = None, unit: str = "us"
) -> Task:
    nodes, stores = _stores(bench)

    def contender(name: str, folder: Path) -> Contender:
        first = (lambda number: before(folder, number)) if before else (lambda number: None)
        return Contender(name, lambda number: work(folder, number), per, first)

    return Task(
        f"{name} in a store of {nodes:,} nodes, beside one of {SMALL:,}",
        [contender(name, folder) for name, folder in stores.items()],
        unit=unit,
    )


def _calls(folder: Path, run: str) -> Seconds:
    with checkpoint_scope(run, store=folder):
        start = clock()
        for number in range(CALLS):
            step(number)
        return clock() - start


def hit(bench: Bench) -> Task:
    def before(folder: Path, number: int) -> None:
        _calls(folder, "hits")
        bodies()

    def work(folder: Path, number: int) -> Seconds:
        took = _calls(folder, "hits")
        assert not bodies()
        return took

    return _both("hit", bench, work, CALLS, before)


def miss(bench: Bench) -> Task:
    return _both("miss", bench, lambda folder, number: _calls(folder, f"misses {number}"), CALLS)


def opening(bench: Bench) -> Task:
    def work(folder: Path, number: int) -> Seconds:
        open_store(folder).close()
        gc.collect()
        start = clock()
        with checkpoint_scope("opened", store=folder):
            return clock() - start

    return _both("open", bench, work, 1)


def listing(bench: Bench) -> Task:
    nodes = bench.size(10_000, 500)

    def before(folder: Path, number: int) -> None:
        if not number:
            with checkpoint_scope("listed", store=folder):
                for at in range(nodes):
                    step(at)

    def work(folder: Path, number: int) -> Seconds:
        start = clock()
        assert len(list(History(folder).run("listed").checkpoints)) == nodes
        return clock() - start

    return _both(f"list a run of {nodes:,} nodes", bench, work, 1, before, "ms")


TASKS = {"hit": hit, "miss": miss, "opening": opening, "listing": listing}
