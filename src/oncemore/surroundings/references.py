"""The caller's objects that can be changed in place, named so that another process finds them again.

`Roots` lists what is reachable from an argument, a global or a state value, in an order that depends only on content and
sharing. An object is named by its root and its index in that list. Equal arguments of a later run that share their parts in
the same way produce an equal list, so the name leads to the caller's own object there. How objects of each type are changed
is in mutable_types.py.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, Union

from blake3 import blake3

from ..codec import dumps, loads
from ..errors import CodecError
from ..identity.values import Digests
from ..identity.values.builtin_types import ATOMS, category
from ..modules import loaded
from .mutable_types import DELTAS, FILLABLE, Updated, mutator_of, named_children, role

# From a root to an object: for each hop its kind ("key", "attribute" or "place"), its name, and the type of the container to
# create if it is missing. Unlike an index, a path stays valid when the root gets more content.
Path = tuple[tuple[str, Any, Any], ...]
Contents = dict[Union[int, Path], Any]  # by index in the walk, or by path
_SIZED = (list, dict, set, frozenset, tuple, deque)
Root = tuple[str, str]  # kind ("argument", "global" or "state") and name
Name = tuple[str, str, int]  # kind and name of the root, index in its walk


class View(NamedTuple):
    """An array that shows part of the memory of a named array."""

    name: Name
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Route(NamedTuple):
    """The path to an object in global data as it was before the change that names the object, and the object's digest."""

    root: str
    path: Path
    content: bytes | None  # None if the object was changed


class Walk(NamedTuple):
    """What is reachable from a root at one moment."""

    found: list[Any]  # objects that can be changed, or might be, in the order of the walk; a shared object each time
    opaque: Collection[int] = ()  # ids of objects that are not looked into

    def once(self) -> Iterator[tuple[int, Any]]:
        """Each object once, with its first index."""
        first: dict[int, int] = {}
        return ((i, obj) for i, obj in enumerate(self.found) if first.setdefault(id(obj), i) == i)


class Note(NamedTuple):
    """A root before a step, to detect changes.

    `before` has, by index, what each object holds by reference, or its digest if it holds nothing by reference. `whole` is
    the digest of the root's value.
    """

    value: Any
    walk: Walk
    before: dict[int, Any]
    whole: bytes | None = None

    def held(self) -> dict[int, Any]:
        """What the objects held, by their ids."""
        return {id(obj): self.before[i] for i, obj in self.walk.once()}

    def changed(self, after: Note | None = None, now: Digests | None = None) -> Iterator[tuple[int, Any, Any]]:
        """The objects that have changed: the index, the object, and what it holds now.

        `after` is a newer note of the same root. An object without a digest counts as unchanged.
        """
        now = now or Digests()
        held = {} if after is None else after.held()
        for i, obj in self.walk.once():
            if self.walk.opaque and id(obj) in self.walk.opaque:
                continue
            mutator, then = mutator_of(type(obj)), self.before[i]
            if mutator is None or then is None or type(then) is bytes:
                holds = now.get(obj)
                if holds != then:
                    yield i, obj, holds
            else:
                holds = held[id(obj)] if id(obj) in held else mutator.note(obj)
                if type(holds) is bytes or not mutator.same(then, holds):
                    yield i, obj, holds


def _label(kind: str, name: str) -> str:
    return name if kind == "global" else f"{kind} `{name}`"


