"""What counts, what doesn't, what cannot; and how quickly an identity that stands is seen to stand."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oncemore.errors import FingerprintError
from oncemore.identity.code import Code
from oncemore.identity.values import digest

Load = Callable[..., ModuleType]
_numbers = itertools.count()


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Write a module and import it, each time in a new folder: one text has one identity wherever it lies."""
    loaded = []

    def load(text: str, name: str = "etl") -> ModuleType:
        path = tmp_path / str(next(_numbers)) / f"{name}.py"
        path.parent.mkdir()
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        loaded.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in loaded:
        sys.modules.pop(name, None)


def identity(load: Load, text: str, name: str = "step") -> bytes:
    return Code(getattr(load(text), name)).digest()


def same(load: Load, first: str, second: str) -> bool:
    return identity(load, first) == identity(load, second)


# --- the function itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("return {**x}", "return {None: x}"),
        ("return x == 1", "return x == True"),
        ("return x, 1.0", "return x, 1"),
        ("return 'a', x", "return b'a', x"),
        ("return -0.0 * x", "return 0.0 * x"),
        ("return f'{x}'", "return f'{x!r}'"),
        ("return f'{x}a'", "return f'a{x}'"),
        ("return (lambda a, *, b=None: 0)", "return (lambda a, *, b: 0)"),
        ("return (lambda a=1: 0)", "return (lambda a=2: 0)"),
        ("return [a for a in x if a]", "return [a for a in x]"),
        ("return (a for a in x)", "return [a for a in x]"),
        ("return x[1:]", "return x[:1]"),
        ("x.a = 1", "x.b = 1"),
        ("del x.a", "x.a"),
        ("global y; y = x", "y = x"),
        ("for a in x:\n        pass\n    else:\n        x()", "for a in x:\n        pass\n    x()"),
        ("match x:\n        case [a, *_]: return a", "match x:\n        case [a, _]: return a"),
        ("match x:\n        case None: return 1", "match x:\n        case True: return 1"),
        ("import math as m; return m.pi", "import cmath as m; return m.pi"),
        ("from os import path as m", "from os import sep as m"),
        ("@print\n    def a(): 0", "@repr\n    def a(): 0"),
        ("def a(): return 1\n    return a", "def a(): return 2\n    return a"),
        ("class A:\n        a: int", "class A:\n        b: int"),
        ("class A:\n        a: int = 1", "class A:\n        a = 1"),
        ("x + 1 - 2", "x + (1 - 2)"),
        ("return 'a' 'b'", "return 'a', 'b'"),
        ("yield x", "yield from x"),
        ("assert x", "assert x, x"),
    ],
)
def test_bodies_that_differ_have_different_identities(load: Load, first: str, second: str) -> None:
    assert not same(load, f"def step(x):\n    {first}\n", f"def step(x):\n    {second}\n")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("return x + 1", "return (x\n        + 1)"),
        ("return 'a' 'b'", "return 'ab'"),
        ("return f'a' f'{x}' 'b'", "return f'a{x}b'"),
        ("return 0x10", "return 16"),
        ("y: int = 1; return y", "y = 1; return y"),
        ("pass", "'''Nothing.'''"),
        ("def a(b: int) -> str: return b\n    return a", "def a(b): return b\n    return a"),
        ("def a(b: Unknown): 'doc'; return b\n    return a", "def a(b: 'Other'): return b\n    return a"),
        ("if x: return 1\n    elif y: return 2", "if x: return 1\n    else:\n        if y: return 2"),
    ],
)
def test_bodies_that_only_look_different_have_one_identity(load: Load, first: str, second: str) -> None:
    assert same(load, f"def step(x, y=0):\n    {first}\n", f"def step(x, y=0):\n    {second}\n")


def test_a_name_in_an_annotation_is_not_read(load: Load) -> None:
    text = "LIMIT = {}\n\ndef step(x: LIMIT) -> LIMIT:\n    def inner(a: LIMIT): return a\n    return inner\n"
    assert same(load, text.format(1), text.format(2))


def test_async_and_plain_functions_differ(load: Load) -> None:
    assert not same(load, "def step(x): return x", "async def step(x): return x")


def test_a_very_long_chain_is_no_problem(load: Load) -> None:
    text = "def step(x):\n    if x == 0: return 0\n" + "".join(f"    elif x == {n}: return {n}\n" for n in range(1, 90))
    assert not same(load, text, text.replace("return 89", "return 98"))


