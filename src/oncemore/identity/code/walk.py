"""All project code that a function can reach, each piece under a name.

The walk reaches code in two ways. Globals (`etl.clean`, `etl.LIMIT`) are read by name, so each is described once, on its
own, and refers to other globals by name only. Mutual recursion therefore ends, and no digest depends on where the walk
began. Code without a global name (a lambda in a dict, a closure) is described where it is found, with everything it
holds. It may hold itself, so such units are numbered in the order they are found.

Data that can change is not part of the code: it is listed in `data`, under a name that says where it was found.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import EnumMeta
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ...errors import FingerprintError
from ...modules import (
    absolute_name,
    canonical_name,
    is_importable_project,
    is_project_module,
    load_project_module,
    module_of,
    name_of_namespace,
    package_of,
    project_folder,
)
from .. import values
from . import descriptions
from .bytecode_reads import REVEALING, Import, Reads, files_named, reads
from .classes import class_pieces, has_schema
from .data import ABSENT, DATA, Datum, Slot, Watch, in_class, in_mapping, is_constant
from .statements import assigns
from .syntax import UNREADABLE, digest_of_file, hashed, own

Space = dict[str, Any]
Unit = FunctionType | type

_builtin_names: Space = builtins.__dict__
_PYTHON_NAMES = frozenset(
    ["None", "True", "False", "Ellipsis", "NotImplemented", "_", *vars(ModuleType("any")), "__debug__"]
)
_MODULE_NAMES = {*vars(ModuleType("any")), "__builtins__", "__cached__", "__file__", "__path__"} - {"__doc__"}

# Library functions, modules and packages that introspect: cattrs builds objects from the annotations of classes,
# openai sends the schemas of classes, including their docstrings.
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
        "modules": """
            importlib.import_module inspect.getmodule pkgutil.iter_modules pkgutil.resolve_name pkgutil.walk_packages
            pydoc.locate runpy.run_module
        """,
        "source": "inspect.getsource inspect.getsourcelines inspect.getcomments",
        "schemas": """
            anthropic cohere dspy google instructor langchain langchain_core langgraph litellm llama_index marvin mistralai
            ollama openai outlines pydantic_ai
        """,
    }.items()
    for name in names.split()
}
_NAMES_OF_MODULE = frozenset(["__name__", "__package__", "__path__", "__spec__"])
_OWN_MODULE = frozenset(["__name__", "__spec__", "__module__", "getmodule"])  # by these, code finds its own module
_MOST_TEXTS = 1000  # strings in a global that may be names of modules


# The walk that identifies functions and classes found inside values, in this thread or task.
active: ContextVar[Walk | None] = ContextVar("active", default=None)


@contextmanager
def activate(walk: Walk) -> Generator[None]:
    token = active.set(walk)
    try:
        yield
    finally:
        active.reset(token)


class Record(NamedTuple):
    """The digest of one named part, and the object it describes."""

    digest: bytes
    about: object


class Walk:
    """One walk from one function, class or module.

    `rebound` are names that the code is known to assign. `aware` lists what it is known to introspect: subclasses,
    docstrings, schemas, annotations, source, modules loaded by computed names. Both are found while walking, but affect
    how everything is described: if a walk finds more than it was given, it is `incomplete` and must be repeated.
    """

    def __init__(self, root: Any, deep: bool, rebound: frozenset[str], aware: frozenset[str]) -> None:
        self._root = root
        self._root_space = descriptions.space_of(root)
        self._deep = deep

        # The results.
        self.records: dict[str, Record] = {}
        self.data: dict[str, Datum] = {}
        self.watch = Watch()
        self.foreign: set[str] = set()  # the packages, not the project's, that the code uses
        self.units_in_values: dict[int, object] = {}  # functions, classes and modules found inside values

        # What the code assigns and introspects: as known before the walk, and with what the walk has found.
        self._rebound, self.stored = rebound, set(rebound)
        self._aware, self.aware = aware, set(aware)
        self._checked: set[str] = set()  # names that are described differently if the code assigns them

        # Globals, and the namespaces they are in.
        self._queue: list[tuple[Space, str]] = []
        self._visited: dict[tuple[int, str], Space] = {}
        self._spaces: dict[str, Space] = {}  # by label
        self._labels: dict[int, str] = {}  # by id of the namespace
        self._owners: dict[str, Any] = {}  # classes, and the attributes of enum members

        # Units that are not globals: their digests, and their numbers in the outermost one being described.
        self._tokens: dict[int, tuple[bytes, object]] = {}
        self._numbers: dict[int, int] | None = None

        # The value being described: how it was reached, and where it is bound, if it is bound to a name.
        self._trail: list[str] = []
        self._slot: Slot | None = None
        self._listed: dict[int, object] = {}  # data that is in `data`, by id
        self._in_progress: set[int] = set()  # data that is being hashed

        # Clues to dynamic imports and to patches.
        self._texts: set[tuple[str, str]] = set()  # (package, string) pairs: possible names of modules
        self._attributes: set[str] = set()  # all attribute names in the code
        self._libraries: dict[int, ModuleType] = {}
        self._library_classes: dict[int, type] = {}

    def run(self) -> None:
        """Fill `records`, `data` and `watch`."""
        with activate(self):
            self.start()
            while True:
                while self._queue:
                    self._describe_global(*self._queue.pop())
                if self._deep:
                    self._find_dynamic_modules()
                    self._find_patches()
                if not self._queue:
                    break
        self.watch.seal()

    def start(self) -> None:
        """Describe the root, and what it holds if it is a function."""
        root = self._root
        if type(root) is FunctionType and descriptions.is_project_unit(root):
            self.record("code", lambda: hashed("code", self.scan(root)), root)
            for name, value, slot in descriptions.held(root):
                self.record(name, lambda: self.held("", value, slot), value)  # noqa: B023
        elif descriptions.is_unit(root):
            self.record("code", lambda: self.token(root), root)
        else:
            self.record("code", lambda: self.describe(root), root)

    def record(self, name: str, describe: Callable[[], bytes], about: object) -> None:
        """Record a part, unless it turns out to be data. If it has no identity, the error names the part."""
        self._trail.append(name)
        try:
            found = describe()
            if name not in self.data or not descriptions.is_data(about):
                self.records[name] = Record(found, about)
        except FingerprintError as error:
            raise FingerprintError(error.kind, error.path, error.part or name) from error
        finally:
            self._trail.pop()

    # --- values ----------------------------------------------------------------------------------------------------

    def in_value(self, unit: Unit) -> bytes:
        """Describe a function or class inside a value: by reference if it is a global, else with a numbering of its own."""
        self.units_in_values.setdefault(id(unit), unit)
        outer, self._numbers = self._numbers, None
        try:
            return self.unit(unit)
        finally:
            self._numbers = outer

    def module(self, module: ModuleType) -> bytes:
        """Describe a project module that is used as a value: any of its names may be read."""
        self.units_in_values.setdefault(id(module), module)
        if self._deep:
            self._visit_all(vars(module))
        return hashed("module", self.label(vars(module)))

    def unit(self, unit: Unit) -> bytes:
        """Describe a function or class: by reference if it is a global."""
        if unit is self._root:
            return hashed("itself")
        if descriptions.is_project_unit(unit):
            return self._by_reference(unit) or self._numbered(unit)
        return self.foreign_code("class", unit) if isinstance(unit, type) else self._numbered(unit)

    def value(self, value: object) -> bytes:
        """Describe a value: a constant by its content; anything else is data and is listed as such."""
        bound = self._slot is not None and self._slot.get() is value
        if is_constant(value) and not (bound and self._slot is not None and self._is_rebound(self._slot.name)):
            return values.digest(value)
        self.add_data(value, self._slot if bound else None)
        return DATA

    def add_data_at(self, word: str, value: object, slot: Slot) -> None:
        """List data that is reached under a word."""
        self._trail.append(word)
        self.add_data(value, slot)
        self._trail.pop()

    def add_data(self, value: object, slot: Slot | None) -> None:
        """List data under the path that led to it."""
        if slot is None and id(value) in self._listed:
            return  # listed under another name
        self._listed[id(value)] = value
        name = " ".join(filter(None, self._trail))
        while name in self.data:
            name += "'"
        if slot is not None and slot.space is not None:
            self.watch.leave_out(slot.space, slot.name)
        self.data[name] = Datum(name, value, slot)
        if id(value) not in self._in_progress:  # else it contains itself
            self._in_progress.add(id(value))
            try:
                self.data[name].digest()  # walks the functions and classes inside it
            finally:
                self._in_progress.discard(id(value))

    def describe(self, value: object) -> bytes:
        """Describe the value of a name, a cell, a default or a class attribute."""
        return self.unit(value) if descriptions.is_unit(value) else descriptions.describe(self, value)

    def describe_at(self, word: str, value: object, slot: Slot | None = None) -> bytes:
        """Describe a value that is reached under a word, and bound in `slot` if given."""
        before, self._slot = self._slot, slot
        self._trail.append(word)
        try:
            return self.describe(value)
        finally:
            self._trail.pop()
            self._slot = before

    def foreign_code(self, kind: str, named: Any) -> bytes:
        """Describe code that is not the project's: by name."""
        module, name = descriptions.names_of(named)
        self.foreign.add(module.partition(".")[0])
        self._note_reader(module, name)
        if isinstance(named, type) and module != "builtins":
            self._library_classes[id(named)] = named
        return hashed("foreign", kind, module, name, descriptions.binary_of(module))

    def _note_reader(self, module: str, name: str) -> None:
        """Add to `aware` what a library's function or class introspects."""
        for known in (f"{module}.{name}", module, module.partition(".")[0]):
            if known in _READERS:
                self.aware.add(_READERS[known])

    def subclasses(self, klass: type) -> Sequence[bytes]:
        """Describe the project's subclasses of a class, if the code reads `__subclasses__`."""
        if "subclasses" not in self._aware or klass is object or klass is type:
            return []
        seen: list[type] = list(self.watch.several(lambda: type.__subclasses__(klass)))  # type: ignore[arg-type]
        # Of several with one name, only the last: it replaced the others, which wait for the garbage collector.
        known = {(module_of(each), each.__qualname__): each for each in seen if descriptions.is_project_unit(each)}
        return [self.unit(each) for (module, _), each in known.items() if module in sys.modules]

    def introspected(self, unit: Unit) -> Sequence[bytes | str]:
        """The docstring, annotations and source of a function or class, each only if the code introspects such."""
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
        """Describe an annotation: its value; or its text, and follow the names in it."""
        if not isinstance(kind, str):
            return self.describe_at(f"annotation `{name}`", kind)
        space = descriptions.space_of(unit) if self._deep else None
        if space is not None:
            self._follow_text(kind, space)
        return hashed("text", kind)

    def _follow_text(self, text: str, space: Space) -> None:
        """Follow the names in a string if it is Python source."""
        try:
            code = compile(text.strip(), "<text>", "exec", dont_inherit=True)
        except UNREADABLE:
            return
        found = reads(code)
        for chain in found.chains:
            self._follow(space, chain, True)
        for wanted in found.imports:
            name = absolute_name(wanted.module, wanted.level, package_of(space))
            if name is not None:
                self._texts.update(("", each) for each in (name, f"{name}.{wanted.name}" if wanted.name else name))

    # --- functions and classes -------------------------------------------------------------------------------------

    def token(self, unit: Unit) -> bytes:
        """Describe a function or class in full, except for the globals it reads."""
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
            return hashed(self.foreign_code("function", unit), *descriptions.carried(self, unit))
        pieces: list[bytes | str] = ["function", unit.__name__, self.scan(unit)]
        if reads(unit.__code__).chains:
            pieces.append(self.label(unit.__globals__))
        for name, value, slot in descriptions.held(unit):
            pieces += [name, self.held(name, value, slot)]
        return hashed(*pieces)

    def held(self, name: str, value: object, slot: Slot | None) -> bytes:
        """Describe a default, closure variable or wrapped function. `name` is empty if it is a part of its own."""
        listed = len(self.data)
        found = self._absent(slot) if value is ABSENT else self.describe_at(name, value, slot)
        if slot is not None and (len(self.data) == listed or not descriptions.is_data(value)):
            self.watch.bound(slot.get, value)
        return found

    def _absent(self, slot: Slot | None) -> bytes:
        if slot is not None and self._is_rebound(slot.name):
            self.add_data(ABSENT, slot)
            return DATA
        return hashed("absent")

    def _is_rebound(self, name: str) -> bool:
        """Whether the code is known to assign the name. If that is found out later, the walk is `incomplete`."""
        self._checked.add(name)
        return name in self._rebound

    @property
    def spaces(self) -> dict[str, Any]:
        """The namespaces that the code reaches, of modules, classes and enum members: it may bind names in any of them."""
        return {**{f"module `{label}`": space for label, space in self._spaces.items()}, **self._owners}

    @property
    def incomplete(self) -> bool:
        """Whether the code assigns names, or introspects things, that this walk did not know of in time."""
        return not self._rebound.issuperset(self._checked & self.stored) or not self.aware <= self._aware

    def _numbered(self, unit: Unit) -> bytes:
        """Describe a unit that is no global: in full the first time, then by its number."""
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

    def _by_reference(self, unit: Unit) -> bytes | None:
        """A reference to the unit by its global name, if it has one. The global is visited."""
        namespace = descriptions.namespace_of(unit)
        if namespace is None:
            return None
        if self._deep:
            self.visit(namespace, unit.__qualname__)
        return hashed("at", self.label(namespace), unit.__qualname__)

    # --- globals ---------------------------------------------------------------------------------------------------

    def label(self, space: Space) -> str:
        """A unique name for a namespace. Two with one name (scripts run by exec, say) are numbered."""
        known = self._labels.get(id(space))
        if known is None:
            name = known = name_of_namespace(space)
            while known in self._spaces:
                known = f"{name}#{len(self._spaces)}"
            self._labels[id(space)], self._spaces[known] = known, space
        return known

    def visit(self, space: Space, name: str) -> None:
        """Queue a global, to be described once."""
        if (id(space), name) not in self._visited:
            self._visited[id(space), name] = space
            self._queue.append((space, name))

    def _look_up(self, space: Space, name: str) -> Any:
        first, *rest = name.split(".")
        value = space.get(first, ABSENT)
        if value is ABSENT:
            self.watch.absence(space, first)
            return ABSENT
        self.watch.name(space, first, value)
        for word in rest:
            value = vars(value).get(word, ABSENT)
        return value

    def _describe_global(self, space: Space, name: str) -> None:
        value = self._look_up(space, name)
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
        elif value is sys.modules:  # what it holds counts as far as the code names it
            self.aware.add("modules")
            self.record(part, lambda: hashed("sys.modules"), None)
        elif isinstance(value, ModuleType) and is_project_module(value.__name__):
            # The names that are read from it are visited one by one.
            self.record(part, lambda: hashed("module", self.label(vars(value))), value)
        elif isinstance(value, type) and not descriptions.is_project_unit(value) and self.subclasses(value):
            self.record(part, lambda: hashed(self.describe(value), *self.subclasses(value)), value)
        else:
            self.record(part, lambda: self._project_path(value, slot, space) or self.describe(value), value)
        self._slot = None
        self._note_reader(module_of(type(value)), type(value).__qualname__)
        if "modules" in self._aware:
            self._texts.update((package_of(space), text) for text in _texts_in(value))

    def _project_path(self, value: object, slot: Slot | None, space: Space) -> bytes | None:
        """Describe a path inside the project's folder relative to it, because the folder may move."""
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
        """The digest of a function's own code. Visits the globals it reads."""
        self.watch.function(function)
        code = function.__code__
        known = own(code, function.__globals__)
        found = reads(code)
        self.stored |= found.stored
        self._attributes |= found.attributes
        self.aware.update(REVEALING[word] for word in found.reveals if REVEALING[word] != "globals")
        if self._deep:
            revealing = [word for word in found.reveals if REVEALING[word] == "globals"]
            if any(_is_builtin(word, function.__globals__) for word in revealing):
                self._visit_all(function.__globals__)
                for text in found.texts:
                    self._follow_text(text, function.__globals__)
            if "modules" in self._aware:
                self._note_module_names(function.__globals__, found)
            for name in found.assigned:
                self.visit(function.__globals__, name)
            for chain in found.chains:
                if known.names is None or _occurs_in(chain[0], known.names):
                    self._follow(function.__globals__, chain, chain[0] in found.maybe)
            for wanted in known.imports:
                self._follow_import(wanted, function.__globals__, found)
        extra = self.introspected(function)
        return hashed(known.digest, *extra) if extra else known.digest

    def _note_module_names(self, space: Space, found: Reads) -> None:
        """Note what in a function may name a module: its strings, and the name of its own module."""
        package = package_of(space)
        self._texts.update((package, text) for text in found.texts)
        heads = {chain[0] for chain in found.chains}
        if heads & _NAMES_OF_MODULE:
            self._texts.add((package, "."))
        if _OWN_MODULE & (heads | found.attributes):  # sys.modules[__name__]
            self._visit_all(space)

    def _follow(self, space: Space, chain: tuple[str, ...], maybe: bool) -> None:
        """Visit what a chain like `etl.config.LIMIT` reads. `maybe`: the first name need not be a global."""
        name, rest = chain[0], chain[1:]
        if name in _MODULE_NAMES or (maybe and name == "__annotations__"):
            return
        value = space.get(name, ABSENT)
        if value is ABSENT and (maybe or name in _builtin_names):
            self.watch.absence(space, name)
            value = _builtin_names.get(name)
            patched = isinstance(value, FunctionType) and descriptions.is_project_unit(value)
            if patched or not (callable(value) or name in _PYTHON_NAMES):
                self.visit(_builtin_names, name)
            return
        self.visit(space, name)
        if value is eval or value is exec or value is globals:  # under another name
            self._visit_all(space)
        while isinstance(value, ModuleType) and is_project_module(value.__name__):
            space = vars(value)
            if not rest:
                self._visit_all(space)
                return
            name, rest = rest[0], rest[1:]
            if name == "__dict__":
                self._visit_all(space)
            elif name in _NAMES_OF_MODULE and "modules" in self._aware:
                self._texts.add((package_of(space), "."))
            if name in _MODULE_NAMES:
                return
            self.visit(space, name if name in space or "__getattr__" not in space else "__getattr__")
            value = space.get(name)
        if isinstance(value, ModuleType):
            self._follow_library(value, rest, space, name)
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
            word = f"class `{self.label(space)}.{name}` attribute `{rest[0]}`"  # the code creates it
            self.add_data_at(word, ABSENT, in_class(value, rest[0]))

    def _follow_library(
        self, module: ModuleType, rest: tuple[str, ...], space: Space | None = None, called: str = ""
    ) -> None:
        """Follow attributes of a library's module, known as `called` in `space`: the project may have assigned or patched one."""
        self._libraries[id(module)] = module
        for name in rest:
            member = vars(module).get(name, ABSENT)
            if member is sys.modules:
                self.aware.add("modules")
            elif space is not None and (member is eval or member is exec or member is globals):
                self._visit_all(space)
            if isinstance(member, ModuleType) and not is_project_module(member.__name__):
                self._libraries[id(member)] = module = member
                called = f"{called}.{name}"
                continue
            if (
                space is not None
                and not descriptions.is_patch(vars(module), name, member)
                and assigns(space, f"{called}.{name}")
            ):
                self.add_data_at(f"attribute `{module.__name__}.{name}`", member, in_mapping(vars(module), name))
            elif descriptions.is_patch(vars(module), name, member) or (
                isinstance(member, type) and self.subclasses(member)
            ):
                self.visit(vars(module), name)
            elif isinstance(member, (FunctionType, type, BuiltinFunctionType)):
                self.watch.name(vars(module), name, member)
                self._note_reader(*descriptions.names_of(member))
            return

    def _find_patches(self) -> None:
        """Record project functions that were patched into classes of the libraries used."""
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

    def _find_dynamic_modules(self) -> None:
        """Record modules that the code may load by computed names, and follow their imports."""
        found = [file for package, text in sorted(self._texts) for file in files_named(text, package)]
        self._texts.clear()
        while found:
            name, path = found.pop()
            part = f"module `{name}`"
            if part in self.records:
                continue
            digest, imports = digest_of_file(path)
            self.records[part] = Record(digest, None)
            package = name if os.path.basename(path) == "__init__.py" else name.rpartition(".")[0]
            for module, level, member, _ in imports:
                full = absolute_name(module, level, package) or ""
                known = self._spaces.get(full)
                if known is None:
                    found += files_named(f"{full}.{member}" if member else full, "")
                elif member is not None:
                    self.visit(known, member)

    def _visit_all(self, space: Space) -> None:
        """Visit every name of a module and of its submodules, for a module that is passed around as a value."""
        introspected = {"__doc__": "docstrings", "__annotations__": "annotations"}
        dunders = [name for name, what in introspected.items() if name in space and what in self._aware]
        if "__getattr__" in space:
            self.visit(space, "__getattr__")
        for name in [*dunders, *(name for name in list(space) if not name.startswith("__"))]:
            value = space[name]
            new = (id(space), name) not in self._visited
            self.visit(space, name)
            inside = f"{space.get('__name__')}."
            if new and isinstance(value, ModuleType) and value.__name__.startswith(inside):
                self._visit_all(vars(value))

    def _follow_import(self, wanted: Import, space: Space, found: Reads) -> None:
        """Follow an import inside a function. A project module is loaded, as the function itself would load it."""
        name = absolute_name(wanted.module, wanted.level, package_of(space))
        if name is None:
            return
        if not is_importable_project(name):
            self.foreign.add(name.partition(".")[0])
            module = sys.modules.get(name)
            if module is not None and wanted.name is not None:
                self._follow_library(module, (wanted.name,))
            elif module is not None:
                for attribute in sorted(found.attributes.intersection(vars(module))):
                    self._follow_library(module, (attribute,))
        elif wanted.name is None:
            for end in [i for i, letter in enumerate(name + ".") if letter == "."]:
                self._visit_imported(load_project_module(name[:end]), wanted, found)
        elif (module := load_project_module(name)) is not None and wanted.name in vars(module):
            self.visit(vars(module), wanted.name)
            self._visit_imported(vars(module)[wanted.name], wanted, found)
        else:
            self._visit_imported(load_project_module(f"{name}.{wanted.name}"), wanted, found)

    def _visit_imported(self, module: object, wanted: Import, found: Reads) -> None:
        if not isinstance(module, ModuleType) or not is_project_module(module.__name__):
            return
        if wanted.escapes:
            self._visit_all(vars(module))
        else:
            for name in found.attributes.intersection(vars(module)) - _MODULE_NAMES:
                if (id(vars(module)), name) not in self._visited:
                    self.visit(vars(module), name)
                    self._visit_imported(vars(module)[name], wanted, found)


def _is_builtin(word: str, space: Space) -> bool:
    return space.get(word, _builtin_names.get(word)) is _builtin_names.get(word)


def _texts_in(value: object) -> Iterator[str]:
    """The strings in a value made of builtin containers, of a limited number of items."""
    pending, left = [value], _MOST_TEXTS
    while pending and left:
        each: Any = pending.pop()
        left -= 1
        if isinstance(each, str):
            yield each
        elif type(each) in (list, tuple, set, frozenset):
            pending.extend(list(each)[:left])
        elif type(each) is dict:
            pending.extend([*each, *each.values()][:left])


def _occurs_in(name: str, names: frozenset[str]) -> bool:
    """Whether a global's name is among those of a syntax tree, where private names in classes are not mangled yet."""
    return name in names or (name[0] == "_" and any(word[:2] == "__" and name.endswith(word) for word in names))
