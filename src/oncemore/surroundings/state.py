"""Run state: `run.state`, a mapping that a resumed run rebuilds step by step."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from .. import current
from ..codec import dumps, loads
from ..current import Around, known
from ..errors import CodecError, UsageError, warn
from ..identity.display import Part, is_secret, short
from ..identity.values import digest, identity
from ..modules import canonical_name

if TYPE_CHECKING:
    from .state_changes import Watch

ABSENT, UNKNOWN = "absent", "unknown"  # in place of a digest; an unknown value equals no recorded one
THREAD_REMEDY = "Start the thread inside the step, or run its work with `contextvars.copy_context().run`"
KEYS = "*"  # in place of a key, if a step reads the list of keys

watches: Around[Watch] = Around("oncemore_watches")
_lock = threading.RLock()  # if several threads touch a key at once, one notes its value first


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread of the parent process may have held it


os.register_at_fork(after_in_child=_after_fork)


class Sent(NamedTuple):
    """The pickled values of a state. `by_value` includes the classes of the script `main`, in case it cannot be imported."""

    by_name: bytes = b""
    main: str = ""
    by_value: bytes = b""

    def load(self) -> dict[str, Any]:
        """The values: new objects each time."""
        if not self.by_name:
            return {}
        try:
            values: dict[str, Any] = loads(self.by_name, self.main)
        except (ImportError, AttributeError):
            if not self.by_value:
                raise
            values = loads(self.by_value)
        return values


def _pickled(values: dict[str, Any]) -> Sent:
    """CodecError if a value cannot be pickled."""
    if not values:
        return Sent()
    by_name = dumps(values)
    if b"_main__" not in by_name:
        return Sent(by_name)
    return Sent(by_name, canonical_name("__main__"), cloudpickle.dumps(values))


def _refused(value: object) -> str | None:
    """Why a value cannot be pickled; None if it can."""
    try:
        dumps(value)
        return None
    except CodecError as error:
        return str(error).replace("the result", "it", 1)


class State(MutableMapping[str, Any]):
    """The run's state. Keys are strings; `state.x` is `state["x"]`.

    >>> from oncemore import checkpoint_scope
    >>> with checkpoint_scope("state-demo", store="memory://state-demo") as run:
    ...     run.state["n"] = 1
    ...     run.state.n += 1
    ...     run.state
    State({'n': 2})
    """

    def __init__(self, initial: Mapping[str, Any] = {}) -> None:
        object.__setattr__(self, "_values", {})
        object.__setattr__(self, "_refused", set())
        self.update(initial)

    _values: dict[str, Any]
    _refused: set[str]  # keys that workers do not get, which a warning has said

    def bare(self, key: str) -> Any:
        """The value, unnoticed by any watch; None if the key does not exist."""
        return self._values.get(key)

    def values_by_key(self) -> dict[str, Any]:
        """All values, unnoticed by any watch."""
        return dict(self._values)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Reset the state to an earlier snapshot. Enclosing steps are seen to do this."""
        for key in [key for key in self._values if key not in values]:
            del self[key]
        for key, value in values.items():
            if key not in self._values or self._values[key] is not value:
                self[key] = value
            self._values[key] = self._values.pop(key)  # in the order of the snapshot

    def digest(self, key: str) -> str:
        """The digest of the key's current value."""
        if key == KEYS:
            return names_digest(self._values)
        if key not in self._values:
            return ABSENT
        found = identity(self._values[key])
        return UNKNOWN if found is None else found.hex()

    def part(self, key: str) -> Part:
        """The same digest, with the value as people may see it."""
        return Part(self.digest(key), shown=self.shown(key))

    def shown(self, key: str) -> str:
        """The key's value as people may see it."""
        if key == KEYS:
            return short(list(self._values))
        if key not in self._values:
            return ABSENT
        return f"#{self.digest(key)[:8]}" if is_secret(key) else short(self._values[key])

    def __getitem__(self, key: str) -> Any:
        self._touch(key)
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"run.state key {key!r} is not a string")
        if key == KEYS:
            raise UsageError(f"run.state key {KEYS!r} is reserved. Use another name")
        with _lock:
            active = self._watching(key)
            for watch in active:
                watch.bind(key, watch if key in watch.unsure else active[-1])
            self._values[key] = value

    def __delitem__(self, key: str) -> None:
        with _lock:
            self._touch(key)
            active = self._watching(key)
            for watch in active:
                watch.remove(key, watch if key in watch.unsure else active[-1])
            del self._values[key]

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            self._touch(key)
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        self._touch(KEYS)
        return iter(list(self._values))

    def __len__(self) -> int:
        self._touch(KEYS)
        return len(self._values)

    def _touch(self, key: str, *, sends: bool = False) -> None:
        if watches.open:
            with _lock:
                for watch in self._watching(key, sends=sends):
                    watch.read(key)

    def _watching(self, key: str = "", *, sends: bool = False) -> list[Watch]:
        """The watches of the steps that are running here and use this state.

        In a thread that may work for any running step, these are the watches of all steps. If there are several, it is unknown
        whose change this is, and none of those that changed the key is saved.
        """
        if known(sends=sends):
            return [watch for watch in watches.get() if watch.state is self]
        found = [watch for watch in list(watches.open) if watch.state is self]
        if len(found) > 1:
            for watch in found:
                watch.unsure.add(key)
        return found

    def sent(self) -> Sent:
        """The state for a worker process, without what cannot be pickled. The enclosing steps are seen to read it."""
        self._touch(KEYS, sends=True)
        values = dict(self._values)
        token = current.enter(None)  # a step among the values is pickled without this state
        try:
            found = _pickled(values)
        except CodecError:
            refused = {key: why for key, value in values.items() if (why := _refused(value)) is not None}
            values = {key: value for key, value in values.items() if key not in refused}
            found = _pickled(values)
            for key in refused.keys() - self._refused:
                self._refused.add(key)
                warn(f"Worker processes do not get state[{key!r}]: {refused[key]}")
        finally:
            current.leave(token)
        for key in values:
            self._touch(key, sends=True)
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"run.state has no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or hasattr(State, name):
            raise AttributeError(f"run.state.{name} is reserved. Use run.state[{name!r}]")
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __repr__(self) -> str:
        return f"State({self._values!r})"


def label(key: str) -> str:
    return "the keys of the state" if key == KEYS else f"state[{key!r}]"


def names_digest(keys: Iterable[str]) -> str:
    return digest(sorted(keys)).hex()
