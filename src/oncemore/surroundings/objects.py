"""Objects that can be changed in place, found again in another process.

`Roots` lists what is reachable from an argument or a state value in an order that depends on content and sharing only. An
object is named by its root and its place in that list; equal arguments of a later run that share their parts in the same
way have an equal list, so the name leads to the caller's own object there. How each type is changed is in ways.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from blake3 import blake3

from ..codec import dumps, loads
from ..errors import CodecError
from ..facts import dataclass
from ..fingerprint.values import identity
from .ways import ATOMS, fixed, through, way

Name = tuple[str, str, int]  # kind of root, its name, place in the walk
Place = tuple[str, str]


@dataclass
class Walk:
    """Where a root leads to at one moment: its objects, the root first, and their places in the order they were met."""

    found: list[Any]
    met: list[int]


@dataclass
class Note:
    """A root before a step: its value, digest and walk, and the digests of the objects that are looked at one by one."""

    value: Any
    whole: bytes | None
    walk: Walk
    single: dict[int, bytes | None]

    def changed(self) -> bool:
        """Whether the value, or the sharing of its parts, is another now; what has no digest counts as unchanged."""
        if self.whole is None:
            return False
        return identity(self.value) != self.whole or (len(self.walk.found) > 1 and not self._tied())

    def _tied(self) -> bool:
        """Whether the objects of then are still where they were: an equal one in the place of another is a change, too."""
        known = {id(obj) for obj in self.walk.found}
        now = walk_from(self.value)
        met = [id(now.found[i]) for i in now.met]
        return [id(self.walk.found[i]) for i in self.walk.met] == [obj for obj in met if obj in known]


def _shape(words: Iterable[str]) -> str:
    return blake3(",".join(words).encode()).hexdigest(length=8)


_NOTHING = _shape(())  # of a root that leads to nothing that can change


class Roots:
    """The objects that a call shares with its caller, by name."""

    def __init__(self, lookup: Callable[[str, str], Any], loose: Callable[[str], bool] = lambda name: False) -> None:
        self._lookup, self._loose = lookup, loose
        self._walks: dict[Place, Walk] = {}
        self._names: dict[int, Name] = {}
        self._shapes: dict[Place, str] = {}
        self.listed: list[tuple[str, str, str]] = []  # the roots whose shapes have to be the same; grows while pickling

    def add(self, kind: str, name: str, walk: Walk | None = None) -> list[Any]:
        """Learn the objects under a root, as they are now or as an earlier walk found them."""
        place = (kind, name)
        if place not in self._walks:
            walk = self._walks[place] = walk or walk_from(self._lookup(kind, name))
            found, met = walk.found, walk.met
            if not met:
                self._shapes[place] = _NOTHING
                return found
            shape: list[str] = []
            for i in met:
                known = self._names.get(id(found[i]))
                counts = known is not None and way(type(found[i])) is not None  # the others may be shared in any way
                shape.append(repr(known) if counts else type(found[i]).__qualname__)
                self._names.setdefault(id(found[i]), (*place, i))
            self._shapes[place] = _shape(shape)
        return self._walks[place].found

    def meet(self, listed: Iterable[tuple[str, str, str]], kinds: Collection[str]) -> None:
        """Learn the roots in the order in which they were named then. CodecError if they lead elsewhere now."""
        for kind, name, shape in listed:
            if kind in kinds:
                self.add(kind, name)
                if self._shapes[kind, name] != shape:
                    raise CodecError(
                        f"{kind} `{name}` is made of other objects, or shares them otherwise, than when it was kept"
                    )

    @property
    def known(self) -> Iterable[int]:
        """The ids of the objects that have a name."""
        return self._names.keys()

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

    def forget(self, kind: str) -> None:
        """Roots of that kind are other objects from now on: a generator goes on after its consumer had a turn."""
        for place in [place for place in self._walks if place[0] == kind]:
            del self._walks[place], self._shapes[place]
        self._names = {obj: name for obj, name in self._names.items() if name[0] != kind}
        self.listed[:] = [item for item in self.listed if item[0] != kind]

    # -- what a step changes

    def note(self, kind: str, name: str, whole: bytes | None = None) -> Note:
        """Look at a root before a step. Large parts are looked at one by one, so that only those that change are kept."""
        value = self._lookup(kind, name)
        walk = self._walks.get((kind, name)) or walk_from(value)
        ways = [(i, obj, way(type(obj))) for i, obj in enumerate(walk.found)]
        alone = {
            i for i, obj, how in ways if how is None or not how.can(obj) or (how.heavy(obj) and len(walk.found) > 1)
        }
        return Note(value, whole or identity(value), walk, {i: identity(walk.found[i]) for i in alone})

    def changes(self, kind: str, name: str, note: Note) -> dict[int, Any] | None:
        """What became of the objects under a root, children by reference; None if nothing. CodecError if it cannot be redone."""
        if not note.changed():
            return None
        found: dict[int, Any] = {}
        for i, obj in enumerate(note.walk.found):
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

    def arguments_in(self, value: Any) -> Iterable[tuple[Any, Any]]:
        """The arguments' objects that a value leads to, with their contents."""
        named = (obj for obj in walk_from(value).found if self._names.get(id(obj), ("",))[0] == "argument")
        ways = ((obj, way(type(obj))) for obj in named)
        return [(obj, how.content(obj)) for obj, how in ways if how is not None and how.can(obj)]

    def assign(self, kind: str, name: str, contents: dict[int, Any]) -> None:
        """Give the objects under a root these contents, in place."""
        for i, content in contents.items():
            assign(self.find((kind, name, i)), content)

    def contents(self, kind: str, name: str) -> dict[int, Any]:
        """The content of every object under a root that can be changed, children by reference."""
        ways = ((i, obj, way(type(obj))) for i, obj in enumerate(self.add(kind, name)))
        return {i: how.content(obj) for i, obj, how in ways if how is not None and how.can(obj)}

    def changeable(self, obj: Any) -> Name | None:
        """The name of an object whose content `contents` has."""
        how = way(type(obj))
        return self._names.get(id(obj)) if how is not None and how.can(obj) else None


