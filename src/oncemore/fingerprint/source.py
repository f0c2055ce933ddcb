"""The source of a function, if it is what is loaded, in a form that only behaviour changes.

A file may have been edited since its module was imported. So the file is compiled again, and only where that gives
the very code that is running does its syntax tree speak for the function. Otherwise the code object does.
"""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeAlias, TypeVar

from .reach import CONSTANTS, instructions, reads
from .tree import Import, constant, digest_of_tree, hashed

_FUTURES: int = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)

T = TypeVar("T")
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Own:
    """What a function is by itself.

    `names` are the names that stand in its tree, None without source: then nobody knows which of them are annotations.
    """

    digest: bytes
    imports: tuple[Import, ...]
    names: frozenset[str] | None = None
    line: int = 0
    text: str = ""


_owns: dict[tuple[str, CodeType], Own] = {}
_files: dict[str, _File] = {}


def own(code: CodeType, namespace: dict[str, Any]) -> Own:
    """The function's own identity: its tree, or else its code object."""
    key = (code.co_filename, code)  # equal code at the same place: names, constants and lines agree
    known = _owns.get(key)
    if known is None:
        if len(_owns) > 20_000:  # programs that make code as they go
            _owns.clear()
        known = _owns[key] = _from_source(code, namespace) or Own(
            _digest_of_code(code), reads(code).imports, line=code.co_firstlineno
        )
    return known


def _from_source(code: CodeType, namespace: dict[str, Any]) -> Own | None:
    path = code.co_filename
    file = _files.get(path)
    node = file.find(code) if file is not None else None
    if file is None or node is None:
        text = _read(path, namespace)
        if text is None or (file is not None and file.text == text):
            return None
        file = _open(text, path)
        node = file.find(code) if file is not None else None
        if file is None or node is None:
            return None
    digest, names, imports = digest_of_tree(node)
    return Own(digest, imports, names, first_line(node), file.segment(node))


def _open(text: bytes, path: str) -> _File | None:
    """The file parsed, and remembered."""
    try:
        file = _File(text, path)
    except (SyntaxError, ValueError, RecursionError):  # ValueError: a NUL byte
        return None
    if len(_files) > 500:
        _files.clear()
    _files[path] = file
    return file


def _steadily(build: Callable[[], T], attempts: int = 20) -> T:
    """Python 3.11 raises SystemError now and then when threads make syntax trees at the same time (its issue 106905)."""
    while True:
        try:
            return build()
        except SystemError:
            attempts -= 1
            if not attempts:
                raise


def class_text(name: str, path: str, namespace: dict[str, Any]) -> tuple[int, str]:
    """Where a class stands in a file, and its text. For display only: it may not be what is loaded."""
    file = _files.get(path) or _open(_read(path, namespace) or b"", path)
    if file is None:
        return 0, ""
    body: Iterable[ast.stmt] = file.tree.body
    found: ast.ClassDef | None = None
    for word in name.split("."):
        found = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == word), None)
        if found is None:
            return 0, ""
        body = found.body
    return (found.lineno, file.segment(found)) if found else (0, "")


def _read(path: str, namespace: dict[str, Any]) -> bytes | None:
    """The text behind a code object's file name, as it is now."""
    for candidate in (path, namespace.get("__file__")):
        # A relative name stops leading to its file when the program changes its folder; the module knows better.
        if isinstance(candidate, str) and os.path.basename(candidate) == os.path.basename(path):
            try:
                with open(candidate, "rb") as file:
                    return file.read()
            except (OSError, ValueError):
                continue
    linecache.checkcache(path)
    lines = linecache.getlines(path, namespace)  # notebook cells, zip files
    return "".join(lines).encode() if lines else None


