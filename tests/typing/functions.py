"""Steps of functions: with and without options, coroutines, generators, generic ones.

What the type checkers have to see in code that uses oncemore, one file per theme. Read by mypy and pyright (`make check`);
what they accept is also run, by `tests/unit/test_typed_code.py`.

`assert_type` is what has to be inferred; a line with `type: ignore[...]` is an error that has to be found, since an
ignore without an error is itself reported; `pyright: ignore[...]` is an error that only pyright finds. This folder is no
package: it would hide the standard library's `typing` from programs started in `tests`.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from tenacity import AsyncRetrying, Retrying, stop_after_attempt
from typing_extensions import assert_type

from oncemore import Step, checkpointed, memoized

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
    retries=3,
    timeout="30s",
)
def with_options(path: str, *, client: object = None) -> dict[str, float]:
    """A step with options."""
    return {path: 1.0}


@checkpointed(retries=Retrying(stop=stop_after_attempt(3)), timeout=2.5)
async def with_a_policy(path: str) -> int:
    """A step that is tried again as tenacity says."""
    return len(path)


@checkpointed
def without_parameters() -> int:
    """A step that takes nothing."""
    return 1


@checkpointed
def of_any_number(*numbers: int) -> int:
    """A step that takes any number of arguments."""
    return sum(numbers)


@checkpointed
def of_anything(*args: object, **kwargs: object) -> int:
    """A step that takes whatever it is given."""
    return len(args) + len(kwargs)


@checkpointed
async def awaited(row: str) -> bytes:
    """A coroutine function."""
    return row.encode()


@checkpointed(version="1")
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


def results_keep_their_types() -> None:
    assert_type(plain("a"), list[int])
    assert_type(plain("a", limit=3), list[int])
    assert_type(with_parentheses("a"), int)
    assert_type(with_options("a"), dict[str, float])
    assert_type(without_parameters(), int)
    assert_type(of_any_number(1, 2, 3), int)
    assert_type(of_anything(), int)
    assert_type(of_anything(1, "2", three=3), int)
    assert_type(items(3), Iterator[str])
    assert_type(next(items(3)), str)
    assert_type(later_items(3), AsyncIterator[str])
    assert_type(generic(1), list[int])
    assert_type(remembered("EUR"), float)
    assert_type(checkpointed(len)("abc"), int)


def steps_have_the_attributes_of_functions() -> None:
    assert_type(plain.__wrapped__("a"), list[int])
    assert_type(plain.__name__, str)
    assert_type(plain.name, str)


async def awaiting_gives_the_result() -> None:
    assert_type(await awaited("a"), bytes)
    assert_type(await with_a_policy("a"), int)
    assert_type(await remembered_later("EUR", object()), float)
    async for item in later_items(1):
        assert_type(item, str)


def steps_are_callables() -> None:
    def call(function: Callable[[str], T]) -> T:
        return function("a")

    one: Callable[[str], list[int]] = plain
    two: Callable[[str], Coroutine[Any, Any, bytes]] = awaited
    three: Step[[str], int] = with_parentheses
    print(one, two, three)
    assert_type(call(with_parentheses), int)
    assert_type(list(map(with_parentheses, ["a", "b"])), list[int])
    assert_type(sorted(["b", "a"], key=with_parentheses), list[str])
    assert_type(functools.partial(plain, limit=2)("a"), list[int])
    assert_type(functools.reduce(of_any_number, [1, 2]), int)


async def wrong_calls_are_found() -> None:
    plain(3)  # type: ignore[arg-type]
    plain("a", depth=3)  # type: ignore[call-arg]
    with_options()  # type: ignore[call-arg]
    without_parameters(3)  # type: ignore[call-arg]
    of_any_number("a")  # type: ignore[arg-type]
    remembered(3)  # type: ignore[arg-type]
    plain.forgot("a")  # type: ignore[attr-defined]
    (await awaited("a")).encode()  # type: ignore[attr-defined]
    map(plain, [3])  # type: ignore[arg-type]
    functools.partial(plain, 3)  # type: ignore[arg-type]


def wrong_types_are_found() -> None:
    one: Callable[[int], list[int]] = plain  # type: ignore[assignment]
    two: Callable[[str], list[str]] = plain  # type: ignore[assignment]
    three: Step[[str], str] = with_parentheses  # type: ignore[assignment]
    print(one, two, three)


def wrong_options_are_found() -> None:
    checkpointed(ignored=["client"])  # type: ignore[call-overload]
    checkpointed(code="shallow")  # type: ignore[call-overload]
    memoized(share=True)  # type: ignore[call-overload]
    memoized(expired="1d")  # type: ignore[call-overload]
    checkpointed(3)  # type: ignore[call-overload]
    checkpointed(retries="3")  # type: ignore[call-overload]
    checkpointed(retries=AsyncRetrying())  # type: ignore[call-overload]
    checkpointed(timeout=[1])  # type: ignore[call-overload]
