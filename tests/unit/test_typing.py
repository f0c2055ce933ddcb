"""What type checkers see of a program that uses oncemore, where they are installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ACCEPTED = ROOT / "tests" / "typing" / "accepted.py"


def check(*command: str) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed here; `make check` runs it")
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=200)


def test_mypy_accepts_what_is_right_and_finds_what_is_wrong(tmp_path: Path) -> None:
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    done = check("mypy", *options, "--strict", "--follow-imports=silent", str(ACCEPTED))
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_accepts_what_is_right_and_finds_what_is_wrong() -> None:
    done = check("pyright", "--pythonpath", sys.executable, str(ACCEPTED))
    found = [line for line in done.stdout.splitlines() if "accepted.py" in line]
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert not [line for line in found if "error" in line], "\n".join(found)
