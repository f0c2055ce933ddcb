"""One small harness: contenders take turns, again and again, and what else the machine did meanwhile is noted.

A task is a list of contenders that do the same work, and goals that compare ours with another. A contender's `work` gets the
number of the round. It is timed, or returns the seconds it took, where only a part of what it does counts.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OURS = "oncemore"
MORE = 1.0  # seconds, for each round of all contenders, in which those that goals compare go on
MOST = 40  # rounds
NOTICEABLE = 0.05  # of the machine's CPU time: from here on, other load is told
ROOT = Path(__file__).resolve().parent.parent
CPU = (
    os.environ.get("BENCH_CLOCK") == "cpu"
)  # goals compare CPU time, which means something even while others use the machine


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time, and the CPU time within it: without waiting for a disk, or for a turn on a machine that others use."""

    time: float
    cpu: float = math.nan

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.time - other.time, self.cpu - other.cpu)

    def __truediv__(self, number: int) -> Seconds:
        return Seconds(self.time / number, self.cpu / number)


def clock() -> Seconds:
    return Seconds(time.perf_counter(), time.process_time())


def _nothing(number: int) -> None:
    """What most contenders do before and after a round."""


@dataclass
class Contender:
    """One way to do the work. `per`: how many calls a round makes; times are told per call."""

    name: str
    work: Callable[[int], Seconds | None]
    per: int = 1
    before: Callable[[int], None] = _nothing
    after: Callable[[int], None] = _nothing
    limit: bool = False  # the physical limit, not a peer


@dataclass
class Goal:
    """`at_most`: how many times the other's time ours may take. `beyond`: seconds more than the other.

    `cpu`: in CPU time. `known` was found once, beside the rounds: memory, sizes. `planned`: shown, but not among the goals of
    this version.
    """

    at_most: float
    of: str = ""
    text: str = ""
    ours: str = OURS
    beyond: bool = False
    cpu: bool = CPU
    known: float | None = None
    planned: bool = False


@dataclass
class Task:
    name: str
    contenders: list[Contender]
    goals: list[Goal] = field(default_factory=list[Goal])
    unit: str = "us"
    note: str = ""
    rounds: int = 0  # 0: as many as the run makes
    absent: dict[str, str] = field(default_factory=dict[str, str])  # contenders that could not take part, and why


@dataclass(frozen=True)
class Bench:
    """What a task is made with: a folder of its own, and whether it must be quick."""

    folder: Path
    quick: bool

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full


# -- measuring


def measure(task: Task, rounds: int) -> dict[str, Any]:
    """Every contender in turn, `rounds` times; then, for firmer minima, those that goals compare for some time more.

    Gives minimum and median of each, and the other load that was seen.
    """
    compared = {name for goal in task.goals if goal.known is None for name in (goal.ours, goal.of)}
    rounds = task.rounds or rounds
    taken: dict[str, list[Seconds]] = {contender.name: [] for contender in task.contenders}
    loads: list[Load] = []
    gc.collect()
    gc.freeze()  # what the set-up left is not to be looked through in every round
    number, until = 0, 0.0
    while number < rounds or (compared and number < MOST and time.monotonic() < until and not task.rounds):
        for contender in task.contenders:
            if number >= rounds and contender.name not in compared:
                continue
            contender.before(number)
            gc.collect()
            watch = Watch()
            start = clock()
            told = contender.work(number)
            seconds = clock() - start
            loads.append(watch.stop())
            contender.after(number)
            taken[contender.name].append((seconds if told is None else told) / contender.per)
        number += 1
        if number == rounds:
            until = time.monotonic() + MORE * rounds
    found = {
        contender.name: {
            "limit": contender.limit,
            "min": _least(taken[contender.name]),
            "median": statistics.median(each.time for each in taken[contender.name]),
            "cpu": None if math.isnan(least := _least(taken[contender.name], cpu=True)) else least,
        }
        for contender in task.contenders
    }
    about = {"unit": task.unit, "note": task.note, "rounds": rounds, "more": number - rounds, "absent": task.absent}
    return {**about, "contenders": found, "goals": [_judged(goal, taken) for goal in task.goals], "load": _told(loads)}


