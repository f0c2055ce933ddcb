"""Steps that yield: kept when exhausted, replayed lazily, and nothing of a generator that was left early."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import sys
import tracemalloc
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oncemore import CheckpointWarning, NotRecorded, UsageError, checkpoint_scope, checkpointed, events
from tests.processes import Script

Ran = Callable[[], "list[str]"]

pytestmark = pytest.mark.encrypted_too


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Ran:
    """What was printed since it was last asked: each generator here prints what it is about to yield."""
    return lambda: capsys.readouterr().out.split()


@checkpointed
def count(n: int) -> Generator[int, Any, str]:
    for i in range(n):
        print(i)
        yield i
    return "counted"


@checkpointed
async def count_later(n: int) -> AsyncIterator[int]:
    for i in range(n):
        print(i)
        await asyncio.sleep(0)
        yield i


async def collect(items: Any) -> list[Any]:
    return [item async for item in items]


def returned(items: Generator[Any, Any, Any]) -> Any:
    """What a generator returns."""
    result: list[Any] = []

    def outer() -> Iterator[Any]:
        result.append((yield from items))

    list(outer())
    return result[0]


def test_a_second_process_replays_the_items(script: Script) -> None:
    source = """
        import asyncio
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed
        def rows(n):
            for i in range(n):
                print("ran", i)
                yield {"row": i}
        @checkpointed
        async def pages(n):
            for i in range(n):
                print("ran", i)
                yield [i]
        async def main():
            return [page async for page in pages(2)]
        with checkpoint_scope("items"):
            print(list(rows(3)), asyncio.run(main()))
    """
    first, second = script(source), script(source)
    assert first.out.count("ran") == 5
    assert second.lines == first.lines[-1:] == ["[{'row': 0}, {'row': 1}, {'row': 2}] [[0], [1]]"]


def test_outside_a_scope_it_is_the_generator_itself(ran: Ran) -> None:
    assert (list(count(2)), list(count(2)), asyncio.run(collect(count_later(1)))) == ([0, 1], [0, 1], [0])
    assert ran() == ["0", "1", "0", "1", "0"]


def test_nothing_runs_before_the_first_item_is_asked_for(ran: Ran) -> None:
    with checkpoint_scope("lazy"):
        items = count(3)
        assert ran() == []
        assert next(items) == 0
        assert ran() == ["0"]
        assert next(items) == 1
        assert ran() == ["1"]


def test_a_replay_holds_only_some_of_the_items_in_memory() -> None:
    @checkpointed
    def blocks() -> Iterator[bytes]:
        for i in range(30):
            yield random.Random(i).randbytes(1 << 20)

    with checkpoint_scope("large"):
        for _ in blocks():
            pass
    with checkpoint_scope("large"):
        tracemalloc.start()
        first = next(iter(blocks()))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert first == random.Random(0).randbytes(1 << 20)
    assert peak < 8 << 20


def test_a_partly_consumed_generator_leaves_nothing(ran: Ran) -> None:
    with checkpoint_scope("partly"):
        assert list(itertools.islice(count(3), 2)) == [0, 1]
        assert not count.is_done(3)
    ran()
    with checkpoint_scope("partly"):
        assert list(count(3)) == [0, 1, 2]
    assert ran() == ["0", "1", "2"]


def test_a_partly_consumed_async_generator_leaves_nothing(ran: Ran) -> None:
    async def first() -> int:
        items = count_later(3)
        async for item in items:
            await items.aclose()  # type: ignore[attr-defined]
            return item
        raise AssertionError

    with checkpoint_scope("partly async"):
        assert asyncio.run(first()) == 0
        assert not count_later.is_done(3)
        assert asyncio.run(collect(count_later(3))) == [0, 1, 2]
        assert count_later.is_done(3)
    assert ran() == ["0", "0", "1", "2"]


def test_closing_early_runs_the_generators_own_cleanup(ran: Ran) -> None:
    @checkpointed
    def careful() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            print("closed")

    with checkpoint_scope("closing"):
        items = careful()
        next(items)
        items.close()  # type: ignore[attr-defined]
    assert ran() == ["closed"]


@pytest.mark.parametrize("kept", [False, True], ids=["running", "replayed"])
def test_one_that_is_left_in_a_cycle_is_collected_without_a_word(
    kept: bool, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    @checkpointed
    def watched(n: int) -> Iterator[int]:
        try:
            yield from range(n)
        finally:
            print("closed")

    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with checkpoint_scope("run"):
        if kept:
            list(watched(3))
        items = watched(3)
        cycle: list[Any] = [items, next(items)]
        cycle.append(cycle)
        del items, cycle
        gc.collect()
    assert told == []
    assert ran() == ["closed"]


def test_a_replay_can_be_left_early_and_taken_up_again(ran: Ran) -> None:
    with checkpoint_scope("left"):
        list(count(3))
    ran()
    with checkpoint_scope("left"):
        assert list(itertools.islice(count(3), 1)) == [0]
        assert list(count(3)) == [0, 1, 2]
    assert ran() == []


def test_the_returned_value_comes_back_as_well() -> None:
    for _ in range(2):
        with checkpoint_scope("returned"):
            assert returned(count(2)) == "counted"


def test_a_generator_without_items_is_done_all_the_same(ran: Ran) -> None:
    @checkpointed
    def nothing() -> Iterator[int]:
        print("ran")
        yield from ()

    for _ in range(2):
        with checkpoint_scope("empty"):
            assert list(nothing()) == []
    assert ran() == ["ran"]


def test_none_is_an_item() -> None:
    @checkpointed
    def nones() -> Iterator[None]:
        yield None
        yield None

    for _ in range(2):
        with checkpoint_scope("nones"):
            assert list(nones()) == [None, None]


def test_what_the_consumer_does_to_an_item_never_reaches_the_store() -> None:
    @checkpointed
    def rows() -> Iterator[list[int]]:
        yield [1]
        yield [2]

    for _ in range(3):
        with checkpoint_scope("mutated"):
            seen = []
            for row in rows():
                seen.append(list(row))
                row.append(99)
            assert seen == [[1], [2]]


def test_one_list_that_grows_from_item_to_item_is_kept_as_it_was_each_time() -> None:
    @checkpointed
    def growing() -> Iterator[list[int]]:
        rows: list[int] = []
        for i in range(3):
            rows.append(i)
            yield rows

    for _ in range(2):
        with checkpoint_scope("growing"):
            assert [list(rows) for rows in growing()] == [[0], [0, 1], [0, 1, 2]]


def test_arrays_are_items(ran: Ran) -> None:
    @checkpointed
    def arrays() -> Iterator[Any]:
        print("ran")
        for i in range(3):
            yield np.full((2, 2), i, "f4")

    for _ in range(2):
        with checkpoint_scope("arrays"):
            found = list(arrays())
    assert ran() == ["ran"]
    assert [array.tolist() for array in found] == [[[float(i)] * 2] * 2 for i in range(3)]
    assert {array.dtype.str for array in found} == {"<f4"}


def test_an_exception_leaves_nothing_but_its_record(ran: Ran) -> None:
    error = ValueError("mine")

    @checkpointed
    def failing(path: str) -> Iterator[int]:
        yield 1
        if not Path(path).exists():
            raise error
        yield 2

    with checkpoint_scope("failing") as run:
        with pytest.raises(ValueError) as caught:
            list(failing("go"))
        assert caught.value is error
        (failed,) = [fact for fact in run.events() if isinstance(fact, events.StepFailed)]
        assert failed.error == "ValueError: mine"
        assert "raise error" in failed.traceback
        Path("go").touch()
        assert list(failing("go")) == [1, 2]


def test_an_item_that_cannot_be_kept_is_handed_over_with_one_warning() -> None:
    @checkpointed
    def locks() -> Iterator[Any]:
        yield 1
        yield (i for i in (1, 2))
        yield 3

    with checkpoint_scope("unkept"):
        with pytest.warns(CheckpointWarning, match=r"locks.*generator") as told:
            one, two, three = locks()
        assert (one, list(two), three) == (1, [1, 2], 3)
        assert len(told) == 1
        assert not locks.is_done()


def test_what_is_sent_into_a_generator_makes_it_the_consumers_own(ran: Ran) -> None:
    @checkpointed
    def echo() -> Generator[Any, Any, None]:
        print("ran")
        heard = yield "say"
        yield heard

    for _ in range(2):
        with checkpoint_scope("sent"):
            items = echo()
            assert [next(items), items.send("hello")] == ["say", "hello"]
            assert list(items) == []
            assert not echo.is_done()
    assert ran() == ["ran", "ran"]


def test_nothing_can_be_sent_into_a_replay() -> None:
    with checkpoint_scope("sent later"):
        list(count(2))
        items = count(2)
        next(items)
        with pytest.raises(UsageError, match="replayed"):
            items.send("hello")


def test_what_is_thrown_into_a_generator_arrives_there() -> None:
    @checkpointed
    def catching() -> Generator[Any, Any, None]:
        try:
            yield 1
        except KeyError as error:
            yield error

    with checkpoint_scope("thrown"):
        items, error = catching(), KeyError("mine")
        next(items)
        assert items.throw(error) is error
        assert not catching.is_done()


def test_random_numbers_drawn_between_items_are_the_same_in_a_replay() -> None:
    @checkpointed
    def draws() -> Iterator[float]:
        for _ in range(3):
            yield random.random()

    seen = []
    for _ in range(2):
        random.seed(1)
        with checkpoint_scope("draws"):
            seen.append([(item, random.random()) for item in draws()])
    assert seen[0] == seen[1]


def test_recall_gives_the_items_again(ran: Ran) -> None:
    with checkpoint_scope("recalled"):
        with pytest.raises(NotRecorded):
            count.recall(2)
        list(count(2))
        asyncio.run(collect(count_later(1)))
        ran()
        assert list(count.recall(2)) == [0, 1]
        assert returned(count.recall(2)) == "counted"
        assert asyncio.run(collect(count_later.recall(1))) == [0]
    assert ran() == []


def test_refresh_yields_anew_and_replaces_what_was_kept(ran: Ran) -> None:
    @checkpointed
    def lines() -> Iterator[str]:
        print("ran")
        yield from Path("lines").read_text().split()

    with checkpoint_scope("fresh"):
        Path("lines").write_text("a b c")
        assert list(lines()) == ["a", "b", "c"]
        Path("lines").write_text("d")
        with pytest.warns(match="file lines has changed"):
            assert list(lines()) == ["a", "b", "c"]
        assert list(lines.refresh()) == ["d"]
        assert list(lines()) == ["d"]
        assert lines.forget()
        assert list(lines()) == ["d"]
    assert ran() == ["ran"] * 3


def test_other_arguments_are_other_items(ran: Ran) -> None:
    with checkpoint_scope("other"):
        assert [list(count(1)), list(count(2)), list(count(1))] == [[0], [0, 1], [0]]
    assert ran() == ["0", "0", "1"]


def test_many_items_in_many_chunks_come_back_in_order() -> None:
    @checkpointed
    def blocks() -> Iterator[bytes]:
        rng = random.Random(1)
        for _ in range(30):
            yield rng.randbytes(200_000)

    with checkpoint_scope("chunks"):
        first = list(blocks())
        assert list(blocks()) == first
        assert len(first) == 30


def test_a_generator_that_was_never_started_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with checkpoint_scope("unstarted"):
            count(3)
            assert not count.is_done(3)


def test_an_instances_generator_method_is_a_step(ran: Ran) -> None:
    class Table:
        def __init__(self, rows: list[int]) -> None:
            self.rows = rows

        @checkpointed
        def each(self) -> Iterator[int]:
            print("ran")
            yield from self.rows

    for _ in range(2):
        with checkpoint_scope("method"):
            assert [*Table([1, 2]).each(), *Table([3]).each()] == [1, 2, 3]
    assert ran() == ["ran", "ran"]


def test_a_global_that_it_binds_anew_between_items_is_followed_when_it_is_replayed(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        rows = {"old": [0]}

        @checkpointed
        def fill():
            global rows
            print("RAN")
            rows = [["new"]]
            yield 1
            rows[0].append(2)
            yield 2
            rows.append(rows[0])

        with checkpoint_scope("run"):
            print(list(fill()), rows, rows[0] is rows[1])
    """
    ended = "[1, 2] [['new', 2], ['new', 2]] True"
    assert script(source).lines == ["RAN", ended]
    assert script(source).lines == [ended]


def test_one_that_sets_a_context_variable_between_items_and_changes_an_argument_is_replayed(script: Script) -> None:
    source = """
        from contextvars import ContextVar
        from oncemore import checkpoint_scope, checkpointed

        level = ContextVar("level", default=3)

        @checkpointed
        def steps(n, items):
            print("RAN")
            yield level.get()
            level.set([n])
            yield 2
            items.append(n)
            yield 3

        items = []
        with checkpoint_scope("run"):
            print(list(steps(7, items)), level.get(), items)
    """
    ended = "[3, 2, 3] [7] [7]"
    assert script(source).lines == ["RAN", ended]
    assert script(source).lines == [ended]


def test_another_seed_counts_for_one_that_draws_after_its_first_item(ran: Ran) -> None:
    @checkpointed
    def draws() -> Iterator[float]:
        print("ran")
        yield 0
        yield random.random()

    found = []
    for seed in (1, 1, 2):
        random.seed(seed)
        with checkpoint_scope("run"):
            found.append([*draws(), random.random()])
    expected = [random.Random(seed) for seed in (1, 1, 2)]
    assert found == [[0, each.random(), each.random()] for each in expected]
    assert ran() == ["ran", "ran"]