def test_two_lambdas_on_one_line_are_told_apart(load: Load) -> None:
    module = load("a, b, c = lambda x: x + 1, lambda x: x + 2, lambda x: x + 1\n")
    a, b, c = (Code(f).digest() for f in (module.a, module.b, module.c))
    assert a != b
    assert a == c


def test_functions_of_one_name_are_told_apart(load: Load) -> None:
    module = load("def f(x): return x + 1\nfirst = f\ndef f(x): return x + 2\nsecond = f\n")
    assert Code(module.first).digest() != Code(module.second).digest()
    assert digest(module.first) != digest(module.second)
    assert Code(module.first).parts()["code"].source == "def f(x): return x + 1\n"


def test_closures_of_one_factory_are_told_apart(load: Load) -> None:
    module = load("def mk(k):\n    return lambda x: x * k\n")
    assert digest(module.mk(2)) != digest(module.mk(3))
    assert digest(module.mk(2)) == digest(module.mk(2))
    assert "closure `k`" in Code(module.mk(2)).parts()


def test_methods_of_unequal_instances_are_told_apart(load: Load) -> None:
    module = load("class Foo:\n    def __init__(self, k): self.k = k\n    def m(self): return self.k\n")
    assert digest(module.Foo(2).m) != digest(module.Foo(3).m)
    assert digest(module.Foo(2).m) == digest(module.Foo(2).m)
    assert Code(module.Foo(2).m).digest() != Code(module.Foo(3).m).digest()


def test_a_notebook_cell_has_source() -> None:
    text = "def step(x):\n    return x + 1  # one\n"
    name = "<ipython-input-1-abc>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), space)
    assert Code(space["step"]).parts()["code"].source == text


def test_exec_without_source_is_told_apart_by_its_code() -> None:
    def made(text: str) -> bytes:
        space: dict[str, Any] = {"__name__": "made"}
        exec(text, space)
        return Code(space["step"]).digest()

    assert made("def step(x): return x + 1") == made("\n\ndef step(x):\n  'doc'\n  return x + 1")
    assert made("def step(x): return x + 1") != made("def step(x): return x + 2")
    assert made("def step(x): return 'a'") != made("def step(x): return 'b'")
    assert made("def step(x): return [y + 1 for y in x]") != made("def step(x): return [y + 2 for y in x]")
    assert made("K = 1\ndef step(x): return K") != made("K = 2\ndef step(x): return K")


# --- what it reaches ------------------------------------------------------------------------------------------------


def test_own_reach_leaves_helpers_and_globals_out(load: Load) -> None:
    text = "LIMIT = {}\ndef help(x): return x + {}\ndef step(x, n={}): return help(x) + LIMIT\n"
    digests = [Code(load(text.format(*values)).step, "own").digest() for values in [(1, 1, 1), (2, 2, 1), (1, 1, 2)]]
    assert digests[0] == digests[1] != digests[2]


def test_swapped_names_count(load: Load) -> None:
    text = "def a(x): return x + 1\ndef b(x): return x + 2\n{}\ndef step(x): return p(x) * q(x * 2)\n"
    assert not same(load, text.format("p, q = a, b"), text.format("p, q = b, a"))


def test_mutual_recursion_ends_and_does_not_depend_on_who_was_asked_first(load: Load) -> None:
    text = "def f(n): return g(n)\ndef g(n): return h(n)\ndef h(n): return f(n), g(n), T\nT = [f, g, {'h': h}]\n"
    first, second = load(text), load(text)
    forward = [Code(getattr(first, name)).digest() for name in "fgh"] + [digest(first.T)]
    backward = [digest(second.T)] + [Code(getattr(second, name)).digest() for name in "hgf"]
    assert forward == backward[::-1]
    assert len(set(forward)) == 4


def test_closures_that_hold_each_other_end(load: Load) -> None:
    names = [f"f{i}" for i in range(20)]
    calls = ", ".join(f"{name}(x)" for name in names)
    inner = "".join(f"    def {name}(x): return {i}, {calls}\n" for i, name in enumerate(names))
    text = f"def make():\n{inner}    return f0\nmade = make()\ndef step(x): return made(x)\n"
    begun = time.perf_counter()
    assert same(load, text, text)
    assert not same(load, text, text.replace("return 7,", "return 77,"))
    assert time.perf_counter() - begun < 5


