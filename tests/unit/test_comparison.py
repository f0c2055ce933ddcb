"""Two runs side by side: which nodes differ, and in what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oncemore import File, History, UsageError, checkpoint_scope, checkpointed, current_run, open_store
from oncemore.history.compare import Comparison
from tests.unit.pasts import Counting

LIMIT = 1
LUCK: Any = 0


@checkpointed
def load(day: str, rows: int = 3) -> list[int]:
    return list(range(rows))


@checkpointed
def limited(values: list[int]) -> list[int]:
    return [value for value in values if value < LIMIT]


@checkpointed(code="version", version="1")
def lucky(n: int) -> Any:
    return LUCK() if callable(LUCK) else LUCK


@checkpointed(code="version", version="1")
def items(n: int) -> Any:
    yield from (LUCK if i == 1 else i for i in range(n))


def compared(a: str = "a", b: str = "b") -> Comparison:
    return History("store").compare(a, b)


def said(comparison: Comparison) -> list[tuple[str, bool, bool, list[str], str]]:
    """The pairs: step, whether each run has a node of it, the changes, the result."""
    return [
        (pair.step, pair.a is not None, pair.b is not None, [change.message for change in pair.changes], pair.result)
        for pair in comparison.differing
    ]


def test_runs_that_did_the_same_have_the_same_nodes() -> None:
    for run in "ab":
        with checkpoint_scope(run, store="store"):
            limited(load("monday"))
    assert (compared().same, compared().differing) == (2, [])


def test_nodes_are_paired_by_arguments_first_and_then_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    with checkpoint_scope("a", store="store"):
        limited([1])
        load("monday", 3)
        load("tuesday", 4)
    monkeypatch.setitem(globals(), "LIMIT", 2)
    with checkpoint_scope("b", store="store"):
        limited([1])
        load("tuesday", 3)
        load("tuesday", 5)
    assert compared().same == 0
    assert said(compared()) == [
        ("limited", True, True, ["global `tests.unit.test_comparison.LIMIT`: 1 -> 2"], ""),
        ("load", True, True, ["argument `day`: 'monday' -> 'tuesday'"], ""),
        ("load", True, True, ["argument `rows`: 4 -> 5"], ""),
    ]


def test_nodes_that_have_nothing_in_common_are_no_pair() -> None:
    with checkpoint_scope("a", store="store"):
        load("monday", 3)
    with checkpoint_scope("b", store="store"):
        load("tuesday", 4)
        limited([1])
    assert said(compared()) == [
        ("load", True, False, [], ""),
        ("load", False, True, [], ""),
        ("limited", False, True, [], ""),
    ]


def test_the_state_that_was_read_is_compared() -> None:
    @checkpointed
    def decide() -> Any:
        run = current_run()
        assert run is not None
        return run.state["threshold"]

    for run, threshold in (("a", 0.4), ("b", 0.5)):
        with checkpoint_scope(run, store="store", state={"threshold": threshold}):
            decide()
    assert [pair[3] for pair in said(compared())] == [["state['threshold']: 0.4 -> 0.5"]]


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        (1, 2, "result: 1 -> 2"),
        (np.zeros(3), np.ones(3), "result differs"),
        (
            lambda: [x := str(LIMIT) * 50, x],
            lambda: ["1" * 50, str(LIMIT) * 50],
            None,
        ),  # one object twice, and two equal
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, None),
    ],
)
def test_the_same_node_with_another_result_is_named(
    before: Any, after: Any, result: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run, luck in (("a", before), ("b", after)):
        monkeypatch.setitem(globals(), "LUCK", luck)
        with checkpoint_scope(run, store="store"):
            lucky(1)
    assert [pair[1:] for pair in said(compared())] == ([(True, True, [], result)] if result else [])


def test_the_items_of_a_generator_are_part_of_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    for run, luck in (("a", 7), ("b", 8), ("c", 8)):
        monkeypatch.setitem(globals(), "LUCK", luck)
        with checkpoint_scope(run, store="store"):
            list(items(3))
    assert said(compared("b", "c")) == []
    (pair,) = said(compared("a", "b"))
    assert pair[4].startswith("items: ")


def test_files_are_compared_where_they_are_kept() -> None:
    @checkpointed
    def write(n: int) -> File:
        Path("out").write_text(str(LUCK))
        return File("out")

    for run in "ab":
        with checkpoint_scope(run, store="store"):
            write(1)
    Path("out").write_text("mine")
    assert said(compared()) == []
    assert Path("out").read_text() == "mine"


def test_what_a_fork_shares_is_not_even_read() -> None:
    with checkpoint_scope("a", store="store"):
        load("monday")
    History("store").fork("a", "b")
    counting = Counting("store")
    assert History(counting).compare("a", "b").same == 1
    assert counting.kinds["node"] == 0


def test_a_result_that_cannot_be_read_is_not_taken_for_equal() -> None:
    for run in "ab":
        with checkpoint_scope(run, store="store"):
            load("monday")
    entry = History("store").run("b").checkpoints[0].entry
    open_store("store").commit(put={entry: [b"something else"]})
    (pair,) = said(compared())
    assert pair[4].startswith("cannot be compared: ")
    open_store("store").commit(delete=[entry])
    (pair,) = said(compared())
    assert "was removed" in pair[4]


def test_it_can_be_had_as_json() -> None:
    for run, day in (("a", "monday"), ("b", "tuesday")):
        with checkpoint_scope(run, store="store"):
            load(day)
    facts = json.loads(json.dumps(compared().as_dict()))
    assert (facts["a"], facts["b"], facts["same"]) == ("a", "b", 0)
    assert facts["differing"][0]["changes"][0]["message"] == "argument `day`: 'monday' -> 'tuesday'"


def test_runs_that_are_not_there_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="there is no run 'a'"):
        compared()
