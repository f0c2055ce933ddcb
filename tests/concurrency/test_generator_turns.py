"""A generator asked for by many at once runs once; one that its consumer left half way keeps nobody waiting for good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

from oncemore import CheckpointWarning, Run, checkpoint_scope, checkpointed, turns
from tests.processes import Script

MANY = 8
PATIENCE = 60  # seconds, for what should take milliseconds

calls: list[int] = []
step = checkpointed(code="version", version="1")


@step
def numbers(n: int) -> Iterator[int]:
    calls.append(n)
    for number in range(n):
        time.sleep(0.02)
        yield number


@step
async def numbers_async(n: int) -> AsyncIterator[int]:
    calls.append(n)
    for number in range(n):
        await asyncio.sleep(0.02)
        yield number


@pytest.fixture(autouse=True, params=["disk", "memory"])
def run(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Run]:
    calls.clear()
    store = "memory://turns-" + tmp_path.name if request.param == "memory" else "store"
    with checkpoint_scope("flight", store=store) as run:
        yield run


def in_threads(function: Callable[[], Any], many: int = MANY) -> list[Any]:
    with ThreadPoolExecutor(many) as pool:
        return [task.result(PATIENCE) for task in [pool.submit(copy_context().run, function) for _ in range(many)]]


def impatient(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", seconds)


def test_a_generator_asked_for_by_threads_runs_once() -> None:
    assert in_threads(lambda: list(numbers(5))) == [[0, 1, 2, 3, 4]] * MANY
    assert calls == [5]


def test_a_generator_asked_for_by_tasks_runs_once() -> None:
    async def collect() -> list[int]:
        return [number async for number in numbers_async(5)]

    async def main() -> Any:
        return await asyncio.gather(*(collect() for _ in range(MANY)))

    assert asyncio.run(main()) == [[0, 1, 2, 3, 4]] * MANY
    assert calls == [5]


def test_different_generators_run_at_the_same_time() -> None:
    first, second = numbers(2), numbers(3)
    assert [next(first), next(second), *first, *second] == [0, 0, 1, 1, 2]


def test_a_slow_consumer_who_goes_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, 2)  # less than all items take together, much more than one

    def consume() -> list[int]:
        found: list[int] = []
        for number in numbers(10):
            found.append(number)
            time.sleep(0.25 if calls == [10] else 0)
        return found

    assert in_threads(consume, 3) == [list(range(10))] * 3
    assert calls == [10]


def test_a_generator_left_half_way_is_run_by_the_next_who_has_waited_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient(monkeypatch, 0.5)
    first = numbers(3)
    assert next(first) == 0
    with pytest.warns(CheckpointWarning, match="numbers: somebody is in the midst of its items"):
        assert in_threads(lambda: list(numbers(3)), 1) == [[0, 1, 2]]
    assert list(first) == [1, 2]
    assert calls == [3, 3]


def test_when_a_consumer_gives_up_the_next_takes_over() -> None:
    first = numbers(3)
    assert next(first) == 0
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(copy_context().run, lambda: list(numbers(3)))
        time.sleep(0.2)
        assert calls == [3]
        first.close()  # type: ignore[attr-defined]
        assert second.result(PATIENCE) == [0, 1, 2]


def test_a_consumer_who_sends_something_lets_the_others_run_it_themselves() -> None:
    first = numbers(3)
    next(first)
    first.send("something")  # type: ignore[attr-defined]
    assert in_threads(lambda: list(numbers(3)), 2) == [[0, 1, 2]] * 2
    assert calls == [3, 3]


def test_one_task_that_reads_two_at_once_does_not_wait_for_itself() -> None:
    async def main() -> list[int]:
        first, second = numbers_async(2), numbers_async(2)
        return [await first.__anext__(), await second.__anext__(), await first.__anext__(), await second.__anext__()]

    assert asyncio.run(main()) == [0, 0, 1, 1]


def test_tasks_that_read_a_plain_generator_in_turns_do_not_stop_the_loop() -> None:
    async def collect() -> list[int]:
        found: list[int] = []
        for number in numbers(3):
            found.append(number)
            await asyncio.sleep(0)
        return found

    async def main() -> Any:
        return await asyncio.wait_for(asyncio.gather(collect(), collect()), PATIENCE)

    assert asyncio.run(main()) == [[0, 1, 2]] * 2


PROCESSES = """
    import sys, time
    from oncemore import checkpointed, checkpoint_scope

    @checkpointed
    def numbers(n):
        with open("log", "a") as file:
            file.write("ran\\n")
        for number in range(n):
            print("item", flush=True)
            time.sleep(600 if sys.argv[1] == "forever" and number else 0.02)
            yield number

    with checkpoint_scope("flight", store="store"):
        print(list(numbers(5)))
"""


def test_a_generator_asked_for_by_processes_runs_once(script: Script) -> None:
    script.write(PROCESSES)
    processes = [script.start(None, "ask") for _ in range(MANY)]
    assert [process.finish(0, PATIENCE).lines[-1] for process in processes] == ["[0, 1, 2, 3, 4]"] * MANY
    assert (script.folder / "log").read_text() == "ran\n"


def test_when_the_process_that_runs_a_generator_is_killed_a_waiting_one_takes_over(script: Script) -> None:
    script.write(PROCESSES)
    owner = script.start(None, "forever")
    owner.wait_for("item")
    waiter = script.start(None, "ask")
    time.sleep(1.0)
    assert (script.folder / "log").read_text() == "ran\n"
    owner.kill()
    assert waiter.finish(0, PATIENCE).lines[-1] == "[0, 1, 2, 3, 4]"
