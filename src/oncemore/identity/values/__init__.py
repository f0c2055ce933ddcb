"""The canonical content hash: equal values have equal digests, in any process and on any Python, unequal ones do not.

Two schemes; which one applies follows from the content alone.

* A value made of nothing but plain data (None, numbers, text, bytes, lists, tuples, dicts) is pickled without a memo,
  so that sharing and interning leave no trace, straight into the hash. That runs at the speed of C.
* Everything else is walked: each value is taken apart (`objects.describe`) and its digest made of its tag and its
  parts' digests. Plain parts fall under the first scheme. The walk keeps its own stack, visits what is shared once,
  and gives values that contain themselves the digest of their infinite unfolding.
"""

from __future__ import annotations

import gc
import io
import pickle
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from blake3 import blake3

from ...errors import FingerprintError
from ...modules import is_project_module
from . import builtin_types
from .builtin_types import Parts, name_of
from .cycles import colours
from .objects import describe, register_identity

__all__ = ["Digests", "digest", "identity", "register_identity"]

SCALARS = frozenset({type(None), bool, int, float, str, bytes, bytearray})
_CONTAINERS = frozenset({list, tuple, dict})
_DATA = SCALARS | _CONTAINERS
_DEEPEST = 64  # levels of plain data that are pickled; more would be a risk to the C stack
_LARGEST = 1 << 24  # elements of plain data that are pickled; sharing can unfold to more than there are atoms
_CHUNK = 2000
_OPEN_MODULES = frozenset(["builtins", "collections", "functools", "types", "_thread"])  # whose objects are looked into


def digest(value: Any) -> bytes:
    """Sixteen bytes that stand for the value. FingerprintError if it, or anything in it, has no stable identity."""
    return plain_digest(value) if is_flat(value) else Digests().of(value)


def identity(value: Any) -> bytes | None:
    """The content digest, None for what has none."""
    return Digests().get(value)


def is_flat(value: Any) -> bool:
    """Whether the value is a scalar, or holds nothing but scalars: plain data beyond doubt."""
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


# A pickler and its hash, ready for the next value: making them anew takes 2.1 us in place of 0.6, on every small call.
_spare: list[tuple[Callable[[object], None], Any]] = []


def plain_digest(value: object, prefix: bytes = b"") -> bytes:
    """The digest of plain data, which nobody checks here. The prefix keeps apart what is hashed for different purposes."""
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
    """The digest if the value is plain data beyond doubt, and how many elements were looked at to find out.

    Pickling calls the methods of whatever else it meets, so every level of the value is looked at first. The garbage
    collector's public view of what refers to what does that a thousand objects at a time: as long as the pickling takes.
    A loop over all containers takes five times as long. Levels are unfolded, so the depth is exact. The keys of dicts may
    be left out if they are strings.
    """
    elements = gc.get_referents(value) if type(value) is dict else value
    count, pending, doubt = 0, [(1, elements)], 1 << 14
    while pending:
        depth, level = pending.pop()
        if depth > _DEEPEST:
            return None, count
        for start in range(0, len(level), _CHUNK):
            part = level[start : start + _CHUNK]
            below = gc.get_referents(*part)
            count += len(below) + 20  # the call has a price of its own
            if count > most or not _DATA.issuperset(map(type, part)):
                return None, count
            if count > doubt:
                doubt *= 2
                if _is_mostly_shared(below):
                    return None, count
            if below:
                pending.append((depth + 1, below))
    return plain_digest(value), count


def _is_mostly_shared(level: list[object]) -> bool:
    """Whether the same few lists come again and again, as in a value that contains itself."""
    containers = [id(each) for each in level if type(each) in _CONTAINERS]
    return len(set(containers)) * 8 < len(containers)


class _Plain:
    """A part of a walked value that is plain data. Its parent may turn out to be plain as well."""

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
    """A value on the way of the walk, or one whose digest waits for a value that contains it."""

    __slots__ = ("at", "found", "index", "low", "parts", "todo", "value")

    def __init__(self, value: object, parts: Parts, index: int) -> None:
        self.value = value
        self.parts = parts
        self.todo = iter([at for at, child in enumerate(parts.children) if type(child) not in SCALARS])
        self.at = -1  # the part that is being visited
        self.found: dict[int, bytes | _Plain | _Node] = {}  # what came of the parts that are no scalars
        self.index = self.low = index  # Tarjan's numbers: where its cycle was entered


def _holder(path: list[_Node]) -> int | None:
    """Where the way enters a library's own object, never to come out: what lies inside is no business of the user's."""
    inside = None
    for at, node in enumerate(path):
        kind = type(node.value)
        if node.parts.by == "attribute" and kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
            inside = None if is_project_module(kind.__module__) else at if inside is None else inside
    return inside


def _digest_of_parts(parts: Parts, digests: dict[int, bytes]) -> bytes:
    """Scalars stand for themselves, other parts are replaced by their digests; it says where."""
    tag, children, _, unordered = parts
    if unordered:
        found = sorted(digests[at] if at in digests else plain_digest(child) for at, child in enumerate(children))
        return plain_digest((tag, found), b"set")
    items = list(children)
    for at, each in digests.items():
        items[at] = each
    return plain_digest((tag, items, sorted(digests)), b"parts")


