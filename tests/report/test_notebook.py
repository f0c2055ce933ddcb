"""In a notebook, the lines of a scope are one output of the cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import SRC
from tests.report.test_terminal import timeless

CELLS = (
    """
from oncemore import checkpoint_scope, checkpointed
@checkpointed
def load(n):
    return n
with checkpoint_scope("nb"):
    load(1), load(2)
""",
    """
with checkpoint_scope("nb"):
    load(1)
    print("mine")
    load(3)
""",
    """
with checkpoint_scope("nb", quiet=True):
    load(1)
""",
)
EXECUTE = """
import json, sys, nbformat
from nbclient import NotebookClient
cells = [nbformat.v4.new_code_cell(cell) for cell in json.loads(sys.argv[1])]
NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=300, kernel_name="python3").execute()
print(json.dumps([cell.outputs for cell in cells]))
"""


def test_a_notebook_shows_the_lines_of_each_scope_by_default(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    env = {**os.environ, "PYTHONPATH": str(SRC), "HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    command = [sys.executable, "-W", "ignore", "-c", EXECUTE, json.dumps(CELLS)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, quiet = json.loads(done.stdout)
    (shown,) = first
    assert timeless(shown["data"]["text/plain"].splitlines()) == [
        "● run nb  store ./.oncemore",
        "  load      2 ran T",
        "✓ 2 results kept",
    ]
    (shown,) = [output for output in second if output["output_type"] == "display_data"]
    assert timeless(shown["data"]["text/plain"].splitlines()) == [
        "● run nb (resumed)  store ./.oncemore",
        "  load      1 reused  1 ran T T saved  ← argument `n`: 2 -> 3",
        "✓ T saved · `oncemore why nb load-" + shown["data"]["text/plain"].rpartition("load-")[2],
    ]
    assert [output["text"] for output in second if output["output_type"] == "stream"] == ["mine\n"]
    assert quiet == []
