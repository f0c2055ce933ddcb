"""What is read off a function's code is what `inspect` says."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from oncemore.fingerprint.binding import Binder
from oncemore.functions import EMPTY, kind_of, parameters_of

PARAMETERS = [
    "",
    "a",
    "a, b=1",
    "a, /",
    "a, /, b",
    "a=1, /, b=2",
    "a, /, b, c=3, *rest, d, e=5, **more",
    "*rest",
    "**more",
    "*rest, **more",
    "*, only",
    "*, only=1, other",
    "*rest, only, other=2",
    "a, *, only=None, **more",
    "a=None, *rest, **more",
]


class Callable_:
    def __call__(self, a: Any, b: Any = 2) -> Any: ...

    def method(self, a: Any, *, b: Any = 1) -> Any: ...


def wrapped() -> Any:
    @functools.wraps(Callable_.method)
    def around(*args: Any, **kwargs: Any) -> Any: ...

    return around


def signed() -> Any:
    def function(*args: Any) -> Any: ...

    function.__signature__ = inspect.signature(lambda x, y=2: None)  # type: ignore[attr-defined]
    return function


def labelled() -> Any:
    def function(a: Any, b: Any = 1) -> Any: ...

    function.label = 1  # type: ignore[attr-defined]
    return function


def with_locals(a: Any, b: Any = 1, *rest: Any, c: Any) -> Any:
    d = a
    e = lambda: d + b  # a cell, and a local name after the parameters
    return e


OTHERS: dict[str, Any] = {
    "a callable object": Callable_(),
    "a method": Callable_().method,
    "a partial": functools.partial(with_locals, 1),
    "a wrapper": wrapped(),
    "one with a signature of its own": signed(),
    "one with an attribute": labelled(),
    "one with local names and cells": with_locals,
    "a builtin": len,
}
FUNCTIONS = {**{words: eval(f"lambda {words}: locals()") for words in PARAMETERS}, **OTHERS}


@pytest.mark.parametrize("which", FUNCTIONS)
def test_parameters_are_those_that_inspect_finds(which: str) -> None:
    expected = inspect.signature(FUNCTIONS[which]).parameters.values()
    found = parameters_of(FUNCTIONS[which])
    assert [(p.name, p.kind) for p in found] == [(p.name, p.kind) for p in expected]
    assert [None if p.default is EMPTY else (p.default,) for p in found] == [
        None if p.default is p.empty else (p.default,) for p in expected
    ]


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((1, 2), {}),
    ((1, 2, 3, 4), {"d": 5}),
    ((), {"a": 1}),
    ((1,), {"b": 2, "d": 4, "only": 3, "x": 5}),
    ((), {"only": 1, "other": 2}),
    ((), {"d": 1, "a": 2, "b": 3}),
]


@pytest.mark.parametrize("which", PARAMETERS)
def test_a_call_is_bound_as_python_binds_it(which: str) -> None:
    function, binder = FUNCTIONS[which], Binder(FUNCTIONS[which])
    for args, kwargs in CALLS:
        try:
            expected = function(*args, **kwargs)
        except TypeError:
            with pytest.raises(TypeError):
                binder.bind(*args, **kwargs)
        else:
            assert dict(zip(binder.names, binder.bind(*args, **kwargs))) == expected


def test_a_builtin_that_does_not_tell_is_an_error() -> None:
    with pytest.raises(ValueError):
        parameters_of(iter)


async def coroutine() -> None: ...


def generator() -> Any:
    yield 1


async def async_generator() -> Any:
    yield 1


class Methods:
    async def coroutine(self) -> None: ...


def kinds() -> dict[str, tuple[Callable[..., Any], str]]:
    @functools.wraps(coroutine)
    def around() -> Any: ...

    return {
        "a function": (with_locals, "function"),
        "a coroutine function": (coroutine, "coroutine"),
        "a generator function": (generator, "generator"),
        "an async generator function": (async_generator, "async generator"),
        "a method": (Methods().coroutine, "coroutine"),
        "a partial": (functools.partial(async_generator), "async generator"),
        "a plain function around a coroutine function": (around, "function"),
        "a builtin": (len, "function"),
    }


@pytest.mark.parametrize("which", kinds())
def test_the_kind_of_a_function(which: str) -> None:
    function, expected = kinds()[which]
    assert kind_of(function) == expected


@pytest.mark.skipif(not hasattr(inspect, "markcoroutinefunction"), reason="marks came with Python 3.12")
def test_a_function_that_is_marked_as_a_coroutine_function_is_one() -> None:
    assert kind_of(inspect.markcoroutinefunction(lambda: coroutine())) == "coroutine"  # type: ignore[attr-defined]
