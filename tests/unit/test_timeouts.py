"""timeout=: a step that takes too long fails, in the main thread, in other threads and in tasks."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest
from tenacity import Retrying, stop_after_attempt, wait_none

from oncemore import (
    CheckpointWarning,
    Failure,
    OncemoreError,
    StepTimeout,
    UnknownOutcome,
    checkpointed,
    current_run,
)
from oncemore.events import StepCompleted, StepEvent, StepFailed, StepRetried
from tests.processes import Script
from tests.unit.again import scope
from tests.unit.test_retries import attempt

SHORT = 0.05  # for bodies that never end by themselves
LONG = 20  # for bodies that end at once
TWICE = Retrying(stop=stop_after_attempt(2), wait=wait_none())


def here(call: Callable[[], Any]) -> Any:
    return call()


def in_a_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, call).result()


anywhere = pytest.mark.parametrize("place", [here, in_a_thread])
VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="default")


def hang() -> None:
    threading.Event().wait()


@anywhere
def test_a_step_that_takes_too_long_fails(place: Callable[..., Any]) -> None:
    @checkpointed(timeout=SHORT)
    def stuck(n: int) -> None:
        hang()

    def body(run: Any) -> None:
        with pytest.raises(StepTimeout, match=r"stuck-\w{8} took longer than its timeout of 0.05 s") as caught:
            place(lambda: stuck(1))
        assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, OncemoreError)
        assert caught.value.node.rpartition(".")[2].startswith("stuck-") and caught.value.limit == SHORT
        assert caught.value.__cause__ is None and caught.value.__suppress_context__
        assert run.failed.total() == 1

    [event] = [event for event in scope(body).events if isinstance(event, (StepFailed, StepCompleted))]
    assert isinstance(event, StepFailed) and event.error.startswith("StepTimeout: ")


def test_the_error_survives_a_pickle() -> None:
    for again in (pickle.loads(pickle.dumps(StepTimeout("node", 3.0))), copy.copy(StepTimeout("node", 3.0))):
        assert (str(again), again.node, again.limit) == ("node took longer than its timeout of 3 s", "node", 3.0)


def test_in_the_main_thread_whatever_blocks_is_interrupted() -> None:
    ends = list[str]()

    @checkpointed(timeout=SHORT, ignore=["ends"])
    def read(ends: list[str]) -> None:
        one, other = socket.socketpair()
        with one, other:
            try:
                one.recv(1)
            finally:
                ends.append("read")

    @checkpointed(timeout=SHORT, ignore=["ends"])
    def count(ends: list[str]) -> None:
        try:
            while True:
                with contextlib.suppress(Exception):  # not taken for a failure of what is tried here
                    len(ends)
        finally:
            ends.append("count")

    def body(run: Any) -> None:
        for step in (read, count):
            with pytest.raises(StepTimeout) as caught:
                step(ends)
            assert any(entry.name in ("read", "count") for entry in caught.traceback)  # it shows where

    scope(body)
    assert ends == ["read", "count"]


def test_an_event_loop_inside_a_function_is_interrupted() -> None:
    ends = list[str]()

    @checkpointed(timeout=SHORT, ignore=["ends"])
    def stuck(ends: list[str]) -> None:
        async def main() -> None:
            try:
                await forever()
            finally:
                ends.append("cancelled")

        asyncio.run(main())

    with pytest.raises(StepTimeout):
        scope(lambda run: stuck(ends))
    assert ends == ["cancelled"]


@anywhere
@pytest.mark.parametrize("instead", ["a value", "an error"])
def test_a_body_that_catches_everything_fails_nevertheless(place: Callable[..., Any], instead: str) -> None:
    @checkpointed(timeout=SHORT)
    def stubborn(instead: str) -> str:
        try:
            hang()
        except BaseException:
            if instead == "an error":
                raise ValueError("mine") from None
        return instead

    def body(run: Any) -> None:
        with pytest.raises(StepTimeout) as caught:
            place(lambda: stubborn(instead))
        expected = ValueError if instead == "an error" and place is here else type(None)
        assert isinstance(caught.value.__cause__, expected)

    found = scope(body)
    assert found.ran == {}


def test_signal_and_timer_are_as_they_were() -> None:
    @checkpointed(timeout=LONG)
    def quick() -> int:
        return 1

    @checkpointed(timeout=LONG)
    def outer() -> int:
        return quick() + quick.refresh()

    assert scope(lambda run: outer()).value == 2
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("theirs", ["handler", "timer"])
def test_a_handler_or_timer_of_the_program_is_left_alone(theirs: str) -> None:
    rung = list[int]()

    def handler(number: int, frame: Any) -> None:
        rung.append(number)

    @checkpointed(timeout=SHORT)
    def stuck(theirs: str) -> None:
        hang()

    def body(run: Any) -> None:
        with pytest.raises(StepTimeout):
            stuck(theirs)

    before = signal.signal(signal.SIGALRM, handler) if theirs == "handler" else signal.SIG_DFL
    if theirs == "timer":
        signal.setitimer(signal.ITIMER_REAL, 3600)
    try:
        scope(body)
        assert signal.getsignal(signal.SIGALRM) is (handler if theirs == "handler" else signal.SIG_DFL)
        assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (theirs == "timer")
        if theirs == "handler":
            signal.raise_signal(signal.SIGALRM)
            assert rung == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@anywhere
@pytest.mark.parametrize(("outer_limit", "inner_limit"), [(SHORT, LONG), (LONG, SHORT), (SHORT, None)])
def test_limits_of_steps_inside_steps(place: Callable[..., Any], outer_limit: Any, inner_limit: Any) -> None:
    """The one whose time is up fails; an inner step that is cut off has not failed, and is not tried again."""

    @checkpointed(name="inner", timeout=inner_limit, retries=TWICE)
    def inner() -> None:
        hang()

    @checkpointed(name="outer", timeout=outer_limit)
    def outer() -> None:
        inner()

    def body(run: Any) -> str:
        with pytest.raises(StepTimeout) as caught:
            place(outer)
        return caught.value.node.partition("-")[0]

    found = scope(body)
    events = [(type(event), event.step) for event in found.events if isinstance(event, (StepFailed, StepRetried))]
    if outer_limit == LONG:
        assert found.value == "inner"
        assert events == [(StepRetried, "inner"), (StepFailed, "inner"), (StepFailed, "outer")]
    else:
        assert found.value == "outer"
        assert events == [(StepFailed, "outer")]


# -- in threads: the body is abandoned


def test_an_abandoned_body_can_no_longer_use_the_run() -> None:
    go, over = threading.Event(), threading.Event()
    reached = list[str]()

    @checkpointed(name="inner")
    def inner() -> None:
        reached.append("inner")

    @checkpointed(timeout=SHORT, ignore=["use"])
    def late(number: int, use: Callable[[], Any]) -> None:
        go.wait()
        try:
            use()
            reached.append(f"use {number}")
        finally:
            over.set()

    def body(run: Any) -> dict[str, Any]:
        for number, use in enumerate(uses):
            go.clear(), over.clear()
            with pytest.raises(StepTimeout):
                in_a_thread(lambda number=number, use=use: late(number, use))
            go.set()
            over.wait()
        return dict(run.state)

    def set_state() -> None:
        current_run().state.x = 2

    state: Any = None

    def set_known_state() -> None:
        state["x"] = 2

    def remember(run: Any) -> Any:
        nonlocal state
        state = run.state
        return body(run)

    uses = [set_state, set_known_state, inner, lambda: state.get("x")]
    found = scope(remember, state={"x": 1})
    assert (found.value, reached) == ({"x": 1}, [])
    assert found.ran == {}


def test_a_process_does_not_wait_for_abandoned_bodies(script: Script) -> None:
    done = script(
        """
        import threading
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed(timeout=2)
        def ask(n):
            if n % 2:
                threading.Event().wait()
            return n

        with checkpoint_scope("run") as run:
            print(run.map(ask, range(4), on_error="collect"))
        """
    )
    [line] = done.lines
    assert line.startswith("[0, Failure(index=1, item=1, error=StepTimeout('ask-")


def test_a_limit_that_is_kept_changes_nothing_about_a_call() -> None:
    @checkpointed(timeout=LONG)
    def change(rows: list[int]) -> Any:
        rows.append(1)
        VARIABLE.set("set")
        current_run().state.n = len(rows)
        return threading.current_thread().name, rows

    def in_this_thread(rows: list[int]) -> Any:
        found = change(rows)
        return found[1] is rows, found[0] == threading.current_thread().name, VARIABLE.get()

    def body(run: Any) -> Any:
        rows: list[int] = []
        return in_a_thread(lambda: in_this_thread(rows)), rows, dict(run.state)

    first = scope(body)
    assert first.value == ((True, True, "set"), [1], {"n": 1})
    second = scope(body)
    assert second.ran == {}
    assert second.value[1:] == ([1], {"n": 1})


def test_steps_called_within_a_limit_follow_one_another_as_without() -> None:
    @checkpointed
    def inner() -> int:
        SHARED.append("inner")
        return len(SHARED)

    @checkpointed(timeout=LONG)
    def outer() -> list[int]:
        return [inner(), inner()]

    def body(run: Any) -> Any:
        SHARED.clear()
        return in_a_thread(outer)

    first, second = scope(body), scope(body)
    assert first.value == second.value == [1, 2]
    assert second.ran == {}


SHARED: list[str] = []


# -- coroutines


async def forever() -> None:
    await asyncio.Event().wait()


def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    ends = list[str]()

    @checkpointed(timeout=SHORT, ignore=["ends"])
    async def stuck(ends: list[str]) -> None:
        try:
            await forever()
        finally:
            ends.append("cancelled")

    async def main() -> None:
        with pytest.raises(StepTimeout) as caught:
            await stuck(ends)
        assert any(entry.name == "forever" for entry in caught.traceback)
        await asyncio.sleep(0)  # the task itself is not cancelled

    assert [type(event) for event in scope(lambda run: asyncio.run(main())).events] == [StepFailed]
    assert ends == ["cancelled"]


@pytest.mark.parametrize("instead", ["a value", "an error"])
def test_a_coroutine_that_swallows_the_cancellation_fails_nevertheless(instead: str) -> None:
    @checkpointed(timeout=SHORT)
    async def stubborn(instead: str) -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            if instead == "an error":
                raise ValueError("mine") from None
        return instead

    async def main() -> None:
        with pytest.raises(StepTimeout):
            await stubborn(instead)
        await asyncio.sleep(0)

    assert scope(lambda run: asyncio.run(main())).ran == {}


def test_a_cancellation_from_outside_stays_one() -> None:
    started = asyncio.Event()

    @checkpointed(timeout=LONG)
    async def stuck() -> None:
        started.set()
        await forever()

    async def main() -> None:
        task = asyncio.create_task(stuck())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    found = scope(lambda run: asyncio.run(main()))
    assert not [event for event in found.events if isinstance(event, StepFailed)]


def test_limits_of_coroutines_inside_coroutines() -> None:
    @checkpointed(name="inner", timeout=LONG)
    async def inner() -> None:
        await forever()

    @checkpointed(name="outer", timeout=SHORT)
    async def outer() -> None:
        await inner()

    async def main() -> str:
        with pytest.raises(StepTimeout) as caught:
            await outer()
        return caught.value.node.partition("-")[0]

    found = scope(lambda run: asyncio.run(main()))
    assert found.value == "outer"
    assert [event.step for event in found.events if isinstance(event, StepEvent)] == ["outer"]


# -- with the rest


def test_each_try_has_the_whole_time(tmp_path: Path) -> None:
    @checkpointed(timeout=1, retries=TWICE)
    def ask(folder: Path) -> str:
        if attempt(folder) == 1:
            hang()
        return "answer"

    @checkpointed(timeout=1, retries=TWICE)
    async def ask_later(folder: Path) -> str:
        if attempt(folder, "later") == 1:
            await forever()
        return "answer"

    found = scope(lambda run: (ask(tmp_path), asyncio.run(ask_later(tmp_path))))
    assert found.value == ("answer", "answer")
    first, _, second, _ = (event for event in found.events if isinstance(event, (StepRetried, StepCompleted)))
    assert first.error.startswith("StepTimeout") and second.error.startswith("StepTimeout")


def test_an_effect_whose_time_was_up_may_have_happened(tmp_path: Path) -> None:
    @checkpointed(name="pay", effect="once", timeout=SHORT, retries=TWICE)
    def pay(folder: Path) -> None:
        attempt(folder)
        hang()

    def body(run: Any) -> None:
        with pytest.raises(StepTimeout):
            pay(tmp_path)
        with pytest.raises(UnknownOutcome, match="may or may not have happened"):
            pay(tmp_path)
        run.resolve("pay", happened=True, result=7)
        assert pay(tmp_path) == 7

    scope(body)
    assert attempt(tmp_path) == 2


def test_an_effect_inside_a_step_whose_time_was_up_may_have_happened() -> None:
    @checkpointed(name="pay", effect="once")
    def pay() -> None:
        hang()

    @checkpointed(timeout=SHORT)
    def order() -> None:
        pay()

    def body(run: Any) -> None:
        with pytest.raises(StepTimeout):
            order()
        with pytest.raises(UnknownOutcome):
            pay()

    scope(body)


def test_the_lease_is_free_again_when_the_time_is_up() -> None:
    calls = list[int]()

    @checkpointed(timeout=1, ignore=["calls"])
    def ask(calls: list[int]) -> str:
        calls.append(1)
        if len(calls) == 1:
            hang()
        return "answer"

    def body(run: Any) -> list[Any]:
        with pytest.raises(StepTimeout):
            in_a_thread(lambda: ask(calls))
        return [ask(calls), in_a_thread(lambda: ask(calls))]

    assert scope(body).value == ["answer", "answer"]
    assert len(calls) == 2


def test_what_an_abandoned_try_may_have_changed_meanwhile_is_not_saved(tmp_path: Path) -> None:
    go = threading.Event()

    @checkpointed(timeout=1, retries=TWICE)
    def add(folder: Path, rows: list[str]) -> int:
        if attempt(folder) == 1:
            go.wait()
        rows.append("x")
        return len(rows)

    def body(run: Any) -> None:
        with pytest.warns(CheckpointWarning, match="an earlier try, abandoned when its time was up, was still running"):
            assert in_a_thread(lambda: add(tmp_path, [])) == 1
        go.set()

    try:
        scope(body)
    finally:
        go.set()


def test_in_a_map_each_call_has_its_own_limit() -> None:
    @checkpointed(timeout=1)
    def ask(n: int) -> int:
        if n == 2:
            hang()
        return n

    @checkpointed(timeout=1)
    async def ask_later(n: int) -> int:
        if n == 2:
            await forever()
        return n

    def body(run: Any) -> Any:
        async def main() -> Any:
            return await run.map(ask_later, range(4), on_error="collect")

        return [run.map(ask, range(4), on_error="collect"), asyncio.run(main())]

    for results in scope(body).value:
        assert [each for each in results if not isinstance(each, Failure)] == [0, 1, 3]
        assert isinstance(results[2].error, StepTimeout)


def test_a_forked_child_is_not_limited_by_the_parents_step(script: Script) -> None:
    done = script(
        """
        import os
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed(timeout=20)
        def inner():
            return 1

        @checkpointed(timeout=20)
        def outer():
            child = os.fork()
            if not child:
                print(inner(), flush=True)
                os._exit(0)
            os.waitpid(child, 0)

        with checkpoint_scope("run"):
            outer()
        """
    )
    assert done.lines == ["1"]


def test_ctrl_c_while_a_thread_runs_the_body_ends_the_step(script: Script) -> None:
    running = script.start(
        """
        import signal, threading
        from oncemore import checkpoint_scope, checkpointed

        signal.signal(signal.SIGALRM, lambda *_: None)  # so the body runs in a thread

        @checkpointed(timeout=3600)
        def ask():
            print("asks", threading.current_thread() is threading.main_thread(), flush=True)
            threading.Event().wait()

        with checkpoint_scope("run"):
            ask()
        """
    )
    running.wait_for("asks False")
    running.signal(signal.SIGINT)
    assert "KeyboardInterrupt" in running.finish().err


def test_outside_of_a_scope_nothing_is_limited() -> None:
    @checkpointed(timeout=1e-9)
    def ask() -> int:
        return 1

    assert ask() == 1
    with pytest.raises(StepTimeout):
        scope(lambda run: ask())


def test_what_an_abandoned_body_does_to_shared_data_counts_for_the_steps_that_run() -> None:
    """A limit of Python: see "Steps that were abandoned" in docs/explanation/guarantees.md."""
    go, done = threading.Event(), threading.Event()

    @checkpointed(timeout=SHORT, ignore=["go", "done"])
    def late(go: threading.Event, done: threading.Event) -> None:
        go.wait()
        SHARED.append("late")
        done.set()

    @checkpointed(ignore=["go", "done"])
    def other(go: threading.Event, done: threading.Event) -> int:
        go.set()
        done.wait()
        return len(SHARED)

    def body(run: Any) -> Any:
        SHARED.clear()
        if not run.resumed:
            with pytest.raises(StepTimeout):
                in_a_thread(lambda: late(go, done))
        return other(go, done), [*SHARED]

    first, second = scope(body), scope(body)
    assert first.value == second.value == (1, ["late"])
    assert second.ran == {}
