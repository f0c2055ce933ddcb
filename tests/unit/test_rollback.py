"""Rollback: what came later does not count any more, nothing is lost, and it can be undone."""

from __future__ import annotations

from typing import Any

import pytest

from oncemore import History, UsageError, checkpoint_scope, checkpointed, current_run, memoized
from oncemore.events import RollbackUndone, RolledBack
from tests.processes import Script
from tests.unit.pasts import both, content, flow, names, ran, store_url

pytestmark = pytest.mark.encrypted_too


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


@checkpointed
def add(n: int) -> int:
    run = current_run()
    assert run is not None
    run.state["sum"] = run.state.get("sum", 0) + n
    return run.state["sum"]


@memoized
def common(x: int) -> int:
    return x


def ids(run: Any) -> list[str]:
    return [checkpoint.id for checkpoint in run.checkpoints]


@pytest.mark.parametrize(
    ("where", "stays", "again"),
    [
        ({"to": "after-clean"}, ["load", "clean", "after-clean"], ["report", "train"]),
        ({"before": "after-clean"}, ["load", "clean"], ["report", "train"]),
        ({"to": "r:3"}, ["load", "clean"], ["report", "train"]),
        ({"before": "r:3"}, ["load"], ["clean", "report", "train"]),
        ({"to": "train"}, ["load", "clean", "after-clean", "train"], ["report"]),
        ({"before": "train"}, ["load", "clean", "after-clean"], ["report", "train"]),
        ({"to": "report"}, ["load", "clean", "after-clean", "train", "report"], []),
        ({"before": "load"}, [], ["clean", "load", "report", "train"]),
    ],
)
def test_the_next_run_executes_only_what_no_longer_counts(
    store: str, where: dict[str, str], stays: list[str], again: list[str]
) -> None:
    run = flow(store)
    History(store).rollback("r", **where)
    assert names(run.checkpoints) == stays
    after = flow(store)
    assert ran(after) == again
    assert names(after.checkpoints) == ["load", "clean", "after-clean", "train", "report"]
    assert ran(flow(store)) == []


def test_a_node_can_be_named(store: str) -> None:
    run = flow(store)
    node = run.checkpoints.latest("train").node
    History(store).rollback("r", before=node)
    assert names(run.checkpoints) == ["load", "clean", "after-clean"]


def test_nothing_is_removed_and_the_log_says_so(store: str) -> None:
    run = flow(store)
    before = content(store)
    History(store).rollback("r", before="load")
    after = content(store)
    assert {key: data for key, data in after.items() if key in before and not key.startswith("run/")} == {
        key: data for key, data in before.items() if not key.startswith("run/")
    }
    (told,) = [event for event in run.events() if isinstance(event, RolledBack)]
    assert told.to == 1


def test_a_rollback_can_be_undone(store: str) -> None:
    run = flow(store)
    before = ids(run)
    History(store).rollback("r", to="load")
    assert len(ids(run)) == 1
    History(store).undo_rollback("r")
    assert ids(run) == before
    assert ran(flow(store)) == []
    assert any(isinstance(event, RollbackUndone) for event in run.events())


def test_rollbacks_are_undone_one_by_one_whatever_ran_since(store: str) -> None:
    run = flow(store)
    history = History(store)
    first = ids(run)
    history.rollback("r", to="after-clean")
    flow(store)
    second = ids(run)
    assert second[:3] == first[:3] and second[3:] != first[3:]
    history.rollback("r", to="load")
    flow(store)
    history.undo_rollback("r")
    assert ids(run) == second
    assert ran(flow(store)) == []
    history.undo_rollback("r")
    assert ids(run) == first
    assert ran(flow(store)) == []
    with pytest.raises(UsageError, match="no rollback to undo"):
        history.undo_rollback("r")


def test_state_after_a_rollback_is_as_if_the_rest_had_never_been(store: str) -> None:
    for _ in range(2):
        with checkpoint_scope("r", store=store) as run:
            assert [add(n) for n in (1, 2, 3)] == [1, 3, 6]
    History(store).rollback("r", before=run.checkpoints[1].id)
    with checkpoint_scope("r", store=store) as run:
        assert [add(1), add(20)] == [1, 21]
        assert dict(run.state) == {"sum": 21}
    assert ran(run) == ["add"]


