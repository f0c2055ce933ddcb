"""Calls of steps with tiny arguments and results: hits, misses, and what surrounds them."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diskcache
import numpy as np
import wrapt

from oncemore import checkpoint_scope, checkpointed, current_run, open_store

from .harness import OURS, Bench, Contender, Goal, Seconds, Task, bodies, body, clock, stash
from .peers import FLOWS, GET, JOBLIB, LIMITS, MEMOIZE, MEMOIZERS, Oncemore, OncemoreWithScope, among

step = checkpointed(body)


def rerun(bench: Bench) -> Task:
    calls = bench.size(10_000, 2_000)
    return Task(
        f"re-run of a finished run of {calls:,} small steps, per step",
        goals=[
            Goal(1.5, GET, "at most 1.5 x as many diskcache gets"),
            Goal(1 / 2, MEMOIZE, "2 x faster than diskcache.memoize"),
            Goal(1 / 10, JOBLIB, "10 x faster than joblib.Memory"),
        ],
        note="Opening and leaving the scope are in our time.",
        **among(bench, [OncemoreWithScope, *LIMITS, *MEMOIZERS, *FLOWS], calls, recorded=True),
    )


# -- misses, in new and in resumed runs


def miss(bench: Bench) -> Task:
    calls = bench.size(300, 100)
    everyone = among(bench, [Oncemore, *LIMITS, *MEMOIZERS, *FLOWS], calls, recorded=False)
    changed = checkpointed(version="2")(body)
    resumed = [
        _resumed(bench, f"{OURS}, run with {completed:,} nodes{suffix}", completed, calls, function)
        for completed, suffix, function in ((200, "", step), (5_000, "", step), (5_000, ", step changed", changed))
    ]
    everyone["contenders"][1:1] = resumed
    return Task(
        "miss, tiny, in a new run and in resumed runs",
        goals=[
            Goal(4.5, GET, "at most 4.5 x diskcache set", cpu=True),
            Goal(1 / 3, JOBLIB, "3 x faster than joblib.Memory"),
            *(Goal(1.3, OURS, "at most 1.3 x a new run's", ours=each.name, cpu=True) for each in resumed),
        ],
        note=(
            "A resumed run first recalls what it has completed, which is not timed, then makes new calls; or its step was "
            "changed, and the calls that it had completed are made anew."
        ),
        **everyone,
    )


def _resumed(bench: Bench, name: str, completed: int, calls: int, function: Callable[[int], int]) -> Contender:
    """Each round resumes the same run, in a copy of its store."""
    model, folder = bench.folder / name / "model", bench.folder / name / "copy"
    with checkpoint_scope("run", store=model):
        for number in range(completed):
            step(number)
    open_store(model).close()
    done = range(completed if function is step else 0)
    new = range(len(done), len(done) + calls)

    def before(number: int) -> None:
        shutil.copytree(model, folder / str(number))
        with checkpoint_scope("other", store=folder / str(number)):
            function(-1)  # the store is open and the code known

    def work(number: int) -> Seconds:
        with checkpoint_scope("run", store=folder / str(number)):
            bodies()
            for at in done:
                function(at)
            assert not bodies()
            start = clock()
            for at in new:
                function(at)
            return clock() - start

    def after(number: int) -> None:
        assert bodies() == calls
        open_store(folder / str(number)).close()
        shutil.rmtree(folder / str(number))

    return Contender(name, work, calls, before, after)


# -- misses beside a large state


@checkpointed
def append(number: int) -> int:
    run = current_run()
    assert run is not None
    run.state["items"].append(f"item {number}")
    return 1


def state(bench: Bench) -> Task:
    items, calls = bench.size(100_000, 20_000), bench.size(20, 5)

    def misses(store: Path, function: Callable[[int], int], size: int) -> tuple[Seconds, int]:
        """What so many misses beside a state of this size take, and how many bytes they leave in the store."""
        with checkpoint_scope("run", store=store) as run:
            if size or function is append:
                run.state["items"] = [f"item {at}" for at in range(size)]
            function(-1)
            before, start = _stored(store), clock()
            for number in range(calls):
                function(number)
            taken = clock() - start
            return taken, _stored(store) - before

    def contender(name: str, function: Callable[[int], int], size: int) -> Contender:
        store = bench.folder / name

        def work(number: int) -> Seconds:
            return misses(store / str(number), function, size)[0]

        def after(number: int) -> None:
            open_store(store / str(number)).close()
            shutil.rmtree(store / str(number))

        return Contender(name, work, calls, after=after)

    few, many = (misses(bench.folder / f"bytes {size}", append, size)[1] for size in (0, items))
    alone, appending = f"{OURS}, {items:,} items left alone", f"{OURS}, one appended to {items:,} items"
    return Task(
        f"miss, tiny, beside an empty state and beside one of {items:,} items",
        [
            contender(OURS, step, 0),
            contender(alone, step, items),
            contender(f"{OURS}, one appended to no items", append, 0),
            contender(appending, append, items),
        ],
        [
            Goal(1.5, OURS, "at most 1.5 x that beside an empty state", ours=alone, cpu=True),
            Goal(
                1.5,
                text="stored bytes at most 1.5 x those of one appended to no items",
                ours=appending,
                known=many / few,
                planned=True,
            ),
        ],
        note=f"Stored per item appended: {few / calls:,.0f} bytes with no items before, {many / calls:,.0f} with {items:,}.",
    )


def _stored(store: Path) -> int:
    return sum(len(data) for _, data in open_store(store).scan("") if data is not None)


# -- what surrounds them


class Through(wrapt.FunctionWrapper):
    """What wrapt itself costs, used as a step uses it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


