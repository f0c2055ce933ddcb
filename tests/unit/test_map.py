"""run.map: many calls of a step, several at a time."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from functools import partial
from typing import Any

import pytest

from oncemore import Failure, Results, Run, UsageError, checkpoint_scope, checkpointed
from oncemore.events import StepFailed
from tests.processes import Script
from tests.unit.again import scope

WORLD: dict[str, Any] = {}  # what steps here look at; their code counts by version only


@checkpointed(code="version", version="1")
def double(x: int) -> int:
    time.sleep(WORLD.get("pause", {}).get(x, 0))
    while x == WORLD.get("last") and len(WORLD.get("calls", ())) < 4:
        time.sleep(0.001)
    if x in WORLD.get("fails", ()):
        raise ValueError(f"no {x}")
    WORLD.setdefault("calls", []).append(x)
    return 2 * x


@checkpointed(code="version", version="1")
async def double_later(x: int) -> int:
    await asyncio.sleep(WORLD.get("pause", {}).get(x, 0))
    while x == WORLD.get("last") and len(WORLD.get("calls", ())) < 4:
        await asyncio.sleep(0.001)
    if x in WORLD.get("fails", ()):
        raise ValueError(f"no {x}")
    WORLD.setdefault("calls", []).append(x)
    return 2 * x


@pytest.fixture(autouse=True)
def world() -> None:
    WORLD.clear()


def mapped(run: Run, kind: str, items: Any, **options: Any) -> Any:
    """run.map of either kind of step, called as each is called."""
    if kind == "sync":
        return run.map(double, items, **options)

    async def main() -> Any:
        return await run.map(double_later, items, **options)

    return asyncio.run(main())


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
def test_results_come_in_the_order_of_the_items(kind: str) -> None:
    WORLD["last"] = 0  # it waits for the others
    results = scope(lambda run: mapped(run, kind, range(5), concurrency=5)).value
    assert results == [0, 2, 4, 6, 8]
    assert isinstance(results, Results)
    assert results.failures == []
    assert WORLD["calls"][-1] == 0


@both
def test_what_is_done_is_not_done_again(kind: str) -> None:
    first = scope(lambda run: mapped(run, kind, range(4)))
    second = scope(lambda run: mapped(run, kind, range(6)))
    assert sum(first.ran.values()) == 4
    assert sum(second.ran.values()) == 2
    assert second.value == [0, 2, 4, 6, 8, 10]
    assert sorted(WORLD["calls"]) == [0, 1, 2, 3, 4, 5]


def test_so_many_calls_are_under_way_at_once() -> None:
    barrier = threading.Barrier(4, timeout=20)

    @checkpointed(code="version", version="1")
    def meet(x: int) -> int:
        barrier.wait()
        return x

    assert scope(lambda run: run.map(meet, range(8), concurrency=4)).value == list(range(8))


def test_so_many_coroutines_are_under_way_at_once() -> None:
    async def main() -> Any:
        under_way, met = 0, asyncio.Event()

        @checkpointed(code="version", version="1")
        async def meet(x: int) -> int:
            nonlocal under_way
            under_way += 1
            if under_way == 4:
                met.set()
            await asyncio.wait_for(met.wait(), 20)
            return x

        async with checkpoint_scope("run") as run:
            return await run.map(meet, range(8), concurrency=4)

    assert asyncio.run(main()) == list(range(8))


@both
def test_no_more_than_so_many_are_under_way_at_once(kind: str) -> None:
    now, most, guard = [0], [0], threading.Lock()

    def enter() -> None:
        with guard:
            now[0] += 1
            most[0] = max(most[0], now[0])

    @checkpointed(code="version", version="1")
    def sync(x: int) -> None:
        enter()
        time.sleep(0.005)
        now[0] -= 1

    @checkpointed(code="version", version="1")
    async def later(x: int) -> None:
        enter()
        await asyncio.sleep(0.005)
        now[0] -= 1

    async def main(run: Run) -> None:
        await run.map(later, range(9), concurrency=3)

    scope(lambda run: run.map(sync, range(9), concurrency=3) if kind == "sync" else asyncio.run(main(run)))
    assert 1 < most[0] <= 3


@both
def test_failures_are_collected_with_their_items_and_only_they_are_tried_again(kind: str) -> None:
    WORLD["fails"] = {1, 3}
    first = scope(lambda run: mapped(run, kind, range(5), on_error="collect"))
    assert [result for result in first.value if not isinstance(result, Failure)] == [0, 4, 8]
    assert [(failure.index, failure.item, str(failure.error)) for failure in first.value.failures] == [
        (1, 1, "no 1"),
        (3, 3, "no 3"),
    ]
    assert first.value[3] is first.value.failures[1]
    assert len([event for event in first.events if isinstance(event, StepFailed)]) == 2

    WORLD["fails"], WORLD["calls"] = {3}, []
    second = scope(lambda run: mapped(run, kind, range(5), on_error="collect"))
    assert (WORLD["calls"], [failure.item for failure in second.value.failures]) == ([1], [3])

    WORLD["fails"], WORLD["calls"] = (), []
    assert scope(lambda run: mapped(run, kind, range(5), on_error="collect")).value == [0, 2, 4, 6, 8]
    assert WORLD["calls"] == [3]


@both
def test_the_first_failure_is_raised_and_what_has_not_begun_does_not_begin(kind: str) -> None:
    WORLD["fails"] = {2}
    WORLD["pause"] = {x: 0.2 for x in range(3, 50)}

    def body(run: Run) -> None:
        with pytest.raises(ValueError, match="no 2"):
            mapped(run, kind, range(50), concurrency=2)

    scope(body)
    assert {0, 1} & set(WORLD["calls"]) and set(WORLD["calls"]) <= set(range(8))  # 2 begins when one of them is done
    WORLD["fails"], WORLD["calls"], WORLD["pause"] = (), [], {}
    assert scope(lambda run: mapped(run, kind, range(4))).value == [0, 2, 4, 6]
    assert not {0, 1} <= set(WORLD["calls"])


def test_of_several_failures_the_one_of_the_first_item_is_raised() -> None:
    WORLD["fails"] = {0, 1}
    WORLD["pause"] = {0: 0.2, 1: 0.05}

    def body(run: Run) -> None:
        with pytest.raises(ValueError, match="no 0"):
            run.map(double, range(2), concurrency=2)

    scope(body)


def test_items_may_come_from_an_iterator_and_may_be_none_at_all() -> None:
    assert scope(lambda run: run.map(double, iter((1, 2)))).value == [2, 4]
    assert scope(lambda run: run.map(double, [])).value == []


def test_equal_items_are_one_computation() -> None:
    assert scope(lambda run: run.map(double, [7] * 6, concurrency=6)).value == [14] * 6
    assert WORLD["calls"] == [7]


def test_methods_lambdas_and_partials_are_mapped_too() -> None:
    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @checkpointed(code="version", version="1")
        def times(self, x: int) -> int:
            return self.factor * x

    assert scope(lambda run: run.map(Scale(3).times, range(3))).value == [0, 3, 6]
    assert scope(lambda run: run.map(lambda x: double(x) + 1, range(3))).value == [1, 3, 5]


def test_calls_know_their_run_and_its_state() -> None:
    from oncemore import current_run

    @checkpointed(code="version", version="1")
    def note(x: int) -> str:
        run = current_run()
        assert run is not None
        run.state[f"seen {x}"] = x
        return run.id

    def body(run: Run) -> Any:
        assert set(run.map(note, range(3))) == {"run"}
        return dict(sorted(run.state.items()))

    assert [scope(body).value for _ in range(2)] == [{"seen 0": 0, "seen 1": 1, "seen 2": 2}] * 2


def test_items_changed_in_place_are_changed_again() -> None:
    @checkpointed
    def clean(row: dict[str, Any]) -> None:
        row["clean"] = True

    def body(run: Run) -> Any:
        rows: list[dict[str, Any]] = [{"id": i} for i in range(3)]
        run.map(clean, rows)
        return rows

    first, second = scope(body), scope(body)
    assert second.ran == {}
    assert first.value == second.value == [{"id": i, "clean": True} for i in range(3)]


@pytest.mark.parametrize(
    ("options", "said"), [({"concurrency": 0}, "concurrency"), ({"on_error": "ignore"}, "'ignore'")]
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with checkpoint_scope("run") as run, pytest.raises(UsageError, match=said):
        run.map(double, [1], **options)


INTERRUPTED = """
    import asyncio, sys, time
    from oncemore import checkpoint_scope, checkpointed

    slow = {slow}

    @checkpointed(code="version", version="1")
    def work(x):
        sys.stdout.write(f"begun {{x}}\\n")  # in one piece
        time.sleep(0.5 if slow and x > 1 else 0)
        return x

    @checkpointed(code="version", version="1")
    async def work_later(x):
        sys.stdout.write(f"begun {{x}}\\n")  # in one piece
        await asyncio.sleep(0.5 if slow and x > 1 else 0)
        return x

    with checkpoint_scope("run") as run:
        if sys.argv[1] == "sync":
            print(run.map(work, range(12), concurrency=2))
        else:
            async def main():
                print(await run.map(work_later, range(12), concurrency=2))
            asyncio.run(main())
