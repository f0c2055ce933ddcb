"""The canonical content hash: two values have the same digest if and only if they are equal, in any process, on any Python.

There are two schemes. Which one applies depends on the content alone.

* Plain data (None, numbers, text, bytes, and lists, tuples and dicts of these) is pickled straight into the hash, without
  a memo, so that sharing and interning leave no trace. That runs at the speed of C.
* Everything else is walked: each value is taken apart (`objects.describe`), and its digest is made of its tag and the
  digests of its parts. Plain parts use the first scheme. The walk has its own stack, visits shared objects once, and
  gives values that contain themselves the digest of their infinite unfolding.
"""

from __future__ import annotations

import gc
import io
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from blake3 import blake3

from ...errors import FingerprintError
from ...modules import is_project_module
from .objects import describe, register_identity
from .parts import Parts, name_of

__all__ = ["Digests", "digest", "identity", "register_identity"]

SCALARS = frozenset({type(None), bool, int, float, str, bytes, bytearray})
_CONTAINERS = frozenset({list, tuple, dict})
_DATA = SCALARS | _CONTAINERS
_DEEPEST = 64  # levels of plain data that are pickled; more could overflow the C stack
_LARGEST = 1 << 24  # elements of plain data that are pickled; shared objects can unfold to astronomically many
_CHUNK = 2000
_OPEN_MODULES = frozenset(["builtins", "collections", "functools", "types", "_thread"])  # not opaque, though not ours


def digest(value: Any) -> bytes:
    """Sixteen bytes that identify the value. FingerprintError if it, or anything in it, has no stable identity."""
    return plain_digest(value) if is_flat(value) else Digests().of(value)


def identity(value: Any) -> bytes | None:
    """The content digest; None if there is none."""
    return Digests().get(value)


def is_flat(value: Any) -> bool:
    """Whether the value is a scalar or a container of nothing but scalars."""
    kind = type(value)
    if kind in SCALARS:
        return True
    if kind not in _CONTAINERS or not SCALARS.issuperset(map(type, value)):
        return False
    return kind is not dict or SCALARS.issuperset(map(type, value.values()))


# --- plain data -----------------------------------------------------------------------------------------------------


class _Sink:
    __slots__ = ("write",)

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write: Any = write


# Picklers and their hashers, for reuse: a small value then takes 0.6 us instead of 2.1.
_spare: list[tuple[Callable[[object], None], Any]] = []


def plain_digest(value: object, prefix: bytes = b"") -> bytes:
    """The digest of plain data (not checked here). Digests for different purposes have different prefixes."""
    try:
        dump, hasher = pair = _spare.pop()
    except IndexError:
        hasher = blake3()
        pickler = pickle.Pickler(_Sink(hasher.update), 5)
        pickler.fast = True
        dump, hasher = pair = pickler.dump, hasher
    if prefix:
        hasher.update(prefix)
    dump(value)
    found: bytes = hasher.digest(16)
    hasher.reset()
    _spare.append(pair)
    return found


def _hash_of_plain(value: Any, most: int) -> tuple[bytes | None, int]:
    """The digest if the value turns out to be plain data, and how many elements were examined.

    Pickling calls methods of any other object, so every level of the value is checked first. `gc.get_referents` does that
    for thousands of objects at a time, as quickly as pickling itself; a loop over all containers takes five times as long.
    Levels are unfolded, so the depth is exact. `gc` may leave out the keys of a dict if they are all strings.
    """
    elements = gc.get_referents(value) if type(value) is dict else value
    count, pending, next_check = 0, [(1, elements)], 1 << 14
    while pending:
        depth, level = pending.pop()
        if depth > _DEEPEST:
            return None, count
        for start in range(0, len(level), _CHUNK):
            part = level[start : start + _CHUNK]
            below = gc.get_referents(*part)
            count += len(below) + 20  # 20 for the cost of the call
            if count > most or not _DATA.issuperset(map(type, part)):
                return None, count
            if count > next_check:
                next_check *= 2
                if _is_mostly_shared(below):
                    return None, count
            if below:
                pending.append((depth + 1, below))
    return plain_digest(value), count


def _is_mostly_shared(level: list[object]) -> bool:
    """Whether the same few containers keep recurring, as in a value that contains itself."""
    containers = [id(each) for each in level if type(each) in _CONTAINERS]
    return len(set(containers)) * 8 < len(containers)


