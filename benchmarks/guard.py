"""What calls do, counted instead of timed: `python -m benchmarks.guard` fails if one does more than is recorded.

Counted per call, in a process of its own: operations on the store, SQL statements, files opened, pickles made and read, bytes
hashed; and for large results peak memory and bytes read, in multiples of the value. Counts must not grow; bytes may by a few
percent, because a time of day does not always have the same number of digits.

How many of oncemore's own files and functions a call passes is printed as well, and never compared: it is for people to judge.

    python -m benchmarks.guard            print, and compare with benchmarks/guard.json
    python -m benchmarks.guard --passes   print only
    python -m benchmarks.guard --update   print, and record what is counted now
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import pickle
import random
import sqlite3
import sys
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .samples import KINDS

RECORD = Path(__file__).with_suffix(".json")
SLACK = 1.05  # for bytes
LARGE = 8 << 20
OPERATIONS = "store operations"
Counts = dict[str, float]

counted: Counter[str] = Counter()
operations: list[str] = []
passed: Counter[CodeType] = Counter()


@dataclass
class Found:
    """What one call did."""

    counts: Counts = field(default_factory=dict[str, float])
    operations: list[str] = field(default_factory=list[str])
    files: int = 0
    functions: int = 0
    calls: int = 0


# -- counters. They replace names in other modules, so they are installed before oncemore is imported.


def _counting(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counting(*args: Any, **kwargs: Any) -> Any:
        counted[what] += 1
        return function(*args, **kwargs)

    return counting


class Pickler(pickle.Pickler):
    def dump(self, value: object, /) -> None:
        counted["pickles made"] += 1
        super().dump(value)


class Unpickler(pickle.Unpickler):
    def load(self) -> Any:
        counted["pickles read"] += 1
        return super().load()


@functools.cache
def _connection(factory: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
    def execute(self: sqlite3.Connection, *given: Any) -> sqlite3.Cursor:
        counted["statements"] += 1
        return factory.execute(self, *given)

    return type(factory.__name__, (factory,), {"execute": execute})


def _connect(connect: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
    def counting(*args: Any, factory: type[sqlite3.Connection] = sqlite3.Connection, **options: Any) -> Any:
        return connect(*args, factory=_connection(factory), **options)

    return counting


def _hasher(real: Any) -> Any:
    class Hasher:
        """BLAKE3 that counts."""

        AUTO = real.AUTO

        def __init__(self, data: Any = b"", **options: Any) -> None:
            counted["bytes hashed"] += memoryview(data).nbytes
            self._real = real(data, **options)

        def update(self, data: Any, **options: Any) -> Any:
            counted["bytes hashed"] += memoryview(data).nbytes
            self._real.update(data, **options)
            return self

        def copy(self) -> Any:
            copy = Hasher.__new__(Hasher)
            copy._real = self._real.copy()
            return copy

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    return Hasher


def _audit(event: str, given: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(given[0], (str, bytes)):
        counted["files opened"] += 1


def install() -> None:
    """Start counting. Files that SQLite opens are not seen: it opens them itself."""
    import blake3

    pickle.Pickler, pickle.Unpickler = Pickler, Unpickler  # type: ignore[misc]
    pickle.dumps = _counting("pickles made", pickle.dumps)
    pickle.loads = _counting("pickles read", pickle.loads)
    sqlite3.connect = _connect(sqlite3.connect)
    blake3.blake3 = _hasher(blake3.blake3)  # type: ignore[misc]
    sys.addaudithook(_audit)


def counting_store(path: Path) -> Any:
    """The store at a path, noting each call of a method of the `Store` contract."""
    from oncemore import Store, open_store

    real = open_store(path)

    def method(name: str) -> Callable[..., Any]:
        def call(self: object, *args: Any, **kwargs: Any) -> Any:
            if name != "close":
                operations.append(name)
            return getattr(real, name)(*args, **kwargs)

        return call

    contract = {name: value for name, value in vars(Store).items() if not name.startswith("_")}
    methods: dict[str, Any] = {name: method(name) for name, value in contract.items() if callable(value)}
    kind = type(
        "CountingStore", (), {**methods, "url": real.url, "__getattr__": lambda self, name: getattr(real, name)}
    )
    return kind()


def _profile(frame: FrameType, event: str, argument: object) -> None:
    if event == "call":
        passed[frame.f_code] += 1


def _profiling(function: Any) -> None:
    if sys.version_info >= (3, 12):
        threading.setprofile_all_threads(function)
    else:
        threading.setprofile(function)
        sys.setprofile(function)


@contextmanager
def counting(size: int = 0) -> Iterator[Found]:
    """Counts what the block does; with `size`, peak memory and bytes read as multiples of it."""
    found = Found()
    if size:
        tracemalloc.start()
        tracemalloc.reset_peak()
    before = _bytes_read()
    counted.clear()
    operations.clear()
    passed.clear()
    _profiling(_profile)
    try:
        yield found
    finally:
        _profiling(None)
    found.counts = dict(sorted(counted.items()))
    found.operations = list(operations)
    if operations:
        found.counts[OPERATIONS] = len(operations)
    if size:
        found.counts["bytes read, to the value's"] = round((_bytes_read() - before) / size, 1)
        found.counts["peak memory, to the value's"] = round(tracemalloc.get_traced_memory()[1] / size, 1)
        tracemalloc.stop()
    ours = {code: times for code, times in passed.items() if code.co_filename.startswith(_package())}
    named = [code for code in ours if not code.co_name.startswith("<")]  # comprehensions are no functions since 3.12
    found.files, found.functions = len({code.co_filename for code in ours}), len(named)
    found.calls = sum(ours[code] for code in named)


@functools.cache
def _package() -> str:
    import oncemore

    return os.path.dirname(oncemore.__file__) + os.sep


def _bytes_read() -> int:
    """By this process so far, with those of SQLite; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/io").read_text().split()[1])
    except OSError:
        return 0


