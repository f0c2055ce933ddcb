"""Run state: `run.state`, a mapping that a resumed run rebuilds step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..fingerprint.shown import Part, is_secret, short
from ..fingerprint.values import digest, identity

if TYPE_CHECKING:
    from .watching import Watch

ABSENT, UNKNOWN = "absent", "unknown"  # in place of a digest; what is unknown equals nothing that was kept
KEYS = "*"  # stands for the list of keys, when a step looked at that

watches: ContextVar[tuple[Watch, ...]] = ContextVar("oncemore_watches", default=())


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
        self.update(initial)

    _values: dict[str, Any]

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
        watching = self._watching()
        for watch in watching:
            watch.bind(key, watching[-1])
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        self._touch(key)
        watching = self._watching()
        for watch in watching:
            watch.remove(key, watching[-1])
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

    def _touch(self, key: str) -> None:
        for watch in self._watching():
            watch.read(key)

    def _watching(self) -> list[Watch]:
        return [watch for watch in watches.get() if watch.state is self]

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


def depend(state: State, keys: Iterable[str]) -> None:
    """A skipped step read these keys, so the steps around it depend on them."""
    for key in keys:
        state._touch(key)
