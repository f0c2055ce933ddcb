"""What of the user's files is ours. Opens nothing, and loads no database."""

from __future__ import annotations

import os

OURS = ".oncemore"  # how the names begin that we make among the user's files: stores and drafts
_DATABASE = "cache.db"  # as diskcache calls it


def is_store(folder: str) -> bool:
    """Whether the folder is that of a store. Opens nothing: closing a file of a store may drop the locks on it."""
    return all(os.path.lexists(os.path.join(folder, name)) for name in (_DATABASE, f"{_DATABASE}-locks"))


def in_store(path: str) -> bool:
    """Whether a file or folder is in, or is, the folder of a store, whichever links lead to it."""
    folder = os.path.realpath(path)
    while not is_store(folder):
        if (outer := os.path.dirname(folder)) == folder:
            return False
        folder = outer
    return True
