"""Retention: what a policy keeps, what goes with the rest, and that nothing goes unasked."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from oncemore import History, UsageError, checkpoint_scope, checkpointed, current_run, fork
from oncemore.events import CheckpointsPruned
from oncemore.history.checkpoints import Checkpoint
from oncemore.retention import (
    Policy,
    at_most,
    at_most_bytes,
    keep_first,
    keep_last,
    keep_latest_of_each_name,
    keep_named,
    keep_newer_than,
    pinned,
)
from tests.processes import Script
from tests.unit.pasts import both, content, flow, keys, names, ran, store_url, values


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


@checkpointed
def noise(n: int, size: int = 10) -> bytes:
    return os.urandom(size)


@checkpointed
def put(key: str, value: Any) -> None:
    run = current_run()
    assert run is not None
    run.state[key] = value


@checkpointed
def many(n: int) -> Any:
    for i in range(n):
        yield i


@checkpointed(outputs=["{path}"])
def file(path: str, size: int) -> int:
    Path(path).write_bytes(os.urandom(size))
    return size


def made(**facts: Any) -> Checkpoint:
    known: dict[str, Any] = {name: None for name in Checkpoint.__dataclass_fields__}
    known.update(index=0, run="r", metadata={}, pinned=False, stored_bytes=10, time=datetime.now(timezone.utc))
    return Checkpoint(**{**known, **facts})


DAY = timedelta(days=1)
NOW = datetime.now(timezone.utc)
SIX = [
    made(id="0", step="a", time=NOW - 60 * DAY),
    made(id="1", name="n", time=NOW - 50 * DAY, stored_bytes=0),
    made(id="2", step="a", time=NOW - 40 * DAY, pinned=True),
    made(id="3", step="b", time=NOW - 20 * DAY, stored_bytes=100),
    made(id="4", name="n", time=NOW - 10 * DAY, stored_bytes=0),
    made(id="5", step="c", time=NOW),
]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (keep_first(), "0"),
        (keep_first(2), "01"),
        (keep_last(), "5"),
        (keep_last(20), "012345"),
        (keep_latest_of_each_name(), "2345"),
        (keep_newer_than("30d"), "345"),
        (keep_named(), "14"),
        (pinned, "2"),
        (at_most(2), "45"),
        (at_most_bytes(10), "45"),
        (at_most_bytes(110), "345"),
        (at_most_bytes(0), ""),
        (keep_first() | keep_last(2) | pinned, "0245"),
        (
            keep_first() | keep_last(20) | keep_latest_of_each_name() | keep_newer_than("30d") | keep_named() | pinned,
            "012345",
        ),
        (keep_named() & keep_newer_than("30d"), "4"),
        ((keep_named() | pinned) & at_most(2), "24"),
        (at_most(2) & (keep_named() | pinned), "4"),
        (keep_first() | (keep_named() & at_most(1)), "04"),
    ],
    ids=str,
)
def test_policies_compose(policy: Policy, kept: str) -> None:
    assert policy.keeps(SIX) == set(kept)


def test_a_policy_says_what_it_is() -> None:
    assert repr(keep_first() | keep_last(20) & at_most(3)) == "keep_first(1) | (keep_last(20)) & at_most(3)"


@pytest.mark.parametrize("wrong", [keep_first(0), keep_last(-1), at_most(0)], ids=str)
def test_a_policy_that_would_keep_none_is_refused(wrong: Policy) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        wrong.keeps(SIX)


def test_prune_removes_what_the_policy_does_not_keep(store: str) -> None:
    run = flow(store)
    result = History(store).prune(keep_last(2))
    assert names(run.checkpoints) == ["train", "report"]
    assert result.checkpoints == ("r:2", "r:3", "r:4") and result.bytes > 0 and not result.dry_run
    assert len(values(store)) == 2
    assert [e.checkpoints for e in run.events() if isinstance(e, CheckpointsPruned)] == [[2, 3, 4]]
    assert ran(flow(store)) == ["clean", "load"]


def test_a_dry_run_says_what_would_go_and_removes_nothing(store: str) -> None:
    flow(store)
    before = content(store)
    planned = History(store).prune(keep_last(2), dry_run=True)
    assert content(store) == before
    done = History(store).prune(keep_last(2))
    assert planned.dry_run and (planned.checkpoints, planned.bytes) == (done.checkpoints, done.bytes)


def test_only_the_runs_that_are_named_are_pruned(store: str) -> None:
    for run_id in ("a", "b"):
        flow(store, run_id)
    History(store).prune(keep_last(1), runs=["a"])
    assert [len(History(store).run(run_id).checkpoints) for run_id in ("a", "b")] == [1, 5]


def test_nothing_is_removed_unasked(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        for n in range(100):
            noise(n)
    assert len(run.checkpoints) == len(keys(store, "node/")) == 100


def test_at_most_so_many_stay_as_the_scope_goes(store: str) -> None:
    with checkpoint_scope("r", store=store, max_checkpoints=5) as run:
        for n in range(100):
            noise(n)
            assert len(run.checkpoints) <= 5 + 32
    assert len(run.checkpoints) == 5
    assert len(values(store)) == 5
    (record,) = History(store).runs()
    assert record.nodes == 5


def test_a_scopes_policy_and_limit_go_together(store: str) -> None:
    with checkpoint_scope("r", store=store, retention=keep_named() | pinned, max_checkpoints=2) as run:
        for n in range(4):
            noise(n)
            run.state["n"] = n
            run.checkpoint(f"c{n}")
    assert names(run.checkpoints) == ["c2", "c3"]
    assert [c.state() for c in run.checkpoints] == [{"n": 2}, {"n": 3}]


def test_a_state_that_comes_back_after_its_snapshot_was_removed_is_kept_again(store: str) -> None:
    with checkpoint_scope("r", store=store, retention=pinned) as run:
        run.state["n"] = 1
        for n in range(40):
            run.checkpoint(f"c{n}")
        run.checkpoint("kept", pinned=True)
    assert run.checkpoints.latest("kept").state() == {"n": 1}


def test_pins_can_be_set_and_taken_back(store: str) -> None:
    run = flow(store)
    history = History(store)
    history.pin("r", "train")
    history.pin("r", "load")
    history.pin("r", "load", pinned=False)
    history.prune(pinned)
    assert names(run.checkpoints) == ["train"]


def test_a_snapshot_stays_while_a_checkpoint_that_stays_has_it(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["n"] = 1
        run.checkpoint("a")
        run.checkpoint("b")
    History(store).prune(keep_last(1))
    assert [(c.name, c.state()) for c in run.checkpoints] == [("b", {"n": 1})]


def test_what_a_rollback_put_aside_keeps_its_state(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["n"] = 1
        for name in ("a", "b", "c"):
            run.checkpoint(name)
    history = History(store)
    history.rollback("r", to="b")
    with checkpoint_scope("r", store=store) as run:
        run.state["n"] = 2
        run.checkpoint("d")
    history.prune(keep_last(1))
    history.undo_rollback("r")
    assert [(c.name, c.state()) for c in run.checkpoints] == [("c", {"n": 1})]


def test_the_items_of_a_generator_go_with_it(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        list(many(10))
        noise(1)
    History(store).prune(keep_last(1))
    assert len(values(store)) == 1
    with checkpoint_scope("r", store=store) as run:
        assert list(many(10)) == list(range(10))
    assert run.ran["many"] == 1


def test_what_forks_need_stays_and_a_dry_run_knows(store: str) -> None:
    parent = flow(store)
    fork(parent, "child", at="after-clean")
    history = History(store)
    planned = history.prune(keep_last(1), dry_run=True)
    assert planned.checkpoints == ("r:5",)
    assert history.prune(keep_last(1)).checkpoints == ("r:5",)
    assert ran(flow(store, "child")) == ["report", "train"]


def test_what_a_fork_could_get_back_by_undoing_stays(store: str) -> None:
    fork(flow(store), "child", at="train")
    history = History(store)
    history.rollback("child", to="load")
    history.prune(keep_last(1), runs=["r"])
    history.undo_rollback("child")
    assert ran(flow(store, "child")) == ["report"]


def test_a_fork_does_not_remove_what_is_its_parents(store: str) -> None:
    parent = flow(store)
    fork(parent, "child", at="train")
    flow(store, "child")
    History(store).prune(keep_last(1), runs=["child"])
    assert len(parent.checkpoints) == 5
    assert ran(flow(store)) == []


def test_one_prune_of_all_runs_leaves_nothing_that_no_run_reaches(store: str) -> None:
    history = History(store)
    flow(store)
    history.rollback("r", to="load")
    fork(history.run("r"), "s")  # looked at after its parent
    history.undo_rollback("r")  # only the fork reaches what the rollback left ...
    history.rollback("s", to="load")
    history.undo_rollback("s")
    flow(store, "s")  # ... and now the fork does not, either
    assert history.verify().findings
    history.prune(keep_last(99))
    assert history.verify().findings == ()


def test_a_run_that_is_running_is_skipped_and_said_so(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        for n in range(3):
            noise(n)
        result = History(store).prune(keep_last(1))
        assert (result.checkpoints, result.skipped) == ((), ("r",))
        assert len(run.checkpoints) == 3


RUNNING = """
from oncemore import checkpoint_scope, checkpointed
@checkpointed
def work(n): return n
with checkpoint_scope("r", store="store") as run:
    first = [work(n) for n in range(10)]
    print("ready")
    import time; time.sleep(60)
