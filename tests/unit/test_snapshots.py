"""When the state gets a snapshot, and going back to where it has none."""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

import pytest

from oncemore import (
    CheckpointWarning,
    History,
    NotRecorded,
    Run,
    StoreError,
    UsageError,
    checkpoint_scope,
    checkpointed,
    current_run,
    fork,
)
from oncemore.events import StateSaved
from oncemore.retention import keep_last
from oncemore.stores.memory import MemoryStore
from oncemore.surroundings.snapshots import Snapshots
from tests.processes import Script
from tests.unit.pasts import both, store_url

LARGE = 20_000


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


@pytest.fixture
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """No work is enough for a snapshot of a large state between steps, however slow the machine is."""
    monkeypatch.setattr("oncemore.surroundings.snapshots._SHARE", float("inf"))


@checkpointed
def idle(n: int) -> int:
    return n


@checkpointed
def append(item: str) -> int:
    run = current_run()
    assert run is not None
    run.state["items"].append(item)
    return len(run.state["items"])


class Counted:
    """Counts how often it is pickled or identified."""

    times = 0

    def __reduce__(self) -> Any:
        type(self).times += 1
        return Counted, ()


def snapshots(run: Run) -> list[int]:
    """The sizes of the snapshots that are stored."""
    return [len(data or b"") for key, data in run.store.scan("state/") if not key.endswith("/opening")]