class Roots:
    """The objects that a call shares with its caller, by name.

    Each root is walked before the step runs, because the step may take objects out of it. Names are assigned when the first
    is needed: most steps return none of their caller's objects.
    """

    def __init__(
        self,
        lookup: Callable[[str, str], Any],
        loose: Callable[[str], bool] = lambda name: False,
        walk: Callable[[str, str, Any], Walk] = lambda kind, name, value: walk_from(value),
    ) -> None:
        self._lookup, self._loose, self._walk = lookup, loose, walk
        self._walks: dict[Root, Walk] = {}
        self._names: dict[int, Name] = {}
        self._shapes: dict[Root, str] = {}
        self.listed: list[tuple[str, str, str]] = []  # roots whose shapes must match on a skip; grows while pickling
        self.concurrent = False  # other steps change the same data meanwhile
        self.routes: dict[int, Route] = {}  # if so: to objects in what the step returned and changed, by id
        self._contents: dict[int, Any] = {}
        self.recorded: set[int] = set()  # ids of objects whose changes are already recorded under some root
        self.notes: dict[Root, Note] = {}  # the roots before the step, which may have changed them since

    def add(self, kind: str, name: str, walk: Walk | None = None) -> list[Any]:
        """Register the objects under a root: as they are now, or as an earlier walk found them."""
        root = (kind, name)
        if root not in self._walks:
            self._walks[root] = walk or self._walk(kind, name, self._lookup(kind, name))
        return self._walks[root].found

    def _assign_names(self) -> None:
        if len(self._shapes) == len(self._walks):
            return
        for root in [root for root in self._walks if root not in self._shapes]:
            shape: list[str] = []
            for i, obj in enumerate(self._walks[root].found):
                name = (*root, i)
                known = self._names.setdefault(id(obj), name)
                again = known is not name and mutator_of(type(obj)) is not None  # sharing matters only if it can change
                shape.append(repr(known) if again else category(type(obj)) or type(obj).__qualname__)
            self._shapes[root] = blake3(",".join(shape).encode()).hexdigest(length=8)

    def match(self, listed: Iterable[tuple[str, str, str]], kinds: Collection[str]) -> None:
        """Walk the roots in the recorded order. CodecError if their structure differs from when the result was saved."""
        for kind, name, shape in listed:
            if kind in kinds:
                self.add(kind, name)
                self._assign_names()
                if self._shapes[kind, name] != shape:
                    raise CodecError(
                        f"{_label(kind, name)} consists of other objects, or shares them differently, than when the "
                        f"result was saved"
                    )

    @property
    def known(self) -> Iterable[int]:
        """The ids of the objects under all roots."""
        return (id(obj) for walk in self._walks.values() for obj in walk.found)

    def __bool__(self) -> bool:
        return any(walk.found for walk in self._walks.values())

    def name(self, obj: Any) -> Name | View | None:
        """The name of an object that the caller has, too. Pickles contain the name instead of a copy."""
        if type(obj) in ATOMS:
            return None
        name = self._find_name(obj)
        if name is None:
            return None
        kind, root, index = name.name if isinstance(name, View) else name
        if kind == "global" and index and self.concurrent:
            return None  # its index changes when the other steps have made their changes
        self.list((kind, root))
        return name

    def name_in_order(self, obj: Any) -> Name | View | Route | None:
        """The name of an object that the caller has, or that is in the data once earlier steps have made their changes."""
        return self.routes.get(id(obj)) or self.name(obj)

    def _find_name(self, obj: Any) -> Name | View | None:
        self._assign_names()
        return self._names.get(id(obj)) or self._view(obj)

    def _view(self, obj: Any) -> View | None:
        """An array as part of the memory of a named one."""
        numpy = loaded("numpy")
        if numpy is None or type(obj) is not numpy.ndarray or obj.dtype.hasobject or id(obj) in self._contents:
            return None
        base = obj.base
        while type(base) is numpy.ndarray:
            found = self._names.get(id(base))
            if found is not None and base.flags.c_contiguous and not base.dtype.hasobject:
                offset = obj.__array_interface__["data"][0] - base.__array_interface__["data"][0]
                return View(found, obj.dtype, obj.shape, obj.strides, offset)
            base = base.base
        return None

    def list(self, used: Root | None = None) -> None:
        """Record that the checkpoint is valid only if the caller's objects are shared as they are now."""
        self._assign_names()
        for root, shape in self._shapes.items():
            item = (*root, shape)
            if root[0] == "global" and self.concurrent:
                continue  # its structure may differ: changes are found by path
            if item not in self.listed and (root == used or root[0] != "argument" or not self._loose(root[1])):
                self.listed.append(item)

    def find(self, name: Name | View | Route) -> Any:
        """The caller's own object of that name. LookupError if a route leads to no such object."""
        if isinstance(name, Route):
            found = _follow(self._lookup("global", name.root), tuple((hop, key, None) for hop, key, _ in name.path))
            if name.content is not None and Digests().get(found) != name.content:
                raise LookupError(name.root)
            return found
        if isinstance(name, View):
            memory = self.find(name.name)
            return loaded("numpy").ndarray(name.shape, name.dtype, memory, name.offset, name.strides)
        kind, root, index = name
        return self.add(kind, root)[index]

    def forget(self, kind: str) -> None:
        """Drop the roots of that kind: a generator goes on, and its consumer may have replaced their objects."""
        for root in [root for root in self._walks if root[0] == kind]:
            del self._walks[root]
            self._shapes.pop(root, None)
            self.notes.pop(root, None)
        self._names = {obj: name for obj, name in self._names.items() if name[0] != kind}
        self.listed[:] = [item for item in self.listed if item[0] != kind]

    # -- what a step changes

    def note(self, kind: str, name: str, digests: Digests | None = None, *, whole: bool = False) -> Note:
        """Note a root before a step. `digests` are those of a walk that has just been through it."""
        value, digests = self._lookup(kind, name), digests or Digests()
        walk = self._walks.get((kind, name)) or self._walk(kind, name, value)
        before: dict[int, Any] = {}
        for i, obj in walk.once():
            if walk.opaque and id(obj) in walk.opaque:
                before[i] = None
            elif type(obj) is dict or type(obj) is list:  # most objects are; this is what their mutators note
                before[i] = obj.copy()
            else:
                mutator = mutator_of(type(obj))
                if mutator is None or mutator.by_digest or not mutator.can_restore(obj):
                    before[i] = digests.get(obj)
                else:
                    before[i] = mutator.note(obj)
        note = self.notes[kind, name] = Note(value, walk, before, digests.get(value) if whole else None)
        return note

    def changed_in(self, walk: Walk) -> str | None:
        """The label of a noted root that shares an object with `walk`, if that object has changed since."""
        ids = {id(obj) for obj in walk.found}
        for (kind, name), note in self.notes.items():
            shared = not ids.isdisjoint(map(id, note.walk.found))
            if shared and any(id(obj) in ids for _, obj, _ in note.changed()):
                return _label(kind, name)
        return None

    def changes(
        self, kind: str, name: str, note: Note, after: Note | None = None, now: Digests | None = None
    ) -> Contents | None:
        """The new contents of changed objects under a root, children by reference; None if nothing changed.

        CodecError if a change cannot be restored. An object that is reachable from several roots is recorded under the first.
        While other steps run, which may add objects, objects are named by path; those that no path leads to are left out.
        """
        found: Contents = {}
        paths: dict[int, Path] = {}
        exact = kind != "argument" or not self._loose(name)  # on a skip, the objects are as they were before the step
        for i, obj, holds in note.changed(after, now):
            if id(obj) in self.recorded:
                continue
            at: int | Path | None = i
            if self.concurrent and kind == "global":
                paths = paths or ({} if obj is note.value else paths_from(note.value))
                at = () if obj is note.value else paths.get(id(obj))
            if at is None:
                continue
            self.recorded.add(id(obj))
            mutator, then = mutator_of(type(obj)), note.before[i]
            unnoted = mutator is not None and not mutator.by_digest and type(then) is bytes
            if mutator is None or unnoted or not mutator.can_restore(obj):
                raise CodecError(
                    f"{_label(kind, name)} was changed in place, and a {type(obj).__name__} cannot be changed again when the "
                    f"step is skipped; return it instead, or use mutates=False if the change does not matter"
                )
            delta = mutator.delta(then, holds) if exact and mutator.delta and type(holds) is not bytes else None
            if self.concurrent and isinstance(delta, Updated):
                delta = delta.summed(then)
            found[at] = self.as_content(mutator.content(obj) if delta is None else delta)
        if not found:
            return None
        self.list((kind, name))
        return found

    def arguments_in(self, value: Any) -> Iterable[tuple[Any, Any]]:
        """The arguments' objects that are reachable from a value, with their contents."""
        self._assign_names()
        named = (obj for _, obj in walk_from(value).once() if self._names.get(id(obj), ("",))[0] == "argument")
        mutators = ((obj, mutator_of(type(obj))) for obj in named)
        return [
            (obj, mutator.content(obj)) for obj, mutator in mutators if mutator is not None and mutator.can_restore(obj)
        ]

    def leads(self, kind: str, name: str, at: int | Path) -> bool:
        """Whether an index or path leads to an object whose content can be assigned."""
        try:
            return isinstance(at, int) or _follow(self._lookup(kind, name), at) is not None
        except LookupError:
            return False

    def assign(self, kind: str, name: str, contents: Contents) -> None:
        """Give the objects under a root these contents, in place."""
        for at, content in contents.items():
            try:
                obj = (
                    self.find((kind, name, at))
                    if isinstance(at, int)
                    else _follow(self._lookup(kind, name), at, create=True)
                )
                assign(obj, content)
            except (LookupError, TypeError) as error:
                raise CodecError(
                    f"{_label(kind, name)} consists of other objects than when the result was saved"
                ) from error

    def backup(self, kind: str, name: str) -> Backup:
        """The contents of a noted root, to be put back."""
        return Backup(_label(kind, name), self.notes[kind, name])

    def contents(self, kind: str, name: str) -> dict[int, Any]:
        """The content of every object under a root that can be changed, children by reference."""
        self.add(kind, name)
        return {i: self.as_content(content) for i, content in _contents(self._walks[kind, name]).items()}

    def as_content(self, content: Any) -> Any:
        """Mark a value as content: an array's content is a view of it, which must not be pickled by name."""
        self._contents[id(content)] = content
        return content

    def forget_contents(self) -> None:
        """Release the contents: they have been pickled."""
        self._contents.clear()

    def changeable(self, obj: Any) -> Name | View | None:
        """The name of an object whose content is in `contents`."""
        mutator = mutator_of(type(obj))
        return None if mutator is None or not mutator.can_restore(obj) else self._find_name(obj)


