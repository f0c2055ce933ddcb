"""What a function's behaviour depends on: its own code, and all project code and data it can reach."""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from opcode import opmap
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, NamedTuple, TypeVar

from ...errors import FingerprintError
from ...modules import is_project_file, is_project_module, module_of, name_of_namespace
from .. import library_settings
from ..display import Part, is_secret, masked, short
from ..values import digest
from ..values.builtin_types import WHOLE
from ..values.parts import Parts, canonical_module
from .bytecode_reads import all_codes, instructions, reads
from .data import ABSENT, Datum, Slot
from .descriptions import HOLDERS, held_by, namespace_of, space_of, without_step
from .syntax import UNREADABLE, class_text, hashed, own, read_source, steadily
from .walk import Record, Walk, activate, active

_RETRIES = 20  # while other threads change the data that is being hashed


T = TypeVar("T")
W = TypeVar("W", bound=Walk)


def _retried(look: Callable[[], T]) -> T:
    """Retry while other threads resize the dicts and sets that are being hashed."""
    for _ in range(_RETRIES):
        try:
            return look()
        except RecursionError:
            raise
        except RuntimeError:
            continue
    return look()


def _completed(make: Callable[[frozenset[str], frozenset[str]], W]) -> W:
    """Repeat a walk until it knows what the code assigns and introspects."""
    walk = make(frozenset(), frozenset())
    walk.run()
    while walk.incomplete:
        walk = make(frozenset(walk.stored), frozenset(walk.aware))
        walk.run()
    return walk


class WalkResult:
    """The result of one walk: the digest of the code, and the data it reads, with digests."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._records = dict(sorted(walk.records.items()))
        self.code = hashed(
            "identity", *(piece for name, each in self._records.items() for piece in (name, each.digest))
        )
        self.data = [walk.data[name] for name in sorted(walk.data)]
        self.spaces = walk.spaces
        self._has_settings = not library_settings.NAMES.isdisjoint(walk.foreign)
        self.digests = self.data_digests()

    def data_digests(self) -> list[bytes]:
        """The digests of `data`, as it is now."""
        return _retried(self._data_digests) if self.data else []

    def _data_digests(self) -> list[bytes]:
        found: list[bytes] = []
        try:
            with activate(self._walk):
                found.extend(datum.digest() for datum in self.data)
        except FingerprintError as error:
            raise FingerprintError(error.kind, error.path, self.data[len(found)].name) from error
        return found

    def data_digest(self, digests: Sequence[bytes]) -> bytes:
        """One digest over these digests of the data and over library settings; empty if there are neither."""
        settings = library_settings.parts(self._walk.foreign) if self._has_settings else {}
        if not digests and not settings:
            return b""
        found = [piece for datum, digest in zip(self.data, digests) for piece in (datum.name, digest)]
        return hashed(*found, *(piece for name, part in settings.items() for piece in (name, part.digest)))

    def is_current(self) -> bool:
        """Whether the code is unchanged. Hashes the data again."""
        if not self._walk.watch.unchanged() or not all(datum.refresh() for datum in self.data):
            return False
        known, self.digests = len(self._walk.units_in_values), self.data_digests()
        return len(self._walk.units_in_values) == known  # else the data leads to other functions or classes now

    @functools.cached_property
    def parts(self) -> dict[str, Part]:
        return {name: _part(name, record) for name, record in self._records.items()}

    def data_parts(self, digests: Sequence[bytes]) -> dict[str, Part]:
        """One part per piece of data and per library setting."""
        found = {d.name: Part(found.hex(), shown=d.shown) for d, found in zip(self.data, digests)}
        return {**found, **library_settings.parts(self._walk.foreign)} if self._has_settings else found

    @functools.cached_property
    def packages(self) -> dict[str, str]:
        return _versions(self._walk.foreign.difference(sys.stdlib_module_names))

    @property
    def compares_versions(self) -> bool:
        """Whether the code calls a step with packages="compare"."""
        return self._walk.compares_versions

    @functools.cached_property
    def versions(self) -> dict[str, Part]:
        """One part per installed package that the code uses, for packages="compare": by import name, with the version."""
        found = self.packages
        unknown = self._walk.foreign.difference(sys.stdlib_module_names, found)
        if unknown:
            from importlib.metadata import packages_distributions, version  # slow; `yaml` is of the distribution PyYAML

            known = packages_distributions()
            found = {
                **found,
                **{each: version(each) for name in unknown for each in known.get(name, ())},
            }
        return {f"package {name}": Part(digest(found[name]).hex(), shown=found[name]) for name in sorted(found)}


class Code:
    """The identity of a function's code and of the data it reads: "deep" with everything it reaches, or its "own" only.

    Every call needs it, so the last result is reused for as long as nothing it was made from has changed.
    """

    def __init__(self, function: Callable[..., object], reach: Literal["deep", "own"] = "deep") -> None:
        self.root: Any = _root_of(function)
        self._deep = reach == "deep"
        self._last: WalkResult | None = None

    def digest(self) -> bytes:
        """16 bytes that identify the code and the data it reads, as they are now."""
        result = self.current()
        return hashed(result.code, result.data_digest(result.digests))

    def parts(self) -> dict[str, Part]:
        """The named parts that the digest consists of."""
        result = self.current()
        return {**result.parts, **result.data_parts(result.digests)}

    def packages(self) -> dict[str, str]:
        """The installed packages that the code uses, with their versions. Recorded, not compared."""
        return self.current().packages

    def current(self) -> WalkResult:
        """The result as of now: the same object for as long as the code is unchanged."""
        last = self._last
        if last is None or not last.is_current():
            self._last = last = WalkResult(_completed(functools.partial(Walk, self.root, self._deep)))
        return last


def _versions(names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in sorted(names):
        version = getattr(sys.modules.get(name), "__version__", None)  # much quicker than reading metadata
        if not isinstance(version, str):
            from importlib.metadata import PackageNotFoundError  # slow to import
            from importlib.metadata import version as version_of

            try:
                version = version_of(name)
            except PackageNotFoundError:  # not from an installed distribution
                continue
        found[name] = version
    return found


def module_name(function: Any) -> str:
    """The name of a step's module, the same in every process."""
    space = space_of(_root_of(function))
    return "" if space is None else name_of_namespace(space)


