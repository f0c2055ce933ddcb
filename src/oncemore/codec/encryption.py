"""Encryption of one entry: AES-256-GCM, with a key of its own for every entry.

An encrypted entry is `magic, version 2, what it is bound to, key id, 24 random bytes, ciphertext, tag`. The first 12 random bytes
and the user's key give the entry's AES key, the other 12 are the nonce. So nonces do not run out, however many entries one key
encrypts. What comes before the ciphertext and the entry's key in the store are authenticated along with it.

Inside is the signed entry, whole. A large one is decrypted into memory of its own, which is handed out once the tag is verified.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from blake3 import blake3

from ..errors import IntegrityError, UsageError
from ..settings import Key
from ..stores import Bytes, Frames
from ..stores.buffers import allocate
from . import ENCRYPTED, MAGIC

__all__ = ["ADDED", "decrypt", "encrypt", "encrypted_with", "is_encrypted", "require_package"]

_HEAD = MAGIC + bytes((ENCRYPTED,))
_HEADER = struct.Struct("<5sB4s12s12s")  # magic and version, what it is bound to, key id, salt, nonce
_TAG = 16
ADDED = _HEADER.size + _TAG  # bytes that encryption adds to an entry
_TO_KEY, _TO_LOG = range(2)  # an entry appended to a log gets its number only in the store
_DIGITS = 16  # of that number, at the end of the key
_SLICE = 1 << 26  # bytes that are handed to OpenSSL at a time: it counts in 32 bits
_SMALL = 1 << 16  # bytes; a smaller entry is joined into one piece
_SPARE = 15  # bytes that an AES block may need beyond the end of the buffer that it is decrypted into


def is_encrypted(data: Bytes) -> bool:
    """Whether these are the bytes of an encrypted entry."""
    return bytes(memoryview(data)[: len(_HEAD)]) == _HEAD


def encrypted_with(data: Bytes) -> str:
    """The id of the key that an encrypted entry was encrypted with."""
    key: bytes = _HEADER.unpack_from(data)[2]
    return key.hex()


@lru_cache(maxsize=1)
def _cipher() -> Callable[..., Any]:
    """AES-256-GCM: of a key, a nonce and, to decrypt, a tag."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ModuleNotFoundError:
        raise UsageError(
            "encryption needs the package cryptography, which is not installed: run `pip install 'oncemore[encrypt]'`"
        ) from None
    return lambda key, nonce, tag=None: Cipher(algorithms.AES(key), modes.GCM(nonce, tag))


def require_package() -> None:
    """Raise UsageError if the package that encrypts is not installed."""
    _cipher()


def encrypt(frames: Frames, name: str, key: Key, *, log: bool = False) -> list[Bytes]:
    """The frames as an encrypted entry for the key `name`, or with `log`, for the log of that name."""
    salt, nonce = os.urandom(12), os.urandom(12)
    header = _HEADER.pack(_HEAD, _TO_LOG if log else _TO_KEY, bytes.fromhex(key.id), salt, nonce)
    encryptor = _cipher()(_entry_key(key, salt), nonce).encryptor()
    encryptor.authenticate_additional_data(header + name.encode())
    content = _through(encryptor, frames, sum(memoryview(frame).nbytes for frame in frames))
    encryptor.finalize()
    pieces: list[Bytes] = [header, content, encryptor.tag]
    return [b"".join(pieces)] if len(content) < _SMALL else pieces


def decrypt(data: Bytes, name: str, keys: Iterable[Key]) -> Bytes:
    """What was encrypted for the key `name` with one of `keys`. IntegrityError if it is not that.

    From a buffer that is writable, the content is decrypted into another writable one.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < ADDED:
        raise IntegrityError(f"entry {name} was truncated")
    header = bytes(view[: _HEADER.size])
    _, bound, key_id, salt, nonce = _HEADER.unpack(header)
    key = next((each for each in keys if each.id == key_id.hex()), None)
    if key is None:
        raise IntegrityError(
            f"entry {name} was encrypted with another key ({key_id.hex()}): set ONCEMORE_KEY to that key, or use its key file"
        )
    size = view.nbytes - ADDED
    decryptor = _cipher()(_entry_key(key, salt), nonce, bytes(view[-_TAG:])).decryptor()
    decryptor.authenticate_additional_data(header + (name[:-_DIGITS] if bound == _TO_LOG else name).encode())
    content = _through(decryptor, [view[_HEADER.size : -_TAG]], size)
    try:
        decryptor.finalize()
    except Exception as error:
        if type(error).__name__ != "InvalidTag":
            raise
        raise IntegrityError(f"entry {name} was altered, or moved from another key") from None
    return bytes(content) if view.readonly else content


def _through(context: Any, frames: Frames, size: int) -> memoryview:
    """What a cipher makes of the frames, in new memory."""
    room, filled = allocate(size + _SPARE), 0
    for part in _slices(frames):
        filled += context.update_into(part, room[filled:])
    return room[:size]


def _entry_key(key: Key, salt: bytes) -> bytes:
    return blake3(salt, key=key.encryption).digest()


def _slices(frames: Frames) -> Iterator[memoryview]:
    for frame in frames:
        view = memoryview(frame).cast("B")
        for start in range(0, view.nbytes, _SLICE):
            yield view[start : start + _SLICE]
