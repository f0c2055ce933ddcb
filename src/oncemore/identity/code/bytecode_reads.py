"""What a code object reads besides its parameters: globals, attributes of modules, imports in its body."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from opcode import hasconst, opmap
from types import CodeType
from typing import NamedTuple

from ...modules import is_project_file

CONSTANTS = frozenset(hasconst)
_CACHE = opmap.get("CACHE", -1)
_EXTENDED = opmap["EXTENDED_ARG"]

# What instructions do with a name or a constant; all others do neither.
(
    _GLOBAL,
    _LOCAL_OR_GLOBAL,
    _ATTRIBUTE,
    _SET_ATTRIBUTE,
    _SET_GLOBAL,
    _SET_CLOSURE,
    _COPY,
    _CONSTANT,
    _SMALL_INT,
    _IMPORT,
) = range(10)
_ROLES = {
    opmap[name]: role
    for role, names in {
        _GLOBAL: "LOAD_GLOBAL",
        _LOCAL_OR_GLOBAL: "LOAD_NAME LOAD_FROM_DICT_OR_GLOBALS",
        _ATTRIBUTE: "LOAD_ATTR LOAD_METHOD",
        _SET_ATTRIBUTE: "STORE_ATTR DELETE_ATTR",
        _SET_GLOBAL: "STORE_GLOBAL DELETE_GLOBAL",
        _SET_CLOSURE: "STORE_DEREF DELETE_DEREF",
        _COPY: "DUP_TOP COPY",  # `module.x += 1`
        _SMALL_INT: "LOAD_SMALL_INT",
        _IMPORT: "IMPORT_NAME",
    }.items()
    for name in names.split()
    if name in opmap
} | dict.fromkeys(CONSTANTS, _CONSTANT)

# The low bits of some arguments are flags, not part of the name's index.
_SHIFTS = {
    opmap["LOAD_GLOBAL"]: 1 if sys.version_info >= (3, 11) else 0,
    opmap["LOAD_ATTR"]: 1 if sys.version_info >= (3, 12) else 0,
}


# Names by which code introspects, and so reaches things it does not name: the names, and what they reveal.
REVEALING = {
    name: what
    for what, names in {
        "subclasses": "__subclasses__",
        "docstrings": "__doc__",
        "schemas": "model_json_schema models_json_schema schema_json",  # pydantic's
        "annotations": """
            __annotations__ __annotate__ __signature__ __dataclass_fields__ __attrs_attrs__ __required_keys__
            __optional_keys__ __total__
        """,
        "modules": "import_module iter_modules walk_packages run_module __import__",
        "globals": "__globals__ f_globals globals eval exec",
    }.items()
    for name in names.split()
}
_NOT_AS_ATTRIBUTES = frozenset(["globals", "eval", "exec"])  # `model.eval()` is something else


class Import(NamedTuple):
    """`import module`, or `from module import name`, in the body of a function.

    `escapes`: the imported object is, or may be, used other than as `object.attribute`.
    """

    module: str
    level: int
    name: str | None
    escapes: bool = True


class Reads(NamedTuple):
    """What a function reads and assigns.

    `chains` are globals with the attributes read directly from them: ("np", "mean"), ("LIMIT",). The first names in `maybe`
    occur in the body of an inner class, where they may be the class's own. `attributes` are all attribute names. `stored`
    are the attributes, globals and closure variables that are assigned or deleted, `assigned` the globals and `rebound` the
    closure variables among them.
    `reveals` are the introspecting names in its code and strings. `texts` are its strings.
    """

    chains: tuple[tuple[str, ...], ...]
    maybe: frozenset[str]
    imports: tuple[Import, ...]
    attributes: frozenset[str]
    stored: frozenset[str]
    assigned: frozenset[str]
    rebound: frozenset[str]
    reveals: frozenset[str]
    texts: frozenset[str]


@lru_cache(maxsize=20_000)
def reads(code: CodeType) -> Reads:
    """What the code and the functions inside it read."""
    chains, maybe, imports, texts = set[tuple[str, ...]](), set[str](), list[Import](), set[str]()
    attributes, stored, assigned, rebound = set[str](), set[str](), set[str](), set[str]()
    for each in all_codes(code):
        names, closure = each.co_names, _closure_names(each)
        chain: tuple[str, ...] = ()  # the one that is being read
        level: object = 0
        wanted: object = None
        for operation, argument in instructions(each):
            role = _ROLES.get(operation)
            if role is _COPY:
                continue
            name = names[argument >> _SHIFTS.get(operation, 0)] if role is not None and role <= _SET_GLOBAL else ""
            if chain and role is not _ATTRIBUTE and role is not _SET_ATTRIBUTE:
                chains.add(chain)
                chain = ()
            if role is _GLOBAL or role is _LOCAL_OR_GLOBAL:
                chain = (name,)
                if role is _LOCAL_OR_GLOBAL:
                    maybe.add(name)
            elif role is _ATTRIBUTE or role is _SET_ATTRIBUTE:
                chain = (*chain, name) if chain else ()
                attributes.add(name)
                if role is _SET_ATTRIBUTE:
                    stored.add(name)
            elif role is _SET_GLOBAL:
                assigned.add(name)
            elif role is _SET_CLOSURE and argument < len(closure):
                rebound.add(closure[argument])
            elif role is _CONSTANT or role is _SMALL_INT:
                level, wanted = wanted, argument if role is _SMALL_INT else each.co_consts[argument]
            elif role is _IMPORT:
                members = wanted if isinstance(wanted, tuple) else (None,)
                imports += [Import(names[argument], level if isinstance(level, int) else 0, one) for one in members]
        if chain:
            chains.add(chain)
        texts.update(_texts(each.co_consts))
    # The body of a class with annotations reads `__annotations__` only to fill it.
    heads = {chain[0] for chain in chains}.difference(maybe & {"__annotations__"})
    heads.update(chain[1] for chain in chains if chain[0] == "builtins" and len(chain) > 1)
    named = {wanted.name for wanted in imports if wanted.name}
    dunders = {text for text in texts if text[:2] == "__"}
    return Reads(
        tuple(sorted(chains)),
        frozenset(maybe),
        tuple(imports),
        frozenset(attributes),
        frozenset(stored | assigned | rebound),
        frozenset(assigned),
        frozenset(rebound),
        frozenset(REVEALING).intersection(heads | (attributes - _NOT_AS_ATTRIBUTES) | named | dunders),
        frozenset(texts),
    )


def _texts(constants: Iterable[object]) -> Iterator[str]:
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, (tuple, frozenset)):
            yield from _texts(each)


def _closure_names(code: CodeType) -> tuple[str, ...]:
    """The names that instructions on closure variables refer to."""
    names = code.co_cellvars + code.co_freevars
    if sys.version_info >= (3, 11):  # one index for all kinds of variables, without duplicates
        names = code.co_varnames + tuple(name for name in names if name not in code.co_varnames)
    return names


def all_codes(code: CodeType) -> Iterator[CodeType]:
    """The code object and those of all functions, classes and lambdas inside it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from all_codes(item)


