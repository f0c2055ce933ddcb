"""The body of a `with run.block(...)` statement as a function: what it reads becomes globals and parameters.

The function is never called. It has the identity that the body has: the body's own syntax tree, and all the code and data that
the body reaches. Variables that the body reads from the function around it are parameters, since they differ from call to call.
"""

from __future__ import annotations

import ast
import copy
import functools
import os
import re
import symtable
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, NoReturn

from ...errors import UsageError
from .bytecode_reads import all_codes
from .syntax import FUTURES, UNREADABLE, define, key_of, read_source, steadily

_OPTIMIZED = 1  # CPython's flag for code whose local variables are not in a dict
_MATCHED = 16  # files whose text was compared with the code that runs
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SCOPES = (*_DEFINITIONS, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LEAVING: dict[type[ast.AST], str] = {
    ast.Return: "return",
    ast.Break: "break",
    ast.Continue: "continue",
    ast.Yield: "yield",
    ast.YieldFrom: "yield from",
    ast.Await: "await",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
}
_AWAITING = ("await", "async for", "async with")

_DYNAMIC = frozenset(["locals", "vars", "dir", "eval", "exec"])
_QUERIED = re.compile(r"@([^\W\d]\w*)")

_Statement = ast.With | ast.AsyncWith


class NoSource(Exception):
    """The source of a block can't be read, or differs from the code that runs."""


class Body(NamedTuple):
    """The body of a block: its statements, and the names in it.

    `reads` are the names that it reads from outside. `first` are those among `bound` that it may read before it assigns them,
    and names in its strings that pandas reads (`table.query("x > @limit")`). `dynamic`: it may read any variable.
    `bound` are the names that it assigns, `used` those among them that other code reads; all of them unless that is `certain`.
    """

    statements: list[ast.stmt]
    handle: str
    first_line: int
    last_line: int
    text: bytes
    waits: bool
    reads: frozenset[str]
    first: frozenset[str]
    bound: frozenset[str]
    used: frozenset[str]
    certain: bool
    dynamic: bool

    def function(self, frame: FrameType, name: str, parameters: Sequence[str], keywords: Sequence[str]) -> FunctionType:
        """The body as a function of these parameters."""
        # The handle is a local variable of it: `with run.block(...) as b`.
        handle = ast.Assign([ast.Name(self.handle, ast.Store())], ast.Constant(None))
        arguments = ast.arguments(
            posonlyargs=[],
            args=[ast.arg(each) for each in parameters],
            vararg=None,
            kwonlyargs=[ast.arg(each) for each in keywords],
            kw_defaults=[None] * len(keywords),
            kwarg=None,
            defaults=[],
        )
        kind: Any = ast.AsyncFunctionDef if self.waits else ast.FunctionDef
        node: Any = kind(name="block", args=arguments, body=[handle, *self.statements], decorator_list=[], returns=None)
        node.type_params = []  # since Python 3.12
        node.lineno, node.end_lineno, node.col_offset, node.end_col_offset = self.first_line, self.last_line, 0, 0
        ast.fix_missing_locations(node)
        code, path = frame.f_code, frame.f_code.co_filename
        flags = code.co_flags & FUTURES
        module = ast.Module([node], [])
        compiled: CodeType = steadily(lambda: compile(module, path, "exec", flags=flags, dont_inherit=True))
        [found] = [each for each in compiled.co_consts if isinstance(each, CodeType)]
        found = found.replace(co_name=name)
        define(found, node, self.first_line, self.last_line, self.text)
        function = FunctionType(found, frame.f_globals, name)
        function.__qualname__ = name
        return function


def find(frame: FrameType, name: str) -> Body:
    """The body of the block with that name which the frame is about to enter. NoSource if its source is unknown."""
    code, line = frame.f_code, frame.f_lineno
    known = _matched.get(code.co_filename)
    if known is not None:
        try:
            return _find(code, line, name, known, _is_script(frame))
        except NoSource:
            pass
    text = read_source(code.co_filename, frame.f_globals)
    if text is None:
        raise NoSource("its source can't be read")
    found = _find(code, line, name, text, _is_script(frame))
    if len(_matched) >= _MATCHED:
        _matched.clear()
    _matched[code.co_filename] = text
    return found


_matched: dict[str, bytes] = {}  # by path: a text that had the code which runs; the file may be edited meanwhile


def _is_script(frame: FrameType) -> bool:
    """Whether the file is the script: nobody but the file itself reads its variables, unlike those of a module or a cell."""
    space = frame.f_globals
    path = space.get("__file__")
    return (
        space.get("__name__") == "__main__"
        and isinstance(path, str)
        and os.path.basename(path) == os.path.basename(frame.f_code.co_filename)
    )


@functools.lru_cache(maxsize=200)
def _find(code: CodeType, line: int, name: str, text: bytes, script: bool) -> Body:
    tree, codes = _compiled(text, code.co_filename, code.co_flags & FUTURES)
    statement, around = _locate(tree, line, name)
    inner: ast.AST = around[0] if around else statement  # the statement of the module that it is in
    if not any(_is_same(code, each) for each in codes):
        # A notebook compiles a cell statement by statement.
        alone = _compile(ast.Module([inner], []), code.co_filename, code.co_flags & FUTURES)  # type: ignore[list-item]
        if not any(_is_same(code, each) for each in all_codes(alone)):
            raise NoSource("its source differs from the code that runs; was the file edited after it was loaded?")
    function = next((each for each in reversed(around) if isinstance(each, _SCOPES)), None)
    certain = script if function is None else not isinstance(function, ast.ClassDef)
    return _body(statement, name, text, tree if function is None else function, certain)


@functools.lru_cache(maxsize=4)
def _compiled(text: bytes, path: str, futures: int) -> tuple[ast.Module, list[CodeType]]:
    try:
        tree = steadily(lambda: ast.parse(text, path))
        return tree, list(all_codes(_compile(tree, path, futures)))
    except UNREADABLE as error:
        raise NoSource(f"its source can't be read: {error}") from error


def _compile(tree: ast.Module, path: str, futures: int) -> CodeType:
    flags = futures | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook
    compiled: CodeType = steadily(lambda: compile(tree, path, "exec", flags=flags, dont_inherit=True))
    return compiled


def _is_same(code: CodeType, other: CodeType) -> bool:
    """Whether both are compiled from the same lines."""
    return (
        code.co_name == other.co_name
        and code.co_firstlineno == other.co_firstlineno
        and list(code.co_lines()) == list(other.co_lines())
        and key_of(code) == key_of(other)
    )


def _locate(tree: ast.Module, line: int, name: str) -> tuple[_Statement, list[ast.AST]]:
    """The `with` statement whose last item is the call at the line, and the statements and functions around it."""
    found: list[tuple[_Statement, list[ast.AST]]] = []
    elsewhere = False
    stack: list[tuple[ast.AST, list[ast.AST]]] = [(each, []) for each in tree.body]
    while stack:
        node, around = stack.pop()
        if isinstance(node, (ast.With, ast.AsyncWith)):
            *others, last = [_is_call(item.context_expr, line, name) for item in node.items]
            if last:
                found.append((node, around))
            elsewhere = elsewhere or any(others)
        inside = [*around, node]
        stack.extend((each, inside) for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))
    if len(found) == 1:
        return found[0]
    if found:
        _refuse(name, "two blocks of this name begin on one line; put each on a line of its own")
    if elsewhere:
        _refuse(name, "it is followed by another item in its `with` statement; make it the last one")
    _refuse(name, f"use it as `with run.block({name!r}) as b:`")


