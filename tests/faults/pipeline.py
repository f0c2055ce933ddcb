"""A pipeline with steps of every kind, to be killed. It stands alone: tests copy it into a folder and run it there.

Whenever a body begins, `began` leaves a line in the log that `PIPELINE_LOG` names; whenever a step has handed its
result to the caller, `returned` does. After the second, the first must never come again.
"""

import asyncio
import hashlib
import os
import random

import numpy as np

from oncemore import checkpoint_scope, checkpointed, current_run


def began(name, n):
    _write(f"began {name}({n})")


def returned(name, n):
    _write(f"returned {name}({n})")


def _write(line):
    log = os.open(os.environ["PIPELINE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, f"{line}\n".encode())
    os.close(log)


@checkpointed
def tiny(n):
    began("tiny", n)
    return {"n": n, "draw": random.random()}


@checkpointed
def medium(n):
    began("medium", n)
    current_run().state["total"] = current_run().state.get("total", 0) + n
    return random.Random(n).randbytes(200_000)


@checkpointed
def large(n):
    began("large", n)
    return np.random.default_rng(n).random(400_000)


@checkpointed
def inner(n, part):
    began("inner", (n, part))
    return part * b"inner" * 10_000


@checkpointed
def outer(n):
    began("outer", n)
    parts = []
    for part in range(3):
        parts.append(inner(n, part))
        returned("inner", (n, part))
    return b"".join(parts)


@checkpointed
def items(n):
    began("items", n)
    for number in range(12):
        yield random.Random(number).randbytes(150_000)


@checkpointed
async def fetch(n):
    began("fetch", n)
    await asyncio.sleep(0)
    return [n] * 1000


async def gather(n):
    return await asyncio.gather(*(fetch(10 * n + k) for k in range(3)))


def main(store, rounds):
    """The whole pipeline; what it ends with: results, random generator and state."""
    random.seed(7)
    found = hashlib.sha256()
    with checkpoint_scope("pipeline", store=store) as run:
        for n in range(rounds):
            for step in (tiny, medium, large, outer):
                found.update(repr(n).encode() + _bytes(step(n)))
                returned(step.__name__, n)
            for item in items(n):
                found.update(item)
            returned("items", n)
            found.update(_bytes(asyncio.run(gather(n))))
            for k in range(3):
                returned("fetch", 10 * n + k)
        found.update(_bytes((random.random(), dict(run.state))))
    return found.hexdigest()


def _bytes(value):
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return value if isinstance(value, bytes) else repr(value).encode()
