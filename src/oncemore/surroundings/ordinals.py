"""Numbers identical calls of `every_call` steps, within one process or across all that take part in a scope."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from ..codec import Decoded, encode
from ..settings import secret
from ..stores import Bytes, Store


class Ordinals:
    """Numbers identical calls. A failed call gives its ordinal back, so that a retry is the same node."""

    def __init__(self, first: int = 0, free: Iterable[int] = ()) -> None:
        self._numbers, self._next, self._free = count(first), first, sorted(free)

    def peek(self) -> int:
        return min(self._free, default=self._next)

    def take(self) -> int:
        # Threads do this concurrently. Each operation is atomic; a lock could be copied by a fork while it is held.
        try:
            return self._free.pop(0)
        except IndexError:
            number = next(self._numbers)
            self._next = max(self._next, number + 1)
            return number

    def give_back(self, number: int) -> None:
        if number not in self._free:
            insort(self._free, number)

    def state(self) -> dict[str, Any]:
        return {"next": self._next, "free": list(self._free)}


class SharedOrdinals:
    """Ordinals for all processes that take part in one scope, stored until the scope ends.

    Each ordinal goes to one call, in whichever process. Which of several identical calls gets which is up to chance, but every
    attempt hands out the same ones. `before` has those that this process, or its parent before a fork, handed out alone.
    """

    def __init__(self, store: Store, key: str, before: Ordinals | None = None) -> None:
        self._store, self._key, self._before = store, key, before or Ordinals()

    def _read(self) -> tuple[Bytes | None, dict[str, Any]]:
        data = self._store.get(self._key)
        return data, self._before.state() if data is None else Decoded(data, key=self._key, secret=secret()).meta

    def publish(self) -> None:
        """Store the ordinals handed out so far, unless another process has already done so."""
        self._write(None, self._before.state())

    def peek(self) -> int:
        state = self._read()[1]
        number: int = min(state["free"], default=state["next"])
        return number

    def take(self) -> int:
        while True:
            data, state = self._read()
            number: int = min(state["free"], default=state["next"])
            free = [other for other in state["free"] if other != number]
            if self._write(data, {"next": max(state["next"], number + 1), "free": free}):
                return number

    def give_back(self, number: int) -> None:
        while True:
            data, state = self._read()
            if self._write(data, {**state, "free": sorted({*state["free"], number})}):
                return

    def _write(self, expected: Bytes | None, state: Mapping[str, Any]) -> bool:
        """Write the state, unless another process has written since `expected` was read."""
        entry = encode(None, state, key=self._key, secret=secret())
        return self._store.commit(put={self._key: entry.frames}, expect={self._key: expected})
