"""When to take a snapshot of the run's state after a step.

A snapshot costs as much as the whole state, however little the step changed. With a large state, one after every step would
slow down small steps, and the store would grow with the square of their number. So a small state gets a snapshot after every
step, and a large one when that is cheap compared with the work since the last: in seconds, and in bytes that steps stored.
Whether a large state has changed at all can't be known without reading it: the script may hold a list that is in it.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..codec import Encoded

_SMALL = 4096  # bytes of pickle, about
_SHARE = 20  # a snapshot of a large state is due after this many times the seconds it takes
_RECHECK = 32  # steps after which a large state is measured again: it may have become small
_GUESS = 0.05, 4 * _SMALL  # seconds and bytes of a snapshot of a large state, until one has been taken
_PLAIN = frozenset([type(None), bool, int, float])
_TEXTS = frozenset([str, bytes, bytearray])


class Snapshot(NamedTuple):
    """The state after a step or at a named checkpoint, or else the last snapshot before it.

    `key` is empty if there is none; `entry` is to be written under it, or None if it is already stored; `behind` is the number
    of steps that have run since it was taken.
    """

    key: str = ""
    entry: Encoded | None = None
    content: str = ""
    seconds: float = 0.0  # how long it took
    behind: int = 0


class Snapshots:
    """The last snapshot of a run in this scope, and whether the next one is due."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.last = Snapshot()
        self.behind = 0  # steps completed since then
        self.lacking = False  # whether the last of them has no snapshot of its own
        self._since = clock()
        self._stored = 0  # bytes stored by steps since then
        self._large = False  # when last measured
        self._seconds, self._bytes = _GUESS  # what the last snapshot of a large state took

    def due(self, state: Mapping[str, Any]) -> bool:
        """Whether to take a snapshot now that a step is complete."""
        if not self._large or self.behind % _RECHECK == 0:
            small = _is_small(state)
            self._large = self._large if small is None else not small
        cheap = self.clock() - self._since >= _SHARE * self._seconds and self._stored >= self._bytes
        return cheap or not self._large

    def nearest(self) -> Snapshot:
        """The last snapshot, for a step that gets none of its own."""
        return Snapshot(self.last.key, behind=self.behind + 1)

    def failed(self, seconds: float) -> None:
        """The state can't be saved. Finding that out counts as work, too: it may have taken long."""
        self._since, self._large, self._seconds, self._bytes = self.clock(), True, seconds, 0

    def written(self, snapshot: Snapshot, stored: int = 0) -> None:
        """A named checkpoint, or a step of `stored` bytes, was stored with this snapshot."""
        self.lacking = snapshot.behind > 0
        if self.lacking or not snapshot.key:
            self.behind += 1
            self._stored += stored
            return
        self.last, self.behind, self._since = snapshot._replace(entry=None), 0, self.clock()
        if snapshot.entry is None:  # the state has not changed: comparing it took time, but nothing was stored
            self._seconds = snapshot.seconds if self._large else self._seconds
            return
        large = snapshot.entry.raw_bytes > 4 * _SMALL  # the random generators are in it, too
        if large or self._large:
            self._seconds, self._bytes = snapshot.seconds, snapshot.entry.stored_bytes
        self._stored, self._large = 0, large

    def replaced(self) -> None:
        """The state has been replaced, and may be small now."""
        self._large = False

    def forget(self) -> None:
        """Stop referring to the last snapshot."""
        self.last, self._large = Snapshot(), False


def _is_small(state: Mapping[str, Any]) -> bool | None:
    """Whether the pickle is small; None if plain pickle fails, though the codec may still be able to save the state."""
    try:
        _Meter(io.BytesIO(), 5, buffer_callback=lambda _: False).dump(state)
    except _Large:
        return False
    except Exception:
        return None
    return True


class _Large(Exception):
    """The pickle is not small."""


class _Meter(pickle.Pickler):
    """Pickles until the pickle is no longer small. Each object is measured before it is pickled."""

    _bytes = 0

    def persistent_id(self, obj: Any, /) -> None:
        kind = type(obj)
        self._bytes += 2
        if kind in _TEXTS:
            self._bytes += len(obj)
        elif kind not in _PLAIN:
            size = getattr(obj, "nbytes", 0)  # arrays, without copying them
            self._bytes += size if isinstance(size, int) else 0
        if self._bytes > _SMALL:
            raise _Large
