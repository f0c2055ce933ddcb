"""Files by their content."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ..bulk import content_digest


def file_identity(path: Any) -> object:
    """What identifies the file, folder, or files at `path`: name and content. A file that is not there is identified as such."""
    if isinstance(path, (str, bytes, os.PathLike)):
        name = os.fsdecode(path)
        if not os.path.isdir(name):
            return ("file", name, _content(name))
        paths = [os.path.join(folder, file) for folder, _, files in os.walk(name) for file in files]
        return ("folder", name, sorted((os.path.relpath(each, name), _content(each)) for each in paths))
    if isinstance(path, Iterable):
        return [file_identity(each) for each in path]
    return path


def _content(path: str) -> bytes | None:
    try:
        return content_digest(path)
    except FileNotFoundError:
        return None
