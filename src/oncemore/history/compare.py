"""Outcomes of nodes compared, and two runs side by side: which nodes they share, which differ and in what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..blobs import keeping
from ..codec import Decoded, dumps, loads
from ..entries import RunEntries
from ..errors import CodecError, FingerprintError, NotRecorded, StoreError
from ..identity import Part
from ..identity.display import short
from ..identity.values import digest
from ..reasons import Change, Dependencies, compared, recorded
from ..run import RunView
from .checkpoints import CallersOwn, Checkpoint

_WINDOW = 64  # nodes among which the nearest is looked for: a run of thousands is mostly in the same order as the other


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A node of one run and the node of the other that stands in its place, or nothing does (None)."""

    step: str
    a: str | None
    b: str | None
    changes: tuple[Change, ...] = ()
    result: str = ""  # what came of the same node, if that differs: then its step is not deterministic

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "changes": [change.as_dict() for change in self.changes]}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two runs have in common, and what not: `same` nodes with the same outcome; nodes that differ."""

    a: str
    b: str
    same: int
    differing: Sequence[Pair]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "differing": [pair.as_dict() for pair in self.differing]}


def compare(a: RunView, b: RunView) -> Comparison:
    """Compare the checkpoints of steps that count in two runs of one store."""
    entries = RunEntries(a.store, "", "", None)
    ours, theirs = ({c.place: c for c in run.checkpoints if c.entry} for run in (a, b))
    both = [(one, theirs[place]) for place, one in ours.items() if place in theirs]
    found = [pair for one, other in both if (pair := _results(entries, one, other)) is not None]
    same = len(both) - len(found)
    left, right = _apart(entries, ours, theirs), _apart(entries, theirs, ours)
    for step in dict.fromkeys((*left, *right)):
        found += _paired(left.get(step, []), right.get(step, []))
    return Comparison(a=a.id, b=b.id, same=same, differing=found)


def _results(entries: RunEntries, a: Checkpoint, b: Checkpoint) -> Pair | None:
    """The same node in both runs, if its outcome differs. Values are loaded only where what is stored of them differs."""
    if a.entry == b.entry:  # a fork shares it
        return None
    try:
        one, other = _entry(entries, a), _entry(entries, b)
        if one.holds(other) and "items" not in one.meta:
            return None
        message = difference(outcome(entries, one), outcome(entries, other))
    except (CodecError, NotRecorded, StoreError) as error:
        message = f"cannot be compared: {error}"
    return Pair(step=str(a.step), a=a.node, b=b.node, result=message) if message else None


def _entry(entries: RunEntries, checkpoint: Checkpoint) -> Decoded:
    found = entries.read(checkpoint.entry)
    if found is None:
        raise NotRecorded(f"{checkpoint.entry} was removed")
    return found


class _Node(NamedTuple):
    """A node that only one of the runs has."""

    step: str
    id: str
    arguments: str  # the digest of all
    dependencies: Dependencies


def _apart(
    entries: RunEntries, mine: Mapping[str, Checkpoint], others: Mapping[str, Checkpoint]
) -> dict[str, list[_Node]]:
    """The nodes that the other run does not have, by step."""
    found: dict[str, list[_Node]] = {}
    for place, checkpoint in mine.items():
        if place in others:
            continue
        arguments, _, code = checkpoint.node_key.rpartition("/")[2].partition(".")
        try:
            meta = _entry(entries, checkpoint).meta
        except (NotRecorded, StoreError):
            meta = {}  # the digests in its key are all that is known
        step = str(checkpoint.step)
        node = _Node(step, str(checkpoint.node), arguments, recorded(entries, code, meta))
        found.setdefault(step, []).append(node)
    return found


def _paired(left: Sequence[_Node], right: Sequence[_Node]) -> Iterator[Pair]:
    """Nodes of one step: each with one of the same arguments, else with the nearest that is left."""
    alike: dict[str, list[_Node]] = {}
    for node in right:
        alike.setdefault(node.arguments, []).append(node)
    partners = [(node, alike[node.arguments].pop(0) if alike.get(node.arguments) else None) for node in left]
    free = [node for nodes in alike.values() for node in nodes]
    for node, partner in partners:
        near = _nearest(node, free[:_WINDOW]) if partner is None else partner
        if near is None:
            yield Pair(step=node.step, a=node.id, b=None)
        else:
            free = [other for other in free if other is not near] if partner is None else free
            changes = tuple(compared(node.dependencies, near.dependencies))
            yield Pair(step=node.step, a=node.id, b=near.id, changes=changes)
    yield from (Pair(step=node.step, a=None, b=node.id) for node in free)


def _nearest(node: _Node, candidates: Sequence[_Node]) -> _Node | None:
    """The one with which it has most arguments in common; none if it is of several and all of them differ."""
    mine = node.dependencies.arguments
    best, least = None, max(len(mine), 2)
    for other in candidates:
        theirs = other.dependencies.arguments
        names = {*mine, *theirs}
        differing = sum(mine.get(name, Part("")).digest != theirs.get(name, Part("")).digest for name in names)
        if differing < least:
            best, least = other, differing
    return best


# -- what came of a node: what its step returned, yielded and did, without what differs from time to time

Outcome = Mapping[str, Any]


def outcome(entries: RunEntries, entry: Decoded) -> Outcome:
    """What an entry holds. Files in it are looked at where they are kept; those on disk stay as they are."""
    with keeping(entries.store, reading=True):
        loaded = entry.load(CallersOwn._make)
        value, effects = loaded if entry.meta.get("effects") else (loaded, {})
        items: list[Any] = []
        for number in range(entry.meta.get("chunks", 0)):
            chunk = entries.chunk(entry, number)
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
