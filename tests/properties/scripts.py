"""Made-up ordinary scripts: killed, edited and resumed, they end like the plain script without oncemore.

A number names a script, for ever the same: its module-level data, generators, caches, classes, helpers and files, its steps,
where it is killed and what is edited between the attempts. Each is run

* with oncemore, killed with SIGKILL at some points, edited between some of the attempts, until it ends;
* once more: no step body may run;
* without oncemore, in its final form, in a new folder.

All three must end alike: the values returned, the globals with their sharing, the generators, the files. A call that was
complete, and that no edit since affects, must not run again. Unseeded generators have in the plain script the state that the
first attempt opened with; where that was killed before a step was complete, that of a later attempt will do.

    python -m tests.properties.scripts --count 500     the full campaign
    python -m tests.properties.scripts --only 17       one script: its text, its attempts, what differs
    python -m tests.properties.scripts --only 17 --shrink
    python -m tests.properties.scripts --kinds         one small script per kind of data, as a table
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import shutil
import string
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests import warm
from tests.processes import SRC, Running

WITNESS = Path(__file__).with_name("witness.py")


@dataclass
class Op:
    """Some lines of a function's body. They may use its parameters `n` and `items`, and `out`, the list of its findings."""

    text: str
    writes: bool = False
    rebinds: bool = False  # needs a `global` statement
    stores: bool = False  # `items` itself is held by the resource afterwards
    leaks: bool = False  # `out` holds a part of the resource itself afterwards


@dataclass
class Resource:
    """Something at module level that steps use."""

    kind: str
    name: str
    declare: str
    ops: list[Op]
    values: dict[str, tuple[str, str]] = field(default_factory=dict)  # editable parts: now, and after an edit
    imports: tuple[str, ...] = ()
    module: str = "script"
    is_list: bool = False
    unseeded: str = ""  # how the witness calls this generator
    file: str = ""  # the data file that comes with it
    observed: bool = False  # steps that use it read a file that may be edited
    output: str = ""  # the file that writing operations write
    given: tuple[str, ...] = ()  # lists to call a step with, which share something with it


def _changed(rng: random.Random, low: int = 2, high: int = 9) -> tuple[str, str]:
    first, second = rng.sample(range(low, high + 1), 2)
    return str(first), str(second)


# -- the kinds of things that scripts keep at module level. In `declare`, $v and $w are what an edit changes.

KINDS: dict[str, Callable[[random.Random, str], Resource]] = {}


def kind(
    declare: str,
    *ops: Op,
    imports: tuple[str, ...] = (),
    module: str = "script",
    is_list: bool = False,
    unseeded: str = "",
    file: str = "",
    observed: bool = False,
    output: str = "",
    given: tuple[str, ...] = (),
    name: str,
) -> None:
    def make(rng: random.Random, own: str) -> Resource:
        def fill(text: str) -> str:
            return textwrap.dedent(text).strip("\n").replace("NAME", own).replace("$", f"${own}_")

        values = {f"{own}_{slot}": _changed(rng) for slot in "vw" if f"${slot}" in declare + file}
        filled = [replace(op, text=fill(op.text)) for op in ops]
        parts = (fill(unseeded), fill(file), observed, fill(output), tuple(map(fill, given)))
        return Resource(name, own, fill(declare), filled, values, imports, module, is_list, *parts)

    KINDS[name] = make


def reads(text: str, leaks: bool = False) -> Op:
    return Op(textwrap.dedent(text).strip("\n"), leaks=leaks)


def writes(text: str, rebinds: bool = False, stores: bool = False) -> Op:
    return Op(textwrap.dedent(text).strip("\n"), True, rebinds, stores)


