"""Step methods that are overridden, and steps that override."""

from __future__ import annotations

from abc import ABC, abstractmethod

from typing_extensions import assert_type

from oncemore import checkpointed


class Base:
    """Steps and a method to override."""

    @checkpointed
    def load(self, path: str) -> object:
        return path

    @checkpointed
    async def fetch(self, path: str) -> str:
        return path

    @classmethod
    @checkpointed
    def create(cls, size: int) -> int:
        return size

    @checkpointed
    @staticmethod
    def clean(row: int) -> object:
        return row

    @checkpointed
    def size(self, row: int) -> int:
        return row

    @checkpointed
    def width(self, row: int) -> int:
        return row

    def plain(self, row: int) -> int:
        return row


class Steps(Base):
    """Steps that override steps; they may return a subtype."""

    @checkpointed
    def load(self, path: str) -> str:
        assert_type(super().load(path), object)
        assert_type(super().load.is_done(path), bool)
        return path

    @checkpointed(version="2")
    async def fetch(self, path: str) -> str:
        assert_type(await super().fetch(path), str)
        return path

    @classmethod
    @checkpointed
    def create(cls, size: int) -> int:
        assert_type(super().create(size), int)
        return size

    @checkpointed
    @staticmethod
    def clean(row: int) -> str:
        assert_type(Base.clean(row), object)
        return str(row)


class Others(Base):
    """What type checkers reject, with good reason or without."""

    def size(self, row: int) -> int:  # type: ignore[override]  # a plain method has no verbs
        return super().size(row)

    @checkpointed
    def width(self, row: str) -> int:  # type: ignore[override]
        return len(row)

    # pyright takes no object for a method, whatever its type, nor the results of `functools.cache`
    @checkpointed
    def plain(self, row: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().plain(row)


class More(Base):
    """pyright compares the parameters of steps for equality."""

    @checkpointed
    def size(self, row: int, column: int = 0) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return super().size(row)


class Abstract(ABC):
    """Abstract steps, in both orders."""

    @abstractmethod
    @checkpointed
    def load(self, path: str) -> str: ...

    @checkpointed
    @abstractmethod
    def save(self, path: str) -> int: ...


class Concrete(Abstract):
    """Its steps."""

    @checkpointed
    def load(self, path: str) -> str:
        return path

    @checkpointed
    def save(self, path: str) -> int:
        return len(path)


async def overriding_steps_are_called() -> None:
    assert_type(Steps().load("a"), str)
    assert_type(await Steps().fetch("a"), str)
    assert_type(Steps.create(1), int)
    assert_type(Steps().create(1), int)
    assert_type(Steps().clean(1), str)
    assert_type(Others().size(1), int)
    assert_type(Others().plain(1), int)
    assert_type(More().size(1, 2), int)


def a_subclass_stands_for_its_base() -> None:
    def use(base: Base) -> None:
        assert_type(base.load("a"), object)
        assert_type(base.load.is_done("a"), bool)

    use(Steps())


def abstract_steps_are_implemented() -> None:
    one: Abstract = Concrete()
    assert_type(one.load("a"), str)
    assert_type(one.save("a"), int)
    assert_type(one.save.is_done("a"), bool)


def wrong_instances_are_found() -> None:
    Abstract()  # type: ignore[abstract]
