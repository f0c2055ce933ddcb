"""Events: what happened in a run, in order, whoever did it."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import pickle
import threading
import time
from contextlib import nullcontext
from typing import Any

import pytest

from oncemore import History, checkpoint_scope, checkpointed, fork
from oncemore.events import (
    CheckpointSaved,
    Event,
    Forked,
    RolledBack,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepReused,
    StepStarted,
)
from tests.processes import Script
from tests.unit.pasts import Counting, both, flow, store_url


@checkpointed
def double(x: int) -> int:
    return 2 * x


@checkpointed
def fail(x: int) -> int:
    raise ValueError(f"no {x}")


@checkpointed
def rest(seconds: float) -> None:
    time.sleep(seconds)


@checkpointed
async def later(x: int) -> int:
    await asyncio.sleep(0)
    return x


def kinds(events: Any) -> list[str]:
    return [type(event).__name__ for event in events]


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


def test_a_run_tells_its_story_in_order(store: str) -> None:
    flow(store)
    run = flow(store)
    told = ["RunStarted", *["StepCompleted"] * 2, "CheckpointSaved", *["StepCompleted"] * 2, "RunFinished"]
    assert kinds(run.events()) == [*told, "RunResumed", *["StepReused"] * 4, "RunFinished"]


def test_an_event_cannot_be_changed(store: str) -> None:
    event = next(flow(store).events())
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.lane = "another"  # type: ignore[misc]


def test_numbers_have_no_gaps_and_since_leaves_the_earlier_ones_out(store: str) -> None:
    flow(store)
    run = flow(store)
    every = list(run.events())
    assert [event.seq for event in every] == list(range(1, len(every) + 1))
    assert list(run.events(since=5)) == every[5:]
    assert list(run.events(since=len(every))) == []


def test_times_are_seconds_since_1970_in_utc_and_never_run_ahead(store: str) -> None:
    before = time.time()
    run = flow(store)
    assert all(before <= event.time <= time.time() for event in run.events())
    assert all(checkpoint.time.utcoffset().total_seconds() == 0 for checkpoint in run.checkpoints)


def test_a_completed_step_tells_node_fingerprint_duration_and_sizes(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        rest(0.02)
    (event,) = [e for e in run.events() if isinstance(e, StepCompleted)]
    assert event.step.endswith("rest") and event.node.startswith(f"{event.step}-")
    assert len(event.fingerprint.split(".")) == 2
    assert 0.02 <= event.seconds < 10
    assert 0 < event.raw_bytes <= event.stored_bytes


def test_the_lane_tells_thread_and_task_apart(store: str) -> None:
    async def tasks() -> None:
        await asyncio.gather(asyncio.create_task(later(1), name="first"), asyncio.create_task(later(2), name="second"))

    with checkpoint_scope("r", store=store) as run:
        double(1)
        thread = threading.Thread(target=contextvars.copy_context().run, args=(double, 2), name="worker")
        thread.start()
        thread.join()
        asyncio.run(tasks())
    lanes = [event.lane for event in run.events() if isinstance(event, StepCompleted)]
    process = lanes[0]
    assert process.isdigit()
    assert sorted(lanes) == sorted([process, f"{process}/worker", f"{process}/first", f"{process}/second"])


def test_reuse_is_written_once_for_each_step_when_the_scope_ends_and_hits_write_nothing() -> None:
    inner = Counting(store_url("memory"))
    with checkpoint_scope("r", store=inner):
        for x in range(20):
            double(x)
    with checkpoint_scope("r", store=inner) as run:
        opened = inner.commits
        for _ in range(3):
            for x in range(20):
                double(x)
        assert inner.commits == opened
    assert inner.commits == opened + 1
    (event,) = [e for e in run.events() if isinstance(e, StepReused)]
    assert (event.step.rpartition(".")[2], event.times) == ("double", 60)
    assert event.seconds_saved > 0


def test_a_step_that_takes_a_while_is_told_when_it_has_begun(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        double(1)
        rest(1.3)
    told = [(type(e), e.step.rpartition(".")[2]) for e in run.events() if isinstance(e, (StepStarted, StepCompleted))]
    assert told == [(StepCompleted, "double"), (StepStarted, "rest"), (StepCompleted, "rest")]


def test_a_failed_step_is_told_with_its_error_and_trace(store: str) -> None:
    with pytest.raises(ValueError, match="no 3"), checkpoint_scope("r", store=store) as run:
        fail(3)
    (event,) = [e for e in run.events() if isinstance(e, StepFailed)]
    assert event.error == "ValueError: no 3"
    assert "raise ValueError" in event.traceback


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (None, RunFinished, "finished"),
        (ValueError("x"), RunFailed, "failed"),
        (KeyboardInterrupt(), RunInterrupted, "interrupted"),
        (SystemExit(2), RunInterrupted, "interrupted"),
        (SystemExit(0), RunFinished, "finished"),
    ],
)
def test_how_a_scope_ended_is_told(store: str, error: BaseException | None, kind: type, status: str) -> None:
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with expected, checkpoint_scope("r", store=store) as run:
        if error is not None:
            raise error
    assert type(list(run.events())[-1]) is kind
    assert History(store).run("r").status == status


def test_rollbacks_and_forks_are_told(store: str) -> None:
    run = flow(store)
    History(store).rollback("r", to="after-clean")
    fork(run, "child", at="after-clean")
    assert [e.to for e in run.events() if isinstance(e, RolledBack)] == [4]
    assert [(e.parent, e.at) for e in History(store).run("child").events() if isinstance(e, Forked)] == [("r", 4)]


def test_listeners_hear_of_what_happens_in_the_scope(store: str) -> None:
    completed: list[StepCompleted] = []
    every: list[Event] = []
    with checkpoint_scope("r", store=store) as run:
        run.on(StepCompleted, completed.append)
        run.on(CheckpointSaved, every.append)
        run.on(RunFinished, every.append)
        double(1)
        double(1)
        run.checkpoint("here")
    assert [event.step.rpartition(".")[2] for event in completed] == ["double"]
    assert kinds(every) == ["CheckpointSaved", "RunFinished"]


def test_a_failing_listener_harms_nothing_and_is_logged(store: str, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("listener is broken")

    with caplog.at_level(logging.ERROR), checkpoint_scope("r", store=store) as run:
        run.on(Event, broken)
        run.on(StepCompleted, heard.append)
        assert double(4) == 8
    assert kinds(heard) == ["StepCompleted"]
    assert "a listener for Event failed" in caplog.text
    assert run.status == "finished"


SEVERAL = """
import sys, time
from oncemore import checkpoint_scope, checkpointed
from oncemore.events import Event
@checkpointed
def work(who, n):
    return n
