"""Lint the project and build its documentation once, and test it on every supported Python of this machine.

`python -m tests.everywhere test` does all of it.
PYTHONS in the environment chooses versions ("3.10 3.13"), ARGS is handed to pytest.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor

from tests.pythons import ROOT, SUPPORTED, VENVS, Python, Trouble, environment, find, say

TEST = ["--editable", ".[test]"]
LINT = ["--editable", ".[lint]"]
DOCS = ["--editable", ".[docs]"]
DEMO = ["--editable", ".", "numpy", "pandas"]

_ROOM = (
    1080.0  # seconds for all Pythons. Where they would not do, the newest is tested in full and the others in brief.
)
BENCH = ["--editable", ".", "joblib", "numpy", "pandas"]
# One by one: a peer that cannot be installed here is left out, and the benchmark says so.
PEERS = [
    ["cachier"],
    ["checkpointer"],
    ["charmonium.cache"],
    ["pymandala", "graphviz", "ipython", "prettytable", "pyarrow", "tqdm"],  # it does not name all that it imports
    ["dbos"],
    ["langgraph", "langgraph-checkpoint-sqlite"],
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.everywhere", description=__doc__)
    parser.add_argument(
        "command", choices=["test", "lint", "format", "docs", "captures", "demo-python", "bench-python"]
    )
    asked = parser.parse_args()
    wanted, arguments = os.environ.get("PYTHONS", "").split(), shlex.split(os.environ.get("ARGS", ""))
    for foreign in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):  # what is tested is what gets installed
        os.environ.pop(foreign, None)
    # A shell that starts us in the background has SIGINT ignored, in all that we start, too; tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if asked.command == "demo-python":
            print(environment(_choose()[-1], "demo", DEMO))
            return 0
        if asked.command == "bench-python":
            print(environment(_benched(wanted), "bench", BENCH, optional=PEERS))
            return 0
        if asked.command == "docs":
            return 0 if _docs() else 1
        if asked.command == "captures":
            newest = _choose()[-1]
            inside = environment(newest, newest.minor, TEST)
            return subprocess.run([inside, "-m", "tests.captures"], cwd=ROOT).returncode
        pythons = _choose(wanted, tell=True)
        if asked.command == "format":
            return 0 if _layout(_tools(), "--fix") else 1
        if asked.command == "lint":
            return 0 if _lint(_environments(_ends(pythons))) else 1
        return _test(pythons, arguments)
    except Trouble as trouble:
        say(f"\n{trouble}")
        return 2


def _choose(wanted: list[str] | None = None, tell: bool = False) -> list[Python]:
    """The Pythons to work with, oldest first."""
    found = find()
    for minor in SUPPORTED if tell else ():
        at = f"{found[minor].version:8} {found[minor].path}" if minor in found else "not found"
        say(f"Python {minor:5} {at}")
    missing = [minor for minor in wanted or () if minor not in found]
    if missing:
        raise Trouble(f"asked for, but not found: Python {', '.join(missing)}")
    if not found:
        raise Trouble(f"No CPython {SUPPORTED[0]} to {SUPPORTED[-1]} found: install one, or put it on the PATH.")
    return [python for minor, python in found.items() if not wanted or minor in wanted]


def _benched(wanted: list[str]) -> Python:
    """The Python to measure with: the newest on which all peers work with a SQLite before 3.42, or the newest there is."""
    pythons = {python.minor: python for python in _choose(wanted)}
    return pythons.get("3.11") or list(pythons.values())[-1]


def _ends(pythons: list[Python]) -> list[Python]:
    """The oldest and the newest; one, where they are the same."""
    return pythons if len(pythons) < 2 else [pythons[0], pythons[-1]]


def _environments(pythons: list[Python]) -> dict[Python, str]:
    """The interpreter of an environment for each, two made at a time, and the linters' own."""
    start = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        tools = pool.submit(_tools)
        ready = dict(zip(pythons, pool.map(lambda python: environment(python, python.minor, TEST), pythons)))
        tools.result()
    say(f"environments ready in {time.monotonic() - start:.0f} s")
    return ready


def _tools() -> str:
    """The interpreter of the environment that has the linters: one, whichever Pythons are asked for."""
    return environment(_choose()[-1], "lint", LINT)


