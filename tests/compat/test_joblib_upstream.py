"""joblib's own tests of Memory, run as they are installed: against our `Memory`, and against joblib's with our store backend.

The table in docs/how-to/joblib.md lists every one of them by name and says which pass, and why the others make no sense.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.processes import SRC, Script

joblib = pytest.importorskip("joblib")

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "how-to" / "joblib.md"
ROW = re.compile(r"^\| `((?:Test\w+::)?test_\w+)` \| (.+) \| (.+) \|$", re.MULTILINE)
TABLE = {name: {"memory": memory, "backend": backend} for name, memory, backend in ROW.findall(PAGE.read_text("utf-8"))}
TESTED = re.search(r"joblib (\d+\.\d+)", PAGE.read_text("utf-8"))

pytestmark = pytest.mark.skipif(
    TESTED is None or not joblib.__version__.startswith(f"{TESTED[1]}."), reason="the table is about another joblib"
)


@pytest.mark.parametrize("what", ["memory", "backend"])
def test_the_table_lists_every_test_of_joblib_and_says_how_it_ends(what: str, script: Script, tmp_path: Path) -> None:
    spec, written = find_spec("joblib"), tmp_path / "outcomes"
    assert spec is not None and spec.origin is not None
    script(
        None,
        str(Path(spec.origin).parent / "test" / "test_memory.py"),
        options=[
            *("-m", "pytest", "-q", "-p", "tests.compat.joblib_plugin", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(tmp_path)),
        ],
        env={
            "ONCEMORE_TEST_JOBLIB": what,
            "ONCEMORE_TEST_OUTCOMES": str(written),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join([str(SRC), str(ROOT)]),
        },
        expect=1,  # some fail: the table says which
        timeout=600,
    )
    found: dict[str, set[str]] = defaultdict(set)
    for line in written.read_text("utf-8").splitlines():
        name, outcome, why = json.loads(line)
        found[name.partition("[")[0]].add(outcome if outcome != "failed" else f"failed: {why}")
    said = {name for name, row in TABLE.items() if row[what] == "passes"}
    assert sorted(found) == sorted(TABLE)
    assert {name: found[name] for name in said if not found[name] <= {"passed", "skipped"}} == {}
    varies = {name for name, row in TABLE.items() if row[what].startswith("varies: ")}
    assert {name for name in found if found[name] == {"passed"}} - said - varies == set()
