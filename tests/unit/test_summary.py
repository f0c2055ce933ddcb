"""A run at a glance: what ran, what was reused, what it took and what it saved."""

from __future__ import annotations

import json
import time

import pytest

from oncemore import History, Run, checkpoint_scope, checkpointed
from oncemore.events import StepCompleted, StepReused
from tests.unit.pasts import both, store_url


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


@checkpointed
def slow(x: int) -> bytes:
    time.sleep(0.03)
    return bytes(100_000)


@checkpointed
def fails(x: int) -> None:
    raise ValueError(x)


def go(store: str):
    with checkpoint_scope("<r>", store=store) as run:
        for x in (1, 2):
            slow(x)
        run.checkpoint("half")
        run.checkpoint("half", metadata={"second": True})
        with pytest.raises(ValueError):
            fails(1)
    return run


def test_the_numbers_are_those_of_all_scopes_together(store: str) -> None:
    go(store)
    run = go(store)
    summary = History(store).run("<r>").summary()
    by_step = {step.step: step for step in summary.steps}
    assert (by_step["slow"].ran, by_step["slow"].reused, by_step["slow"].failed) == (2, 2, 0)
    assert (by_step["fails"].ran, by_step["fails"].reused, by_step["fails"].failed) == (0, 0, 2)
    assert (summary.total.ran, summary.total.reused, summary.total.failed) == (2, 2, 2)
    assert 0.06 <= by_step["slow"].seconds < 30
    assert by_step["slow"].seconds_saved == pytest.approx(by_step["slow"].seconds, rel=0.2)
    events = [event for event in run.events() if isinstance(event, StepCompleted)]
    assert by_step["slow"].raw_bytes == sum(e.raw_bytes for e in events) >= 200_000
    assert by_step["slow"].stored_bytes == sum(e.stored_bytes for e in events) < 10_000
    assert summary.names == {"half": 2}
    assert (summary.run, summary.status, summary.attempts) == ("<r>", "finished", 2)
    times = [event.time for event in run.events()]
    assert summary.first.timestamp() == pytest.approx(times[0]) and summary.last.timestamp() == pytest.approx(times[-1])
    assert summary.duration == pytest.approx(times[-1] - times[0], abs=1e-3)


def test_an_open_scope_is_in_it_already(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        slow(1)
        slow(1)
        summary = run.summary()
        assert (summary.status, summary.total.ran, summary.total.reused) == ("running", 1, 1)
    assert run.summary().total.reused == 1


def test_time_saved_is_time_on_the_clock(store: str) -> None:
    """Calls that ran at the same time, and steps inside steps, do not count twice."""

    @checkpointed
    def outer(x: int) -> int:
        time.sleep(0.02)
        return len(slow(x))

    def body() -> Run:
        with checkpoint_scope("r", store=store) as run:
            run.map(slow, [1, 2, 3, 4], concurrency=4)
            outer(5)
            slow(5)
        return run

    began = time.time()
    before = body().seconds_saved
    took = time.time() - began
    run = body()
    total = run.summary().total
    assert total.ran == 6 and total.reused == 7
    assert 0.08 < run.seconds_saved < took
    assert total.seconds_saved == pytest.approx(run.seconds_saved + before, abs=1e-5)
    events = [event for event in run.events() if isinstance(event, StepReused)][-2:]
    assert sum(event.seconds_saved - event.elsewhere for event in events) == pytest.approx(run.seconds_saved, abs=1e-5)


def test_a_run_without_steps_has_a_summary(store: str) -> None:
    with checkpoint_scope("r", store=store) as run:
        pass
    summary = run.summary()
    assert summary.total.ran == 0 and summary.steps == ()
    assert "run r: finished, attempt 1" in str(summary)


def test_it_is_a_table_as_text(store: str) -> None:
    lines = str(go(store).summary()).splitlines()
    assert lines[0] == "run <r>: finished, attempt 1"
    assert lines[1].split() == ["step", "ran", "reused", "failed", "spent", "saved", "bytes", "stored"]
    assert [line.split()[:4] for line in lines[2:]] == [
        ["slow", "2", "0", "0"],
        ["fails", "0", "0", "1"],
        ["total", "2", "0", "1"],
    ]
    assert len({line.index(word) + len(word) for line, word in ((lines[1], "stored"),)} | {len(lines[2])}) == 1


def test_it_is_a_table_in_a_notebook_with_every_text_escaped(store: str) -> None:
    html = go(store).summary()._repr_html_()
    assert html.startswith("<table>") and html.endswith("</table>")
    assert html.count("<tr>") == 4 and html.count("<th>") == 8 and html.count("<td>") == 24
    assert "run &lt;r&gt;: finished" in html and "<r>" not in html


def test_as_a_dictionary_it_is_json(store: str) -> None:
    facts = go(store).summary().as_dict()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["total"]["ran"] == 2 and facts["names"] == {"half": 2}
    assert [step["step"] for step in facts["steps"]] == ["slow", "fails"]
    assert facts["duration"] > 0 and facts["first"].endswith("+00:00")
