"""Objects that can be changed in place, found again in another process.

`Roots` lists what is reachable from an argument or a state value in an order that depends on content and sharing only. An
object is named by its root and its place in that list; equal arguments of a later run that share their parts in the same
way have an equal list, so the name leads to the caller's own object there. How each type is changed is in mutable_types.py.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Union

from blake3 import blake3

from ..codec import dumps, loads
from ..errors import CodecError
from ..identity.values import Digests
from ..identity.values.inert import category
from ..modules import loaded
from .mutable_types import ATOMS, DELTAS, FILLED, Updated, inside, mutator, noted_inside, role

# The way from a root to an object, whatever else the root has come to hold: names, and which container is made if it is missing.
Path = tuple[tuple[str, Any, Any], ...]
Contents = dict[Union[int, Path], Any]  # by place in the walk, or by path
_SIZED = (list, dict, set, frozenset, tuple, deque)
Name = tuple[str, str, int]  # kind of root, its name, place in the walk
Place = tuple[str, str]


class View(NamedTuple):
    """A part of the memory of an array that has a name."""

    name: Name
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Route(NamedTuple):
    """The way to an object in global data, as the data was before the change in which it is named; and the object's content."""

    root: str
    path: Path
    content: bytes | None  # None if it was changed


class Walk(NamedTuple):
    """Where a root leads to at one moment."""

    found: list[Any]  # what can be changed, or may be, in the order it is met; what is shared, each time
    opaque: Collection[int] = ()  # the ids of those that are not looked into

    def once(self) -> Iterator[tuple[int, Any]]:
        """Each object with its first place."""
        first: dict[int, int] = {}
        return ((i, obj) for i, obj in enumerate(self.found) if first.setdefault(id(obj), i) == i)


class Note(NamedTuple):
    """A root before a step: its value, where it leads to, and for each object there what tells whether it has changed.

    That is what the object holds, by reference; or its digest, if it holds nothing by reference. `whole` is the digest of all.
    """

    value: Any
    walk: Walk
    before: dict[int, Any]
    whole: bytes | None = None

    def held(self) -> dict[int, Any]:
        """What the objects held, by their ids."""
        return {id(obj): self.before[i] for i, obj in self.walk.once()}

    def changed(self, after: Note | None = None, now: Digests | None = None) -> Iterator[tuple[int, Any, Any]]:
        """The objects that hold something else now: their places, they themselves, what they hold.

        `after` is the same root, noted anew. What has no digest counts as unchanged.
        """
        now, held = now or Digests(), {}
        if after is not None:
            held = after.held()
        for i, obj in self.walk.once():
            if self.walk.opaque and id(obj) in self.walk.opaque:
                continue
            how, then = mutator(type(obj)), self.before[i]
            if how is None or then is None or type(then) is bytes:
                holds = now.get(obj)
                if holds != then:
                    yield i, obj, holds
            else:
                holds = held[id(obj)] if id(obj) in held else how.note(obj)
                if type(holds) is bytes or not how.same(then, holds):
                    yield i, obj, holds


def _said(kind: str, name: str) -> str:
    return name if kind == "global" else f"{kind} `{name}`"


def _shape(words: Iterable[str]) -> str:
    return blake3(",".join(words).encode()).hexdigest(length=8)