kind("NAME = $v", reads("out.append(n * NAME)"), reads("out.append(NAME)"), name="constant")
kind(
    "NAME = {'low': $v, 'high': 9}",
    reads("out.append(NAME['low'] + n)"),
    reads("out.extend(sorted(NAME))"),
    name="constant dict",
)
kind("NAME = ($v, 'b')", reads("out.append(NAME[0] - n)"), reads("out.append(len(NAME))"), name="constant tuple")
kind(
    """
    def NAME(x):
        return x * $v + 1
    """,
    reads("out.append(NAME(n))"),
    reads("out.extend(map(NAME, range(2)))"),
    reads("out.append(max([n, 2, 5], key=NAME))"),
    name="helper",
)
kind("NAME = lambda x: x - $v", reads("out.append(NAME(n))"), name="lambda")
kind(
    """
    def make_NAME(factor):
        def scale(x):
            return x * factor
        return scale


    NAME = make_NAME($v)
    """,
    reads("out.append(NAME(n))"),
    name="closure",
)
kind(
    """
    def make_NAME(start):
        count = start

        def up(by):
            nonlocal count
            count += by
            return count
        return up


    NAME = make_NAME($v)
    """,
    writes("out.append(NAME(n))"),
    name="counting closure",
)
kind(
    """
    def NAME(x, seen=[]):
        seen.append(x)
        return len(seen)
    """,
    writes("out.append(NAME(n))"),
    name="mutable default",
)
kind(
    """
    def NAME(x):
        NAME.calls += 1
        return x + NAME.calls


    NAME.calls = $v
    """,
    writes("out.append(NAME(n))"),
    reads("out.append(NAME.calls)"),
    name="function attribute",
)
kind(
    """
    def combine_NAME(a, b):
        return a * 10 + b


    NAME = functools.partial(combine_NAME, b=$v)
    """,
    reads("out.append(NAME(n))"),
    imports=("functools",),
    name="partial",
)
kind(
    "NAME = [1, 2, $v]",
    writes("NAME.append(n)"),
    writes("NAME.append([n])"),
    writes("NAME.append(items)", stores=True),
    writes("NAME.extend([n, n + 1])"),
    writes("NAME.insert(0, n)"),
    writes("NAME[0] = n"),
    writes("NAME += [n]", rebinds=True),
    writes("NAME = NAME + [n]", rebinds=True),
    writes("NAME = [n]", rebinds=True),
    writes("out.append(repr(NAME.pop()))\nNAME.append(n)"),
    writes("NAME.reverse()"),
    writes("NAME.clear()\nNAME.append(n)"),
    reads("out.append(len(NAME))"),
    reads("out.append(repr(NAME[-1]))"),
    reads("out.append(repr(NAME))"),
    is_list=True,
    name="list",
)
kind(
    "NAME = {'a': $v}",
    writes("NAME['n'] = n"),
    writes("NAME[n] = [n]"),
    writes("NAME.setdefault('rows', []).append(n)"),
    writes("NAME['a'] = NAME.get('a', 0) + 1"),
    writes("NAME.update(x=n, y=[n])"),
    writes("NAME.pop('a', None)"),
    writes("NAME['items'] = items", stores=True),
    writes("NAME = {**NAME, 'b': n}", rebinds=True),
    reads("out.append(NAME.get('a'))"),
    reads("out.append(len(NAME))"),
    reads("out.append(repr(NAME))"),
    name="dict",
)
kind(
    "NAME = {$v}",
    writes("NAME.add(n)"),
    writes("NAME.update({n, n + 10})"),
    writes("NAME.discard(n)"),
    writes("NAME |= {n}", rebinds=True),
    reads("out.append(n in NAME)"),
    reads("out.append(len(NAME))"),
    name="set",
)
kind(
    "NAME = deque([$v], maxlen=4)",
    writes("NAME.append(n)"),
    writes("NAME.appendleft([n])"),
    writes("NAME.append(n)\nNAME.rotate(1)"),
    writes("NAME.append(n)\nout.append(NAME.popleft())"),
    reads("out.append(len(NAME))"),
    imports=("deque",),
    name="deque",
)
kind(
    "NAME = Counter(a=$v)",
    writes("NAME[f'k{n}'] += 1"),
    writes("NAME.update('abc')"),
    reads("out.append(NAME['a'])"),
    reads("out.append(NAME.most_common(1)[0][1])"),
    imports=("Counter",),
    name="Counter",
)
kind(
    "NAME = defaultdict(list)",
    writes("NAME[n % 2].append(n)"),
    reads("out.append(sorted(NAME))"),
    imports=("defaultdict",),
    name="defaultdict",
)
kind(
    "NAME = bytearray(b'ab')",
    writes("NAME.append(n % 256)"),
    writes("NAME.extend(b'xy')"),
    reads("out.append(len(NAME))"),
    name="bytearray",
)
kind(
    "NAME = $v",
    writes("NAME += n", rebinds=True),
    writes("NAME = n", rebinds=True),
    writes("NAME += 1\nout.append(NAME)", rebinds=True),
    reads("out.append(NAME)"),
    name="number rebound",
)
kind(
    "NAME = None",
    writes("if NAME is None:\n    NAME = {'loaded': n}\nout.append(NAME['loaded'])", rebinds=True),
    name="lazily loaded",
)
kind(
    "NAME = np.arange(6) * $v",
    writes("NAME[n % 6] += n"),
    writes("NAME *= 2", rebinds=True),
    writes("NAME = NAME + n", rebinds=True),
    writes("NAME.sort()\nNAME[:2] = n"),
    reads("out.append(int(NAME.sum()))"),
    reads("out.append(NAME[:2])", leaks=True),
    imports=("np",),
    name="array",
)
kind(
    "NAME = np.zeros(6)\nNAME_view = NAME[2:4]",
    writes("NAME[n % 6] += n"),
    writes("NAME_view[:] += n"),
    reads("out.append(float(NAME.sum()))"),
    reads("out.append(float(NAME_view.sum()))"),
    imports=("np",),
    name="array and view",
)
kind(
    "NAME = pd.DataFrame({'a': [1, 2, $v]})",
    writes("NAME['n'] = NAME['a'] * n"),
    writes("NAME.loc[len(NAME), 'a'] = n"),
    writes("NAME = pd.concat([NAME, pd.DataFrame({'a': [n]})], ignore_index=True)", rebinds=True),
    reads("out.append(float(NAME['a'].sum()))"),
    imports=("pd",),
    name="frame",
)
kind(
    """
    NAME = {}


    def look_up_NAME(x):
        if x not in NAME:
            NAME[x] = x * $v
        return NAME[x]
    """,
    writes("out.append(look_up_NAME(n))"),
    writes("out.append([look_up_NAME(i) for i in range(3)])"),
    name="memo dict",
)
kind(
    """
    @functools.lru_cache(maxsize=None)
    def NAME(x):
        return x if x < 2 else NAME(x - 1) + NAME(x - 2) + $v
    """,
    reads("out.append(NAME(n % 9))"),
    imports=("functools",),
    name="lru_cache",
)
kind(
    """
    class Table_NAME:
        def __init__(self, rows):
            self.rows = rows

        @functools.cached_property
        def total(self):
            return sum(self.rows) * $v


    NAME = Table_NAME([1, 2])
    """,
    reads("out.append(NAME.total + n)"),
    reads("out.append(NAME.rows[0])"),
    imports=("functools",),
    name="cached_property",
)
kind(
    """
    class NAME:
        scale = $v
        made = 0
        known = []

        def __init__(self, x):
            type(self).made += 1
            self.x = x * self.scale
            self.known.append(x)
    """,
    writes("out.append(NAME(n).x)"),
    writes("out.append(NAME(n))"),
    writes("NAME.scale += 1"),
    reads("out.append(NAME.scale)"),
    reads("out.append(len(NAME.known))"),
    name="class attributes",
)
kind(
    """
    class Account_NAME:
        rate = $v

        def __init__(self):
            self.balance, self.log = 0, []

        def deposit(self, amount):
            self.balance += amount * self.rate
            self.log.append(amount)
            return self.balance


    NAME = Account_NAME()
    """,
    writes("out.append(NAME.deposit(n))"),
    writes("NAME.log.append(n)"),
    writes("NAME.last = [n]"),
    writes("NAME.log = items", stores=True),
    reads("out.append(NAME.balance)"),
    name="instance",
)
kind(
    """
    @dataclass
    class Config_NAME:
        depth: int = $v
        names: list = field(default_factory=list)


    NAME = Config_NAME()
    """,
    writes("NAME.names.append(n)"),
    writes("NAME.depth += n"),
    reads("out.append(NAME.depth)"),
    imports=("dataclass",),
    name="dataclass",
)
kind(
    """
    NAME = {}


    def register_NAME(cls):
        NAME[cls.__name__.lower()] = cls
        return cls


    @register_NAME
    class First:
        def run(self, x):
            return x + $v


    @register_NAME
    class Second:
        def run(self, x):
            return x * 2
    """,
    reads("out.append(NAME['first']().run(n))"),
    reads("out.append([cls().run(n) for cls in NAME.values()])"),
    name="class registry",
)
kind(
    """
    class Shape_NAME:
        def area(self):
            return 0


    class Square_NAME(Shape_NAME):
        def area(self):
            return $v ** 2
    """,
    reads("out.append(sum(cls().area() for cls in Shape_NAME.__subclasses__()) + n)"),
    name="subclasses",
)
kind(
    """
    class NAME(enum.Enum):
        LOW = 1
        HIGH = $v
    """,
    reads("out.append(NAME.HIGH.value + n)"),
    reads("out.append([each.name for each in NAME])"),
    imports=("enum",),
    name="enum",
)
kind(
    """
    @functools.singledispatch
    def NAME(x):
        return str(x)


    @NAME.register
    def _(x: int):
        return x + $v
    """,
    reads("out.append(NAME(n))"),
    imports=("functools",),
    name="singledispatch",
)
kind(
    """
    @np.vectorize
    def NAME(x):
        return x * $v
    """,
    reads("out.append(int(NAME(np.arange(3)).sum()) + n)"),
    imports=("np",),
    name="vectorize",
)
kind(
    """
    class Agent_NAME:
        def __init__(self):
            self.memory = [$v]

        @checkpointed
        def act(self, x):
            began('NAME.act')
            self.memory.append(x)
            return sum(self.memory)


    NAME = Agent_NAME()
    """,
    writes("out.append(NAME.act(n))"),
    reads("out.append(len(NAME.memory))"),
    name="object with a step",
)
kind(
    "NAME = random.Random($v)",
    writes("out.append(NAME.random())"),
    writes("out.append(NAME.gauss(0, 1))"),
    writes("NAME.shuffle(items)"),
    writes("out.append(NAME.sample(range(9), 2))"),
    imports=("random",),
    name="random.Random",
)
kind(
    "NAME = np.random.default_rng($v)",
    writes("out.append(float(NAME.random()))"),
    writes("out.append(NAME.normal(size=2))"),
    writes("out.append(int(NAME.integers(9)))"),
    writes("out.append(float(NAME.spawn(1)[0].random()))"),
    imports=("np",),
    name="default_rng",
)
kind(
    "NAME = np.random.RandomState($v)",
    writes("out.append(float(NAME.rand()))"),
    writes("out.append(NAME.normal(size=2))"),
    imports=("np",),
    name="RandomState",
)
kind(
    "NAME = random.Random()",
    writes("out.append(NAME.random())"),
    imports=("random",),
    unseeded="NAME",
    name="random.Random unseeded",
)
kind(
    "NAME = np.random.default_rng()",
    writes("out.append(float(NAME.random()))"),
    imports=("np",),
    unseeded="NAME",
    name="default_rng unseeded",
)
kind(
    "random.seed($v)",
    writes("out.append(random.random())"),
    writes("out.append(random.gauss(0, 1))"),
    writes("random.shuffle(items)"),
    imports=("random",),
    name="random.seed",
)
kind(
    "np.random.seed($v)",
    writes("out.append(float(np.random.rand()))"),
    writes("out.append(np.random.normal(size=2))"),
    imports=("np",),
    name="np.random.seed",
)
kind(
    "",
    writes("out.append(random.random())"),
    imports=("random",),
    unseeded="random",
    name="random unseeded",
)
kind(
    "",
    writes("out.append(float(np.random.rand()))"),
    imports=("np",),
    unseeded="numpy",
    name="np.random unseeded",
)
kind(
    "NAME = 'NAME-data.txt'",
    reads("out.append(open(NAME).read().split())"),
    reads("out.append(Path(NAME).read_text())"),
    reads("with open(NAME) as file:\n    out.append([line.strip() for line in file])"),
    imports=("Path",),
    file="row $v\nrow 2\n",
    observed=True,
    name="file read",
)
kind(
    "NAME = Path('NAME-out.txt')",
    writes("NAME.write_text(repr(n))"),
    writes("with open(NAME, 'w') as file:\n    file.write(f'{n} {len(items)}')"),
    imports=("Path",),
    output="NAME-out.txt",
    name="file written",
)
kind(
    "NAME = Path('NAME-chain.txt')\nNAME.write_text('$v')",
    writes("NAME.write_text(repr(n))"),
    reads("out.append(NAME.read_text())"),
    imports=("Path",),
    observed=True,
    output="NAME-chain.txt",
    name="file written and read",
)
kind(
    "NAME = $v\n\n\ndef convert_NAME(x):\n    return x + NAME",
    reads("out.append(helpers.convert_NAME(n))"),
    reads("out.append(helpers.NAME)"),
    module="helpers",
    name="helper module",
)
kind(
    "NAME = []\n\n\ndef note_NAME(x):\n    NAME.append(x * $v)\n    return len(NAME)",
    writes("out.append(helpers.note_NAME(n))"),
    writes("helpers.NAME.append(n)"),
    writes("helpers.NAME = [n]"),
    reads("out.append(len(helpers.NAME))"),
    module="helpers",
    name="helper module's list",
)
kind(
    "NAME = threading.Lock()",
    reads("with NAME:\n    out.append(n)"),
    imports=("threading",),
    name="lock",
)
kind(
    "NAME = logging.getLogger('NAME')",
    reads("NAME.info('at %s', n)"),
    imports=("logging",),
    name="logger",
)
kind(
    """
    class Client_NAME:
        def __init__(self, base_url, retries):
            self.base_url, self.retries = base_url, retries
            self.lock, self.local = threading.Lock(), threading.local()

        def ask(self, x):
            with self.lock:
                return f'{self.base_url}/{x}'


    NAME = Client_NAME('http://localhost:$v', 3)
    """,
    reads("out.append(NAME.ask(n))"),
    imports=("threading",),
    name="client",
)

