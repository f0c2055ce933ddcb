"""Data that code reaches: values in modules, classes, closures and defaults.

Constants are part of the code. A value that can change, or a name that the code itself rebinds, is a `Datum`: a step
reads it when it is called, and may change it. Its name says how the code reached it, and is the same in every process.
"""

from __future__ import annotations

import contextlib
import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ...errors import FingerprintError
from ..display import is_secret, short
from ..values import Digests, digest
from ..values.builtin_types import is_immutable
from .statements import Statement, binding, made_when_needed
from .syntax import hashed

ABSENT: Any = type("ABSENT", (), {})  # the value of a slot that nothing is bound to
DATA = hashed("data")  # represents data in the identity of code

_CODE = (FunctionType, BuiltinFunctionType, ModuleType)  # watched for changes by other means, as classes are
_CONTAINERS = frozenset({dict, list, set, tuple, frozenset})
_SMALL = 200  # up to this many elements, comparing each by identity is quicker than hashing again

# By id: clients and the like that a step created when it needed them, and the value that identifies them instead.
_created: dict[int, tuple[object, object]] = {}


class Slot(NamedTuple):
    """Where a value is bound: how to read it, and how to bind another one (`ABSENT` unbinds)."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], None]
    space: Mapping[str, Any] | None = None  # the module's namespace, if it is a global
    owner: Any = None  # the namespace, class or cell


def in_mapping(space: dict[str, Any], name: str) -> Slot:
    def bind(value: Any) -> None:
        if value is ABSENT:
            space.pop(name, None)
        else:
            space[name] = value

    return Slot(name, lambda: space.get(name, ABSENT), bind, space, space)


def in_cell(cell: CellType, name: str) -> Slot:
    def look() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return ABSENT

    def bind(value: Any) -> None:
        if value is ABSENT:
            del cell.cell_contents
        else:
            cell.cell_contents = value

    return Slot(name, look, bind, owner=cell)


def in_context(variable: ContextVar[Any]) -> Slot:
    def bind(value: Any) -> None:
        if value is not ABSENT:  # context variables can't be unset
            variable.set(value)

    def look() -> Any:
        try:
            return variable.get()
        except LookupError:
            return ABSENT

    return Slot(variable.name, look, bind)


def in_class(klass: type, name: str) -> Slot:
    def bind(value: Any) -> None:
        if value is ABSENT:
            if name in vars(klass):
                delattr(klass, name)
        else:
            setattr(klass, name, value)

    return Slot(name, lambda: vars(klass).get(name, ABSENT), bind, owner=klass)


class Datum:
    """Data that a function reads besides its arguments, and can change.

    `opaque` holds the objects in it that have no identity, such as clients. They are identified by their type and by the
    statement that bound them.
    """

    __slots__ = ("_memo", "name", "opaque", "slot", "value")

    def __init__(self, name: str, value: Any, slot: Slot | None) -> None:
        self.name, self.value, self.slot = name, value, slot
        self.opaque: dict[int, object] = {}
        self._memo: tuple[list[tuple[Any, list[Any]]] | None, bytes] = (None, b"")

    @property
    def now(self) -> Any:
        """The value bound in the slot now; `value` is the one seen last."""
        return self.value if self.slot is None else self.slot.get()

    def look_again(self) -> bool:
        """Update `value`. False if the slot now holds code instead of data."""
        now = self.now
        if now is self.value:
            return True
        if isinstance(now, (FunctionType, type, ModuleType)) or callable(now):
            return False
        self.value, self._memo = now, (None, b"")
        return True

    def digest(self) -> bytes:
        """The digest of its present content."""
        containers, found = self._memo
        if containers is not None and all(_is_same(each, items) for each, items in containers):
            return found
        value = self.value
        if id(value) in _created:
            self.opaque = {id(value): value}
            value = _created[id(value)][1]
            return digest(value) if value is not ABSENT else hashed("absent")
        containers = _containers_of(value)
        if value is ABSENT:
            found = hashed("absent")
        else:
            digests = Digests(tolerant=True)
            found, self.opaque = digests.of(value), digests.opaque
            if id(value) in self.opaque and self._is_made_when_needed():
                found = digest(None)  # the script created it; treated like one that a step created
            elif self.opaque and (statement := self.statement) is not None:
                found = hashed(found, statement.digest, *self._constants(statement))
        if value is not self.value or containers is None:
            return found
        if all(_is_same(each, items) for each, items in containers):  # no other thread has changed it meanwhile
            self._memo = containers, found
        return found

    def leave_to_the_code(self, value: Any, before: Any) -> bool:
        """Whether the value is a client or the like that the code creates on first use, and would create again.

        From then on it is identified by the value `before`, which is what remains when the step that created it is skipped.
        """
        if before is not None and before is not ABSENT:
            return False
        digests = Digests(tolerant=True)
        with contextlib.suppress(FingerprintError):
            digests.of(value)
        if id(value) not in digests.opaque or not self._is_made_when_needed():
            return False
        _created[id(value)] = value, before
        return True

    def _is_made_when_needed(self) -> bool:
        """Whether the code creates it on first use."""
        if self.slot is None:
            return False
        if isinstance(self.slot.owner, type):
            return self.slot.name in made_when_needed(self.slot.owner)
        return self.statement is not None and self.statement.when_needed

    @property
    def key(self) -> tuple[int, str]:
        """Unique among the data in this process."""
        return (id(self.value), "") if self.slot is None else (id(self.slot.owner), self.slot.name)

    @property
    def statement(self) -> Statement | None:
        """The statement that binds it, if its source is known."""
        return None if self.slot is None or self.slot.space is None else binding(self.slot.space, self.slot.name)

    def _constants(self, statement: Statement) -> list[bytes]:
        """The digests of constants in the statement, such as `URL` in `Client(base_url=URL)`."""
        assert self.slot is not None and self.slot.space is not None
        found = ((name, self.slot.space.get(name, ABSENT)) for name in sorted(statement.names))
        return [digest((name, value)) for name, value in found if type(value) in (bool, int, float, str, bytes)]

    @property
    def shown(self) -> str:
        """Its display text."""
        if self.value is ABSENT:
            return "absent"
        if is_secret(self.name.rstrip("`").rpartition(".")[2]):
            return f"#{self.digest().hex()[:8]}"
        statement = self.statement if id(self.value) in self.opaque else None
        return short(self.value) if statement is None else f"{type(self.value).__name__}, by `{statement.text}`"


def is_constant(value: object) -> bool:
    """Whether nothing in the value can change."""
    pending = [value]
    while pending:
        each = pending.pop()
        if type(each) is tuple or type(each) is frozenset:
            pending.extend(each)
        elif not _is_fixed(each):
            return False
    return True


def _is_fixed(value: object) -> bool:
    kind = type(value)
    if is_immutable(kind) or kind in _CODE or isinstance(value, type):
        return True
    return isinstance(value, enum.Enum) and is_constant(value._value_)


def _containers_of(value: object) -> list[tuple[Any, list[Any]]] | None:
    """The containers inside a small value, each with its items; None if it is large or anything else in it is mutable."""
    found: list[tuple[Any, list[Any]]] = []
    pending, left = [value], _SMALL
    while pending:
        each: Any = pending.pop()
        if type(each) in _CONTAINERS:
            items = _items_of(each)
            left -= len(items)
            if left < 0:
                return None
            found.append((each, items))
            pending.extend(items)
        elif not _is_fixed(each) and each is not ABSENT:
            return None
    return found


def _items_of(container: Any) -> list[Any]:
    return [*container, *container.values()] if type(container) is dict else list(container)


def _is_same(container: Any, items: list[Any]) -> bool:
    now = _items_of(container)
    return len(now) == len(items) and all(map(operator.is_, now, items))


# --- whether what code reaches has changed ----------------------------------------------------------------------------


_mro_of = operator.attrgetter("__mro__")


class Watch:
    """The objects that a walk has seen, and where. It keeps them alive, so that their ids stay unique."""

    def __init__(self) -> None:
        self._spaces: dict[int, tuple[Mapping[str, Any], dict[str, Any], set[str]]] = {}
        self._functions: list[tuple[FunctionType, CodeType, object]] = []
        self._bound: list[tuple[Callable[[], object], object]] = []
        self._mappings: list[tuple[Mapping[Any, Any], list[Any], list[Any], list[int]]] = []
        self._classes: list[type] = []
        self._mros: list[object] = []
        self._equal: dict[Callable[[], object], object] = {}
        self._several: list[tuple[Callable[[], Sequence[object]], list[int], Sequence[object]]] = []

    def name(self, space: Mapping[str, Any], name: str, seen: object) -> None:
        self._spaces.setdefault(id(space), (space, {}, set()))[1][name] = seen

    def absence(self, space: Mapping[str, Any], name: str) -> None:
        self._spaces.setdefault(id(space), (space, {}, set()))[2].add(name)

    def leave_out(self, space: Mapping[str, Any], name: str) -> None:
        """Stop watching a name. It is bound to data, which is hashed on every call."""
        _, seen, absent = self._spaces.setdefault(id(space), (space, {}, set()))
        seen.pop(name, None)
        absent.discard(name)

    def function(self, function: FunctionType) -> None:
        self._functions.append((function, function.__code__, function.__defaults__))
        if function.__kwdefaults__:
            self.mapping(function.__kwdefaults__)

    def bound(self, get: Callable[[], object], seen: object) -> None:
        self._bound.append((get, seen))

    def mapping(self, mapping: Mapping[Any, Any]) -> None:
        values = list(mapping.values())
        self._mappings.append((mapping, list(mapping), values, list(map(id, values))))

    def klass(self, klass: type) -> None:
        self._classes.append(klass)
        self._mros.append(klass.__mro__)
        self.mapping(klass.__dict__)

    def equal(self, look: Callable[[], object]) -> None:
        self._equal[look] = look()

    def several(self, look: Callable[[], Sequence[object]]) -> Sequence[object]:
        """Watch a look-up that returns several objects, compared by identity. Returns them."""
        seen = look()
        self._several.append((look, list(map(id, seen)), seen))
        return seen

    def seal(self) -> None:
        """Convert what was seen into the form that is quickest to compare: long lists, compared in C."""
        self._names = []
        for space, seen, _ in self._spaces.values():
            if seen:
                names = [*seen, next(iter(seen))]  # with a single name, `itemgetter` would not return a tuple
                self._names.append((space, operator.itemgetter(*names), [id(seen[name]) for name in names]))
        self._absences = [(space, absent) for space, _, absent in self._spaces.values() if absent]

    def unchanged(self) -> bool:
        """Whether every look-up gives the same result as before."""
        try:
            for space, get, ids in self._names:
                if list(map(id, get(space))) != ids:
                    return False
        except KeyError:  # a name is gone
            return False
        for look, seen in self._bound:
            if look() is not seen:
                return False
        for function, code, defaults in self._functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
        for space, absent in self._absences:
            if not space.keys().isdisjoint(absent):
                return False
        for mapping, keys, _, ids in self._mappings:
            if list(map(id, mapping.values())) != ids or list(mapping) != keys:
                return False
        for look, seen in self._equal.items():
            if look() != seen:
                return False
        for look_up, ids, _ in self._several:
            if list(map(id, look_up())) != ids:
                return False
        return not self._classes or list(map(_mro_of, self._classes)) == self._mros
