"""Run state: a mapping that a resumed run rebuilds step by step."""

from __future__ import annotations

import array
import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from oncemore import CheckpointWarning, Run, UsageError, checkpoint_scope, checkpointed, current_run
from tests.processes import Script
from tests.unit.again import effects, scope, skipped_alike, twice


def state() -> Any:
    run = current_run()
    assert run is not None
    return run.state


@checkpointed
def put(key: str, value: Any) -> None:
    state()[key] = value


@checkpointed
def get(key: str, default: Any = None) -> Any:
    return state().get(key, default)


@checkpointed
def drop(key: str) -> None:
    del state()[key]


@checkpointed
def append(key: str, value: Any) -> int:
    state()[key].append(value)
    return len(state()[key])


class Broken(Exception):
    pass


# -- a mapping


def test_a_fresh_run_starts_empty() -> None:
    assert scope(lambda run: dict(run.state)).value == {}


def test_a_rerun_starts_empty_too() -> None:
    def body(run: Run) -> dict[str, Any]:
        before = dict(run.state)
        run.state["n"] = 1
        put("m", 2)
        return before

    assert twice(body) == {}


def test_initial_values_are_given_with_the_scope() -> None:
    outcome = scope(lambda run: (run.state["n"], run.state.limit), state={"n": 3, "limit": 0.5})
    assert outcome.value == (3, 0.5)


def test_each_run_has_a_state_of_its_own() -> None:
    scope(lambda run: put("n", 1), "one")
    assert scope(lambda run: dict(run.state), "two").value == {}


def test_keys_are_attributes_too() -> None:
    with checkpoint_scope("run") as run:
        run.state.n = 1
        run.state.n += 1
        assert run.state["n"] == run.state.n == 2
        del run.state.n
        assert "n" not in run.state
        with pytest.raises(AttributeError, match="'n'"):
            run.state.n


def test_it_has_what_a_mapping_has() -> None:
    with checkpoint_scope("run", state={"a": 1}) as run:
        run.state.update(b=2)
        assert (len(run.state), list(run.state), run.state.setdefault("c", 3)) == (2, ["a", "b"], 3)
        assert run.state.pop("a") == 1
        assert run.state == {"b": 2, "c": 3}
        assert repr(run.state) == "State({'b': 2, 'c': 3})"
        with pytest.raises(KeyError):
            run.state["a"]


@pytest.mark.parametrize("name", ["items", "get", "digest", "replace", "_values"])
def test_an_attribute_that_would_not_be_found_again_is_refused(name: str) -> None:
    with checkpoint_scope("run") as run:
        with pytest.raises(AttributeError, match="reserved"):
            setattr(run.state, name, 1)
        if name != "_values":
            run.state[name] = 1
            assert run.state[name] == 1


@pytest.mark.parametrize("key", [1, None, ("a",)])
def test_a_key_that_is_no_string_is_a_type_error(key: Any) -> None:
    with checkpoint_scope("run") as run, pytest.raises(TypeError, match="string"):
        run.state[key] = 1


def test_the_key_that_stands_for_all_keys_is_refused() -> None:
    with checkpoint_scope("run") as run, pytest.raises(UsageError):
        run.state["*"] = 1


# -- what a skipped step applies


def test_a_skipped_step_sets_changes_and_deletes_what_it_had(script: Script) -> None:
    skipped_alike(
        script,
        """
        from oncemore import checkpoint_scope, checkpointed, current_run
        import numpy as np

        @checkpointed
        def work():
            print("RAN work")
            state = current_run().state
            state["new"] = {"deep": [1, (2, {3})]}
            state.rows[0].append("in place")
            state.table["cells"][1][:] = 7
            state.array *= 2
            del state.old
            state.count = state.count + 1

        first = {"rows": [["a"], []], "table": {"cells": [0, np.zeros(3)]}, "array": np.arange(4.0), "old": 1, "count": 0}
        with checkpoint_scope("run", state=first) as run:
            rows, cells, array = run.state.rows, run.state.table["cells"][1], run.state.array
            work()
            print(dict(run.state))
            print(rows is run.state["rows"], rows, cells, array, array is run.state.array)
        """,
    )


