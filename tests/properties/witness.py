"""What a made-up script asks and tells the harness: which step bodies run, where to die, how it ended. See scripts.py.

The harness copies this file into a folder named `site-packages`: for oncemore it is a library, so its own globals and files
are neither read nor changed by a step.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import json
import os
import pickle
import random
import signal
import sys
from collections import Counter, defaultdict, deque
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

_LOG = os.open("witness.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_DEADLY = int(os.environ.get("WITNESS_KILL", "0"))
_FOREIGN = {"checkpointed", "checkpoint_scope"}
_ticks = 0


# -- the plain form of a script


def checkpointed(function: Any = None, **options: Any) -> Any:
    return function if function is not None else lambda function: function


class _Run:
    def loop(self, name: str, items: Any) -> Any:
        return items


def checkpoint_scope(*args: Any, **options: Any) -> Any:
    return contextlib.nullcontext(_Run())


# -- what happens


def tick() -> None:
    """A point at which the process may be killed."""
    global _ticks
    _ticks += 1
    if _ticks == _DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)


def _tell(*words: str) -> None:
    os.write(_LOG, (" ".join(words) + "\n").encode())


def began(step: str) -> None:
    """The body of a step has begun."""
    _tell("began", step)
    tick()


def calling(label: str) -> None:
    _tell("calling", label)


def returned(label: str) -> None:
    _tell("returned", label)
    tick()


def opening(space: dict[str, Any], unseeded: list[str]) -> None:
    """The scope is about to open. The plain script gets the unseeded generators that the first attempt opened with."""
    path = Path(os.environ["WITNESS_OPENING"])
    states = {name: _get(space, name) for name in unseeded}  # in every attempt: it loads `numpy.random`
    if path.exists() and os.environ.get("WITNESS_REPLAY"):
        for name, state in pickle.loads(path.read_bytes()).items():
            _set(space, name, state)
    elif not path.exists():
        temporary = path.with_suffix(".new")
        temporary.write_bytes(pickle.dumps(states))
        temporary.rename(path)


def _get(space: dict[str, Any], name: str) -> Any:
    if name == "random":
        return random.getstate()
    if name == "numpy":
        return sys.modules["numpy"].random.get_state()
    generator = space[name]
    return generator.getstate() if isinstance(generator, random.Random) else generator.bit_generator.state


def _set(space: dict[str, Any], name: str, state: Any) -> None:
    if name == "random":
        random.setstate(state)
    elif name == "numpy":
        sys.modules["numpy"].random.set_state(state)
    elif isinstance(space[name], random.Random):
        space[name].setstate(state)
    else:
        space[name].bit_generator.state = state


# -- how it ended


def report(space: dict[str, Any], drawn: list[str]) -> None:
    """Write how the script ended: its globals with their sharing, the generators, its files."""
    describe = Describer()
    end = {
        "globals": {name: describe(value) for name, value in sorted(_data(space).items())},
        "modules": {
            name: {key: describe(value) for key, value in sorted(_data(vars(module)).items())}
            for name, module in sorted(sys.modules.items())
            if _is_project(module)
        },
        "random": repr(random.getstate()) if "random" in drawn else None,
        "numpy": repr(sys.modules["numpy"].random.get_state()) if "np.random" in drawn else None,
        "files": {path.name: path.read_text() for path in sorted(Path().glob("*.txt"))},
    }
    Path("report.new").write_text(json.dumps(end, indent=1))
    os.rename("report.new", "report.json")


def _is_project(module: Any) -> bool:
    path = getattr(module, "__file__", None)
    return path is not None and os.path.dirname(os.path.abspath(path)) == os.getcwd() and module.__name__ != "__main__"


def _data(space: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in space.items()
        if not name.startswith("__") and name not in _FOREIGN and not isinstance(value, ModuleType)
    }


class Describer:
    """An object as data that is equal for equal content and equal sharing, of array memory too."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self.alive: list[Any] = []

    def __call__(self, obj: Any) -> Any:
        if obj is None or (isinstance(obj, (bool, int, str)) and not isinstance(obj, enum.Enum)):
            return obj
        if isinstance(obj, (float, complex, bytes, range, enum.Enum)):
            return f"{type(obj).__name__} {obj!r}"
        if isinstance(obj, tuple):
            return ["tuple", *(self(child) for child in obj)]
        if id(obj) in self.known:
            return f"object {self.known[id(obj)]}"
        self.known[id(obj)] = len(self.known)
        self.alive.append(obj)
        kind = "function" if isinstance(getattr(obj, "__wrapped__", None), FunctionType) else type(obj).__name__
        return [kind, self.known[id(obj)], self.content(obj)]

    def content(self, obj: Any) -> Any:
        numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
        if isinstance(obj, (list, deque)):
            return [self(child) for child in obj]
        if isinstance(obj, (set, frozenset)):
            return sorted(map(repr, obj))
        if isinstance(obj, (dict, Counter, defaultdict)):
            return [[self(key), self(value)] for key, value in obj.items()]
        if isinstance(obj, bytearray):
            return obj.hex()
        if isinstance(obj, random.Random):
            return repr(obj.getstate())
        if numpy is not None and isinstance(obj, numpy.ndarray):
            memory = obj
            while isinstance(memory.base, numpy.ndarray):
                memory = memory.base
            self.alive.append(memory)
            owner = self.known.setdefault(-id(memory), len(self.known))
            return [str(obj.dtype), obj.tolist(), f"memory {owner}"]
        if numpy is not None and isinstance(obj, numpy.generic):
            return repr(obj)
        if numpy is not None and isinstance(obj, numpy.random.Generator):
            return [repr(obj.bit_generator.state), obj.bit_generator.seed_seq.n_children_spawned]
        if pandas is not None and isinstance(obj, pandas.DataFrame):
            return [repr(obj.dtypes.to_dict()), obj.to_csv()]
        return self.code(obj)

    def code(self, obj: Any) -> Any:
        """What a function, a class or an instance of one holds as data."""
        if isinstance(obj, MethodType):
            return [self(obj.__self__), obj.__name__]
        if isinstance(obj, functools.partial):
            return [self(obj.func), self(obj.args), self(obj.keywords)]
        if isinstance(obj, type):
            if obj.__module__ != "__main__" and not _is_project(sys.modules.get(obj.__module__)):
                return obj.__qualname__
            return [[k, self(v)] for k, v in sorted(_attributes(obj).items())]
        function = inspect.unwrap(obj) if callable(obj) else obj
        if isinstance(function, FunctionType):
            cells = [self(_held(cell)) for cell in function.__closure__ or ()]
            # what wrapping leaves on a function is not the script's
            held = {k: v for k, v in vars(function).items() if k != "__wrapped__"}
            return [
                function.__qualname__,
                self(function.__defaults__ or ()),
                cells,
                [[k, self(v)] for k, v in held.items()],
            ]
        if type(obj).__module__ in ("__main__", "helpers"):
            caches = {
                k
                for kind in type(obj).__mro__
                for k, v in vars(kind).items()
                if isinstance(v, functools.cached_property)
            }
            return [[k, self(v)] for k, v in sorted(vars(obj).items()) if k not in caches]
        return type(obj).__qualname__


