"""Percent-encoding, as in URLs. `urllib.parse` does the same, and takes three milliseconds to load."""

from __future__ import annotations

import re


def quote(text: str | bytes, safe: str = "/") -> str:
    """Letters, digits, `_.-~` and what is `safe` stay; every other byte becomes `%` and two digits."""
    data = text.encode() if isinstance(text, str) else text
    return re.sub(rb"[^A-Za-z0-9_.~%b-]" % safe.encode(), lambda found: b"%%%02X" % found[0][0], data).decode("ascii")


def unquote_to_bytes(text: str) -> bytes:
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), text.encode())


def unquote(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "replace")
