"""joblib's own tests of Memory, run as they are installed: against our `Memory`, and against joblib's with our store backend.

The table in docs/how-to/joblib.md lists every one of them by name and says which pass, and why the others make no sense.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

joblib = pytest.importorskip("joblib")

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "how-to" / "joblib.md"
ROW = re.compile(r"^\| `((?:Test\w+::)?test_\w+)` \| (.+) \| (.+) \|$", re.MULTILINE)
TABLE = {name: {"memory": memory, "backend": backend} for name, memory, backend in ROW.findall(PAGE.read_text("utf-8"))}
TESTED = re.search(r"joblib (\d+\.\d+)", PAGE.read_text("utf-8"))

pytestmark = pytest.mark.skipif(
    TESTED is None or not joblib.__version__.startswith(f"{TESTED[1]}."), reason="the table is about another joblib"
)


@pytest.fixture(scope="module", params=["memory", "backend"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, set[str]]]:
    """What joblib's tests meet, and the outcomes of each."""
    spec, folder = find_spec("joblib"), tmp_path_factory.mktemp("joblib")
    assert spec is not None and spec.origin is not None
    written = folder / "outcomes"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.compat.joblib_plugin", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(folder), str(Path(spec.origin).parent / "test" / "test_memory.py")),
        ],
        cwd=folder,
        env={
            **os.environ,
            "HOME": str(folder),
            "ONCEMORE_KEY": "joblib",
            "ONCEMORE_TEST_JOBLIB": request.param,
            "ONCEMORE_TEST_OUTCOMES": str(written),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        },
        capture_output=True,
        text=True,
    )
    assert written.exists(), done.stdout + done.stderr
    found: dict[str, set[str]] = defaultdict(set)
    for line in written.read_text("utf-8").splitlines():
        name, outcome, why = json.loads(line)
        found[name.partition("[")[0]].add(outcome if outcome != "failed" else f"failed: {why}")
    return request.param, dict(found)


def test_the_table_lists_every_test_of_joblib_and_says_how_it_ends(outcomes: tuple[str, dict[str, set[str]]]) -> None:
    what, found = outcomes
    assert sorted(found) == sorted(TABLE)
    passes = {name for name, ends in found.items() if ends <= {"passed", "skipped"}}  # skipped: lacks a file system's clock
    said = {name for name, row in TABLE.items() if row[what] == "passes"}
    assert {name: found[name] for name in said - passes} == {}
    assert {name for name in passes - said if found[name] == {"passed"}} == set()
