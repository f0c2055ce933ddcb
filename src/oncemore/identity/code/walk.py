"""All project code that a function can reach, each piece under a name.

The walk knows two ways of reaching something. A *place* is a name in a module: `etl.clean`, `etl.LIMIT`. Functions read
places by their names, so each place is described once, on its own, and refers to others by name only: mutual recursion
ends there, and no answer depends on which function was asked first. What has no place of its own (a lambda in a dict, a
closure) is described where it is found, with everything it holds; it may hold itself, so it is numbered as it is met.

Data that can change is not part of the code: it is listed in `data`, under the name of the place where it was found.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import EnumMeta
from importlib.util import resolve_name
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ...errors import FingerprintError
from ...modules import (
    canonical_name,
    is_importable_project,
    is_project_module,
    load_project_module,
    module_of,
    name_of_namespace,
    project_folder,
)
from .. import values
from . import bytecode_reads, descriptions, dynamic_imports
from .bytecode_reads import Import, Reads, reads
from .classes import class_pieces, has_schema
from .data import ABSENT, DATA, Datum, Slot, in_class, in_mapping, is_constant
from .freshness import Watch
from .statements import assigns
from .syntax import UNREADABLE, hashed, own

Space = dict[str, Any]
Unit = FunctionType | type

_builtin_names: Space = builtins.__dict__
_PYTHONS_OWN = frozenset(
    ["None", "True", "False", "Ellipsis", "NotImplemented", "_", *vars(ModuleType("any")), "__debug__"]
)
_MODULE_NAMES = {*vars(ModuleType("any")), "__builtins__", "__cached__", "__file__", "__path__"} - {"__doc__"}

# What code can read besides what things do; told by names in the code, or by functions of libraries that it uses.
_REVEALING = {
    "subclasses": bytecode_reads.SUBCLASSES,
    "docstrings": bytecode_reads.DOCSTRINGS,
    "schemas": bytecode_reads.SCHEMAS,
    "annotations": bytecode_reads.ANNOTATIONS,
    "modules": bytecode_reads.MODULES,
}
# By their names, or those of their modules or packages: cattrs makes objects of the annotations of classes that it is given,
# openai sends the schemas of classes, with their docstrings.
_READERS = {
    name: what
    for what, names in {
        "annotations": """
            inspect.signature inspect.Signature inspect.getfullargspec inspect.get_annotations dataclasses.fields
            typing.get_type_hints typing_extensions.get_type_hints attr._make.fields attr._make.fields_dict
            pydantic.type_adapter.TypeAdapter pydantic.main.create_model pydantic._internal._validate_call
            apischema beartype cattr cattrs cyclopts dacite desert jsonargparse mashumaro msgspec serde simple_parsing
            typedload typeguard typer tyro
        """,
        "docstrings": "inspect.getdoc pydoc doctest",
        "source": "inspect.getsource inspect.getsourcelines inspect.getcomments",
        "schemas": """
            anthropic cohere dspy google instructor langchain langchain_core langgraph litellm llama_index marvin mistralai
            ollama openai outlines pydantic_ai
        """,
    }.items()
    for name in names.split()
}
_NAMES_OF_MODULE = frozenset(["__name__", "__package__", "__path__", "__spec__"])
_MANY = 1000  # texts in a global that may be names of modules


# Who says, in this thread or task, what identifies the functions and classes met inside values.
active: ContextVar[Walk | None] = ContextVar("active", default=None)


@contextmanager
def answering(walk: Walk) -> Generator[None]:
    token = active.set(walk)
    try:
        yield
    finally:
        active.reset(token)


class Record(NamedTuple):
    """One named part of an identity, and what it is about."""

    digest: bytes
    about: object


class Walk:
    """One walk from one function, class or module.

    `rebound` are names that its code is known to give new values, `aware` is what else it is known to read: the subclasses of
    classes, docstrings, annotations, source, modules by computed names.
    """

    def __init__(
        self, root: Any, deep: bool, rebound: frozenset[str] = frozenset(), aware: frozenset[str] = frozenset()
    ) -> None:
        self.records: dict[str, Record] = {}
        self.data: dict[str, Datum] = {}
        self.watch = Watch()
        self.known: dict[int, object] = {}  # the functions and classes that were met in values
        self.stored = set(rebound)  # names that the code gives values
        self._taken: set[str] = set()  # names that count in another way if they are among those
        self._rebound = rebound
        self.aware = set(aware)
        self._aware = aware
        self._texts: set[tuple[str, str]] = set()  # with the packages that they stand in
        self._attributes: set[str] = set()  # all that the code takes from anything
        self._libraries: dict[int, ModuleType] = {}
        self._library_classes: dict[int, type] = {}
        self._trail: list[str] = []  # how the data that is met now was reached
        self._slot: Slot | None = None  # and where it is bound, if it is bound to a name
        self._listed: dict[int, object] = {}
        self._open: set[int] = set()  # data that is being looked at
        self.foreign: set[str] = set()
        self._deep = deep
        self._root = root
        self._root_space = descriptions.space_of(root)
        self._owners: dict[str, Any] = {}  # classes, and members of enumerations
        self._labels: dict[int, str] = {}
        self._spaces: dict[str, Space] = {}
        self._places: dict[tuple[int, str], Space] = {}
        self._queue: list[tuple[Space, str]] = []
        self._tokens: dict[int, tuple[bytes, object]] = {}
        self._numbers: dict[int, int] | None = None

    def run(self) -> None:
        """Fill `records` and `watch`."""
        with answering(self):
            self.start()
            while True:
                while self._queue:
                    self._place(*self._queue.pop())
                if self._deep:
                    self._by_name()
                    self._patched()
                if not self._queue:
                    break
        self.watch.seal()

    def start(self) -> None:
        """Describe what the walk begins with."""
        descriptions.describe_root(self, self._root)

    def record(self, name: str, describe: Callable[[], bytes], about: object) -> None:
        """Keep a part's digest; an error in making it names the part."""
        self._trail.append(name)
        try:
            self.records[name] = Record(describe(), about)
        except FingerprintError as error:
            raise FingerprintError(error.kind, error.path, error.part or name) from error
        finally:
            self._trail.pop()

    # --- what values ask -------------------------------------------------------------------------------------------

    def in_value(self, unit: Unit) -> bytes:
        """A function or class in a value: by its place if it has one, else by itself, whatever is being described around it."""
        self.known.setdefault(id(unit), unit)
        if unit is self._root:
            return hashed("itself")
        placed = self._by_place(unit) if descriptions.is_project_unit(unit) else None
        if placed is None and id(unit) not in self._tokens:
            around, self._numbers = self._numbers, None
            try:
                self._numbered(unit)
            finally:
                self._numbers = around
        return placed or self._tokens[id(unit)][0]

    def module(self, module: ModuleType) -> bytes:
        """A module of the project that is used as a value: any of its names may be read."""
        self.known.setdefault(id(module), module)
        if self._deep:
            self._whole(vars(module))
        return hashed("module", self.label(vars(module)))

    def unit(self, unit: Unit) -> bytes:
        """A function or class: by its place if it has one."""
        if unit is self._root:
            return hashed("itself")
        if descriptions.is_project_unit(unit):
            return self._by_place(unit) or self._numbered(unit)
        return self.foreigner("class", unit) if isinstance(unit, type) else self._numbered(unit)

    def value(self, value: object) -> bytes:
        """A constant by its content; for anything else it only counts that it is there."""
        bound = self._slot is not None and self._slot.get() is value
        if is_constant(value) and not (bound and self._slot is not None and self._is_rebound(self._slot.name)):
            return values.digest(value)
        self.list(value, self._slot if bound else None)
        return DATA

    def list(self, value: object, slot: Slot | None) -> None:
        """List data under the way that led to it."""
        if slot is None and id(value) in self._listed:
            return  # known by another name
        self._listed[id(value)] = value
        name = " ".join(filter(None, self._trail))
        while name in self.data:
            name += "'"
        if slot is not None and slot.space is not None:
            self.watch.leave_out(slot.space, slot.name)
        self.data[name] = Datum(name, value, slot)
        if id(value) not in self._open:  # else it contains what led here
            self._open.add(id(value))
            try:
                self.data[name].digest()  # leads to the functions and classes in it
            finally:
                self._open.discard(id(value))

    def describe(self, value: object) -> bytes:
        """Whatever a name, a cell, a default or an attribute of a class holds."""
        return self.unit(value) if descriptions.is_unit(value) else descriptions.describe(self, value)

    def describe_at(self, word: str, value: object, slot: Slot | None = None) -> bytes:
        """The same of something that is reached under a word, and maybe bound there."""
        before, self._slot = self._slot, slot
        self._trail.append(word)
        try:
            return self.describe(value)
        finally:
            self._trail.pop()
            self._slot = before

    def foreigner(self, kind: str, named: Any) -> bytes:
        """Code that is not the project's: its name counts."""
        module, name = descriptions.names_of(named)
        self.foreign.add(module.partition(".")[0])
        self._note_reader(module, name)
        if isinstance(named, type) and module != "builtins":
            self._library_classes[id(named)] = named
        return hashed("foreign", kind, module, name, descriptions.binary_of(module))

    def _note_reader(self, module: str, name: str) -> None:
        """A library's function or class that the code uses: some read what is of no account otherwise."""
        for known in (f"{module}.{name}", module, module.partition(".")[0]):
            if known in _READERS:
                self.aware.add(_READERS[known])

    def subclasses(self, klass: type) -> Sequence[bytes]:
        """The project's subclasses of a class, if the code looks for any."""
        if "subclasses" not in self._aware or klass is object or klass is type:
            return []
        seen: list[type] = list(self.watch.several(lambda: type.__subclasses__(klass)))  # type: ignore[arg-type]
        # Of several with one name, the last: the others were replaced, and are there until they are collected.
        known = {(module_of(each), each.__qualname__): each for each in seen if descriptions.is_project_unit(each)}
        return [self.unit(each) for (module, _), each in known.items() if module in sys.modules]

    def also(self, unit: Unit) -> Sequence[bytes | str]:
        """What counts of a function or class only where the code reads such: its docstring, its annotations, its source."""
        found: list[bytes | str] = []
        if "docstrings" in self._aware or ("schemas" in self._aware and has_schema(unit)):
            found += ["docstring", descriptions.docstring(unit)]
        if "annotations" in self._aware:
            found.append("annotations")
            for name, kind in descriptions.annotated(unit):
                found += [name, self.annotation(name, kind, unit)]
        if "source" in self._aware:
            found += ["source", descriptions.source(unit)]
        return found

    def annotation(self, name: str, kind: object, unit: Unit) -> bytes:
        """An annotation of a function or class: what it is, or its text and what that names."""
        if not isinstance(kind, str):
            return self.describe_at(f"annotation `{name}`", kind)
        space = descriptions.space_of(unit) if self._deep else None
        if space is not None:
            self._follow_text(kind, space)
        return hashed("text", kind)

    def _follow_text(self, text: str, space: Space) -> None:
        """The names in a text that is an expression, or a program."""
        try:
            code = compile(text.strip(), "<text>", "exec", dont_inherit=True)
        except UNREADABLE:
            return
        for chain in reads(code).chains:
            self._follow(space, chain, True)

    # --- functions and classes -------------------------------------------------------------------------------------

    def token(self, unit: Unit) -> bytes:
        """All that a function or class is, but for the places it reads."""
        if isinstance(unit, type):
            self.watch.klass(unit)
            space = descriptions.space_of(unit)
            label = canonical_name(module_of(unit)) if space is None else self.label(space)
            self._owners[f"class `{label}.{unit.__qualname__}`"] = unit
            if isinstance(unit, EnumMeta):
                members: dict[str, Any] = dict(unit.__members__)
                for name, member in members.items():
                    self._owners[f"member `{label}.{unit.__qualname__}.{name}`"] = vars(member)
            return hashed("class", label, unit.__qualname__, *class_pieces(self, unit))
        if not descriptions.is_project_unit(unit):
            return hashed(self.foreigner("function", unit), *descriptions.carried(self, unit))
        pieces: list[bytes | str] = ["function", unit.__name__, self.scan(unit)]
        if reads(unit.__code__).chains:
            pieces.append(self.label(unit.__globals__))
        for name, value, slot in descriptions.held(unit):
            pieces += [name, self.held(name, value, slot)]
        return hashed(*pieces)

    def held(self, name: str, value: object, slot: Slot | None) -> bytes:
        """What a function carries along under a name; none if the part that is being recorded has that name."""
        listed = len(self.data)
        found = self._absent(slot) if value is ABSENT else self.describe_at(name, value, slot)
        if slot is not None and (len(self.data) == listed or not descriptions.is_data(value)):
            self.watch.bound(slot.get, value)
        return found

    def _absent(self, slot: Slot | None) -> bytes:
        if slot is not None and self._is_rebound(slot.name):
            self.list(ABSENT, slot)
            return DATA
        return hashed("absent")

    def _is_rebound(self, name: str) -> bool:
        """Whether the code gives the name new values; if not known yet, it will be after this walk (see `incomplete`)."""
        self._taken.add(name)
        return name in self._rebound

    @property
    def spaces(self) -> dict[str, Any]:
        """The modules, classes and enumerations that the code reaches: it may bind names in them by any means."""
        return {**{f"module `{label}`": space for label, space in self._spaces.items()}, **self._owners}

    @property
    def incomplete(self) -> bool:
        """Whether a name was taken for one that the code leaves alone, and is not; or the code reads more than was known."""
        return not self._rebound.issuperset(self._taken & self.stored) or not self.aware <= self._aware

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
        namespace = descriptions.namespace_of(unit)
        if namespace is None:
            return None
        if self._deep:
            self.visit(namespace, unit.__qualname__)
        return hashed("at", self.label(namespace), unit.__qualname__)

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
        value = space.get(first, ABSENT)
        if value is ABSENT:
            self.watch.absence(space, first)
            return ABSENT
        self.watch.name(space, first, value)
        for word in rest:
            value = vars(value).get(word, ABSENT)
        return value

    def _place(self, space: Space, name: str) -> None:
        value = self._look(space, name)
        label = self.label(space)
        bare = descriptions.without_step(value)
        if (
            bare is not self._root
            and descriptions.is_project_unit(bare)
            and bare.__qualname__ == name
            and descriptions.namespace_of(bare) is space
        ):
            kind = "class" if isinstance(bare, type) else "helper"
            shown = name if space is self._root_space else f"{label}.{name}"
            self.record(
                f"{kind} `{shown}`", lambda: hashed(self.token(bare), descriptions.step_part(self, value)), bare
            )
            return
        part = f"global `{label}.{name}`"
        slot = in_mapping(space, name) if "." not in name else None
        self._slot = slot
        if value is ABSENT:
            self.record(part, lambda: self._absent(slot), None)
        elif name == "__doc__":
            self.record(part, lambda: hashed("docstring", descriptions.undented(value)), value)
        elif isinstance(value, ModuleType) and is_project_module(value.__name__):
            self.record(
                part, lambda: hashed("module", self.label(vars(value))), value
            )  # its names are visited one by one
        elif isinstance(value, type) and not descriptions.is_project_unit(value) and self.subclasses(value):
            self.record(part, lambda: hashed(self.describe(value), *self.subclasses(value)), value)
        else:
            self.record(part, lambda: self._in_project(value, slot, space) or self.describe(value), value)
        self._slot = None
        self._note_reader(module_of(type(value)), type(value).__qualname__)
        if "modules" in self._aware:
            self._texts.update((str(space.get("__package__") or ""), text) for text in _texts_in(value))
        if part in self.data:
            del self.records[part]  # it is listed as what it is

    def _in_project(self, value: object, slot: Slot | None, space: Space) -> bytes | None:
        """A path into the project's own folder: the folder may move."""
        kind, folder = type(value), project_folder(space)
        if folder is None or not (kind is str or kind.__module__ in ("pathlib", "pathlib._local")):
            return None
        if slot is not None and self._is_rebound(slot.name):
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
        found = reads(code)
        self.stored |= found.stored
        self._attributes |= found.attributes
        self.aware.update(what for what, words in _REVEALING.items() if words & found.reveals)
        if self._deep:
            if any(_is_builtin(word, function.__globals__) for word in found.reveals & bytecode_reads.GLOBALS):
                self._whole(function.__globals__)
                for text in found.texts:
                    self._follow_text(text, function.__globals__)
            if "modules" in self._aware:
                self._note_names(function.__globals__, found)
            for name in found.assigned:
                self.visit(function.__globals__, name)
            for chain in found.chains:
                if known.names is None or _stands_in(chain[0], known.names):
                    self._follow(function.__globals__, chain, chain[0] in found.maybe)
            for wanted in known.imports:
                self._import(wanted, function.__globals__, found)
        also = self.also(function)
        return hashed(known.digest, *also) if also else known.digest

    def _note_names(self, space: Space, found: Reads) -> None:
        """The texts in a function that may be names of modules."""
        package = str(space.get("__package__") or "")
        self._texts.update((package, text) for text in found.texts)
        if found.reveals & bytecode_reads.MODULES and any(chain[0] in _NAMES_OF_MODULE for chain in found.chains):
            self._texts.add((package, "."))
            if "sys.modules" in found.reveals:  # sys.modules[__name__]
                self._whole(space)

    def _follow(self, space: Space, chain: tuple[str, ...], maybe: bool) -> None:
        name, rest = chain[0], chain[1:]
        if name in _MODULE_NAMES or (maybe and name == "__annotations__"):
            return
        value = space.get(name, ABSENT)
        if value is ABSENT and (maybe or name in _builtin_names):
            self.watch.absence(space, name)
            value = _builtin_names.get(name)
            ours = isinstance(value, FunctionType) and descriptions.is_project_unit(value)
            if ours or not (callable(value) or name in _PYTHONS_OWN):
                self.visit(_builtin_names, name)
            return
        self.visit(space, name)
        if value is eval or value is exec or value is globals:  # under another name
            self._whole(space)
        while isinstance(value, ModuleType) and is_project_module(value.__name__):
            space = vars(value)
            if not rest:
                self._whole(space)
                return
            name, rest = rest[0], rest[1:]
            if name == "__dict__":
                self._whole(space)
            elif name in _NAMES_OF_MODULE and "modules" in self._aware:
                self._texts.add((str(space.get("__package__") or ""), "."))
            if name in _MODULE_NAMES:
                return
            self.visit(space, name if name in space or "__getattr__" not in space else "__getattr__")
            value = space.get(name)
        if isinstance(value, ModuleType):
            self._library(value, rest, space, name)
            return
        value = descriptions.without_step(value)
        if not rest or rest[0][:2] == "__":
            return
        if type(value) is FunctionType and (rest[0] in value.__dict__ or self._is_rebound(rest[0])):
            self._labels.setdefault(id(value.__dict__), f"{self.label(space)}.{name}")
            self.visit(value.__dict__, rest[0])
        elif (
            isinstance(value, type)
            and descriptions.is_project_unit(value)
            and rest[0] not in vars(value)
            and self._is_rebound(rest[0])
        ):
            self._trail.append(f"class `{self.label(space)}.{name}` attribute `{rest[0]}`")  # a new one
            self.list(ABSENT, in_class(value, rest[0]))
            self._trail.pop()

    def _library(self, module: ModuleType, rest: tuple[str, ...], space: Space | None = None, called: str = "") -> None:
        """A name in a library's module, which code in `space` calls so: the project may have bound it to something of its own."""
        self._libraries[id(module)] = module
        for name in rest:
            member = vars(module).get(name, ABSENT)
            if isinstance(member, ModuleType) and not is_project_module(member.__name__):
                self._libraries[id(member)] = module = member
                called = f"{called}.{name}"
                continue
            if (
                space is not None
                and not descriptions.is_patch(vars(module), name, member)
                and assigns(space, f"{called}.{name}")
            ):
                self._trail.append(f"attribute `{module.__name__}.{name}`")
                self.list(member, in_mapping(vars(module), name))
                self._trail.pop()
            elif descriptions.is_patch(vars(module), name, member) or (
                isinstance(member, type) and self.subclasses(member)
            ):
                self.visit(vars(module), name)
            elif isinstance(member, (FunctionType, type, BuiltinFunctionType)):
                self.watch.name(vars(module), name, member)
                self._note_reader(*descriptions.names_of(member))
            return

    def _patched(self) -> None:
        """Functions of the project that were put into classes of the libraries which the code names."""
        classes = dict(self._library_classes)
        for module in self._libraries.values():
            classes.update((id(kind), kind) for kind in list(vars(module).values()) if isinstance(kind, type))
        for kind in classes.values():
            for name in sorted(kind.__dict__.keys() & self._attributes):
                value = kind.__dict__[name]
                part = f"patch `{module_of(kind).partition('.')[0]}.{kind.__qualname__}.{name}`"
                if part not in self.records and descriptions.is_ours(value) and not descriptions.is_project_unit(kind):
                    self.watch.bound(in_class(kind, name).get, value)
                    self.record(part, lambda: self.describe(value), value)  # noqa: B023

    def _by_name(self) -> None:
        """Modules that the code may load by names which it puts together, with what they import."""
        found = [file for package, text in sorted(self._texts) for file in dynamic_imports.files_named(text, package)]
        self._texts.clear()
        while found:
            name, path = found.pop()
            part = f"module `{name}`"
            if part in self.records:
                continue
            digest, imports = dynamic_imports.content(path)
            self.records[part] = Record(digest, None)
            package = name if os.path.basename(path) == "__init__.py" else name.rpartition(".")[0]
            for module, level, member, _ in imports:
                try:
                    full = resolve_name("." * level + module, package)
                except ImportError:
                    continue
                known = self._spaces.get(full)
                if known is None:
                    found += dynamic_imports.files_named(f"{full}.{member}" if member else full, "")
                elif member is not None:
                    self.visit(known, member)

    def _whole(self, space: Space) -> None:
        """A module that is handed on as such: any of its names may be read, and its own modules'."""
        read = [name for name in ("__doc__", "__annotations__") if name in space and self._reads(name)]
        if "__getattr__" in space:
            self.visit(space, "__getattr__")
        for name in [*read, *(name for name in list(space) if not name.startswith("__"))]:
            value = space[name]
            new = (id(space), name) not in self._places
            self.visit(space, name)
            inside = f"{space.get('__name__')}."
            if new and isinstance(value, ModuleType) and value.__name__.startswith(inside):
                self._whole(vars(value))

    def _reads(self, name: str) -> bool:
        return ("docstrings" if name == "__doc__" else "annotations") in self._aware

    def _import(self, wanted: Import, space: Space, found: Reads) -> None:
        """An import in a body. The module is loaded if it is the project's: the body would do the same."""
        package = space.get("__package__") or getattr(space.get("__spec__"), "parent", None) or ""
        try:
            name = resolve_name("." * wanted.level + wanted.module, str(package))
        except ImportError:
            return
        if not is_importable_project(name):
            self.foreign.add(name.partition(".")[0])
            module = sys.modules.get(name)
            if module is not None and wanted.name is not None:
                self._library(module, (wanted.name,))
            elif module is not None:
                for attribute in sorted(found.attributes.intersection(vars(module))):
                    self._library(module, (attribute,))
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


def _is_builtin(word: str, space: Space) -> bool:
    return space.get(word, _builtin_names.get(word)) is _builtin_names.get(word)


def _texts_in(value: object) -> Iterator[str]:
    """The texts in a value that consists of little else."""
    pending, left = [value], _MANY
    while pending and left:
        each: Any = pending.pop()
        left -= 1
        if isinstance(each, str):
            yield each
        elif type(each) in (list, tuple, set, frozenset):
            pending.extend(list(each)[:left])
        elif type(each) is dict:
            pending.extend([*each, *each.values()][:left])


def _stands_in(name: str, names: frozenset[str]) -> bool:
    """Whether a global's name stands in a tree, where private names in a class are not yet mangled."""
    return name in names or (name[0] == "_" and any(word[:2] == "__" and name.endswith(word) for word in names))
