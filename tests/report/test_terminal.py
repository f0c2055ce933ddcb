"""What a person sees at a terminal: read off its screen, so that what was written over does not count."""

from __future__ import annotations

import re
import sys
import textwrap

import pytest

from tests import captures
from tests.processes import Script
from tests.terminal import Seen, Terminal, at_a_terminal


def seen(script: Script, source: str, *arguments: str, code: int = 0, **options: object) -> Seen:
    """The end of a script at a terminal."""
    ended = at_a_terminal(script.write(source), *arguments, **options)  # type: ignore[arg-type]
    assert ended.code == code, ended.text
    return ended


def timeless(lines: list[str]) -> list[str]:
    """Without what differs from run to run: times, and how well something is compressed."""
    return [re.sub(r"-> [\d.]+ k?B", "-> SIZE", captures.timeless(line)) for line in lines]


PIPELINE = """
    import numpy as np, sys, time
    from oncemore import checkpoint_scope, checkpointed

    def clean(rows):
        return rows * {factor}

    @checkpointed
    def load():
        time.sleep(0.05)
        return 7

    @checkpointed
    def features(rows):
        return np.full(2_000_000, clean(rows))

    @checkpointed
    def train(x):
        raise ValueError("NaN in y")

    with checkpoint_scope("churn-nov"):
        train(features(load()))
"""


def test_a_run_that_fails_and_one_that_resumes(script: Script) -> None:
    first = timeless(seen(script, PIPELINE.format(factor=1), code=1).lines)
    assert first[:5] == [
        "● run churn-nov  store ./.oncemore",
        "  load      ran T",
        "  features  ran T  16 MB -> SIZE",
        "  train     failed T  ValueError: NaN in y  → fix it and run again",
        "✗ 2 results kept",
    ]
    assert first[-1] == "ValueError: NaN in y"
    second = timeless(seen(script, PIPELINE.format(factor=2), code=1).lines)
    assert second[:3] == [
        "● run churn-nov (resumed)  store ./.oncemore",
        "  load      reused T saved",
        "  features  ran T  16 MB -> SIZE  ← code of helper `clean` changed (script.py:4)",
    ]
    assert second[3].startswith("  train     failed T  ValueError: NaN in y  → fix it and run again")
    assert second[4] == "✗ T saved · `oncemore why churn-nov features`"


MANY = """
    import time
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def fetch(page):
        return page

    @checkpointed
    def total(pages):
        return sum(pages)

    with checkpoint_scope("many"):
        total([fetch(page) for page in range(3000)])
"""


def test_thousands_of_nodes_are_one_line(script: Script) -> None:
    lines = ["● run many  store ./.oncemore", "  fetch     3000 ran T", "  total     ran T", "✓ 3001 results kept"]
    first = seen(script, MANY)
    assert timeless(first.lines) == lines
    assert first.written.count("fetch") > 2, "the line was not updated on the way"
    second = seen(script, MANY)
    assert timeless(second.lines)[1:] == ["  fetch     3000 reused T saved", "  total     reused T saved", "✓ T saved"]
    for each in (first, second):
        assert each.written.count("fetch") < 300, "far more often than anybody can read"


