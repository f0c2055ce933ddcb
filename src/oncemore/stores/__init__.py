"""The store contract: bytes under text keys, in key order. A store knows nothing of runs, pickles or Python.

Five methods, small enough for a database, a key-value server or an object store. Nothing in the contract needs a
local file or a scan of everything. `oncemore.testing.StoreContract` is the conformance suite: a new store passes it by
naming itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol, Union, runtime_checkable

Bytes = Union[bytes, bytearray, memoryview]
Frames = Sequence[Bytes]  # one entry's bytes in pieces, so that large buffers are written without being joined


class Hold(Protocol):
    """A key held for a computation, until released or until its process dies."""

    def release(self) -> None: ...


@runtime_checkable
class Store(Protocol):
    """Keeps bytes under keys."""

    @property
    def url(self) -> str:
        """What `open_store` takes to open this store again, in this or another process."""
        ...

    def get(self, key: str) -> Bytes | None:
        """The bytes under `key`, or None. A large entry comes as a writable buffer that the caller owns."""
        ...

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """The entries whose keys start with `prefix`, in key order, those greater than the key `after`, at most `limit`.

        An entry of more than `most` bytes comes as None. Reads only the rows that it yields.
        """
        ...

    def commit(
        self,
        *,
        put: Mapping[str, Frames] = {},
        append: Mapping[str, Sequence[Bytes]] = {},
        delete: Collection[str] = (),
        expect: Mapping[str, Bytes | None] = {},
    ) -> bool:
        """Apply all of it in one transaction, or nothing.

        `append` adds entries to logs: each gets the key `log + 16 hex digits`, one above the log's highest, without gaps.
        `expect`: unless each of these keys holds exactly these bytes now (None: is absent), nothing happens and False
        comes back. When True comes back, the change survives the death of this process.
        """
        ...

    def hold(self, key: str) -> Hold | None:
        """Hold `key` against other processes and machines, or None while another holds it. Never waits.

        Threads of one process are told apart by the caller. A holder that dies lets go at once.
        """
        ...

    def close(self) -> None:
        """Let go of connections. A later call opens them again."""
        ...
