"""Globals and other data that code reaches: read, changed, and restored when the step is skipped.

Each script is run plainly (without oncemore), whole, once more, and killed after each of its steps and resumed: all end alike.
"""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.processes import Script

HEAD = """
import os, signal
from oncemore import checkpoint_scope, checkpointed, current_run

_points = []
def point():
    _points.append(1)
    print("POINT", flush=True)
    if os.environ.get("KILL") == str(len(_points)):
        os.kill(os.getpid(), signal.SIGKILL)
"""
PLAIN = """
import contextlib, types
def checkpointed(function=None, **options):
    return function if function is not None else lambda function: function
class _State(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__
@contextlib.contextmanager
def checkpoint_scope(*args, **options):
    global _run
    _run = types.SimpleNamespace(state=_State())
    yield _run
def current_run():
    return _run
"""

CASES = {
    "a list, also as the result": """
        results = []
        @checkpointed
        def add(x):
            print("RAN", x); results.append([x]); return results
        with checkpoint_scope("r"):
            for i in range(3): r = add(i); print(r is results, r); point()
    """,
    "names bound anew, removed, and made": """
        n, cfg, tmp = 0, {"x": 1}, [1]
        old = cfg
        @checkpointed
        def f(x):
            global n, cfg, made
            print("RAN", x); n += x; cfg = {**cfg, x: n}
            if x == 2: made = [cfg]
            return n
        @checkpointed
        def g():
            global tmp
            print("RAN g"); del tmp; globals()["dynamic"] = [n]; return n
        with checkpoint_scope("r"):
            for i in range(1, 4): f(i); print(n, cfg, cfg is old, "made" in globals()); point()
            g(); print("tmp" in globals(), dynamic, made); point()
    """,
    "attributes of classes, by whatever way": """
        class Base:
            items, count = [], 0
            @classmethod
            def add(cls, x): cls.count += 1; cls.items.append(x)
            class Inner:
                n = 0
        class Sub(Base): pass
        class Own(Base):
            def go(self, x): type(self).count += 10; self.__class__.last = x; setattr(Base.Inner, f"k{x}", x)
        @checkpointed
        def f(x):
            print("RAN", x); Base.add(x); Sub.add(x); Own().go(x); Sub.total = Sub.count; Base.Inner.n += 1; return x
        with checkpoint_scope("r"):
            for i in range(3):
                f(i); print(Base.count, Sub.count, Own.count, Own.last, Sub.items is Base.items, "last" in vars(Base))
                print(Sub.total, Base.Inner.n, getattr(Base.Inner, f"k{i}"), Base.items); point()
    """,
    "steps that are methods": """
        class Model:
            registry, count = [], 0
            def __init__(self): self.w = [0]
            @checkpointed
            def fit(self, x):
                print("RAN", x); self.registry.append(x); type(self).count += 1; self.w.append(x); return self
            @classmethod
            @checkpointed
            def reset(cls, x):
                print("RAN reset"); cls.registry.clear(); cls.count = x; return cls.registry
        class Sub(Model): pass
        m = Model()
        with checkpoint_scope("r"):
            for i in range(2): print(m.fit(i) is m, Model.registry, Model.count, m.w, Sub.reset(i) is Model.registry); point()
            print(Sub.count, Model.count, "count" in vars(Sub))
    """,
    "what arguments lead to": """
        import config
        class Model:
            registry, count = [], 0
            def add(self, x): self.registry.append(x); self.__class__.count += 1; self.__class__.last = x
        acc = []
        def callback(x): acc.append(x)
        def make():
            inner = []
            def callback(x): inner.append(x)
            return callback, inner
        other, inner = make()
        @checkpointed
        def f(x, model, kind, call, module):
            print("RAN", x); model.add(x); kind.count += 1; call(x); module.L.append(x); module.X = x; return module
        with checkpoint_scope("r"):
            for i in range(3):
                r = f(i, Model(), Model, callback, config); f(i, Model(), Model, other, config)
                print(r is config, Model.registry, Model.count, Model.last, acc, inner, config.L, config.X); point()
        #### config.py
        X = None
        L = []
    """,
    "closures, defaults, attributes of functions, partials": """
        import functools
        def make():
            n, log = 0, []
            def inc(x):
                nonlocal n
                print("RAN", x); n += x; log.append(n); return n
            return checkpointed(inc), lambda: (n, log)
        inc, get = make()
        def helper(x, acc=[], *, seen={}):
            acc.append(x); seen[x] = acc; helper.calls += 1; return acc
        helper.calls = 0
        store = []
        put = functools.partial(lambda target, x, *, extra: (target.append(x), extra.update({x: target})), store, extra={})
        @checkpointed
        def f(x, mine=[0]):
            print("RAN f", x); mine.append(x); put(x); f.n = getattr(f, "n", 0) + 1; return helper(x), mine
        with checkpoint_scope("r"):
            for i in range(1, 4):
                inc(i); r = f(i)
                print(get(), r, r[0] is helper.__defaults__[0], helper.calls, f.n, store, put.keywords["extra"][i] is store)
                point()
    """,
    "modules of the project": """
        import config, pkg.mod as m
        from config import L
        mods = [config]
        def use(mod, x): mod.L.append(x); setattr(mod, "X", x)
        @checkpointed
        def f(x, which=config):
            print("RAN", x); use(mods[0], x); which.new = [x]; m.D[x] = which; config.__dict__["Q"] = x; return L
        @checkpointed
        def g(x):
            import lazy
            print("RAN g"); lazy.n += x; lazy.L.append(config.X); return lazy.L
        with checkpoint_scope("r"):
            for i in range(3):
                r = f(i); print(r is L is config.L, L, config.X, config.new, config.Q, m.D[i] is config)
                r = g(i); import lazy; print(r is lazy.L, r, lazy.n); point()
        #### config.py
        X = None
        L = []
        #### pkg/__init__.py
        #### pkg/mod.py
        D = {}
        #### lazy.py
        n = 0
        L = []
    """,
    "enumerations, slots, dataclasses, singletons": """
        import enum
        from dataclasses import dataclass, field
        class E(enum.Enum):
            A = [1]
            B = {"x": 1}
        class P:
            __slots__ = ("x", "y")
            def __init__(self): self.x = 0
        class One:
            _one = None
            def __new__(cls):
                if cls._one is None: cls._one = super().__new__(cls); cls._one.data = []
                return cls._one
        @dataclass
        class Cfg:
            n: int = 0
            tags: list = field(default_factory=list)
        p, c = P(), Cfg()
        @checkpointed
        def f(x):
            print("RAN", x); E.A.value.append(x); E.A.extra = x; E.B.value[x] = c.tags; p.x += x; p.y = p; c.n += 1
            c.tags.append(x); One().data.append(x); return E.A, p, c, One()
        with checkpoint_scope("r"):
            for i in range(3):
                r = f(i); print(r[0] is E.A, r[1] is p, r[2] is c, r[3] is One(), E.A.value, E.A.extra, E.B.value[i] is c.tags)
                print(p.x, p.y is p, c, One().data); point()
    """,
    "all kinds of containers": """
        from collections import *
        import array, io, weakref
        class T:
            def __init__(self, n): self.n = n
        s, dq, c, dd, od = {1, 2}, deque([1], maxlen=4), Counter("ab"), defaultdict(list), OrderedDict(a=1, b=2)
        cm, ar, ba, buf, objects = ChainMap({"a": 1}), array.array("i", [1]), bytearray(b"x"), io.StringIO(), {T(-1)}
        keep = [T(-2)]; weak = weakref.WeakValueDictionary(a=keep[0])
        @checkpointed
        def f(x):
            print("RAN", x); s.add(x * 7); dq.append(x); c.update("abc"); dd[x].append(x); dd["s"] = dd[x]
            od.move_to_end("a"); od[x] = x; cm["n"] = x; ar.append(x); ba.extend(b"z"); buf.write(f"{x};")
            t = T(x); objects.add(t); keep.append(t); weak[str(x)] = t; return t
        with checkpoint_scope("r"):
            for i in range(3):
                t = f(i); print(sorted(s), dq, c, dict(dd), dd["s"] is dd[i], list(od), cm, ar, ba, buf.getvalue(), buf.tell())
                print(t in objects, len(objects), keep[-1] is t, weak[str(i)] is t, dd[100 + i]); point()
    """,
    "graphs with cycles": """
        class Node:
            def __init__(self, v): self.v = v; self.next = []; self.prev = None
        root = tail = Node(0); root.next.append(root)
        @checkpointed
        def f(x):
            global tail
            print("RAN", x); n = Node(x); n.prev = tail; tail.next.append(n); tail = n; return n
        with checkpoint_scope("r"):
            for i in range(3): r = f(i); print(r is tail, tail.prev.next[-1] is tail, root.next[0] is root, len(root.next)); point()
    """,
    "arrays, views of one memory": """
        import numpy as np
        a = np.zeros(6); v = a[2:5]; w = a.reshape(2, 3)
        st = np.zeros(3, dtype=[("x", "i4"), ("y", "f8")]); W = np.ones(3); V = W
        @checkpointed
        def f(x, part):
            global W
            print("RAN", x); v[:] += x + 1; part += 1; w[1, 1] = x; st["x"][x] = x; W = W * 2; return v
        @checkpointed
        def grow(x):
            print("RAN grow"); V.resize(x + 4, refcheck=False); V[-1] = x
        with checkpoint_scope("r"):
            for i in range(3):
                r = f(i, a[i:i + 2]); grow(i); a[0] += 1
                print(r is v, v.base is a, a.tolist(), w.tolist(), st.tolist(), W, V); point()
    """,
    "frames": """
        import pandas as pd, polars as pl
        df = view = pd.DataFrame({"a": [1, 2, 3]}); s = pd.Series([1., 2.], name="s"); p = pl.DataFrame({"a": [1, 2]})
        @checkpointed
        def f(x):
            print("RAN", x); df[f"c{x}"] = df["a"] * x; s.iloc[0] = x; s.name = f"s{x}"
            p.insert_column(0, pl.Series(f"c{x}", [x] * 2)); return df
        @checkpointed
        def g(x):
            global df, p
            print("RAN g"); df = df.assign(a=x); p = p.with_columns(z=pl.lit(x)); return df
        with checkpoint_scope("r"):
            for i in range(2):
                r = f(i); print(r is df, view is df, df.to_dict(), s.to_dict(), s.name, p.to_dict(as_series=False))
                r = g(i); print(r is df, view is df, view.to_dict(), df.to_dict(), p.to_dict(as_series=False)); point()
    """,
    "an argument, the state and a global that are one": """
        L, G = [1], {}
        @checkpointed
        def f(x, arg):
            run = current_run()
            print("RAN", x); arg.append(x); L.append(-x); run.state["s"].append(0); run.state["t"] = G["arg"] = arg; return arg
        @checkpointed
        def total(x):
            print("RAN total"); return sum(L)
        with checkpoint_scope("r") as run:
            run.state["s"] = L
            for i in range(3):
                r = f(i, L); print(r is L, run.state["s"] is L, run.state["t"] is L, G["arg"] is L, L, total(i)); point()
    """,
    "caches": """
        import functools
        @functools.lru_cache
        def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
        memo = {}
        def slow(k):
            if k not in memo: memo[k] = k * k
            return memo[k]
        @checkpointed
        def f(x):
            print("RAN", x); return fib(x), slow(x)
        @checkpointed
        def g(x):
            print("RAN g"); return fib(x)
        with checkpoint_scope("r"):
            for i in range(3): print(f(i), g(i)); point()
        print(memo)
    """,
    "steps inside steps, and one that fails first": """
        log, n = [], 0
        @checkpointed
        def inner(x):
            global n
            print("RAN inner"); log.append(x); n += 1; return n
        @checkpointed
        def outer(x):
            print("RAN outer"); log.append("o"); a = inner(x); b = inner(x + 10); log.append(n); return a + b
        with checkpoint_scope("r"):
            for i in range(2): print(outer(i), inner(i), n, log); point()
    """,
    "coroutines": """
        import asyncio
        log, n = [], 0
        @checkpointed
        async def f(x):
            global n
            print("RAN", x); log.append(x); await asyncio.sleep(0); n += 1; return log
        async def main():
            for i in range(3): print(await f(i) is log, log, n); point()
        with checkpoint_scope("r"):
            asyncio.run(main())
    """,
    "counters of numbers": """
        import itertools
        ids, odd, half, still = itertools.count(), itertools.count(5, 2), itertools.count(0.5, -0.25), itertools.count(7, 0)
        @checkpointed
        def f(x):
            print("RAN", x); return [(next(ids), next(odd), next(half), next(still)) for _ in range(x)]
        with checkpoint_scope("r"):
            for i in range(3): print(f(i), next(ids)); point()
        print(ids, odd, half, still)
    """,
    "recursion": """
        depth = []
        @checkpointed
        def f(n):
            print("RAN", n); depth.append(n); return 0 if n == 0 else 1 + f(n - 1)
        with checkpoint_scope("r"):
            print(f(3), depth); point(); print(f(4), depth); point()
    """,
}


