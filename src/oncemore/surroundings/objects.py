"""Objects that a step changes: its arguments, and global data.

Arguments are changed in place: when the step is skipped, the caller's own objects are changed in the same way. Global data is
module globals, class attributes, closures, defaults, generators and caches that a step's code reaches. What the step reads of
it is part of the node's identity (see identity/code/data.py). This module records what the step changes: objects changed in
place, and names bound to other values. The names that it binds are known from its code. Those that it binds dynamically in a
class or module (by `setattr`, `globals()`, `cls.x`) are found by comparing before and after.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

from ..codec import Naming, dumps
from ..errors import CodecError
from ..identity.code.classes import is_foreign_made
from ..identity.code.data import ABSENT, Datum, Slot, in_class, in_mapping
from ..identity.values import Digests
from .mutable_types import DELTAS, Several, are_numbers
from .protocol import SKIP, CallContext, Surrounding
from .references import Contents, Note, Roots, routes_to, walk_from


class Arguments(Surrounding):
    name = "arguments"

    def before(self, context: CallContext) -> dict[str, Note]:
        note: dict[str, Note] = {}
        for name in context.arguments:
            objects = context.roots.add("argument", name)
            if objects and context.options["mutates"] and name not in context.options["ignore"]:
                note[name] = context.roots.note("argument", name, context.digests)
        context.digests = None  # releases the objects that they keep alive
        if context.retried:
            context.backups[self.name] = [context.roots.backup("argument", name) for name in note]
        return note or SKIP

    def after(self, context: CallContext, note: dict[str, Note]) -> dict[str, Contents] | None:
        now = Digests()
        found = {name: context.roots.changes("argument", name, before, now=now) for name, before in note.items()}
        return {name: contents for name, contents in found.items() if contents is not None} or None

    def restore(self, context: CallContext, effect: dict[str, Contents]) -> None:
        for name, contents in effect.items():
            context.roots.assign("argument", name, contents)

    def undo(self, context: CallContext, note: dict[str, Note]) -> None:
        for backup in context.backups[self.name]:
            backup.put_back()


class _Watched(NamedTuple):
    """Data that concurrent steps can change, as it was when one of them last looked."""

    datum: Datum
    note: Note


class _Noted(NamedTuple):
    """The data before a step, and all other names in the classes and modules that the step reaches."""

    data: dict[str, _Watched]
    names: dict[str, dict[str, Any]]


# By name of the data: "changed" has contents of objects, "bound" new values, "added" differences of numbers; "unbound" lists
# deleted names. "names" has the values of other names by namespace, `ABSENT` if deleted. call.py adds "in order" (`InOrder`).
Effect = dict[str, Any]
_BY_NAME = ("changed", "bound", "added", "unbound")


class Globals(Surrounding):
    name = "globals"
    per_item = True

    def before(self, context: CallContext) -> _Noted:
        member, found = context.member, dict[str, _Watched]()
        context.roots.concurrent = member is not None and context.step in context.run.concurrent.steps
        with nullcontext() if member is None else member.group.lock:
            for name, datum in context.data.items():
                # among concurrent steps: as one of them last saw it, because later changes belong to no step yet
                known = member.group.notes.get(name) if member is not None and member.shares else None
                found[name] = known or _Watched(datum, _note(datum))
                context.roots.add("global", name, found[name].note.walk)
                context.roots.notes["global", name] = found[name].note
                if member is not None and known is None:
                    member.group.notes[name] = found[name]
        names = _names(context)
        if context.retried:
            context.backups[self.name] = [context.roots.backup("global", name) for name in found]
        return _Noted(found, names) if found or names else SKIP

    def after(self, context: CallContext, note: _Noted) -> Effect | None:
        effect, names = self._data_after(context, note.data), _rebound(note.names, _names(context))
        return {**(effect or {}), "names": names} if names else effect

    def _data_after(self, context: CallContext, note: dict[str, _Watched]) -> Effect | None:
        member = context.member
        if member is None or not member.shares:
            return _changes(context.roots, note, {name: _note(datum) for name, (datum, _) in note.items()})
        group, context.roots.concurrent = member.group, True
        with group.lock:
            now = {name: _note(datum) for name, (datum, _) in note.items()}
            watched = {name: group.notes.get(name, each) for name, each in note.items()}
            own = _changes(context.roots, watched, now) or {}
            group.notes.update({name: _Watched(note[name].datum, after) for name, after in now.items()})
            pending, group.pending = group.pending, []
            effect = functools.reduce(_joined, [*pending, own])
            member.end(context.run.concurrent.stamp(), set(note), {name for part in effect.values() for name in part})
            then = {name: each.note for name, each in watched.items()}
            context.roots.routes = routes_to((context.value, effect), then, context.roots.recorded)
            return effect or None

    def verify(self, context: CallContext, effect: dict[str, Any] | None) -> str | None:
        if effect is None:
            return None
        names = {name for part in _BY_NAME for name in effect.get(part, ())}
        missing = sorted(names - context.data.keys() | (effect.get("names", {}).keys() - context.spaces.keys()))
        if missing:
            return f"{missing[0]}, which it changed, does not exist now"
        for name, contents in effect.get("changed", {}).items():
            if not all(context.roots.leads("global", name, at) for at in contents):
                return f"{name} consists of other objects than when the result was saved"
        return None

    def restore(self, context: CallContext, effect: Effect) -> None:
        group = context.member.group if context.member is not None and context.member.shares else None
        if group is not None:  # keep apart what steps that are still running have changed so far
            now = {name: _note(datum) for name, (datum, _) in group.notes.items()}
            roots = Roots(lambda kind, name: None)
            roots.concurrent = True
            pending = _changes(roots, group.notes, now)
            group.pending += [pending] if pending else []
        for name, contents in effect.get("changed", {}).items():
            context.roots.assign("global", name, contents)
        for name, value in {**effect.get("bound", {}), **dict.fromkeys(effect.get("unbound", ()), ABSENT)}.items():
            _slot(context, name).set(value)
        for name, difference in effect.get("added", {}).items():
            slot = _slot(context, name)
            slot.set(slot.get() + difference)
        _bind(context, effect.get("names", {}))
        if group is not None:
            group.notes = {name: _Watched(datum, _note(datum)) for name, (datum, _) in group.notes.items()}

    def undo(self, context: CallContext, note: _Noted) -> None:
        """Nothing is put back if other steps ran at the same time: it would undo what they did."""
        if not context.alone:
            return
        for datum, before in note.data.values():
            if datum.slot is not None and datum.now is not before.value:
                datum.slot.set(before.value)
        _bind(context, _rebound(_names(context), note.names))
        for backup in context.backups[self.name]:
            backup.put_back()


def _bind(context: CallContext, names: Mapping[str, Mapping[str, Any]]) -> None:
    """Bind names in the classes and modules that the step reaches; see `_rebound`."""
    for space, values in names.items():
        owner = context.spaces[space]
        for name, value in values.items():
            (in_class(owner, name) if isinstance(owner, type) else in_mapping(owner, name)).set(value)


def _note(datum: Datum) -> Note:
    """The data as it is now."""
    value = datum.now
    return Roots(lambda kind, name: value, walk=lambda kind, name, value: walk_from(value, datum.opaque)).note("", "")


def _names(context: CallContext) -> dict[str, dict[str, Any]]:
    """The values of names in the classes and modules that the step reaches, without those known as data."""
    known = {datum.key for datum in context.data.values()}
    block = context.options.get("block")
    if block is not None:  # see block_variables.py
        known.update(block.keys())
    return {
        space: {
            name: value
            for name, value in list((vars(owner) if isinstance(owner, type) else owner).items())
            if name[:2] != "__" and (id(owner), name) not in known
        }
        for space, owner in context.spaces.items()
        if not is_foreign_made(owner)
    }


def _rebound(then: Mapping[str, dict[str, Any]], now: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The names whose values differ, by namespace."""
    found: dict[str, dict[str, Any]] = {}
    for space, names in now.items():
        before = then.get(space, {})
        bound = {name: value for name, value in names.items() if before.get(name, ABSENT) is not value}
        bound.update(dict.fromkeys((name for name in before if name not in names), ABSENT))
        if bound:
            found[space] = bound
    return found


