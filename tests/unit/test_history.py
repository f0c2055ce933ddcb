"""History: the runs of a store, listed, read, renamed, deleted."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest

from oncemore import (
    CheckpointWarning,
    History,
    UsageError,
    checkpoint_scope,
    checkpointed,
    current_run,
    events,
    fork,
    open_store,
    records,
)
from oncemore.events import RunRenamed
from oncemore.history import rollback
from oncemore.retention import keep_last
from tests.processes import Script
from tests.unit.pasts import Counting, both, content, flow, keys, load, names, ran, store_url


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


@checkpointed
def rated(x: int) -> float:
    run = current_run()
    assert run is not None
    return x * run.state["rate"]


def fail(store: str, run_id: str) -> None:
    with pytest.raises(KeyError), checkpoint_scope(run_id, store=store, workflow="bad"):
        raise KeyError(run_id)


def test_runs_are_listed_newest_first_with_what_is_known_of_them(store: str) -> None:
    before = datetime.now(timezone.utc)
    flow(store, "one", workflow="etl")
    flow(store, "two")
    flow(store, "one", workflow="etl")
    one, two = History(store).runs()
    assert (one.id, one.workflow, one.status, one.attempts, one.nodes, one.parent) == (
        "one",
        "etl",
        "finished",
        2,
        4,
        None,
    )
    assert (two.id, two.workflow, two.attempts) == ("two", None, 1)
    assert before <= one.started <= two.started <= two.updated <= one.updated <= datetime.now(timezone.utc)
    assert (
        one.bytes > sum(c.stored_bytes for c in History(store).run("one").checkpoints) > 0
    )  # and events: see test_sizes


def test_they_can_be_chosen_by_workflow_status_and_time(store: str) -> None:
    flow(store, "good", workflow="etl")
    fail(store, "bad")
    time.sleep(0.01)
    now = time.time()
    flow(store, "new", workflow="etl")
    history = History(store)

    def listed(**chosen: object) -> list[str]:
        return [run.id for run in history.runs(**chosen)]

    assert listed() == ["new", "bad", "good"]
    assert listed(workflow="etl") == ["new", "good"]
    assert listed(status="failed") == ["bad"]
    assert listed(since=now) == listed(since=datetime.fromtimestamp(now, timezone.utc)) == ["new"]
    assert listed(workflow="etl", status="failed") == []


def test_an_empty_store_has_no_runs(store: str) -> None:
    assert History(store).runs() == []
    with pytest.raises(UsageError, match="there is no run 'x'"):
        History(store).run("x")


def test_a_run_read_back_is_read_only(store: str) -> None:
    flow(store)
    before = content(store)
    past = History(store).run("r")
    assert names(past.checkpoints)[-1] == "report"
    assert past.summary().total.ran == 4 and past.status == "finished"
    assert not hasattr(past, "checkpoint") and not hasattr(past, "restore") and not hasattr(past, "rollback")
    assert list(past.events()) and repr(past).startswith("<PastRun 'r'")
    assert content(store) == before


def test_a_node_that_ran_again_is_one_node(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(run_id: str = "r") -> tuple[int, int]:
        (record,) = [run for run in History(store).runs() if run.id == run_id]
        checkpoints = [c for c in History(store).run(run_id).checkpoints if c.step]
        assert record.bytes > sum(c.stored_bytes for c in checkpoints) > 0
        return record.nodes, len(checkpoints)

    flow(store)
    monkeypatch.setenv("ONCEMORE_REFRESH", "load,train")
    assert ran(flow(store)) == ["load", "train"]
    assert listed() == (4, 4)
    monkeypatch.delenv("ONCEMORE_REFRESH")
    with checkpoint_scope("r", store=store):
        load.forget(1)
    assert listed() == (3, 3)
    flow(store)
    History(store).rollback("r", to="after-clean")
    assert listed() == (1, 1)  # clean: train was refreshed and load forgotten after that
    flow(store)
    assert listed() == (4, 4)
    History(store).undo_rollback("r")
    assert listed() == (4, 4)
    History(store).fork("r", "child", at="train")
    assert listed("child") == (3, 3)


def test_a_node_that_met_two_states_is_one_node_with_two_checkpoints(store: str) -> None:
    for rate in (1, 2):
        with checkpoint_scope("r", store=store, state={"rate": rate}):
            rated(5)
    (record,) = History(store).runs()
    assert (record.nodes, len(History(store).run("r").checkpoints)) == (1, 2)
    History(store).prune(keep_last(1))
    (record,) = History(store).runs()
    assert (record.nodes, len(History(store).run("r").checkpoints)) == (1, 1)


def test_listing_runs_reads_one_row_for_each_that_has_ended(store: str) -> None:
    for number in range(5):
        flow(store, f"r{number}")
    counting = Counting(store)
    history = History(counting)
    counting.rows = 0  # whose store it is has been read
    assert [run.nodes for run in history.runs()] == [4] * 5
    assert counting.rows == 5


KILLED = """
from oncemore import checkpoint_scope, checkpointed
@checkpointed
def work(n): return n
with checkpoint_scope("r", store="store"):
    for n in range(3): work(n)
    print("ready")
    import time; time.sleep(60)
