"""The campaign: attacks on the promise in rounds, until its minutes are used. See docs/reliability.md.

    python -m tests.campaign --minutes 30 --seed 17 --write      the numbers go into docs/reliability.md
    python -m tests.campaign --part calls --seed 17              one part of one round

A part is a command in a process of its own, in an empty folder. Its seed is that of the campaign plus the number of the round, so
that round 0 of `--seed 20` is round 3 of `--seed 17`. Random moments are those of the clock, which no seed repeats.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.faults import calls
from tests.pythons import ROOT

PAGE = ROOT / "docs" / "reliability.md"
FAULTS = ROOT / "tests" / "faults"
MARKS = "<!-- campaign: written by make campaign -->\n", "<!-- end of campaign -->\n"
FUZZED = ("decoder", "archive", "json_import", "url")

# What is counted, and as what the page lists it.
COUNTED = {
    "random": "kills at random instants",
    "calls": "kills in system calls that touch the store",
    "crowd": "kills among eight processes that share a run",
    "pipelines": "random pipelines killed, resumed and compared",
    "scripts": "made-up scripts killed, edited, resumed and compared with plain Python",
    "histories": "random histories compared with a model",
    "damage": "entries damaged",
    "overwrite_pages": "databases with overwritten bytes",
    "plant": "entries replaced by hostile pickles",
    "fuzz": "inputs of the fuzzer",
}


@dataclass(frozen=True)
class Part:
    """A command, and the numbers that it counts: the given ones, or those it prints as `N name`."""

    command: list[str]
    counts: dict[str, int]
    preload: bool = False


def parts(seed: int, number: int, short: bool) -> dict[str, Part]:
    """The parts of one round."""
    many = 1 if short else 5
    start, python = seed + number, [sys.executable]
    reaper, pytest = [*python, str(FAULTS / "reaper.py")], [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    properties = str(ROOT / "tests" / "properties")
    found = {
        "random": Part([*reaper, "random", f"{4 * many}", f"{start}"], {"random": 4 * many}),
        "crowd": Part([*reaper, "crowd", f"{4 * many}", f"{start}"], {"crowd": 4 * many}),
        "attacks": Part([*python, "-m", "tests.faults.attacks", f"{8 * many}", f"{start}"], {}),
        "scripts": Part(
            [*python, "-m", "tests.properties.scripts", "--start", f"{start * many}", "--count", f"{many}", "--jobs=1"],
            {"scripts": many},
        ),
    }
    if calls.available():  # every call once, in as many rounds as it takes: always in the same order
        kills = 4 * many
        command = [*reaper, "calls", f"{kills}", f"{seed}", f"{kills * number}"]
        found["calls"] = Part(command, {"calls": kills}, preload=True)
    if not short:
        found["pipelines"] = Part([*pytest, f"{properties}/test_pipelines.py", "--campaign=13"], {"pipelines": 13})
        model = [*pytest, f"{properties}/test_history_model.py", f"--hypothesis-seed={start}"]
        found["histories"] = Part(model, {"histories": 48})
        if importlib.util.find_spec("atheris"):
            for target in FUZZED:
                found[f"fuzz {target}"] = Part([*python, "-m", "tests.fuzz", target, "8", f"{start}"], {})
    return found


def run(name: str, part: Part, seed: int, library: Path | None) -> tuple[Counter[str], str]:
    """What was counted, and what the part said if it failed."""
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "ONCEMORE_TEST_SEED": str(seed),
            "HOME": folder,
            "XDG_CONFIG_HOME": f"{folder}/config",
            **({"LD_PRELOAD": str(library)} if part.preload else {}),
        }
        where = ROOT if "pytest" in part.command else folder
        done = subprocess.run(
            part.command, cwd=where, env=env, text=True, capture_output=True, stdin=subprocess.DEVNULL
        )
    counted = Counter(part.counts)
    for number, what in re.findall(r"(\d+) (damage|plant|overwrite_pages)\b", done.stdout):
        counted[what] += int(number)
    for number in re.findall(r"Done (\d+) runs", done.stderr):
        counted["fuzz"] += int(number)
    if done.returncode == 0:
        return counted, ""
    return Counter(), f"{name} failed: {' '.join(part.command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def campaign(minutes: float, seed: int, only: str = "", short: bool = False) -> tuple[Counter[str], int, list[str]]:
    """Rounds until the minutes are used, at least one: what was counted, the rounds begun, and what failed."""
    end = time.monotonic() + 60 * minutes
    total: Counter[str] = Counter()
    failures: list[str] = []
    number = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        library = calls.build(Path(folder)) if calls.available() else None
        while number == 0 or (time.monotonic() < end and not only and not short):
            chosen = {name: part for name, part in parts(seed, number, short).items() if only in ("", name)}

            def one(each: tuple[str, Part], number: int = number) -> tuple[Counter[str], str]:
                late = not short and not only and time.monotonic() > end
                return (Counter(), "") if late else run(*each, seed + number, library)

            for counted, failure in pool.map(one, chosen.items()):
                total += counted
                if failure:
                    failures.append(failure)
                    print(failure, flush=True)
            number += 1
            print(f"round {number}: {dict(total)}, {len(failures)} failed", file=sys.stderr, flush=True)
    return total, number, failures


def write(total: Counter[str], rounds: int, failures: list[str], minutes: float, seed: int) -> None:
    """Put the numbers into the page."""
    lines = ["| | |", "|---|---:|"]
    lines += [f"| {title} | {total[name]:,} |" for name, title in COUNTED.items()]
    versions = ", ".join(f"{name} {version(name)}" for name in ("oncemore", "diskcache", "cloudpickle", "wrapt"))
    told = (
        f"{minutes:g} minutes, {rounds} rounds, seed {seed}: **{len(failures)} failed**. Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, {versions}, {platform.system()} {platform.release()}, {os.cpu_count()} processors."
    )
    first, last = MARKS
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(first)[0], text.partition(last)[2]
    PAGE.write_text(before + first + "\n".join(["", *lines, "", told, "", ""]) + last + after, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.campaign", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--part", default="", help="only this part, for one round")
    parser.add_argument("--write", action="store_true", help="put the numbers into docs/reliability.md")
    options = parser.parse_args()
    seed = random.randrange(1 << 20) if options.seed is None else options.seed
    print(f"SEED={seed}", flush=True)
    total, rounds, failures = campaign(options.minutes, seed, options.part)
    if options.write:
        write(total, rounds, failures, options.minutes, seed)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
