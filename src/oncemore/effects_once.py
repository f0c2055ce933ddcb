"""Effects that must happen once: an intent is written before the effect, a record after it.

A step with `effect="once"` writes an intent before its body starts. The transaction that writes the checkpoint turns the intent
into the record that the call was performed, with a copy of the result. The record is independent of the checkpoint: after an
edit, a rollback or a retention policy, the call still returns the recorded result. An intent without a record means that the
process died in between. Nobody can know whether the effect happened, so the run stops and asks. `resolve` answers: it did not,
run it; or it did, and this was the result.

The identity of a call does not depend on its code, on the order of parameters, or on parameters left at their defaults. After
edits that change more, the call is compared with the run's records (see `identity/same_call.py`): if it is the same call, it was
performed; if that is unclear, the run stops and asks as well.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from .codec import Decoded, seal, unseal
from .entries import RunEntries
from .errors import IntegrityError, UnknownOutcome, UsageError, log, warn
from .files.blobs import listed, release
from .identity import CallIdentity
from .identity.same_call import CLEARED, SAME_AS, Recorded, Records, recognise
from .keys import listing_key
from .node import NEW, Node
from .stores import Bytes

if TYPE_CHECKING:
    from .session import Session

COMPLETED, RESOLVED = "completed", "resolved"  # how an intent was settled: by the step, or by the user


def about(node: Node) -> dict[str, Any]:
    """The metadata of a node's intent. A fork, which has other keys, finds the intent by `call`."""
    assert node.identity is not None
    fields = {"step": node.step, "node": node.id, "given": node.arguments, "call": node.call}
    return {**fields, "identity": node.identity.to_json()}


def find(entries: RunEntries, node: Node) -> Decoded | None:
    """The intent, read from the store, as other processes may settle it. IntegrityError if it is damaged."""
    return _decoded(entries, node, entries.store.get(node.intent))


def _decoded(entries: RunEntries, node: Node, data: Bytes | None) -> Decoded | None:
    try:
        return None if data is None else Decoded(data, key=node.intent, secret=entries.secret)
    except IntegrityError as error:
        raise IntegrityError(f"cannot tell whether {node.id} was performed: {error}. {remedy(node.step)}") from error


def look(entries: RunEntries, node: Node) -> None:
    """If the step was edited, find out which recorded call the node is, if any."""
    recognise(find(entries, node), node, functools.partial(_records, entries))


def _records(entries: RunEntries) -> Records:
    """All calls that the run has recorded; read once."""
    if entries.performed is None:
        entries.performed = Records(
            Recorded(CallIdentity.from_json(found.meta["identity"]), found.meta, found.time)
            for _, found in entries.intents()
            if not _is_question(found.meta)
        )
    records: Records = entries.performed
    return records


def _is_question(meta: Mapping[str, Any]) -> bool:
    """Whether an intent only asks if its call is an earlier one, and the user has not answered."""
    return bool(meta.get("doubt")) and not meta.get("settled")


def performed(entries: RunEntries, node: Node) -> Decoded | None:
    """The record that the call was performed, with its result."""
    look(entries, node)
    found = find(entries, node)
    return found if found is not None and found.meta.get("settled") == COMPLETED else None


def begin(entries: RunEntries, node: Node, data: Bytes | None, *, requested: bool) -> Decoded | None:
    """Write the intent, or return the record that the call was performed. UnknownOutcome if an earlier intent is unsettled.

    `data` is the intent as it is stored, read under the call's lease. A call that was performed is performed again only if
    the user `requested` it; the new intent then contains the earlier record, in case the call fails this time.
    """
    try:
        found = _decoded(entries, node, data)
    except IntegrityError:
        if not requested:
            raise
        found = data = None
    settled = None if found is None else found.meta.get("settled")
    if found is not None and _is_question(found.meta):
        found = data = None
    if found is None and node.doubt is not None and not requested:
        entries.put(node.intent, None, {**about(node), **node.doubt}, time=time.time())
        raise UnknownOutcome(node.id, node.idempotency_key, "", node.doubt["doubt"])
    if found is None or settled == CLEARED or (requested and settled):
        earlier = None if data is None else bytes(unseal(data, node.intent, entries.secret))
        entries.put(node.intent, earlier, about(node), time=time.time())
        return None
    if settled:
        return found
    raise UnknownOutcome(node.id, node.idempotency_key, at(found))


