"""Edits of code that a step reaches in roundabout ways, and edits that change nothing.

Each text is a module `etl` with a function `step`; `=== name.py` begins another file beside it. `<<a|b>>` is the edit.
"""

from __future__ import annotations

import builtins
import fractions
import importlib
import itertools
import json
import os
import re
import string
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncemore.identity.code import Code

Identify = Callable[[str], bytes]
_numbers = itertools.count()
pandas: Any = pytest.importorskip("pandas")


def editions(text: str) -> tuple[str, str]:
    """The text before and after the edit."""
    found = re.compile(r"<<(.*?)\|(.*?)>>", re.DOTALL)
    return found.sub(r"\1", text), found.sub(r"\2", text)


def write(folder: Path, text: str) -> None:
    pieces = re.split(r"^=== (.+)\n", textwrap.dedent(text), flags=re.MULTILINE)
    for name, content in [("etl.py", pieces[0]), *zip(pieces[1::2], pieces[2::2], strict=True)]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.fixture
def identify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Identify:
    """Write the files and import `etl` from them, each time in a new folder; the identity of its step."""
    patched_too = [builtins, fractions, fractions.Fraction, json, os.path, pandas.DataFrame, string, string.Formatter]

    def identify(text: str) -> bytes:
        folder = tmp_path / str(next(_numbers))
        write(folder, text)
        before, spaces = set(sys.modules), [dict(vars(each)) for each in patched_too]
        with monkeypatch.context() as patched:
            patched.syspath_prepend(folder)
            try:
                return Code(importlib.import_module("etl").step).digest()
            finally:
                for name in set(sys.modules) - before:
                    if str(getattr(sys.modules[name], "__file__", None) or folder).startswith(str(folder)):
                        del sys.modules[name]
                for each, space in zip(patched_too, spaces, strict=True):
                    for name in vars(each).keys() - space.keys():
                        delattr(each, name)
                    for name in [name for name in space if vars(each)[name] is not space[name]]:
                        setattr(each, name, space[name])

    return identify


# --- edits that change what a step does -----------------------------------------------------------------------------