kind(
    """
    def log_NAME(x, log):
        log.append(x)
        return len(log)


    NAME = functools.partial(log_NAME, log=[$v])
    """,
    writes("out.append(NAME(n))"),
    reads("out.append(NAME.keywords['log'][0])"),
    imports=("functools",),
    name="partial with a list",
)
kind(
    """
    class NAME(enum.Enum):
        LOW = 'low'
        HIGH = 'high'

        def __init__(self, word):
            self.seen = [$v]
    """,
    writes("NAME.HIGH.seen.append(n)"),
    writes("NAME.LOW.last = [n]"),
    reads("out.append(len(NAME.HIGH.seen))"),
    reads("out.append(NAME(n % 2 and 'low' or 'high').seen[0])"),
    imports=("enum",),
    name="enum with lists",
)
kind(
    "NAME = $v\nNAME_log = []\n\n\ndef weigh_NAME(x):\n    NAME_log.append(x)\n    return x * NAME",
    reads("out.append(plugins[0].NAME + n)"),
    writes("out.append(plugins[-1].weigh_NAME(n))"),
    writes("plugins[0].NAME_log.append(n)"),
    writes("out.append([each.weigh_NAME(n) for each in plugins])"),
    reads("out.append(len(plugins[0].NAME_log))"),
    imports=("plugins",),
    module="helpers",
    name="module in a list",
)
kind(
    """
    NAME = {'rows': [$v], 'seen': set()}
    NAME_rows = NAME['rows']
    """,
    writes("NAME_rows.append(n)"),
    writes("NAME['rows'].append([n])"),
    writes("NAME['seen'].add(n)\nNAME['rows'] = NAME_rows"),
    writes("NAME['rows'] = [n]"),
    writes("NAME = dict(NAME)", rebinds=True),
    reads("out.append(NAME['rows'] is NAME_rows)"),
    reads("out.append(len(NAME_rows))"),
    name="one list, two globals",
)
kind(
    """
    NAME = np.arange(8.0) * $v
    NAME_part = NAME[2:6]
    """,
    writes("for each in items:\n    if isinstance(each, np.ndarray):\n        each[:2] += n"),
    writes("NAME_part[1] += n"),
    writes("NAME[n % 8] = n"),
    reads("out.append(float(NAME_part.sum()))"),
    reads("out.append([float(each.sum()) for each in items if isinstance(each, np.ndarray)])"),
    reads("out.append(NAME_part)", leaks=True),
    imports=("np",),
    given=("[NAME, NAME[1:3]]", "[NAME_part[::-1]]", "[NAME[::2], NAME_part]"),
    name="array given in part",
)
kind(
    "NAME = pd.Series([1.0, $v], index=['a', 'b'])",
    writes("NAME['c'] = n"),
    writes("NAME *= 2", rebinds=True),
    writes("NAME.iloc[0] = n"),
    reads("out.append(float(NAME.sum()))"),
    imports=("pd",),
    name="series",
)
kind(
    "os.environ['NAME'] = '$v'",
    writes("os.environ[f'NAME_{n}'] = str(n)"),  # a repeated call leaves what others have set since
    writes("os.environ[f'NAME_{n}_more'] = str(n)"),
    imports=("os",),
    name="environment",
)
kind(
    "NAME = contextvars.ContextVar('NAME', default=$v)",
    writes("NAME.set([n])"),
    reads("out.append(NAME.get())", leaks=True),
    imports=("contextvars",),
    name="context variable",
)
kind(
    """
    class Point_NAME:
        __slots__ = ('x', 'trail')

        def __init__(self, x):
            self.x, self.trail = x, []


    NAME = Point_NAME($v)
    """,
    writes("NAME.x += n"),
    writes("NAME.trail.append(NAME.x)"),
    writes("NAME = Point_NAME(n)", rebinds=True),
    reads("out.append(NAME.x)"),
    name="slots",
)
kind(
    """
    NAME = OrderedDict(a=[$v], b=[2])
    """,
    writes("NAME.move_to_end('a')"),
    writes("NAME.setdefault('c', []).append(n)"),
    writes("NAME['b'].append(n)"),
    reads("out.append(list(NAME))"),
    imports=("OrderedDict",),
    name="OrderedDict",
)
kind(
    """
    class Row_NAME(NamedTuple):
        x: int
        tags: list


    NAME = Row_NAME($v, [])
    """,
    writes("NAME.tags.append(n)"),
    writes("NAME = NAME._replace(x=n)", rebinds=True),
    reads("out.append(NAME.x + len(NAME.tags))"),
    imports=("NamedTuple",),
    name="named tuple with a list",
)
kind(
    """
    class Tree_NAME:
        def __init__(self, parent=None):
            self.parent, self.children, self.weight = parent, [], $v
            if parent is not None:
                parent.children.append(self)


    NAME = Tree_NAME()
    """,
    writes("Tree_NAME(NAME).weight = n"),
    writes("NAME.children[-1:] = [Tree_NAME(NAME)]"),
    writes("NAME.weight += n"),
    reads("out.append(sum(each.weight for each in NAME.children))"),
    name="tree",
)
kind(
    """
    class Model_NAME:
        def __init__(self):
            self.rng, self.draws = random.Random($v), []

        @functools.lru_cache(maxsize=None)
        def factor(self, x):
            return x * $w

        def draw(self):
            self.draws.append(self.rng.random())
            return self.draws[-1]


    NAME = Model_NAME()
    """,
    writes("out.append(NAME.draw())"),
    reads("out.append(NAME.factor(n))"),
    reads("out.append(len(NAME.draws))"),
    imports=("functools", "random"),
    name="object with a generator",
)
kind(
    "NAME = np.random.SeedSequence($v)",
    writes("out.append(float(np.random.default_rng(NAME.spawn(1)[0]).random()))"),
    reads("out.append(int(NAME.generate_state(1)[0]))"),
    imports=("np",),
    name="SeedSequence",
)
kind(
    "NAME = 'NAME'",
    writes("run.state[NAME] = run.state.get(NAME, 0) + n"),
    writes("run.state.setdefault('NAME_rows', []).append(n)"),
    writes("run.state.setdefault('NAME_rows', []).append(items)", stores=True),
    reads("out.append(len(run.state.get('NAME_rows', ())))"),
    reads("out.append(run.state.get(NAME))"),
    imports=("run",),
    name="run.state",
)

