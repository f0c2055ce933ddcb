"""Coroutines that are skipped from memory wait for no thread; those that run leave their event loop as seldom as can be."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from oncemore import CheckpointWarning, checkpoint_scope, checkpointed, flight, memoized

FACTOR = 2


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def whole(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return whole


class Counting(ThreadPoolExecutor):
    """What coroutines have done by threads, counted."""

    def __init__(self) -> None:
        super().__init__(2)
        self.times = 0

    def submit(self, *given: Any, **named: Any) -> Future[Any]:
        self.times += 1
        return super().submit(*given, **named)

    def since(self) -> int:
        times, self.times = self.times, 0
        return times


def counting() -> Counting:
    """The threads in which coroutines wait for the store, from now on."""
    threads = Counting()
    flight._pool[:] = [threads]
    return threads


@checkpointed
async def scaled(value: Any) -> list[Any]:
    print(repr(value))
    await asyncio.sleep(0)
    return [value, FACTOR]


def ran(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.split()


@in_a_loop
async def test_a_coroutine_whose_value_is_at_hand_does_not_wait_for_a_thread(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with checkpoint_scope("quick", store="store"):
        for number in range(20):
            await scaled(number)
    ran(capsys)
    async with checkpoint_scope("quick", store="store") as run:
        threads = counting()
        found = [await scaled(number) for number in range(20)]
        assert found == [[number, 2] for number in range(20)]
        assert threads.since() == 1  # then all that is small is in memory
        found[0].append("changed")
        assert await scaled(0) == [0, 2]
        assert (threads.since(), ran(capsys)) == (0, [])
        assert run.reused["scaled"] == 21


@in_a_loop
async def test_coroutines_that_are_asked_for_together_are_read_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    together = 120
    for words in (together, 0):
        with checkpoint_scope("quick", store="store") as run:
            threads = counting()
            found = await asyncio.gather(*(scaled(number) for number in range(together)))
            assert found == [[number, 2] for number in range(together)]
            assert len(ran(capsys)) == words
    assert (threads.since(), run.reused["scaled"]) == (1, together)


@in_a_loop
async def test_one_who_reads_for_all_may_be_cancelled() -> None:
    for _ in range(2):
        with checkpoint_scope("quick", store="store"):
            calls = [asyncio.ensure_future(scaled(number)) for number in range(20)]
            await asyncio.sleep(0)
            calls[0].cancel()
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(found[0], asyncio.CancelledError)
            assert found[1:] == [[number, 2] for number in range(1, 20)]


@in_a_loop
async def test_a_coroutine_that_runs_waits_for_threads_twice() -> None:
    async with checkpoint_scope("quick", store="store"):
        await scaled(0)
        threads = counting()
        await scaled(1)
        assert threads.since() == 2  # its lease is taken and a look is had; what it did is recorded


@in_a_loop
async def test_nothing_happens_before_a_coroutine_is_awaited(capsys: pytest.CaptureFixture[str]) -> None:
    async with checkpoint_scope("quick", store="store") as run:
        await scaled(1)
        again = scaled(1)
        assert not run.reused
        assert await again == [1, 2]
        assert (run.reused["scaled"], ran(capsys)) == (1, ["1"])


@in_a_loop
async def test_what_changed_is_noticed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async with checkpoint_scope("quick", store="store"):
        assert [await scaled(1), await scaled(1)] == [[1, 2], [1, 2]]
        assert ran(capsys) == ["1"]
        monkeypatch.setattr(f"{__name__}.FACTOR", 3)
        assert [await scaled(1), await scaled(1)] == [[1, 3], [1, 3]]
        assert ran(capsys) == ["1"]
        assert scaled.forget(1)
        assert await scaled(1) == [1, 3]
        assert await scaled.refresh(1) == [1, 3]
        assert ran(capsys) == ["1", "1"]
        assert await scaled(True) == [True, 3]
        assert ran(capsys) == ["True"]


@in_a_loop
async def test_a_step_around_it_depends_on_what_it_recalls(capsys: pytest.CaptureFixture[str]) -> None:
    @checkpointed
    async def outer(value: int) -> list[Any]:
        print("outer")
        return [*await scaled(value), *await scaled(value)]

    for words in (["1", "outer"], []):
        async with checkpoint_scope("quick", store="store"):
            await scaled(1)
            assert await outer(1) == [1, 2, 1, 2]
            assert ran(capsys) == words


@in_a_loop
async def test_a_shared_coroutine_at_hand_waits_for_no_thread_outside_a_scope(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMORE_STORE", "store")

    @memoized
    async def doubled(value: int) -> int:
        print("ran")
        return 2 * value

    assert await doubled(2) == 4
    threads = counting()
    assert [await doubled(2), await doubled(2)] == [4, 4]
    assert (threads.since(), ran(capsys)) == (0, ["ran"])


@in_a_loop
async def test_a_call_without_identity_just_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def items() -> Any:
        yield 1

    odd = items()  # a generator has no identity

    @checkpointed
    async def unknown(value: int) -> int:
        print("ran", odd is not None)
        return value

    async with checkpoint_scope("quick", store="store"):
        for _ in range(2):
            with pytest.warns(CheckpointWarning, match="runs every time"):
                assert await unknown(1) == 1
        with pytest.raises(TypeError, match="value"):
            await unknown()  # type: ignore[call-arg]
    assert ran(capsys) == ["ran", "True"] * 2