class Roots:
    """The objects that a call shares with its caller, by name.

    Each root is walked before the step runs, which may take objects out of it. Names are given when the first is asked for:
    most steps return nothing of their caller's.
    """

    def __init__(
        self,
        lookup: Callable[[str, str], Any],
        loose: Callable[[str], bool] = lambda name: False,
        walk: Callable[[str, str, Any], Walk] = lambda kind, name, value: walk_from(value),
    ) -> None:
        self._lookup, self._loose, self._walk = lookup, loose, walk
        self._walks: dict[Place, Walk] = {}
        self._names: dict[int, Name] = {}
        self._shapes: dict[Place, str] = {}
        self.listed: list[tuple[str, str, str]] = []  # the roots whose shapes have to be the same; grows while pickling
        self.beside = False  # other steps change the same data meanwhile
        self.routes: dict[int, Route] = {}  # then: to objects in what the step returned and changed, by id
        self._contents: dict[int, Any] = {}
        self.recorded: set[int] = set()  # the ids of objects whose changes are recorded under some root
        self.notes: dict[Place, Note] = {}  # how the roots were that the step may have changed since

    def add(self, kind: str, name: str, walk: Walk | None = None) -> list[Any]:
        """Learn the objects under a root, as they are now or as an earlier walk found them."""
        place = (kind, name)
        if place not in self._walks:
            self._walks[place] = walk or self._walk(kind, name, self._lookup(kind, name))
        return self._walks[place].found

    def _give_names(self) -> None:
        if len(self._shapes) == len(self._walks):
            return
        for place in [place for place in self._walks if place not in self._shapes]:
            shape: list[str] = []
            for i, obj in enumerate(self._walks[place].found):
                name = (*place, i)
                known = self._names.setdefault(id(obj), name)
                again = known is not name and mutator(type(obj)) is not None  # the others may be shared in any way
                shape.append(repr(known) if again else category(type(obj)) or type(obj).__qualname__)
            self._shapes[place] = _shape(shape)

    def match(self, listed: Iterable[tuple[str, str, str]], kinds: Collection[str]) -> None:
        """Learn the roots in the order in which they were named then. CodecError if they lead elsewhere now."""
        for kind, name, shape in listed:
            if kind in kinds:
                self.add(kind, name)
                self._give_names()
                if self._shapes[kind, name] != shape:
                    raise CodecError(
                        f"{_said(kind, name)} is made of other objects, or shares them otherwise, than when it was kept"
                    )

    @property
    def known(self) -> Iterable[int]:
        """The ids of the objects that have a name."""
        return (id(obj) for walk in self._walks.values() for obj in walk.found)

    def __bool__(self) -> bool:
        return any(walk.found for walk in self._walks.values())

    def name(self, obj: Any) -> Name | View | None:
        """The name of an object that the caller has, too; pickles hold it instead of a copy."""
        if type(obj) in ATOMS:
            return None
        self._give_names()
        found, layout = self._names.get(id(obj)), None
        if found is None:
            found, layout = self._view(obj)
        if found is not None and found[0] == "global" and found[2] and self.beside:
            return None  # its place inside is another when the others have made their changes
        if found is None:
            return None
        self.list(found[:2])
        return found if layout is None else View(found, *layout)

    def name_in_order(self, obj: Any) -> Name | View | Route | None:
        """The name of an object that the caller has, or that was in the data when earlier steps had made their changes."""
        return self.routes.get(id(obj)) or self.name(obj)

    def _view(self, obj: Any) -> tuple[Name | None, tuple[Any, ...] | None]:
        """Of an array that shows the memory of one that has a name: that name, and which part of it."""
        numpy = loaded("numpy")
        if numpy is None or type(obj) is not numpy.ndarray or obj.dtype.hasobject or id(obj) in self._contents:
            return None, None
        base = obj.base
        while type(base) is numpy.ndarray:
            found = self._names.get(id(base))
            if found is not None and base.flags.c_contiguous and not base.dtype.hasobject:
                offset = obj.__array_interface__["data"][0] - base.__array_interface__["data"][0]
                return found, (obj.dtype, obj.shape, obj.strides, offset)
            base = base.base
        return None, None

    def list(self, used: Place | None = None) -> None:
        """Remember that what is kept counts only where the caller's objects are shared as they are now."""
        self._give_names()
        for place, shape in self._shapes.items():
            item = (*place, shape)
            if place[0] == "global" and self.beside:
                continue  # whatever they have become: it is changed where it is
            if item not in self.listed and (place == used or place[0] != "argument" or not self._loose(place[1])):
                self.listed.append(item)

    def find(self, name: Name | View | Route) -> Any:
        """The caller's own object of that name. LookupError if a route leads to no such object."""
        if isinstance(name, Route):
            found = _at(self._lookup("global", name.root), name.path)
            if name.content is not None and Digests().get(found) != name.content:
                raise LookupError(name.root)
            return found
        if isinstance(name, View):
            memory = self.find(name.name)
            return loaded("numpy").ndarray(name.shape, name.dtype, memory, name.offset, name.strides)
        kind, root, place = name
        return self.add(kind, root)[place]

    def forget(self, kind: str) -> None:
        """Roots of that kind are other objects from now on: a generator goes on after its consumer had a turn."""
        for place in [place for place in self._walks if place[0] == kind]:
            del self._walks[place]
            self._shapes.pop(place, None)
            self.notes.pop(place, None)
        self._names = {obj: name for obj, name in self._names.items() if name[0] != kind}
        self.listed[:] = [item for item in self.listed if item[0] != kind]

    # -- what a step changes

    def note(self, kind: str, name: str, digests: Digests | None = None, *, whole: bool = False) -> Note:
        """Look at a root before a step. `digests` are those of a walk that has just been through it."""
        value, digests = self._lookup(kind, name), digests or Digests()
        walk = self._walks.get((kind, name)) or self._walk(kind, name, value)
        before: dict[int, Any] = {}
        for i, obj in walk.once():
            if walk.opaque and id(obj) in walk.opaque:
                before[i] = None
                continue
            if type(obj) is dict or type(obj) is list:  # most objects are: what their ways note, in one go
                before[i] = obj.copy()
                continue
            how = mutator(type(obj))
            single = how is None or how.heavy or not how.can(obj)
            before[i] = digests.get(obj) if single or how is None else how.note(obj)
        note = self.notes[kind, name] = Note(value, walk, before, digests.get(value) if whole else None)
        return note

    def changed_in(self, walk: Walk) -> str | None:
        """A root that shares an object with what was walked, if that object has been changed since it was noted."""
        there = {id(obj) for obj in walk.found}
        for (kind, name), note in self.notes.items():
            shared = not there.isdisjoint(map(id, note.walk.found))
            if shared and any(id(obj) in there for _, obj, _ in note.changed()):
                return _said(kind, name)
        return None

    def changes(
        self, kind: str, name: str, note: Note, after: Note | None = None, now: Digests | None = None
    ) -> Contents | None:
        """What became of the objects under a root, children by reference; None if nothing. CodecError if it cannot be redone.

        An object that can be reached from several roots is recorded under the first. Beside other steps, which may add some,
        the objects are named by the ways to them: those that nothing leads to any more are left out.
        """
        found: Contents = {}
        paths: dict[int, Path] = {}
        exact = kind != "argument" or not self._loose(name)  # when the step is skipped, they are as they were before it
        for i, obj, holds in note.changed(after, now):
            if id(obj) in self.recorded:
                continue
            place: int | Path | None = i
            if self.beside and kind == "global":
                paths = paths or ({} if obj is note.value else paths_from(note.value))
                place = () if obj is note.value else paths.get(id(obj))
            if place is None:
                continue
            self.recorded.add(id(obj))
            how = mutator(type(obj))
            rigid = how is not None and not how.heavy and type(note.before[i]) is bytes  # it could not be noted
            if how is None or rigid or not how.can(obj):
                raise CodecError(
                    f"{_said(kind, name)} was changed in place, and a {type(obj).__name__} cannot be changed again when the "
                    f"step is skipped; return it instead, or say mutates=False if that does not matter"
                )
            delta = how.delta(note.before[i], holds) if exact and how.delta and type(holds) is not bytes else None
            if self.beside and isinstance(delta, Updated):
                delta = delta.summed(note.before[i])
            found[place] = self.apart(how.content(obj) if delta is None else delta)
        if not found:
            return None
        self.list((kind, name))
        return found

    def arguments_in(self, value: Any) -> Iterable[tuple[Any, Any]]:
        """The arguments' objects that a value leads to, with their contents."""
        self._give_names()
        named = (obj for _, obj in walk_from(value).once() if self._names.get(id(obj), ("",))[0] == "argument")
        mutators = ((obj, mutator(type(obj))) for obj in named)
        return [(obj, how.content(obj)) for obj, how in mutators if how is not None and how.can(obj)]

    def leads(self, kind: str, name: str, place: int | Path) -> bool:
        """Whether an object is there under a root that can be given its content."""
        return isinstance(place, int) or _leads(self._lookup(kind, name), place)

    def assign(self, kind: str, name: str, contents: Contents) -> None:
        """Give the objects under a root these contents, in place."""
        for place, content in contents.items():
            try:
                if isinstance(place, int):
                    assign(self.find((kind, name, place)), content)
                else:
                    assign(_follow(self._lookup(kind, name), place), content)
            except (LookupError, TypeError) as error:
                raise CodecError(f"{_said(kind, name)} is made of other objects than when it was kept") from error

    def contents(self, kind: str, name: str) -> dict[int, Any]:
        """The content of every object under a root that can be changed, children by reference."""
        self.add(kind, name)
        return {i: self.apart(content) for i, content in _contents(self._walks[kind, name]).items()}

    def apart(self, content: Any) -> Any:
        """A content, from now on known as such: that of an array is a view of it, and gets no name."""
        self._contents[id(content)] = content
        return content

    def forget_contents(self) -> None:
        """They have been pickled."""
        self._contents.clear()

    def changeable(self, obj: Any) -> Name | View | None:
        """The name of an object whose content `contents` has, or of the part of an array's memory that it shows."""
        self._give_names()
        how = mutator(type(obj))
        if how is None or not how.can(obj):
            return None
        found, layout = self._names.get(id(obj)), None
        if found is None:
            found, layout = self._view(obj)
        return found if found is None or layout is None else View(found, *layout)