def at(record: Decoded) -> str:
    """When the call started or was performed, as local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time))


def remedy(step: str) -> str:
    """How to perform a call again."""
    name = step.rpartition(".")[2]
    return f"`{name}.refresh(...)` performs it again, `{name}.forget(...)` lets the next call perform it"


def warn_performed(run: Session, node: Node, record: Decoded, why: str) -> None:
    """Warn, once per step and scope, that a call is not performed again though it has no checkpoint."""
    explanation = f"its checkpoint is no longer valid: {why}" if why != NEW else "it no longer has a checkpoint"
    was, now = CallIdentity.from_json(record.meta["identity"]), node.identity
    if now is not None and now.digest != was.digest:
        explanation = f"it was recorded as {was.step}({', '.join(was.values)}), before the step was edited"
    performed = f"step {node.step} was performed on {at(record)} and is not performed again ({explanation})"
    if node.step in run.warned_performed:
        log("run %s: %s", run.id, performed)
        return
    run.warned_performed.add(node.step)
    warn(
        f"{performed}. This call returns its recorded result, and so do other such calls of the step in this scope. "
        f"{remedy(node.step)}"
    )


def withdraw(entries: RunEntries, node: Node) -> None:
    """Remove the intent, because the body raised an exception: the effect did not happen."""
    found = find(entries, node)
    if found is not None:
        _remove_intent(entries, found)


def _remove_intent(entries: RunEntries, intent: Decoded) -> None:
    """Remove an intent, or put the record back that it replaced."""
    earlier = intent.load()
    if earlier is None:
        entries.remove(intent.key)
    else:
        entries.store.commit(put={intent.key: seal([earlier], intent.key, entries.secret)})


def forget(entries: RunEntries, node: Node) -> bool:
    """Remove the record that the call was performed. Returns whether there was one. An unsettled intent stays."""
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


def resolve(of_run: Sequence[RunEntries], which: str, happened: bool, result: Any) -> None:
    """Settle the intent with that idempotency key or node id, or the only one of the step with that name."""
    pending = [(each, *intent) for each in of_run for intent in each.intents() if not intent[1].meta.get("settled")]
    named = [one for one in pending if which in (one[1].rpartition("/")[2], one[2].meta["node"])]
    named = named or [one for one in pending if one[2].meta["step"] == which]
    if not named:
        raise UsageError(
            f"this run has no unknown outcome called {which!r}; use the node id or the key that UnknownOutcome names, or the "
            f"name of its step"
        )
    if len(named) > 1:
        nodes = ", ".join(sorted(found.meta["node"] for _, _, found in named))
        raise UsageError(
            f"step {which} has {len(named)} calls whose outcome is unknown; resolve them one by one: {nodes}"
        )
    [(entries, key, found)] = named
    entries.performed = None
    if "doubt" in found.meta and not (happened and result is not None):
        entries.put(key, None, _decided(found.meta, happened), time=found.time)
    elif happened:
        entries.put(key, result, {**found.meta, "settled": RESOLVED}, time=found.time)
    else:
        _remove_intent(entries, found)


def _decided(meta: dict[str, Any], same: bool) -> dict[str, Any]:
    """The metadata of an intent once the user has decided whether its call is the earlier one."""
    if same:
        return {**meta, "settled": SAME_AS}
    identity = CallIdentity.from_json(meta["identity"])
    if meta["of"] != identity.title:
        identity = identity.other_than(meta["of"])
    return {**meta, "settled": CLEARED, "identity": identity.to_json()}


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A call of an effect="once" step that started and never completed, or that may be one that was performed before."""

    step: str
    node: str
    key: str
    begun: datetime


def unknown(entries: RunEntries) -> list[Unknown]:
    """The calls whose outcome is unknown, and that the user has not resolved yet."""
    return [
        Unknown(
            step=found.meta["step"],
            node=found.meta["node"],
            key=key.rpartition("/")[2],
            begun=datetime.fromtimestamp(found.time, timezone.utc),
        )
        for key, found in entries.intents()
        if not found.meta.get("settled")
    ]
