"""Functions and classes whose identities are frozen in code_digests.json: equal on every Python, for good."""
# ruff: noqa
# fmt: off

import abc
import asyncio
import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import importlib
import inspect
import logging
import math
import operator
import re
import threading
import typing
import weakref
from pathlib import Path

import attr

LIMIT = 3
RATES = {"a": 1.5, "b": [1, (2, None)], "c": {True, False}}
PATTERN = re.compile(r"a+", re.IGNORECASE)
ROOT = Path(__file__).parent
log = logging.getLogger(__name__)
lock = threading.Lock()
local = threading.local()
T = typing.TypeVar("T")
Rows = typing.Optional[typing.List[int]]


def plain(x):
    return x + 1


def parameters(a, b=1, /, c=2, *args, d, e=3, **kwargs):
    return a, b, c, args, d, e, kwargs


def annotated(x: "int", *, y: float = 1.5) -> "str":
    """A docstring."""
    z: int = 3
    w: int
    return f"{x}{y}{z}"


def strings(x, w=3):
    return (
        f"{x!r:>{w}} and {x=} {{}} {'a' 'b'}" "tail" f"{x:%Y-%m}" f"",
        f"{x = !r:^20}" f"{x:{w}.{w}}" "" f"{{{x}}}" rf"\d{x}\n" F'{x}"',
        "é\n\t\\ \N{BULLET} \ud800",
        rb"\x00",
        b"\x00\xff",
        u"kind",
        f"{x:}",
        f"{x!s}{x!a}",
        f"{(lambda y: y)(x)}{ {1: 2}[1] }",
        f"""{
            x
        } {x:
        }""",
    )


def numbers():
    return 1, -1, 0x10, 1_000_000, 10**30, 2.5, 1e100, -0.0, 1e999, 3j, True, None, ..., 0xFFFFFFFFFFFFFFFFFFFFFFFF


def operators(a, b):
    a += b
    a @= b
    a //= b
    return a + b - a * b / a % b**-a // b << 1 >> 2 | a & b ^ ~a, not a, a and b or a, a < b <= a != b, a is not b


def comprehensions(rows):
    return [a for a in rows if a if a > LIMIT], {a: b for a, b in rows}, {*rows}, {**rows, "a": 1}


def control(x):
    for i in range(x):
        if i == 1:
            continue
        elif i == 2:
            break
        else:
            pass
    else:
        x = 0
    while x:
        x -= 1
    try:
        del x
    except (ValueError, TypeError) as error:
        raise RuntimeError("x") from error
    except Exception:
        raise
    else:
        x = 1
    finally:
        assert x, "message"
    with lock, contextlib.suppress(OSError) as s:
        return s


def matching(x):
    match x:
        case 0 | 1 if x:
            return 1
        case [a, *rest, _]:
            return a, rest
        case {"k": v, **others}:
            return v, others
        case Point(x=0, y=y) as p:
            return y, p
        case None | True | "a" | -1:
            return 2
        case math.pi:
            return 3
        case _:
            return 4


def walrus(x):
    if (y := x + 1) > 2 and any((last := z) for z in range(y)):
        return last
    return lambda a, *b, c=1, **d: (a, b, c, d, y)


def nested(x):
    counter = 0

    @functools.lru_cache(maxsize=None)
    def inner(a: int = LIMIT, *, b: str = "b") -> int:
        """Inner docstring."""
        nonlocal counter
        counter += 1
        global LIMIT
        return helper(a) + counter

    class Local(Base):
        """Local docstring."""

        field: int = 1
        bare: str

        def method(self):
            return super().method(), __class__, LIMIT

    return inner, Local


def imports():
    import json.decoder as decoder
    import os.path
    from collections import OrderedDict as Ordered
    from math import pi, tau

    return decoder, os.path.join, Ordered, pi, tau


def generator(x):
    y = yield x
    yield from y
    return (yield)


async def coroutine(x):
    async with x as y:
        async for z in y:
            await asyncio.sleep(z)
    return [await w for w in x]


async def asynchronous_generator(x):
    yield x


def starred(*args, **kwargs):
    first, *rest = args
    print(*rest, sep="", **kwargs)
    return rest[1:2:3, ...], [*args, *rest][::-1]


def chains(x):
    return math.pi, operator.add(x, 1), Path.cwd, np_like.linalg.norm(x), x.a.b.c().d[0].e


def helper(x):
    return other(x) + LIMIT


