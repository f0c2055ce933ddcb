"""What is told where there is no terminal: nothing, unless `ONCEMORE_LOG` asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.processes import SRC, Script, either_case
from tests.report.test_terminal import MANY, MAP, PIPELINE, timeless

TOLD = [
    "● run churn-nov  store ./.oncemore",
    "  load      ran T",
    "  features  ran T  16 MB -> SIZE",
    "  train     failed T  ValueError: NaN in y  → fix it and run again",
    "✗ 2 results kept",
]
QUIET = """
    import sys
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def load():
        return 1

    with checkpoint_scope({arguments}) as run:
        load()
"""


def test_without_a_terminal_nothing_is_shown(script: Script) -> None:
    for source in (QUIET.format(arguments="'mine'"), QUIET.format(arguments=""), MAP.format(step="work", more="")):
        done = script(source)
        assert (done.out, done.err) == ("", "")


def test_lines_are_plain_where_standard_error_is_asked_for(script: Script) -> None:
    done = script(PIPELINE.format(factor=1), expect=1, env={"ONCEMORE_LOG": "stderr"})
    assert timeless(done.err.splitlines()[:5]) == TOLD
    assert "\x1b" not in done.err
    assert "\r" not in done.err
    assert done.out == ""


def test_lines_are_appended_to_a_file(script: Script) -> None:
    log = script.folder / "log.txt"
    for _ in range(2):
        done = script(PIPELINE.format(factor=1), expect=1, env={"ONCEMORE_LOG": str(log)})
        assert "●" not in done.err
    lines = timeless(log.read_text(encoding="utf-8").splitlines())
    assert lines[:5] == TOLD
    assert lines[5:8] == [
        "● run churn-nov (resumed)  store ./.oncemore",
        "  load      reused T saved",
        "  features  reused T saved",
    ]


def test_a_file_that_cannot_be_written_is_told_and_the_run_goes_on(script: Script) -> None:
    done = script(QUIET.format(arguments="'mine'"), env={"ONCEMORE_LOG": "no/such/folder/log"})
    assert done.err.count("CheckpointWarning: ONCEMORE_LOG: no/such/folder/log cannot be written") == 1


@pytest.mark.parametrize(
    ("arguments", "value"),
    [("'mine', quiet=True", "stderr"), *(("'mine'", word) for word in either_case("0", "off", "no", "false", "quiet"))],
)
def test_it_can_be_told_to_be_quiet(script: Script, arguments: str, value: str) -> None:
    assert script(QUIET.format(arguments=arguments), env={"ONCEMORE_LOG": value}).err == ""
    assert not (script.folder / value).exists()


@pytest.mark.parametrize("word", either_case("1", "on", "yes", "true"))
def test_a_word_for_yes_means_standard_error(script: Script, word: str) -> None:
    done = script(QUIET.format(arguments="'mine'"), env={"ONCEMORE_LOG": word})
    assert timeless(done.err.splitlines()) == [
        "● run mine  store ./.oncemore",
        "  load      ran T",
        "✓ 1 result kept",
    ]


@pytest.mark.parametrize("word", either_case("debug"))
def test_the_word_debug_adds_the_log_records(script: Script, word: str) -> None:
    told = script(QUIET.format(arguments="'mine'"), env={"ONCEMORE_LOG": word}).err.splitlines()
    assert any(line.startswith("    run mine: StepStarted(") for line in told)
    assert any(line.startswith("    run mine: RunFinished(") for line in told)


@pytest.mark.parametrize("value", ["./log", "log.txt"])
def test_a_path_has_a_separator_or_a_suffix(script: Script, value: str) -> None:
    assert script(QUIET.format(arguments="'mine'"), env={"ONCEMORE_LOG": value}).err == ""
    assert (script.folder / value).read_text(encoding="utf-8").startswith("● run mine")


def test_an_unknown_word_is_an_error_that_names_the_known_ones(script: Script) -> None:
    done = script(QUIET.format(arguments="'mine'"), env={"ONCEMORE_LOG": "loud"}, expect=1)
    known = "0, off, no, false, 1, on, yes, true, quiet, stderr, debug, or a path: ./loud for a file of that name"
    assert f"UsageError: ONCEMORE_LOG=loud is unknown; use one of {known}\n" in done.err
    assert not (script.folder / ".oncemore").exists()


def test_many_nodes_are_one_line(script: Script) -> None:
    for verb in ("3000 ran T", "3000 reused T saved"):
        told = timeless(script(MANY, env={"ONCEMORE_LOG": "stderr"}).err.splitlines())
        assert told[1] == f"  fetch     {verb}"
        assert len(told) == 4


def test_a_map_is_one_line(script: Script) -> None:
    told = script(MAP.format(step="work", more=""), env={"ONCEMORE_LOG": "stderr"}).err.splitlines()
    assert timeless(told)[1:-1] == ["  work      12/12  11 ran  1 failed T  ValueError: three"]


def test_the_line_of_a_step_is_there_when_the_next_one_begins(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def load():
            return 1

        @checkpointed
        def train(x):
            print("TRAIN", file=sys.stderr)

        with checkpoint_scope("order"):
            train(load())
    """
    told = script(source, env={"ONCEMORE_LOG": "stderr"}).err.splitlines()
    assert timeless(told)[1:] == ["  load      ran T", "TRAIN", "  train     ran T", "✓ 2 results kept"]


