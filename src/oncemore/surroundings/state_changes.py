"""What a running step does to `run.state`.

A watch notes which keys the step reads (its checkpoint depends on them) and which it sets, changes in place or deletes (its
effect). A value is noted when its key is touched, so a large state costs nothing to steps that leave it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ..errors import CodecError
from ..identity.display import Part
from ..identity.values import identity
from . import Before, CallContext, Surrounding
from .references import Frozen, Note, assign, size_of, walk_from
from .state import ABSENT, KEYS, THREAD_REMEDY, UNKNOWN, State, label, names_digest, watches

_NOTHING = object()
_MOST = 500  # objects and items in the state that are searched for objects that the step can reach otherwise


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
        """The objects in small values: a step does not pay for a large state that it leaves alone."""
        holders: dict[int, list[str]] = {}
        budget = _MOST
        for key, value in list(self.state._values.items()):
            size = 0 if self.context.per_item else size_of(value, budget)
            if size > budget:
                self._large.add(key)
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