class Frozen:
    """A copy of what a walk found, to put back into the same objects."""

    def __init__(self, walk: Walk) -> None:
        self._found = walk.found
        places = {id(obj): i for i, obj in enumerate(walk.found)}
        ways = ((i, obj, way(type(obj))) for i, obj in enumerate(walk.found))
        contents = {i: how.content(obj) for i, obj, how in ways if how is not None and how.can(obj)}
        self._contents = dumps(contents, lambda obj: places.get(id(obj)))

    def thaw(self) -> None:
        for i, content in loads(self._contents, find=self._found.__getitem__).items():
            assign(self._found[i], content)


def walk_from(root: Any) -> Walk:
    """Every object reachable from `root` that can be changed, or may be."""
    found: list[Any] = []
    met: list[int] = []
    if type(root) in ATOMS:
        return Walk(found, met)
    passed: dict[int, int] = {}
    kept: list[Any] = []  # what is passed through: an id counts only while its object is there
    todo = deque(_changing([root]))
    while todo:
        obj = todo.popleft()
        inside, how = through(type(obj)), way(type(obj))
        if inside is not None:
            if id(obj) not in passed:
                passed[id(obj)] = -1
                kept.append(obj)
                todo.extend(_changing(inside(obj)))
            continue
        if how is None or id(obj) not in passed:
            passed[id(obj)] = len(found)
            found.append(obj)
            if how is not None:
                todo.extend(_changing(how.children(obj)))
        met.append(passed[id(obj)])
    return Walk(found, met)


def _changing(objects: Iterable[Any]) -> Iterable[Any]:
    """Those that may change, or lead to something that may."""
    return [obj for obj in objects if type(obj) not in ATOMS and not fixed(type(obj))]  # most things are made of atoms


def assign(obj: Any, content: Any) -> None:
    """Give an object this content, in place."""
    how = way(type(obj))
    assert how is not None, f"{type(obj)} had a way to be changed when it was recorded"
    how.assign(obj, content)
