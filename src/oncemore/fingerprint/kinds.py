"""What a value is taken apart into, and the kinds of value that Python itself brings.

They are known by name, so that none of their modules need be imported, and described by their own fields rather than
by their pickles: several pickles differ between Python versions.
"""

from __future__ import annotations

import reprlib
import sys
import types
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

from ..errors import FingerprintError
from ..modules import canonical_name

_MOVED = {"pathlib._local": "pathlib"}  # Python 3.13 split this module: one name on every version


class Parts(NamedTuple):
    """A value taken apart. Equal tags with equal parts mean equal values.

    `by` says how an error writes the way to a part; not at all if the part is nothing that the user wrote.
    """

    tag: str
    children: Sequence[Any] = ()
    by: Literal["", "index", "key", "attribute", "element", "column"] = ""
    unordered: bool = False

    @property
    def columns(self) -> range:
        """Where the columns of a table stand: last, and the first part says how many they are."""
        return range(len(self.children) - self.children[0], len(self.children))

    def way_to(self, at: int) -> str:
        """How an error writes the way to a part."""
        before = self.children[at - 1] if at > 0 else None
        if self.by == "index":
            return f"[{at}]"
        if self.by == "element":  # has no place to name
            return "{*}"
        if self.by == "key":  # keys and values stand in turn
            return f"[{reprlib.repr(before)}]" if at % 2 else f".keys()[{at // 2}]"
        if self.by == "attribute" and type(before) is str:  # a name stands before its value
            return f".{before}"
        if self.by == "column" and at in self.columns:
            return f"[{at - self.columns.start}]"
        return ""


Describe: TypeAlias = Callable[[Any], Parts]


def name_of(kind: type) -> str:
    """The name of a type as a reader knows it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def refuse(value: object) -> Parts:
    """The value has no stable identity."""
    raise FingerprintError(name_of(type(value)))


def home(module: object) -> str:
    """The name of the module that something lives in, the same in every process and on every Python."""
    name = canonical_name(str(module))
    return _MOVED.get(name, name)


def attributes(value: object, found: dict[str, Any] | None = None) -> list[Any]:
    """Names and values in turn, by name: the order in which attributes were set means nothing."""
    found = {**getattr(value, "__dict__", {}), **(found or {})}
    if not {str}.issuperset(map(type, found)):
        return ["__dict__", found]
    found.pop("_attrs_cached_hash", None)  # attrs keeps a hash there, which depends on PYTHONHASHSEED
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
    """`Optional[int]` and its like: by origin and arguments, or by the name that repr gives."""
    origin = getattr(form, "__origin__", None)
    if origin is None:
        return Parts("typing", [repr(form)])
    return Parts("typing alias", [origin, getattr(form, "__args__", None), getattr(form, "__metadata__", None)])


def _enum(member: Any) -> Parts:
    # The name of a combination of flags is None or "A|B", depending on the Python version; its value says it all.
    flags = isinstance(member, sys.modules["enum"].Flag)
    return Parts("enum", [type(member), None if flags else member.name, member.value])


def _exception(error: BaseException) -> Parts:
    hidden: list[object] = []
    if isinstance(error, OSError):
        hidden = [error.filename, error.filename2]
    elif isinstance(error, ImportError):
        hidden = [error.name, error.path]
    return Parts("exception", [type(error), error.args, hidden, *attributes(error)], "attribute")


@lru_cache(maxsize=256)  # the search takes milliseconds
def _sentinel(value: object) -> Parts:
    """A bare `object()`: nothing but an address, unless some module keeps it under a name."""
    for module in sorted(sys.modules):
        space = getattr(sys.modules[module], "__dict__", None) or {}
        for name, kept in list(space.items()):
            if kept is value:
                return Parts("sentinel", [home(module), name])
    return refuse(value)


# These describe their subclasses as well. Functions and classes are added by code.py, which builds on values.
WHOLE: dict[str, Describe] = {
    "builtins.builtin_function_or_method": _builtin,
    "builtins.method": lambda v: Parts("method", [v.__func__, v.__self__]),
    "builtins.method-wrapper": lambda v: Parts("method wrapper", [v.__name__, v.__self__]),
    "builtins.method_descriptor": _member,
    "builtins.classmethod_descriptor": _member,
    "builtins.wrapper_descriptor": _member,
    "builtins.getset_descriptor": _member,
    "builtins.member_descriptor": _member,
    "builtins.property": lambda v: Parts("property", [type(v), v.fget, v.fset, v.fdel]),
    "builtins.staticmethod": lambda v: Parts("staticmethod", [v.__func__]),
    "builtins.classmethod": lambda v: Parts("classmethod", [v.__func__]),
    "builtins.module": lambda v: Parts("module", [home(v.__name__)]),
    "builtins.BaseException": _exception,
    "functools.partial": _partial,
    "functools._lru_cache_wrapper": lambda v: Parts("lru_cache", [v.__wrapped__, v.cache_parameters()]),
    "enum.Enum": _enum,
    "logging.Logger": lambda v: Parts("logger", [v.name]),
    "types.GenericAlias": lambda v: Parts("alias", [v.__origin__, v.__args__]),
    "types.UnionType": lambda v: Parts("union", [v.__args__]),
    "types.SimpleNamespace": lambda v: Parts("namespace", [type(v), *attributes(v)], "attribute"),
    "builtins.ObjectProxy": _proxy,  # wrapt 1 compiled, then wrapt 2, then either without its extension
    "_wrappers.ObjectProxy": _proxy,
    "wrapt.wrappers.ObjectProxy": _proxy,
}

# A place in a process, not a value. Named here so that the error says "an Event" and not "a lock" further down.
REFUSED = frozenset(
    f"{module}.{name}"
    for module, names in {
        "threading": "Thread Condition Semaphore Event Barrier",
        "queue": "Queue",
        "random": "SystemRandom",
        "logging": "Handler",
        "subprocess": "Popen",
        "concurrent.futures._base": "Executor Future",
        "multiprocessing.process": "BaseProcess",
        "multiprocessing.pool": "Pool",
        "multiprocessing.queues": "Queue SimpleQueue",
        "multiprocessing.synchronize": "SemLock Condition Event",
        "asyncio.locks": "Lock Event Condition Semaphore",
        "asyncio.queues": "Queue",
        "asyncio.events": "AbstractEventLoop",
        "contextlib": "_GeneratorContextManagerBase ExitStack AsyncExitStack",
        "_io": "_IOBase",
        "_socket": "socket",
    }.items()
    for name in names.split()
)


# --- values ---------------------------------------------------------------------------------------------------------


def _set(value: Any) -> Parts:
    """Elements of one kind with a natural order are sorted; others the walk orders by their digests."""
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
    # `dict.copy` would give the order of insertion, not that of `move_to_end`.
    ordered = sys.modules["collections"].OrderedDict
    return [dict(ordered.items(value))]


def _buffer(value: Any) -> list[Any]:
    return [value.getvalue(), value.tell()]


Content: TypeAlias = Callable[[Any], Sequence[Any]]

# What a value holds; a subclass adds its class and its own attributes.
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
    "random.Random": lambda v: [v.getstate()],
    "_io.BytesIO": _buffer,
    "_io.StringIO": _buffer,
}
for _name in ("PurePath", "PurePosixPath", "PureWindowsPath", "Path", "PosixPath", "WindowsPath"):
    CONTENT[f"pathlib.{_name}"] = CONTENT[f"pathlib._local.{_name}"] = _text