def _contents(walk: Walk) -> dict[int, Any]:
    mutators = ((i, obj, mutator(type(obj))) for i, obj in walk.once())
    return {i: how.content(obj) for i, obj, how in mutators if how is not None and how.can(obj)}


class Frozen:
    """A copy of what a walk found, to put back into the same objects."""

    def __init__(self, walk: Walk) -> None:
        self._found = walk.found
        places = {id(obj): i for i, obj in walk.once()}
        self._contents = dumps(_contents(walk), lambda obj: places.get(id(obj)))

    def thaw(self) -> None:
        for i, content in loads(self._contents, find=self._found.__getitem__).items():
            assign(self._found[i], content)


def walk_from(root: Any, opaque: Collection[int] = (), most: int = sys.maxsize) -> Walk:
    """Every object reachable from `root` that can be changed, or may be, or is a tool such as a lock; level by level, and not
    through those in `opaque`. About so many at the most, and so many elements of each."""
    found: list[Any] = []
    seen: dict[int, Any] = {}  # what leads further; kept, because an id counts only while its object is there
    level = [root] if type(root) not in ATOMS else []
    while level and len(found) < most:
        below: list[Any] = []
        for obj in level if most == sys.maxsize else level[:most]:
            kind = type(obj)
            if opaque and id(obj) in opaque:
                found.append(obj)
                continue
            if kind is list:
                found.append(obj)
                some, inside = obj if len(obj) <= most else obj[:most], list[Any]()
                if not ATOMS.issuperset(map(type, some)):  # most things are made of atoms
                    inside = [child for child in some if type(child) not in ATOMS]
            elif kind is dict:
                found.append(obj)
                entries = obj if len(obj) <= most else dict(islice(obj.items(), most))
                inside = [
                    child for child in list(entries.values()) if type(child) not in ATOMS
                ]  # another thread may add one
                inside += [key for key in list(entries) if type(key) not in ATOMS]
            elif (what := role(kind)) is not None:
                if what.changes:
                    found.append(obj)
                inside = [child for child in islice(what.children(obj), most) if type(child) not in ATOMS]
            else:
                continue
            if inside and id(obj) not in seen:
                seen[id(obj)] = obj
                below += inside
        level = below
    return Walk(found, opaque)


