"""What was measured, as text, as docs/performance.md with plots, and as JSON."""

from __future__ import annotations

import html
import json
import math
import os
import platform
import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from . import peers
from .harness import CPU, NOTICEABLE, OURS, ROOT

DOCS = ROOT / "docs"
UNITS = {"us": 1e6, "ms": 1e3, "s": 1.0}
SIGNS = {"us": "µs", "ms": "ms", "s": "s"}
Result = dict[str, Any]


def verdict(results: Sequence[Result]) -> str:
    every = [goal for result in results for goal in result.get("goals", ())]
    goals = [goal for goal in every if not goal["planned"]]
    text = f"{sum(goal['reached'] is True for goal in goals)} of {len(goals)} goals reached"
    unknown = sum(goal["reached"] is None for goal in goals)
    text += f", {unknown} not measured" if unknown else ""
    text += f", {len(every) - len(goals)} more planned" if len(every) > len(goals) else ""
    failed = [result["task"] for result in results if "failed" in result]
    return text + (f", failed: {', '.join(failed)}" if failed else "")


def as_text(result: Result) -> str:
    """A result for the terminal."""
    if "failed" in result:
        return f"\n{result['task']}\n  FAILED: {result['failed']}"
    lines = ["", f"{result['task']}  {_load(result)}"]
    for name, least, median, cpu, ratio in _rows(result):
        lines.append(f"  {name:50} {least:>12} median {median:>12} CPU {cpu:>12} {ratio:>9}")
    lines += [f"  not here: {name} ({why})" for name, why in result["absent"].items()]
    lines += [f"  {_mark(goal)}: {_who(goal)}{goal['text']}, found {_found(goal)}" for goal in result["goals"]]
    return "\n".join(lines)


def _rows(result: Result) -> list[tuple[str, ...]]:
    ours = result["contenders"][OURS]["min"]
    sign, scale = SIGNS[result["unit"]], UNITS[result["unit"]]
    return [
        (
            f"{name} (limit)" if taken["limit"] else name,
            f"{_number(taken['min'] * scale)} {sign}",
            f"{_number(taken['median'] * scale)} {sign}",
            f"{_number(taken['cpu'] * scale)} {sign}" if taken["cpu"] is not None else "–",
            f"{_number(taken['min'] / ours)} x",
        )
        for name, taken in result["contenders"].items()
    ]


def _number(value: float) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:,.{digits}f}"


def _mark(goal: Result) -> str:
    mark = {True: "reached", False: "not reached", None: "not measured"}[goal["reached"]]
    return f"next version's goal, {mark}" if goal["planned"] else mark


def _who(goal: Result) -> str:
    return "" if goal["ours"] == OURS else f"{goal['ours']}: "


def _found(goal: Result) -> str:
    if goal["found"] is None:
        return "nothing"
    if goal["at_most"] < 1e-3:  # seconds beyond another's
        return f"+ {goal['found'] * 1e6:.0f} µs"
    if "faster" in goal["text"]:
        return f"{_number(1 / goal['found'])} x"
    return f"{_number(goal['found'])} x"


def _load(result: Result) -> str:
    """What else the machine did, if it did something."""
    load = result["load"]
    if max(load["others"], load["steal"]) < NOTICEABLE:
        return ""
    return f"(other load seen: {load['others']:.0%} of the CPUs, {load['steal']:.0%} stolen, average {load['average']:.1f})"


# -- the page


