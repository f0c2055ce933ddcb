"""Steps that run side by side and change the same data: a resumed run runs nothing twice and ends with every change once."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncemore import Run, checkpoint_scope, checkpointed, events

ITEMS = 20
usage: Counter[str] = Counter()
results: list[int] = []
table: dict[str, Any] = {"n": 0, "rows": []}
groups: dict[str, list[int]] = {}
stats: defaultdict[str, dict[str, Any]] = defaultdict(dict)
total = 0
lock = threading.Lock()
begun, go_on = threading.Event(), threading.Event()
executed = threading.local()
PREFIX = "words"


def collect(x: int) -> None:
    global total
    if x >= int(os.environ.get("FAIL_FROM", ITEMS)):
        raise ConnectionError(x)
    with lock:
        usage["tokens"] += x
        usage["calls"] += 1
        total += x
        table["n"] += 1
        table["rows"].append({"x": x})
        results.append(x)


@checkpointed
def ask(x: int) -> str:
    collect(x)
    return f"{PREFIX} {x}"


@checkpointed
async def ask_later(x: int) -> str:
    await asyncio.sleep(0)
    collect(x)
    await asyncio.sleep(0)
    return f"{PREFIX} {x}"


@checkpointed
def draw(x: int) -> float:
    return random.random()


@checkpointed
def sort_out(x: int) -> int:
    if x == 0:
        begun.set()
        go_on.wait()
    kind = "even" if x % 2 == 0 else "odd"
    groups.setdefault(kind, []).append(x)
    stats[kind]["n"] = stats[kind].get("n", 0) + 1
    stats[kind].setdefault("seen", set()).add(x)
    return x


@checkpointed
def finish(x: int) -> None:
    if x == 0:
        go_on.wait()  # until 1 has ended and 2 has begun
    results.append(x)
    if x == 2:
        go_on.set()


@checkpointed
def summary() -> list[int]:
    return list(results)


def begin() -> None:
    """As a new process would."""
    global total
    groups.clear()
    begun.clear()
    go_on.clear()
    stats.clear()
    usage.clear()
    results.clear()
    table.clear()
    table.update(n=0, rows=[])
    total = 0


def with_map(run: Run) -> Any:
    return run.map(ask, range(ITEMS), on_error="collect")


def with_coroutines(run: Run) -> Any:
    return asyncio.run(run.map(ask_later, range(ITEMS), on_error="collect"))  # type: ignore[arg-type]


def with_a_pool(run: Run) -> Any:
    def one(x: int) -> Any:
        try:
            return ask(x)
        except ConnectionError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, range(ITEMS)))


WAYS = pytest.mark.parametrize("way", [with_map, with_coroutines, with_a_pool], ids=lambda way: way.__name__)


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
@WAYS
def test_a_resumed_map_runs_what_is_missing_and_ends_with_every_change_once(
    way: Callable[[Run], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = [(7, 7), (13, 6), (ITEMS, ITEMS - 13), (ITEMS, 0)]
    if way is with_a_pool:  # only a map brings back what is kept before anything runs: see surroundings.md
        attempts = [(ITEMS, ITEMS), (ITEMS, 0)]
    for fail_from, runs in attempts:
        monkeypatch.setenv("FAIL_FROM", str(fail_from))
        begin()
        with checkpoint_scope("side by side", store="store") as run:
            found = way(run)
        assert sum(run.ran.values()) == runs
        assert found[:fail_from] == [f"words {x}" for x in range(fail_from)]
        assert sorted(results) == list(range(fail_from))
        assert (usage, total) == (Counter(tokens=sum(range(fail_from)), calls=fail_from), sum(range(fail_from)))
        assert table["n"] == fail_from
        assert sorted(row["x"] for row in table["rows"]) == list(range(fail_from))


@WAYS
def test_what_the_script_changes_before_a_map_counts(
    way: Callable[[Run], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin()
    with checkpoint_scope("side by side", store="store") as run:
        way(run)
        monkeypatch.setitem(globals(), "PREFIX", "other words")
        assert way(run) == [f"other words {x}" for x in range(ITEMS)]
        results.append(-1)
        way(run)
    assert sum(run.ran.values()) == 3 * ITEMS


def test_another_seed_runs_a_map_that_draws_again() -> None:
    for seed, runs in ((1, 8), (1, 0), (2, 8), (1, 0)):
        random.seed(seed)
        with checkpoint_scope("draws", store="store") as run:
            run.map(draw, range(8))
        assert run.ran["draw"] == runs


def test_what_draws_after_a_map_that_draws_is_found_again() -> None:
    found = []
    for _ in range(2):
        random.seed(1)
        with checkpoint_scope("draws", store="store") as run:
            run.map(draw, range(8))
            found.append((draw(-1), random.random()))
    assert (run.ran, found[0]) == ({}, found[1])


MANY = 8
gates = {x: threading.Event() for x in range(MANY)}


def take_turn(x: int) -> None:
    """Append when it is one's turn, in the order that the environment has; who is not in it fails."""
    order = [int(each) for each in os.environ["ORDER"].split()]
    if x not in order:
        raise ConnectionError(x)
    table["rows"].append({"x": x})
    table[f"after {x}"] = [*results]
    results.append(x)
    after = order[order.index(x) + 1 :]
    if after:
        gates[after[0]].set()


