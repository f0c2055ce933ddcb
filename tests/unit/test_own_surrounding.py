"""Surroundings of the user's own: `register_surrounding`."""

from __future__ import annotations

import locale
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from oncemore import CheckpointWarning, Run, Surrounding, UsageError, checkpointed, register_surrounding, surroundings
from tests.processes import Script
from tests.unit.again import effects, scope, skipped_alike, twice

WORLD: dict[str, Any] = {}


class World(Surrounding):
    """A table that steps change behind everyone's back."""

    name = "world"

    def before(self, moment: Any) -> dict[str, Any]:
        WORLD["calls"].append(("before", moment.step.rpartition(".")[2]))
        return dict(WORLD["table"])

    def after(self, moment: Any, note: dict[str, Any]) -> Any:
        now = WORLD["table"]
        return {key: now[key] for key in now if note.get(key) != now[key]} or None

    def restore(self, moment: Any, effect: dict[str, Any]) -> None:
        WORLD["calls"].append(("restore", dict(moment.arguments)))
        WORLD["table"].update(effect)

    def failed(self, moment: Any, note: dict[str, Any]) -> None:
        WORLD["table"].clear()
        WORLD["table"].update(note)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    WORLD.update(table={}, calls=[])
    known = dict(surroundings._kinds)
    register_surrounding(World())
    yield
    surroundings._kinds.clear()
    surroundings._kinds.update(known)


@checkpointed(code="version", version="1")
def turn(key: str, value: Any) -> str:
    WORLD["table"][key] = value
    return "turned"


@checkpointed(code="version", version="1")
def leave_alone() -> None: ...


def test_a_skipped_step_makes_the_change_again() -> None:
    def body(run: Run) -> Any:
        WORLD["table"].clear()
        return turn("a", 1), turn("b", [2]), dict(WORLD["table"])

    assert twice(body) == ("turned", "turned", {"a": 1, "b": [2]})
    assert WORLD["calls"][-1] == ("restore", {"key": "b", "value": [2]})


def test_it_is_kept_with_the_other_effects_under_its_name() -> None:
    assert scope(lambda run: (turn("a", 1), effects(run, "turn"))).value[1] == ["world"]


def test_a_step_that_changes_nothing_records_nothing() -> None:
    assert scope(lambda run: (leave_alone(), effects(run, "leave_alone"))).value[1] == []


def test_when_a_step_is_skipped_only_recorded_effects_cost_anything() -> None:
    scope(lambda run: (turn("a", 1), leave_alone()))
    WORLD["calls"].clear()
    scope(lambda run: (turn("a", 1), leave_alone()))
    assert WORLD["calls"] == [("restore", {"key": "a", "value": 1})]


def test_a_failed_step_is_told() -> None:
    @checkpointed(code="version", version="1")
    def fails() -> None:
        WORLD["table"]["a"] = "spoiled"
        raise ValueError

    def body(run: Run) -> Any:
        with pytest.raises(ValueError):
            fails()
        return dict(WORLD["table"])

    assert scope(body).value == {}


def test_what_it_shares_with_the_result_and_the_arguments_stays_shared() -> None:
    @checkpointed(code="version", version="1")
    def share(mine: list[int]) -> Any:
        WORLD["table"]["mine"], WORLD["table"]["made"] = mine, [1]
        return WORLD["table"]["made"]

    def body(run: Run) -> Any:
        WORLD["table"].clear()
        mine = [0]
        got = share(mine)
        return WORLD["table"]["mine"] is mine, WORLD["table"]["made"] is got

    assert twice(body) == (True, True)


def test_an_effect_that_cannot_be_pickled_is_told_and_the_step_runs_each_time() -> None:
    def body(run: Run) -> Any:
        with pytest.warns(CheckpointWarning, match="not saved"):
            turn("a", "made by hand")

    class Unpicklable(World):
        def after(self, moment: Any, note: Any) -> Any:
            return threading.Lock()

    register_surrounding(Unpicklable())
    assert [scope(body).ran for _ in range(2)] == [{"turn": 1}] * 2


def test_one_of_the_same_name_replaces_the_earlier_one() -> None:
    class Deaf(World):
        def after(self, moment: Any, note: Any) -> Any:
            return None

    register_surrounding(Deaf())
    assert scope(lambda run: (turn("a", 1), effects(run, "turn"))).value[1] == []


def test_our_own_kinds_are_still_there() -> None:
    assert {"arguments", "state", "random", "process", "world"} <= {kind.name for kind in surroundings.kinds()}


def test_one_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="no name"):
        register_surrounding(Surrounding())


def test_in_a_generator_it_looks_once_around_all_items_unless_it_says_otherwise() -> None:
    class PerItem(World):
        name, per_item = "per item", True

    register_surrounding(PerItem())

    @checkpointed(code="version", version="1")
    def items() -> Any:
        for i in range(2):
            WORLD["table"][f"item {i}"] = i
            yield i

    def body(run: Run) -> Any:
        WORLD["table"].clear()
        return [(item, dict(WORLD["table"])) for item in items()], dict(WORLD["table"])

    seen, at_the_end = twice(body)
    assert seen == [(0, {"item 0": 0}), (1, {"item 0": 0, "item 1": 1})]
    assert at_the_end == {"item 0": 0, "item 1": 1}


def test_the_example_in_its_documentation_works(script: Script) -> None:
    there = locale.setlocale(locale.LC_NUMERIC)
    assert there
    skipped_alike(
        script,
        """
        import locale
        from oncemore import Surrounding, checkpoint_scope, checkpointed, register_surrounding

        class Locale(Surrounding):
            name = "locale"

            def before(self, moment):
                return locale.setlocale(locale.LC_ALL)

            def after(self, moment, note):
                now = self.before(moment)
                return None if now == note else now

            def restore(self, moment, effect):
                locale.setlocale(locale.LC_ALL, effect)

        register_surrounding(Locale())

        @checkpointed
        def settle():
            print("RAN settle")
            locale.setlocale(locale.LC_ALL, "C.UTF-8")

        locale.setlocale(locale.LC_ALL, "C")
        with checkpoint_scope("run"):
            settle()
            print(locale.setlocale(locale.LC_ALL))
        """,
    )
