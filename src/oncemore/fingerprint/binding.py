"""Arguments in one order, however the call spelled them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..functions import EMPTY, KEYWORD_ONLY, POSITIONAL_ONLY, VAR_KEYWORD, VAR_POSITIONAL, Parameter, parameters_of


class Binder:
    """`binder(*args, **kwargs)` gives the tuple of all parameters' values, defaults filled in.

    The work is done by a lambda of the same signature, so that the interpreter itself does the binding.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        parameters = parameters_of(function)
        self.names = tuple(p.name for p in parameters)
        self.bind: Callable[..., tuple[Any, ...]] = _compile(parameters)


def _compile(parameters: list[Parameter]) -> Callable[..., tuple[Any, ...]]:
    words: list[str] = []
    for i, p in enumerate(parameters):
        if p.kind == KEYWORD_ONLY and not any(q.kind in (VAR_POSITIONAL, KEYWORD_ONLY) for q in parameters[:i]):
            words.append("*")
        star = "*" if p.kind == VAR_POSITIONAL else "**" if p.kind == VAR_KEYWORD else ""
        words.append(star + p.name + ("" if p.default is EMPTY else "=None"))
        following = parameters[i + 1].kind if i + 1 < len(parameters) else None
        if p.kind == POSITIONAL_ONLY and following != POSITIONAL_ONLY:
            words.append("/")
    values = "".join(f"{p.name}," for p in parameters)
    source = f"lambda {', '.join(words)}: ({values})"  # the names are a real signature's
    binder = eval(compile(source, "<parameters>", "eval"))  # compiled: see facts.py
    given = [p for p in parameters if p.default is not EMPTY]
    binder.__defaults__ = tuple(p.default for p in given if p.kind != KEYWORD_ONLY)
    binder.__kwdefaults__ = {p.name: p.default for p in given if p.kind == KEYWORD_ONLY}
    bound: Callable[..., tuple[Any, ...]] = binder
    return bound