def test_a_derived_id_is_shown_with_what_it_comes_from(script: Script) -> None:
    done = script(QUIET.format(arguments="") + "\n    print(run.id)", "--year", "2024", env={"ONCEMORE_LOG": "stderr"})
    head = done.err.splitlines()[0]
    assert head == f"● run {done.out.strip()} (from script.py --year 2024)  store ./.oncemore"


def test_a_disabled_run_says_so_and_no_more(script: Script) -> None:
    done = script(QUIET.format(arguments="'mine'"), env={"ONCEMORE_LOG": "stderr", "ONCEMORE_DISABLE": "1"})
    assert done.err == "● run mine (disabled by ONCEMORE_DISABLE)\n"


def test_the_hint_names_a_store_that_is_not_the_default(script: Script) -> None:
    env = {"ONCEMORE_LOG": "stderr"}
    source = PIPELINE.replace('"churn-nov"', '"a b", store="./else where"')
    script(source.format(factor=1), expect=1, env=env)
    done = script(source.format(factor=2), expect=1, env=env)
    assert "● run a b (resumed)  store ./else where" in done.err
    assert f"`oncemore why 'a b' features --store disk://{script.folder}/else%20where`" in done.err


def test_a_failure_outside_of_steps_says_how_to_go_on(script: Script) -> None:
    source = QUIET.format(arguments="'mine'") + "\n        raise KeyError('x')"
    done = script(source, expect=1, env={"ONCEMORE_LOG": "stderr"})
    assert "✗ 1 result kept · fix it and run again\n" in done.err


def test_a_result_that_is_not_kept_is_told_in_two_words(script: Script) -> None:
    source = QUIET.replace("return 1", "import threading; return threading.Lock()").format(arguments="'mine'")
    done = script(source, env={"ONCEMORE_LOG": "stderr"})
    assert timeless(done.err.splitlines()).count("  load      ran T  not kept") == 1
    assert done.err.count("CheckpointWarning") == 1
    assert "✓" not in done.err


def test_a_loop_says_where_it_continued_and_where_it_was_left(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpoint_scope
        with checkpoint_scope("loop") as run:
            for n in run.loop("epochs", range(10), every=2):
                if n == 7 and len(sys.argv) < 2:
                    break
    """
    env = {"ONCEMORE_LOG": "stderr"}
    first, second, third = (timeless(script(source, *how, env=env).err.splitlines()) for how in ([], ["on"], ["on"]))
    assert first[1:] == ["  epochs    8/10 T  snapshot at 6"]
    assert second[1:] == ["  epochs    continued at 7 of 10 T saved", "  epochs    10/10 T", "✓ T saved"]
    assert third[1:] == ["  epochs    10/10 reused T saved", "✓ T saved"]


BROKEN = """
    import os, sys
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def load(n):
        return n

    {harm}
    with checkpoint_scope("broken"):
        load(1)
        {later}
        load(2)
    os.write(1, b"fine")
"""


@pytest.mark.parametrize(
    ("harm", "later"),
    [
        ("sys.stderr.close()", ""),
        ("", "sys.stderr.close()"),
        ("sys.stderr = None", ""),
        ("sys.stderr = object()", ""),
        ("r, w = os.pipe(); os.close(r); os.dup2(w, 2)", ""),
    ],
)
def test_a_standard_error_that_is_broken_harms_nobody(script: Script, harm: str, later: str) -> None:
    for value in ("stderr", ""):
        done = script(BROKEN.format(harm=harm, later=later), env={"ONCEMORE_LOG": value}, expect=None)
        assert done.out == "fine"
        assert done.code in (0, 120)  # Python's own, where it cannot flush the stream at its end


def test_a_process_that_was_given_no_standard_error_runs(script: Script) -> None:
    path = script.write(BROKEN.format(harm="", later=""))
    env = {**os.environ, "PYTHONPATH": str(SRC), "ONCEMORE_LOG": "stderr"}
    done = subprocess.run(
        f"'{sys.executable}' '{path}' 2>&-", shell=True, cwd=script.folder, env=env, capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b"fine")


def test_an_async_scope_tells_the_same(script: Script) -> None:
    source = """
        import asyncio
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        async def load(n):
            await asyncio.sleep(0)
            return n

        async def main():
            async with checkpoint_scope("later"):
                await asyncio.gather(*(load(n) for n in range(5)))

        asyncio.run(main())
    """
    told = timeless(script(source, env={"ONCEMORE_LOG": "stderr"}).err.splitlines())
    assert told == ["● run later  store ./.oncemore", "  load      5 ran T", "✓ 5 results kept"]
