"""How objects of each type are inspected and changed in place."""

from __future__ import annotations

import array
import contextlib
import io
import itertools
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from operator import eq, is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

from ..files import File, FileChange
from ..identity.values import Digests, identity
from ..identity.values.builtin_types import category, counter_at, is_immutable, is_mock, is_refused
from ..identity.values.objects import is_its_attributes
from ..identity.values.parts import ATTRS_HASH, layout_of
from ..modules import global_generator, loaded, module_of, once_per_type

_HEAPTYPE = 1 << 9
_FACTORY = object()  # the key for a defaultdict's factory in its note


# -- what objects hold, compared by reference: an equal object in place of another is a change


def _same_keyed(then: dict[Any, Any], now: dict[Any, Any]) -> bool:
    return len(then) == len(now) and all(map(is_, then, now)) and all(map(is_, then.values(), now.values()))


def _same_items(then: list[Any], now: list[Any]) -> bool:
    return len(then) == len(now) and all(map(is_, then, now))


def _same_elements(then: set[Any], now: set[Any]) -> bool:
    return len(then) == len(now) and then.issuperset(now) and set(map(type, then)) == set(map(type, now))


def _nothing(obj: Any) -> Iterable[Any]:
    return ()


class Mutator(NamedTuple):
    """How objects of one type are inspected and changed in place.

    A note has what an object holds, by reference. `same` compares two notes, `delta` derives the change between them.
    """

    content: Callable[[Any], Any]
    assign: Callable[[Any, Any], object]
    children: Callable[[Any], Iterable[Any]] = _nothing
    by_digest: bool = False  # holds nothing by reference: compared by digest, without a note
    can_restore: Callable[[Any], bool] = lambda obj: True  # whether this particular object's content can be put back
    noted: Callable[[Any], Any] | None = None  # the note, if it differs from the content
    same: Callable[[Any, Any], bool] = _same_items
    delta: Callable[[Any, Any], Delta | None] | None = None

    def note(self, obj: Any) -> Any:
        return (self.noted or self.content)(obj)


class Extended(NamedTuple):
    """A list to which items were appended."""

    items: list[Any]

    def apply(self, obj: Any) -> None:
        list.extend(obj, self.items)


class Grown(NamedTuple):
    """A list with these items from an index on. They replace whatever is there."""

    start: int
    items: list[Any]

    def apply(self, obj: Any) -> None:
        if len(obj) < self.start:
            raise IndexError(self.start)
        list.__setitem__(obj, slice(self.start, None), self.items)


class Replaced(NamedTuple):
    """A list of which some items were replaced."""

    items: dict[int, Any]

    def apply(self, obj: Any) -> None:
        for i, item in self.items.items():
            list.__setitem__(obj, i, item)


class Updated(NamedTuple):
    """A dict that lost keys, then got entries; new keys go to its end. Values may be `Added` or `Filled`."""

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
        """The same change for a dict that other steps change, too: numbers are added to, new containers are filled."""
        before = then if type(then) is dict else then[0]
        return Updated(self.removed, [(key, _summand(value, before.get(key))) for key, value in self.entries])


class Added(NamedTuple):
    """A number that grew by `difference`."""

    difference: Any

    def onto(self, now: Any) -> Any:
        return (now or 0) + self.difference


class Filled(NamedTuple):
    """A container that a step `made` and filled. If another step has made one already, that one is filled instead."""

    made: Any
    delta: Delta

    def onto(self, now: Any) -> Any:
        found = now if type(now) is type(self.made) else self.made
        if found is self.made:
            found.clear()  # other steps may have filled it before it was pickled
        self.delta.apply(found)
        return found


def _summand(value: Any, before: Any) -> Any:
    if are_numbers(value, before or 0):
        return Added(value - (before or 0))
    if before is not None or type(value) not in FILLABLE:
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
    """Several deltas, applied in order."""

    deltas: list[Any]

    def apply(self, obj: Any) -> None:
        for delta in self.deltas:
            delta.apply(obj)


Delta: TypeAlias = "Extended | Grown | Replaced | Updated | Altered | Several"
DELTAS = (Extended, Grown, Replaced, Updated, Altered, Several)
FILLABLE: tuple[type, ...] = (list, dict, set)  # containers that several steps may fill, whichever creates them