def test_an_increment_in_the_script_counts_once_however_often_the_run_is_resumed() -> None:
    def body(run: Run) -> int:
        run.state["n"] = run.state.get("n", 0) + 1
        put("m", 0)
        run.state["n"] += 1
        return run.state["n"]

    assert [scope(body).value for _ in range(4)] == [2, 2, 2, 2]


def test_an_increment_in_a_step_counts_once_however_often_the_run_is_resumed() -> None:
    @checkpointed
    def count() -> None:
        state()["n"] += 1

    def body(run: Run) -> int:
        run.state["n"] = 0
        count()
        run.state["n"] += 1
        return run.state["n"]

    assert [scope(body).value for _ in range(4)] == [2, 2, 2, 2]


def test_a_value_that_the_script_holds_stays_the_value_in_the_state() -> None:
    def body(run: Run) -> Any:
        rows: list[Any] = [[1]]
        inner = rows[0]
        run.state["rows"] = rows
        append("rows", 2)
        assert run.state["rows"] is rows
        assert rows[0] is inner
        return rows

    assert twice(body) == [[1], 2]


def test_an_array_is_changed_in_the_memory_that_the_script_holds() -> None:
    @checkpointed
    def scale() -> None:
        state()["weights"][1:3] *= 10

    def body(run: Run) -> Any:
        weights = np.ones(4)
        run.state["weights"] = weights
        scale()
        return weights.tolist()

    assert twice(body) == [1, 10, 10, 1]


def test_two_keys_that_a_step_made_one_object_are_one_object_again() -> None:
    @checkpointed
    def share() -> None:
        state()["b"] = state()["a"]
        state()["c"] = [state()["a"]]

    def body(run: Run) -> bool:
        run.state["a"] = [1]
        share()
        run.state["a"].append(2)
        return run.state["b"] is run.state["a"] and run.state["c"][0] is run.state["a"]

    assert twice(body) is True


def test_what_is_shared_between_result_and_state_is_shared_again() -> None:
    @checkpointed
    def make() -> list[int]:
        made = [1]
        state()["made"] = made
        return made

    assert twice(lambda run: make() is run.state["made"]) is True


def test_an_argument_put_into_the_state_is_the_callers_object() -> None:
    def body(run: Run) -> bool:
        mine = [1]
        put("mine", mine)
        return run.state["mine"] is mine

    assert twice(body) is True


def test_a_state_value_given_as_argument_and_changed_there_is_changed_once() -> None:
    @checkpointed
    def grow(rows: list[int]) -> None:
        rows.append(1)
        state()["rows"].append(2)

    def body(run: Run) -> list[int]:
        run.state["rows"] = []
        grow(run.state["rows"])
        return run.state["rows"]  # type: ignore[no-any-return]

    assert twice(body) == [1, 2]


def test_a_key_set_to_the_value_it_had_is_set_nonetheless() -> None:
    scope(lambda run: (run.state.update(n=5), put("n", 5)))
    second = scope(lambda run: (run.state.update(n=7), put("n", 5), run.state["n"]))
    assert (second.ran, second.value[-1]) == ({}, 5)


def test_keys_come_back_in_the_order_they_had() -> None:
    @checkpointed
    def shuffle() -> None:
        state().get("z")
        state()["x"] = 1
        state()["z"] = 2
        del state()["a"]
        state()["a"] = 3
        state()["y"] = 4

    def body(run: Run) -> list[str]:
        run.state["a"] = run.state["b"] = 0
        shuffle()
        return list(run.state)

    assert twice(body) == ["b", "x", "z", "a", "y"]


def test_a_key_set_and_deleted_again_leaves_nothing() -> None:
    @checkpointed
    def come_and_go() -> int:
        state()["tmp"] = 1
        del state()["tmp"]
        return 5

    assert twice(lambda run: (come_and_go(), dict(run.state))) == (5, {})


def test_a_step_that_leaves_the_state_alone_records_nothing_of_it() -> None:
    @checkpointed
    def pure(x: int) -> int:
        return x

    def body(run: Run) -> list[str]:
        run.state["big"] = [1]
        pure(1)
        put("n", 1)
        return [*effects(run, "pure"), *effects(run, "put")]

    assert scope(body).value == ["state"]