IMPORTS = {
    "np": "import numpy as np",
    "pd": "import pandas as pd",
    "deque": "from collections import deque",
    "Counter": "from collections import Counter",
    "defaultdict": "from collections import defaultdict",
    "dataclass": "from dataclasses import dataclass, field",
    "Path": "from pathlib import Path",
    "OrderedDict": "from collections import OrderedDict",
    "NamedTuple": "from typing import NamedTuple",
    "plugins": "",  # `helpers` in a list, see `render`
    "run": "",  # bound by the scope
}
COSTLY = ("frame", "series")  # to import
GENERATORS = ("random.Random", "default_rng", "random.seed", "np.random.seed", "random unseeded", "np.random unseeded")


# -- a script


@dataclass
class Use:
    """One operation on a resource (by its name), or a call of an earlier step."""

    resource: str
    op: Op


@dataclass
class Function:
    """A step, or a plain function that is called between steps."""

    name: str
    uses: list[Use]
    returns: str  # "out", "items", or the name of a resource that is returned itself, alone or beside `out`
    pair: bool = False
    is_step: bool = True
    change_items: bool = False
    inner: str = ""  # a step that it calls
    yields: bool = False  # it is a generator


@dataclass
class Call:
    """One call in the body of the script; or a loop, which calls nothing."""

    label: str
    function: str
    n: str
    items: str
    repeats: int = 1
    hold: str = ""  # a list at module level that the result is appended to
    change: bool = False  # the result is changed in place afterwards
    concurrency: int = 0  # it is a map over some numbers, with so many at a time
    every: int = 0  # it is a loop, kept every so many turns
    draw: Use | None = None  # what the loop does in each turn