class _Plain:
    """Plain data inside a value that is walked. Its parent may turn out to be plain as well."""

    __slots__ = ("_digest", "_extent", "value")

    def __init__(self, value: Any, extent: tuple[int, int] | None = None, digest: bytes | None = None) -> None:
        self.value = value
        self._extent = extent
        self._digest = digest

    @property
    def digest(self) -> bytes:
        if self._digest is None:
            self._digest = plain_digest(self.value)
        return self._digest

    @property
    def extent(self) -> tuple[int, int]:
        """Its depth, and the number of elements in all its levels."""
        if self._extent is None:
            depth = count = 0
            level = [self.value]
            while level:
                depth, count = depth + 1, count + sum(map(len, level))
                level = [each for each in gc.get_referents(*level) if type(each) in _CONTAINERS and each]
            self._extent = depth, count
        return self._extent


# --- everything else ------------------------------------------------------------------------------------------------


class _Node:
    """A value on the path of the walk, or one in a cycle that is not complete yet."""

    __slots__ = ("at", "found", "index", "low", "parts", "todo", "value")

    def __init__(self, value: object, parts: Parts, index: int) -> None:
        self.value = value
        self.parts = parts
        self.todo = iter([at for at, child in enumerate(parts.children) if type(child) not in SCALARS])
        self.at = -1  # the part that is being visited
        self.found: dict[int, bytes | _Plain | _Node] = {}  # outcomes of the parts that are not scalars
        self.index = self.low = index  # as in Tarjan's algorithm for strongly connected components


def _library_object(path: list[_Node]) -> int | None:
    """The index at which the path enters a library's object for good. An error names that object, not its internals."""
    inside = None
    for at, node in enumerate(path):
        kind = type(node.value)
        if node.parts.by == "attribute" and kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
            inside = None if is_project_module(kind.__module__) else at if inside is None else inside
    return inside


def _digest_of_parts(parts: Parts, digests: dict[int, bytes]) -> bytes:
    """Hash the tag and the parts: scalars as they are, others by digest, and the positions of the latter."""
    tag, children, _, unordered = parts
    if unordered:
        found = sorted(digests[at] if at in digests else plain_digest(child) for at, child in enumerate(children))
        return plain_digest((tag, found), b"set")
    items = list(children)
    for at, each in digests.items():
        items[at] = each
    return plain_digest((tag, items, sorted(digests)), b"parts")


# An object may make up parts forever (`__reduce__`, `__getstate__`), so a walk is bounded.
_MOST_LEVELS = 250_000
_MOST_OBJECTS = 20_000_000  # those in plain data are not counted
_SHOWN = 20  # levels of a path in a message


