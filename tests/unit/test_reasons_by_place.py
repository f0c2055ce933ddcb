"""A call is compared with what stood at its place before, never with another call of the same attempt."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncemore import checkpoint_scope, checkpointed, current_run, events
from tests.processes import Script


@checkpointed
def square(x: int) -> int:
    return x * x


@checkpointed
def clean(record: dict[str, Any]) -> dict[str, Any]:
    return {**record}


@checkpointed
def product(x: int, by: int) -> int:
    return x * by


unit = 1


@checkpointed
def measured(x: int) -> int:
    return x * unit


@checkpointed
def priced(n: int) -> int:
    rate: int = current_run().state.rate
    return n * rate


def _reasons(*attempts: Sequence[Any], step: Any = square) -> list[str]:
    """Why steps ran in the last attempt."""
    new: list[str] = []
    for calls in attempts:
        with checkpoint_scope("r") as run:
            before = max(event.seq for event in run.events())
            for call in calls:
                step(*call) if isinstance(call, tuple) else step(call)
            new = [event.reason for event in run.events(before) if isinstance(event, events.StepCompleted)]
    return new


FIRST = list(range(50))


@pytest.mark.parametrize(
    ("now", "why"),
    {
        "one": ([*FIRST[:33], 330, *FIRST[34:]], ["33 -> 330"]),
        "two": ([*FIRST[:33], 330, 34, 350, *FIRST[36:]], ["33 -> 330", "35 -> 350"]),
        "two neighbors": ([*FIRST[:33], 330, 340, *FIRST[35:]], ["33 -> 330", "34 -> 340"]),
        "after one was removed": ([*FIRST[1:33], 330, *FIRST[34:]], ["33 -> 330"]),
        "after one was added": ([0, 99, *FIRST[1:33], 330, *FIRST[34:]], ["1 -> 99", "33 -> 330"]),
        "the first": ([1000, *FIRST[1:]], ["0 -> 1000"]),
        "the last": ([*FIRST[:-1], 490], ["49 -> 490"]),
        "all": ([x + 100 for x in FIRST], [f"{x} -> {x + 100}" for x in FIRST]),
    }.values(),
)
def test_a_changed_item_of_a_loop_is_compared_with_the_item_that_stood_there(now: list[int], why: list[str]) -> None:
    assert _reasons(FIRST, now) == [f"argument `x`: {change}" for change in why]


def test_an_item_after_the_last_one_is_new() -> None:
    assert _reasons(FIRST, [*FIRST, 50]) == ["new node"]


def test_items_in_another_order_do_not_run() -> None:
    assert _reasons(FIRST, FIRST[::-1]) == []


def test_an_item_changed_again_is_compared_with_the_last_change() -> None:
    edited = [[*FIRST[:33], x, *FIRST[34:]] for x in (33, 330, 3300, 33000)]
    assert _reasons(*edited) == ["argument `x`: 3300 -> 33000"]


def test_a_changed_item_is_named_after_the_code_has_changed() -> None:
    global unit
    try:
        for unit in (1, 2):
            _reasons(FIRST, step=measured)
        assert _reasons([*FIRST[:33], 330, *FIRST[34:]], step=measured) == ["argument `x`: 33 -> 330"]
    finally:
        unit = 1


def test_what_follows_an_inserted_item_is_not_compared_with_the_item_after_next() -> None:
    assert _reasons([1, 2, 3], [1, 99, 2, 3], [1, 99, 5, 3]) == ["new node"]
    # The same, as far as anybody knows: what 330 was compared with is not used.
    assert _reasons(FIRST, [*FIRST[:33], 330, *FIRST[34:]], [*FIRST[:33], 330, 340, *FIRST[35:]]) == ["new node"]


def test_one_field_of_one_record_is_named() -> None:
    records = [{"id": n, "v": n % 7, "w": n * n} for n in range(60)]
    changed = [*records[:40], {**records[40], "v": "new"}, *records[41:]]
    assert _reasons(records, changed, step=clean) == ["argument `record`: ['v']: 5 -> 'new'"]


def test_a_record_that_has_nothing_in_common_with_what_stood_there_is_new() -> None:
    records = [{"id": n, "w": n * n} for n in range(5)]
    assert _reasons(records, [{"id": 99, "w": -1}, *records], step=clean) == ["new node"]


def test_one_of_two_arguments_is_named() -> None:
    pairs = [(x, by) for x in range(6) for by in range(6)]
    assert _reasons(pairs, [*pairs[:20], (3, 77), *pairs[21:]], step=product) == ["argument `by`: 2 -> 77"]


def test_the_place_survives_a_rollback() -> None:
    with checkpoint_scope("r") as run:
        for x in FIRST:
            square(x)
        run.checkpoint("done")
        square(1000)
        run.rollback(to="done")
    assert _reasons([*FIRST[:33], 330, *FIRST[34:]]) == ["argument `x`: 33 -> 330"]


def test_calls_in_threads_are_never_compared_with_one_that_is_used() -> None:
    with checkpoint_scope("r"):
        for x in FIRST:
            square(x)
    with checkpoint_scope("r") as run:
        before = max(event.seq for event in run.events())
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(square, [*FIRST[:33], *FIRST[34:]]))
        square(330)
        (ran,) = [event for event in run.events(before) if isinstance(event, events.StepCompleted)]
    assert ran.reason in ("argument `x`: 33 -> 330", "new node")


IN_WORKERS = """
    import multiprocessing, sys
    from concurrent.futures import ProcessPoolExecutor
    from oncemore import checkpoint_scope, checkpointed, current_run, events

    @checkpointed
    def scaled(record, by):
        return record["n"] * by

    @checkpointed
    def square(n):
        return n * n {edit}

    def pool(kind):
        if kind == "loky":
            from joblib.externals.loky import get_reusable_executor
            return get_reusable_executor(1)
        return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(kind))

    if __name__ == "__main__":
        kind, *numbers = sys.argv[1:]
        with checkpoint_scope("r") as run:
            before = max(event.seq for event in run.events())
            with pool(kind) as workers:
                for n in map(int, numbers):
                    workers.submit(square, n).result()
                    workers.submit(scaled, {{"n": n, "unit": "m"}}, 10).result()
            for event in run.events(before):
                if isinstance(event, events.StepCompleted):
                    print(event.reason.partition(" (")[0])
"""


@pytest.mark.parametrize("kind", ["spawn", "loky", "fork"])
def test_a_worker_never_names_another_call_of_the_same_attempt(script: Script, kind: str) -> None:
    quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
    as_written, edited = IN_WORKERS.format(edit=""), IN_WORKERS.format(edit="+ 0")
    assert script(as_written, kind, "7", "2", "3", env=quiet).lines == ["new node"] * 6
    assert script(as_written, kind, "7", "2", "99", "3", env=quiet).lines == ["new node"] * 2
    assert script(edited, kind, "2", "50", env=quiet).lines == ["code changed", *["new node"] * 2]


def test_a_call_is_new_if_the_other_one_with_its_arguments_is_of_the_same_attempt() -> None:
    for rates in ([1], [1, 2, 3]):
        with checkpoint_scope("r") as run:
            before = max(event.seq for event in run.events())
            for run.state.rate in rates:
                priced(10)
            reasons = [event.reason for event in run.events(before) if isinstance(event, events.StepCompleted)]
    assert reasons == ["state['rate']: 1 -> 2", "new node"]