def other(x):
    return helper(x - 1) if x else RATES, PATTERN, ROOT, Rows, T


def tools():
    log.info("x")
    return lock, local, partial, cached, wrapped, show, TABLE, made, method, adder


def deco(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@deco
def wrapped(x):
    return x


@functools.lru_cache(maxsize=10)
def cached(x):
    return x


@functools.singledispatch
def show(x):
    return "any"


@show.register(int)
def _(x):
    return "int"


@show.register(list)
def _show_list(x):
    return "list"


@contextlib.contextmanager
def managed(x):
    yield x


def factory(k):
    def inner(x):
        return inner(x - 1) * k if x else managed

    return inner


partial = functools.partial(plain, x=1)
made = factory(3)
method = "abc".upper
adder = operator.add
TABLE = {"plain": plain, "lambda": lambda x, y=1: x + y, "class": list, "len": len, "sqrt": math.sqrt}
two, lambdas = lambda x: x + 1, lambda x: x + 2


class Base(abc.ABC):
    """A docstring."""

    rate = 5
    lock = threading.Lock()
    __slots__ = ("a", "__dict__")

    def method(self):
        return self.rate

    @abc.abstractmethod
    def abstract(self): ...

    @property
    def prop(self):
        return 1

    @prop.setter
    def prop(self, value):
        self.a = value

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def static(x):
        return x

    @functools.cached_property
    def cached(self):
        return LIMIT

    def __private(self):
        return self.__private, __hidden


class Derived(Base, typing.Generic[T]):
    class Inner:
        def run(self):
            return Derived

    def abstract(self):
        return super().method()


class Meta(type):
    def __call__(cls):
        return super().__call__()


class Made(metaclass=Meta):
    pass


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
    tags: list = dataclasses.field(default_factory=list, repr=False, compare=False)
    shared: typing.ClassVar[int] = 3

    def norm(self):
        return math.hypot(self.x, self.y)


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    z: int = 4
    w: tuple = (1, 2)

    def __repr__(self):
        return "Frozen"


@attr.define
class Attrs:
    a: int
    b: list = attr.field(factory=list)
    c: int = attr.field(default=1, converter=int)

    def run(self):
        return self.a


class Pair(typing.NamedTuple):
    a: int
    b: int = 1

    def total(self):
        return self.a + self.b


Old = collections.namedtuple("Old", "a b", defaults=[1])


class Color(enum.Enum):
    RED = 1
    GREEN = "g"
    ALIAS = 1

    @classmethod
    def _missing_(cls, value):
        return cls.RED

    def describe(self):
        return self.name


class Bits(enum.IntFlag):
    A = enum.auto()
    B = enum.auto()


class Shape(typing.Protocol):
    def area(self) -> float: ...


class Movie(typing.TypedDict):
    name: str


class Failure(Exception):
    def __str__(self):
        return "failed"


def classes():
    return Derived, Made, Point, Frozen, Attrs, Pair, Old, Color.RED, Bits, Shape, Movie, Failure, Derived.Inner


# --- what counts only where it is read ---

Tagged = typing.Annotated[int, plain, "unit"]
Kind = typing.Literal["a", 1]
UserId = typing.NewType("UserId", int)
current = contextvars.ContextVar("current", default=LIMIT)
held = weakref.ref(plain)


class Plugin(abc.ABC):
    """A plugin.

        Indented.
    """


class One(Plugin):
    size: "typing.Optional[int]" = None
    tag: Tagged = 1

    def run(self, x: Kind, y: "Point" = None, *, z: list[int] = ()) -> typing.Callable[[int], str]:
        """Run it.

        With a second line.
        """
        return x


class Strange:
    __slots__ = ("a",)
    __match_args__ = ("a",)


Plugin.register(Strange)
copy.mine = plain


def every():
    return Plugin.__subclasses__(), isinstance(1, Plugin)


def prompts():
    return One.run.__doc__, Plugin.__doc__, __doc__


def signatures():
    return inspect.signature(One.run), typing.get_type_hints(One), dataclasses.fields(Point), Movie


def sources():
    return inspect.getsource(plain), One


def types_as_values():
    return Tagged, Kind, UserId, current, held, Strange, typing.Any, list[int], int | None


def patched():
    return copy.mine(1)


def by_name(name):
    return importlib.import_module("code_samples_" + name)


def checked(x):
    assert x
    if typing.TYPE_CHECKING:
        import nothing
    return eval("plain(LIMIT)")