def test_a_container_that_holds_the_function_that_reads_it_ends(load: Load) -> None:
    make = "def make():\n    box = []\n    box.append(lambda x: (x, box, {}))\n    return box\n"
    text = make + "BOX = make()\ndef step(): return BOX\n"
    assert same(load, text.format(1), text.format(1))
    assert not same(load, text.format(1), text.format(2))


def test_a_set_of_functions_has_one_identity(load: Load) -> None:
    make = "def mk(i):\n    class Local:\n        k = i\n    return Local\n"
    text = make + "ALL = frozenset(mk(i) for i in range(9))\ndef step(): return ALL\n"
    assert same(load, text, text)
    assert not same(load, text, text.replace("range(9)", "range(8)"))


def test_a_module_handed_on_counts_as_a_whole(load: Load) -> None:
    digests = []
    for value in (1, 2):
        load(f"def dynamic(): return {value}\n", "tools")
        digests.append(identity(load, "import tools\ndef step(name): return getattr(tools, name)()\n"))
    assert digests[0] != digests[1]


def test_a_module_imported_and_handed_on_counts_as_a_whole(load: Load) -> None:
    digests = []
    for value in (1, 2):
        load(f"def dynamic(): return {value}\n", "tools")
        digests.append(identity(load, "def step(name):\n    import tools\n    return vars(tools)[name]()\n"))
    assert digests[0] != digests[1]


@pytest.mark.parametrize("body", ["globals()['LIMIT']", "eval('LIMIT')"])
def test_names_that_are_looked_up_by_text_count(load: Load, body: str) -> None:
    text = "LIMIT = {}\ndef step(): return " + body + "\n"
    assert not same(load, text.format(1), text.format(2))


def test_an_attribute_of_a_function_counts_where_it_is_read(load: Load) -> None:
    text = "def help(): return help.limit\nhelp.limit = {}\nhelp.other = {}\ndef step(): return help()\n"
    assert not same(load, text.format(1, 1), text.format(2, 1))
    assert same(load, text.format(1, 1), text.format(1, 2))


def test_private_names_in_classes_are_found(load: Load) -> None:
    text = "_Foo__limit = {}\nclass Foo:\n    def m(self): return __limit\ndef step(): return Foo().m()\n"
    assert not same(load, text.format(1), text.format(2))


def test_names_inside_inner_classes_and_comprehensions_are_found(load: Load) -> None:
    for body in ("class A:\n        k = LIMIT\n    return A", "return {k: [LIMIT for _ in k] for k in x}"):
        text = "LIMIT = {}\ndef step(x):\n    " + body.replace("{", "{{").replace("}", "}}") + "\n"
        assert not same(load, text.format(1), text.format(2))


def test_a_name_that_is_not_there_yet_counts_when_it_comes(load: Load) -> None:
    module = load("def step(): return later\n")
    code = Code(module.step)
    before = code.digest()
    module.later = 1
    assert code.digest() != before


def test_a_builtin_that_is_covered_later_counts(load: Load) -> None:
    module = load("def step(x): return len(x)\n")
    code = Code(module.step)
    before = code.digest()
    module.len = lambda x: 0
    assert code.digest() != before


def test_a_library_decorator_counts_with_what_it_was_given(load: Load) -> None:
    text = "import contextlib\n@contextlib.{}\ndef help(x={}):\n    yield x\ndef step(): return help()\n"
    assert not same(load, text.format("contextmanager", 1), text.format("contextmanager", 2))
    assert not same(load, text.format("contextmanager", 1), text.format("asynccontextmanager", 1))


def test_a_function_that_a_library_wrapped_is_identified_by_what_it_wraps(load: Load) -> None:
    text = "import contextlib\n@contextlib.contextmanager\ndef step(x):\n    yield x + {}\n"
    assert same(load, text.format(1), text.format(1))
    assert not same(load, text.format(1), text.format(2))
    assert digest(load(text.format(1)).step) != digest(load(text.format(2)).step)
    assert set(Code(load(text.format(1)).step).parts()) == {"code"}


def test_hidden_state_of_a_library_does_not_count(load: Load) -> None:
    module = load("from random import random, randint, shuffle\ndef step(): return random(), randint(1, 2), shuffle\n")
    code = Code(module.step)
    before = code.digest()
    module.step()
    assert code.digest() == before


