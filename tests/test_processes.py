"""The helpers that run scripts in processes of their own."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.processes import Script


def test_a_script_runs_in_its_own_folder_with_arguments_and_environment(script: Script) -> None:
    done = script(
        """
        import os, sys
        print(os.getcwd(), sys.argv[1], os.environ["COLOUR"])
        print("aside", file=sys.stderr)
        """,
        "one",
        env={"COLOUR": "red"},
    )
    assert done.lines == [f"{script.folder} one red"]
    assert done.err == "aside\n"


def test_an_unexpected_exit_code_fails_with_what_the_script_said(script: Script) -> None:
    with pytest.raises(AssertionError, match=r"exit code 1, expected 0(.|\n)*ZeroDivisionError"):
        script("1 / 0")
    assert script("raise SystemExit(3)", expect=3).code == 3


def test_a_script_is_killed_as_soon_as_it_prints_the_line(script: Script) -> None:
    done = script.kill_at("half", "import time\nprint('half way')\ntime.sleep(60)\nprint('never')")
    assert done.code == -signal.SIGKILL
    assert done.lines == ["half way"]


def test_a_line_that_never_comes_fails_as_soon_as_the_script_has_ended(script: Script) -> None:
    start = time.monotonic()
    with pytest.raises(AssertionError, match="ended with code 0"):
        script.kill_at("never", "print('something else')")
    assert time.monotonic() - start < 20


def test_a_script_that_hangs_is_ended(script: Script) -> None:
    with pytest.raises(AssertionError, match="did not end within"):
        script("while True: pass", timeout=1)


def test_children_of_a_script_end_with_the_test(script: Script) -> None:
    running = script.start(
        """
        import subprocess, sys, time
        print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid)
        time.sleep(60)
        """
    )
    child = int(running.wait_for(""))
    script.end()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _alive(child):
        time.sleep(0.02)
    assert not _alive(child)


def test_no_script_sees_the_home_of_whoever_runs_the_tests(script: Script) -> None:
    home = script("from pathlib import Path; print(Path.home())").lines[0]
    assert home == os.environ["HOME"]
    assert os.listdir(home) == []


def test_a_script_that_starts_warm_is_what_one_that_starts_cold_is(script: Script) -> None:
    source = """
        import __main__, atexit, os, sys, threading
        atexit.register(print, "at the end")
        print(__name__, __file__, __main__.__dict__ is globals(), sys.argv, sys.path[:2], os.getcwd())
        print(os.getpid() == os.getsid(0), threading.current_thread() is threading.main_thread())
        print("oncemore" in sys.modules, os.environ["COLOUR"], sys.stdout.encoding, sys.stdin.read())
        os.write(2, b"below")
        if "late" in sys.argv:
            threading.Timer(0.1, print, ["from a thread"]).start()
        elif "fail" in sys.argv:
            1 / 0
        elif "leave" in sys.argv:
            sys.exit(7)
        elif "interrupt" in sys.argv:
            raise KeyboardInterrupt
    """
    for how, code in (("late", 0), ("fail", 1), ("leave", 7), ("interrupt", -signal.SIGINT)):
        warm, cold = (script(source, how, env={"COLOUR": "red"}, cold=cold, expect=code) for cold in (False, True))
        assert warm.out == cold.out
        assert warm.err.splitlines()[-1:] == cold.err.splitlines()[-1:]
    assert "at the end" in warm.out


def test_two_processes_of_one_script_have_hash_seeds_and_random_numbers_of_their_own(script: Script) -> None:
    source = "import random; print(hash('a'), random.random())"
    (one, first), (other, second) = (script(source).out.split() for _ in range(2))
    assert one != other
    assert first != second


def _alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
