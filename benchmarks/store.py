"""The store as it grows: a million nodes should cost what a thousand do."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oncemore import History, checkpoint_scope, checkpointed, open_store

from .harness import OURS, Bench, Contender, Goal, Task, bodies, body, clock

SMALL = 1_000
BIG = "oncemore, large store"
CALLS = 200
step = checkpointed(body)


def _fill(folder: Path, nodes: int) -> Path:
    """A store with so many nodes of other runs, each of the size that a small result has, and an event for each."""
    with checkpoint_scope("model", store=folder):
        step(0)
    store = open_store(folder)
    entry = bytes(next(data for key, data in store.scan("node/") if data is not None))
    for start in range(0, nodes, 10_000):
        home = os.urandom(8).hex()
        keys = [f"node/{home}/body/{os.urandom(16).hex()}.{'0' * 32}" for _ in range(min(10_000, nodes - start))]
        store.commit(put={key: [entry] for key in keys}, append={f"event/{home}/": [entry] * len(keys)})
    return folder


def _stores(bench: Bench) -> tuple[int, dict[str, Path]]:
    nodes = bench.size(1_000_000, 50_000)
    return nodes, {OURS: _fill(bench.folder / "small", SMALL), BIG: _fill(bench.folder / "large", nodes)}


def _both(
    name: str, bench: Bench, work: Callable[[Path, int], float], per: int, before: Any = None, unit: str = "us"
) -> Task:
    nodes, stores = _stores(bench)

    def contender(name: str, folder: Path) -> Contender:
        first = (lambda number: before(folder, number)) if before else (lambda number: None)
        return Contender(name, lambda number: work(folder, number), per, first)

    return Task(
        f"{name} in a store of {nodes:,} nodes, beside one of {SMALL:,}",
        [contender(name, folder) for name, folder in stores.items()],
        [Goal(1.3, OURS, "at most 1.3 x that of the small store", ours=BIG)],
        unit=unit,
    )


def _calls(folder: Path, run: str) -> float:
    with checkpoint_scope(run, store=folder):
        start = clock()
        for number in range(CALLS):
            step(number)
        return clock() - start


def hit(bench: Bench) -> Task:
    def before(folder: Path, number: int) -> None:
        _calls(folder, "hits")
        bodies()

    def work(folder: Path, number: int) -> float:
        took = _calls(folder, "hits")
        assert not bodies()
        return took

    return _both("hit", bench, work, CALLS, before)


def miss(bench: Bench) -> Task:
    return _both("miss", bench, lambda folder, number: _calls(folder, f"misses {number}"), CALLS)


def opening(bench: Bench) -> Task:
    def work(folder: Path, number: int) -> float:
        open_store(folder).close()
        gc.collect()
        start = clock()
        with checkpoint_scope("opened", store=folder):
            return clock() - start

    return _both("open", bench, work, 1)


def _make_run(folder: Path, nodes: int) -> None:
    with checkpoint_scope("victim", store=folder):
        for at in range(nodes):
            step(at)


def listing(bench: Bench) -> Task:
    nodes = bench.size(10_000, 500)
    made: set[Path] = set()

    def before(folder: Path, number: int) -> None:
        if folder not in made:
            _make_run(folder, nodes)
            made.add(folder)

    def work(folder: Path, number: int) -> float:
        start = clock()
        assert len(list(History(folder).run("victim").checkpoints)) == nodes
        return clock() - start

    return _both(f"list a run of {nodes:,} nodes", bench, work, 1, before, "ms")


def deleting(bench: Bench) -> Task:
    nodes = bench.size(10_000, 500)

    def work(folder: Path, number: int) -> float:
        start = clock()
        History(folder).delete("victim")
        return clock() - start

    task = _both(
        f"delete a run of {nodes:,} nodes", bench, work, 1, lambda folder, number: _make_run(folder, nodes), "ms"
    )
    task.contenders.append(_plain_delete(bench, nodes))
    task.goals.append(Goal(3.0, "plain SQL delete", "at most 3 x a plain SQL delete (our own measure)", ours=BIG))
    task.rounds = 3
    return task


def _plain_delete(bench: Bench, nodes: int) -> Contender:
    copy = bench.folder / "plain.db"

    def before(number: int) -> None:
        folder = bench.folder / "large"
        _make_run(folder, nodes)
        open_store(folder).close()
        shutil.copy(folder / "cache.db", copy)
        History(folder).delete("victim")

    def work(number: int) -> float:
        connection = sqlite3.connect(copy, isolation_level=None)
        ((home,),) = connection.execute(
            "SELECT substr(key, 1, 22) FROM Cache WHERE key >= 'node/' AND key < 'node0' GROUP BY 1 "
            "ORDER BY max(store_time) DESC LIMIT 1"
        )
        start = clock()
        for prefix in (home, home.replace("node", "event")):
            connection.execute("DELETE FROM Cache WHERE key >= ? AND key < ?", (prefix, f"{prefix[:-1]}0"))
        took = clock() - start
        connection.close()
        return took

    return Contender("plain SQL delete", work, before=before, limit=True)


TASKS = [hit, miss, opening, listing, deleting]