def _contents(walk: Walk) -> dict[int, Any]:
    mutators = ((i, obj, mutator_of(type(obj))) for i, obj in walk.once())
    return {i: mutator.content(obj) for i, obj, mutator in mutators if mutator is not None and mutator.can_restore(obj)}


class Frozen:
    """A pickled copy of the contents of what a walk found, to be put back into the same objects."""

    def __init__(self, walk: Walk) -> None:
        self._found = walk.found
        indices = {id(obj): i for i, obj in walk.once()}
        self._contents = dumps(_contents(walk), lambda obj: indices.get(id(obj)))

    def thaw(self) -> None:
        for i, content in loads(self._contents, find=self._found.__getitem__).items():
            assign(self._found[i], content)


class Backup:
    """The contents of a root's objects, to be put back into them if the step fails and is tried again.

    What an object holds by reference is noted by reference, so that nothing is replaced by a copy; anything else is pickled.
    """

    def __init__(self, label: str, note: Note) -> None:
        self._label, self._note = label, note
        self._contents: dict[int, Any] = {}
        self._pickled: dict[int, bytes] = {}
        indices = {id(obj): i for i, obj in note.walk.once()}
        for i, content in _contents(note.walk).items():
            mutator = mutator_of(type(note.walk.found[i]))
            if mutator is None or not mutator.goes_back:
                continue
            if mutator.by_digest:
                with suppress(CodecError):
                    self._pickled[i] = dumps(content, lambda obj: indices.get(id(obj)))
            else:
                self._contents[i] = content

    def put_back(self) -> None:
        """CodecError if an object has changed that can't be put back."""
        for i, obj, _ in list(self._note.changed()):
            if i in self._contents:
                assign(obj, self._contents[i])
            elif i in self._pickled:
                assign(obj, loads(self._pickled[i], find=self._note.walk.found.__getitem__))
            else:
                raise CodecError(f"{self._label} was changed in place, and a {type(obj).__name__} cannot be put back")


