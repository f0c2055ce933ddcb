"""Objects that can be changed in place, found again in another process.

`Roots` lists what is reachable from an argument or a state value in an order that depends on content and sharing only. An
object is named by its root and its place in that list; equal arguments of a later run that share their parts in the same
way have an equal list, so the name leads to the caller's own object there. How each type is changed is in ways.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from operator import is_
from typing import Any, NamedTuple

from blake3 import blake3

from ..codec import dumps, loads
from ..errors import CodecError
from ..fingerprint.values import Digests
from .ways import ATOMS, role, way

Name = tuple[str, str, int]  # kind of root, its name, place in the walk
Place = tuple[str, str]


class Walk(NamedTuple):
    """Where a root leads to at one moment."""

    found: list[Any]  # what can be changed, or may be, in the order it is met; what is shared, each time
    alone: list[int]  # the places of those that may have to be compared one by one

    def once(self) -> Iterator[tuple[int, Any]]:
        """Each object with its first place."""
        first: dict[int, int] = {}
        return ((i, obj) for i, obj in enumerate(self.found) if first.setdefault(id(obj), i) == i)


class Note(NamedTuple):
    """A root before a step: its value, digest and walk, and the digests of the objects that are compared one by one."""

    value: Any
    whole: bytes | None
    walk: Walk
    single: dict[int, bytes | None]

    def changed(self, now: Digests | None = None) -> bool:
        """Whether the value, or the sharing of its parts, is another now; what has no digest counts as unchanged."""
        if self.whole is None:
            return False
        return (now or Digests()).get(self.value) != self.whole or not self._tied()

    def _tied(self) -> bool:
        """Whether the objects of then are still where they were: an equal one in the place of another is a change, too."""
        then, now = self.walk.found, walk_from(self.value).found
        if len(then) == len(now) and all(map(is_, then, now)):
            return True
        known = set(map(id, then))  # what the step has added to them is a change only if their content says so
        return [id(obj) for obj in then] == [id(obj) for obj in now if id(obj) in known]


def _shape(words: Iterable[str]) -> str:
    return blake3(",".join(words).encode()).hexdigest(length=8)


class Roots:
    """The objects that a call shares with its caller, by name.

    Each root is walked before the step runs, which may take objects out of it. Names are given when the first is asked for:
    most steps return nothing of their caller's.
    """

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
            self._walks[place] = walk or walk_from(self._lookup(kind, name))
        return self._walks[place].found

    def _give_names(self) -> None:
        if len(self._shapes) == len(self._walks):
            return
        for place in [place for place in self._walks if place not in self._shapes]:
            shape: list[str] = []
            for i, obj in enumerate(self._walks[place].found):
                name = (*place, i)
                known = self._names.setdefault(id(obj), name)
                again = known is not name and way(type(obj)) is not None  # the others may be shared in any way
                shape.append(repr(known) if again else type(obj).__qualname__)
            self._shapes[place] = _shape(shape)

    def meet(self, listed: Iterable[tuple[str, str, str]], kinds: Collection[str]) -> None:
        """Learn the roots in the order in which they were named then. CodecError if they lead elsewhere now."""
        for kind, name, shape in listed:
            if kind in kinds:
                self.add(kind, name)
                self._give_names()
                if self._shapes[kind, name] != shape:
                    raise CodecError(
                        f"{kind} `{name}` is made of other objects, or shares them otherwise, than when it was kept"
                    )

    @property
    def known(self) -> Iterable[int]:
        """The ids of the objects that have a name."""
        return (id(obj) for walk in self._walks.values() for obj in walk.found)

    def __bool__(self) -> bool:
        return any(walk.found for walk in self._walks.values())

    def name(self, obj: Any) -> Name | None:
        """The name of an object that the caller has, too; pickles hold it instead of a copy."""
        if type(obj) in ATOMS:
            return None
        self._give_names()
        found = self._names.get(id(obj))
        if found is not None:
            self.list(found[:2])
        return found

    def list(self, used: Place | None = None) -> None:
        """Remember that what is kept counts only where the caller's objects are shared as they are now."""
        self._give_names()
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
            del self._walks[place]
            self._shapes.pop(place, None)
        self._names = {obj: name for obj, name in self._names.items() if name[0] != kind}
        self.listed[:] = [item for item in self.listed if item[0] != kind]

    # -- what a step changes

    def note(self, kind: str, name: str, digests: Digests | None = None) -> Note:
        """Look at a root before a step. Large parts are compared one by one, so that only those that change are kept.

        `digests` are those of a walk that has just been through it.
        """
        value, digests = self._lookup(kind, name), digests or Digests()
        walk = self._walks.get((kind, name)) or walk_from(value)
        single: dict[int, bytes | None] = {}
        for i in walk.alone:
            obj = walk.found[i]
            how = way(type(obj))
            if how is None or not how.can(obj) or (how.heavy and how.heavy(obj) and len(walk.found) > 1):
                single[i] = digests.get(obj)
        return Note(value, digests.get(value), walk, single)

    def changes(self, kind: str, name: str, note: Note, now: Digests | None = None) -> dict[int, Any] | None:
        """What became of the objects under a root, children by reference; None if nothing. CodecError if it cannot be redone."""
        now = now or Digests()
        if not note.changed(now):
            return None
        found: dict[int, Any] = {}
        for i, obj in note.walk.once():
            if i in note.single and now.get(obj) == note.single[i]:
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
        self._give_names()
        named = (obj for _, obj in walk_from(value).once() if self._names.get(id(obj), ("",))[0] == "argument")
        ways = ((obj, way(type(obj))) for obj in named)
        return [(obj, how.content(obj)) for obj, how in ways if how is not None and how.can(obj)]

    def assign(self, kind: str, name: str, contents: dict[int, Any]) -> None:
        """Give the objects under a root these contents, in place."""
        for i, content in contents.items():
            assign(self.find((kind, name, i)), content)

    def contents(self, kind: str, name: str) -> dict[int, Any]:
        """The content of every object under a root that can be changed, children by reference."""
        self.add(kind, name)
        return _contents(self._walks[kind, name])

    def changeable(self, obj: Any) -> Name | None:
        """The name of an object whose content `contents` has."""
        self._give_names()
        how = way(type(obj))
        return self._names.get(id(obj)) if how is not None and how.can(obj) else None


