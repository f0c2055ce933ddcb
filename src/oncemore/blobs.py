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
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import Any, BinaryIO, Literal, NamedTuple

from blake3 import blake3

from .buffers import content_digest
from .codec import Decoded, encode
from .errors import CodecError, IntegrityError, StoreError, log
from .secret import secret
from .stores import Bytes, Frames, Store
from .stores.folders import OURS

CHUNK = 8 << 20

_DIGEST = 32
_DRAFT = rf"\{OURS}-([0-9a-f]+)-([0-9]+)-[0-9a-f]+"
_HOST = blake3(os.uname().nodename.encode()).hexdigest(length=4)
_TICK, _COARSE_TICK = 50_000_000, 2_000_000_000  # ns: two changes further apart have two times on any file system

_damaged: set[tuple[str, str]] = set()  # chunks that this process could not read back: there, but to be written anew


class StoredFile(NamedTuple):
    """What is known of a file. `chunks` are the digests of its chunks one after another; None if no content is kept.

    `settled` says that a later change must show in the time of change: the file was old enough when it was read.
    """

    size: int
    mtime: int
    mode: int
    settled: bool
    digest: bytes
    chunks: bytes | None

    def __reduce__(self) -> tuple[type[StoredFile], tuple[Any, ...]]:
        keeping_now = active.get()
        if keeping_now is not None:  # whoever cleans up the store can then see in the checkpoint what it needs
            keeping_now.note(self.entries())
        return StoredFile, tuple(self)

    def entries(self) -> list[str]:
        """The entries that hold the content."""
        names = self.chunks or b""
        return [_key(names[at : at + _DIGEST]) for at in range(0, len(names), _DIGEST)]


class Blobs:
    """The chunks in a store. What `keep` was given is there once `flush` has returned, and stays while `node` is computed."""

    def __init__(self, store: Store, node: str = "") -> None:
        self._store, self._node, self._secret = store, node, secret()
        self._pending: dict[str, bytes] = {}
        self._waiting = 0

    def keep(self, file: BinaryIO, *, content: bool = True) -> StoredFile:
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
        return StoredFile(after.st_size, mtime, stat.S_IMODE(after.st_mode), settled, whole.digest(), chunks)

    def _put(self, block: bytes) -> bytes:
        name = blake3(block).digest()
        key = _key(name)
        if key not in self._pending:
            self._pending[key] = block
            self._waiting += len(block)
            if self._waiting >= CHUNK:
                self.flush()
        return name

    def _is_there(self, key: str) -> bool:
        if (self._store.url, key) in _damaged:
            return False
        return next(self._store.scan(key, limit=1, most=0), None) is not None  # most=0: its bytes are not read

    def flush(self) -> None:
        """Write what is still waiting and not there: small files share a transaction."""
        there = list(filter(self._is_there, self._pending))
        self._write(self._pending.keys() - there, self._pending)
        removed = [key for key in there if not self._is_there(key)]  # before it was marked as needed by this node
        self._write(removed, removed)
        self._pending, self._waiting = {}, 0

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

    def read(self, kept: StoredFile) -> Iterator[Bytes]:
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


def compare(path: str, kept: StoredFile) -> State:
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


class Drafts:
    """Files and links ready to take their places: written beside them, so that taking a place is one atomic step.

    Drafts that are not put go away with this object; those of a process that was killed, when the next writes there.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._ready: list[tuple[str, str]] = []
        self._folders: set[str] = set()
        weakref.finalize(self, _discard_own, self._ready, os.getpid())

    def add(self, path: str, kept: StoredFile) -> None:
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
        found = re.fullmatch(_DRAFT, name)
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


def put_back(path: str, kept: StoredFile, blobs: Blobs) -> None:
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


# -- which chunks are needed: beside each checkpoint with files there is a list of its chunks, and a node that is being
#    computed has a mark for each chunk it has kept. Chunks in neither are removed.

BLOBS = "changed/blobs"  # another whenever somebody relies on a chunk that was there already


def listing_key(entry: str) -> str:
    """Where the list of an entry's chunks is."""
    return f"files/{entry}"


def listing(entry: str, blobs: Collection[str]) -> dict[str, Frames]:
    """What to write beside an entry so that its chunks stay."""
    key = listing_key(entry)
    return {key: encode(None, {"blobs": sorted(blobs)}, key=key, secret=secret()).frames} if blobs else {}


def listed(store: Store, entry: str) -> list[str]:
    """The chunks of an entry; none if the list is gone or damaged."""
    key = listing_key(entry)
    try:
        data = store.get(key)
        return [] if data is None else Decoded(data, key=key, secret=secret()).meta["blobs"]
    except IntegrityError:
        return []


def pending(node: str, blob: str) -> str:
    """The mark that a node needs a chunk, until it has a checkpoint."""
    return f"pending/{node}/{blob}"


def waiting(store: Store, node: str) -> dict[str, str]:
    """The chunks that a node has kept for a checkpoint which is not there yet, by their marks."""
    return {key: f"blob/{key.rpartition('/blob/')[2]}" for key, _ in store.scan(f"pending/{node}/blob/", most=0)}


def release(store: Store, blobs: Collection[str]) -> None:
    """Remove those of the chunks that no checkpoint and no running step needs."""
    while blobs:
        stamp = store.get(BLOBS)
        needed = {f"blob/{key.rpartition('/blob/')[2]}" for key, _ in store.scan("pending/", most=0)}
        try:  # after the marks: a checkpoint that was made meanwhile has its list now
            for key, data in store.scan("files/"):
                needed.update(Decoded(data or b"", key=key, secret=secret()).meta["blobs"])
        except IntegrityError as error:
            log("nothing of the contents of files is removed: %s", error)
            return
        gone = set(blobs) - needed
        if not gone or store.commit(delete=gone, expect={BLOBS: stamp}):
            return


def sweep(store: Store) -> None:
    """Remove all that no checkpoint needs. A node that is being computed is held by who does, and keeps what it has."""
    for node in {key[8:].rpartition("/blob/")[0] for key, _ in store.scan("pending/", most=0)}:
        hold = store.hold(node)
        if hold is not None:
            try:
                store.commit(delete=list(waiting(store, node)))
            finally:
                hold.release()
    release(store, [key for key, _ in store.scan("blob/", most=0)])


# -- the store of the checkpoint that is being made or read


class Keeping(NamedTuple):
    store: Store
    note: Callable[[list[str]], object]  # is told the keys of all chunks that the checkpoint refers to
    node: str  # whose checkpoint it is
    reading: bool  # somebody looks at the past: files stay as they are


active: ContextVar[Keeping | None] = ContextVar("oncemore_blobs", default=None)


class keeping:
    """While a checkpoint is made or read: a `File` inside goes to this store, or comes from it, by content."""

    def __init__(
        self, store: Store, note: Callable[[list[str]], object] = len, node: str = "", *, reading: bool = False
    ) -> None:
        self._keeping = Keeping(store, note, node, reading)

    def __enter__(self) -> None:
        self._token = active.set(self._keeping)

    def __exit__(self, *error: object) -> None:
        active.reset(self._token)


def keep_now(now: Keeping, file: BinaryIO) -> StoredFile:
    """Keep one file at once."""
    blobs = Blobs(now.store, now.node)
    kept = blobs.keep(file)
    blobs.flush()
    return kept


def source() -> Blobs:
    """Where the files of the checkpoint come from that is being read."""
    now = active.get()
    if now is None:
        raise CodecError("it holds a file, and there is no store to take it from")
    return Blobs(now.store)
