"""Names of any length and alphabet: every key fits into every store, and listings give the names back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncemore import History, checkpoint_scope, checkpointed, open_store
from oncemore.keys import in_key, record_key, run_id_of

STORE = "store"
IDS = ["😀" * 200, "日本語" * 60, "%/@#! $=+" * 22, "é" * 200, "a b", "x" * 200]


@checkpointed(name="n" * 3000)
def long_name(n: int) -> int:
    return n


@checkpointed(name="n" * 2999 + "m")
def another_long_name(n: int) -> int:
    return -n


@checkpointed(name="名前" * 500, outputs=["out.bin"])
def writes(n: int) -> None:
    Path("out.bin").write_bytes(os.urandom(100))


@checkpointed(name="😀 " * 600)
def items(n: int) -> Iterator[int]:
    yield from range(n)


def everything() -> list[Any]:
    with checkpoint_scope(IDS[0], store=STORE) as run:
        found = [long_name(1), another_long_name(1), writes(1), list(items(3))]
        for outer in run.loop("o" * 1500, range(2)):
            found += [(outer, inner) for inner in run.loop("é" * 1500, range(2))]
        run.checkpoint("c" * 3000)
        return [*found, sum(run.ran.values())]


def test_every_key_of_a_run_with_long_names_fits_into_every_store() -> None:
    assert everything()[:4] == [1, -1, None, [0, 1, 2]]
    assert everything()[-1] == 0
    assert max(len(key.encode()) for key, _ in open_store(STORE).scan("", most=0)) <= 1024


@pytest.mark.parametrize("run_id", IDS)
def test_a_run_is_listed_under_its_id_whatever_it_is(run_id: str) -> None:
    with checkpoint_scope(run_id, store=STORE):
        long_name(2)
    assert [run.id for run in History(STORE).runs()] == [run_id]
    assert History(STORE).run_ids(run_id[:1]) == [run_id]
    assert run_id_of(record_key(run_id)) == run_id
    assert len(record_key(run_id).encode()) <= 900


def test_names_that_differ_only_at_the_end_have_keys_of_their_own() -> None:
    keys = {in_key("n" * length, 500) for length in range(400, 700)}
    assert len(keys) == 300
    assert max(map(len, keys)) <= 500
