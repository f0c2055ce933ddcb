"""All project code that a function can reach, each piece under a name.

The walk knows two ways of reaching something. A *place* is a name in a module: `etl.clean`, `etl.LIMIT`. Functions read
places by their names, so each place is described once, on its own, and refers to others by name only: mutual recursion
ends there, and no answer depends on which function was asked first. What has no place of its own (a lambda in a dict, a
closure) is described where it is found, with everything it holds; it may hold itself, so it is numbered as it is met.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import resolve_name
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from ..errors import FingerprintError
from ..modules import (
    canonical_name,
    is_importable_project,
    is_project_module,
    load_project_module,
    name_of_namespace,
    project_folder,
)
from . import units, values
from .classes import class_pieces
from .reach import Import, Reads, reads
from .syntax import hashed, own
from .watch import Watch, containers_of

Space = dict[str, Any]
Unit = FunctionType | type

_ABSENT = object()
_builtin_names: Space = builtins.__dict__
_MODULE_NAMES = {*vars(ModuleType("any")), "__annotations__", "__builtins__", "__cached__", "__file__", "__path__"}


# Who says, in this thread or task, what identifies the functions and classes met inside values.
active: ContextVar[Walk | Known | None] = ContextVar("active", default=None)


@contextmanager
def answering(walk: Walk | Known) -> Generator[None]:
    token = active.set(walk)
    try:
        yield
    finally:
        active.reset(token)


class Known:
    """The functions and classes that a finished walk met: for comparing values with themselves in the same process."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[bytes, object]] = {}

    def meet(self, unit: object) -> None:
        self._met.setdefault(id(unit), (b"%d" % len(self._met), unit))

    def unit(self, unit: object) -> bytes:
        return self._met[id(unit)][0] if id(unit) in self._met else b"new"


class Record(NamedTuple):
    """One named part of an identity, and what it is about."""

    digest: bytes
    about: object


