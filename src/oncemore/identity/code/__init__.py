"""What a function's behaviour depends on: itself, and all project code and data that it can reach."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import cached_property
from types import FunctionType, MethodType, ModuleType
from typing import Any, Literal

from ...errors import FingerprintError
from ...modules import is_project_file, is_project_module, module_of, name_of_namespace
from .. import library_settings
from ..display import Part, is_secret, masked, short
from ..values.builtin_types import WHOLE, Parts, canonical_module
from .descriptions import held_by, namespace_of, space_of, without_step
from .syntax import class_text, hashed, own
from .walk import Record, Walk, active, answering

_PATIENCE = 20  # looks at data that other threads are changing


class Seen:
    """The outcome of one walk: the digest of the code, and what the data was that it reads."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._records = dict(sorted(walk.records.items()))
        self.code = hashed(
            "identity", *(piece for name, each in self._records.items() for piece in (name, each.digest))
        )
        self.data = [walk.data[name] for name in sorted(walk.data)]
        self.spaces = walk.spaces
        self._sets = not library_settings.NAMES.isdisjoint(walk.foreign)
        self.digests = self.look()  # of the data, one by one

    def look(self) -> list[bytes]:
        """What identifies the data that the code reads, as it is now."""
        if not self.data:
            return []
        for again in range(_PATIENCE, -1, -1):
            found: list[bytes] = []
            try:
                with answering(self._walk):
                    found.extend(datum.digest() for datum in self.data)
                return found
            except FingerprintError as error:
                raise FingerprintError(error.kind, error.path, self.data[len(found)].name) from error
            except RuntimeError as error:  # another thread may have changed the size of a dict or set meanwhile
                if not again or isinstance(error, RecursionError):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def read(self, digests: Sequence[bytes]) -> bytes:
        """What identifies all the data if these are its digests, and the settings of libraries; empty if there is none."""
        set_now = library_settings.parts(self._walk.foreign) if self._sets else {}
        if not digests and not set_now:
            return b""
        found = [piece for datum, digest in zip(self.data, digests) for piece in (datum.name, digest)]
        return hashed(*found, *(piece for name, part in set_now.items() for piece in (name, part.digest)))

    def still(self) -> bool:
        """Whether the code is the same. The data is looked at again."""
        if not self._walk.watch.unchanged() or not all(datum.look_again() for datum in self.data):
            return False
        known, self.digests = len(self._walk.known), self.look()
        return len(self._walk.known) == known  # else other functions or classes can be reached through the data

    @cached_property
    def parts(self) -> dict[str, Part]:
        return {name: _part(name, record) for name, record in self._records.items()}

    def data_parts(self, digests: Sequence[bytes]) -> dict[str, Part]:
        """The data that the code reads, under names that people know."""
        found = {d.name: Part(found.hex(), shown=d.shown) for d, found in zip(self.data, digests)}
        return {**found, **library_settings.parts(self._walk.foreign)} if self._sets else found

    @cached_property
    def packages(self) -> dict[str, str]:
        return _versions(self._walk.foreign.difference(sys.stdlib_module_names))


class Code:
    """The identity of a function's code, deep (with all it reaches) or its own, and of the data that it reads.

    It is asked for on every call, so the last answer stands as long as everything it was made of is the same.
    """

    def __init__(self, function: Callable[..., object], reach: Literal["deep", "own"] = "deep") -> None:
        self.root: Any = _root_of(function)
        self._deep = reach == "deep"
        self._last: Seen | None = None

    def digest(self) -> bytes:
        """16 bytes that stand for the code and the data it reads, as they are now."""
        seen = self.look()
        return hashed(seen.code, seen.read(seen.digests))

    def parts(self) -> dict[str, Part]:
        """What the digest is made of, by names that people read."""
        seen = self.look()
        return {**seen.parts, **seen.data_parts(seen.digests)}

    def packages(self) -> dict[str, str]:
        """The installed packages that the code uses, and their versions: recorded, not compared."""
        return self.look().packages

    def look(self) -> Seen:
        """What is found now: the same object as long as the code is the same."""
        last = self._last
        if last is None or not last.still():
            walk = Walk(self.root, self._deep)
            walk.run()
            while walk.incomplete:
                walk = Walk(self.root, self._deep, frozenset(walk.stored), frozenset(walk.aware))
                walk.run()
            self._last = last = Seen(walk)
        return last


