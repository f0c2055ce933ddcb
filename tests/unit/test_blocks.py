"""run.block: a piece of a script is a step, and a resumed script ends as an uninterrupted one does."""

from __future__ import annotations

import os
import sys

import pytest

from tests.processes import Finished, Script

BINDS_LOCALS = sys.version_info >= (3, 13)

CLEANING = """
    import random
    from oncemore import checkpoint_scope
    from helpers import scale

    raw = [5, 1, 4, 2]
    cutoff = 1
    log = []

    with checkpoint_scope("run", store="store") as run:
        with run.block("clean") as b:
            if b.todo:
                print("RAN clean")
                kept = [x for x in raw if x > cutoff]
                with open(__file__) as file:
                    size = len(file.read()) > 0
                table = [scale(x) for x in kept]
                log.append("cleaned")
                run.state["seen"] = len(table)
                random.seed(1)
                b.value = sorted(table)
        print(b.value, table, log, run.state["seen"], random.random(), b.value is table)
        with run.block("report") as r:
            if r.todo:
                print("RAN report")
                lines = [f"{x}" for x in b.value]
        print(lines, "size" in globals(), "file" in globals())
"""
SCALE = "def scale(x):\n    return x * 10\n"


def ran(done: Finished) -> list[str]:
    return [line.removeprefix("RAN ") for line in done.lines if line.startswith("RAN")]


def rest(done: Finished) -> list[str]:
    return [line for line in done.lines if not line.startswith("RAN")]


def reasons(script: Script, run_id: str = "run", store: str = "store") -> list[str]:
    """Why the steps of the last scope ran."""
    from oncemore import History
    from oncemore.events import RunResumed, StepCompleted

    events = list(History(script.folder / store).run(run_id).events())
    last = max((event.seq for event in events if isinstance(event, RunResumed)), default=0)
    return [event.reason for event in events if isinstance(event, StepCompleted) and event.seq > last]


def test_a_skipped_block_gives_back_its_value_and_leaves_the_world_as_if_it_had_run(script: Script) -> None:
    script.write(SCALE, "helpers.py")
    first = script(CLEANING)
    assert ran(first) == ["clean", "report"]
    assert rest(first) == [
        "[20, 40, 50] [50, 40, 20] ['cleaned'] 3 0.13436424411240122 False",
        "['20', '40', '50'] True True",
    ]
    second = script(name="script.py")
    assert ran(second) == []
    # What nobody else reads does not come back, and is gone rather than out of date.
    assert rest(second) == [rest(first)[0], "['20', '40', '50'] False False"]
    assert "Warning" not in first.err + second.err


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("x > cutoff", "x >= cutoff", "code changed (script.py:10)"),
        ("cutoff = 1", "cutoff = 2", "global `script.cutoff`: 1 -> 2"),
        ("raw = [5,", "raw = [5, 9,", "global `script.raw`: [5, 1, 4, 2] -> [5, 9, 1, 4, 2]"),
    ],
)
def test_an_edited_body_or_another_value_runs_it_again_and_says_why(
    script: Script, before: str, after: str, reason: str
) -> None:
    script.write(SCALE, "helpers.py")
    script(CLEANING)
    changed = script(CLEANING.replace(before, after))
    assert "clean" in ran(changed)
    assert reasons(script)[0] == reason


def test_an_edited_helper_runs_it_again_and_comments_and_moved_lines_do_not(script: Script) -> None:
    script.write(SCALE, "helpers.py")
    script(CLEANING)
    script.write(SCALE.replace("10", "7"), "helpers.py")
    assert ran(script(CLEANING)) == ["clean", "report"]
    assert reasons(script)[0] == "code of helper `helpers.scale` changed (helpers.py:1)"
    commented = CLEANING.replace("kept =", "# the ones we want\n                kept =").replace(
        "raw =", "# data\n    raw ="
    )
    assert ran(script(commented)) == []