def _root_of(function: Any) -> Any:
    """The function inside a step, staticmethod or classmethod."""
    function = without_step(function)
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    return function


# --- functions and classes inside values ----------------------------------------------------------------------------

_HEAP_TYPE = 1 << 9  # CPython's flag for a class made at run time, not compiled into the interpreter
_codes: dict[int, Code] = {}  # by id, of units that live as long as their module

# If set, collects the functions, classes and modules found inside the values that are hashed.
code_in_values: ContextVar[dict[int, tuple[Any, WalkResult]] | None] = ContextVar("code_in_values", default=None)

# Whether functions and classes inside values are identified by name instead of by code.
by_name: ContextVar[bool] = ContextVar("by_name", default=False)


def _identity_of(unit: FunctionType | type) -> bytes:
    """The identity of a project function or class inside a value.

    During a walk the value is data that some function reads, so whatever the unit's code reads belongs to that walk.
    """
    walk, own_name = active.get(), () if isinstance(unit, type) else (unit.__name__,)
    kind = "class" if isinstance(unit, type) else "function"
    if by_name.get() and "<lambda>" not in unit.__qualname__:
        return hashed(kind, unit.__qualname__)
    return hashed(kind, *own_name, _look_up(unit) if walk is None else walk.in_value(unit))


def _look_up(unit: Any) -> bytes:
    """The identity of a function, class or module by itself."""
    code = _codes.get(id(unit))
    if code is None or code.root is not unit:
        code = Code(unit)
        if isinstance(unit, ModuleType) or namespace_of(unit) is not None:
            _codes[id(unit)] = code
    found, collected = code.digest(), code_in_values.get()
    if collected is not None:
        collected[id(unit)] = unit, code.current()
    return found