def walk_from(root: Any, opaque: Collection[int] = (), most: int = sys.maxsize) -> Walk:
    """Every object reachable from `root` that can be changed, or might be, or is a tool such as a lock; level by level.

    Objects in `opaque` are not looked into. `most` limits the number of objects, roughly, and the elements of each.
    """
    found: list[Any] = []
    expanded: dict[int, Any] = {}  # keeps the objects alive: an id is unique only while its object exists
    level = [root] if type(root) not in ATOMS else []
    while level and len(found) < most:
        below: list[Any] = []
        for obj in islice(level, most):
            kind = type(obj)
            if opaque and id(obj) in opaque:
                found.append(obj)
                continue
            if kind is list:
                found.append(obj)
                items, children = obj if len(obj) <= most else obj[:most], list[Any]()
                if not ATOMS.issuperset(map(type, items)):  # a quick check: most lists contain only atoms
                    children = [child for child in items if type(child) not in ATOMS]
            elif kind is dict:
                found.append(obj)
                entries = obj if len(obj) <= most else dict(islice(obj.items(), most))
                # copies: another thread may add an entry
                children = [child for child in list(entries.values()) if type(child) not in ATOMS]
                children += [key for key in list(entries) if type(key) not in ATOMS]
            elif (what := role(kind)) is not None:
                if what.mutable:
                    found.append(obj)
                children = [child for child in islice(what.children(obj), most) if type(child) not in ATOMS]
            else:
                continue
            if children and id(obj) not in expanded:
                expanded[id(obj)] = obj
                below += children
        level = below
    return Walk(found, opaque)


