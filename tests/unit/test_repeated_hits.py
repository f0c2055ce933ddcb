"""A call that is skipped again and again, from memory: every value is fresh, every change is noticed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncemore import (
    CheckpointWarning,
    Run,
    Surrounding,
    checkpoint_scope,
    checkpointed,
    codec,
    current_run,
    register_surrounding,
    surroundings,
)

FACTOR = 2


class Calls:
    """What ran since it was last asked: a list that the step appended to would be part of its identity."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self) -> list[str]:
        return self._capsys.readouterr().out.split()


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@checkpointed
def scaled(value: Any, more: Any = None) -> list[Any]:
    print(repr(value))
    return [value, FACTOR]


@pytest.fixture
def run(calls: Calls) -> Iterator[Run]:
    """A scope in which `scaled(1)` has been skipped, so that it is known."""
    with checkpoint_scope("quick", store="store"):
        scaled(1)
    with checkpoint_scope("quick", store="store") as run:
        calls()
        assert scaled(1) == [1, 2]
        yield run


def test_every_value_is_a_fresh_one_and_counts(run: Run, calls: Calls) -> None:
    first, second = scaled(1), scaled(1)
    first.append(3)
    assert (second, scaled(1), scaled(value=1), calls()) == ([1, 2], [1, 2], [1, 2], [])
    assert run.reused["scaled"] == 5


