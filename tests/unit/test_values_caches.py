"""What an object merely remembers, and objects that answer to every name: neither disturbs the content hash."""

from __future__ import annotations

import enum
import functools
import ipaddress
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import attrs
import numpy as np
import pytest

from oncemore.codec import dumps, loads
from oncemore.identity.values import digest

# --- what merely remembers ------------------------------------------------------------------------------------------


class Lazy:
    """A library's own cached property: it steps aside once the object has an attribute of that name."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.wrapped = function

    def __get__(self, value: Any, owner: Any = None) -> Any:
        found = value.__dict__[self.wrapped.__name__] = self.wrapped(value)
        return found


class CachedAttribute:
    """As that of statsmodels: all that is cached is in one dict."""

    def __init__(self, function: Callable[[Any], Any], cachename: str) -> None:
        self.fget, self.cachename = function, cachename

    def __get__(self, value: Any, owner: Any = None) -> Any:
        space = value.__dict__.setdefault(self.cachename, {})
        return space.setdefault(self.fget.__name__, self.fget(value))


class cached_property(property):
    """As that of werkzeug: a property that keeps its value under its own name."""

    def __get__(self, value: Any, owner: Any = None) -> Any:
        assert self.fget is not None
        return value.__dict__.setdefault(self.fget.__name__, self.fget(value))


class Report:
    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    @functools.cached_property
    def total(self) -> int:
        return sum(self.rows)

    @Lazy
    def mean(self) -> float:
        return sum(self.rows) / len(self.rows)

    @cached_property
    def largest(self) -> int:
        return max(self.rows)

    smallest = CachedAttribute(lambda self: min(self.rows), "_remembered")


class Child(Report):
    pass


class Written(Report):
    def __getstate__(self) -> Any:
        return self.__dict__


class Reduced(Report):
    def __reduce__(self) -> Any:
        return Reduced, (self.rows,), self.__dict__


@attrs.define
class Slotted:
    rows: list[int]

    @functools.cached_property
    def total(self) -> int:
        return sum(self.rows)


REMEMBERED = [
    (kind, name) for kind in (Report, Child, Written, Reduced) for name in ("total", "mean", "largest", "smallest")
]


@pytest.mark.parametrize(("kind", "name"), [*REMEMBERED, (Slotted, "total")])
def test_what_a_property_remembers_does_not_count(kind: Any, name: str) -> None:
    value = kind([1, 2])
    before = digest(value)
    getattr(value, name)
    assert digest(value) == before == digest(kind([1, 2])) != digest(kind([1, 3]))


class Deferred:
    """Answers for an attribute that an object does not have, as the fields of some models do. It remembers nothing."""

    def __get__(self, value: Any, owner: Any = None) -> Any:
        return "not loaded"


class Row:
    name = Deferred()

    def method(self) -> int:
        return 1


def test_an_attribute_that_hides_a_descriptor_or_a_method_counts() -> None:
    ada, bob, odd = Row(), Row(), Row()
    ada.__dict__["name"], bob.__dict__["name"], odd.__dict__["method"] = "Ada", "Bob", len
    assert len({digest(value) for value in (ada, bob, odd, Row())}) == 4


def test_the_views_that_networkx_keeps_of_a_graph_do_not_count() -> None:
    nx = pytest.importorskip("networkx")
    graph = nx.path_graph(3)
    before = digest(graph)
    assert len(graph.adj) == len(graph.nodes) == 3 and len(graph.edges) == 2 and graph.degree[1] == 2
    assert digest(graph) == before != digest(nx.path_graph(4))


def test_a_distribution_of_scipy_is_the_same_whatever_was_drawn() -> None:
    stats = pytest.importorskip("scipy.stats")
    before = digest(stats.norm(1, 2)), digest(stats.norm)
    np.random.rand()
    assert (digest(stats.norm(1, 2)), digest(stats.norm)) == before
    assert digest(stats.norm(1, 3)) != before[0] != digest(stats.norm(1, 2).rvs)


class Holder:
    def __init__(self, generator: Any) -> None:
        self.generator = generator


@pytest.mark.parametrize(
    ("shared", "draw", "own"),
    [
        (lambda: random._inst, random.random, lambda: random.Random(1)),  # type: ignore[attr-defined]
        (lambda: random.random, random.random, lambda: random.Random(1).random),
        (lambda: np.random.mtrand._rand, np.random.rand, lambda: np.random.RandomState(1)),
        (lambda: np.random.rand, np.random.rand, lambda: np.random.RandomState(1).rand),
        (np.random.get_bit_generator, np.random.rand, lambda: np.random.MT19937(1)),
    ],
    ids=["random", "random's function", "numpy", "numpy's function", "numpy's bits"],
)
def test_the_global_generator_in_an_object_counts_by_name_and_another_by_its_state(
    shared: Callable[[], Any], draw: Callable[[], Any], own: Callable[[], Any]
) -> None:
    before = digest(Holder(shared()))
    draw()
    assert digest(Holder(shared())) == before != digest(Holder(own()))


# --- what answers to every name -------------------------------------------------------------------------------------


class Answers:
    def __getattr__(self, name: str) -> Any:
        return Answers()


class Slots:
    __slots__ = ("x",)

    def __getattr__(self, name: str) -> Any:
        return Slots()


def test_an_object_that_answers_to_every_name_is_its_own_attributes() -> None:
    one, other = Answers(), Answers()
    other.x = 1
    slots = Slots()
    slots.x = 1
    assert len({digest(value) for value in (one, other, Slots(), slots)}) == 4
    assert digest(one) == digest(Answers())


@pytest.mark.parametrize(
    "kind", [mock.Mock, mock.MagicMock, mock.AsyncMock, mock.NonCallableMagicMock, lambda: mock.MagicMock(spec=dict)]
)
def test_a_mock_is_what_was_told_to_it_and_looking_at_it_leaves_it_as_it_was(kind: Callable[[], Any]) -> None:
    one, told = kind(), kind()
    told.keys = 1
    children = len(one._mock_children)
    assert digest(one) == digest(one) == digest(kind()) != digest(told)
    assert len(one._mock_children) == children


def test_a_mock_that_was_used_is_another() -> None:
    one = mock.MagicMock()
    before = digest(one)
    one.ask("a").get.return_value = 3
    assert digest(one) != before


class EqualToAll(type):
    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 1


def test_classes_that_claim_to_be_equal_are_told_apart() -> None:
    class One(metaclass=EqualToAll):
        __slots__ = ("x",)

        def __init__(self, x: int) -> None:
            self.x = x

    class Other(metaclass=EqualToAll):
        def __init__(self, x: int) -> None:
            self.x = x

    assert len({digest(value) for value in (One(1), One(2), Other(1), Other(2))}) == 4


def test_addresses_with_a_scope_are_told_apart() -> None:
    texts = ["fe80::1", "fe80::1%eth0", "fe80::1%eth1"]
    found = [*map(ipaddress.ip_address, texts), *map(ipaddress.ip_interface, texts), ipaddress.ip_network("fe80::/64")]
    assert len({digest(value) for value in found}) == 7
    assert [str(value) for value in loads(dumps(found))] == [str(value) for value in found]


# --- classes that say odd things about themselves ---------------------------------------------------------------------


class Named(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        return "made up"


class Everything(type):
    def __getattr__(cls, name: str) -> Any:
        return lambda *args: cls


def odd(module: Any) -> type:
    class Odd:
        x = 1

    Odd.__module__ = module
    return Odd


@pytest.mark.parametrize(
    "module", [None, 5, "", "no.such.module", property(str)], ids=["none", "number", "empty", "unknown", "property"]
)
def test_a_class_may_have_anything_as_its_module(module: Any) -> None:
    kind, other = odd(module), odd(module)
    other.x = 2  # type: ignore[attr-defined]
    assert digest(kind()) == digest(odd(module)()) != digest(other())
    assert digest(kind) == digest(odd(module)) != digest(other)


@pytest.mark.parametrize("meta", [Named, Everything])
def test_a_class_counts_by_its_content_whatever_its_metaclass_answers(meta: Any) -> None:
    def made(x: int) -> Any:
        return meta("Made", (), {"x": x})

    assert digest(made(1)()) == digest(made(1)()) != digest(made(2)())
    assert digest(made(1)) != digest(made(2))


def test_arrays_are_defaults_and_values_of_enums() -> None:
    def made(size: int) -> list[Any]:
        plain = attrs.make_class("Plain", {"x": attrs.field(default=np.arange(size))})
        palette = enum.Enum("Palette", {"GREY": np.arange(size)})  # type: ignore[misc]
        return [plain, plain(), palette, palette.GREY]

    for one, same, other in zip(made(3), made(3), made(4), strict=True):
        assert digest(one) == digest(same) != digest(other)