def write(script: Script, source: str) -> None:
    first, *files = re.split(r"^#### (\S+)\n", textwrap.dedent(source), flags=re.M)
    script.write(HEAD + first)
    for name, text in zip(files[::2], files[1::2]):
        script.write(text, name)


def told(lines: list[str]) -> tuple[list[str], list[str]]:
    """What ran, and all else that was printed."""
    ran = [line for line in lines if line.startswith("RAN")]
    return ran, [line for line in lines if not line.startswith(("RAN", "POINT"))]


@pytest.mark.parametrize("case", CASES)
def test_a_script_ends_as_it_does_without_us(script: Script, case: str) -> None:
    write(script, CASES[case])
    script.write(PLAIN, "plain/oncemore.py")
    code = "import sys, runpy; sys.path[:0] = ['plain', '.']; runpy.run_path('script.py', run_name='__main__')"
    plain = script(options=("-c", code))
    points, (ran, expected) = plain.lines.count("POINT"), told(plain.lines)
    whole, again = script(name="script.py"), script(name="script.py")
    assert told(whole.lines) == (ran, expected)
    assert told(again.lines) == ([], expected)
    assert "CheckpointWarning" not in whole.err + again.err
    for number in (1, points):
        folder = script.folder / "oncemore-store"
        env = {"ONCEMORE_STORE": str(folder / str(number))}
        killed = script(name="script.py", env={**env, "KILL": str(number)}, expect=-9)
        resumed = script(name="script.py", env=env)
        assert told(resumed.lines)[1] == expected
        assert sorted(told(killed.lines)[0] + told(resumed.lines)[0]) == sorted(ran)


