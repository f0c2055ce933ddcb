"""What a function is and takes, read off its code.

Only what is more than a plain function is left to `inspect`: loading that takes as long as a few hundred calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Literal, NamedTuple

from .modules import loading

# The numbers are those of `inspect`, by which it says what kind a parameter is.
POSITIONAL_ONLY, POSITIONAL_OR_KEYWORD, VAR_POSITIONAL, KEYWORD_ONLY, VAR_KEYWORD = range(5)
EMPTY: Any = type("EMPTY", (), {})  # stands for no default

_VARARGS, _VARKEYWORDS = 0x04, 0x08  # flags of code objects
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200

Kind = Literal["function", "generator", "coroutine", "async generator"]


class Parameter(NamedTuple):
    name: str
    kind: int
    default: Any = EMPTY


def _plain(function: Any) -> bool:
    """Whether its code says it all: no wrapper, no signature or mark that was put on it."""
    return type(function) is FunctionType and not function.__dict__


def name_of(function: Any) -> str:
    """What people call it."""
    if isinstance(function, partial):
        return name_of(function.func)
    return getattr(function, "__qualname__", type(function).__qualname__)


def kind_of(function: Callable[..., Any]) -> Kind:
    """What a call gives: a value, or something that is to be awaited or iterated over."""
    if _plain(function):
        flags = function.__code__.co_flags
        generator, coroutine, both = flags & _GENERATOR, flags & _COROUTINE, flags & _ASYNC_GENERATOR
    else:
        with loading:
            import inspect
        generator, coroutine = inspect.isgeneratorfunction(function), inspect.iscoroutinefunction(function)
        both = inspect.isasyncgenfunction(function)
    return "coroutine" if coroutine else "generator" if generator else "async generator" if both else "function"


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters in order. ValueError if it is a builtin that does not tell."""
    if _plain(function):
        return _parameters(function)
    with loading:
        import inspect
    found = inspect.signature(function).parameters.values()
    return [Parameter(p.name, int(p.kind), EMPTY if p.default is p.empty else p.default) for p in found]


def _parameters(function: Any) -> list[Parameter]:
    code, by_name = function.__code__, function.__kwdefaults__ or {}
    count, first = code.co_argcount, code.co_posonlyargcount
    end = count + code.co_kwonlyargcount
    names = code.co_varnames
    defaults = (*[EMPTY] * (count - len(function.__defaults__ or ())), *(function.__defaults__ or ()))
    kinds = [POSITIONAL_ONLY] * first + [POSITIONAL_OR_KEYWORD] * (count - first)
    found = [Parameter(*each) for each in zip(names, kinds, defaults)]
    if code.co_flags & _VARARGS:
        found.append(Parameter(names[end], VAR_POSITIONAL))
    found += [Parameter(name, KEYWORD_ONLY, by_name.get(name, EMPTY)) for name in names[count:end]]
    if code.co_flags & _VARKEYWORDS:
        found.append(Parameter(names[end + bool(code.co_flags & _VARARGS)], VAR_KEYWORD))
    return found
