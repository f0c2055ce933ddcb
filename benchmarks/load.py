"""What a store and its processes take under load: `python -m benchmarks.load [--minutes 10] [PART ...]`.

Parts: `together` (processes full of tasks on one store), `steps` (one process, one run), `nodes` (many runs of many steps),
`runs` (many small runs), `values` (large values). Each part is bounded in count and time and runs in processes of its own,
which this one observes from outside. The numbers go to docs/explanation/load.json, and from there into load.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .harness import ROOT

PAGE, NUMBERS = ROOT / "docs/explanation/load.md", ROOT / "docs/explanation/load.json"
HEADER = """
import asyncio, gc, json, os, random, sys, time
from oncemore import History, checkpoint_scope, checkpointed
given = json.loads(sys.argv[1])
def say(**about): print(json.dumps(about), flush=True)
def go(): sys.stdin.readline()
"""
TOGETHER = """
@checkpointed
async def fetch(number):
    return random.Random(number).randbytes(50_000 if number % 100 == 0 else 200)

async def task(rng):
    global done
    while time.monotonic() < end:
        number = rng.randrange(given["numbers"])
        assert await fetch(number) == random.Random(number).randbytes(50_000 if number % 100 == 0 else 200)
        done += 1

async def main():
    await asyncio.gather(*[task(random.Random(given["number"] * 1_000 + each)) for each in range(given["tasks"])])

done = 0
say(at=0)
go()
end = time.monotonic() + given["seconds"]
with checkpoint_scope(f"run {given['number'] % given['runs']}", store=given["store"]) as run:
    asyncio.run(main())
    ran = sum(run.ran.values())
say(done=done, ran=ran)
"""
STEPS = """
@checkpointed
def step(number):
    return [number, str(number)]

with checkpoint_scope("long", store=given["store"]):
    for number in range(given["steps"]):
        if number % given["every"] == 0:
            gc.collect()
            say(at=number, objects=len(gc.get_objects()))
            go()
        assert step(number)[0] == number
    gc.collect()
    say(at=given["steps"], objects=len(gc.get_objects()))
    go()
gc.collect()
say(at="the scope closed", objects=len(gc.get_objects()))
go()
"""
NODES = """
@checkpointed(code="version", version="1")
def step(number):
    return number

for number in range(given["runs"]):
    if number % given["every"] == 0:
        gc.collect()
        say(at=number * given["steps"], objects=len(gc.get_objects()))
        go()
    with checkpoint_scope(f"run {number:05}", store=given["store"]):
        for each in range(given["steps"]):
            step(each)
gc.collect()
say(at=given["runs"] * given["steps"], objects=len(gc.get_objects()))
go()
"""
AGAIN = """
def timed(name, work):
    start = time.perf_counter()
    found = work()
    say(what=name, seconds=round(time.perf_counter() - start, 3))
    return found

@checkpointed(code="version", version="1")
def step(number):
    raise AssertionError("it was recorded")

def hits():
    with checkpoint_scope("run 00000", store=given["store"]):
        for number in range(given["steps"]):
            step(number)

@checkpointed(name="other")
def other(number):
    return number

def miss():
    with checkpoint_scope("another run", store=given["store"]):
        other(1)

timed(f"reuse a run, {given['steps']:,} steps", hits)
history = timed("open the store", lambda: History(given["store"]))
timed("a new run with one step", miss)
timed("list the latest 20 runs", lambda: list(history.runs(limit=20)))
timed("list all runs", lambda: list(history.runs()))
say(at="the end", objects=0)
go()
"""
VALUES = """
@checkpointed(code="version", version="1")
def make(gigabytes):
    print(json.dumps({"what": f"compute {gigabytes} GB", "seconds": 0}), flush=True)
    block = os.urandom(1 << 24)
    return block * (gigabytes << 6)

def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

start = time.perf_counter()
with checkpoint_scope("large", store=given["store"]) as run:
    found = make(given["gigabytes"])
    ran = run.ran["make"]
say(what=("write" if ran else "read") + f" {given['gigabytes']} GB", seconds=round(time.perf_counter() - start, 1),
    size=len(found), peak=peak())
