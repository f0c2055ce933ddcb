"""Files in the store, by content: cut into chunks, each kept once under the digest of its bytes.

A chunk is an entry like any other: signed for its key, compressed where that pays. Files are read and written chunk by
chunk, so that a large one needs little memory, and take their places atomically, beside which they were written first.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import stat
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, BinaryIO, Literal, NamedTuple

from blake3 import blake3

from .codec import Decoded, encode
from .errors import CodecError, IntegrityError, StoreError
from .secret import secret
from .stores import Bytes, Frames, Store

CHUNK = 8 << 20
OURS = ".oncemore"  # how the names begin that we make among the user's files: stores and drafts

_DIGEST = 32
_DRAFT = re.compile(rf"{re.escape(OURS)}-([0-9a-f]+)-([0-9]+)-[0-9a-f]+")
_HOST = blake3(os.uname().nodename.encode()).hexdigest(length=4)
_TICK, _COARSE_TICK = 50_000_000, 2_000_000_000  # ns: two changes further apart have two times on any file system

_damaged: set[tuple[str, str]] = set()  # chunks that this process could not read back: there, but to be written anew


class Kept(NamedTuple):
    """What is known of a file. `chunks` are the digests of its chunks one after another; None if no content is kept.

    `settled` says that a later change must show in the time of change: the file was old enough when it was read.
    """

    size: int
    mtime: int
    mode: int
    settled: bool
    digest: bytes
    chunks: bytes | None

    def __reduce__(self) -> tuple[type[Kept], tuple[Any, ...]]:
        keeping_now = active.get()
        if keeping_now is not None:  # whoever cleans up the store can then see in the checkpoint what it needs
            keeping_now.note(self.entries())
        return Kept, tuple(self)

    def entries(self) -> list[str]:
        """The entries that hold the content."""
        names = self.chunks or b""
        return [_key(names[at : at + _DIGEST]) for at in range(0, len(names), _DIGEST)]


class Blobs:
    """The chunks in a store. What `keep` was given is there once `flush` has returned."""

    def __init__(self, store: Store) -> None:
        self._store, self._secret = store, secret()
        self._pending: dict[str, Frames] = {}
        self._waiting = 0

    def keep(self, file: BinaryIO, *, content: bool = True) -> Kept:
        """Read a file to its end, and keep what it holds unless only its digest is wanted."""
        before = os.fstat(file.fileno())
        whole, names, size = blake3(), bytearray(), 0
        while size <= before.st_size and (block := file.read(CHUNK)):  # one that grows all the time has no end
            size += len(block)
            whole.update(block)
            if content:
                names += self._put(block)
        now, after = time.time_ns(), os.fstat(file.fileno())
        if not before.st_size == size == after.st_size or before.st_mtime_ns != after.st_mtime_ns:
            raise CodecError(f"{file.name} changed while it was read")
        mtime = after.st_mtime_ns
        settled = now - mtime > (_TICK if mtime % 1_000_000_000 else _COARSE_TICK)
        chunks = bytes(names) if content else None
        return Kept(after.st_size, mtime, stat.S_IMODE(after.st_mode), settled, whole.digest(), chunks)

    def _put(self, block: bytes) -> bytes:
        name = blake3(block).digest()
        key = _key(name)
        if key not in self._pending and not self._is_there(key):
            entry = encode(pickle.PickleBuffer(block), {}, key=key, secret=self._secret)
            self._pending[key] = entry.frames
            self._waiting += len(block)  # a compressed one may hold on to as much memory
            if self._waiting >= CHUNK:
                self.flush()
        return name

    def _is_there(self, key: str) -> bool:
        if (self._store.url, key) in _damaged:
            return False
        return next(self._store.scan(key, limit=1, most=0), None) is not None  # most=0: its bytes are not read

    def flush(self) -> None:
        """Write what is still waiting: small files share a transaction."""
        if self._pending:
            self._store.commit(put=self._pending)
            _damaged.difference_update((self._store.url, key) for key in self._pending)
            self._pending, self._waiting = {}, 0

    def read(self, kept: Kept) -> Iterator[Bytes]:
        """The content again, chunk by chunk. IntegrityError or CodecError for one that is gone or damaged."""
        if kept.chunks is None:
            raise CodecError("only the digest of its content was kept")
        for key in kept.entries():
            try:
                data = self._store.get(key)
                if data is None:
                    raise IntegrityError(f"entry {key} is gone")
                block = Decoded(data, key=key, secret=self._secret).load()
            except (StoreError, CodecError):
                _damaged.add((self._store.url, key))
                raise
            yield block


def _key(name: bytes) -> str:
    return f"blob/{name.hex()}"


State = Literal["same", "missing", "changed", "a folder"]


def compare(path: str, kept: Kept) -> State:
    """How what is at `path` differs from what was kept. Size and time of change decide; the content, when in doubt."""
    try:
        now = os.lstat(path)
        if stat.S_ISDIR(now.st_mode):
            return "a folder"
        if not stat.S_ISREG(now.st_mode) or now.st_size != kept.size:
            return "changed"
        if kept.settled and now.st_mtime_ns == kept.mtime:
            return "same"
        return "same" if content_digest(path) == kept.digest else "changed"
    except (FileNotFoundError, NotADirectoryError):
        return "missing"


def content_digest(path: str) -> bytes:
    """BLAKE3 of a file's content."""
    hasher = blake3()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(CHUNK):
            hasher.update(block)
    return hasher.digest()


