"""Whole-database damage: `oncemore repair` recovers what can be read, and says exactly what is whole."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oncemore import (
    History,
    Run,
    StoreDamaged,
    StoreUnavailable,
    UsageError,
    checkpoint_scope,
    checkpointed,
)
from oncemore.cli import main
from oncemore.stores import open_store
from oncemore.stores.repair import rows
from tests.processes import Script
from tests.unit.pasts import content, flow, ran

PAGE = 4096
USER = """
import sqlite3, sys
connection = sqlite3.connect("store/cache.db")
connection.execute("SELECT count(*) FROM Cache").fetchall()
print(1, flush=True)
sys.stdin.read()
"""


@checkpointed
def number(n: int) -> int:
    return n


@checkpointed
def noise(n: int) -> bytes:
    return random.Random(n).randbytes(60_000)


def numbers(run_id: str, count: int = 60) -> Run:
    with checkpoint_scope(run_id, store="store") as run:
        assert [number(n) for n in range(count)] == list(range(count))
        noise(1)
    return run


def everything() -> None:
    for run_id in ("a", "b", "c"):
        numbers(run_id)
    flow("store")
    open_store("store").close()


def pages_with(text: bytes) -> list[int]:
    data = Path("store/cache.db").read_bytes()
    return [at for at in range(0, len(data), PAGE) if text in data[at : at + PAGE]]


def overwrite(*at: int) -> None:
    """Write garbage over whole pages."""
    with open("store/cache.db", "r+b") as file:
        for offset in at:
            file.seek(offset)
            file.write(random.Random(offset).randbytes(PAGE))


def the_tree() -> None:
    """Overwrite every inner page of the table: SQLite finds not one row any more."""
    data = Path("store/cache.db").read_bytes()
    overwrite(*(at for at in range(PAGE, len(data), PAGE) if data[at] == 5))


def the_index() -> None:
    data = Path("store/cache.db").read_bytes()
    overwrite(*(at for at in range(PAGE, len(data), PAGE) if data[at] in (2, 10)))


def the_header() -> None:
    overwrite(0)


def test_a_repaired_database_has_the_mode_of_the_damaged_one() -> None:
    everything()
    os.chmod("store/cache.db", 0o640)  # for the user's group
    the_header()
    History.repair("store")
    assert Path("store/cache.db").stat().st_mode & 0o777 == 0o640


def zeroed() -> None:
    Path("store/cache.db").write_bytes(bytes(os.path.getsize("store/cache.db")))


@pytest.mark.parametrize(
    "destroy", [zeroed, lambda: os.truncate("store/cache.db", 100), lambda: os.truncate("store/cache.db", 0)]
)
def test_a_database_of_which_nothing_is_left_is_not_said_to_be_whole(
    destroy: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    everything()
    destroy()
    assert main(["repair", "--store", "store"]) == 3
    assert "no run could be recovered" in capsys.readouterr().out
    assert len(ran(numbers("a"))) == 61


@pytest.mark.parametrize("destroy", [the_tree, the_index, the_header])
def test_damage_that_hits_no_row_loses_nothing(destroy: Callable[[], None]) -> None:
    everything()
    before = content("store")
    open_store("store").close()
    destroy()
    with pytest.raises(StoreDamaged, match="oncemore repair --store .*store"):
        content("store")
    repaired = History.repair("store")
    assert repaired.whole, repaired
    assert content("store") == before
    assert sorted(run.id for run in repaired.runs) == ["a", "b", "c", "r"]
    assert {run.id: len(run.nodes) for run in repaired.runs} == {"a": 61, "b": 61, "c": 61, "r": 4}
    assert os.path.exists(repaired.aside)
    for run_id in ("a", "b", "c"):
        assert ran(numbers(run_id)) == []
    assert ran(flow("store")) == []
    assert History("store").verify().well


@pytest.mark.filterwarnings("ignore::oncemore.CheckpointWarning")
def test_runs_whose_entries_are_intact_lose_nothing_and_the_others_exactly_what_is_reported() -> None:
    everything()
    uid = open_store("store").get("run/b")
    mark = json.loads(bytes(uid or b"")[5:-32])["uid"]
    open_store("store").close()
    hit = pages_with(f"node/{mark}/".encode())
    table = [at for at in hit if Path("store/cache.db").read_bytes()[at] == 13]
    overwrite(table[len(table) // 2])
    repaired = History.repair("store")
    runs = {run.id: run for run in repaired.runs}
    assert not runs["b"].whole
    assert runs["r"].whole and runs["a"].whole
    again = numbers("b")
    assert len(ran(again)) == 61 - len(runs["b"].nodes) > 0
    assert ran(numbers("a")) == [] and ran(flow("store")) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::oncemore.CheckpointWarning")
def test_whatever_page_is_overwritten_the_report_is_right() -> None:
    everything()
    whole = Path("store/cache.db").read_bytes()
    shutil.copytree("store", "original")
    for at in range(0, len(whole), PAGE):
        shutil.rmtree("store")
        shutil.copytree("original", "store")
        overwrite(at)
        repaired = History.repair("store")
        for run in repaired.runs:
            if run.whole and not run.id.startswith("recovered"):
                again = flow("store") if run.id == "r" else numbers(run.id)
                assert ran(again) == [], (at, run)
            elif run.id in "abc":
                assert len(ran(numbers(run.id))) == 61 - len(run.nodes), (at, run)
        assert not [f for f in History("store").verify().findings if f.kind == "damaged"]
        open_store("store").close()


def test_a_flipped_value_is_left_out_and_its_node_named() -> None:
    everything()
    (found,) = [key for key in content("store") if "/report/" in key]
    open_store("store").close()
    data = bytearray(Path("store/cache.db").read_bytes())
    at = data.index(b"report 20")
    data[at] ^= 1
    Path("store/cache.db").write_bytes(data)
    the_index()
    repaired = History.repair("store")
    assert repaired.unsound == (found,)
    assert [run.lost[0].partition("-")[0] for run in repaired.runs if run.lost] == ["report"]


def test_a_run_whose_record_is_lost_comes_back_under_another_id() -> None:
    flow("store")
    open_store("store").close()
    data = Path("store/cache.db").read_bytes()
    Path("store/cache.db").write_bytes(data.replace(b"run/r", b"run/\xff"))
    the_index()
    repaired = History.repair("store")
    (run,) = repaired.runs
    assert run.renamed and run.id.startswith("recovered-") and run.lost == ()
    History("store").rename(run.id, "r")
    assert ran(flow("store")) == []


def test_a_large_value_whose_row_is_lost_is_found_by_its_signature() -> None:
    with checkpoint_scope("large", store="store"):
        noise(7)
    keys = [key for key in content("store") if "/noise/" in key]
    open_store("store").close()
    data = Path("store/cache.db").read_bytes()
    for key in keys:  # in its row, not in the event that tells of it
        data = re.sub(b'(?<!")' + re.escape(key.encode()), b"\xff" * len(key), data)
    Path("store/cache.db").write_bytes(data)
    the_index()
    repaired = History.repair("store")
    assert [run.lost for run in repaired.runs] == [()]
    with checkpoint_scope("large", store="store") as run:
        assert noise(7) == random.Random(7).randbytes(60_000)
    assert ran(run) == []


def test_what_is_only_in_the_journal_is_recovered_too(script: Script) -> None:
    source = """
        import os
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed
        def double(n):
            return 2 * n

        with checkpoint_scope("r", store="store") as run:
            print([double(n) for n in range(30)])
            if not run.resumed:
                os._exit(0)
        print(sum(run.ran.values()))
    """
    script(source)
    folder = script.folder / "store"
    assert (folder / "cache.db-wal").stat().st_size > 10_000
    (folder / "cache.db").write_bytes(b"\xff" * 20_000)
    assert History.repair(folder).whole
    assert script(source).lines[-1] == "0"


def test_a_sound_store_is_left_as_it_is() -> None:
    flow("store")
    open_store("store").close()
    before = {
        path: path.read_bytes() for path in Path("store").rglob("*") if path.is_file() and "locks" not in path.name
    }
    repaired = History.repair("store")
    assert repaired.aside == "" and repaired.whole
    open_store("store").close()
    assert {path: path.read_bytes() for path in before} == before
    assert not list(Path("store").glob("*damaged*"))


def lose_the_value_file() -> None:
    for path in Path("store").rglob("*.val"):
        path.unlink()


def flip_a_value() -> None:
    """A byte of an entry, which SQLite does not check."""
    at = pages_with(b"node/")
    data = bytearray(Path("store/cache.db").read_bytes())
    start = next(page for page in at if data[page] == 13)
    data[data.index(b"number/", start) + 120] ^= 1
    Path("store/cache.db").write_bytes(data)


@pytest.mark.parametrize(("damage", "node"), [(lose_the_value_file, "noise"), (flip_a_value, "number")])
@pytest.mark.filterwarnings("ignore::oncemore.CheckpointWarning")
def test_damage_that_sqlite_does_not_see_is_reported_too(
    damage: Callable[[], None], node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers("a")
    open_store("store").close()
    damage()
    repaired = History.repair("store")
    assert repaired.aside == "" and not repaired.whole and len(repaired.unsound) == 1
    [run] = repaired.runs
    assert not run.whole and [lost.partition("-")[0] for lost in run.lost] == [node]
    assert main(["repair", "--store", "store"]) == 3
    assert "1 entry can't be verified; what they held" in capsys.readouterr().out
    assert ran(numbers("a")) == [node]
    assert History.repair("store").whole


def test_another_key_repairs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    everything()
    the_tree()
    before = Path("store/cache.db").read_bytes()
    monkeypatch.setenv("ONCEMORE_KEY", "another")
    with pytest.raises(UsageError, match="nothing was repaired: the store was made with another key.*oncemore key"):
        History.repair("store")
    assert Path("store/cache.db").read_bytes() == before
    assert not list(Path("store").glob("*damaged*"))


def test_a_store_that_is_in_use_is_not_repaired() -> None:
    everything()
    user = subprocess.Popen(
        [
            sys.executable,
            "-c",
            USER,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert user.stdout is not None
    user.stdout.readline()
    try:
        the_index()
        with pytest.raises(StoreUnavailable, match="another process has it open"):
            History.repair("store")
    finally:
        user.communicate()
    assert History.repair("store").whole


def test_a_repair_that_was_killed_before_its_end_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    everything()
    before = content("store")
    open_store("store").close()
    the_tree()
    rename, done = os.rename, list[str]()

    def stop(source: str, target: str) -> None:
        if target.endswith("cache.db"):
            raise KeyboardInterrupt
        done.append(target)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", stop)
        with pytest.raises(KeyboardInterrupt):
            History.repair("store")
    assert History.repair("store").whole
    assert content("store") == before


def test_random_bytes_give_rows_or_nothing_and_never_an_error() -> None:
    everything()
    whole = Path("store/cache.db").read_bytes()
    chance = random.Random(3)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 50, 3000))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        list(rows(bytes(data), chance.randbytes(9000)))


def test_the_command_says_what_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    everything()
    assert main(["repair", "--store", "store"]) == 0
    assert "nothing to repair" in capsys.readouterr().out
    open_store("store").close()
    the_tree()
    assert main(["runs", "--store", "store"]) == 1
    assert "oncemore repair --store" in capsys.readouterr().err
    assert main(["repair", "--store", "store", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    first = told["runs"][0]
    assert told["whole"] and first["whole"] and (first["id"], len(first["nodes"]), first["lost"]) == ("a", 61, [])
    assert main(["repair", "--store", "nowhere"]) == 1
    assert "no store at nowhere" in capsys.readouterr().err


def test_a_store_in_memory_has_nothing_to_repair() -> None:
    with pytest.raises(UsageError, match="only stores on disk"):
        History.repair("memory://x")
