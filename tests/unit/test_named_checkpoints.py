"""Checkpoints by name: what they hold, how they are found, and going back to one."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from oncemore import CheckpointWarning, File, NotRecorded, Run, UsageError, checkpoint_scope, checkpointed, current_run
from oncemore.events import CheckpointSaved
from tests.processes import Script
from tests.unit.pasts import both, flow, names, ran, store_url


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


@checkpointed
def note(key: str, value: Any) -> Any:
    run = current_run()
    assert run is not None
    run.state[key] = value
    return list(value) if isinstance(value, list) else value


@checkpointed
def squares(n: int) -> Any:
    for i in range(n):
        yield i * i


@checkpointed
def written(text: str) -> File:
    with open("out.txt", "w") as file:
        file.write(text)
    return File("out.txt")


def test_a_named_checkpoint_has_all_that_is_known_of_it(store: str) -> None:
    before = datetime.now(timezone.utc)
    with checkpoint_scope("r", store=store, workflow="etl") as run:
        note("n", 1)
        made = run.checkpoint("after-clean", metadata={"rows": 3, "tags": ["a"]}, next_node="train")
        run.state["n"] = 2
    assert made == run.checkpoints.get("r:3")
    assert (made.id, made.index, made.run, made.workflow) == ("r:3", 1, "r", "etl")
    assert (made.name, made.node, made.step, made.next_node) == ("after-clean", None, None, "train")
    assert made.metadata == {"rows": 3, "tags": ["a"]}
    assert before <= made.time <= datetime.now(timezone.utc)
    assert made.state() == {"n": 1}
    with pytest.raises(NotRecorded, match="no result"):
        made.result()


def test_every_completed_node_is_a_checkpoint_with_result_and_state(store: str) -> None:
    run = flow(store)
    assert names(run.checkpoints) == ["load", "clean", "after-clean", "train", "report"]
    assert [c.index for c in run.checkpoints] == [0, 1, 2, 3, 4]
    assert [c.result() for c in run.checkpoints if c.step] == [1, 2, 20, "report 20"]
    assert [c.state() for c in run.checkpoints] == [{}, *[{"clean": 1}] * 4]
    assert run.checkpoints[1].node.startswith("clean-")


def test_the_result_of_a_generator_and_of_a_file_can_be_had(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        list(squares(4))
        written("hello")
    many, file = run.checkpoints
    assert many.result() == [0, 1, 4, 9]
    assert isinstance(file.result(), File)


def test_each_result_and_state_is_a_fresh_copy(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        note("list", [1])
    (checkpoint,) = run.checkpoints
    checkpoint.result().append(2)
    checkpoint.state()["list"].append(2)
    assert checkpoint.result() == [1] and checkpoint.state() == {"list": [1]}


def test_checkpoints_are_a_sequence(store: str) -> None:
    run = flow(store)
    every = run.checkpoints
    assert len(every) == 5
    assert list(every) == [every[i] for i in range(5)]
    assert every.first == every[0] and every.latest() == every[-1]
    assert names(every[1:3]) == ["clean", "after-clean"]
    assert every[2] in every


def test_an_empty_run_has_none(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        assert len(run.checkpoints) == 0
        assert run.checkpoints.first is None and run.checkpoints.latest() is None
        assert run.checkpoints.latest("x") is None and run.checkpoints.get("r:1") is None
        assert run.checkpoints.named("x") == []
        with pytest.raises(UsageError, match="no checkpoint"):
            run.restore()


def test_they_are_found_by_name_newest_first_and_by_node(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        for n in range(3):
            run.state["n"] = n
            run.checkpoint("tick")
            note("seen", n)
        run.checkpoint("end")
    assert [c.state()["n"] for c in run.checkpoints.named("tick")] == [2, 1, 0]
    assert run.checkpoints.latest("tick").state()["n"] == 2
    assert run.checkpoints.latest().name == "end"
    newest = run.checkpoints.latest(run.checkpoints[1].step)
    assert newest.result() == 2
    assert run.checkpoints.of(newest.node) == [newest]
    assert [c.result() for c in run.checkpoints.of(newest.step)] == [0, 1, 2]


def test_since_and_between_go_by_time_both_ends_included(store: str) -> None:
    run = flow(store)
    every = run.checkpoints
    assert list(every.since(every[2].time)) == list(every)[2:]
    assert list(every.since(every[2].time.timestamp()))[-1] == every[-1]
    assert list(every.between(every[1].time, every[3].time)) == list(every)[1:4]
    assert list(every.since(datetime.now() + timedelta(hours=1))) == []
    assert list(every.between(every[-1].time + timedelta(seconds=1), every[-1].time + timedelta(seconds=2))) == []


def test_a_resumed_run_that_comes_by_again_finds_the_checkpoint_that_is_there(store: str) -> None:
    ids = [c.id for c in flow(store).checkpoints]
    again = flow(store)
    assert ran(again) == []
    assert [c.id for c in again.checkpoints] == ids


def test_the_same_name_with_another_state_is_another_checkpoint(store: str) -> None:
    for n in (1, 2):
        with checkpoint_scope("r", store=store) as run:
            run.state["n"] = n
            run.checkpoint("here")
    assert [c.state() for c in run.checkpoints] == [{"n": 1}, {"n": 2}]


def test_two_checkpoints_of_one_name_and_state_stay_two_when_the_run_comes_by_again(store: str) -> None:
    for _ in range(2):
        with checkpoint_scope("r", store=store) as run:
            made = [run.checkpoint("twice").id, run.checkpoint("twice").id]
        assert made == ["r:2", "r:3"]
    assert len(run.checkpoints) == 2


def test_metadata_that_is_no_json_is_refused(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        with pytest.raises(TypeError):
            run.checkpoint("bad", metadata={"x": object()})
        assert len(run.checkpoints) == 0


def test_restore_puts_state_back_and_says_where_to_go_on(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        for n, following in ((1, "two"), (2, "three")):
            run.state.replace({"n": n, f"only{n}": True})
            run.checkpoint(f"step{n}", next_node=following)
        run.state["n"] = 99
        assert run.restore("step1").next_node == "two"
        assert dict(run.state) == {"n": 1, "only1": True}
        assert run.restore("r:3").next_node == "three"
        assert dict(run.state) == {"n": 2, "only2": True}
        run.state.clear()
        assert run.restore().name == "step2"
        assert dict(run.state) == {"n": 2, "only2": True}
        with pytest.raises(UsageError, match="'nowhere'.*step1, step2"):
            run.restore("nowhere")


def test_restore_puts_the_random_generators_back(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        random.seed(5)
        np.random.seed(5)
        run.checkpoint("seeded")
        drawn = random.random(), np.random.random()
        run.restore("seeded")
        assert (random.random(), np.random.random()) == drawn


def test_restore_to_a_node_puts_the_state_as_it_was_after_it(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        note("a", 1)
        node = run.checkpoints[0].node
        note("b", 2)
        run.restore(node)
        assert dict(run.state) == {"a": 1}


AGENT = """
import random, sys
from oncemore import checkpoint_scope
def plan(state): state["plan"] = random.random(); return "act"
def act(state): state["acts"] = state.get("acts", []) + [random.random()]; return "act" if len(state["acts"]) < 4 else "end"
with checkpoint_scope("agent", store="store") as run:
    node = "plan"
    if len(run.checkpoints):
        node = run.restore().next_node
    else:
        random.seed(1)
    while node != "end":
        print("node", node)
        following = {"plan": plan, "act": act}[node](run.state)
        run.checkpoint(node, next_node=following)
        if len(sys.argv) > 1 and len(run.checkpoints) == int(sys.argv[1]):
            print("half way"); sys.stdin.close(); import time; time.sleep(60)
        node = following
    print("answer", dict(run.state))
