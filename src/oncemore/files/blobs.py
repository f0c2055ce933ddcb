"""Contents of files in the store: split into chunks, each stored once under the digest of its bytes.

A chunk is an entry like any other: signed for its key, compressed where that pays. Files are read and written chunk by
chunk, so a large one needs little memory. A file is first written under a temporary name in the same folder, then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import re
import stat
import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, BinaryIO, Literal, NamedTuple

from blake3 import blake3

from ..codec import Decoded, encode
from ..errors import CodecError, IntegrityError, StoreError, log
from ..keys import BLOBS, CHUNKS, LISTINGS, PENDING, blob_key, listing_key, pending, pending_blob, pending_of
from ..settings import secret
from ..stores import OURS, Bytes, Frames, Store
from ..stores.buffers import content_digest

CHUNK = 8 << 20

_DIGEST = 32
_DRAFT = rf"\{OURS}-([0-9a-f]+)-([0-9]+)-[0-9a-f]+"
_HOST = blake3(os.uname().nodename.encode()).hexdigest(length=4)
_TICK, _COARSE_TICK = 50_000_000, 2_000_000_000  # ns: changes further apart have different times on any file system

_damaged: set[tuple[str, str]] = set()  # chunks that this process failed to read: stored, but to be written again


class StoredFile(NamedTuple):
    """A file in the store. `chunks` is its chunks' digests, concatenated; None if only the digest of the file is stored.

    `settled`: the file was old enough when it was read that any later change shows in its modification time.
    """

    size: int
    mtime: int
    mode: int
    settled: bool
    digest: bytes
    chunks: bytes | None

    def __reduce__(self) -> tuple[type[StoredFile], tuple[Any, ...]]:
        now = active.get()
        if now is not None:  # the checkpoint lists its chunks, so that they are not removed
            now.note(self.entries())
        return StoredFile, tuple(self)

    def entries(self) -> list[str]:
        """The keys of the chunks."""
        digests = self.chunks or b""
        return [blob_key(digests[start : start + _DIGEST]) for start in range(0, len(digests), _DIGEST)]


class Blobs:
    """The chunks in a store. After `flush`, what `keep` has read is stored, and is not removed while `node` is computed."""

    def __init__(self, store: Store, node: str = "") -> None:
        self._store, self._node, self._secret = store, node, secret()
        self._pending: dict[str, bytes] = {}  # chunks that are not written yet, by key
        self._pending_bytes = 0

    def keep(self, file: BinaryIO, *, content: bool = True) -> StoredFile:
        """Read a file to its end and store its content, or with `content=False` only its digest."""
        before = os.fstat(file.fileno())
        whole, digests, size = blake3(), bytearray(), 0
        while size <= before.st_size and (chunk := file.read(CHUNK)):  # stops if the file keeps growing
            size += len(chunk)
            whole.update(chunk)
            if content:
                digests += self._put(chunk)
        now, after = time.time_ns(), os.fstat(file.fileno())
        if not before.st_size == size == after.st_size or before.st_mtime_ns != after.st_mtime_ns:
            raise CodecError(f"{file.name} changed while it was read")
        mtime = after.st_mtime_ns
        settled = now - mtime > (_TICK if mtime % 1_000_000_000 else _COARSE_TICK)
        chunks = bytes(digests) if content else None
        return StoredFile(after.st_size, mtime, stat.S_IMODE(after.st_mode), settled, whole.digest(), chunks)

    def keep_bytes(self, content: Bytes) -> list[str]:
        """Store bytes that are not a file's. Returns the keys of their chunks."""
        whole = memoryview(content)
        return [blob_key(self._put(bytes(whole[at : at + CHUNK]))) for at in range(0, len(whole), CHUNK)]

    def _put(self, chunk: bytes) -> bytes:
        digest = blake3(chunk).digest()
        key = blob_key(digest)
        if key not in self._pending:
            self._pending[key] = chunk
            self._pending_bytes += len(chunk)
            if self._pending_bytes >= CHUNK:
                self.flush()
        return digest

    def _is_stored(self, key: str) -> bool:
        if (self._store.url, key) in _damaged:
            return False
        return next(self._store.scan(key, limit=1, most=0), None) is not None  # most=0 reads no content

    def flush(self) -> None:
        """Write the pending chunks that are not stored yet. Small files share a transaction."""
        stored = list(filter(self._is_stored, self._pending))
        self._write(self._pending.keys() - stored, self._pending)
        removed = [key for key in stored if not self._is_stored(key)]  # by another process, before they were marked
        self._write(removed, removed)
        self._pending, self._pending_bytes = {}, 0

    def _write(self, missing: Collection[str], needed: Collection[str]) -> None:
        put: dict[str, Frames] = {}
        for key in missing:
            put[key] = encode(pickle.PickleBuffer(self._pending[key]), {}, key=key, secret=self._secret).frames
            _damaged.discard((self._store.url, key))
        for key in needed:
            put[pending(self._node, key)] = [b"1"]
        if len(missing) < len(needed):
            put[BLOBS] = [os.urandom(8)]
        if put:
            self._store.commit(put=put)

    def read(self, stored: StoredFile) -> Iterator[Bytes]:
        """The content, chunk by chunk. IntegrityError or CodecError if a chunk is gone or damaged."""
        if stored.chunks is None:
            raise CodecError("only the digest of its content was stored")
        yield from self.chunks(stored.entries())

    def chunks(self, keys: Iterable[str]) -> Iterator[Bytes]:
        """The content of chunks. IntegrityError or CodecError if one is gone or damaged."""
        for key in keys:
            try:
                data = self._store.get(key)
                if data is None:
                    raise IntegrityError(f"entry {key} is gone")
                chunk = Decoded(data, key=key, secret=self._secret).load()
            except (StoreError, CodecError):
                _damaged.add((self._store.url, key))
                raise
            yield chunk


