"""The data that a loop reaches: the variables that its `for` statement names, and what the code it calls reads.

If the file was edited since it was loaded, the statement can't be found, and the whole function or module is used.
"""

from __future__ import annotations

import ast
import functools
from opcode import opmap
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ...errors import FingerprintError
from ...modules import is_project_file
from .bytecode_reads import all_codes, instructions, reads
from .data import ABSENT, Datum, Slot
from .syntax import UNREADABLE, read_source, steadily
from .walk import Walk

_RETRIES = 20  # while other threads change the data that is being hashed
_OPTIMIZED = 1  # CPython's flag for code whose local variables are not in a dict
_BINDING = {opmap[name] for name in ("STORE_NAME", "DELETE_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")}


class _Statement(NamedTuple):
    """The names in a `for` statement: all, those that it binds, and those between `for` and `in`."""

    names: frozenset[str]
    bound: frozenset[str]
    targets: frozenset[str]


class Block:
    """The data that a loop reaches, by names that are the same in every process.

    `unknown` maps data that has no identity, such as an iterator, to its type. `variables` are the local variables that
    the statement names, `targets` those between `for` and `in`.
    """

    def __init__(self, frame: FrameType, items: object) -> None:
        self.data: dict[str, Datum] = {}
        self.unknown: dict[str, str] = {}
        self.variables: dict[str, Any] = {}
        self.targets: frozenset[str] = frozenset()
        self.function = frame.f_code.co_name
        if is_project_file(frame.f_code.co_filename):
            walk = _walk(frame, items)
            self.data, self.unknown = walk.data, walk.unknown
            self.variables, self.targets = walk.variables, walk.named.targets


def _walk(frame: FrameType, items: object) -> _BlockWalk:
    for retries_left in range(_RETRIES, -1, -1):
        try:
            walk = _BlockWalk(frame, items)
            walk.run()
            while walk.incomplete:
                walk = _BlockWalk(frame, items, frozenset(walk.stored), frozenset(walk.aware))
                walk.run()
            return walk
        except RuntimeError as error:  # another thread may have resized a dict or set meanwhile
            if not retries_left or isinstance(error, RecursionError):
                raise
    raise AssertionError("the last attempt returns or raises")


class _BlockWalk(Walk):
    """The walk from a statement in a frame. The items that the loop iterates over are left out."""

    def __init__(
        self,
        frame: FrameType,
        items: object,
        rebound: frozenset[str] = frozenset(),
        aware: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(frame, True, rebound, aware)
        self._frame, self._items, self._root_space = frame, items, frame.f_globals
        self.unknown: dict[str, str] = {}
        code = frame.f_code
        self.named = _statement(code, frame.f_lineno, read_source(code.co_filename, frame.f_globals) or b"")
        local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars} if code.co_flags & _OPTIMIZED else set[str]()
        values = frame.f_locals
        self.variables = {name: values.get(name, ABSENT) for name in sorted(local & self.named.names)}

    def start(self) -> None:
        space, found = self._frame.f_globals, reads(self._frame.f_code)
        self.stored |= found.stored | self.named.bound
        self._attributes |= found.attributes
        for name in self.named.bound - self.variables.keys():
            self.visit(space, name)
        for chain in found.chains:
            if chain[0] in self.named.names and chain[0] not in self.variables:
                self._follow(space, chain, True)
        for name, value in self.variables.items():
            if value is not ABSENT:
                self.describe_at(f"local variable `{name}`", value)

    def add_data(self, value: object, slot: Slot | None) -> None:
        if value is self._items:
            return
        name = " ".join(self._trail)
        try:
            super().add_data(value, slot)
        except FingerprintError as error:
            self.unknown[name] = error.kind
            self.data = {name: datum for name, datum in self.data.items() if datum.value is not value}


@functools.lru_cache(maxsize=32)
def _statement(code: CodeType, line: int, text: bytes) -> _Statement:
    """The names in the innermost `for` statement that begins at the line."""
    everything = frozenset([*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars])
    bound = frozenset(code.co_names[i] for operation, i in instructions(code) if operation in _BINDING)
    try:
        tree = steadily(lambda: ast.parse(text, code.co_filename))
        compiled = steadily(lambda: compile(text, code.co_filename, "exec", dont_inherit=True))
    except UNREADABLE:
        return _Statement(everything, bound, frozenset())
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.AsyncFor)) and _begins(node, line)]
    if not found or code not in all_codes(compiled):  # edited since it was loaded, or `iter(run.loop(...))`
        return _Statement(everything, bound, frozenset())
    node = found[-1]
    parts = [node.target, *node.body, *node.orelse]
    names = [each for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)]
    return _Statement(
        frozenset(each.id for each in names),
        frozenset(each.id for each in names if not isinstance(each.ctx, ast.Load)),
        frozenset(each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)),
    )


def _begins(node: ast.For | ast.AsyncFor, line: int) -> bool:
    return node.iter.lineno <= line <= (node.iter.end_lineno or line)