# -- the calls


def scenarios(folder: Path) -> dict[str, Found]:
    """What each kind of call does once everything is open and known."""
    from oncemore import checkpoint_scope, checkpointed

    store = counting_store(folder / "store")
    found: dict[str, Found] = {}

    @checkpointed
    def tiny(value: Any) -> int:
        return 1

    def run(name: str, calls: int) -> None:
        with checkpoint_scope(name, store=store):
            for number in range(calls):
                tiny(number)

    with counting() as found["call outside a scope"]:
        tiny(1)
    for number in (0, 1):  # the first round opens, imports and learns; the second is kept
        for kind in ("scalar", "dict", "list", "dataclass", "array", "frame"):
            _arguments(kind, tiny, f"{kind} {number}", store, found)
        _results(f"results {number}", store, found)
        asyncio.run(_coroutines(f"coroutines {number}", store, found))
        run(f"long {number}", 1000)
        with counting() as found["re-run of 1,000 steps"]:
            run(f"long {number}", 1000)
        with counting() as found["opening and leaving a resumed scope"]:
            run(f"long {number}", 0)
    return found


def _arguments(kind: str, step: Callable[[Any], int], run: str, store: Any, found: dict[str, Found]) -> None:
    """Hits and misses with arguments of one kind, in a new run and in one that is resumed."""
    from oncemore import checkpoint_scope

    values = [KINDS[kind](number) for number in range(6)]
    with checkpoint_scope(run, store=store):
        step(values[0])
        with counting() as found[f"{kind}: miss, new run"]:
            step(values[1])
        step(values[2])
    with checkpoint_scope(run, store=store):
        with counting() as found[f"{kind}: first hit"]:
            step(values[0])
        step(values[1])
        step(values[2])  # by now small entries have been fetched in one scan
        with counting() as found[f"{kind}: repeated hit"]:
            step(values[2])
        with counting() as found[f"{kind}: first miss, resumed run"]:
            step(values[3])
        step(values[4])
        with counting() as found[f"{kind}: miss, resumed run"]:
            step(values[5])


def _results(run: str, store: Any, found: dict[str, Found]) -> None:
    """A large result, and a step with effects."""
    import numpy as np

    from oncemore import checkpoint_scope, checkpointed, current_run

    @checkpointed
    def large(number: int) -> Any:
        return np.random.default_rng(number).integers(0, 1 << 63, LARGE // 8)  # does not compress

    @checkpointed
    def effects(cards: list[int]) -> int:
        random.shuffle(cards)
        run = current_run()
        assert run is not None
        run.state["shuffled"] = True
        return cards[0]

    for word in ("miss", "hit"):
        with checkpoint_scope(run, store=store):
            with counting(LARGE) as found[f"8 MB result: {word}"]:
                large(1)
            with counting() as found[f"effects: {word}"]:
                effects([1, 2, 3])


async def _coroutines(run: str, store: Any, found: dict[str, Found]) -> None:
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    async def tiny(value: Any) -> int:
        return 1

    async with checkpoint_scope(run, store=store):
        await tiny(0)
        with counting() as found["coroutine: miss, new run"]:
            await tiny(1)
        await tiny(2)
    async with checkpoint_scope(run, store=store):
        with counting() as found["coroutine: first hit"]:
            await tiny(0)
        await tiny(1)
        with counting() as found["coroutine: repeated hit"]:
            await tiny(0)
    for name, each in found.items():
        if name.startswith("coroutine"):  # which thread works, and whether it has a connection yet, is not ours to say
            each.counts.pop("statements", None)


# -- printing and comparing


def table(found: dict[str, Found]) -> str:
    """What calls pass and ask of the store."""
    lines = [f"{'':38} {'files':>5} {'functions':>9} {'calls':>6} {'statements':>10}  {OPERATIONS}"]
    for name, each in found.items():
        numbers = f"{each.files:5} {each.functions:9} {each.calls:6} {each.counts.get('statements', 0):10}"
        short = [
            f"{operation} x {times}" if times > 1 else operation
            for operation, times in Counter(each.operations).items()
        ]
        lines.append(f"{name:38} {numbers}  {' '.join(short) or '-'}")
    return "\n".join(lines)


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
    parser.add_argument("--passes", action="store_true", help="print what calls pass; compare nothing")
    parser.add_argument("--update", action="store_true", help="record what is counted now")
    parser.add_argument("--record", type=Path, default=RECORD, help="compare with this file")
    asked = parser.parse_args()
    install()
    with tempfile.TemporaryDirectory(prefix="oncemore-guard-", ignore_cleanup_errors=True) as folder:
        os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_CACHE_HOME"] = folder  # a secret and a cache of its own
        found = scenarios(Path(folder))
    now = {name: each.counts for name, each in found.items()}
    print(table(found))
    if asked.update:
        asked.record.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    if asked.update or asked.passes:
        return 0
    more = worse(now, json.loads(asked.record.read_text(encoding="utf-8")))
    print(
        "\n".join(
            ["", *more, "Intended? python -m benchmarks.guard --update"]
            if more
            else ["", "no call does more than recorded"]
        )
    )
    return 1 if more else 0


if __name__ == "__main__":
    sys.exit(main())