def _contents(walk: Walk) -> dict[int, Any]:
    ways = ((i, obj, way(type(obj))) for i, obj in walk.once())
    return {i: how.content(obj) for i, obj, how in ways if how is not None and how.can(obj)}


class Frozen:
    """A copy of what a walk found, to put back into the same objects."""

    def __init__(self, walk: Walk) -> None:
        self._found = walk.found
        places = {id(obj): i for i, obj in walk.once()}
        self._contents = dumps(_contents(walk), lambda obj: places.get(id(obj)))

    def thaw(self) -> None:
        for i, content in loads(self._contents, find=self._found.__getitem__).items():
            assign(self._found[i], content)


def walk_from(root: Any) -> Walk:
    """Every object reachable from `root` that can be changed, or may be, level by level."""
    found: list[Any] = []
    alone: list[int] = []
    passed: dict[int, Any] = {}  # what leads further; kept, because an id counts only while its object is there
    level = [root] if type(root) not in ATOMS else []
    while level:
        below: list[Any] = []
        for obj in level:
            kind = type(obj)
            if kind is list:
                found.append(obj)
                inside = [child for child in obj if type(child) not in ATOMS]  # most things are made of atoms
            elif kind is dict:
                found.append(obj)
                inside = [child for child in obj.values() if type(child) not in ATOMS]
                inside += [key for key in obj if type(key) not in ATOMS]
            elif (what := role(kind)) is not None:
                if what.changes:
                    if what.alone:
                        alone.append(len(found))
                    found.append(obj)
                inside = [child for child in what.children(obj) if type(child) not in ATOMS]
            else:
                continue
            if inside and id(obj) not in passed:
                passed[id(obj)] = obj
                below += inside
        level = below
    return Walk(found, alone)


def assign(obj: Any, content: Any) -> None:
    """Give an object this content, in place."""
    how = way(type(obj))
    assert how is not None, f"{type(obj)} had a way to be changed when it was recorded"
    how.assign(obj, content)
