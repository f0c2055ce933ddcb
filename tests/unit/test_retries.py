"""retries=: a step that failed is tried again, and a failed attempt leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tenacity import (
    AsyncRetrying,
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    wait_fixed,
    wait_none,
)

from oncemore import (
    CheckpointWarning,
    OutputMissing,
    UnknownOutcome,
    UsageError,
    checkpointed,
    current_run,
    memoized,
)
from oncemore.events import StepCompleted, StepFailed, StepRetried
from tests.processes import Script
from tests.unit.again import effects, scope

QUICK = Retrying(stop=stop_after_attempt(4), wait=wait_none())


def attempt(folder: Path, name: str = "attempts") -> int:
    """The number of this attempt, from 1. It is in a file, which nothing puts back."""
    with open(folder / name, "ab") as file:
        file.write(b".")
        return file.tell()


def retried(found: Any) -> list[StepRetried]:
    return [event for event in found.events if isinstance(event, StepRetried)]


# -- which failures, how often


def test_a_step_that_fails_is_tried_again_and_each_failed_attempt_is_an_event(tmp_path: Path) -> None:
    @checkpointed(retries=QUICK)
    def ask(folder: Path) -> str:
        if (number := attempt(folder)) < 3:
            raise OSError(f"busy {number}")
        return "answer"

    first = scope(lambda run: ask(tmp_path))
    assert first.value == "answer"
    assert first.ran == {"ask": 1}
    assert [(event.attempt, event.most, event.error, event.wait) for event in retried(first)] == [
        (1, 4, "OSError: busy 1", 0),
        (2, 4, "OSError: busy 2", 0),
    ]
    assert [type(event) for event in first.events] == [StepRetried, StepRetried, StepCompleted]
    assert retried(first)[0].line == "attempt 2 of 4 in 0 ms: OSError: busy 1"
    second = scope(lambda run: ask(tmp_path))
    assert (second.value, second.ran) == ("answer", {})


def test_a_coroutine_step_is_tried_again(tmp_path: Path) -> None:
    @checkpointed(retries=QUICK)
    async def ask(folder: Path) -> str:
        await asyncio.sleep(0)
        if attempt(folder) < 3:
            raise OSError("busy")
        return "answer"

    found = scope(lambda run: asyncio.run(ask(tmp_path)))
    assert (found.value, found.ran, len(retried(found))) == ("answer", {"ask": 1}, 2)


def test_after_the_last_attempt_its_own_error_is_raised(tmp_path: Path) -> None:
    @checkpointed(retries=QUICK)
    def ask(folder: Path) -> None:
        number = attempt(folder)
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise OSError(f"busy {number}") from inner

    def body(run: Any) -> None:
        with pytest.raises(OSError, match="busy 4") as caught:
            ask(tmp_path)
        assert isinstance(caught.value.__cause__, KeyError)
        assert caught.value.__context__ is caught.value.__cause__
        assert sum("oncemore" in str(entry.path) for entry in caught.traceback) <= 1
        assert run.failed == {"test_after_the_last_attempt_its_own_error_is_raised.<locals>.ask": 1}

    found = scope(body)
    assert [type(event) for event in found.events] == [StepRetried] * 3 + [StepFailed]


def test_an_exception_that_the_policy_does_not_name_is_raised_at_once(tmp_path: Path) -> None:
    @checkpointed(retries=QUICK.copy(retry=retry_if_exception_type(OSError)))
    def ask(folder: Path) -> None:
        attempt(folder)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        scope(lambda run: ask(tmp_path))
    assert attempt(tmp_path) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, UsageError, asyncio.CancelledError])
def test_what_another_attempt_cannot_mend_is_not_tried_again(error: type[BaseException], tmp_path: Path) -> None:
    @checkpointed(retries=QUICK, key={"error": lambda error: error.__name__})
    def ask(folder: Path, error: type[BaseException]) -> None:
        attempt(folder)
        raise error()

    with pytest.raises(error):
        scope(lambda run: ask(tmp_path, error))
    assert attempt(tmp_path) == 2


def test_a_number_is_that_of_further_attempts_and_the_waits_double() -> None:
    @checkpointed(retries=2)
    def ask() -> None:
        raise OSError("busy")

    policy = ask._self_definition.policy  # type: ignore[attr-defined]
    attempts, waits = policy.attempts(), []
    for _ in range(3):
        attempts.begin()
        waits.append(attempts.wait_after(OSError()))
    assert attempts.most == 3
    assert 1 <= waits[0] <= 2 <= waits[1] <= 3
    assert waits[2] is None


def test_the_hooks_of_a_policy_are_called(tmp_path: Path) -> None:
    seen: list[str] = []
    hooks = QUICK.copy(
        before=lambda state: seen.append(f"before {state.attempt_number}"),
        before_sleep=lambda state: seen.append(f"sleep {state.outcome.exception()}"),
    )

    @checkpointed(retries=hooks)
    def ask(folder: Path) -> int:
        if attempt(folder) < 2:
            raise OSError("busy")
        return 1

    scope(lambda run: ask(tmp_path))
    assert seen == ["before 1", "sleep busy", "before 2"]


def test_another_policy_reruns_nothing(tmp_path: Path) -> None:
    def step(**options: Any) -> Any:
        @checkpointed(**options)
        def ask(folder: Path) -> int:
            return attempt(folder)

        return ask

    for options in ({}, {"retries": 2}, {"retries": QUICK}, {"timeout": "1min"}, {"timeout": 30, "retries": 5}):
        assert scope(lambda run, step=step(**options): step(tmp_path)).value == 1, options


def test_options_that_make_no_sense_are_refused() -> None:
    def refuse(match: str, function: Any = None, **options: Any) -> None:
        with pytest.raises(UsageError, match=match):
            checkpointed(**options)(function or (lambda: 1))

    for wrong in (-1, True, 1.5, "3", AsyncRetrying(), retry_if_result(bool)):
        refuse("use a number of further attempts or a tenacity.Retrying", retries=wrong)
    refuse("decides by exceptions only", retries=Retrying(retry=retry_if_exception_type() | retry_if_result(bool)))
    refuse("decides by exceptions only", retries=Retrying(retry_error_callback=lambda state: None))
    refuse("is not a duration", timeout="soon")
    for wrong in (0, math.inf, 1e12, timedelta(seconds=-1)):
        refuse("is not a time that can be waited for", timeout=wrong)

    def items() -> Any:
        yield 1

    async def items_later() -> Any:
        yield 1

    for function in (items, items_later):
        refuse("retries=2 does not work on generators", function, retries=2)
        refuse("timeout='1s' does not work on generators", function, timeout="1s")


def test_without_tenacity_the_decorator_names_what_to_install(script: Script) -> None:
    done = script(
        """
        import sys
        sys.modules["tenacity"] = None
        from oncemore import UsageError, checkpointed

        @checkpointed(retries=0, timeout=1)
        def plain(): ...

        try:
            @checkpointed(retries=2)
            def ask(): ...
        except UsageError as error:
            print(error)
        """
    )
    assert done.lines == ["step ask: retries= needs the package tenacity: pip install 'oncemore[retry]'"]


# -- a failed attempt leaves nothing behind


class Box:
    def __init__(self) -> None:
        self.items: list[int] = []


SEEN: list[Any] = []
TOTAL = 0


class Model:
    fitted = 0


def test_what_a_failed_attempt_changed_is_put_back(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")

    @checkpointed(retries=QUICK)
    def change(folder: Path, rows: list[Any], box: Box, array: Any, table: dict[str, Any]) -> Any:
        global TOTAL
        found = len(rows), len(box.items), float(array.sum()), len(table), len(SEEN), TOTAL, Model.fitted
        found += (current_run().state.get("n"), os.environ.get("ONCEMORE_TEST_X"), os.getcwd(), random.random())
        rows.append([1])
        rows[0].append(2)
        box.items.append(3)
        box.name = "changed"  # type: ignore[attr-defined]
        array += 1
        table["rows"] = rows
        SEEN.append(rows)
        TOTAL += 1
        Model.fitted += 1
        current_run().state.n = 5
        os.environ["ONCEMORE_TEST_X"] = "set"
        os.chdir(folder)
        if attempt(folder) < 3:
            raise OSError("busy")
        return found

    def body(run: Any) -> Any:
        global TOTAL
        SEEN.clear()
        TOTAL, Model.fitted = 0, 0
        os.environ.pop("ONCEMORE_TEST_X", None)
        os.chdir(here)
        random.seed(7)
        inner, box, array = [0], Box(), numpy.zeros(3)
        rows, table = [inner], dict[str, Any]()
        found = change(tmp_path, rows, box, array, table)
        assert rows[0] is inner and table["rows"] is rows and SEEN[0] is rows
        after = rows, vars(box), array.tolist(), TOTAL, Model.fitted, dict(run.state), os.getcwd(), random.random()
        return found, after, os.environ.pop("ONCEMORE_TEST_X")

    here = os.getcwd()
    try:
        first, second = scope(body), scope(body)
    finally:
        os.chdir(here)
    draws = random.Random(7)
    assert first.value[0] == (1, 0, 0.0, 0, 0, 0, 0, None, None, here, draws.random())
    after = [[0, 2], [1]], {"items": [3], "name": "changed"}, [1.0] * 3, 1, 1, {"n": 5}, str(tmp_path), draws.random()
    assert first.value[1:] == (after, "set")
    assert (first.ran, second.ran) == ({"change": 1}, {})
    assert second.value == first.value


def test_the_last_attempt_leaves_nothing_behind_either() -> None:
    @checkpointed(retries=QUICK)
    def change(rows: list[int]) -> None:
        rows.append(len(rows))
        SEEN.append(1)
        raise OSError("busy")

    def body(run: Any) -> list[int]:
        SEEN.clear()
        rows: list[int] = []
        with pytest.raises(OSError, match="busy"):
            change(rows)
        return [*rows, *SEEN]

    assert scope(body).value == []


def test_steps_inside_a_failed_attempt_are_skipped_in_the_next_and_their_effects_made_again(tmp_path: Path) -> None:
    @checkpointed
    def inner(rows: list[int]) -> float:
        rows.append(1)
        os.environ["ONCEMORE_TEST_X"] = "inner"
        SEEN.append("inner")
        return random.random()

    @checkpointed(every_call=True)
    def sample() -> float:
        return random.random()

    @checkpointed(retries=QUICK)
    def outer(folder: Path, rows: list[int]) -> Any:
        os.environ.pop("ONCEMORE_TEST_X", None)
        found = inner(rows), sample(), sample(), random.random()
        if attempt(folder) < 2:
            raise OSError("busy")
        return found, os.environ["ONCEMORE_TEST_X"]

    def body(run: Any) -> Any:
        SEEN.clear()
        random.seed(3)
        rows: list[int] = []
        return outer(tmp_path, rows), rows, [*SEEN], random.random(), os.environ.pop("ONCEMORE_TEST_X")

    first = scope(body)
    draws = random.Random(3)
    expected = tuple(draws.random() for _ in range(4))
    assert first.value == ((expected, "inner"), [1], ["inner"], draws.random(), "inner")
    assert first.ran == {"inner": 1, "sample": 2, "outer": 1}
    second = scope(body)
    assert (second.value, second.ran) == (first.value, {})


def test_declared_outputs_of_a_failed_attempt_are_removed_or_restored(tmp_path: Path) -> None:
    @checkpointed(retries=QUICK, outputs=["{folder}/out/log", "{folder}/out/*.csv"])
    def write(folder: Path) -> list[str]:
        found = sorted(path.name for path in (folder / "out").iterdir())
        with open(folder / "out" / "log", "a") as file:
            file.write("more\n")
        (folder / "out" / f"{attempt(folder)}.csv").touch()
        (folder / "out" / "old.csv").unlink()
        if attempt(folder, "failures") < 3:
            raise OSError("busy")
        return found

    out = tmp_path / "out"
    out.mkdir()
    (out / "log").write_text("first\n")
    (out / "old.csv").write_text("old")
    assert scope(lambda run: write(tmp_path)).value == ["log", "old.csv"]
    assert (out / "log").read_text() == "first\nmore\n"
    assert sorted(path.name for path in out.iterdir()) == ["3.csv", "log"]


def test_only_what_the_successful_attempt_showed_is_shown_again(tmp_path: Path, capsys: Any) -> None:
    @checkpointed(retries=QUICK, capture_output=True)
    def speak(folder: Path) -> None:
        number = attempt(folder)
        print("attempt", number)
        if number < 3:
            raise OSError("busy")

    scope(lambda run: speak(tmp_path))
    assert capsys.readouterr().out == "attempt 1\nattempt 2\nattempt 3\n"
    scope(lambda run: speak(tmp_path))
    assert capsys.readouterr().out == "attempt 3\n"


def test_a_step_whose_changes_cannot_be_put_back_is_not_tried_again(tmp_path: Path) -> None:
    @checkpointed(retries=QUICK)
    def take(folder: Path, numbers: Any) -> int:
        attempt(folder)
        next(numbers)
        raise OSError("busy")

    with (
        pytest.warns(CheckpointWarning, match="take is not tried again: argument `numbers` was changed in place"),
        pytest.raises(OSError, match="busy"),
    ):
        scope(lambda run: take(tmp_path, itertools.count()))
    assert attempt(tmp_path) == 2


def test_beside_other_steps_shared_data_is_left_alone(tmp_path: Path) -> None:
    """What is put back there might be the work of others."""

    @checkpointed(retries=QUICK)
    def add(folder: Path, n: int) -> int:
        SEEN.append(n)
        if n == 2 and attempt(folder) < 2:
            raise OSError("busy")
        return n

    def body(run: Any) -> list[int]:
        SEEN.clear()
        run.map(add, [tmp_path] * 4, range(4), concurrency=4)
        return sorted(SEEN)

    assert scope(body).value == [0, 1, 2, 2, 3]


# -- effects that must happen once


def test_an_attempt_at_an_effect_that_raised_was_not_performed_and_is_made_again(tmp_path: Path) -> None:
    @checkpointed(effect="once", retries=QUICK)
    def pay(folder: Path) -> int:
        if (number := attempt(folder)) < 3:
            raise OSError("busy")
        return number

    assert scope(lambda run: pay(tmp_path)).value == 3
    assert scope(lambda run: pay(tmp_path)).value == 3
    assert attempt(tmp_path) == 4


def test_killed_while_it_waits_for_another_attempt_the_effect_has_not_happened(script: Script) -> None:
    source = """
        import os
        from tenacity import Retrying, wait_fixed
        from oncemore import checkpoint_scope, checkpointed
        from oncemore.events import StepRetried

        @checkpointed(effect="once", retries=Retrying(wait=wait_fixed(3600)))
        def pay():
            if not os.path.exists("works"):
                raise OSError("busy")
            return "paid"

        with checkpoint_scope("run") as run:
            run.on(StepRetried, lambda event: print("waits", flush=True))
            print(pay())
    """
    running = script.start(source)
    running.wait_for("waits")
    running.kill()
    (script.folder / "works").touch()
    assert script(source).lines == ["paid"]


def test_an_effect_whose_output_is_missing_may_have_happened_and_is_not_made_again(tmp_path: Path) -> None:
    @checkpointed(effect="once", retries=QUICK, outputs=["{folder}/receipt"])
    def pay(folder: Path) -> int:
        return attempt(folder)

    with pytest.raises(OutputMissing):
        scope(lambda run: pay(tmp_path))
    with pytest.raises(UnknownOutcome):
        scope(lambda run: pay(tmp_path))
    assert attempt(tmp_path) == 2


def test_a_step_around_an_unknown_outcome_is_not_tried_again(tmp_path: Path) -> None:
    @checkpointed(effect="once")
    def pay() -> None:
        raise KeyboardInterrupt

    @checkpointed(retries=QUICK)
    def order(folder: Path) -> None:
        attempt(folder)
        pay()

    with pytest.raises(KeyboardInterrupt):
        scope(lambda run: order(tmp_path))
    with pytest.raises(UnknownOutcome):
        scope(lambda run: order(tmp_path))
    assert attempt(tmp_path) == 3


# -- while it waits


WAITING = """
    from tenacity import Retrying, wait_fixed
    from oncemore import checkpoint_scope, checkpointed
    from oncemore.events import StepRetried

    @checkpointed(retries=Retrying(wait=wait_fixed(3600)))
    def ask(n=0):
        raise OSError("busy")

    with checkpoint_scope("run") as run:
        run.on(StepRetried, lambda event: print("waits", event.wait, flush=True))
        WORK
