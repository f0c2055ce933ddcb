"""Arguments in one order, however the call spelled them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any


class Binder:
    """`binder(*args, **kwargs)` gives the tuple of all parameters' values, defaults filled in.

    The work is done by a lambda of the same signature, so that the interpreter itself does the binding.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        self.names = tuple(p.name for p in parameters)
        self.kinds = tuple(p.kind for p in parameters)
        self.bind: Callable[..., tuple[Any, ...]] = _compile(parameters)


def _compile(parameters: list[Parameter]) -> Callable[..., tuple[Any, ...]]:
    words: list[str] = []
    for i, p in enumerate(parameters):
        if p.kind is Parameter.KEYWORD_ONLY and not any(
            q.kind in (Parameter.VAR_POSITIONAL, Parameter.KEYWORD_ONLY) for q in parameters[:i]
        ):
            words.append("*")
        star = "*" if p.kind is Parameter.VAR_POSITIONAL else "**" if p.kind is Parameter.VAR_KEYWORD else ""
        words.append(star + p.name + ("" if p.default is Parameter.empty else "=None"))
        following = parameters[i + 1].kind if i + 1 < len(parameters) else None
        if p.kind is Parameter.POSITIONAL_ONLY and following is not Parameter.POSITIONAL_ONLY:
            words.append("/")
    values = "".join(f"{p.name}," for p in parameters)
    binder = eval(f"lambda {', '.join(words)}: ({values})")  # the names are a real signature's
    given = [p for p in parameters if p.default is not Parameter.empty]
    binder.__defaults__ = tuple(p.default for p in given if p.kind is not Parameter.KEYWORD_ONLY)
    binder.__kwdefaults__ = {p.name: p.default for p in given if p.kind is Parameter.KEYWORD_ONLY}
    bound: Callable[..., tuple[Any, ...]] = binder
    return bound
