"""A cache of what was computed from source files, in the user's cache folder, for later processes.

A cached value depends on the source, on Python and on our own code alone, and its key is a digest of all three. So it may
be missing, but is never out of date. It is signed as entries are. Whatever cannot be read, verified or written is treated
as missing, so there are no locks and no atomic writes.
"""

from __future__ import annotations

import contextlib
import marshal
import os
from collections.abc import Callable
from typing import Any

from ...codec import seal, unseal
from ...errors import IntegrityError, UsageError
from ...settings import secret

_SLOTS = 1 << 14  # the largest number of files; values that share a file replace each other
_LARGEST = 1 << 20


def cached(slot: bytes, key: str, make: Callable[[], Any]) -> Any:
    """The value cached under the key, or else the result of `make`: plain data. The digest `slot` selects the file."""
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