def _is_call(node: ast.expr, line: int, name: str) -> bool:
    if not isinstance(node, ast.Call) or not node.lineno <= line <= (node.end_lineno or line):
        return False
    first = node.args[0] if node.args else None
    if isinstance(first, ast.Constant):
        return first.value == name
    # The call of something else, such as `checkpoint_scope(run_id)`, may be on the same line.
    return isinstance(first, (ast.JoinedStr, ast.Name, ast.BinOp, ast.Call, ast.Attribute, ast.Subscript)) and (
        getattr(node.func, "attr", getattr(node.func, "id", "")) == "block"
    )


def _refuse(name: str, why: str) -> NoReturn:
    raise UsageError(f"block {name}: {why}")


def _body(statement: _Statement, name: str, text: bytes, around: ast.AST, certain: bool) -> Body:
    """Check the statement, and find the names in its body. `certain`: only `around` can read the names that it assigns."""
    handle = statement.items[-1].optional_vars
    if not isinstance(handle, ast.Name):
        _refuse(name, f"give it a name: `with run.block({name!r}) as b:`")
    inside = statement.body[0]
    test = inside.test if isinstance(inside, ast.If) else None
    if (
        len(statement.body) > 1
        or not isinstance(inside, ast.If)
        or inside.orelse
        or not (isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name))
        or (test.value.id, test.attr) != (handle.id, "todo")
    ):
        _refuse(name, f"put its whole body under one `if {handle.id}.todo:` without `else`, so that it can be skipped")
    waits = isinstance(statement, ast.AsyncWith)
    for word, node in _leaving(inside.body, waits):
        if word in _AWAITING:
            _refuse(name, f"its body has `{word}` (line {node.lineno}); write `async with run.block(...)`")
        _refuse(
            name,
            f"`{word}` (line {node.lineno}) leaves its body, which a skipped block can't repeat; move it after the block",
        )
    statements = [each for each in map(copy.deepcopy, inside.body) if not isinstance(each, ast.Nonlocal)]
    reads, bound = _names(statements, handle.id, name)
    first = _Flow(bound).exposed(statements).union(*map(_in_text, statements))
    defined = {each.name for each in _own_statements(inside.body) if isinstance(each, _DEFINITIONS)}
    used = bound & _used(around, inside) if certain else bound - defined
    if used & defined:
        names = ", ".join(f"`{each}`" for each in sorted(used & defined))
        _refuse(
            name, f"its body defines {names}, which would be missing when it is skipped; define it before the block"
        )
    return Body(
        statements,
        handle.id,
        statement.lineno,
        statement.end_lineno or statement.lineno,
        text,
        waits,
        reads,
        frozenset(first),
        bound,
        used,
        certain,
        dynamic=not reads.isdisjoint(_DYNAMIC),
    )


