"""One node asked for by many at once is computed once; different nodes are computed at the same time."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

from oncemore import Run, checkpoint_scope, checkpointed
from tests.processes import Script

MANY = 8
PATIENCE = 60  # seconds, for what should take milliseconds
A_MOMENT = 0.2  # seconds: time for the others to ask; a test that needed more would still pass

calls: list[str] = []
step = checkpointed(code="version", version="1", ignore=["meanwhile"])


@step
def slow(n: int, meanwhile: Callable[[], Any] = lambda: time.sleep(A_MOMENT)) -> list[int]:
    calls.append(f"slow {n}")
    meanwhile()
    return [n]


@step
async def slow_async(n: int, meanwhile: Callable[[], Any] = lambda: asyncio.sleep(A_MOMENT)) -> list[int]:
    calls.append(f"slow_async {n}")
    await meanwhile()
    return [n]


@pytest.fixture(params=["disk", "memory"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    calls.clear()
    store = "memory://single-flight-" + tmp_path.name if request.param == "memory" else "store"
    with checkpoint_scope("flight", store=store) as run:
        yield run


def in_threads(functions: list[Callable[[], Any]]) -> list[Any]:
    """Call them all at once, in threads that are in the scope; results and exceptions in order."""
    together = threading.Barrier(len(functions))

    def one(function: Callable[[], Any]) -> Any:
        together.wait(PATIENCE)
        try:
            return function()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(functions)) as pool:
        tasks = [pool.submit(copy_context().run, one, function) for function in functions]
        return [task.result(PATIENCE) for task in tasks]


# -- threads


def test_a_node_asked_for_by_threads_runs_once(run: Run) -> None:
    found = in_threads([lambda: slow(1)] * MANY)
    assert found == [[1]] * MANY
    assert calls == ["slow 1"]
    assert (run.ran.total(), run.reused.total()) == (1, MANY - 1)
    assert len({id(each) for each in found}) == MANY  # nobody changes another's value


def test_threads_that_enter_the_scope_themselves_share_the_run() -> None:
    calls.clear()

    def one() -> list[int]:
        with checkpoint_scope("flight", store="store"):
            return slow(1)

    assert in_threads([one] * MANY) == [[1]] * MANY
    assert calls == ["slow 1"]


def test_different_nodes_run_at_the_same_time_in_threads(run: Run) -> None:
    together = threading.Barrier(MANY)
    found = in_threads([lambda n=n: slow(n, lambda: together.wait(PATIENCE)) for n in range(MANY)])  # type: ignore[misc]
    assert found == [[n] for n in range(MANY)]


def test_many_threads_and_nodes_run_each_node_once(run: Run) -> None:
    def one() -> list[list[int]]:
        return [slow(n, lambda: None) for n in range(30)]

    assert in_threads([one] * MANY) == [[[n] for n in range(30)]] * MANY
    assert sorted(calls) == sorted(f"slow {n}" for n in range(30))


def test_when_the_owner_fails_the_next_waiter_tries_itself(run: Run) -> None:
    def fail_first() -> None:
        time.sleep(A_MOMENT)
        if len(calls) == 1:
            raise OSError("the first attempt")

    found = in_threads([lambda: slow(1, fail_first)] * MANY)
    assert calls == ["slow 1"] * 2
    assert found.count([1]) == MANY - 1
    assert [str(each) for each in found if isinstance(each, OSError)] == ["the first attempt"]


def test_when_every_attempt_fails_everybody_gets_the_failure_of_their_own(run: Run) -> None:
    def fail() -> None:
        raise OSError(len(calls))

    found = in_threads([lambda: slow(1, fail)] * MANY)
    assert sorted(each.args[0] for each in found) == list(range(1, MANY + 1))


def test_a_refresh_does_not_run_beside_the_call_that_is_under_way(run: Run) -> None:
    inside: list[int] = []
    most: list[int] = []

    def look() -> None:
        inside.append(1)
        most.append(len(inside))
        time.sleep(A_MOMENT / 4)
        inside.pop()

    assert in_threads([lambda: slow.refresh(1, look)] * 4) == [[1]] * 4
    assert most == [1] * 4


def test_identical_calls_of_every_call_steps_in_threads_have_numbers_of_their_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(range(10_000))
    sample = checkpointed(code="version", version="1", every_call=True, name="sample")(lambda prompt: next(drawn))
    import sys

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        found = in_threads([lambda: [sample("prompt") for _ in range(25)]] * MANY)
    finally:
        sys.setswitchinterval(before)
    assert sorted(number for each in found for number in each) == list(range(25 * MANY))
    assert run.ran["sample"] == 25 * MANY


# -- tasks


def test_a_node_asked_for_by_tasks_runs_once(run: Run) -> None:
    async def main() -> list[list[int]]:
        return await asyncio.gather(*(slow_async(1) for _ in range(MANY)))

    assert asyncio.run(main()) == [[1]] * MANY
    assert calls == ["slow_async 1"]


def test_different_nodes_run_at_the_same_time_in_tasks(run: Run) -> None:
    async def main() -> list[list[int]]:
        arrived = 0
        everybody = asyncio.Event()

        async def meet() -> None:
            nonlocal arrived
            arrived += 1
            if arrived == MANY:
                everybody.set()
            await asyncio.wait_for(everybody.wait(), PATIENCE)

        return await asyncio.gather(*(slow_async(n, meet) for n in range(MANY)))

    assert asyncio.run(main()) == [[n] for n in range(MANY)]


def test_a_node_asked_for_by_event_loops_of_several_threads_runs_once(run: Run) -> None:
    async def ask() -> list[list[int]]:
        return await asyncio.gather(slow_async(1), slow_async(1))

    assert in_threads([lambda: asyncio.run(ask())] * 4) == [[[1], [1]]] * 4
    assert calls == ["slow_async 1"]


def test_when_the_owner_is_cancelled_a_waiting_task_takes_over(run: Run) -> None:
    async def main() -> list[int]:
        owner = asyncio.create_task(slow_async(1, asyncio.Event().wait))
        while not calls:
            assert not owner.done()
            await asyncio.sleep(0.001)
        waiter = asyncio.create_task(slow_async(1, lambda: asyncio.sleep(0)))
        await asyncio.sleep(A_MOMENT)
        assert calls == ["slow_async 1"]
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner
        return await asyncio.wait_for(waiter, PATIENCE)

    assert asyncio.run(main()) == [1]
    assert calls == ["slow_async 1"] * 2


def test_when_a_waiter_is_cancelled_the_owner_and_the_others_go_on(run: Run) -> None:
    async def main() -> list[list[int]]:
        go = asyncio.Event()
        owner = asyncio.create_task(slow_async(1, go.wait))
        while not calls:
            assert not owner.done()
            await asyncio.sleep(0.001)
        waiters = [asyncio.create_task(slow_async(1)) for _ in range(3)]
        await asyncio.sleep(A_MOMENT)
        waiters[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiters[0]
        go.set()
        return await asyncio.wait_for(asyncio.gather(owner, *waiters[1:]), PATIENCE)

    assert asyncio.run(main()) == [[1]] * 3
    assert calls == ["slow_async 1"]


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_a_task_cancelled_anywhere_leaves_no_seat_behind(run: Run, twice: bool) -> None:
    async def main() -> None:
        for turns in range(40):
            task = asyncio.create_task(slow_async(turns, lambda: asyncio.sleep(0)))
            for _ in range(turns):
                await asyncio.sleep(0.0001)
            task.cancel()
            if twice:
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await asyncio.wait_for(slow_async(turns, lambda: asyncio.sleep(0)), PATIENCE) == [turns]

    asyncio.run(main())


def test_a_task_cancelled_while_all_helper_threads_are_busy_leaves_no_seat_behind(run: Run) -> None:
    """The store is asked for the seat in a helper thread, which may come to it only after the task is gone."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(1)
        loop.set_default_executor(pool)
        busy = threading.Event()
        blocker = loop.run_in_executor(None, busy.wait, PATIENCE)
        task = asyncio.create_task(slow_async(1))
        for _ in range(5):
            await asyncio.sleep(0.01)
            task.cancel()
        busy.set()
        await asyncio.gather(task, blocker, return_exceptions=True)
        return await asyncio.wait_for(slow_async(1, lambda: asyncio.sleep(0)), PATIENCE)

    assert asyncio.run(main()) == [1]


