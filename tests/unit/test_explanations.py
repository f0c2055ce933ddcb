"""Why a step runs again: what changed is named, shown shortly, and never a secret."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from oncemore import Explanation, History, UsageError, checkpoint_scope, checkpointed, current_run, events
from tests.processes import Script


def explained(before: Any, after: Any, **options: Any) -> Explanation:
    """Run a step with one argument, then ask about the other in a later scope."""

    @checkpointed(**options)
    def step(value: Any, other: int = 0) -> None: ...

    with checkpoint_scope("explained", store="store"):
        step(before)
    with checkpoint_scope("explained", store="store"):
        said = step.explain(after)
        step(after)
    ran = [e for e in History("store").run("explained").events() if isinstance(e, events.StepCompleted)]
    if len(ran) > 1:
        assert ran[-1].reason == said.reason
        assert str(History("store").run("explained").why("explained.<locals>.step")) == str(said)
    return said


@dataclass
class Config:
    rate: float
    api_key: str = "k"


FRAME = pd.DataFrame({"name": ["a", "b", "c"] * 1000, "age": range(3000)})


def older(frame: Any) -> Any:
    frame = frame.copy()
    frame.loc[frame.index[:12], "age"] += 100_000
    return frame


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("a", "b", "argument `value`: 'a' -> 'b'"),
        (1, True, "argument `value`: 1 -> True"),
        (None, [1, 2], "argument `value`: None -> [1, 2]"),
        ({"x": 1}, {"x": 2}, "argument `value`: ['x']: 1 -> 2"),
        (
            {"x": 1, "y": list(range(9)), "z": 1},
            {"x": 1, "y": [0], "w": 1},
            "argument `value`: ['y']: <list of 9> -> [0], ['z'] is gone, ['w'] is new",
        ),
        (Config(0.1), Config(0.2), "argument `value`: .rate: 0.1 -> 0.2"),
        (np.zeros((2, 3)), np.ones((2, 3)), "argument `value`: <ndarray 2x3 float64> changed"),
        (np.zeros(3), np.zeros(4), "argument `value`: <ndarray 3 float64> -> <ndarray 4 float64>"),
        (FRAME, older(FRAME), "argument `value`: column `age` changed, about 12 of 3,000 rows differ"),
        (
            FRAME,
            FRAME[:10].assign(more=1),
            "argument `value`: column `name` changed, column `age` changed, column `more` is new "  # noqa: ISC004
            "(<DataFrame 3,000x2> -> <DataFrame 10x3>)",
        ),
        (
            pl.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
            pl.DataFrame({"a": [1, 2], "b": ["x", "z"]}),
            "argument `value`: column `b` changed, about 1 of 2 rows differ",
        ),
        (list(range(100)), list(range(101)), "argument `value`: <list of 100> -> <list of 101>"),
        ("x" * 100, "x" * 101, "argument `value`: '" + "x" * 56 + "... changed"),
    ],
)
def test_what_changed_in_an_argument_is_named(before: Any, after: Any, said: str) -> None:
    found = explained(before, after)
    assert (found.reason, found.reuses) == (said, False)


def test_a_call_that_is_reused_says_so() -> None:
    found = explained(1, 1)
    assert found.reuses
    assert found.reason.startswith("reused: recorded on ")
    assert json.loads(json.dumps(found.as_dict()))["changes"] == []


def test_a_step_called_for_the_first_time_is_new_and_so_is_another_item_of_a_loop() -> None:
    @checkpointed
    def step(n: int) -> int:
        return n

    with checkpoint_scope("loop", store="store"):
        assert step.explain(0).reason == "new node"
        [step(n) for n in range(3)]
    with checkpoint_scope("loop", store="store") as run:
        [step(n) for n in range(5)]
        reasons = [e.reason for e in run.events() if isinstance(e, events.StepCompleted)]
    assert reasons == ["new node"] * 5


def test_the_state_that_changed_is_shown() -> None:
    @checkpointed
    def decide() -> Any:
        run = current_run()
        assert run is not None
        return run.state["threshold"], run.state.get("api_token")

    for threshold, token in ((0.4, "abc"), (0.5, "abd")):
        with checkpoint_scope("state", store="store", state={"threshold": threshold, "api_token": token}) as run:
            decide()
    changes = run.why(decide.__qualname__)
    first, second = changes.reason.split("; ")
    assert first == "state['threshold']: 0.4 -> 0.5"
    assert second.startswith("state['api_token']: #")
    assert "abc" not in changes.reason


# -- never a secret


@pytest.mark.parametrize(
    "name", ["password", "api_key", "apikey", "token", "access_token", "client_secret", "auth", "dsn"]
)
def test_parameters_that_look_like_credentials_appear_as_digests_only(name: str, tmp_path: Path) -> None:
    space: dict[str, Any] = {"checkpointed": checkpointed}
    exec(f"@checkpointed\ndef step({name}, n): return n", space)
    with checkpoint_scope("secret", store="store"):
        space["step"]("hunter2", 1)
    with checkpoint_scope("secret", store="store") as run:
        said = space["step"].explain("hunter3", 1)
        space["step"]("hunter3", 1)
    assert said.reason.startswith(f"argument `{name}`: #")
    History("store").export_json("out.json")
    texts = [said.reason, str(list(run.events())), Path("out.json").read_text(), str(run.summary().as_dict())]
    assert not [text for text in texts if "hunter" in text]
    assert not [m for c in run.checkpoints for m in [json.dumps(c.meta())] if "hunter" in m]


def test_what_redact_names_appears_as_a_digest_only() -> None:
    said = explained("hunter2", "hunter3", redact=["value"])
    assert said.reason.startswith("argument `value`: #")
    assert "hunter" not in repr(said)


def test_secrets_inside_dicts_objects_and_urls_are_not_shown() -> None:
    said = explained({"password": "hunter2", "n": 1}, {"password": "hunter3", "n": 2})
    assert "hunter" not in repr(said)
    assert "['n']: 1 -> 2" in said.reason
    said = explained(Config(1, "hunter2"), Config(2, "hunter3"))
    assert "hunter" not in repr(said)
    said = explained("postgres://me:hunter2@db/x", "postgres://me:hunter3@db/x")
    assert "hunter" not in repr(said)


def test_a_redacted_parameter_must_exist() -> None:
    with pytest.raises(UsageError, match="redact names 'pasword', which is no parameter. There are: password"):

        @checkpointed(redact=["pasword"])
        def step(password: str) -> None: ...


# -- code


LIBRARY = """
LIMIT = 3
API_KEY = "hunter2"

