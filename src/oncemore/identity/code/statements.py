"""The statement that binds a global. It identifies clients, engines and connections, which have no comparable content.

A file that is edited after its module was loaded no longer describes what is loaded. So a file is read once: when the first
step in it is decorated, which happens while it is being loaded, or else at the first look-up of one of its globals.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any, NamedTuple, TypeAlias

from ...modules import absolute_name, is_project_module, module_of, once_per_type, package_of
from ..display import statement_text
from .bytecode_reads import reads
from .syntax import UNREADABLE, digest_of_tree, hashed, read_source, steadily

_MOST_IMPORTS = 20  # imports of imports that are followed
# Constructors that draw a seed from the system unless they are given one.
_GENERATORS = frozenset(
    ["Random", "RandomState", "default_rng", "SeedSequence", "MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"]
)


class Statement(NamedTuple):
    """One or all of the statements that may have bound a global.

    `text` is for people and has no secrets. `names` are the globals it reads. `seeds` has the names that seed each random
    generator that it creates (see `_unseeded_by`); `unseeded`: one of them has no seed. `when_needed`: it is inside a
    function that first checks for an existing value.
    """

    digest: bytes
    text: str
    line: int
    names: frozenset[str]
    when_needed: bool
    seeds: tuple[frozenset[str], ...]
    unseeded: bool = False


@dataclass(frozen=True)
class _Imported:
    """The origin of a name bound by `from module import name`; the name may be `*`."""

    module: str
    level: int
    name: str


class _RawBinding(NamedTuple):
    """A statement that binds a name, as syntax. `kind` and `parts` identify it; `text` has a `{}` for each part."""

    line: int
    kind: str
    parts: Sequence[ast.AST]
    text: str
    heads: Sequence[ast.expr] = ()  # the conditions, iterables and match subjects around it
    imported: _Imported | None = None
    when_needed: bool = False


_Signature: TypeAlias = tuple[int, int, int]
_texts: dict[str, tuple[_Signature, bytes | None]] = {}  # by file: its state when it was read, and its text


def note_if_loading() -> None:
    """If the body of a module or class makes a step, read the module's file: it is being loaded."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "oncemore":
        frame = frame.f_back
    if frame is not None and not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # not the body of a function
        note(frame.f_globals)


def note(space: Mapping[str, Any]) -> None:
    """Read a module's file, unless it was read before and has not changed since."""
    path = space.get("__file__")
    now = _signature(path)
    if isinstance(path, str) and now is not None and _texts.get(path, (None, None))[0] != now:
        _texts[path] = now, read_source(path, dict(space))


def binding(space: Mapping[str, Any], name: str) -> Statement | None:
    """The statement that binds a global (`client`), or an attribute of a class (`Config.client`), if there is one."""
    for _ in range(_MOST_IMPORTS):
        found: list[Statement] | _Imported | None = None
        for text in _sources(space):
            found = _bindings(text, name)
            if found is not None:
                break
        if isinstance(found, _Imported):
            origin = _module(found, space)
            if origin is None:
                return None
            space, name = origin, name if found.name == "*" else ".".join([found.name, *name.split(".")[1:]])
            continue
        return None if found is None else _statement(found, space)
    return None


def assigns(space: Mapping[str, Any], target: str) -> bool:
    """Whether any statement in a module assigns or deletes an attribute such as `np.limit`."""
    pattern = rb"(?m)(?:^|[;:])[ \t]*(del[ ]+)?%b[ \t]*(?(1)$|[^\s\w=.\[(]{0,2}=(?!=))" % re.escape(target.encode())
    return any(re.search(pattern, text) for text in _sources(space) if target.encode() in text)


def _statement(found: list[Statement], space: Mapping[str, Any]) -> Statement:
    seeds = tuple(each for statement in found for each in statement.seeds)
    return Statement(
        hashed("statement", *[each.digest for each in found]),
        "; ".join(each.text for each in found),
        found[-1].line,
        frozenset(name for each in found for name in each.names if name in space),
        any(each.when_needed for each in found),
        seeds,
        any(all(space.get(seed, seed) is None for seed in each) for each in seeds),
    )


