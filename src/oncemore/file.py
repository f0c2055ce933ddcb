"""A file as a value: as an argument or in a result, it counts by its content."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, Union, cast

from .blobs import Blobs, StoredFile, active, keep_now, put_back, remove, source
from .buffers import content_digest
from .errors import CodecError, StoreError, UsageError, warn
from .stores.folders import in_store

PathLike = Union[str, "os.PathLike[str]"]


class File:
    """A file that counts by its content, as an argument or as (part of) a result of a step.

    As an argument, it is identified by its content, wherever it lies; what the step does to the file is done again when
    the step is skipped. As a result, its content is kept, and a skipped step puts the file back at its path.

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
        self._source: tuple[Blobs, StoredFile] | None = None  # where its content is if it was not put back

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
        blobs, kept = self._source
        file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
        file.writelines(blobs.read(kept))
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
            raise UsageError(f"{self!r} is a file of a store: pass another file, or copy what you need of it")
        try:
            return content_digest(self._path)
        except FileNotFoundError:
            return None

    def __reduce__(self) -> Any:
        now = active.get()
        if now is None:  # no checkpoint: to another process on this machine, the path is the file
            return File, (self._path,)
        if in_store(self._path):
            raise CodecError(f"{self!r} is a file of a store: return another file, or copy what you need of it")
        with self.open() as file:
            return _recalled, (self._path, keep_now(now, file))


def _recalled(path: str, kept: StoredFile) -> File:
    """A result again, at its path if that can be; a damaged chunk is an error, so that the step runs again.

    Who only looks at the past (`Checkpoint.result`) gets the content, and the file at the path stays as it is.
    """
    file, blobs, now = File(path), source(), active.get()
    if now is not None and now.reading:
        file._source = blobs, kept
        return file
    try:
        put_back(os.path.abspath(path), kept, blobs)
    except StoreError:
        raise
    except OSError as error:
        warn(f"{path} cannot be put back ({error}); its content is there in File.open() and File.read_bytes()")
        file._source = blobs, kept
    return file


class FileChange:
    """What a step did to a file that it got as an argument; on its way through a checkpoint it becomes content."""

    def __init__(self, file: File, done: tuple[Blobs, StoredFile | None] | None = None) -> None:
        self._file, self._done = file, done

    def __reduce__(self) -> Any:
        now = active.get()
        if now is None:  # a copy in memory, to undo what a failed step did to objects: files stay as it left them
            return FileChange, (self._file,)
        try:
            with open(self._file, "rb") as file:
                return _changed, (keep_now(now, file),)
        except FileNotFoundError:
            return _changed, (None,)

    def __checkpoint_identity__(self) -> object:
        """Two changes are the same if they leave the same content."""
        kept = self._done[1] if self._done is not None else None
        return None if kept is None else kept.digest

    def make(self, file: File) -> None:
        """Do the same to the caller's file, wherever that lies."""
        if self._done is not None:
            blobs, kept = self._done
            path = os.path.abspath(file)
            remove(path) if kept is None else put_back(path, kept, blobs)


def _changed(kept: StoredFile | None) -> FileChange:
    blobs = source()
    for _ in () if kept is None else blobs.read(kept):
        pass  # a damaged chunk has to be found before the step counts as skipped
    return FileChange(File(os.devnull), (blobs, kept))