class Role(NamedTuple):
    """How a walk treats objects of one type."""

    children: Callable[[Any], Iterable[Any]]
    mutable: bool  # if not, the walk only passes through them


@once_per_type
def never_changes(kind: type) -> bool:
    """Whether objects of this type never change, or only coordinate. Classes change only if code is patched."""
    if is_immutable(kind) or issubclass(kind, (type, ModuleType, Enum)):
        return True
    return category(kind) not in (None, "display")  # a progress bar may hold the data that it iterates over


@once_per_type
def role(kind: type) -> Role | None:
    """None for immutable types."""
    if category(kind) not in (None, "display"):
        return Role(_nothing, mutable=True)  # named, so that the existing lock is found again, but never changed
    if never_changes(kind):
        return None
    children, mutator = transparent_children(kind), mutator_of(kind)
    if children is not None:
        return Role(children, mutable=False)
    return Role(_nothing if mutator is None else mutator.children, mutable=True)


@once_per_type
def mutator_of(kind: type) -> Mutator | None:
    """How objects of this type are changed in place; None if that is unknown."""
    if is_refused(kind) or is_mock(kind):
        return None  # from a figure or a connection, half of its library is reachable
    found = _MUTATORS.get(kind) or _library_mutator(kind)
    if found is not None:
        return found
    if module_of(kind).partition(".")[0] in ("pandas", "polars", "pyarrow"):
        return None  # their attributes change without a change of content: caches
    base = next((b for b in kind.__mro__ if b in _MUTATORS), None)
    layout = _layout(kind)
    own = is_its_attributes(kind)
    if base is not None:
        found = _with_attributes(_MUTATORS[base]) if layout in (base, OrderedDict) else None
        return found if own or found is None else found._replace(by_digest=True)
    # an object is defined by its attributes, unless a base class written in C has more data
    transparent = (object, SimpleNamespace, int, float, complex, str, bytes)
    if layout not in transparent or not (kind.__dictoffset__ or layout_of(kind).slots):
        return None
    return _OBJECT if own else _OBJECT._replace(children=_nothing, by_digest=True)


@once_per_type
def transparent_children(kind: type) -> Callable[[Any], Iterable[Any]] | None:
    """How to get the children of objects that cannot be changed themselves; None for other types."""
    if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return tuple.__iter__
    if issubclass(kind, FunctionType):
        return _captured
    if issubclass(kind, (MethodType, BuiltinFunctionType)):
        return lambda obj: (obj.__self__,)
    if kind is partial:
        return lambda obj: (obj.func, obj.args, obj.keywords)
    shared = loaded("multiprocessing.sharedctypes")
    if shared is not None and issubclass(kind, shared.SynchronizedBase):
        return lambda obj: (obj.get_obj(),)
    if category(kind) == "display":
        return lambda obj: (getattr(obj, "iterable", None),)
    return None