"""


@both
def test_after_ctrl_c_what_was_done_stays_done_and_the_rest_is_done_next_time(script: Script, kind: str) -> None:
    with script.start(INTERRUPTED.format(slow=True), kind) as running:
        running.wait_for("begun 3")
        running.signal(signal.SIGINT)
        stopped = running.finish(timeout=20)
    assert stopped.code in (1, -signal.SIGINT, 130)
    assert "KeyboardInterrupt" in stopped.err
    assert "begun 8" not in stopped.out
    again = script(INTERRUPTED.format(slow=False), kind)
    assert again.lines[-1] == str(list(range(12)))
    assert "begun 0" not in again.lines
    assert "begun 1" not in again.lines


def test_killed_in_the_middle_only_what_was_not_recorded_runs_again(script: Script) -> None:
    script.kill_at("begun 7", INTERRUPTED.format(slow=True), "sync")
    again = script(INTERRUPTED.format(slow=False), "sync")
    assert again.lines[-1] == str(list(range(12)))
    begun = {int(line.split()[1]) for line in again.lines[:-1]}
    assert begun & {0, 1, 2, 3, 4} == set()
    assert begun >= {8, 9, 10, 11}


def test_one_at_a_time_each_call_reads_what_the_one_before_it_changed(script: Script) -> None:
    source = """
        from collections import OrderedDict
        from oncemore import checkpoint_scope, checkpointed

        seen = OrderedDict(a=[])

        @checkpointed
        def note(x):
            print("RAN", x)
            seen.setdefault(x, []).append(sum(map(len, seen.values())))
            return seen[x]

        with checkpoint_scope("run") as run:
            first = note("b")
            print(run.map(note, ["a", "b", "b"], concurrency=1), first is seen["b"], dict(seen))
    """
    ended = "[[1], [0, 2, 3], [0, 2, 3]] True {'a': [1], 'b': [0, 2, 3]}"
    assert script(source).lines == ["RAN b", "RAN a", "RAN b", "RAN b", ended]
    again = script(source)
    assert again.lines == [ended]
    assert "CheckpointWarning" not in again.err


# -- constant and several arguments


@checkpointed(code="version", version="1")
def sum_up(x: int, y: int = 0, *, times: int = 1) -> int:
    if x in WORLD.get("fails", ()):
        raise ValueError(f"no {x}")
    WORLD.setdefault("calls", []).append((x, y, times))
    return (x + y) * times


@checkpointed(code="version", version="1")
async def sum_up_later(x: int, y: int = 0, *, times: int = 1) -> int:
    if x in WORLD.get("fails", ()):
        raise ValueError(f"no {x}")
    WORLD.setdefault("calls", []).append((x, y, times))
    return (x + y) * times


def summed(run: Run, kind: str, verb: str, *arguments: Any, **options: Any) -> Any:
    """run.map or run.starmap of either kind of step."""
    if kind == "sync":
        return getattr(run, verb)(sum_up, *arguments, **options)

    async def main() -> Any:
        return await getattr(run, verb)(sum_up_later, *arguments, **options)

    return asyncio.run(main())


@both
@pytest.mark.parametrize("concurrency", [1, 4])
def test_constants_are_passed_to_every_call_and_count_as_arguments(kind: str, concurrency: int) -> None:
    def main(run: Run, times: int) -> Any:
        return summed(run, kind, "map", [1, 2, 3], times=times, concurrency=concurrency)

    assert scope(lambda run: main(run, 10)).value == [10, 20, 30]
    again = scope(lambda run: main(run, 10))
    assert (again.value, sum(again.ran.values())) == ([10, 20, 30], 0)
    other = scope(lambda run: main(run, 100))
    assert (other.value, sum(other.ran.values())) == ([100, 200, 300], 3)


@both
def test_a_map_over_several_iterables_passes_one_item_of_each(kind: str) -> None:
    def main(run: Run) -> Any:
        return summed(run, kind, "map", [1, 2, 3], iter([10, 20, 30]), times=2)

    assert scope(main).value == [22, 44, 66]
    assert sum(scope(main).ran.values()) == 0


@both
def test_a_starmap_passes_each_tuple(kind: str) -> None:
    def main(run: Run) -> Any:
        return summed(run, kind, "starmap", [(1, 10), [2], (3, 30)], times=2)

    assert scope(main).value == [22, 4, 66]
    assert sum(scope(main).ran.values()) == 0
    assert sorted(WORLD["calls"]) == [(1, 10, 2), (2, 0, 2), (3, 30, 2)]


@both
def test_a_call_is_the_same_whether_mapped_starmapped_or_made_alone(kind: str) -> None:
    scope(lambda run: summed(run, kind, "map", [1, 2], times=3))
    again = scope(lambda run: (summed(run, kind, "starmap", [(1, 0), (2, 0)], times=3), run.ran.copy()))
    assert again.value == ([3, 6], {})


@both
def test_a_failure_among_several_arguments_has_all_of_them(kind: str) -> None:
    WORLD["fails"] = {2}
    results = scope(lambda run: summed(run, kind, "map", [1, 2], [10, 20], on_error="collect")).value
    assert [(each.index, each.item) for each in results.failures] == [(1, (2, 20))]
    results = scope(lambda run: summed(run, kind, "starmap", [(2,)], on_error="collect")).value
    assert [(each.index, each.item) for each in results.failures] == [(0, (2,))]
    results = scope(lambda run: summed(run, kind, "map", [2], times=5, on_error="collect")).value
    assert [(each.index, each.item) for each in results.failures] == [(0, 2)]


def test_iterables_of_different_length_are_refused_before_any_call() -> None:
    with pytest.raises(UsageError, match=r"not 3, 2; shorten the longer ones"):
        scope(lambda run: run.map(sum_up, [1, 2, 3], [1, 2]))
    assert "calls" not in WORLD


def test_a_killed_map_with_constants_goes_on_where_it_was(script: Script) -> None:
    source = """
        import os, sys, time
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def label(text, model, *, strict=False):
            print("ran", text, flush=True)
            if text == "c" and not os.path.exists("go"):
                print("stuck", flush=True)
                time.sleep(600)
            return f"{model}:{text}:{strict}"

        with checkpoint_scope("run") as run:
            print(run.map(label, ["a", "b", "c"], ["x", "y", "z"], strict=True, concurrency=1))
    """
    running = script.start(source)
    running.wait_for("stuck")
    running.kill()
    (script.folder / "go").touch()
    assert script(source).lines == ["ran c", "['x:a:True', 'y:b:True', 'z:c:True']"]


@checkpointed
def labelled(text: str, name: str = "none", *, concurrency: int = 1) -> str:
    return f"{text}/{name}/{concurrency}"


@pytest.mark.parametrize(
    ("verb", "arguments", "option"),
    [
        ("map", ["a", "b"], {"name": "y"}),
        ("starmap", [("a", "x"), ("b",)], {"name": "y"}),
        ("starmap", [("a", "x")], {"concurrency": 8}),
    ],
)
def test_an_option_that_is_also_a_parameter_of_the_step_is_an_error(
    verb: str, arguments: list[Any], option: dict[str, Any]
) -> None:
    (name,) = option
    with checkpoint_scope("r") as run:
        with pytest.raises(UsageError, match=rf"Bind the parameter with functools\.partial\(labelled, {name}=\.\.\.\)"):
            getattr(run, verb)(labelled, arguments, **option)
        bound = partial(labelled, **option)
        first, *_ = getattr(run, verb)(bound, [arguments[0][:1]], **option)  # now it is the option
        assert first == labelled("a", **option)


def test_an_option_is_one_if_each_call_has_the_parameter_of_that_name_from_its_items() -> None:
    with checkpoint_scope("r") as run:
        assert run.map(labelled, ["a"], ["x"], name="shown") == ["a/x/1"]
        assert run.starmap(labelled, [("a", "x"), ("b", "y")], name="shown") == ["a/x/1", "b/y/1"]
