"""Beside a million events and a hundred thousand checkpoints of others, one run costs what it holds, in rows read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncemore import History, checkpoint_scope, checkpointed
from oncemore.keys import record_key
from oncemore.records import Record, sealed
from oncemore.retention import keep_last
from oncemore.stores import open_store
from tests.unit.pasts import Counting, both, store_url

BATCH = 20_000


@checkpointed
def work(n: int) -> int:
    return n


def neighbours(store: Any, events: int) -> None:
    """Other runs, written straight into the store: a tenth as many checkpoints as events, a run for every hundred of those."""
    opened = open_store(store)
    runs = [Record.new("neighbour") for _ in range(max(1, events // 1000))]
    each = events // len(runs)
    put: dict[str, list[bytes]] = {}
    for prefix, count, size in (("event", each, 60), ("node", each // 10, 120)):
        for record in sorted(runs, key=lambda record: record.uid):
            for number in range(1, count + 1):
                put[f"{prefix}/{record.uid}/{number:016x}"] = [bytes(size)]
            if len(put) > BATCH:
                opened.commit(put=put)
                put = {}
    for number, record in enumerate(runs):
        record.ending, record.attempts = "finished", 1
        put[record_key(f"neighbour-{number}")] = sealed(record_key(f"neighbour-{number}"), record)
    opened.commit(put=put)


def made(store: Any, size: int) -> None:
    with checkpoint_scope("mine", store=store) as run:
        for n in range(size):
            work(n)
            if n % 10 == 9:
                run.state["n"] = n
                run.checkpoint("tenth")


def rows(store: Any, deed: Callable[[History], object]) -> int:
    counting = Counting(store)
    deed(History(counting))
    return counting.rows


DEEDS: dict[str, Callable[[History], object]] = {
    "open and list": lambda h: list(h.run("mine").checkpoints),
    "latest": lambda h: h.run("mine").checkpoints.latest(),
    "latest of a name": lambda h: h.run("mine").checkpoints.latest("tenth"),
    "since": lambda h: h.run("mine").checkpoints.since(0),
    "events": lambda h: list(h.run("mine").events()),
    "summary": lambda h: h.run("mine").summary(),
    "rollback": lambda h: h.rollback("mine", to="tenth"),
    "undo": lambda h: h.undo_rollback("mine"),
    "fork": lambda h: h.fork("mine", "child", at="tenth"),
    "prune beside a fork": lambda h: h.prune(keep_last(5), runs=["mine"]),
    "delete the fork": lambda h: h.delete("child"),
    "prune": lambda h: h.prune(keep_last(5), runs=["mine"]),
    "delete": lambda h: h.delete("mine"),
}


def measured(store: Any, size: int) -> dict[str, int]:
    made(store, size)
    return {name: rows(store, deed) for name, deed in DEEDS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", both)
def test_a_run_costs_what_it_holds_whatever_else_is_in_the_store(
    kind: str, campaign: Callable[[int, int], int]
) -> None:
    neighbours(store_url(kind, "alone"), 1000)
    alone = measured(store_url(kind, "alone"), 50)
    neighbours(store_url(kind, "crowded"), campaign(1_000_000, 50_000))
    crowded = measured(store_url(kind, "crowded"), 50)
    assert crowded == alone


@pytest.mark.parametrize("kind", both)
def test_it_grows_no_faster_than_the_run(kind: str) -> None:
    small, large = measured(store_url(kind, "small"), 30), measured(store_url(kind, "large"), 120)
    assert {name: count for name, count in large.items() if count > 4 * small[name] + 10} == {}


@pytest.mark.parametrize("kind", both)
def test_events_since_a_number_reads_only_those(kind: str) -> None:
    made(store_url(kind), 40)
    last = len(list(History(store_url(kind)).run("mine").events()))
    few = rows(store_url(kind), lambda h: list(h.run("mine").events(since=last - 3)))
    assert few <= 3 + 6  # the record, and how the store is signed and encrypted


@pytest.mark.parametrize("kind", both)
def test_named_checkpoints_do_not_cost_more_the_more_there_are(kind: str) -> None:
    counting = Counting(store_url(kind))
    costs = []
    with checkpoint_scope("mine", store=counting) as run:
        for n in range(120):
            before = counting.rows
            run.state["n"] = n
            run.checkpoint("tick")
            costs.append(counting.rows - before)
    assert max(costs[80:]) <= max(costs[10:40])