State = Literal["same", "missing", "changed", "a folder"]


def compare(path: str, stored: StoredFile) -> State:
    """How `path` differs from the stored file: by size and modification time, and by content if these don't settle it."""
    try:
        now = os.lstat(path)
        if stat.S_ISDIR(now.st_mode):
            return "a folder"
        if not stat.S_ISREG(now.st_mode) or now.st_size != stored.size:
            return "changed"
        if stored.settled and now.st_mtime_ns == stored.mtime:
            return "same"
        return "same" if content_digest(path) == stored.digest else "changed"
    except (FileNotFoundError, NotADirectoryError):
        return "missing"


class Drafts:
    """Files and links to put at their paths: written under temporary names in the same folders, then renamed atomically.

    Drafts that were not put are removed with this object, those of a killed process when another writes to the folder.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._ready: list[tuple[str, str]] = []
        self._folders: set[str] = set()
        weakref.finalize(self, _discard_own, self._ready, os.getpid())

    def add(self, path: str, stored: StoredFile) -> None:
        """Write a draft of a stored file."""
        draft = self._new_draft(path)
        # Private until it has its own mode.
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(self._blobs.read(stored))
            if file.tell() != stored.size:
                raise IntegrityError(f"the stored content of {path} has {file.tell()} bytes instead of {stored.size}")
        os.chmod(draft, stored.mode)
        os.utime(draft, ns=(stored.mtime, stored.mtime))

    def add_link(self, path: str, target: str) -> None:
        """Make a draft of a symbolic link."""
        os.symlink(target, self._new_draft(path))

    def _new_draft(self, path: str) -> str:
        folder = os.path.dirname(path) or os.curdir
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            _sweep(folder)
            self._folders.add(folder)
        draft = os.path.join(folder, f"{OURS}-{_HOST}-{os.getpid()}-{os.urandom(8).hex()}")
        self._ready.append((draft, path))
        return draft

    def put(self) -> None:
        """Move all drafts to their paths."""
        for draft, path in self._ready:
            os.replace(draft, path)
        self._ready.clear()


def _discard(ready: list[tuple[str, str]]) -> None:
    for draft, _ in ready:
        try:
            os.unlink(draft)
        except OSError:  # moved already, or never written
            pass


def _discard_own(ready: list[tuple[str, str]], process: int) -> None:
    if os.getpid() == process:  # not a forked child, which has a copy of the list only
        _discard(ready)


def _sweep(folder: str) -> None:
    """Remove the drafts of this machine's dead processes."""
    for name in os.listdir(folder):
        found = re.fullmatch(_DRAFT, name)
        if found is not None and found[1] == _HOST and not _alive(int(found[2])):
            _discard([(os.path.join(folder, name), "")])


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it lives, but belongs to another user
    return True


