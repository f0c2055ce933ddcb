"""What was made of a source text, kept for later processes in the user's cache folder: it need not be made again.

It follows from the text, from Python and from our own code alone, and is kept under a digest of all three: it can be
missing, but never out of date. It is signed as entries are. What cannot be read, verified or written is as good as not
there, so nothing is locked, and nothing has to be whole.
"""

from __future__ import annotations

import contextlib
import marshal
import os
from collections.abc import Callable
from typing import Any

from ...codec import seal, unseal
from ...errors import IntegrityError, UsageError
from ...secret import secret

_SLOTS = 1 << 14  # so many files at most; two that share one replace each other
_LARGEST = 1 << 20


def kept(slot: bytes, key: str, make: Callable[[], Any]) -> Any:
    """What is kept under the key, or else what `make` gives: plain values. Some digest chooses the file."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        return make()
    path = os.path.join(base, "oncemore", "code", f"{int.from_bytes(slot[:4], 'big') % _SLOTS:04x}")
    with contextlib.suppress(OSError, IntegrityError, UsageError), open(path, "rb") as file:
        return marshal.loads(unseal(file.read(), key, secret()))
    made = make()
    content = marshal.dumps(made)
    if len(content) <= _LARGEST:
        with contextlib.suppress(OSError, UsageError):
            sealed = b"".join(seal([content], key, secret()))
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(sealed)
    return made