class Digests:
    """The content digests of values and of all objects inside them.

    Each object is hashed once, however many values share it. So digests are as of the first walk through an object; after
    objects may have changed, use a new `Digests`.

    A `tolerant` walk identifies objects without a stable identity by their type, and lists them in `opaque`. If such an
    object is inside a library's object, the latter is opaque as a whole: only its library knows what its state means.
    """

    def __init__(self, *, tolerant: bool = False) -> None:
        self.opaque: dict[int, object] = {}
        self._tolerant = tolerant
        self._memo: dict[int, bytes | _Plain | _Node] = {}
        self._alive: list[object] = []  # an id in the memo is valid only while its object lives
        self._columns: dict[int, list[bytes]] = {}
        self._path: list[_Node] = []
        self._waiting: list[_Node] = []  # nodes of cycles that are not complete yet
        self._budget = _LARGEST  # elements that may be examined in vain in search of plain data; every node adds some

    def of(self, value: object) -> bytes:
        """The digest of a value. FingerprintError if it, or anything in it, has no stable identity."""
        if type(value) in SCALARS:
            return plain_digest(value)
        found = self._memo.get(id(value)) or self._walk(value)
        if isinstance(found, _Plain):
            return found.digest
        assert isinstance(found, bytes)  # every cycle is closed where it was entered
        return found

    def get(self, value: object) -> bytes | None:
        """The digest; None if there is none."""
        try:
            return self.of(value)
        except FingerprintError:
            return None

    def columns(self, table: object) -> list[bytes]:
        """The digests of a table's columns, in order, if the table was hashed before."""
        return self._columns.get(id(table), [])

    def _walk(self, value: object) -> bytes | _Plain | _Node | None:
        memo, path = self._memo, self._path
        outcome: bytes | _Plain | _Node | None
        try:
            outcome = self._try(value)
            while path:
                node = path[-1]
                for at in node.todo:
                    node.at, child = at, node.parts.children[at]
                    outcome = memo.get(id(child)) or self._try(child)
                    if outcome is None or path[-1:] != [node]:
                        break
                    node.found[at] = outcome
                else:
                    outcome = left = self._leave(path.pop())
                    if path:
                        path[-1].found[path[-1].at] = left
        except BaseException as error:
            outer = _library_object(path)
            inside = path if outer is None else path[:outer]
            where = "".join(node.parts.path_to(node.at) for node in inside[:_SHOWN])
            where += " ... " if len(inside) > _SHOWN else ""
            kind = None if outer is None else name_of(type(path[outer].value))
            for node in (*path, *self._waiting):  # these have no digest yet
                memo.pop(id(node.value), None)
            path.clear()
            self._waiting.clear()
            if isinstance(error, FingerprintError):
                raise FingerprintError(kind or error.kind, where + error.path) from error.__cause__
            raise
        return outcome

    def _try(self, value: Any) -> bytes | _Plain | None:
        """Enter a value. If it has no identity and the walk is tolerant, identify it by its type."""
        if len(self._alive) >= _MOST_OBJECTS:
            raise FingerprintError(f"{name_of(type(value))} after more than {_MOST_OBJECTS:,} other objects")
        try:
            return self._enter(value)
        except FingerprintError:
            first = next((i for i, node in enumerate(self._path) if _is_of_library(node.value)), None)
            if not self._tolerant or _is_used_up(value if first is None else self._path[first].value):
                raise
        if first is not None:
            value, index = self._path[first].value, self._path[first].index
            given_up = [*self._path[first + 1 :], *(node for node in self._waiting if node.index > index)]
            for node in given_up:
                self._memo.pop(id(node.value), None)
            self._waiting = [node for node in self._waiting if node.index < index]
            del self._path[first:]
        self.opaque[id(value)] = value
        kind = type(value)
        self._memo[id(value)] = found = plain_digest((kind.__module__, kind.__qualname__), b"opaque")
        if first is not None and self._path:
            self._path[-1].found[self._path[-1].at] = found
        return found

    def _enter(self, value: Any) -> bytes | _Plain | None:
        """The outcome for a new value if it is known at once; otherwise None, and the value is on the path."""
        kind = type(value)
        self._alive.append(value)
        if kind in _CONTAINERS:
            plain = self._as_plain(value)
            if plain is not None:
                self._memo[id(value)] = plain
                return plain
            parts = describe(value)
        else:
            parts = describe(value)
            if not parts.unordered and SCALARS.issuperset(map(type, parts.children)):
                self._memo[id(value)] = leaf = _digest_of_parts(parts, {})
                return leaf
        if len(self._path) >= _MOST_LEVELS:
            raise FingerprintError(f"{name_of(kind)} nested more than {_MOST_LEVELS:,} levels deep")
        node = _Node(value, parts, len(self._alive))
        self._memo[id(value)] = node
        self._path.append(node)
        return None

    def _as_plain(self, value: Any) -> _Plain | None:
        """A shortcut for plain data. Where it gives up, the walk comes to the same result."""
        if is_flat(value):
            return _Plain(value, (1 if value else 0, len(value)))
        if self._budget <= 0:
            return None
        found, examined = _hash_of_plain(value, min(self._budget, _LARGEST))
        if found is None:
            self._budget -= examined + 50
            return None
        return _Plain(value, None, found)

    def _leave(self, node: _Node) -> bytes | _Plain | _Node:
        outcome: bytes | _Plain | _Node | None = _plain_of_plain(node) if type(node.value) in _CONTAINERS else None
        if outcome is None:
            outcome = self._close(node)
        self._budget += 50
        self._memo[id(node.value)] = outcome
        return outcome

    def _close(self, node: _Node) -> bytes | _Node:
        """The digest; or the node itself, if it is part of a cycle that began further up the path."""
        known = _known_digests(node)
        if node.parts.by == "column":
            self._columns[id(node.value)] = [known[at] for at in node.parts.columns if at in known]
        if len(known) == len(node.found):
            return _digest_of_parts(node.parts, known)
        node.low = min(found.low for found in (node, *node.found.values()) if isinstance(found, _Node))
        self._waiting.append(node)
        if node.low < node.index:
            return node
        cycle: list[_Node] = []
        while self._waiting and self._waiting[-1].index >= node.index:
            cycle.append(self._waiting.pop())
        for member, found_digest in zip(cycle, _digests_of_cycle(cycle), strict=True):
            self._memo[id(member.value)] = found_digest
        return self._memo[id(node.value)]  # type: ignore[return-value]


def _is_used_up(value: object) -> bool:
    """Whether using the object consumes it, as with an iterator or a queue: its type says nothing about what is left."""
    kind = type(value)
    return (hasattr(kind, "__next__") and not isinstance(value, io.IOBase)) or hasattr(kind, "get_nowait")