def _changes(roots: Roots, then: Mapping[str, _Watched], now: Mapping[str, Note]) -> Effect | None:
    effect: Effect = {"changed": {}, "bound": {}, "added": {}, "unbound": []}
    for name, (datum, before) in then.items():
        contents = roots.changes("global", name, before, now[name])
        if contents is not None:
            effect["changed"][name] = contents
        was, value = before.value, now[name].value
        if value is ABSENT and was is not ABSENT:
            effect["unbound"].append(name)
        elif value is not was and roots.concurrent and are_numbers(was, value):
            effect["added"][name] = value - was
        elif value is not was and not datum.leave_to_the_code(value, was):
            effect["bound"][name] = value
    return {part: found for part, found in effect.items() if found} or None


def _joined(first: Effect, second: Effect) -> Effect:
    """The effect of two effects, one after the other."""
    changed = {name: dict(contents) for name, contents in first.get("changed", {}).items()}
    for name, contents in second.get("changed", {}).items():
        known = changed.setdefault(name, {})
        for i, content in contents.items():
            known[i] = Several([known[i], content]) if i in known and isinstance(content, DELTAS) else content
    replaced = {*second.get("bound", {}), *second.get("unbound", ())}  # what the first did to these names is lost
    added = Counter({name: number for name, number in first.get("added", {}).items() if name not in replaced})
    added.update(second.get("added", {}))
    bound = {name: value for name, value in first.get("bound", {}).items() if name not in replaced}
    unbound = [name for name in first.get("unbound", ()) if name not in replaced]
    effect = {
        "changed": changed,
        "bound": {**bound, **second.get("bound", {})},
        "added": dict(added),
        "unbound": [*unbound, *second.get("unbound", ())],
    }
    return {part: found for part, found in effect.items() if found}


class InOrder:
    """The result and effects of a concurrent step, pickled with routes to the objects that were in the data before.

    It is unpickled only when the steps that ended earlier have been restored. An object that occurs in the changes of several
    steps stays one object only if each of them takes it from the data at its turn.
    """

    def __init__(self, value: Any, effects: Mapping[str, Any], name: Naming) -> None:
        self._outcome, self._name = (value, dict(effects)), name

    def __reduce__(self) -> Any:
        return bytes, (dumps(self._outcome, self._name),)


def _slot(context: CallContext, name: str) -> Slot:
    slot = context.data[name].slot
    if slot is None:
        raise CodecError(f"{name} cannot be assigned when the step is skipped")
    return slot
