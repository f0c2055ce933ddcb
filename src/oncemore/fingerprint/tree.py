"""A syntax tree in a form that comments, layout, docstrings, annotations and the version of Python don't touch."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from blake3 import blake3

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

# What says nothing about behaviour, or says again what the place in the tree already says.
_SKIPPED = frozenset(["annotation", "ctx", "kind", "returns", "simple", "type_comment", "type_params"])
_STATEMENTS = frozenset(["body", "orelse", "finalbody"])
_SPECIAL = frozenset([ast.AnnAssign, ast.ClassDef, ast.JoinedStr, ast.Import, ast.ImportFrom])
_Plan: TypeAlias = tuple[str, list[tuple[str, str, str]]]
_plans: dict[type[ast.AST], _Plan] = {}
_NOTHING: Mapping[str, object] = {}


def hashed(*pieces: bytes | str) -> bytes:
    """16 bytes that stand for these pieces in this order."""
    encoded = [piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece for piece in pieces]
    return blake3(b"".join([b"%d:%b" % (len(piece), piece) for piece in encoded])).digest(length=16)


class Import(NamedTuple):
    """`import module`, or `from module import name`, in a body.

    `escapes`: what it binds is used otherwise than in `bound.attribute`, as far as one can know.
    """

    module: str
    level: int
    name: str | None
    escapes: bool = True


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
            body = _with_annotations(node.body)
            return ast.ClassDef(node.name, node.bases, node.keywords, body, node.decorator_list)
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


def constant(value: object) -> str:
    """A constant with its type; sets in an order of their own."""
    if isinstance(value, str):
        return f"(str {len(value)}:{value})"
    if type(value) is int:
        return f"(int {value:x})"  # in decimal, a large one would be refused
    if isinstance(value, (tuple, frozenset)):
        items = [constant(item) for item in value]
        return f"({type(value).__name__} {len(items)}{''.join(items if isinstance(value, tuple) else sorted(items))})"
    return f"({type(value).__name__} {value!r})"