COUNTS = {
    "what the module makes up for a name that it does not have": """
        import sys

        def __getattr__(name):
            return <<1|2>>

        def step():
            return getattr(sys.modules[__name__], "limit")
    """,
    "a value that was put among the builtins": """
        import builtins
        builtins.LIMIT = <<1|2>>

        def step():
            return LIMIT
    """,
    "a subclass found by __subclasses__": """
        class Base:
            def run(self): return 0
        class One(Base):
            def run(self): return <<1|2>>
        def step(): return [kind().run() for kind in Base.__subclasses__()]
    """,
    "a subclass of a subclass": """
        class Base: pass
        class Middle(Base): pass
        class One(Middle):
            def run(self): return <<1|2>>
        def every(kind): return [each for kind in kind.__subclasses__() for each in (kind, *every(kind))]
        def step(): return [kind().run() for kind in every(Base)]
    """,
    "a subclass in another module": """
        import base, plugins
        def step(): return [kind().run() for kind in base.Base.__subclasses__()]
        === base.py
        class Base:
            def run(self): return 0
        === plugins.py
        from base import Base
        class One(Base):
            def run(self): return <<1|2>>
    """,
    "a new subclass": """
        class Base:
            def run(self): return 0
        <<|class One(Base): pass>>
        def step(): return [kind().run() for kind in Base.__subclasses__()]
    """,
    "a subclass found by a method of the base": """
        class Base:
            @classmethod
            def make(cls, name): return next(kind for kind in cls.__subclasses__() if kind.__name__ == name)()
        class One(Base):
            def run(self): return <<1|2>>
        def step(name): return Base.make(name).run()
    """,
    "a subclass found by type.__subclasses__": """
        class Base: pass
        class One(Base):
            def run(self): return <<1|2>>
        def step(): return [kind().run() for kind in type.__subclasses__(Base)]
    """,
    "a subclass found by getattr": """
        class Base: pass
        class One(Base):
            def run(self): return <<1|2>>
        def step(): return [kind().run() for kind in getattr(Base, "__subclasses__")()]
    """,
    "a subclass of an argument's class found by a helper": """
        import abc
        class Base(abc.ABC): pass
        class One(Base):
            def run(self): return <<1|2>>
        def every(kind): return kind.__subclasses__()
        def step(): return [kind().run() for kind in every(Base)]
    """,
    "a registry of functions": """
        ALL = {}
        def register(function):
            ALL[function.__name__] = function
            return function
        @register
        def one(): return <<1|2>>
        def step(name): return ALL[name]()
    """,
    "a registry that another module fills": """
        import registry, plugins
        def step(name): return registry.ALL[name]()
        === registry.py
        ALL = {}
        def register(name):
            def add(function):
                ALL[name] = function
                return function
            return add
        === plugins.py
        from registry import register
        @register("one")
        def one(): return helper()
        def helper(): return <<1|2>>
    """,
    "a registry of classes in a list": """
        ALL = []
        def register(kind):
            ALL.append(kind)
            return kind
        @register
        class One:
            def run(self): return <<1|2>>
        def step(): return [kind().run() for kind in ALL]
    """,
    "a registry in a class": """
        class Registry:
            def __init__(self): self.known = {}
            def add(self, function):
                self.known[function.__name__] = function
                return function
        R = Registry()
        @R.add
        def one(): return <<1|2>>
        def step(name): return R.known[name]()
    """,
    "a registry on a class, by __init_subclass__": """
        class Base:
            known = {}
            def __init_subclass__(cls, **more): cls.known[cls.__name__] = cls
        class One(Base):
            def run(self): return <<1|2>>
        def step(name): return Base.known[name]().run()
    """,
    "a registry that a metaclass fills": """
        class Meta(type):
            known = {}
            def __new__(cls, name, bases, space):
                made = super().__new__(cls, name, bases, space)
                cls.known[name] = made
                return made
        class Base(metaclass=Meta): pass
        class One(Base):
            def run(self): return <<1|2>>
        def step(name): return Meta.known[name]().run()
    """,
    "a registry of weak references": """
        import weakref
        ALL = weakref.WeakValueDictionary()
        def register(function):
            ALL[function.__name__] = function
            return function
        @register
        def one(): return <<1|2>>
        def step(name): return ALL[name]()
    """,
    "a registry of weakly held classes": """
        import weakref
        ALL = weakref.WeakSet()
        class One:
            def run(self): return <<1|2>>
        ALL.add(One)
        def step(): return [kind().run() for kind in ALL]
    """,
    "a weak reference to a function": """
        import weakref
        def one(): return <<1|2>>
        R = weakref.ref(one)
        def step(): return R()()
    """,
    "a read-only view of a registry": """
        import types
        def one(): return <<1|2>>
        ALL = types.MappingProxyType({"one": one})
        def step(): return ALL["one"]()
    """,
    "a chain of maps": """
        import collections
        def one(): return <<1|2>>
        ALL = collections.ChainMap({}, {"one": one})
        def step(): return ALL["one"]()
    """,
    "a default dict's factory": """
        import collections
        def one(): return <<1|2>>
        ALL = collections.defaultdict(one)
        def step(): return ALL["one"]
    """,
    "a dispatched function": """
        import functools
        @functools.singledispatch
        def show(x): return 0
        @show.register
        def _(x: int): return <<1|2>>
        def step(x): return show(x)
    """,
    "a dispatched function registered in another module": """
        import shows, more
        def step(x): return shows.show(x)
        === shows.py
        import functools
        @functools.singledispatch
        def show(x): return 0
        === more.py
        from shows import show
        @show.register(int)
        def show_int(x): return <<1|2>>
    """,
    "the types that a function dispatches on": """
        import functools
        @functools.singledispatch
        def show(x): return 0
        @show.register(<<int|str>>)
        def _(x): return 1
        def step(x): return show(x)
    """,
    "a dispatched method": """
        import functools
        class K:
            @functools.singledispatchmethod
            def show(self, x): return 0
            @show.register
            def _(self, x: int): return <<1|2>>
        def step(x): return K().show(x)
    """,
    "a dispatched method registered outside of the class": """
        import functools
        class K:
            @functools.singledispatchmethod
            def show(self, x): return 0
        @K.show.register(int)
        def _(self, x): return <<1|2>>
        def step(x): return K().show(x)
    """,
    "a universal function": """
        import numpy as np
        def one(x): return x + <<1|2>>
        F = np.frompyfunc(one, 1, 1)
        def step(x): return F(x)
    """,
    "a universal function's helper": """
        import numpy as np
        def help(x): return x + <<1|2>>
        F = np.frompyfunc(lambda x: help(x), 1, 1)
        def step(x): return F(x)
    """,
    "a universal function's outputs": """
        import numpy as np
        def one(x): return x, x
        F = np.frompyfunc(one, 1, <<1|2>>)
        def step(x): return F(x)
    """,
    "a universal function's reduction": """
        import numpy as np
        def one(x, y): return x + <<1|2>>
        F = np.frompyfunc(one, 2, 1).reduce
        def step(x): return F(x)
    """,
    "a universal function's identity value": """
        import numpy as np
        def one(x, y): return x
        F = np.frompyfunc(one, 2, 1, identity=<<1|2>>)
        def step(x): return F.reduce(x)
    """,
    "a vectorized function": """
        import numpy as np
        @np.vectorize
        def one(x): return x + <<1|2>>
        def step(x): return one(x)
    """,
    "a vectorized function's types": """
        import numpy as np
        F = np.vectorize(lambda x: x, otypes=[<<int|float>>])
        def step(x): return F(x)
    """,
    "a vectorized function's signature": """
        import numpy as np
        F = np.vectorize(lambda x: x, signature="<<(n)->(n)|(n)->()>>")
        def step(x): return F(x)
    """,
    "a callback from C": """
        import ctypes
        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
        def one(x): return x + <<1|2>>
        def step(x): return one(x)
    """,
    "a callback made of a function": """
        import ctypes
        KIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
        def one(x): return x + <<1|2>>
        F = KIND(one)
        def step(x): return F(x)
    """,
    "Annotated metadata": """
        import typing
        LIMIT = typing.Annotated[int, <<1|2>>]
        def step(): return LIMIT.__metadata__
    """,
    "a callable in Annotated": """
        import typing
        def check(x): return <<1|2>>
        LIMIT = typing.Annotated[int, check]
        def step(x): return LIMIT.__metadata__[0](x)
    """,
    "Annotated metadata in a type": """
        import typing
        LIMIT = list[typing.Annotated[int, <<1|2>>]]
        def step(): return typing.get_type_hints(LIMIT, include_extras=True)
    """,
    "a literal type": """
        import typing
        KIND = typing.Literal["<<a|b>>"]
        def step(): return typing.get_args(KIND)
    """,
    "a literal type of one value": """
        import typing
        KIND = typing.Literal[<<1|True>>]
        def step(): return typing.get_args(KIND)
    """,
    "a callable type": """
        import typing
        KIND = typing.Callable[[<<int|str>>], int]
        def step(): return typing.get_args(KIND)
    """,
    "a type variable's bound": """
        import typing
        T = typing.TypeVar("T", bound=<<int|str>>)
        def step(): return T.__bound__
    """,
    "a new type's base": """
        import typing
        N = typing.NewType("N", <<int|str>>)
        def step(): return N.__supertype__
    """,
    "a forward reference": """
        import typing
        KIND = typing.Optional["<<A|B>>"]
        def step(): return KIND.__args__
    """,
    "a dataclass field's metadata": """
        import dataclasses
        @dataclasses.dataclass
        class K:
            a: int = dataclasses.field(default=0, metadata={"unit": "<<m|km>>"})
        def step(): return [field.metadata for field in dataclasses.fields(K)]
    """,
    "a callable in a dataclass field's metadata": """
        import dataclasses
        def check(x): return help(x)
        def help(x): return <<1|2>>
        @dataclasses.dataclass
        class K:
            a: int = dataclasses.field(default=0, metadata={"check": check})
        def step(x): return [field.metadata["check"](x) for field in dataclasses.fields(K)]
    """,
    "a lambda in a dataclass field's metadata": """
        import dataclasses
        @dataclasses.dataclass
        class K:
            a: int = dataclasses.field(default=0, metadata={"check": lambda x: <<1|2>>})
        def step(x): return [field.metadata["check"](x) for field in dataclasses.fields(K)]
    """,
    "an attrs field's metadata": """
        import attrs
        @attrs.define
        class K:
            a: int = attrs.field(default=0, metadata={"check": lambda x: <<1|2>>})
        def step(x): return [field.metadata["check"](x) for field in attrs.fields(K)]
    """,
    "an attrs field's alias": """
        import attrs
        @attrs.define
        class K:
            a: int = attrs.field(alias="<<b|c>>")
        def step(x): return K(b=1)
    """,
    "an attrs field's on_setattr": """
        import attrs
        def check(instance, field, value): return <<1|2>>
        @attrs.define
        class K:
            a: int = attrs.field(default=0, on_setattr=check)
        def step(x): return K()
    """,
    "an attrs field's repr": """
        import attrs
        @attrs.define
        class K:
            a: int = attrs.field(default=0, repr=lambda x: "<<1|2>>")
        def step(x): return repr(K())
    """,
    "an attrs field's eq": """
        import attrs
        @attrs.define
        class K:
            a: int = attrs.field(default=0, eq=lambda x: <<1|2>>)
        def step(x): return K() == K()
    """,
    "an attrs class that is frozen": """
        import attrs
        @attrs.<<define|frozen>>
        class K:
            a: int = 0
        def step(x): K().a = 1
    """,
    "the type of a dataclass field that is read": """
        import dataclasses
        @dataclasses.dataclass
        class K:
            a: <<int|str>> = 0
        def step(): return [field.type("1") for field in dataclasses.fields(K)]
    """,
    "the type of a dataclass field that a helper reads": """
        import dataclasses
        @dataclasses.dataclass
        class K:
            a: <<int|str>> = 0
        def convert(kind, row): return kind(**{f.name: f.type(row[f.name]) for f in dataclasses.fields(kind)})
        def step(row): return convert(K, row)
    """,
    "the type of a dataclass field that __post_init__ reads": """
        import dataclasses
        @dataclasses.dataclass
        class K:
            a: <<int|str>> = 0
            def __post_init__(self):
                for field in dataclasses.fields(self):
                    setattr(self, field.name, field.type(getattr(self, field.name)))
        def step(): return K("1").a
    """,
    "the type of an attrs field that is read": """
        import attrs
        @attrs.define
        class K:
            a: <<int|str>> = 0
        def step(): return [field.type("1") for field in attrs.fields(K)]
    """,
    "the types of a named tuple": """
        import typing
        class K(typing.NamedTuple):
            a: <<int|str>>
        def step(): return typing.get_type_hints(K)
    """,
    "the types of a typed dict": """
        import typing
        class K(typing.TypedDict):
            a: <<int|str>>
        def step(): return K.__annotations__
    """,
    "the keys of a typed dict": """
        import typing
        class K(typing.TypedDict<<|, total=False>>):
            a: int
        def step(): return K.__required_keys__
    """,
    "annotations that a step reads of a helper": """
        import typing
        def help(x: <<int|str>>): return x
        def step(x): return typing.get_type_hints(help)
    """,
    "annotations that a step reads of a helper as text": """
        from __future__ import annotations
        import typing
        def help(x: <<int|str>>): return x
        def step(x): return typing.get_type_hints(help)
    """,
    "a class in an annotation that is read": """
        from __future__ import annotations
        import typing
        class Kind:
            def __init__(self, x): self.x = <<1|2>>
        def help(x: Kind): return x
        def step(x): return typing.get_type_hints(help)["x"](x)
    """,
    "a class in an annotation in quotes": """
        import typing
        class Row:
            a: "Kind"
        class Kind:
            def __init__(self, x): self.x = <<1|2>>
        def step(x): return typing.get_type_hints(Row)["a"](x)
    """,
    "a signature that is read": """
        import inspect
        def tool(x: <<int|str>>): return x
        def step(): return str(inspect.signature(tool))
    """,
    "a return annotation that is read": """
        def tool(x) -> <<int|str>>: return x
        def step(): return tool.__annotations__
    """,
    "annotations by inspect.get_annotations": """
        import inspect
        class K:
            a: <<int|str>>
        def step(): return inspect.get_annotations(K)
    """,
    "annotations that a decorator reads": """
        import functools, typing
        def typed(function):
            hints = typing.get_type_hints(function)
            @functools.wraps(function)
            def call(**given): return function(**{name: hints[name](value) for name, value in given.items()})
            return call
        @typed
        def help(x: <<int|str>>): return x
        def step(): return help(x="1")
    """,
    "annotations that a decorator reads when called": """
        import functools, inspect
        def typed(function):
            @functools.wraps(function)
            def call(**given):
                found = inspect.signature(function).parameters
                return function(**{name: found[name].annotation(value) for name, value in given.items()})
            return call
        @typed
        def help(x: <<int|str>>): return x
        def step(): return help(x="1")
    """,
    "annotations of the step itself": """
        def step(x: <<int|str>>): return step.__annotations__
    """,
    "annotations of a class that its base reads": """
        class Base:
            def __init_subclass__(cls): cls.kinds = dict(cls.__annotations__)
        class One(Base):
            a: <<int|str>>
        def step(): return One.kinds["a"]("1")
    """,
    "annotations of a module": """
        import sys
        a: <<int|str>> = 1
        def step(): return sys.modules[__name__].__annotations__
    """,
    "annotations that code without imports reads": """
        def help(x: <<int|str>>): return x
        def step(x): return getattr(help, "__annotations__")
    """,
    "a prompt in the docstring of a helper": '''
        def help(): """<<Be kind.|Be brief.>>"""
        def step(): return help.__doc__
    ''',
    "a prompt in the docstring of a class": '''
        class Prompt:
            """<<Be kind.|Be brief.>>"""
        def step(): return Prompt.__doc__
    ''',
    "a prompt in the docstring of a method": '''
        class Tools:
            def one(self): """<<Be kind.|Be brief.>>"""
        def step(): return Tools.one.__doc__
    ''',
    "a prompt in the docstring of the step itself": '''
        def step():
            """<<Be kind.|Be brief.>>"""
            return step.__doc__
    ''',
    "a prompt in the docstring of the module": '''
        """<<Be kind.|Be brief.>>"""
        def step(): return __doc__
    ''',
    "a prompt in the docstring of another module": '''
        import prompts
        def step(): return prompts.__doc__
        === prompts.py
        """<<Be kind.|Be brief.>>"""
    ''',
    "a prompt by inspect.getdoc": '''
        import inspect
        def help(): """<<Be kind.|Be brief.>>"""
        def step(): return inspect.getdoc(help)
    ''',
    "docstrings of tools in a list": '''
        def one(): """<<Be kind.|Be brief.>>"""
        TOOLS = [one]
        def describe(tools): return [tool.__doc__ for tool in tools]
        def step(): return describe(TOOLS)
    ''',
    "a docstring that a decorator reads": '''
        def prompt(function):
            text = function.__doc__
            def ask(): return text
            return ask
        @prompt
        def help(): """<<Be kind.|Be brief.>>"""
        def step(): return help()
    ''',
    "a docstring behind functools.wraps": '''
        import functools
        def plain(function):
            @functools.wraps(function)
            def call(): return function()
            return call
        @plain
        def help(): """<<Be kind.|Be brief.>>"""
        def step(): return help.__doc__
    ''',
    "the source of a helper that is read": """
        import inspect
        def help(): return 1  # <<one|two>>
        def step(): return inspect.getsource(help)
    """,
    "a signature's default": """
        import inspect
        def tool(x=<<1|2>>): return x
        def step(): return str(inspect.signature(tool))
    """,
    "the name of a helper that is read": """
        def <<one|two>>(): return 1
        TOOLS = [<<one|two>>]
        def step(): return [tool.__name__ for tool in TOOLS]
    """,
    "a patched function of a library": """
        import json
        def mine(x): return <<1|2>>
        json.dumps = mine
        def step(x): return json.dumps(x)
    """,
    "a patched function of a library, imported by name": """
        import json
        def mine(x): return <<1|2>>
        json.dumps = mine
        from json import dumps
        def step(x): return dumps(x)
    """,
    "a function of a library patched in another module": """
        import json, patches
        def step(x): return json.dumps(x)
        === patches.py
        import json
        def mine(x): return help(x)
        def help(x): return <<1|2>>
        json.dumps = mine
    """,
    "a patched function of a library's module in a package": """
        import os
        os.path.getsize = lambda path: <<1|2>>
        def step(x): return os.path.getsize(x)
    """,
    "a patched function, used after an import in the body": """
        import json
        json.dumps = lambda x: <<1|2>>
        def step(x):
            import json
            return json.dumps(x)
    """,
    "a patched function, imported by name in the body": """
        import json
        json.dumps = lambda x: <<1|2>>
        def step(x):
            from json import dumps
            return dumps(x)
    """,
    "a patched method of a library's class": """
        import string
        def mine(self, *args): return <<1|2>>
        string.Formatter.format = mine
        def step(x): return string.Formatter().format(x)
    """,
    "a patched class of a library": """
        import string
        class Mine(string.Formatter):
            def format(self, *args): return <<1|2>>
        string.Formatter = Mine
        def step(x): return string.Formatter().format(x)
    """,
    "a new attribute of a library": """
        import json
        json.mine = lambda x: <<1|2>>
        def step(x): return json.mine(x)
    """,
    "a patched builtin": """
        import builtins
        builtins.mine = lambda x: <<1|2>>
        def step(x): return mine(x)
    """,
    "a partial at a library's attribute": """
        import functools, json
        json.dumps = functools.partial(json.dumps, indent=<<1|2>>)
        def step(x): return json.dumps(x)
    """,
    "a function by getattr of a module": """
        import tools
        def step(name): return getattr(tools, name)()
        === tools.py
        def one(): return <<1|2>>
    """,
    "a function by getattr of a class": """
        class Tools:
            def one(self): return <<1|2>>
        def step(name): return getattr(Tools(), name)()
    """,
    "a module by import_module": """
        import importlib
        def step(): return importlib.import_module("plugins.one").run()
        === plugins/__init__.py
        === plugins/one.py
        def run(): return <<1|2>>
    """,
    "a module by import_module, imported by name": """
        from importlib import import_module
        def step(): return import_module("plugins.one").run()
        === plugins/__init__.py
        === plugins/one.py
        def run(): return help()
        def help(): return <<1|2>>
    """,
    "a module by import_module in a helper": """
        import importlib
        def load(name): return importlib.import_module(name)
        def step(): return load("tools").run()
        === tools.py
        def run(): return <<1|2>>
    """,
    "a module by import_module of a computed name": """
        import importlib
        def step(name): return importlib.import_module("plugins." + name).run()
        === plugins/__init__.py
        === plugins/one.py
        def run(): return <<1|2>>
    """,
    "a module by import_module of an f-string": """
        import importlib
        def step(name): return importlib.import_module(f"plugins.{name}").run()
        === plugins/__init__.py
        === plugins/one.py
        def run(): return <<1|2>>
    """,
    "a module by import_module of a relative name": """
        import plugins.all
        def step(): return plugins.all.run()
        === plugins/__init__.py
        === plugins/all.py
        import importlib
        def run(): return importlib.import_module(".one", __package__).run()
        === plugins/one.py
        def run(): return <<1|2>>
    """,
    "a module by __import__": """
        def step(): return __import__("tools").run()
        === tools.py
        def run(): return <<1|2>>
    """,
    "a module by sys.modules": """
        import sys, tools
        def step(): return sys.modules["tools"].run()
        === tools.py
        def run(): return <<1|2>>
    """,
    "this module by sys.modules": """
        import sys
        def run(): return <<1|2>>
        def step(name): return getattr(sys.modules[__name__], name)()
    """,
    "this module by sys.modules, which the function imports": """
        def run(): return <<1|2>>
        def step(name):
            import sys
            return getattr(sys.modules[__name__], name)()
    """,
    "this module by modules, imported from sys": """
        from sys import modules
        def run(): return <<1|2>>
        def step(name): return getattr(modules[__name__], name)()
    """,
    "this module by modules, which the function imports from sys": """
        def run(): return <<1|2>>
        def step(name):
            from sys import modules as loaded
            return getattr(loaded[__name__], name)()
    """,
    "this module by sys under another name, and a helper that knows the module's name": """
        import sys as system
        def me(): return __name__
        def run(): return <<1|2>>
        def step(name): return getattr(system.modules[me()], name)()
    """,
    "this module by the __module__ of a class": """
        import sys
        class Here: pass
        def run(): return <<1|2>>
        def step(name): return getattr(sys.modules[Here.__module__], name)()
    """,
    "this module by import_module": """
        import importlib
        def run(): return <<1|2>>
        def step(name): return getattr(importlib.import_module(__name__), name)()
    """,
    "this module by __import__": """
        def run(): return <<1|2>>
        def step(name): return getattr(__import__(__name__), name)()
    """,
    "this module by inspect.getmodule": """
        import inspect
        def run(): return <<1|2>>
        def step(name): return getattr(inspect.getmodule(step), name)()
    """,
    "a module by import_module under another name": """
        from importlib import import_module as load
        def step(): return load("tools").run()
        === tools.py
        def run(): return <<1|2>>
    """,
    "a function by pydoc.locate": """
        import pydoc
        def step(): return pydoc.locate("tools.run")()
        === tools.py
        def run(): return <<1|2>>
    """,
    "a function by pkgutil.resolve_name": """
        import pkgutil
        def step(): return pkgutil.resolve_name("tools:run")()
        === tools.py
        def run(): return <<1|2>>
    """,
    "a function by globals of builtins under another name": """
        import builtins as python
        def run(): return <<1|2>>
        def step(name): return python.globals()[name]()
    """,
    "what a text for exec imports": """
        def step():
            space = {}
            exec("from tools import run", space)
            return space["run"]()
        === tools.py
        def run(): return <<1|2>>
    """,
    "modules by pkgutil": """
        import importlib, pkgutil, plugins
        def step():
            names = [each.name for each in pkgutil.iter_modules(plugins.__path__)]
            return [importlib.import_module(f"plugins.{name}").run() for name in names]
        === plugins/__init__.py
        === plugins/one.py
        def run(): return <<1|2>>
    """,
    "a function by globals": """
        def one(): return <<1|2>>
        def step(name): return globals()[name]()
    """,
    "a function by vars of a module": """
        import tools
        def step(name): return vars(tools)[name]()
        === tools.py
        def one(): return <<1|2>>
    """,
    "a function by a module's __dict__": """
        import tools
        def step(name): return tools.__dict__[name]()
        === tools.py
        def one(): return <<1|2>>
    """,
    "a function by a function's __globals__": """
        def one(): return <<1|2>>
        def step(name): return step.__globals__[name]()
    """,
    "a module's __getattr__": """
        import tools
        def step(): return tools.anything
        === tools.py
        def __getattr__(name): return <<1|2>>
    """,
    "a module's __getattr__ behind a from-import": """
        from tools import anything
        def step(): return anything()
        === tools.py
        def __getattr__(name): return lambda: <<1|2>>
    """,
    "what a module's __getattr__ imports": """
        import tools
        def step(): return tools.lazy.run()
        === tools/__init__.py
        import importlib
        def __getattr__(name): return importlib.import_module("." + name, __name__)
        === tools/lazy.py
        def run(): return <<1|2>>
    """,
    "a method by operator.methodcaller": """
        import operator
        class Tools:
            def one(self): return 1
            def two(self): return 2
        CALL = operator.methodcaller("<<one|two>>")
        def step(): return CALL(Tools())
    """,
    "a method's body behind operator.methodcaller": """
        import operator
        class Tools:
            def one(self): return <<1|2>>
        def step(): return operator.methodcaller("one")(Tools())
    """,
    "an attribute by operator.attrgetter": """
        import operator, tools
        GET = operator.attrgetter("one")
        def step(): return GET(tools)()
        === tools.py
        def one(): return <<1|2>>
    """,
    "an argument of operator.methodcaller": """
        import operator
        CALL = operator.methodcaller("split", "<<a|b>>")
        def step(x): return CALL(x)
    """,
    "a metaclass's method": """
        class Meta(type):
            def make(cls): return <<1|2>>
        class K(metaclass=Meta): pass
        def step(): return K.make()
    """,
    "a metaclass of a base": """
        class Meta(type):
            def __len__(cls): return <<1|2>>
        class Base(metaclass=Meta): pass
        class K(Base): pass
        def step(): return len(K)
    """,
    "what a metaclass put into a class": """
        class Meta(type):
            def __new__(cls, name, bases, space):
                return super().__new__(cls, name, bases, {**space, "made": lambda self: <<1|2>>})
        class K(metaclass=Meta): pass
        def step(): return K().made()
    """,
    "a descriptor's __get__": """
        class Field:
            def __set_name__(self, owner, name): self.name = name
            def __get__(self, instance, owner): return <<1|2>>
        class K:
            a = Field()
        def step(): return K().a
    """,
    "a descriptor's __set_name__": """
        class Field:
            def __set_name__(self, owner, name): self.name = name + "<<a|b>>"
            def __get__(self, instance, owner): return self.name
        class K:
            a = Field()
        def step(): return K().a
    """,
    "what a descriptor was given": """
        class Field:
            def __init__(self, limit): self.limit = limit
            def __get__(self, instance, owner): return self.limit
        class K:
            a = Field(<<1|2>>)
        def step(): return K().a
    """,
    "__init_subclass__": """
        class Base:
            def __init_subclass__(cls, scale=1): cls.scale = scale * <<1|2>>
        class K(Base, scale=3): pass
        def step(): return K.scale
    """,
    "an argument of __init_subclass__": """
        class Base:
            def __init_subclass__(cls, scale=1): cls.scale = scale
        class K(Base, scale=<<1|2>>): pass
        def step(): return K.scale
    """,
    "a class decorator": """
        def scaled(kind):
            kind.scale = <<1|2>>
            return kind
        @scaled
        class K: pass
        def step(): return K.scale
    """,
    "a class decorator that makes another class": """
        def scaled(kind):
            class Scaled(kind):
                def scale(self): return <<1|2>>
            return Scaled
        @scaled
        class K: pass
        def step(): return K().scale()
    """,
    "the class behind a decorator that makes another class": """
        def scaled(kind):
            class Scaled(kind): pass
            Scaled.__name__ = kind.__name__
            Scaled.__qualname__ = kind.__qualname__
            return Scaled
        @scaled
        class K:
            def scale(self): return <<1|2>>
        def step(): return K().scale()
    """,
    "the outermost of several wrappers": """
        import functools
        def a(function):
            @functools.wraps(function)
            def call(*args): return function(*args) + <<1|2>>
            return call
        def b(function):
            @functools.wraps(function)
            def call(*args): return function(*args) * 3
            return call
        @a
        @b
        def help(x): return x
        def step(x): return help(x)
    """,
    "the innermost of several wrapped functions": """
        import functools
        def a(function):
            @functools.wraps(function)
            def call(*args): return function(*args) + 1
            return call
        @a
        @a
        @functools.lru_cache
        def help(x): return <<1|2>>
        def step(x): return help(x)
    """,
    "a decorator's argument": """
        import functools
        def times(n):
            def around(function):
                @functools.wraps(function)
                def call(*args): return [function(*args) for _ in range(n)]
                return call
            return around
        @times(<<1|2>>)
        def help(x): return x
        def step(x): return help(x)
    """,
    "a decorator that is a class": """
        class Times:
            def __init__(self, function): self.function = function
            def __call__(self, x): return self.function(x) * <<1|2>>
        @Times
        def help(x): return x
        def step(x): return help(x)
    """,
    "the function inside a decorator that is a class": """
        class Times:
            def __init__(self, function): self.function = function
            def __call__(self, x): return self.function(x)
        @Times
        def help(x): return <<1|2>>
        def step(x): return help(x)
    """,
    "a partial method": """
        import functools
        class K:
            def add(self, n): return n
            one = functools.partialmethod(add, <<1|2>>)
        def step(): return K().one()
    """,
    "a partial's keyword": """
        import functools
        def add(n): return n
        F = functools.partial(add, n=<<1|2>>)
        def step(): return F()
    """,
    "a partial of a lambda with an argument that can change": """
        import functools
        F = functools.partial(lambda n, seen: <<1|2>>, seen=[])
        def step(): return F(1)
    """,
    "a partial of a lambda": """
        import functools
        F = functools.partial(lambda n: <<1|2>>, 1)
        def step(): return F()
    """,
    "a context variable's default": """
        import contextvars
        V = contextvars.ContextVar("V", default=<<1|2>>)
        def step(): return V.get()
    """,
    "a context variable's value": """
        import contextvars
        V = contextvars.ContextVar("V")
        V.set(<<1|2>>)
        def step(): return V.get()
    """,
    "a function as a context variable's default": """
        import contextvars
        def one(): return <<1|2>>
        V = contextvars.ContextVar("V", default=one)
        def step(): return V.get()()
    """,
    "eval of a constant": """
        def one(): return <<1|2>>
        def step(): return eval("one()")
    """,
    "exec of a constant": """
        def one(): return <<1|2>>
        def step():
            space = {}
            exec("x = one()", globals(), space)
            return space
    """,
    "eval of a text in a global": """
        TEXT = "<<1|2>>"
        def step(): return eval(TEXT)
    """,
    "a compiled text": """
        CODE = compile("<<1|2>>", "<text>", "eval")
        def step(): return eval(CODE)
    """,
    "eval under another name": """
        run = eval
        def one(): return <<1|2>>
        def step(): return run("one()")
    """,
    "eval by builtins": """
        import builtins
        def one(): return <<1|2>>
        def step(): return builtins.eval("one()")
    """,
    "a conversion in an f-string": """
        def step(x): return f"{x<<!r|!s>>}"
    """,
    "a format in an f-string": """
        def step(x): return f"{x:<<>5|<5>>}"
    """,
    "__repr__ behind an f-string": """
        class K:
            def __repr__(self): return "<<a|b>>"
        def step(): return f"{K()!r}"
    """,
    "a lambda's default": """
        def step(): return (lambda x=<<1|2>>: x)()
    """,
    "a global lambda's default": """
        F = lambda x=<<1|2>>: x
        def step(): return F()
    """,
    "a name in a generator expression": """
        def one(x): return <<1|2>>
        def step(xs): return sum(one(x) for x in xs if x)
    """,
    "a name in a comprehension in a class": """
        LIMIT = <<1|2>>
        class K:
            table = [LIMIT for _ in range(3)]
        def step(): return K.table
    """,
    "a name in a nested comprehension": """
        def one(x): return <<1|2>>
        def step(xs): return {y: [one(x) for x in y] for y in xs}
    """,
    "a class pattern": """
        class K:
            __match_args__ = ("<<a|b>>",)
            def __init__(self): self.a, self.b = 1, 2
        def step(x):
            match x:
                case K(found): return found
    """,
    "the class of a pattern": """
        class Meta(type):
            def __instancecheck__(cls, x): return <<True|False>>
        class K(metaclass=Meta): pass
        def step(x):
            match x:
                case K(): return 1
    """,
    "a value pattern": """
        import tools
        def step(x):
            match x:
                case tools.LIMIT: return 1
        === tools.py
        LIMIT = <<1|2>>
    """,
    "the match arguments of a dataclass": """
        import dataclasses
        @dataclasses.dataclass(match_args=<<True|False>>)
        class K:
            a: int = 1
        def step(x):
            match x:
                case K(found): return found
    """,
    "a dataclass with slots": """
        import dataclasses
        @dataclasses.dataclass(slots=<<True|False>>)
        class K:
            a: int = 1
        def step(x): K().b = 1
    """,
    "the keyword-only fields of a dataclass": """
        import dataclasses
        @dataclasses.dataclass(kw_only=<<True|False>>)
        class K:
            a: int = 1
        def step(x): return K(1)
    """,
    "the order of a dataclass's fields": """
        import dataclasses
        @dataclasses.dataclass
        class K:
            <<a: int = 1|b: int = 2>>
            <<b: int = 2|a: int = 1>>
        def step(x): return K(3)
    """,
    "a dataclass made by make_dataclass": """
        import dataclasses
        K = dataclasses.make_dataclass("K", [("a", int, <<1|2>>)])
        def step(): return K()
    """,
    "an enum made by a call": """
        import enum
        K = enum.Enum("K", "<<a b|b a>>")
        def step(): return K.a
    """,
    "auto in an enum": """
        import enum
        class K(enum.Enum):
            <<A = enum.auto()|B = enum.auto()>>
            <<B = enum.auto()|A = enum.auto()>>
        def step(): return K.A
    """,
    "_generate_next_value_ of an enum": """
        import enum
        class K(str, enum.Enum):
            def _generate_next_value_(name, start, count, last): return name + "<<a|b>>"
            A = enum.auto()
        def step(): return K.A
    """,
    "an enum's member that is a function": """
        import enum, functools
        def one(): return <<1|2>>
        class K(enum.Enum):
            ONE = functools.partial(one)
        def step(): return K.ONE.value()
    """,
    "slots": """
        class K:
            __slots__ = ("a", "<<b|c>>")
        def step(): K().b = 1
    """,
    "a class without slots": """
        class K:
            <<__slots__ = ()|pass>>
        def step(): K().b = 1
    """,
    "__class_getitem__": """
        class K:
            def __class_getitem__(cls, item): return <<1|2>>
        def step(): return K[int]
    """,
    "an async helper": """
        async def help(): return <<1|2>>
        async def step(): return await help()
    """,
    "an async generator": """
        async def help():
            yield <<1|2>>
        async def step(): return [x async for x in help()]
    """,
    "an async context manager": """
        class K:
            async def __aenter__(self): return <<1|2>>
            async def __aexit__(self, *error): pass
        async def step():
            async with K() as x: return x
    """,
    "a closure of a nested function": """
        def make(n):
            k = n
            def help(): return k
            return help
        help = make(<<1|2>>)
        def step(): return help()
    """,
    "a closure that is bound anew": """
        def make():
            k = 1
            def help(): return k
            k = <<1|2>>
            return help
        help = make()
        def step(): return help()
    """,
    "a star import": """
        from tools import *
        def step(): return one()
        === tools.py
        def one(): return help()
        def help(): return <<1|2>>
    """,
    "__all__ of a star import": """
        from a import *
        from b import *
        def step(): return one()
        === a.py
        def one(): return 1
        === b.py
        __all__ = [<<"one"|"two">>]
        def one(): return 2
        def two(): return 3
    """,
    "a relative import in a function": """
        import tools.all
        def step(): return tools.all.run()
        === tools/__init__.py
        === tools/all.py
        def run():
            from . import one
            from .two import two
            return one.run() + two()
        === tools/one.py
        def run(): return 1
        === tools/two.py
        def two(): return <<1|2>>
    """,
    "a relative import of a module in a function": """
        import tools.all
        def step(): return tools.all.run()
        === tools/__init__.py
        === tools/all.py
        def run():
            from . import one
            return one.run()
        === tools/one.py
        def run(): return <<1|2>>
    """,
    "a star import inside a package": """
        import tools
        def step(): return tools.one()
        === tools/__init__.py
        from .all import *
        === tools/all.py
        def one(): return <<1|2>>
    """,
    "which import wins": """
        <<from a import one|from b import one>>
        <<from b import one|from a import one>>
        def step(): return one()
        === a.py
        def one(): return 1
        === b.py
        def one(): return 2
    """,
    "an import in a try": """
        try:
            from fast import one
        except ImportError:
            from slow import one
        def step(): return one()
        === <<fast|fast_>>.py
        def one(): return 1
        === slow.py
        def one(): return 2
    """,
    "a property's setter": """
        class K:
            @property
            def a(self): return self._a
            @a.setter
            def a(self, value): self._a = value + <<1|2>>
        def step():
            k = K()
            k.a = 1
            return k.a
    """,
    "a mixin that super() reaches": """
        class A:
            def run(self): return 0
        class Mixin:
            def run(self): return super().run() + <<1|2>>
        class K(Mixin, A): pass
        def step(): return K().run()
    """,
    "the order of bases": """
        class A:
            def run(self): return 1
        class B:
            def run(self): return 2
        class K(<<A, B|B, A>>): pass
        def step(): return K().run()
    """,
    "a virtual subclass": """
        import abc
        class Base(abc.ABC): pass
        class One: pass
        <<Base.register(One)|>>
        def step(): return isinstance(One(), Base)
    """,
    "__subclasshook__": """
        import abc
        class Base(abc.ABC):
            @classmethod
            def __subclasshook__(cls, kind): return <<True|False>>
        def step(x): return isinstance(x, Base)
    """,
    "a method put onto a class later": """
        class K: pass
        def one(self): return <<1|2>>
        K.run = one
        def step(): return K().run()
    """,
    "a method put onto an instance": """
        import types
        class K: pass
        k = K()
        def one(self): return <<1|2>>
        k.run = types.MethodType(one, k)
        def step(): return k.run()
    """,
    "a bound method of a global": """
        class K:
            def run(self): return <<1|2>>
        run = K().run
        def step(): return run()
    """,
    "an object's __call__": """
        class K:
            def __call__(self): return <<1|2>>
        run = K()
        def step(): return run()
    """,
    "an instance's __getattr__": """
        class K:
            def __getattr__(self, name): return <<1|2>>
        k = K()
        def step(): return k.anything
    """,
    "a default that is a function": """
        def one(): return <<1|2>>
        def step(f=one): return f()
    """,
    "a key function of a library's object": """
        import functools
        def compare(a, b): return <<1|2>>
        KEY = functools.cmp_to_key(compare)
        def step(x): return sorted(x, key=KEY)
    """,
    "a function in itertools": """
        import itertools
        def one(x): return <<1|2>>
        def step(xs): return list(itertools.starmap(one, xs))
    """,
    "a regular expression's replacement": """
        import re
        PATTERN = re.compile("<<a|b>>")
        def replace(found): return <<"1"|"2">>
        def step(x): return PATTERN.sub(replace, x)
    """,
    "a template": """
        import string
        T = string.Template("<<a|b>>")
        def step(x): return T.substitute(x=x)
    """,
    "a function registered with copyreg": """
        import copyreg, pickle
        class K: pass
        def reduce(k): return int, (<<1|2>>,)
        copyreg.pickle(K, reduce)
        def step(): return pickle.loads(pickle.dumps(K()))
    """,
    "a subclass of a library's class": """
        import json
        class Mine(json.JSONEncoder):
            def default(self, x): return help(x)
        def help(x): return <<1|2>>
        def step(x): return json.dumps(x, cls=Mine)
    """,
    "a __missing__": """
        class K(dict):
            def __missing__(self, key): return <<1|2>>
        TABLE = K()
        def step(x): return TABLE[x]
    """,
    "a context manager made of a generator": """
        import contextlib
        @contextlib.contextmanager
        def around():
            yield <<1|2>>
        def step():
            with around() as x: return x
    """,
    "a cached function": """
        import functools
        @functools.cache
        def one(): return <<1|2>>
        def step(): return one()
    """,
    "total_ordering": """
        import functools
        @functools.total_ordering
        class K:
            def __init__(self, n): self.n = n
            def __eq__(self, other): return self.n == other.n
            def __lt__(self, other): return self.n < other.n + <<1|2>>
        def step(): return K(1) >= K(2)
    """,
    "an attribute of a module in a package": """
        import pack.deep.tools
        def step(): return pack.deep.tools.LIMIT
        === pack/__init__.py
        === pack/deep/__init__.py
        === pack/deep/tools.py
        LIMIT = <<1|2>>
    """,
    "a name that a package re-exports": """
        import pack
        def step(): return pack.run()
        === pack/__init__.py
        from .tools import run
        === pack/tools.py
        def run(): return <<1|2>>
    """,
    "a namespace package": """
        import pack.tools
        def step(): return pack.tools.run()
        === pack/tools.py
        def run(): return <<1|2>>
    """,
    "a function in a SimpleNamespace": """
        import types
        def one(): return <<1|2>>
        TOOLS = types.SimpleNamespace(one=one)
        def step(): return TOOLS.one()
    """,
    "the version of an inner step": """
        from oncemore import checkpointed
        @checkpointed(version="<<1|2>>")
        def inner(x): return x
        def step(x): return inner(x)
    """,
    "the ignored parameters of an inner step": """
        from oncemore import checkpointed
        @checkpointed(ignore=["<<x|y>>"])
        def inner(x, y): return x, y
        def step(x): return [inner(x, y) for y in range(2)]
    """,
    "the key of an inner step": """
        from oncemore import checkpointed
        @checkpointed(key={"x": lambda x: x % <<2|3>>})
        def inner(x): return x
        def step(x): return [inner(n) for n in range(9)]
    """,
    "a helper of an inner step's key": """
        from oncemore import checkpointed
        def by(x): return x % <<2|3>>
        @checkpointed(key=by)
        def inner(x): return x
        def step(x): return [inner(n) for n in range(9)]
    """,
    "the expiry of an inner step": """
        from oncemore import checkpointed
        @checkpointed(expires="<<1d|2d>>")
        def inner(x): return x
        def step(x): return inner(x)
    """,
    "the code option of an inner step": """
        from oncemore import checkpointed
        @checkpointed(code="<<own|deep>>")
        def inner(x): return x
        def step(x): return inner(x)
    """,
    "the inputs of an inner step": """
        from oncemore import checkpointed
        @checkpointed(inputs=[<<"path"|>>])
        def inner(path): return open(path).read()
        def step(path): return inner(path)
    """,
    "the options of an inner step that is a method": """
        from oncemore import checkpointed
        class K:
            @checkpointed(ignore=["<<x|y>>"])
            def inner(self, x, y): return x, y
        def step(x): return [K().inner(x, y) for y in range(2)]
    """,
    "the options of a memoized inner function": """
        from oncemore import memoized
        @memoized(ignore=["<<x|y>>"])
        def inner(x, y): return x, y
        def step(x): return [inner(x, y) for y in range(2)]
    """,
    "the options of a step in a registry": """
        from oncemore import checkpointed
        @checkpointed(ignore=["<<x|y>>"])
        def inner(x, y): return x, y
        TOOLS = {"inner": inner}
        def step(x): return [TOOLS["inner"](x, y) for y in range(2)]
    """,
    "a module named in a global": """
        import importlib
        PLUGINS = ["plugins.one"]
        def step(): return [importlib.import_module(name).run() for name in PLUGINS]
        === plugins/__init__.py
        === plugins/one.py
        def run(): return <<1|2>>
    """,
    "a function named in a text": """
        import importlib
        def load(text):
            module, _, name = text.partition(":")
            return getattr(importlib.import_module(module), name)
        def step(): return load("plugins.one:run")()
        === plugins/__init__.py
        === plugins/one.py
        def run(): return <<1|2>>
    """,
    "what a module that is imported by name imports": """
        import importlib
        def step(): return importlib.import_module("plugins.one").run()
        === plugins/__init__.py
        === plugins/one.py
        from .two import two
        def run(): return two()
        === plugins/two.py
        from tools import three
        def two(): return three()
        === tools.py
        def three(): return <<1|2>>
    """,
    "what a module that is imported by name takes from the step's own": """
        import importlib
        def help(): return <<1|2>>
        def step(): return importlib.import_module("plugins.one").run()
        === plugins/__init__.py
        === plugins/one.py
        from etl import help
        def run(): return help()
    """,
    "a module in eval": """
        import tools
        def step(): return eval("tools.one()")
        === tools.py
        def one(): return <<1|2>>
    """,
    "a module inside a module that is handed on": """
        import pack, pack.tools
        def step(name): return getattr(getattr(pack, name), "run")()
        === pack/__init__.py
        === pack/tools.py
        def run(): return <<1|2>>
    """,
    "a mock at a library's attribute": """
        import json
        from unittest import mock
        json.dumps = mock.Mock(return_value=<<1|2>>)
        def step(x): return json.dumps(x)
    """,
    "a library's function at another library's attribute": """
        import json, attr
        json.dumps = attr.<<asdict|astuple>>
        def step(x): return json.dumps(x)
    """,
    "an object of the project at a library's attribute": """
        import json
        class Fake:
            def __init__(self, n): self.n = n
            def __call__(self, x): return self.n
        json.dumps = Fake(<<1|2>>)
        def step(x): return json.dumps(x)
    """,
    "a step at a library's attribute": """
        import json
        from oncemore import checkpointed
        @checkpointed
        def mine(x): return <<1|2>>
        json.dumps = mine
        def step(x): return json.dumps(x)
    """,
    "an accessor of frames": """
        import pandas as pd
        @pd.api.extensions.register_dataframe_accessor("mine")
        class Mine:
            def __init__(self, frame): self.frame = frame
            def total(self): return <<1|2>>
        def step(): return pd.DataFrame({"a": [1]}).mine.total()
    """,
    "a method put onto a library's class that is imported by name": """
        from fractions import Fraction
        Fraction.mine = lambda self: <<1|2>>
        def step(): return Fraction(1).mine()
    """,
    "a property put onto a library's class": """
        import fractions
        fractions.Fraction.mine = property(lambda self: <<1|2>>)
        def step(): return fractions.Fraction(1).mine
    """,
    "a universal function in a list": """
        import numpy as np
        def one(x): return x + <<1|2>>
        FS = [np.frompyfunc(one, 1, 1)]
        def step(x): return [f(x) for f in FS]
    """,
    "a universal function in an object": """
        import numpy as np
        class K:
            f = np.frompyfunc(lambda x: x + <<1|2>>, 1, 1)
        def step(x): return K.f(x)
    """,
    "a callback in a dict": """
        import ctypes
        KIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
        TABLE = {"one": KIND(lambda x: x + <<1|2>>)}
        def step(x): return TABLE["one"](x)
    """,
    "the types of a callback": """
        import ctypes
        F = ctypes.CFUNCTYPE(ctypes.<<c_int|c_long>>, ctypes.c_int)(lambda x: x)
        def step(x): return F(x)
    """,
    "a weakly held method": """
        import weakref
        class K:
            def run(self): return <<1|2>>
        k = K()
        R = weakref.WeakMethod(k.run)
        def step(): return R()()
    """,
    "a subclass made by another class's decorator": """
        class Base: pass
        def also(kind):
            type("Also", (kind,), {"run": lambda self: <<1|2>>, "__module__": __name__})
            KEEP.extend(kind.__subclasses__())
            return kind
        KEEP = []
        @also
        class One(Base): pass
        def step(): return [kind().run() for kind in One.__subclasses__()]
    """,
    "a subclass of a library's class found by __subclasses__": """
        import json
        class Mine(json.JSONEncoder):
            def default(self, x): return <<1|2>>
        def step(): return [kind for kind in json.JSONEncoder.__subclasses__()]
    """,
    "a dataclass field's type in quotes": """
        import dataclasses
        @dataclasses.dataclass
        class Row:
            a: "Kind" = None
        class Kind:
            def __init__(self, x): self.x = <<1|2>>
        def step(): return [f.type for f in dataclasses.fields(Row)]
    """,
    "the type of an inherited field": """
        import dataclasses
        @dataclasses.dataclass
        class Base:
            a: <<int|str>> = 0
        @dataclasses.dataclass
        class K(Base):
            b: int = 0
        def step(): return [f.type("1") for f in dataclasses.fields(K)]
    """,
    "a reader of annotations that is imported in the body": """
        def help(x: <<int|str>>): return x
        def step(x):
            import inspect
            return inspect.signature(help)
    """,
    "a reader of annotations that is imported by name in the body": """
        def help(x: <<int|str>>): return x
        def step(x):
            from typing import get_type_hints
            return get_type_hints(help)
    """,
    "a reader of annotations under another name": """
        import inspect as look
        from inspect import signature as sign
        def help(x: <<int|str>>): return x
        def step(x): return sign(help)
    """,
    "a validator in an annotation": """
        import typing
        def positive(x): return x > <<1|2>>
        def help(x: typing.Annotated[int, positive]): return x
        def step(x): return typing.get_type_hints(help, include_extras=True)
    """,
    "a default of an inner function": """
        LIMIT = <<1|2>>
        def step():
            def inner(x=LIMIT): return x
            return inner()
    """,
    "a global that a decorator in the body reads": """
        def twice(f): return lambda: f() * <<1|2>>
        def step():
            @twice
            def inner(): return 1
            return inner()
    """,
    "a walrus": """
        def step(x): return [y for z in x if (y := z + <<1|2>>)]
    """,
    "an exception group": """
        class Mine(Exception):
            def __str__(self): return "<<a|b>>"
        def step(x):
            try: x()
            except Mine as error: return str(error)
    """,
    "__set_name__ that registers": """
        ALL = {}
        class Field:
            def __init__(self, f): self.f = f
            def __set_name__(self, owner, name): ALL[name] = self.f
        class K:
            a = Field(lambda: <<1|2>>)
        def step(): return ALL["a"]()
    """,
    "a hook of the import of a submodule": """
        import pack.b
        from pack import HOOKS
        def step(): return [hook() for hook in HOOKS]
        === pack/__init__.py
        HOOKS = []
        === pack/b.py
        from . import HOOKS
        HOOKS.append(lambda: <<1|2>>)
    """,
    "entry points in a global class": """
        class Registry(dict):
            def register(self, name):
                def add(f):
                    self[name] = f
                    return f
                return add
        R = Registry()
        @R.register("a")
        def a(): return <<1|2>>
        def step(): return R["a"]()
    """,
    "a function kept in a class attribute by a decorator": """
        class App:
            routes = []
            @classmethod
            def route(cls, f):
                cls.routes.append(f)
                return f
        @App.route
        def one(): return <<1|2>>
        def step(): return [f() for f in App.routes]
    """,
    "a condition for type checkers with another branch": """
        from typing import TYPE_CHECKING
        def step(x):
            if TYPE_CHECKING:
                y = 1
            else:
                y = <<1|2>>
            return y
    """,
    "__debug__": """
        def step(x): return <<__debug__|x>>
    """,
    "which of two functions of one name": """
        import a, b
        def step(): return <<a|b>>.load()
        === a.py
        def load(): return 1
        === b.py
        def load(): return 2
    """,
    "a helper beside one of the same name": """
        import a, b
        def step(): return a.load(), b.load()
        === a.py
        def load(): return 1
        === b.py
        def load(): return <<1|2>>
    """,
    "a class beside one of the same name": """
        import a, b
        def step(): return a.K().run(), b.K().run()
        === a.py
        class K:
            def run(self): return <<1|2>>
        === b.py
        class K:
            def run(self): return <<2|1>>
    """,
    "the same helper here and there": """
        import a
        def load(): return a.load() + <<1|2>>
        def step(): return load()
        === a.py
        def load(): return <<2|1>>
    """,
}

