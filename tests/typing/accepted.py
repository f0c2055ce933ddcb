"""What the type checkers have to see in code that uses oncemore. Read by mypy and pyright (`make check`); what is accepted
is also run, by `tests/unit/test_typed_code.py`.

`assert_type` is what has to be inferred; a line with `type: ignore[...]` is an error that has to be found, since an
ignore without an error is itself reported. This folder is no package: it would hide the standard library's `typing`
from programs started in `tests`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from typing_extensions import assert_type

from oncemore import Fingerprint, Results, Run, Step, checkpoint_scope, checkpointed, current_run, memoized

T = TypeVar("T")


@checkpointed
def plain(path: str, limit: int = 10) -> list[int]:
    """A step without options."""
    return [len(path)] * limit


@checkpointed()
def with_parentheses(path: str) -> int:
    """A step with no options in parentheses."""
    return len(path)


@checkpointed(
    name="load",
    version="2",
    ignore=["client"],
    key={"path": str.lower},
    code="own",
    share=True,
    expires="1d",
    every_call=True,
    inputs=("path",),
)
def with_options(path: str, *, client: object = None) -> dict[str, float]:
    """A step with options."""
    return {path: 1.0}


@checkpointed
async def awaited(row: str) -> bytes:
    """A coroutine function."""
    return row.encode()


@checkpointed
def items(count: int) -> Iterator[str]:
    """A generator function."""
    yield from map(str, range(count))


@checkpointed
async def later_items(count: int) -> AsyncIterator[str]:
    """An async generator function."""
    yield str(count)


@checkpointed
def generic(value: T) -> list[T]:
    """A generic function."""
    return [value]


@memoized
def remembered(currency: str) -> float:
    """Memoized without options."""
    return float(len(currency))


@memoized(expires="1d", ignore=["client"])
async def remembered_later(currency: str, client: object) -> float:
    """Memoized with options."""
    return float(len(currency))


class Model:
    """Methods of every kind."""

    @checkpointed
    def fit(self, rows: list[int], *, rate: float = 0.1) -> Model:
        return self

    @checkpointed(version="1")
    async def score(self, row: int) -> float:
        return float(row)

    @staticmethod
    @checkpointed
    def check(row: int) -> bool:
        return bool(row)

    @checkpointed
    @staticmethod
    def clean(row: int) -> str:
        return str(row)

    @checkpointed
    def rows(self, count: int) -> Iterator[int]:
        yield from range(count)


class Inheriting(Model):
    """A class that inherits steps."""

    def total(self, count: int) -> int:
        return sum(self.rows(count))


def results_keep_their_types() -> None:
    assert_type(plain("a"), list[int])
    assert_type(plain("a", limit=3), list[int])
    assert_type(with_parentheses("a"), int)
    assert_type(with_options("a"), dict[str, float])
    assert_type(items(3), Iterator[str])
    assert_type(later_items(3), AsyncIterator[str])
    assert_type(generic(1), list[int])
    assert_type(remembered("EUR"), float)
    assert_type(checkpointed(len)("abc"), int)
    assert_type(plain.__wrapped__("a"), list[int])
    assert_type(plain.__name__, str)


async def awaiting_gives_the_result() -> None:
    assert_type(await awaited("a"), bytes)
    assert_type(await Model().score(1), float)
    assert_type(await remembered_later("EUR", object()), float)
    assert_type(await awaited.refresh("a"), bytes)


def methods_are_bound() -> None:
    model = Model()
    assert_type(model.fit([1]), Model)
    assert_type(model.fit([1], rate=0.5).fit([2]), Model)
    assert_type(Model.fit(model, [1]), Model)
    assert_type(Model.check(1), bool)
    assert_type(Model.clean(1), str)
    assert_type(model.rows(2), Iterator[int])
    assert_type(Inheriting().total(3), int)
    assert_type(model.fit.is_done([1]), bool)
    assert_type(model.fit.refresh([1]), Model)


def steps_can_be_asked() -> None:
    assert_type(plain.is_done("a"), bool)
    assert_type(plain.forget("a", limit=3), bool)
    assert_type(plain.refresh("a"), list[int])
    assert_type(plain.fingerprint("a"), Fingerprint)
    remembered.recall("EUR")


def steps_are_callables() -> None:
    one: Callable[[str], list[int]] = plain
    two: Callable[[str], Coroutine[Any, Any, bytes]] = awaited
    three: Step[[str], int] = with_parentheses
    map(plain, ["a", "b"])
    print(one, two, three)


async def scopes_give_their_run() -> None:
    with checkpoint_scope("a", store="./.oncemore", workflow="churn", strict=True) as run:
        assert_type(run, Run)
        assert_type(run.id, str)
    async with checkpoint_scope() as other:
        assert_type(other, Run)
    assert_type(current_run(), "Run | None")


async def maps_give_results(run: Run) -> None:
    assert_type(run.map(plain, ["a"], [1], concurrency=2), Results)
    assert_type(run.map(with_options, ["a"], client=None), Results)
    assert_type(run.starmap(plain, [("a", 1)]), Results)
    assert_type(await run.map(awaited, ["a"]), Results)
    assert_type(await run.starmap(remembered_later, [("EUR", 1)]), Results)


async def wrong_calls_are_found() -> None:
    plain(3)  # type: ignore[arg-type]
    plain("a", depth=3)  # type: ignore[call-arg]
    with_options()  # type: ignore[call-arg]
    remembered(3)  # type: ignore[arg-type]
    Model().fit("rows")  # type: ignore[arg-type]
    Model.clean("row")  # type: ignore[arg-type]
    Model().fit()  # type: ignore[call-arg]
    plain.is_done(3)  # type: ignore[arg-type]
    plain.refresh()  # type: ignore[call-arg]
    plain.forgot("a")  # type: ignore[attr-defined]
    (await awaited("a")).encode()  # type: ignore[attr-defined]
    Model().fit.is_done("rows")  # type: ignore[arg-type]


def wrong_options_are_found() -> None:
    checkpointed(ignored=["client"])  # type: ignore[call-overload]
    checkpointed(code="shallow")  # type: ignore[call-overload]
    memoized(share=True)  # type: ignore[call-overload]
    memoized(expired="1d")  # type: ignore[call-overload]
    checkpoint_scope(3)  # type: ignore[arg-type]
    checkpoint_scope("a", "./.oncemore")  # type: ignore[call-arg]
