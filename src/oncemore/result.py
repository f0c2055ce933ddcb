"""A reference to the recorded result of a call, small enough to pass around instead of the result."""

from __future__ import annotations

from typing import Any

from .codec import Decoded
from .copies import result_of
from .errors import NotRecorded
from .settings import secret
from .stores import Store


class Result:
    """A reference to the recorded result of a call; made by `step.reference(...)`.

    It can be pickled and sent to other processes, which read the result from the same store. Two references to the same
    result are equal.
    """

    def __init__(self, step: str, store: Store, key: str) -> None:
        self.step, self._store, self._key = step, store, key

    def get(self) -> Any:
        """Read, verify and return the result; for a generator function, the list of its items. `NotRecorded` if it is gone."""
        return result_of(self._store, self._read(self._key), self.step, self._read)

    def _read(self, key: str) -> Decoded:
        data = self._store.get(key)
        entry = None if data is None else Decoded(data, key=key, secret=secret())
        if entry is not None and entry.alias_of:
            return self._read(entry.alias_of)
        if entry is None or entry.is_tombstone:
            raise NotRecorded(f"the result of {self.step} that this refers to was removed from {self._store.url}")
        return entry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and (self._store.url, self._key) == (other._store.url, other._key)

    def __hash__(self) -> int:
        return hash((self._store.url, self._key))

    def __repr__(self) -> str:
        return f"<result of {self.step}>"
