"""A run that was killed anywhere, and resumed until done, ends like one that was not.

Hypothesis makes up pipelines: steps of all kinds that draw random numbers, change their arguments in place, read and write
state, write and delete files, set the environment, call other steps, and fail now and then. Each runs once from beginning to
end, and once more with SIGKILL at random places followed by new processes until it is done. Results, arguments with their
sharing, state, generators, files, environment and working directory have to be the same, and each completed step has to have
run once. `pytest --campaign 5000` tries so many of them.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from tests.processes import SRC
from tests.properties import pipelines

Json = Any
SEED = os.environ.get("ONCEMORE_TEST_SEED")  # read now: tests see none of these variables

KEYS = st.sampled_from(["n", "rows", "a", "b"])
INDEX = st.integers(0, 4)
SMALL = st.integers(0, 9)
FILES = st.sampled_from(["one.txt", "two.txt", "deep/three.txt"])

OPERATIONS: dict[str, list[st.SearchStrategy[Any]]] = {
    "random": [],
    "gauss": [],
    "numpy": [],
    "normal": [],
    "change": [INDEX, SMALL],
    "change by chance": [INDEX],
    "share": [INDEX, INDEX],
    "return": [INDEX],
    "set": [KEYS, st.one_of(SMALL, st.lists(SMALL, max_size=2), st.just({"deep": [[1]]}))],
    "add": [KEYS],
    "delete": [KEYS],
    "read": [KEYS],
    "take": [KEYS],
    "hold": [KEYS, INDEX],
    "keys": [],
    "variable": [st.sampled_from(pipelines.VARIABLES), st.sampled_from([None, "x", "y"])],
    "folder": [st.sampled_from(["here", "there"])],
}
FILING = {"write": [FILES, st.sampled_from(["some", "other", "drawn"])], "remove": [FILES]}


def operation(names: dict[str, list[st.SearchStrategy[Any]]]) -> st.SearchStrategy[list[Any]]:
    return st.one_of([st.tuples(st.just(name), *given).map(list) for name, given in names.items()])


OPS = operation(OPERATIONS)


@st.composite
def steps(draw: st.DrawFn, depth: int = 2) -> Json:
    """One step: its kind, the objects that it is given, what it does with them, and whether it fails."""
    # the worker whose method it is is a global, which no step but its own is known to change
    kinds = ["function", "function", "coroutine", "generator", "filing", *(["method"] if depth == 2 else [])]
    kind = draw(st.sampled_from(kinds))
    choices = [OPS]
    if kind == "filing" and pipelines.WITH_FILES:
        choices.append(operation(FILING))
    if depth > 1 and kind != "coroutine":  # no event loop inside another
        choices.append(st.tuples(st.just("call"), steps(depth=depth - 1)).map(list))
    # a failed step's files are not kept: when the step around it is skipped, they are only there if nobody took them away
    fate: Json = {"hopeless": draw(st.integers(0, 7)) == 0 and (depth == 2 or kind != "filing")}
    if depth == 2 and not fate["hopeless"]:
        fate.update(transient=draw(st.sampled_from([0, 0, 0, 1, 2])), caught=draw(st.booleans()))
    uses = draw(st.lists(INDEX, max_size=3))
    return {"kind": kind, "uses": uses, "ops": draw(st.lists(st.one_of(choices), min_size=2, max_size=6)), "fate": fate}


@st.composite
def described_pipelines(draw: st.DrawFn) -> Json:
    between = st.lists(OPS.map(lambda op: {"op": op}), max_size=2)
    turns = draw(st.lists(st.tuples(between, steps()), min_size=3, max_size=6))
    script = [part for before, step in turns for part in (*before, step)]
    number(script, iter(range(1000)))
    objects = draw(st.lists(st.sampled_from(pipelines.OBJECTS), min_size=1, max_size=5))
    return {"seed": draw(SMALL), "objects": objects, "script": script}


def number(parts: list[Json], numbers: Iterator[int]) -> None:
    """Each step gets a number of its own, so that no two calls are one node."""
    for part in parts:
        if "ops" in part:
            part["number"] = next(numbers)
            number([op[1] for op in part["ops"] if op[0] == "call"], numbers)


# When to kill a process: at which of its calls and returns, or after how long. And whether all files are gone by then.
PLACE = st.fixed_dictionaries({"place": st.floats(0, 1), "lose files": st.booleans()})
KILLS = st.lists(
    st.one_of(
        PLACE,
        PLACE,
        PLACE.map(lambda kill: {**kill, "opening": True}),
        st.floats(0.001, 0.1).map(lambda seconds: {"seconds": seconds}),
    ),
    min_size=1,
    max_size=4,
)


BATCH = 13
OPENING = 20_000  # about so many calls and returns happen before the scope of a new run is open


class Warm:
    """The warm process of pipelines.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, pipelines.__file__],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, **request: Json) -> Json:
        """One child of it: how it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        done = json.loads(self._process.stdout.readline())
        told = Path(request["folder"], "traceback")
        assert not told.exists(), told.read_text()
        return done

    def close(self) -> None:
        self._process.communicate(timeout=30)


@pytest.fixture
def warm() -> Iterator[Warm]:
    process = Warm()
    yield process
    process.close()


def undisturbed(warm: Warm, pipeline: Json, folder: Path) -> Json:
    """The pipeline from beginning to end in one process, without failures that come and go."""
    folder.mkdir()
    assert warm.run(pipeline=pipeline, folder=str(folder), fails=False)["code"] == 0
    return ended(folder)


def ended(folder: Path) -> Json:
    told = folder / "ended"
    found = json.loads(told.read_text()) if told.exists() else None
    told.unlink(missing_ok=True)
    return found


def disturbed(warm: Warm, pipeline: Json, folder: Path, kills: list[Json], events: int) -> Json:
    """The pipeline with those failures, killed so often, in as many processes as it takes."""
    folder.mkdir(exist_ok=True)
    for kill in [*kills, *[{}] * 40]:
        if "place" in kill:
            kill = {**kill, "event": 1 + int(kill["place"] * (OPENING if "opening" in kill else events))}
        done = warm.run(pipeline=pipeline, folder=str(folder), fails=True, **kill)
        if (found := ended(folder)) is not None:
            return found
        assert done["code"] in (1, -9)
    raise AssertionError("it never came to its end")


def check_that_each_ran_once(folder: Path, found: Json) -> None:
    """No step begins again after its caller got its result, and no node is completed twice."""
    done: set[str] = set()
    for line in (folder / "log").read_text().splitlines() if (folder / "log").exists() else ():
        what, step = line.split()
        if what == "ended":
            done.add(step)
        assert what == "ended" or step not in done, f"step {step} ran again after it had been completed"
    assert len(set(found["completed"])) == len(found["completed"]), "a node was completed twice"
    assert len(found["completed"]) == len(done), "a step was completed as two nodes, or as none"


def check_that_it_ends_alike(warm: Warm, folder: Path, pipeline: Json, kills: list[Json]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    whole = undisturbed(warm, pipeline, folder / "whole")
    check_that_each_ran_once(folder / "whole", whole)
    pieces = disturbed(warm, pipeline, folder / "pieces", kills, whole["events"])
    assert pieces["end"] == whole["end"]
    check_that_each_ran_once(folder / "pieces", pieces)
    skipped = disturbed(warm, pipeline, folder / "pieces", [{"lose files": True}], 0)
    assert skipped["end"] == whole["end"], "with all steps skipped"
    assert skipped["completed"] == pieces["completed"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In batches, so that workers share the work and none takes longer than a test may."""
    if "batch" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--campaign")
        pipelines_asked = asked or (150 if os.environ.get("ONCEMORE_TEST_CAMPAIGN") == "full" else 25)
        metafunc.parametrize("batch", range(-(-pipelines_asked // BATCH)))


@pytest.mark.slow
def test_a_run_killed_anywhere_ends_like_one_that_was_not(warm: Warm, tmp_path: Path, batch: int) -> None:
    first = SEED or ("0" if os.environ.get("CI") else secrets.randbits(32))

    @seed(int(first) + batch)
    @settings(max_examples=BATCH, derandomize=False, phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(described_pipelines(), KILLS)
    def check(pipeline: Json, kills: list[Json]) -> None:
        check_that_it_ends_alike(warm, tmp_path / "pipeline", pipeline, kills)

    check()
