"""Pipelines described as data, interpreted by a real script in processes that are killed. See test_pipelines.py.

Run as a program, this is a warm process: it has imported everything, and for each request on its standard input it forks a
child that runs one pipeline as a script would, from its beginning, and dies where the request says.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from oncemore import checkpoint_scope, checkpointed, current_run
from oncemore.events import StepCompleted

Json = Any

WITH_FILES = "outputs" in inspect.signature(checkpointed).parameters
OBJECTS = ("list", "dict", "set", "bytearray", "deque", "array", "thing", "nested", "random", "generator")
VARIABLES = ("PIPELINE_A", "PIPELINE_B")


class Thing:
    def __init__(self) -> None:
        self.n, self.items = 0, [0]


class Transient(Exception):
    """Happens in some attempts only."""


class Hopeless(Exception):
    """Happens in every attempt; the script lives with it."""


class Attempt:
    """One process that runs the pipeline: what is outside of it, for its steps to ask and to tell."""

    def __init__(self, folder: str, fails: bool) -> None:
        self.folder, self.fails = Path(folder), fails
        self.files = self.folder / "files"

    def log(self, what: str, number: int) -> None:
        """The step of that number has begun, or its caller has got its result."""
        with open(self.folder / "log", "a") as file:
            file.write(f"{what} {number}\n")

    def may_fail(self, number: int, times: int) -> None:
        """Fail in the first so many attempts. State is rolled back then, so that is what may have been changed before."""
        if self.fails and times:
            counter = self.folder / f"failed-{number}"
            with open(counter, "a") as file:
                file.write("x")
            if counter.stat().st_size <= times:
                state = _state()
                state["spoiled"] = number
                for key in list(state):
                    if isinstance(state[key], list):
                        state[key].append("spoiled")
                raise Transient(number)


attempt: Attempt


def _state() -> Any:
    run = current_run()
    assert run is not None
    return run.state


# -- what a step can do


def make(kind: str) -> Any:
    makers: dict[str, Callable[[], Any]] = {
        "list": lambda: [1, 2],
        "dict": lambda: {"a": 1},
        "set": lambda: {1},
        "bytearray": lambda: bytearray(b"ab"),
        "deque": lambda: deque([1, 2], maxlen=5),
        "array": lambda: np.zeros(4),
        "thing": Thing,
        "nested": lambda: {"rows": [[1], []], "array": np.arange(3), "thing": Thing(), "tuple": ([],)},
        "random": lambda: random.Random(1),
        "generator": lambda: np.random.default_rng(1),
    }
    return makers[kind]()


def change(obj: Any, value: int) -> Any:
    """Change an object in place, in a way of its type."""
    if isinstance(obj, dict) and "rows" in obj:
        obj["rows"][value % 2].append(value)
        obj["tuple"][0].append(obj["rows"][0])
        return change(obj["array"] if value % 2 else obj["thing"], value)
    if isinstance(obj, list):
        obj.append(value)
        return obj.pop(0) if len(obj) > 4 else None
    if isinstance(obj, dict):
        obj.pop("a", None)
        return obj.update({f"k{value % 3}": [value]})
    if isinstance(obj, set):
        return obj.add(value % 7) if value % 3 else obj.clear()
    if isinstance(obj, bytearray):
        return obj.append(value % 256)
    if isinstance(obj, deque):
        obj.rotate(1)
        return obj.append(value)
    if isinstance(obj, np.ndarray):
        obj[value % len(obj)] += value
        return None
    if isinstance(obj, Thing):
        obj.n += value
        obj.items.append(value)
        return setattr(obj, f"new{value % 2}", [value])
    return float(obj.random())


def share(into: Any, what: Any) -> None:
    if isinstance(into, (list, deque)):
        into.append(what)
    elif isinstance(into, dict):
        into["shared"] = what
    elif isinstance(into, Thing):
        into.items = what if isinstance(what, list) else [what]


def do(op: list[Json], objects: list[Any], out: list[Any]) -> None:
    """One operation: its name, then what it is given."""
    name, *given = op
    OPERATIONS[name](objects, out, *given)


def _one(objects: list[Any], index: int) -> Any:
    return objects[index % len(objects)] if objects else []


def _add(key: str) -> None:
    state = _state()
    value = state.get(key)
    if isinstance(value, list):
        value.append(len(value))
    elif isinstance(value, int):
        state[key] += 1
    elif value is None:
        state[key] = [0]
    else:
        change(value, 1)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value + os.environ.get(VARIABLES[0], "")


def _go_to(name: str) -> None:
    folder = attempt.folder / "work" / name
    folder.mkdir(exist_ok=True, parents=True)
    os.chdir(folder)


def _write(name: str, text: str, out: list[Any]) -> None:
    path = attempt.files / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text} {random.random() if text == 'drawn' else ''}")


OPERATIONS: dict[str, Callable[..., Any]] = {
    "random": lambda objects, out: out.append(random.random()),
    "gauss": lambda objects, out: out.append(random.gauss(0, 1)),
    "numpy": lambda objects, out: out.append(float(np.random.random())),
    "normal": lambda objects, out: out.append(float(np.random.standard_normal())),
    "change": lambda objects, out, i, value: out.append(change(_one(objects, i), value)),
    "change by chance": lambda objects, out, i: change(_one(objects, i), random.randrange(100)),
    "share": lambda objects, out, i, k: share(_one(objects, i), _one(objects, k)),
    "return": lambda objects, out, i: out.append(_one(objects, i)),
    "set": lambda objects, out, key, value: _state().__setitem__(key, value),
    "add": lambda objects, out, key: _add(key),
    "delete": lambda objects, out, key: _state().pop(key, None),
    "read": lambda objects, out, key: out.append(repr(described(_state().get(key), {}))),
    "take": lambda objects, out, key: out.append(_state().get(key)),
    "hold": lambda objects, out, key, i: _state().__setitem__(key, _one(objects, i)),
    "keys": lambda objects, out: out.append(list(_state())),
    "variable": lambda objects, out, name, value: _set_variable(name, value),
    "folder": lambda objects, out, name: _go_to(name),
    "write": lambda objects, out, name, text: _write(name, text, out),
    "remove": lambda objects, out, name: (attempt.files / name).unlink(missing_ok=True),
    "call": lambda objects, out, step: out.append(call(step, objects)),
}


# -- steps, of each kind


def body(number: int, ops: list[Json], fate: Json, objects: list[Any]) -> list[Any]:
    attempt.may_fail(number, fate.get("transient", 0))
    attempt.log("began", number)
    out: list[Any] = [number]
    for op in ops:
        do(op, objects, out)
    if fate.get("hopeless"):
        raise Hopeless(number)
    return out


@checkpointed(code="version", version="1")
def function(number: int, ops: list[Json], fate: Json, *objects: Any) -> list[Any]:
    return body(number, ops, fate, list(objects))


@checkpointed(code="version", version="1")
async def coroutine(number: int, ops: list[Json], fate: Json, *objects: Any) -> list[Any]:
    await asyncio.sleep(0)
    return body(number, ops, fate, list(objects))


@checkpointed(code="version", version="1")
def generator(number: int, ops: list[Json], fate: Json, *objects: Any) -> Iterator[Any]:
    attempt.may_fail(number, fate.get("transient", 0))
    attempt.log("began", number)
    for op in ops:
        out: list[Any] = []
        do(op, list(objects), out)
        yield out
    if fate.get("hopeless"):
        raise Hopeless(number)


class Worker:
    def __init__(self) -> None:
        self.done: list[int] = []

    @checkpointed(code="version", version="1")
    def method(self, number: int, ops: list[Json], fate: Json, *objects: Any) -> list[Any]:
        out = body(number, ops, fate, list(objects))
        self.done.append(number)
        return out


def _with_outputs() -> Any:
    options: dict[str, Any] = {"outputs": ["{files}/**"]} if WITH_FILES else {}

    @checkpointed(code="version", version="1", name="filing", **options)
    def filing(files: str, number: int, ops: list[Json], fate: Json, *objects: Any) -> list[Any]:
        Path(files, "always.txt").write_text(str(number))  # a pattern that nothing matches is an error
        return body(number, ops, fate, list(objects))

    return filing


filing = _with_outputs()
worker = Worker()


def call(step: Json, objects: list[Any]) -> Any:
    """Call a step with the objects that it uses; whatever always fails is lived with."""
    given = [objects[i % len(objects)] for i in step["uses"]] if objects else []
    try:
        result = _call(step["kind"], (step["number"], step["ops"], step["fate"], *given))
    except Hopeless as error:
        return str(error)
    attempt.log("ended", step["number"])
    return result


def _call(kind: str, arguments: tuple[Any, ...]) -> Any:
    if kind == "coroutine":
        return asyncio.run(coroutine(*arguments))
    if kind == "generator":
        return [(item, random.random()) for item in generator(*arguments)]
    if kind == "method":
        return worker.method(*arguments)
    return filing(str(attempt.files), *arguments) if kind == "filing" else function(*arguments)


def run(pipeline: Json, store: str, begun: Callable[[], None]) -> Json:
    """The script."""
    random.seed(pipeline["seed"])
    np.random.seed(pipeline["seed"])
    objects = [make(kind) for kind in pipeline["objects"]]
    results: list[Any] = []
    with checkpoint_scope("pipeline", store=store, state={"n": 0, "rows": []}) as scope:
        begun()
        for part in pipeline["script"]:
            if "number" not in part:
                do(part["op"], objects, results)
                continue
            while True:
                try:
                    results.append(call(part, objects))
                    break
                except Transient:
                    if not part["fate"]["caught"]:
                        raise
        end = ending(results, objects, dict(scope.state))
        return {"end": end, "completed": [event.entry for event in scope.events() if isinstance(event, StepCompleted)]}


# -- how it ended


def described(obj: Any, known: dict[int, int]) -> Json:
    """An object as data that is equal for equal content and equal sharing."""
    if obj is None or isinstance(obj, (bool, int, str)):
        return obj
    if isinstance(obj, float):
        return obj.hex()
    if isinstance(obj, tuple):
        return ["tuple", *(described(child, known) for child in obj)]
    if id(obj) in known:
        return f"object {known[id(obj)]}"
    known[id(obj)] = len(known)
    content: Any
    if isinstance(obj, (list, deque)):
        content = [described(child, known) for child in obj]
    elif isinstance(obj, dict):
        content = [[key, described(value, known)] for key, value in obj.items()]
    elif isinstance(obj, np.ndarray):
        content = [str(obj.dtype), obj.tolist()]
    elif isinstance(obj, (Thing, Worker)):
        content = [[key, described(value, known)] for key, value in sorted(vars(obj).items())]
    elif isinstance(obj, random.Random):
        content = blake3(repr(obj.getstate()).encode()).hexdigest()
    elif isinstance(obj, np.random.Generator):
        content = repr(obj.bit_generator.state)
    else:
        content = repr(sorted(obj))
    return [type(obj).__name__, known[id(obj)], content]


def ending(results: list[Any], objects: list[Any], state: dict[str, Any]) -> Json:
    numpys = np.random.get_state()
    files = [path for path in sorted(attempt.files.rglob("*")) if path.is_file()] if WITH_FILES else []
    return {
        "objects": described([results, objects, state, worker], {}),
        "random": blake3(repr(random.getstate()).encode()).hexdigest(),
        "numpy": blake3(repr([numpys[0], numpys[1].tolist(), *numpys[2:]]).encode()).hexdigest(),
        "environment": [os.environ.get(name) for name in VARIABLES],
        "folder": os.path.relpath(os.getcwd(), attempt.folder),
        "files": [[str(path.relative_to(attempt.files)), path.read_text()] for path in files],
    }


# -- the warm process


class Countdown:
    """Kills this process at its n-th call or return of any function, Python's or C's; else counts them."""

    def __init__(self, deadly: int | None) -> None:
        self.events, self._deadly = 0, deadly

    def begin(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: Any, event: str, arg: Any) -> None:
        self.events += 1
        if self.events == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)


def child(request: Json) -> None:
    global attempt
    folder = request["folder"]
    attempt = Attempt(folder, request["fails"])
    if request.get("lose files"):
        shutil.rmtree(attempt.files, ignore_errors=True)
    attempt.files.mkdir(exist_ok=True)
    (attempt.folder / "work").mkdir(exist_ok=True)
    os.chdir(attempt.folder / "work")
    countdown = Countdown(request.get("event"))
    if request.get("opening"):
        countdown.begin()
    done = run(request["pipeline"], os.path.join(folder, "store"), countdown.begin)
    sys.setprofile(None)
    done["events"] = countdown.events
    (attempt.folder / "ended.tmp").write_text(json.dumps(done))
    os.rename(attempt.folder / "ended.tmp", attempt.folder / "ended")


def serve(request: Json) -> Json:
    """Fork a child for one request and say how it ended."""
    pid = os.fork()
    if pid == 0:
        try:
            child(request)
            os._exit(0)
        except Transient:
            os._exit(1)
        except BaseException:
            Path(request["folder"], "traceback").write_text(traceback.format_exc())
            os._exit(2)
    if "seconds" in request:
        time.sleep(request["seconds"])
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "pid": pid}


def main() -> None:
    """The identity of code is found out once, here: what is slow in each child would be the slowness of a first call."""
    with checkpoint_scope("warm", store="memory://warm"):
        worker.method.fingerprint(0, [], {}, Thing())
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