def instructions(code: CodeType) -> Iterator[tuple[int, int]]:
    """Pairs of operation and argument. (`dis` takes 20 times as long.)"""
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


# --- modules loaded by computed names ---------------------------------------------------------------------------------


_MODULE_NAME = re.compile(r"(\.*)((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)?(\.?)(?=$|:|\{|%)")
_MOST = 1000  # files of one package


def files_named(text: str, package: str) -> Iterator[tuple[str, str]]:
    """The project modules that a string may name, with their files: one module, or all in a package (`plugins.`)."""
    found = _MODULE_NAME.match(text)
    if found is None or not found[0]:
        return
    dots, name, more = found[1], found[2] or "", found[3] or (found[1] and not found[2])
    if dots:
        around = package.split(".") if package else []
        name = ".".join([*around[: len(around) - len(dots) + 1], *([name] if name else [])])
    spec = _spec(name) if name else None
    if spec is None:
        return
    if spec.origin is not None and spec.has_location:
        yield spec.name, spec.origin
    if more and spec.name == name:
        yield from _inside(spec)


def _spec(name: str) -> ModuleSpec | None:
    """The module with that name, or the nearest package (the rest may be attributes). Nothing is loaded."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return None
    found: ModuleSpec | None = None
    path: list[str] | None = None
    words = name.split(".")
    for count in range(1, len(words) + 1):
        try:
            spec = PathFinder.find_spec(".".join(words[:count]), path)
            path = None if spec is None else list(spec.submodule_search_locations or ())
        except (ImportError, KeyError, ValueError):  # a namespace package inside a package that is not loaded
            break
        if spec is None:
            break
        files = [spec.origin] if spec.has_location and spec.origin else [os.path.join(p, "x.py") for p in path or ()]
        if not any(map(is_project_file, files)):
            return None
        found = spec
        if not path:
            break
    return found


def _inside(spec: ModuleSpec) -> Iterator[tuple[str, str]]:
    left = _MOST
    for root in sorted(spec.submodule_search_locations or ()):
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(each for each in folders if each.isidentifier() and each != "__pycache__")
            words = [spec.name, *os.path.relpath(folder, root).split(os.sep)]
            for file in sorted(files):
                stem, ending = os.path.splitext(file)
                if ending == ".py" and left > 0:
                    left -= 1
                    yield ".".join(w for w in (*words, stem) if w not in (".", "__init__")), os.path.join(folder, file)
