"""Why a step runs although the run has checkpoints of it: found by comparing the named parts."""

from __future__ import annotations

from collections.abc import Mapping

from .fingerprint import Part
from .shelf import Node, Shelf

NEW = "new node"


def reason(shelf: Shelf, node: Node, arguments: Mapping[str, Part], code: Mapping[str, Part]) -> str:
    """One line that names what changed since the nearest checkpoint of the same step."""
    nearest, names, differing = None, list[str](), len(arguments) + 1
    for other, meta in shelf.others(node):
        before: dict[str, str] = meta.get("arguments", {})
        changed = [name for name in {**before, **arguments} if _digest(arguments, name) != before.get(name)]
        if len(changed) < differing:
            nearest, differing, names = other, len(changed), changed
        if not changed:
            break
    if nearest is None or (differing and differing == len(arguments) > 1):
        return NEW
    said = [f"{name} changed" for name in names]
    if nearest.code != node.code:
        said += _code_changes(shelf.code_parts(nearest.code), code)
    return "; ".join(said)


def _digest(parts: Mapping[str, Part], name: str) -> str | None:
    return parts[name].digest if name in parts else None


def _code_changes(before: Mapping[str, Part], now: Mapping[str, Part]) -> list[str]:
    said = [f"{_named(name, now[name])} is new" for name in now if before and name not in before]
    said += [f"{name} is gone" for name in before if name not in now]
    for name in now:
        if name in before and before[name].digest != now[name].digest:
            values = (
                f": {before[name].shown} -> {now[name].shown}" if now[name].shown and before[name].shown else " changed"
            )
            said.append(_named(name, now[name]) + values)
    return said or ["code changed"]


def _named(name: str, part: Part) -> str:
    return f"{name} ({part.where})" if part.where else name