@pytest.mark.parametrize(
    "value",
    [
        "threading.Lock()",
        "threading.RLock()",
        "threading.Condition()",
        "threading.Semaphore(2)",
        "threading.BoundedSemaphore(2)",
        "threading.Event()",
        "threading.Barrier(2)",
        "threading.local()",
        "multiprocessing.Lock()",
        "asyncio.Lock()",
        "asyncio.Semaphore(3)",
        "logging.getLogger('x')",
        "logging.LoggerAdapter(logging.getLogger('x'), {})",
        "contextvars.ContextVar('x')",
        "typing.TypeVar('T')",
        "typing.ParamSpec('P')",
        "typing.NewType('N', int)",
        "typing.Optional[int]",
        "typing.Callable[[int], str]",
        "typing.Any",
        "typing.Literal['a']",
        "list[int]",
        "int | None",
        "threading",
        "functools.lru_cache(None)(lambda: 1)",
        "operator.attrgetter('a')",
        "re.compile('a')",
        "numpy.sqrt",
        "numpy.float64",
        "numpy.random.rand",
        "itertools.chain.from_iterable",
        "print",
    ],
)
def test_tools_of_a_program_have_an_identity_as_globals(load: Load, value: str) -> None:
    imports = (
        "import asyncio, contextvars, functools, itertools, logging, multiprocessing, operator, re, threading, typing\n"
    )
    text = f"{imports}import numpy\nTOOL = {value}\ndef step(): return TOOL\n"
    assert same(load, text, text)
    assert not same(load, text, text.replace(f"TOOL = {value}", "TOOL = 5"))


def test_a_global_without_identity_is_named(load: Load) -> None:
    module = load("client = [(i for i in ())]\ndef helper(): return client\ndef step(): return helper()\n")
    with pytest.raises(FingerprintError) as raised:
        Code(module.step).digest()
    assert (raised.value.part, raised.value.path, raised.value.kind) == ("global `etl.client`", "[0]", "generator")


def test_a_closure_a_default_and_a_class_without_identity_are_named(load: Load) -> None:
    module = load(
        """
        gen = (i for i in ())
        def mk(k): return lambda x: k
        def step(x, k=gen): pass
        class Foo:
            k = [gen]
        def use(): return Foo
        """
    )
    for function, part, path in [
        (module.mk(module.gen), "closure `k`", ""),
        (module.step, "default `k`", ""),
        (module.use, "class `Foo`", ".k[0]"),
    ]:
        with pytest.raises(FingerprintError) as raised:
            Code(function).digest()
        assert (raised.value.part, raised.value.path) == (part, path)


# --- classes --------------------------------------------------------------------------------------------------------

ENUM = "import enum\nclass K(enum.Enum):\n    A = 1\n"
NAMED = "import typing\nclass K(typing.NamedTuple):\n"
DATACLASS = "import dataclasses, typing\n@dataclasses.dataclass\nclass K:\n"
ATTRS = "import attr\n@attr.define\nclass K:\n"
NEW = """
    def __new__(cls, v):
        o = object.__new__(cls)
        o._value_ = 9
        o.extra = {}
        return o
"""
DISPATCH = """
    @functools.singledispatchmethod
    def m(self, x): return 0
    @m.register
    def _(self, x: int): return {}
"""