print("ready")
sys.stdout.flush()
with checkpoint_scope("r", store="store") as run:
    for n in range(25):
        work(sys.argv[1], n)
        if n % 10 == 0:
            run.checkpoint(f"{sys.argv[1]}-{n}")
"""


def test_several_processes_in_one_run_number_their_events_without_gaps(script: Script) -> None:
    script.write(SEVERAL)
    processes = [script.start(None, str(number)) for number in range(3)]
    for process in processes:
        process.finish(0)
    run = History("store").run("r")
    events = list(run.events())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len([e for e in events if isinstance(e, StepCompleted)]) == 75
    assert len({e.lane for e in events}) == 3
    assert kinds(events).count("RunStarted") == 1 and kinds(events).count("RunResumed") == 2
    assert len(run.checkpoints) == 75 + 9
    (record,) = History("store").runs()
    assert (record.status, record.attempts, record.nodes) == ("finished", 3, 75)


FOLLOWED = """
import sys
from oncemore import checkpoint_scope, checkpointed
@checkpointed
def work(n):
    return n
with checkpoint_scope("r", store="store") as run:
    print("open")
    for n in range(5):
        sys.stdin.readline()
        work(n)
    run.checkpoint("end")
"""


def test_a_run_is_followed_live_from_another_process_until_it_ends(script: Script) -> None:
    source = FOLLOWED.replace("sys.stdin.readline()", "import time; time.sleep(0.15)")
    running = script.start(source)
    running.wait_for("open")
    live = 0
    seen: list[Event] = []
    for event in History("store").run("r").follow(interval=0.02):
        seen.append(event)
        live += running.process.poll() is None and isinstance(event, StepCompleted)
    running.finish(0)
    assert [event.seq for event in seen] == list(range(1, 9))
    assert kinds(seen) == ["RunStarted", *["StepCompleted"] * 5, "CheckpointSaved", "RunFinished"]
    assert live >= 1, "events came only after the run was over"


def test_following_a_run_that_is_over_ends_and_can_begin_in_the_middle(store: str) -> None:
    run = flow(store)
    assert [event.seq for event in run.follow(since=5)] == [6, 7]


def test_a_run_that_another_kind_of_event_was_written_to_can_still_be_read() -> None:
    data = b'{"event":"FromTheFuture","time":1.0,"lane":"1","mood":"good"}'
    assert Event.from_json(data, 7) == Event(time=1.0, lane="1", seq=7)


def test_the_first_scope_starts_a_run_and_the_next_resumes_it(store: str) -> None:
    for _ in range(2):
        with checkpoint_scope("r", store=store, workflow="etl") as run:
            pass
    first, *others = run.events()
    assert isinstance(first, RunStarted) and first.workflow == "etl"
    assert [type(event) for event in others] == [RunFinished, RunResumed, RunFinished]


@pytest.mark.parametrize("kind", sorted(Event.kinds))
def test_an_event_is_a_frozen_dataclass_that_can_be_pickled(kind: str) -> None:
    cls = Event.kinds[kind]
    required = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    fact = cls(**dict.fromkeys(required, "x"))
    assert pickle.loads(pickle.dumps(fact)) == fact
    assert dataclasses.replace(fact, seq=7).seq == 7
    assert repr(fact).startswith(f"{kind}(time=")
    with pytest.raises(dataclasses.FrozenInstanceError):
        fact.seq = 1  # type: ignore[misc]
