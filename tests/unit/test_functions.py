"""What steps know of the functions behind them: their parameters, and what a call of them gives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from oncemore import checkpointed
from oncemore.fingerprint.binding import Binder
from tests.processes import Script

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


@pytest.mark.parametrize("words", PARAMETERS)
def test_a_call_is_bound_as_python_binds_it(words: str) -> None:
    function = eval(f"lambda {words}: locals()")
    binder = Binder(function)
    for args, kwargs in CALLS:
        try:
            expected = function(*args, **kwargs)
        except TypeError:
            with pytest.raises(TypeError):
                binder.bind(*args, **kwargs)
        else:
            assert dict(zip(binder.names, binder.bind(*args, **kwargs))) == expected


class Methods:
    def __call__(self, a: Any, b: Any = 2) -> Any: ...

    def method(self, a: Any, *, b: Any = 1) -> Any: ...

    async def coroutine(self) -> None: ...


def wrapper() -> Any:
    @functools.wraps(Methods.method)
    def around(*args: Any, **kwargs: Any) -> Any: ...

    return around


def signed() -> Any:
    def function(*args: Any) -> Any: ...

    function.__signature__ = inspect.signature(lambda x, y=2: None)  # type: ignore[attr-defined]
    return function


CALLABLES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a callable object": (Methods(), ("a", "b")),
    "a method": (Methods().method, ("a", "b")),
    "a partial": (functools.partial(lambda a, b=1, *rest, c: None, 1), ("b", "rest", "c")),
    "a wrapper": (wrapper(), ("self", "a", "b")),
    "one with a signature of its own": (signed(), ("x", "y")),
    "a builtin": (len, ("obj",)),
}


@pytest.mark.parametrize("which", CALLABLES)
def test_parameters_are_those_that_inspect_finds(which: str) -> None:
    function, names = CALLABLES[which]
    assert Binder(function).names == names


def test_a_builtin_that_does_not_tell_is_an_error() -> None:
    with pytest.raises(ValueError):
        Binder(iter)


async def coroutine() -> None: ...


def generator() -> Any:
    yield 1


async def async_generator() -> Any:
    yield 1


def plain() -> None: ...


def around_a_coroutine() -> Any:
    @functools.wraps(coroutine)
    def around() -> None: ...

    return around


KINDS: dict[str, tuple[Callable[..., Any], str]] = {
    "a function": (plain, "NoneType"),
    "a coroutine function": (coroutine, "coroutine"),
    "a generator function": (generator, "generator"),
    "an async generator function": (async_generator, "async_generator"),
    "a method": (Methods().coroutine, "coroutine"),
    "a partial": (functools.partial(async_generator), "async_generator"),
    "a plain function around a coroutine function": (around_a_coroutine(), "NoneType"),
}


@pytest.mark.parametrize("which", KINDS)
def test_a_call_of_a_step_gives_what_a_call_of_its_function_gives(which: str) -> None:
    function, kind = KINDS[which]
    for called in (function, checkpointed(function)):
        given = called()
        assert type(given).__name__ == kind
        if inspect.iscoroutine(given):
            given.close()


@pytest.mark.skipif(not hasattr(inspect, "markcoroutinefunction"), reason="marks came with Python 3.12")
def test_a_function_that_is_marked_as_a_coroutine_function_is_one() -> None:
    marked = checkpointed(inspect.markcoroutinefunction(lambda: coroutine()))  # type: ignore[attr-defined]
    assert inspect.iscoroutinefunction(marked)


def test_ctrl_c_that_is_caught_while_a_step_is_made_does_not_end_the_program(script: Script) -> None:
    """Python kills a program that ends after Ctrl-C hit what `exec` or `eval` made of a text, though it was caught."""
    done = script("""
        import signal
        from oncemore.fingerprint.binding import Binder

        signal.signal(signal.SIGALRM, signal.default_int_handler)
        made = {"<parameters>", "<string>"}  # what came from a text
        for number in range(20_000):
            inside = set()
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + number % 100 * 3e-6)
                Binder(lambda one, two=2, *three: None)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt as error:
                trace = error.__traceback__
                while trace is not None:
                    code = trace.tb_frame.f_code
                    inside.add(code.co_filename if code.co_name == "<module>" else "")
                    trace = trace.tb_next
            if inside & made:
                break  # the next time would make up for it
        print("ended", bool(inside & made))
    """)
    assert (done.code, done.lines) == (0, ["ended True"])
