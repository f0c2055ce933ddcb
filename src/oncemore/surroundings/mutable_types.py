"""How objects of each type are looked into and changed in place."""

from __future__ import annotations

import array
import contextlib
import io
import itertools
import random
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from operator import eq, is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

from ..file import File, FileChange
from ..identity.values import Digests, identity, iterators
from ..identity.values.builtin_types import ATTRS_HASH, counter_at, is_refused, layout_of
from ..identity.values.inert import category, once_per_type
from ..identity.values.objects import is_its_attributes
from ..identity.values.opaque import is_mock, memory_of
from ..modules import global_generator, loaded, module_of

ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented)))
# Types that cannot change, by name: most programs never load them.
_IMMUTABLE = frozenset(
    [
        "datetime.datetime",
        "datetime.date",
        "datetime.time",
        "datetime.timedelta",
        "datetime.timezone",
        "zoneinfo.ZoneInfo",
        "re.Pattern",
        "decimal.Decimal",
        "fractions.Fraction",
        "uuid.UUID",
        "ipaddress.IPv4Address",
        "ipaddress.IPv6Address",
    ]
)
_HEAPTYPE = 1 << 9
_FACTORY = object()  # under which a defaultdict's factory is noted


class Mutator(NamedTuple):
    """How one type of object is looked into and changed in place.

    `note` is what it holds, by reference; `same` compares two of these, `delta` says how one came from the other.
    """

    children: Callable[[Any], Iterable[Any]]
    content: Callable[[Any], Any]
    assign: Callable[[Any, Any], None]
    heavy: bool = False  # holds nothing by reference: compared by its digest
    possible: Callable[[Any], bool] | None = None  # whether this very object's content can be kept and put back
    noted: Callable[[Any], Any] | None = None
    same_as: Callable[[Any, Any], bool] | None = None
    delta: Callable[[Any, Any], Delta | None] | None = None

    def can(self, obj: Any) -> bool:
        return self.possible is None or self.possible(obj)

    def note(self, obj: Any) -> Any:
        return (self.noted or self.content)(obj)

    def same(self, then: Any, now: Any) -> bool:
        if self.same_as is not None:
            return self.same_as(then, now)
        return _same_keyed(then, now) if type(now) is dict else _same_items(then, now)


class Extended(NamedTuple):
    """A list that got items at its end."""

    items: list[Any]

    def apply(self, obj: Any) -> None:
        list.extend(obj, self.items)


class Grown(NamedTuple):
    """A list that has these items from a place on: what came there before, by whomever, goes."""

    start: int
    items: list[Any]

    def apply(self, obj: Any) -> None:
        if len(obj) < self.start:
            raise IndexError(self.start)
        list.__setitem__(obj, slice(self.start, None), self.items)


class Replaced(NamedTuple):
    """A list of which some items are others."""

    items: dict[int, Any]

    def apply(self, obj: Any) -> None:
        for i, item in self.items.items():
            list.__setitem__(obj, i, item)


class Updated(NamedTuple):
    """A dict that lost keys, then got entries: new ones at its end. Values may be `Added` or `Filled`."""

    removed: list[Any]
    entries: list[tuple[Any, Any]]

    def apply(self, obj: Any) -> None:
        base = _keyed(obj)
        for key in self.removed:
            base.pop(obj, key, None)
        for key, value in self.entries:
            if isinstance(value, (Added, Filled)):
                value = value.onto(base.get(obj, key))
            base.__setitem__(obj, key, value)

    def summed(self, then: Any) -> Updated:
        """The same where other steps work on the dict as well: numbers are added to, new containers are filled."""
        before = then if type(then) is dict else then[0]
        return Updated(self.removed, [(key, _summand(value, before.get(key))) for key, value in self.entries])


class Added(NamedTuple):
    """A number that grew by this."""

    difference: Any

    def onto(self, now: Any) -> Any:
        return (now or 0) + self.difference


