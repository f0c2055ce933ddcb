"""All functions of a source text: what each compiles to, and what its syntax tree says.

A text is parsed, compiled and walked in one go, and the tree is dropped: it takes more memory than all else here.
"""

from __future__ import annotations
import __future__

import ast
import functools
import marshal
import operator
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from .tree import constant, digest_of_tree, hashed

FUTURES: int = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
EDITION = 1  # of what a listing says, and how `key_of` says it: listings of another edition don't count

_HOLD_STATEMENTS = frozenset(["body", "orelse", "finalbody", "handlers", "cases"])
T = TypeVar("T")
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Nodes: TypeAlias = dict[tuple[str, int], tuple[_Function, int, int]]

# A function: its first and last line, decorators included, and what `digest_of_tree` says of it; plain values, to be kept.
Listed: TypeAlias = tuple[int, int, bytes, frozenset[str], tuple[tuple[str, int, str | None, bool], ...]]


class Listing(NamedTuple):
    """Functions by what they compile to (`key_of`), and for display the lines of classes by their qualified names."""

    functions: dict[bytes, list[Listed]]
    classes: dict[str, tuple[int, int]]

    def find(self, code: CodeType) -> Listed | None:
        """The function that compiles to exactly this code; of several, any would do, and the nearest is shown."""
        found = self.functions.get(key_of(code), ())
        return min(found, key=lambda each: abs(each[0] - code.co_firstlineno), default=None)


def make(text: bytes, path: str, futures: int, lambdas: bool) -> Listing:
    """List a text's `def`s, or its lambdas: they need a compilation of their own, and are seldom asked for."""
    tree = _steadily(lambda: ast.parse(text, path))
    nodes = _marked(tree, 1 + text.count(b"\n")) if lambdas else _defined(tree)
    flags = futures | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook
    compiled: CodeType = _steadily(lambda: compile(tree, path, "exec", flags=flags, dont_inherit=True))
    functions: dict[bytes, list[Listed]] = {}
    for code in _all_codes(compiled):
        if (code.co_name, code.co_firstlineno) in nodes:
            node, first, last = nodes[code.co_name, code.co_firstlineno]
            digest, names, imports = digest_of_tree(node)
            plain = tuple([(each.module, each.level, each.name, each.escapes) for each in imports])
            functions.setdefault(key_of(code), []).append((first, last, digest, names, plain))
    return Listing(functions, dict(_classes(tree.body, "")))


def _steadily(build: Callable[[], T], attempts: int = 20) -> T:
    """Python 3.11 raises SystemError now and then when threads make syntax trees at the same time (its issue 106905)."""
    while True:
        try:
            return build()
        except SystemError:
            attempts -= 1
            if not attempts:
                raise


def _defined(tree: ast.Module) -> _Nodes:
    """All `def`s, by the names and lines that their code will have. No look into expressions, which hold none."""
    found: _Nodes = {}
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first, last = _lines(node)
            found[node.name, first] = node, first, last
        for field in _HOLD_STATEMENTS.intersection(node._fields):
            inside = getattr(node, field)
            stack.extend(inside if isinstance(inside, list) else ())
    return found


def _marked(tree: ast.Module, line: int) -> _Nodes:
    """All lambdas. Several may stand on one line, so each is given a line of its own beyond the last."""
    found: _Nodes = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            line += 1
            found["<lambda>", line] = node, *_lines(node)
            node.lineno = node.end_lineno = line
            node.end_col_offset = node.col_offset
    return found


def _classes(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for node in reversed(body):  # of two with one name, the first counts
        if isinstance(node, ast.ClassDef):
            yield from _classes(node.body, f"{prefix}{node.name}.")
            yield prefix + node.name, _lines(node)


def _lines(node: _Function | ast.ClassDef) -> tuple[int, int]:
    """The first line as the compiler sees it, that of the first decorator, and the last."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    first = decorators[0].lineno if decorators else node.lineno
    return first, node.end_lineno or first


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield item
            yield from _all_codes(item)


# --- what a code object does ----------------------------------------------------------------------------------------

COUNTING = (
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_flags",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_exceptiontable",
)
_all_of = operator.attrgetter(
    *(name for name in ("co_name", "co_qualname", "co_code", *COUNTING) if hasattr(CodeType, name))
)


def key_of(code: CodeType) -> bytes:
    """Equal for code objects that do the same. Lines and file names don't matter.

    ValueError if it has a constant that no compiler makes.
    """
    return hashed(marshal.dumps(_plain(code), 2))  # in this format, what is equal is written equally


def _plain(value: Any) -> Any:
    """Constants as they are written equally in every process. No constant is a list, so those stand for the others."""
    if isinstance(value, CodeType):
        return [*_all_of(value), *map(_plain, value.co_consts)]
    if isinstance(value, frozenset):
        return [None, *sorted(map(constant, value))]
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value