def _leaving(body: Iterable[ast.AST], waits: bool, loop: bool = False) -> Iterator[tuple[str, Any]]:
    """The statements and expressions that leave the body, or that suspend it."""
    for node in body:
        if isinstance(node, (ast.Break, ast.Continue)) and loop:
            continue
        if isinstance(node, ast.comprehension) and node.is_async and not waits:
            yield "async for", node.target
        word = _LEAVING.get(type(node), "")
        if word and not (waits and word in _AWAITING):
            yield word, node
        elif isinstance(node, _LOOPS):
            yield from _leaving(node.body, waits, True)
            rest = [node.test] if isinstance(node, ast.While) else [node.target, node.iter]
            yield from _leaving([*rest, *node.orelse], waits, loop)
        elif not isinstance(node, _SCOPES):
            yield from _leaving(ast.iter_child_nodes(node), waits, loop)


def _own_statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The statements of the body, without those of functions and classes in it."""
    for node in body:
        yield node
        if not isinstance(node, (*_SCOPES, ast.expr)):
            yield from _own_statements(ast.iter_child_nodes(node))


def _names(statements: list[ast.stmt], handle: str, name: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names that the statements read from outside, and those that they assign."""
    function: Any = ast.parse("async def block(): pass").body[0]
    function.body = statements or [ast.Pass()]
    try:
        table = symtable.symtable(ast.unparse(ast.fix_missing_locations(ast.Module([function], []))), "<block>", "exec")
    except SyntaxError as error:
        _refuse(name, f"its body can't be the body of a function: {error.msg}")
    [own] = table.get_children()
    bound = {each.get_name() for each in own.get_symbols() if each.is_local()}
    tables, reads = [own], set[str]()
    while tables:
        each = tables.pop()
        tables += each.get_children()
        reads.update(
            symbol.get_name() for symbol in each.get_symbols() if symbol.is_global() and symbol.is_referenced()
        )
    return frozenset(reads - {handle}), frozenset(bound - {handle})


