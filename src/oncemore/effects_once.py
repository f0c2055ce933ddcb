"""Effects that must happen once: what is about to happen is written down before it happens, and that it has happened, too.

A step with `effect="once"` leaves an intent before its body starts; the checkpoint's transaction makes it the record that the
call was performed, with a copy of the result. The record counts whatever becomes of the checkpoint: after an edit, a rollback
or a retention policy the call returns the recorded result. An intent that became no record means that the process died in
between: nobody can know whether the effect took place, so the run stops and asks. `resolve` answers: it did not, run it; or it
did, and this was the result.

Which call it is does not depend on code, nor on the order of parameters, nor on those left at their defaults. After edits that
change more, the records of the run are compared with the call (see `same_call.py`): the same call counts as performed, and
where that cannot be told, the run stops and asks as well.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .blobs import listed, release
from .codec import Decoded, seal, unseal
from .entries import RunEntries
from .errors import IntegrityError, UnknownOutcome, UsageError
from .identity import CallIdentity
from .keys import listing_key
from .node import Node
from .same_call import CLEARED, SAME_AS, Recorded, Records, recognise
from .stores import Bytes

COMPLETED, RESOLVED = "completed", "resolved"  # how an intent was settled: by the step itself, or by its user


def about(node: Node) -> dict[str, Any]:
    """What an intent says of its node. `call` finds it again in a fork, whose keys are others."""
    assert node.identity is not None
    fields = {"step": node.step, "node": node.id, "given": node.arguments, "call": node.call}
    return {**fields, "identity": node.identity.to_json()}


def find(entries: RunEntries, node: Node) -> Decoded | None:
    """The intent, as it is in the store now: other processes settle it, too. IntegrityError if it cannot be trusted."""
    return _decoded(entries, node, entries.store.get(node.intent))


def _decoded(entries: RunEntries, node: Node, data: Bytes | None) -> Decoded | None:
    try:
        return None if data is None else Decoded(data, key=node.intent, secret=entries.secret)
    except IntegrityError as error:
        raise IntegrityError(f"whether {node.id} was performed cannot be read: {error}. {remedy(node.step)}") from error


def look(entries: RunEntries, node: Node) -> None:
    """Find out which of the recorded calls the node is, if its step was edited since."""
    recognise(find(entries, node), node, functools.partial(_records, entries))


def _records(entries: RunEntries) -> Records:
    """All calls that the run knows of, as they were when one was asked for first."""
    if entries.performed is None:
        entries.performed = Records(
            Recorded(CallIdentity.from_json(found.meta["identity"]), found.meta, found.time)
            for _, found in entries.intents()
            if not (found.meta.get("doubt") and not found.meta.get("settled"))
        )
    known: Records = entries.performed
    return known


def performed(entries: RunEntries, node: Node) -> Decoded | None:
    """The record that the call was performed, with its result."""
    look(entries, node)
    found = find(entries, node)
    return found if found is not None and found.meta.get("settled") == COMPLETED else None


def begin(entries: RunEntries, node: Node, now: Bytes | None, *, requested: bool) -> Decoded | None:
    """Leave the intent, or find what `resolve` said about an earlier one. UnknownOutcome if nothing was said.

    `now` stands there under the call's lease. What was performed is performed again only if the user has `asked` for it; the
    intent keeps the record of that, in case this time it fails.
    """
    try:
        found = _decoded(entries, node, now)
    except IntegrityError:
        if not requested:
            raise
        found = now = None
    meta = {} if found is None else found.meta
    settled = meta.get("settled")
    if meta.get("doubt") and not settled:
        found = now = None
    if found is None and node.doubt is not None and not requested:
        entries.put(node.intent, None, {**about(node), **node.doubt}, time=time.time())
        raise UnknownOutcome(node.id, node.idempotency_key, "", node.doubt["doubt"])
    if found is None or settled == CLEARED or (requested and settled):
        earlier = None if now is None else bytes(unseal(now, node.intent, entries.secret))
        entries.put(node.intent, earlier, about(node), time=time.time())
        return None
    if settled:
        return found
    raise UnknownOutcome(node.id, node.idempotency_key, at(found))


def at(record: Decoded) -> str:
    """When it was begun or performed, for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time))


def remedy(step: str) -> str:
    """How the user asks for it to be performed again."""
    name = step.rpartition(".")[2]
    return f"`{name}.refresh(...)` performs it again, `{name}.forget(...)` lets the next call perform it"


def withdraw(entries: RunEntries, node: Node) -> None:
    """The body raised by itself: it says that the effect did not take place."""
    found = find(entries, node)
    if found is not None:
        _take_back(entries, found)


def _take_back(entries: RunEntries, intent: Decoded) -> None:
    earlier = intent.load()
    if earlier is None:
        entries.remove(intent.key)
    else:
        entries.store.commit(put={intent.key: seal([earlier], intent.key, entries.secret)})


def forget(entries: RunEntries, node: Node) -> bool:
    """Remove the record that the call was performed; whether there was one. An unknown outcome is not forgotten."""
    try:
        look(entries, node)
        found = find(entries, node)
        if found is None or not found.meta.get("settled"):
            return False
    except IntegrityError:
        pass
    blobs = listed(entries.store, node.intent)
    entries.remove(node.intent, listing_key(node.intent))
    entries.performed = None
    release(entries.store, blobs)
    return True


def resolve(shelves: Sequence[RunEntries], which: str, happened: bool, result: Any) -> None:
    """Answer for the intent with that idempotency key or node id."""
    for entries, key, found in ((each, *intent) for each in shelves for intent in each.intents()):
        if found.meta.get("settled") or which not in (key.rpartition("/")[2], found.meta["node"]):
            continue
        entries.performed = None
        if "doubt" in found.meta and not (happened and result is not None):
            entries.put(key, None, _decided(found.meta, happened), time=found.time)
        elif happened:
            entries.put(key, result, {**found.meta, "settled": RESOLVED}, time=found.time)
        else:
            _take_back(entries, found)
        return
    raise UsageError(f"this run has no unknown outcome called {which!r}; UnknownOutcome names them by node and key")


def _decided(meta: dict[str, Any], same: bool) -> dict[str, Any]:
    """What an intent says after the user has said whether it is the call that it may be."""
    if same:
        return {**meta, "settled": SAME_AS}
    identity = CallIdentity.from_json(meta["identity"])
    if meta["of"] != identity.title:
        identity = identity.other_than(meta["of"])
    return {**meta, "settled": CLEARED, "identity": identity.to_json()}


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A step with effect="once" that was begun and never completed, or that may be one that was completed."""

    node: str
    key: str
    begun: datetime


def unknown(entries: RunEntries) -> list[Unknown]:
    """Those that nobody has answered for."""
    return [
        Unknown(
            node=found.meta["node"],
            key=key.rpartition("/")[2],
            begun=datetime.fromtimestamp(found.time, timezone.utc),
        )
        for key, found in entries.intents()
        if not found.meta.get("settled")
    ]