def test_a_step_that_failed_is_tried_again_with_the_globals_as_they_are(script: Script) -> None:
    source = HEAD + textwrap.dedent("""
        tries, n = [], 0
        @checkpointed
        def f(x):
            global n
            tries.append(x); n += 1
            if n < 3: raise ValueError(n)
            return n
        with checkpoint_scope("r"):
            for _ in range(4):
                try: print(f(1), tries, n); break
                except ValueError as error: print("error", error, tries, n)
    """)
    expected = ["error 1 [1] 1", "error 2 [1, 1] 2", "3 [1, 1, 1] 3"]
    assert script(source).lines == script(name="script.py").lines == expected


@pytest.mark.parametrize(
    "made",
    [
        "itertools.count(Fraction(1, 2))",
        "itertools.cycle(x for x in 'abc')",
        "itertools.pairwise('abcd')",
        "itertools.cycle('abc')",
        "zip([1, 2, 3, 4], 'abcd')",
        "enumerate('abcd')",
        "iter([1, 2, 3, 4])",
        "iter({1, 2, 3})",
        "(x for x in range(9))",
        "Queue()",
    ],
)
def test_what_is_used_up_unseen_is_told_and_never_skipped(script: Script, made: str) -> None:
    take = "ITEMS.get_nowait()" if made == "Queue()" else "next(ITEMS)"
    source = HEAD + textwrap.dedent(f"""
        import itertools
        from fractions import Fraction
        from queue import Queue
        ITEMS = {made}
        if hasattr(ITEMS, "put"): [ITEMS.put(x) for x in range(5)]
        @checkpointed
        def f(x):
            return {take}
        with checkpoint_scope("r"):
            print([f(0), f(0), f(1)])
    """)
    first, second = script(source), script(name="script.py")
    assert first.lines == second.lines
    assert "CheckpointWarning: step f: global `script.ITEMS`" in second.err
    assert "run r: 1 step could not be saved: f (" in second.err


def test_a_changed_global_runs_the_steps_that_read_it_and_says_so(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed
        LIMITS = {"low": 1}
        @checkpointed
        def reads(x): return LIMITS["low"] + x
        @checkpointed
        def other(x): return x
        with checkpoint_scope("r") as run:
            reads(1), other(1)
            print(dict(run.ran), [event.reason for event in run.events() if getattr(event, "reason", "")][-1])
    """
    script(source)
    edited = script(source.replace('"low": 1', '"low": 2')).lines
    assert edited == ["{'reads': 1} global `script.LIMITS`: {'low': 1} -> {'low': 2}"]
