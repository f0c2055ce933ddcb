"""Compares two runs (which nodes they share, which differ, and how), and the outcomes of single nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..codec import Decoded, dumps, loads
from ..entries import RunEntries
from ..errors import CodecError, FingerprintError, NotRecorded, StoreError
from ..files.blobs import keeping
from ..identity import Part
from ..identity.display import short
from ..identity.values import digest
from ..run import RunView
from .checkpoints import CallersOwn, Checkpoint
from .explain import Change, Dependencies, compared, recorded

_WINDOW = 64  # candidates for the most similar node: two runs of thousands of nodes are mostly in the same order


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A node of one run and its counterpart in the other; None if there is none."""

    step: str
    a: str | None
    b: str | None
    changes: tuple[Change, ...] = ()
    result: str = ""  # how the results of the same node differ, if they do: its step is not deterministic

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "changes": [change.as_dict() for change in self.changes]}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The number of nodes with the same outcome in two runs, and the nodes that differ."""

    a: str
    b: str
    same: int
    differing: Sequence[Pair]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "differing": [pair.as_dict() for pair in self.differing]}


def compare(a: RunView, b: RunView) -> Comparison:
    """Compare the valid checkpoints of steps in two runs of one store."""
    entries = RunEntries(a.store, "", "", None)
    ours, theirs = ({c.suffix: c for c in run.checkpoints if c.entry} for run in (a, b))
    both = [(one, theirs[suffix]) for suffix, one in ours.items() if suffix in theirs]
    found = [pair for one, other in both if (pair := _results(entries, one, other)) is not None]
    same = len(both) - len(found)
    left, right = _only_in(entries, ours, theirs), _only_in(entries, theirs, ours)
    for step in dict.fromkeys((*left, *right)):
        found += _paired(left.get(step, []), right.get(step, []))
    return Comparison(a=a.id, b=b.id, same=same, differing=found)


def _results(entries: RunEntries, a: Checkpoint, b: Checkpoint) -> Pair | None:
    """The same node in both runs, if its outcome differs. Values are loaded only if the stored bytes differ."""
    if a.entry == b.entry:  # shared through a fork
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
    arguments: str  # digest of all arguments
    dependencies: Dependencies


def _only_in(
    entries: RunEntries, mine: Mapping[str, Checkpoint], others: Mapping[str, Checkpoint]
) -> dict[str, list[_Node]]:
    """The nodes that only the first run has, by step."""
    found: dict[str, list[_Node]] = {}
    for suffix, checkpoint in mine.items():
        if suffix in others:
            continue
        arguments, _, code = checkpoint.node_key.rpartition("/")[2].partition(".")
        try:
            meta = _entry(entries, checkpoint).meta
        except (NotRecorded, StoreError):
            meta = {}  # only the digests in its key are known
        step = str(checkpoint.step)
        node = _Node(step, str(checkpoint.node), arguments, recorded(entries, code, meta))
        found.setdefault(step, []).append(node)
    return found


def _paired(left: Sequence[_Node], right: Sequence[_Node]) -> Iterator[Pair]:
    """Pair the nodes of one step: by equal arguments first, then with the most similar node that is left."""
    by_arguments: dict[str, list[_Node]] = {}
    for node in right:
        by_arguments.setdefault(node.arguments, []).append(node)
    partners = [
        (node, by_arguments[node.arguments].pop(0) if by_arguments.get(node.arguments) else None) for node in left
    ]
    free = [node for nodes in by_arguments.values() for node in nodes]
    for node, partner in partners:
        match = _nearest(node, free[:_WINDOW]) if partner is None else partner
        if match is None:
            yield Pair(step=node.step, a=node.id, b=None)
        else:
            free = [other for other in free if other is not match] if partner is None else free
            changes = tuple(compared(node.dependencies, match.dependencies))
            yield Pair(step=node.step, a=node.id, b=match.id, changes=changes)
    yield from (Pair(step=node.step, a=None, b=node.id) for node in free)


def _nearest(node: _Node, candidates: Sequence[_Node]) -> _Node | None:
    """The candidate with the most arguments in common; None if a node with several arguments shares none of them."""
    mine = node.dependencies.arguments
    best, least = None, max(len(mine), 2)
    for other in candidates:
        theirs = other.dependencies.arguments
        names = {*mine, *theirs}
        differing = sum(mine.get(name, Part("")).digest != theirs.get(name, Part("")).digest for name in names)
        if differing < least:
            best, least = other, differing
    return best


# -- the outcome of a node: what its step returned, yielded and changed, without times, which always differ

Outcome = Mapping[str, Any]


def outcome(entries: RunEntries, entry: Decoded) -> Outcome:
    """The outcome stored in an entry. File contents are read from the store; files on disk are not touched."""
    with keeping(entries.store, reading=True):
        loaded = entry.load(CallersOwn._make)
        value, effects = loaded if entry.meta.get("effects") else (loaded, {})
        items: list[Any] = []
        for number in range(entry.meta.get("chunks", 0)):
            chunk = entries.chunk(entry, number)
            for pickled in chunk.load():
                item, done, *_ = loads(pickled, chunk.meta.get("main", ""), CallersOwn._make)
                items.append((item, _without_times(done)))
        return {"result": value, **({"items": items} if items else {}), **_without_times(effects)}


def _without_times(effects: Mapping[str, Any]) -> dict[str, Any]:
    """Effects without output, which contains times, and without the times of files."""
    found = {name: effect for name, effect in effects.items() if name != "output"}
    if "files" in found:
        files = [(name, stored.size, stored.mode, stored.digest) for name, stored in found["files"]["files"]]
        found["files"] = {**found["files"], "files": files}
    return found


def difference(old: Outcome, new: Outcome) -> str:
    """The first difference, in one line; empty if there is none."""
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
    except FingerprintError:  # without an identity of its own, compare its pickle
        return dumps(value)
