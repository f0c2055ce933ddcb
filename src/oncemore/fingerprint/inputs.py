"""Files by their content."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from blake3 import blake3


def file_identity(path: Any) -> object:
    """What identifies the file, folder, or files at `path`: name and content. A file that is not there is identified as such."""
    if isinstance(path, (str, bytes, os.PathLike)):
        name = os.fsdecode(path)
        if os.path.isdir(name):
            return ("folder", name, _folder(name))
        return ("file", name, content_digest(name))
    if isinstance(path, Iterable):
        return [file_identity(each) for each in path]
    return path


def content_digest(path: str) -> bytes | None:
    """BLAKE3 of a file's content, None if there is no such file."""
    try:
        with open(path, "rb") as file:
            hasher = blake3()
            while block := file.read(1 << 20):
                hasher.update(block)
            return hasher.digest()
    except FileNotFoundError:
        return None


def _folder(top: str) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = []
    for folder, _, files in os.walk(top):
        for file in files:
            path = os.path.join(folder, file)
            found.append((os.path.relpath(path, top), content_digest(path)))
    return sorted(found)
