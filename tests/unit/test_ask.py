"""run.ask: a run that needs a human's answer ends, and goes on with it when it is started again."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from oncemore import (
    History,
    OncemoreError,
    Run,
    RunPaused,
    UsageError,
    checkpoint_scope,
    checkpointed,
    current_run,
    events,
)
from oncemore.cli import main
from tests.processes import Script
from tests.unit.again import scope

STORE = "memory://{}"


def history() -> History:
    return History(STORE.format(os.environ["HOME"]))


def kinds(run_id: str = "run") -> list[str]:
    return [type(event).__name__ for event in history().run(run_id).events()]


def pause(body: Any) -> RunPaused:
    with pytest.raises(RunPaused) as caught:
        scope(body)
    return caught.value


SCRIPT = """
    import sys
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def load():
        print("RAN load")
        return 3

    with checkpoint_scope("orders") as run:
        count = load()
        try:
            answer = run.ask(f"Publish {count} reports?", name="publish", choices=["yes", "no"])
        except Exception:
            print("taken for a failure")
        print("answer", answer)
"""


def test_without_an_answer_the_script_ends_with_code_75_and_says_how_to_answer(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    paused = script(SCRIPT, expect=75)
    assert paused.lines == ["RAN load"]
    assert paused.err.splitlines()[-4:] == [
        "run orders is paused until this is answered:",
        "  Publish 3 reports? (yes, no)",
        "    oncemore answer orders publish yes",
        "Then run the script again.",
    ]
    assert "Traceback" not in paused.err
    assert script(name="script.py", expect=75).lines == []
    os.chdir(script.folder)
    assert main(["answer", "orders", "publish", "perhaps"]) == 1
    assert main(["answer", "orders", "publish", "yes"]) == 0
    out, err = capsys.readouterr()
    assert out == "run orders: publish is answered with 'yes'; run the script again to continue\n"
    assert "'perhaps' is not one of the choices: yes, no" in err
    done = script(name="script.py")
    assert (done.lines, done.err) == (["answer yes"], "")


def test_a_pause_is_no_failure_and_an_answer_is_a_checkpoint() -> None:
    def body(run: Run) -> str:
        run.state["x"] = 1
        return run.ask("Go on?", name="go")

    paused = pause(body)
    assert not isinstance(paused, Exception)
    assert isinstance(paused, SystemExit) and paused.code == 75
    assert [each.question for each in paused.questions] == ["Go on?"]
    assert kinds()[:2] + kinds()[-1:] == ["RunStarted", "Asked", "RunPaused"]
    found = history()
    assert found.run("run").status == "paused"
    [question] = found.questions("run")
    assert (question.step, question.question, question.type) == ("go", "Go on?", "str")
    assert found.answer("run", "go", "sure") == "sure"
    assert found.questions("run") == []
    done = scope(body)
    assert (done.value, done.ran) == ("sure", {})
    checkpoint = found.run("run").checkpoints.find("go")
    assert (checkpoint.result(), checkpoint.state()) == ("sure", {"x": 1})
    assert found.run("run").why("go").reason == "answered: Go on?"


def test_an_answer_can_be_forgotten_by_a_rollback_and_is_shared_with_a_fork() -> None:
    def body(run: Run) -> str:
        return run.ask("Go on?", name="go")

    pause(body)
    found = history()
    found.answer("run", "go", "sure")
    found.fork("run", "copy")
    assert scope(body, "copy").value == "sure"
    found.rollback("run", before="go")
    pause(body)
    found.answer("run", "go", "no")
    assert scope(body).value == "no"
    assert scope(body, "copy").value == "sure"


def test_another_question_or_other_choices_are_asked_again() -> None:
    pause(lambda run: run.ask("Go on?", name="go", choices=[1, 2]))
    assert history().answer("run", "go", "2") == 2
    assert scope(lambda run: run.ask("Go on?", name="go", choices=[1, 2])).value == 2
    pause(lambda run: run.ask("Go on now?", name="go", choices=[1, 2]))
    pause(lambda run: run.ask("Go on?", name="go", choices=[1, 2, 3]))


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [(int, "12", 12), (float, "1.5", 1.5), (bool, "Yes", True), (bool, "n", False), (str, "7", "7")],
)
def test_an_answer_has_the_type_asked_for(kind: type, text: str, answer: Any) -> None:
    pause(lambda run: run.ask("How many?", type=kind))
    assert history().answer("run", "question", text) == answer
    assert scope(lambda run: run.ask("How many?", type=kind)).value == answer


def test_an_answer_that_does_not_fit_is_refused() -> None:
    pause(lambda run: run.ask("How many?", type=int))
    for value in ("many", 1.5, True, None):
        with pytest.raises(UsageError, match="is not a whole number"):
            history().answer("run", "question", value)
    with pytest.raises(
        UsageError, match="waits for no answer to 'quest'; open questions: question-.* Did you mean question"
    ):
        history().answer("run", "quest", 1)


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(UsageError, match="type=<class 'list'> is not one of"):
        scope(lambda run: run.ask("?", type=list))
    with pytest.raises(UsageError, match="must be a list of texts or numbers"):
        scope(lambda run: run.ask("?", choices=[]))
    with pytest.raises(UsageError, match=r"choices='yes' must be a list: \['yes'\]"):
        scope(lambda run: run.ask("?", choices="yes"))

    @checkpointed(effect="once")
    def pay() -> str:
        run = current_run()
        assert run is not None
        return run.ask("Pay?")

    with pytest.raises(UsageError, match='asked in a step with effect="once"'):
        scope(lambda run: pay())


def test_a_step_that_asks_runs_again_with_the_answer() -> None:
    calls: list[str] = []

    @checkpointed(code="version", version="1")
    def inner() -> int:
        calls.append("inner")
        return 1

    @checkpointed(code="version", version="1")
    def review(draft: str) -> str:
        calls.append("review")
        run = current_run()
        assert run is not None
        return f"{draft} {inner()} {run.ask(f'Is {draft} good?', name='review')}"

    pause(lambda run: review("a"))
    assert "StepFailed" not in kinds()
    history().answer("run", "review", "yes")
    assert scope(lambda run: review("a")).value == "a 1 yes"
    assert calls == ["review", "inner", "review"]
    assert scope(lambda run: review("a")).ran == {}


@checkpointed(code="version", version="1")
def approve(item: int) -> str:
    if item == 3:
        return "not asked"
    run = current_run()
    assert run is not None
    return run.ask(f"Approve {item}?", name="approve", choices=["yes", "no"])


@checkpointed(code="version", version="1")
async def approve_later(item: int) -> str:
    await asyncio.sleep(0)
    run = current_run()
    assert run is not None
    return run.ask(f"Approve {item}?", name="approve", choices=["yes", "no"])


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_a_map_collects_the_questions_of_all_its_calls(concurrency: int, on_error: Any) -> None:
    def body(run: Run) -> list[Any]:
        return list(run.map(approve, [1, 2, 3], concurrency=concurrency, on_error=on_error))

    paused = pause(body)
    assert sorted(each.question for each in paused.questions) == ["Approve 1?", "Approve 2?"]
    found = history()
    with pytest.raises(UsageError, match="2 questions are named approve; answer them one by one: approve-"):
        found.answer("run", "approve", "yes")
    for question in found.questions("run"):
        found.answer("run", question.node, "yes" if "1" in question.question else "no")
    assert scope(body).value == ["yes", "no", "not asked"]


@pytest.mark.parametrize("how", ["map", "gather", "group"])
def test_coroutines_ask_as_well(how: str) -> None:
    store = STORE.format(os.environ["HOME"])

    async def body() -> list[str]:
        async with checkpoint_scope("run", store=store) as run:
            if how == "map":
                return list(await run.map(approve_later, [1, 2]))
            if how == "gather":
                return list(await asyncio.gather(approve_later(1), approve_later(2)))
            async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
                tasks = [group.create_task(approve_later(item)) for item in (1, 2)]
            return [task.result() for task in tasks]

    if how == "group" and not hasattr(asyncio, "TaskGroup"):
        pytest.skip("Python 3.11")
    for _ in range(2):  # gather and groups end with the first question, a map asks them all
        try:
            assert asyncio.run(body()) == ["yes", "yes"]
        except RunPaused as paused:
            assert history().run("run").status == "paused"
            assert len(paused.questions) == 2 or how != "map"
            for question in history().questions("run"):
                history().answer("run", question.node, "yes")
    assert asyncio.run(body()) == ["yes", "yes"]


POOLS = """
    import multiprocessing, sys
    from concurrent.futures import ProcessPoolExecutor
    from oncemore import checkpoint_scope, checkpointed, current_run

    @checkpointed
    def approve(item):
        return current_run().ask(f"Approve {item}?", name="approve", type=bool)

    if __name__ == "__main__":
        with checkpoint_scope("run", store="store") as run:
            if sys.argv[1] == "executor":
                with ProcessPoolExecutor(1) as pool:
                    print(*pool.map(approve, [1]))
            else:
                with multiprocessing.Pool(1) as pool:
                    print(*pool.map(approve, [1]))