if sys.version_info >= (3, 11):
    COUNTS["the boundary of a flag"] = """
        import enum
        class K(enum.Flag<<|, boundary=enum.KEEP>>):
            A = 1
        def step(): return K(9)
    """

# --- edits that change nothing --------------------------------------------------------------------------------------

SAME = {
    "an order of imports": """
        import <<json|math>>
        import <<math|json>>
        def step(): return json.dumps(math.pi)
    """,
    "an unused import": """
        <<import math|import json>>
        def step(): return 1
    """,
    "the name of something unused": """
        <<A|B>> = 1
        def step(): return 1
    """,
    "an unused function": """
        def help(): return <<1|2>>
        def step(): return 1
    """,
    "a comment": """
        def step(): return 1  # <<one|two>>
    """,
    "a docstring that nobody reads": '''
        def help(): """<<one|two>>"""
        class K:
            """<<one|two>>"""
            def run(self): """<<one|two>>"""
        def step():
            """<<one|two>>"""
            return help(), K().run()
    ''',
    "an annotation that nobody reads": """
        def help(x: <<int|str>>) -> <<int|str>>: return x
        class K:
            a: <<int|str>> = 1
            def run(self, x: <<int|str>>): return x
        def step(x: <<int|str>>):
            y: <<int|str>> = help(x)
            return K().run(y)
    """,
    "the type of a dataclass field that nobody reads": """
        import dataclasses
        @dataclasses.dataclass
        class K:
            a: <<int|float>> = 1
        def step(): return K()
    """,
    "layout": """
        def step(x): <<return (x, 1)|
            return (
                x,
                1,
            )>>
    """,
    "blank lines": """
        def one(): return 1<<|

        # ---

        >>
        def step(): return one()
    """,
    "the order of functions": """
        <<def one(): return 1|def two(): return 2>>
        <<def two(): return 2|def one(): return 1>>
        def step(): return one(), two()
    """,
    "an unused subclass": """
        class Base:
            def run(self): return 0
        class One(Base):
            def run(self): return <<1|2>>
        def step(): return Base().run()
    """,
    "an import for type checkers": """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from <<a|b>> import K
        def step(x: K): return x
        === a.py
        class K: pass
    """,
    "an import for type checkers in the body": """
        from typing import TYPE_CHECKING
        def step(x):
            if TYPE_CHECKING:
                from a import K
            return x
        === a.py
        class K:
            a = <<1|2>>
    """,
    "an implementation registered for a function that is not reached": """
        import functools
        @functools.singledispatch
        def show(x): return 0
        @show.register
        def _(x: int): return <<1|2>>
        def step(x): return x
    """,
    "a registry that is not read": """
        ALL = {}
        def one(): return <<1|2>>
        ALL["one"] = one
        def step(): return 1
    """,
    "another attribute of a patched library": """
        import json
        json.dumps = lambda x: <<1|2>>
        def step(x): return json.loads(x)
    """,
    "another module of a package": """
        import pack.a
        def step(): return pack.a.run()
        === pack/__init__.py
        === pack/a.py
        def run(): return 1
        === pack/b.py
        def run(): return <<1|2>>
    """,
    "another module beside one that is imported by name": """
        import importlib
        def step(): return importlib.import_module("tools").run()
        === tools.py
        def run(): return 1
        === others.py
        def run(): return <<1|2>>
    """,
    "docstrings elsewhere where one is read": '''
        def help(): """one"""
        def other(): """<<one|two>>"""
        def step(): return help.__doc__
    ''',
    "the name of a parameter's default's function": """
        def help(x=1): return x  # <<one|two>>
        def step(): return help()
    """,
    "the line on which a step stands": """
        <<|# one
        # two>>
        def step(): return (lambda: 1)()
    """,
    "what a step is decorated with to keep it": """
        from oncemore import checkpointed
        <<|@checkpointed>>
        def inner(x): return x
        def step(x): return inner(x)
    """,
    "what is shown of an inner step": """
        from oncemore import checkpointed
        @checkpointed(redact=[<<|"x">>])
        def inner(x): return x
        def step(x): return inner(x)
    """,
    "a `fields` of one's own": """
        class K:
            a: <<int|str>> = 1
            def fields(self): return []
        def step(): return K().fields()
    """,
    "a method called eval": """
        LIMIT = <<1|2>>
        def eval(model): return model
        def step(model): return eval(model.eval()), model.modules(), model.exec("LIMIT")
    """,
    "a text that names a module where none is imported by name": """
        def step(): return "tools"
        === tools.py
        LIMIT = <<1|2>>
    """,
    "the docstring of a module that is imported by name": '''
        import importlib
        def step(): return importlib.import_module("tools").run()
        === tools.py
        """<<one|two>>"""
        def run(x: <<int|str>>): return 1  # <<one|two>>
    ''',
    "the step's own module beside one that is imported by name and takes from it": """
        import importlib
        def help(): return 1
        def other(): return <<1|2>>
        def step(): return importlib.import_module("plugins").run()
        === plugins.py
        from etl import help
        def run(): return help()
    """,
    "annotations of an inner class": """
        def help(x: <<int|str>>): return x
        def step():
            class K:
                a: int = 1
            return K, help(1)
    """,
    "an assertion's line": """
        <<|
        >>
        def step(x):
            assert x
    """,
    "a block for type checkers": """
        import typing
        def step(x):
            <<|if typing.TYPE_CHECKING:
                y: int = x>>
            return x
    """,
    "a method of a library's class that the code does not use": """
        import fractions
        fractions.Fraction.mine = lambda self: <<1|2>>
        def step(): return fractions.Fraction(1)
    """,
    "the name of a local variable's type": """
        import typing
        T = typing.TypeVar("<<T|T>>")
        def step(x: T) -> T: return x
    """,
    "a docstring behind functools.wraps that nobody reads": '''
        import functools
        def plain(function):
            @functools.wraps(function)
            def call(): return function()
            return call
        @plain
        def help(): """<<one|two>>"""
        def step(): return help()
    ''',
    "an order of methods": """
        class K:
            <<def a(self): return 1|def b(self): return 2>>
            <<def b(self): return 2|def a(self): return 1>>
        def step(): return K()
    """,
    "quotes": """
        def step(): return <<'a'|"a">>
    """,
    "parentheses": """
        def step(x): return <<x|(x)>>
    """,
    "a sibling of an equal name in a module that is not reached": """
        import a, b
        def step(): return a.load()
        === a.py
        def load(): return 1
        === b.py
        def load(): return <<1|2>>
    """,
}