@checkpointed
def in_turn(x: int) -> int:
    gates[x].wait(30)
    take_turn(x)
    return x


@checkpointed
async def in_turn_later(x: int) -> int:
    while not gates[x].is_set():
        await asyncio.sleep(0)
    take_turn(x)
    return x


@checkpointed
def everything() -> Any:
    return list(results), str(table)


@pytest.mark.parametrize("kind", ["threads", "coroutines", "a partial"])
def test_a_resumed_map_changes_globals_in_the_order_in_which_its_steps_ended(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: Any = {"threads": in_turn, "coroutines": in_turn_later, "a partial": functools.partial(in_turn)}[kind]
    ended: list[int] = []
    for order, runs in (([5, 2, 7], 3), ([6, 0, 4, 3, 1], 5), ([], 0), ([], 0)):
        monkeypatch.setenv("ORDER", " ".join(map(str, order)))
        for x, gate in gates.items():
            (gate.clear if x in order[1:] else gate.set)()
        begin()
        with checkpoint_scope("in turn", store="store") as run:
            calls = run.map(mapped, range(MANY), on_error="collect")
            found = asyncio.run(calls) if kind == "coroutines" else calls
            assert everything() == (list(results), str(table))
        ended += order
        assert results == ended
        assert table == {
            "n": 0,
            "rows": [{"x": x} for x in ended],
            **{f"after {x}": ended[: ended.index(x)] for x in ended},
        }
        assert [each for each in found if isinstance(each, int)] == sorted(ended)
        assert run.ran.total() == runs + (1 if order else 0)


def test_a_resumed_map_leaves_shared_data_as_it_was_and_what_reads_it_is_found_again() -> None:
    found = []
    for runs in ({"finish": 3, "summary": 1}, {}):
        begin()
        with checkpoint_scope("map", store="store") as run:
            run.map(finish, [0, 1, 2], concurrency=2)
            found.append(summary())
        assert run.ran == runs
    assert found[0] == found[1]
    assert found[0][0] == 1


@pytest.mark.parametrize("order", [(0, 1, 2, 4), (4, 2, 1, 0), (2, 0, 4, 1)], ids=str)
def test_what_is_inside_shared_data_is_found_again_in_whatever_order_they_are_skipped(order: tuple[int, ...]) -> None:
    begin()
    with checkpoint_scope("groups", store="store") as run, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(sort_out, 0)  # ends last, and finds the groups that the others have made
        begun.wait()
        for x in (2, 1, 4):
            pool.submit(sort_out, x).result()
        go_on.set()
        slow.result()
    assert (groups, run.ran["sort_out"]) == ({"even": [2, 4, 0], "odd": [1]}, 4)
    begin()
    with checkpoint_scope("groups", store="store") as run, ThreadPoolExecutor(2) as pool:
        for x in order:
            assert pool.submit(sort_out, x).result() == x
    assert run.ran == {}
    assert {kind: sorted(found) for kind, found in groups.items()} == {"even": [0, 2, 4], "odd": [1]}
    assert stats == {"even": {"n": 3, "seen": {0, 2, 4}}, "odd": {"n": 1, "seen": {1}}}


@checkpointed
def inner() -> int:
    return len(results)


@checkpointed
def outer() -> int:
    results.append(1)
    return inner()


@checkpointed
def beside_others(x: int) -> int:
    return x + len(results)


def test_a_map_after_a_step_with_steps_inside_is_found_again_when_that_is_skipped() -> None:
    for runs in ({"outer": 1, "inner": 1, "beside_others": 3}, {}):
        begin()
        with checkpoint_scope("after", store="store") as run:
            outer()
            assert run.map(beside_others, range(3), concurrency=2) == [1, 2, 3]
        assert run.ran == runs


@checkpointed
def the_list(x: int) -> list[int]:
    results.append(x)
    return results


@checkpointed
def its_own(x: int) -> list[int]:
    groups[str(x)] = [x]
    return groups[str(x)]


def test_what_a_step_of_a_map_returns_of_shared_data_is_that_data_when_it_is_skipped() -> None:
    for runs in ({"the_list": 3, "its_own": 1}, {}):
        begin()
        with checkpoint_scope("returned", store="store") as run:
            assert all(found is results for found in run.map(the_list, range(3), concurrency=2))
            [found] = run.map(its_own, [7], concurrency=2)
        assert (found is groups["7"], found, run.ran) == (True, [7], runs)


rows: list[dict[str, int]] = []
models: dict[str, Any] = {"old": [1]}


@checkpointed
def returned_late(x: int) -> Any:
    """The second call ends between what the first one changes and its end: then that belongs to the second."""
    if x:
        begun.wait()
    row = {"x": x}
    rows.append(row)
    models[str(x)] = [x]
    if not x:
        begun.set()
        go_on.wait()
    models[f"row {x}"] = row
    return row, models[str(x)], models["old"]


def test_it_is_that_data_also_if_the_change_was_recorded_with_another_step() -> None:
    for runs in ({"returned_late": 2}, {}):
        begin()
        rows.clear()
        models.clear()
        models["old"] = [1]
        with checkpoint_scope("late", store="store") as run:
            threading.Timer(0.5, go_on.set).start()
            found = run.map(returned_late, [0, 1], concurrency=2)
        assert run.ran == runs
        assert sorted(rows, key=lambda row: row["x"]) == [{"x": 0}, {"x": 1}]
        for x, (row, model, old) in enumerate(found):
            assert any(row is each for each in rows) and row is models[f"row {x}"]
            assert (model is models[str(x)], old is models["old"]) == (True, True)


@checkpointed
def put(row: dict[str, int]) -> None:
    rows.append(row)


def test_it_is_the_same_element_also_if_an_earlier_step_adds_an_equal_one_now() -> None:
    for before in ([], [{"x": 7}], [{"x": 1}]):
        begin()
        rows.clear()
        models.clear()
        models["old"] = [1]
        begun.set()
        with checkpoint_scope("equal rows", store="store") as run:
            run.map(put, before, concurrency=2)
            [(row, model, _)] = run.map(returned_late, [1], concurrency=2)
        assert (row, row is rows[-1], model is models["1"]) == ({"x": 1}, True, True)
        assert run.ran["returned_late"] == (not before)


@checkpointed
def count_up(x: int) -> int:
    """The last call ends first, when all have made their changes: these belong to it."""
    results.append(x)
    usage["n"] += x
    if x < 3:
        begun.wait()
    for _ in range(2000):  # two seconds
        if len(results) < 3:
            time.sleep(0.001)
    begun.set()
    return x


def test_a_step_whose_changes_were_recorded_with_another_runs_again_if_that_is_not_skipped() -> None:
    for items, runs in (([1, 2, 3], 3), ([1, 2, 3], 0), ([3, 2, 1, 4], 1), ([1, 2, 5], 3), ([1, 2, 5], 0)):
        begin()
        with checkpoint_scope("parted", store="store") as run:
            assert run.map(count_up, items, concurrency=3) == items
        assert (sorted(results), usage["n"], run.ran.total()) == (sorted(items), sum(items), runs)
    with checkpoint_scope("parted", store="store") as run:
        pass
    reasons = {each.reason for each in run.events() if isinstance(each, events.StepCompleted)}
    assert any("recorded with a step that ran at the same time" in each for each in reasons)


phase: Any = 0


@checkpointed
def append_one(x: int) -> int:
    results.append(x)
    return x


@checkpointed
def pass_through_phases(name_is_deleted: bool) -> None:
    global phase
    if name_is_deleted:
        del phase
    else:
        phase += 1
    begun.set()
    go_on.wait()
    phase = "done"


@pytest.mark.parametrize("name_is_deleted", [True, False])
def test_a_global_bound_again_after_another_step_was_skipped_has_its_last_value(name_is_deleted: bool) -> None:
    global phase
    for attempt, ran in enumerate(({"append_one": 1}, {"pass_through_phases": 1}, {})):
        begin()
        phase = 0
        with checkpoint_scope("phases", store="store") as run, ThreadPoolExecutor(2) as pool:
            if attempt:
                passing = pool.submit(pass_through_phases, name_is_deleted)
                assert attempt == 2 or begun.wait(10)
            pool.submit(append_one, 1).result()
            go_on.set()
            if attempt:
                passing.result()
                assert phase == "done"
        assert (run.ran, results) == (ran, [1])
