"""What came of a node, to be compared: what its step returned, yielded and did, without what differs from time to time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .blobs import keeping
from .checkpoints import CallersOwn
from .codec import Decoded, dumps, loads
from .errors import FingerprintError
from .fingerprint.shown import short
from .fingerprint.values import digest
from .shelf import Shelf

Outcome = Mapping[str, Any]


def outcome(shelf: Shelf, entry: Decoded) -> Outcome:
    """What an entry holds. Files in it are looked at where they are kept; those on disk stay as they are."""
    with keeping(shelf.store, reading=True):
        loaded = entry.load(CallersOwn._make)
        value, effects = loaded if entry.meta.get("effects") else (loaded, {})
        items: list[Any] = []
        for number in range(entry.meta.get("chunks", 0)):
            chunk = shelf.chunk(entry, number)
            for pickled in chunk.load():
                item, done = loads(pickled, chunk.meta.get("main", ""), CallersOwn._make)
                items.append((item, _lasting(done)))
        return {"result": value, **({"items": items} if items else {}), **_lasting(effects)}


def _lasting(effects: Mapping[str, Any]) -> dict[str, Any]:
    """Effects without their times: those of log records, and of files."""
    found = {name: effect for name, effect in effects.items() if name != "output"}
    if "files" in found:
        files = [(name, kept.size, kept.mode, kept.digest) for name, kept in found["files"]["files"]]
        found["files"] = {**found["files"], "files": files}
    return found


def difference(old: Outcome, new: Outcome) -> str:
    """The first thing that differs, in a line; empty if nothing does."""
    for name in {**old, **new}:
        if name not in old or name not in new:
            return f"{name} {'is new' if name in new else 'is gone'}"
        if _identity(old[name]) != _identity(new[name]):
            then, now = short(old[name]), short(new[name])
            return f"{name}: {then} -> {now}" if then != now else f"{name} differs"
    return ""


def _identity(value: object) -> bytes:
    try:
        return digest(value)
    except FingerprintError:  # no identity of its own: its pickle has to do
        return dumps(value)