def _attributes(kind: type) -> dict[str, Any]:
    """A class's attributes that are data."""
    code = (FunctionType, classmethod, staticmethod, property, functools.cached_property)
    return {
        k: v for k, v in vars(kind).items() if not k.startswith("_") and not isinstance(v, code) and not callable(v)
    }


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


# -- how a script that we did not write ended


def outline(space: dict[str, Any]) -> None:
    """Write the values of its globals, as far as they are data, the global generators, and how many figures are open."""
    values = {name: _outlined(value, 6, []) for name, value in _data(space).items() if name != "witness"}
    values["random"] = repr(random.getstate())
    if "numpy" in sys.modules:
        values["numpy.random"] = repr(sys.modules["numpy"].random.get_state())
    if "matplotlib.pyplot" in sys.modules:
        values["figures"] = [_drawn(number) for number in sys.modules["matplotlib.pyplot"].get_fignums()]
    Path("outline.json").write_text(json.dumps({"values": values, "ticks": _ticks}))


def _drawn(number: int) -> list[Any]:
    axes = sys.modules["matplotlib.pyplot"].figure(number).axes
    return [number, [[len(each.lines), len(each.collections), len(each.patches), each.get_title()] for each in axes]]


def _outlined(obj: Any, depth: int, above: list[int]) -> str:
    """A text that is equal for equal content; what is no data counts by its type."""
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    kind = type(obj).__qualname__
    if obj is None or isinstance(obj, (bool, int, float, complex, str, bytes, range, enum.Enum)):
        return repr(obj)
    if kind.startswith(("Figure", "Axes")) or depth == 0 or id(obj) in above or isinstance(obj, ModuleType):
        return kind
    inside = [*above, id(obj)]
    if numpy is not None and isinstance(obj, (numpy.ndarray, numpy.generic)):
        if obj.dtype == object:
            return f"{kind} {[_outlined(each, depth - 1, inside) for each in obj.ravel().tolist()]}"
        return f"{kind} {obj.dtype} {obj.shape} {obj.tobytes().hex()}"
    if pandas is not None and isinstance(obj, (pandas.DataFrame, pandas.Series)):
        return f"{kind} {obj.to_csv()}"
    if isinstance(obj, random.Random):
        return repr(obj.getstate())
    if numpy is not None and isinstance(obj, numpy.random.RandomState):
        return repr(obj.get_state())
    if numpy is not None and isinstance(obj, numpy.random.Generator):
        return repr(obj.bit_generator.state)
    if isinstance(obj, dict):
        return f"{kind} {[(_outlined(k, depth - 1, inside), _outlined(v, depth - 1, inside)) for k, v in obj.items()]}"
    if isinstance(obj, (set, frozenset)):
        return f"{kind} {sorted(_outlined(each, depth - 1, inside) for each in obj)}"
    if isinstance(obj, (list, tuple, deque)):
        return f"{kind} {[_outlined(each, depth - 1, inside) for each in obj]}"
    if callable(obj) and not hasattr(type(obj), "fit"):
        return "function" if isinstance(getattr(obj, "__wrapped__", None), FunctionType) else kind
    if type(obj).__module__.split(".")[0] == "matplotlib":
        return kind
    held = getattr(obj, "__dict__", {})
    return f"{kind} {[(name, _outlined(held[name], depth - 1, inside)) for name in sorted(held)]}"
