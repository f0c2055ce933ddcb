"""Finds the statements by which methods fill attributes: with a client on first use, or with an unseeded generator."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

from ...modules import is_project_module, module_of
from ..values.inert import once_per_type
from .bytecode_reads import reads

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Filled(NamedTuple):
    """A statement `self.name = value` in a method.

    `looks`: the method checks first whether there is a value; `absent`: whether there is such an attribute at all.
    """

    name: str
    value: ast.expr
    method: str
    looks: bool
    absent: bool
    defaults: frozenset[str]  # parameters of the method whose default is None


@once_per_type
def filled(kind: type) -> tuple[Filled, ...]:
    """The statements by which the methods of a class and its bases fill attributes, as far as they are the project's."""
    found: list[Filled] = []
    for base in kind.__mro__:
        if is_project_module(module_of(base)):
            for member in list(vars(base).values()):
                function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
                function = inspect.unwrap(function) if callable(function) else function
                if type(function) is FunctionType and reads(function.__code__).stored:
                    found += _in_method(function)
    return tuple(found)


@once_per_type
def made_when_needed(kind: type) -> dict[str, bool]:
    """The attributes that are filled on first use and in no other way; whether they are absent until then."""
    found, filled_otherwise = dict[str, bool](), set[str]()
    for each in filled(kind):
        if each.looks and each.method != "__init__":
            found[each.name] = each.absent
        elif not (isinstance(each.value, ast.Constant) and each.value.value is None):
            filled_otherwise.add(each.name)
    fields: Any = getattr(kind, "__dataclass_fields__", {})
    filled_otherwise.update(name for name in found if name in fields and fields[name].init)
    return {name: absent for name, absent in found.items() if name not in filled_otherwise}


def _in_method(function: FunctionType) -> Iterator[Filled]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return
    if not isinstance(tree, _Function):
        return
    arguments = tree.args.posonlyargs + tree.args.args
    if not arguments:
        return
    own, nodes = arguments[0].arg, list(ast.walk(tree))
    tests = [part for each in nodes if (test := getattr(each, "test", None)) is not None for part in ast.walk(test)]
    tests += [part for each in nodes if isinstance(each, ast.BoolOp) for part in ast.walk(each)]
    tried = any(isinstance(each, ast.ExceptHandler) and _catches(each, "AttributeError") for each in nodes)
    defaulted = [
        *zip(reversed(arguments), reversed(tree.args.defaults)),
        *zip(tree.args.kwonlyargs, tree.args.kw_defaults),
    ]
    defaults = frozenset(
        name.arg for name, value in defaulted if isinstance(value, ast.Constant) and value.value is None
    )
    for each in nodes:
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        value = getattr(each, "value", None)
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == own:
                name = target.attr
                absent = tried or any(isinstance(part, ast.Constant) and part.value == name for part in tests)
                looks = absent or any(isinstance(part, ast.Attribute) and part.attr == name for part in tests)
                if value is not None and not isinstance(each, ast.AugAssign):
                    yield Filled(name, value, tree.name, looks, absent, defaults)


def _catches(handler: ast.ExceptHandler, name: str) -> bool:
    return handler.type is not None and any(
        isinstance(each, ast.Name) and each.id == name for each in ast.walk(handler.type)
    )