"""


@pytest.mark.parametrize("work", ["ask()", "run.map(ask, [1, 2])"])
def test_ctrl_c_ends_the_wait_at_once(script: Script, work: str) -> None:
    running = script.start(WAITING.replace("WORK", work))
    running.wait_for("waits 3600")
    running.signal(signal.SIGINT)
    done = running.finish()
    assert "KeyboardInterrupt" in done.err
    shown = script("from oncemore import History; print(History().run('run').status)")
    assert shown.lines == ["interrupted"]


def test_ctrl_c_ends_a_map_that_is_still_starting_its_calls(script: Script) -> None:
    source = WAITING.replace("WORK", "run.on(StepRetried, interrupt); run.map(ask, range(20_000), concurrency=2)")
    stop = """
    import os, signal
    stopped = []

    def interrupt(event):
        if not stopped:
            stopped.append(event)
            os.kill(os.getpid(), signal.SIGINT)
    """
    done = script(stop + source, expect=-signal.SIGINT)
    assert "KeyboardInterrupt" in done.err


def test_a_failure_elsewhere_ends_the_waits_of_a_map(tmp_path: Path) -> None:
    @checkpointed(retries=Retrying(wait=wait_fixed(3600), retry=retry_if_exception_type(OSError)))
    def ask(folder: Path, n: int) -> None:
        if n == 0:
            attempt(folder)
            raise OSError("busy")
        while not (folder / "attempts").exists():
            os.sched_yield()
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        scope(lambda run: run.map(ask, [tmp_path] * 2, [0, 1], concurrency=2))


def test_others_wait_until_the_last_attempt(script: Script) -> None:
    source = """
        import os, sys
        from pathlib import Path
        from tenacity import Retrying, stop_after_attempt, wait_none
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed(retries=Retrying(stop=stop_after_attempt(3), wait=wait_none()))
        def ask():
            with open("attempts", "a") as file:
                file.write(".")
            print("attempt", flush=True)
            while os.path.getsize("attempts") == 2 and not Path("go").exists():
                os.sched_yield()
            if os.path.getsize("attempts") < 3:
                raise OSError("busy")
            return os.getpid()

        with checkpoint_scope("run"):
            print("pid", ask(), flush=True)
    """
    first = script.start(source)
    first.wait_for("attempt")
    second = script.start(source)
    (script.folder / "go").touch()
    one, other = first.finish(0), second.finish(0)
    assert one.out.count("attempt") == 3
    assert other.lines[-1] == one.lines[-1] == f"pid {first.pid}"
    assert (script.folder / "attempts").read_text() == "..."


# -- where it is shown


def test_summary_and_why_show_the_attempts(tmp_path: Path) -> None:
    @checkpointed(name="ask", retries=QUICK)
    def ask(folder: Path) -> int:
        if attempt(folder) < 3:
            raise OSError("busy")
        return 1

    def body(run: Any) -> Any:
        ask(tmp_path)
        ask.forget(tmp_path)
        first = run.summary(), str(run.why("ask"))
        ask(tmp_path)
        return first, str(run.why("ask"))

    (summary, first), second = scope(body).value
    assert summary.steps[0].retried == summary.total.retried == 2
    assert "retried" in str(summary).splitlines()[1]
    assert [line.partition(" after ")[0].strip() for line in first.splitlines()[1:]] == [
        "attempt 1 failed",
        "attempt 2 failed",
    ]
    assert "attempt" not in second


def test_the_terminal_shows_what_happens_next(script: Script) -> None:
    done = script(
        """
        from tenacity import Retrying, wait_none
        from oncemore import checkpoint_scope, checkpointed

        failures = iter([OSError("busy"), TimeoutError("late")])

        @checkpointed(retries=Retrying(wait=wait_none()), code="version", version="1")
        def ask():
            for failure in failures:
                raise failure

        with checkpoint_scope("run"):
            ask()
        """,
        env={"ONCEMORE_LOG": "on"},
    )
    lines = [" ".join(line.split()) for line in done.err.splitlines()]
    assert lines[1] == "ask attempt 2 in 0 ms: OSError: busy"
    assert lines[2] == "ask attempt 3 in 0 ms: TimeoutError: late"
    assert lines[3].startswith("ask ran ") and lines[3].endswith(" 2 retries")


def test_outside_of_a_scope_the_function_just_runs(tmp_path: Path) -> None:
    @checkpointed(retries=QUICK)
    def ask(folder: Path) -> None:
        attempt(folder)
        raise OSError("busy")

    with pytest.raises(OSError, match="busy"):
        ask(tmp_path)
    assert attempt(tmp_path) == 2


def test_a_memoized_function_is_tried_again_everywhere(tmp_path: Path) -> None:
    @memoized(retries=QUICK, timeout="1min")
    def ask(folder: Path) -> int:
        if (number := attempt(folder)) < 3:
            raise OSError("busy")
        return number

    assert [ask(tmp_path), ask(tmp_path)] == [3, 3]


def test_commands_show_the_attempts(script: Script) -> None:
    done = script(
        """
        from tenacity import Retrying, wait_none
        from oncemore import checkpoint_scope, checkpointed
        from oncemore.cli import main

        failures = [OSError("busy"), TimeoutError("late")]

        @checkpointed(retries=Retrying(wait=wait_none()), code="version", version="1")
        def ask():
            for failure in failures:
                failures.remove(failure)
                raise failure

        with checkpoint_scope("run"):
            ask()
        for command in ("show", "events", "why"):
            main([command, "run", *["ask"] * (command == "why")])
        """,
        cold=True,
    )
    counts = [line.split() for line in done.lines if line.startswith(("step", "ask "))]
    assert dict(zip(counts[0], counts[1]))["retried"] == "2"
    assert sum("StepRetried" in line and "error=OSError: busy" in line for line in done.lines) == 1
    assert [line.partition(" after ")[0] for line in done.lines[-2:]] == ["  attempt 1 failed", "  attempt 2 failed"]


def test_a_step_of_a_script_takes_its_policy_to_workers(script: Script) -> None:
    done = script(
        """
        import multiprocessing, os
        from concurrent.futures import ProcessPoolExecutor
        from tenacity import Retrying, stop_after_attempt, wait_none
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed(retries=Retrying(stop=stop_after_attempt(3), wait=wait_none()))
        def ask(n):
            with open(f"attempts{n}", "a") as file:
                file.write(".")
            if os.path.getsize(f"attempts{n}") < 3:
                raise OSError("busy")
            return n

        if __name__ == "__main__":
            with checkpoint_scope("run") as run:
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    print(list(pool.map(ask, [1, 2])))
                print(run.summary().total.retried)
        """
    )
    assert done.lines == ["[1, 2]", "4"]


def test_what_is_recorded_after_failed_attempts_is_what_one_attempt_leaves(tmp_path: Path) -> None:
    @checkpointed(retries=QUICK)
    def one(folder: Path, rows: list[int]) -> float:
        rows.append(1)
        drawn = random.random()
        if attempt(folder, "one") < 3:
            raise OSError("busy")
        return drawn

    def body(run: Any) -> Any:
        random.seed(1)
        rows: list[int] = []
        return one(tmp_path, rows), rows, random.random(), effects(run, "one")

    first = scope(body)
    draws = random.Random(1)
    assert first.value == (draws.random(), [1], draws.random(), ["arguments", "random"])
    assert "tenacity" in sys.modules


def test_a_policy_that_raises_before_an_attempt_leaves_nothing_behind() -> None:
    def refuse(state: object) -> None:
        raise PermissionError("not today")

    policy = Retrying(before=refuse, stop=stop_after_attempt(2))

    @checkpointed(retries=policy, effect="once", capture_output=True)
    def send() -> None: ...

    def body(run: Any) -> None:
        before = sys.stdout
        for _ in range(2):
            with pytest.raises(PermissionError, match="not today"):
                send()
        assert sys.stdout is before

    scope(body)
