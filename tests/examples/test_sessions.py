"""The sessions in docs/ are true: whoever types what a page shows sees what it shows.

A page with `console` blocks (`$ ` commands and what they print) is one session in a folder of its own. Its blocks that begin with
the name of a file (`# orders.py`) are saved there as the session goes on. What is printed goes to a pipe, not to a terminal.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_docs import PAGES, blocks_of, has_sessions
from tests.processes import SRC


@pytest.mark.parametrize("page", [page for page in PAGES[1:] if has_sessions(page)], ids=lambda page: page.stem)
def test_a_session_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "console":
            commands = re.findall(r"^\$ (.*)$", block.text, re.MULTILINE)
            printed = "".join(f"$ {command}\n{_run(command, tmp_path)}" for command in commands)
            assert _shortened(printed) == _shortened(block.text), f"{page.name}:{block.line}"


def test_the_tutorial_is_a_session() -> None:
    assert "tutorial" in [page.stem for page in PAGES if has_sessions(page)]


def _run(command: str, folder: Path) -> str:
    paths = os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        re.sub(
            r"^oncemore ", f"'{sys.executable}' -m oncemore.cli ", re.sub(r"^python ", f"'{sys.executable}' ", command)
        ),
        shell=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


def _shortened(text: str) -> str:
    """Without the lines inside a traceback, which differ between Pythons, and with the times of a machine that is never busy."""
    text = re.sub(r"(?<=\S) {2,}", "  ", re.sub(r"\d+(?:\.\d)? m?s\b", "T", text))  # columns are as wide as times are
    return re.sub(r"(Traceback \(most recent call last\):\n)(?: .*\n)+", r"\1  ...\n", text)
