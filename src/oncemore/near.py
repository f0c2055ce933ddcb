"""In-memory cache of a run's small entries. After the second read from the store, the rest are fetched in one scan."""

from __future__ import annotations

import os

from .codec import Decoded
from .errors import StoreError
from .flight import Arrival, Blocking, Landing, Path
from .stores import Bytes, Store

_SMALL = 1 << 15
_ROOM = 1 << 26  # bytes for one run
_OVERHEAD = 200  # bytes that an entry takes besides its own
_PATIENCE = 2  # so many single reads before all small entries are read


class Near:
    """The small entries under `home`, by key, until this process replaces or removes them."""

    def __init__(self, store: Store, home: str, secret: bytes) -> None:
        self._store, self._home, self._secret = store, home, secret
        self.entries: dict[str, bytes | Decoded] = {}  # as they are stored, or verified
        self._dropped: set[str] = set()
        self._room, self._reads = _ROOM, 0
        self._warming: tuple[int, Landing] | None = None  # who reads all that is small: the process, and the end of it

    def get(self, key: str) -> Decoded | None:
        """An entry, its signature verified. IntegrityError if what is there cannot be trusted."""
        known = self.entries.get(key)
        if isinstance(known, Decoded):
            return known
        data: Bytes | None = known
        if data is None and (data := self._store.get(key)) is not None:
            self._reads += 1
            if self._reads == _PATIENCE:
                self._read_all()
        if data is None:
            return None
        entry = Decoded(data, key=key, secret=self._secret)
        if isinstance(data, bytes) and len(data) <= _SMALL:
            self.entries[key] = entry  # need not be verified again
            if key in self._dropped:  # maybe meanwhile
                self.entries.pop(key, None)
        return entry

    @property
    def cold(self) -> bool:
        """Whether too little was asked for so far to read all that is small."""
        return self._reads < _PATIENCE

    def warm(self) -> Path[None]:
        """Read it all the same: coroutines ask for much at once, and each would wait for a thread of its own."""
        process = os.getpid()
        if self._warming is not None and self._warming[0] == process:
            yield Arrival(self._warming[1])
            return
        landing = Landing()
        self._warming = process, landing
        try:
            yield Blocking(self._read_small)
        finally:
            landing.end()

    def _read_small(self) -> None:
        try:
            self._read_all()
        except StoreError:
            pass  # who needs an entry will meet it
        finally:
            self._reads = max(self._reads, _PATIENCE)

    def know(self, key: str, data: bytes) -> None:
        """Have an entry at hand that was just written, as long as there is room."""
        if self._room > 0 and len(data) <= _SMALL:
            self._room -= len(data) + _OVERHEAD
            self.entries[key] = data

    def drop(self, *keys: str) -> None:
        """What is in memory of these entries counts no longer, nor does what another thread is reading now."""
        self._dropped.update(keys)  # first
        for key in keys:
            self.entries.pop(key, None)

    def _read_all(self) -> None:
        for key, data in self._store.scan(self._home, most=_SMALL):
            if isinstance(data, bytes):
                self.entries.setdefault(key, data)
                self._room -= len(data) + _OVERHEAD
                if self._room < 0:
                    break
        self.drop(*self._dropped)