CLASSES = {
    "an enum's member": (ENUM + "    B = {}\n", "2", "3"),
    "an enum's method": (ENUM + "    def m(self): return {}\n", "1", "2"),
    "an enum's _missing_": (ENUM + "    @classmethod\n    def _missing_(cls, v): return {}\n", "1", "2"),
    "an enum's __new__": (ENUM + NEW, "1", "2"),
    "a flag's member": ("import enum\nclass K(enum.Flag):\n    A = 1\n    B = {}\n", "2", "4"),
    "a named tuple's field": (NAMED + "    {}: int\n", "a", "b"),
    "a named tuple's default": (NAMED + "    a: int = {}\n", "1", "2"),
    "a named tuple's method": (NAMED + "    a: int\n    def m(self): return {}\n", "1", "2"),
    "a collections named tuple": ("import collections\nK = collections.namedtuple('K', '{}')\n", "a b", "a c"),
    "a dataclass's factory": (
        DATACLASS + "    a: list = dataclasses.field(default_factory={})\n",
        "list",
        "lambda: [1]",
    ),
    "a dataclass's own method": (DATACLASS + "    a: int\n    def __eq__(self, other): return {}\n", "1", "2"),
    "a class variable of a dataclass": (DATACLASS + "    a: {} = 1\n", "int", "typing.ClassVar[int]"),
    "an attrs default": (ATTRS + "    a: int = {}\n", "1", "2"),
    "an attrs field": (ATTRS + "    {}: int\n", "a", "b"),
    "an attrs converter": (ATTRS + "    a = attr.field(converter={})\n", "int", "str"),
    "an attrs validator": (ATTRS + "    a = attr.field(validator=attr.validators.in_({}))\n", "[1]", "[2]"),
    "an attrs factory": (ATTRS + "    a = attr.field(factory={})\n", "list", "dict"),
    "an attrs method": (ATTRS + "    a: int\n    def m(self): return {}\n", "1", "2"),
    "a slot": ("class K:\n    __slots__ = ('{}',)\n", "a", "b"),
    "a metaclass": ("class M(type):\n    def __call__(cls): return {}\nclass K(metaclass=M): pass\n", "1", "2"),
    "an abstract method": (
        "import abc\nclass K(abc.ABC):\n    @abc.abstractmethod\n    def m(self): return {}\n",
        "1",
        "2",
    ),
    "a protocol's method": ("import typing\nclass K(typing.Protocol):\n    def m(self): return {}\n", "1", "2"),
    "a generic class's method": (
        "import typing\nT = typing.TypeVar('T')\nclass K(typing.Generic[T]):\n    def m(self): return {}\n",
        "1",
        "2",
    ),
    "a cached property": (
        "import functools\nclass K:\n    @functools.cached_property\n    def m(self): return {}\n",
        "1",
        "2",
    ),
    "a single dispatch method": ("import functools\nclass K:\n" + DISPATCH, "1", "2"),
    "a nested class": ("class K:\n    class Inner:\n        def m(self): return {}\n", "1", "2"),
    "an attribute beside a lock": ("import threading\nclass K:\n    lock = threading.Lock()\n    k = {}\n", "1", "2"),
    "a class attribute of a base": ("class B:\n    k = {}\nclass K(B): pass\n", "1", "2"),
    "a class made in a function": ("def mk(k):\n    class L:\n        a = k\n    return L\nK = mk({})\n", "1", "2"),
    "a global that a method reads": ("LIMIT = {}\nclass K:\n    def m(self): return LIMIT\n", "1", "2"),
}


@pytest.mark.parametrize("what", CLASSES)
def test_what_counts_in_a_class(load: Load, what: str) -> None:
    text, one, other = CLASSES[what]
    text += "def step(): return K\n"
    assert same(load, text.replace("{}", one), text.replace("{}", one))
    assert not same(load, text.replace("{}", one), text.replace("{}", other))
    assert digest(load(text.replace("{}", one)).K) != digest(load(text.replace("{}", other)).K)


def test_an_instance_as_an_argument_brings_its_class_along(load: Load) -> None:
    text = "class K:\n    def m(self): return help()\ndef help(): return {}\n"
    assert digest(load(text.format(1)).K()) == digest(load(text.format(1)).K())
    assert digest(load(text.format(1)).K()) != digest(load(text.format(2)).K())
    assert digest([load(text.format(1)).K]) != digest([load(text.format(2)).K])
    assert digest({"f": load(text.format(1)).help}) != digest({"f": load(text.format(2)).help})


def test_a_class_changed_at_run_time_counts(load: Load) -> None:
    module = load("class K:\n    k = 1\n    def m(self): return 1\nclass L(K): pass\ndef step(): return L()\n")
    code = Code(module.step)
    seen = [code.digest()]
    module.K.k = 2
    seen.append(code.digest())
    module.K.m = lambda self: 2
    seen.append(code.digest())
    module.K.new = 1
    seen.append(code.digest())
    assert len(set(seen)) == 4
    assert digest(module.L()) == digest(module.L())


# --- looking again --------------------------------------------------------------------------------------------------

