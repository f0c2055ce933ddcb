"""Steps of methods, classmethods and staticmethods, accessed on the class and on an instance.

A step is a method if its first parameter is named `self`, and a classmethod if that is named `cls`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from typing_extensions import Self, assert_type

from oncemore import checkpointed, memoized

T = TypeVar("T")
U = TypeVar("U")


@dataclass
class Model:
    """Methods of every kind."""

    rate: float = 0.1

    @checkpointed
    def fit(self, rows: list[int], *, rate: float = 0.1) -> Model:
        return self

    @checkpointed(version="1")
    async def score(self, row: int) -> float:
        return float(row)

    @memoized
    def rows(self, count: int) -> Iterator[int]:
        yield from range(count)

    @memoized(expires="1d")
    async def later_rows(self, count: int) -> AsyncIterator[int]:
        yield count

    @checkpointed
    def size(self) -> int:
        return 3

    @checkpointed
    def pair(self, value: U) -> list[U]:
        return [value, value]

    @checkpointed
    def renamed(self) -> Self:
        return self

    @classmethod
    @checkpointed
    def load(cls, path: str) -> int:
        return len(path)

    @checkpointed
    @classmethod
    def open(cls, path: str) -> int:
        return len(path)

    @checkpointed(version="1")
    @classmethod
    async def fetch(cls, path: str) -> int:
        return len(path)

    @classmethod
    @checkpointed
    def create(cls) -> Self:
        return cls()

    @staticmethod
    @checkpointed
    def check(row: int) -> bool:
        return bool(row)

    @checkpointed
    @staticmethod
    def clean(row: int) -> str:
        return str(row)

    @checkpointed(version="1")
    @staticmethod
    def show(value: object, width: int) -> str:
        return str(value).ljust(width)

    @property
    @checkpointed
    def total(self) -> int:
        return 3

    def uses_them(self) -> None:
        assert_type(self.fit([1]), Model)
        assert_type(self.load("a"), int)
        assert_type(self.check(1), bool)
        assert_type(self.show(self, 3), str)


@dataclass
class Inheriting(Model):
    """A class that inherits steps."""


@dataclass
class Box(Generic[T]):
    """A generic class."""

    items: list[T] = field(default_factory=list[T])

    @checkpointed
    def first(self, default: T) -> T:
        return (self.items or [default])[0]

    @property
    def filled(self) -> bool:
        return bool(self.items)


def methods_are_bound_to_instances() -> None:
    model = Model()
    assert_type(model.fit([1]), Model)
    assert_type(model.fit([1], rate=0.5).fit([2]), Model)
    assert_type(model.size(), int)
    assert_type(model.rows(2), Iterator[int])
    assert_type(model.later_rows(2), AsyncIterator[int])
    assert_type(model.pair("a"), list[str])
    assert_type(Inheriting().fit([1]), Model)
    assert_type(sum(Inheriting().rows(3)), int)
    model.uses_them()


def methods_on_the_class_take_the_instance() -> None:
    assert_type(Model.fit(Model(), [1]), Model)
    assert_type(Model.size(Model()), int)
    assert_type(Model.fit.is_done(Model(), [1]), bool)


def classmethods_are_bound_in_both_orders() -> None:
    assert_type(Model.load("a"), int)
    assert_type(Model().load("a"), int)
    assert_type(Model.open("a"), int)
    assert_type(Model().open("a"), int)
    assert_type(Inheriting.load("a"), int)
    assert_type(Inheriting().open("a"), int)
    assert_type(Model.open.is_done("a"), bool)  # from Python 3.13 on, `@classmethod` on top has no verbs
    assert_type(Model().open.is_done("a"), bool)


def staticmethods_are_not_bound_in_either_order() -> None:
    assert_type(Model.check(1), bool)
    assert_type(Model().check(1), bool)
    assert_type(Model.clean(1), str)
    assert_type(Model().clean(1), str)
    assert_type(Model.show(1, 3), str)
    assert_type(Model().show(1, width=3), str)
    assert_type(Inheriting().clean(1), str)
    assert_type(Model.check.is_done(1), bool)
    assert_type(Model().clean.is_done(1), bool)


async def awaiting_gives_the_result() -> None:
    assert_type(await Model().score(1), float)
    assert_type(await Model.fetch("a"), int)
    assert_type(await Model().fetch("a"), int)


def methods_may_return_their_own_type() -> None:
    model: Inheriting = Inheriting().renamed()  # mypy takes the result for `Any`
    created: Inheriting = Inheriting.create()
    print(model, created)


def generic_classes_have_steps() -> None:
    assert_type(Box([1]).first(2), int)
    assert_type(Box(["a"]).first.refresh("b"), str)


def properties_can_be_steps() -> None:
    assert_type(Model().total, int)


def bound_steps_are_callables() -> None:
    one: Callable[[list[int]], Model] = Model().fit
    two: Callable[[str], int] = Model.load
    three: Callable[[int], bool] = Model().check
    four: Callable[[int], Coroutine[Any, Any, float]] = Model().score
    five: Callable[[Model, list[int]], Model] = Model.fit
    print(one, two, three, four, five)
    assert_type(list(map(Model().clean, [1])), list[str])


def wrong_calls_are_found() -> None:
    Model().fit("rows")  # type: ignore[arg-type]
    Model().fit()  # type: ignore[call-arg]
    Model().fit([1], depth=3)  # type: ignore[call-arg]
    Model.fit([1])  # type: ignore[call-arg, arg-type]
    Model.load(3)  # type: ignore[arg-type]
    Model().open()  # type: ignore[call-arg]
    Model.clean("row")  # type: ignore[arg-type]
    Model().check("row")  # type: ignore[arg-type]
    Model().check()  # type: ignore[call-arg]
    Box([1]).first("a")  # type: ignore[arg-type]
    Model().fit.is_done("rows")  # type: ignore[arg-type]
    Model().open.is_done(3)  # type: ignore[arg-type]
    Model().rows(3).fit  # type: ignore[attr-defined]
    one: Callable[[str], Model] = Model().fit  # type: ignore[assignment]
    print(one)