def _class(kind: type) -> Parts:
    if kind.__flags__ & _HEAP_TYPE and is_project_module(module_of(kind)):
        return Parts("project class", [_identity_of(kind)])
    return Parts("class", [canonical_module(kind.__module__), kind.__qualname__])


def _function(function: FunctionType) -> Parts:
    named = function.__closure__ is None and "<" not in function.__qualname__
    if named and not is_project_file(function.__code__.co_filename):
        return Parts("library function", [canonical_module(function.__module__), function.__qualname__])
    return Parts("function", [_identity_of(function)])


def _module(module: ModuleType) -> Parts:
    if by_name.get() or not is_project_module(module.__name__):
        return Parts("module", [canonical_module(module.__name__)])
    walk = active.get()
    found = _look_up(module) if walk is None else walk.module(module)
    return Parts("project module", [canonical_module(module.__name__), found])


def _holder(value: Any) -> Parts:
    return Parts("holder", [type(value).__name__, *held_by(value)])


def _step(step: Any) -> Parts:
    """A step inside a value: its function, and the options that affect what callers get."""
    options = None if by_name.get() else step.__checkpoint_code__
    return Parts("step", [type(step), step.__wrapped__, options])


WHOLE.update({"builtins.type": _class, "builtins.function": _function, "builtins.module": _module})
WHOLE.update(
    dict.fromkeys([*HOLDERS, "weakref.ReferenceType", "builtins.weakref"], _holder)
)  # since Python 3.11, before
WHOLE.update(dict.fromkeys(["oncemore.step.Step", "oncemore.step.BoundStep"], _step))
WHOLE["scipy._lib._ccallback.LowLevelCallable"] = lambda value: Parts(
    "low level callable", [value.function, value.user_data, value.signature]
)
WHOLE["pydantic.type_adapter.TypeAdapter"] = lambda value: Parts("type adapter", [value._type, value._config])
for _kind in ("WeakValueDictionary", "WeakKeyDictionary"):
    WHOLE[f"weakref.{_kind}"] = lambda value: Parts("weak dict", [type(value), dict(value)])

# --- the data that a loop reaches -------------------------------------------------------------------------------------


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
            walk = _retried(lambda: _completed(functools.partial(_BlockWalk, frame, items)))
            self.data, self.unknown = walk.data, walk.unknown
            self.variables, self.targets = walk.variables, walk.named.targets


class _BlockWalk(Walk):
    """The walk from a statement in a frame. The items that the loop iterates over are left out."""

    def __init__(
        self,
        frame: FrameType,
        items: object,
        rebound: frozenset[str],
        aware: frozenset[str],
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


# --- display --------------------------------------------------------------------------------------------------------


def _part(name: str, record: Record) -> Part:
    digest, about = record.digest.hex(), record.about
    if isinstance(about, MethodType):
        about = about.__func__
    if name.startswith(("global", "closure", "default", "wrapped")) or not isinstance(about, (FunctionType, type)):
        return Part(digest, shown=f"#{digest[:8]}" if is_secret(name.rstrip("`")) else _shown(about))
    if isinstance(about, type):
        space = getattr(sys.modules.get(about.__module__), "__dict__", {})
        path = str(space.get("__file__", ""))
        line, text = class_text(about.__qualname__, path, space) if path else (0, "")
        return Part(digest, _where(path, line), source=masked(text))
    known = own(about.__code__, about.__globals__)
    return Part(digest, _where(about.__code__.co_filename, known.line), source=masked(known.text))


def _where(path: str, line: int) -> str:
    return f"{os.path.basename(path)}:{line}" if line else os.path.basename(path)


def _shown(value: Any) -> str:
    if isinstance(value, (FunctionType, type)):
        space: Any = getattr(value, "__globals__", None) or getattr(sys.modules.get(value.__module__), "__dict__", {})
        return f"{name_of_namespace(space)}.{value.__qualname__}"
    return short(value)
