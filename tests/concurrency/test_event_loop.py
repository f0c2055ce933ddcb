"""Steps under asyncio: the event loop goes on while the store works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from oncemore import CheckpointWarning, Run, Store, checkpoint_scope, checkpointed, current_run, open_store

LARGE = 100_000_000  # bytes
ENOUGH = 3  # ticks: the store needs long enough for hundreds
PATIENCE = 60  # seconds

calls: list[str] = []
step = checkpointed(code="version", version="1")


@step
async def large(n: int) -> Any:
    calls.append(f"large {n}")
    return await asyncio.to_thread(lambda: np.random.default_rng(n).integers(0, 1 << 63, LARGE // 8))


@step
async def small(n: int) -> int:
    calls.append(f"small {n}")
    return n


@step
async def outer(n: int) -> int:
    run = current_run()
    assert run is not None
    run.state["n"] = run.state.get("n", 0) + 1
    return await small(n) + 1


@step
async def broken(n: int) -> int:
    raise ValueError(n)


@step
async def unpicklable(n: int) -> Any:
    return threading.Lock()


@step
async def numbers(n: int) -> AsyncIterator[bytes]:
    calls.append(f"numbers {n}")
    for number in range(n):
        yield bytes([number]) * 300_000


class Heart:
    """Counts how often the event loop comes round."""

    def __init__(self) -> None:
        self.beats = 0

    async def beat(self) -> None:
        while True:
            self.beats += 1
            await asyncio.sleep(0.001)

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.beat())
        try:
            yield
        finally:
            task.cancel()


def test_the_loop_goes_on_while_a_large_result_is_recorded_and_recalled() -> None:
    heart = Heart()

    async def ask() -> Any:
        async with checkpoint_scope("large", store="store"), heart.beating():
            return await large(1)

    calls.clear()
    first = asyncio.run(ask())
    assert heart.beats > ENOUGH
    heart.beats = 0
    second = asyncio.run(ask())
    assert calls == ["large 1"]
    assert heart.beats > ENOUGH
    assert np.array_equal(first, second)


class Watched:
    """A store that waits in every operation until the event loop has come round; on the loop itself it never would."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._heart: Heart | None = None
        self._loop_thread = 0
        self.on_the_loop: list[str] = []
        self.operations = 0

    def watch(self, heart: Heart | None) -> None:
        self._heart, self._loop_thread = heart, threading.get_ident()

    def _wait(self, what: str) -> None:
        if self._heart is None:
            return
        self.operations += 1
        if threading.get_ident() == self._loop_thread:
            self.on_the_loop.append(what)
            return
        wanted, pause = self._heart.beats + 3, threading.Event()
        for _ in range(PATIENCE * 1000):
            if self._heart.beats >= wanted:
                return
            pause.wait(0.001)
        self.on_the_loop.append(f"{what} stopped the loop")

    @property
    def url(self) -> str:
        return self._store.url

    def get(self, key: str) -> Any:
        self._wait(f"get {key}")
        return self._store.get(key)

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> Any:
        self._wait(f"get_many {keys}")
        return self._store.get_many(keys, most=most)

    def scan(self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None) -> Iterator[Any]:
        self._wait(f"scan {prefix}")
        return self._store.scan(prefix, after=after, limit=limit, most=most)

    def commit(
        self,
        *,
        put: Mapping[str, Any] = {},
        append: Mapping[str, Sequence[Any]] = {},
        delete: Collection[str] = (),
        expect: Mapping[str, Any] = {},
        under: Any = None,
    ) -> bool:
        self._wait(f"commit {[*put, *append, *delete]}")
        return self._store.commit(put=put, append=append, delete=delete, expect=expect, under=under)

    def hold(self, key: str) -> Any:
        self._wait(f"hold {key}")
        return self._store.hold(key)

    def held(self, keys: Collection[str]) -> set[str]:
        self._wait(f"held {keys}")
        return self._store.held(keys)

    def close(self) -> None:
        self._store.close()


async def everything(run: Run) -> None:
    assert await outer(1) == 2
    assert await asyncio.gather(*(small(n) for n in (1, 2, 1))) == [1, 2, 1]
    assert len([item async for item in numbers(8)]) == 8
    assert await run.map(small, range(4), concurrency=2) == [0, 1, 2, 3]
    assert await small.refresh(1) == 1
    with pytest.raises(ValueError, match="^7$"):
        await broken(7)
    with pytest.warns(CheckpointWarning, match="the result was not saved"):
        await unpicklable(1)


def test_no_operation_of_the_store_is_done_on_the_loop() -> None:
    store = Watched(open_store("store"))
    heart = Heart()

    async def main() -> None:
        store.watch(heart)
        async with heart.beating():
            for _ in range(2):  # recorded, then recalled
                async with checkpoint_scope("watched", store=store) as run:
                    await everything(run)
        store.watch(None)

    asyncio.run(main())
    assert store.operations > 30
    assert store.on_the_loop == []


def test_a_step_edited_since_is_explained_off_the_loop() -> None:
    store = Watched(open_store("store"))
    heart = Heart()
    edited = [checkpointed(code="version", version="2", name=s.__name__)(s.__wrapped__) for s in (small, numbers)]

    async def main() -> None:
        async with checkpoint_scope("watched", store=store):
            await small(1)
            [item async for item in numbers(2)]
        store.watch(heart)
        async with heart.beating(), checkpoint_scope("watched", store=store):
            await edited[0](1)
            [item async for item in edited[1](2)]
        store.watch(None)

    asyncio.run(main())
    assert store.operations > 5
    assert store.on_the_loop == []


def test_the_scope_of_a_task_is_its_own() -> None:
    async def one(name: str) -> tuple[str | None, int]:
        async with checkpoint_scope(name, store="store") as run:
            await asyncio.sleep(0)
            await small(1)
            here = current_run()
            return (here and here.id), run.ran["small"]

    async def main() -> list[Any]:
        return await asyncio.gather(*map(one, "abc"))

    assert asyncio.run(main()) == [("a", 1), ("b", 1), ("c", 1)]
    assert current_run() is None


def test_a_scope_left_by_cancellation_is_recorded_as_interrupted() -> None:
    kept: list[Run] = []

    async def main() -> None:
        async def job() -> None:
            async with checkpoint_scope("cancelled", store="store") as run:
                kept.append(run)
                await small(1)
                await asyncio.Event().wait()

        task = asyncio.create_task(job())
        while not (kept and kept[0].ran["small"]):
            assert not task.done()
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    names = [type(event).__name__ for event in kept[0].events()]
    assert names[0] == "RunStarted"
    assert names[-1] == "RunInterrupted"
    assert "StepFailed" not in names