"""


class Child:
    """A process of one part. It says what it does, line by line, and waits where it is to be measured."""

    def __init__(self, source: str, **given: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEADER + source, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "ONCEMORE_KEY": "load"},
        )

    def lines(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def measured(self) -> dict[str, int]:
        """Memory, descriptors and threads of the process as it is now."""
        folder = Path("/proc", str(self.process.pid))
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        return {
            "memory": int(fields["VmRSS"].split()[0]) << 10,
            "descriptors": len(os.listdir(folder / "fd")),
            "threads": int(fields["Threads"]),
        }

    def end(self) -> None:
        if self.process.wait():
            raise RuntimeError(f"a process of the load ended with code {self.process.returncode}")


def measured(store: Path) -> dict[str, int]:
    """The sizes of database and journal, and the number of temporary files."""

    def size(name: str) -> int:
        path = store / name
        return path.stat().st_size if path.exists() else 0

    known = {"cache.db", "cache.db-wal", "cache.db-shm", "cache.db-locks", ".gitignore"}
    return {
        "database": size("cache.db"),
        "journal": size("cache.db-wal"),
        "temporary": sum(path.is_file() and path.name not in known for path in store.glob("*")),
    }


def together(store: Path, asked: argparse.Namespace) -> dict[str, Any]:
    children = [
        Child(
            TOGETHER,
            store=str(store),
            number=number,
            runs=10,
            numbers=100_000,
            tasks=max(1, asked.tasks // asked.processes),
            seconds=asked.minutes * 60,
        )
        for number in range(asked.processes)
    ]
    for child in children:
        next(child.lines())
    for child in children:
        child.go()
    start, samples = time.monotonic(), list[dict[str, Any]]()
    while all(child.process.poll() is None for child in children) and time.monotonic() - start < asked.minutes * 60 - 1:
        time.sleep(min(5, asked.minutes * 6))
        try:
            found = [child.measured() for child in children]
        except OSError:  # one has ended
            break
        most = {name: max(each[name] for each in found) for name in found[0]}
        samples.append({"at": round(time.monotonic() - start), **most, **measured(store)})
    told = [list(child.lines())[-1] for child in children]
    for child in children:
        child.end()
    return {
        "samples": _thinned(samples),
        "calls": sum(each["done"] for each in told),
        "computed": sum(each["ran"] for each in told),
        "after": _after(store),
        "processes": asked.processes,
        "tasks": asked.tasks,
        "minutes": asked.minutes,
    }


def steps(store: Path, asked: argparse.Namespace) -> dict[str, Any]:
    every = max(1, asked.steps // 10)
    return {**_sampled(Child(STEPS, store=str(store), steps=asked.steps, every=every), store), "steps": asked.steps}


def nodes(store: Path, asked: argparse.Namespace) -> dict[str, Any]:
    each = min(10_000, asked.nodes)
    count = asked.nodes // each
    found = _sampled(Child(NODES, store=str(store), runs=count, steps=each, every=max(1, count // 10)), store)
    again = _sampled(Child(AGAIN, store=str(store), steps=each), store)
    return {**found, "times": again["times"], "nodes": asked.nodes, "in_runs": count}


def runs(store: Path, asked: argparse.Namespace) -> dict[str, Any]:
    found = _sampled(Child(NODES, store=str(store), runs=asked.runs, steps=1, every=max(1, asked.runs // 10)), store)
    again = _sampled(Child(AGAIN, store=str(store), steps=1), store)
    return {**found, "times": again["times"], "runs": asked.runs}


def values(store: Path, asked: argparse.Namespace) -> dict[str, Any]:
    told = list[dict[str, Any]]()
    for _ in range(2):
        child = Child(VALUES, store=str(store), gigabytes=asked.gigabytes)
        told += [line for line in child.lines() if "peak" in line]
        child.end()
    return {"samples": [], "told": told, "gigabytes": asked.gigabytes, "after": _after(store)}


def _sampled(child: Child, store: Path) -> dict[str, Any]:
    samples, times = list[dict[str, Any]](), list[dict[str, Any]]()
    start = time.monotonic()
    for line in child.lines():
        if "at" in line:
            samples.append(
                {**line, **child.measured(), **measured(store), "seconds": round(time.monotonic() - start, 1)}
            )
            child.go()
        else:
            times.append(line)
    child.end()
    return {"samples": samples, "times": times, "after": _after(store)}


def _after(store: Path) -> dict[str, int]:
    """What is left when all processes have ended."""
    return measured(store)


def _thinned(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """About ten samples, evenly spread, with the last one."""
    step = max(1, len(samples) // 10)
    return [*samples[: len(samples) - 1 : step], *samples[-1:]]


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "together": together,
    "steps": steps,
    "nodes": nodes,
    "runs": runs,
    "values": values,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.load", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long the processes work together")
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--tasks", type=int, default=1_000, help="in all processes together")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--gigabytes", type=int, default=4)
    parser.add_argument("--folder", help="where the stores go (default: a temporary folder)")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    asked = parser.parse_args()
    for name in asked.parts or PARTS:
        folder = Path(tempfile.mkdtemp(prefix="oncemore-load-", dir=asked.folder))
        start = time.monotonic()
        try:
            found = PARTS[name](folder / "store", asked)
        finally:
            shutil.rmtree(folder)
        found["took"], found["when"] = round(time.monotonic() - start), datetime.date.today().isoformat()
        kept = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
        kept[name] = found
        kept["machine"] = f"{os.cpu_count()} CPUs, Python {platform.python_version()}, Linux {platform.release()}"
        NUMBERS.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"{name}: {found['took']} s", flush=True)
    from .load_page import page

    PAGE.write_text(page(json.loads(NUMBERS.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
