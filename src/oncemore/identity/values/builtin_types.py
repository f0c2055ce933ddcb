"""How values are taken apart (`Parts`), and the parts of Python's own types.

Types are recognised by name, so that none of their modules need be imported. They are described by their fields and not
by their pickles, some of which differ between Python versions.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import reprlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

from ...errors import FingerprintError
from ...modules import canonical_name, global_generator, is_project_module, module_of, of_class
from ..code.lazy import made_when_needed
from . import iterators
from .inert import INERT, category, once_per_type

ATTRS_HASH = "_attrs_cached_hash"  # where attrs caches a hash, which depends on PYTHONHASHSEED
_MOVED = {"pathlib._local": "pathlib"}  # moved in Python 3.13


class Parts(NamedTuple):
    """A value taken apart. Values with equal tags and equal parts are equal.

    `by` says how an error writes the path to a part; empty for parts that the user did not write.
    """

    tag: str
    children: Sequence[Any] = ()
    by: Literal["", "index", "key", "attribute", "element", "column"] = ""
    unordered: bool = False

    @property
    def columns(self) -> range:
        """The indices of a table's columns. They come last, and the first part is their number."""
        return range(len(self.children) - self.children[0], len(self.children))

    def path_to(self, at: int) -> str:
        """The path to a part, as an error writes it."""
        before = self.children[at - 1] if at > 0 else None
        if self.by == "index":
            return f"[{at}]"
        if self.by == "element":  # of a set: it has no index
            return "{*}"
        if self.by == "key":  # keys and values alternate
            return f"[{reprlib.repr(before)}]" if at % 2 else f".keys()[{at // 2}]"
        if self.by == "attribute" and type(before) is str:  # the value follows its name
            return f".{before}"
        if self.by == "column" and at in self.columns:
            return f"[{at - self.columns.start}]"
        return ""


Describe: TypeAlias = Callable[[Any], Parts]


def name_of(kind: type) -> str:
    """The name of a type, for people."""
    module = module_of(kind)
    return kind.__qualname__ if module in ("builtins", "") else f"{module}.{kind.__qualname__}"


def refuse(value: object) -> Parts:
    """Raise FingerprintError: the value has no stable identity."""
    raise FingerprintError(name_of(type(value)))


def canonical_module(module: object) -> str:
    """The name of a module, the same in every process and on every Python."""
    name = canonical_name(str(module))
    return _MOVED.get(name, name)


def has_no_identity(value: object) -> bool:
    """Whether this is a library's client or the like. A placeholder: `values` imports this module and sets the real one."""
    return False


class Layout(NamedTuple):
    """Where the objects of a class store their attributes."""

    space: Any  # the descriptor of `__dict__`, None if they have none
    slots: dict[str, Any]  # the descriptors of slots, by name
    caches: frozenset[str]  # attributes that cache what can be computed again
    lazy: dict[str, bool]  # attributes that a method fills on first use; whether they are absent until then

    def space_of(self, value: object) -> dict[str, Any]:
        """The object's own `__dict__`, by way of the class, because the object may define `__getattribute__`."""
        found = self.space.__get__(value, type(value)) if self.space is not None else None
        return found if isinstance(found, dict) else {}

    def read(self, value: object) -> dict[str, Any]:
        """The attributes that identify the object, by name: without caches, and lazy ones as before their first use."""
        found = self._all(value)
        for name in self.caches & found.keys():
            del found[name]
        for name in self.made(found):
            if self.lazy[name]:
                del found[name]
            else:
                found[name] = None
        return found

    def made(self, found: dict[str, Any]) -> dict[str, Any]:
        """The clients and the like among these attributes that a method created on first use, and would create again.

        They are identified by their value before that, which is what remains when a step is skipped.
        """
        return {name: found[name] for name in self.lazy if name in found and has_no_identity(found[name])}

    def cached(self, value: object) -> dict[str, Any]:
        """The attributes that are caches, by name."""
        found = self._all(value)
        return {name: found[name] for name in sorted(self.caches & found.keys())}

    def _all(self, value: object) -> dict[str, Any]:
        found = {**self.space_of(value)}
        for name, slot in self.slots.items():
            with contextlib.suppress(AttributeError):  # never set
                found[name] = slot.__get__(value)
        return found


