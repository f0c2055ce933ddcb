"""Running a script to look: what it would reuse and run, and whether what is kept is what its code does now."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncemore import History, open_store
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
    from oncemore import open_store
    from oncemore.rehearsal import audit as rehearsal
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


def test_an_audit_ends_at_a_step_whose_checkpoint_is_damaged(script: Script, look: Callable[[str], str]) -> None:
    script(SCRIPT)
    log(script)
    store = open_store(script.folder / ".oncemore")
    (key,) = (key for key, _ in store.scan("node/") if "/clean/" in key)
    store.commit(put={key: [b"altered"]})
    said = look(f"{AUDIT}(rehearsal.audit('job', 'script.py'))")
    assert said.startswith("(['load'], [], 'clean-")
    assert "would run: entry damaged" in said
    assert log(script) == ["load 3"]


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
    assert "the script that opened run" in script(LOOK, command, name="look.py", expect=1).err


# -- scripts of all kinds: no body of a step runs, and the plan knows of the step

HEAD = """
import asyncio, os, subprocess, sys, threading
import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor
from oncemore import History, checkpointed, checkpoint_scope, memoized

@checkpointed
def square(n):
    open("log", "a").write(f"{n}\\n")
    return n * n

@checkpointed
async def later(n):
    open("log", "a").write(f"{n}\\n")

@memoized
def shared(n):
    open("log", "a").write(f"{n}\\n")

NUMBERS = (n for n in range(3))

@checkpointed
def vague(n):
    open("log", "a").write(f"{n}\\n")
    return next(NUMBERS)

def process(kind):
    it = mp.get_context(kind).Process(target=square, args=(1,))
    it.start()
    it.join()

async def gathered():
    await asyncio.gather(later(1), later(2), return_exceptions=True)

async def grouped():
    async with asyncio.TaskGroup() as group:
        group.create_task(later(1))

def swallowed():
    try:
        square(1)
    except BaseException:
        raise RuntimeError("another") from None

def in_a_thread():
    it = threading.Thread(target=square, args=(1,))
    it.start()
    return it

def disabled():
    os.environ["ONCEMORE_DISABLE"] = "1"
    with checkpoint_scope("off"):
        square(1)
"""
IN_A_SCOPE = {
    "a thread": ("in_a_thread().join()", "square"),
    "a thread that outlives the scope": ("in_a_thread()", "square"),
    "a pool of threads": ("run.map(square, [1, 2], on_error='collect')", "square"),
    "tasks whose errors are collected": ("asyncio.run(gathered())", "later"),
    "tasks in a group": ("asyncio.run(grouped())", "later"),
    "a step whose failure is caught": ("swallowed()", "square"),
    "a forked process": ("process('fork')", "square"),
    "a spawned process": ("process('spawn')", "square"),
    "a script of its own": ("subprocess.run([sys.executable, 'other.py'])", "square"),
    "a step without an identity": ("vague(1)", "vague"),
    "a shared step": ("shared(1)", "shared"),
    "a loop": ("[open('log', 'a').write('x') for _ in run.loop('turns', range(3))]", "turns"),
    "a step that is to run anew": ("square.refresh(1)", "square"),
    "a scope that is disabled": ("disabled()", "square"),
}
OTHER = """
from oncemore import checkpointed, checkpoint_scope
@checkpointed
def square(n):
    open("log", "a").write(f"{n}\\n")
with checkpoint_scope("other"):
    square(1)
