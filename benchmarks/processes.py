"""Processes: what a new one pays, and what many at once get done."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import peers
from .harness import OURS, ROOT, Bench, Contender, Goal, Seconds, Task, python
from .peers import JOBLIB, MEMOIZERS, Oncemore, Peer, RawDiskcache

# -- import and one hit

HITS = {
    OURS: """
from oncemore import checkpoint_scope, checkpointed
@checkpointed
def work(number): __import__('os').write(1, b'x'); return number
with checkpoint_scope("run", store=folder): work(1)
""",
    "joblib.Memory": """
import joblib
def work(number): __import__('os').write(1, b'x'); return number
joblib.Memory(folder, verbose=0).cache(work)(1)
""",
    "diskcache.memoize": """
import diskcache
def work(number): __import__('os').write(1, b'x'); return number
diskcache.Cache(folder).memoize()(work)(1)
""",
    "cachier": """
import cachier
def work(number): __import__('os').write(1, b'x'); return number
cachier.cachier(cache_dir=folder, backend="pickle", separate_files=True)(work)(1)
""",
    "checkpointer": """
import checkpointer
def work(number): __import__('os').write(1, b'x'); return number
checkpointer.Checkpointer(directory=folder, verbosity=0)(work)(1)
""",
    "Python alone": "",
}


def first_hit(bench: Bench) -> Task:
    good, absent = peers.ready([Oncemore, *MEMOIZERS[:4]], bench.folder)
    names = [*(peer.name for peer in good), "Python alone"]

    def contender(name: str) -> Contender:
        path = bench.folder / f"hit_{name.replace('.', '_').replace(' ', '_')}.py"  # not the library's own name
        path.write_text(f"folder = {str(bench.folder / ('first ' + name))!r}\n{HITS[name]}")

        def process() -> bytes:
            done = subprocess.run([sys.executable, path], stdout=subprocess.PIPE, env=_environment(), check=True)
            return done.stdout

        def work(number: int) -> Seconds:
            start = _spent()
            process()
            return _spent() - start

        if [process(), process()] != [b"x", b""] and name != "Python alone":
            raise AssertionError(f"{name}: the second process ran the body")
        return Contender(name, work, limit=name == "Python alone")

    wrapt = peers.installed("wrapt")
    at_most = 0.7 if wrapt.startswith("1.") else 1.0  # wrapt 2 imports asyncio
    return Task(
        f"import and one hit in a new process, with wrapt {wrapt}",
        [contender(name) for name in names],
        [Goal(at_most, JOBLIB, f"at most {at_most} x joblib.Memory's with wrapt {wrapt.partition('.')[0]}")],
        unit="ms",
        note="The whole process, from its start to its end.",
        absent=absent,
        rounds=bench.size(15, 5),
    )


def _spent() -> Seconds:
    """The time so far, and the CPU time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(time.perf_counter(), used.ru_utime + used.ru_stime)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


# -- code identity in a cold process

MODULES, LINES = 20, 20
FIRST = f"{OURS}, no earlier process"
IDENTIFY = "from oncemore import checkpointed; step = checkpointed(m0.f0); start = clock(); step.fingerprint(1)"
LOOK = {
    OURS: IDENTIFY,
    FIRST: IDENTIFY,
    "inspect.getsource of each function": (
        "import inspect; start = clock()\n"
        f"for module in [globals()[f'm{{m}}'] for m in range({MODULES})]:\n"
        "    for function in [each for each in vars(module).values() if inspect.isfunction(each)]: inspect.getsource(function)"
    ),
    "ast.parse of each file": (
        "import ast; from pathlib import Path; start = clock()\n"
        f"for m in range({MODULES}): ast.parse(Path(globals()[f'm{{m}}'].__file__).read_bytes())"
    ),
}