@once_per_type
def layout_of(kind: type) -> Layout:
    """The layout of a class."""
    slots: dict[str, Any] = {}
    caches = {ATTRS_HASH, "__networkx_cache__"}
    shadowed: set[str] = set()
    for base in kind.__mro__:
        space = vars(base)
        fields = {field.name for field in space.get("__attrs_attrs__", ())}
        for name, member in space.items():
            if isinstance(member, types.MemberDescriptorType):
                if "__slots__" in space:
                    slots.setdefault(name, member)
                    if "__attrs_attrs__" in space and name not in fields:
                        caches.add(name)  # attrs turns a cached property into a slot
            elif name not in shadowed:
                caches.update(_cache_of(name, member))
        shadowed.update(space)
    lazy = made_when_needed(kind) if is_project_module(module_of(kind)) else {}
    return Layout(of_class(kind, "__dict__"), slots, frozenset(caches), lazy)


_OTHERS = ("__set__", "__delete__", "__call__")  # which cached properties do not have
_METHODS = (types.FunctionType, classmethod, staticmethod, functools.partialmethod, functools.singledispatchmethod)


def _cache_of(name: str, member: Any) -> Iterator[str]:
    """The attribute in which a `functools.cached_property`, or a library's equivalent, stores its value.

    A library's is recognised by its structure: it holds a function of its own name, and is a non-data descriptor, so that
    an attribute of that name takes precedence.
    """
    kind = type(member)
    if kind in _METHODS:
        return
    if isinstance(member, functools.cached_property):
        yield name
    elif kind.__name__ in ("CachedProperty", "CachedAttribute") and of_class(kind, "__get__") is not None:
        found = getattr(member, "cachename", None)
        yield found if isinstance(found, str) else "_cache"  # pandas and statsmodels store all of them in one dict
    elif isinstance(member, property):
        if "cached" in kind.__name__:
            yield name
    elif of_class(kind, "__get__") is not None and not any(of_class(kind, other) for other in _OTHERS):
        held = getattr(member, "__dict__", {}).values()
        if any(type(each) is types.FunctionType and each.__name__ == name for each in held):
            yield name


def is_named(found: object) -> bool:
    """Whether it is a dict with nothing but strings as keys, like an object's `__dict__`."""
    return type(found) is dict and {str}.issuperset(map(type, found))


def attributes(value: object, found: dict[str, Any] | None = None) -> list[Any]:
    """Alternating names and values, sorted by name, because the order in which attributes were set is irrelevant."""
    found = layout_of(type(value)).read(value) if found is None else found
    if not is_named(found):
        return ["__dict__", found]
    return [part for name in sorted(found) for part in (name, found[name])]


# --- code -----------------------------------------------------------------------------------------------------------


def _builtin(function: Any) -> Parts:
    owner = function.__self__
    names = [function.__module__, function.__qualname__]
    return Parts("builtin", names if isinstance(owner, types.ModuleType) else [*names, owner])


def _member(descriptor: Any) -> Parts:
    return Parts("descriptor", [descriptor.__objclass__, descriptor.__name__])


def _partial(partial: Any) -> Parts:
    children = [type(partial), partial.func, partial.args, partial.keywords, *attributes(partial)]
    return Parts("partial", children, "attribute")


def _proxy(proxy: Any) -> Parts:
    return Parts("proxy", [type(proxy), proxy.__wrapped__, getattr(proxy, "_self_wrapper", None)])


def typing_form(form: Any) -> Parts:
    """`Optional[int]` and the like: origin and arguments, or else the repr."""
    origin = getattr(form, "__origin__", None)
    if origin is None:
        return Parts("typing", [repr(form)])
    return Parts("typing alias", [origin, getattr(form, "__args__", None), getattr(form, "__metadata__", None)])


def _enum(member: Any) -> Parts:
    # The name of a combination of flags is None or "A|B", depending on the Python version; its value is enough.
    flags = isinstance(member, sys.modules["enum"].Flag)
    return Parts("enum", [type(member), None if flags else member.name, member.value])


def _exception(error: BaseException) -> Parts:
    hidden: list[object] = []
    if isinstance(error, OSError):
        hidden = [error.filename, error.filename2]
    elif isinstance(error, ImportError):
        hidden = [error.name, error.path]
    return Parts("exception", [type(error), error.args, hidden, *attributes(error)], "attribute")


@functools.lru_cache(maxsize=256)  # the search takes milliseconds
def _sentinel(value: object) -> Parts:
    """A bare `object()`, identified by the global that holds it; without one it has no identity."""
    for module in sorted(sys.modules):
        space = getattr(sys.modules[module], "__dict__", None) or {}
        for name, each in list(space.items()):
            if each is value:
                return Parts("sentinel", [canonical_module(module), name])
    return refuse(value)


