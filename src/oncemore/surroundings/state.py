"""Run state: `run.state`, a mapping that a resumed run rebuilds step by step.

While a step runs, a watch notes which keys it reads (its checkpoint depends on them) and which it sets, changes in place or
deletes (its effect). Keys are looked at when they are touched, so a large state costs nothing to steps that leave it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any

from ..errors import CodecError, FingerprintError
from ..fingerprint.values import digest
from . import Moment, Surrounding

ABSENT = "absent"
_NOTHING = object()
KEYS = "*"  # stands for the list of keys, when a step looked at that

_watches: ContextVar[tuple[Watch, ...]] = ContextVar("oncemore_watches", default=())


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
        object.__setattr__(self, "_values", dict(initial))

    _values: dict[str, Any]

    def bare(self, key: str) -> Any:
        """The value without any watch taking note; None if there is none."""
        return self._values.get(key)

    def values_by_key(self) -> dict[str, Any]:
        """All of it, without any watch taking note."""
        return dict(self._values)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Put the state back to an earlier snapshot."""
        self._values.clear()
        self._values.update(values)

    def digest(self, key: str) -> str:
        """What identifies the key's value now."""
        if key == KEYS:
            return digest(sorted(self._values)).hex()
        return digest(self._values[key]).hex() if key in self._values else ABSENT

    def __getitem__(self, key: str) -> Any:
        self._touch(key)
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a state key is a string, not {key!r}")
        for watch in _watches.get():
            if watch.state is self:
                watch.bind(key)
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        self._touch(key)
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
        for watch in _watches.get():
            if watch.state is self:
                watch.read(key)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"run.state has no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __repr__(self) -> str:
        return f"State({self._values!r})"


class Watch:
    """What one running step does to the state."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.state: State = moment.run.state
        self._bound: dict[str, Any] = {}  # what each touched key was bound to before
        self._frozen: dict[str, bytes] = {}  # and the content of that, for a step that fails
        self._trouble: Exception | None = None

    def bind(self, key: str) -> None:
        """The step is about to set or delete the key."""
        self._bound.setdefault(key, self.state._values.get(key, _NOTHING))
        self.moment.sets.add(key)

    def read(self, key: str) -> None:
        """The step looks at the key: from now on it may change the value in place, too."""
        if key in self.moment.reads or (key in self._bound and key != KEYS) or key in self.moment.sets:
            return  # known, or the step's own: what it set itself is nothing it depends on
        try:
            self.moment.reads[key] = self.state.digest(key)
            if key != KEYS:
                self._bound[key] = self.state._values.get(key, _NOTHING)
                roots = self.moment.roots
                roots.add("state", key)
                self._frozen[key] = roots.freeze(roots.contents("state", key))
        except (FingerprintError, CodecError) as error:  # not the step's fault, and not to be raised in its body
            self._trouble = error

    def effect(self) -> dict[str, Any] | None:
        if self._trouble is not None:
            raise CodecError(f"run.state holds something that cannot be kept: {self._trouble}")
        now = self.state._values
        found: dict[str, Any] = {"set": {}, "changed": {}, "deleted": []}
        for key, was in self._bound.items():
            if key not in now:
                if was is not _NOTHING:
                    found["deleted"].append(key)
            elif now[key] is not was:
                found["set"][key] = now[key]
            elif key in self.moment.reads and self.state.digest(key) != self.moment.reads[key]:
                found["changed"][key] = self.moment.roots.contents("state", key)
        return found if any(found.values()) else None

    def undo(self) -> None:
        """Put everything back as it was before a step that failed."""
        roots = self.moment.roots
        for key, was in self._bound.items():
            if was is _NOTHING:
                self.state._values.pop(key, None)
            else:
                self.state._values[key] = was
            if key in self._frozen:
                roots.assign("state", key, roots.thaw(self._frozen[key]))


class StateKind(Surrounding):
    name = "state"
    per_item = True

    def before(self, moment: Moment) -> Any:
        watch = Watch(moment)
        return watch, _watches.set((*_watches.get(), watch))

    def after(self, moment: Moment, note: Any) -> dict[str, Any] | None:
        watch, token = note
        _watches.reset(token)
        effect: dict[str, Any] | None = watch.effect()
        return effect

    def restore(self, moment: Moment, effect: dict[str, Any]) -> None:
        state: State = moment.run.state
        for key, contents in effect["changed"].items():
            state[key]  # a step around us has now looked at it, too
            moment.roots.assign("state", key, contents)
        state.update(effect["set"])
        for key in effect["deleted"]:
            del state[key]

    def failed(self, moment: Moment, note: Any) -> None:
        watch, token = note
        _watches.reset(token)
        watch.undo()


def depend(state: State, keys: Iterable[str]) -> None:
    """A skipped step read these keys, so the steps around it depend on them."""
    for key in keys:
        state._touch(key)
