"""Forks: a new run that shares what its parent had, up to a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from oncemore import History, UsageError, checkpoint_scope, checkpointed, current_run, fork, memoized
from oncemore.events import Forked
from tests.unit.pasts import both, content, flow, names, ran, store_url


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


@checkpointed
def fit(x: int) -> float:
    run = current_run()
    assert run is not None
    return x * run.state["rate"]


@checkpointed
def large(x: int) -> bytes:
    return bytes(100_000)


@memoized
def common(x: int) -> int:
    return x


@pytest.mark.parametrize(
    ("at", "again"),
    [
        ("after-clean", ["report", "train"]),
        ("load", ["clean", "report", "train"]),
        ("r:5", ["report"]),
        (None, []),
    ],
)
def test_a_fork_shares_what_was_done_up_to_there_and_runs_the_rest(
    store: str, at: str | None, again: list[str]
) -> None:
    parent = flow(store)
    child = fork(parent, "child", at=at)
    count = {None: 5, "after-clean": 3, "load": 1, "r:5": 4}[at]
    assert list(child.checkpoints) == list(parent.checkpoints)[:count]
    assert ran(flow(store, "child")) == again
    assert ran(flow(store, "child")) == []
    assert names(child.checkpoints) == ["load", "clean", "after-clean", "train", "report"]


def test_the_parent_is_left_as_it_is(store: str) -> None:
    parent = flow(store)
    before = content(store)
    fork(parent, "child", at="after-clean")
    flow(store, "child", x=1)
    after = content(store)
    assert {key: after.get(key) for key in before} == before
    assert ran(flow(store)) == []


def test_no_data_is_copied(store: str) -> None:
    parent = flow(store)
    with checkpoint_scope("r", store=store):
        common(1)
        assert len(large(1)) == 100_000
    before = content(store)
    for number in range(10):
        fork(parent, f"child-{number}")
    added = {key: data for key, data in content(store).items() if key not in before and key.startswith("node/")}
    nodes = [key for key in before if key.startswith("node/")]
    assert len(added) == 10 * len(nodes) + 1  # an alias of each, and what closes the parent's prefix
    assert max(map(len, added.values())) < 300


def test_the_lineage_is_recorded(store: str) -> None:
    parent = flow(store)
    fork(parent, "child", at="after-clean")
    fork(History(store).run("child"), "grandchild")
    assert {run.id: run.parent for run in History(store).runs()} == {"r": None, "child": "r", "grandchild": "child"}
    (told,) = History(store).run("child").events()
    assert isinstance(told, Forked) and (told.parent, told.at) == ("r", 4)
    assert [c.run for c in History(store).run("child").checkpoints] == ["r", "r", "r"]


def test_a_fork_that_has_not_run_is_not_called_killed(store: str) -> None:
    fork(flow(store), "child")
    assert History(store).run("child").status == "forked"
    flow(store, "child")
    assert History(store).run("child").status == "finished"


def test_a_fork_of_a_fork_has_what_both_did(store: str) -> None:
    fork(flow(store), "child", at="load")
    flow(store, "child")
    fork(History(store).run("child"), "grandchild", at="train")
    assert names(History(store).run("grandchild").checkpoints) == ["load", "clean", "after-clean", "train"]
    assert ran(flow(store, "grandchild")) == ["report"]


def test_overrides_of_state_win_over_what_the_script_begins_with(store: str) -> None:
    def go(run_id: str) -> Any:
        with checkpoint_scope(run_id, store=store, state={"rate": 0.1, "kept": 1}) as run:
            value = fit(10)
        return value, run.ran["fit"], dict(run.state)

    assert go("r") == (1.0, 1, {"rate": 0.1, "kept": 1})
    History(store).fork("r", "child", state={"rate": 0.5})
    assert go("child") == (5.0, 1, {"rate": 0.5, "kept": 1})
    assert go("child") == (5.0, 0, {"rate": 0.5, "kept": 1})
    assert go("r") == (1.0, 0, {"rate": 0.1, "kept": 1})


def test_overrides_of_state_hold_when_a_checkpoint_of_the_parent_is_restored(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state.update(rate=0.1, rows=5)
        run.checkpoint("cleaned", next_node="train")
    fork(run, "child", at="cleaned", state={"rate": 0.5})
    with checkpoint_scope("child", store=store) as run:
        assert run.restore().next_node == "train"
        assert dict(run.state) == {"rate": 0.5, "rows": 5}
        run.state["rate"] = 0.7
        run.checkpoint("trained")
        run.restore("trained")
        assert run.state["rate"] == 0.7


def test_a_fork_goes_on_when_its_parent_goes_on_or_back(store: str) -> None:
    fork(flow(store), "child", at="train")
    History(store).rollback("r", before="load")
    flow(store, x=7)
    assert names(History(store).run("child").checkpoints) == ["load", "clean", "after-clean", "train"]
    assert ran(flow(store, "child")) == ["report"]


def test_a_fork_can_be_rolled_back_into_its_parents_part_and_forward_again(store: str) -> None:
    fork(flow(store), "child", at="train")
    flow(store, "child")
    history = History(store)
    history.rollback("child", to="load")
    assert names(history.run("child").checkpoints) == ["load"]
    history.undo_rollback("child")
    assert ran(flow(store, "child")) == []
    history.rollback("child", to="load")
    assert ran(flow(store, "child")) == ["clean", "report", "train"]
    assert ran(flow(store)) == []


def test_a_fork_of_a_run_that_was_rolled_back_has_what_counted(store: str) -> None:
    run = flow(store)
    History(store).rollback("r", to="after-clean")
    fork(run, "child")
    assert names(History(store).run("child").checkpoints) == ["load", "clean", "after-clean"]
    assert ran(flow(store, "child")) == ["report", "train"]


def test_what_is_shared_between_runs_after_the_fork_is_not_the_forks(store: str) -> None:
    parent = flow(store)
    fork(parent, "child")
    with checkpoint_scope("r", store=store):
        common(1)
    assert names(parent.checkpoints)[-1] == "common"
    assert names(History(store).run("child").checkpoints)[-1] == "report"


def test_an_id_that_is_taken_or_cannot_be_is_refused(store: str) -> None:
    parent = flow(store)
    with pytest.raises(UsageError, match="a run 'r' already exists"):
        fork(parent, "r")
    for wrong in ("", "a\nb", "x" * 201):
        with pytest.raises(UsageError, match="run id"):
            fork(parent, wrong)
    with pytest.raises(UsageError, match="'nowhere'"):
        fork(parent, "child", at="nowhere")
    assert [run.id for run in History(store).runs()] == ["r"]
