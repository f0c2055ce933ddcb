"""What the iterations of a loop do to the script's variables: globals, and local variables of the function it is in.

When the loop is resumed, objects are changed in place and names are bound again. A function's local variables can be bound
from outside since Python 3.13. On older versions a warning says so, and only changes to the objects they hold are restored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

from ..codec import dumps
from ..errors import CodecError, FingerprintError, warn
from ..identity.code import Block
from ..identity.code.data import ABSENT, Datum
from ..identity.code.descriptions import is_data
from ..identity.values import Digests
from .mutable_types import Altered, Extended, Grown, Mutator, Updated, mutator_of
from .references import Note, Roots

BINDS_LOCALS = sys.version_info >= (3, 13)
_REMEDY = "Create it inside the loop, or store what you need of it in run.state"


class Variables:
    """The script's variables when a loop begins, and what its iterations change."""

    def __init__(self, loop: str, frame: FrameType, items: object) -> None:
        self._loop = loop
        self.data: dict[str, Datum] = {}
        self._unknown: dict[str, str] = {}
        self._locals: dict[str, Any] = {}
        self._notes: dict[str, Note] = {}
        self._restored: dict[str, set[int]] = {}  # by name: indices of objects that a snapshot has restored
        self._rebound: set[str] = set()  # names that it has bound
        self._restored_locals: set[str] = set()  # local variables that it has bound
        self._warned = False  # that local variables are not restored
        self._left_out: set[str] = set()  # variables that are not restored, which a warning has said
        try:
            block = Block(frame, items)
        except (FingerprintError, RuntimeError) as error:
            warn(f"loop {loop}: the script's variables are not restored when it is resumed: {error}")
            return
        self.data, self._unknown, self._locals = block.data, block.unknown, block.variables
        self._targets, self._function = block.targets, block.function

    def note(self, roots: Roots) -> None:
        """Note the variables: the loop begins. `roots` are the objects that it shares with the script."""
        self._roots = roots
        for name in self.data:
            roots.add("global", name)
        for name in self.data:
            self._notes[name] = roots.note("global", name)

    def restore(self, saved: Mapping[str, Any], frame: FrameType) -> None:
        """Restore the variables to what the iterations left. Those that the script no longer names are skipped."""
        for name, contents in saved["changed"].items():
            if name in self.data:
                self._roots.assign("global", name, contents)
                self._restored.setdefault(name, set()).update(contents)
        found = {name: value for name, value in saved["locals"].items() if name in self._locals}
        if BINDS_LOCALS:
            values = frame.f_locals
            for name, value in found.items():
                values[name] = value
        self._restored_locals.update(found)
        self._warn_about_locals(found)
        for name, value in {**saved["bound"], **dict.fromkeys(saved["unbound"], ABSENT)}.items():
            slot = self.data[name].slot if name in self.data else None
            if slot is not None:
                slot.set(value)
                self._rebound.add(name)

    def differs(self, saved: Mapping[str, dict[str, Any]]) -> str | None:
        """The name of a list that is shorter than when the loop began; None if there is none."""
        for name, contents in saved["changed"].items():
            for i, content in contents.items() if name in self.data else ():
                if isinstance(content, Grown) and len(self._roots.find(("global", name, i))) < content.start:
                    return name
        return None

    def changed(self, frame: FrameType) -> dict[str, Any]:
        """What has changed since the loop began, without what can't be restored."""
        # contents of objects by their index in the walk, new values of names, and names that are gone
        changed, bound, unbound = dict[str, dict[int, Any]](), dict[str, Any](), dict[str, bool]()
        digests = Digests()
        for name, note in self._notes.items():
            if name in self._left_out:
                continue
            try:
                contents = self._contents(name, note, digests)
            except CodecError as error:
                self._leave_out(name, str(error))
                continue
            if contents:
                changed[name] = contents
            slot = self.data[name].slot
            now = note.value if slot is None else slot.get()
            if now is note.value and name not in self._rebound:
                continue
            if now is ABSENT:
                unbound[name] = True
            elif is_data(now):
                bound[name] = now
            else:
                self._leave_out(name, f"it is a {type(now).__name__} now")
        for name, kind in self._unknown.items():
            self._leave_out(name, f"changes to a {kind} can't be detected")
        return {"changed": changed, "bound": bound, "unbound": unbound, "locals": self._changed_locals(frame)}

    def without_refused(self, changed: dict[str, Any], name_of: Any) -> dict[str, Any]:
        """The same without what can't be pickled."""
        for part in changed.values():
            for name in list(part):
                try:
                    dumps(part[name], name_of)
                except CodecError as error:
                    del part[name]
                    self._leave_out(name, str(error))
        return changed

    def _contents(self, name: str, note: Note, digests: Digests) -> dict[int, Any]:
        """The new contents of changed objects. CodecError if one cannot be restored."""
        found: dict[int, Any] = {}
        for i, obj, holds in note.changed(now=digests):
            mutator, then = mutator_of(type(obj)), note.before[i]
            if mutator is None or not mutator.can_restore(obj) or (type(then) is bytes and not mutator.by_digest):
                raise CodecError(f"a {type(obj).__name__} in it was changed in place, and can't be changed again")
            found[i] = self._roots.as_content(_content(mutator, obj, then, holds))
        for i in self._restored.get(name, set()) - found.keys():
            obj = note.walk.found[i]
            mutator = mutator_of(type(obj))
            assert mutator is not None, f"{type(obj)} could be changed in place when it was restored"
            found[i] = self._roots.as_content(mutator.content(obj))
        return dict(sorted(found.items()))

    def _leave_out(self, name: str, why: str) -> None:
        if name in self._left_out:
            return
        self._left_out.add(name)
        if (self._notes[name].value if name in self._notes else self._locals.get(name)) is ABSENT:
            return  # created in the loop: code that uses it after a skipped loop fails, which is better than a wrong value
        what = f"local variable `{name}`" if name in self._locals else name
        warn(f"loop {self._loop}: {what} is not restored when the loop is resumed: {why}. {_REMEDY}")

    def _changed_locals(self, frame: FrameType) -> dict[str, Any]:
        now, found = frame.f_locals, dict[str, Any]()
        for name, value in self._locals.items():
            changed = name in self._restored_locals or now.get(name, ABSENT) is not value
            if name in now and changed and name not in self._left_out and is_data(now[name]):
                found[name] = now[name]
        self._warn_about_locals(found)
        return found

    def _warn_about_locals(self, changed: Iterable[str]) -> None:
        lost = [name for name in changed if name not in self._targets and self._locals[name] is not ABSENT]
        if lost and not BINDS_LOCALS and not self._warned:
            self._warned = True
            names = ", ".join(f"`{name}`" for name in lost)
            warn(
                f"loop {self._loop}: {names} of {self._function}() will not be restored when the loop is resumed: before Python "
                f"3.13 a local variable can't be set from outside. Store it in run.state, or in a list, dict or object created "
                f"before the loop"
            )


def _content(mutator: Mutator, obj: Any, then: Any, holds: Any) -> Any:
    """An object's content, or the difference to what it held before if that can be applied more than once."""
    delta = mutator.delta(then, holds) if mutator.delta is not None and type(holds) is not bytes else None
    if isinstance(delta, Extended):
        return Grown(len(then), delta.items)
    return delta if isinstance(delta, (Updated, Altered)) else mutator.content(obj)
