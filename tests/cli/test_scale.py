"""Ten thousand runs: a list reads each record once, and of the runs it does not show nothing else."""

from __future__ import annotations

import json

import pytest

from oncemore import History, open_store
from oncemore.cli import main
from oncemore.events import RunResumed, RunStarted, StepCompleted
from oncemore.records import Record, record_key, sealed, signed
from tests.unit.pasts import Counting

RUNS = 10_000
EVENTS = 5


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """A store of many runs, all of them killed: what they did was never counted."""
    store = open_store("memory://many-runs")
    put, append = {}, {}
    for number in range(RUNS):
        record = Record.new("etl")
        record.attempts, record.open, record.updated = 1, ["0000"], float(number)
        key = record_key(f"run-{number:05}")
        put[key] = sealed(key, record)
        step = StepCompleted(
            step="load", node="load-1", fingerprint="", reason="", seconds=1, raw_bytes=1, stored_bytes=10, entry=""
        )
        facts = [RunStarted(), RunResumed(), *[step] * (EVENTS - 2)]
        append[record.log] = [signed(record.log, fact) for fact in facts]
    store.commit(put=put, append=append)
    counting = Counting(store)
    monkeypatch.setattr("oncemore.cli.listing.opened", lambda store: History(counting))
    return counting


def test_a_list_reads_what_it_shows(many: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--limit", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["run-09999", "killed"]
    assert len(lines) == 21
    assert many.kinds == {"run": RUNS, "event": 20 * EVENTS}
    assert many.commits == 0

    many.kinds.clear()
    assert main(["runs", "--status", "killed", "--limit", "7", "--json"]) == 0
    assert [run["nodes"] for run in json.loads(capsys.readouterr().out)] == [EVENTS - 2] * 7
    assert many.kinds == {"run": RUNS, "event": 7 * EVENTS}


def test_a_list_of_all_is_complete(many: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == RUNS + 1


def test_completion_reads_no_more_keys_than_it_offers(many: Counting) -> None:
    assert History(many).run_ids("run-000", limit=10) == [f"run-000{number:02}" for number in range(10)]
    assert many.rows == 10
