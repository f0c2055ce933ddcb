"""Running a script to look: what it would reuse and run, and whether what is kept is what its code does now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncemore import History
from tests.processes import Script

SCRIPT = """
    import os, random, sys
    from oncemore import checkpointed, checkpoint_scope, current_run

    def log(word):
        with open("log", "a") as file:
            file.write(word + "\\n")

    @checkpointed
    def load(n):
        log(f"load {n}")
        current_run().state["seen"] = n
        return list(range(n))

    @checkpointed
    def clean(rows):
        log("clean")
        rows.append(0)
        return [row * 2 for row in rows]

    @checkpointed(outputs=["out.txt"])
    def write(rows):
        log("write")
        with open("out.txt", "w") as file:
            file.write(str(rows))

    @checkpointed
    def items(n):
        for i in range(n):
            log(f"item {i}")
            yield i

    def main(n=3):
        with checkpoint_scope("job") as run:
            rows = load(n)
            rows = clean(rows)
            write(rows)
            print(list(items(2)), run.state["seen"])

    if __name__ == "__main__":
        main(*map(int, sys.argv[1:]))
"""
# Looks from a process of its own, as the command line does; answers with what came out of it.
LOOK = """
    import sys
    from oncemore import open_store, rehearsal
    print(eval(sys.argv[1]))
