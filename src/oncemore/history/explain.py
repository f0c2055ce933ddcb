"""Why a step runs although the run has checkpoints of it: compares what the two depend on, part by part."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..entries import RunEntries
from ..errors import UsageError, did_you_mean
from ..events import Event, StepCompleted, StepFailed, StepNotKept, StepRetried
from ..identity import Part, code_of
from ..identity.display import rows_differing
from ..node import NEW, Node
from ..settings import duration
from ..stores import Store
from ..surroundings import change_of, label_of, part_of
from ..surroundings.protocol import EXCUSED

if TYPE_CHECKING:
    from ..session import Session

_MOST = 3  # pieces of one argument that a reason names
_FIELDS = ("part", "message", "where", "before", "after")


@dataclass(frozen=True)
class Change:
    """One part that differs from an earlier checkpoint. `message` is one line; `before` and `after` are shortened values."""

    part: str
    message: str
    where: str = ""
    before: str = ""
    after: str = ""
    _sources: tuple[str, str] = field(default=("", ""), repr=False)

    def diff(self) -> str:
        """The change of the source as a unified diff; empty if the part is not code, or its source is unknown."""
        then, now = (source.splitlines() for source in self._sources)
        return "\n".join(difflib.unified_diff(then, now, "before", self.where or "now", lineterm=""))

    @staticmethod
    def from_dict(fields: Mapping[str, str]) -> Change:
        """The opposite of `as_dict`."""
        return Change(**{name: fields[name] for name in _FIELDS}, _sources=("", ""))

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return {name: getattr(self, name) for name in _FIELDS}


@dataclass(frozen=True)
class Explanation:
    """Why a node runs, or that it is reused. `str()` gives the text.

    >>> from oncemore import checkpointed, checkpoint_scope
    >>> @checkpointed
    ... def double(n):
    ...     return 2 * n
    >>> with checkpoint_scope("explained", store="memory://doctest"):
    ...     before = double.explain(2)
    ...     double(2)
    ...     print(before.reason, "/", double.explain(2).reuses)
    4
    new node / True
    """

    step: str
    node: str
    reuses: bool
    reason: str
    changes: tuple[Change, ...] = ()
    retries: tuple[str, ...] = ()  # a line for each attempt that failed and was followed by another

    def __str__(self) -> str:
        one = len(self.changes) < 2
        reasons = [f"{self.node}: {self.reason}"] if one else [f"{self.node}:"]
        details = [*(() if one else (change.message for change in self.changes)), *self.retries]
        return "\n".join([*reasons, *(f"  {line}" for line in details)])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "changes": [change.as_dict() for change in self.changes]}


class Dependencies(NamedTuple):
    """What a node depends on, part by part. `reads` is the data that its code refers to, and what it read when it ran.

    `packages` are recorded, not compared.
    """

    arguments: Mapping[str, Part]
    code: Mapping[str, Part]
    packages: Mapping[str, str]
    reads: Mapping[str, Part] = MappingProxyType({})


def recorded(entries: RunEntries, code: str, meta: Mapping[str, Any]) -> Dependencies:
    """What a checkpoint depended on, from its metadata and the digest of its code."""

    def parts(digests: Mapping[str, str]) -> dict[str, Part]:
        return {name: Part.from_json(digest, shown.get(name, "")) for name, digest in digests.items()}

    shown = meta.get("shown", {})
    read = {label_of(name): digest for name, digest in meta.get("reads", {}).items()}
    reads = {**parts(meta.get("data", {})), **parts(read)}
    return Dependencies(parts(meta.get("arguments", {})), *entries.code_parts_of(code), reads)


class Reason(NamedTuple):
    """Why a node runs, in one line, and how it differs from the checkpoint that it was compared with."""

    text: str
    changes: tuple[Change, ...] = ()
    compared_with: str = ""  # the key of that checkpoint

    def fields(self) -> dict[str, Any]:
        """The fields of an event that give the reason."""
        changes = [change.as_dict() for change in self.changes]
        return {"reason": self.text, "changes": changes, "compared_with": self.compared_with}


def compare(entries: RunEntries, node: Node, now: Dependencies, run: Session, after: str | None = "") -> Reason:
    """What changed since the checkpoint that the node replaces. Without one, the node is new.

    That is the one with the same arguments, else the one that stood at the same place in the script, next after the checkpoint
    `after`, else one that was left out on the way there. Checkpoints recorded or used in this scope belong to other calls.
    """
    own, used = entries.readings(node), run.used_nodes
    if own is not None:
        found = tuple(_changes_of_reads(own.meta, run)) if own.time < run.opened else ()
        return Reason(sentence(found), found, node.key if found else "")
    nearest, least = None, None
    for other, entry, stood_there in entries.others(node, run.opened, after, used):
        meta = entry.meta
        arguments = _count_differences(meta.get("arguments", {}), now.arguments)
        if other.key in used or (arguments and not _resembles(meta, now, arguments, stood_there)):
            continue
        data = _count_differences(meta.get("data", {}), now.reads) + (code_of(other.code) != code_of(node.code))
        distance = arguments, data, not stood_there, -entry.time
        if least is None or distance < least:
            nearest, least = (other, meta), distance
    if nearest is None:
        return Reason(NEW)
    other, meta = nearest
    found = tuple(compared(recorded(entries, other.code, meta), now))
    return Reason(sentence(found), found, other.key if found else "")


def _resembles(meta: Mapping[str, Any], now: Dependencies, differing: int, stood_there: bool) -> bool:
    """Whether a checkpoint with other arguments may be of the same call before an edit: they have something in common.

    A single argument that has no parts can have nothing in common. Then the place alone decides.
    """
    if differing < len(now.arguments):
        return True
    if len(now.arguments) > 1:
        return False
    ((name, part),) = now.arguments.items()
    before = Part.from_json("", meta.get("shown", {}).get(name, "")).pieces
    names = {*before, *part.pieces}
    if len(names) < 2:
        return stood_there
    return any(before.get(each, ("",))[0] == part.pieces.get(each, (None,))[0] for each in names)


def why(store: Store, run_id: str, log: Sequence[Event], which: str) -> Explanation:
    """Why a node or step last ran, from its event, with the sources of code that changed."""
    ran = [event for event in log if isinstance(event, (StepCompleted, StepFailed, StepNotKept))]
    last = next((event for event in reversed(ran) if which in (event.node, event.step)), None)
    if last is None:
        steps = ", ".join(dict.fromkeys(event.step for event in ran)) or "none"
        hint = did_you_mean(which, (name for event in ran for name in (event.step, event.node)))
        raise UsageError(f"no step or node {which!r} ran in run {run_id}.{hint or f' Steps that ran: {steps}'}")
    entries, found = RunEntries(store, "", "", None), [Change.from_dict(change) for change in last.changes]
    if last.compared_with:
        codes = last.compared_with.rpartition(".")[2].partition("@")[0], last.fingerprint.partition(".")[2]
        before, after = (entries.code_parts_of(code)[0] for code in codes)
        found = [
            replace(change, _sources=(before[change.part].source, after[change.part].source))
            if change.part in before and change.part in after
            else change
            for change in found
        ]
    failed: list[str] = []
    for event in log[: log.index(last)]:
        if isinstance(event, (StepCompleted, StepFailed, StepNotKept)) and event.node == last.node:
            failed.clear()  # an earlier call
        elif isinstance(event, StepRetried) and event.node == last.node:
            failed.append(f"attempt {event.attempt} failed after {duration(event.seconds)}: {event.error}")
    return Explanation(last.step, last.node, False, last.reason, tuple(found), tuple(failed))


def sentence(found: tuple[Change, ...] | None) -> str:
    """The changes in one line."""
    return "; ".join(change.message for change in found) if found else NEW


def compared(before: Dependencies, now: Dependencies) -> Iterator[Change]:
    """What differs. If anything does, also the packages whose versions differ."""
    found = [*_differing(before.arguments, now.arguments, _argument), *_differing(before.code, now.code, _code)]
    read_by_both = before.reads.keys() & now.reads.keys()  # with other arguments or code, a step may read other things
    found += [
        change
        for change in _differing(before.reads, now.reads, _value)
        if change.part in read_by_both
        or change.part.startswith("setting ")  # a setting that is not listed has its default
    ]
    yield from found
    if not found and before.code != now.code:
        yield Change("code", "code changed")
    for name in sorted(before.packages.keys() & now.packages.keys()) if found else ():
        if before.packages[name] != now.packages[name] and f"package {name}" not in now.code:
            then, today = before.packages[name], now.packages[name]
            yield Change(
                f"package {name}", f"{name} {then} -> {today} (recorded, not compared)", before=then, after=today
            )


def _count_differences(before: Mapping[str, str], now: Mapping[str, Part]) -> int:
    return sum(name not in now or now[name].digest != before.get(name) for name in {**before, **now})


def _differing(
    before: Mapping[str, Part], now: Mapping[str, Part], describe: Callable[[str, Part, Part], str]
) -> Iterator[Change]:
    for name in {**now, **before}:
        then, today = before.get(name), now.get(name)
        if then is None and today is not None:
            if before:  # otherwise nothing is known about the earlier call
                news = "is compared now" if name.startswith("package ") else f"is new{_at(today)}"
                yield Change(name, f"{name} {news}", today.where, after=today.shown)
        elif today is None and then is not None:
            yield Change(name, f"{name} is gone", before=then.shown)
        elif then is not None and today is not None and then.digest != today.digest:
            message, sources = describe(name, then, today), (then.source, today.source)
            yield Change(name, message, today.where, then.shown, today.shown, sources)


def _at(part: Part) -> str:
    return f" ({part.where})" if part.where else ""


def _code(name: str, before: Part, now: Part) -> str:
    if now.source or now.where or before.source:
        return f"{'code' if name == 'code' else f'code of {name}'} changed{_at(now)}"
    return _value(name, before, now)


def _value(name: str, before: Part, now: Part) -> str:
    if not (before.shown and now.shown):
        return f"{name} changed"
    return f"{name}: {now.shown} changed" if before.shown == now.shown else f"{name}: {before.shown} -> {now.shown}"


def _argument(name: str, before: Part, now: Part) -> str:
    pieces = list(_pieces(before, now)) if before.pieces and now.pieces else []
    if not pieces:
        return _value(name, before, now)
    text = ", ".join(pieces[:_MOST]) + (f" and {len(pieces) - _MOST} more" if len(pieces) > _MOST else "")
    rows = rows_differing(before.rows, now.rows)
    if rows is not None and rows[0]:
        text += f", about {rows[0]:,} of {rows[1]:,} rows differ"
    elif before.shown != now.shown and now.shown.startswith("<"):  # the shape of a frame
        text += f" ({before.shown} -> {now.shown})"
    return f"{name}: {text}"


def _pieces(before: Part, now: Part) -> Iterator[str]:
    for piece in {**before.pieces, **now.pieces}:
        then, today = before.pieces.get(piece), now.pieces.get(piece)
        if then is None or today is None:
            yield f"{piece} is {'new' if then is None else 'gone'}"
        elif then[0] != today[0]:
            yield f"{piece}: {then[1]} -> {today[1]}" if then[1] != today[1] else f"{piece} changed"


def _changes_of_reads(meta: Mapping[str, Any], run: Any) -> Iterator[Change]:
    for read, was in meta["reads"].items():
        now = part_of(run, read)
        if now.digest != was and not now.digest.startswith(EXCUSED):
            label = label_of(read)
            then = Part.from_json(was, meta.get("shown", {}).get(label, ""))
            message = change_of(read) or _value(label, then, now)
            yield Change(label, message, before=then.shown, after=now.shown)