def _inert(value: Any) -> Parts:
    """The category, the class if it is the project's, and what a progress bar iterates over."""
    kind = type(value)
    own = kind if is_project_module(kind.__module__) else None
    over = value.__dict__.get("iterable") if "tqdm.std.tqdm" in map(name_of, kind.__mro__) else None
    return Parts("inert", [category(kind), own, "iterable", over], "attribute")


def counter_at(counter: Any) -> tuple[Any, Any] | None:
    """The next number of an `itertools.count` and its step, from its repr; None if they are not plain numbers."""
    try:
        found = ast.literal_eval(repr(counter).removeprefix("count"))
    except (ValueError, SyntaxError):
        return None
    return found if isinstance(found, tuple) else (found, 1)


def _counter(counter: Any) -> Parts:
    return refuse(counter) if counter_at(counter) is None else Parts("count", [repr(counter)])


def _iterator(iterator: Any) -> Parts:
    try:
        return Parts("iterator", [type(iterator).__qualname__, *iterators.parts(iterator)])
    except iterators.Lost:
        return refuse(iterator)


def _random(value: Any) -> Sequence[Any]:
    name = global_generator(value)
    return [value.getstate()] if name is None else [name]


# These describe subclasses as well. `identity.code` adds functions, classes and modules.
WHOLE: dict[str, Describe] = {
    "builtins.builtin_function_or_method": _builtin,
    "builtins.method": lambda v: Parts("method", [v.__func__, v.__self__]),
    "builtins.method-wrapper": lambda v: Parts("method wrapper", [v.__name__, v.__self__]),
    "builtins.method_descriptor": _member,
    "builtins.classmethod_descriptor": _member,
    "builtins.wrapper_descriptor": _member,
    "builtins.getset_descriptor": _member,
    "builtins.member_descriptor": _member,
    "_weakrefset.WeakSet": lambda v: Parts("weak set", list(v), unordered=True),
    "builtins.property": lambda v: Parts("property", [type(v), v.fget, v.fset, v.fdel]),
    "builtins.staticmethod": lambda v: Parts("staticmethod", [v.__func__]),
    "builtins.classmethod": lambda v: Parts("classmethod", [v.__func__]),
    "builtins.BaseException": _exception,
    "functools.partial": _partial,
    "functools._lru_cache_wrapper": lambda v: Parts("lru_cache", [v.__wrapped__, v.cache_parameters()]),
    "enum.Enum": _enum,
    "itertools.count": _counter,
    **dict.fromkeys(iterators.NAMES, _iterator),
    "types.GenericAlias": lambda v: Parts("alias", [v.__origin__, v.__args__]),
    "types.UnionType": lambda v: Parts("union", [v.__args__]),
    "types.SimpleNamespace": lambda v: Parts("namespace", [type(v), *attributes(v)], "attribute"),
    "builtins.ObjectProxy": _proxy,  # wrapt 1, then wrapt 2, then either without its C extension
    "_wrappers.ObjectProxy": _proxy,
    "wrapt.wrappers.ObjectProxy": _proxy,
    **dict.fromkeys(INERT, _inert),
}

# Tied to a process, so they have no content. Listed so that the error names them, and not something inside them.
REFUSED = frozenset(
    f"{module}.{name}"
    for module, names in {
        "threading": "Thread",
        "queue": "Queue",
        "random": "SystemRandom",
        "subprocess": "Popen",
        "concurrent.futures._base": "Future",
        "multiprocessing.process": "BaseProcess",
        "multiprocessing.queues": "Queue SimpleQueue",
        "multiprocessing.managers": "BaseManager BaseProxy",
        "asyncio.queues": "Queue",
        "contextlib": "_GeneratorContextManagerBase ExitStack AsyncExitStack",
        "_io": "_IOBase",
        "_socket": "socket",
        "matplotlib.artist": "Artist",
        "matplotlib.backend_bases": "FigureCanvasBase FigureManagerBase",
        "boto3.session": "Session",
        "boto3.resources.base": "ServiceResource",
        "botocore.client": "BaseClient",
        "botocore.session": "Session",
        "sqlalchemy.engine.base": "Connection Engine",
        "sqlalchemy.sql.schema": "MetaData SchemaItem",
        "simpy.core": "Environment",
        "simpy.events": "Event",
        "simpy.resources.base": "BaseResource",
    }.items()
    for name in names.split()
)