def paths_from(root: Any, inside: Callable[[Any], Iterable[tuple[str, Any, Any]]] = inside) -> dict[int, Path]:
    """The shortest way to every object under a root, by its id."""
    found: dict[int, Path] = {id(root): ()}
    level: list[tuple[Any, Path]] = [(root, ())]
    while level:
        below: list[tuple[Any, Path]] = []
        for obj, path in level:
            for word, name, child in inside(obj):
                if type(child) not in ATOMS and id(child) not in found:
                    found[id(child)] = further = (
                        *path,
                        (word, name, type(child) if type(child) in FILLED else None),
                    )
                    below.append((child, further))
        level = below
    return found


def routes_to(things: Any, data: Mapping[str, Note], changed: set[int]) -> dict[int, Route]:
    """The routes to the objects that `things` lead to and that were in the data when it was noted.

    `changed` are the ids of objects that hold something else now.
    """
    wanted = {id(obj): obj for obj in walk_from(things).found}
    found: dict[int, Route] = {}
    digests = Digests()
    for name, note in data.items():
        there = wanted.keys() & set(map(id, note.walk.found)) - found.keys()
        paths = paths_from(note.value, partial(noted_inside, note.held())) if there else {}
        for at in there & paths.keys():
            same = changed.isdisjoint(map(id, walk_from(wanted[at]).found))
            content = digests.get(wanted[at]) if same else None
            if paths[at] and (content is not None or not same):
                found[at] = Route(name, paths[at], content)
    return found


def _at(obj: Any, path: Path) -> Any:
    for word, name, _ in path:
        obj = {(other, key): child for other, key, child in inside(obj)}[word, name]
    return obj


def _leads(obj: Any, path: Path) -> bool:
    for word, name, kind in path:
        known = {(word, name): child for word, name, child in inside(obj)}
        if (word, name) not in known and (word != "key" or kind is None or not isinstance(obj, dict)):
            return False
        obj = known[word, name] if (word, name) in known else kind()
        if kind is not None and type(obj) is not kind:
            return False
    return True


def _follow(obj: Any, path: Path) -> Any:
    for word, name, kind in path:
        if word == "key" and kind is not None and name not in obj:
            assign(obj, Updated([], [(name, kind())]))
        obj = next(child for other, key, child in inside(obj) if other == word and key == name)
    return obj


def size_of(value: Any, most: int) -> int:
    """How many objects and items a value leads to; if there are more than `most`, some number above that."""
    pending, size = [value], 0
    while pending and size <= most:
        obj = pending.pop()
        kind = type(obj)
        if kind in ATOMS:
            continue
        size += len(obj) + 1 if isinstance(obj, _SIZED) else 1
        what = role(kind) if size <= most else None
        if what is not None:
            pending.extend(what.children(obj))
    return size


def assign(obj: Any, content: Any) -> None:
    """Give an object this content, in place."""
    how = mutator(type(obj))
    assert how is not None, f"{type(obj)} had a way to be changed when it was recorded"
    if isinstance(content, DELTAS):
        content.apply(obj)
    else:
        how.assign(obj, content)
