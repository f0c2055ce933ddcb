"""Run state: `run.state`, a mapping that a resumed run rebuilds step by step, and what a running step does to it.

A watch notes which keys the step reads (its checkpoint depends on them) and which it sets, changes in place or deletes (its
effect). A value is noted when its key is touched, so a large state costs nothing to steps that leave it alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any, NamedTuple

import cloudpickle

from .. import current, timeouts
from ..codec import dumps, loads
from ..current import Around, known
from ..errors import CodecError, UsageError, warn
from ..identity.display import Part, is_secret, short
from ..identity.values import digest, identity
from ..modules import canonical_name
from .protocol import Before, CallContext, Surrounding
from .references import Frozen, Note, assign, size_of, walk_from

ABSENT, UNKNOWN = "absent", "unknown"  # in place of a digest; an unknown value equals no recorded one
THREAD_REMEDY = "Start the thread inside the step, or run its work with `contextvars.copy_context().run`"
KEYS = "*"  # in place of a key, if a step reads the list of keys
_NOTHING = object()
_MOST = 500  # objects and items in the state that are searched for objects that the step can reach otherwise

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
        timeouts.check()
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
        timeouts.check()
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


class Watch:
    """What one running step does to the state."""

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self.state: State = context.run.state
        self._values_before: dict[str, Any] = {}  # of each touched key
        self._notes: dict[str, Note] = {}  # and their contents
        self._early_notes: dict[str, Note] = {}  # of values that the step could change before it touched their keys
        self._frozen: dict[str, Frozen] = {}  # what to put back if the step fails
        self._not_frozen: dict[str, str] = {}  # why a value cannot be put back
        # The keys set here, in order. `context.sets` also has those that a generator set for earlier items.
        self._own: dict[str, None] = {}
        self._removed: set[str] = set()  # keys deleted at some point, even if set again later
        self.unsure: set[str] = set()  # keys touched in threads that may work for other steps
        self._order: list[str] = []  # the keys before the first deletion
        self._caused: list[tuple[Watch, Callable[[], None]]] = []  # how to undo the notes of enclosing steps' watches
        self._trouble = ""  # why the step cannot be saved
        self._holders: dict[int, list[str]] | None = None  # by id of an object: the keys from which it is reachable
        self._large: set[str] = set()  # keys of values too large to search
        if context.options["mutates"] and self.state._values:
            self._note_early(context.roots.known)
        read = [name.partition(":")[2] for name in context.reads if name.startswith("state:")]
        for key in (*read, *sorted(context.sets)):  # of a generator's earlier items
            if key != KEYS and key in self.state._values:
                self._note_key(key)

    def bind(self, key: str, cause: Watch) -> None:
        """The step is about to set the key. `cause` is the watch of the innermost step that does it."""
        if key in self._own:
            return
        if cause is not self:
            cause._caused.append((self, partial(self._unbind, key, key in self.context.sets)))
        self._values_before.setdefault(key, self.state._values.get(key, _NOTHING))
        self.context.existed.setdefault(key, key in self.state._values)
        self._own[key] = None
        self.context.sets.add(key)

    def _unbind(self, key: str, was_set: bool) -> None:
        """A step that this one called set the key and failed."""
        self._own.pop(key, None)
        if not was_set:
            self.context.sets.discard(key)
        if key not in self._notes:
            self._values_before.pop(key, None)

    def remove(self, key: str, cause: Watch) -> None:
        """The step is about to delete the key. `cause` is the watch of the innermost step that does it."""
        self._order = self._order or list(self.state._values)
        if key not in self._removed and cause is not self:
            cause._caused.append((self, partial(self._removed.discard, key)))
        self._removed.add(key)

    def read(self, key: str) -> None:
        """The step is about to read the key. From then on it may change the value in place."""
        noted = f"state:{key}" in self.context.reads or (key in self._values_before and key != KEYS)
        if noted or key in self.context.sets:  # what the step set itself is no dependency
            return
        part = self._before(key)
        self.context.reads[f"state:{key}"], self.context.shown[label(key)] = part.digest, part.shown
        if part.digest == UNKNOWN:
            kind = type(self._values_before[key]).__name__
            self._trouble = f"{label(key)} is a {kind}, which has no stable identity"

    def _note_key(self, key: str) -> None:
        value = self._values_before[key] = self.state._values.get(key, _NOTHING)
        self.context.existed.setdefault(key, value is not _NOTHING)
        if value is _NOTHING:
            return
        changed = self._changed_before(key, value)
        note = self._notes[key] = self._early_notes.get(key) or self._note(key)
        self.context.roots.add("state", key, note.walk)
        if changed is not None:
            self._trouble = (
                f"{changed} shares an object with {label(key)}, and was changed before the step read {label(key)}. "
                f"Read such a large value before you change it"
            )
        if key in self._not_frozen:  # not the step's fault: must not be raised in its body
            self._trouble = f"{label(key)}: {self._not_frozen[key]}"
        self._note_early(id(obj) for obj in note.walk.found)

    def _note(self, key: str) -> Note:
        note = self.context.roots.note("state", key, whole=True)
        try:
            self._frozen[key] = Frozen(note.walk)
        except CodecError as error:
            self._not_frozen[key] = str(error)
        return note

    def _note_early(self, reachable: Iterable[int]) -> None:
        """Note untouched values that contain an object the step can reach: it may change them before it touches their keys.

        `reachable` has the ids of objects.
        """
        for obj in reachable:
            if self._holders is None:
                self._holders = self._find_holders()
            for key in self._holders.get(obj, ()):
                if key not in self._notes and key not in self._early_notes and key not in self._own:
                    if self._changed_before(key, self.state._values.get(key)) is not None:
                        continue  # too late: `_note_key` says so if the step reads the key
                    self._large.discard(key)
                    note = self._early_notes[key] = self._note(key)
                    before = self.context.before_step.get(key)
                    # new, or changed by a generator's consumer
                    if before is None or before.digest_at_yield != note.whole:
                        self.context.before_step[key] = Before(note.value, self._part(key, note), note.whole)

    def _changed_before(self, key: str, value: Any) -> str | None:
        """The label of what the step has changed that shares an object with this large value, which it touches only now."""
        if key not in self._large or key in self._notes or not self.context.options["mutates"]:
            return None
        return self.context.roots.changed_in(walk_from(value))

    def _find_holders(self) -> dict[int, list[str]]:
        """The objects in small values, and each large value itself.

        Large values are not searched: a step does not pay for a large state that it leaves alone.
        """
        holders: dict[int, list[str]] = {}
        budget = _MOST
        for key, value in list(self.state._values.items()):
            size = 0 if self.context.per_item else size_of(value, budget)
            if size > budget:
                self._large.add(key)
                holders.setdefault(id(value), []).append(key)
                budget //= 2  # counting takes time, too
                continue
            budget -= size
            for obj in walk_from(value).found:
                holders.setdefault(id(obj), []).append(key)
        return holders

    def _part(self, key: str, note: Note) -> Part:
        return Part(UNKNOWN if note.whole is None else note.whole.hex(), shown=self.state.shown(key))

    def _before(self, key: str) -> Part:
        """Note the key, and return the digest of its value as it was when the step began."""
        if key == KEYS:
            return Part(self._names_before(), shown=self.state.shown(key))
        self._note_key(key)
        if key not in self._notes:
            return Part(ABSENT, shown=ABSENT)
        return self.context.before_step[key].part if key in self._early_notes else self._part(key, self._notes[key])

    def _names_before(self) -> str:
        """The digest of the list of keys as it was when the step began."""
        existed = self.context.existed
        known = {key for key in self.state._values if existed.get(key, True)}
        return names_digest(known | {key for key, was in existed.items() if was})

    def effect(self) -> dict[str, Any] | None:
        """What the step changed. CodecError if that cannot be saved."""
        if self._trouble:
            raise CodecError(f"run.state has a value that cannot be saved: {self._trouble}")
        if not (self._values_before or self._own or self.context.per_item):
            return None  # the step left the state alone
        now, roots = self.state._values, self.context.roots
        found: dict[str, Any] = {"changed": {}, "deleted": [], "set": {}, "shared": []}
        if self.context.per_item:
            found["shared"] = self._shared()
            for before in self.context.before_step.values():  # later changes are those of the generator's consumer
                before.digest_at_yield = identity(before.value)
        for key, was in self._values_before.items():
            if was is not _NOTHING and (key not in now or key in self._removed):
                found["deleted"].append(key)
            contents = roots.changes("state", key, self._notes[key]) if key in self._notes else None
            if contents:  # even if it is no longer in the state: the script may have a reference
                found["changed"][key] = contents
        own = now if self._removed else self._own  # a key that was removed and set again is at the end
        found["set"] = {key: now[key] for key in own if key in self._own and key in now}
        for key in self.unsure & {*found["changed"], *found["deleted"], *found["set"]}:
            raise CodecError(f"{label(key)} was changed in a thread that may work for another step. {THREAD_REMEDY}")
        return found if any(found.values()) else None

    def _shared(self) -> list[tuple[Any, Any]]:
        """Arguments of a generator that are also in the state, with their contents. Its other arguments are saved at its end."""
        found: list[tuple[Any, Any]] = []
        changed = self.context.roots and self.context.options["mutates"]
        for key, value in list(self.state._values.items()) if changed else ():
            note = self._early_notes.get(key) or self._notes.get(key)
            if note is None or note.value is not value or any(note.changed()):
                found += self.context.roots.arguments_in(value)
        return found

    def undo(self) -> None:
        """Restore the state to what it was before the step, which failed."""
        for key, was in self._values_before.items():
            if was is _NOTHING:
                self.state._values.pop(key, None)
            else:
                self.state._values[key] = was
        for key in self._frozen.keys() & self._notes.keys():  # what it reached only as an argument is not undone
            self._frozen[key].thaw()
        if self._order:
            now = self.state._values
            ordered = {key: now.pop(key) for key in self._order if key in now}
            now.update({**ordered, **{key: now.pop(key) for key in list(now)}})
        for _, forget in self._caused:
            forget()

    def hand_over(self, outer: Watch) -> None:
        """The step is complete: if the enclosing step fails later, that also undoes what this one did."""
        outer._caused += [(watch, forget) for watch, forget in self._caused if watch is not outer]


class StateKind(Surrounding):
    name = "state"
    per_item = True

    def before(self, context: CallContext) -> Any:
        watch = Watch(context)
        return watch, watches.set((*watches.get(), watch))

    def after(self, context: CallContext, note: Any) -> dict[str, Any] | None:
        watch, token = note
        watches.reset(token)
        if watches.get():
            for outer in context.run.state._watching()[-1:]:
                watch.hand_over(outer)
        effect: dict[str, Any] | None = watch.effect()
        return effect

    def digest(self, run: Any, name: str) -> str:
        found: str = run.state.digest(name)
        return found

    def part(self, run: Any, name: str) -> Part:
        found: Part = run.state.part(name)
        return found

    def label(self, name: str) -> str:
        return label(name)

    def depend(self, run: Any, name: str) -> None:
        run.state._touch(name)

    def restore(self, context: CallContext, effect: dict[str, Any]) -> None:
        state: State = context.run.state
        for key, contents in effect["changed"].items():
            state[key]  # the enclosing steps read it, too
            context.roots.assign("state", key, contents)
        for obj, content in effect.get("shared", ()):
            assign(obj, content)
        for key in effect["deleted"]:
            state.pop(key, None)
        state.update(effect["set"])

    def failed(self, context: CallContext, note: Any) -> None:
        watch, token = note
        watches.reset(token)
        watch.undo()


def around(context: CallContext) -> CallContext | None:
    """The innermost step that encloses a completed or skipped one."""
    return next((watch.context for watch in reversed(watches.get()) if watch.context is not context), None)