def _captured(function: FunctionType) -> Iterable[Any]:
    """The values of a function's closure."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet bound
            continue


def _layout(kind: type) -> type:
    """The nearest base class that was not created by a class statement."""
    for base in kind.__mro__:
        made = vars(base).get("__new__")
        if not base.__flags__ & _HEAPTYPE or (isinstance(made, BuiltinFunctionType) and made.__self__ is base):
            return base
    return object


# -- containers, accessed through the methods of their builtin base: a subclass may override its own


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
    base: Any = next((base for base in (list, bytearray) if isinstance(obj, base)), type(obj))
    base.__setitem__(obj, slice(None), content)


def _assign_elements(obj: Any, content: Any) -> None:
    if isinstance(obj, deque):
        deque.clear(obj)
        deque.extend(obj, content)
        return
    base: Any = set if isinstance(obj, set) else type(obj)
    base.clear(obj)
    base.update(obj, content)


def _assign_buffer(obj: Any, content: tuple[Any, int]) -> None:
    obj.seek(0)
    obj.truncate()
    obj.write(content[0])
    obj.seek(content[1])


def _weak_items(obj: Any) -> list[Any]:
    return [each for item in obj.items() for each in item]


def _assign_weakly(obj: Any, content: list[Any]) -> None:
    obj.clear()
    obj.update(zip(content[::2], content[1::2]))


def _advance(counter: Any, to: tuple[Any, Any]) -> None:
    """Advance a counter to where a step left it. It never goes back."""
    (now, step), (then, _) = counter_at(counter) or to, to
    for _ in range(round((then - now) / step) if step else 0):
        next(counter)


def _values_and_keys(obj: Any) -> Iterable[Any]:
    entries = _entries(obj)
    return [*(value for _, value in entries), *(key for key, _ in entries)]


def _are_distinguishable(obj: Any) -> bool:
    """Whether each element can be identified: all are immutable, or their contents differ."""
    return all(map(_is_deeply_immutable, set.__iter__(obj))) or len(_ordered(obj)) == len(obj)


def _ordered(obj: Any) -> list[Any]:
    """The elements of a set in the order of their digests, if these differ. None if all are immutable."""
    elements = list(set.__iter__(obj))
    if all(map(_is_deeply_immutable, elements)):
        return []
    digests = Digests()
    found = {digests.get(each): each for each in elements}
    return [] if None in found or len(found) < len(elements) else [found[each] for each in sorted(filter(None, found))]


def _is_deeply_immutable(obj: Any) -> bool:
    if isinstance(obj, (tuple, frozenset)):
        return all(map(_is_deeply_immutable, obj))
    return never_changes(type(obj))


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


_DICT = Mutator(
    _entries,
    _assign_entries,
    _values_and_keys,
    noted=lambda obj: dict(_entries(obj)),
    same=_same_keyed,
    delta=_dict_delta,
)
_SET = Mutator(
    lambda obj: list(set.__iter__(obj)),
    _assign_elements,
    _ordered,
    can_restore=_are_distinguishable,
    noted=lambda obj: set(set.__iter__(obj)),
    same=_same_elements,
    delta=_set_delta,
)
_BUFFER = Mutator(lambda obj: (obj.getvalue(), obj.tell()), _assign_buffer, same=eq)
_WEAK_DICT = Mutator(_weak_items, _assign_weakly, lambda obj: [*obj.values(), *obj.keys()])
_MUTATORS: dict[type, Mutator] = {
    list: Mutator(lambda obj: list(list.__iter__(obj)), _assign_items, list.__iter__, delta=_list_delta),
    dict: _DICT,
    defaultdict: _DICT._replace(
        content=lambda obj: (obj.default_factory, _entries(obj)),
        assign=_assign_default,
        noted=lambda obj: {_FACTORY: obj.default_factory, **dict.copy(obj)},
    ),
    set: _SET,
    deque: Mutator(lambda obj: list(deque.__iter__(obj)), _assign_elements, deque.__iter__),
    bytearray: Mutator(bytes, _assign_items, by_digest=True),
    File: Mutator(FileChange, lambda obj, change: change.make(obj), by_digest=True),
    io.StringIO: _BUFFER,
    io.BytesIO: _BUFFER,
    weakref.WeakValueDictionary: _WEAK_DICT,
    weakref.WeakKeyDictionary: _WEAK_DICT,
    weakref.WeakSet: Mutator(
        list,
        _assign_elements,
        lambda obj: _ordered(set(obj)),
        can_restore=lambda obj: len(_ordered(set(obj))) == len(obj),
        noted=set,
        same=_same_elements,
    ),
    array.array: Mutator(lambda obj: obj[:], _assign_items, by_digest=True),
    itertools.count: Mutator(counter_at, _advance, same=eq, can_restore=lambda obj: counter_at(obj) is not None),
}


# -- plain objects


def _attributes(obj: Any) -> dict[str, Any]:
    """The attributes of an object, without those in which it caches something."""
    return layout_of(type(obj)).read(obj)


def _saved_attributes(obj: Any) -> tuple[dict[str, Any], dict[str, bytes | None]]:
    """The attributes of an object, and the digests of those in which it caches something."""
    return _attributes(obj), {name: identity(value) for name, value in layout_of(type(obj)).cached(obj).items()}


def _assign_attributes(obj: Any, content: tuple[dict[str, Any], dict[str, bytes | None]]) -> None:
    """Give an object these attributes. A cached value stays if the step left it alone, and is dropped otherwise."""
    shape, (found, cached) = layout_of(type(obj)), content
    stays = {name: value for name, value in shape.cached(obj).items() if name in cached}
    stays = {name: value for name, value in stays.items() if identity(value) == cached[name]}
    if ATTRS_HASH in cached:
        stays[ATTRS_HASH] = None  # must exist; attrs computes it again
    space = shape.space_of(obj)
    found = {**found, **stays, **shape.made(dict(space))}
    space.clear()
    space.update((name, value) for name, value in found.items() if name not in shape.slots)
    for name in shape.slots:
        if name in found:
            object.__setattr__(obj, name, found[name])  # even if the class forbids it, as a frozen dataclass does
        else:
            with contextlib.suppress(AttributeError):
                object.__delattr__(obj, name)


def _sorted_attributes(obj: Any) -> Iterable[Any]:
    found = _attributes(obj)
    return [found[name] for name in sorted(found)]


def _noted_attributes(obj: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return _attributes(obj), layout_of(type(obj)).cached(obj)


def _same_attributes(then: tuple[dict[str, Any], dict[str, Any]], now: tuple[dict[str, Any], dict[str, Any]]) -> bool:
    """Whether the attributes are the same. A newly cached value is no change; losing or replacing one is."""
    known = now[1]
    return _same_keyed(then[0], now[0]) and all(known.get(name) is value for name, value in then[1].items())


def named_children(obj: Any, held: Mapping[int, Any] = {}) -> Iterable[tuple[str, Any, Any]]:
    """The children of an object: "key", "attribute" or "place", then a name that stays valid when more are added.

    If `held` has its id, the children are those it had when it was noted.
    """
    then = held.get(id(obj))
    if isinstance(obj, dict):
        entries = then.items() if type(then) is dict else _entries(obj)
        return [("key", key, value) for key, value in entries if _is_deeply_immutable(key)]
    if mutator_of(type(obj)) is _OBJECT:
        attributes = then[0] if type(then) is tuple else _attributes(obj)
        return [("attribute", name, value) for name, value in attributes.items()]
    if type(obj) is list and type(then) is list:
        return [("place", i, child) for i, child in enumerate(then)]
    found = role(type(obj))
    return () if found is None else (("place", i, child) for i, child in enumerate(found.children(obj)))


_OBJECT = Mutator(
    _saved_attributes, _assign_attributes, _sorted_attributes, noted=_noted_attributes, same=_same_attributes
)


def _with_attributes(base: Mutator) -> Mutator:
    """For subclasses of containers, which have items and attributes."""

    def assign(obj: Any, content: tuple[Any, Any]) -> None:
        base.assign(obj, content[0])
        _assign_attributes(obj, content[1])

    def delta(then: tuple[Any, Any], now: tuple[Any, Any]) -> Delta | None:
        assert base.delta is not None
        return base.delta(then[0], now[0]) if _same_attributes(then[1], now[1]) else None

    return Mutator(
        lambda obj: (base.content(obj), _saved_attributes(obj)),
        assign,
        lambda obj: (*base.children(obj), *_sorted_attributes(obj)),
        by_digest=base.by_digest,
        can_restore=base.can_restore,
        noted=lambda obj: (base.note(obj), _noted_attributes(obj)),
        same=lambda then, now: base.same(then[0], now[0]) and _same_attributes(then[1], now[1]),
        delta=delta if base.delta is not None else None,
    )


# -- arrays, frames and generators of libraries that the program has imported


def _assign_array(obj: Any, content: Any) -> None:
    if obj.shape == content.shape:
        obj[...] = content
    else:  # not `resize`: it requires an array that owns its data, and a restored one does not
        obj.__setstate__(content.copy().__reduce__()[2])


def _assign_frame(obj: Any, content: Any) -> None:
    obj._update_inplace(content)
    obj.attrs = content.attrs
    if obj.ndim == 1:
        obj.name = content.name


def _gradient(obj: Any) -> Iterable[Any]:
    return (obj.grad,) if obj.is_leaf and obj.grad is not None else ()


def _tensor_content(obj: Any) -> tuple[Any, bool, Any]:
    return obj.detach(), obj.requires_grad, next(iter(_gradient(obj)), None)


def _assign_tensor(obj: Any, content: tuple[Any, bool, Any]) -> None:
    data, requires_grad, grad = content
    if obj.shape == data.shape and obj.dtype == data.dtype:
        obj.data.copy_(data)  # in its memory: other tensors may be views of it
    else:
        obj.data = data
    if obj.is_leaf:
        obj.requires_grad_(requires_grad)
        obj.grad = grad


def _plain_tensor(obj: Any) -> bool:
    """Whether each element has its own memory, and it can be written to."""
    if obj.layout is not sys.modules["torch"].strided or obj.is_nested or obj.is_inference():
        return False
    return all(stride or size < 2 for size, stride in zip(obj.shape, obj.stride()))


def _generator(content: Callable[[Any], Any], assign: Callable[[Any, Any], object]) -> Mutator:
    """For random generators. The global ones are a surrounding of their own (rng.py)."""
    return Mutator(content, assign, can_restore=lambda obj: global_generator(obj) is None, same=same_state)


def same_state(one: Any, other: Any) -> bool:
    """Whether two states of a random generator are equal, whatever their types."""
    if type(one) is dict is type(other):
        return one.keys() == other.keys() and all(same_state(one[name], other[name]) for name in one)
    if type(one) is tuple is type(other) and len(one) < 10:  # a longer one contains only numbers
        return len(one) == len(other) and all(map(same_state, one, other))
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)  # a tensor, or anything else


def _spawned(seeds: Any) -> tuple[Any, ...]:
    return seeds.entropy, seeds.spawn_key, seeds.pool_size, seeds.n_children_spawned


def _assign_spawned(seeds: Any, content: tuple[Any, ...]) -> None:
    seeds.spawn(content[-1] - seeds.n_children_spawned)  # nothing else about it changes


def _bits_state(bits: Any) -> tuple[Any, Any]:
    """The state, and the seed sequence of the generators that it spawns."""
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


def _assign_memory(obj: Any, content: bytes) -> None:
    ctypes: Any = loaded("ctypes")
    ctypes.memmove(ctypes.byref(obj), content, len(content))


def _polars(inner: str) -> Mutator:
    return Mutator(
        lambda obj: obj.clone(), lambda obj, content: setattr(obj, inner, getattr(content, inner)), by_digest=True
    )


# Types of libraries: the module, names in it, and how objects of these types are changed.
_LIBRARIES: tuple[tuple[str, str, Mutator], ...] = (
    ("_ctypes", "_SimpleCData Array Structure Union", Mutator(bytes, _assign_memory, by_digest=True)),
    ("multiprocessing.managers", "DictProxy", Mutator(lambda obj: obj.copy(), _assign_elements, by_digest=True)),
    ("multiprocessing.managers", "ListProxy", Mutator(lambda obj: obj[:], _assign_items, by_digest=True)),
    ("random", "Random", _generator(lambda obj: obj.getstate(), lambda obj, state: obj.setstate(state))),
    (
        "numpy",
        "ndarray",
        Mutator(
            lambda obj: obj.view(),
            _assign_array,
            lambda obj: obj.flat if obj.dtype.hasobject else (),
            by_digest=True,
            can_restore=lambda obj: bool(obj.flags.writeable),
        ),
    ),
    (
        "numpy.random",
        "Generator",
        _generator(
            lambda obj: _bits_state(obj.bit_generator),
            lambda obj, content: _assign_bits_state(obj.bit_generator, content),
        ),
    ),
    ("numpy.random", "BitGenerator", _generator(_bits_state, _assign_bits_state)),
    ("numpy.random", "SeedSequence", _generator(_spawned, _assign_spawned)),
    (
        "numpy.random",
        "RandomState",
        _generator(lambda obj: obj.get_state(legacy=False), lambda obj, state: obj.set_state(state)),
    ),
    ("pandas", "DataFrame Series", Mutator(lambda obj: obj.copy(deep=False), _assign_frame, by_digest=True)),
    ("polars", "DataFrame", _polars("_df")),
    ("polars", "Series", _polars("_s")),
    ("torch", "Tensor", Mutator(_tensor_content, _assign_tensor, _gradient, by_digest=True, can_restore=_plain_tensor)),
    ("torch", "Generator", _generator(lambda obj: obj.get_state(), lambda obj, state: obj.set_state(state))),
)


def _library_mutator(kind: type) -> Mutator | None:
    for library, names, mutator in _LIBRARIES:
        module = loaded(library)
        if module is not None and any(issubclass(kind, getattr(module, name, ())) for name in names.split()):
            return mutator
    return None
