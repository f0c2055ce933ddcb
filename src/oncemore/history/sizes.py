"""How much a run takes in its store."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ..codec import Decoded
from ..errors import IntegrityError
from ..identity import code_of
from ..keys import CHUNKS, CODES, first_prefix, intents_of, items_of, listing_key, log_of, state_of
from ..records import Record
from ..settings import secret
from ..stores import Bytes, Store, sizes_in


class Sizes:
    """The sizes of runs: of their results, generators' items, state snapshots, events, and contents of files.

    Contents of files, and the sources of steps, that several runs share count for each of them. What a fork has inherited
    counts for the run that recorded it. Memoized results belong to no run.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, record: Record) -> int:
        """The bytes that a run takes."""
        uid, found = record.uid, dict[str, int]()
        nodes = first_prefix(uid).rstrip("/")  # rollbacks append to it
        for prefix in (nodes, log_of(uid), state_of(uid), items_of(uid), intents_of(uid)):
            found.update(sizes_in(self._store, prefix))
        shared: set[str] = set()
        for key in (nodes, intents_of(uid)):
            for listing, data in self._store.scan(listing_key(key)):
                found[listing] = len(data or b"")
                shared.update(_chunks(listing, data or b""))
        if shared:
            found.update((chunk, self._chunks.get(chunk, 0)) for chunk in shared)
        codes = {code_of(key.rpartition(".")[2].partition("@")[0]) for key in found if key.startswith(nodes)}
        return sum(found.values()) + sum(self._codes.get(f"{CODES}{code}", 0) for code in codes)

    @cached_property
    def _chunks(self) -> Mapping[str, int]:
        return dict(sizes_in(self._store, CHUNKS))

    @cached_property
    def _codes(self) -> Mapping[str, int]:
        return dict(sizes_in(self._store, CODES))


def _chunks(listing: str, data: Bytes) -> list[str]:
    try:
        blobs: list[str] = Decoded(data, key=listing, secret=secret()).meta["blobs"]
        return blobs
    except IntegrityError:
        return []
