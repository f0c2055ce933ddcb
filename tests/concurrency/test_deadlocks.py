"""Steps that call themselves, each other, or the same third one never wait for themselves; nor does Ctrl-C leave a lock."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import copy_context
from typing import Any, TypeVar

import pytest

from oncemore import CheckpointWarning, Run, StoreError, checkpoint_scope, checkpointed, current_run
from oncemore.flight import acquire, drive
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


def in_a_circle(turns: int = 3) -> list[Callable[[], Any]]:
    """Steps, each of which calls the next one after all have begun; the last calls the first."""
    begun = threading.Barrier(turns)
    steps: list[Any] = []

    def make(number: int) -> Any:
        def one(depth: int) -> str:
            calls.append(f"{number}")
            if len(calls) <= turns:
                begun.wait(10)
            return f"{number}" if calls.count(f"{number}") > 1 else f"{number}{steps[(number + 1) % turns](0)}"

        return checkpointed(name=f"circle {number}", code="version", version="1")(one)

    steps += [make(number) for number in range(turns)]
    return [lambda step=step: step(0) for step in steps]


def test_threads_that_wait_for_each_other_in_a_circle_end_and_one_of_them_says_so(run: Run) -> None:
    begin_all = [begin(call) for call in in_a_circle()]
    with pytest.warns(CheckpointWarning, match="which waits for a step around this call. It runs here, too"):
        found = [wait() for wait in begin_all]
    assert [text[0] for text in found] == ["0", "1", "2"]
    assert len(calls) == 4  # one of them twice
    assert not list(run.store.scan("waiting/"))


def test_tasks_that_wait_for_each_other_in_a_circle_end() -> None:
    async def both() -> list[str]:
        begun = asyncio.Barrier(2) if hasattr(asyncio, "Barrier") else None

        async def one(number: int) -> str:
            calls.append(f"{number}")
            if len(calls) <= 2:
                await (begun.wait() if begun is not None else asyncio.sleep(0.2))
            return f"{number}" if calls.count(f"{number}") > 1 else f"{number}{await steps[1 - number](1 - number)}"

        steps = [checkpointed(name=f"task {n}", code="version", version="1", key=str)(one) for n in (0, 1)]
        with checkpoint_scope("tasks"):
            return list(await asyncio.gather(steps[0](0), steps[1](1)))

    with pytest.warns(CheckpointWarning, match="It runs here, too"):
        found = asyncio.run(both())
    assert [text[0] for text in found] == ["0", "1"]


PROCESSES = """
    import sys, time, pathlib
    from oncemore import checkpoint_scope, checkpointed

    def begin(name):
        pathlib.Path(name).touch()
        while len(list(pathlib.Path().glob("begun-*"))) < 2:
            time.sleep(0.01)

    def body(mine, other):
        first = not pathlib.Path(f"begun-{mine}").exists()
        begin(f"begun-{mine}")
        print("RAN", mine, flush=True)
        return mine + other() if first else mine

    @checkpointed(code="version", version="1")
    def a(): return body("a", b)

    @checkpointed(code="version", version="1")
    def b(): return body("b", a)

    with checkpoint_scope("circle"):
        print("GOT", (a if sys.argv[1] == "a" else b)())
"""


def test_processes_that_wait_for_each_other_end(script: Script) -> None:
    one, other = script.start(PROCESSES, "a"), script.start(PROCESSES, "b")
    found = [process.finish() for process in (one, other)]
    assert [each.code for each in found] == [0, 0], found
    assert sum("It runs here, too" in each.err for each in found) == 1
    assert {line[:5] for each in found for line in each.lines if line.startswith("GOT")} == {"GOT a", "GOT b"}


def test_a_long_wait_names_the_thread_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemore.flight._REPORT_AFTER", 0.0)
    inside, go = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        go.wait(PATIENCE)

    def owner() -> int:
        threading.current_thread().name = "the owner"
        return common(0, wait)

    first = begin(owner)
    assert inside.wait(PATIENCE)
    with pytest.warns(CheckpointWarning) as caught:
        second = begin(lambda: common(0))
        while not caught.list:
            threading.Event().wait(0.01)
    go.set()
    assert (first(), second()) == (0, 0)
    here = f"thread or task the owner of this process (pid {os.getpid()} on {platform.node()})"
    assert str(caught[0].message).startswith("still waiting for common-")
    assert str(caught[0].message).endswith(f" after 0 s: {here} is computing it")


HOLDER = """
    import sys, oncemore.flight
    from oncemore import checkpoint_scope, checkpointed

    oncemore.flight._REPORT_AFTER = 0.0

    @checkpointed(code="version", version="1")
    def compute(n):
        print("INSIDE", flush=True)
        while sys.argv[1] == "first" and not __import__("os").path.exists("go"):
            __import__("time").sleep(0.01)
        return n

    with checkpoint_scope("waits"):
        print("GOT", compute(1))
"""


def test_a_long_wait_names_the_process_that_computes(script: Script) -> None:
    first = script.start(HOLDER, "first")
    first.wait_for("INSIDE")
    second = script.start(HOLDER, "second")
    while "still waiting" not in "".join(second._err):
        assert second.process.poll() is None
        threading.Event().wait(0.01)
    (script.folder / "go").touch()
    assert [each.finish(0).lines[-1] for each in (first, second)] == ["GOT 1", "GOT 1"]
    assert f"another process (pid {first.pid} on {platform.node()}) is computing it" in "".join(second._err)


def test_an_effect_that_must_happen_once_is_not_performed_without_its_lease(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [
        run.store.hold("other"),
        run.store.hold("waiting/ff"),
    ]  # as a thread that computes `other` and waits for `mine`
    run.store.commit(put={"waiting/ff": [json.dumps({"holds": ["other"], "waits": "mine"}).encode()]})
    monkeypatch.setattr("oncemore.flight.os.urandom", bytes)  # ours is the lowest mark
    with pytest.raises(
        StoreError,
        match=r"other is being computed by another thread of this process \(pid \d+ on .+\), which waits for a step around this call",
    ):
        drive(acquire(run.store, "other", lambda entry: entry, around=["mine"], required=True))
    for hold in other:
        assert hold is not None
        hold.release()


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
