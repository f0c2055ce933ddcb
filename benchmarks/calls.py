"""Calls: hits, misses, and what a decorated function costs where nothing is kept."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diskcache
import numpy as np

from oncemore import checkpoint_scope, checkpointed

from . import peers
from .harness import OURS, Bench, Contender, Goal, Task, bodies, body, clock, stash
from .peers import FLOWS, LIMITS, MEMOIZERS, Oncemore, OncemoreWithScope, Peer

GET = "diskcache get/set"


def _contender(peer: Peer, calls: int, recorded: bool) -> Contender:
    """A round is a run of so many calls that nobody has made before, or one that was `recorded` by an earlier process."""
    calls = max(2, calls // peer.slow)
    if recorded:
        peer.open()
        peer.run(0, calls)
        peer.close()

    def before(number: int) -> None:
        peer.open()
        bodies()

    def work(number: int) -> float:
        return peer.run(0 if recorded else number, calls)

    def after(number: int) -> None:
        ran = bodies()
        peer.close()
        if not peer.limit and ran != (0 if recorded else calls):
            raise AssertionError(f"{peer.name}: {ran} bodies ran")

    return Contender(peer.name, work, calls, before, after, limit=peer.limit)


def _among(bench: Bench, kinds: list[type[Peer]], calls: int, *, recorded: bool) -> dict[str, Any]:
    good, absent = peers.ready(kinds, bench.folder)
    return {"contenders": [_contender(peer, calls, recorded) for peer in good], "absent": absent}


def warm_hit(bench: Bench) -> Task:
    everyone = _among(bench, [Oncemore, *LIMITS, *MEMOIZERS, *FLOWS], bench.size(2000, 500), recorded=True)
    return Task(
        "warm hit, f(int) -> int, first recall of each node in the process",
        goals=[
            Goal(1.6, GET, "at most 1.6 x diskcache get"),
            Goal(1 / 10, "joblib.Memory", "10 x faster than joblib.Memory"),
            Goal(1 / 2, "diskcache.memoize", "2 x faster than diskcache.memoize"),
        ],
        **everyone,
    )


def rerun(bench: Bench) -> Task:
    calls = bench.size(10_000, 2_000)
    return Task(
        f"re-run of a finished run of {calls:,} steps, scope included, per step",
        goals=[Goal(0.7, GET, "at most 0.7 x as many diskcache gets")],
        note="Opening and leaving the scope are in our time.",
        **_among(bench, [OncemoreWithScope, *LIMITS, *MEMOIZERS[:2], *FLOWS], calls, recorded=True),
    )


def miss(bench: Bench) -> Task:
    everyone = _among(bench, [Oncemore, *LIMITS, *MEMOIZERS, *FLOWS], bench.size(500, 200), recorded=False)
    return Task(
        "miss, tiny result",
        goals=[
            Goal(1.6, GET, "at most 1.6 x diskcache set"),
            Goal(1 / 8, "joblib.Memory", "8 x faster than joblib.Memory"),
        ],
        **everyone,
    )


def repeated_hit(bench: Bench) -> Task:
    calls = bench.size(5_000, 1_000)
    good, absent = peers.ready([Oncemore, *LIMITS, *MEMOIZERS[:4]], bench.folder)

    def contender(peer: Peer) -> Contender:
        fewer = max(2, calls // peer.slow)
        again = _again(peer, fewer)
        return Contender(
            peer.name,
            lambda number: again(),
            fewer,
            lambda number: peer.open(),
            lambda number: peer.close(),
            limit=peer.limit,
        )

    return Task(
        "repeated hit of one node in the process",
        [contender(peer) for peer in good],
        [Goal(0.4, GET, "at most 0.4 x diskcache get"), Goal(4e-6, text="at most 4 us")],
        note="A fresh object each time.",
        absent=absent,
    )


def _again(peer: Peer, calls: int) -> Callable[[], float]:
    """The same call, `calls` times; the first, which is not timed, has it at hand."""

    def ours() -> float:
        assert isinstance(peer, Oncemore)
        with checkpoint_scope("again", store=peer.folder):
            peer.step(1)
            return peer.timed(peer.step, [1] * calls)

    def get() -> float:
        assert isinstance(peer, peers.RawDiskcache)
        peer.cache.set("again", 1)
        return peer.timed(peer.cache.get, ["again"] * calls)

    def select() -> float:
        assert isinstance(peer, peers.RawSqlite)
        execute = peer.connection.execute
        execute("INSERT OR IGNORE INTO entry VALUES ('again', 1)")
        query = "SELECT value FROM entry WHERE key = ?"
        return peer.timed(lambda key: execute(query, (key,)).fetchone()[0], ["again"] * calls)

    def memoized() -> float:
        function: Callable[[int], int] = peer.function  # type: ignore[attr-defined]
        function(1)
        return peer.timed(function, [1] * calls)

    return {OURS: ours, GET: get, "sqlite3 select/insert": select}.get(peer.name, memoized)


def outside(bench: Bench) -> Task:
    """What the decorator costs where nothing is kept."""
    step, calls = checkpointed(body), 20_000  # soon over: minima find a calm moment

    def plain(function: Callable[[int], int]) -> Callable[[int], float]:
        def work(number: int) -> float:
            start = clock()
            for _ in range(calls):
                function(1)
            return clock() - start

        return work

    def disabled(number: int) -> float:
        os.environ["ONCEMORE_DISABLE"] = "1"
        try:
            with checkpoint_scope("disabled", store=bench.folder):
                return plain(step)(number)
        finally:
            del os.environ["ONCEMORE_DISABLE"]

    off = "oncemore, ONCEMORE_DISABLE in a scope"
    return Task(
        "decorated call where nothing is kept",
        [
            Contender(OURS, plain(step), calls),
            Contender(off, disabled, calls),
            Contender("bare call", plain(body), calls, limit=True),
        ],
        [
            Goal(0.4e-6, "bare call", "at most 0.4 us over the bare call", beyond=True),
            Goal(0.4e-6, "bare call", "at most 0.4 us over the bare call", ours=off, beyond=True),
        ],
    )


def awaited(bench: Bench) -> Task:
    """Coroutines, all at once, beside what an event loop needs to ask a disk for as much."""
    calls, asked = bench.size(1_000, 300), "diskcache gets, in threads of the loop"
    cache = diskcache.Cache(str(bench.folder / "theirs"), eviction_policy="none")

    @checkpointed
    async def step(number: int) -> int:
        return body(number)

    async def ours() -> float:
        async with checkpoint_scope("awaited", store=bench.folder / "ours"):
            start = clock()
            await asyncio.gather(*map(step, range(calls)))
            return clock() - start

    async def theirs() -> float:
        start = clock()
        await asyncio.gather(*(asyncio.to_thread(cache.get, number) for number in range(calls)))
        return clock() - start

    def again(number: int) -> float:
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
        [Goal(1.0, asked, f"no slower than {asked} (our own measure)")],
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
        [Goal(1.3, limit, f"at most 1.3 x {limit}", ours=ours) for ours in (OURS, passing)],
        unit="ms",
        note=f"{size / 1e6:.0f} MB in all.",
    )


TASKS = [warm_hit, rerun, repeated_hit, awaited, miss, outside, pipeline]
