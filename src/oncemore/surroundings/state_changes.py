"""What a running step does to the run's state.

A watch notes which keys it reads (its checkpoint depends on them) and which it sets, changes in place or deletes (its
effect). Keys are looked at when they are touched, so a large state costs nothing to steps that leave it alone.
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
from .state import ABSENT, KEYS, SURE, UNKNOWN, State, label, names_digest, watches

_NOTHING = object()
_MOST = 500  # objects and items in the state that are looked through before a step, for what it has by another name


class Watch:
    """What one running step does to the state."""

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self.state: State = context.run.state
        self._bound: dict[str, Any] = {}  # what each touched key was bound to before
        self._notes: dict[str, Note] = {}  # and the content of that
        self._ahead: dict[str, Note] = {}  # the same of keys that could be changed before the step touched them
        self._frozen: dict[str, Frozen] = {}  # what to put back if the step fails
        self._odd: dict[str, str] = {}  # why that cannot be had
        self._own: dict[
            str, None
        ] = {}  # set here, in this order; `context.sets` has those of a generator's earlier items, too
        self._removed: set[str] = set()  # deleted at some time, maybe to be set again
        self.unsure: set[str] = set()  # touched in threads that may work for other steps, too
        self._order: list[str] = []  # the keys before the first was deleted
        self._caused: list[tuple[Watch, Callable[[], None]]] = []  # how steps around this one forget what it did
        self._trouble = ""
        self._holders: dict[int, list[str]] | None = None  # the keys that lead to an object
        self._large: set[str] = set()  # keys that may lead to any
        if context.options["mutates"] and self.state._values:
            self._look_ahead(context.roots.known)
        before = [read.partition(":")[2] for read in context.reads if read.startswith("state:")]
        for key in (*before, *sorted(context.sets)):  # a generator that goes on
            if key != KEYS and key in self.state._values:
                self._look(key)

    def bind(self, key: str, cause: Watch) -> None:
        """The step is about to set the key, or `cause` inside it is."""
        if key in self._own:
            return
        if cause is not self:
            cause._caused.append((self, partial(self._unbind, key, key in self.context.sets)))
        self._bound.setdefault(key, self.state._values.get(key, _NOTHING))
        self.context.existed.setdefault(key, key in self.state._values)
        self._own[key] = None
        self.context.sets.add(key)

    def _unbind(self, key: str, was_set: bool) -> None:
        """A step inside this one set the key, and failed."""
        self._own.pop(key, None)
        if not was_set:
            self.context.sets.discard(key)
        if key not in self._notes:
            self._bound.pop(key, None)

    def remove(self, key: str, cause: Watch) -> None:
        """The step is about to delete the key, or `cause` inside it is."""
        self._order = self._order or list(self.state._values)
        if key not in self._removed and cause is not self:
            cause._caused.append((self, partial(self._removed.discard, key)))
        self._removed.add(key)

    def read(self, key: str) -> None:
        """The step looks at the key: from now on it may change the value in place, too."""
        if f"state:{key}" in self.context.reads or (key in self._bound and key != KEYS) or key in self.context.sets:
            return  # known, or the step's own: what it set itself is nothing it depends on
        part = self._before(key)
        self.context.reads[f"state:{key}"], self.context.shown[label(key)] = part.digest, part.shown
        if part.digest == UNKNOWN:
            self._trouble = f"state[{key!r}] is a {type(self._bound[key]).__name__}, which has no stable identity"

    def _look(self, key: str) -> None:
        value = self._bound[key] = self.state._values.get(key, _NOTHING)
        self.context.existed.setdefault(key, value is not _NOTHING)
        if value is _NOTHING:
            return
        late = self._changed_before(key, value)
        note = self._notes[key] = self._ahead.get(key) or self._note(key)
        self.context.roots.add("state", key, note.walk)
        if late is not None:
            self._trouble = (
                f"{late} shares an object with {label(key)}, and was changed before the step looked at {label(key)}. "
                f"Look at such a large value before you change it"
            )
        if key in self._odd:  # not the step's fault, and not to be raised in its body
            self._trouble = f"state[{key!r}]: {self._odd[key]}"
        self._look_ahead(id(obj) for obj in note.walk.found)

    def _note(self, key: str) -> Note:
        note = self.context.roots.note("state", key, whole=True)
        try:
            self._frozen[key] = Frozen(note.walk)
        except CodecError as error:
            self._odd[key] = str(error)
        return note

    def _look_ahead(self, reached: Iterable[int]) -> None:
        """Note untouched values that lead to an object which the step has: it may change them before it touches them."""
        for obj in reached:
            if self._holders is None:
                self._holders = self._find_holders()
            for key in self._holders.get(obj, ()):
                if key not in self._notes and key not in self._ahead and key not in self._own:
                    note = self._ahead[key] = self._note(key)
                    before_step = self.context.before_step.get(key)
                    if (
                        before_step is None or before_step.left != note.whole
                    ):  # new, or changed by a generator's consumer
                        self.context.before_step[key] = Before(note.value, self._part(key, note), note.whole)

    def _changed_before(self, key: str, value: Any) -> str | None:
        """What the step has changed by another name of a large value that it touches only now."""
        if key not in self._large or key in self._notes or not self.context.options["mutates"]:
            return None
        return self.context.roots.changed_in(walk_from(value))

    def _find_holders(self) -> dict[int, list[str]]:
        """What values lead to, as long as that is little: a step does not pay for a large state that it leaves alone."""
        holders: dict[int, list[str]] = {}
        room = _MOST
        for key, value in list(self.state._values.items()):
            size = 0 if self.context.per_item else size_of(value, room)
            if size > room:
                self._large.add(key)
                room //= 2  # counting takes time, too
                continue
            room -= size
            for obj in walk_from(value).found:
                holders.setdefault(id(obj), []).append(key)
        return holders

    def _part(self, key: str, note: Note) -> Part:
        return Part(UNKNOWN if note.whole is None else note.whole.hex(), shown=self.state.shown(key))

    def _before(self, key: str) -> Part:
        """Look at the key, and say what identifies its value as it was when the step began."""
        if key == KEYS:
            return Part(self._names_before(), shown=self.state.shown(key))
        self._look(key)
        if key not in self._notes:
            return Part(ABSENT, shown=ABSENT)
        return self.context.before_step[key].part if key in self._ahead else self._part(key, self._notes[key])

    def _names_before(self) -> str:
        """What identifies the list of keys, as it was when the step began."""
        existed = self.context.existed
        known = {key for key in self.state._values if existed.get(key, True)}
        return names_digest(known | {key for key, was in existed.items() if was})

    def effect(self) -> dict[str, Any] | None:
        if self._trouble:
            raise CodecError(f"run.state holds something that cannot be kept: {self._trouble}")
        if not (self._bound or self._own or self.context.per_item):
            return None  # the step left the state alone
        now, roots = self.state._values, self.context.roots
        found: dict[str, Any] = {"changed": {}, "deleted": [], "set": {}, "shared": []}
        if self.context.per_item:
            found["shared"] = self._shared()
            self._hand_out()
        for key, was in self._bound.items():
            if was is not _NOTHING and (key not in now or key in self._removed):
                found["deleted"].append(key)
            contents = roots.changes("state", key, self._notes[key]) if key in self._notes else None
            if contents:  # also if it is not in the state any more: the script may hold it
                found["changed"][key] = contents
        own = now if self._removed else self._own  # what was removed and set again stands at the end
        found["set"] = {key: now[key] for key in own if key in self._own and key in now}
        for key in self.unsure & {*found["changed"], *found["deleted"], *found["set"]}:
            raise CodecError(f"{label(key)} was changed in a thread that may work for another step. {SURE}")
        return found if any(found.values()) else None

    def _shared(self) -> list[tuple[Any, Any]]:
        """A generator's arguments are kept at its end; what the state has come to hold of them is state, and kept now."""
        found: list[tuple[Any, Any]] = []
        changed = self.context.roots and self.context.options["mutates"]
        for key, value in list(self.state._values.items()) if changed else ():
            note = self._ahead.get(key) or self._notes.get(key)
            if note is None or note.value is not value or any(note.changed()):
                found += self.context.roots.arguments_in(value)
        return found

    def _hand_out(self) -> None:
        """The generator has yielded: what its consumer changes from now on is not its own doing."""
        for before_step in self.context.before_step.values():
            before_step.left = identity(before_step.value)

    def undo(self) -> None:
        """Put everything back as it was before a step that failed."""
        for key, was in self._bound.items():
            if was is _NOTHING:
                self.state._values.pop(key, None)
            else:
                self.state._values[key] = was
        for key in self._frozen.keys() & self._notes.keys():  # what it only had as an argument is left as it is
            self._frozen[key].thaw()
        if self._order:
            now = self.state._values
            ordered = {key: now.pop(key) for key in self._order if key in now}
            now.update({**ordered, **{key: now.pop(key) for key in list(now)}})
        for _, forget in self._caused:
            forget()

    def hand_over(self, around: Watch) -> None:
        """The step is complete; what it caused is now of the step around it."""
        around._caused += [(watch, forget) for watch, forget in self._caused if watch is not around]


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
            for around in context.run.state._watching()[-1:]:
                watch.hand_over(around)
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
            state[key]  # a step around us has now looked at it, too
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
    """The step that is being computed around the one that has been completed or skipped."""
    return next((watch.context for watch in reversed(watches.get()) if watch.context is not context), None)