@dataclass
class Script:
    number: int
    resources: dict[str, Resource]
    functions: dict[str, Function]
    calls: list[Call]
    values: dict[str, str]
    attempts: list[tuple[int, str]]  # at which tick the process dies, and which value is edited afterwards


def generate(number: int, only: str = "") -> Script:
    """The script of that number. With `only`, a small one about one kind of data."""
    rng = random.Random(f"script {number} {only}")
    names = [only] if only else _choice_of_kinds(rng)
    resources = {}
    for i, each in enumerate(names):
        own = f"{'_'.join(''.join(c if c.isalnum() else ' ' for c in each).lower().split())}_{i}"
        resources[own] = KINDS[each](rng, own)
    functions: dict[str, Function] = {}
    for i in range(rng.randint(2, 4)):
        functions[f"step{i}"] = _function(rng, f"step{i}", resources, functions, True)
    if rng.random() < 0.5:
        functions["between"] = _function(rng, "between", resources, {}, False)
    values = {slot: first for resource in resources.values() for slot, (first, _) in resource.values.items()}
    calls = [_call(rng, i, resources, functions, values) for i in range(rng.randint(3, 6))]
    script = Script(number, resources, functions, calls, values, [])
    text, ticks = "".join(render(script, plain=True, fill=False).values()), _ticks(script)
    editable = [slot for slot in sorted(values) if f"${slot}" in text and not _spoils_a_loop(script, slot)]
    for i in range(rng.randint(1, 3)):  # a resumed run ticks less often
        kill = rng.randint(1, ticks if i == 0 else max(3, ticks // 2))
        script.attempts.append((kill, rng.choice(editable) if editable and rng.random() < 0.5 else ""))
    return script


def _spoils_a_loop(script: Script, slot: str) -> bool:
    """A loop goes on whatever was edited, but for its own items: see docs/explanation/guarantees.md."""
    found = affected(script, slot)
    return any(call.every and call.label in found and slot != f"{call.label}_n" for call in script.calls)


def _ticks(script: Script) -> int:
    """About how often an uninterrupted run can be killed."""
    steps = {f.name: 2 + len(f.uses) if f.is_step else 0 for f in script.functions.values()}
    each = {
        call.label: sum(steps[f.name] for f in _with_inner(script, call.function)) * (3 if call.concurrency else 1)
        for call in script.calls
    }
    return 1 + sum(call.repeats * (1 + (8 if call.every else each[call.label])) for call in script.calls)


def _choice_of_kinds(rng: random.Random) -> list[str]:
    # of what excludes one another in one script, and of what is slow to import, little
    pool = [each for each in KINDS if each not in COSTLY and each not in ("random unseeded", "np.random unseeded")]
    found = rng.sample(pool, rng.randint(3, 6))
    if rng.random() < 0.1:
        found.append(rng.choice(COSTLY))
    for unseeded, seeded in (("random unseeded", "random.seed"), ("np.random unseeded", "np.random.seed")):
        if seeded not in found and rng.random() < 0.1:
            found.append(unseeded)
    return found


def _function(
    rng: random.Random, name: str, resources: dict[str, Resource], earlier: dict[str, Function], is_step: bool
) -> Function:
    uses = []
    for own in rng.sample(sorted(resources), min(len(resources), rng.randint(1, 3))):
        for _ in range(rng.randint(1, 2)):
            uses.append(Use(own, rng.choice(resources[own].ops)))
    lists = [own for own, resource in resources.items() if resource.is_list]
    returns = rng.choice(["out", "out", "out", "items", *lists])
    inner = rng.choice(sorted(earlier)) if earlier and rng.random() < 0.3 else ""
    yields = is_step and rng.random() < 0.15
    return Function(name, uses, returns, rng.random() < 0.3, is_step, rng.random() < 0.2, inner, yields)


def _call(
    rng: random.Random,
    i: int,
    resources: dict[str, Resource],
    functions: dict[str, Function],
    values: dict[str, str],
) -> Call:
    label = f"c{i}"
    given = rng.choice(["literal", "literal", "earlier", "same"])
    if given == "literal" or i == 0:
        values[f"{label}_n"] = str(rng.randint(0, 9))
        n = f"${label}_n"
    elif given == "earlier":
        n = f"len(r{rng.randrange(i)})"
    else:
        n = "7"
    lists = [own for own, resource in resources.items() if resource.is_list]
    given = [each for resource in resources.values() for each in resource.given]
    items = rng.choice(["[1, 2]", "[]", "[3]", *lists, *given, *([f"r{rng.randrange(i)}"] if i else [])])
    hold = rng.choice(lists) if lists and rng.random() < 0.3 else ""
    call = Call(label, rng.choice(sorted(functions)), n, items, rng.choice([1, 1, 1, 2, 3]), hold, rng.random() < 0.15)
    special = rng.random()
    if special < 0.1:
        _make_map(rng, call, functions)
    elif special < 0.2 and n.startswith("$"):
        _make_loop(rng, call, resources)
    return call


def _make_map(rng: random.Random, call: Call, functions: dict[str, Function]) -> None:
    """Side by side, steps that change something do it in any order."""
    call.repeats, call.items, uses = 1, "[1, 2]", list[Use]()
    name, returned = call.function, set[str]()
    while name:
        function = functions[name]
        uses, returned, name = [*uses, *function.uses], returned | {function.returns}, function.inner
    # what is returned of a global is a copy where steps run side by side
    shared = any(use.op.writes or use.op.leaks for use in uses) or returned != {"out"}
    call.concurrency = 1 if shared else rng.choice([1, 4])


def _make_loop(rng: random.Random, call: Call, resources: dict[str, Resource]) -> None:
    draws = [Use(own, op) for own, each in resources.items() if each.kind in GENERATORS for op in each.ops]
    call.function, call.repeats, call.every = "", 1, rng.choice([1, 2, 5])
    call.draw = rng.choice(draws) if draws and rng.random() < 0.5 else None


# -- its text


def render(script: Script, plain: bool, fill: bool = True) -> dict[str, str]:
    """The files of the script as it is now; without `fill`, with the names of what can be edited."""
    used = {use.resource for function in _needed(script) for use in function.uses}
    used |= {function.returns for function in _needed(script)}
    used |= {name for call in script.calls for name in (*_names_in(script, call.items), call.hold)}
    used |= {call.draw.resource for call in script.calls if call.draw}
    resources = [resource for own, resource in script.resources.items() if own in used]
    imports = {"random"} | {each for resource in resources for each in resource.imports}
    lines = sorted(filter(None, (IMPORTS.get(each, f"import {each}") for each in imports)))
    if any(resource.module == "helpers" for resource in resources):
        lines.append("import helpers")
    own = "checkpoint_scope, checkpointed"
    lines += [
        "from witness import began, calling, opening, report, returned, tick",
        f"from {'witness' if plain else 'oncemore'} import {own}",
    ]
    here = [resource.declare for resource in resources if resource.module == "script" and resource.declare]
    if "plugins" in imports:
        here.insert(0, "plugins = [helpers]")
    functions = [_definition(script, function) for function in _needed(script)]
    unseeded = [resource.unseeded for resource in resources if resource.unseeded]
    kinds = {resource.kind for resource in resources}
    drawn = [each for each in ("random", "np.random") if kinds & {f"{each}.seed", f"{each} unseeded"}]
    parts = ["\n".join(lines), *here, *functions, _body(script, unseeded, drawn)]
    files = {"script.py": "\n\n".join(parts) + "\n"}
    there = [resource.declare for resource in resources if resource.module == "helpers"]
    if there:
        files["helpers.py"] = "\n\n\n".join(there) + "\n"
    for resource in resources:
        if resource.file:
            files[f"{resource.name}-data.txt"] = resource.file
    return {name: string.Template(text).substitute(script.values) if fill else text for name, text in files.items()}


def _names_in(script: Script, items: str) -> list[str]:
    """What leads to the objects of an argument: a list, an earlier result, or a resource that it shows a part of."""
    return [items, *(own for own, resource in script.resources.items() if items in resource.given)]


def _needed(script: Script) -> list[Function]:
    """The functions that are called, in the order of their definition."""
    wanted = {call.function for call in script.calls}
    for function in reversed(script.functions.values()):
        if function.name in wanted and function.inner:
            wanted.add(function.inner)
    return [function for function in script.functions.values() if function.name in wanted]


def _definition(script: Script, function: Function) -> str:
    resources = script.resources
    used = [(resources[use.resource], use.op) for use in function.uses]
    outputs = sorted({resource.output for resource, op in used if resource.output and op.writes})
    options = ['inputs="observed"'] if any(resource.observed for resource, _ in used) else []
    options += [f"outputs={outputs}"] if outputs else []
    lines = [f"@checkpointed({', '.join(options)})" if options else "@checkpointed"] if function.is_step else []
    lines.append(f"def {function.name}(n, items):")
    rebound = sorted({use.resource for use in function.uses if use.op.rebinds})
    body = [f"global {', '.join(rebound)}"] if rebound else []
    if function.is_step:
        body.append(f"began({function.name!r})")
    body.append("out = [n]")
    for use in function.uses:
        body += use.op.text.splitlines()
        if function.is_step:
            body.append("tick()")
        if function.yields:
            body.append("yield len(out)")  # items share nothing when they are replayed: each is kept by itself
    if function.inner:
        body.append(f"out.append({_called(script, function.inner, 'n + 1', 'items')})")
    if function.change_items:
        body.append("items.append(n)")
    if function.is_step:
        body.append("tick()")
    returned = f"[out, {function.returns}]" if function.pair and function.returns != "out" else function.returns
    body.append(f"{'yield' if function.yields else 'return'} {returned}")
    return "\n" + "\n".join([*lines, *textwrap.indent("\n".join(body), "    ").splitlines()])


def _called(script: Script, function: str, n: str, items: str) -> str:
    called = f"{function}({n}, {items})"
    return f"list({called})" if script.functions[function].yields else called


def _loop(call: Call, name: str) -> list[str]:
    turn = [
        "began('turn')",
        f"out = run.state.setdefault('{name}', [turn])",
        *(call.draw.op.text.splitlines() if call.draw else ()),
    ]
    return [
        f"items = {call.items}",
        f"for turn in run.loop('{call.label}', range({call.n}), every={call.every}):",
        *("    " + line for line in [*turn, "out.append(turn)", "tick()"]),
        f"{name} = run.state.get('{name}', [])",
        "items = out = turn = None",
    ]


def _body(script: Script, unseeded: list[str], drawn: list[str]) -> str:
    lines = []
    for call in script.calls:
        name = f"r{call.label[1:]}"
        if call.every:
            doing = _loop(call, name)
        elif call.concurrency:
            over = f"[1, 2, {call.n}], concurrency={call.concurrency}"
            doing = [f"{name} = list(run.map(lambda n: {_called(script, call.function, 'n', call.items)}, {over}))"]
        else:
            doing = [f"{name} = {_called(script, call.function, call.n, call.items)}"]
        text = [f'calling("{call.label}")', *doing, f'returned("{call.label}")']
        if call.hold:
            text.append(f"{call.hold}.append({name})")
        if call.change:
            text.append(f"{name}.append('changed')")
        if call.repeats > 1:
            text = [f"for turn in range({call.repeats}):", *("    " + line for line in text)]
        lines += text
    body = "\n".join("    " + line for line in lines)
    scope = f'with checkpoint_scope("run") as run:\n    tick()\n{body}'
    return f"\nopening(globals(), {unseeded!r})\n{scope}\nreport(globals(), {drawn!r})"


# -- what an edit affects


def affected(script: Script, slot: str) -> set[str]:
    """The labels of calls that an edit of this value may affect: those that use it, and what depends on these."""
    groups: dict[str, str] = {}

    def root(name: str) -> str:
        while name in groups:
            name = groups[name]
        return name

    def link(*names: str) -> None:
        first = root(names[0])
        for name in names[1:]:
            if root(name) != first and name.isidentifier() and name != "out":
                groups[root(name)] = first

    def sharing(call: Call) -> None:
        """Names that may lead to one object after this call."""
        for function in _with_inner(script, call.function):
            for use in function.uses:
                if use.op.stores:  # an inner step is given the same list
                    link(use.resource, *_names_in(script, call.items))
                if use.op.leaks:
                    link(use.resource, f"r{call.label[1:]}")
            if function.returns != "out":
                returned = _names_in(script, call.items) if function.returns == "items" else [function.returns]
                link(f"r{call.label[1:]}", *returned)
            elif function.inner:
                link(f"r{call.label[1:]}", *(each.returns for each in _with_inner(script, function.inner)))
        if call.hold:
            link(call.hold, f"r{call.label[1:]}")

    for call in script.calls:
        sharing(call)
    found: set[str] = set()
    # a literal argument is a new list at each call
    tainted: set[str] = {own for own, resource in script.resources.items() if slot in resource.values}
    for call in script.calls:
        for _ in range(call.repeats):
            uses = [use for function in _with_inner(script, call.function) for use in function.uses]
            uses += [call.draw] if call.draw else []
            given = [name for name in _names_in(script, call.items) if name.isidentifier()]
            returned = {function.returns for function in _with_inner(script, call.function)} & script.resources.keys()
            touched = {use.resource for use in uses} | returned
            names = {root(name) for name in (*touched, *given, call.n.removeprefix("len(").rstrip(")"))}
            roots = {root(name) for name in tainted}
            if slot == f"{call.label}_n" or names & roots:
                found.add(call.label)
                tainted |= {f"r{call.label[1:]}", *given}
                tainted |= {use.resource for use in uses if use.op.writes}
                tainted |= {call.hold} - {""}
    return found


def _with_inner(script: Script, name: str) -> Iterator[Function]:
    while name in script.functions:
        yield script.functions[name]
        name = script.functions[name].inner


# -- running it


class Differs(Exception):
    """A script that does not keep the promise; the text says how."""


@dataclass
class Attempt:
    code: int
    err: str
    executed: dict[str, int]  # how many step bodies ran, by call: its label and its turn
    returned: list[str]


def run(folder: Path, files: dict[str, str], opening: Path, kill: int = 0, replay: bool = False) -> Attempt:
    """One process that runs the script in that folder. In the file `opening` are, or go, the unseeded generators' states."""
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    library = folder / "site-packages"
    library.mkdir(exist_ok=True)
    shutil.copy(WITNESS, library / "witness.py")
    for name in ("witness.log", "report.json"):
        (folder / name).unlink(missing_ok=True)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(library), str(SRC)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "WITNESS_KILL": str(kill),
        "WITNESS_OPENING": str(opening),
        "WITNESS_REPLAY": "1" if replay else "",
    }
    with Running(warm.Process("script.py", [], folder, env)) as running:
        done = running.finish(timeout=120)
    executed: dict[str, int] = {}
    turns: dict[str, int] = {}
    returned: list[str] = []
    now = ""
    for line in (folder / "witness.log").read_text().splitlines() if (folder / "witness.log").exists() else ():
        what, word = line.split()
        if what == "calling":
            turns[word] = turns.get(word, 0) + 1
            now = f"{word} turn {turns[word]}"
            executed[now] = 0
        elif what == "began":
            executed[now] += 1
        else:
            returned.append(now)
    if done.code not in (0, -9):
        raise Differs(f"it fails with exit code {done.code}\n{done.err}")
    return Attempt(done.code, done.err, executed, returned)


def check(script: Script, folder: Path, tell: Callable[[str], None] = lambda text: None) -> None:
    """Run the script as its attempts say; raise `Differs` if it does not end like the plain one."""
    script = deepcopy(script)
    shutil.rmtree(folder, ignore_errors=True)
    home = folder / "with"
    home.mkdir(parents=True)
    complete: set[str] = set()
    openings: list[Path] = []
    settled, warned = False, ""
    for number, (kill, edit) in enumerate([*script.attempts, (0, ""), (-1, "")]):
        opening = folder / f"opening-{number}"
        attempt = run(home, render(script, plain=False), opening, kill)
        openings += [] if settled else [opening]
        ran = {call: count for call, count in attempt.executed.items() if count}
        tell(f"attempt{f' killed at tick {kill}' if kill > 0 else ''}: exit {attempt.code}, step bodies run: {ran}")
        if attempt.err:
            tell(textwrap.indent(attempt.err.rstrip(), "    "))
            warned += attempt.err
        again = sorted(set(ran) & complete)
        if again:
            raise Differs(f"ran again although complete and unaffected: {', '.join(again)}\n{warned}")
        if kill == -1 and ran:
            raise Differs(f"a re-run of the finished script runs {ran}\n{warned}")
        complete |= set(attempt.returned)
        settled = settled or bool(set(ran) & complete)
        if edit:
            _edit(script, edit)
            labels = affected(script, edit)
            complete = {call for call in complete if call.split()[0] not in labels}
            tell(f"edit: {edit} is {script.values[edit]} from now on, which may affect {sorted(labels)}")
        if kill <= 0:
            _compare(script, home, openings, "a re-run" if kill else "the resumed run", warned)


def _edit(script: Script, slot: str) -> None:
    for resource in script.resources.values():
        if slot in resource.values:
            first, second = resource.values[slot]
            script.values[slot] = second if script.values[slot] == first else first
            return
    script.values[slot] = str((int(script.values[slot]) + 3) % 10)


def _compare(script: Script, home: Path, openings: list[Path], which: str, warned: str) -> None:
    found = (home / "report.json").read_text().splitlines()
    expected: list[str] = []
    unseeded = any(resource.unseeded for resource in script.resources.values())
    for opening in openings if unseeded else openings[:1]:
        plain = opening.with_name(f"plain-{opening.name}")
        if not plain.exists():
            plain.mkdir()
            run(plain, render(script, plain=True), opening, replay=True)
        expected = (plain / "report.json").read_text().splitlines()
        if expected == found:
            return
    lines = list(difflib.unified_diff(expected, found, "plain", which, lineterm="", n=4))
    short = [line if len(line) < 300 else line[:300] + "..." for line in lines[:60]]
    raise Differs("\n".join([f"{which} ends differently", *short, warned]))


def outcome(script: Script, tell: Callable[[str], None] = lambda text: None) -> str:
    """What is wrong with it, or nothing."""
    folder = Path(tempfile.mkdtemp(prefix="script-"))
    try:
        check(script, folder, tell)
    except Differs as error:
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ""


# -- making it smaller


def shrink(script: Script, tell: Callable[[str], None]) -> Script:
    """A smaller script that still fails in the same way."""
    kind_of = outcome(script).split("\n")[0].split(":")[0][:25]

    def still(candidate: Script) -> bool:
        try:
            return outcome(candidate).startswith(kind_of)
        except (SyntaxError, KeyError, ValueError):
            return False

    progress = True
    while progress:
        progress = False
        for candidate in _smaller(script):
            if still(candidate):
                script, progress = candidate, True
                tell(f"smaller: {len(script.calls)} calls, {len(script.attempts)} attempts")
                break
    return script


def _smaller(script: Script) -> Iterator[Script]:
    def changed(change: Callable[[Script], Any]) -> Script:
        other = deepcopy(script)
        change(other)
        return other

    def drop_call(label: str) -> Callable[[Script], None]:
        def drop(other: Script) -> None:
            other.calls = [call for call in other.calls if call.label != label]
            for call in other.calls:
                gone = f"r{label[1:]}"
                call.n = "7" if gone in call.n else call.n
                call.items = "[1, 2]" if call.items == gone else call.items

        return drop

    for i in range(len(script.attempts)):
        yield changed(lambda other, i=i: other.attempts.pop(i))
    for i, (kill, edit) in enumerate(script.attempts):
        if edit:
            yield changed(lambda other, i=i, kill=kill: other.attempts.__setitem__(i, (kill, "")))
    for call in script.calls:
        yield changed(drop_call(call.label))
    for i, call in enumerate(script.calls):
        for name, value in (("repeats", 1), ("hold", ""), ("change", False), ("items", "[1, 2]"), ("draw", None)):
            if getattr(call, name) != value:
                yield changed(lambda other, i=i, name=name, value=value: setattr(other.calls[i], name, value))
    for function in _needed(script):
        for i in range(len(function.uses)):
            yield changed(lambda other, name=function.name, i=i: other.functions[name].uses.pop(i))
        for name, value in (
            ("inner", ""),
            ("change_items", False),
            ("pair", False),
            ("yields", False),
            ("returns", "out"),
        ):
            if getattr(function, name) != value:
                yield changed(
                    lambda other, own=function.name, name=name, value=value: setattr(other.functions[own], name, value)
                )


# -- the campaign


def campaign(numbers: Iterable[int], jobs: int, only: str = "") -> list[int]:
    """The numbers of those that fail; each is printed as it is found."""
    failed: list[int] = []
    began, done = time.monotonic(), 0
    every = list(numbers)
    live = sys.stderr.isatty()
    with ThreadPoolExecutor(jobs) as pool:
        for number, wrong in zip(every, pool.map(lambda number: outcome(generate(number, only)), every)):
            done += 1
            if wrong:
                failed.append(number)
                print(f"script {number}: {wrong.splitlines()[0]}   (--only {number})", flush=True)
            if live or done % 25 == 0 or done == len(every):
                end = "\r" if live and done < len(every) else "\n"
                seconds = time.monotonic() - began
                print(
                    f"{done} of {len(every)} scripts, {len(failed)} failed, {seconds:.0f} s", end=end, file=sys.stderr
                )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.properties.scripts", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=500, help="how many scripts")
    parser.add_argument("--start", type=int, default=0, help="the number of the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="how many at a time")
    parser.add_argument(
        "--only", type=int, metavar="N", help="the script of this number, with its text and its attempts"
    )
    parser.add_argument("--shrink", action="store_true", help="with --only: make it smaller while it fails")
    parser.add_argument("--kind", default="", choices=["", *KINDS], help="small scripts about one kind of data")
    parser.add_argument(
        "--kinds", action="store_true", help="a table: --count small scripts of every kind (give a small count)"
    )
    options = parser.parse_args()
    if options.only is not None:
        return _one(generate(options.only, options.kind), options.shrink)
    numbers = range(options.start, options.start + options.count)
    if options.kinds:
        total = 0
        for each in KINDS:
            with ThreadPoolExecutor(options.jobs) as pool:
                wrong = list(pool.map(lambda number, each=each: outcome(generate(number, each)), numbers))
            total += sum(map(bool, wrong))
            first = next(((n, text) for n, text in zip(numbers, wrong) if text), None)
            message = f"first: {first[0]}: {first[1].splitlines()[0]}" if first else ""
            print(f"{each:28} {sum(map(bool, wrong)):3} of {len(numbers)} fail  {message}", flush=True)
        return 1 if total else 0
    failed = campaign(numbers, options.jobs, options.kind)
    if failed:
        print(f"{len(failed)} of {options.count} scripts do not end like plain Python: {failed}")
    return 1 if failed else 0


def _one(script: Script, smaller: bool) -> int:
    if smaller:
        script = shrink(script, lambda text: print(text, file=sys.stderr))
    for name, text in render(script, plain=False).items():
        print(f"--- {name}\n{text}")
    print("---")
    wrong = outcome(script, print)
    print(wrong or "ends like plain Python")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