def write(results: Sequence[Result], *, quick: bool, seconds: float) -> None:
    """docs/performance.md, docs/performance.json and the plots."""
    folder = DOCS / "performance"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    facts = {**machine(), "quick": quick, "seconds": round(seconds)}
    versions = {kind.name: peers.version(kind) for kind in peers.ALL}
    whole = {"machine": facts, "versions": versions, "results": results}
    (DOCS / "performance.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    lines = [*_head(results, facts), *_goal_table(results)]
    for group in dict.fromkeys(result["group"] for result in results):
        chosen = [result for result in results if result["group"] == group]
        (folder / f"{group}.svg").write_text(plot([r for r in chosen if "failed" not in r]), encoding="utf-8")
        lines += [f"## {group.capitalize()}", "", f"![{group}, lower is better](performance/{group}.svg)", ""]
        for result in chosen:
            lines += _section(result)
    lines += _peer_table(versions)
    (DOCS / "performance.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def machine() -> Result:
    """What the numbers depend on; nothing that tells whose machine it is."""
    model = platform.processor() or "unknown"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "date": date.today().isoformat(),
        "cpu": model,
        "cpus": os.cpu_count(),
        "memory GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _head(results: Sequence[Result], facts: Result) -> list[str]:
    busy = [result for result in results if "failed" not in result and _load(result)]
    lines = [
        "# Performance",
        "",
        "<!-- made by `make bench`; do not edit -->",
        "",
        (
            f"{verdict(results)}. Measured {facts['date']} on {facts['cpus']} x {facts['cpu']}, {facts['memory GB']} GB, "
            f"{facts['system']}, Python {facts['python']}, in one run of {facts['seconds']} s."
        ),
        "",
        (
            "Every task is measured beside other tools and beside a limit: what the machine or the library underneath does "
            "without identity, signatures, single flight and effects. oncemore keeps all its promises while it is measured. All "
            "contenders of a task take turns, so that a change in the machine's load reaches all of them. Tables show the "
            "minimum and the median of all rounds, and the minimum of the CPU time, which leaves out waiting for the disk and "
            "for other programs. Ratios are ratios of minima. A tool is timed only after it was seen to skip a call that it had "
            "made before."
        ),
        "",
        (
            "`make bench` measures again; [performance.json](performance.json) has the same numbers. "
            "`python -m benchmarks.guard` counts instead of timing: store operations, SQL statements, files, pickles and bytes "
            "of each kind of call. A test compares these counts with the recorded ones, so a call that starts to do more is "
            "noticed on any machine. [The path of a call](explanation/hot-path.md) says what each part is for."
        ),
        "",
    ]
    if facts["quick"]:
        lines += ["**A quick run: small sizes and few rounds. Goals are set for the full size.**", ""]
    if CPU:
        lines += ["**Goals compare CPU time.**", ""]
    if busy:
        most = max(result["load"]["others"] for result in busy)
        lines += [
            (
                f"**Other programs were running during {len(busy)} of {len(results)} tasks and used up to {most:.0%} of the "
                "CPUs. Each such task says so.**"
            ),
            "",
        ]
    return lines


def _goal_table(results: Sequence[Result]) -> list[str]:
    lines = ["## Goals", "", "| task | goal | found | |", "|---|---|---|---|"]
    for result in results:
        lines += [
            f"| {result['task']} | {_who(goal)}{goal['text']} | {_found(goal)} | {_mark(goal)} |"
            for goal in result.get("goals", ())
        ]
        if "failed" in result:
            lines.append(f"| {result['task']} | | | the measurement failed |")
    return [*lines, ""]


def _section(result: Result) -> list[str]:
    if "failed" in result:
        return [f"### {result['task']}", "", "The measurement failed.", ""]
    lines = [f"### {result['task'][0].upper()}{result['task'][1:]}", ""]
    notes = [result["note"], _load(result), *(f"{name} did not take part." for name in result["absent"])]
    more = f", and {result['more']} more of those that a goal compares" if result["more"] else ""
    lines += [f"{result['rounds']} rounds{more}. {' '.join(filter(None, notes))}".rstrip(), ""]
    lines += ["| | minimum | median | CPU time | to ours |", "|---|---:|---:|---:|---:|"]
    return lines + [f"| {' | '.join(row)} |" for row in _rows(result)] + [""]


def _peer_table(versions: dict[str, str]) -> list[str]:
    lines = [
        "## The other tools",
        "",
        "What a stored result survives, and which of oncemore's promises each does not make.",
        "",
    ]
    lines += ["| | version | survives the death of | does not do |", "|---|---|---|---|"]
    for kind in peers.ALL:
        lines.append(f"| {kind.name} | {versions[kind.name]} | the {_survives(kind)} | {kind.lacks or '–'} |")
    return lines


def _survives(kind: type[peers.Peer]) -> str:
    return "machine" if kind.durable == peers.POWER else "process"


# -- plots: bars on a logarithmic scale, drawn by hand

WIDTH, LEFT, RIGHT, BAR = 860, 330, 110, 17
STYLE = (
    "text{font:12px sans-serif;fill:#555} .t{font-weight:bold} .n{text-anchor:end} "
    ".ours{fill:#2a7fb8} .peer{fill:#b9bec4} .limit{fill:#e3b23c}"
)


def plot(results: Sequence[Result]) -> str:
    """One panel for each task; a bar is the minimum, the line after it the median."""
    parts, top = [], 0
    for result in results:
        panel, height = _panel(result, top)
        parts += panel
        top += height
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def _panel(result: Result, top: int) -> tuple[list[str], int]:
    taken: dict[str, Result] = result["contenders"]
    low = math.log10(min(each["min"] for each in taken.values()) / 2)
    high = math.log10(max(each["median"] for each in taken.values()))
    room, scale, sign = WIDTH - LEFT - RIGHT, UNITS[result["unit"]], SIGNS[result["unit"]]

    def at(seconds: float) -> float:
        return LEFT + room * (math.log10(seconds) - low) / (high - low)

    lines = [f'<text class="t" x="8" y="{top + 18}">{html.escape(result["task"])}</text>']
    for number, (name, each) in enumerate(taken.items()):
        y = top + 26 + number * (BAR + 3)
        kind = "ours" if name.startswith(OURS) else "limit" if each["limit"] else "peer"
        end, median = at(each["min"]), at(each["median"])
        lines += [
            f'<text class="n" x="{LEFT - 8}" y="{y + 13}">{html.escape(name)}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR}"/>',
            f'<rect class="{kind}" x="{end:.1f}" y="{y + BAR // 2}" width="{median - end:.1f}" height="2"/>',
            f'<text x="{median + 6:.1f}" y="{y + 13}">{_number(each["min"] * scale)} {sign}</text>',
        ]
    return lines, 36 + len(taken) * (BAR + 3)