def test_coroutines_change_the_state_like_functions() -> None:
    @checkpointed
    async def fill(key: str) -> None:
        state()["log"] = [*state().get("log", []), key]
        await asyncio.sleep(0)
        state()[key] = key * 2

    def body(run: Run) -> dict[str, Any]:
        async def both() -> None:
            await fill("a")
            await fill("b")

        asyncio.run(both())
        return dict(run.state)

    assert twice(body) == {"log": ["a", "b"], "a": "aa", "b": "bb"}


def test_tasks_side_by_side_each_have_their_own_reads_and_writes() -> None:
    @checkpointed
    async def one(key: str) -> None:
        state()[key] = 1
        await asyncio.sleep(0.01)
        state()[key] += 1

    def body(run: Run) -> dict[str, Any]:
        async def both() -> None:
            await asyncio.gather(one("a"), one("b"))

        asyncio.run(both())
        return dict(sorted(run.state.items()))

    assert twice(body) == {"a": 2, "b": 2}


def test_a_generator_step_changes_the_state_item_by_item() -> None:
    @checkpointed
    def produce() -> Any:
        state()["made"] = []
        rows = state()["rows"]
        for i in range(3):
            state()["made"].append(i)
            rows.append(-i)
            state()["last"] = i
            yield i
        del state()["last"]

    def body(run: Run) -> list[Any]:
        run.state["rows"] = rows = []
        seen: list[Any] = []
        for item in produce():
            seen.append((item, list(run.state["made"]), list(rows), run.state["last"]))
            run.state["last"] = "mine"
        return [seen, dict(run.state), rows is run.state["rows"]]

    assert twice(body) == [
        [(0, [0], [0], 0), (1, [0, 1], [0, -1], 1), (2, [0, 1, 2], [0, -1, -2], 2)],
        {"rows": [0, -1, -2], "made": [0, 1, 2]},
        True,
    ]


# -- what a step read is part of what its checkpoint depends on


def test_a_step_runs_again_when_a_key_that_it_read_differs_and_the_reason_says_so() -> None:
    def body(threshold: float) -> Any:
        def inside(run: Run) -> Any:
            run.state["threshold"] = threshold
            return get("threshold")

        return inside

    assert scope(body(0.5)).value == 0.5
    second = scope(body(0.7))
    assert second.value == 0.7
    assert second.reasons == {"get": "state['threshold']: 0.5 -> 0.7"}


def test_going_back_to_an_earlier_value_finds_the_earlier_checkpoint() -> None:
    def body(value: int) -> Any:
        return lambda run: (run.state.update(n=value), get("n"))[1]

    assert [scope(body(n)).ran for n in (1, 2, 1, 2, 3)] == [{"get": 1}, {"get": 1}, {}, {}, {"get": 1}]


def test_a_key_that_appears_or_disappears_counts_as_changed() -> None:
    def body(**values: Any) -> Any:
        return lambda run: (run.state.update(values), get("n", "none"))[1]

    assert scope(body()).value == "none"
    second = scope(body(n=1))
    assert (second.value, second.reasons) == (1, {"get": "state['n']: absent -> 1"})
    assert scope(body()).value == "none"


def test_looking_whether_a_key_is_there_is_reading_it() -> None:
    @checkpointed
    def is_there() -> bool:
        return "n" in state()

    assert scope(lambda run: is_there()).value is False
    assert scope(lambda run: (run.state.update(n=1), is_there())[1]).value is True


def test_looking_at_all_keys_is_reading_their_list() -> None:
    @checkpointed
    def names() -> list[str]:
        return list(state())

    assert scope(lambda run: (run.state.update(a=1), names())[1]).value == ["a"]
    second = scope(lambda run: (run.state.update(a=1, b=1), names())[1])
    assert second.value == ["a", "b"]
    assert second.reasons["names"] == "the keys of the state: ['a'] -> ['a', 'b']"