def _least(taken: Sequence[Seconds], *, cpu: bool = False) -> float:
    return min(each.cpu if cpu else each.time for each in taken)


def _judged(goal: Goal, taken: Mapping[str, Sequence[Seconds]]) -> dict[str, Any]:
    """A goal, what was found (ratio of the minima), and whether it is reached; None if the other did not take part."""
    text = (goal.text or f"at most {goal.at_most:g} x {goal.of}") + (", CPU time" if goal.cpu else "")
    said = {"text": text, "ours": goal.ours, "at_most": goal.at_most, "planned": goal.planned}
    found = goal.known
    if found is None and goal.ours in taken and goal.of in taken:
        ours, other = (_least(taken[name], cpu=goal.cpu) for name in (goal.ours, goal.of))
        found = ours - other if goal.beyond else ours / other
    return {**said, "found": found, "reached": None if found is None else found <= goal.at_most}


# -- other load


@dataclass(frozen=True)
class Load:
    others: float  # CPU time of other processes, as a part of the machine's
    steal: float  # CPU time that the host took away, as a part of the machine's
    seconds: float
    average: float


class Watch:
    """What the machine does besides us, from now to `stop`."""

    def __init__(self) -> None:
        self._stat, self._own, self._start = _stat(), _own(), time.perf_counter()

    def stop(self) -> Load:
        seconds = time.perf_counter() - self._start
        busy, steal = (now - was for now, was in zip(_stat(), self._stat))
        room = seconds * (os.cpu_count() or 1)
        others = max(0.0, busy - (_own() - self._own)) / room if room else 0.0
        return Load(min(1.0, others), min(1.0, steal / room if room else 0.0), seconds, _average())


def _stat() -> tuple[float, float]:
    """Seconds of all CPUs: busy, and stolen by the host."""
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:  # not a Linux
        return 0.0, 0.0
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _wait, irq, soft, steal = fields
    return (user + nice + system + irq + soft) / tick, steal / tick


def _own() -> float:
    return sum(os.times()[:4])


def _average() -> float:
    return os.getloadavg()[0]


def _told(loads: Sequence[Load]) -> dict[str, float]:
    """The share of the machine's CPU time that others had; in rounds of some length, as the kernel counts in ticks."""
    seconds = sum(load.seconds for load in loads) or 1.0
    return {
        "others": sum(load.others * load.seconds for load in loads) / seconds,
        "steal": sum(load.steal * load.seconds for load in loads) / seconds,
        "average": max(load.average for load in loads),
    }


# -- what tasks share


# Values for steps to return, and how often bodies ran, out of reach of code identity: as if on a disk or a network.
stash = types.ModuleType("benchmarks_stash")
stash.bodies = 0  # type: ignore[attr-defined]
sys.modules[stash.__name__] = stash


def body(value: Any) -> int:
    """The function that is decorated: it does nothing but count its calls."""
    __import__("benchmarks_stash").bodies += 1  # not through a global, which would be part of its code's identity
    return 1


def bodies() -> int:
    """How many bodies ran since this was last asked."""
    found, stash.bodies = stash.bodies, 0  # type: ignore[attr-defined]
    return int(found)


def python(source: str, *arguments: object, env: Mapping[str, str] = {}) -> str:
    """What a new process prints that runs this source."""
    words = [sys.executable, "-c", source, *map(str, arguments)]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": paths, **env}, capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(f"a process failed:\n{done.stderr[-3000:]}")
    return done.stdout


def peak_beyond(work: Callable[[], object], size: int) -> float | None:
    """Memory that `work` takes at its peak beyond what is there before, as a part of `size`. None where nobody counts it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _kilobytes("VmRSS")
        kept = work()
        peak = _kilobytes("VmHWM")
        del kept
    except OSError:
        return None
    return (peak - before) * 1024 / size


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
