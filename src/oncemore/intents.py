"""Effects that must happen once: what is about to happen is written down before it happens, and that it has happened, too.

A step with `effect="once"` leaves an intent before its body starts; the checkpoint's transaction makes it the record that the
call was performed, with a copy of the result. The record counts whatever becomes of the checkpoint: after an edit, a rollback
or a retention policy the call returns the recorded result. An intent that became no record means that the process died in
between: nobody can know whether the effect took place, so the run stops and asks. `resolve` answers: it did not, run it; or it
did, and this was the result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .blobs import listed, listing_key, release
from .codec import Decoded, seal, unseal
from .errors import IntegrityError, UnknownOutcome, UsageError
from .nodes import Node
from .shelf import Shelf
from .stores import Bytes

COMPLETED, RESOLVED = "completed", "resolved"  # how an intent was settled: by the step itself, or by its user


def about(node: Node) -> dict[str, Any]:
    """What an intent says of its node. `call` finds it again in a fork, whose keys are others."""
    return {"step": node.step, "node": node.id, "call": node.arguments}


def find(shelf: Shelf, node: Node) -> Decoded | None:
    """The intent, as it is in the store now: other processes settle it, too. IntegrityError if it cannot be trusted."""
    return _decoded(shelf, node, shelf.store.get(node.intent))


def _decoded(shelf: Shelf, node: Node, data: Bytes | None) -> Decoded | None:
    try:
        return None if data is None else Decoded(data, key=node.intent, secret=shelf.secret)
    except IntegrityError as error:
        raise IntegrityError(f"whether {node.id} was performed cannot be read: {error}. {remedy(node.step)}") from error


def performed(shelf: Shelf, node: Node) -> Decoded | None:
    """The record that the call was performed, with its result."""
    found = find(shelf, node)
    return found if found is not None and found.meta.get("settled") == COMPLETED else None


def begin(shelf: Shelf, node: Node, now: Bytes | None, *, asked: bool) -> Decoded | None:
    """Leave the intent, or find what `resolve` said about an earlier one. UnknownOutcome if nothing was said.

    `now` stands there under the call's lease. What was performed is performed again only if the user has `asked` for it; the
    intent keeps the record of that, in case this time it fails.
    """
    try:
        found = _decoded(shelf, node, now)
    except IntegrityError:
        if not asked:
            raise
        found = now = None
    if found is None or (asked and found.meta.get("settled")):
        earlier = None if now is None else bytes(unseal(now, node.intent, shelf.secret))
        shelf.put(node.intent, earlier, about(node), time=time.time())
        return None
    if found.meta.get("settled"):
        return found
    raise UnknownOutcome(node.id, node.idempotency_key, at(found))


def at(record: Decoded) -> str:
    """When it was begun or performed, for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time))


def remedy(step: str) -> str:
    """How the user asks for it to be performed again."""
    name = step.rpartition(".")[2]
    return f"`{name}.refresh(...)` performs it again, `{name}.forget(...)` lets the next call perform it"


def withdraw(shelf: Shelf, node: Node) -> None:
    """The body raised by itself: it says that the effect did not take place."""
    found = find(shelf, node)
    if found is not None:
        _take_back(shelf, found)


def _take_back(shelf: Shelf, intent: Decoded) -> None:
    earlier = intent.load()
    if earlier is None:
        shelf.remove(intent.key)
    else:
        shelf.store.commit(put={intent.key: seal([earlier], intent.key, shelf.secret)})


def forget(shelf: Shelf, node: Node) -> bool:
    """Remove the record that the call was performed; whether there was one. An unknown outcome is not forgotten."""
    try:
        found = find(shelf, node)
        if found is None or not found.meta.get("settled"):
            return False
    except IntegrityError:
        pass
    blobs = listed(shelf.store, node.intent)
    shelf.remove(node.intent, listing_key(node.intent))
    release(shelf.store, blobs)
    return True


def resolve(shelves: Sequence[Shelf], which: str, happened: bool, result: Any) -> None:
    """Answer for the intent with that idempotency key or node id."""
    for shelf, key, found in ((each, *intent) for each in shelves for intent in each.intents()):
        if found.meta.get("settled") or which not in (key.rpartition("/")[2], found.meta["node"]):
            continue
        if happened:
            shelf.put(key, result, {**found.meta, "settled": RESOLVED}, time=found.time)
        else:
            _take_back(shelf, found)
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
