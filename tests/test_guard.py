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


def guard(*arguments: object) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.guard", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)


def test_no_call_does_more_than_is_recorded() -> None:
    done = guard()
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("call", "what"), [("hit", "pickles read"), ("miss", "statements"), ("hit, 8 MB array", "bytes hashed")]
)
def test_the_guard_is_red_if_a_call_does_more_than_is_recorded(tmp_path: Path, call: str, what: str) -> None:
    recorded: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    recorded[call][what] //= 2
    (tmp_path / "guard.json").write_text(json.dumps(recorded))
    done = guard("--record", tmp_path / "guard.json")
    assert done.returncode == 1
    told = [line for line in done.stdout.splitlines() if line.startswith(f"{call}: ")]
    assert any(f"{what} instead of {recorded[call][what]:g}" in line for line in told), done.stdout