"""


@pytest.mark.parametrize("pool", ["executor", "pool"])
def test_a_worker_of_a_process_pool_pauses_the_run(script: Script, pool: str) -> None:
    paused = script(POOLS, pool, expect=75)
    assert "Approve 1?" in paused.err
    found = History(script.folder / "store")
    assert found.run("run").status == "paused"
    found.answer("run", "approve", True)
    assert script(POOLS, pool).lines == ["True"]


def test_a_notebook_can_catch_it_and_go_on() -> None:
    try:
        scope(lambda run: run.ask("Go on?"))
    except RunPaused as paused:
        history().answer("run", "question", "yes")
        assert str(paused).startswith("run run is paused until this is answered: question-")
        assert not isinstance(paused, OncemoreError)
    assert scope(lambda run: run.ask("Go on?")).value == "yes"


def test_listeners_get_the_question() -> None:
    seen: list[events.Asked] = []

    def body(run: Run) -> str:
        run.on(events.Asked, seen.append)
        return run.ask("Go on?", choices=["yes"])

    pause(body)
    assert [(each.step, each.question, each.choices) for each in seen] == [("question", "Go on?", ["yes"])]


def test_with_prompt_it_asks_on_a_terminal_until_the_answer_fits(script: Script) -> None:
    import pty
    import subprocess
    import sys

    source = """
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store", quiet=True) as run:
            print("answer", run.ask("How many?", type=int, prompt=True), flush=True)
    """
    path = script.write(source)
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(path)], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        os.write(ours, b"many\n12\n")
        out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert out.decode() == "answer 12\n"
    assert script(source.replace(", prompt=True", "")).lines == ["answer 12"]


def test_with_prompt_and_no_terminal_it_pauses(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            run.ask("How many?", prompt=True)
    """
    script(source, expect=75)


def test_without_recording_a_question_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_DISABLE", "1")
    with pytest.raises(UsageError, match="with ONCEMORE_DISABLE, no answer can be recorded"):
        scope(lambda run: run.ask("Go on?"))


def test_refreshing_everything_does_not_ask_again_but_naming_the_question_does() -> None:
    def body(run: Run) -> Any:
        return run.ask("Go on?", name="go", type=bool)

    pause(body)
    history().answer("run", "go", "yes")
    assert scope(body, refresh=True).value is True
    with pytest.raises(RunPaused):
        scope(body, refresh=["go"])
