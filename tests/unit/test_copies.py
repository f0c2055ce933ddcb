"""A result that is an object of the caller's has its real value for readers who have no caller."""

from __future__ import annotations

import pickle
import subprocess
import threading
from pathlib import Path
from typing import Any, Iterator

import numpy
import pytest

from oncemore import File, History, NotRecorded, checkpoint_scope, checkpointed, current_run
from tests.cli.program import COMMAND


class Client:
    """Has an identity, but cannot be pickled."""

    def __checkpoint_identity__(self) -> str:
        return "client"

    def __reduce__(self) -> Any:
        raise TypeError("it is connected")


SHARED: list[dict[str, int]] = [{"a": 1}, {"b": 2}]


class Counter:
    def __init__(self) -> None:
        self.count = 1

    @checkpointed
    def increased(self) -> Counter:
        self.count += 1
        return self


@checkpointed
def extended(items: list[int]) -> list[int]:
    items.append(9)
    return items


@checkpointed
def part(record: dict[str, Any]) -> Any:
    return record["x"]


@checkpointed
def element(index: int) -> dict[str, int]:
    return SHARED[index]


@checkpointed
def mixed(given: list[int]) -> dict[str, Any]:
    return {"own": [1], "given": given}


@checkpointed
def of_state() -> Any:
    run = current_run()
    run.state["done"].append(5)
    return run.state["done"]


@checkpointed
def each(items: list[list[int]]) -> Iterator[list[int]]:
    yield from items


@checkpointed
def same(value: Any) -> Any:
    return value


def _result(run_id: str, step: str) -> Any:
    return History().run(run_id).checkpoints.find(step).result()


def test_a_result_that_is_an_object_of_the_caller_is_read_as_it_was_when_the_step_ended() -> None:
    items, counter = [1, 2], Counter()
    with checkpoint_scope("r", state={"done": [1]}):
        extended(items)
        part({"x": [1, 2], "y": 3})
        element(1)
        mixed([7])
        counter.increased()
        of_state()
        list(each([[1], [2]]))
    items.append(100)
    counter.count = 100
    assert _result("r", "extended") == [1, 2, 9]
    assert _result("r", "part") == [1, 2]
    assert _result("r", "element") == {"b": 2}
    assert _result("r", "mixed") == {"own": [1], "given": [7]}
    assert _result("r", "Counter.increased").count == 2
    assert _result("r", "of_state") == [1, 5]
    assert _result("r", "each") == [[1], [2]]


def test_a_skipped_step_still_returns_the_callers_own_object() -> None:
    for ran in (1, 0):
        with checkpoint_scope("r") as run:
            items = [1, 2]
            assert extended(items) is items
            assert items == [1, 2, 9]
            assert sum(run.ran.values()) == ran


def test_a_reference_to_such_a_result_gives_it() -> None:
    with checkpoint_scope("r"):
        assert extended.reference([1]).get() == [1, 9]


@pytest.mark.parametrize("size", [3, 10_000])
def test_arrays_of_the_caller_that_are_returned_or_yielded_are_read_as_arrays_of_ones_own(size: int) -> None:
    array = numpy.arange(size)
    for ran in (2, 0):
        with checkpoint_scope("r") as run:
            assert same(array) is array
            assert [item is array for item in each([array])] == [True]  # type: ignore[list-item]
        assert sum(run.ran.values()) == ran
    for found in _result("r", "same"), *_result("r", "each"):
        found += 1
        assert found.tolist() == (array + 1).tolist()


def test_large_objects_that_several_steps_return_are_stored_once() -> None:
    large = numpy.random.default_rng(0).random(200_000)

    def stored() -> int:
        return sum(len(data or b"") for _, data in History().store.scan(""))

    with checkpoint_scope("r"):
        same({"table": large, "step": 1}["table"])
        once = stored()
        checkpointed(name="validated")(lambda table: table)(large)
        assert stored() - once < 20_000 < large.nbytes < once
    assert numpy.array_equal(_result("r", "same"), large)
    assert numpy.array_equal(_result("r", "validated"), large)
    history = History()
    assert not history.verify().findings
    history.delete("r")
    assert stored() < 20_000


def test_a_returned_object_that_cannot_be_copied_is_named() -> None:
    with checkpoint_scope("r"):
        same({"client": Client()})
        same({"lock": threading.Lock(), "n": [1]})
    assert _result("r", "same")["n"] == [1]
    first = next(c for c in History().run("r").checkpoints if c.step == "same")
    with pytest.raises(NotRecorded, match="the result of same contains an object of its caller that was not copied"):
        first.result()


def test_a_returned_file_argument_is_not_copied_into_the_store(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(b"x" * 100_000)
    with checkpoint_scope("r"):
        same([File(path)])
    assert _result("r", "same")[0].path == path
    assert not list(History().store.scan("blob/", most=0))


def test_get_prints_and_pickles_the_value() -> None:
    with checkpoint_scope("r"):
        extended(list(range(2000)))

    def get(*options: str) -> bytes:
        return subprocess.run([*COMMAND, "get", "r", "extended", *options], check=True, capture_output=True).stdout

    assert get().decode().strip() == repr([*range(2000), 9])
    assert pickle.loads(get("--pickle", "-")) == [*range(2000), 9]


@pytest.mark.parametrize("size", [10, 100_000])
def test_an_array_that_was_copied_can_be_changed_like_any_other(size: int) -> None:
    @checkpointed
    def same(array: Any) -> Any:
        return array

    @checkpointed
    def same_items(array: Any) -> Iterator[Any]:
        yield array

    with checkpoint_scope("arrays") as run:
        same(numpy.zeros(size))
        list(same_items(numpy.zeros(size)))
    for checkpoint in run.checkpoints:
        found = checkpoint.result()
        for array in found if isinstance(found, list) else [found]:
            array += 1
