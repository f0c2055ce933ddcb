"""What calls do, counted instead of timed: `python -m benchmarks.guard` is red if one does more than is recorded.

Counted in a process of its own, per call: SQL statements, files opened, pickles made and read, bytes hashed, bytes of value
files read, and at large values the memory that Python takes at its peak, in multiples of the value. Numbers of things
must not grow at all, bytes by no more than a few percent: a time of day has not always the same number of digits.

    python -m benchmarks.guard            compare with benchmarks/guard.json
    python -m benchmarks.guard --update   record anew what is counted now
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pickle
import random
import sqlite3
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_suffix(".json")
SLACK = 1.05  # for bytes
Counts = dict[str, float]

counted: Counter[str] = Counter()


# -- counting: in place before oncemore is imported, which takes these names as they are then


class Pickler(pickle.Pickler):
    def dump(self, value: object, /) -> None:
        counted["pickles made"] += 1
        super().dump(value)


class Unpickler(pickle.Unpickler):
    def load(self) -> Any:
        counted["pickles read"] += 1
        return super().load()


class Connection(sqlite3.Connection):
    def execute(self, *given: Any) -> sqlite3.Cursor:
        counted["statements"] += 1
        return super().execute(*given)


def _hasher(real: Any) -> Any:
    class Hasher:
        """BLAKE3 that counts."""

        def __init__(self, data: Any = b"", **options: Any) -> None:
            counted["bytes hashed"] += memoryview(data).nbytes
            self._real = real(data, **options)

        def update(self, data: Any, **options: Any) -> Any:
            counted["bytes hashed"] += memoryview(data).nbytes
            self._real.update(data, **options)
            return self

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    return Hasher


def _audit(event: str, given: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(given[0], (str, bytes)):
        counted["files opened"] += 1


def install() -> None:
    """Count from here on what is done through these doors. SQLite's own files are not seen: it opens them by itself."""
    import blake3

    dumps = pickle.dumps

    def counting_dumps(*given: Any, **options: Any) -> bytes:
        counted["pickles made"] += 1
        return dumps(*given, **options)

    preadv = os.preadv

    def counting_preadv(descriptor: int, buffers: Any, offset: int, /) -> int:
        count = preadv(descriptor, buffers, offset)
        counted["bytes read"] += count
        return count

    pickle.Pickler, pickle.Unpickler, pickle.dumps = Pickler, Unpickler, counting_dumps  # type: ignore[misc]
    sqlite3.connect = functools.partial(sqlite3.connect, factory=Connection)
    blake3.blake3 = _hasher(blake3.blake3)  # type: ignore[misc]
    os.preadv = counting_preadv  # type: ignore[assignment]
    sys.addaudithook(_audit)


# -- the calls


def scenarios(folder: Path) -> dict[str, Counts]:
    """What each kind of call counts, once everything is open and known."""
    from oncemore import checkpoint_scope

    small, nested, large, effects = steps()
    rows = [{"a": i, "b": 2 * i} for i in range(1000)]
    store, size = folder / "store", 8 << 20

    def run(name: str, calls: int) -> None:
        with checkpoint_scope(name, store=store):
            for number in range(calls):
                small(number)

    found = {"call outside a scope": count(lambda: small(1))}
    for number in (0, 1):  # the first round opens, imports and learns
        with checkpoint_scope(f"run {number}", store=store):
            small(-1)
            found["miss"] = count(lambda: small(1))
            found["hit in the scope that made it"] = count(lambda: small(1))
            found["miss, 1000 dicts as argument"] = count(lambda: nested(rows))
            found["miss, 8 MB array"] = count(lambda: large(1), size)
            found["miss with effects"] = count(lambda: effects([1, 2, 3]))
        with checkpoint_scope(f"run {number}", store=store):
            found["first hit in a scope"] = count(lambda: small(1))
            small(-1)
            found["hit"] = count(lambda: nested(rows))
            found["repeated hit"] = count(lambda: nested(rows))
            found["hit, 8 MB array"] = count(lambda: large(1), size)
            found["hit with effects"] = count(lambda: effects([1, 2, 3]))
        run(f"long {number}", 1000)
        found["re-run of 1,000 steps"] = count(partial(run, f"long {number}", 1000))
        found["opening and leaving a run"] = count(partial(run, f"long {number}", 0))
    return found


def steps() -> tuple[Callable[..., Any], ...]:
    """A step with a small result, one with a larger argument, one with a large result, one with effects."""
    import numpy as np

    from oncemore import checkpointed, current_run

    def small(number: int) -> int:
        return number

    def nested(rows: list[dict[str, int]]) -> list[dict[str, int]]:
        return rows[:2]

    def large(number: int) -> Any:
        return np.random.default_rng(number).integers(0, 1 << 63, 1 << 20)  # does not compress

    def effects(cards: list[int]) -> int:
        random.shuffle(cards)
        run = current_run()
        assert run is not None
        run.state["shuffled"] = True
        return cards[0]

    return checkpointed(small), checkpointed(nested), checkpointed(large), checkpointed(effects)


def count(work: Callable[[], object], size: int = 0) -> Counts:
    """What `work` does; the memory at its peak as a multiple of `size`."""
    if size:
        tracemalloc.start()
        tracemalloc.reset_peak()
    counted.clear()
    kept = work()
    found: Counts = dict(sorted(counted.items()))
    if size:
        found["peak memory"] = round(tracemalloc.get_traced_memory()[1] / size, 1)
        tracemalloc.stop()
    del kept
    return found


# -- comparing


def worse(now: dict[str, Counts], recorded: dict[str, Counts]) -> list[str]:
    """What is done more often than recorded, in words."""
    return [
        f"{call}: {number:g} {what} instead of {recorded.get(call, {}).get(what, 0):g}"
        for call, counts in now.items()
        for what, number in counts.items()
        if number > recorded.get(call, {}).get(what, 0) * (SLACK if "bytes" in what else 1)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.guard", description="Count what calls do.")
    parser.add_argument("--update", action="store_true", help="record anew what is counted now")
    parser.add_argument("--record", type=Path, default=RECORD, help="compare with this file")
    asked = parser.parse_args()
    install()
    with tempfile.TemporaryDirectory(prefix="oncemore-guard-", ignore_cleanup_errors=True) as folder:
        os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_CACHE_HOME"] = folder  # a secret and a cache of its own
        now = scenarios(Path(folder))
    if asked.update:
        asked.record.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        return 0
    found = worse(now, json.loads(asked.record.read_text(encoding="utf-8")))
    print(
        "\n".join([*found, "Meant so? python -m benchmarks.guard --update"])
        if found
        else "no call does more than recorded"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