"""


def scoped(body: str, run: str = "r") -> str:
    return f"{HEAD}\nif __name__ == '__main__':\n    with checkpoint_scope('{run}') as run:\n        {body}\n"


@pytest.mark.parametrize("kind", IN_A_SCOPE)
def test_the_plan_knows_of_a_step_wherever_it_would_run(kind: str, script: Script, look: Callable[[str], str]) -> None:
    body, step = IN_A_SCOPE[kind]
    if kind == "tasks in a group" and sys.version_info < (3, 11):
        pytest.skip("there are no groups of tasks")
    script.write(OTHER, "other.py")
    script.write(scoped(body))
    assert look("rehearsal.plan('script.py').step") == step
    assert log(script) == []


@pytest.mark.parametrize(
    ("call", "step"), [("square(1)", "square"), ("asyncio.run(later(1))", "later"), ("shared(1)", "shared")]
)
def test_a_step_outside_a_scope_does_not_run_either(
    call: str, step: str, script: Script, look: Callable[[str], str]
) -> None:
    script.write(f"{HEAD}\n{call}\n")
    assert look("rehearsal.plan('script.py').step") == step
    assert log(script) == []


def test_steps_that_other_processes_reuse_are_counted(script: Script, look: Callable[[str], str]) -> None:
    source = scoped("print(list(ProcessPoolExecutor(2, mp.get_context('spawn')).map(square, range(3))))")
    script(source)
    log(script)
    assert look(f"{PLAN}(rehearsal.plan('script.py'))") == str(("r", [("square", 3)], None, None, False, None))
    assert log(script) == []


def test_a_loop_that_is_done_is_reused_and_one_that_is_not_would_go_on(
    script: Script, look: Callable[[str], str]
) -> None:
    turns = "for n in run.loop('turns', range(4)):\n            if n == {}: raise SystemExit(1)\n            print(n)"
    script(scoped(turns.format(2)), expect=1)
    assert look(f"{PLAN}(rehearsal.plan('script.py'))") == str(
        ("r", [("turns", 2)], "turns", "a loop that continues after 2 items", False, None)
    )
    script(scoped(turns.format(9)))
    assert look("rehearsal.plan('script.py').step") == "None"


def test_an_unknown_outcome_is_told_and_a_known_one_is_taken(script: Script, look: Callable[[str], str]) -> None:
    source = """
        import os, sys
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed(effect="once")
        def pay():
            os._exit(7)
        if __name__ == "__main__":
            with checkpoint_scope("r"):
                print(pay())
    """
    script(source, expect=7)
    assert "outcome is unknown" in look("rehearsal.plan('script.py').why")
    history = History(script.folder / ".oncemore")
    history.resolve("r", history.unknown_outcomes("r")[0].node, happened=True, result=3)
    assert look(f"{PLAN}(rehearsal.plan('script.py'))") == str(("r", [], None, None, False, None))


def test_what_a_script_does_to_its_past_is_not_done(script: Script, look: Callable[[str], str]) -> None:
    source = scoped("square(1)") + "    History().delete('r')\n    print(History().runs())\n"
    script(source.replace("History().delete('r')", "pass"))
    script.write(source)
    assert look("rehearsal.plan('script.py').trouble") == "None"


def test_a_second_scope_finds_what_the_first_has_left(script: Script, look: Callable[[str], str]) -> None:
    second = "    with checkpoint_scope('r') as run:\n        assert run.restore('here').name == 'here'\n"
    script.write(scoped("run.checkpoint('here')") + second)
    assert look(f"{PLAN}(rehearsal.plan('script.py'))") == str(("r", [], None, None, False, None))


def test_a_script_that_is_run_as_a_module_is_looked_at_as_one(script: Script, look: Callable[[str], str]) -> None:
    script.write("", "pkg/__init__.py")
    script.write("def helper(n): return n", "pkg/tools.py")
    script.write(
        """
        import sys
        from oncemore import checkpointed, checkpoint_scope
        from .tools import helper
        @checkpointed
        def step(n):
            return helper(n)
        with checkpoint_scope("module"):
            step(sys.argv[1])
        """,
        "pkg/__main__.py",
    )
    script(None, "3", options=["-m", "pkg"])
    assert look("rehearsal.command_of(open_store('.oncemore'), 'module')") == str(["-m", "pkg", "3"])
    assert look("rehearsal.plan('-m', ['pkg', '3']).reused[0][0]") == "step"
    assert look("rehearsal.plan('-m', ['pkg', '4']).why") == "argument `n`: '3' -> '4'"


@pytest.mark.parametrize("words", ["'none.py'", "'-m', ['none']", "'-m', ['none.inside']"])
def test_a_script_that_is_not_there_is_told(words: str, script: Script) -> None:
    said = script(LOOK, f"rehearsal.plan({words})", name="look.py", expect=1).err
    assert "there is no " in said
    assert "UsageError" in said


def test_nothing_is_left_of_a_script_in_the_process(script: Script, look: Callable[[str], str]) -> None:
    script.write(
        """
        import os, subprocess, sys
        print("from python", flush=True)
        subprocess.run(["echo", "from a child"])
        os.environ["HERE"] = "1"
        os.chdir("/")
        sys.path.append("there")
        """
    )
    done = script(
        LOOK,
        "[__import__('os').getcwd(), sys.argv[1:], 'there' in sys.path, rehearsal.plan('script.py', ['x']),"
        " __import__('os').getcwd(), sys.argv[1:], 'there' in sys.path, __import__('os').environ.get('HERE')]",
        name="look.py",
    )
    assert len(done.lines) == 1
    before, after = done.lines[0].split("Plan(")[0], done.lines[0].split("trouble=None), ")[1]
    assert before.strip("[, ") == after.removesuffix(", None]")
    assert "from python\nfrom a child" in done.err


# -- what is compared, and what is adopted


def test_an_audit_names_a_step_that_fails_now_though_the_script_goes_on(
    script: Script, look: Callable[[str], str]
) -> None:
    source = """
        import os
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed
        def step(n):
            if os.path.exists("broken"):
                raise ValueError("no")
            return n
        with checkpoint_scope("job") as run:
            print(run.map(step, [1], on_error="collect"))
    """
    script(source)
    (script.folder / "broken").touch()
    assert look(f"{AUDIT}(rehearsal.audit('job', 'script.py'))") == str(
        ([], [("step", "it fails: ValueError: no")], None)
    )


def test_an_audit_compares_files_and_what_was_printed_does_not_count(
    script: Script, look: Callable[[str], str]
) -> None:
    source = """
        import logging, os
        from pathlib import Path
        from oncemore import File, checkpointed, checkpoint_scope
        @checkpointed(capture_output=True)
        def write(n):
            logging.warning("a record has a time")
            Path("out").write_text(os.environ.get("TEXT", "a"))
            return File("out")
        @checkpointed
        def change(file):
            Path(file).write_text(os.environ.get("MORE", "b"))
        @checkpointed(capture_output=True)
        def items(n):
            logging.warning("another")
            yield n
        with checkpoint_scope("job") as run:
            file = write(1)
            change(file)
            list(items(1))
    """
    script(source)
    assert look(f"{AUDIT}(rehearsal.audit('job', 'script.py'))") == str((["change", "items", "write"], [], None))
    change = "[os.environ.update(MORE='c') for os in [__import__('os')]]"
    assert "('change', " in look(f"({change}, {AUDIT}(rehearsal.audit('job', 'script.py')))[1]")


def test_only_the_run_that_is_meant_is_compared(script: Script, look: Callable[[str], str]) -> None:
    source = scoped("shared(0)", "other") + "    with checkpoint_scope('job'):\n        square(1)\n    shared(2)\n"
    script(source)
    log(script)
    assert look(f"{AUDIT}(rehearsal.audit('job', 'script.py'))") == str((["square"], [], None))
    assert log(script) == ["1"]


def adopting(script: Script, look: Callable[[str], str], source: str, edit: tuple[str, str], **options: Any) -> str:
    """Run it, edit it, adopt the step `square`; what came of that."""
    script(source)
    log(script)
    script.write(source.replace(*edit))
    given = "".join(f", {name}={value}" for name, value in options.items())
    said = look(f"{AUDIT}(rehearsal.adopt(open_store('.oncemore'), 'r', 'square', 'script.py'{given}))")
    events = [type(event).__name__ for event in History(script.folder / ".oncemore").run("r").events()]
    assert ("StepAdopted" in events) == ("None)" in said and "[]" in said.partition("], ")[2])
    return said


def test_code_that_fails_is_not_adopted(script: Script, look: Callable[[str], str]) -> None:
    said = adopting(script, look, scoped("square(1)"), ("return n * n", "return n / 0"))
    assert said == str(([], [("square", "it fails: ZeroDivisionError: division by zero")], None))


def test_code_is_not_adopted_if_what_it_calls_would_run(script: Script, look: Callable[[str], str]) -> None:
    source = scoped("square(1)").replace("return n * n", "return inner(n)")
    inner = "@checkpointed\ndef inner(n):\n    return n * n\n\n@checkpointed\ndef square"
    source = source.replace("@checkpointed\ndef square", inner)
    said = adopting(script, look, source, ("return n * n", "return n ** 2"))
    assert said.startswith("([], [], 'inner-")
    assert "would run: code changed" in said


def test_code_is_adopted_if_all_of_fewer_nodes_than_asked_for_are_equal(
    script: Script, look: Callable[[str], str]
) -> None:
    said = adopting(script, look, scoped("[square(n) for n in range(3)]"), ("n * n", "n ** 2"), verify=9)
    assert said == str((["square"] * 3, [], None))


def test_code_is_not_adopted_if_the_script_ends_before_enough_was_compared(
    script: Script, look: Callable[[str], str]
) -> None:
    body = "[square(n) for n in range(2)]; square(os.getpid())"
    said = adopting(script, look, scoped(body), ("n * n", "n ** 2"), verify=9)
    assert said.startswith("(['square', 'square'], [], 'square-")


def test_of_several_earlier_codes_the_one_is_adopted_that_did_the_same(
    script: Script, look: Callable[[str], str]
) -> None:
    first = scoped("print([square(n) for n in range(3)])")
    script(first)
    script(first.replace("n * n", "n * n * n"))
    log(script)
    edited = first.replace("n * n", "n ** 2")
    script.write(edited)
    adopt = "rehearsal.adopt(open_store('.oncemore'), 'r', 'square', 'script.py', verify=3)"
    assert look(f"{AUDIT}({adopt})") == str((["square"] * 3, [], None))
    log(script)
    assert script(edited).lines == ["[0, 1, 4]"]
    assert log(script) == []


def test_codes_that_did_the_same_only_now_and_then_are_not_adopted(script: Script, look: Callable[[str], str]) -> None:
    first = scoped("print([square(n) for n in (1, 2)])")
    script(first.replace("n * n", "1"))
    script(first.replace("n * n", "2"))
    script.write(first.replace("n * n", "n"))
    adopt = "rehearsal.adopt(open_store('.oncemore'), 'r', 'square', 'script.py', verify=2)"
    assert look(f"{AUDIT}({adopt})") == str(
        (["square"] * 2, [], "no earlier version gives equal results for all calls")
    )


def test_a_script_may_catch_everything_and_nothing_more_is_adopted(script: Script, look: Callable[[str], str]) -> None:
    body = "for n in range(3):\n            try: square(n)\n            except BaseException: pass"
    said = adopting(script, look, scoped(body), ("n * n", "n * n if n < 1 else 0"), verify=1)
    assert said == str((["square"], [], None))
    assert log(script) == ["0"]


def test_a_step_that_is_shared_or_to_happen_once_is_not_adopted_by_comparing(
    script: Script, look: Callable[[str], str]
) -> None:
    edit = ("n * n", "n ** 2")
    for options, word in (("share=True", "with all runs"), ("effect='once'", "verify 0")):
        source = scoped("square(1)").replace("@checkpointed\ndef square", f"@checkpointed({options})\ndef square")
        said = adopting(script, look, source.replace("square(n)", f"square(n, kind={word!r})"), edit)
        assert word in said
        assert said.startswith("([], [], ")
        assert log(script) == []


def test_a_run_in_another_store_is_not_adopted(script: Script) -> None:
    script(SCRIPT)
    expression = "rehearsal.adopt(open_store('elsewhere'), 'job', 'clean', 'script.py')"
    assert "opens the run job in another store" in script(LOOK, expression, name="look.py", expect=1).err


def test_codes_adopted_for_each_other_are_found_and_end() -> None:
    from oncemore import open_store
    from oncemore.entries import RunEntries

    adopted = [["step", "a", "b"], ["step", "b", "a"], ["step", "c", "a"]]
    shelf = RunEntries(open_store("memory://adopted"), "o", "node/o/", None, adopted=adopted)
    codes = [key.rpartition(".")[2] for key in shelf._known(shelf.node("step", "x", "b"))]
    assert codes == ["b", "a", "c"]