def test_looking_at_all_keys_after_adding_one_is_no_reason_to_run_again() -> None:
    @checkpointed
    def add_and_count() -> int:
        state()["mine"] = 1
        return len(state())

    assert twice(lambda run: (run.state.update(a=1), add_and_count())[1]) == 2


def test_a_key_that_is_not_read_is_no_reason_to_run_again() -> None:
    scope(lambda run: (run.state.update(n=1, other=1), get("n")))
    assert scope(lambda run: (run.state.update(n=1, other=2), get("n"))).ran == {}


def test_what_a_step_set_before_reading_it_is_no_dependency() -> None:
    @checkpointed
    def own() -> int:
        state()["n"] = 10
        return state()["n"]  # type: ignore[no-any-return]

    scope(lambda run: (run.state.update(n=1), own()))
    second = scope(lambda run: (run.state.update(n=2), own(), run.state["n"]))
    assert (second.ran, second.value[-1]) == ({}, 10)


def test_content_counts_deep_inside_and_equal_content_is_equal() -> None:
    def body(rows: Any) -> Any:
        return lambda run: (run.state.update(rows=rows), get("rows"))[1]

    scope(body([{"x": np.arange(3)}]))
    assert scope(body([{"x": np.arange(3)}])).ran == {}
    assert scope(body([{"x": np.arange(4)}])).ran == {"get": 1}


@checkpointed
def inner() -> Any:
    return state()["n"]


@checkpointed
def outer() -> Any:
    return ["outer", inner()]


def test_reads_of_a_step_inside_count_for_the_step_around() -> None:
    assert scope(lambda run: (run.state.update(n=1), outer())[1]).value == ["outer", 1]
    second = scope(lambda run: (run.state.update(n=2), outer())[1])
    assert second.value == ["outer", 2]


def test_reads_of_a_skipped_step_inside_count_for_the_step_around() -> None:
    scope(lambda run: (run.state.update(n=1), inner()))
    assert scope(lambda run: (run.state.update(n=1), outer())).ran == {"outer": 1}
    second = scope(lambda run: (run.state.update(n=2), outer())[1])
    assert (second.value, second.ran) == (["outer", 2], {"outer": 1, "inner": 1})


def test_writes_of_a_skipped_step_inside_are_writes_of_the_step_around() -> None:
    @checkpointed
    def around() -> None:
        put("n", 1)
        append("rows", 2)
        drop("old")

    def body(run: Run) -> dict[str, Any]:
        run.state.update(rows=[1], old=0)
        around()
        return dict(run.state)

    scope(lambda run: (run.state.update(rows=[1], old=0), put("n", 1), append("rows", 2), drop("old")))
    first, second = scope(body), scope(body)
    assert (first.ran, second.ran) == ({"around": 1}, {})
    assert first.value == second.value == {"rows": [1, 2], "n": 1}


def test_what_a_step_inside_set_is_no_dependency_of_the_step_around() -> None:
    @checkpointed
    def around() -> Any:
        put("n", 10)
        return state()["n"]

    scope(lambda run: (run.state.update(n=1), around()))
    assert scope(lambda run: (run.state.update(n=2), around())).ran == {}


# -- failed steps


def test_what_a_failed_step_did_to_the_state_is_rolled_back() -> None:
    @checkpointed
    def spoil() -> None:
        run_state = state()
        run_state["rows"][0].append("bad")
        run_state["array"][:] = -1
        run_state["n"] = 99
        run_state["new"] = 1
        del run_state["old"]
        raise Broken

    def body(run: Run) -> Any:
        rows, numbers = [[1]], np.zeros(2)
        inside = rows[0]
        run.state.update(old=0, rows=rows, n=1, array=numbers)
        with pytest.raises(Broken):
            spoil()
        assert run.state["rows"] is rows
        assert rows[0] is inside
        assert run.state["array"] is numbers
        return [list(run.state), rows, inside, numbers.tolist(), run.state["n"]]

    for _ in range(2):
        assert scope(body).value == [["old", "rows", "n", "array"], [[1]], [1], [0, 0], 1]


