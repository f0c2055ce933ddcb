"""A store that lives as long as its process: for tests and throwaway runs."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator
from urllib.parse import quote, unquote

from ..errors import HoldLost, StoreError, UsageError
from . import LAST, BaseStore, Bytes, Change, Hold, checked, last_number, log_key

LARGE = 1 << 15  # bytes; larger values are returned in a new buffer, as by other stores


class Contents:
    """The contents that all stores of one name share."""

    def __init__(self) -> None:
        self.values: dict[str, bytes | None] = {}  # None: hides an entry of the store below, see layered.py
        self.keys: list[str] = []  # sorted
        self.held: dict[str, MemoryHold] = {}


_named: dict[str, Contents] = {}
_lock = threading.RLock()  # one for all stores: it is only held briefly, and a fork waits for it


class MemoryStore(BaseStore):
    """A store in memory. Stores with the same name share their contents within a process, not between processes."""

    shared_between_processes = False
    _lock = _lock

    def __init__(self, name: str = "") -> None:
        self.url = f"memory://{quote(name, safe='')}"
        with _lock:
            self._contents = _named.setdefault(name, Contents())

    def get(self, key: str) -> Bytes | None:
        """See `Store.get`."""
        with self._lock:
            return given(self._contents.values.get(checked(key)))

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        """See `Store.get_many`."""
        with self._lock:
            values = self._contents.values
            return {key: given(values[key], most) for key in map(checked, keys) if key in values}

    def _page(self, start: str, end: str | None, size: int, most: int | None) -> Iterator[tuple[str, Bytes | None]]:
        with self._lock:
            keys, values = self._contents.keys, self._contents.values
            low = bisect_left(keys, start)
            high = len(keys) if end is None else bisect_left(keys, end)
            page = [(key, values[key]) for key in keys[low : min(high, low + size)]]
        return ((key, given(value, most)) for key, value in page)

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See `Measured.sizes`."""
        return ((key, len(data or b"")) for key, data in self.scan(prefix))

    def _commit(self, change: Change) -> bool:
        # Everything that can fail comes first.
        puts = {key: b"".join(frames) for key, frames in change.put.items()}
        appends = {log: [b"".join((entry,)) for entry in entries] for log, entries in change.append.items()}
        expected = {key: None if value is None else b"".join((value,)) for key, value in change.expect.items()}
        with self._lock:
            require(change.under, self._contents.held)
            if any(self.get(key) != value for key, value in expected.items()):
                return False
            for log, entries in appends.items():
                for number, entry in enumerate(entries, self._last_number(log) + 1):
                    self._put(log_key(log, number), entry)
            for key, value in puts.items():
                self._put(key, value)
            self._delete(change.delete)
        return True

    def hold(self, key: str) -> Hold | None:
        """See `Store.hold`."""
        with self._lock:
            try:
                entry = self.get(key)
            except StoreError:
                entry = None  # see `Hold.entry`
            return MemoryHold.take(self._contents.held, key, entry)

    def held(self, keys: Collection[str]) -> set[str]:
        """See `Store.held`."""
        with self._lock:
            return {key for key in keys if checked(key) in self._contents.held}

    def close(self) -> None:
        """Do nothing: entries stay until the process ends."""

    def _put(self, key: str, value: bytes | None) -> None:
        if key not in self._contents.values:
            insort(self._contents.keys, key)
        self._contents.values[key] = value

    def _delete(self, keys: Collection[str]) -> None:
        contents = self._contents
        if gone := contents.values.keys() & set(keys):
            contents.keys = [key for key in contents.keys if key not in gone]
            for key in gone:
                del contents.values[key]

    def _last_number(self, log: str) -> int:
        keys = self._contents.keys
        first, above = bisect_left(keys, log_key(log, 0)), bisect_right(keys, log_key(log, LAST))
        return last_number(log, (keys[index] for index in reversed(range(first, above))))


class MemoryHold:
    """A key held in a table of this process until it is released."""

    def __init__(self, held: dict[str, MemoryHold], key: str, entry: Bytes | None) -> None:
        self._held, self.key, self.entry = held, key, entry

    @classmethod
    def take(cls, held: dict[str, MemoryHold], key: str, entry: Bytes | None) -> MemoryHold | None:
        """Acquire `key` unless it is held. The caller holds the table's lock."""
        return None if key in held else held.setdefault(key, cls(held, key, entry))

    def release(self) -> None:
        """Release the key. Calling it again has no effect."""
        with _lock:
            if self._held.get(self.key) is self:
                del self._held[self.key]


def require(hold: Hold | None, held: dict[str, MemoryHold]) -> None:
    """Raise `HoldLost` if a hold is given and is no longer in the table."""
    if hold is None:
        return
    if not isinstance(hold, MemoryHold):
        raise UsageError(f"{hold!r} is not a hold of this store")
    if held.get(hold.key) is not hold:
        raise HoldLost(f"the hold on {hold.key!r} was released: nothing was written")


def open_url(url: str) -> MemoryStore:
    """Open the store at a `memory:` URL."""
    name, question_mark, _ = url.partition(":")[2].removeprefix("//").partition("?")
    if question_mark:
        raise UsageError(f"{url!r}: a memory store has no options")
    return MemoryStore(unquote(name))


def given(value: bytes | None, most: int | None = None) -> Bytes | None:
    """A stored value as callers receive it."""
    if value is None or (most is not None and len(value) > most):
        return None
    return value if len(value) < LARGE else memoryview(bytearray(value))


def _in_child() -> None:
    for contents in _named.values():
        contents.held = {}  # the parent's holds do not apply here
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)
