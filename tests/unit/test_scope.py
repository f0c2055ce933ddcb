"""checkpoint_scope: whose run it is, where it is kept, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

from oncemore import UsageError, checkpoint_scope, checkpointed, current_run, events, open_store
from oncemore.session import Session
from oncemore.stores.memory import MemoryStore
from tests.processes import Script

Ran = Callable[[], "list[str]"]


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Ran:
    """What was printed since it was last asked: every step here prints when its body runs."""
    return lambda: capsys.readouterr().out.split()


@checkpointed
def double(x: int) -> int:
    print("double")
    return x * 2


@checkpointed
async def later(x: int) -> int:
    print("later")
    await asyncio.sleep(0)
    return x + 1


@checkpointed
def raising(kind: type[BaseException]) -> None:
    raise kind("stop here")


def kinds(run_id: str, **options: Any) -> list[str]:
    """The events of a run so far, by kind."""
    with checkpoint_scope(run_id, **options) as run:
        return [type(fact).__name__ for fact in run.events()][:-1]


# --- the run id -----------------------------------------------------------------------------------------------------

DERIVED = """
    from oncemore import checkpointed, checkpoint_scope
    @checkpointed
    def load():
        print("ran")
    with checkpoint_scope() as run:
        load()
        print(run.id)
"""


def test_each_scope_logs_one_line_at_info_and_all_else_at_debug(script: Script) -> None:
    done = script(
        """
        import logging

        logging.basicConfig(level="INFO")
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def double(n):
            return 2 * n

        for _ in range(2):
            with checkpoint_scope("twice"):
                double(1)
        """
    )
    lines = [line for line in done.err.splitlines() if "oncemore" in line]
    assert lines == [
        "INFO:oncemore:run twice finished: 1 steps ran, 0 reused, 0 failed",
        "INFO:oncemore:run twice finished: 0 steps ran, 1 reused, 0 failed",
    ]


def test_without_a_run_id_one_is_derived_and_logged(script: Script) -> None:
    done = script("import logging; logging.basicConfig(level='DEBUG')" + DERIVED.replace("\n    ", "\n"))
    run_id = done.lines[-1]
    assert run_id.startswith("script-")
    assert f"DEBUG:oncemore:run {run_id}: the id is derived from ['script.py']" in done.err


def test_the_derived_id_is_the_same_for_the_same_command(script: Script) -> None:
    first = script(DERIVED, "--year", "2024")
    second = script(DERIVED, "--year", "2024")
    assert first.lines[0] == "ran"
    assert second.lines == first.lines[1:]


def test_the_derived_id_is_another_for_other_arguments(script: Script) -> None:
    ids = {script(DERIVED, *words).lines[-1] for words in ((), ("a",), ("a", "b"), ("a b",))}
    assert len(ids) == 4


def test_the_derived_id_is_another_for_another_script(script: Script) -> None:
    assert script(DERIVED, name="one.py").lines[-1] != script(DERIVED, name="two.py").lines[-1]


@pytest.mark.parametrize("odd", ["../x", "a/b", "/etc/x", "🙂", "ü\u0308", " ", "%2e", "a\\b", ".", "x" * 200, "CON"])
def test_an_odd_run_id_is_safe(odd: str, tmp_path: Path, ran: Ran) -> None:
    (tmp_path / "inner").mkdir()
    for _ in range(2):
        with checkpoint_scope(odd, store=tmp_path / "inner" / "store") as run:
            assert double(1) == 2
            assert run.id == odd
    assert ran() == ["double"]
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["store"]


def test_run_ids_that_look_alike_are_distinct(ran: Ran) -> None:
    alike = ["a", "A", "a ", "a/", "a.", "á", "a\u0301", "a%2F", "a/b", "a%2Fb", "node/a"]
    for run_id in alike:
        with checkpoint_scope(run_id):
            double(1)
    assert ran() == ["double"] * len(alike)


@pytest.mark.parametrize("wrong", ["", "a\0b", "a\nb", "x" * 10_000, "\ud800"])
def test_a_run_id_that_cannot_be_is_refused_when_the_scope_is_made(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run id"):
        checkpoint_scope(wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_run_id_is_text() -> None:
    with pytest.raises(UsageError, match="a string, not 3"):
        checkpoint_scope(3)  # type: ignore[arg-type]


# --- the store ------------------------------------------------------------------------------------------------------


def test_the_default_store_is_in_this_folder_and_git_ignores_itself(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "."], check=True)
    with checkpoint_scope("default"):
        double(1)
    assert (tmp_path / ".oncemore").is_dir()
    seen = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert seen.stdout == ""


def test_a_store_can_be_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "elsewhere"))
    with checkpoint_scope("named"):
        double(1)
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


@pytest.mark.parametrize("form", ["path", "text", "url", "store"])
def test_a_store_is_a_path_or_a_url_or_a_store(form: str, tmp_path: Path, ran: Ran) -> None:
    given: Any = {
        "path": tmp_path / "kept",
        "text": "./kept",
        "url": f"disk://{tmp_path}/kept",
        "store": open_store(tmp_path / "kept"),
    }[form]
    with checkpoint_scope("form", store=given):
        double(1)
    with checkpoint_scope("form", store=tmp_path / "kept"):
        double(1)
    assert ran() == ["double"]


def test_a_store_in_memory_serves_its_process(ran: Ran, tmp_path: Path) -> None:
    store = MemoryStore("here")
    for target in (store, "memory://here"):
        with checkpoint_scope("memory", store=target):
            double(1)
    assert ran() == ["double"]
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_of_store_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"ftp.*disk:"), checkpoint_scope("url", store="ftp://host/x"):
        pass


# --- nesting, threads, tasks ----------------------------------------------------------------------------------------


def test_the_current_run_is_the_one_around() -> None:
    assert current_run() is None
    with checkpoint_scope("outer") as outer:
        assert current_run() is outer
        with checkpoint_scope("inner") as inner:
            assert current_run() is inner
            assert inner is not outer
        assert current_run() is outer
    assert current_run() is None


def test_an_inner_scope_keeps_in_its_own_run(ran: Ran) -> None:
    for _ in range(2):
        with checkpoint_scope("outer"):
            double(1)
            with checkpoint_scope("inner"):
                double(1)
    assert ran() == ["double", "double"]
    with checkpoint_scope("inner"):
        assert double.is_done(1)


def test_a_scope_of_a_thread_is_not_seen_by_another() -> None:
    seen: list[Any] = []
    with checkpoint_scope("main"):
        thread = threading.Thread(target=lambda: seen.append(current_run()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_threads_can_be_in_different_runs_at_the_same_time() -> None:
    together = threading.Barrier(2)

    def work(run_id: str) -> str:
        with checkpoint_scope(run_id):
            together.wait(10)
            run = current_run()
            assert run is not None
            double(len(run_id))
            together.wait(10)
            return run.id

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, ["a", "bb"])) == ["a", "bb"]


def test_threads_can_be_in_one_run_at_the_same_time(ran: Ran) -> None:
    together = threading.Barrier(4)

    def work(x: int) -> int:
        with checkpoint_scope("shared"):
            together.wait(10)
            return double(x)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 2, 4, 6]
    assert len(ran()) == 4
    with checkpoint_scope("shared"):
        assert all(double.is_done(x) for x in range(4))


def test_one_scope_object_can_be_entered_by_several_threads() -> None:
    scope, together = checkpoint_scope("one object"), threading.Barrier(2)

    def work(x: int) -> bool:
        with scope as run:
            together.wait(10)
            double(x)
            inside = current_run() is run
            if x:
                together.wait(10)
        if not x:
            together.wait(10)  # the one that entered first or last leaves first, the other afterwards
        return inside and current_run() is None

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, [0, 1])) == [True, True]


def test_a_thread_that_takes_the_context_along_is_in_the_run(ran: Ran) -> None:
    with checkpoint_scope("context"), ThreadPoolExecutor(1) as pool:
        pool.submit(copy_context().run, double, 3).result()
        assert double.is_done(3)


def test_threads_of_a_pool_that_enter_no_scope_work_for_the_one_that_is_open(ran: Ran) -> None:
    for _ in range(2):
        with checkpoint_scope("outer"), checkpoint_scope("pool"), ThreadPoolExecutor(2) as pool:
            assert list(pool.map(double, [1, 2])) == [2, 4]
    assert ran() == ["double", "double"]
    with checkpoint_scope("pool"):
        assert double.is_done(1)


def test_between_two_open_runs_a_thread_in_neither_just_runs(ran: Ran) -> None:
    opened, over = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with checkpoint_scope("other"):
            opened.set()
            over.wait(10)

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two, checkpoint_scope("one") as run:
        done = one.submit(elsewhere)
        opened.wait(10)
        assert [two.submit(double, 1).result() for _ in range(2)] == [2, 2]
        over.set()
        done.result()
        assert run.ran == {}
    assert ran() == ["double", "double"]


def test_a_task_beside_the_one_with_the_scope_just_runs(ran: Ran) -> None:
    async def inside() -> None:
        async with checkpoint_scope("beside"):
            await asyncio.sleep(0.1)
            assert not later.is_done(1)

    async def outside() -> None:
        await asyncio.sleep(0.05)
        await later(1)

    async def main() -> None:
        await asyncio.gather(inside(), outside())

    asyncio.run(main())
    assert ran() == ["later"]


def test_tasks_inherit_the_run_and_keep_their_own_scopes_to_themselves() -> None:
    async def own(run_id: str) -> str:
        async with checkpoint_scope(run_id):
            await asyncio.sleep(0.01)
            await later(1)
            run = current_run()
            assert run is not None
            return run.id

    async def inherited() -> str:
        await asyncio.sleep(0.005)
        run = current_run()
        assert run is not None
        return run.id

    async def main() -> list[str]:
        async with checkpoint_scope("outer"):
            return await asyncio.gather(own("a"), inherited(), own("b"))

    assert asyncio.run(main()) == ["a", "outer", "b"]


def test_an_async_scope_is_a_second_run_of_a_sync_one(ran: Ran) -> None:
    async def main() -> int:
        async with checkpoint_scope("both"):
            return double(1) + await later(1)

    with checkpoint_scope("both"):
        double(1)
    assert asyncio.run(main()) == asyncio.run(main()) == 4
    assert ran() == ["double", "later"]


def test_processes_can_be_in_one_run_at_the_same_time(script: Script) -> None:
    source = """
        import os, sys, time
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed
        def load(x):
            print("ran", x)
            return x
        with checkpoint_scope("together"):
            print("inside", flush=True)
            while not os.path.exists("go"):
                time.sleep(0.005)
            for x in range(int(sys.argv[1]), int(sys.argv[1]) + 4):
                load(x)
    """
    first, second = script.start(source, "0"), script.start(source, "4")
    first.wait_for("inside")
    second.wait_for("inside")
    (script.folder / "go").touch()
    assert first.finish(0).out.count("ran") == second.finish(0).out.count("ran") == 4
    assert script(source, "2").lines == ["inside"]


# --- how it ends ----------------------------------------------------------------------------------------------------


def test_a_run_that_ends_is_recorded_as_finished() -> None:
    with checkpoint_scope("ends"):
        double(1)
    assert kinds("ends") == ["RunStarted", "StepCompleted", "RunFinished"]


def test_what_was_reused_is_recorded_once_at_the_end() -> None:
    for _ in range(2):
        with checkpoint_scope("reused") as run:
            double(1)
            double(1)
            double(2)
    reused = [fact for fact in run.events() if isinstance(fact, events.StepReused)]
    assert [(fact.step, fact.times) for fact in reused] == [("double", 1), ("double", 3)]


def test_an_exception_passes_through_untouched_and_the_run_is_recorded_as_failed() -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError) as caught, checkpoint_scope("fails"):
        raise error
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (None, None)
    assert kinds("fails") == ["RunStarted", "RunFailed"]


def test_an_async_scope_records_a_failure_as_well() -> None:
    async def main() -> None:
        async with checkpoint_scope("async fails"):
            raise KeyError("mine")

    with pytest.raises(KeyError):
        asyncio.run(main())
    assert kinds("async fails") == ["RunStarted", "RunFailed"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_an_interruption_is_no_failure_of_run_or_step(kind: type[BaseException]) -> None:
    with pytest.raises(kind) as caught, checkpoint_scope("interrupted"):
        raising(kind)
    assert type(caught.value) is kind
    assert kinds("interrupted") == ["RunStarted", "RunInterrupted"]


def test_an_exit_without_an_error_is_an_end() -> None:
    with pytest.raises(SystemExit), checkpoint_scope("exit"):
        raise SystemExit(0)
    assert kinds("exit") == ["RunStarted", "RunFinished"]


def test_ctrl_c_is_recorded_as_interrupted_and_the_rest_resumes(script: Script) -> None:
    source = """
        import os, time
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed
        def first():
            print("ran first")
        @checkpointed
        def second():
            print("ran second", flush=True)
            if not os.path.exists("go"):
                time.sleep(60)
        with checkpoint_scope("long") as run:
            first()
            second()
            print(*[type(fact).__name__ for fact in run.events()])
    """
    running = script.start(source)
    running.wait_for("ran second")
    running.signal(signal.SIGINT)
    ended = running.finish()
    assert ended.code in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in ended.err
    (script.folder / "go").touch()
    assert script(source).lines == [
        "ran second",
        "RunStarted StepCompleted RunInterrupted RunResumed StepCompleted",
    ]


def test_a_scope_that_is_cancelled_while_it_opens_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    opening, real = threading.Event(), Session.open

    def slow(run: Session, **options: Any) -> Session:
        opening.set()
        time.sleep(0.1)
        return real(run, **options)

    async def work() -> None:
        async with checkpoint_scope("cancelled"):
            pytest.fail("it was entered")

    async def main() -> None:
        task = asyncio.create_task(work())
        while not opening.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(Session, "open", slow)
    asyncio.run(main())
    assert kinds("cancelled") == ["RunStarted", "RunInterrupted"]


def test_a_cancelled_task_is_recorded_as_interrupted() -> None:
    async def work() -> None:
        async with checkpoint_scope("cancelled"):
            await slow()

    @checkpointed
    async def slow() -> None:
        await asyncio.sleep(30)

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert kinds("cancelled") == ["RunStarted", "RunInterrupted"]


def test_a_workflow_is_part_of_the_record() -> None:
    with checkpoint_scope("with workflow", workflow="churn") as run:
        (started,) = run.events()
    assert isinstance(started, events.RunStarted)
    assert started.workflow == "churn"


def test_the_run_counts_what_happened() -> None:
    with checkpoint_scope("counts"):
        double(1)
    with checkpoint_scope("counts") as run:
        double(1)
        double(2)
        with pytest.raises(ZeroDivisionError):
            raising(ZeroDivisionError)
        assert (run.ran, run.reused, run.failed) == ({"double": 1}, {"double": 1}, {"raising": 1})


def test_a_run_shows_its_id_and_its_store() -> None:
    with checkpoint_scope("shown", store="memory://shown") as run:
        assert re.fullmatch(r"<Run 'shown' in memory://shown>", repr(run))


def test_a_task_that_goes_on_after_its_scope_still_keeps_what_it_does(ran: Ran) -> None:
    async def goes_on(over: asyncio.Event) -> int:
        await over.wait()
        return await later(1)

    async def main() -> int:
        over = asyncio.Event()
        async with checkpoint_scope("outlived"):
            task = asyncio.create_task(goes_on(over))
        gc.collect()
        over.set()
        return await task

    assert [asyncio.run(main()) for _ in range(2)] == [2, 2]
    assert ran() == ["later"]


def test_once_nobody_can_be_in_a_scope_any_more_calls_are_plain_again(script: Script) -> None:
    done = script(
        """
        import gc, time
        from oncemore import checkpoint_scope, checkpointed, current

        @checkpointed
        def double(x):
            print("double")
            return x * 2

        with checkpoint_scope("over"):
            double(1)
        until = time.monotonic() + 30
        while current.engaged and time.monotonic() < until:
            time.sleep(0.1)
            gc.collect()
        print(len(current.engaged), double(1), double(1))
        """
    )
    assert done.out.split() == ["double", "double", "double", "0", "2", "2"]
