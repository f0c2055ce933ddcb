"""`oncemore events`: what a run went through, for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from oncemore import checkpoint_scope, checkpointed
from oncemore.cli import main
from tests.processes import SRC


@checkpointed
def double(number: int) -> int:
    return 2 * number


def history(folder: Path) -> str:
    with checkpoint_scope("nightly", store=folder / "store"):
        double(1)
        double(2)
    return str(folder / "store")


def test_events_are_printed_as_json_lines_by_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "oncemore.cli", "events", "nightly", "--jsonl", "--store", history(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=True
    )
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [fact["event"] for fact in facts] == ["RunStarted", "StepCompleted", "StepCompleted", "RunFinished"]
    assert [fact["seq"] for fact in facts] == [1, 2, 3, 4]
    assert facts[1]["step"] == "double"


def test_events_after_a_number_are_shown_for_people(tmp_path: Path, capsys) -> None:
    assert main(["events", "nightly", "--since", "3", "--follow", "--store", history(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[0] == "4"
    assert "RunFinished" in line


def test_a_run_that_is_not_there_is_an_error_that_names_it(tmp_path: Path, capsys) -> None:
    assert main(["events", "weekly", "--store", history(tmp_path)]) == 1
    assert "there is no run 'weekly'" in capsys.readouterr().err