def paths_from(root: Any, held: Mapping[int, Any] = {}) -> dict[int, Path]:
    """The shortest path to every object under a root, by the object's id; `held` as in `named_children`."""
    found: dict[int, Path] = {id(root): ()}
    level: list[tuple[Any, Path]] = [(root, ())]
    while level:
        below: list[tuple[Any, Path]] = []
        for obj, path in level:
            for hop, name, child in named_children(obj, held):
                if type(child) not in ATOMS and id(child) not in found:
                    container = type(child) if type(child) in FILLABLE else None
                    found[id(child)] = longer = (*path, (hop, name, container))
                    below.append((child, longer))
        level = below
    return found


def routes_to(things: Any, data: Mapping[str, Note], changed: set[int]) -> dict[int, Route]:
    """Routes to the objects that are reachable from `things` and were in the data when it was noted, by their ids.

    `changed` has the ids of objects that have changed since.
    """
    wanted = {id(obj): obj for obj in walk_from(things).found}
    found: dict[int, Route] = {}
    digests = Digests()
    for name, note in data.items():
        shared = wanted.keys() & set(map(id, note.walk.found)) - found.keys()
        paths = paths_from(note.value, note.held()) if shared else {}
        for each in shared & paths.keys():
            unchanged = changed.isdisjoint(map(id, walk_from(wanted[each]).found))
            content = digests.get(wanted[each]) if unchanged else None
            if paths[each] and (content is not None or not unchanged):
                found[each] = Route(name, paths[each], content)
    return found


def _follow(obj: Any, path: Path, *, create: bool = False) -> Any:
    """The object at the end of a path. LookupError if there is none, or a container of another type.

    A container that is missing in a dict counts as empty; with `create`, it is put there.
    """
    for hop, name, container in path:
        children = {(kind, key): child for kind, key, child in named_children(obj)}
        if (hop, name) not in children and hop == "key" and container is not None and isinstance(obj, dict):
            children[hop, name] = container()
            if create:
                assign(obj, Updated([], [(name, children[hop, name])]))
        obj = children[hop, name]
        if container is not None and type(obj) is not container:
            raise LookupError(name)
    return obj


def size_of(value: Any, most: int) -> int:
    """The number of objects and items reachable from a value, each object once. Above `most` it stops counting."""
    pending, size = [value], 0
    counted: dict[int, Any] = {}  # keeps the objects alive: an id is unique only while its object exists
    while pending and size <= most:
        obj = pending.pop()
        kind = type(obj)
        if kind in ATOMS or id(obj) in counted:
            continue
        counted[id(obj)] = obj
        size += len(obj) + 1 if isinstance(obj, _SIZED) else 1
        what = role(kind) if size <= most else None
        if what is not None:
            pending.extend(what.children(obj))
    return size


def assign(obj: Any, content: Any) -> None:
    """Give an object this content, in place."""
    mutator = mutator_of(type(obj))
    assert mutator is not None, f"{type(obj)} could be changed in place when it was recorded"
    if isinstance(content, DELTAS):
        content.apply(obj)
    else:
        mutator.assign(obj, content)