"""


def test_a_run_of_another_process_is_skipped_until_that_is_dead(script: Script) -> None:
    running = script.start(RUNNING)
    running.wait_for("ready")
    history = History("store")
    assert history.prune(keep_last(1)).skipped == ("r",)
    running.kill()
    assert len(history.prune(keep_last(1)).checkpoints) == 9


def usage(path: str) -> int:
    return int(subprocess.run(["du", "-sk", path], capture_output=True, text=True, check=True).stdout.split()[0])


@pytest.mark.parametrize("size", [4_000, 200_000], ids=["in the database", "in files"])
@pytest.mark.parametrize("how", ["prune", "delete"])
def test_space_is_given_back_to_the_file_system(tmp_path: Path, size: int, how: str) -> None:
    store, total = str(tmp_path / "store"), 3_000_000
    flow(store, "small")
    before = usage(store)
    with checkpoint_scope("r", store=store):
        for n in range(total // size):
            noise(n, size)
    full = usage(store)
    assert full - before > total / 1024 * 0.8
    history = History(store)
    history.prune(keep_last(1), runs=["r"]) if how == "prune" else history.delete("r")
    assert usage(store) - before < (full - before) * 0.2


def test_the_contents_of_files_go_with_the_last_checkpoint_that_has_them(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        file("one", 100_000)
        put("x", 1)
        file("two", 100_000)
    assert keys(store, "blob/")
    History(store).prune(keep_last(1))
    Path("two").unlink()
    with checkpoint_scope("r", store=store) as run:
        file("two", 100_000)
    assert run.ran["file"] == 0 and Path("two").stat().st_size == 100_000
    History(store).delete("r")
    assert keys(store, "blob/") == keys(store, "files/") == []


def test_the_summary_in_the_list_of_runs_shrinks_with_what_was_removed(store: str) -> None:
    flow(store)
    (before,) = History(store).runs()
    History(store).prune(keep_last(2))
    (pruned,) = History(store).runs()
    assert pruned.nodes == 2 and pruned.bytes < before.bytes
    flow(store)
    (again,) = History(store).runs()
    assert again.nodes == 4 and again.bytes > pruned.bytes


def test_a_checkpoint_just_made_has_its_place_among_those_that_are_left(store: str) -> None:
    with checkpoint_scope("r", store=store, max_checkpoints=3) as run:
        for n in range(70):
            run.state["n"] = n
            made = run.checkpoint("tick")
            if len(run.checkpoints) > 3:
                assert run.checkpoints[made.index] == made