"""


@pytest.fixture
def look(script: Script) -> Callable[[str], str]:
    def look(expression: str) -> str:
        store = dict(content(script.folder))
        said = script(LOOK, expression, name="look.py").lines[-1]
        if "adopt" not in expression:
            assert dict(content(script.folder)) == store
        return said

    return look


def content(folder: Path) -> list[tuple[str, Any]]:
    """Everything that the store knows of its runs."""
    history = History(folder / ".oncemore")
    return [(run.id, (run, list(history.run(run.id).events()))) for run in history.runs()]


def log(script: Script) -> list[str]:
    path = script.folder / "log"
    found = path.read_text().split("\n")[:-1] if path.exists() else []
    path.unlink(missing_ok=True)
    return found


PLAN = "(lambda p: (p.run, [r[:2] for r in p.reused], p.step, p.why, p.took is not None, p.trouble))"


def test_the_plan_of_a_script_that_never_ran_is_its_first_step(script: Script, look: Callable[[str], str]) -> None:
    script.write(SCRIPT)
    assert look(f"{PLAN}(rehearsal.plan('script.py'))") == str(("job", [], "load", "new node", False, None))
    assert log(script) == []
    assert History(script.folder / ".oncemore").runs() == []


def test_the_plan_of_a_finished_script_is_to_reuse_everything(script: Script, look: Callable[[str], str]) -> None:
    script(SCRIPT)
    log(script)
    (script.folder / "out.txt").unlink()
    reused = [("load", 1), ("clean", 1), ("write", 1), ("items", 1)]
    assert look(f"{PLAN}(rehearsal.plan('script.py'))") == str(("job", reused, None, None, False, None))
    assert log(script) == []


def test_the_plan_after_an_edit_names_the_step_that_would_run_and_why(
    script: Script, look: Callable[[str], str]
) -> None:
    script(SCRIPT)
    log(script)
    script.write(SCRIPT.replace("row * 2", "row * 3"))
    assert look(f"{PLAN}(rehearsal.plan('script.py'))") == str(
        ("job", [("load", 1)], "clean", "code changed (script.py:14)", True, None)
    )
    assert log(script) == []
    assert look(f"{PLAN}(rehearsal.plan('script.py', ['4']))") == str(
        ("job", [], "load", "argument `n`: 3 -> 4", True, None)
    )


def test_a_generator_that_would_run_is_planned_too(script: Script, look: Callable[[str], str]) -> None:
    script(SCRIPT)
    log(script)
    script.write(SCRIPT.replace("items(2)", "items(3)"))
    assert "'items', 'argument `n`: 2 -> 3'" in look(f"{PLAN}(rehearsal.plan('script.py'))")
    assert log(script) == []


def test_a_step_in_a_worker_process_does_not_run_either(script: Script, look: Callable[[str], str]) -> None:
    source = """
        from concurrent.futures import ProcessPoolExecutor
        import multiprocessing as mp
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed
        def square(n):
            open("log", "a").write(f"{n}\\n")
            return n * n
        if __name__ == "__main__":
            with checkpoint_scope("pool"):
                with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
                    print(list(pool.map(square, range(2))))
    """
    script.write(source)
    assert "'square', 'new node'" in look(f"{PLAN}(rehearsal.plan('script.py'))")
    assert log(script) == []


def test_a_script_that_fails_by_itself_says_so(script: Script, look: Callable[[str], str]) -> None:
    script.write("raise ValueError('no')")
    assert look(f"{PLAN}(rehearsal.plan('script.py'))") == str(
        (None, [], None, None, False, "the script failed: ValueError: no")
    )


# -- audit

AUDIT = (
    "(lambda a: (sorted(n.split('-')[0] for n in a.equal), [(n.split('-')[0], s) for n, s in a.differing], a.stopped))"
)


def test_an_audit_of_steps_that_do_what_they_did_finds_them_equal(script: Script, look: Callable[[str], str]) -> None:
    script(SCRIPT)
    log(script)
    assert look(f"{AUDIT}(rehearsal.audit('job', 'script.py'))") == str((["clean", "items", "load", "write"], [], None))
    assert log(script) == ["load 3", "clean", "write", "item 0", "item 1"]


def test_an_audit_of_no_share_runs_nothing(script: Script, look: Callable[[str], str]) -> None:
    script(SCRIPT)
    log(script)
    assert look(f"{AUDIT}(rehearsal.audit('job', 'script.py', sample=0.0))") == str(([], [], None))
    assert log(script) == []


def test_an_audit_finds_a_step_that_is_not_deterministic(script: Script, look: Callable[[str], str]) -> None:
    source = SCRIPT.replace("return list(range(n))", "return [os.getpid()]")
    script(source)
    said = look(f"{AUDIT}(rehearsal.audit('job', 'script.py'))")
    assert said.startswith("([], [('load', 'result: [")
    assert "would run" in said  # what follows has other arguments now


def test_an_audit_of_another_run_than_the_scripts_is_refused(script: Script) -> None:
    script(SCRIPT)
    said = script(LOOK, "rehearsal.audit('jb', 'script.py')", name="look.py", expect=1).err
    assert "script.py does not open the run jb; it opens: job" in said


def test_steps_that_must_happen_once_are_not_run_by_an_audit(script: Script, look: Callable[[str], str]) -> None:
    source = SCRIPT.replace("@checkpointed\n    def clean", "@checkpointed(effect='once')\n    def clean")
    script(source)
    log(script)
    assert look(f"{AUDIT}(rehearsal.audit('job', 'script.py'))") == str((["items", "load", "write"], [], None))
    assert "clean" not in log(script)


# -- adopt

ADOPT = "rehearsal.adopt(open_store('.oncemore'), 'job', 'clean', 'script.py'"


def test_after_an_edit_that_changed_nothing_the_old_checkpoints_can_be_adopted(
    script: Script, look: Callable[[str], str]
) -> None:
    script(SCRIPT)
    log(script)
    edited = SCRIPT.replace("row * 2", "2 * row")
    script.write(edited)
    assert look(f"{AUDIT}({ADOPT}))") == str((["clean"], [], None))
    assert log(script) == ["clean"]
    assert script(edited).lines == ["[0, 1] 3"]
    assert log(script) == []
    names = [type(event).__name__ for event in History(script.folder / ".oncemore").run("job").events()]
    assert "StepAdopted" in names


def test_after_an_edit_that_changed_something_nothing_is_adopted(script: Script, look: Callable[[str], str]) -> None:
    script(SCRIPT)
    edited = SCRIPT.replace("row * 2", "row * 3")
    script.write(edited)
    assert look(f"{AUDIT}({ADOPT}))") == str(([], [("clean", "result: [0, 2, 4, 0] -> [0, 3, 6, 0]")], None))
    log(script)
    script(edited)
    assert log(script) == ["clean", "write"]


def test_adopting_without_comparing_runs_nothing(script: Script, look: Callable[[str], str]) -> None:
    script(SCRIPT)
    log(script)
    edited = SCRIPT.replace("row * 2", "2 * row")
    script.write(edited)
    assert look(f"{AUDIT}({ADOPT}, verify=0))") == str(([], [], None))
    script(edited)
    assert log(script) == []


def test_what_was_adopted_can_be_forgotten(script: Script, look: Callable[[str], str]) -> None:
    script(SCRIPT)
    edited = SCRIPT.replace("row * 2", "2 * row")
    script.write(edited)
    look(f"{ADOPT}, verify=0)")
    log(script)
    forgetting = edited.replace("rows = clean(rows)", "clean.forget(rows); rows = clean(rows)")
    script(forgetting)
    assert log(script) == ["clean"]


def test_a_step_that_would_run_before_is_named_when_nothing_can_be_adopted(
    script: Script, look: Callable[[str], str]
) -> None:
    script(SCRIPT)
    script.write(SCRIPT.replace("range(n)", "range(n + 1)").replace("row * 2", "2 * row"))
    said = look(f"{AUDIT}({ADOPT}))")
    assert "would run: code changed" in said


def test_the_command_that_opened_a_run_is_known_unless_it_has_a_secret(script: Script) -> None:
    command = "rehearsal.command_of(open_store('.oncemore'), 'job')"
    script(SCRIPT, "4")
    assert script(LOOK, command, name="look.py").lines == ["['script.py', '4']"]
    script(SCRIPT.replace("main(*map(int, sys.argv[1:]))", "main()"), "--api-key=hunter2")
    assert "it is not known which script" in script(LOOK, command, name="look.py", expect=1).err