# --- the source of a module -----------------------------------------------------------------------------------------


def _sources(space: Mapping[str, Any]) -> Iterator[bytes]:
    """The sources of a namespace: a module's file, or the cells of a notebook, newest first."""
    path, cells = space.get("__file__"), space.get("In")
    if isinstance(path, str):
        text = _text(path, space)
        if text is not None:
            yield text
    elif isinstance(cells, list):  # IPython's
        yield from (cell.encode() for cell in reversed(cells) if isinstance(cell, str))
    elif space.get("__name__") == "__main__":  # input to interactive Python
        names = [name for name, entry in linecache.cache.items() if len(entry) > 1 and entry[1] is None]
        yield from ("".join(linecache.getlines(name)).encode() for name in reversed(names))


def _signature(path: object) -> _Signature | None:
    try:
        status = os.stat(path) if isinstance(path, str) else None
    except (OSError, ValueError):
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def _text(path: str, space: Mapping[str, Any]) -> bytes | None:
    if path not in _texts:
        note(space)
    return _texts[path][1] if path in _texts else read_source(path, dict(space))  # the latter in a zip file


def _module(wanted: _Imported, space: Mapping[str, Any]) -> dict[str, Any] | None:
    name = absolute_name(wanted.module, wanted.level, package_of(space))
    return getattr(sys.modules.get(name or ""), "__dict__", None)


# --- finding the statements -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _parsed(text: bytes) -> ast.Module | None:
    try:
        return steadily(lambda: ast.parse(text))
    except UNREADABLE:
        return None


@functools.lru_cache(maxsize=5000)
def _bindings(text: bytes, name: str) -> list[Statement] | _Imported | None:
    """The statements that may have bound the name, in source order; None if there are none."""
    tree = _parsed(text)
    *classes, last = name.split(".")
    body = [] if tree is None else tree.body
    for each in classes:
        inside = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == each]
        if not inside and tree is not None and each == classes[0]:  # the class itself may be imported
            found = _in_body(body, each)
            return found[0].imported if found else None
        body = inside[-1] if inside else []
    found = _in_body(body, last)
    if tree is not None and not classes and b"global" in text:
        found += [each for node in ast.walk(tree) for each in _in_function(node, last)]
    imported = next((each.imported for each in found if each.imported), None)
    if imported is not None and len(found) == 1:
        return imported
    found.sort(key=lambda each: each.line)
    return [_described(each, last) for each in found] or None


def _in_function(node: ast.AST, name: str) -> list[_RawBinding]:
    """The statements in a function that bind the name, if the function declares it `global`."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    declared = any(isinstance(each, ast.Global) and name in each.names for each in node.body)
    tests = [each.test for each in ast.walk(node) if isinstance(each, (ast.If, ast.IfExp, ast.While))]
    looks = any(isinstance(each, ast.Name) and each.id == name for test in tests for each in ast.walk(test))
    return [each._replace(when_needed=looks) for each in _in_body(node.body, name)] if declared else []


def _in_body(body: Sequence[ast.stmt], name: str) -> list[_RawBinding]:
    """The statements in a body that may have bound the name: from the last one that certainly did."""
    found: list[_RawBinding] = []
    for node, heads, certain in _flat(body):
        here, binds = _in_statement(node, name)
        if binds and certain:
            found = []
        found += [each._replace(heads=heads) for each in here]
    return found


def _flat(
    body: Sequence[ast.stmt], heads: tuple[ast.expr, ...] = (), certain: bool = True
) -> Iterator[tuple[ast.stmt, tuple[ast.expr, ...], bool]]:
    """All statements, those inside others included; what is around each that decides about it; whether it is certain to run."""
    for node in body:
        yield node, heads, certain
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        branches = [getattr(node, field, ()) for field in ("body", "orelse", "finalbody")]
        branches += [each.body for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]
        surely = certain and isinstance(node, (ast.With, ast.AsyncWith))
        for branch in branches:
            yield from _flat(branch, (*heads, *_heads_of(node)), surely)


def _heads_of(node: ast.stmt) -> list[ast.expr]:
    """The condition, the iterable or the subject of a statement."""
    return [head for field in ("test", "iter", "subject") if (head := getattr(node, field, None)) is not None]


def _in_statement(node: Any, name: str) -> tuple[list[_RawBinding], bool]:
    """How a statement, without those inside it, binds the name or changes its value, and whether it surely binds it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [], node.name == name
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return _in_import(node, name)
    if isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            if item.optional_vars is not None and _binds(item.optional_vars, name):
                parts = [item.context_expr, item.optional_vars]
                return [_RawBinding(node.lineno, "with", parts, "with {} as {}")], True
        return [], False
    if isinstance(node, (ast.For, ast.AsyncFor)) and _binds(node.target, name):
        return [_RawBinding(node.lineno, "for", [node.target, node.iter], "for {} in {}")], False
    found, surely = _in_assignment(node, name)
    if not surely:
        own = _heads_of(node) if hasattr(node, "body") else [node]
        evaluated = [each for head in own for each in _evaluated(head)]
        walruses = [each for each in evaluated if isinstance(each, ast.NamedExpr) and each.target.id == name]
        found += [_RawBinding(each.lineno, ":=", [each.target, each.value], "{} := {}") for each in walruses]
    return found, surely