class Digests:
    """The content digests of values, and of the objects that the way to them led through.

    What has been met is looked at once, however many values share it and however often it is asked for. So the answers
    are those of the time of the walk: after the objects may have changed, a new walk tells whether they have.

    A `tolerant` walk takes what has no stable identity by its type, and lists it in `opaque`. An object of a library's that
    leads to such a thing is taken so as a whole: nobody else knows what the state of a client means.
    """

    def __init__(self, *, tolerant: bool = False) -> None:
        self.opaque: dict[int, object] = {}
        self._tolerant = tolerant
        self._memo: dict[int, bytes | _Plain | _Node] = {}
        self._alive: list[object] = []  # an id in the memo is only good while its object lives
        self._columns: dict[int, list[bytes]] = {}
        self._path: list[_Node] = []
        self._waiting: list[_Node] = []
        self._trials = _LARGEST  # how many elements may be looked at in vain to find plain data; every node adds some

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
        """The digest, None if there is none."""
        try:
            return self.of(value)
        except FingerprintError:
            return None

    def columns(self, table: object) -> list[bytes]:
        """The digests of the columns of a table that was met, in order."""
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
            holder = _holder(path)
            where = "".join(node.parts.path_to(node.at) for node in (path if holder is None else path[:holder]))
            kind = None if holder is None else name_of(type(path[holder].value))
            for node in (*path, *self._waiting):  # nothing is known of them
                memo.pop(id(node.value), None)
            path.clear()
            self._waiting.clear()
            if isinstance(error, FingerprintError):
                raise FingerprintError(kind or error.kind, where + error.path) from error.__cause__
            raise
        return outcome

    def _try(self, value: Any) -> bytes | _Plain | None:
        """Enter a value, or take it by its type if it has no identity and the walk is tolerant."""
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
        """What is found out about a new value at once; None: it is on the path now."""
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
        node = _Node(value, parts, len(self._alive))
        self._memo[id(value)] = node
        self._path.append(node)
        return None

    def _as_plain(self, value: Any) -> _Plain | None:
        """An attempt to save the walk through plain data; where it fails, the walk finds out the same."""
        if is_flat(value):
            return _Plain(value, (1 if value else 0, len(value)))
        if self._trials <= 0:
            return None
        found, looked = _hash_of_plain(value, min(self._trials, _LARGEST))
        if found is None:
            self._trials -= looked + 50
            return None
        return _Plain(value, None, found)

    def _leave(self, node: _Node) -> bytes | _Plain | _Node:
        outcome: bytes | _Plain | _Node | None = _plain_of_plain(node) if type(node.value) in _CONTAINERS else None
        if outcome is None:
            outcome = self._close(node)
        self._trials += 50
        self._memo[id(node.value)] = outcome
        return outcome

    def _close(self, node: _Node) -> bytes | _Node:
        """The digest; or the node itself, if it lies in a cycle that was entered above."""
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
    """Whether reading takes something away that nobody sees: how far an iterator has come, what is left in a queue."""
    kind = type(value)
    return (hasattr(kind, "__next__") and not isinstance(value, io.IOBase)) or hasattr(kind, "get_nowait")


def _is_of_library(value: object) -> bool:
    """Whether this is an object of a class that is neither the project's nor one of Python's containers."""
    module = str(type(value).__module__)
    return module not in _OPEN_MODULES and not is_project_module(module)


_VALUES = frozenset(["numpy", "pandas", "polars", "pyarrow", "torch"])  # whose objects have contents, and may be large
_asked: set[tuple[int, int]] = set()  # by thread: what is being looked at


def _has_no_identity(value: object) -> bool:
    if type(value) in SCALARS or not _is_of_library(value) or type(value).__module__.partition(".")[0] in _VALUES:
        return False
    asked = threading.get_ident(), id(value)
    if asked in _asked:  # it leads back to the object that holds it
        return False
    _asked.add(asked)
    try:
        return identity(value) is None
    finally:
        _asked.discard(asked)


builtin_types.has_no_identity = _has_no_identity


def _known_digests(node: _Node) -> dict[int, bytes]:
    known: dict[int, bytes] = {}
    for at, found in node.found.items():
        if type(found) is bytes:
            known[at] = found
        elif isinstance(found, _Plain):
            known[at] = found.digest
    return known


def _plain_of_plain(node: _Node) -> _Plain | None:
    """Plain data after all: nothing but plain parts, and within the limits."""
    plain = [found for found in node.found.values() if isinstance(found, _Plain)]
    if len(plain) < len(node.found):
        return None
    extents = [found.extent for found in plain]
    size = len(node.value)  # type: ignore[arg-type]
    depth = 1 + max((depth for depth, _ in extents), default=0) if size else 0
    below = sum(count for _, count in extents)
    return _Plain(node.value, (depth, below + size)) if depth <= _DEEPEST and below <= _LARGEST else None


def _digests_of_cycle(nodes: list[_Node]) -> Iterable[bytes]:
    """Digests of values that contain each other: the whole cycle, each member named by its colour, and the colour."""
    place = {id(node): at for at, node in enumerate(nodes)}
    known = [_known_digests(node) for node in nodes]
    inner = [{at: place[id(found)] for at, found in node.found.items() if isinstance(found, _Node)} for node in nodes]
    labels = [
        _digest_of_parts(nodes[at].parts, {**known[at], **dict.fromkeys(inner[at], b"")}) for at in place.values()
    ]
    edges = [list(others.values()) for others in inner]
    found = colours(labels, edges, [node.parts.unordered for node in nodes], partial(plain_digest, prefix=b"colour"))
    members = {
        (colour, _digest_of_parts(nodes[at].parts, {**known[at], **{at: found[to] for at, to in inner[at].items()}}))
        for at, colour in enumerate(found)
    }
    whole = plain_digest(sorted(members), b"cycle")
    return [plain_digest((whole, colour), b"in cycle") for colour in found]
