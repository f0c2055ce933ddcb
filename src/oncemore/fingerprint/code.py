"""What a function's behaviour depends on: itself, and all project code and data that it can reach."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, MethodType
from typing import Any, Literal

from ..errors import FingerprintError
from ..modules import is_project_file, is_project_module, name_of_namespace
from . import values
from .kinds import WHOLE, Parts, home
from .shown import Part, is_secret, masked, short
from .syntax import class_text, hashed, own
from .units import home_of, without_step
from .walk import Known, Record, Walk, active, answering
from .watch import Watch


@dataclass
class _Seen:
    """The outcome of one walk."""

    digest: bytes
    records: dict[str, Record]
    watch: Watch
    known: Known
    foreign: set[str]

    @cached_property
    def parts(self) -> dict[str, Part]:
        return {name: _part(name, record) for name, record in self.records.items()}

    @cached_property
    def packages(self) -> dict[str, str]:
        return _versions(self.foreign.difference(sys.stdlib_module_names))


class Code:
    """The identity of a function's code, deep (with all it reaches) or its own.

    It is asked for on every call, so the last answer stands as long as everything it was made of is the same.
    """

    def __init__(self, function: Callable[..., object], reach: Literal["deep", "own"] = "deep") -> None:
        self.root: Any = _root_of(function)
        self._deep = reach == "deep"
        self._last: _Seen | None = None

    def digest(self) -> bytes:
        """16 bytes that stand for the code as it is now."""
        return self.stamp().digest

    def parts(self) -> dict[str, Part]:
        """What the digest is made of, by names that people read."""
        return self.stamp().parts

    def packages(self) -> dict[str, str]:
        """The installed packages that the code uses, and their versions: recorded, not compared."""
        return self.stamp().packages

    def stamp(self) -> _Seen:
        """What was found: the same object as long as the code is the same."""
        last = self._last
        if last is not None and last.watch.unchanged() and (not last.watch.values or self._stands(last)):
            return last
        walk = Walk(self.root, self._deep)
        walk.run()
        records = dict(sorted(walk.records.items()))
        pieces = [piece for name, record in records.items() for piece in (name, record.digest)]
        self._last = _Seen(hashed("identity", *pieces), records, walk.watch, walk.known, walk.foreign)
        return self._last

    @staticmethod
    def _stands(last: _Seen) -> bool:
        try:
            with answering(last.known):
                return all(values.digest(value) == seen for value, seen in last.watch.values)
        except FingerprintError:  # a new walk will name it
            return False


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


def _root_of(function: Any) -> Any:
    """The function behind wrappers of libraries; what they add has no code of the project's."""
    function = without_step(function)
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    return function


# --- functions and classes inside values ----------------------------------------------------------------------------

_HEAP_TYPE = 1 << 9  # a flag of CPython: the class was made at run time, not compiled in
_lasting: dict[int, Code] = {}


def _standing(unit: Any) -> Code:
    """The identity of a function or class by itself. Those that a module holds are there for good, and remembered."""
    known = _lasting.get(id(unit))
    if known is None or known.root is not unit:
        known = Code(unit)
        if home_of(unit) is not None:
            _lasting[id(unit)] = known
    return known


def _identity_of(unit: FunctionType | type) -> bytes:
    """What identifies a function or class of the project that is met inside a value."""
    walk = active.get()
    if walk is not None:
        return walk.unit(unit)
    own_name = () if isinstance(unit, type) else (unit.__name__,)
    return hashed("class" if isinstance(unit, type) else "function", *own_name, _standing(unit).digest())


def _class(kind: type) -> Parts:
    if kind.__flags__ & _HEAP_TYPE and is_project_module(kind.__module__):
        return Parts("project class", [_identity_of(kind)])
    return Parts("class", [home(kind.__module__), kind.__qualname__])


def _function(function: FunctionType) -> Parts:
    named = function.__closure__ is None and "<" not in function.__qualname__
    if named and not is_project_file(function.__code__.co_filename):
        return Parts("library function", [home(function.__module__), function.__qualname__])
    return Parts("function", [_identity_of(function)])


WHOLE.update({"builtins.type": _class, "builtins.function": _function})


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