def _project(folder: Path, functions: int) -> None:
    """Modules of functions of 20 lines, each of which calls the next, so that the first reaches all."""
    folder.mkdir()
    for m in range(MODULES):
        more = m + 1 < MODULES
        lines = [f"import m{m + 1}" if more else "import math", "LIMIT = 10", ""]
        for f in range(functions):
            after = f"f{f + 1}" if f + 1 < functions else f"m{m + 1}.f0" if more else "math.sqrt"
            lines += [f"def f{f}(number: int) -> float:", '    """One of many."""', "    total = 0"]
            for line in range((LINES - 6) // 2):
                lines += [f"    if number % {line + 2} and number > LIMIT:", f"        total += number * {f + line}"]
            lines += [f"    return {after}(number) + total", "", ""]
        (folder / f"m{m}.py").write_text("\n".join(lines))


def code_identity(bench: Bench) -> Task:
    functions = bench.size(50, 10)
    _project(bench.folder / "project", functions)
    imports = f"import {', '.join(f'm{m}' for m in range(MODULES))}\n"
    env = {"PYTHONPATH": os.pathsep.join([str(bench.folder / "project"), str(ROOT / "src"), str(ROOT)])}

    def contender(name: str, look: str) -> Contender:
        source = f"{imports}from benchmarks.harness import clock\n{look}\ntaken = clock() - start\nprint([taken.time, taken.cpu])"

        def work(number: int) -> Seconds:
            cache = bench.folder / (f"cache {number}" if name == FIRST else "cache")
            return Seconds(*json.loads(python(source, env={**env, "XDG_CACHE_HOME": str(cache)})))

        return Contender(name, work, limit=name.startswith("ast"))

    return Task(
        f"first fingerprint of a step that reaches {MODULES * functions * LINES:,} lines of code, in a new process",
        [contender(name, look) for name, look in LOOK.items()],
        unit="ms",
        note="Modules and libraries are imported already; no source has been read yet.",
        rounds=bench.size(7, 2),
    )


# -- many processes at once

WORKERS = 8
WORKER = """
import json, sys, time
from pathlib import Path
from benchmarks import harness, peers
kind, folder, number, calls = sys.argv[1:]
peer = getattr(peers, kind)(Path(folder))
peer.open()
harness.bodies()
print("ready", flush=True)
sys.stdin.readline()
start = time.time()
peer.run(int(number), range(int(number) * int(calls), (int(number) + 1) * int(calls)))
print(json.dumps([start, time.time(), harness.bodies()]), flush=True)
"""


def _together(kind: type[Peer], folder: Path, calls: int, runs: Callable[[int], int]) -> tuple[float, int]:
    """Seconds from the first start to the last end of all workers, and how many bodies ran."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, kind.__name__, folder, str(runs(at)), str(calls)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        for at in range(WORKERS)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    told = [json.loads(worker.communicate()[0]) for worker in workers]
    assert not any(worker.returncode for worker in workers)
    return max(end for _, end, _ in told) - min(start for start, _, _ in told), sum(ran for _, _, ran in told)


def _eight(bench: Bench, title: str, calls: int, recorded: bool) -> Task:
    def contender(kind: type[Peer]) -> Contender:
        folder = bench.folder / kind.__name__

        def work(number: int) -> Seconds:
            seconds, ran = _together(kind, folder, calls, lambda at: at if recorded else number * WORKERS + at)
            if not kind.limit and ran != (0 if recorded else WORKERS * calls):
                raise AssertionError(f"{kind.name}: {ran} bodies ran")
            return Seconds(seconds)

        if recorded:
            peer = kind(folder)
            peer.open()
            for at in range(WORKERS):
                peer.run(at, range(at * calls, (at + 1) * calls))
            peer.close()
        return Contender(kind.name, work, WORKERS * calls, after=lambda number: _none_lost(kind, folder, calls, number))

    def _none_lost(kind: type[Peer], folder: Path, calls: int, number: int) -> None:
        if kind is Oncemore and not recorded:
            _, ran = _together(kind, folder, calls, lambda at: number * WORKERS + at)
            assert ran == 0, f"{ran} of {WORKERS * calls} writes were lost"

    return Task(
        f"{WORKERS} processes {title} one store, per call of all together",
        [contender(Oncemore), contender(RawDiskcache)],
        note=f"{os.cpu_count()} CPUs, a run for each process; all that was written was read back.",
        rounds=bench.size(5, 2),
    )


def eight_hitting(bench: Bench) -> Task:
    return _eight(bench, "hitting", bench.size(2_000, 300), recorded=True)


def eight_writing(bench: Bench) -> Task:
    return _eight(bench, "writing", bench.size(300, 50), recorded=False)


TASKS = {
    "first_hit": first_hit,
    "code_identity": code_identity,
    "eight_hitting": eight_hitting,
    "eight_writing": eight_writing,
}
