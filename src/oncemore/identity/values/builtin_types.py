"""The parts of values of Python's own types. Inert types and those tied to a process, which have no content, are listed here, too.

Types are recognised by name, so that none of their modules need be imported. They are described by their fields and not
by their pickles, some of which differ between Python versions.
"""

from __future__ import annotations

import ast
import functools
import sys
import types
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias

from ...modules import global_generator, is_project_module, module_of, once_per_type
from .parts import Describe, Parts, attributes, canonical_module, name_of, refuse

# Inert types: objects that only coordinate or display. Which one a step is given does not change its outcome.
_LOCKS = "Lock Event Condition Semaphore Barrier"
_CATEGORIES = {
    "lock": {
        "_thread": "lock RLock",
        "threading": "_RLock Condition Event Semaphore Barrier",
        "asyncio.locks": _LOCKS,
        "multiprocessing.synchronize": "SemLock Condition Event",
        "multiprocessing.managers": "AcquirerProxy EventProxy BarrierProxy",
        "anyio": "Lock Event Condition Semaphore CapacityLimiter",
        "trio": "Lock Event Condition Semaphore CapacityLimiter",
        "filelock._api": "BaseFileLock",
        "aiolimiter.leakybucket": "AsyncLimiter",
    },
    "executor": {
        "concurrent.futures._base": "Executor",
        "multiprocessing.pool": "Pool",
        "joblib.parallel": "Parallel",
        "asyncio.events": "AbstractEventLoop",
        "asyncio.taskgroups": "TaskGroup",
    },
    "logger": {
        "logging": "Logger LoggerAdapter Handler",
        "loguru._logger": "Logger",
        "structlog._base": "BoundLoggerBase",
        "structlog._config": "BoundLoggerLazyProxy",
    },
    "display": {
        "tqdm.std": "tqdm",
        "rich.console": "Console",
        "rich.progress": "Progress",
        "rich.live": "Live",
        "rich.status": "Status",
    },
    "context variable": dict.fromkeys(("_contextvars", "contextvars", "builtins"), "ContextVar"),
    "run": {"oncemore.run": "Run"},
}
INERT = {
    f"{module}.{name}": category
    for category, modules in _CATEGORIES.items()
    for module, names in modules.items()
    for name in names.split()
}


@once_per_type
def category(kind: type) -> str | None:
    """The category of an inert type; None for other types."""
    return next(filter(None, (INERT.get(f"{module_of(base)}.{base.__qualname__}") for base in kind.__mro__)), None)


# --- types whose values never change -----------------------------------------------------------------------------------

ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented)))
_IMMUTABLE = frozenset(
    [f"datetime.{name}" for name in ("date", "time", "datetime", "timedelta", "timezone")]
    + [f"{module}.{name}" for module in ("pathlib", "pathlib._local") for name in ("PurePath", "PosixPath")]
    + ["decimal.Decimal", "fractions.Fraction", "re.Pattern", "uuid.UUID", "zoneinfo.ZoneInfo"]
    + ["numpy.generic", "numpy.dtype", "ipaddress.IPv4Address", "ipaddress.IPv6Address"]
)


@once_per_type
def is_immutable(kind: type) -> bool:
    """Whether values of this type never change. A library's subclasses of immutable types are, but not the project's."""
    names = [f"{module_of(base)}.{base.__qualname__}" for base in kind.__mro__]
    if "numpy.void" in names:  # a row of a structured array
        return False
    own = names[:1] if is_project_module(module_of(kind)) else names
    return kind in ATOMS or not _IMMUTABLE.isdisjoint(own)


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

# --- content that is elsewhere: in C, in shared memory, in a manager's process; and mocks -----------------------------


def _ctypes(value: Any) -> Parts:
    try:
        _, (_, (_, content)) = value.__reduce__()
    except ValueError:  # it holds pointers, which are meaningless in another process
        return refuse(value)
    return Parts("ctypes", [type(value), content])


def _of_manager(proxy: Any) -> Parts:
    try:
        return Parts("managed", [type(proxy).__name__, proxy._getvalue()])
    except Exception:  # the manager is gone, or its process
        return refuse(proxy)


def is_mock(kind: type) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" == "unittest.mock.NonCallableMock" for base in kind.__mro__)


def _mock(value: Any) -> Parts:
    return Parts("mock", [type(value).__name__, *(_configured(value, set()) or ())], "attribute")


def _configured(mock: Any, seen: set[int]) -> list[Any] | None:
    """How a mock was configured, without recorded calls and children it created by itself; None if it was not."""
    if id(mock) in seen:
        return None
    seen.add(id(mock))
    space, default = vars(mock), sys.modules["unittest.mock"].DEFAULT
    found: list[Any] = []
    configured = {"return_value": space.get("_mock_return_value"), "side_effect": space.get("_mock_side_effect")}
    configured |= {name: each for name, each in sorted(space.get("_mock_children", {}).items()) if is_mock(type(each))}
    hidden = ("_mock_", "_spec_", "method_calls")
    configured |= {name: each for name, each in sorted(space.items()) if not name.startswith(hidden)}
    for name, each in configured.items():
        if is_mock(type(each)):
            each = _configured(each, seen)
        if each is not None and each is not default:
            found += [name, each]
    spec = space.get("_spec_class")
    return [*(["spec", spec] if spec is not None else []), *found] or None


WHOLE["multiprocessing.sharedctypes.SynchronizedBase"] = lambda v: Parts("shared", [type(v).__name__, v.get_obj()])
WHOLE.update(dict.fromkeys([f"_ctypes.{name}" for name in ("_SimpleCData", "Array", "Structure", "Union")], _ctypes))
WHOLE.update(dict.fromkeys([f"multiprocessing.managers.{name}Proxy" for name in ("Dict", "List")], _of_manager))
WHOLE["unittest.mock.NonCallableMock"] = _mock