def test_what_another_thread_forgets_while_it_is_read_is_forgotten(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    with checkpoint_scope("quick", store="store"):
        values = [scaled(n) for n in range(4)]
    real = codec.unseal

    def meanwhile(data: Any, key: str, secret: bytes) -> memoryview:
        found = real(data, key, secret)
        monkeypatch.setattr(codec, "unseal", real)
        scaled.forget(3)
        return found

    with checkpoint_scope("quick", store="store"):
        calls()
        assert [scaled(n) for n in range(3)] == values[:3]
        monkeypatch.setattr(codec, "unseal", meanwhile)
        assert scaled(3) == values[3]  # it was there when it was asked for
        assert (scaled(3), calls()) == (values[3], ["3"])


@pytest.mark.parametrize("value", [True, 1.0, "1", b"1", None, (1,), [1]])
def test_what_is_equal_and_of_another_type_is_another_call(run: Run, calls: Calls, value: Any) -> None:
    assert scaled(value) == [value, 2]
    assert calls() == [repr(value)]
    assert type(scaled(value)[0]) is type(value)


def test_a_default_spelled_out_is_the_same_call(run: Run, calls: Calls) -> None:
    scaled(1, None)
    assert calls() == []


def test_a_global_that_changed_is_noticed(run: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert (scaled(1), calls()) == ([1, 3], ["1"])
    monkeypatch.setitem(globals(), "FACTOR", 2)
    assert (scaled(1), calls()) == ([1, 2], [])


def test_what_was_forgotten_or_refreshed_or_rolled_back_is_noticed(run: Run, calls: Calls) -> None:
    assert scaled.forget(1)
    scaled(1)
    assert calls() == ["1"]
    scaled(1)
    scaled.refresh(1)
    assert calls() == ["1"]
    scaled(1)
    run.rollback(before="scaled")
    scaled(1)
    assert calls() == ["1"]


def test_a_step_that_reads_state_follows_the_state() -> None:
    from oncemore import current_run

    @checkpointed
    def read(n: int) -> Any:
        run = current_run()
        assert run is not None
        return run.state["n"]

    for _ in range(2):
        with checkpoint_scope("state", store="store", state={"n": 1}) as run:
            assert [read(0), read(0)] == [1, 1]
            run.state["n"] = 2
            assert [read(0), read(0)] == [2, 2]


def test_what_must_run_again_runs_again(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_REFRESH", "scaled")
    for _ in range(2):
        with checkpoint_scope("again", store="store"):
            assert [scaled(5) for _ in range(3)] == [[5, 2]] * 3
    assert calls() == ["5", "5"]


def test_a_surrounding_that_wants_to_look_first_is_asked(
    run: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Careful(Surrounding):
        name = "careful"

        def before(self, moment: Any) -> None: ...

        def after(self, moment: Any, note: Any) -> None: ...

        def verify(self, moment: Any, effect: Any) -> str | None:
            return "it is careful"

    monkeypatch.setattr(surroundings.protocol, "_kinds", dict(surroundings._kinds))
    register_surrounding(Careful())
    try:
        scaled(1)
    finally:
        surroundings.verifying.discard("careful")
    assert calls() == ["1"]


@pytest.mark.parametrize("pair", [(0.0, -0.0), (1, True), ("x" * 1000, "x" * 999)])
def test_arguments_that_look_alike_are_told_apart_each_time(run: Run, pair: tuple[Any, Any]) -> None:
    for _ in range(3):
        assert [repr(scaled(value)[0]) for value in pair] == [repr(value) for value in pair]


def test_a_hash_of_the_users_own_is_not_asked_for(run: Run, calls: Calls) -> None:
    class Touchy:
        def __hash__(self) -> int:
            raise RuntimeError("hashed")

    scaled(Touchy())
    assert len(calls()) > 0


def test_a_global_without_identity_is_told(run: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", iter(set()))
    with pytest.warns(CheckpointWarning, match="FACTOR"):
        scaled(1)
    assert calls() == ["1"]


# -- a call repeated in the scope in which it ran, or was skipped, undoes nothing that others did since


@checkpointed(outputs=["{path}"])
def write(path: str) -> str:
    Path(path).write_text("first")
    return path


@checkpointed
def configure(value: str) -> None:
    os.environ["MODE"] = value
    current_state()["mode"] = value


def current_state() -> Any:
    run = current_run()
    assert run is not None
    return run.state


@pytest.mark.parametrize("resumed", [False, True])
def test_repeated_it_leaves_files_and_environment_as_others_left_them(
    resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODE", "none")

    def body(run: Run) -> Any:
        write("out")
        configure("a")
        Path("out").write_text("changed")
        os.environ["MODE"] = "b"
        run.state["mode"] = "b"
        assert write("out") == "out"
        configure("a")
        return Path("out").read_text(), os.environ["MODE"], run.state["mode"]

    expected = ("changed", "b", "a")
    with checkpoint_scope("again", store="store") as run:
        assert body(run) == expected
    if resumed:
        Path("out").unlink()
        with checkpoint_scope("again", store="store") as run:
            assert (body(run), dict(run.ran)) == (expected, {})


def test_a_file_that_others_changed_is_no_reason_to_run_a_repeated_call_again() -> None:
    step = checkpointed(outputs=["{path}"], outputs_keep=False)(lambda path: Path(path).write_text("first"))
    with checkpoint_scope("again", store="store") as run:
        step("out")
        Path("out").write_text("by another step")
        step("out")
        assert sum(run.ran.values()) == 1
    assert Path("out").read_text() == "by another step"


def test_a_repeated_generator_undoes_nothing_either() -> None:
    @checkpointed
    def stages() -> Any:
        os.environ["MODE"] = "inside"
        yield 1

    with checkpoint_scope("again", store="store") as run:
        list(stages())
        os.environ["MODE"] = "outside"
        assert list(stages()) == [1]
        assert (os.environ.pop("MODE"), run.reused[stages.__qualname__]) == ("outside", 1)


def test_another_variant_of_a_node_is_not_a_repeated_call() -> None:
    @checkpointed
    def step() -> None:
        os.environ["MODE"] = current_state()["n"]

    for _ in range(2):
        with checkpoint_scope("variants", store="store") as run:
            for n in "12":
                run.state["n"] = n
                step()
                assert os.environ["MODE"] == n
    assert sum(run.ran.values()) == 0
    del os.environ["MODE"]


def test_the_files_of_a_repeated_call_belong_to_the_step_around_it() -> None:
    @checkpointed
    def outer() -> str:
        return write("out")

    with checkpoint_scope("outer", store="store"):
        write("out")
        outer()
    Path("out").unlink()
    with checkpoint_scope("outer", store="store"):
        outer()
    assert Path("out").read_text() == "first"
