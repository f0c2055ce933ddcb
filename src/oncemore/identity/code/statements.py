"""The statement that binds a global. It identifies clients, engines and connections, which have no comparable content.

A file that is edited after its module was loaded no longer describes what is loaded. So a file is read once: when the first
step in it is decorated, which happens while it is being loaded, or else at the first look-up of one of its globals.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import linecache
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import resolve_name
from types import FrameType, FunctionType
from typing import Any, NamedTuple, TypeAlias

from ...modules import is_project_module, module_of, once_per_type
from ..display import is_secret
from .bytecode_reads import reads
from .syntax import UNREADABLE, digest_of_tree, hashed, read_source, steadily

_LONGEST = 200
_MOST_IMPORTS = 20  # imports of imports that are followed
# Constructors that draw a seed from the system unless they are given one.
GENERATORS = frozenset(
    ["Random", "RandomState", "default_rng", "SeedSequence", "MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"]
)
_KEY = re.compile(  # well-known prefixes of API keys, or a long word with both letters and digits
    r"\b(sk|pk|rk|hf|ghp|gho|ghs|github_pat|glpat|xox[abeprs])[-_][\w-]{8,}|\b(AKIA|ASIA|AIza|ya29|eyJ)[\w.-]{8,}|-----BEGIN "
    r"|(?<![A-Za-z\d+=])(?=[A-Za-z+=]*\d)(?=[\d+=]*[A-Za-z])[A-Za-z\d+=]{16,}"
)
_IN_URL = re.compile(r"(://[^/\s:@]*:)([^/\s@]+)(?=@)")
_SETTING = re.compile(r"(?P<name>\w+)(?P<sign>\s*[=:]\s*)(?!//)(?P<value>[^&;,\s]+)")
_BEARER = re.compile(r"\b(Bearer|Basic|Token)(\s+)(\S+)", re.IGNORECASE)
_AUTH_CALL = re.compile(r"auth|login|credential|passw|secret|token|api_?key", re.IGNORECASE)


class Statement(NamedTuple):
    """All statements that may have bound a global.

    `text` is for people and has no secrets. `unseeded`: it creates a random generator without a seed. `names` are the
    globals it reads. `when_needed`: it is inside a function that first checks for an existing value.
    """

    digest: bytes
    text: str
    line: int
    unseeded: bool
    names: frozenset[str]
    when_needed: bool = False


class _Binding(NamedTuple):
    """One statement that may have bound a name. `seeds` has the names that seed each generator in it (see `unseeded_by`)."""

    digest: bytes
    text: str
    line: int
    seeds: tuple[frozenset[str], ...]
    names: frozenset[str]
    when_needed: bool


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
        found: list[_Binding] | _Imported | None = None
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


def _statement(found: list[_Binding], space: Mapping[str, Any]) -> Statement:
    return Statement(
        hashed("statement", *[each.digest for each in found]),
        "; ".join(each.text for each in found),
        found[-1].line,
        any(all(space.get(seed, seed) is None for seed in seeds) for each in found for seeds in each.seeds),
        frozenset(name for each in found for name in each.names if name in space),
        any(each.when_needed for each in found),
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
    package = space.get("__package__") or getattr(space.get("__spec__"), "parent", None) or ""
    try:
        name = resolve_name("." * wanted.level + wanted.module, str(package))
    except ImportError:
        return None
    return getattr(sys.modules.get(name), "__dict__", None)


# --- finding the statements -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _parsed(text: bytes) -> ast.Module | None:
    try:
        return steadily(lambda: ast.parse(text))
    except UNREADABLE:
        return None


@functools.lru_cache(maxsize=5000)
def _bindings(text: bytes, name: str) -> list[_Binding] | _Imported | None:
    """The statements that may have bound the name, in source order; None if there are none."""
    tree = _parsed(text)
    *classes, last = name.split(".")
    body = [] if tree is None else tree.body
    for each in classes:
        inside = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == each]
        if not inside and tree is not None and each == classes[0]:  # the class itself may be imported
            found, _ = _in_body(body, each)
            return found[0].imported if found else None
        body = inside[-1] if inside else []
    found, _ = _in_body(body, last)
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
    return [each._replace(when_needed=looks) for each in _in_body(node.body, name)[0]] if declared else []


def _in_body(body: Sequence[ast.stmt], name: str) -> tuple[list[_RawBinding], bool]:
    """The statements in a body that may have bound the name, last first, and whether one of them certainly did."""
    found: list[_RawBinding] = []
    for node in reversed(body):
        here, surely = _in_statement(node, name)
        found += here
        if surely:
            return found, True
    return found, False


def _in_statement(node: Any, name: str) -> tuple[list[_RawBinding], bool]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [], node.name == name
    if isinstance(node, (ast.With, ast.AsyncWith)):
        found, surely = _in_body(node.body, name)
        for item in () if surely else node.items:
            if item.optional_vars is not None and _position(item.optional_vars, name) is not None:
                kind = f"with {_shape(item.optional_vars, name)}"
                return [*found, _RawBinding(node.lineno, kind, [item.context_expr], f"with {{}} as {name}")], True
        return found, surely
    branches = [getattr(node, field, ()) for field in ("body", "orelse", "finalbody")]
    branches += [each.body for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]
    if not isinstance(node, ast.Expr) and any(branches):
        return _in_branches(node, branches, name)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return _in_import(node, name)
    found, surely = _in_assignment(node, name)
    return (found if surely else [*found, *_in_expressions([node], name)]), surely


def _in_branches(node: Any, branches: list[Any], name: str) -> tuple[list[_RawBinding], bool]:
    found: list[_RawBinding] = []
    sure: list[bool] = []
    for branch in branches:
        here, surely = _in_body(branch, name)
        found += here
        sure.append(surely)
    heads = [head for field in ("test", "iter", "subject") if (head := getattr(node, field, None)) is not None]
    if isinstance(node, (ast.For, ast.AsyncFor)) and _position(node.target, name) is not None:
        kind = f"for {_shape(node.target, name)}"
        found.append(_RawBinding(node.lineno, kind, [node.iter], f"for {name} in {{}}"))
    found += _in_expressions(heads, name)
    found = [each._replace(heads=[*heads, *each.heads]) for each in found]
    return found, isinstance(node, ast.If) and all(sure[:2])


def _in_expressions(nodes: Sequence[ast.AST], name: str) -> list[_RawBinding]:
    """Assignment expressions: `name := value`."""
    walruses = [each for node in nodes for each in _evaluated(node) if isinstance(each, ast.NamedExpr)]
    return [
        _RawBinding(each.lineno, ":=", [each.value], f"{name} := {{}}") for each in walruses if each.target.id == name
    ]


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
    for target in targets:
        if given is None:  # a bare annotation
            break
        position = _position(target, name)
        if position is not None:
            rest, value = _picked(target, given, position)
            return [_RawBinding(node.lineno, f"= {_shape(rest, name)}", [value], f"{name} = {{}}")], True
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


def _position(target: ast.AST, name: str) -> list[int] | None:
    """The indices that lead to the name in a target, which may be nested tuples; None if it is not there."""
    if isinstance(target, ast.Name):
        return [] if target.id == name else None
    if isinstance(target, ast.Starred):
        return _position(target.value, name)
    for at, each in enumerate(target.elts if isinstance(target, (ast.Tuple, ast.List)) else ()):
        inside = _position(each, name)
        if inside is not None:
            return [at, *inside]
    return None


def _shape(target: ast.AST, name: str) -> str:
    """The shape of a target, with `x` for the name: `(_ x *_)`."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return f"({' '.join(_shape(each, name) for each in target.elts)})"
    if isinstance(target, ast.Starred):
        return f"*{_shape(target.value, name)}"
    return "x" if isinstance(target, ast.Name) and target.id == name else "_"


