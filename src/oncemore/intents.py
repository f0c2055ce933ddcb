"""Effects that must happen once: what is about to happen is written down before it happens.

A step with `effect="once"` leaves an intent before its body starts; the checkpoint's transaction removes it. An intent
without a checkpoint means that the process died in between: nobody can know whether the effect took place, so the run stops
and asks. `resolve` answers: it did not, run it; or it did, and this was the result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .codec import Decoded
from .errors import UnknownOutcome, UsageError
from .nodes import Node
from .shelf import Shelf


def begin(shelf: Shelf, node: Node) -> Decoded | None:
    """Leave the intent, or find what `resolve` said about an earlier one. UnknownOutcome if nothing was said."""
    key = shelf.intent_key(node.idempotency_key)
    found = shelf.read(key)
    if found is None:
        meta = {"step": node.step, "node": node.id}
        shelf.put(key, None, meta, time=time.time())
        return None
    if found.meta.get("settled"):
        return found
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.time))
    raise UnknownOutcome(node.id, node.idempotency_key, when)


def withdraw(shelf: Shelf, node: Node) -> None:
    """The body raised by itself: it says that the effect did not take place."""
    shelf.remove(shelf.intent_key(node.idempotency_key))


def resolve(shelves: Sequence[Shelf], which: str, happened: bool, result: Any) -> None:
    """Answer for the intent with that idempotency key or node id."""
    for shelf, key, found in ((each, *intent) for each in shelves for intent in each.intents()):
        if found.meta.get("settled") or which not in (key.rpartition("/")[2], found.meta["node"]):
            continue
        if happened:
            shelf.put(key, result, {**found.meta, "settled": True}, time=found.time)
        else:
            shelf.remove(key)
        return
    raise UsageError(f"this run has no unknown outcome called {which!r}; UnknownOutcome names them by node and key")


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A step with effect="once" that was begun and never completed."""

    node: str
    key: str
    begun: datetime


def unknown(shelf: Shelf) -> list[Unknown]:
    """Those that nobody has answered for."""
    return [
        Unknown(
            node=found.meta["node"],
            key=key.rpartition("/")[2],
            begun=datetime.fromtimestamp(found.time, timezone.utc),
        )
        for key, found in shelf.intents()
        if not found.meta.get("settled")
    ]
