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

ABSENT, UNKNOWN = "absent", "unknown"  # in place of a digest; what is unknown equals nothing that was kept
SURE = "Let the step start the thread itself, or give the thread `contextvars.copy_context().run` to call"
KEYS = "*"  # stands for the list of keys, when a step looked at that

watches: Around[Watch] = Around("oncemore_watches")
_guard = threading.RLock()  # several threads of a step may touch a key at once; one looks at it as it was before


def _after_fork() -> None:
    global _guard
    _guard = threading.RLock()  # a thread that is not here may have had it


os.register_at_fork(after_in_child=_after_fork)


class Sent(NamedTuple):
    """The values of a state, pickled. Where the script `main` cannot be imported, `carried` brings its classes along."""

    named: bytes = b""
    main: str = ""
    carried: bytes = b""

    def load(self) -> dict[str, Any]:
        """The values, new objects each time."""
        if not self.named:
            return {}
        try:
            values: dict[str, Any] = loads(self.named, self.main)
        except (ImportError, AttributeError):
            if not self.carried:
                raise
            values = loads(self.carried)
        return values


def _pickled(values: dict[str, Any]) -> Sent:
    """CodecError says what cannot be pickled."""
    if not values:
        return Sent()
    named = dumps(values)
    if b"_main__" not in named:
        return Sent(named)
    return Sent(named, canonical_name("__main__"), cloudpickle.dumps(values))


def _refused(value: object) -> str | None:
    """Why a value cannot be pickled, if that is so."""
    try:
        dumps(value)
        return None
    except CodecError as error:
        return str(error).replace("the result", "it", 1)


class State(MutableMapping[str, Any]):
    """The run's state. Keys are strings; `state.x` is `state["x"]`.

    >>> from oncemore import checkpoint_scope
    >>> with checkpoint_scope("state-demo", store="memory://doctest") as run:
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
    _refused: set[str]  # keys of which it was said that workers do not get them

    def bare(self, key: str) -> Any:
        """The value without any watch taking note; None if there is none."""
        return self._values.get(key)

    def values_by_key(self) -> dict[str, Any]:
        """All of it, without any watch taking note."""
        return dict(self._values)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Put the state back to an earlier snapshot; a step around the loop that does this has done it."""
        for key in [key for key in self._values if key not in values]:
            del self[key]
        for key, value in values.items():
            if key not in self._values or self._values[key] is not value:
                self[key] = value
            self._values[key] = self._values.pop(key)  # in the order they had then

    def digest(self, key: str) -> str:
        """What identifies the key's value now."""
        if key == KEYS:
            return names_digest(self._values)
        if key not in self._values:
            return ABSENT
        found = identity(self._values[key])
        return UNKNOWN if found is None else found.hex()

    def part(self, key: str) -> Part:
        """What identifies the key's value now, with what people may see of it."""
        return Part(self.digest(key), shown=self.shown(key))

    def shown(self, key: str) -> str:
        """What people may see of the key's value."""
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
            raise TypeError(f"a state key is a string, not {key!r}")
        if key == KEYS:
            raise UsageError(f"{KEYS!r} is no state key: it stands for all of them")
        with _guard:
            watching = self._watching(key)
            for watch in watching:
                watch.bind(key, watch if key in watch.unsure else watching[-1])
            self._values[key] = value

    def __delitem__(self, key: str) -> None:
        with _guard:
            self._touch(key)
            watching = self._watching(key)
            for watch in watching:
                watch.remove(key, watch if key in watch.unsure else watching[-1])
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
            with _guard:
                for watch in self._watching(key, sends=sends):
                    watch.read(key)

    def _watching(self, key: str = "", *, sends: bool = False) -> list[Watch]:
        """The steps that touch `key` when it is touched here, as far as they use this state.

        What touches it in a thread that may work for any of the running steps is noted by all of them. It changes something
        for one of them, and for which is not known: if there are several, none is kept.
        """
        if known(sends=sends):
            return [watch for watch in watches.get() if watch.state is self]
        found = [watch for watch in list(watches.open) if watch.state is self]
        if len(found) > 1:
            for watch in found:
                watch.unsure.add(key)
        return found

    def sent(self) -> Sent:
        """What a worker process begins with: steps around us have read it. What cannot be pickled stays here."""
        self._touch(KEYS, sends=True)
        values = dict(self._values)
        token = current.enter(None)  # a step among the values goes as itself, not with this state
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
            raise AttributeError(f"run.state.{name} is taken; write run.state[{name!r}]")
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __repr__(self) -> str:
        return f"State({self._values!r})"


def label(key: str) -> str:
    return "the keys of the state" if key == KEYS else f"state[{key!r}]"


def names_digest(keys: Iterable[str]) -> str:
    return digest(sorted(keys)).hex()
