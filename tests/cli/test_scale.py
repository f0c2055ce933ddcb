"""Ten thousand runs: a list reads each record once, and of the runs it does not show nothing else."""

from __future__ import annotations

import json

import pytest

from oncemore import History, open_store
from oncemore.cli import main
from oncemore.codec.keyed import claim
from oncemore.events import RunStarted, StepCompleted
from oncemore.keys import record_key
from oncemore.records import Record, sealed, signed
from oncemore.settings import secret
from tests.unit.pasts import Counting

RUNS = 10_000
KILLED = 100


def many() -> Counting:
    """A store of many runs. The newest were killed: what they did was never counted."""
    store = open_store("memory://many-runs")
    claim(store)
    put, append = {}, {}
    step = StepCompleted(
        step="load", node="load-1", fingerprint="", reason="", seconds=1, raw_bytes=1, stored_bytes=10, entry=""
    )
    for number in range(RUNS):
        record = Record.new("etl")
        record.attempts, record.ending, record.updated = 1, "finished", float(number)
        if number >= RUNS - KILLED:
            record.open, record.ending = ["0000"], ""
            append[record.log] = [signed(record.log, fact, secret()) for fact in (RunStarted(), step, step)]
        key = record_key(f"run-{number:05}")
        put[key] = sealed(key, record)
    store.commit(put=put, append=append)
    return Counting(store)


def test_a_list_reads_what_it_shows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    counting = many()
    monkeypatch.setattr("oncemore.cli.runs.open_history", lambda store: History(counting))

    assert main(["runs", "--limit", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["run-09999", "killed"]
    assert len(lines) == 21
    assert counting.kinds == {"key": 3, "run": RUNS + 1, "event": 20 * 3}  # whose key, and whether encrypted
    assert counting.commits == 0

    counting.kinds.clear()
    assert main(["runs", "--status", "killed", "--limit", "7", "--json"]) == 0
    assert [run["nodes"] for run in json.loads(capsys.readouterr().out)] == [2] * 7
    assert counting.kinds == {"key": 3, "run": RUNS + 1, "event": 7 * 3}

    assert main(["runs"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == RUNS + 1

    history = History(counting)
    counting.rows = 0
    assert history.run_ids("run-000", limit=10) == [f"run-000{number:02}" for number in range(10)]
    assert counting.rows == 10
