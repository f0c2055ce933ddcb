"""Check the project, build its documentation, and test it.

`python -m tests.everywhere test` does all of it on the newest Python of this machine; `test-all` adds every other one, with the
selection that `pytest --brief` makes. The oldest Python has wrapt 1, the others the newest wrapt; a Python that is alone is
tested with both. Both commands also install the wheel by itself, and run some tests against it where there is no `src`.

ARGS in the environment is handed to pytest: then only those tests run, on the newest Python, and nothing else does.
PYTHONS chooses versions ("3.10 3.13") for all of these.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import List, Sequence, Tuple  # as plain as this file has to be for an old Python

from tests.pythons import ROOT, SUPPORTED, VENVS, Python, Trouble, environment, find, install, say

TEST = ["--editable", ".[test]"]
FULL = ["--editable", ".[test,libraries]"]
LINT = ["--editable", ".[lint]"]
DOCS = ["--editable", ".[docs]"]
DEMO = ["--editable", ".[cli]", "numpy", "pandas"]
BENCH = ["--editable", ".", "joblib", "numpy", "pandas"]
# What builds the wheel and runs tests beside it: neither numpy nor any other library that the package does not require.
WHEEL = ["hatchling>=1.26", "hypothesis>=6.100", "pytest>=9.0", "pytest-xdist>=3.6"]
WHEEL_TESTS = [
    "tests/cli/test_golden.py",
    "tests/stores/test_conformance.py",
    "tests/unit/test_history.py",
    "tests/unit/test_map.py",
    "tests/unit/test_public.py",
    "tests/unit/test_pytest_plugin.py",
    "tests/unit/test_scope.py",
    "tests/unit/test_steps.py",
]
# One by one: a peer that cannot be installed here is left out, and the benchmark says so.
PEERS = [
    ["cachier"],
    ["checkpointer"],
    ["charmonium.cache"],
    ["pymandala", "graphviz", "ipython", "prettytable", "pyarrow", "tqdm"],  # it does not name all that it imports
    ["dbos"],
    ["langgraph", "langgraph-checkpoint-sqlite"],
]

# What the public example scripts of the campaign need.
PUBLIC = [["scikit-learn", "matplotlib"], ["statsmodels"], ["simpy"]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.everywhere", description=__doc__)
    parser.add_argument(
        "command",
        choices=["test", "test-all", "check", "format", "docs", "captures", "campaign", "demo-python", "bench-python"],
    )
    options = parser.parse_args()
    wanted, arguments = os.environ.get("PYTHONS", "").split(), shlex.split(os.environ.get("ARGS", ""))
    for foreign in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):  # what is tested is what gets installed
        os.environ.pop(foreign, None)
    # A shell that starts us in the background has SIGINT ignored, in all that we start, too; tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if options.command == "demo-python":
            print(environment(_choose()[-1], "demo", DEMO))
            return 0
        if options.command == "bench-python":
            print(environment(_benched(wanted), "bench", BENCH, optional=PEERS))
            return 0
        if options.command == "docs":
            return 0 if _pass([_docs()]) else 1
        if options.command == "captures":
            newest = _choose()[-1]
            inside = environment(newest, newest.minor, FULL)
            return subprocess.run([inside, "-m", "tests.captures"], cwd=ROOT).returncode
        if options.command == "campaign":
            return _campaign(_choose(wanted)[-1], arguments)
        pythons = _choose(wanted, tell=True)
        if options.command == "format":
            return 0 if all([_pass([each]) for each in _layout("--fix")]) else 1  # one after the other: both write
        if options.command == "check":
            return 0 if _pass([*_layout(), *_types(pythons[-1])]) else 1
        if arguments:
            return _test_some(pythons if wanted or options.command == "test-all" else pythons[-1:], arguments)
        return _test(plan(pythons) if wanted or options.command == "test-all" else plan(pythons)[:1])
    except Trouble as trouble:
        say(f"\n{trouble}")
        return 2


def _choose(wanted: list[str] | None = None, tell: bool = False) -> list[Python]:
    """The Pythons to work with, oldest first."""
    found = find()
    for minor in dict.fromkeys([*SUPPORTED, *found]) if tell else ():
        at = f"{found[minor].version:8} {found[minor].path}" if minor in found else "not found"
        say(f"Python {minor:5} {at}")
    missing = [minor for minor in wanted or () if minor not in found]
    if missing:
        raise Trouble(f"asked for, but not found: Python {', '.join(missing)}")
    if not found:
        raise Trouble(f"No CPython {SUPPORTED[0]} or later found: install one, or put it on the PATH.")
    return [python for minor, python in found.items() if not wanted or minor in wanted]


def _benched(wanted: list[str]) -> Python:
    """The Python to measure with: the newest on which all peers work with a SQLite before 3.42, or the newest there is."""
    pythons = {python.minor: python for python in _choose(wanted)}
    return pythons.get("3.11") or list(pythons.values())[-1]


@dataclass(frozen=True)
class Round:
    """The tests on one Python, with one set of libraries."""

    python: Python
    environment: str
    requirements: tuple[str, ...]
    brief: bool


def plan(pythons: list[Python]) -> list[Round]:
    """What is tested on which Python, given those found here, oldest first."""
    *others, newest = pythons
    oldest, *between = others or [newest]
    return [
        Round(newest, newest.minor, tuple(FULL), brief=False),
        *(Round(python, f"{python.minor}-brief", tuple(TEST), brief=True) for python in reversed(between)),
        Round(oldest, f"{oldest.minor}-wrapt1", (*TEST, "wrapt<2"), brief=True),
    ]


def _environments(rounds: list[Round]) -> dict[Round, str]:
    """The interpreter of an environment for each, two made at a time, and those of the linters and of the documentation."""
    start = time.monotonic()

    def make(each: Round) -> str:
        return environment(each.python, each.environment, list(each.requirements))

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(_tools), pool.submit(_docs)]
        ready = dict(zip(rounds, pool.map(make, rounds)))
        for other in others:
            other.result()
    say(f"environments ready in {time.monotonic() - start:.0f} s")
    return ready


def _tools() -> str:
    """The interpreter of the environment that has the linters: one, whichever Pythons are asked for."""
    return environment(_choose()[-1], "lint", LINT)


Check = Tuple[str, List[str]]  # a title, a command


def _layout(*fix: str) -> list[Check]:
    ruff = [_tools(), "-m", "ruff"]
    return [
        ("ruff check", [*ruff, "check", *fix]),
        ("ruff format", [*ruff, "format", *([] if fix else ["--check"])]),
    ]


def _types(python: Python) -> list[Check]:
    """The type checkers, for the oldest Python that is supported and for this one, with the libraries of this one."""
    tools, inside = _tools(), environment(python, python.minor, FULL)
    checks: list[Check] = []
    for version in dict.fromkeys([python.minor, SUPPORTED[0]]):
        pyright = ["pyright", "--pythonversion", version, "--pythonpath", inside]
        mypy = ["mypy", "--python-version", version, "--python-executable", inside]
        checks += [(f"{each[0]} for Python {version}", [tools, "-m", *each]) for each in (pyright, mypy)]
    return checks


def _docs() -> Check:
    """The documentation as a site. Broken links and anchors, pages outside the navigation, unknown names: all are errors."""
    inside = environment(_choose()[-1], "docs", DOCS)
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # news of another project
    return "documentation", [inside, "-m", "mkdocs", "build", "--strict"]


def _pass(checks: list[Check]) -> bool:
    """Run them, two at a time, and print what each says when it has ended."""

    def run(check: Check) -> bool:
        title, command = check
        done = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        print(f"\n== {title}\n{done.stdout}", end="", flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(2) as pool:
        return all([*pool.map(run, checks)])


def _campaign(python: Python, arguments: list[str]) -> int:
    """The campaign for MINUTES; without them, also public scripts, and the long tests at full length."""
    inside = environment(python, "campaign", FULL, optional=[*PUBLIC, ["atheris"]])
    if arguments:
        return 0 if _succeeds("made-up scripts", [inside, "-m", "tests.properties.scripts", *arguments]) else 1
    minutes, seed = os.environ.get("MINUTES"), os.environ.get("SEED")
    chosen = ["--minutes", minutes or "30", *(["--seed", seed] if seed else [])]
    good = _succeeds("campaign", [inside, "-m", "tests.campaign", "--write", *chosen])
    if not minutes:
        sources = str(VENVS / "public")
        good &= _succeeds("public scripts", [inside, "-m", "tests.properties.public_scripts", "--sources", sources])
        good &= not _pytest("long tests", "campaign", inside, ["-m", "slow"], campaign="full")[1]
    return 0 if good else 1


def _succeeds(title: str, command: list[str]) -> bool:
    print(f"\n== {title}", flush=True)
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode == 0


def _test(rounds: list[Round]) -> int:
    """Everything that must pass before a change lands."""
    start = time.monotonic()
    environments = _environments(rounds)
    clean = _pass([*_layout(), *_types(rounds[0].python), _docs()])
    say(f"checks done after {time.monotonic() - start:.0f} s")
    lines: list[str] = []
    total = [0, 0, 0]
    for each, inside in environments.items():
        begun = time.monotonic()
        arguments = ["--brief"] if each.brief else []
        title = f"Python {each.python.version}, wrapt {_wrapt(inside)}, {'brief' if each.brief else 'all tests'}"
        counts = _pytest(title, each.environment, inside, arguments)
        total = [before + now for before, now in zip(total, counts)]
        lines.append(f"{title}: {_summed(counts)} in {time.monotonic() - begun:.0f} s")
    begun = time.monotonic()
    counts = _test_wheel(rounds[0].python)
    total = [before + now for before, now in zip(total, counts)]
    lines.append(f"the installed wheel: {_summed(counts)} in {time.monotonic() - begun:.0f} s")
    print("\n== summary")
    print(*lines, sep="\n")
    absent = [minor for minor in SUPPORTED if minor not in {each.python.minor for each in rounds}]
    if absent:
        print(f"not tested: Python {', '.join(absent)}")
    print(f"checks and documentation {'clean' if clean else 'FAILED'}, {time.monotonic() - start:.0f} s in all")
    print(_summed(total), flush=True)
    return 0 if clean and not total[1] else 1


def _test_wheel(python: Python) -> tuple[int, int, int]:
    """Build the wheel, install it with nothing but what it requires, and run tests from a tree that has no `src`."""
    name = f"{python.minor}-wheel"
    inside = environment(python, name, WHEEL)
    with tempfile.TemporaryDirectory(prefix="oncemore-wheel-") as folder:
        tree, dist = Path(folder, "tree"), Path(folder, "dist")
        subprocess.run([inside, "-m", "hatchling", "build", "-t", "wheel", "-d", dist], cwd=ROOT, check=True)
        (wheel,) = dist.iterdir()
        install(python, inside, [f"{wheel}[cli,encrypt]"], f"installing {wheel.name}")
        install(python, inside, ["--force-reinstall", "--no-deps", str(wheel)], f"installing {wheel.name} anew")
        for part in ("docs", "tests"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("README.md", "pyproject.toml"):
            shutil.copy(ROOT / file, tree / file)
        return _pytest(f"Python {python.version}, the installed wheel", name, inside, WHEEL_TESTS, tree=tree)


def _test_some(pythons: list[Python], arguments: list[str]) -> int:
    """The tests that somebody asks for, and nothing else."""
    failed = 0
    for python in pythons:
        inside = environment(python, python.minor, FULL)
        failed += _pytest(f"Python {python.version}", python.minor, inside, arguments)[1]
    return 1 if failed else 0


def _summed(counts: Sequence[int]) -> str:
    passed, failed, skipped = counts
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def _wrapt(inside: str) -> str:
    """The version of wrapt in an environment."""
    ask = "import importlib.metadata as metadata; print(metadata.version('wrapt'))"
    return subprocess.run([inside, "-c", ask], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _pytest(
    title: str, name: str, inside: str, arguments: list[str], campaign: str = "short", tree: Path = ROOT
) -> tuple[int, int, int]:
    """Run the tests of a tree in one environment: how many passed, failed and were skipped."""
    # The tests start some thousand processes: ours is compiled once. What tests write and edit is not: two edits within a
    # second would leave Python with the first.
    if tree == ROOT:  # a wheel is compiled when it is installed
        subprocess.run([inside, "-m", "compileall", "-q", "src"], cwd=ROOT, check=True)
    env = {**os.environ, "ONCEMORE_TEST_CAMPAIGN": campaign, "PYTHONDONTWRITEBYTECODE": "1"}
    workers = str(max(2, min(8, os.cpu_count() or 2)))
    report = VENVS / "reports" / f"{name}.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    print(f"\n== tests: {title}", flush=True)
    command = [inside, "-m", "pytest", "-q", "-n", workers, "--dist=worksteal", f"--junitxml={report}", *arguments]
    code = subprocess.run(command, cwd=tree, env=env, stdin=subprocess.DEVNULL).returncode
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
