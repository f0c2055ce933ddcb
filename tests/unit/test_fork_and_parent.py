"""A fork keeps what it shares, whatever its parent does with it afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncemore import History, checkpoint_scope, checkpointed, current_run, fork
from oncemore.retention import keep_last
from tests.processes import Script
from tests.unit.pasts import both, keys, names, ran, store_url


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


def calls() -> list[str]:
    """Every body that ran, in order; in a file, as what a step reads of its module is part of its identity."""
    path = Path("calls")
    return path.read_text().split() if path.exists() else []


def call(name: str) -> int:
    """Which of all calls this is."""
    with open("calls", "a") as file:
        file.write(f"{name}\n")
    return len(calls())


@checkpointed
def plain(x: int) -> str:
    number = call("plain")
    return f"plain {number}"


@checkpointed
def reads(x: int) -> str:
    number = call("reads")
    return f"reads {current_run().state['rate']} {number}"


@checkpointed
def items(x: int) -> Iterator[str]:
    number = call("items")
    yield from (f"items {number} {n}" for n in range(x))


@checkpointed(outputs=["out.txt"])
def file(x: int) -> str:
    number = call("file")
    Path("out.txt").write_text(f"file {number}")
    return f"file {number}"


STEPS: dict[str, Any] = {"plain": plain, "reads": reads, "items": items, "file": file}


def value(step: str) -> Any:
    found = STEPS[step](3)
    if step == "items":
        return list(found)
    return (found, Path("out.txt").read_text()) if step == "file" else found


def go(store: str, run_id: str, step: str, meanwhile: Callable[[], None] = lambda: None) -> Any:
    with checkpoint_scope(run_id, store=store, state={"rate": 2}):
        meanwhile()
        return value(step)


def forget(step: str) -> None:
    assert STEPS[step].forget(3)


def refresh(step: str) -> None:
    again = STEPS[step].refresh(3)
    if step == "items":
        list(again)


WAYS = {"forgets": forget, "refreshes": refresh}


@pytest.mark.parametrize("when", ["closed", "open"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", STEPS)
def test_what_the_parent_forgets_or_does_again_stays_the_forks(store: str, step: str, way: str, when: str) -> None:
    first = go(store, "r", step)
    if when == "closed":
        fork(History(store).run("r"), "child")
        second = go(store, "r", step, lambda: WAYS[way](step))
    else:
        with checkpoint_scope("r", store=store, state={"rate": 2}) as run:
            assert value(step) == first
            fork(run, "child")
            WAYS[way](step)
            second = value(step)
    assert second != first and calls() == [step, step]
    assert go(store, "child", step) == first
    assert go(store, "r", step) == second
    assert go(store, "child", step) == first and calls() == [step, step]
    parent, child = (History(store).run(run_id) for run_id in ("r", "child"))
    assert names(parent.checkpoints) == names(child.checkpoints) == [step]
    assert parent.checkpoints[0].result() != child.checkpoints[0].result()
    assert [run.nodes for run in History(store).runs()] == [1, 1]


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_left_when_both_are_deleted(store: str, step: str) -> None:
    for order in (("r", "child"), ("child", "r")):
        first = go(store, "r", step)
        fork(History(store).run("r"), "child")
        go(store, "r", step, lambda: refresh(step))
        assert go(store, "child", step) == first
        for run_id in order:
            History(store).delete(run_id)
        assert [key for key in keys(store) if not key.startswith("code/")] == []


def test_an_expired_checkpoint_of_the_parent_is_replaced_beside_the_forks(store: str) -> None:
    @checkpointed(expires=0.2)
    def young(x: int) -> int:
        return call("young")

    for run_id in ("r", "child"):
        with checkpoint_scope(run_id, store=store) as run:
            assert young(1) == (1 if run_id == "r" else 3)
            if run_id == "r":
                fork(run, "child")
                time.sleep(0.25)
                assert young(1) == 2
    assert History(store).run("child").checkpoints[0].result() == 3  # its own: what it shares is expired, too
    assert [c.result() for c in History(store).run("r").checkpoints] == [2]


def test_a_parent_whose_loop_goes_on_leaves_the_fork_where_it_was(store: str) -> None:
    def count(run_id: str, until: int, at: Callable[[Any, int], None] = lambda run, n: None) -> list[int]:
        seen: list[int] = []
        with checkpoint_scope(run_id, store=store, state={"sum": 0}) as run:
            for n in run.loop("numbers", range(10)):
                if n == until:
                    break
                at(run, n)
                run.state["sum"] += n
                seen.append(n)
            assert run.state["sum"] == sum(range(min(until, 10)))
            assert seen == list(range(min(until, 10)))
        return seen[run.reused["numbers"] :]

    assert count("r", 3) == [0, 1, 2]
    fork(History(store).run("r"), "child")
    assert count("r", 10, lambda run, n: fork(run, "second") if n == 6 else None) == [3, 4, 5, 6, 7, 8, 9]
    assert count("child", 10) == [3, 4, 5, 6, 7, 8, 9]
    assert count("second", 10) == [6, 7, 8, 9]
    assert count("r", 10) == []


def test_forks_at_several_times_each_have_what_was_there_then(store: str) -> None:
    values = []
    for number in range(4):
        values.append(go(store, "r", "plain", lambda: refresh("plain") if number else None))
        fork(History(store).run("r"), f"child-{number}")
    assert len(set(values)) == 4
    assert [go(store, f"child-{number}", "plain") for number in range(4)] == values
    assert go(store, "r", "plain") == values[-1]


def test_what_was_refreshed_does_not_come_back_when_the_newer_one_is_pruned(store: str) -> None:
    for step in ("plain", "reads", "file"):
        run_id = f"r-{step}"
        first = go(store, run_id, step)
        fork(History(store).run(run_id), f"child-{step}")
        go(store, run_id, step, lambda: refresh(step))
        go(store, run_id, "items")
        History(store).prune(keep_last(1), runs=[run_id])
        assert names(History(store).run(run_id).checkpoints) == ["items"]
        before = len(calls())
        assert go(store, run_id, step) != first and len(calls()) == before + 1
        assert go(store, f"child-{step}", step) == first and len(calls()) == before + 1


def test_a_rollback_does_not_bring_back_what_was_replaced_or_forgotten_since_though_a_fork_has_it(store: str) -> None:
    first = go(store, "r", "plain")
    go(store, "r", "items")
    fork(History(store).run("r"), "child")
    second = go(store, "r", "plain", lambda: refresh("plain"))
    assert names(History(store).run("r").checkpoints) == ["items", "plain"]
    History(store).rollback("r", to="items")
    assert names(History(store).run("r").checkpoints) == ["items"]
    third = go(store, "r", "plain")
    assert third not in (first, second)
    fourth = go(store, "r", "plain", lambda: forget("plain"))
    History(store).undo_rollback("r")
    assert go(store, "r", "plain") == second
    assert go(store, "child", "plain") == first and len({first, second, third, fourth}) == 4


def test_one_that_was_replaced_between_two_moments_runs_again_instead_of_an_older_one(store: str) -> None:
    go(store, "r", "plain")
    fork(History(store).run("r"), "child")
    second = go(store, "r", "plain", lambda: refresh("plain"))
    go(store, "r", "items")
    third = go(store, "r", "plain", lambda: refresh("plain"))  # in place of the second
    History(store).rollback("r", to="items")
    assert names(History(store).run("r").checkpoints) == ["items"]
    assert go(store, "r", "plain") not in (second, third)


def test_what_is_forgotten_after_a_rollback_stays_forgotten_whatever_the_state(store: str) -> None:
    def at(rate: int, run_id: str = "r") -> tuple[str, int]:
        with checkpoint_scope(run_id, store=store, state={"rate": rate}) as run:
            return reads(3), run.ran["reads"]

    first = at(1)[0], at(2)[0]
    History(store).rollback("r", to="r:5")  # both count, in an earlier stretch
    assert at(1)[1] == at(2)[1] == 0
    with checkpoint_scope("r", store=store, state={"rate": 1}):
        assert reads.forget(3)
    assert at(1)[1] == 1 and at(2)[1] == 1 and at(2)[0] not in first
    assert at(1)[1] == at(2)[1] == 0


def test_a_fork_that_forgets_what_it_shares_leaves_the_parents(store: str) -> None:
    first = go(store, "r", "plain")
    fork(History(store).run("r"), "child")
    second = go(store, "child", "plain", lambda: forget("plain"))
    assert second != first
    assert go(store, "child", "plain") == second
    assert go(store, "r", "plain") == first and calls() == ["plain", "plain"]


def test_an_archive_of_a_fork_protects_it_in_a_store_that_has_the_parent(store: str) -> None:
    other = store_url("memory", "other")
    first = go(store, "r", "plain")
    fork(History(store).run("r"), "child")
    for run_id in ("r", "child"):
        History(store).export(f"{run_id}.zip", runs=[run_id])
        History(other).import_(f"{run_id}.zip")
    assert go(other, "r", "plain", lambda: refresh("plain")) != first
    assert go(other, "child", "plain") == first and calls() == ["plain", "plain"]


WORKS = """
from oncemore import checkpointed
@checkpointed
def work(n):
    print("working", n)
    return n