class _File:
    """One source file: parsed, and compiled again."""

    def __init__(self, text: bytes, path: str) -> None:
        self.text = text
        self.path = path
        self.tree = _steadily(lambda: ast.parse(text, path))
        self._lines: list[str] | None = None
        self._compiled: dict[int, dict[str, list[CodeType]]] = {}
        self._lambdas: dict[int, list[tuple[CodeType, Function]]] = {}
        self._definitions: dict[str, list[Function]] = {}
        for node in definitions(self.tree):
            self._definitions.setdefault(node.name, []).append(node)

    def find(self, code: CodeType) -> Function | None:
        """The node that compiles to exactly this code."""
        try:
            return self._find_lambda(code) if code.co_name == "<lambda>" else self._find(code)
        except (SyntaxError, ValueError, RecursionError):  # parsed, but not compiled: `return` outside a function
            return None

    def _find(self, code: CodeType) -> Function | None:
        futures = code.co_flags & _FUTURES
        if futures not in self._compiled:
            by_name: dict[str, list[CodeType]] = {}
            for each in _all_codes(self._compile(self.tree, futures)):
                by_name.setdefault(each.co_name, []).append(each)
            self._compiled[futures] = by_name
        same = [each for each in self._compiled[futures].get(code.co_name, ()) if same_code(each, code)]
        nearest = min(
            (each.co_firstlineno for each in same), key=lambda line: abs(line - code.co_firstlineno), default=0
        )
        nodes = [node for node in self._definitions.get(code.co_name, ()) if first_line(node) == nearest]
        return nodes[0] if len(nodes) == 1 else None

    def _find_lambda(self, code: CodeType) -> Function | None:
        futures = code.co_flags & _FUTURES
        if futures not in self._lambdas:
            self._lambdas[futures] = self._compile_lambdas(futures)
        # Any that does the same will do; the one on the same line is shown.
        found = [node for each, node in self._lambdas[futures] if same_code(each, code)]
        return min(found, key=lambda node: abs(node.lineno - code.co_firstlineno), default=None)

    def _compile_lambdas(self, futures: int) -> list[tuple[CodeType, Function]]:
        """Several lambdas may stand on one line, so each is given a line of its own, in a copy of the tree."""
        copy, line = _steadily(lambda: ast.parse(self.text, self.path)), 1 + self.text.count(b"\n")
        lambdas: dict[int, Function] = {}
        for node, marked in zip(ast.walk(self.tree), ast.walk(copy), strict=True):
            if isinstance(node, ast.Lambda) and isinstance(marked, ast.Lambda):
                line += 1
                marked.lineno = marked.end_lineno = line
                marked.end_col_offset = marked.col_offset
                lambdas[line] = node
        codes = _all_codes(self._compile(copy, futures))
        return [(each, lambdas[each.co_firstlineno]) for each in codes if each.co_name == "<lambda>"]

    def _compile(self, tree: ast.Module, futures: int) -> CodeType:
        flags = futures | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook
        code: CodeType = _steadily(lambda: compile(tree, self.path, "exec", flags=flags, dont_inherit=True))
        return code

    def segment(self, node: Function | ast.ClassDef) -> str:
        """The lines of a function or class, decorators included."""
        if self._lines is None:
            self._lines = self.text.decode("utf-8", "replace").splitlines(keepends=True)
        return "".join(self._lines[first_line(node) - 1 : node.end_lineno])


def first_line(node: Function | ast.ClassDef) -> int:
    """The line that the compiler calls the first: that of the first decorator."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return decorators[0].lineno if decorators else node.lineno


def definitions(statement: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All `def`s in a statement, without a look into its expressions, which hold none."""
    stack = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, field, None)
            if isinstance(inside, list):
                stack.extend(inside)


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield item
            yield from _all_codes(item)


_SAME = (
    "co_name",
    "co_qualname",
    "co_code",
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


def same_code(a: CodeType, b: CodeType) -> bool:
    """Whether two code objects do the same. Lines and file names don't matter."""
    for name in _SAME:
        if getattr(a, name, None) != getattr(b, name, None):
            return False
    return len(a.co_consts) == len(b.co_consts) and all(map(_same_constant, a.co_consts, b.co_consts))


def _same_constant(a: object, b: object) -> bool:
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return same_code(a, b)
    return type(a) is type(b) and constant(a) == constant(b)


def _digest_of_code(code: CodeType) -> bytes:
    """The identity of a function without source. Its own name, its docstring and its lines don't count.

    A constant stands where it is used, not in the list of constants: a docstring would shift the others.
    """
    pieces: list[bytes | str] = ["bytecode"]
    for name in _SAME[3:]:
        value = getattr(code, name, b"")
        pieces.append(value if isinstance(value, bytes) else constant(value))
    for operation, argument in instructions(code):
        used = code.co_consts[argument] if operation in CONSTANTS else argument
        pieces.append(b"%d" % operation)
        pieces.append(_digest_of_code(used) if isinstance(used, CodeType) else constant(used))
    return hashed(*pieces)