class Clock:
    """Stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_beside_a_large_state_does_not_read_it(store: str) -> None:
    Counted.times = 0
    with checkpoint_scope("r", store=store) as run:
        run.state["items"] = [f"item {n}" for n in range(LARGE)]
        run.state["counted"] = Counted()
        for n in range(10):
            idle(n)
        assert Counted.times == 0 and snapshots(run) == []
    assert Counted.times > 0


@pytest.mark.parametrize("value", [b"x" * 5000, {"deep": ["x" * 3000, "y" * 3000]}, set(range(3000))])
def test_whatever_makes_a_state_large_it_is_not_kept_after_every_step(store: str, value: Any) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["value"] = value
        for n in range(5):
            idle(n)
        assert snapshots(run) == []


def test_an_array_makes_a_state_large(store: str) -> None:
    np = pytest.importorskip("numpy")
    with checkpoint_scope("r", store=store) as run:
        run.state["array"] = np.zeros((1000, 1000))[:, ::2]
        for n in range(5):
            idle(n)
        assert snapshots(run) == []


def test_a_small_state_is_kept_after_every_step_that_changed_it(store: str) -> None:
    with checkpoint_scope("r", store=store, state={"items": []}) as run:
        for n in range(4):
            append(f"item {n}")
            idle(n)
        assert [c.state()["items"][-1] for c in run.checkpoints] == [f"item {n // 2}" for n in range(8)]
        assert len(snapshots(run)) == 4
    assert not any(isinstance(event, StateSaved) for event in run.events())


def test_a_state_that_has_become_small_is_kept_after_every_step_again() -> None:
    with checkpoint_scope("r", store="memory://shrinks") as run:
        run.state["items"] = ["x"] * LARGE
        idle(-1)
        run.state["items"] = ["y"]
        for n in range(40):
            idle(n)
        assert run.checkpoints[-1].state() == {"items": ["y"]}


def test_a_large_state_is_kept_when_that_is_cheap_beside_the_work() -> None:
    clock = Clock()
    policy, state = Snapshots(clock), {"items": ["x"] * 10_000}
    assert not policy.due(state)
    clock.now = 1e6
    assert not policy.due(state)  # time, but nothing that the steps have stored
    policy.written(policy.nearest(), 10**9)
    assert policy.due(state)
    clock.now = 0.5
    assert not policy.due(state)  # the other way round


def test_the_cost_of_the_last_snapshot_decides_when_the_next_is_due() -> None:
    clock = Clock()
    with checkpoint_scope("r", store="memory://cost") as run:
        run.state["items"] = [f"item {n}" for n in range(LARGE)]
        run._session.snapshots = policy = Snapshots(clock)
        taken = run._session.snapshot()
        assert taken.entry is not None
        policy.written(taken._replace(seconds=2.0))
        policy.written(policy.nearest(), taken.entry.stored_bytes - 1)
        clock.now = 40.0
        assert not policy.due(run.state._values)
        policy.written(policy.nearest(), 1)
        assert policy.due(run.state._values)
        clock.now = 39.0
        assert not policy.due(run.state._values)


def grow(run: Run, steps: int) -> tuple[int, int]:
    """The bytes of all snapshots, and of the last state, after so many steps, each beside one more item."""
    run.state["items"], noise, clock = [], random.Random(1), Clock()
    run._session.snapshots = Snapshots(clock)
    for n in range(steps):
        clock.now += 1000.0  # time is never short: only bytes count
        run.state["items"].append(noise.randbytes(1000))
        idle(n)
    sizes = snapshots(run)
    taken = run._session.snapshot()
    assert taken.entry is not None
    return sum(sizes), taken.entry.stored_bytes


def test_snapshots_of_a_growing_state_take_a_small_multiple_of_its_size() -> None:
    for steps in (50, 200, 800):
        with checkpoint_scope("r", store=f"memory://grows-{steps}") as run:
            stored, last = grow(run, steps)
            assert 0 < stored < 3 * last


def test_a_large_state_that_has_not_changed_is_not_stored_again() -> None:
    with checkpoint_scope("r", store="memory://unchanged") as run:
        run.state["items"] = [f"item {n}" for n in range(2000)]
        clock = Clock()
        run._session.snapshots = Snapshots(clock)
        for n in range(200):
            clock.now += 1000.0
            idle(n)
        assert len(snapshots(run)) == 1
        assert run.checkpoints[-1].state() == run.state


@pytest.mark.usefixtures("rarely")
def test_going_back_to_a_step_without_a_snapshot_takes_the_nearest_before_it_and_says_so(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["items"] = [f"item {n}" for n in range(LARGE)]
        run.checkpoint("base")
        append("first")
        held = run.state["items"]
        held.append("by the script")
        idle(1)
        with pytest.warns(
            CheckpointWarning, match=r"r:4 \(idle\) has no state of its own. Restored .* that of r:2 \(base\)"
        ):
            found = run.restore("idle")
        assert (found.id, found.name, found.behind) == ("r:2", "base", 0)
        assert run.state["items"] == [f"item {n}" for n in range(LARGE)] == found.state()["items"]
        wanted = run.checkpoints.find("idle")
        assert wanted.behind == 2
        with pytest.raises(NotRecorded, match=r"r:4 has no state of its own.*run\.checkpoint"):
            wanted.state()


def test_going_back_takes_the_snapshot_of_the_step_before(store: str) -> None:
    with checkpoint_scope("r", store=store, state={"items": ["small"]}) as run:
        idle(0)
        run.state["items"] = ["x"] * LARGE
        idle(1)
        with pytest.warns(CheckpointWarning, match="that of r:2"):
            assert run.restore(run.checkpoints[1].id).id == "r:2"
        assert run.state["items"] == ["small"]
        idle(2)
        assert run.checkpoints[-1].state() == {"items": ["small"]}  # it is small again


def test_where_there_is_no_snapshot_before_a_step_nothing_is_restored(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["items"] = ["x"] * LARGE
        idle(0)
        with pytest.raises(UsageError, match="no earlier snapshot"):
            run.restore("idle")
        with pytest.raises(UsageError, match="there is no checkpoint to restore"):
            run.restore()


def test_a_scope_leaves_a_snapshot_at_its_end(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["items"] = ["x"] * LARGE
        append("last")
        run.state["more"] = 1
    end = run.checkpoints[-1]
    assert (end.id, end.name, end.step, end.behind) == ("r:3", None, None, 0)
    assert end.state() == {"items": [*["x"] * LARGE, "last"], "more": 1}
    with checkpoint_scope("r", store=store) as run:
        assert run.restore().id == "r:3"
        assert run.state["more"] == 1
        made = run.checkpoint("named")
        assert (made.id, made.index) == ("r:6", 2)  # RunFinished and RunResumed are between
    assert run.checkpoints[-1].id == "r:6"  # no step has run since, so nothing was added
    assert History(store).verify().well


def test_a_scope_that_fails_leaves_one_too(store: str) -> None:
    def fails() -> None:
        with checkpoint_scope("r", store=store, state={"items": ["x"] * LARGE}):
            append("last")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert History(store).run("r").checkpoints[-1].state()["items"][-1] == "last"


def test_a_state_that_cannot_be_kept_is_no_empty_one(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["lock"] = threading.Lock()
        idle(0)
        with pytest.raises(NotRecorded, match="no state of its own"):
            run.checkpoints[0].state()
        del run.state["lock"]
    assert [c.behind for c in run.checkpoints] == [1]


@pytest.mark.usefixtures("rarely")
def test_a_snapshot_stays_while_a_step_that_stays_has_none_nearer(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["items"] = ["x"] * LARGE
        run.checkpoint("base")
        append("item")
        run.checkpoint("ended")
    history = History(store)
    history.rollback("r", to="append")
    history.prune(keep_last(1))
    assert history.verify().well
    with checkpoint_scope("r", store=store) as run:
        assert [c.step for c in run.checkpoints] == ["append"]
        with pytest.warns(CheckpointWarning, match="Restored the nearest earlier state"):
            assert run.restore().behind == 1
        assert run.state["items"] == ["x"] * LARGE


@pytest.mark.usefixtures("rarely")
def test_a_fork_goes_back_as_its_parent_does(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["items"] = ["x"] * LARGE
        run.checkpoint("base")
        append("item")
        fork(run, "f", at="append")
    with checkpoint_scope("f", store=store) as run:
        with pytest.warns(CheckpointWarning, match=r"that of r:2 \(base\)"):
            run.restore("append")
        assert run.state["items"] == ["x"] * LARGE


@pytest.mark.usefixtures("rarely")
def test_what_is_carried_to_another_store_goes_back_there(store: str, tmp_path: Any) -> None:
    with checkpoint_scope("r", store=store) as run:
        run.state["items"] = ["x"] * LARGE
        run.checkpoint("base")
        append("item")
    History(store).export(tmp_path / "archive")
    History(store).export_json(tmp_path / "json")
    for number, load in enumerate(("import_", "import_json")):
        other = History(tmp_path / f"carried-{number}")
        getattr(other, load)(tmp_path / ("archive" if load == "import_" else "json"))
        assert other.verify().well
        assert other.run("r").checkpoints[-1].state()["items"][-1] == "item"
        with checkpoint_scope("r", store=other.store) as run, pytest.warns(CheckpointWarning, match="r:2"):
            assert run.restore(run.checkpoints[1].id).name == "base"


class Full(MemoryStore):
    """A store that takes no checkpoints as long as it is full."""

    full = False

    def commit(self, **changes: Any) -> bool:
        if self.full and changes.get("put"):
            raise StoreError("disk full")
        return super().commit(**changes)


def test_a_snapshot_that_could_not_be_written_is_not_referred_to() -> None:
    store = Full("memory://full")
    with checkpoint_scope("r", store=store, state={"n": 1}) as run:
        store.full = True
        with pytest.warns(CheckpointWarning, match="disk full"):
            idle(1)
        store.full = False
        idle(2)
    assert [c.state() for c in run.checkpoints] == [{"n": 1}]


@pytest.mark.usefixtures("rarely")
def test_a_scope_with_a_limit_keeps_what_its_checkpoints_need(store: str) -> None:
    with checkpoint_scope("r", store=store, state={"items": ["x"] * LARGE}, max_checkpoints=3) as run:
        run.checkpoint("base")
        for n in range(70):
            append(f"item {n}")
    assert [c.step for c in run.checkpoints] == ["append", "append", None]
    assert run.checkpoints[-1].state() == run.state
    assert History(store).verify().well


@pytest.mark.usefixtures("rarely")
def test_threads_keep_their_steps_beside_one_large_state(store: str) -> None:
    with checkpoint_scope("r", store=store, state={"items": ["x"] * LARGE}) as run:
        run.checkpoint("base")
        run.map(idle, range(100))
        assert all(c.behind for c in run.checkpoints[1:])
        assert {c.snapshot for c in run.checkpoints} == {run.checkpoints[0].snapshot}
    assert run.checkpoints[-1].state() == run.state


KILLED = f"""
import sys
from oncemore import checkpoint_scope, checkpointed, current_run
@checkpointed
def append(n):
    current_run().state["items"].append(n)
