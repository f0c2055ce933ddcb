"""What a function is and takes, for files that do not ask `inspect` themselves yet. Goes with the last of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from inspect import Parameter as Parameter
from typing import Any, Literal

POSITIONAL_ONLY, VAR_POSITIONAL = Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL
KEYWORD_ONLY, VAR_KEYWORD = Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD
EMPTY: Any = Parameter.empty

Kind = Literal["function", "generator", "coroutine", "async generator"]


def name_of(function: Any) -> str:
    """What people call it."""
    if isinstance(function, partial):
        return name_of(function.func)
    return getattr(function, "__qualname__", type(function).__qualname__)


def kind_of(function: Callable[..., Any]) -> Kind:
    """What a call gives: a value, or something that is to be awaited or iterated over."""
    if inspect.iscoroutinefunction(function):
        return "coroutine"
    if inspect.isgeneratorfunction(function):
        return "generator"
    return "async generator" if inspect.isasyncgenfunction(function) else "function"


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters in order. ValueError if it is a builtin that does not tell."""
    return list(inspect.signature(function).parameters.values())
