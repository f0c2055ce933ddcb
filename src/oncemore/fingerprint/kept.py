"""Listings kept for later processes, in the user's cache folder: a text that was compiled once need not be again.

A listing follows from the text, from Python and from our own code alone, and is kept under a digest of all three: it can
be missing, but never out of date. It is signed as entries are. What cannot be read, verified or written is as good as
not there, so nothing is locked, and nothing has to be whole.
"""

from __future__ import annotations

import marshal
import os
import sys
from typing import BinaryIO

from ..codec import seal, unseal
from ..errors import IntegrityError, UsageError
from ..secret import secret
from .listing import EDITION, Listing, hashed
from .tree import make

_MAKER = f"{EDITION} {sys.implementation.name} {sys.version} {sys.flags.optimize}"
_SLOTS = 1 << 14  # so many files at most; two that share one replace each other
_LARGEST = 1 << 20


def listing_of(text: bytes, path: str, futures: int, lambdas: bool) -> Listing:
    """The listing of a text: the one that was kept, or a new one."""
    how = f"{_MAKER} {futures} {lambdas}"
    slot, key = _slot(hashed(how, path)), f"listing/{hashed(how, text).hex()}"
    found = _read(slot, key)
    if found is None:
        found = make(text, path, futures, lambdas)
        _write(slot, key, found)
    return found


def _slot(digest: bytes) -> str | None:
    """The file for what has this digest, if there is a place for it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    number = int.from_bytes(digest[:4], "big") % _SLOTS
    return os.path.join(base, "oncemore", "code", f"{number:04x}") if os.path.isabs(base) else None


def _read(slot: str | None, key: str) -> Listing | None:
    if slot is None:
        return None
    try:
        with open(slot, "rb") as file:
            return Listing(*marshal.loads(unseal(file.read(), key, secret())))
    except (OSError, IntegrityError, UsageError):
        return None


def _write(slot: str | None, key: str, found: Listing) -> None:
    content = marshal.dumps(tuple(found))
    if slot is None or len(content) > _LARGEST:
        return
    try:
        sealed = b"".join(seal([content], key, secret()))
        with _opened(slot) as file:
            file.write(sealed)
    except (OSError, UsageError):
        pass


def _opened(slot: str) -> BinaryIO:
    """A new file that others cannot read."""
    try:
        return open(os.open(slot, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
    except FileNotFoundError:
        os.makedirs(os.path.dirname(slot), mode=0o700)
        return _opened(slot)
