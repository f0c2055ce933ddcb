"""The secret that signs every entry. It lives outside the store: whoever can write the store cannot forge a checkpoint."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

from blake3 import blake3

from .errors import UsageError, warn

_CONTEXT = "oncemore 2026-11-16 entry authentication"
_ID_CONTEXT = "oncemore 2026-11-18 key id"


def key_file() -> str:
    """Where the secret is kept unless `ONCEMORE_KEY` holds it."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "oncemore", "key")


def secret() -> bytes:
    """The 32 bytes that sign and verify entries, from `ONCEMORE_KEY` or the user's key file, made on first use."""
    get = os.environ.get
    return _found(get("ONCEMORE_KEY"), get("XDG_CONFIG_HOME"), get("HOME"))


@lru_cache(maxsize=8)
def _found(given: str | None, *where: str | None) -> bytes:
    """The secret for these settings: read once, for it is needed with every entry."""
    return _derive(given.encode() if given else _read(key_file()))


def key_id() -> str:
    """A short name of the key in use, which gives nothing of it away: to see which of two it is."""
    return blake3(secret(), derive_key_context=_ID_CONTEXT).hexdigest(length=4)


class KeySource(NamedTuple):
    """Where the key in use comes from. `file` is where it is, or would be without `ONCEMORE_KEY`."""

    text: str
    file: str
    given: bool  # by ONCEMORE_KEY


def key_source() -> KeySource:
    """Where the key comes from that `secret` gives. Reads and makes nothing."""
    path, home, config = key_file(), os.environ.get("HOME"), os.environ.get("XDG_CONFIG_HOME")
    if os.environ.get("ONCEMORE_KEY"):
        return KeySource("ONCEMORE_KEY", path, True)
    where = f"XDG_CONFIG_HOME={config}" if config else f"HOME={home}" if home else "HOME is not set"
    return KeySource(f"{path} ({where}, ONCEMORE_KEY is not set)", path, False)


def _derive(material: bytes) -> bytes:
    return blake3(material, derive_key_context=_CONTEXT).digest()


def _read(path: str) -> bytes:
    try:
        if not os.path.exists(path):
            _create(path)
        if os.stat(path).st_mode & 0o077:
            warn(f"{path} signs your checkpoints and can be read by others: chmod 600 {path}")
        with open(path, "rb") as file:
            material = file.read()
    except OSError as error:
        raise UsageError(
            f"cannot read or make the key file {path} ({error.strerror}); set ONCEMORE_KEY to a secret of your own"
        ) from error
    if len(material) < 32:
        raise UsageError(
            f"the key file {path} is cut short; restore it, or delete it and lose the checkpoints it signed"
        )
    return material


def _create(path: str) -> None:
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    draft = f"{path}.{os.urandom(8).hex()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(os.urandom(32))
        try:
            os.link(draft, path)  # unlike rename, never replaces the key of a process that was quicker
        except FileExistsError:
            pass
    finally:
        os.unlink(draft)
