"""What a code object reads besides its parameters: global names, attributes of modules, imports in its body."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from opcode import hasconst, opmap
from types import CodeType
from typing import NamedTuple

_CACHE = opmap.get("CACHE", -1)
_EXTENDED = opmap["EXTENDED_ARG"]
_GLOBAL = opmap["LOAD_GLOBAL"]
_NAMES = {opmap["LOAD_NAME"], opmap.get("LOAD_FROM_DICT_OR_GLOBALS", opmap["LOAD_NAME"])}
_ATTRIBUTES = {opmap[name] for name in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR") if name in opmap}
_COPIES = {opmap[name] for name in ("DUP_TOP", "COPY") if name in opmap}  # `module.x += 1`
CONSTANTS = frozenset(hasconst)
_IMPORT = opmap["IMPORT_NAME"]
_REBINDS = opmap["STORE_DEREF"]

# Some instructions say more than a name's index in their argument.
_SHIFTS = {
    _GLOBAL: 1 if sys.version_info >= (3, 11) else 0,
    opmap["LOAD_ATTR"]: 1 if sys.version_info >= (3, 12) else 0,
}


def _any(operations: Iterable[int]) -> bytes:
    return b"[%b]" % re.escape(bytes([each for each in operations if 0 <= each < 256]))  # no invented ones


_ATTRIBUTE = re.compile(_any(_ATTRIBUTES))
_CHAIN = re.compile(
    b"%b(?:%b*%b)*" % (_any({_GLOBAL, *_NAMES}), _any({_CACHE, _EXTENDED, *_COPIES}), _any(_ATTRIBUTES))
)


class Import(NamedTuple):
    """`import module`, or `from module import name`, in a body.

    `escapes`: what it binds is used otherwise than in `bound.attribute`, as far as one can know.
    """

    module: str
    level: int
    name: str | None
    escapes: bool = True


class Reads(NamedTuple):
    """What a function reads.

    `chains` are global names with the attributes taken from them at once: ("np", "mean"), ("LIMIT",). Those in `maybe`
    stand in the body of an inner class, where a name can be the class's own. `attributes` are all names of attributes.
    """

    chains: tuple[tuple[str, ...], ...]
    maybe: frozenset[str]
    imports: tuple[Import, ...]
    attributes: frozenset[str]


_known: dict[CodeType, Reads] = {}


def reads(code: CodeType) -> Reads:
    """What the code and the functions inside it read."""
    known = _known.get(code)
    if known is None:
        if len(_known) > 20_000:
            _known.clear()
        scan = _Scan()
        scan.run(code)
        chains = tuple(sorted(scan.chains))
        known = Reads(chains, frozenset(scan.maybe), tuple(scan.imports), frozenset(scan.attributes))
        _known[code] = known
    return known


def instructions(code: CodeType) -> Iterator[tuple[int, int]]:
    """Operation and argument. (`dis` tells more, and takes 20 times as long.)"""
    raw, high = code.co_code, 0
    for i in range(0, len(raw), 2):
        operation = raw[i]
        if operation == _CACHE:
            continue
        if operation == _EXTENDED:
            high = (high | raw[i + 1]) << 8
            continue
        yield operation, high | raw[i + 1]
        high = 0


class _Scan:
    """Most instructions read nothing, so those that do are searched for, not looked at one by one."""

    def __init__(self) -> None:
        self.chains: set[tuple[str, ...]] = set()
        self.maybe: set[str] = set()
        self.imports: list[Import] = []
        self.attributes: set[str] = set()

    def run(self, code: CodeType) -> None:
        operations, arguments, names = code.co_code[::2], code.co_code[1::2], code.co_names

        def name_at(i: int) -> str:
            operation, argument, shift = operations[i], arguments[i], 0
            while i and operations[i - 1] == _EXTENDED:
                i, shift = i - 1, shift + 8
                argument |= arguments[i] << shift
            return names[argument >> _SHIFTS.get(operation, 0)]

        for found in _CHAIN.finditer(operations):
            i, end = found.span()
            chain = (name_at(i), *[name_at(j) for j in range(i + 1, end) if operations[j] in _ATTRIBUTES])
            self.chains.add(chain)
            if operations[i] in _NAMES:
                self.maybe.add(chain[0])
        self.attributes.update([name_at(found.start()) for found in _ATTRIBUTE.finditer(operations)])
        if _IMPORT in operations:
            self._imports(code)
        for item in code.co_consts:
            if isinstance(item, CodeType):
                self.run(item)

    def _imports(self, code: CodeType) -> None:
        level: object = 0
        wanted: object = None
        for operation, argument in instructions(code):
            if operation in CONSTANTS:
                level, wanted = wanted, code.co_consts[argument]
            elif operation == _IMPORT:
                at = level if isinstance(level, int) else 0
                for name in wanted if isinstance(wanted, tuple) else (None,):
                    self.imports.append(Import(code.co_names[argument], at, name))


def rebinds(code: CodeType) -> set[str]:
    """The closure variables that the code, or a function inside it, gives new values."""
    found: set[str] = set()
    names = code.co_cellvars + code.co_freevars
    if sys.version_info >= (3, 11):  # arguments that are cells count once
        names = code.co_varnames + tuple(name for name in names if name not in code.co_varnames)
    for operation, argument in instructions(code):
        if operation == _REBINDS and argument < len(names):
            found.add(names[argument])
    for item in code.co_consts:
        if isinstance(item, CodeType):
            found |= rebinds(item)
    return found