def outside(bench: Bench) -> Task:
    """What the decorator costs where nothing is kept."""
    calls = 20_000  # soon over: minima find a calm moment

    def plain(function: Callable[[int], int]) -> Callable[[int], Seconds]:
        def work(number: int) -> Seconds:
            start = clock()
            for _ in range(calls):
                function(1)
            return clock() - start

        return work

    def disabled(number: int) -> Seconds:
        os.environ["ONCEMORE_DISABLE"] = "1"
        try:
            with checkpoint_scope("disabled", store=bench.folder):
                return plain(step)(number)
        finally:
            del os.environ["ONCEMORE_DISABLE"]

    return Task(
        "decorated call where nothing is kept",
        [
            Contender(OURS, plain(step), calls),
            Contender(f"{OURS}, ONCEMORE_DISABLE in a scope", disabled, calls),
            Contender("wrapt.FunctionWrapper", plain(Through(body, lambda *given: None)), calls, limit=True),
            Contender("bare call", plain(body), calls, limit=True),
        ],
    )


def awaited(bench: Bench) -> Task:
    """Coroutines, all at once, beside what an event loop needs to ask a disk for as much."""
    calls, asked = bench.size(1_000, 300), "diskcache gets, in threads of the loop"
    cache = diskcache.Cache(str(bench.folder / "theirs"), eviction_policy="none")

    @checkpointed
    async def step(number: int) -> int:
        return body(number)

    async def ours() -> Seconds:
        async with checkpoint_scope("awaited", store=bench.folder / "ours"):
            start = clock()
            await asyncio.gather(*map(step, range(calls)))
            return clock() - start

    async def theirs() -> Seconds:
        start = clock()
        await asyncio.gather(*(asyncio.to_thread(cache.get, number) for number in range(calls)))
        return clock() - start

    def again(number: int) -> Seconds:
        taken = asyncio.run(ours())
        assert not bodies()
        return taken

    asyncio.run(ours())
    bodies()
    for number in range(calls):
        cache.set(number, number)
    return Task(
        f"hits of {calls:,} coroutines that are gathered, first recall of each node in the process, per call",
        [Contender(OURS, again, calls), Contender(asked, lambda number: asyncio.run(theirs()), calls, limit=True)],
    )


@checkpointed
def produce(number: int) -> Any:
    return __import__("benchmarks_stash").values[number]


@checkpointed
def chained(number: int, before: Any) -> Any:
    return __import__("benchmarks_stash").values[number]


def fill_stash(folder: Path, steps: int) -> int:
    """So many values for `produce` to return, and in files: 1 KB to 10 MB, evenly on a logarithmic scale. Their size.

    They are arrays of numbers that do not compress.
    """
    random = np.random.default_rng(1)
    sizes = np.geomspace(1_000, 10_000_000, steps)
    random.shuffle(sizes)
    stash.values = [random.integers(0, 1 << 63, int(size) // 8) for size in sizes]  # type: ignore[attr-defined]
    for number, value in enumerate(stash.values):  # type: ignore[attr-defined]
        (folder / str(number)).write_bytes(pickle.dumps(value, 5))
    return sum(map(int, sizes))


def pipeline(bench: Bench) -> Task:
    steps, plain = bench.size(200, 50), bench.folder / "plain"
    plain.mkdir()
    size = fill_stash(plain, steps)

    def independent(number: int = 0) -> None:
        with checkpoint_scope("independent", store=bench.folder / "store"):
            for at in range(steps):
                produce(at)

    def chain(number: int = 0) -> None:
        with checkpoint_scope("chain", store=bench.folder / "store"):
            value = None
            for at in range(steps):
                value = chained(at, value)

    def files(number: int) -> None:
        for at in range(steps):
            pickle.loads(Path(plain / str(at)).read_bytes())

    independent()
    chain()
    stash.values = None  # type: ignore[attr-defined]  # whoever runs a body now fails
    passing, limit = "oncemore, each step gets the last one's result", "plain files, unpickled"
    return Task(
        f"pipeline of {steps} steps, 1 KB to 10 MB results, all cached",
        [Contender(OURS, independent), Contender(passing, chain), Contender(limit, files, limit=True)],
        unit="ms",
        note=f"{size / 1e6:.0f} MB in all.",
    )


TASKS = {
    "rerun": rerun,
    "miss": miss,
    "state": state,
    "awaited": awaited,
    "outside": outside,
    "pipeline": pipeline,
}