class Filled(NamedTuple):
    """A container that got this: the one that the step `made` where there is none, or that which another step has made."""

    made: Any
    delta: Delta

    def onto(self, now: Any) -> Any:
        found = now if type(now) is type(self.made) else self.made
        if found is self.made:
            found.clear()  # others may have filled it before it was pickled
        self.delta.apply(found)
        return found


def _summand(value: Any, before: Any) -> Any:
    if are_numbers(value, before or 0):
        return Added(value - (before or 0))
    if before is not None or type(value) not in FILLED:
        return value
    if type(value) is dict:
        return Filled(value, Updated([], list(value.items())).summed({}))
    return Filled(value, Extended(list(value)) if type(value) is list else Altered([], list(value)))


def are_numbers(*values: object) -> bool:
    return all(type(value) in (int, float) for value in values)


class Altered(NamedTuple):
    """A set that lost and got elements."""

    removed: list[Any]
    added: list[Any]

    def apply(self, obj: Any) -> None:
        set.difference_update(obj, self.removed)
        set.update(obj, self.added)


class Several(NamedTuple):
    """Some of these, one after the other."""

    deltas: list[Any]

    def apply(self, obj: Any) -> None:
        for delta in self.deltas:
            delta.apply(obj)


Delta: TypeAlias = "Extended | Grown | Replaced | Updated | Altered | Several"
DELTAS = (Extended, Grown, Replaced, Updated, Altered, Several)
FILLED: tuple[type, ...] = (list, dict, set)  # what several steps may fill, whichever of them makes it


class Role(NamedTuple):
    """What objects of one type are to the walk through an argument."""

    children: Callable[[Any], Iterable[Any]]
    changes: bool  # or they are only looked through


@once_per_type
def fixed(kind: type) -> bool:
    """Whether objects of this type never change."""
    if kind in ATOMS or f"{module_of(kind)}.{kind.__qualname__}" in _IMMUTABLE:
        return True
    if issubclass(kind, (type, ModuleType, Enum)):  # classes change by patching code
        return True
    if category(kind) not in (None, "display"):  # a progress bar may hold what it runs over
        return True
    paths = loaded("pathlib")
    if paths is not None and issubclass(kind, paths.PurePath):
        return True
    numpy = loaded("numpy")
    return numpy is not None and issubclass(kind, (numpy.generic, numpy.dtype)) and not issubclass(kind, numpy.void)


@once_per_type
def role(kind: type) -> Role | None:
    """None for types whose objects never change."""
    if category(kind) not in (None, "display"):
        return Role(_nothing, changes=True)  # the lock that is there is found again; it is never changed
    if fixed(kind):
        return None
    inside, how = through(kind), mutator(kind)
    if inside is not None:
        return Role(inside, changes=False)
    return Role(_nothing if how is None else how.children, changes=True)


@once_per_type
def mutator(kind: type) -> Mutator | None:
    """How objects of this type are changed in place; None if that is not known."""
    if is_refused(kind) or is_mock(kind):
        return None  # a figure or a connection leads to half of its library
    found = _WAYS.get(kind) or _library_mutator(kind)
    if found is not None:
        return found
    if module_of(kind).partition(".")[0] in ("pandas", "polars", "pyarrow"):
        return None  # what they are made of changes without their content changing: caches
    base = next((b for b in kind.__mro__ if b in _WAYS), None)
    layout = _layout(kind)
    own = is_its_attributes(kind)
    if base is not None:
        found = _with_attributes(_WAYS[base]) if layout in (base, OrderedDict) else None
        return found if own or found is None else found._replace(heavy=True)
    # an object is its attributes, unless something written in C keeps more of it
    transparent = (object, SimpleNamespace, int, float, complex, str, bytes)
    if layout not in transparent or not (kind.__dictoffset__ or layout_of(kind).slots):
        return None
    return _PLAIN if own else _PLAIN._replace(children=_nothing, heavy=True)