@once_per_type
def is_refused(kind: type) -> bool:
    """Whether values of this type are tied to a process, and have no identity."""
    names = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    return next((name in REFUSED for name in names if name in REFUSED or name in CONTENT or name in WHOLE), False)


# --- values ---------------------------------------------------------------------------------------------------------


def _set(value: Any) -> Parts:
    """Elements of one type with a natural order are sorted; others are ordered by their digests later."""
    name, kinds = type(value).__name__, set(map(type, value))
    if len(kinds) == 1 and kinds <= {int, str, bytes}:
        return Parts(f"sorted {name}", sorted(value), "element")
    return Parts(name, list(value), "element", unordered=True)


EXACT: dict[type, Describe] = {
    list: lambda v: Parts("list", v, "index"),
    tuple: lambda v: Parts("tuple", v, "index"),
    dict: lambda v: Parts("dict", list(chain.from_iterable(v.items())), "key"),
    set: _set,
    frozenset: _set,
    object: _sentinel,
}


def _span(value: Any) -> list[Any]:
    return [value.start, value.stop, value.step]


def _clock(value: Any) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold, value.tzinfo]


def _zone(value: Any) -> list[Any]:
    return [value.key] if value.key else list(refuse(value).children)


def _items(value: Any) -> list[Any]:
    return [list(value)]


def _text(value: Any) -> list[Any]:
    return [str(value)]


def _ordered_dict(value: Any) -> list[Any]:
    # `dict.copy` would ignore `move_to_end`.
    ordered = sys.modules["collections"].OrderedDict
    return [dict(ordered.items(value))]


def _buffer(value: Any) -> list[Any]:
    return [value.getvalue(), value.tell()]


Content: TypeAlias = Callable[[Any], Sequence[Any]]

# The content of values; for a subclass, its class and its own attributes are added.
CONTENT: dict[str, Content] = {
    "builtins.int": lambda v: [int.__int__(v)],
    "builtins.float": lambda v: [float.__float__(v)],
    "builtins.complex": lambda v: [v.real, v.imag],
    "builtins.str": lambda v: [str.__str__(v)],
    "builtins.bytes": lambda v: [bytes(memoryview(v))],
    "builtins.bytearray": lambda v: [bytes(memoryview(v))],
    "builtins.list": lambda v: [list.__getitem__(v, slice(None))],
    "builtins.tuple": lambda v: [tuple.__getitem__(v, slice(None))],
    "builtins.dict": lambda v: [dict.copy(v)],
    "builtins.set": lambda v: [frozenset(set.__iter__(v))],
    "builtins.frozenset": lambda v: [frozenset(frozenset.__iter__(v))],
    "builtins.range": _span,
    "builtins.slice": _span,
    "builtins.ellipsis": lambda v: [],
    "builtins.NotImplementedType": lambda v: [],
    "builtins.memoryview": lambda v: [v.format, v.shape, v.tobytes()],
    "builtins.mappingproxy": lambda v: [dict(v)],
    "builtins.dict_keys": _items,
    "builtins.dict_values": _items,
    "builtins.dict_items": _items,
    "collections.OrderedDict": _ordered_dict,
    "collections.defaultdict": lambda v: [v.default_factory, dict.copy(v)],
    "collections.deque": lambda v: [v.maxlen, list(v)],
    "array.array": lambda v: [v.typecode, v.tobytes()],
    "datetime.date": lambda v: [v.year, v.month, v.day],
    "datetime.time": _clock,
    "datetime.datetime": lambda v: [v.year, v.month, v.day, *_clock(v)],
    "datetime.timedelta": lambda v: [v.days, v.seconds, v.microseconds],
    "datetime.timezone": lambda v: [v.utcoffset(None), v.tzname(None)],
    "zoneinfo.ZoneInfo": _zone,
    "decimal.Decimal": lambda v: [tuple(v.as_tuple())],
    "fractions.Fraction": lambda v: [v.numerator, v.denominator],
    "uuid.UUID": lambda v: [v.int],
    "re.Pattern": lambda v: [v.pattern, v.flags],
    "random.Random": _random,
    "_io.BytesIO": _buffer,
    "_io.StringIO": _buffer,
}
for _name in ("Address", "Interface", "Network"):
    CONTENT[f"ipaddress.IPv4{_name}"] = CONTENT[f"ipaddress.IPv6{_name}"] = _text
for _name in ("PurePath", "PurePosixPath", "PureWindowsPath", "Path", "PosixPath", "WindowsPath"):
    CONTENT[f"pathlib.{_name}"] = CONTENT[f"pathlib._local.{_name}"] = _text
