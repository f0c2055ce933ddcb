"""The page on load, from its numbers."""

from __future__ import annotations

from typing import Any

COLUMNS = ("at", "seconds", "memory", "objects", "descriptors", "threads", "database", "journal", "temporary")
MEGABYTES = ("memory", "database", "journal")
TITLES = {
    "together": "Processes full of tasks on one store (the largest process; `at` in seconds)",
    "steps": "Many steps in one process and run",
    "nodes": "Many nodes in one store",
    "runs": "Many runs, one after the other in one process",
    "values": "Large values",
}


def page(kept: dict[str, Any]) -> str:
    lines = ["# Load", "", "<!-- made by `python -m benchmarks.load`; do not edit -->", ""]
    lines += [
        f"What a store and its processes take under load, measured on {kept['machine']}, while other programs ran."
    ]
    lines += [
        "Memory, database and journal are in MB. `temporary` counts files in the store that are neither entries nor its own."
    ]
    for name, title in TITLES.items():
        lines += ["", f"## {title}", ""]
        if name not in kept:
            lines.append("Not measured to its end yet.")
            continue
        found = kept[name]
        size = ", ".join(f"{key} {value}" for key, value in found.items() if isinstance(value, (int, float, str)))
        lines += [f"Ran: {size}.", *_table(found["samples"])]
        for told in found.get("times", []) + found.get("told", []):
            peak = f", peak memory {told['peak'] / 1e6:,.0f} MB" if "peak" in told else ""
            lines.append(f"* {told['what']}: {told['seconds']} s{peak}")
        lines += [
            "",
            "After all processes had ended: "
            + ", ".join(f"{key} {_shown(key, value)}" for key, value in found["after"].items())
            + ".",
        ]
    return "\n".join(lines) + "\n"


def _table(samples: list[dict[str, Any]]) -> list[str]:
    if not samples:
        return [""]
    names = [name for name in COLUMNS if name in samples[0]]
    rows = [[_shown(name, sample[name]) for name in names] for sample in samples]
    return ["", *(f"| {' | '.join(row)} |" for row in [names, ["---"] * len(names), *rows]), ""]


def _shown(name: str, value: Any) -> str:
    return (
        f"{value / 1e6:,.1f}" if name in MEGABYTES else f"{value:,}" if isinstance(value, (int, float)) else str(value)
    )