def test_a_scope_rolls_its_own_run_back_and_goes_on(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        add(1)
        run.checkpoint("one")
        add(2)
        run.checkpoint("two")
        run.rollback(to="one")
        run.restore("one")
        assert names(run.checkpoints) == ["add", "one"]
        add(2)
        run.checkpoint("two")
        assert run.ran["add"] == 3
        assert names(run.checkpoints) == ["add", "one", "add", "two"]
        assert run.checkpoints.latest("two").state() == {"sum": 3}
    with checkpoint_scope("r", store=store) as run:
        add(1)
        run.checkpoint("one")
        add(2)
        run.checkpoint("two")
    assert ran(run) == []
    assert len(run.checkpoints) == 4


def test_a_resumed_scope_that_rolls_back_makes_its_checkpoints_anew(store: str) -> None:
    flow(store)
    with checkpoint_scope("r", store=store) as run:
        run.state["n"] = 1
        run.checkpoint("mine")
    with checkpoint_scope("r", store=store) as run:
        run.state["n"] = 1
        first = run.checkpoint("mine")
        run.rollback(before="mine")
        again = run.checkpoint("mine")
        assert again.id != first.id and again.state() == {"n": 1}
    assert run.checkpoints.latest() == again


def test_loops_go_on_where_they_were_at_the_rollback(store: str) -> None:
    def body(count: int) -> tuple[int, list[int]]:
        seen: list[int] = []
        with checkpoint_scope("r", store=store) as run:
            for item in run.loop("numbers", range(count)):
                seen.append(item)
            run.checkpoint("looped")
        return run.reused["numbers"], seen

    assert body(3) == (0, [0, 1, 2])
    assert body(3) == (3, [0, 1, 2])
    History(store).rollback("r", before="looped")
    assert body(3) == (3, [0, 1, 2])


def test_what_is_shared_between_runs_stays_when_one_is_rolled_back_and_is_no_longer_its_checkpoint(store: str) -> None:
    for _ in range(2):
        with checkpoint_scope("r", store=store) as run:
            add(1)
            common(1)
            add(2)
        if not run.resumed:
            assert names(run.checkpoints) == ["add", "common", "add"]
            History(store).rollback("r", to="r:2")
            assert names(run.checkpoints) == ["add"]
    assert ran(run) == ["add"]
    History(store).undo_rollback("r")
    assert names(run.checkpoints) == ["add", "common", "add"]


OPEN = """
import os, time
from oncemore import UsageError, checkpoint_scope, checkpointed
@checkpointed
def work(n): return n
with checkpoint_scope("r", store="store") as run:
    for n in range(3): work(n)
    run.checkpoint("three")
    print("ready", flush=True)
    while not os.path.exists("go"): time.sleep(0.01)
    try:
        run.rollback(to="r:2")
    except UsageError as error:
        print(error)
    for n in range(3, 5): work(n)
    print(*(c.name or c.result() for c in run.checkpoints))
"""


def test_a_run_that_another_process_has_open_is_not_rolled_back_behind_its_back(script: Script) -> None:
    running = script.start(OPEN)
    running.wait_for("ready")
    history = History("store")
    for deed in (lambda: history.rollback("r", to="r:2"), lambda: history.rollback("r", before="three")):
        with pytest.raises(
            UsageError, match=r"run r is open: .* Stop it first, or call run.rollback\(\).* or fork the run"
        ):
            deed()
    with checkpoint_scope("r", store="store") as run:
        with pytest.raises(UsageError, match="run r is open elsewhere, too: .* the work done there would be lost"):
            run.rollback(to="r:2")
    history.fork("r", "child", at="r:2")
    running.kill()
    history.rollback("r", to="r:2")
    assert [c.result() for c in history.run("r").checkpoints] == [0]
    assert [c.result() for c in history.run("child").checkpoints] == [0]


def test_the_only_process_that_has_a_run_open_rolls_it_back(script: Script) -> None:
    running = script.start(OPEN)
    running.wait_for("ready")
    other = script.start(OPEN.replace("ready", "second ready"), name="other.py")
    other.wait_for("second ready")
    other.kill()
    (script.folder / "go").touch()
    assert running.finish(0).lines == ["ready", "0 3 4"]


def test_an_undo_is_refused_while_the_run_is_open(store: str) -> None:
    flow(store)
    History(store).rollback("r", to="load")
    with checkpoint_scope("r", store=store):
        with pytest.raises(UsageError, match="run r is open"):
            History(store).undo_rollback("r")
    History(store).undo_rollback("r")


WORKERS = """
from concurrent.futures import ProcessPoolExecutor
from oncemore import checkpoint_scope, checkpointed
@checkpointed
def work(n): return n
if __name__ == "__main__":
    with checkpoint_scope("r", store="store") as run, ProcessPoolExecutor(1) as pool:
        list(pool.map(work, range(3)))
        first = run.checkpoints[0].id
        if not run.resumed:
            run.rollback(to=first)
        list(pool.map(work, range(3)))
        print(len(run.checkpoints), sum(run.ran.values()))
"""


def test_workers_of_a_pool_go_along_when_their_run_is_rolled_back(script: Script) -> None:
    assert script(WORKERS).lines == ["3 0"]
    events = [type(event).__name__ for event in History("store").run("r").events()]
    assert events.count("StepCompleted") == 5
    script(name="script.py")
    again = [type(event).__name__ for event in History("store").run("r").events()]
    assert again.count("StepCompleted") == 5


def test_either_to_or_before_has_to_be_said_and_has_to_be_there(store: str) -> None:
    flow(store)
    history = History(store)
    for wrong in ({}, {"to": "load", "before": "load"}):
        with pytest.raises(UsageError, match="either to= .* or before="):
            history.rollback("r", **wrong)
    with pytest.raises(UsageError, match="'nowhere'.*after-clean"):
        history.rollback("r", to="nowhere")
    with pytest.raises(UsageError, match="no run 'other'"):
        history.rollback("other", to="load")
    assert not [event for event in history.run("r").events() if isinstance(event, RolledBack)]


def test_a_refreshed_node_that_was_replaced_after_the_cut_runs_again(store: str, monkeypatch: Any) -> None:
    flow(store)
    monkeypatch.setenv("ONCEMORE_REFRESH", "load")
    run = flow(store)
    monkeypatch.delenv("ONCEMORE_REFRESH")
    assert ran(run) == ["load"]
    assert names(run.checkpoints) == ["clean", "after-clean", "train", "report", "load"]
    History(store).rollback("r", to="report")
    assert names(run.checkpoints) == ["clean", "after-clean", "train", "report"]
    assert ran(flow(store)) == ["load"]
