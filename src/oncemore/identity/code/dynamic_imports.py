"""Modules that code loads by computed names: `import_module("plugins." + name)`.

Which of them a step will load is unknown, and loading one to inspect it could have side effects. So the source file of
every module that a string in the code may name is part of the identity.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder

from ...modules import is_project_file
from .syntax import UNREADABLE, digest_of_tree, hashed, steadily

_NAME = re.compile(r"(\.*)((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)?(\.?)(?=$|:|\{|%)")
_MOST = 1000  # files of one package


def files_named(text: str, package: str) -> Iterator[tuple[str, str]]:
    """The project modules that a string may name, with their files: one module, or all in a package (`plugins.`)."""
    found = _NAME.match(text)
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


def content(path: str) -> tuple[bytes, tuple[tuple[str, int, str | None, bool], ...]]:
    """The digest of a file's code, and its imports (see `Import`)."""
    try:
        with open(path, "rb") as file:
            return _content(file.read())
    except OSError:
        return hashed("gone"), ()


@lru_cache(maxsize=1000)
def _content(text: bytes) -> tuple[bytes, tuple[tuple[str, int, str | None, bool], ...]]:
    try:
        digest, _, imports = digest_of_tree(steadily(lambda: ast.parse(text)))
    except UNREADABLE:
        return hashed("text", text), ()
    return digest, imports