with checkpoint_scope("r", store="store", state={{"items": ["x"] * {LARGE}}}) as run:
    for n in range(6):
        append(n)
        if n == 3 and len(sys.argv) > 1:
            print("half way"); sys.stdin.read()
    print(run.state["items"][-6:], len(run.state["items"]), dict(run.ran), [c.behind for c in run.checkpoints])
"""


def test_a_killed_run_goes_on_without_a_snapshot(script: Script) -> None:
    script.write(KILLED)
    running = script.start(None, "stop")
    running.wait_for("half way")
    running.kill()
    rest = script()
    assert rest.lines[-1] == f"[0, 1, 2, 3, 4, 5] {LARGE + 6} {{'append': 2}} [1, 2, 3, 4, 1, 2]"


class Row:
    def __init__(self) -> None:
        self.cells = [1]


ROWS: list[Row] = []  # found here, as in any module of a project


def test_a_step_beside_a_large_global_that_it_does_not_read_does_not_look_through_it() -> None:
    @checkpointed
    def step(n: int) -> int:
        run.state["n"] = n
        return n

    def calls(rows: int) -> int:
        ROWS[:] = [Row() for _ in range(rows)]
        count = 0

        def called(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(called)
        try:
            step(rows)
        finally:
            sys.setprofile(None)
        return count

    try:
        with checkpoint_scope("beside", store="store") as run:
            few, many = [calls(rows) for rows in (10, 1_000, 100_000)][1:]
    finally:
        ROWS.clear()
    assert many < few + 100
