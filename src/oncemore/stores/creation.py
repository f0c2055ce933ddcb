"""How the database of a disk store comes into being: all at once.

diskcache makes its tables and settings in a file beside the final one, which is renamed when complete. A process killed
meanwhile leaves no half store, and an empty database file can only be a destroyed one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator

from ..errors import StoreError, warn
from ..modules import loading
from .locks import LockFile
from .values import DBNAME, sync_directory

_PATIENCE = 60.0  # seconds
_IGNORE = ".gitignore"


def create(directory: str, locks: LockFile, *, durable: bool) -> None:
    """Make the store in `directory`, unless another process does so first."""
    final = os.path.join(directory, DBNAME)
    os.makedirs(directory, 0o700, exist_ok=True)
    with _alone(directory, locks):
        if os.path.lexists(final):
            return
        found = os.listdir(directory)
        _set_aside_journal(final)
        _make(final)
        # Not into a directory with other things in it: they are not ours to hide.
        if all(name == "locks" or name.startswith(DBNAME) for name in found):
            _write_new(os.path.join(directory, _IGNORE), b"*\n")
        if durable:
            sync_directory(directory)
    if _IGNORE in found:
        warn(f"the database of the store {directory} is gone: {final}. It starts empty")


def _make(final: str) -> None:
    with loading:
        from .blank import Blank  # with diskcache, which only this needs
    path = f"{final}.new-{os.urandom(8).hex()}"
    try:
        _write_new(path, b"")  # made here for its mode, which SQLite gives to the journal too
        Blank(path)
        os.rename(path, final)
    finally:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.unlink(path + suffix)


def _set_aside_journal(final: str) -> None:
    # Left by a database that was deleted or moved away; SQLite would write it into the new one.
    with contextlib.suppress(FileNotFoundError):
        os.replace(f"{final}-wal", f"{final}-wal.stray")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{final}-shm")


def _write_new(path: str, content: bytes) -> None:
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)


@contextlib.contextmanager
def _alone(directory: str, locks: LockFile) -> Generator[None, None, None]:
    deadline = time.monotonic() + _PATIENCE
    while (hold := locks.acquire("\0create")) is None:
        if time.monotonic() > deadline:
            raise StoreError(f"another process has been creating the store {directory} for too long: see which")
        time.sleep(0.002)
    try:
        yield
    finally:
        hold.release()