def _is_of_library(value: object) -> bool:
    """Whether the object's class belongs to a library, as opposed to the project or Python's own containers."""
    module = str(type(value).__module__)
    return module not in _OPEN_MODULES and not is_project_module(module)


_VALUES = frozenset(["numpy", "pandas", "polars", "pyarrow", "torch"])  # their objects have content, and may be large
_in_progress: set[tuple[int, int]] = set()  # (thread, object) pairs


def is_client(value: object) -> bool:
    """Whether this is an object of a library that has no identity: a client, a pool, an engine."""
    if type(value) in SCALARS or not _is_of_library(value) or type(value).__module__.partition(".")[0] in _VALUES:
        return False
    key = threading.get_ident(), id(value)
    if key in _in_progress:  # it contains itself
        return False
    _in_progress.add(key)
    try:
        return identity(value) is None
    finally:
        _in_progress.discard(key)


def _known_digests(node: _Node) -> dict[int, bytes]:
    known: dict[int, bytes] = {}
    for at, found in node.found.items():
        if type(found) is bytes:
            known[at] = found
        elif isinstance(found, _Plain):
            known[at] = found.digest
    return known


def _plain_of_plain(node: _Node) -> _Plain | None:
    """The container as plain data, if all its parts are plain and it is within the limits."""
    plain = [found for found in node.found.values() if isinstance(found, _Plain)]
    if len(plain) < len(node.found):
        return None
    extents = [found.extent for found in plain]
    size = len(node.value)  # type: ignore[arg-type]
    depth = 1 + max((depth for depth, _ in extents), default=0) if size else 0
    below = sum(count for _, count in extents)
    return _Plain(node.value, (depth, below + size)) if depth <= _DEEPEST and below <= _LARGEST else None


def _digests_of_cycle(nodes: list[_Node]) -> Iterable[bytes]:
    """Digests of values that contain each other: each is made of the whole cycle and of the value's colour in it."""
    position = {id(node): at for at, node in enumerate(nodes)}
    known = [_known_digests(node) for node in nodes]
    inner = [
        {at: position[id(found)] for at, found in node.found.items() if isinstance(found, _Node)} for node in nodes
    ]
    labels = [
        _digest_of_parts(node.parts, {**known[at], **dict.fromkeys(inner[at], b"")}) for at, node in enumerate(nodes)
    ]
    edges = [list(others.values()) for others in inner]
    found = colours(labels, edges, [node.parts.unordered for node in nodes], partial(plain_digest, prefix=b"colour"))
    members = {
        (colour, _digest_of_parts(nodes[at].parts, {**known[at], **{at: found[to] for at, to in inner[at].items()}}))
        for at, colour in enumerate(found)
    }
    whole = plain_digest(sorted(members), b"cycle")
    return [plain_digest((whole, colour), b"in cycle") for colour in found]


Signature: TypeAlias = tuple[bytes, ...]


def colours(
    labels: Sequence[bytes], edges: Sequence[Sequence[int]], loose: Sequence[bool], mix: Callable[[object], bytes]
) -> list[bytes]:
    """A colour for each node of a graph: equal for two nodes if and only if no walk from them finds a difference.

    A walk sees the labels of nodes and the order of their edges, unless a node is `loose`. Nodes of one colour whose
    neighbours differ in colour are split. The group whose view (neighbours' colours) the colour stands for keeps it, so
    that in a long chain only nodes near a change are examined again. Decisions depend on views and never on how many
    nodes have them, so shared and copied parts get the same colours.
    """
    found, size, meaning = list(labels), Counter(labels), dict[bytes, Signature]()
    back: list[list[int]] = [[] for _ in labels]
    for node, others in enumerate(edges):
        for other in others:
            back[other].append(node)

    def view_of(node: int) -> Signature:
        neighbours = [found[other] for other in edges[node]]
        return tuple(sorted(neighbours) if loose[node] else neighbours)

    touched: Iterable[int] = range(len(labels))
    while touched:
        groups: dict[bytes, dict[Signature, list[int]]] = {}
        for node in touched:
            groups.setdefault(found[node], {}).setdefault(view_of(node), []).append(node)
        changed: list[int] = []
        for colour, views in groups.items():
            if size[colour] > sum(map(len, views.values())):  # the untouched nodes still have the old view
                views.setdefault(meaning[colour], [])
            if meaning.get(colour) not in views:
                meaning[colour] = min(views)
            for view in [view for view in views if view != meaning[colour]]:
                new = mix((colour, view))
                meaning[new], size[new] = view, len(views[view])
                size[colour] -= size[new]
                for node in views[view]:
                    found[node] = new
                changed += views[view]
        touched = {node for other in changed for node in back[other]}
    return found