"""
PARENT = """
from oncemore import checkpoint_scope
from works import work
with checkpoint_scope("r", store="store") as run:
    for n in range(3): work(n)
    print("ready")
    import os, time
    while not os.path.exists("forked"): time.sleep(0.01)
    work.refresh(0)
    work.forget(1)
    work(1)
    for n in range(2, 5): work(n)
    print("done")
"""
CHILD = """
from oncemore import checkpoint_scope
from works import work
with checkpoint_scope("child", store="store") as run:
    for n in range(5): work(n)
"""


def test_a_parent_that_is_running_in_another_process_leaves_the_fork_what_it_shares(script: Script) -> None:
    os.chdir(script.folder)
    script.write(WORKS, "works.py")
    running = script.start(PARENT, name="parent.py")
    running.wait_for("ready")
    History("store").fork("r", "child")
    Path("forked").touch()
    told = running.finish(0)
    assert told.lines.count("working 0") == told.lines.count("working 1") == 2 and told.lines.count("working 2") == 1
    child = script(CHILD, name="child.py")
    assert child.lines == ["working 3", "working 4"]
    assert script(name="parent.py").lines == ["ready", "working 0", "working 1", "done"]  # it asks for them anew
    assert [c.node.split("-")[0] for c in History("store").run("r").checkpoints] == ["work"] * 5
    assert {run.id: run.nodes for run in History("store").runs()} == {"r": 5, "child": 5}


def test_a_run_that_forked_and_went_on_is_listed_with_each_node_once(store: str) -> None:
    with checkpoint_scope("r", store=store, state={"rate": 2}) as run:
        plain(1)
        for number in range(5):
            fork(run, f"child-{number}")
            plain.refresh(1)
    assert names(run.checkpoints) == ["plain"]
    assert ran(run) == ["plain"] * 6
    assert {r.nodes for r in History(store).runs()} == {1}
