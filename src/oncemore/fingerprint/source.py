"""The source of a function, if it is what is loaded, in a form that only behaviour changes.

A file may have been edited since its module was imported. So the file is compiled again, and only where that gives
the very code that is running does its syntax tree speak for the function. Otherwise the code object does.
"""

from __future__ import annotations

import functools
import linecache
import os
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from .kept import listing_of
from .listing import COUNTING, FUTURES, Import, Listing, constant, hashed
from .reach import CONSTANTS, instructions, reads


@dataclass(frozen=True)
class Own:
    """What a function is by itself.

    `names` are the names that stand in its tree, None without source: then nobody knows which of them are annotations.
    """

    digest: bytes
    imports: tuple[Import, ...]
    names: frozenset[str] | None = None
    line: int = 0
    last: int = 0
    source: bytes = field(default=b"", repr=False)

    @property
    def text(self) -> str:
        """Its lines, decorators included."""
        return _text(self.source, self.line, self.last)


_UNREADABLE = (SyntaxError, ValueError, RecursionError)  # ValueError: a NUL byte, a constant that no compiler makes

_owns: dict[tuple[str, CodeType], Own] = {}
_files: dict[str, _File] = {}


def own(code: CodeType, namespace: dict[str, Any]) -> Own:
    """The function's own identity: its tree, or else its code object."""
    key = (code.co_filename, code)  # equal code at the same place: names, constants and lines agree
    known = _owns.get(key)
    if known is None:
        if len(_owns) > 20_000:  # programs that make code as they go
            _owns.clear()
        known = _owns[key] = _from_source(code, namespace) or Own(
            _digest_of_code(code), reads(code).imports, line=code.co_firstlineno
        )
    return known


def _from_source(code: CodeType, namespace: dict[str, Any]) -> Own | None:
    path = code.co_filename
    file = _files.get(path)
    found = file.find(code) if file is not None else None
    if found is None:
        text = _read(path, namespace)
        if text is None or (file is not None and file.text == text):
            return None
        file = _File(text, path)
        found = file.find(code)
        _remember(file)
    return found


def _remember(file: _File) -> None:
    if file.is_read:
        if len(_files) > 500:
            _files.clear()
        _files[file.path] = file


def class_text(name: str, path: str, namespace: dict[str, Any]) -> tuple[int, str]:
    """Where a class stands in a file, and its text. For display only: it may not be what is loaded."""
    file = _files.get(path) or _File(_read(path, namespace) or b"", path)
    first, last = file.classes().get(name, (0, 0))
    _remember(file)
    return first, _text(file.text, first, last) if first else ""


def _read(path: str, namespace: dict[str, Any]) -> bytes | None:
    """The text behind a code object's file name, as it is now."""
    for candidate in (path, namespace.get("__file__")):
        # A relative name stops leading to its file when the program changes its folder; the module knows better.
        if isinstance(candidate, str) and os.path.basename(candidate) == os.path.basename(path):
            try:
                with open(candidate, "rb") as file:
                    return file.read()
            except (OSError, ValueError):
                continue
    linecache.checkcache(path)
    lines = linecache.getlines(path, namespace)  # notebook cells, zip files
    return "".join(lines).encode() if lines else None


class _File:
    """One source file, and the functions in it."""

    def __init__(self, text: bytes, path: str) -> None:
        self.text = text
        self.path = path
        self._listings: dict[tuple[int, bool], Listing] = {}

    @property
    def is_read(self) -> bool:
        """Whether it could be parsed and compiled."""
        return bool(self._listings)

    def find(self, code: CodeType) -> Own | None:
        """The function that compiles to exactly this code."""
        try:
            found = self._listing(code.co_flags & FUTURES, code.co_name == "<lambda>").find(code)
        except _UNREADABLE:
            return None
        if found is None:
            return None
        first, last, digest, names, imports = found
        return Own(digest, tuple(Import(*each) for each in imports), names, first, last, self.text)

    def classes(self) -> dict[str, tuple[int, int]]:
        """The lines of each class, by its qualified name."""
        try:
            return (next(iter(self._listings.values()), None) or self._listing(0, lambdas=False)).classes
        except _UNREADABLE:
            return {}

    def _listing(self, futures: int, lambdas: bool) -> Listing:
        if (futures, lambdas) not in self._listings:
            self._listings[futures, lambdas] = listing_of(self.text, self.path, futures, lambdas)
        return self._listings[futures, lambdas]


@functools.lru_cache(maxsize=32)
def _split(source: bytes) -> list[str]:
    return source.decode("utf-8", "replace").splitlines(keepends=True)


def _text(source: bytes, first: int, last: int) -> str:
    return "".join(_split(source)[first - 1 : last])


def _digest_of_code(code: CodeType) -> bytes:
    """The identity of a function without source. Its own name, its docstring and its lines don't count.

    A constant stands where it is used, not in the list of constants: a docstring would shift the others.
    """
    pieces: list[bytes | str] = ["bytecode"]
    for name in COUNTING:
        value = getattr(code, name, b"")
        pieces.append(value if isinstance(value, bytes) else constant(value))
    for operation, argument in instructions(code):
        used = code.co_consts[argument] if operation in CONSTANTS else argument
        pieces.append(b"%d" % operation)
        pieces.append(_digest_of_code(used) if isinstance(used, CodeType) else constant(used))
    return hashed(*pieces)