def _picked(target: ast.AST, value: ast.expr, position: list[int]) -> tuple[ast.AST, ast.expr]:
    """Narrow `a, b = x(), y()` down to the target and expression of one position, as far as they match up."""
    for at in position:
        if not isinstance(target, (ast.Tuple, ast.List)) or not isinstance(value, (ast.Tuple, ast.List)):
            break
        both = (*target.elts, *value.elts)
        if len(target.elts) != len(value.elts) or any(isinstance(each, ast.Starred) for each in both):
            break
        target, value = target.elts[at], value.elts[at]
    return target, value


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes evaluated with this one, which excludes the bodies of lambdas."""
    pending = [node]
    while pending:
        each = pending.pop()
        yield each
        pending.extend(() if isinstance(each, ast.Lambda) else ast.iter_child_nodes(each))


# --- describing a statement -----------------------------------------------------------------------------------------


def _described(found: _RawBinding, name: str) -> _Binding:
    trees = [*found.parts, *found.heads]
    digest = hashed(found.kind, b"%d" % len(found.heads), *[digest_of_tree(each)[0] for each in trees])
    nodes = [each for tree in trees for each in ast.walk(tree)]
    stored = {each.id for each in nodes if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
    stored |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    read = {each.id for each in nodes if isinstance(each, ast.Name)} - stored - {name}
    seeds = [unseeded_by(each) for part in found.parts for each in _evaluated(part)]
    names = frozenset(each for each in read if each[:2] != "__")
    return _Binding(
        digest,
        _shown(found, name),
        found.line,
        tuple(each for each in seeds if each is not None),
        names,
        found.when_needed,
    )


def makes_generator(node: ast.AST) -> bool:
    """Whether this is a call that creates a random generator."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    # `torch.Generator()` has a fixed seed
    return called in GENERATORS or (called == "Generator" and bool(node.args or node.keywords))