def _versions(names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in sorted(names):
        version = getattr(sys.modules.get(name), "__version__", None)  # reading all metadata would take too long
        if not isinstance(version, str):
            from importlib.metadata import PackageNotFoundError  # takes as long as a small run
            from importlib.metadata import version as version_of

            try:
                version = version_of(name)
            except PackageNotFoundError:  # a module of the project's, or of nobody's
                continue
        found[name] = version
    return found


def module_name(function: Any) -> str:
    """The name of the module that a step is from, the same in every process."""
    space = space_of(_root_of(function))
    return "" if space is None else name_of_namespace(space)


def _root_of(function: Any) -> Any:
    """The function behind wrappers of libraries; what they add has no code of the project's."""
    function = without_step(function)
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    return function


# --- functions and classes inside values ----------------------------------------------------------------------------

_HEAP_TYPE = 1 << 9  # a flag of CPython: the class was made at run time, not compiled in
_lasting: dict[int, Code] = {}

# What was found about the functions, classes and modules that the values of one walk led to, for one who asks.
met: ContextVar[dict[int, tuple[Any, Seen]] | None] = ContextVar("met", default=None)

# Whether functions and classes in values count by their names, and not by their code.
by_name: ContextVar[bool] = ContextVar("by_name", default=False)


def _standing(unit: Any) -> Code:
    """The identity of a function or class by itself. Those that a module holds are there for good, and remembered."""
    known = _lasting.get(id(unit))
    if known is None or known.root is not unit:
        known = Code(unit)
        if isinstance(unit, ModuleType) or namespace_of(unit) is not None:
            _lasting[id(unit)] = known
    return known


def _identity_of(unit: FunctionType | type) -> bytes:
    """What identifies a function or class of the project that is met inside a value.

    In data that a function reads, it counts by its code: what that code reads in turn, the function reads, too.
    """
    walk, own_name = active.get(), () if isinstance(unit, type) else (unit.__name__,)
    kind = "class" if isinstance(unit, type) else "function"
    if by_name.get() and "<lambda>" not in unit.__qualname__:
        return hashed(kind, unit.__qualname__)
    if walk is not None:
        return hashed(kind, *own_name, walk.in_value(unit))
    return hashed(kind, *own_name, _look_up(unit))


def _look_up(unit: FunctionType | type | ModuleType) -> bytes:
    code, listed = _standing(unit), met.get()
    found = code.digest()
    if listed is not None:
        listed[id(unit)] = unit, code.look()
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
    if not is_project_module(module.__name__):
        return Parts("module", [canonical_module(module.__name__)])
    walk = active.get()
    if by_name.get():
        return Parts("module", [canonical_module(module.__name__)])
    found = _look_up(module) if walk is None else walk.module(module)
    return Parts("project module", [canonical_module(module.__name__), found])


def _holder(value: Any) -> Parts:
    return Parts("holder", [type(value).__name__, *held_by(value)])


def _step(step: Any) -> Parts:
    """A step in a value counts by its function, and by the options that change what its callers get."""
    options = None if by_name.get() else step.__checkpoint_code__
    return Parts("step", [type(step), step.__wrapped__, options])


WHOLE.update({"builtins.type": _class, "builtins.function": _function, "builtins.module": _module})
WHOLE.update(dict.fromkeys(["numpy.ufunc", "_ctypes.CFuncPtr", "functools.KeyWrapper"], _holder))
WHOLE.update(dict.fromkeys(["weakref.ReferenceType", "builtins.weakref"], _holder))  # since Python 3.11, before
WHOLE.update(dict.fromkeys(["oncemore.step.Step", "oncemore.step.BoundStep"], _step))
WHOLE["scipy._lib._ccallback.LowLevelCallable"] = lambda value: Parts(
    "low level callable", [value.function, value.user_data, value.signature]
)
WHOLE["pydantic.type_adapter.TypeAdapter"] = lambda value: Parts("type adapter", [value._type, value._config])
for _kind in ("WeakValueDictionary", "WeakKeyDictionary"):
    WHOLE[f"weakref.{_kind}"] = lambda value: Parts("weak dict", [type(value), dict(value)])


# --- for the reader -------------------------------------------------------------------------------------------------


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