"""


def test_a_run_is_running_while_its_process_lives_and_killed_when_that_is_gone(script: Script) -> None:
    running = script.start(KILLED)
    running.wait_for("ready")
    (run,) = History("store").runs()
    assert (run.status, run.nodes) == ("running", 3)
    running.kill()
    (run,) = History("store").runs(status="killed")
    assert (run.status, run.nodes, run.attempts) == ("killed", 3, 1)
    script(KILLED.replace("time.sleep(60)", ""))
    (run,) = History("store").runs()
    assert (run.status, run.nodes, run.attempts) == ("finished", 3, 2)


def test_a_run_that_one_process_died_in_is_finished_when_the_other_has_finished_it(script: Script) -> None:
    dying = script.start(KILLED)
    dying.wait_for("ready")
    with checkpoint_scope("r", store="store"):
        dying.kill()
    assert History("store").run("r").status == "finished"


def test_delete_removes_all_of_a_run_and_nothing_else(store: str) -> None:
    flow(store, "other")
    before = content(store)
    flow(store)
    with pytest.raises(UsageError, match="no rollback"):
        History(store).undo_rollback("r")
    History(store).rollback("r", to="load")
    flow(store)
    History(store).delete("r")
    assert content(store) == before
    assert [run.id for run in History(store).runs()] == ["other"]


def test_no_old_result_comes_back_under_a_deleted_id(store: str) -> None:
    flow(store)
    History(store).delete("r")
    run = flow(store)
    assert ran(run) == ["clean", "load", "report", "train"]
    assert len(run.checkpoints) == 5 and run.checkpoints[0].id == "r:2"


class Dying(Counting):
    """A store that dies at its n-th commit."""

    def __init__(self, inner: str, at: int) -> None:
        super().__init__(inner)
        self.at = at

    def commit(self, **change: object) -> bool:  # type: ignore[override]
        if self.commits == self.at:
            raise KeyboardInterrupt
        return super().commit(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_delete_cut_off_midway_lets_no_old_result_come_back_and_the_next_completes_it(
    store: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback, "_BATCH", 5)
    flow(store, "other")
    before = content(store)
    flow(store)
    with pytest.raises(KeyboardInterrupt):
        History(Dying(store, at)).delete("r")
    there = "r" in [run.id for run in History(store).runs()]
    assert there == (at == 0)
    run = flow(store)
    assert ran(run) == ([] if there else ["clean", "load", "report", "train"])
    History(store).delete("r")
    assert content(store) == before


def test_a_running_run_is_neither_deleted_nor_renamed(store: str) -> None:
    with checkpoint_scope("r", store=store):
        with pytest.raises(UsageError, match="is running; stop it"):
            History(store).delete("r")
        with pytest.raises(UsageError, match="is running; stop it"):
            History(store).rename("r", "other")
    History(store).delete("r")
    with pytest.raises(UsageError, match="no run"):
        History(store).delete("r")


@pytest.mark.parametrize(
    "order", [("r", "child", "grandchild"), ("grandchild", "child", "r"), ("child", "r", "grandchild")]
)
def test_what_forks_need_stays_until_the_last_is_deleted(store: str, order: tuple[str, ...]) -> None:
    fork(flow(store), "child", at="after-clean")
    flow(store, "child")
    fork(History(store).run("child"), "grandchild", at="train")
    history = History(store)
    left = {"r", "child", "grandchild"}
    for run_id in order:
        history.delete(run_id)
        left.discard(run_id)
        for other in left:
            missing = ran(flow(store, other))
            assert missing in ([], ["report"]), f"{other} lost {missing} when {run_id} was deleted"
    assert [key for key in keys(store) if not key.startswith("code/")] == []


def test_rename_changes_the_id_and_nothing_else(store: str) -> None:
    run = flow(store)
    results = [c.result() for c in run.checkpoints if c.step]
    entries = keys(store, "node/")
    History(store).rename("r", "better name/1")
    assert keys(store, "node/") == entries
    assert [r.id for r in History(store).runs()] == ["better name/1"]
    renamed = flow(store, "better name/1")
    assert ran(renamed) == []
    assert [c.result() for c in renamed.checkpoints if c.step] == results
    assert renamed.checkpoints[0].id == "better name/1:2"
    assert [e.before for e in renamed.events() if isinstance(e, RunRenamed)] == ["r"]
    assert ran(flow(store)) == ["clean", "load", "report", "train"]


def test_rename_refuses_ids_that_are_taken_or_cannot_be(store: str) -> None:
    flow(store)
    flow(store, "other")
    before = content(store)
    for new, why in (("other", "already"), ("r", "already"), ("", "run id"), ("a\0", "run id")):
        with pytest.raises(UsageError, match=why):
            History(store).rename("r", new)
    with pytest.raises(UsageError, match="no run"):
        History(store).rename("nobody", "x")
    assert content(store) == before


def test_a_damaged_record_does_not_hide_the_other_runs(store: str) -> None:
    flow(store, "a")
    flow(store, "b")
    opened = History(store).store
    opened.commit(put={"run/a": [b"nonsense"]})
    with pytest.warns(CheckpointWarning, match=r"left out .* altered or signed with another key: a\."):
        assert [run.id for run in History(store).runs()] == ["b"]


def _left_open(record: records.Record) -> list[events.Event]:
    """As a scope leaves it that was killed."""
    record.open, record.ending = ["0000"], ""
    return [events.RunResumed()]


def test_a_list_with_a_limit_reads_the_events_of_no_more_runs_than_it_shows(store: str) -> None:
    for number in range(30):
        flow(store, f"r{number:02}")
        records.change(open_store(store), f"r{number:02}", _left_open)
    counting = Counting(store)
    listed = History(counting).runs(limit=3)
    assert [run.id for run in listed] == ["r29", "r28", "r27"]
    assert [run.status for run in listed] == ["killed"] * 3
    assert counting.kinds["run"] == 31  # one of them tells whether the store is encrypted
    assert counting.kinds["event"] == 2 * 3  # two that nobody has counted, of each
    flow(store, "newest")
    assert len(History(store).runs(status="killed", limit=5)) == 5
    assert History(store).runs(status="failed", limit=5) == []


def test_ids_are_listed_without_reading_records(store: str) -> None:
    for run_id in ("b", "a/1", "a 2", "a"):
        flow(store, run_id)
    history = History(store)
    assert history.run_ids() == ["a", "a 2", "a/1", "b"]
    assert history.run_ids("a ") == ["a 2"]
    assert history.run_ids("a", limit=2) == ["a", "a 2"]