def unseeded_by(node: ast.AST) -> frozenset[str] | None:
    """If this creates a random generator that may be unseeded: the names in its seed, all of which are None if it is.

    None if it is seeded, or does not create a generator.
    """
    if not isinstance(node, ast.Call) or not makes_generator(node):
        return None
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    names: set[str] = set()
    for each in given:
        inside = unseeded_by(each)
        if isinstance(each, ast.Name):
            names.add(each.id)
        elif inside is not None:
            names |= inside
        elif not (isinstance(each, ast.Constant) and each.value is None):
            return None
    return frozenset(names)


def _shown(found: _RawBinding, name: str) -> str:
    try:
        named = [_last_name(each) for each in found.parts[:-1]]
        masking = _Masking(is_secret(name) or any(map(is_secret, named)))
        parts = [ast.unparse(masking.visit(copy.deepcopy(each))) for each in found.parts]
        text = " ".join(found.text.format(*parts).split())
    except UNREADABLE:
        text = found.text.replace("{}", "...")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _last_name(target: ast.AST) -> str:
    """The last word of `client.api_key`, or of `headers["authorization"]`."""
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return target.attr if isinstance(target, ast.Attribute) else ""


class _Masking(ast.NodeTransformer):
    """Replaces strings that are, or may be, secrets by digests."""

    def __init__(self, secret: bool) -> None:
        self._secret = secret

    def _inside(self, node: Any, secret: bool) -> Any:
        before, self._secret = self._secret, self._secret or secret
        try:
            return self.visit(node)
        finally:
            self._secret = before

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, (str, bytes)):
            return node
        text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        shown = _digest(text) if self._secret and text else _without_secrets(text)
        return node if shown == text else ast.Name(shown) if shown[:1] == "#" else ast.Constant(shown)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return self._joined(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self._joined(node)

    def _joined(self, node: ast.AST) -> ast.AST:
        """A string built from pieces may hold a secret that no single piece reveals."""
        text = "".join(_pieces(node))
        if text and (self._secret or _without_secrets(text) != text):
            return ast.Name(_digest(ast.dump(node)))
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.visit(node.value)
        return node  # in `os.environ["API_KEY"]`, the index is only the name of a secret

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        node.value = self._inside(node.value, is_secret(node.arg or ""))
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        names = [key.value if isinstance(key, ast.Constant) else "" for key in node.keys]
        node.values = [self._inside(value, is_secret(str(name))) for name, value in zip(names, node.values)]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if any(each in ast.unparse(node.func) for each in ("environ", "getenv")):
            secret = bool(node.args) and is_secret(ast.unparse(node.args[0]))
            node.args[1:] = [self._inside(each, secret) for each in node.args[1:]]
            return node
        node.func = self.visit(node.func)
        secret = _AUTH_CALL.search(called) is not None
        for at, each in enumerate(node.args):
            node.args[at] = self._inside(each, secret)
            secret = secret or (isinstance(each, ast.Constant) and is_secret(str(each.value)))  # `set("token", ...)`
        for keyword in node.keywords:
            self.visit_keyword(keyword)
        return node


def _pieces(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.FormattedValue):
        yield "{}"
    elif isinstance(node, ast.JoinedStr):
        for each in node.values:
            yield from _pieces(each)
    elif isinstance(node, ast.BinOp):
        yield from _pieces(node.left)
        yield from _pieces(node.right)


def _digest(text: str) -> str:
    return f"#{hashed('secret', text).hex()[:8]}"


def _without_secrets(text: str) -> str:
    """The text with its secrets replaced by digests; only a digest if anything in it still looks like a key."""

    def hide(found: re.Match[str]) -> str:
        secret = is_secret(found["name"])
        return f"{found['name']}{found['sign']}{_digest(found['value'])}" if secret else found[0]

    text = _IN_URL.sub(lambda found: found[1] + _digest(found[2]), text)
    text = _BEARER.sub(lambda found: f"{found[1]}{found[2]}{_digest(found[3])}", text)
    text = _SETTING.sub(hide, text)
    return _digest(text) if _KEY.search(text) else text


# --- statements in methods --------------------------------------------------------------------------------------------


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
