"""Memoized results: which a store has, and how to remove them. They belong to no run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

from ..codec import Decoded
from ..entries import RunEntries
from ..errors import IntegrityError, UsageError, did_you_mean
from ..keys import SHARED, in_key, used_key
from ..node import Node
from ..scope import drop_shared_caches
from ..settings import Duration, seconds, secret
from ..stores import Store
from .checkpoints import shown_arguments
from .prune import free_space


@dataclass(frozen=True, kw_only=True)
class MemoizedCall:
    """The stored result of one call of a memoized function.

    `bytes` is what the store has for it, `recorded` when it last ran: 1970 if the entry is damaged, so that it is removed first.
    """

    function: str
    node: str
    arguments: str
    bytes: int
    recorded: datetime
    key: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "recorded": self.recorded.isoformat()}


@dataclass(frozen=True, kw_only=True)
class MemoizedFunction:
    """The stored results of a memoized function.

    `used` is when it last ran or had a hit. Hits are noted once a day.
    """

    function: str
    calls: int
    bytes: int
    oldest: datetime
    newest: datetime
    used: datetime

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        times = {name: getattr(self, name).isoformat() for name in ("oldest", "newest", "used")}
        return {**asdict(self), **times}


def functions(store: Store) -> list[MemoizedFunction]:
    """See `History.memo`."""
    by_name: dict[str, list[MemoizedCall]] = {}
    for call in _calls(store):
        by_name.setdefault(call.function, []).append(call)
    return [_function(store, name, found) for name, found in by_name.items()]


def _function(store: Store, name: str, calls: Sequence[MemoizedCall]) -> MemoizedFunction:
    times, mark = [call.recorded for call in calls], store.get(used_key(name))
    used = [] if mark is None else [datetime.fromisoformat(bytes(mark).decode())]
    return MemoizedFunction(
        function=name,
        calls=len(calls),
        bytes=sum(call.bytes for call in calls),
        oldest=min(times),
        newest=max(times),
        used=max([*times, *used]),
    )


def calls(
    store: Store,
    function: str | None,
    call: str | None,
    older_than: Duration | None,
    down_to: int | None,
) -> list[MemoizedCall]:
    """See `History.memo_calls`."""
    found = sorted(_calls(store, function), key=lambda each: each.recorded)
    if function is not None and not found:
        names = [each.function for each in functions(store)]
        hint = did_you_mean(function, names) or f" Functions with results: {', '.join(names) or 'none'}"
        raise UsageError(f"the store has no memoized results of {function!r}.{hint}")
    if call is not None:
        nodes = [each.node for each in found]
        found = [each for each in found if call in (each.node, each.key)]
        if not found:
            raise UsageError(f"there is no memoized call {call!r}.{did_you_mean(call, nodes)}")
    if older_than is not None:
        limit = time.time() - seconds(older_than)
        found = [each for each in found if each.recorded.timestamp() < limit]
    if down_to is not None:
        found = _beyond(found, down_to)
    return found


def _beyond(found: Sequence[MemoizedCall], limit: int) -> list[MemoizedCall]:
    """The oldest calls, without which the rest take at most `limit` bytes."""
    total, count = sum(each.bytes for each in found), 0
    while total > limit:
        total, count = total - found[count].bytes, count + 1
    return list(found[:count])


def clear(store: Store, doomed: Sequence[MemoizedCall]) -> None:
    """Remove these results. The next such call runs, with the reason "forgotten"."""
    entries = RunEntries(store, "shared", SHARED, None)
    for call in doomed:
        entries.forget(_node(call))
    drop_shared_caches()
    for name in {call.function for call in doomed}:
        if next(_calls(store, name), None) is None:
            store.commit(delete=[used_key(name)])
    if doomed:
        free_space(store)


def _node(call: MemoizedCall) -> Node:
    arguments, _, code = call.key.rpartition("/")[2].partition(".")
    node = Node(SHARED, "shared", call.function, arguments, code)
    node.key = call.key  # of a damaged entry, the function's whole name may be unknown
    return node


def _calls(store: Store, function: str | None = None) -> Iterator[MemoizedCall]:
    """The calls with results, of all functions or of one, in the order of their keys. Reads every entry."""
    group: list[tuple[str, bytes | memoryview | bytearray]] = []
    prefix = SHARED if function is None else f"{SHARED}{in_key(function, 500)}/"
    for key, data in store.scan(prefix):
        if group and key.partition("@")[0] != group[0][0].partition("@")[0]:
            yield from _call(store, group)
            group = []
        group.append((key, b"" if data is None else data))
    if group:
        yield from _call(store, group)


def _call(store: Store, group: Sequence[tuple[str, Any]]) -> Iterator[MemoizedCall]:
    """The call with these entries: its own, and one for each set of values that it read. Nothing if it was forgotten."""
    key = group[0][0].partition("@")[0]
    step, arguments = unquote(key.split("/")[1]), key.rpartition("/")[2].partition(".")[0]
    size, recorded, shown, valid = 0, 0.0, "", False
    for each, data in group:
        size += len(data)
        try:
            entry = Decoded(data, key=each, secret=secret())
        except IntegrityError:
            valid = True
            continue
        if entry.is_tombstone:
            continue
        valid, recorded, step = True, max(recorded, entry.time), entry.meta.get("step", step)
        shown = shown_arguments(entry.meta) or shown
        size += sum(len(store.get(part) or b"") for part in (*entry.chunks, *entry.meta.get("blobs", ())))
    if valid:
        when = datetime.fromtimestamp(recorded, timezone.utc)
        node = f"{step}-{arguments[:8]}"
        yield MemoizedCall(function=step, node=node, arguments=shown, bytes=size, recorded=when, key=key)