class Drafts:
    """Files and links ready to take their places: written beside them, so that taking a place is one atomic step.

    Drafts that are not put go away with this object; those of a process that was killed, when the next writes there.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._ready: list[tuple[str, str]] = []
        self._folders: set[str] = set()
        weakref.finalize(self, _discard_own, self._ready, os.getpid())

    def add(self, path: str, kept: Kept) -> None:
        """Write a file as it was kept."""
        draft = self._beside(path)
        # Nobody else reads it before it has its own mode.
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(self._blobs.read(kept))
            if file.tell() != kept.size:
                raise IntegrityError(f"the content kept of {path} has {file.tell()} bytes instead of {kept.size}")
        os.chmod(draft, kept.mode)
        os.utime(draft, ns=(kept.mtime, kept.mtime))

    def add_link(self, path: str, target: str) -> None:
        """Make a symbolic link."""
        os.symlink(target, self._beside(path))

    def _beside(self, path: str) -> str:
        folder = os.path.dirname(path) or os.curdir
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            _sweep(folder)
            self._folders.add(folder)
        draft = os.path.join(folder, f"{OURS}-{_HOST}-{os.getpid()}-{os.urandom(8).hex()}")
        self._ready.append((draft, path))
        return draft

    def put(self) -> None:
        """Let all of them take their places."""
        for draft, path in self._ready:
            os.replace(draft, path)
        self._ready.clear()


def _discard(ready: list[tuple[str, str]]) -> None:
    for draft, _ in ready:
        try:
            os.unlink(draft)
        except OSError:  # it has its place already, or was never written
            pass


def _discard_own(ready: list[tuple[str, str]], process: int) -> None:
    if os.getpid() == process:  # a forked child has a copy of the list, not of the files
        _discard(ready)


def _sweep(folder: str) -> None:
    """Remove the drafts of processes of this machine that are no more."""
    for name in os.listdir(folder):
        found = _DRAFT.fullmatch(name)
        if found is not None and found[1] == _HOST and not _alive(int(found[2])):
            _discard([(os.path.join(folder, name), "")])


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # there, but another user's
    return True


def put_back(path: str, kept: Kept, blobs: Blobs) -> None:
    """Make the file at `path` what was kept; an unchanged one is not touched."""
    if compare(path, kept) != "same":
        drafts = Drafts(blobs)
        drafts.add(path, kept)
        drafts.put()


def remove(path: str) -> None:
    """Remove a file, a link or an empty folder, if it is there."""
    try:
        os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # somebody put more into the folder
            raise


# -- who needs a chunk: a run marks each that its checkpoints refer to, on its own side and on the chunk's


def uses(home: str, blob: str) -> tuple[str, str]:
    """The keys that say that the run whose entries are under `home` needs a chunk."""
    return f"{home}%/{blob}", f"use/{blob}/{home}"


def used(store: Store, home: str) -> list[str]:
    """The chunks that the run under `home` needs."""
    return [key[len(home) + 2 :] for key, _ in store.scan(f"{home}%/", most=0)]


def release(store: Store, home: str, blobs: Iterable[str]) -> None:
    """The run under `home` does not need these any more; those that nobody needs are removed."""
    for blob in blobs:
        store.commit(delete=uses(home, blob))
        if next(store.scan(f"use/{blob}/", limit=1, most=0), None) is None:
            store.commit(delete=[blob])


# -- the store of the checkpoint that is being made or read


class Keeping(NamedTuple):
    store: Store
    note: Callable[[list[str]], object]  # is told the keys of all chunks that the checkpoint refers to
    reading: bool  # somebody looks at the past: files stay as they are


active: ContextVar[Keeping | None] = ContextVar("oncemore_blobs", default=None)


@contextmanager
def keeping(
    store: Store, note: Callable[[list[str]], object] = len, *, reading: bool = False
) -> Generator[None, None, None]:
    """While a checkpoint is made or read: a `File` inside goes to this store, or comes from it, by content."""
    token = active.set(Keeping(store, note, reading))
    try:
        yield
    finally:
        active.reset(token)


def keep_now(store: Store, file: BinaryIO) -> Kept:
    """Keep one file at once."""
    blobs = Blobs(store)
    kept = blobs.keep(file)
    blobs.flush()
    return kept


def source() -> Blobs:
    """Where the files of the checkpoint come from that is being read."""
    now = active.get()
    if now is None:
        raise CodecError("it holds a file, and there is no store to take it from")
    return Blobs(now.store)
