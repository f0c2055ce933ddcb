"""Stores on top of another store: one for dry runs, and one for the entries under a prefix."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any

from . import BaseStore, Bytes, Change, Hold, Store, last_number, sizes_in
from .memory import Contents, MemoryStore, given


class Overlay(MemoryStore):
    """Reads `below` plus what was committed here. Writes nothing to `below` and holds no keys in it."""

    def __init__(self, below: Store) -> None:
        self.below, self.url = below, below.url
        self._contents = Contents()
        self._lock = threading.RLock()  # held during reads of `below`, so not the one that a fork waits for
        self._last_below: dict[str, int] = {}  # the number of each log's last entry

    def get(self, key: str) -> Bytes | None:
        """See `Store.get`."""
        with self._lock:
            here = self._contents.values
            return given(here[key]) if key in here else self.below.get(key)

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        """See `Store.get_many`."""
        with self._lock:
            here = {key: self._contents.values[key] for key in keys if key in self._contents.values}
            found = self.below.get_many([key for key in keys if key not in here], most=most)
        return found | {key: given(data, most) for key, data in here.items() if data is not None}

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """See `Store.scan`."""
        with self._lock:
            here = {key: data for key, data in self._contents.values.items() if key.startswith(prefix) and key > after}
        below = (pair for pair in self.below.scan(prefix, after=after, most=most) if pair[0] not in here)
        written = ((key, given(here[key], most)) for key in sorted(here) if here[key] is not None)
        return islice(heapq.merge(below, written, key=lambda pair: pair[0]), limit)

    def _delete(self, keys: Collection[str]) -> None:
        for key in keys:
            self._put(key, None)

    def _last_number(self, log: str) -> int:
        if log not in self._last_below:
            self._last_below[log] = last_number(log, reversed([key for key, _ in self.below.scan(log, most=0)]))
        return max(self._last_below[log], super()._last_number(log))

    def held(self, keys: Collection[str]) -> set[str]:
        """The keys that are held, here or in the underlying store; see `Store.held`."""
        return super().held(keys) | self.below.held(keys)

    def close(self) -> None:
        """Close the connections of the underlying store."""
        self.below.close()

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Overlay, (self.below,)  # another process has an overlay of its own


class Within(BaseStore):
    """The entries of a store whose keys begin with `prefix`, as a store of its own.

    Its URL is that of the underlying store: opened with the same signing key, it leads to the same entries.
    """

    def __init__(self, below: Store, prefix: str) -> None:
        self.below, self.prefix, self.url = below, prefix, below.url

    def __getattr__(self, name: str) -> Any:
        """Methods outside the contract, such as `maintain`, act on the whole underlying store."""
        if name.startswith("__") or name == "below":
            raise AttributeError(name)
        return getattr(self.below, name)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Within, (self.below, self.prefix)

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

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See `Measured.sizes`."""
        for key, size in sizes_in(self.below, self.prefix + prefix):
            yield key.removeprefix(self.prefix), size

    def _commit(self, change: Change) -> bool:
        return self.below.commit(
            put={self.prefix + key: frames for key, frames in change.put.items()},
            append={self.prefix + log: entries for log, entries in change.append.items()},
            delete=[self.prefix + key for key in change.delete],
            expect={self.prefix + key: data for key, data in change.expect.items()},
            under=change.under,
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


def innermost(store: Store) -> Store:
    """The store under all layers, which may have methods outside the contract. An overlay has none: it protects what is below."""
    while not isinstance(store, Overlay) and isinstance(below := getattr(store, "below", None), Store):
        store = below
    return store
