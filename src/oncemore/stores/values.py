"""How a disk store keeps a value: small ones in the row, large ones in a file of their own.

The columns are those of diskcache's `Disk`, without all that could run or reach something: keys are text, values are bytes,
nothing is ever unpickled, and a row can only name a file that this module could have made.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
from collections.abc import Sequence
from typing import cast

from ..bulk import allocate
from ..errors import IntegrityError
from . import Bytes, Frames
from .filesystem import LOCAL_FILE_SYSTEMS, describe, file_system

DBNAME = "cache.db"  # as in diskcache, like the modes: a value in its row, a value in its file
MODE_RAW, MODE_BINARY = 1, 2
FORMAT = 1  # of the store
INLINE = 1 << 15  # values below this size live in their row
_LARGE = 1 << 20  # room for such a file is asked for at once: that saves half of the time
_NOT_A_FILE = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)
_NAME = r"[0-9a-f]{2}/[0-9a-f]{30}\.val"

Row = tuple[int, int, "str | None", "bytes | None"]  # the columns size, mode, filename, value


class BytesDisk:
    """Bytes in rows and files."""

    fsync = False

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def store(self, value: Bytes | Frames, read: bool = False, key: object = None) -> Row:
        """The columns for a value; its file, if it has one, is complete."""
        frames = cast(Frames, (value,) if isinstance(value, (bytes, bytearray, memoryview)) else value)
        first = frames[0] if len(frames) == 1 else None
        size = len(first) if type(first) is bytes else _size(frames)
        if size < INLINE:
            return 0, MODE_RAW, None, first if type(first) is bytes else b"".join(frames)
        filename, path = self.filename()
        try:
            self._write_frames(path, frames, size)
        except BaseException:
            self.remove(filename)
            raise
        return size, MODE_BINARY, filename, None

    def fetch(
        self,
        mode: int,
        filename: str | None,
        value: object,
        read: bool = False,
        *,
        size: int | None = None,
        key: str = "",
    ) -> Bytes:
        """The value behind these columns, which anyone may have altered. `FileNotFoundError`: its file is gone."""
        if mode == MODE_RAW and filename is None and type(value) is bytes:
            return value
        if mode != MODE_BINARY or value is not None or not self.owns(filename):
            raise self.damaged(key, f"its row was altered (mode {mode}, file {filename!r})")
        try:
            return self._read_file(cast(str, filename), size, key)
        except (FileNotFoundError, IntegrityError):
            raise
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise self.damaged(key, f"something else is in the place of its file {filename}") from error
            raise describe(error, f"read {filename} of", self._directory) from error

    def damaged(self, key: str, what: str) -> IntegrityError:
        """The error that names an entry and what is wrong with it."""
        return IntegrityError(f"the entry {key!r} of the store {self._directory} is damaged: {what}")

    def owns(self, filename: object) -> bool:
        """Whether a file name is one that `filename` makes: nothing outside the directory, nothing else inside it."""
        return isinstance(filename, str) and re.fullmatch(_NAME, filename) is not None

    def filename(self, key: object = None, value: object = None) -> tuple[str, str]:
        """A fresh name, relative and absolute. One level of 256 folders, which stay: removing them would race."""
        digits = os.urandom(16).hex()
        name = f"{digits[:2]}/{digits[2:]}.val"
        return name, os.path.join(self._directory, name)

    def remove(self, file_path: str) -> None:
        """Remove a value file. One that is gone, or that is not ours, is left alone."""
        if self.owns(file_path):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._directory, file_path))

    def complete(self, row: Row) -> bool:
        """Whether the file that a row names, if any, is there in full."""
        size, _, filename, _ = row
        if filename is None:
            return True
        try:
            return self.owns(filename) and os.lstat(os.path.join(self._directory, filename)).st_size == size
        except OSError:
            return False

    @functools.cached_property
    def _local(self) -> bool:
        return file_system(self._directory) in LOCAL_FILE_SYSTEMS

    def _write_frames(self, path: str, frames: Sequence[Bytes], size: int) -> None:
        with open(path, "xb", opener=_sealed if size >= _LARGE else _private) as file:
            if size >= _LARGE and self._local:
                with contextlib.suppress(OSError):  # what is wrong, writing will tell
                    os.posix_fallocate(file.fileno(), 0, size)
            file.writelines(frames)  # a large frame goes past the buffer: it is not copied
            if self.fsync:
                file.flush()
                os.fsync(file.fileno())
        if self.fsync:
            sync_directory(os.path.dirname(path))
            sync_directory(self._directory)

    def _read_file(self, filename: str, expected: int | None, key: str) -> memoryview:
        # A link, a pipe or a device in the file's place is neither followed nor waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(os.path.join(self._directory, filename), flags)
        try:
            about = os.fstat(descriptor)
            size = about.st_size
            if not stat.S_ISREG(about.st_mode) or expected not in (None, size):
                raise self.damaged(key, f"its file {filename} has {size} bytes instead of {expected}")
            buffer = allocate(size)
            if not _fill(descriptor, buffer):
                raise self.damaged(key, f"its file {filename} was cut short while it was read")
            return buffer
        finally:
            os.close(descriptor)


def _size(frames: Frames) -> int:
    return sum(memoryview(frame).nbytes for frame in frames)


def _private(path: str, flags: int, mode: int = 0o600) -> int:
    """A new file that others cannot read."""
    try:
        return os.open(path, flags, mode)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
        return os.open(path, flags, mode)


def _sealed(path: str, flags: int) -> int:
    """And that nobody opens to write to it, but for who makes it."""
    return _private(path, flags, 0o400)


def _fill(descriptor: int, buffer: memoryview) -> bool:
    """Read the file; False if it ends before the buffer does."""
    done = 0
    while done < buffer.nbytes:
        count = os.preadv(descriptor, [buffer[done:]], done)
        if not count:
            return False
        done += count
    return True


def sync_directory(path: str) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without it
            raise
    finally:
        os.close(descriptor)
