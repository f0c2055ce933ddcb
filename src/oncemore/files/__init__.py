"""Files as values, in the arguments or the result of a step: identified and stored by content."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, Union, cast

from ..errors import CodecError, StoreError, UsageError, warn
from ..stores import in_store
from ..stores.buffers import content_digest
from .blobs import Blobs, StoredFile, active, keep_now, put_back, remove, source

PathLike = Union[str, "os.PathLike[str]"]


class File:
    """A file as an argument of a step, or as (part of) its result.

    As an argument, the file is identified by its content, whatever its path. If the step changes the file, skipping the step
    makes the same change. As a result, the file's content is saved, and skipping the step restores the file at its path.

    >>> import pathlib, tempfile
    >>> from oncemore import File
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.txt")
    >>> _ = path.write_text("hello")
    >>> File(path).read_bytes()
    b'hello'
    """

    __slots__ = ("_path", "_source")

    def __init__(self, path: PathLike) -> None:
        self._path = os.fspath(path)
        self._source: tuple[Blobs, StoredFile] | None = None  # its stored content, if the file was not put back

    @property
    def path(self) -> Path:
        return Path(self._path)

    def __fspath__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"File({self._path!r})"

    def __eq__(self, other: object) -> bool:
        return self._path == other._path if isinstance(other, File) else NotImplemented

    def __hash__(self) -> int:
        return hash((File, self._path))

    def open(self) -> BinaryIO:
        """The content, open for reading."""
        if self._source is None:
            return open(self._path, "rb")
        blobs, stored = self._source
        file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
        file.writelines(blobs.read(stored))
        file.seek(0)
        return file

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def __checkpoint_identity__(self) -> object:
        if self._source is not None:
            return self._source[1].digest
        if in_store(self._path):
            raise UsageError(f"{self!r} is a file of a store: pass another file, or a copy of it")
        try:
            return content_digest(self._path)
        except FileNotFoundError:
            return None

    def __reduce__(self) -> Any:
        now = active.get()
        if now is None:  # not for a checkpoint, but for another process on this machine
            return File, (self._path,)
        if in_store(self._path):
            raise CodecError(f"{self!r} is a file of a store: return another file, or a copy of it")
        with self.open() as file:
            return _recalled, (self._path, keep_now(now, file))


def _recalled(path: str, stored: StoredFile) -> File:
    """Load a file of a result and restore it at its path, if possible. A damaged chunk raises, so that the step runs again.

    If the checkpoint is only inspected (`Checkpoint.result`), the file at the path stays unchanged.
    """
    file, blobs, now = File(path), source(), active.get()
    if now is not None and now.reading:
        file._source = blobs, stored
        return file
    try:
        put_back(os.path.abspath(path), stored, blobs)
    except StoreError:
        raise
    except OSError as error:
        warn(f"{path} cannot be put back ({error}); read its content with File.open() or File.read_bytes()")
        file._source = blobs, stored
    return file


class FileChange:
    """What a step did to a file that is one of its arguments. Pickling it for a checkpoint stores the file's content."""

    def __init__(self, file: File, done: tuple[Blobs, StoredFile | None] | None = None) -> None:
        self._file, self._done = file, done

    def __reduce__(self) -> Any:
        now = active.get()
        if now is None:  # a copy in memory to undo the changes of a failed step, which leaves files alone
            return FileChange, (self._file,)
        try:
            with open(self._file, "rb") as file:
                return _changed, (keep_now(now, file),)
        except FileNotFoundError:
            return _changed, (None,)

    def __checkpoint_identity__(self) -> object:
        """Two changes are equal if they leave the same content."""
        stored = self._done[1] if self._done is not None else None
        return None if stored is None else stored.digest

    def make(self, file: File) -> None:
        """Make the same change to the caller's file, whatever its path."""
        if self._done is not None:
            blobs, stored = self._done
            path = os.path.abspath(file)
            remove(path) if stored is None else put_back(path, stored, blobs)


def _changed(stored: StoredFile | None) -> FileChange:
    blobs = source()
    for _ in () if stored is None else blobs.read(stored):
        pass  # finds a damaged chunk before the step is skipped
    return FileChange(File(os.devnull), (blobs, stored))