"""


def test_an_agent_loop_that_was_killed_jumps_to_the_next_node(script: Script) -> None:
    script.write(AGENT.replace('"agent"', '"whole"'), name="whole.py")
    whole = script(name="whole.py")
    script.write(AGENT)
    running = script.start(None, "3")
    running.wait_for("half way")
    running.kill()
    rest = script(name="script.py")
    assert [line for line in whole.lines if line.startswith("node")] == ["node plan", *["node act"] * 4]
    assert [line for line in rest.lines if line.startswith("node")] == ["node act"] * 2
    assert rest.lines[-1] == whole.lines[-1]


def damage(run: Run, name: str) -> None:
    """Alter the newest snapshot of a name."""
    key = run.checkpoints.named(name)[0].snapshot
    data = bytes(run.store.get(key) or b"")
    run.store.commit(put={key: [data[:-1] + bytes([data[-1] ^ 1])]})


def test_a_damaged_newest_snapshot_gives_way_to_the_one_before_with_a_warning(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        for n in range(3):
            run.state["n"] = n
            run.checkpoint("tick")
        damage(run, "tick")
        with pytest.warns(CheckpointWarning, match="checkpoint r:4 cannot be restored, so an earlier one is used"):
            assert run.restore().id == "r:3"
        assert dict(run.state) == {"n": 1}
        with pytest.warns(CheckpointWarning, match="r:4"):
            assert run.restore("tick").id == "r:3"


def test_a_damaged_snapshot_that_was_asked_for_by_id_is_not_replaced_by_another(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        for n in range(2):
            run.state["n"] = n
            run.checkpoint("tick")
        damage(run, "tick")
        with (
            pytest.warns(CheckpointWarning, match="r:3"),
            pytest.raises(UsageError, match="no usable checkpoint 'r:3'"),
        ):
            run.restore("r:3")


def test_listeners_hear_of_each_checkpoint(store: str) -> None:
    heard: list[str] = []
    with checkpoint_scope("r", store=store) as run:
        run.on(CheckpointSaved, lambda event: heard.append(event.name))
        run.checkpoint("one")
        run.checkpoint("two")
    assert heard == ["one", "two"]


def test_equal_states_are_kept_once(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["big"] = list(range(1000))
        for n in range(10):
            run.checkpoint(f"c{n}")
    assert len({c.snapshot for c in run.checkpoints}) == 1
    assert all(c.state() == {"big": list(range(1000))} for c in run.checkpoints)