def test_a_timeout_around_a_step_leaves_no_seat_behind(run: Run) -> None:
    async def main() -> list[int]:
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await asyncio.wait_for(slow_async(1, asyncio.Event().wait), A_MOMENT)
        return await asyncio.wait_for(slow_async(1), PATIENCE)

    assert asyncio.run(main()) == [1]


# -- Ctrl-C


def test_ctrl_c_in_a_waiter_leaves_the_owner_and_the_seat_alone(run: Run) -> None:
    go, inside = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        go.wait(PATIENCE)

    owner = threading.Thread(target=copy_context().run, args=(slow, 1, wait))
    owner.start()
    assert inside.wait(PATIENCE)
    alarm = threading.Timer(A_MOMENT, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    alarm.start()
    with pytest.raises(KeyboardInterrupt):
        slow(1)
    go.set()
    owner.join(PATIENCE)
    assert slow(1) == [1]
    assert calls == ["slow 1"]


def test_ctrl_c_in_the_owner_lets_the_next_one_try(run: Run) -> None:
    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        slow(1, interrupted)
    assert in_threads([lambda: slow(1)] * 2) == [[1]] * 2
    assert calls == ["slow 1"] * 2


# -- processes


PROCESSES = """
    import os, sys, time
    from oncemore import checkpointed, checkpoint_scope

    def log(*words):
        with open("log", "a") as file:
            file.write(" ".join(map(str, words)) + "\\n")

    def meet(place, many):
        "Go on when so many processes have come here."
        os.makedirs(place, exist_ok=True)
        open(os.path.join(place, str(os.getpid())), "w").close()
        deadline = time.monotonic() + 60
        while len(os.listdir(place)) < many:
            assert time.monotonic() < deadline, f"the others never came to {place}"
            time.sleep(0.005)

    @checkpointed(code="version", version="1", ignore=["meanwhile"])
    def slow(n, meanwhile):
        log("slow", n)
        meanwhile()
        return [n]

    with checkpoint_scope("flight", store="store") as run:
        kind = sys.argv[1]
        if kind == "same":
            meet("start", 8)
            print(slow(1, lambda: time.sleep(0.3)))
        elif kind == "different":
            print(slow(int(sys.argv[2]), lambda: meet("inside", 4)))
        elif kind == "many":
            meet("start", 4)
            print(sum(slow(n, lambda: None)[0] for n in range(100)))
        elif kind == "forever":
            def wait():
                print("inside")
                time.sleep(600)
            slow(1, wait)
        elif kind == "ask":
            print("asking")
            print(slow(1, lambda: None))
        elif kind == "patient":
            def wait():
                print("inside")
                while not os.path.exists("go"):
                    time.sleep(0.005)
            print(slow(1, wait))
        elif kind == "fail":
            def fail():
                print("inside")
                while not os.path.exists("go"):
                    time.sleep(0.005)
                raise OSError("the owner fails")
            slow(1, fail)
"""


def log(script: Script) -> list[str]:
    return (script.folder / "log").read_text().splitlines()


def settle(script: Script) -> None:
    """Time for a waiter to come to the lock; it must not have begun the step by then."""
    time.sleep(A_MOMENT)
    assert log(script) == ["slow 1"]


def test_a_node_asked_for_by_processes_runs_once(script: Script) -> None:
    script.write(PROCESSES)
    processes = [script.start(None, "same") for _ in range(MANY)]
    assert [process.finish(0, PATIENCE).lines for process in processes] == [["[1]"]] * MANY
    assert log(script) == ["slow 1"]


def test_different_nodes_run_at_the_same_time_in_processes(script: Script) -> None:
    script.write(PROCESSES)
    processes = [script.start(None, "different", str(n)) for n in range(4)]
    assert [process.finish(0, PATIENCE).lines for process in processes] == [[f"[{n}]"] for n in range(4)]


def test_many_nodes_asked_for_by_processes_run_once_each(script: Script) -> None:
    script.write(PROCESSES)
    processes = [script.start(None, "many") for _ in range(4)]
    assert [process.finish(0, PATIENCE).lines for process in processes] == [["4950"]] * 4
    assert sorted(log(script)) == sorted(f"slow {n}" for n in range(100))


def test_when_the_owner_is_killed_a_waiting_process_takes_over(script: Script) -> None:
    owner = script.start(PROCESSES, "forever")
    owner.wait_for("inside")
    waiters = [script.start(None, "ask") for _ in range(3)]
    for waiter in waiters:
        waiter.wait_for("asking")
    settle(script)
    owner.kill()
    assert [waiter.finish(0, PATIENCE).lines[-1] for waiter in waiters] == ["[1]"] * 3
    assert log(script) == ["slow 1"] * 2


def test_when_the_owner_fails_a_waiting_process_tries_itself(script: Script) -> None:
    owner = script.start(PROCESSES, "fail")
    owner.wait_for("inside")
    waiter = script.start(None, "ask")
    waiter.wait_for("asking")
    settle(script)
    (script.folder / "go").touch()
    assert "OSError: the owner fails" in owner.finish(1).err
    assert waiter.finish(0, PATIENCE).lines[-1] == "[1]"
    assert log(script) == ["slow 1"] * 2


def test_a_waiting_process_that_is_interrupted_ends_and_the_owner_goes_on(script: Script) -> None:
    owner = script.start(PROCESSES, "patient")
    owner.wait_for("inside")
    waiter = script.start(None, "ask")
    waiter.wait_for("asking")
    settle(script)
    waiter.signal(signal.SIGINT)
    ended = waiter.finish(-signal.SIGINT, PATIENCE)
    assert ended.err.rstrip().endswith("KeyboardInterrupt")
    (script.folder / "go").touch()
    assert owner.finish(0).lines[-1] == "[1]"
    assert script(None, "ask").lines == ["asking", "[1]"]
    assert log(script) == ["slow 1"]


def test_a_stopped_owner_keeps_its_seat_until_it_goes_on(script: Script) -> None:
    owner = script.start(PROCESSES, "patient")
    owner.wait_for("inside")
    owner.signal(signal.SIGSTOP)
    waiter = script.start(None, "ask")
    waiter.wait_for("asking")
    (script.folder / "go").touch()
    settle(script)
    owner.signal(signal.SIGCONT)
    assert owner.finish(0).lines[-1] == "[1]"
    assert waiter.finish(0).lines[-1] == "[1]"
    assert log(script) == ["slow 1"]
