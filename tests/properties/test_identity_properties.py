"""The content hash on generated values: equal digests if and only if equal content."""

from __future__ import annotations

import copy
import pickle
import random
import struct
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from oncemore.identity import values
from oncemore.identity.values import colours, digest

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 2),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, float("nan")]),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.binary(max_size=3).map(bytearray),
)
keys = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=2), st.binary(max_size=2))
plain = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=12,
)
sets = st.frozensets(
    st.recursive(keys, lambda inner: st.one_of(st.frozensets(inner, max_size=3), st.tuples(inner)), max_leaves=3),
    max_size=5,
)
mixed = st.recursive(
    st.one_of(scalars, st.complex_numbers(), sets, sets.map(set)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=12,
)


def form(value: Any) -> Any:
    """The value as nothing but strings and tuples: equal if and only if type, order and bits are."""
    kind = type(value).__name__
    if isinstance(value, float):
        return kind, struct.pack("<d", value)
    if isinstance(value, complex):
        return kind, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, (list, tuple)):
        return kind, tuple(map(form, value))
    if isinstance(value, dict):
        return kind, tuple((form(key), form(item)) for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(map(form, value))
    return kind, repr(value)


@given(plain, plain)
def test_plain_data_has_equal_digests_if_and_only_if_it_is_equal(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == (form(one) == form(other))


@given(mixed, mixed)
def test_nested_data_with_sets_has_equal_digests_if_and_only_if_it_is_equal(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == (form(one) == form(other))


@given(mixed)
def test_copies_have_equal_digests(value: Any) -> None:
    assert digest(value) == digest(copy.deepcopy(value)) == digest(pickle.loads(pickle.dumps(value)))


def walked(value: Any) -> bytes:
    """The digest by the walk alone: nothing is tried as plain data."""
    walk = values.Digests()
    walk._budget = 0
    return walk.of(value)


@given(plain)
def test_plain_data_has_one_digest_whether_pickled_or_walked(value: Any) -> None:
    if type(value) in (list, tuple, dict):
        assert digest(value) == walked(value)


@given(plain, st.integers(0, 70))
def test_plain_data_around_the_limit_of_depth_has_one_digest(value: Any, depth: int) -> None:
    for _ in range(depth):
        value = (value,)
    assert digest([value]) == walked([value])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in the value where something can be put."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [(value, place) for place, _ in items]
    return found + [deeper for _, inner in items for deeper in places(inner)]


@given(mixed, scalars, st.randoms(use_true_random=False))
def test_a_change_anywhere_changes_the_digest(value: Any, new: Any, chance: random.Random) -> None:
    changed = copy.deepcopy(value)
    found = places(changed)
    assume(found)
    container, place = chance.choice(found)
    assume(form(container[place]) != form(new))
    container[place] = new
    assert digest(changed) != digest(value)


@given(st.lists(st.one_of(keys, sets), unique=True, max_size=8), st.randoms(use_true_random=False))
def test_the_order_in_which_a_set_was_filled_does_not_count(elements: list[Any], chance: random.Random) -> None:
    shuffled = chance.sample(elements, len(elements))
    one, other = set(elements), set()
    other.update(range(1000, 1000 + chance.randrange(50)))  # a larger table keeps its elements in another order
    other.intersection_update(())
    for element in shuffled:
        other.add(element)
    assert digest(one) == digest(other)


@given(mixed, st.integers(2, 4))
def test_shared_and_copied_parts_are_equal(value: Any, times: int) -> None:
    assert digest([value] * times) == digest([copy.deepcopy(value) for _ in range(times)])


graphs = st.integers(1, 7).flatmap(
    lambda size: st.lists(
        st.tuples(st.integers(0, 1), st.lists(st.integers(0, size - 1), max_size=3)), min_size=size, max_size=size
    )
)


def linked(graph: list[tuple[int, list[int]]]) -> list[Any]:
    """A list for each node of the graph, which holds its label and the lists that its edges lead to."""
    nodes: list[list[Any]] = [[label] for label, _ in graph]
    for node, (_, edges) in zip(nodes, graph):
        node.extend(nodes[edge] for edge in edges)
    return nodes


def look(graph: list[tuple[int, list[int]]], node: int, depth: int) -> Any:
    """What can be seen from a node in so many steps."""
    label, edges = graph[node]
    return (label, *(look(graph, edge, depth - 1) for edge in edges)) if depth else label


@given(graphs)
def test_nodes_of_a_graph_have_one_colour_if_and_only_if_nothing_tells_them_apart(graph: Any) -> None:
    found = colours(
        [bytes([label]) for label, _ in graph],
        [edges for _, edges in graph],
        [False] * len(graph),
        lambda value: digest(value),
    )
    views = [look(graph, node, len(graph)) for node in range(len(graph))]
    for one in range(len(graph)):
        for other in range(len(graph)):
            assert (found[one] == found[other]) == (views[one] == views[other])


@given(graphs, st.randoms(use_true_random=False))
def test_values_that_contain_each_other_are_the_same_in_any_numbering(graph: Any, chance: random.Random) -> None:
    order = chance.sample(range(len(graph)), len(graph))
    renumbered = [(graph[node][0], [order.index(edge) for edge in graph[node][1]]) for node in order]
    assert digest(linked(graph)[0]) == digest(linked(renumbered)[order.index(0)])


@given(graphs, graphs)
def test_values_that_contain_each_other_are_told_apart(one: Any, other: Any) -> None:
    depth = len(one) + len(other)
    assume(look(one, 0, min(depth, 8)) != look(other, 0, min(depth, 8)))
    assert digest(linked(one)[0]) != digest(linked(other)[0])


@given(graphs)
def test_values_that_contain_each_other_equal_their_copies(graph: Any) -> None:
    nodes = linked(graph)
    assert digest(nodes) == digest(copy.deepcopy(nodes))
    assert digest([nodes[0], nodes[0]]) == digest([nodes[0], copy.deepcopy(nodes[0])])