def _in_import(node: ast.Import | ast.ImportFrom, name: str) -> tuple[list[_RawBinding], bool]:
    for each in node.names:
        if (each.asname or each.name.partition(".")[0]) == name:
            origin = _Imported(node.module or "", node.level, each.name) if isinstance(node, ast.ImportFrom) else None
            return [_RawBinding(node.lineno, "import", [node], "{}", imported=origin)], True
        if each.name == "*" and isinstance(node, ast.ImportFrom):
            origin = _Imported(node.module or "", node.level, "*")
            return [_RawBinding(node.lineno, "import", [node], "{}", imported=origin)], False
    return [], False


def _in_assignment(node: Any, name: str) -> tuple[list[_RawBinding], bool]:
    """An assignment to the name or to a part of its value, or a method call on a part: `session.headers.update(...)`."""
    if isinstance(node, ast.AugAssign) and _root(node.target) == name:
        sign = ast.unparse(ast.AugAssign(ast.Name("_"), node.op, ast.Name("_"))).split()[1]
        return [_RawBinding(node.lineno, sign, [node.target, node.value], f"{{}} {sign} {{}}")], False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    found: list[_RawBinding] = []
    given: ast.expr | None = getattr(node, "value", None)
    for target in targets if given is not None else ():  # not for a bare annotation
        if _binds(target, name):
            parts = _narrowed(target, given, name)
            return [_RawBinding(node.lineno, "=", parts, "{} = {}")], True
        if isinstance(target, (ast.Attribute, ast.Subscript)) and _root(target) == name:
            found.append(_RawBinding(node.lineno, "part", [target, given], "{} = {}"))
    call = node.value if isinstance(node, ast.Expr) else None
    part = call.func.value if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
    if call is not None and isinstance(part, (ast.Attribute, ast.Subscript)) and _root(part) == name:
        found.append(_RawBinding(node.lineno, "call", [call], "{}"))
    return found, False


def _root(node: ast.AST) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _binds(target: ast.AST, name: str) -> bool:
    """Whether a target, which may be nested tuples, is or has the name. (The `x` of `x[0]` is only read.)"""
    names = (each for each in ast.walk(target) if isinstance(each, ast.Name))
    return any(each.id == name and isinstance(each.ctx, ast.Store) for each in names)


