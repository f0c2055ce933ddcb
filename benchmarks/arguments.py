"""Hits and misses by the kind of argument, with a tiny result."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import joblib
import numpy as np
from blake3 import blake3

from oncemore import checkpoint_scope, checkpointed

from .harness import OURS, Bench, Contender, Goal, Seconds, Task, bodies, body, clock
from .peers import GET, DiskcacheMemoize, Joblib, Oncemore, Peer, RawDiskcache, among, contender, ready
from .samples import KINDS, Forest

TITLES = {
    "scalar": "an int",
    "dict": "a dict of 10 keys",
    "list": "a list of 10 items",
    "long list": "a list of 1,000 items",
    "dataclass": "a dataclass",
    "array": "an array of 1 MB",
    "frame": "a frame of 10,000 x 5 numbers",
}
HASH = "BLAKE3 of its columns"


def _blake3(array: Any) -> bytes:
    return blake3(memoryview(array).cast("B")).digest()


def _columns(frame: Any) -> bytes:
    hasher = blake3()
    for name in frame.columns:
        hasher.update(memoryview(np.ascontiguousarray(frame[name])).cast("B"))
    return hasher.digest()


HASHES = {"array": ("BLAKE3 of its bytes", _blake3), "frame": (HASH, _columns)}
GOALS = {
    "scalar": [Goal(1.2, GET, "at most 1.2 x diskcache get")],
    "dict": [Goal(3.0, GET, "at most 3 x diskcache get")],
    "list": [Goal(3.0, GET, "at most 3 x diskcache get")],
    "frame": [Goal(40e-6, HASH, f"at most {HASH} + 40 µs", beyond=True)],
}
PEERS: list[type[Peer]] = [Oncemore, RawDiskcache, Joblib, DiskcacheMemoize]


def _calls(bench: Bench, kind: str) -> int:
    return bench.size(100, 20) if kind in ("array", "frame") else bench.size(500, 100)


def hit(kind: str, bench: Bench) -> Task:
    """One node again and again in a scope, and each node of a resumed run for the first time."""
    calls, value = _calls(bench, kind), KINDS[kind](0)
    (oncemore, *others), absent = ready(PEERS, bench.folder)
    first = contender(oncemore, calls, recorded=True, make=KINDS[kind])
    first.name = f"{OURS}, first hit of each node"

    def ours(number: int) -> Seconds:
        step = checkpointed(body)
        with checkpoint_scope("again", store=bench.folder / "again"):
            step(value)
            bodies()
            taken = _timed(step, value, calls)
        assert not bodies()
        return taken

    contenders = [Contender(OURS, ours, calls), first]
    contenders += [_again(peer, value, max(2, calls // peer.slow)) for peer in others]
    if kind in HASHES:
        name, hashed = HASHES[kind]
        contenders.append(Contender(name, lambda number: _timed(hashed, value, calls), calls, limit=True))
    return Task(f"repeated hit, {TITLES[kind]} as argument", contenders, GOALS.get(kind, []), absent=absent)


def _again(peer: Peer, value: Any, calls: int) -> Contender:
    """The same call again and again; of raw diskcache, a `get` of a tiny value."""

    def work(number: int) -> Seconds:
        if isinstance(peer, RawDiskcache):
            peer.cache.set("again", 1)
            return _timed(peer.cache.get, "again", calls)
        peer.run(0, [value])
        return peer.run(0, [value] * calls)

    return Contender(peer.name, work, calls, lambda number: peer.open(), lambda number: peer.close(), limit=peer.limit)


def _timed(function: Callable[[Any], object], value: Any, calls: int) -> Seconds:
    start = clock()
    for _ in range(calls):
        function(value)
    return clock() - start


def miss(kind: str, bench: Bench) -> Task:
    calls = _calls(bench, kind) // 2
    return Task(
        f"miss, {TITLES[kind]} as argument",
        **among(bench, PEERS, calls, recorded=False, make=KINDS[kind]),
    )


def model(bench: Bench) -> Task:
    """A model of many small arrays: an argument that takes long to identify."""
    trees = bench.size(1200, 300)
    value, store = Forest(1, trees), bench.folder / "store"
    step = checkpointed(body)

    def hits(number: int) -> Seconds:
        with checkpoint_scope("hits", store=store):
            step(value)
            return _timed(step, value, 1)

    def misses(number: int) -> Seconds:
        with checkpoint_scope(f"misses {number}", store=store):
            return _timed(step, value, 1)

    return Task(
        f"a model of {trees:,} trees as argument",
        [
            Contender(OURS, hits),
            Contender(f"{OURS}, miss", misses),
            Contender("joblib.hash", lambda number: _timed(joblib.hash, value, 1)),
            Contender("pickle.dumps", lambda number: _timed(pickle.dumps, value, 1), limit=True),
        ],
        unit="ms",
    )


TASKS: dict[str, Callable[[Bench], Task]] = {
    **{f"hit_{kind.replace(' ', '_')}": partial(hit, kind) for kind in KINDS},
    **{f"miss_{kind.replace(' ', '_')}": partial(miss, kind) for kind in KINDS},
    "model": model,
}