@once_per_type
def through(kind: type) -> Callable[[Any], Iterable[Any]] | None:
    """How to see what is inside something that cannot be changed itself; None if it is not such a thing."""
    if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return tuple.__iter__
    if issubclass(kind, FunctionType):
        return _captured
    if issubclass(kind, (MethodType, BuiltinFunctionType)):
        return lambda obj: (obj.__self__,)
    if kind is partial:
        return lambda obj: (obj.func, obj.args, obj.keywords)
    if kind in iterators.THROUGH:
        return iterators.sources
    shared = loaded("multiprocessing.sharedctypes")
    if shared is not None and issubclass(kind, shared.SynchronizedBase):
        return lambda obj: (obj.get_obj(),)
    if category(kind) == "display":
        return lambda obj: (getattr(obj, "iterable", None),)
    return None


def _captured(function: FunctionType) -> Iterable[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet bound
            continue


def _layout(kind: type) -> type:
    """The nearest base that was not made by a class statement."""
    for base in kind.__mro__:
        made = vars(base).get("__new__")
        if not base.__flags__ & _HEAPTYPE or (isinstance(made, BuiltinFunctionType) and made.__self__ is base):
            return base
    return object


def _nothing(obj: Any) -> Iterable[Any]:
    return ()


# -- containers, through the methods of their builtin base: a subclass may have other plans with its own


def _keyed(obj: Any) -> Any:
    return OrderedDict if isinstance(obj, OrderedDict) else dict


def _entries(obj: Any) -> list[tuple[Any, Any]]:
    return list(_keyed(obj).items(obj))


def _assign_entries(obj: Any, content: list[tuple[Any, Any]]) -> None:
    base = _keyed(obj)
    base.clear(obj)
    for key, value in content:
        base.__setitem__(obj, key, value)


def _assign_default(obj: Any, content: tuple[Any, list[tuple[Any, Any]]]) -> None:
    obj.default_factory = content[0]
    _assign_entries(obj, content[1])


def _assign_items(obj: Any, content: Any) -> None:
    base: Any = list if isinstance(obj, list) else bytearray
    base.__setitem__(obj, slice(None), content)


def _assign_elements(obj: Any, content: Any) -> None:
    set.clear(obj)
    set.update(obj, content)


def _assign_queue(obj: Any, content: Any) -> None:
    deque.clear(obj)
    deque.extend(obj, content)


def _assign_numbers(obj: Any, content: Any) -> None:
    obj[:] = content


def _assign_buffer(obj: Any, content: tuple[Any, int]) -> None:
    obj.seek(0)
    obj.truncate()
    obj.write(content[0])
    obj.seek(content[1])


def _weak_items(obj: Any) -> list[Any]:
    return [each for item in obj.items() for each in item]


def _weakly_held(obj: Any) -> Iterable[Any]:
    return [*obj.values(), *obj.keys()]


def _assign_weakly(obj: Any, content: list[Any]) -> None:
    obj.clear()
    obj.update(content if isinstance(obj, weakref.WeakSet) else dict(zip(content[::2], content[1::2])))


def _advance(counter: Any, to: tuple[Any, Any]) -> None:
    """Count on to where a step left it, which is never behind where the step found it."""
    (now, step), (then, _) = counter_at(counter) or to, to
    for _ in range(round((then - now) / step) if step else 0):
        next(counter)


def _values_and_keys(obj: Any) -> Iterable[Any]:
    entries = _entries(obj)
    return [*(value for _, value in entries), *(key for key, _ in entries)]


def _of_fixed(obj: Any) -> bool:
    """Whether the elements can be named: they never change, or their contents tell them apart."""
    return all(map(_fixed_through, set.__iter__(obj))) or len(_ordered(obj)) == len(obj)


def _ordered(obj: Any) -> list[Any]:
    """The elements of a set in the order of their contents, if these tell them apart; none if they never change."""
    elements = list(set.__iter__(obj))
    if all(map(_fixed_through, elements)):
        return []
    digests = Digests()
    found = {digests.get(each): each for each in elements}
    return [] if None in found or len(found) < len(elements) else [found[each] for each in sorted(filter(None, found))]


def _fixed_through(obj: Any) -> bool:
    if isinstance(obj, (tuple, frozenset)):
        return all(map(_fixed_through, obj))
    return fixed(type(obj))


# -- what an object holds, compared by reference: an equal object in the place of another is a change


def _same_keyed(then: dict[Any, Any], now: dict[Any, Any]) -> bool:
    return len(then) == len(now) and all(map(is_, then, now)) and all(map(is_, then.values(), now.values()))


def _same_items(then: list[Any], now: list[Any]) -> bool:
    return len(then) == len(now) and all(map(is_, then, now))


def _same_elements(then: set[Any], now: set[Any]) -> bool:
    return len(then) == len(now) and then.issuperset(now) and set(map(type, then)) == set(map(type, now))


def _list_delta(then: list[Any], now: list[Any]) -> Delta | None:
    if len(then) < len(now) and all(map(is_, then, now)):
        return Extended(now[len(then) :])
    if len(then) == len(now):
        changed = {i: new for i, (was, new) in enumerate(zip(then, now)) if was is not new}
        return Replaced(changed) if 2 * len(changed) < len(now) else None
    return None


def _dict_delta(then: dict[Any, Any], now: dict[Any, Any]) -> Delta | None:
    stay = [key for key in then if key in now]
    entries = [(key, value) for key, value in now.items() if key not in then or then[key] is not value]
    added = [key for key, _ in entries if key not in then]
    if not all(map(is_, (*stay, *added), now)) or (_FACTORY in now and then[_FACTORY] is not now[_FACTORY]):
        return None
    return Updated([key for key in then if key not in now], entries)


def _set_delta(then: set[Any], now: set[Any]) -> Delta:
    return Altered(list(then - now), list(now - then))


_WAYS: dict[type, Mutator] = {
    list: Mutator(
        list.__iter__,
        lambda obj: list(list.__iter__(obj)),
        _assign_items,
        same_as=_same_items,
        delta=_list_delta,
    ),
    dict: Mutator(
        _values_and_keys, _entries, _assign_entries, noted=lambda obj: dict(_entries(obj)), delta=_dict_delta
    ),
    defaultdict: Mutator(
        _values_and_keys,
        lambda obj: (obj.default_factory, _entries(obj)),
        _assign_default,
        noted=lambda obj: {_FACTORY: obj.default_factory, **dict.copy(obj)},
        delta=_dict_delta,
    ),
    set: Mutator(
        _ordered,
        lambda obj: list(set.__iter__(obj)),
        _assign_elements,
        possible=_of_fixed,
        noted=lambda obj: set(set.__iter__(obj)),
        same_as=_same_elements,
        delta=_set_delta,
    ),
    deque: Mutator(deque.__iter__, lambda obj: list(deque.__iter__(obj)), _assign_queue),
    bytearray: Mutator(_nothing, bytes, _assign_items, heavy=True),
    File: Mutator(_nothing, FileChange, lambda obj, change: change.make(obj), heavy=True),
    io.StringIO: Mutator(_nothing, lambda obj: (obj.getvalue(), obj.tell()), _assign_buffer, same_as=eq, heavy=False),
    io.BytesIO: Mutator(_nothing, lambda obj: (obj.getvalue(), obj.tell()), _assign_buffer, same_as=eq, heavy=False),
    weakref.WeakValueDictionary: Mutator(_weakly_held, _weak_items, _assign_weakly),
    weakref.WeakKeyDictionary: Mutator(_weakly_held, _weak_items, _assign_weakly),
    weakref.WeakSet: Mutator(
        lambda obj: _ordered(set(obj)),
        list,
        _assign_weakly,
        possible=lambda obj: len(_ordered(set(obj))) == len(obj),
        noted=set,
        same_as=_same_elements,
    ),
    array.array: Mutator(_nothing, lambda obj: obj[:], _assign_numbers, heavy=True),
    itertools.count: Mutator(
        _nothing, counter_at, _advance, same_as=eq, possible=lambda obj: counter_at(obj) is not None
    ),
    **dict.fromkeys(
        iterators.LEAVES | iterators.MADE_OF,
        Mutator(_nothing, iterators.place, iterators.go_on, same_as=eq, possible=iterators.can_go_on),
    ),
}


# -- plain objects


def _attributes(obj: Any) -> dict[str, Any]:
    """The attributes that count: not those in which the object caches something."""
    return layout_of(type(obj)).read(obj)


def _kept_attributes(obj: Any) -> tuple[dict[str, Any], dict[str, bytes | None]]:
    """The attributes that count, and what identifies those that are cached."""
    return _attributes(obj), {name: identity(value) for name, value in layout_of(type(obj)).cached(obj).items()}


def _assign_attributes(obj: Any, content: tuple[dict[str, Any], dict[str, bytes | None]]) -> None:
    """Give an object these attributes. What it has cached stays where the step left it as it is, and goes elsewhere."""
    shape, (found, cached) = layout_of(type(obj)), content
    stays = {name: value for name, value in shape.cached(obj).items() if name in cached}
    stays = {name: value for name, value in stays.items() if identity(value) == cached[name]}
    if ATTRS_HASH in cached:
        stays[ATTRS_HASH] = None  # it has to be there, and is computed again
    space = shape.space_of(obj)
    found = {**found, **stays, **shape.made(dict(space))}
    space.clear()
    space.update((name, value) for name, value in found.items() if name not in shape.slots)
    for name in shape.slots:
        if name in found:
            object.__setattr__(obj, name, found[name])  # also where the class forbids it: a frozen dataclass's cache
        else:
            with contextlib.suppress(AttributeError):
                object.__delattr__(obj, name)


def _sorted_attributes(obj: Any) -> Iterable[Any]:
    found = _attributes(obj)
    return [found[name] for name in sorted(found)]


def _noted_attributes(obj: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return _attributes(obj), layout_of(type(obj)).cached(obj)


def _same_attributes(then: tuple[dict[str, Any], dict[str, Any]], now: tuple[dict[str, Any], dict[str, Any]]) -> bool:
    """Whether the attributes are the same. What was cached since is no change, only what was cached before and is gone."""
    known = now[1]
    return _same_keyed(then[0], now[0]) and all(known.get(name) is value for name, value in then[1].items())


def inside(obj: Any) -> Iterable[tuple[str, Any, Any]]:
    """What is in an object, each under a name that stays the same when more is added: a key, an attribute, a place."""
    if isinstance(obj, dict):
        return [("key", key, value) for key, value in _entries(obj) if _fixed_through(key)]
    if mutator(type(obj)) is _PLAIN:
        return [("attribute", name, value) for name, value in _attributes(obj).items()]
    what = role(type(obj))
    return () if what is None else (("place", i, child) for i, child in enumerate(what.children(obj)))


def noted_inside(held: Mapping[int, Any], obj: Any) -> Iterable[tuple[str, Any, Any]]:
    """What was in an object when it was noted; `held` is what objects held then, by their ids."""
    then = held.get(id(obj))
    if isinstance(obj, dict) and type(then) is dict:
        return [("key", key, value) for key, value in then.items() if _fixed_through(key)]
    if type(obj) is list and type(then) is list:
        return [("place", i, child) for i, child in enumerate(then)]
    if mutator(type(obj)) is _PLAIN and type(then) is tuple:
        return [("attribute", name, value) for name, value in then[0].items()]
    return inside(obj)


_PLAIN = Mutator(
    _sorted_attributes, _kept_attributes, _assign_attributes, noted=_noted_attributes, same_as=_same_attributes
)


def _with_attributes(base: Mutator) -> Mutator:
    """For subclasses of containers: their items and their attributes."""

    def assign(obj: Any, content: tuple[Any, Any]) -> None:
        base.assign(obj, content[0])
        _assign_attributes(obj, content[1])

    def delta(then: tuple[Any, Any], now: tuple[Any, Any]) -> Delta | None:
        assert base.delta is not None
        return base.delta(then[0], now[0]) if _same_attributes(then[1], now[1]) else None

    return Mutator(
        lambda obj: (*base.children(obj), *_sorted_attributes(obj)),
        lambda obj: (base.content(obj), _kept_attributes(obj)),
        assign,
        heavy=base.heavy,
        possible=base.possible,
        noted=lambda obj: (base.note(obj), _noted_attributes(obj)),
        same_as=lambda then, now: base.same(then[0], now[0]) and _same_attributes(then[1], now[1]),
        delta=delta if base.delta is not None else None,
    )


# -- arrays, frames and generators, of libraries that are loaded anyway


def _assign_array(obj: Any, content: Any) -> None:
    if obj.shape == content.shape:
        obj[...] = content
    else:  # `resize` is for arrays that own their data, and a restored one does not
        obj.__setstate__(content.copy().__reduce__()[2])


def _assign_frame(obj: Any, content: Any) -> None:
    obj._update_inplace(content)
    obj.attrs = content.attrs
    if obj.ndim == 1:
        obj.name = content.name


def _array_mutator(kind: type) -> Mutator:
    return Mutator(
        lambda obj: obj.flat if obj.dtype.hasobject else (),
        lambda obj: obj.view(),
        _assign_array,
        heavy=True,
        possible=lambda obj: bool(obj.flags.writeable),
    )


def _gradient(obj: Any) -> Iterable[Any]:
    return (obj.grad,) if obj.is_leaf and obj.grad is not None else ()


def _tensor_content(obj: Any) -> tuple[Any, bool, Any]:
    return obj.detach(), obj.requires_grad, next(iter(_gradient(obj)), None)


def _assign_tensor(obj: Any, content: tuple[Any, bool, Any]) -> None:
    data, requires_grad, grad = content
    if obj.shape == data.shape and obj.dtype == data.dtype:
        obj.data.copy_(data)  # where it lies: other tensors may be views of it
    else:
        obj.data = data
    if obj.is_leaf:
        obj.requires_grad_(requires_grad)
        obj.grad = grad


def _plain_tensor(obj: Any) -> bool:
    """Whether each number has a place of its own that may be written to."""
    if obj.layout is not sys.modules["torch"].strided or obj.is_nested or obj.is_inference():
        return False
    return all(stride or size < 2 for size, stride in zip(obj.shape, obj.stride()))


def _own(generator: Any) -> bool:
    """Whether a generator is an object like any other. The global ones are surroundings of their own."""
    return global_generator(generator) is None


def _generator_mutator(take: Callable[[Any], Any], give: Callable[[Any, Any], object]) -> Mutator:
    def assign(obj: Any, state: Any) -> None:
        give(obj, state)

    return Mutator(_nothing, take, assign, possible=_own, same_as=same_state)


def same_state(one: Any, other: Any) -> bool:
    """Whether two states of a random generator are equal, whatever a library makes them of."""
    if type(one) is dict is type(other):
        return one.keys() == other.keys() and all(same_state(one[name], other[name]) for name in one)
    if type(one) is tuple is type(other) and len(one) < 10:  # a longer one is of numbers
        return len(one) == len(other) and all(map(same_state, one, other))
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)  # a tensor, or anything else


def _numpy_state(generator: Any) -> tuple[Any, Any]:
    return _bits_state(generator.bit_generator)


def _assign_numpy_state(generator: Any, content: tuple[Any, Any]) -> None:
    _assign_bits_state(generator.bit_generator, content)


def _spawned(seeds: Any) -> tuple[Any, ...]:
    return seeds.entropy, seeds.spawn_key, seeds.pool_size, seeds.n_children_spawned


def _assign_spawned(seeds: Any, content: tuple[Any, ...]) -> None:
    seeds.spawn(content[-1] - seeds.n_children_spawned)  # the only thing about it that changes


def _bits_state(bits: Any) -> tuple[Any, Any]:
    """The state, and what generators that it spawns are seeded with."""
    seeds: Any = getattr(bits, "seed_seq", None) or getattr(bits, "_seed_seq", None)
    if not hasattr(seeds, "n_children_spawned"):
        return bits.state, None
    return bits.state, _spawned(seeds)


def _assign_bits_state(bits: Any, content: tuple[Any, Any]) -> None:
    state, seeds = content
    if seeds is not None and isinstance(bits.__getstate__(), tuple):  # numpy 1.25 and later
        entropy, spawn_key, pool_size, spawned = seeds
        kind = type(bits.seed_seq)
        bits.__setstate__((state, kind(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned)))
    else:
        bits.state = state


# -- content that lies elsewhere, see identity/values/opaque.py


def _assign_memory(obj: Any, content: bytes) -> None:
    ctypes: Any = loaded("ctypes")
    ctypes.memmove(ctypes.addressof(obj), content, len(content))


def _assign_managed(obj: Any, content: dict[Any, Any]) -> None:
    obj.clear()
    obj.update(content)


def _elsewhere_mutator(kind: type) -> Mutator | None:
    ctypes, managers = loaded("_ctypes"), loaded("multiprocessing.managers")
    if ctypes is not None and issubclass(kind, (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)):
        return Mutator(_nothing, memory_of, _assign_memory, heavy=True, possible=lambda obj: memory_of(obj) is not None)
    if managers is not None and issubclass(kind, managers.DictProxy):
        return Mutator(_nothing, lambda obj: obj.copy(), _assign_managed, heavy=True)
    if managers is not None and issubclass(kind, managers.ListProxy):
        return Mutator(_nothing, lambda obj: obj[:], lambda obj, found: obj.__setitem__(slice(None), found), heavy=True)
    return None


def _library_mutator(kind: type) -> Mutator | None:
    held = _elsewhere_mutator(kind)
    if held is not None:
        return held
    numpy, pandas, polars, torch = (loaded(name) for name in ("numpy", "pandas", "polars", "torch"))
    if issubclass(kind, random.Random):
        return _generator_mutator(lambda obj: obj.getstate(), lambda obj, state: obj.setstate(state))
    if numpy is not None:
        if issubclass(kind, numpy.ndarray):
            return _array_mutator(kind)
        if issubclass(kind, numpy.random.Generator):
            return _generator_mutator(_numpy_state, _assign_numpy_state)
        if issubclass(kind, numpy.random.BitGenerator):
            return _generator_mutator(_bits_state, _assign_bits_state)
        if issubclass(kind, numpy.random.SeedSequence):
            return _generator_mutator(_spawned, _assign_spawned)
        if issubclass(kind, numpy.random.RandomState):
            return _generator_mutator(lambda obj: obj.get_state(legacy=False), lambda obj, state: obj.set_state(state))
    if pandas is not None and issubclass(kind, (pandas.DataFrame, pandas.Series)):
        return Mutator(_nothing, lambda obj: obj.copy(deep=False), _assign_frame, heavy=True)
    if polars is not None and issubclass(kind, (polars.DataFrame, polars.Series)):
        inner = "_df" if issubclass(kind, polars.DataFrame) else "_s"
        swap: Callable[[Any, Any], None] = lambda obj, content: setattr(obj, inner, getattr(content, inner))  # noqa: E731
        return Mutator(_nothing, lambda obj: obj.clone(), swap, heavy=True)
    if torch is not None and issubclass(kind, torch.Tensor):
        return Mutator(_gradient, _tensor_content, _assign_tensor, heavy=True, possible=_plain_tensor)
    if issubclass(kind, getattr(torch, "Generator", ())):
        return _generator_mutator(lambda obj: obj.get_state(), lambda obj, state: obj.set_state(state))
    return None
