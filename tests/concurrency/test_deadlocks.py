"""Steps that call themselves, each other, or the same third one never wait for themselves; nor does Ctrl-C leave a lock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import copy_context
from typing import Any, TypeVar

import pytest

from oncemore import Run, checkpoint_scope, checkpointed, current_run
from tests.processes import Script

T = TypeVar("T")

PATIENCE = 60  # seconds, for what should take milliseconds

calls: list[str] = []
step = checkpointed(code="version", version="1")


@pytest.fixture(autouse=True)
def run() -> Iterator[Run]:
    calls.clear()
    with checkpoint_scope("nested", store="store") as run:
        yield run


def begin(function: Callable[[], T]) -> Callable[[], T]:
    """Call it in a thread of its own; what comes back waits for the result, and fails if it hangs."""
    found: list[T] = []
    thread = threading.Thread(target=copy_context().run, args=(lambda: found.append(function()),), daemon=True)
    thread.start()

    def result() -> T:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "it hangs"
        return found[0]

    return result


def within(function: Callable[[], T]) -> T:
    return begin(function)()


@step
def fib(n: int) -> int:
    calls.append(f"fib {n}")
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@step
async def fib_async(n: int) -> int:
    calls.append(f"fib {n}")
    if n < 2:
        return n
    return sum(await asyncio.gather(fib_async(n - 1), fib_async(n - 2)))


@step
def even(n: int) -> bool:
    calls.append(f"even {n}")
    return n == 0 or odd(n - 1)


@step
def odd(n: int) -> bool:
    calls.append(f"odd {n}")
    return n != 0 and even(n - 1)


@step
def itself(n: int) -> int:
    calls.append(f"itself {n}")
    return n if len(calls) >= 3 else itself(n)


@step
async def itself_async(n: int) -> int:
    calls.append(f"itself {n}")
    return n if len(calls) >= 3 else await itself_async(n)


@step
def ping(n: int) -> int:
    calls.append(f"ping {n}")
    return n if len(calls) >= 4 else pong(n)


@step
def pong(n: int) -> int:
    calls.append(f"pong {n}")
    return ping(n)


@checkpointed(code="version", version="1", ignore=["meanwhile"])
def common(n: int, meanwhile: Callable[[], Any] = lambda: None) -> int:
    calls.append(f"common {n}")
    meanwhile()
    return n


@step
def left(n: int) -> int:
    calls.append(f"left {n}")
    return common(0) + n


@step
def right(n: int) -> int:
    calls.append(f"right {n}")
    return common(0) - n


@step
def fan_out(n: int) -> list[int]:
    calls.append(f"fan_out {n}")
    run = current_run()
    assert run is not None
    return list(run.map(left, range(n), concurrency=2))


@step
def threads_inside(n: int) -> list[int]:
    return [wait() for wait in [begin(lambda k=k: common(k)) for k in range(n)]]  # type: ignore[misc]


@step
def numbers(n: int) -> Iterator[int]:
    calls.append(f"numbers {n}")
    yield from range(n)


@step
def countdown(n: int) -> Iterator[int]:
    calls.append(f"countdown {n}")
    yield n
    if n:
        yield from countdown(n - 1)


@step
async def numbers_async(n: int) -> AsyncIterator[int]:
    calls.append(f"numbers {n}")
    for number in range(n):
        yield number


def test_a_recursive_step_runs_once_for_each_argument() -> None:
    assert within(lambda: fib(40)) == 102334155
    assert sorted(calls) == sorted(f"fib {n}" for n in range(41))


def test_a_recursive_step_asked_for_by_threads_runs_once_for_each_argument() -> None:
    waiting = [begin(lambda n=n: fib(n)) for n in (20, 18, 20, 19)]  # type: ignore[misc]
    assert [wait() for wait in waiting] == [6765, 2584, 6765, 4181]
    assert sorted(calls) == sorted(f"fib {n}" for n in range(21))


def test_a_recursive_coroutine_runs_once_for_each_argument() -> None:
    assert within(lambda: asyncio.run(fib_async(15))) == 610
    assert sorted(calls) == sorted(f"fib {n}" for n in range(16))


def test_two_steps_that_call_each_other_run_once_for_each_argument() -> None:
    waiting = [begin(lambda: even(20)), begin(lambda: odd(20)), begin(lambda: even(19))]
    assert [wait() for wait in waiting] == [True, False, False]
    assert len(calls) == len(set(calls))


def test_a_step_that_calls_itself_with_the_same_arguments_just_runs_inside(run: Run) -> None:
    assert within(lambda: itself(1)) == 1
    assert len(calls) == 3
    assert within(lambda: itself(1)) == 1
    assert len(calls) == 3
    assert run.ran["itself"] == 1


def test_a_coroutine_that_calls_itself_with_the_same_arguments_just_runs_inside() -> None:
    assert within(lambda: asyncio.run(itself_async(1))) == 1
    assert within(lambda: asyncio.run(itself_async(1))) == 1
    assert len(calls) == 3


def test_two_steps_that_call_each_other_with_the_same_arguments_just_run_inside() -> None:
    assert within(lambda: ping(1)) == 1
    assert calls == ["ping 1", "pong 1", "ping 1", "pong 1", "ping 1"][:4] + calls[4:]
    before = len(calls)
    assert within(lambda: ping(1)) == 1
    assert len(calls) == before


def test_steps_that_need_the_same_third_one_share_it() -> None:
    waiting = [begin(lambda n=n, s=s: s(n)) for n in range(4) for s in (left, right)]  # type: ignore[misc]
    assert [wait() for wait in waiting] == [0, 0, 1, -1, 2, -2, 3, -3]
    assert calls.count("common 0") == 1


def test_a_map_inside_a_step_inside_a_map_ends(run: Run) -> None:
    found = within(lambda: run.map(fan_out, [3, 4, 3, 4], concurrency=2))
    assert found == [[0, 1, 2], [0, 1, 2, 3]] * 2
    assert len(calls) == len(set(calls)) == 2 + 4 + 1


def test_threads_started_inside_a_step_may_call_steps() -> None:
    assert within(lambda: threads_inside(4)) == [0, 1, 2, 3]


def test_an_inner_step_can_be_asked_for_by_others_while_its_outer_step_runs() -> None:
    inside, go = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        go.wait(PATIENCE)

    owner = begin(lambda: common(0, wait))
    assert inside.wait(PATIENCE)
    others = [begin(lambda: left(1)), begin(lambda: right(1))]
    go.set()
    assert (owner(), *[other() for other in others]) == (0, 1, -1)
    assert calls.count("common 0") == 1


def test_a_generator_consumed_by_two_at_once_never_waits_for_itself() -> None:
    assert within(lambda: list(zip(numbers(3), numbers(3)))) == [(0, 0), (1, 1), (2, 2)]


def test_a_generator_left_half_way_keeps_its_own_thread_not_waiting() -> None:
    def both() -> list[int]:
        first = numbers(5)
        return [next(first), *numbers(5), *first]

    assert within(both) == [0, 0, 1, 2, 3, 4, 1, 2, 3, 4]


def test_a_recursive_generator_ends() -> None:
    assert within(lambda: list(countdown(5))) == [5, 4, 3, 2, 1, 0]
    before = len(calls)
    assert within(lambda: list(countdown(5))) == [5, 4, 3, 2, 1, 0]
    assert len(calls) == before


def test_an_async_generator_left_half_way_keeps_nobody_waiting() -> None:
    async def main() -> list[int]:
        first = numbers_async(5)
        assert await first.__anext__() == 0
        found = [number async for number in numbers_async(5)]
        await first.aclose()  # type: ignore[attr-defined]
        return found

    assert within(lambda: asyncio.run(main())) == [0, 1, 2, 3, 4]


INTERRUPTED = """
    import random, signal, sys, time
    from oncemore import checkpointed, checkpoint_scope

    @checkpointed
    def small(n):
        return [n]

    @checkpointed
    def outer(n):
        return [small(n), bytes(50_000)]

    chance = random.Random(int(sys.argv[1]))
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # Ctrl-C, from a clock
    interrupted = 0
    with checkpoint_scope("notebook", store="store") as run:
        outer(-1)  # the standard library, too, has things to set up that do not bear an interrupt
        for n in range(int(sys.argv[2])):
            while True:
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.006)
                    assert outer(n) == [[n], bytes(50_000)]
                    assert outer(n) == [[n], bytes(50_000)]
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    break
                except KeyboardInterrupt:
                    interrupted += 1
    print(interrupted)
"""


@pytest.mark.slow
def test_ctrl_c_anywhere_leaves_nothing_that_a_later_call_waits_for(
    script: Script, campaign: Callable[[int, int], int]
) -> None:
    """As in a notebook, where the process goes on after it."""
    import random

    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    done = script(INTERRUPTED, str(seed), str(campaign(400, 200)), timeout=200)
    assert int(done.out) > 20
