"""When the run's state is worth a snapshot after a step.

A snapshot costs as much as there is state, whatever the step changed, so one after every step would make small steps beside a
large state slow, and the store grow with the square of the steps. A small state gets one after every step. A large one gets
one when that is cheap beside the work done since the last: in seconds, and in the bytes that the steps have stored.
Whether a large state has changed at all can't be known without reading it: the script may hold a list that is in it.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .codec import Encoded

_SMALL = 4096  # bytes of pickle, about
_SHARE = 20  # the work done since the last snapshot is at least so many times what a snapshot takes
_AGAIN = 32  # steps until a large state is looked at again: it may have become small
_GUESS = 0.05, 4 * _SMALL  # seconds and bytes of a snapshot of a large state, until one has been taken
_PLAIN = frozenset([type(None), bool, int, float])
_TEXTS = frozenset([str, bytes, bytearray])


class Snapshot(NamedTuple):
    """The state after a step or at a named checkpoint, or the nearest snapshot before.

    `key` is where it is stored, empty if there is none; `entry` is to be written there unless it is stored already; `behind` is the
    number of steps that have run since it was taken.
    """

    key: str = ""
    entry: Encoded | None = None
    content: str = ""
    seconds: float = 0.0  # it took
    behind: int = 0


class Snapshots:
    """The last snapshot of a run in this scope, and whether it is time for the next."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.last = Snapshot()
        self.behind = 0  # steps completed since
        self.lacking = False  # the last of them has no snapshot of its own
        self._since = clock()
        self._stored = 0  # bytes, by steps completed since
        self._large = False  # when last looked at
        self._seconds, self._bytes = _GUESS  # what the last snapshot of a large state took

    def due(self, state: Mapping[str, Any]) -> bool:
        """Whether to take a snapshot now that a step is complete."""
        if not self._large or self.behind % _AGAIN == 0:
            small = _is_small(state)
            self._large = self._large if small is None else not small
        cheap = self.clock() - self._since >= _SHARE * self._seconds and self._stored >= self._bytes
        return cheap or not self._large

    def nearest(self) -> Snapshot:
        """The last snapshot, as it stands behind the step that is complete now."""
        return Snapshot(self.last.key, behind=self.behind + 1)

    def failed(self, seconds: float) -> None:
        """The state holds something that can't be kept. Finding that out may have taken long, too."""
        self._since, self._large, self._seconds, self._bytes = self.clock(), True, seconds, 0

    def written(self, snapshot: Snapshot, stored: int = 0) -> None:
        """A named checkpoint, or a step with so many bytes, has been stored with this snapshot."""
        self.lacking = snapshot.behind > 0
        if self.lacking or not snapshot.key:
            self.behind += 1
            self._stored += stored
            return
        self.last, self.behind, self._since = snapshot._replace(entry=None), 0, self.clock()
        if snapshot.entry is None:  # the state has not changed: that took time, but no room
            self._seconds = snapshot.seconds if self._large else self._seconds
            return
        large = snapshot.entry.raw_bytes > 4 * _SMALL  # the generators are in it, too
        if large or self._large:
            self._seconds, self._bytes = snapshot.seconds, snapshot.entry.stored_bytes
        self._stored, self._large = 0, large

    def replaced(self) -> None:
        """The state is another one now: it may be small."""
        self._large = False

    def forget(self) -> None:
        """What was stored is not to be referred to any more."""
        self.last, self._large = Snapshot(), False


def _is_small(state: Mapping[str, Any]) -> bool | None:
    """Whether the pickle is small; None if plain pickle can't say: there may still be a way to keep the state."""
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
    """Pickles as long as the pickle is small. Each object is looked at before it is pickled."""

    _bytes = 0

    def persistent_id(self, obj: Any, /) -> None:
        kind = type(obj)
        self._bytes += 2
        if kind in _TEXTS:
            self._bytes += len(obj)
        elif kind not in _PLAIN:
            size = getattr(obj, "nbytes", 0)  # of an array, without a copy of it
            self._bytes += size if isinstance(size, int) else 0
        if self._bytes > _SMALL:
            raise _Large