def _lint(environments: dict[Python, str]) -> bool:
    """ruff once; the type checkers as seen from the oldest and from the newest Python, each with its own libraries."""
    tools = _tools()
    good = _layout(tools)
    for python in _ends(list(environments)):
        inside = environments[python]
        mypy = ["mypy", "--python-version", python.minor, "--python-executable", inside]
        pyright = ["pyright", "--pythonversion", python.minor, "--pythonpath", inside]
        for check in (mypy, pyright):
            good &= _succeeds(f"{check[0]} for Python {python.minor}", [tools, "-m", *check])
    return good


def _layout(tools: str, *fix: str) -> bool:
    good = _succeeds("ruff check", [tools, "-m", "ruff", "check", *fix])
    return _succeeds("ruff format", [tools, "-m", "ruff", "format", *([] if fix else ["--check"])]) and good


def _docs() -> bool:
    """The documentation as a site. Broken links and anchors, pages outside the navigation, unknown names: all are errors."""
    inside = environment(_choose()[-1], "docs", DOCS)
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # news of another project
    return _succeeds("documentation", [inside, "-m", "mkdocs", "build", "--strict"])


def _succeeds(title: str, command: list[str]) -> bool:
    print(f"\n== {title}", flush=True)
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode == 0


def _test(pythons: list[Python], arguments: list[str]) -> int:
    start = time.monotonic()
    environments = _environments(pythons)
    clean, built = _lint(environments), _docs()
    newest, *others = reversed(pythons)
    counts = {newest: _pytest(newest, environments[newest], "full", arguments)}  # the long campaigns at full length
    for python in reversed(others):
        ahead, rest = _ROOM - (time.monotonic() - start), len(pythons) - len(counts)
        if not arguments and ahead < rest * counts[newest][3]:
            print(
                f"\n{ahead:.0f} s are left for {rest} Pythons: on {python.minor}, tests that start processes are left out"
            )
            counts[python] = _pytest(python, environments[python], "short", ["--brief"])
        else:
            counts[python] = _pytest(python, environments[python], "short", arguments)
    print("\n== summary")
    for python, (passed, failed, skipped, seconds) in counts.items():
        print(f"Python {python.version:8} passed {passed}, failed {failed}, skipped {skipped} in {seconds:.0f} s")
    absent = [minor for minor in SUPPORTED if minor not in {python.minor for python in pythons}]
    if absent:
        print(f"not tested here: Python {', '.join(absent)}")
    outcome = f"lint {'clean' if clean else 'FAILED'}, documentation {'built' if built else 'FAILED'}"
    print(f"{outcome}, {time.monotonic() - start:.0f} s in all")
    passed, failed, skipped = (sum(count[i] for count in counts.values()) for i in range(3))
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 0 if clean and built and not failed else 1


def _pytest(python: Python, inside: str, campaign: str, arguments: list[str]) -> tuple[int, int, int, float]:
    """Run the tests on one Python: how many passed, failed and were skipped, and the seconds it took."""
    start = time.monotonic()
    # The tests start some thousand processes: ours is compiled once. What tests write and edit is not: two edits within a
    # second would leave Python with the first.
    subprocess.run([inside, "-m", "compileall", "-q", "src"], cwd=ROOT, check=True)
    env = {**os.environ, "ONCEMORE_TEST_CAMPAIGN": campaign, "PYTHONDONTWRITEBYTECODE": "1"}
    workers = str(max(2, min(8, os.cpu_count() or 2)))
    print(f"\n== tests on Python {python.version}, {campaign} campaigns", flush=True)
    command = [inside, "-m", "pytest", "-q", *arguments]
    passed, failed, skipped = _counted(python, [*command, "-n", workers, "--dist=worksteal"], env)
    if (
        0 < failed <= 10
    ):  # on a machine that others use, any test may be too slow; each that needs a second try is named
        print(f"\n== once more on Python {python.version}: those that failed", flush=True)
        mended, failed, _ = _counted(python, [*command, "-v", "--last-failed", "--last-failed-no-failures=none"], env)
        passed += mended
    return passed, failed, skipped, time.monotonic() - start


def _counted(python: Python, command: list[str], env: dict[str, str]) -> tuple[int, int, int]:
    report = VENVS / "reports" / f"{python.minor}.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    code = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, env=env, stdin=subprocess.DEVNULL).returncode
    total = failed = skipped = 0
    for suite in xml.parse(report).iter("testsuite") if report.is_file() else ():
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    if code and not failed:  # nothing collected, a crash of the runner: no report tells of it
        failed = 1
    return total - failed - skipped, failed, skipped


if __name__ == "__main__":
    sys.exit(main())
