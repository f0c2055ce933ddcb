"""Objects that can be changed in place, found again in another process.

`Roots` lists what is reachable from an argument or a state value in an order that depends on content and sharing only. An
object is named by its root and its place in that list; equal arguments of a later run that share their parts in the same
way have an equal list, so the name leads to the caller's own object there. How each type is changed is in ways.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

from blake3 import blake3

from ..codec import dumps, loads
from ..errors import CodecError, FingerprintError
from ..fingerprint.values import digest
from .ways import fixed, way

Name = tuple[str, str, int]  # kind of root, its name, place in the walk
Place = tuple[str, str]


class Note(NamedTuple):
    """A root before a step: its digest, and those of the objects in it that are looked at one by one."""

    whole: bytes | None
    single: dict[int, bytes | None]


class Roots:
    """The objects that a call shares with its caller, by name."""

    def __init__(self, lookup: Callable[[str, str], Any], loose: Callable[[str], bool] = lambda name: False) -> None:
        self._lookup, self._loose = lookup, loose
        self._found: dict[Place, list[Any]] = {}
        self._names: dict[int, Name] = {}
        self._shapes: dict[Place, str] = {}
        self._early: dict[Place, tuple[list[Any], list[str]]] = {}
        self.shallow = False  # state values are known as a whole only, and what is in them goes by value
        self.listed: list[tuple[str, str, str]] = []  # the roots whose shapes have to be the same; grows while pickling

    def add(self, kind: str, name: str) -> list[Any]:
        """Learn the objects under a root."""
        place = (kind, name)
        if place not in self._found:
            if kind == "state" and self.shallow:
                return self._add_shallow(place)
            self._found[place], shape = self._early.get(place) or self._walk(place, self._lookup(kind, name))
            self._shapes[place] = blake3(",".join(shape).encode()).hexdigest(length=8)
        return self._found[place]

    def shared(self, kind: str, name: str) -> bool:
        """Whether a root is part of another that is known; then it is looked at now, before it is changed through that one."""
        root = self._lookup(kind, name)
        if id(root) not in self._names:
            return False
        if not self.shallow:
            self._early[kind, name] = self._walk((kind, name), root)
        return True

    def _add_shallow(self, place: Place) -> list[Any]:
        root = self._lookup(*place)
        self._found[place] = [] if fixed(type(root)) or way(type(root)) is None else [root]
        for obj in self._found[place]:
            self._names.setdefault(id(obj), (*place, 0))
        return self._found[place]

    def _walk(self, place: Place, root: Any) -> tuple[list[Any], list[str]]:
        """Every object reachable from `root` that can be changed, the root first; and what was met, with its sharing."""
        found: list[Any] = []
        shape: list[str] = []
        passed: dict[int, Any] = {}
        todo = deque([root])
        while todo:
            obj = todo.popleft()
            kind = type(obj)
            if fixed(kind):
                continue
            inside = _through(obj)
            if inside is not None:
                if id(obj) not in passed:
                    passed[id(obj)] = obj
                    todo.extend(inside)
                continue
            how = way(kind)
            known = self._names.get(id(obj))
            if known is not None and how is not None:
                shape.append(repr(known))
            else:
                shape.append(kind.__qualname__)
            if how is None or id(obj) not in passed:  # what cannot be changed may be shared in any way
                passed[id(obj)] = obj
                self._names.setdefault(id(obj), (*place, len(found)))
                found.append(obj)
                if how is not None:
                    todo.extend(child for child in how.children(obj) if not fixed(type(child)))
        return found, shape

    def shares(self, root: Any) -> bool:
        """Whether something that `root` leads to is known already."""
        seen: set[int] = set()
        todo = [root] if self._names else []
        while todo:
            obj = todo.pop()
            if id(obj) in self._names:
                return True
            if id(obj) in seen or fixed(type(obj)):
                continue
            seen.add(id(obj))
            how = way(type(obj))
            if isinstance(obj, (tuple, frozenset)):
                todo.extend(obj)
            elif how is not None:
                todo.extend(how.children(obj))
        return False

    def __bool__(self) -> bool:
        return bool(self._names)

    def name(self, obj: Any) -> Name | None:
        """The name of an object that the caller has, too; pickles hold it instead of a copy."""
        found = self._names.get(id(obj))
        if found is not None:
            self.list(found[:2])
        return found

    def list(self, used: Place | None = None) -> None:
        """Remember that what is kept counts only where the caller's objects are shared as they are now."""
        for place, shape in self._shapes.items():
            item = (*place, shape)
            if item not in self.listed and (place == used or place[0] != "argument" or not self._loose(place[1])):
                self.listed.append(item)

    def find(self, name: Name) -> Any:
        """The caller's own object of that name."""
        kind, root, place = name
        return self.add(kind, root)[place]

    def shape(self, kind: str, name: str) -> str:
        """What the walk from a root meets: names count only where it meets the same."""
        self.add(kind, name)
        return self._shapes[kind, name]

    def forget(self, kind: str) -> None:
        """Roots of that kind are other objects from now on: a generator goes on after its consumer had a turn."""
        for place in [place for place in self._found if place[0] == kind]:
            del self._found[place]
            self._shapes.pop(place, None)
        self._early.clear()
        self._names = {obj: name for obj, name in self._names.items() if name[0] != kind}
        self.listed[:] = [item for item in self.listed if item[0] != kind]

    # -- what a step changes

    def note(self, kind: str, name: str, whole: bytes | None = None) -> Note:
        """Look at a root before a step. Large parts are looked at one by one, so that only those that change are kept."""
        objects = self.add(kind, name)
        whole = whole or identity(self._lookup(kind, name))
        ways = [(i, obj, way(type(obj))) for i, obj in enumerate(objects)]
        alone = {i for i, obj, how in ways if how is None or not how.can(obj) or (how.heavy(obj) and len(objects) > 1)}
        return Note(whole, {i: identity(objects[i]) for i in alone})

    def changes(self, kind: str, name: str, note: Note) -> dict[int, Any] | None:
        """What became of the objects under a root, children by reference; None if nothing. CodecError if it cannot be redone."""
        if note.whole is None or identity(self._lookup(kind, name)) == note.whole:
            return None
        found: dict[int, Any] = {}
        for i, obj in enumerate(self.add(kind, name)):
            if i in note.single and identity(obj) == note.single[i]:
                continue
            how = way(type(obj))
            if how is None or not how.can(obj):
                raise CodecError(
                    f"{kind} `{name}` was changed in place, and a {type(obj).__name__} cannot be changed again when the "
                    f"step is skipped; return it instead, or say mutates=False if that does not matter"
                )
            found[i] = how.content(obj)
        self.list((kind, name))
        return found

    def assign(self, kind: str, name: str, contents: dict[int, Any]) -> None:
        """Give the objects under a root these contents, in place."""
        for i, content in contents.items():
            obj = self.find((kind, name, i))
            how = way(type(obj))
            assert how is not None, f"{type(obj)} had a way to be changed when it was recorded"
            how.assign(obj, content)

    def contents(self, kind: str, name: str) -> dict[int, Any]:
        """The content of every object under a root that can be changed, children by reference."""
        ways = ((i, obj, way(type(obj))) for i, obj in enumerate(self.add(kind, name)))
        return {i: how.content(obj) for i, obj, how in ways if how is not None and how.can(obj)}

    def changeable(self, obj: Any) -> Name | None:
        """The name of an object whose content `contents` has."""
        how = way(type(obj))
        return self._names.get(id(obj)) if how is not None and how.can(obj) else None

    def freeze(self, kind: str, name: str) -> bytes:
        """A copy of what is under a root as bytes, in which the caller's objects stay references."""
        return dumps(self.contents(kind, name), lambda obj: self._names.get(id(obj)))

    def thaw(self, kind: str, name: str, frozen: bytes) -> None:
        """Put back what `freeze` took."""
        self.assign(kind, name, loads(frozen, find=self.find))


def identity(value: Any) -> bytes | None:
    """The content digest, None for what has none."""
    try:
        return digest(value)
    except FingerprintError:
        return None


def _through(obj: Any) -> Iterable[Any] | None:
    """What is inside something that cannot be changed itself; None if it is not such a thing."""
    if type(obj) is tuple or (isinstance(obj, tuple) and hasattr(obj, "_fields")):
        return obj
    if isinstance(obj, FunctionType):
        return _captured(obj)
    if isinstance(obj, (MethodType, BuiltinFunctionType)):
        return (obj.__self__,)
    if type(obj) is partial:
        return (obj.func, obj.args, obj.keywords)
    return None


def _captured(function: FunctionType) -> Iterable[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet bound
            continue
