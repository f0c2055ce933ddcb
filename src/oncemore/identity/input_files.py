"""Identifies files by their content, for `inputs=`: wherever their paths are inside an argument."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ..errors import UsageError
from ..stores import OURS, in_store, is_store
from ..stores.buffers import content_digest

_ATTRS = "__attrs_attrs__"


def file_identity(value: Any, prefix: str = "inputs") -> object:
    """The names and contents of the files and folders whose paths are in `value`. Other values identify themselves.

    A missing file is identified as such. The error about an iterator begins with `prefix`.
    """
    return _identity(value, prefix, ())


def _identity(value: Any, prefix: str, around: tuple[int, ...]) -> object:
    if isinstance(value, (str, bytes, os.PathLike)):
        return path_identity(os.fsdecode(value))
    if isinstance(value, Iterator):
        raise UsageError(
            f"{prefix} is an iterator ({type(value).__qualname__}): looking for paths in it would use it up. Pass a list"
        )
    if id(value) in around:
        return "around"  # it contains itself
    around = (*around, id(value))
    fields = fields_of(value)
    if fields is not None:
        named = {name: _identity(each, prefix, around) for name, each in fields.items()}
        return (type(value).__module__, type(value).__qualname__, named)
    if isinstance(value, Mapping):
        return {key: _identity(each, prefix, around) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return [
            _identity(each, prefix, around) for each in sorted(value, key=lambda each: (type(each).__name__, str(each)))
        ]
    if isinstance(value, (list, tuple)):
        return [_identity(each, prefix, around) for each in value]
    if isinstance(value, Iterable):  # a series, an array or the user's own container: its own identity matters, too
        return (value, [_identity(each, prefix, around) for each in value])
    return value


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass or attrs instance; None for anything else."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif hasattr(kind, _ATTRS):
        names = [field.name for field in getattr(kind, _ATTRS)]
    else:
        return None
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def path_identity(path: str) -> object:
    """The name and content of the file or folder at a path. The files of a store are never opened."""
    if not os.path.isdir(path):
        return ("file", path, _content(path))
    return ("folder", path, sorted((os.path.relpath(each, path), _content(each)) for each in files_below(path)))


def files_below(folder: str, around: Collection[tuple[int, int]] = ()) -> Iterator[str]:
    """The files in a folder and its subfolders, following links; without those of a store."""
    if is_store(folder):
        return
    about = os.stat(folder)
    here = about.st_dev, about.st_ino
    if here in around:  # a link to a parent folder
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from files_below(entry.path, (*around, here))
        elif not entry.name.startswith(f"{OURS}-"):
            yield entry.path


def _content(path: str) -> bytes | str | None:
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            return f"of the kind {stat.S_IFMT(mode):o}"  # reading a pipe or device might never end
        return None if in_store(path) else content_digest(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
