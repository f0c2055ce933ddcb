"""Calls do no more than is recorded: see benchmarks/guard.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "guard.json"
HALVED = [
    ("scalar: first hit", "store operations"),
    ("dict: miss, new run", "statements"),
    ("frame: repeated hit", "bytes hashed"),
    ("8 MB result: hit", "pickles read"),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What the guard prints beside a record that allows a few calls half of what they do."""
    recorded: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    for call, what in HALVED:
        recorded[call][what] //= 2
    file = tmp_path_factory.mktemp("guard") / "guard.json"
    file.write_text(json.dumps(recorded))
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.guard", "--record", str(file)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)


def test_no_call_does_more_than_is_recorded(told: subprocess.CompletedProcess[str]) -> None:
    more = [line for line in told.stdout.splitlines() if " instead of " in line]
    expected = [(call, what) for call, what in HALVED for line in more if line.startswith(f"{call}: ") and what in line]
    assert len(more) == len(expected), told.stdout + told.stderr


def test_the_guard_fails_and_names_each_call_that_does_more_than_is_recorded(
    told: subprocess.CompletedProcess[str],
) -> None:
    assert told.returncode == 1
    recorded: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    for call, what in HALVED:
        ending = f"{what} instead of {recorded[call][what] // 2:g}"
        assert any(line.startswith(f"{call}: ") and line.endswith(ending) for line in told.stdout.splitlines()), (
            told.stdout
        )


def test_the_files_and_functions_that_a_call_passes_are_shown_and_not_compared(
    told: subprocess.CompletedProcess[str],
) -> None:
    assert told.stdout.split()[:3] == ["files", "functions", "calls"]
    (hit,) = [line for line in told.stdout.splitlines() if line.startswith("scalar: repeated hit ")]
    files, functions, calls, _ = map(int, hit.removeprefix("scalar: repeated hit").split()[:4])
    assert 1 < files <= functions <= calls
    assert not any("files" in counts or "functions" in counts for counts in json.loads(RECORD.read_text()).values())
