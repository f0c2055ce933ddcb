"""Objects that remember what can be computed again, or hold a step or a generator: changed in place like any others."""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from oncemore import Run, checkpointed
from tests.processes import Script
from tests.unit.again import effects, scope, twice

# --- what an object merely remembers ----------------------------------------------------------------------------------


class Basket:
    def __init__(self, items: list[int]) -> None:
        self.items = items

    @functools.cached_property
    def total(self) -> int:
        return sum(self.items)


@attrs.define
class SlottedBasket:
    items: list[int]

    @functools.cached_property
    def total(self) -> int:
        return sum(self.items)


@checkpointed
def read(basket: Any) -> int:
    return int(basket.total)


@checkpointed
def add(basket: Any) -> None:
    basket.items.append(10)


@checkpointed
def add_and_forget(basket: Any) -> int:
    basket.items.append(10)
    del basket.total
    return int(basket.total)


@pytest.mark.parametrize("kind", [Basket, SlottedBasket])
def test_a_property_that_a_step_read_is_no_effect_and_the_object_is_the_same_argument_after_it(kind: Any) -> None:
    def body(run: Run) -> Any:
        basket = kind([1, 2])
        return read(basket), read(basket), run.ran.get("read", 0) <= 1

    assert twice(body) == (3, 3, True)
    scope(lambda run: read(kind([5])), run_id="effects")
    assert scope(lambda run: effects(run, "read"), run_id="effects").value == []


@pytest.mark.parametrize("kind", [Basket, SlottedBasket])
def test_what_an_object_remembers_stays_where_the_step_left_it(kind: Any) -> None:
    def body(run: Run) -> Any:
        basket = kind([1, 2])
        before = basket.total
        add(basket)
        return before, basket.total, basket.items

    assert twice(body) == (3, 3, [1, 2, 10])  # as without a checkpoint: nobody told the property


def test_what_an_object_remembers_is_computed_again_where_the_step_did_so() -> None:
    def body(run: Run) -> Any:
        basket = Basket([1, 2])
        return basket.total, add_and_forget(basket), basket.total, basket.items

    assert twice(body) == (3, 13, 13, [1, 2, 10])


def test_the_hash_that_attrs_keeps_is_that_of_this_process(script: Script) -> None:
    source = """
        import attrs
        from oncemore import checkpoint_scope, checkpointed

        @attrs.frozen(cache_hash=True, slots=SLOTS)
        class Key:
            text: str
            seen: list = attrs.field(factory=list, eq=False)

        @checkpointed
        def look(key):
            print("RAN")
            hash(key)
            key.seen.append(1)

        with checkpoint_scope("hash"):
            key = Key("a")
            look(key)
            print(hash(key) == hash(Key("a")), key.seen)
    """
    for slots in ("True", "False"):
        text = source.replace("SLOTS", slots).replace('"hash"', f'"hash {slots}"')
        assert script(text, env={"PYTHONHASHSEED": "1"}).lines == ["RAN", "True [1]"]
        assert script(text, env={"PYTHONHASHSEED": "2"}).lines == ["True [1]"]


def test_a_graph_of_networkx_that_a_step_changed_shows_the_change_in_all_its_views() -> None:
    nx = pytest.importorskip("networkx")

    @checkpointed
    def join(graph: Any) -> int:
        graph.add_edge(7, 8)
        return len(graph.edges)

    def body(run: Run) -> Any:
        graph = nx.path_graph(3)
        seen = list(graph.adj), list(graph.edges)
        return seen, join(graph), list(graph.adj), list(graph.edges), list(graph.nodes), graph.degree[7]

    twice(body)


# --- what is held --------------------------------------------------------------------------------------------------------


class Machine:
    def __init__(self, work: Any) -> None:
        self.work, self.done = work, 0


@checkpointed
def double(x: int) -> int:
    return x * 2


@checkpointed
def operate(machine: Machine) -> int:
    machine.done += 1
    return int(machine.work(machine.done))


@checkpointed
def apply(function: Callable[[int], int], x: int) -> int:
    return function(x)


def test_a_step_is_an_argument_like_any_other_function() -> None:
    median = checkpointed(statistics.median)
    assert twice(lambda run: (apply(double, 4), apply(median, [1, 2, 5]))) == (8, 2)  # type: ignore[arg-type]


def test_an_object_that_holds_a_step_can_be_changed_in_place() -> None:
    def body(run: Run) -> Any:
        machine = Machine(double)
        return operate(machine), machine.done, machine.work is double

    assert twice(body) == (2, 1, True)


def test_an_object_that_holds_the_global_generator_can_be_changed_in_place() -> None:
    @checkpointed
    def draw(machine: Machine) -> int:
        machine.done = machine.work.randrange(10**9)
        return machine.done

    def body(run: Run) -> Any:
        random.seed(7)
        machine = Machine(random._inst)  # type: ignore[attr-defined]
        return draw(machine), machine.done, random.random(), machine.work is random._inst  # type: ignore[attr-defined]

    assert twice(body)[3]