def clean(rows, token="hunter2"):
    return [row for row in rows if row < LIMIT and API_KEY]
"""
SCRIPT = """
from oncemore import checkpointed, checkpoint_scope
import library

@checkpointed
def features(rows):
    return library.clean(rows)

with checkpoint_scope("code", store="store") as run:
    print(features.explain([1, 5]).reason)
    features([1, 5])
    why = run.why("features")
    for change in why.changes:
        print(change.part, "|", change.where)
        print(change.diff())
"""


def test_the_code_that_changed_is_named_with_its_place_and_a_diff(script: Script) -> None:
    script.write(LIBRARY, "library.py")
    assert script(SCRIPT).lines == ["new node"]
    script.write(LIBRARY.replace("row < LIMIT", "row <= LIMIT"), "library.py")
    lines = script(SCRIPT).lines
    assert lines[0] == "code of helper `library.clean` changed (library.py:4)"
    assert lines[1] == "helper `library.clean` | library.py:4"
    assert "-    return [row for row in rows if row < LIMIT and API_KEY]" in lines
    assert "+    return [row for row in rows if row <= LIMIT and API_KEY]" in lines
    assert "hunter" not in "".join(lines)


def test_a_global_that_changed_is_shown_unless_it_is_a_secret(script: Script) -> None:
    script.write(LIBRARY, "library.py")
    script(SCRIPT)
    script.write(LIBRARY.replace("LIMIT = 3", "LIMIT = 4"), "library.py")
    assert script(SCRIPT).lines[0] == "global `library.LIMIT`: 3 -> 4"
    script.write(LIBRARY.replace("LIMIT = 3", "LIMIT = 5").replace('KEY = "hunter2"', 'KEY = "hunter3"'), "library.py")
    said = script(SCRIPT).lines[0]
    assert "global `library.LIMIT`: 4 -> 5" in said or "global `library.LIMIT`: 3 -> 5" in said
    assert "global `library.API_KEY`: #" in said
    assert "hunter" not in said


def test_a_package_of_another_version_is_mentioned_beside_the_reason(script: Script) -> None:
    script.write("__version__ = '2.3'\ndef work(x): return x\n", "site-packages/pack.py")
    source = """
        import sys; sys.path.insert(0, "site-packages")
        import pack
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed
        def step(n):
            return pack.work(n)
        with checkpoint_scope("pack", store="store") as run:
            step(NUMBER)
            print(run.why("step").reason)
    """
    script(source.replace("NUMBER", "1"))
    script.write("__version__ = '2.4'\ndef work(x): return x\n", "site-packages/pack.py")
    assert script(source.replace("NUMBER", "1")).lines == ["new node"]  # that alone is no reason
    assert script(source.replace("NUMBER", "2")).lines == [
        "argument `n`: 1 -> 2; pack 2.3 -> 2.4 (recorded, not compared)"
    ]


def test_asking_why_about_what_never_ran_names_what_did() -> None:
    @checkpointed(name="features")
    def step() -> None: ...

    with checkpoint_scope("names", store="store") as run:
        step()
        with pytest.raises(UsageError, match=r"no step or node 'featurs' ran in run names. Did you mean features\?"):
            run.why("featurs")
        with pytest.raises(UsageError, match="Steps that ran: features"):
            run.why("zzz")


class Touchy:
    """An object that does not like to be looked at."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(f"touched {name}")

    def __repr__(self) -> str:
        raise RuntimeError("shown")


def test_showing_a_value_runs_none_of_the_users_code() -> None:
    assert explained(Touchy(), [Touchy()]).reason == "argument `value`: <Touchy> -> [<Touchy>]"


def test_a_call_is_compared_with_the_nearest_earlier_one_and_of_equally_near_ones_with_the_newest() -> None:
    scale = {"by": 1}

    @checkpointed
    def step(rows: list[int]) -> int:
        return sum(rows) * scale["by"]

    def attempt(rows: list[int], by: int) -> str:
        scale["by"] = by
        with checkpoint_scope("nearest", store="store"):
            said = step.explain(rows).reason
            step(rows)
        return said

    attempt([1, 2], 1)
    assert attempt([1, 2], 5) == "closure `scale`: {'by': 1} -> {'by': 5}"
    assert attempt([1, 2, 3], 5) == "argument `rows`: [1, 2] -> [1, 2, 3]"
    assert attempt([4], 5) == "argument `rows`: [1, 2, 3] -> [4]"
