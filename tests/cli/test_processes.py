"""The program as a process: pipes that close, Ctrl-C, packages that are missing, shells that complete."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oncemore import History, checkpoint_scope, checkpointed
from oncemore.cli import BROKEN_PIPE, DONE, FAILED, INTERRUPTED, NOT_INSTALLED, main
from tests.cli.program import COMMAND, environment, oncemore, sample
from tests.processes import Script
from tests.unit.pasts import flow

WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None  # as if it were not installed
from oncemore.cli import main
sys.exit(main())
"""
BUSY = """
import os, time
from oncemore import checkpoint_scope, checkpointed

@checkpointed
def double(n):
    return 2 * n

with checkpoint_scope("busy", store="./.oncemore"):
    for n in range(10_000):
        double(n)
        print("DONE", n, flush=True)
        time.sleep(0.01)
        if os.path.exists("enough"):
            break
"""


@pytest.mark.parametrize("command", ["runs", "--help", "events nightly --follow", "no such command"])
def test_without_its_packages_it_says_in_one_line_how_to_get_them(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "click,rich", *command.split()],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == NOT_INSTALLED
    assert done.stdout == ""
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert "pip install 'oncemore[cli]'" in done.stderr


def test_a_package_of_the_user_that_is_missing_is_not_mistaken_for_ours() -> None:
    sample()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "blake3", "runs"], env=environment(), capture_output=True, text=True
    )
    assert done.returncode not in (DONE, NOT_INSTALLED)


def buffered() -> dict[str, str]:
    """As on most machines: what goes to a pipe is held back for a while."""
    return {name: value for name, value in environment().items() if name != "PYTHONUNBUFFERED"}