def _narrowed(target: ast.AST, value: Any, name: str) -> list[ast.AST]:
    """Narrow `a, b = x(), y()` down to the target that binds the name, and its value, as far as they match up."""
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        starred = any(isinstance(each, ast.Starred) for each in (*target.elts, *value.elts))
        if len(target.elts) == len(value.elts) and not starred:
            pairs = zip(target.elts, value.elts)
            return next(_narrowed(each, own, name) for each, own in pairs if _binds(each, name))
    return [target, value]


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes evaluated with this one, which excludes the bodies of lambdas."""
    pending = [node]
    while pending:
        each = pending.pop()
        yield each
        pending.extend(() if isinstance(each, ast.Lambda) else ast.iter_child_nodes(each))


# --- describing a statement -----------------------------------------------------------------------------------------


def _described(found: _RawBinding, name: str) -> Statement:
    trees = [*found.parts, *found.heads]
    digest = hashed(found.kind, b"%d" % len(found.heads), *[digest_of_tree(each)[0] for each in trees])
    nodes = [each for tree in trees for each in ast.walk(tree)]
    stored = {each.id for each in nodes if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
    stored |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    read = {each.id for each in nodes if isinstance(each, ast.Name) and each.id[:2] != "__"} - stored - {name}
    seeds = [_unseeded_by(each) for part in found.parts for each in _evaluated(part)]
    text = statement_text(found.text, found.parts)
    known = tuple(each for each in seeds if each is not None)
    return Statement(digest, text, found.line, frozenset(read), found.when_needed, known)


def _unseeded_by(node: ast.AST) -> frozenset[str] | None:
    """If this creates a random generator that may be unseeded: the names in its seed, all of which are None if it is.

    None if it is seeded, or does not create a generator.
    """
    if not isinstance(node, ast.Call):
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if called not in _GENERATORS and not (called == "Generator" and given):  # `torch.Generator()` has a fixed seed
        return None
    names: set[str] = set()
    for each in given:
        inside = _unseeded_by(each)
        if isinstance(each, ast.Name):
            names.add(each.id)
        elif inside is not None:
            names |= inside
        elif not (isinstance(each, ast.Constant) and each.value is None):
            return None
    return frozenset(names)


# --- attributes that methods fill on first use ------------------------------------------------------------------------


class _Filled(NamedTuple):
    """A statement `self.name = value` in a method.

    `looks`: the method checks first whether there is a value; `absent`: whether there is such an attribute at all.
    """

    name: str
    value: ast.expr
    looks: bool
    absent: bool


@once_per_type
def made_when_needed(kind: type) -> dict[str, bool]:
    """The attributes that project methods fill on first use and in no other way; whether they are absent until then."""
    found, filled_otherwise = dict[str, bool](), set[str]()
    for base in kind.__mro__:
        for member in list(vars(base).values()) if is_project_module(module_of(base)) else ():
            function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
            function = inspect.unwrap(function) if callable(function) else function
            if type(function) is not FunctionType or not reads(function.__code__).stored:
                continue
            for each in _in_method(function):
                if each.looks and function.__name__ != "__init__":
                    found[each.name] = each.absent
                elif not (isinstance(each.value, ast.Constant) and each.value.value is None):
                    filled_otherwise.add(each.name)
    fields: Any = getattr(kind, "__dataclass_fields__", {})
    filled_otherwise.update(name for name in found if name in fields and fields[name].init)
    return {name: absent for name, absent in found.items() if name not in filled_otherwise}


def _in_method(function: FunctionType) -> Iterator[_Filled]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return
    if not isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    arguments = tree.args.posonlyargs + tree.args.args
    if not arguments:
        return
    own, nodes = arguments[0].arg, list(ast.walk(tree))
    tests = [part for each in nodes if (test := getattr(each, "test", None)) is not None for part in ast.walk(test)]
    tests += [part for each in nodes if isinstance(each, ast.BoolOp) for part in ast.walk(each)]
    caught = [each.type for each in nodes if isinstance(each, ast.ExceptHandler) and each.type is not None]
    tried = any(getattr(part, "id", None) == "AttributeError" for each in caught for part in ast.walk(each))
    for each in nodes:
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        value = getattr(each, "value", None)
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == own:
                name = target.attr
                absent = tried or any(isinstance(part, ast.Constant) and part.value == name for part in tests)
                looks = absent or any(isinstance(part, ast.Attribute) and part.attr == name for part in tests)
                if value is not None and not isinstance(each, ast.AugAssign):
                    yield _Filled(name, value, looks, absent)
