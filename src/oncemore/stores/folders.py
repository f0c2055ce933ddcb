"""Recognizes oncemore's own directories among the user's files, without opening files or importing the database."""

from __future__ import annotations

import os

OURS = ".oncemore"  # prefix of the names that oncemore creates among the user's files: stores and drafts
_DATABASE = "cache.db"  # diskcache's name for it


def is_store(folder: str) -> bool:
    """Whether the folder is a store. Opens no file: closing one of a store's files may drop the locks on it."""
    return all(os.path.lexists(os.path.join(folder, name)) for name in (_DATABASE, f"{_DATABASE}-locks"))


def in_store(path: str) -> bool:
    """Whether a path is a store or inside one, with symbolic links resolved."""
    folder = os.path.realpath(path)
    while not is_store(folder):
        if (outer := os.path.dirname(folder)) == folder:
            return False
        folder = outer
    return True