CHANGES = {
    "a global": "m.LIMIT = 4",
    "a global that is gone": "del m.LIMIT",
    "a global of another type": "m.LIMIT = 3.0",
    "an item of a dict": "m.RATES['a'] = 2",
    "an item deep in a dict": "m.RATES['b'].append(2)",
    "an attribute of an instance": "m.thing.k = 2",
    "a class of an instance": "type(m.thing).k2 = 2",
    "an item of a large list": "m.LARGE[500] = -1",
    "a cell of an array": "m.ARRAY[3] = -1",
    "a helper": "m.help = m.other",
    "a helper's code, in place": "m.help.__code__ = m.other.__code__",
    "the code itself, in place": "m.step.__code__ = (lambda x: x).__code__",
    "a helper's defaults": "m.help.__defaults__ = (2,)",
    "the defaults": "m.step.__defaults__ = (2,)",
    "a helper's keyword defaults": "m.help.__kwdefaults__['q'] = 2",
    "a closure": "m.increase()",
    "a function in a dict": "m.TABLE['a'] = m.other",
    "the code of a function in a dict": "m.TABLE['b'].__code__ = m.other.__code__",
    "a registered implementation": "m.show.register(int, m.other)",
    "a default that can change": "m.step.__defaults__[0].append(1)",
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_while_running_is_seen(load: Load, what: str) -> None:
    module = load(
        """
        import functools
        import numpy
        LIMIT = 3
        RATES = {"a": 1, "b": [1]}
        LARGE = list(range(1000))
        ARRAY = numpy.arange(10)
        class Thing:
            k = 1
        thing = Thing()
        def other(x=1, *, q=1): return 2
        def help(x=1, *, q=1): return LIMIT
        def counter():
            n = 0
            def up():
                nonlocal n
                n += 1
            def read(): return n
            return up, read
        increase, read = counter()
        TABLE = {"a": lambda x: x, "b": lambda x=1, *, q=1: x, "thing": thing}
        @functools.singledispatch
        def show(x): return 0
        def step(x=[]): return help(), RATES, thing, LARGE, ARRAY, read(), TABLE, show(1)
        """
    )
    code = Code(module.step)
    before = code.digest()
    assert code.digest() == before
    exec(CHANGES[what], {"m": module})
    after = code.digest()
    assert after != before
    assert after == Code(module.step).digest()


def test_looking_again_is_quick(load: Load) -> None:
    helpers = "".join(f"def h{i}(x): return x + LIMIT + h{(i + 1) % 10}(x), TABLE\n" for i in range(10))
    module = load(f"LIMIT = 3\nTABLE = {{'a': [1, 2]}}\n{helpers}def step(x): return h0(x)\n")
    code = Code(module.step)
    code.digest()
    best = min(_timed(code.digest) for _ in range(20))
    assert best < 50e-6


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(100):
        call()
    return (time.perf_counter() - begun) / 100


def test_threads_agree(load: Load) -> None:
    module = load("LIMIT = [3]\ndef help(): return LIMIT, lambda x: x\ndef step(): return help()\n")
    code = Code(module.step)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.extend(code.digest() for _ in range(50))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 400
    assert len(set(found)) == 1


# --- for the reader -------------------------------------------------------------------------------------------------


def test_parts_say_where_and_what(load: Load) -> None:
    text = "def step():\n    return help(), Foo\n"
    module = load("LIMIT = 'x' * 500\n\ndef help():\n    return LIMIT\n\nclass Foo:\n    k = 1\n\n" + text)
    parts = Code(module.step).parts()
    assert parts["code"].where == "etl.py:9"
    assert parts["code"].source == text
    assert parts["helper `help`"].where == "etl.py:3"
    assert parts["class `Foo`"].source == "class Foo:\n    k = 1\n"
    assert 10 < len(parts["global `etl.LIMIT`"].shown) <= 80


def test_packages_are_told_with_their_versions(load: Load) -> None:
    import numpy

    inner = "def step():\n    import pandas\n    return help(), os\n"
    module = load("import numpy as np\nimport os\ndef help(): return np.mean\n" + inner)
    assert Code(module.step).packages()["numpy"] == numpy.__version__
    assert set(Code(module.step).packages()) == {"numpy", "pandas"}


def test_a_step_counts_as_the_function_that_it_is(load: Load) -> None:
    text = "from oncemore import checkpointed\n{}\ndef inner(x): return x + {}\ndef step(x): return inner(x)\n"
    assert same(load, text.format("", 1), text.format("@checkpointed", 1))
    assert not same(load, text.format("@checkpointed", 1), text.format("@checkpointed", 2))


def test_a_step_that_calls_itself_is_no_helper_of_its_own(load: Load) -> None:
    module = load("from oncemore import checkpointed\n@checkpointed\ndef step(x): return step(x - 1) if x else 0\n")
    assert set(Code(module.step).parts()) == {"code", "global `etl.step`"}
