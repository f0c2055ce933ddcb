"""Stores on top of another store: one for dry runs, and one for the entries under a prefix."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..errors import StoreError
from . import Bytes, Frames, Hold, Store, check_change, checked, last_number, log_key
from .memory import MemoryHold, given, require


class Overlay:
    """Reads `below` plus what was committed here. Writes nothing to `below` and holds no keys in it."""

    def __init__(self, below: Store) -> None:
        self.below = below
        self._written: dict[str, bytes | None] = {}  # None: deleted
        self._last: dict[str, int] = {}  # the number of each log's last entry
        self._held: dict[str, MemoryHold] = {}
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        """The URL of the underlying store; a worker process of the dry run has an overlay of its own."""
        return self.below.url

    def get(self, key: str) -> Bytes | None:
        """See `Store.get`."""
        with self._lock:
            return given(self._written[key]) if key in self._written else self.below.get(key)

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        """See `Store.get_many`."""
        with self._lock:
            here = {key: self._written[key] for key in keys if key in self._written}
            found = self.below.get_many([key for key in keys if key not in here], most=most)
        return found | {key: given(data, most) for key, data in here.items() if data is not None}

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """See `Store.scan`."""
        with self._lock:
            written = {key: self._written[key] for key in self._written if key.startswith(prefix) and key > after}
        below = (pair for pair in self.below.scan(prefix, after=after, most=most) if pair[0] not in written)
        here = ((key, written[key]) for key in sorted(written) if written[key] is not None)
        for number, (key, data) in enumerate(heapq.merge(below, here, key=lambda pair: pair[0])):
            if limit is not None and number >= limit:
                return
            yield key, None if data is not None and most is not None and len(data) > most else data

    def commit(
        self,
        *,
        put: Mapping[str, Frames] = {},
        append: Mapping[str, Sequence[Bytes]] = {},
        delete: Collection[str] = (),
        expect: Mapping[str, Bytes | None] = {},
        under: Hold | None = None,
    ) -> bool:
        """Apply all changes here, or none; see `Store.commit`."""
        # Everything that can fail comes first.
        check_change(put, append, delete, expect)
        puts = {key: b"".join(frames) for key, frames in put.items()}
        appends = {log: [b"".join((entry,)) for entry in entries] for log, entries in append.items()}
        with self._lock:
            require(under, self._held)
            for key, expected in expect.items():
                found = self.get(key)
                if (None if found is None else bytes(found)) != (None if expected is None else bytes(expected)):
                    return False
            for log, entries in appends.items():
                for entry in entries:
                    self._last[log] = self._number(log) + 1
                    self._written[log_key(log, self._last[log])] = entry
            self._written.update(puts)
            self._written.update((key, None) for key in delete)
            if under is not None:
                under.release()
        return True

    def _number(self, log: str) -> int:
        if log not in self._last:
            self._last[log] = last_number(log, reversed([key for key, _ in self.below.scan(log, most=0)]))
        return self._last[log]

    def hold(self, key: str) -> Hold | None:
        """Acquire `key` among the users of this overlay; see `Store.hold`."""
        with self._lock:
            try:
                entry = self.get(checked(key))
            except StoreError:
                entry = None  # see `Hold.entry`
            return MemoryHold.take(self._held, key, entry)

    def held(self, keys: Collection[str]) -> set[str]:
        """The keys that are held, here or in the underlying store; see `Store.held`."""
        with self._lock:
            return {key for key in keys if key in self._held} | self.below.held(keys)

    def close(self) -> None:
        """Close the connections of the underlying store."""
        self.below.close()


class Within:
    """The entries of a store whose keys begin with `prefix`, as a store of its own."""

    def __init__(self, below: Store, prefix: str) -> None:
        self.below, self.prefix = below, prefix

    def __getattr__(self, name: str) -> Any:
        """Methods outside the contract, such as `maintain`, act on the whole underlying store."""
        if name.startswith("__") or name == "below":
            raise AttributeError(name)
        return getattr(self.below, name)

    def __reduce__(self) -> tuple[type[Within], tuple[Store, str]]:
        return Within, (self.below, self.prefix)

    @property
    def url(self) -> str:
        """The URL of the underlying store; opened with the same signing key, it leads to the same entries."""
        return self.below.url

    def get(self, key: str) -> Bytes | None:
        """See `Store.get`."""
        return self.below.get(self.prefix + key)

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        """See `Store.get_many`."""
        found = self.below.get_many([self.prefix + key for key in keys], most=most)
        return {key.removeprefix(self.prefix): data for key, data in found.items()}

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """See `Store.scan`."""
        start = self.prefix + after if after else ""
        for key, data in self.below.scan(self.prefix + prefix, after=start, limit=limit, most=most):
            yield key.removeprefix(self.prefix), data

    def commit(
        self,
        *,
        put: Mapping[str, Frames] = {},
        append: Mapping[str, Sequence[Bytes]] = {},
        delete: Collection[str] = (),
        expect: Mapping[str, Bytes | None] = {},
        under: Hold | None = None,
    ) -> bool:
        """See `Store.commit`."""
        return self.below.commit(
            put={self.prefix + key: frames for key, frames in put.items()},
            append={self.prefix + log: entries for log, entries in append.items()},
            delete=[self.prefix + key for key in delete],
            expect={self.prefix + key: data for key, data in expect.items()},
            under=under,
        )

    def hold(self, key: str) -> Hold | None:
        """See `Store.hold`."""
        return self.below.hold(self.prefix + key)

    def held(self, keys: Collection[str]) -> set[str]:
        """See `Store.held`."""
        return {key.removeprefix(self.prefix) for key in self.below.held([self.prefix + key for key in keys])}

    def close(self) -> None:
        """Close the connections of the underlying store."""
        self.below.close()
