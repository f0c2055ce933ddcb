"""One object in several places: an argument that is in the state, too, or a value under two keys."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from oncemore import CheckpointWarning, Run, StoreError, checkpointed, current_run, surroundings
from oncemore.surroundings.references import walk_from
from tests.unit.again import scope, twice


def state() -> Any:
    run = current_run()
    assert run is not None
    return run.state


class Broken(Exception):
    pass


# -- what a step depends on is what was there when it began


def test_an_argument_changed_before_it_is_looked_at_in_the_state_is_no_reason_to_run_again() -> None:
    @checkpointed
    def change_and_look(rows: list[Any]) -> int:
        rows.append([3])
        return len(state()["table"]["deep"])

    def body(run: Run) -> Any:
        rows = [[1]]
        run.state["table"] = {"deep": rows}
        return change_and_look(rows), rows, run.state["table"]["deep"] is rows

    assert twice(body) == (2, [[1], [3]], True)


def test_a_value_under_two_keys_changed_through_one_and_read_through_the_other_is_no_reason_to_run_again() -> None:
    @checkpointed
    def change_and_look() -> int:
        state()["a"].append(2)
        return len(state()["b"]["inside"])

    def body(run: Run) -> Any:
        run.state["a"] = rows = [1]
        run.state["b"] = {"inside": rows}
        return change_and_look(), rows

    assert twice(body) == (2, [1, 2])


@pytest.mark.parametrize("rows", [[], list(range(1000))], ids=["small", "large"])
@pytest.mark.parametrize("first", ["an argument", "an argument that contains it", "another key"])
def test_a_value_of_any_size_that_was_changed_by_another_name_and_then_read_is_no_reason_to_run_again(
    first: str, rows: list[int]
) -> None:
    @checkpointed
    def change_and_look(given: Any) -> Any:
        changed = state()["same"] if first == "another key" else given[0] if "contains" in first else given
        changed.append(1)
        return state()["rows"]

    def body(run: Run) -> Any:
        run.state["rows"] = run.state["same"] = mine = list(rows)
        given = {"an argument": mine, "another key": None}.get(first, [mine])
        return change_and_look(given) is mine is run.state["rows"] is run.state["same"], mine

    assert twice(body) == (True, [*rows, 1])


def test_a_value_that_contains_itself_is_no_large_one() -> None:
    @checkpointed
    def change_and_look(rows: list[Any]) -> int:
        rows.append(1)
        return len(state()["table"]["rows"])

    def body(run: Run) -> Any:
        rows: list[Any] = []
        rows.append(rows)
        run.state["table"] = {"rows": rows}
        return change_and_look(rows), len(rows), rows[0] is rows is run.state["table"]["rows"]

    assert twice(body) == (2, 2, True)


@pytest.mark.parametrize("first", ["an argument", "another key"])
def test_a_large_value_that_was_changed_by_another_name_before_is_told(first: str) -> None:
    @checkpointed
    def change_and_look(rows: list[Any]) -> int:
        (rows if first == "an argument" else state()["rows"]).append(1)
        return len(state()["table"]["deep"])

    @checkpointed
    def look_and_change(rows: list[Any]) -> int:
        table = state()["table"]
        (rows if first == "an argument" else state()["rows"]).append(1)
        return len(table["deep"])

    @checkpointed
    def look_elsewhere(rows: list[Any]) -> int:
        rows.append(1)
        return len(state()["other"])

    def body(step: Any) -> Any:
        def inside(run: Run) -> Any:
            rows = [0]
            run.state.update(other=list(range(1000)), rows=rows, table={"deep": rows, "more": list(range(1000))})
            return step(rows if first == "an argument" or step is look_elsewhere else []), rows

        return inside

    assert twice(body(look_and_change), run_id="right") == (2, [0, 1])
    assert twice(body(look_elsewhere), run_id="elsewhere") == (1000, [0, 1])
    name = "argument `rows`" if first == "an argument" else "state `rows`"
    for _ in range(2):
        with pytest.warns(
            CheckpointWarning, match=f"{name} shares an object with state.'table'., and was changed before"
        ):
            assert scope(body(change_and_look)).value == (2, [0, 1])


def test_a_step_with_a_mutable_argument_does_not_look_through_a_large_value_that_it_leaves_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walked: list[Any] = []
    monkeypatch.setattr(surroundings.state, "walk_from", lambda value: walked.append(value) or walk_from(value))

    @checkpointed(code="version", version="1")
    def change(rows: list[int]) -> None:
        rows.append(1)

    def body(run: Run) -> Any:
        run.state.update(large=[[row] for row in range(1000)], small=[[1], [2]])
        rows = [0]
        change(rows)
        return rows, walked == [run.state["small"]]

    assert scope(body).value == ([0, 1], True)


def test_keys_that_share_objects_may_be_looked_at_in_any_order() -> None:
    @checkpointed
    def look(rows: list[int], order: list[str]) -> list[Any]:
        rows.append(2)
        for key in order:
            state()[key]["mine"].append(key)
        return [state()[key]["mine"] for key in order]

    def body(run: Run) -> Any:
        rows, own = [1], ["own"]
        for key in ("a", "b", "c"):
            run.state[key] = {"rows": rows, "mine": own}
        found = look(rows, ["c", "a", "b"])
        return rows, own, all(each is own for each in found)

    assert twice(body) == ([1, 2], ["own", "c", "a", "b"], True)


def test_a_key_that_was_not_read_is_no_reason_to_run_again_although_it_shares_objects_with_an_argument() -> None:
    @checkpointed
    def grow(rows: list[int]) -> None:
        rows.append(2)

    def body(other: Any) -> Any:
        def inside(run: Run) -> Any:
            rows = [1]
            run.state["table"] = {"rows": rows, "other": other}
            grow(rows)
            return run.state["table"]

        return inside

    assert scope(body(1)).value == {"rows": [1, 2], "other": 1}
    second = scope(body([[2]]))
    assert (second.ran, second.value) == ({}, {"rows": [1, 2], "other": [[2]]})


def test_state_that_differs_is_a_reason_to_run_again_although_it_is_an_argument_too() -> None:
    @checkpointed
    def look(rows: list[int]) -> Any:
        rows.append(0)
        return state()["table"]["n"]

    def body(n: int) -> Any:
        rows = [1]
        return lambda run: (run.state.update(table={"rows": rows, "n": n}), look(rows))[1]

    assert scope(body(1)).value == 1
    second = scope(body(2))
    assert second.value == 2
    assert second.reasons == {"look": "state['table']: {'rows': [1], 'n': 1} -> {'rows': [1], 'n': 2}"}


# -- a skipped step changes the objects that the script holds


def test_a_value_changed_and_then_replaced_or_deleted_is_changed_for_whoever_holds_it() -> None:
    @checkpointed
    def work() -> None:
        state()["a"].append(2)
        state()["b"].append(2)
        state()["a"] = "new"
        del state()["b"]

    def body(run: Run) -> Any:
        first, second = [1], [1]
        run.state.update(a=first, b=second)
        work()
        return first, second, dict(run.state)

    assert twice(body) == ([1, 2], [1, 2], {"a": "new"})


def test_a_part_replaced_by_an_equal_one_is_a_change() -> None:
    @checkpointed
    def replace(rows: list[list[int]]) -> None:
        rows[0] = list(rows[0])
        state()["rows"][0] = list(state()["rows"][0])

    def body(run: Run) -> Any:
        inside, other = [1], [1]
        rows = [inside]
        run.state["rows"] = [other]
        replace(rows)
        inside.append(2)
        other.append(2)
        return rows, run.state["rows"]

    assert twice(body) == ([[1]], [[1]])


@pytest.mark.parametrize("shared_before", [True, False])
def test_equal_parts_that_became_one_object_or_two_are_a_change(shared_before: bool) -> None:
    @checkpointed
    def retie(rows: list[list[int]]) -> None:
        rows[1] = list(rows[0]) if shared_before else rows[0]

    def body(run: Run) -> Any:
        first = [1]
        rows = [first, first if shared_before else [1]]
        retie(rows)
        first.append(2)
        return rows

    assert twice(body) == ([[1, 2], [1]] if shared_before else [[1, 2], [1, 2]])


class Client:
    """Opens what it needs when it is first asked, and does not pickle it."""

    def __init__(self) -> None:
        self.name = ["client"]

    def ask(self) -> str:
        self.connection = open("/dev/null")
        self.connection.close()
        return self.name[0]

    def __getstate__(self) -> Any:
        return {"name": self.name}


def test_what_is_no_content_of_an_argument_is_no_change_of_it() -> None:
    @checkpointed
    def ask(client: Client) -> str:
        return client.ask()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert twice(lambda run: ask(Client())) == "client"


# -- generators


def test_nested_values_changed_by_a_generator_stay_the_objects_that_the_script_holds() -> None:
    @checkpointed
    def produce() -> Iterator[Any]:
        for i in range(3):
            state()["table"]["rows"].append(i)
            yield state()["table"]["rows"]

    def body(run: Run) -> Any:
        rows: list[int] = []
        run.state["table"] = {"rows": rows}
        seen = [(item is rows, list(rows)) for item in produce()]
        return seen, rows

    assert twice(body) == ([(True, [0]), (True, [0, 1]), (True, [0, 1, 2])], [0, 1, 2])


def test_an_argument_changed_by_a_generator_is_changed_in_the_state_item_by_item() -> None:
    @checkpointed
    def produce(rows: list[Any]) -> Iterator[Any]:
        rows.append([1])
        yield 1
        state()["last"] = state()["table"]["rows"][-1]
        yield 2

    def body(run: Run) -> Any:
        rows: list[Any] = []
        run.state["table"] = {"rows": rows}
        seen = [repr(run.state) for _ in produce(rows)]
        return seen, rows, run.state["last"] is rows[0]

    assert twice(body)[1:] == ([[1]], True)


def test_an_argument_that_a_generator_changed_before_it_put_it_into_the_state_is_there_as_it_is() -> None:
    @checkpointed
    def produce(rows: list[Any], others: list[Any]) -> Iterator[Any]:
        rows.append([1])
        others.append([2])
        yield 1
        assert state()["rows"] == ["old"]
        state()["rows"] = rows
        state()["others"].append(others)
        yield 2
        state()["rows"][0].append(3)
        state()["others"][0][0].append(3)
        yield 3

    def body(run: Run) -> Any:
        rows: list[Any] = []
        others: list[Any] = []
        run.state.update(rows=["old"], others=[])
        seen = [repr(run.state) for _ in produce(rows, others)]
        return seen, rows, others, run.state["rows"] is rows, run.state["others"][0] is others

    assert twice(body)[1:] == ([[1, 3]], [[2, 3]], True, True)


def test_an_argument_changed_in_one_item_and_read_in_the_next_is_no_reason_to_run_again() -> None:
    @checkpointed
    def produce(rows: list[int]) -> Iterator[Any]:
        rows.append(1)
        yield 1
        yield len(state()["rows"])

    def body(run: Run) -> Any:
        run.state["rows"] = rows = [0]
        return list(produce(rows)), rows

    assert twice(body) == ([1, 2], [0, 1])


@pytest.mark.parametrize("in_place", [True, False])
def test_a_generator_runs_again_when_it_reads_what_its_consumer_has_changed_meanwhile(in_place: bool) -> None:
    @checkpointed
    def produce(rows: list[int]) -> Iterator[Any]:
        rows.append(1)
        yield 1
        yield state()["table"]["n"]

    def body(n: int) -> Any:
        def inside(run: Run) -> Any:
            rows: list[int] = []
            run.state["table"] = {"rows": rows, "n": 0}
            found = []
            for item in produce(rows):
                found.append(item)
                if in_place:
                    run.state["table"]["n"] = n
                else:
                    run.state["table"] = {"rows": rows, "n": n}
            return found

        return inside

    assert [scope(body(n)).value for n in (1, 2)] == [[1, 1], [1, 2]]


def test_a_replay_says_so_when_its_consumer_left_other_objects_in_the_state() -> None:
    @checkpointed
    def produce() -> Iterator[Any]:
        for i in range(2):
            state()["rows"].append([i])
            yield i

    def body(left: Any) -> Any:
        def inside(run: Run) -> Any:
            run.state["rows"] = []
            for _ in produce():
                run.state["rows"].append(left)
            return run.state["rows"]

        return inside

    assert twice(body([])) == [[0], [], [1], []]
    with pytest.raises(StoreError, match=r"produce cannot be replayed any further: state `rows`"):
        scope(body({"other": []}))


def test_a_key_that_a_generator_set_stays_its_own_after_a_step_inside_set_it_and_failed() -> None:
    @checkpointed
    def spoil() -> None:
        state()["n"] = -1
        raise Broken

    @checkpointed
    def produce() -> Iterator[Any]:
        state()["n"] = 1
        yield 1
        with pytest.raises(Broken):
            spoil()
        yield 2
        yield state()["n"]

    assert twice(lambda run: (run.state.update(n=0), list(produce()))[1]) == [1, 2, 1]


# -- failed steps


def test_a_value_under_two_keys_is_rolled_back() -> None:
    @checkpointed
    def spoil() -> None:
        state()["a"].append("bad")
        state()["b"]["deep"].append("bad")
        raise Broken

    def body(run: Run) -> Any:
        rows = [1]
        run.state.update(a=rows, b={"deep": rows})
        with pytest.raises(Broken):
            spoil()
        return rows, run.state["a"] is run.state["b"]["deep"] is rows

    assert scope(body).value == ([1], True)


@pytest.mark.parametrize("set_around", [True, False])
def test_a_key_deleted_by_a_failed_step_inside_is_there_when_the_step_around_is_skipped(set_around: bool) -> None:
    @checkpointed
    def delete_and_fail() -> None:
        del state()["n"]
        raise Broken

    @checkpointed
    def around() -> None:
        if set_around:
            state()["n"] = 5
        with pytest.raises(Broken):
            delete_and_fail()
        state()["m"] = 1

    def body(run: Run) -> Any:
        run.state["n"] = 0
        around()
        return dict(run.state)

    assert twice(body) == {"n": 5 if set_around else 0, "m": 1}


def test_a_key_that_a_failed_step_looked_at_is_as_it_was_although_it_was_changed_as_an_argument_before() -> None:
    @checkpointed
    def spoil(rows: list[Any], others: list[Any]) -> None:
        new = [1]
        rows.append(new)
        others.append(new)
        state()["table"]["rows"][0].append("bad")
        raise Broken

    def body(run: Run) -> Any:
        rows: list[Any] = []
        others: list[Any] = []
        run.state["table"] = {"rows": rows}
        with pytest.raises(Broken):
            spoil(rows, others)
        return rows, others

    assert scope(body).value == ([], [[1, "bad"]])


def test_a_failed_step_leaves_the_state_alike_whether_a_step_inside_it_ran_or_was_skipped() -> None:
    @checkpointed
    def change_and_look(rows: list[int]) -> int:
        rows.append(1)
        state()["rows"].append(2)
        return len(rows)

    @checkpointed
    def around(rows: list[int]) -> None:
        change_and_look(rows)
        raise Broken

    def body(run: Run) -> Any:
        run.state["rows"] = rows = [0]
        with pytest.raises(Broken):
            around(rows)
        return rows

    first, second = scope(body), scope(body)
    assert (first.ran, second.ran) == ({"change_and_look": 1}, {})
    assert first.value == second.value == [0]


def test_what_a_failed_step_had_as_an_argument_only_is_left_as_it_is_although_it_stands_in_the_state() -> None:
    @checkpointed
    def spoil(rows: list[int]) -> None:
        rows.append(1)
        raise Broken

    def body(run: Run) -> Any:
        run.state["rows"] = rows = [0]
        with pytest.raises(Broken):
            spoil(rows)
        return rows

    assert scope(body).value == [0, 1]
