"""What of a run's entries is in memory: small ones, read in bulk once a few have been asked for.

Each recall makes a fresh value from them. The small values of a finished run stand besides in one entry, its sheet, which is
read in place of them.
"""

from __future__ import annotations

import os
from contextlib import suppress

from .codec import Decoded, encode
from .errors import IntegrityError, StoreError
from .flight import Arrival, Blocking, Landing, Path
from .records import unreplaced
from .stores import Bytes, Store

_SHEET = "+"  # no name of a step: those are quoted
_SMALL = 1 << 15
_ROOM = 1 << 26  # bytes for one run
_OVERHEAD = 200  # bytes that a value takes besides its own
_PATIENCE = 2  # so many single reads before the sheet is read; without one, or after as many again, all that is small
_WORTH = 100  # values that make a new sheet


class Near:
    """The small entries under `home`, by their place there, until this process replaces or removes them.

    `entries` are as they are stored, or verified; `values` are what `glance` gives of those that were verified and are bare.
    """

    def __init__(self, store: Store, home: str, log: str | None, secret: bytes) -> None:
        self._store, self._home, self._log, self._secret = store, home, log, secret
        self.entries: dict[str, bytes | Decoded] = {}
        self.values: dict[str, bytes] = {}
        self._dropped: set[str] = set()
        self._room, self._reads = _ROOM, 0
        self._sheet = self._learned = 0  # values that the sheet has, and that were learned besides
        self._warming: tuple[int, Landing] | None = None  # who reads all that is small: the process, and the end of it

    def get(self, key: str) -> Decoded | None:
        """An entry, its signature verified. IntegrityError if what is there cannot be trusted."""
        place = self._place(key)
        known = self.entries.get(place)
        if isinstance(known, Decoded):
            return known
        data: Bytes | None = known
        if data is None and (data := self._store.get(key)) is not None:
            self._reads += 1
            if (self._reads == _PATIENCE and not self._read_sheet()) or (self._sheet and self._reads == 2 * _PATIENCE):
                self._read_all()
        if data is None:
            return None
        entry = Decoded(data, key=key, secret=self._secret)
        if isinstance(data, bytes) and len(data) <= _SMALL:
            self.entries[place] = data if entry.bare else entry  # the others need not be verified again
            if key in self._dropped:  # maybe meanwhile
                self.entries.pop(place, None)
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
            if not self._read_sheet():
                self._read_all()
        except StoreError:
            pass  # who needs an entry will meet it
        finally:
            self._reads = max(self._reads, _PATIENCE)

    def learn(self, key: str, value: bytes) -> None:
        """Know what was read, unless another thread has replaced or removed it meanwhile."""
        self.know(key, value)
        if key in self._dropped:
            self.values.pop(self._place(key), None)

    def know(self, key: str, value: bytes) -> None:
        """Have a value at hand, as long as there is room."""
        if self._room > 0:
            self._room -= len(value) + _OVERHEAD
            self._learned += 1
            self.values[self._place(key)] = value

    def drop(self, *keys: str) -> None:
        """What is in memory of these entries counts no longer, nor does what another thread is reading now."""
        self._dropped.update(keys)  # first
        for place in map(self._place, keys):
            self.entries.pop(place, None)
            self.values.pop(place, None)

    def _place(self, key: str) -> str:
        """Where an entry stands under the home; the key itself if elsewhere: a step has no name like ours."""
        return key[len(self._home) :] if key.startswith(self._home) else key

    def _read_all(self) -> None:
        for key, data in self._store.scan(self._home, most=_SMALL):
            if isinstance(data, bytes):
                self.entries.setdefault(self._place(key), data)
                self._room -= len(data) + _OVERHEAD
                if self._room < 0:
                    break
        self.drop(*self._dropped)

    # -- the sheet: right up to an event of the run's log

    def _read_sheet(self) -> bool:
        """Take the values of the sheet, if there is one and it is right."""
        key = self._home + _SHEET
        data = None if self._log is None else self._store.get(key)
        if data is None or self._log is None:
            return False
        try:
            entry = Decoded(data, key=key, secret=self._secret)
        except IntegrityError:
            return False  # all of it is in the entries themselves
        if not unreplaced(self._store, self._log, entry.meta["until"]):
            return False
        known, self.values = self.values, entry.load()
        self._sheet = len(self.values)
        self._room -= len(data) + _OVERHEAD * self._sheet
        self.values.update(known)
        self.drop(*self._dropped)
        return True

    def write_sheet(self, until: int | None) -> None:
        """Write the values that are known, if many are new. From the opening until that event, nothing was replaced or removed."""
        if until is not None and self._learned >= max(_WORTH, self._sheet // 8):
            key = self._home + _SHEET
            entry = encode(self.values, {"until": until}, key=key, secret=self._secret)
            with suppress(StoreError):  # the next run does without
                self._store.commit(put={key: entry.frames})