class Walk:
    """One walk from one function or class."""

    def __init__(self, root: Any, deep: bool) -> None:
        self.records: dict[str, Record] = {}
        self.watch = Watch()
        self.known = Known()
        self.foreign: set[str] = set()
        self._deep = deep
        self._root = root
        self._root_space = units.space_of(root)
        self._labels: dict[int, str] = {}
        self._spaces: dict[str, Space] = {}
        self._places: dict[tuple[int, str], Space] = {}
        self._queue: list[tuple[Space, str]] = []
        self._tokens: dict[int, tuple[bytes, object]] = {}
        self._numbers: dict[int, int] | None = None
        self._met = 0

    def run(self) -> None:
        """Fill `records` and `watch`."""
        with answering(self):
            units.describe_root(self, self._root)
            while self._queue:
                self._place(*self._queue.pop())
        self.watch.seal()

    def record(self, name: str, describe: Callable[[], bytes], about: object) -> None:
        """Keep a part's digest; an error in making it names the part."""
        try:
            self.records[name] = Record(describe(), about)
        except FingerprintError as error:
            raise FingerprintError(error.kind, error.path, error.part or name) from error

    # --- what values ask -------------------------------------------------------------------------------------------

    def unit(self, unit: Unit) -> bytes:
        """A function or class: by its place if it has one."""
        self._met += 1
        self.known.meet(unit)
        if unit is self._root:
            return hashed("itself")
        if units.is_project_unit(unit):
            return self._by_place(unit) or self._numbered(unit)
        return self.foreigner("class", unit) if isinstance(unit, type) else self._numbered(unit)

    def data(self, value: object) -> bytes:
        """A value by its content."""
        found, met = containers_of(value), self._met
        if found is not None:
            self.watch.containers(found)
            return values.digest(value)
        digest = again = values.digest(value)
        if self._met != met:  # functions in it: from now on, they are compared as the objects that they are
            with answering(self.known):
                again = values.digest(value)
        self.watch.value(value, again)
        return digest

    def describe(self, value: object) -> bytes:
        """Whatever a name, a cell, a default or an attribute of a class holds."""
        return self.unit(value) if units.is_unit(value) else units.describe(self, value)

    def foreigner(self, kind: str, named: Any) -> bytes:
        """Code that is not the project's: its name counts."""
        module, name = units.names_of(named)
        self.foreign.add(module.partition(".")[0])
        return hashed("foreign", kind, module, name, units.binary_of(module))

    # --- functions and classes -------------------------------------------------------------------------------------

    def token(self, unit: Unit) -> bytes:
        """All that a function or class is, but for the places it reads."""
        if isinstance(unit, type):
            self.watch.klass(unit)
            space = units.space_of(unit)
            label = canonical_name(unit.__module__) if space is None else self.label(space)
            return hashed("class", label, unit.__qualname__, *class_pieces(self, unit))
        if not units.is_project_unit(unit):
            return hashed(self.foreigner("function", unit), *units.carried(self, unit))
        pieces: list[bytes | str] = ["function", unit.__name__, self.scan(unit)]
        if reads(unit.__code__).chains:
            pieces.append(self.label(unit.__globals__))
        for name, value in units.held(self.watch, unit):
            pieces += [name, b"" if value is units.EMPTY else self.describe(value)]
        return hashed(*pieces)

    def _numbered(self, unit: Unit) -> bytes:
        """What has no place: described in full where it is met first, from there on by its number."""
        if self._numbers is not None:
            if id(unit) in self._numbers:
                return hashed("again", b"%d" % self._numbers[id(unit)])
            self._numbers[id(unit)] = len(self._numbers)
            return self.token(unit)
        if id(unit) not in self._tokens:
            self._numbers = {id(unit): 0}
            try:
                self._tokens[id(unit)] = (self.token(unit), unit)
            finally:
                self._numbers = None
        return self._tokens[id(unit)][0]

    def _by_place(self, unit: Unit) -> bytes | None:
        """A reference to the unit's own place, if it has one."""
        home = units.home_of(unit)
        if home is None:
            return None
        if self._deep:
            self.visit(home, unit.__qualname__)
        return hashed("at", self.label(home), unit.__qualname__)

    # --- places ----------------------------------------------------------------------------------------------------

    def label(self, space: Space) -> str:
        """The name of a namespace. Two of one name (scripts run by exec, say) are told apart by their order."""
        known = self._labels.get(id(space))
        if known is None:
            name = known = name_of_namespace(space)
            while known in self._spaces:
                known = f"{name}#{len(self._spaces)}"
            self._labels[id(space)], self._spaces[known] = known, space
        return known

    def visit(self, space: Space, name: str) -> None:
        if (id(space), name) not in self._places:
            self._places[id(space), name] = space
            self._queue.append((space, name))

    def _look(self, space: Space, name: str) -> Any:
        first, *rest = name.split(".")
        value = space.get(first, _ABSENT)
        if value is _ABSENT:
            self.watch.absence(space, first)
            return _ABSENT
        self.watch.name(space, first, value)
        for word in rest:
            value = vars(value).get(word, _ABSENT)
        return value

    def _place(self, space: Space, name: str) -> None:
        value = self._look(space, name)
        label = self.label(space)
        bare = units.without_step(value)
        if (
            bare is not self._root
            and units.is_project_unit(bare)
            and bare.__qualname__ == name
            and units.home_of(bare) is space
        ):
            self.known.meet(bare)
            kind = "class" if isinstance(bare, type) else "helper"
            shown = name if space is self._root_space else f"{label}.{name}"
            self.record(f"{kind} `{shown}`", lambda: hashed(self.token(bare), units.step_part(self, value)), bare)
            return
        part = f"global `{label}.{name}`"
        if value is _ABSENT:
            self.record(part, lambda: hashed("absent"), None)
        else:
            self.record(part, lambda: self._in_project(value, space) or self.describe(value), value)

    @staticmethod
    def _in_project(value: object, space: Space) -> bytes | None:
        """A path into the project's own folder: the folder may move."""
        kind, folder = type(value), project_folder(space)
        if folder is None or not (kind is str or kind.__module__ in ("pathlib", "pathlib._local")):
            return None
        text = str(value)
        inside = (text + os.sep).startswith(folder + os.sep)
        return hashed("in the project", kind.__name__, text[len(folder) :]) if inside else None

    # --- what a function reads -------------------------------------------------------------------------------------

    def scan(self, function: FunctionType) -> bytes:
        """Visit all places that the function reads; its own digest."""
        self.watch.function(function)
        code = function.__code__
        known = own(code, function.__globals__)
        if self._deep:
            found = reads(code)
            for chain in found.chains:
                if known.names is None or _stands_in(chain[0], known.names):
                    self._follow(function.__globals__, chain, chain[0] in found.maybe)
            for wanted in known.imports:
                self._import(wanted, function.__globals__, found)
        return known.digest

    def _follow(self, space: Space, chain: tuple[str, ...], maybe: bool) -> None:
        name, rest = chain[0], chain[1:]
        if name in _MODULE_NAMES:
            return
        value = space.get(name, _ABSENT)
        if value is _ABSENT and (maybe or name in _builtin_names):
            self.watch.absence(space, name)
            if name in ("eval", "exec", "globals"):
                self._whole(space)
            value = _builtin_names.get(name)
            if isinstance(value, FunctionType) and units.is_project_unit(value):
                self.visit(_builtin_names, name)
            return
        self.visit(space, name)
        while isinstance(value, ModuleType) and is_project_module(value.__name__):
            space = vars(value)
            if not rest:
                self._whole(space)
                return
            name, rest = rest[0], rest[1:]
            if name in _MODULE_NAMES:
                return
            self.visit(space, name if name in space or "__getattr__" not in space else "__getattr__")
            value = space.get(name)
        if type(value) is FunctionType and rest and rest[0] in value.__dict__ and rest[0][:2] != "__":
            self._labels.setdefault(id(value.__dict__), f"{self.label(space)}.{name}")
            self.visit(value.__dict__, rest[0])

    def _whole(self, space: Space) -> None:
        """A module that is handed on as such: any of its names may be read."""
        for name in list(space):
            if not name.startswith("__"):
                self.visit(space, name)

    def _import(self, wanted: Import, space: Space, found: Reads) -> None:
        """An import in a body. The module is loaded if it is the project's: the body would do the same."""
        package = space.get("__package__") or getattr(space.get("__spec__"), "parent", None) or ""
        try:
            name = resolve_name("." * wanted.level + wanted.module, str(package))
        except ImportError:
            return
        if not is_importable_project(name):
            self.foreign.add(name.partition(".")[0])
        elif wanted.name is None:
            for end in [i for i, letter in enumerate(name + ".") if letter == "."]:
                self._imported(load_project_module(name[:end]), wanted, found)
        elif (module := load_project_module(name)) is not None and wanted.name in vars(module):
            self.visit(vars(module), wanted.name)
            self._imported(vars(module)[wanted.name], wanted, found)
        else:
            self._imported(load_project_module(f"{name}.{wanted.name}"), wanted, found)

    def _imported(self, module: object, wanted: Import, found: Reads) -> None:
        if not isinstance(module, ModuleType) or not is_project_module(module.__name__):
            return
        if wanted.escapes:
            self._whole(vars(module))
        else:
            for name in found.attributes.intersection(vars(module)) - _MODULE_NAMES:
                if (id(vars(module)), name) not in self._places:
                    self.visit(vars(module), name)
                    self._imported(vars(module)[name], wanted, found)


def _stands_in(name: str, names: frozenset[str]) -> bool:
    """Whether a global's name stands in a tree, where private names in a class are not yet mangled."""
    return name in names or (name[0] == "_" and any(word[:2] == "__" and name.endswith(word) for word in names))
