"""A store inside another store, under a key prefix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from . import Bytes, Frames, Hold, Store


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
