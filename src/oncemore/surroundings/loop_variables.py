"""What the turns of a loop do to the variables of the script: globals, and local variables of the function that it is in.

When the loop goes on, objects are changed in place and names are bound anew. The local variables of a function can be bound
from outside since Python 3.13; before, that is told, and only what they hold comes back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

from ..codec import dumps
from ..errors import CodecError, FingerprintError, warn
from ..identity.code.block import Block
from ..identity.code.data import ABSENT, Datum
from ..identity.code.descriptions import is_data
from ..identity.values import Digests
from .mutable_types import Altered, Extended, Grown, Mutator, Updated, mutator
from .references import Note, Roots

BINDS_LOCALS = sys.version_info >= (3, 13)
_REMEDY = "Create it inside the loop, or keep what you need of it in run.state"


class Variables:
    """The variables of the script when a loop begins, and what its turns make of them."""

    def __init__(self, loop: str, frame: FrameType, items: object) -> None:
        self._loop = loop
        self.data: dict[str, Datum] = {}
        self._unknown: dict[str, str] = {}
        self._locals: dict[str, Any] = {}
        self._notes: dict[str, Note] = {}
        self._restored: dict[str, set[int]] = {}  # by name: the objects that a snapshot brought, and
        self._rebound: set[str] = set()  # the names
        self._brought: set[str] = set()  # and the local variables
        self._warned = False  # that local variables don't come back
        self._left_out: set[str] = set()  # of these it has been told that they don't come back
        try:
            block = Block(frame, items)
        except (FingerprintError, RuntimeError) as error:
            warn(f"loop {loop}: the script's variables are not restored when it is resumed: {error}")
            return
        self.data, self._unknown, self._locals = block.data, block.unknown, block.variables
        self._targets, self._function = block.targets, block.function

    def note(self, roots: Roots) -> None:
        """The loop begins. `roots` are what it shares with the script."""
        self._roots = roots
        for name in self.data:
            self._roots.add("global", name)
        for name in self.data:
            self._notes[name] = self._roots.note("global", name)

    def restore(self, kept: Mapping[str, Any], frame: FrameType) -> None:
        """Put everything back to how the turns left it. What the script does not name any more is left out."""
        for name, contents in kept["changed"].items():
            if name in self.data:
                self._roots.assign("global", name, contents)
                self._restored.setdefault(name, set()).update(contents)
        for name, value in kept["bound"].items():
            slot = self.data[name].slot if name in self.data else None
            if slot is not None:
                slot.set(value)
                self._rebound.add(name)
        found = {name: value for name, value in kept["locals"].items() if name in self._locals}
        if BINDS_LOCALS:
            values = frame.f_locals
            for name, value in found.items():
                values[name] = value
        self._brought.update(found)
        self._tell_locals(found)
        for name in kept["unbound"]:
            slot = self.data[name].slot if name in self.data else None
            if slot is not None:
                slot.set(ABSENT)
                self._rebound.add(name)

    def differs(self, kept: Mapping[str, dict[str, Any]]) -> str | None:
        """The name of a list that is shorter than when the loop began, if there is one."""
        for name, contents in kept["changed"].items():
            for i, content in contents.items() if name in self.data else ():
                if isinstance(content, Grown) and len(self._roots.find(("global", name, i))) < content.start:
                    return name
        return None

    def changed(self, frame: FrameType) -> dict[str, Any]:
        """What is another than when the loop began, without what can't come back."""
        digests, found = Digests(), _Found({}, {}, {}, self._changed_locals(frame))
        for name, note in self._notes.items():
            if name in self._left_out:
                continue
            try:
                contents = dict(self._contents(name, note, digests))
            except CodecError as error:
                self._leave_out(name, str(error))
                continue
            if contents:
                found.changed[name] = contents
            slot = self.data[name].slot
            now = note.value if slot is None else slot.get()
            if now is note.value and name not in self._rebound:
                continue
            if now is ABSENT:
                found.unbound[name] = True
            elif is_data(now):
                found.bound[name] = now
            else:
                self._leave_out(name, f"it is a {type(now).__name__} now")
        for name, kind in self._unknown.items():
            self._leave_out(name, f"there is no way to tell whether a {kind} has changed")
        return found._asdict()

    def without_refused(self, kept: dict[str, Any], named: Any) -> dict[str, Any]:
        """The same without what can't be pickled."""
        for part in kept.values():
            for name in list(part):
                try:
                    dumps(part[name], named)
                except CodecError as error:
                    del part[name]
                    self._leave_out(name, str(error))
        return kept

    def _contents(self, name: str, note: Note, digests: Digests) -> Iterator[tuple[int, Any]]:
        found: dict[int, Any] = {}
        for i, obj, holds in note.changed(now=digests):
            how, then = mutator(type(obj)), note.before[i]
            if how is None or not how.can(obj) or (type(then) is bytes and not how.heavy):
                raise CodecError(f"a {type(obj).__name__} in it was changed in place, which can't be done again")
            found[i] = self._roots.apart(_content(how, obj, then, holds))
        for i in self._restored.get(name, set()) - found.keys():
            obj = note.walk.found[i]
            how = mutator(type(obj))
            assert how is not None, f"{type(obj)} had a way to be changed when it was restored"
            found[i] = self._roots.apart(how.content(obj))
        yield from sorted(found.items())

    def _leave_out(self, name: str, why: str) -> None:
        if name in self._left_out:
            return
        self._left_out.add(name)
        if (self._notes[name].value if name in self._notes else self._locals.get(name)) is ABSENT:
            return  # made by the turns: what uses it after a loop that was skipped fails, as without its value it should
        what = f"local variable `{name}`" if name in self._locals else name
        warn(f"loop {self._loop}: {what} is not restored when the loop is resumed: {why}. {_REMEDY}")

    def _changed_locals(self, frame: FrameType) -> dict[str, Any]:
        now, found = frame.f_locals, dict[str, Any]()
        for name, value in self._locals.items():
            is_other = name in self._brought or now.get(name, ABSENT) is not value
            if name in now and is_other and name not in self._left_out and is_data(now[name]):
                found[name] = now[name]
        self._tell_locals(found)
        return found

    def _tell_locals(self, changed: Iterable[str]) -> None:
        lost = [name for name in changed if name not in self._targets and self._locals[name] is not ABSENT]
        if lost and not BINDS_LOCALS and not self._warned:
            self._warned = True
            names = ", ".join(f"`{name}`" for name in lost)
            warn(
                f"loop {self._loop}: {names} of {self._function}() will not be restored when the loop is resumed: before Python "
                f"3.13 a local variable can't be set from outside. Keep it in run.state, or in a list, dict or object created "
                f"before the loop"
            )


class _Found(NamedTuple):
    changed: dict[str, dict[int, Any]]  # contents of objects, by the place in the walk through the name's value
    bound: dict[str, Any]
    unbound: dict[str, bool]
    locals: dict[str, Any]


def _content(how: Mutator, obj: Any, then: Any, holds: Any) -> Any:
    """What an object holds; if that is little beside what it held, the difference. To be given as often as one likes."""
    delta = how.delta(then, holds) if how.delta is not None and type(holds) is not bytes else None
    if isinstance(delta, Extended):
        return Grown(len(then), delta.items)
    return delta if isinstance(delta, (Updated, Altered)) else how.content(obj)
