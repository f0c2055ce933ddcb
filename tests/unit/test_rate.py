"""rate=: how often the calls of a map begin."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tenacity import Retrying, stop_after_attempt, wait_none

from oncemore import UsageError, checkpointed
from tests.processes import Script
from tests.unit.again import scope
from tests.unit.test_retries import attempt

NOW_AND_THEN = "1/h"  # a second call would wait for longer than any test


@checkpointed
def started(n: int) -> float:
    return time.monotonic()


@checkpointed
async def started_later(n: int) -> float:
    return time.monotonic()


def plain(n: int) -> float:
    return time.monotonic()


async def plain_later(n: int) -> float:
    return time.monotonic()


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("step", [started, started_later, plain, plain_later, partial(started), partial(plain)])
def test_calls_begin_evenly_spaced(step: Any, concurrency: int) -> None:
    def body(run: Any) -> list[float]:
        begin = time.monotonic()
        calls = run.map(step, range(4), rate="50/s", concurrency=concurrency)
        results: Any = calls if isinstance(calls, list) else asyncio.run(_awaited(calls))
        return sorted(each - begin for each in results)

    for i, moment in enumerate(scope(body).value):
        assert moment >= i / 50


async def _awaited(calls: Any) -> Any:
    return await calls


@pytest.mark.parametrize("concurrency", [1, 3])
def test_recorded_calls_do_not_count(concurrency: int) -> None:
    scope(lambda run: run.map(started, range(4)))
    found = scope(lambda run: run.map(started, range(5), rate=NOW_AND_THEN, concurrency=concurrency))
    assert found.ran == {"started": 1}


def test_each_map_has_its_own_rate_and_steps_inside_do_not_count() -> None:
    @checkpointed
    def outer(n: int) -> list[float]:
        return [started(10 * n), started(10 * n + 1)]

    def body(run: Any) -> None:
        run.map(outer, [1], rate=NOW_AND_THEN)
        run.map(outer, [2], rate=NOW_AND_THEN)
        run.starmap(outer, [(3,)], rate=NOW_AND_THEN)
        outer(4)

    assert scope(body).ran == {"outer": 4, "started": 8}


def test_another_attempt_is_a_call(tmp_path: Path) -> None:
    @checkpointed(retries=Retrying(stop=stop_after_attempt(3), wait=wait_none()))
    def ask(folder: Path) -> float:
        if attempt(folder) < 3:
            raise OSError("busy")
        return time.monotonic()

    begin = time.monotonic()
    [moment] = scope(lambda run: run.map(ask, [tmp_path], rate="20/s")).value
    assert moment - begin >= 2 / 20


def test_a_call_that_waits_for_its_turn_ends_when_another_fails() -> None:
    @checkpointed
    def fail(n: int) -> None:
        raise ValueError("wrong")

    @checkpointed
    async def fail_later(n: int) -> None:
        raise ValueError("wrong")

    def body(run: Any) -> None:
        with pytest.raises(ValueError, match="wrong"):
            run.map(fail, range(4), rate=NOW_AND_THEN)
        with pytest.raises(ValueError, match="wrong"):
            asyncio.run(_awaited(run.map(fail_later, range(4), rate=NOW_AND_THEN)))

    scope(body)


def test_a_disabled_run_keeps_the_rate(script: Script) -> None:
    done = script(
        """
        import time
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def ask(n):
            return time.monotonic()

        with checkpoint_scope("run") as run:
            begin = time.monotonic()
            print(max(run.map(ask, range(4), rate="50/s")) - begin)
        """,
        env={"ONCEMORE_DISABLE": "1"},
    )
    assert float(done.out) >= 3 / 50


@pytest.mark.parametrize("rate", ["10/s", "600/m", "600/min", "2.5/s", "1/10s", "5/2h"])
def test_ways_to_write_a_rate(rate: str) -> None:
    assert len(scope(lambda run: run.map(started, [1], rate=rate)).value) == 1


@pytest.mark.parametrize(
    "rate", ["", "10", "10/", "/s", "0/s", "-1/s", "inf/s", "nan/s", "10/x", "10/0s", 10, "many/s"]
)
def test_what_is_no_rate_is_refused(rate: Any) -> None:
    with pytest.raises(UsageError, match="is not a rate; use"):
        scope(lambda run: run.map(started, [1], rate=rate))


def test_a_generator_step_has_no_rate() -> None:
    @checkpointed
    def pages(n: int) -> Any:
        yield n

    with pytest.raises(UsageError, match="pages is a generator"):
        scope(lambda run: run.map(pages, [1], rate="1/s"))
