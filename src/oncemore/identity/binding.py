"""Arguments in one order, however the call passes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

_STARS: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


class Binder:
    """`binder.bind(*args, **kwargs)` returns a tuple of all parameters' values, with defaults filled in.

    It is a lambda with the same signature, so that the interpreter does the binding: `inspect.Signature.bind` takes
    thirty times as long.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.parameters = parameters = tuple(inspect.signature(function).parameters.values())
        self.names = tuple(p.name for p in parameters)
        self.bind: Callable[..., tuple[Any, ...]] = _compile(parameters)


def _compile(parameters: Sequence[Parameter]) -> Callable[..., tuple[Any, ...]]:
    words: list[str] = []
    for i, p in enumerate(parameters):
        if p.kind == p.KEYWORD_ONLY and not any(q.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY) for q in parameters[:i]):
            words.append("*")
        words.append(_STARS.get(p.kind, "") + p.name + ("" if p.default is p.empty else "=None"))
        following = parameters[i + 1].kind if i + 1 < len(parameters) else None
        if p.kind == p.POSITIONAL_ONLY and following != p.POSITIONAL_ONLY:
            words.append("/")
    values = "".join(f"{p.name}," for p in parameters)
    source = f"lambda {', '.join(words)}: ({values})"  # the names are a real signature's
    # Compiled first: if Ctrl-C interrupts eval() of a string, Python exits as if killed, even if the exception is caught.
    binder = eval(compile(source, "<parameters>", "eval"))
    given = [p for p in parameters if p.default is not p.empty]
    binder.__defaults__ = tuple(p.default for p in given if p.kind != p.KEYWORD_ONLY)
    binder.__kwdefaults__ = {p.name: p.default for p in given if p.kind == p.KEYWORD_ONLY}
    bound: Callable[..., tuple[Any, ...]] = binder
    return bound