def test_the_same_block_in_a_loop_has_a_checkpoint_per_set_of_values(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            for n in (1, 2, 1, 3):
                with run.block("square") as b:
                    if b.todo:
                        print("RAN", n)
                        data = [n] * n
                        total = sum(data)
                        b.value = total
                print(n, b.value)
    """
    first = script(source)
    assert first.lines == ["RAN 1", "1 1", "RAN 2", "2 4", "1 1", "RAN 3", "3 9"]
    assert script(name="script.py").lines == ["1 1", "2 4", "1 1", "3 9"]
    assert ran(script(source.replace("1, 3)", "1, 4)"))) == ["4"]


def test_a_body_that_raises_is_not_recorded_and_its_exception_passes_through(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            try:
                with run.block("load") as b:
                    if b.todo:
                        print("RAN load")
                        found = [1]
                        if len(sys.argv) > 1:
                            raise KeyError("no")
                        b.value = 1
            except KeyError as error:
                frames, tb = 0, error.__traceback__
                while tb is not None:
                    frames, tb = frames + 1, tb.tb_next
                print("caught", error, error.__context__, frames, b.todo)
            else:
                print(b.value, run.failed)
    """
    assert script(source, "fail").lines == ["RAN load", "caught 'no' None 1 False"]
    assert script(source).lines == ["RAN load", "1 Counter()"]
    assert script(source).lines == ["1 Counter()"]


def test_stop_iteration_from_a_body_passes_through(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            try:
                with run.block("next") as b:
                    if b.todo:
                        b.value = next(iter([]))
            except StopIteration as error:
                print("caught", error.__cause__)
    """
    assert script(source).lines == ["caught None"]


def test_a_block_in_a_function_depends_on_its_local_variables_and_changes_them_in_place(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def double(x):
            print("RAN double")
            return 2 * x

        def main(run, rows, factor):
            def local(x):
                return x * factor
            with run.block("main") as b:
                if b.todo:
                    print("RAN main")
                    rows.append(local(double(3)))
                    b.value = rows
            result = b.value
            return result is rows, result

        with checkpoint_scope("run", store="store") as run:
            print(*main(run, [1], int(sys.argv[1])))
    """
    assert script(source, "5").lines == ["RAN main", "RAN double", "True [1, 30]"]
    assert script(source, "5").lines == ["True [1, 30]"]
    assert script(source, "7").lines == ["RAN main", "True [1, 42]"]
    assert reasons(script) == ["argument `local`: <function main.<locals>.local> changed"]


def test_local_variables_come_back_or_are_refused_before_python_3_13(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope
        def main(run):
            total = 0
            with run.block("sum") as b:
                if b.todo:
                    print("RAN sum")
                    parts = [1, 2]
                    total = sum(parts)
            return total
        with checkpoint_scope("run", store="store") as run:
            print(main(run))
    """
    if BINDS_LOCALS:
        assert script(source).lines == ["RAN sum", "3"]
        assert script(source).lines == ["3"]
    else:
        failed = script(source, expect=1)
        assert failed.lines == []
        assert "block sum: its body assigns `total`, which main() reads after it" in failed.err


def test_what_the_body_reads_before_it_assigns_it_counts(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpoint_scope
        count = int(sys.argv[1])
        with checkpoint_scope("run", store="store") as run:
            with run.block("add") as b:
                if b.todo:
                    print("RAN add")
                    if count:
                        count += 1
            print(count)
    """
    assert script(source, "1").lines == ["RAN add", "2"]
    assert script(source, "1").lines == ["2"]
    assert script(source, "5").lines == ["RAN add", "6"]


def test_a_value_given_counts_and_one_with_the_name_of_a_variable_identifies_it(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpoint_scope
        class Frame:
            def __init__(self, version, rows):
                self.version, self.rows = version, rows
        frame = Frame(int(sys.argv[1]), sys.argv[2])
        with checkpoint_scope("run", store="store") as run:
            with run.block("read", frame=frame.version, edition="a") as b:
                if b.todo:
                    print("RAN read")
                    b.value = frame.rows
            print(b.value)
    """
    assert script(source, "1", "x").lines == ["RAN read", "x"]
    assert script(source, "1", "y").lines == ["x"]
    assert script(source, "2", "y").lines == ["RAN read", "y"]
    assert reasons(script) == ["argument `frame`: 1 -> 2"]
    assert ran(script(source.replace('"a"', '"b"'), "2", "y")) == ["read"]


def test_a_variable_without_identity_names_the_remedy_and_can_be_ignored(script: Script) -> None:
    source = """
        import socket
        from oncemore import checkpoint_scope
        def main(run):
            client = (x for x in [1, 2])
            with run.block("ask") as b:
                if b.todo:
                    print("RAN ask")
                    b.value = client is not None
            print(b.value)
        with checkpoint_scope("run", store="store") as run:
            main(run)
    """
    failed = script(source, expect=1)
    assert "step ask: variable `client` is a generator, which has no stable identity. Exclude it with " in failed.err
    assert 'ignore=["client"], or say what identifies it with client=...' in failed.err
    ignoring = source.replace('block("ask")', 'block("ask", ignore=["client"])')
    assert script(ignoring).lines == ["RAN ask", "True"]
    assert script(ignoring).lines == ["True"]


def test_blocks_nest(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            with run.block("outer") as a:
                if a.todo:
                    print("RAN outer")
                    with run.block("inner") as b:
                        if b.todo:
                            print("RAN inner")
                            part = [1]
                            b.value = 2
                    a.value = b.value + 1
            print(a.value, part)
    """
    assert script(source).lines == ["RAN outer", "RAN inner", "3 [1]"]
    assert script(name="script.py").lines == ["3 [1]"]
    assert script(source.replace("+ 1", "+ 5")).lines == ["RAN outer", "7 [1]"]


def test_an_async_block_may_await_and_two_tasks_compute_it_once(script: Script) -> None:
    source = """
        import asyncio
        from oncemore import checkpoint_scope
        async def fetch(run, n):
            async with run.block("fetch") as b:
                if b.todo:
                    print("RAN", n)
                    await asyncio.sleep(0)
                    b.value = n * 10
            return b.value
        async def main():
            async with checkpoint_scope("run", store="store") as run:
                print(await asyncio.gather(fetch(run, 1), fetch(run, 2), fetch(run, 1)))
        asyncio.run(main())
    """
    assert sorted(script(source).lines) == ["RAN 1", "RAN 2", "[10, 20, 10]"]
    assert script(name="script.py").lines == ["[10, 20, 10]"]


def test_a_script_killed_in_its_second_block_skips_the_first(script: Script) -> None:
    source = """
        import os, sys
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            with run.block("one") as b:
                if b.todo:
                    print("RAN one")
                    numbers = [1, 2]
            with run.block("two") as c:
                if c.todo:
                    print("RAN two")
                    if len(sys.argv) > 1:
                        os._exit(9)
                    c.value = sum(numbers)
            print(c.value)
    """
    assert script(source, "die", expect=9).lines == ["RAN one", "RAN two"]
    assert script(source).lines == ["RAN two", "3"]
    assert script(source).lines == ["3"]


def test_what_a_later_block_does_to_the_value_of_an_earlier_one_is_repeated(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            with run.block("one") as b:
                if b.todo:
                    print("RAN one")
                    b.value = [1]
            with run.block("two") as c:
                if c.todo:
                    print("RAN two")
                    b.value.append(2)
            print(b.value)
    """
    assert script(source).lines == ["RAN one", "RAN two", "[1, 2]"]
    assert script(name="script.py").lines == ["[1, 2]"]
    assert script(source.replace("= [1]", "= [0]")).lines == ["RAN one", "RAN two", "[0, 2]"]


def test_without_source_a_block_runs_every_time_and_a_warning_says_so(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope
        piece = '''
        with run.block("made") as b:
            if b.todo:
                print("RAN made")
                b.value = 1
        print(b.value)
        '''
        import textwrap
        with checkpoint_scope("run", store="store") as run:
            exec(textwrap.dedent(piece))
    """
    for _ in range(2):
        done = script(source)
        assert done.lines == ["RAN made", "1"]
        assert "block made runs every time and is not recorded: its source can't be read" in done.err


def test_a_file_edited_while_it_runs_is_not_taken_for_the_code_that_runs(script: Script) -> None:
    source = """
        import pathlib, sys
        from oncemore import checkpoint_scope
        file = pathlib.Path(__file__)
        if len(sys.argv) > 1:
            file.write_text(file.read_text().replace("= 1 #", "= 2 #"))
        with checkpoint_scope("run", store="store") as run:
            with run.block("edited") as b:
                if b.todo:
                    b.value = 1 # the result
            print(b.value)
    """
    edited = script(source, "edit")
    assert edited.lines == ["1"]
    assert "was the file edited after it was loaded?" in edited.err
    assert script(name="script.py").lines == ["2"]


def test_a_notebook_skips_a_block_and_brings_back_all_that_it_can(script: Script) -> None:
    pytest.importorskip("IPython")
    source = '''
        import textwrap
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        cells = """
        from oncemore import checkpoint_scope
        scope = checkpoint_scope("run", store="store")
        run = scope.__enter__()
        cutoff = 2
        ----
        x = 1
        with run.block("clean") as b:
            if b.todo:
                print("RAN clean")
                file = open("store/x", "w")
                kept = [n for n in (1, 2, 3) if n > cutoff]
        ----
        print(kept, "file" in globals())
        """
        for cell in textwrap.dedent(cells).split("----"):
            shell.run_cell(cell, store_history=True).raise_error()
    '''
    first = script(source)
    assert first.lines[:2] == ["RAN clean", "[3] True"], first.err
    second = script(name="script.py")
    assert second.lines == ["[3] False"], second.err


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("b.value = 1", "put its whole body under one `if b.todo:`"),
        ("if b.todo:\n        b.value = 1\n    else:\n        print()", "without `else`"),
        ("if b.todo:\n        b.value = 1\n    print()", "put its whole body under one `if b.todo:`"),
        ("while True:\n        if b.todo:\n            break\n        break", "put its whole body under"),
        (
            "if b.todo:\n        for x in [1]:\n            break\n        continue",
            "`continue` (line 8) leaves its body",
        ),
        ("if b.todo:\n        return 1", "`return` (line 5) leaves its body, which a skipped block can't repeat"),
        ("if b.todo:\n        yield 1", "`yield` (line 5) leaves its body"),
    ],
)
def test_a_body_that_could_not_be_skipped_is_refused_at_once(script: Script, body: str, message: str) -> None:
    loop = "    for i in [0]:\n" if "continue" in body else ""
    deeper = "    " * bool(loop)
    lines = "\n".join(f"{deeper}    {line}" for line in f'with run.block("odd") as b:\n    {body}'.split("\n"))
    source = (
        "from oncemore import checkpoint_scope\n"
        f"def main(run):\n{loop}{lines}\n"
        'with checkpoint_scope("run", store="store") as run:\n    list(main(run) or ())\n'
    )
    failed = script(source, expect=1)
    assert "UsageError: block odd: " in failed.err
    assert message in failed.err


def test_misuse_is_a_clear_error(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, UsageError
        def wrong(what):
            try:
                what()
            except UsageError as error:
                print(error)
        with checkpoint_scope("run", store="store") as run:
            wrong(lambda: run.block("loose"))
            with run.block("empty") as b:
                if b.todo:
                    wrong(lambda: b.value)
            wrong(lambda: b.value)
            wrong(lambda: setattr(b, "value", 1))
            wrong(b.__enter__)
    """
    for _ in range(2):
        lines = script(source).lines
        assert lines[0] == "block loose: use it as `with run.block('loose') as b:`"
        assert lines[-3:] == [
            "block empty has no value: its body does not set it",
            "block empty: its value can only be set in its body, under `if b.todo:`",
            "block empty can be entered only once; call run.block(...) again",
        ]


def test_refresh_forget_and_disable_treat_it_like_a_step(script: Script) -> None:
    source = """
        import sys
        from oncemore import History, checkpoint_scope
        refresh = sys.argv[1:2]
        with checkpoint_scope("run", store="store", refresh=refresh) as run:
            with run.block("load") as b:
                if b.todo:
                    print("RAN load")
                    b.value = 1
            [checkpoint] = run.checkpoints
            print(checkpoint.step, checkpoint.result(), dict(run.ran), dict(run.reused))
    """
    assert script(source).lines == ["RAN load", "load 1 {'load': 1} {}"]
    assert script(source).lines == ["load 1 {} {'load': 1}"]
    assert ran(script(source, "load")) == ["load"]
    disabled = script(source.split("[checkpoint]")[0] + "print(b.value)", env={"ONCEMORE_DISABLE": "1"})
    assert disabled.lines == ["RAN load", "1"]


def test_a_variable_that_is_needed_and_can_not_be_saved_is_named(script: Script) -> None:
    source = """
        import threading
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            with run.block("start") as b:
                if b.todo:
                    print("RAN start")
                    thread = threading.Thread(target=print)
            print(type(thread).__name__)
    """
    for _ in range(2):
        done = script(source)
        assert done.lines == ["RAN start", "Thread"]
        assert "step start: the result was not saved: what it put into variable `thread` is a " in done.err


def test_a_variable_that_does_not_come_back_is_unset_rather_than_left_as_another_call_left_it(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            for n in (1, 2, 1):
                with run.block("part") as b:
                    if b.todo:
                        part = n * 10
                        b.value = n
                print(b.value, globals().get("part"))
    """
    assert script(source).lines == ["1 10", "2 20", "1 None"]


def test_plan_stops_at_a_block_that_would_run(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    from oncemore.cli import main

    source = """
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            with run.block("load") as b:
                if b.todo:
                    b.value = [1]
            with run.block("report") as r:
                if r.todo:
                    r.value = [x for x in b.value]
    """
    script(source)
    os.chdir(script.folder)
    assert main(["plan", "script.py"]) == 0
    script.write(source.replace("[x for", "[2 * x for"))
    capsys.readouterr()
    assert main(["plan", "script.py"]) == 6
    out = capsys.readouterr().out
    assert "load    be reused" in out and "code changed (script.py:6)" in out


def test_imports_of_a_body_come_back_and_definitions_that_are_needed_are_refused(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope
        with checkpoint_scope("run", store="store") as run:
            with run.block("define") as b:
                if b.todo:
                    print("RAN define")
                    import json as coder
                    def shout(text):
                        return coder.dumps(text.upper())
                    text = shout("a")
            print(text, coder.dumps(1))
    """
    assert script(source).lines == ["RAN define", '"A" 1']
    assert script(source).lines == ['"A" 1']
    failed = script(source.replace("print(text", "print(shout(text)"), expect=1)
    assert "block define: its body defines `shout`, which would be missing when it is skipped" in failed.err


def test_names_in_queries_and_dynamic_reads_count(script: Script) -> None:
    pytest.importorskip("pandas")
    source = """
        import sys
        import pandas as pd
        from oncemore import checkpoint_scope
        def main(run, limit, factor):
            table = pd.DataFrame({"x": [1, 2, 3]})
            with run.block("query") as b:
                if b.todo:
                    print("RAN query")
                    b.value = table.query("x > @limit")["x"].tolist()
            with run.block("eval") as c:
                if c.todo:
                    print("RAN eval")
                    c.value = eval("factor * 2")
            print(b.value, c.value)
        with checkpoint_scope("run", store="store") as run:
            main(run, int(sys.argv[1]), int(sys.argv[2]))
    """
    assert script(source, "1", "1").lines == ["RAN query", "RAN eval", "[2, 3] 2"]
    assert script(source, "1", "2").lines == ["RAN eval", "[2, 3] 4"]
    assert ran(script(source, "2", "2")) == ["query", "eval"]
