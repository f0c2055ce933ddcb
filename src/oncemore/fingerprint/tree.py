"""Source text to syntax trees, in a form that comments, layout, docstrings, annotations and the version of Python don't touch.

A text is parsed, compiled and walked in one go, and the tree is dropped: it takes more memory than all else here.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any, TypeAlias, TypeVar

from .listing import Import, Listed, Listing, constant, hashed, key_of

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

# What says nothing about behaviour, or says again what the place in the tree already says.
_SKIPPED = frozenset(["annotation", "ctx", "kind", "returns", "simple", "type_comment", "type_params"])
_STATEMENTS = frozenset(["body", "orelse", "finalbody"])
_SPECIAL = frozenset([ast.AnnAssign, ast.ClassDef, ast.JoinedStr, ast.Import, ast.ImportFrom])
_Plan: TypeAlias = tuple[str, list[tuple[str, str, str]]]
_plans: dict[type[ast.AST], _Plan] = {}
_NOTHING: Mapping[str, object] = {}
_HOLD_STATEMENTS = frozenset(["body", "orelse", "finalbody", "handlers", "cases"])
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Nodes: TypeAlias = dict[tuple[str, int], tuple[_Function, int, int]]
T = TypeVar("T")


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


# --- one function's tree ------------------------------------------------------------------------------------------------


def digest_of_tree(function: ast.AST) -> tuple[bytes, frozenset[str], tuple[Import, ...]]:
    """The digest of a function's own tree, the names in it, and the imports in it.

    A function's name, decorators and defaults are not in its tree: callers see what the name is bound to, and what is
    bound there carries the decorators' and the defaults' effects.
    """
    form = _Form()
    form.write(function)
    digest = hashed("tree", "".join(form.out))
    imports = tuple(Import(module, level, name, bound in form.bare) for module, level, name, bound in form.imports)
    return digest, frozenset(form.names), imports


class _Form:
    """The tree written down node by node: `(Kind field... )`.

    Written with a stack of its own, for a long chain of `elif` or `+` is deeper than the interpreter's.
    """

    def __init__(self) -> None:
        self.out: list[str] = []
        self.names: set[str] = set()
        self.bare: set[str] = set()  # names used otherwise than in `name.attribute`
        self.imports: list[tuple[str, int, str | None, str]] = []
        self._stack: list[Any] = []

    def write(self, function: ast.AST) -> None:
        stack, out = self._stack, self.out
        bare = _without_defaults(function.args) if isinstance(function, FUNCTIONS) else None
        self._open(function, {"name": None, "decorator_list": None, "args": bare})
        while stack:
            item = stack.pop()
            kind = item.__class__
            if kind is str:
                out.append(item)
            elif kind is ast.Name:
                self.names.add(item.id)
                self.bare.add(item.id)
                out.append(f"(Name {item.id})")
            elif kind is ast.Constant:
                out.append(constant(item.value))
            elif kind is ast.Attribute and item.value.__class__ is ast.Name:
                self.names.add(item.value.id)
                out.append(f"(Attribute {item.attr} (Name {item.value.id}))")
            elif kind in _SPECIAL:
                self._open(self._special(item))
            else:
                self._open(item)

    def _special(self, node: ast.AST) -> ast.AST:
        """What the node is written down as; imports are noted."""
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return ast.Assign([node.target], node.value)
        if isinstance(node, ast.ClassDef):
            # A class statement may hand its annotations to what makes the class: a dataclass's fields are made of them.
            node = copy.copy(node)
            node.body = _with_annotations(node.body)
            return node
        if isinstance(node, ast.JoinedStr):
            return ast.JoinedStr(_pieces(node.values))
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.imports.append((alias.name, 0, None, alias.asname or alias.name.partition(".")[0]))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self.imports.append((node.module or "", node.level, alias.name, alias.asname or alias.name))
        return node

    def _open(self, node: ast.AST, instead: Mapping[str, object] = _NOTHING) -> None:
        """Write a node's kind now, and put its fields on the stack."""
        stack, (opening, fields) = self._stack, _plan(node.__class__)
        self.out.append(opening)
        stack.append(")")
        for name, one, several in fields:
            value: Any = instead[name] if name in instead else getattr(node, name, None)
            if value.__class__ is list:
                if name in _STATEMENTS:
                    value = _doing(value)
                if value:
                    stack.append("]")
                    stack.extend([_item(item) for item in reversed(value)])
                    stack.append(several)
            elif value is not None:
                stack.append(_item(value))
                stack.append(one)


def _plan(kind: type[ast.AST]) -> _Plan:
    """How nodes of a kind are written: the opening, and each field's name, alone and before a list."""
    plan = _plans.get(kind)
    if plan is None:
        names = sorted(name for name in kind._fields if name not in _SKIPPED)
        plan = _plans[kind] = f"({kind.__name__}", [(name, f" {name}=", f" {name}[") for name in names]
    return plan


def _item(value: object) -> object:
    """What goes onto the stack for a field's value. None in a list says that something is left out there."""
    return value if isinstance(value, ast.AST) else "-" if value is None else constant(value)


def _without_defaults(arguments: ast.arguments) -> ast.arguments:
    return ast.arguments(
        posonlyargs=arguments.posonlyargs,
        args=arguments.args,
        vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs,
        kw_defaults=[],
        kwarg=arguments.kwarg,
        defaults=[],
    )


def _doing(body: list[Any]) -> list[Any]:
    """The statements that do something: no docstrings, no `pass`, no `...`, no bare `x: int`."""
    return [
        node
        for node in body
        if not (
            node.__class__ is ast.Pass
            or (node.__class__ is ast.Expr and node.value.__class__ is ast.Constant)
            or (node.__class__ is ast.AnnAssign and node.value is None)
        )
    ]


def _with_annotations(body: list[ast.stmt]) -> list[ast.stmt]:
    """Annotated names as tuples, which no field of a tree leaves out."""
    kept: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.AnnAssign):
            parts = [node.target, node.annotation, *([node.value] if node.value else [])]
            kept.append(ast.Expr(ast.Tuple(parts, ast.Load())))
        else:
            kept.append(node)
    return kept


def _pieces(values: list[ast.expr]) -> list[ast.expr]:
    """An f-string's pieces as every version cuts them: neighbouring texts joined, empty ones left out."""
    pieces: list[ast.expr] = []
    for value in values:
        last = pieces[-1] if pieces else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            pieces[-1] = ast.Constant(str(last.value) + str(value.value))
        elif isinstance(value, ast.FormattedValue) and isinstance(value.format_spec, ast.JoinedStr):
            spec = ast.JoinedStr(_pieces(value.format_spec.values))
            pieces.append(ast.FormattedValue(value.value, value.conversion, spec if spec.values else None))
        elif not isinstance(value, ast.Constant) or value.value:
            pieces.append(value)
    return pieces
