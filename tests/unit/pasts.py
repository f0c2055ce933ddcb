"""A run to have a past: four steps, one named checkpoint, and what a test wants to know of it afterwards."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from oncemore import Run, checkpoint_scope, checkpointed, current_run
from oncemore.codec import Decoded
from oncemore.keys import OWNER
from oncemore.settings import secret
from oncemore.stores import Bytes, Frames, Hold, Store, open_store, sizes_in

both = ("memory", "disk")


def store_url(kind: str, name: str = "store") -> str:
    """A store of that kind that only this test has."""
    return f"memory://{os.environ['HOME']}/{name}" if kind == "memory" else os.path.abspath(name)


@checkpointed
def load(x: int) -> int:
    return x


@checkpointed
def clean(x: int) -> int:
    run = current_run()
    assert run is not None
    run.state["clean"] = x
    return x + 1


@checkpointed
def train(x: int) -> int:
    return x * 10


@checkpointed
def report(x: int) -> str:
    return f"report {x}"


def flow(store: Any, run_id: str = "r", x: int = 1, **options: Any) -> Run:
    """load, clean, [after-clean], train, report; the run, its scope left."""
    with checkpoint_scope(run_id, store=store, **options) as run:
        cleaned = clean(load(x))
        run.checkpoint("after-clean", metadata={"rows": 3}, next_node="train")
        assert report(train(cleaned)) == f"report {(x + 1) * 10}"
    return run


def ran(run: Run) -> list[str]:
    """Which steps ran in its scope, by their short names."""
    return sorted(step.rpartition(".")[2] for step in run.ran.elements())


def names(checkpoints: Any) -> list[str]:
    """Checkpoints by name, or else by step."""
    return [c.name or c.step.rpartition(".")[2] for c in checkpoints]


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, inner: Store | str) -> None:
        self.inner = open_store(inner)
        self.rows = self.commits = 0
        self.kinds: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, key: str) -> Bytes | None:
        self.rows += 1
        self.kinds[key.partition("/")[0]] += 1
        return self.inner.get(key)

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        self.rows += len(keys)
        self.kinds.update(key.partition("/")[0] for key in keys)
        return self.inner.get_many(keys, most=most)

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        for row in self.inner.scan(prefix, after=after, limit=limit, most=most):
            self.rows += 1
            self.kinds[row[0].partition("/")[0]] += 1
            yield row

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        return sizes_in(self.inner, prefix)  # reads no entries

    def commit(
        self,
        *,
        put: Mapping[str, Frames] = {},
        append: Mapping[str, Sequence[Bytes]] = {},
        delete: Collection[str] = (),
        expect: Mapping[str, Bytes | None] = {},
        under: Hold | None = None,
    ) -> bool:
        self.commits += 1
        return self.inner.commit(put=put, append=append, delete=delete, expect=expect, under=under)

    def hold(self, key: str) -> Hold | None:
        return self.inner.hold(key)

    def held(self, keys: Collection[str]) -> set[str]:
        return self.inner.held(keys)

    def close(self) -> None:
        self.inner.close()


def keys(store: Any, prefix: str = "") -> list[str]:
    """The keys in a store, but for the mark that says whose it is."""
    return [key for key, _ in open_store(store).scan(prefix, most=0) if key != OWNER]


def values(store: Any) -> list[str]:
    """The keys of the nodes that still have something of a result: no tombstones, and no snapshots of the state."""
    entries = {key: data for key, data in open_store(store).scan("node/") if key.split("/")[2] not in ("=", "^")}
    decoded = {key: Decoded(data or b"", key=key, secret=secret()) for key, data in entries.items()}
    return [key for key, entry in decoded.items() if not entry.is_tombstone]


def content(store: Any) -> dict[str, bytes]:
    """All that a store holds, but for the mark that says whose it is and the stamps that are others with every change."""
    left_out = ("changed/", OWNER)
    return {key: bytes(data or b"") for key, data in open_store(store).scan("") if not key.startswith(left_out)}