def put_back(path: str, stored: StoredFile, blobs: Blobs) -> None:
    """Restore the stored file at `path`, unless the file there is the same."""
    if compare(path, stored) != "same":
        drafts = Drafts(blobs)
        drafts.add(path, stored)
        drafts.put()


def remove(path: str) -> None:
    """Remove a file, a link or an empty folder, if it exists."""
    try:
        os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # a folder that is not empty
            raise


# -- which chunks are needed: each checkpoint with files has a list of its chunks, and a node that is being computed has a
#    pending mark for each chunk it has stored. All other chunks are removed.


def listing(entry: str, blobs: Collection[str]) -> dict[str, Frames]:
    """The list of an entry's chunks, to be written together with the entry."""
    key = listing_key(entry)
    return {key: encode(None, {"blobs": sorted(blobs)}, key=key, secret=secret()).frames} if blobs else {}


def listed(store: Store, entry: str) -> list[str]:
    """The keys of an entry's chunks; none if the list is gone or damaged."""
    key = listing_key(entry)
    try:
        data = store.get(key)
        return [] if data is None else Decoded(data, key=key, secret=secret()).meta["blobs"]
    except IntegrityError:
        return []


def waiting(store: Store, node: str) -> dict[str, str]:
    """The chunks that a node has stored for a checkpoint that is not written yet, by their pending marks."""
    return {mark: pending_blob(mark) for mark, _ in store.scan(f"{pending_of(node)}blob/", most=0)}


def release(store: Store, blobs: Collection[str]) -> None:
    """Remove those of the chunks that no checkpoint and no running step needs."""
    while blobs:
        stamp = store.get(BLOBS)
        needed = {pending_blob(mark) for mark, _ in store.scan(PENDING, most=0)}
        try:  # lists after marks: a checkpoint that was written meanwhile has its list now
            for key, data in store.scan(LISTINGS):
                needed.update(Decoded(data or b"", key=key, secret=secret()).meta["blobs"])
        except IntegrityError as error:
            log("unused contents of files are not removed: %s", error)
            return
        gone = set(blobs) - needed
        if not gone or store.commit(delete=gone, expect={BLOBS: stamp}):
            return


def sweep(store: Store) -> None:
    """Remove all chunks that no checkpoint and no running step needs."""
    for node in {mark[len(PENDING) :].rpartition("/blob/")[0] for mark, _ in store.scan(PENDING, most=0)}:
        hold = store.hold(node)
        if hold is not None:  # else it is being computed
            try:
                store.commit(delete=list(waiting(store, node)))
            finally:
                hold.release()
    release(store, [key for key, _ in store.scan(CHUNKS, most=0)])


# -- the store of the checkpoint that is being written or read


class Keeping(NamedTuple):
    store: Store
    note: Callable[[list[str]], object]  # called with the keys of the chunks that the checkpoint needs
    node: str  # the key of the node
    reading: bool  # the checkpoint is only inspected: files are not put back


active: ContextVar[Keeping | None] = ContextVar("oncemore_blobs", default=None)


class keeping:
    """Context manager around writing or reading a checkpoint: the contents of its `File`s go to, or come from, this store."""

    def __init__(
        self, store: Store, note: Callable[[list[str]], object] = len, node: str = "", *, reading: bool = False
    ) -> None:
        self._keeping = Keeping(store, note, node, reading)

    def __enter__(self) -> None:
        self._token = active.set(self._keeping)

    def __exit__(self, *error: object) -> None:
        active.reset(self._token)


@contextlib.contextmanager
def not_keeping() -> Generator[None, None, None]:
    """Inside `keeping`: the contents of `File`s are left alone; pickles contain only their paths."""
    token = active.set(None)
    try:
        yield
    finally:
        active.reset(token)


def keep_now(now: Keeping, file: BinaryIO) -> StoredFile:
    """Store one file for the checkpoint that is being written."""
    blobs = Blobs(now.store, now.node)
    stored = blobs.keep(file)
    blobs.flush()
    return stored


def source() -> Blobs:
    """The chunks in the store of the checkpoint that is being read."""
    now = active.get()
    if now is None:
        raise CodecError("it contains a File, which can only be loaded from the store it was saved in")
    return Blobs(now.store)
