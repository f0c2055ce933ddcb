"""Calls do no more than is recorded: see benchmarks/guard.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "guard.json"


def guard(*arguments: object) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.guard", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)


def test_no_call_does_more_than_is_recorded() -> None:
    done = guard()
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_guard_fails_and_names_each_call_that_does_more_than_is_recorded(tmp_path: Path) -> None:
    recorded: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    more = [
        ("scalar: first hit", "store operations"),
        ("dict: miss, new run", "statements"),
        ("frame: repeated hit", "bytes hashed"),
        ("8 MB result: hit", "pickles read"),
    ]
    for call, what in more:
        recorded[call][what] //= 2
    (tmp_path / "guard.json").write_text(json.dumps(recorded))
    done = guard("--record", tmp_path / "guard.json")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    for call, what in more:
        ending = f"{what} instead of {recorded[call][what]:g}"
        assert any(line.startswith(f"{call}: ") and line.endswith(ending) for line in lines), done.stdout


def test_the_files_and_functions_that_a_call_passes_are_shown_and_not_compared() -> None:
    done = guard("--passes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[:3] == ["files", "functions", "calls"]
    (hit,) = [line for line in done.stdout.splitlines() if line.startswith("scalar: repeated hit ")]
    files, functions, calls, _ = map(int, hit.removeprefix("scalar: repeated hit").split()[:4])
    assert 1 < files <= functions <= calls
    assert not any("files" in counts or "functions" in counts for counts in json.loads(RECORD.read_text()).values())