def test_steps_that_take_turns_have_two_lines_at_most(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def get(n):
            return n

        @checkpointed
        def put(n):
            return n

        with checkpoint_scope("turns"):
            for n in range(500):
                put(get(n))
    """
    assert timeless(seen(script, source).lines)[1:] == [
        "  get       ran T",
        "  put       ran T",
        "  get       500 ran T",
        "  put       500 ran T",
        "✓ 1000 results kept",
    ]


def test_a_burst_is_shown_in_full_while_the_script_goes_on(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def fetch(page):
            return page

        with checkpoint_scope("burst"):
            for page in range(50):
                fetch(page)
            sys.stdin.readline()
    """
    terminal = Terminal([sys.executable, str(script.write(source))], script.folder)
    terminal.until("50 ran")
    assert terminal.lines[-1] == "  fetch     50 ran"
    terminal.process.sendline("")
    terminal.end()


def live(script: Script, source: str, shown: str = "  load ") -> Terminal:
    """A script at a terminal, waiting in `wait()` until something is shown in its live line; now it goes on."""
    waiting = """
        import os, sys, time
        from oncemore import checkpoint_scope, checkpointed

        def wait():
            while not os.path.exists("go"):
                time.sleep(0.01)
    """
    path = script.write(textwrap.dedent(waiting) + textwrap.dedent(source))
    terminal = Terminal([sys.executable, str(path)], script.folder, env={"NO_COLOR": "1"})
    terminal.until(shown)
    (script.folder / "go").touch()
    return terminal


STEP = """
    @checkpointed
    def load():
        {body}

    with checkpoint_scope("live") as run:
        {before}
        load()
"""


def test_the_live_line_shows_what_is_running_and_for_how_long(script: Script) -> None:
    terminal = live(script, STEP.format(body="wait()", before=""), "running 1 s")
    assert timeless(terminal.end().lines)[1:] == ["  load      ran T", "✓ 1 result kept"]


def test_the_live_line_shows_the_turn_of_a_loop(script: Script) -> None:
    source = STEP.format(body="pass", before='for n in run.loop("epochs", [5, 6, 7]): n == 6 and wait()')
    lines = timeless(live(script, source, "  epochs    2/3").end().lines)
    assert lines[1:] == ["  epochs    3/3 T", "  load      ran T", "✓ 1 result kept"]


def test_a_process_that_is_killed_leaves_the_cursor_on_the_terminal(script: Script) -> None:
    ended = live(script, STEP.format(body="wait(); os.kill(os.getpid(), 9)", before="")).end()
    assert ended.code == -9
    assert ended.written.rfind("\x1b[?25h") > ended.written.rfind("\x1b[?25l") > 0


@pytest.mark.parametrize("end", ["''", "None"], ids=["unfinished", "whole"])
def test_a_progress_bar_of_the_script_has_the_terminal_to_itself(script: Script, end: str) -> None:
    """What is printed passes as it is, and the live line is not drawn over it until something happens to a step."""
    say = "print(chr(13), '{} %', file=sys.stderr, end=" + end + ", flush=True)"
    body = f"wait(); {say.format(10)}; time.sleep(0.5); {say.format(90)}"
    written = live(script, STEP.format(body=body, before="")).end().written
    between = written.partition("\r 10 %")[2].partition("\r 90 %")
    assert between[1] and "load" not in between[0]


def test_standard_output_that_is_no_terminal_gets_what_is_printed(script: Script) -> None:
    path = script.write(QUICK)
    command = f"'{sys.executable}' '{path}' > out.txt"
    shown = Terminal(["/bin/sh", "-c", command], script.folder).end()
    assert timeless(shown.lines)[1:] == ["  load      ran T", "✓ 1 result kept"]
    assert (script.folder / "out.txt").read_text() == "half a line\nsecond\n"


QUICK = """
    import sys, time
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def load():
        print("half", end="", flush=True)
        time.sleep(0.3)
        print(" a line\\nsecond")

    with checkpoint_scope("quick"):
        load()
"""


def test_without_rich_there_are_plain_lines(script: Script) -> None:
    ended = seen(script, "import sys; sys.modules['rich'] = None\n" + textwrap.dedent(QUICK))
    assert "\x1b" not in ended.written
    assert timeless(ended.lines) == [
        *("● run quick  store ./.oncemore", "half a line", "second", "  load      ran T", "✓ 1 result kept")
    ]


# -- the script's own output


def test_what_the_script_prints_stays_whole(script: Script) -> None:
    source = """
        import logging, sys, time, warnings
        from oncemore import checkpoint_scope, checkpointed
        logging.basicConfig(format="LOG %(message)s")  # holds the stream as it is now

        @checkpointed
        def fetch(page):
            print("inside", page)
            logging.warning("inside %s", page)
            return page

        with checkpoint_scope("prints"):
            for page in range(6):
                print(f"page {page} ... ", end="", flush=True)
                fetch(page)
                print("fetched", page)
                sys.stderr.write(f"err {page}\\n")
                if page % 2:
                    time.sleep(0.12)  # the line is shown again in the meantime
                logging.warning("outside %s", page)
                sys.stdout.writelines(["a", "b", "\\n"])
    """
    lines = seen(script, source).lines
    mine = [line for line in lines if not re.match(r"[●✓]|  fetch ", line)]
    for page in range(6):
        for said in (f"inside {page}", f"LOG inside {page}", f"fetched {page}", f"err {page}", f"LOG outside {page}"):
            assert sum(line.endswith(said) for line in mine) == 1 + said.startswith("inside"), (said, lines)
    assert sum(line.startswith("page ") for line in mine) == 6
    assert mine.count("ab") == 6
    assert timeless(lines)[-2:] == ["  fetch     6 ran T", "✓ 6 results kept"]
    assert sum(line.startswith("  fetch") for line in lines) <= 2, "lines that are no longer true were left there"


def test_a_half_printed_line_is_not_written_over(script: Script) -> None:
    source = """
        @checkpointed
        def load():
            wait()

        @checkpointed
        def save(x):
            os.write(1, b"half")  # past Python's streams

        with checkpoint_scope("half"):
            print("loading", end="", flush=True)
            load()
            print("done")
            save(1)
    """
    assert timeless(live(script, source).end().lines)[1:] == [
        *("loading", "done", "  load      ran T", "half", "  save      ran T", "✓ 2 results kept")
    ]


def test_what_a_child_process_prints_is_not_glued_to_our_line(script: Script) -> None:
    source = """
        import subprocess
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def convert(n):
            subprocess.run(f"sleep 0.15; echo child {n}", shell=True)

        with checkpoint_scope("children"):
            for n in range(4):
                convert(n)
    """
    lines = seen(script, source).lines
    assert [line for line in lines if line.startswith("child")] == [f"child {n}" for n in range(4)]
    assert timeless(lines)[-2] == "  convert   4 ran T"


def test_threads_may_print_at_any_time(script: Script) -> None:
    source = """
        import time
        from concurrent.futures import ThreadPoolExecutor
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def work(n):
            time.sleep(0.01)
            return n

        def chat(n):
            for i in range(20):
                print(f"<{n}.{i}>\\n", end="")
                time.sleep(0.01)

        with checkpoint_scope("threads"):
            with ThreadPoolExecutor(6) as pool:
                chats = [pool.submit(chat, n) for n in range(2)]
                list(pool.map(work, range(100)))
    """
    lines = seen(script, source).lines
    said = sorted(line for line in lines if line.startswith("<"))
    assert said == sorted(f"<{n}.{i}>" for n in range(2) for i in range(20))
    assert timeless(lines)[-2] == "  work      100 ran T"
    assert sum(line.startswith("  work") for line in lines) <= 2


def test_a_question_takes_the_place_of_the_live_line(script: Script) -> None:
    source = """
        @checkpointed
        def load():
            wait()
            print("You said", input("Go on? "))

        with checkpoint_scope("question"):
            load()
    """
    terminal = live(script, source)
    terminal.until("Go on? ")
    terminal.process.sendline("yes")
    assert timeless(terminal.end().lines)[1:] == ["Go on? yes", "You said yes", "  load      ran T", "✓ 1 result kept"]


def test_the_streams_are_left_as_they_were(script: Script) -> None:
    source = """
        import logging, sys
        from oncemore import checkpoint_scope, checkpointed
        logging.basicConfig()

        @checkpointed
        def work(n):
            return n

        with checkpoint_scope("streams"):
            work(1)
            assert sys.stdout.isatty() and sys.stdout.fileno() == 1 and sys.stdout.encoding == "utf-8"
        assert sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__
        assert logging.getLogger().handlers[0].stream is sys.stderr
    """
    seen(script, source)


# -- more than one


def test_a_scope_inside_a_scope_has_its_own_lines(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def work(n):
            return n

        with checkpoint_scope("outer"):
            work(1)
            with checkpoint_scope("inner"):
                work(2)
            work(3)
    """
    assert timeless(seen(script, source).lines) == [
        "● run outer  store ./.oncemore",
        "  work      ran T",
        "● run inner  store ./.oncemore",
        "  work      ran T",
        "✓ 1 result kept",
        "  work      2 ran T",
        "✓ 2 results kept",
    ]


def test_steps_inside_steps_have_lines_as_they_end(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def inner(n):
            return n

        @checkpointed
        def outer(n):
            return inner(n) + inner(n + 1)

        with checkpoint_scope("nested"):
            outer(1)
    """
    assert timeless(seen(script, source).lines)[1:-1] == ["  inner     2 ran T", "  outer     ran T"]


def test_children_of_a_fork_write_nothing_and_are_counted(script: Script) -> None:
    source = """
        import multiprocessing, os, warnings
        from oncemore import checkpoint_scope, checkpointed
        warnings.simplefilter("ignore")  # Python 3.12 on: of forking beside threads

        @checkpointed
        def work(n):
            return n

        with checkpoint_scope("forks"):
            work(0), work(1)
            child = os.fork()
            if not child:
                work(2)
                print("child", flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            with multiprocessing.get_context("fork").Pool(2) as pool:
                pool.map(work, range(3, 9))
    """
    lines = seen(script, source).lines
    assert lines.count("child") == 1
    assert timeless(lines)[-2].startswith("  work      9 ran T")
    assert lines[-1].startswith("✓ 9 results kept")
    assert len(lines) <= 5


def test_a_child_of_a_fork_does_not_take_its_parents_line_for_its_own(script: Script) -> None:
    source = """
        import os, warnings
        from oncemore import checkpoint_scope, checkpointed
        warnings.simplefilter("ignore")  # Python 3.12 on: of forking beside threads

        @checkpointed
        def work(n):
            return n

        with checkpoint_scope("forks"):
            work(0), work(1)
            read, write = os.pipe()
            child = os.fork()
            if not child:
                os.read(read, 1)
                print("child", flush=True)
                os._exit(0)
            print("parent, half a line:", end=" ", flush=True)
            os.write(write, b"!")
            os.waitpid(child, 0)
    """
    assert timeless(seen(script, source).lines)[1:-1] == ["parent, half a line: child", "  work      2 ran T"]


def test_a_stand_in_for_standard_error_gets_whole_lines(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpoint_scope, checkpointed

        class Shouting:
            def write(self, text):
                return sys.__stderr__.write(text.replace("work", "WORK"))
            def flush(self):
                sys.__stderr__.flush()
            def isatty(self):
                return True

        @checkpointed
        def work(n):
            return n

        sys.stderr = Shouting()
        with checkpoint_scope("shouting"):
            work(0), work(1)
    """
    ended = seen(script, source)
    assert timeless(ended.lines)[1:] == ["  WORK      2 ran T", "+ 2 results kept"]
    assert ended.written.count("WORK") == 1


MAP = """
    import sys, time
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def work(x):
        time.sleep(0.06)
        if x == 3:
            raise ValueError("three")
        return x

    def plain(x):
        return work(x)

    with checkpoint_scope("run") as run:
        run.map({step}, range(12), concurrency=2, on_error="collect"{more})
"""


def test_a_map_shows_how_far_it_is(script: Script) -> None:
    first = seen(script, MAP.format(step="work", more=""))
    assert timeless(first.lines)[1:] == [
        "  work      12/12  11 ran  1 failed T  ValueError: three",
        "✓ 11 results kept",
    ]
    steps = [int(n) for n in re.findall(r"work +(\d+)/12", first.written)]
    assert steps == sorted(steps)
    assert len(set(steps)) > 2
    second = seen(script, MAP.format(step="work", more=', name="labels"'))
    assert timeless(second.lines)[1].startswith("  labels    12/12  11 reused  1 failed T T saved")


def test_a_map_of_a_plain_function_shows_its_items_and_the_steps_inside(script: Script) -> None:
    lines = timeless(seen(script, MAP.format(step="plain", more="")).lines)
    assert "  plain     12/12" in lines
    assert any(re.match(r"  work      11 ran  1 failed T", line) for line in lines)


# -- how it ends

INTERRUPTED = """
    import asyncio, time
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def load():
        return 1

    @checkpointed
    {definition}

    {body}
"""
SYNC = 'def train(x):\n        print("training")\n        time.sleep(60)'
SYNC_BODY = 'with checkpoint_scope("ctrl-c"):\n        train(load())'
ASYNC = 'async def train(x):\n        print("training")\n        await asyncio.sleep(60)'
ASYNC_BODY = """async def main():
        async with checkpoint_scope("ctrl-c"):
            await train(load())
    asyncio.run(main())"""


@pytest.mark.parametrize(("definition", "body"), [(SYNC, SYNC_BODY), (ASYNC, ASYNC_BODY)], ids=["sync", "async"])
def test_ctrl_c_says_what_is_kept_and_how_to_go_on(script: Script, definition: str, body: str) -> None:
    path = script.write(INTERRUPTED.format(definition=definition, body=body))
    terminal = Terminal([sys.executable, str(path)], script.folder)
    terminal.until("training\r\n")
    terminal.process.sendintr()
    lines = timeless(terminal.end().lines)
    assert lines[:3] == ["● run ctrl-c  store ./.oncemore", "  load      ran T", "training"]
    assert [line for line in lines if line.startswith(("  train", "✗"))] == [
        "  train     interrupted T",
        "✗ interrupted · 1 result kept · run again to continue",
    ]


# -- kinds of terminal


@pytest.mark.parametrize("width", [20, 41, 60])
def test_no_line_is_longer_than_the_terminal_is_wide(script: Script, width: int) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def work(n):
            if n == 2:
                raise ValueError("数据" * 40)

        with checkpoint_scope("narrow") as run:
            run.map(work, range(3), concurrency=1, on_error="collect")
    """
    path = script.write(source)
    ended = at_a_terminal(path, width=width, env={"ONCEMORE_STORE": str(script.folder / ("long" * 20))})
    assert len(ended.lines) == 3, ended.text
    assert ended.lines[0].endswith("…")
    assert ended.lines[1].rstrip().endswith("…")


def test_colours_are_left_out_where_nobody_wants_them(script: Script) -> None:
    assert "\x1b[32m" in seen(script, MANY).written
    assert not re.search(r"\x1b\[\d*m", seen(script, MANY, env={"NO_COLOR": "1"}).written)


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_dumb_terminal_gets_plain_lines(script: Script, term: str | None) -> None:
    ended = seen(script, MANY, env={"TERM": term})
    assert "\x1b" not in ended.written
    assert "\r" not in ended.written.replace("\r\n", "")
    assert timeless(ended.lines)[-3] == "  fetch     3000 ran T"


def test_a_terminal_without_unicode_gets_ascii(script: Script) -> None:
    ended = seen(script, PIPELINE.format(factor=1), code=1, env={"PYTHONIOENCODING": "ascii"})
    assert ended.written.isascii()
    lines = timeless(ended.lines)
    assert lines[0] == "* run churn-nov  store ./.oncemore"
    assert lines[3:5] == ["  train     failed T  ValueError: NaN in y  -> fix it and run again", "x 2 results kept"]


def test_what_an_error_says_does_nothing_to_the_terminal(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def work(n):
            raise ValueError("one\\ntwo\\x1b[2J\\x07three")

        try:
            with checkpoint_scope("evil"):
                work(1)
        except ValueError:
            pass
    """
    ended = seen(script, source, width=120)
    assert "\x1b[2J" not in ended.written
    assert timeless(ended.lines) == [
        "● run evil  store ./.oncemore",
        "  work      failed T  ValueError: one two?[2J?three  → fix it and run again",
        "✗ failed",
    ]


def test_a_step_that_captures_its_output_keeps_only_its_own(script: Script) -> None:
    source = """
        import time
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def inner(n):
            return n

        @checkpointed(capture_output=True)
        def talk():
            with checkpoint_scope("within"):
                for n in range(3):
                    inner(n)
                    print("hello", n)
                    time.sleep(0.11)

        with checkpoint_scope("output"):
            talk()
    """
    first, second = seen(script, source), seen(script, source)
    assert "● run within  store ./.oncemore" in first.lines
    assert [line for line in first.lines if "hello" in line] == ["hello 0", "hello 1", "hello 2"]
    assert timeless(second.lines) == [
        "● run output (resumed)  store ./.oncemore",
        *("hello 0", "hello 1", "hello 2"),
        "  talk      reused T saved",
        "✓ T saved",
    ]