def test_a_pipe_that_closes_ends_it_quietly() -> None:
    @checkpointed
    def step(n: int) -> int:
        return n

    with checkpoint_scope("long"):
        for n in range(1500):
            step(n)
    for command in (["events", "long"], ["show", "long"], ["events", "long", "--jsonl"]):
        with subprocess.Popen(
            [*COMMAND, *command], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as it:
            assert it.stdout and it.stderr
            it.stdout.readline()
            it.stdout.close()
            assert it.stderr.read() == b""
            assert it.wait(30) == BROKEN_PIPE


def test_a_pipe_that_was_never_read_ends_it_quietly() -> None:
    sample()
    for command in ("runs", "get nightly load --pickle -"):
        reading, writing = os.pipe()
        os.close(reading)
        it = subprocess.run([*COMMAND, *command.split()], env=buffered(), stdout=writing, stderr=subprocess.PIPE)
        os.close(writing)
        assert it.returncode == BROKEN_PIPE
        assert b"BrokenPipe" not in it.stderr


def test_ctrl_c_ends_it_quietly(script: Script) -> None:
    running = script.start(BUSY)
    running.wait_for("DONE 3")
    command = [*COMMAND, "events", "busy", "--follow"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as it:
        assert it.stdout and it.stderr
        it.stdout.readline()
        it.send_signal(signal.SIGINT)
        _, err = it.communicate(timeout=30)
        assert (it.returncode, err) == (INTERRUPTED, b"")
    running.kill()


def test_following_ends_with_the_run(script: Script) -> None:
    running = script.start(BUSY)
    running.wait_for("DONE 3")
    command = [*COMMAND, "events", "busy", "--follow", "--jsonl"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout
        assert json.loads(it.stdout.readline())["event"] == "RunStarted"
        Path("enough").touch()
        running.finish(expect=0)
        rest = [json.loads(line) for line in it.stdout.read().splitlines()]
        assert it.wait(30) == DONE
    assert [fact["seq"] for fact in rest] == list(range(2, len(rest) + 2))
    assert rest[-1]["event"] == "RunFinished"


def test_every_command_is_safe_while_a_job_runs(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    """What they read holds together, what they may not do they refuse, and the job ends as if nobody had looked."""
    sample()
    running = script.start(BUSY)
    running.wait_for("DONE 3")
    for command in (
        *(
            "runs",
            "show busy",
            "events busy",
            "get busy double",
            "verify",
            "doctor",
            "export x.zip",
            "export x.json --json",
        ),
        *("fork busy copy", "pin busy double", "rm trial --yes", "prune --keep last --yes"),
    ):
        assert main(command.split()) == DONE, (command, capsys.readouterr().err)
    assert "busy is running: left alone" in capsys.readouterr().out
    for command in ("rm busy --yes", "rename busy idle"):
        assert main(command.split()) == FAILED
        assert "busy is running" in capsys.readouterr().err
    Path("enough").touch()
    last = int(running.finish(expect=0).lines[-1].split()[1])
    history = History()
    assert history.run("busy").status == "finished"
    assert len(history.run("busy").checkpoints) == last + 1
    assert [run.status for run in history.runs() if run.id == "copy"] == ["forked"]
    assert history.verify().well


def test_a_traceback_is_never_the_answer_to_damage() -> None:
    sample()
    Path(".oncemore/cache.db").write_bytes(b"SQLite format 3\0" + os.urandom(5000))
    for name in (".oncemore/cache.db-wal", ".oncemore/cache.db-shm"):
        Path(name).unlink(missing_ok=True)
    for command in ("runs", "verify", "fork nightly x"):
        done = oncemore(*command.split())
        assert done.code == FAILED
        assert "Traceback" not in done.err
        assert "oncemore repair --store" in done.err


def completed(words: str, number: int) -> list[str]:
    env = environment(_ONCEMORE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(number))
    done = subprocess.run(COMMAND, env=env, capture_output=True, text=True)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_the_shell_completes_commands_runs_and_checkpoints() -> None:
    sample()
    flow("other", "elsewhere")
    assert completed("oncemore r", 1) == ["runs", "rollback", "rename", "resolve", "rm", "repair"]
    assert completed("oncemore show n", 2) == ["nightly"]
    assert completed("oncemore rm trial ", 3) == ["broken", "mailing", "nightly", "trial"]
    assert completed("oncemore get nightly after", 3) == ["after-clean"]
    assert completed("oncemore show --store other ", 4) == ["elsewhere"]
    assert completed("oncemore show --store nowhere ", 4) == []
    assert completed("oncemore get nobody x", 3) == []


def test_the_script_for_bash_works_in_bash() -> None:
    sample()
    Path("bin").mkdir()
    program = Path("bin/oncemore")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m oncemore.cli "$@"\n')
    program.chmod(0o755)
    lines = """
        eval "$(oncemore completion bash)"
        COMP_WORDS=(oncemore show ni); COMP_CWORD=2; COMP_LINE="oncemore show ni"
        _oncemore_completion oncemore ni show
        echo "${COMPREPLY[@]}"
    """
    env = environment(PATH=f"{Path('bin').absolute()}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-c", lines], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("nightly\n", "")


def test_values_are_found_in_modules_of_the_current_folder() -> None:
    Path("project.py").write_text(
        "from dataclasses import dataclass\nfrom oncemore import checkpoint_scope, checkpointed\n"
        "@dataclass\nclass Row:\n    n: int\n"
        "@checkpointed\ndef rows():\n    return [Row(1)]\n"
        "if __name__ == '__main__':\n    with checkpoint_scope('r'):\n        rows()\n"
    )
    subprocess.run([sys.executable, "project.py"], env=environment(), check=True)
    Path("bin").mkdir()
    program = Path("bin/oncemore.py")  # started from elsewhere, as an installed script is
    program.write_text("import sys\nsys.path.pop(0)\nfrom oncemore.cli import main\nsys.exit(main())\n")
    done = subprocess.run(
        [sys.executable, program, "get", "r", "rows"], env=environment(), capture_output=True, text=True
    )
    assert done.stdout == "[Row(n=1)]\n", done.stderr
    assert "its classes come from the script project" in done.stderr


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_that_the_output_cannot_encode_are_escaped(encoding: str) -> None:
    with checkpoint_scope("Zürich") as run:
        run.checkpoint("from a file name: \udce9")
    for command in (["runs"], ["show", "Zürich"], ["events", "Zürich"], ["verify"], ["no such ö"]):
        done = subprocess.run([*COMMAND, *command], env=environment(PYTHONIOENCODING=encoding), capture_output=True)
        assert b"Traceback" not in done.stderr, done.stderr
        if command[0] == "show" and encoding == "utf-8":  # else click escapes it in its own way
            assert b"from a file name: \\udce9" in done.stdout