@pytest.mark.parametrize("name", COUNTS)
def test_an_edit_that_changes_a_result_makes_the_step_run_again(identify: Identify, name: str) -> None:
    before, after = editions(COUNTS[name])
    first = identify(before)
    assert identify(before) == first
    assert identify(after) != first


@pytest.mark.parametrize("name", SAME)
def test_an_edit_that_changes_no_result_leaves_the_step_alone(identify: Identify, name: str) -> None:
    before, after = editions(SAME[name])
    assert identify(before) == identify(after)


# --- whole runs -----------------------------------------------------------------------------------------------------


def ran(folder: Path, *options: str) -> list[str]:
    """Run `etl.py` as a user does; the lines that it prints."""
    done = subprocess.run(
        [sys.executable, *options, "etl.py"], cwd=folder, capture_output=True, text=True, check=True, env=os.environ
    )
    return done.stdout.split()


def test_python_with_and_without_assertions_are_told_apart_where_there_are_some(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        from oncemore import checkpoint_scope, checkpointed
        def check(x): assert x
        @checkpointed
        def checked(x):
            print("checked")
            check(x)
        @checkpointed
        def debugged(x):
            print("debugged")
            return __debug__
        @checkpointed
        def plain(x): print("plain")
        with checkpoint_scope("run"):
            checked(1), debugged(1), plain(1)
        """,
    )
    assert ran(tmp_path) == ["checked", "debugged", "plain"]
    assert ran(tmp_path) == []
    assert ran(tmp_path, "-O") == ["checked", "debugged"]
    assert ran(tmp_path, "-O") == []
    assert ran(tmp_path, "-OO") == []
    assert ran(tmp_path) == []


STEP = "from oncemore import checkpointed\n@checkpointed\ndef load(x):\n    print(__name__)\n    return x\n"


def test_steps_of_one_name_in_two_modules_are_two_steps(tmp_path: Path) -> None:
    write(
        tmp_path,
        "import a, b\nfrom oncemore import checkpoint_scope\nwith checkpoint_scope('run'):\n    a.load(1), b.load(1)\n"
        f"=== a.py\n{STEP}=== b.py\n{STEP}",
    )
    assert ran(tmp_path) == ["a", "b"]
    assert ran(tmp_path) == []
    (tmp_path / "b.py").write_text(STEP.replace("return x", "return x + 1"))
    assert ran(tmp_path) == ["b"]


def test_steps_without_globals_and_of_one_name_are_two_steps(tmp_path: Path) -> None:
    step = "from oncemore import checkpointed\n@checkpointed\ndef load(x):\n    x.append('ran')\n"
    write(
        tmp_path,
        "import a, b\nfrom oncemore import checkpoint_scope\nwith checkpoint_scope('run') as run:\n"
        "    a.load([]), b.load([])\nprint(*run.ran.values())\n"
        f"=== a.py\n{step}=== b.py\n{step}",
    )
    assert ran(tmp_path) == ["2"]


PLUGINS = """
    import plugins
    from oncemore import checkpoint_scope, checkpointed
    from registry import ALL
    @checkpointed
    def every(x):
        print("every")
        return [f(x) for f in ALL.values()]
    @checkpointed
    def one(x):
        print("one")
        return plugins.one(x)
    @checkpointed
    def none(x):
        print("none")
        return x
    with checkpoint_scope("run"):
        every(1), one(1), none(1)
    === registry.py
    ALL = {}
    def register(function):
        ALL[function.__name__] = function
        return function
    === plugins.py
    from registry import register
    @register
    def one(x): return 1
    @register
    def two(x): return <<1|2>>
"""


def test_an_edit_of_a_registered_function_runs_the_steps_that_read_the_registry(tmp_path: Path) -> None:
    before, after = editions(PLUGINS)
    write(tmp_path, before)
    assert ran(tmp_path) == ["every", "one", "none"]
    assert ran(tmp_path) == []
    write(tmp_path, after)
    assert ran(tmp_path) == ["every"]


def test_a_context_variable_that_a_step_sets_is_set_when_it_is_skipped(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import contextvars
        from oncemore import checkpoint_scope, checkpointed
        LEVEL = contextvars.ContextVar("LEVEL", default=0)
        @checkpointed
        def set_level(x):
            print("ran")
            LEVEL.set(x)
        @checkpointed
        def read_level():
            print("read")
            return LEVEL.get()
        with checkpoint_scope("run"):
            set_level(3)
            print(read_level())
        print(LEVEL.get())
        """,
    )
    assert ran(tmp_path) == ["ran", "read", "3", "3"]
    assert ran(tmp_path) == ["3", "3"]


# --- looking again --------------------------------------------------------------------------------------------------


def test_what_changes_while_the_program_runs_is_seen(identify: Identify, tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import abc, json, fractions
        class Base(abc.ABC):
            @classmethod
            def all(cls): return cls.__subclasses__()
        def mine(*args): return 1
        class Other: pass
        def step(x): return Base.all(), json.dumps(x), isinstance(x, Base)
        """,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(tmp_path)
        patched.delitem(sys.modules, "etl", raising=False)
        module = importlib.import_module("etl")
        code = Code(module.step)
        seen = [code.digest()]
        assert code.digest() == seen[0]
        sub = type("Sub", (module.Base,), {"__module__": "etl"})
        seen.append(code.digest())
        module.Base.register(module.Other)
        seen.append(code.digest())
        patched.setattr(json, "dumps", module.mine)
        seen.append(code.digest())
        assert len(set(seen)) == 4
        patched.undo()
        del sub
        sys.modules.pop("etl", None)