def _in_text(statement: ast.stmt) -> set[str]:
    """The names in its strings that pandas looks up in the calling frame."""
    texts = [
        each.value for each in ast.walk(statement) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    return {name for text in texts for name in _QUERIED.findall(text)}


def _used(around: ast.AST, inside: ast.If) -> set[str]:
    """The names that the code around the body reads, or may read: those that it declares global or nonlocal."""
    found, stack = set[str](), [around]
    while stack:
        node = stack.pop()
        if node is inside:
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            found.update(node.names)
        stack.extend(ast.iter_child_nodes(node))
    return found


class _Flow:
    """Which of some names a piece of code may read before it assigns them.

    The body of a `with` statement counts as run to its end: the managers that swallow exceptions are rare, and known by name.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names, self._exposed = names, set[str]()

    def exposed(self, body: Sequence[ast.stmt]) -> set[str]:
        self._run(body, set())
        return self._exposed

    def _run(self, body: Sequence[ast.stmt], done: set[str]) -> set[str] | None:
        """What is assigned after the statements, if `done` was before them; None if they don't end normally."""
        for statement in body:
            after = self._one(statement, done)
            if after is None:
                return None
            done = after
        return done

    def _one(self, node: Any, done: set[str]) -> set[str] | None:
        if isinstance(node, ast.If):
            self._read(node.test, done)
            return self._either([self._run(node.body, set(done)), self._run(node.orelse, set(done))])
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._read(node.iter, done)
            self._run(node.body, done | _stored(node.target))
            self._run(node.orelse, set(done))
            return done
        if isinstance(node, ast.While):
            self._read(node.test, done)
            self._run(node.body, set(done))
            self._run(node.orelse, set(done))
            return done
        if isinstance(node, (ast.With, ast.AsyncWith)):
            now = set(done)
            for item in node.items:
                self._read(item.context_expr, now)
                if item.optional_vars is not None:
                    self._read(item.optional_vars, now)
                    now |= _stored(item.optional_vars)
            after = self._run(node.body, set(now))
            return now if any(map(_swallows, node.items)) else after
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            tried = self._run(node.body, set(done))
            ends = [None if tried is None else self._run(node.orelse, set(tried))]
            for handler in node.handlers:
                if handler.type is not None:
                    self._read(handler.type, done)
                ends.append(self._run(handler.body, done | ({handler.name} if handler.name else set())))
            last = self._run(node.finalbody, set(done))
            both = self._either(ends)
            return None if last is None or both is None else both | last
        if isinstance(node, ast.Match):
            self._read(node.subject, done)
            for case in node.cases:
                now = done | {each for pattern in ast.walk(case.pattern) for each in _captured(pattern)}
                self._read(case.pattern, done)
                if case.guard is not None:
                    self._read(case.guard, now)
                self._run(case.body, now)
            return done
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._read(node, done)
            return done | {node.name}
        self._read(node, done)
        if isinstance(node, (ast.Raise, ast.Return, ast.Break, ast.Continue)):
            return None
        if isinstance(node, ast.Delete):
            return done - {
                each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)
            }
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return done | {each.asname or each.name.partition(".")[0] for each in node.names}
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return done
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        return done | {name for target in targets if target is not None for name in _stored(target)}

    @staticmethod
    def _either(ends: Sequence[set[str] | None]) -> set[str] | None:
        """What is assigned after whichever of the branches was taken."""
        normal = [each for each in ends if each is not None]
        return set.intersection(*normal) if normal else None

    def _read(self, node: ast.AST, done: set[str]) -> None:
        """Note what an expression reads; functions are taken to be called at once."""
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Store) and node.id in self._names and node.id not in done:
                self._exposed.add(node.id)
            return
        if isinstance(node, ast.AugAssign):
            self._read_name_of(node.target, done)
        elif isinstance(node, _COMPREHENSIONS):
            self._read(node.generators[0].iter, done)
            done = done.union(*(_stored(each.target) for each in node.generators))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for default in (*node.args.defaults, *node.args.kw_defaults, *getattr(node, "decorator_list", ())):
                if default is not None:
                    self._read(default, done)
            done = done | {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        for each in ast.iter_child_nodes(node):
            self._read(each, done)

    def _read_name_of(self, target: ast.AST, done: set[str]) -> None:
        if isinstance(target, ast.Name):
            self._read(ast.Name(target.id, ast.Load()), done)


def _stored(target: ast.AST) -> set[str]:
    """The names that an assignment to the target binds."""
    return {each.id for each in ast.walk(target) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _captured(pattern: ast.AST) -> list[str]:
    names = [getattr(pattern, field, None) for field in ("name", "rest")]
    return [each for each in names if isinstance(each, str)]


def _swallows(item: ast.withitem) -> bool:
    call = item.context_expr
    function = call.func if isinstance(call, ast.Call) else call
    return getattr(function, "attr", getattr(function, "id", "")) in ("suppress", "raises", "assertRaises", "quiet")


def local_names(frame: FrameType) -> frozenset[str]:
    """The names of the frame's local variables; empty in a module."""
    code = frame.f_code
    if code.co_flags & _OPTIMIZED:
        return frozenset([*code.co_varnames, *code.co_cellvars, *code.co_freevars])
    return frozenset() if frame.f_locals is frame.f_globals else frozenset(frame.f_locals)


def is_function(frame: FrameType) -> bool:
    """Whether the frame's local variables are not in a dict."""
    return bool(frame.f_code.co_flags & _OPTIMIZED)
