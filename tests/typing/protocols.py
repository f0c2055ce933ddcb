"""Classes with steps where a protocol is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Protocol, TypeVar

from typing_extensions import assert_type

from oncemore import checkpointed

T_co = TypeVar("T_co", covariant=True)


class Loads(Protocol):
    """A method."""

    def load(self, path: str) -> object: ...


class Measures(Protocol):
    """A method of the same name."""

    def load(self, path: str) -> int: ...


class Works(Protocol[T_co]):
    """Methods of every kind."""

    def work(self, row: int) -> T_co: ...
    async def score(self, row: int) -> float: ...
    def rows(self, count: int) -> Iterator[int]: ...
    def later_rows(self, count: int) -> AsyncIterator[int]: ...
    @classmethod
    def create(cls, size: int) -> int: ...
    @staticmethod
    def clean(row: int) -> str: ...


class Called(Protocol):
    """A function with a keyword."""

    def __call__(self, path: str, *, limit: int = 10) -> str: ...


class Loader:
    """Has a step."""

    @checkpointed
    def load(self, path: str) -> str:
        return path


class Worker:
    """Has steps of every kind."""

    @checkpointed
    def work(self, row: int) -> str:
        return str(row)

    @checkpointed
    async def score(self, row: int) -> float:
        return float(row)

    @checkpointed
    def rows(self, count: int) -> Iterator[int]:
        yield count

    @checkpointed
    async def later_rows(self, count: int) -> AsyncIterator[int]:
        yield count

    @checkpointed
    @classmethod
    def create(cls, size: int) -> int:
        return size

    @staticmethod
    @checkpointed
    def clean(row: int) -> str:
        return str(row)


@checkpointed
def read(path: str, *, limit: int = 10) -> str:
    return path[:limit]


def use(loader: Loads) -> object:
    return loader.load("a")


async def work(worker: Works[T_co]) -> T_co:
    assert_type(await worker.score(1), float)
    assert_type(worker.create(1), int)
    assert_type(worker.clean(1), str)
    return worker.work(1)


def call(function: Called) -> str:
    return function("abc", limit=2)


async def classes_with_steps_satisfy_protocols() -> None:
    assert_type(use(Loader()), object)
    assert_type(await work(Worker()), str)
    loader: Loads = Loader()
    print(loader)


def steps_satisfy_callback_protocols() -> None:
    assert_type(call(read), str)


async def steps_satisfy_callables() -> None:
    def run(function: Callable[[int], Awaitable[float]]) -> Awaitable[float]:
        return function(1)

    assert_type(await run(Worker().score), float)


async def wrong_classes_are_found() -> None:
    use(Worker())  # type: ignore[arg-type]
    await work(Loader())  # type: ignore[arg-type]
    measured: Measures = Loader()  # type: ignore[assignment]
    print(measured)
    call(Loader().load)  # type: ignore[arg-type]