def test_a_step_that_catches_a_failed_step_inside_keeps_its_own_changes_only() -> None:
    @checkpointed
    def fails() -> None:
        state()["inside"] = 1
        state()["rows"].append("bad")
        raise Broken

    @checkpointed
    def catches() -> None:
        state()["rows"].append("good")
        try:
            fails()
        except Broken:
            state()["caught"] = True

    def body(run: Run) -> dict[str, Any]:
        run.state["rows"] = []
        catches()
        return dict(run.state)

    assert twice(body) == {"rows": ["good"], "caught": True}


def test_a_key_set_only_by_a_failed_step_inside_is_still_a_dependency_when_it_is_read() -> None:
    @checkpointed
    def sets_and_fails() -> None:
        state()["n"] = 99
        raise Broken

    @checkpointed
    def catches() -> Any:
        try:
            sets_and_fails()
        except Broken:
            pass
        return state()["n"]

    def body(n: int) -> Any:
        return lambda run: (run.state.update(n=n), catches(), run.state["n"])[1:]

    assert scope(body(1)).value == (1, 1)
    assert scope(body(2)).value == (2, 2)


def test_when_the_step_around_fails_too_all_is_rolled_back() -> None:
    @checkpointed
    def around() -> None:
        put("inside", 1)
        append("rows", 2)
        raise Broken

    def body(run: Run) -> dict[str, Any]:
        run.state["rows"] = [1]
        with pytest.raises(Broken):
            around()
        return dict(run.state)

    for _ in range(2):
        assert scope(body).value == {"rows": [1]}


def test_an_interrupted_step_is_rolled_back_like_a_failed_one() -> None:
    @checkpointed
    def interrupted() -> None:
        state()["n"] = 1
        raise KeyboardInterrupt

    def body(run: Run) -> dict[str, Any]:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        return dict(run.state)

    assert scope(body).value == {}


# -- what cannot be kept


def test_a_step_that_read_something_without_identity_runs_each_time_and_says_so() -> None:
    def body(run: Run) -> Any:
        run.state["lock"] = threading.Thread()
        with pytest.warns(CheckpointWarning, match=r"state\['lock'\]"):
            return get("lock") is run.state["lock"]

    assert [scope(body).ran for _ in range(2)] == [{"get": 1}, {"get": 1}]


def test_a_key_that_lost_its_identity_makes_the_step_run_again() -> None:
    assert scope(lambda run: get("x")).value is None

    def body(run: Run) -> Any:
        run.state["x"] = threading.Thread()
        with pytest.warns(CheckpointWarning, match=r"state\['x'\]"):
            return get("x") is run.state["x"]

    assert scope(body).value is True


def test_a_step_that_does_not_read_it_may_run_beside_something_without_identity() -> None:
    def body(run: Run) -> Any:
        run.state["lock"] = threading.Thread()
        put("n", 1)
        return run.state["n"]

    assert twice(body) == 1


class Log:
    lines = 0


def test_a_change_that_cannot_be_made_again_is_told_and_the_step_runs_each_time() -> None:
    @checkpointed
    def write() -> None:
        [log] = state()["logs"]
        log.lines = 1

    def body(run: Run) -> Any:
        run.state["logs"] = frozenset([Log()])
        with pytest.warns(CheckpointWarning, match="state `logs` was changed in place, and a frozenset"):
            write()
        return [log.lines for log in run.state["logs"]]

    assert [scope(body)[:2] for _ in range(2)] == [([1], {"write": 1})] * 2


def test_a_value_set_by_a_step_that_cannot_be_pickled_is_told_and_the_step_runs_each_time() -> None:
    @checkpointed
    def hold() -> None:
        state()["lock"] = threading.Thread()

    def body(run: Run) -> bool:
        with pytest.warns(CheckpointWarning, match="lock"):
            hold()
        return "lock" in run.state

    assert [scope(body)[:2] for _ in range(2)] == [(True, {"hold": 1})] * 2


def test_numbers_of_the_array_module_are_changed_in_place_too() -> None:
    def body(run: Run) -> Any:
        mine = run.state["a"] = array.array("d", [1])
        append("a", 2.5)
        return mine.tolist()

    assert twice(body) == [1, 2.5]
