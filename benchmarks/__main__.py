"""All tasks, one process each: `python -m benchmarks [--quick] [GROUP.TASK ...]`; `make bench` calls it.

Writes docs/performance.md, its plots and docs/performance.json, unless only some tasks are asked for: those are just shown.
With BENCH_CLOCK=cpu all goals compare CPU time: ratios that mean something while others use the machine.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import subprocess
import sys
import time
from typing import Any

from . import report
from .harness import ROOT

GROUPS = ("calls", "arguments", "identity", "values", "store", "processes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, few rounds: two minutes")
    parser.add_argument("--rounds", type=int, help="how often every contender has its turn (default: 5, quick 2)")
    parser.add_argument("tasks", nargs="*", metavar="GROUP[.TASK]", help="only these")
    asked = parser.parse_args()
    rounds = asked.rounds or (2 if asked.quick else 5)
    compileall.compile_dir(ROOT / "src", quiet=1)  # as installing does: new processes are not to compile ours each time
    start, results = time.monotonic(), []
    for name in _names():
        if not asked.tasks or any(name == wanted or name.startswith(f"{wanted}.") for wanted in asked.tasks):
            results.append(_one(name, rounds, asked.quick))
            print(report.as_text(results[-1]), flush=True)
    seconds = time.monotonic() - start
    print(f"{report.verdict(results)}, in {seconds:.0f} s")
    if not asked.tasks:
        report.write(results, quick=asked.quick, seconds=seconds)
    return 0 if all("failed" not in result for result in results) else 1


def _names() -> list[str]:
    modules = ((group, importlib.import_module(f"benchmarks.{group}")) for group in GROUPS)
    return [f"{group}.{task}" for group, module in modules for task in module.TASKS]


def _one(name: str, rounds: int, quick: bool) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.one", name, str(rounds), *(["--quick"] if quick else [])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:  # shown, in the report as well: a task that fails must not look like one that was never there
        trouble = done.stderr.strip().splitlines() or ["no message"]
        print(done.stderr[-2000:], file=sys.stderr)
        return {"task": name, "group": name.partition(".")[0], "failed": trouble[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
