"""Archives: runs in one file, into another place or another kind of store, and back."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from blake3 import blake3

from oncemore import (
    CheckpointWarning,
    History,
    IntegrityError,
    StoreUnavailable,
    UsageError,
    checkpoint_scope,
    checkpointed,
    current_run,
    fork,
    memoized,
)
from oncemore.events import StepCompleted
from oncemore.retention import keep_last
from oncemore.stores import open_store
from tests.unit.pasts import both, content, flow, keys, names, ran, store_url


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


@pytest.fixture(params=both)
def other(request: pytest.FixtureRequest) -> str:
    return store_url(request.param, "other")


@checkpointed
def array(n: int) -> Any:
    return np.arange(n)


@checkpointed
def many(n: int) -> Any:
    for i in range(n):
        yield {"i": i}


@memoized
def common(x: int) -> int:
    return x * 3


@checkpointed(outputs=["{path}"])
def file(path: str) -> str:
    Path(path).write_bytes(os.urandom(50_000))
    return path


@checkpointed
def remember(x: int) -> int:
    run = current_run()
    assert run is not None
    run.state["x"] = x
    return x


def rich(store: str, run_id: str = "rich") -> Any:
    with checkpoint_scope(run_id, store=store) as run:
        value = [array(100_000).sum(), list(many(5)), common(2), file("out.bin"), remember(4), dict(run.state)]
    return run, value


def test_reruns_hit_in_the_other_store(store: str, other: str) -> None:
    flow(store)
    _, value = rich(store)
    History(store).export("runs.zip")
    assert sorted(History(other).import_("runs.zip")) == ["r", "rich"]
    assert ran(flow(other)) == []
    kept = Path("out.bin").read_bytes()
    Path("out.bin").unlink()
    run, again = rich(other)
    assert ran(run) == [] and again == value
    assert Path("out.bin").read_bytes() == kept
    assert [c.state() for c in History(other).run("r").checkpoints] == [
        c.state() for c in History(store).run("r").checkpoints
    ]


def test_only_the_runs_that_are_named_are_exported(store: str, other: str) -> None:
    flow(store, "a")
    flow(store, "b", x=5)
    History(store).export("a.zip", runs=["a"])
    assert History(other).import_("a.zip") == ["a"]
    assert [run.id for run in History(other).runs()] == ["a"]
    with pytest.raises(UsageError, match="no run 'c'"):
        History(store).export("c.zip", runs=["c"])
    assert not Path("c.zip").exists()


def test_importing_twice_changes_nothing(store: str, other: str) -> None:
    flow(store)
    rich(store)
    History(store).export("runs.zip")
    History(other).import_("runs.zip")
    before = content(other)
    assert sorted(History(other).import_("runs.zip")) == ["r", "rich"]
    assert content(other) == before


def test_importing_where_it_came_from_changes_nothing_even_after_a_rename(store: str) -> None:
    flow(store)
    History(store).export("runs.zip")
    History(store).rename("r", "r2")
    before = content(store)
    History(store).import_("runs.zip")
    assert content(store) == before


def test_a_run_that_went_on_since_is_left_as_it_is(store: str, other: str) -> None:
    flow(store)
    History(store).export("runs.zip")
    History(other).import_("runs.zip")
    flow(other)
    before = content(other)
    History(other).import_("runs.zip")
    assert content(other) == before


def test_an_archive_that_knows_more_of_a_run_brings_it_up_to_date(store: str, other: str) -> None:
    flow(store)
    History(store).export("runs.zip")
    History(other).import_("runs.zip")
    History(store).rollback("r", to="load")
    run = flow(store)
    History(store).export("runs.zip")
    History(other).import_("runs.zip")
    assert [c.id for c in History(other).run("r").checkpoints] == [c.id for c in run.checkpoints]
    assert ran(flow(other)) == []


def test_a_run_that_went_on_here_and_there_is_refused(store: str, other: str) -> None:
    flow(store)
    History(store).export("runs.zip")
    History(other).import_("runs.zip")
    flow(other)
    flow(store)
    History(store).export("runs.zip")
    before = content(other)
    with pytest.raises(UsageError, match="has continued differently"):
        History(other).import_("runs.zip")
    assert content(other) == before


def test_an_id_that_stands_for_another_run_is_refused(store: str, other: str) -> None:
    flow(store)
    History(store).export("runs.zip")
    flow(other)
    before = content(other)
    with pytest.raises(UsageError, match="a different run 'r'.*rename or delete it first"):
        History(other).import_("runs.zip")
    assert content(other) == before
    History(other).rename("r", "mine")
    History(other).import_("runs.zip")
    assert ran(flow(other)) == ran(flow(other, "mine")) == []


def test_a_fork_brings_what_it_needs_of_its_parent_and_takes_it_away_again(store: str, other: str) -> None:
    fork(flow(store), "child", at="after-clean")
    flow(store, "child")
    History(store).export("child.zip", runs=["child"])
    History(other).import_("child.zip")
    assert [run.id for run in History(other).runs()] == ["child"]
    assert ran(flow(other, "child")) == []
    History(other).delete("child")
    assert [key for key in keys(other) if not key.startswith("code/")] == []


def test_a_parent_imported_after_its_fork_stays_when_the_fork_is_deleted(store: str, other: str) -> None:
    fork(flow(store), "child", at="after-clean")
    History(store).export("child.zip", runs=["child"])
    History(store).export("parent.zip", runs=["r"])
    History(other).import_("child.zip")
    History(other).import_("parent.zip")
    History(other).delete("child")
    assert ran(flow(other)) == []


def test_a_deleted_run_that_is_imported_again_stays(store: str) -> None:
    fork(flow(store), "child", at="after-clean")
    History(store).export("r.zip", runs=["r"])
    History(store).delete("r")
    History(store).import_("r.zip")
    History(store).delete("child")
    assert ran(flow(store)) == []


def test_a_run_that_was_rolled_back_and_imported_stays_when_another_is_deleted(store: str, other: str) -> None:
    flow(store)
    flow(store, "another")
    History(store).rollback("r", to="after-clean")
    flow(store)
    History(store).export("r.zip")
    History(other).import_("r.zip")
    History(other).delete("another")
    assert ran(flow(other)) == []


def test_rolled_back_and_pruned_runs_come_back_as_they_were(store: str, other: str) -> None:
    flow(store)
    History(store).rollback("r", to="after-clean")
    run = flow(store)
    History(store).prune(keep_last(3))
    History(store).export("r.zip")
    History(other).import_("r.zip")
    assert [c.id for c in History(other).run("r").checkpoints] == [c.id for c in run.checkpoints]
    assert ran(flow(other)) == ["clean", "load"]


def test_an_archive_of_another_secret_is_refused_unless_it_is_trusted(
    store: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow(store)
    History(store).export("runs.zip")
    monkeypatch.setenv("ONCEMORE_KEY", "another")
    with pytest.raises(UsageError, match="not signed with your key.*trust=True"):
        History(other).import_("runs.zip")
    assert content(other) == {}
    assert History(other).import_("runs.zip", trust=True) == ["r"]
    assert ran(flow(other)) == []


def cut(at: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(len(data) * at)]


@pytest.mark.parametrize(
    "harm",
    [
        *(pytest.param(cut(at), id=f"cut at {at}") for at in (0, 0.01, 0.5, 0.9, 0.999)),
        pytest.param(lambda data: data[:-1], id="its last byte missing"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
        pytest.param(lambda data: b"not a zip file", id="another file"),
        pytest.param(lambda data: data[100:], id="its beginning missing"),
        pytest.param(
            lambda data: data[: len(data) // 2] + data[len(data) // 2 + 1 :], id="a byte in its middle missing"
        ),
    ],
)
@pytest.mark.parametrize("trust", [False, True])
def test_a_damaged_archive_is_said_to_be_damaged_and_brings_nothing(
    harm: Callable[[bytes], bytes], trust: bool
) -> None:
    store, other = store_url("memory"), store_url("memory", "other")
    flow(store)
    History(store).export("runs.zip")
    Path("runs.zip").write_bytes(harm(Path("runs.zip").read_bytes()))
    with pytest.raises(IntegrityError, match="runs.zip is damaged .*; nothing was imported"):
        History(other).import_("runs.zip", trust=trust)
    assert content(other) == {}


@pytest.mark.slow
@pytest.mark.parametrize("trust", [False, True])
def test_any_flipped_bit_is_an_error_with_nothing_imported_or_of_no_consequence(trust: bool, campaign: Any) -> None:
    store = store_url("memory")
    flow(store)
    History(store).export("runs.zip")
    whole = Path("runs.zip").read_bytes()
    History(store_url("memory", "whole")).import_("runs.zip")
    expected = content(store_url("memory", "whole"))
    chance = random.Random(4)
    refused = 0
    tries = campaign(1000, 300)
    for number in range(tries):
        bit = chance.randrange(len(whole) * 8)
        harmed = bytearray(whole)
        harmed[bit // 8] ^= 1 << bit % 8
        Path("harmed.zip").write_bytes(harmed)
        other = store_url("memory", f"other{number}")
        try:
            History(other).import_("harmed.zip", trust=trust)
        except (IntegrityError, UsageError):
            refused += 1
            assert content(other) == {}
        else:
            assert content(other) == expected, f"bit {bit}"
    assert refused > tries / 2


def rewritten(change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> None:
    """The archive with its content changed and a zip file that is right in itself."""
    with zipfile.ZipFile("runs.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])
    change(manifest, files)
    files["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile("runs.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def test_an_entry_that_was_exchanged_is_noticed_even_by_one_who_trusts() -> None:
    store, other = store_url("memory"), store_url("memory", "other")
    flow(store)
    History(store).export("runs.zip")
    rewritten(lambda manifest, files: files.update({"entries/0": files["entries/1"]}))
    for trust in (False, True):
        with pytest.raises((IntegrityError, UsageError)):
            History(other).import_("runs.zip", trust=trust)
        assert content(other) == {}


def test_an_archive_whose_list_was_changed_is_not_signed() -> None:
    store, other = store_url("memory"), store_url("memory", "other")
    flow(store)
    History(store).export("runs.zip")
    rewritten(lambda manifest, files: manifest["entries"].pop(0))
    with pytest.raises(UsageError, match="not signed"):
        History(other).import_("runs.zip")
    assert content(other) == {}


def test_an_archive_of_a_later_format_says_so() -> None:
    store = store_url("memory")
    flow(store)
    History(store).export("runs.zip")
    rewritten(lambda manifest, files: manifest.update(format="oncemore archive 2"))
    with pytest.raises(UsageError, match="'oncemore archive 2'; this version reads 'oncemore archive 1'"):
        History(store_url("memory", "other")).import_("runs.zip")


# -- JSON


def test_json_holds_what_json_can_and_reruns_hit_what_it_holds(store: str, other: str) -> None:
    flow(store, workflow="etl")
    with checkpoint_scope("arrays", store=store):
        array(5)
    History(store).export_json("runs.json")
    runs = {run["id"]: run for run in json.loads(Path("runs.json").read_text())["runs"]}
    assert [c.get("result") for c in runs["r"]["checkpoints"]] == [1, 2, None, 20, "report 20"]
    assert [c["state"] for c in runs["r"]["checkpoints"]] == [{}, *[{"clean": 1}] * 4]
    assert runs["r"]["checkpoints"][2]["metadata"] == {"rows": 3}
    assert runs["r"]["checkpoints"][2]["next_node"] == "train"
    assert [event["seq"] for event in runs["r"]["events"]] == list(range(1, 8))
    assert "result" not in runs["arrays"]["checkpoints"][0]
    assert sorted(History(other).import_json("runs.json")) == ["arrays", "r"]
    past = History(other).run("r")
    assert names(past.checkpoints) == ["load", "clean", "after-clean", "train", "report"]
    assert past.checkpoints.latest("after-clean").state() == {"clean": 1}
    record = {run.id: run for run in History(other).runs()}["r"]
    assert (record.workflow, record.status, record.nodes) == ("etl", "finished", 3)


def test_a_step_that_did_more_than_return_runs_again_after_json(store: str, other: str) -> None:
    flow(store)
    History(store).export_json("runs.json")
    History(other).import_json("runs.json")
    with pytest.warns(CheckpointWarning, match="clean runs again: .* not in the file that the run was imported from"):
        run = flow(other)
    assert ran(run) == ["clean"]
    assert dict(run.state) == {"clean": 1}
    (told,) = [event for event in run.events() if isinstance(event, StepCompleted) and event.seq > 8]
    assert told.reason == "not in the file that the run was imported from"
    assert ran(flow(other)) == []


def test_importing_json_twice_changes_nothing(store: str, other: str) -> None:
    flow(store)
    History(store).export_json("runs.json")
    History(other).import_json("runs.json")
    before = content(other)
    History(other).import_json("runs.json")
    assert content(other) == before
    History(other).rename("r", "r2")
    before = content(other)
    History(other).import_json("runs.json")
    assert content(other) == before


def test_json_of_a_run_that_was_rolled_back_has_what_counts(store: str, other: str) -> None:
    flow(store)
    History(store).rollback("r", to="after-clean")
    run = flow(store)
    History(store).export_json("runs.json")
    History(other).import_json("runs.json")
    assert [c.id for c in History(other).run("r").checkpoints] == [c.id for c in run.checkpoints]
    with pytest.warns(CheckpointWarning, match="clean runs again"):
        assert ran(flow(other)) == ["clean"]


@pytest.mark.parametrize(
    "harm",
    [
        cut(0.5),
        cut(0),
        lambda data: b"[]",
        lambda data: data.replace(b'"uid"', b'"uud"'),
        lambda data: data.replace(b'"events"', b'"event"'),
        lambda data: b'{"format": "oncemore json 1", "runs": [{"id": "x", "uid": "../run"}]}',
    ],
    ids=["half", "empty", "another thing", "no uid", "no events", "planted"],
)
def test_damaged_json_is_said_to_be_damaged_and_brings_nothing(harm: Callable[[bytes], bytes]) -> None:
    store, other = store_url("memory"), store_url("memory", "other")
    flow(store)
    History(store).export_json("runs.json")
    Path("runs.json").write_bytes(harm(Path("runs.json").read_bytes()))
    with pytest.raises(IntegrityError, match="runs.json is damaged .*nothing was imported"):
        History(other).import_json("runs.json")
    assert content(other) == {}


def test_json_cannot_write_outside_its_own_run(store: str) -> None:
    flow(store, "victim")
    flow(store, "r")
    History(store).export_json("runs.json", runs=["r"])
    History(store).delete("r")
    victim = keys(store, "node/")[0]
    before = content(store)[victim]
    planted = json.loads(Path("runs.json").read_text())
    for checkpoint in planted["runs"][0]["checkpoints"]:
        checkpoint.update(entry=victim, snapshot=victim)
    Path("runs.json").write_text(json.dumps(planted))
    History(store).import_json("runs.json")
    assert content(store)[victim] == before


# -- files that somebody else made


def planted(change: Callable[[dict[str, Any]], object]) -> None:
    """Change the only run of the JSON file."""
    content = json.loads(Path("runs.json").read_text())
    change(content["runs"][0])
    Path("runs.json").write_text(json.dumps(content))


def completed(run: dict[str, Any]) -> dict[str, Any]:
    """The first completed step among its events."""
    found: dict[str, Any] = next(event for event in run["events"] if event["event"] == "StepCompleted")
    return found


def test_pruning_a_run_from_json_removes_nothing_of_another_run() -> None:
    store = store_url("memory")
    flow(store, "victim")
    flow(store, "r", x=5)
    History(store).export_json("runs.json", runs=["r"])
    History(store).delete("r")
    before = content(store)
    planted(lambda run: completed(run).update(snapshot="run/victim"))
    History(store).import_json("runs.json")
    History(store).prune(keep_last(1), runs=["r"])
    assert {key: content(store).get(key) for key in before} == before


@pytest.mark.parametrize("entry", ["run/victim", "node/0123456789abcdef/load/1.2", "code/", "shared/../run", "", 7])
def test_json_whose_events_name_entries_of_others_brings_nothing(entry: Any) -> None:
    store, other = store_url("memory"), store_url("memory", "other")
    flow(store)
    History(store).export_json("runs.json")
    planted(lambda run: completed(run).update(entry=entry))
    with pytest.raises(IntegrityError, match="runs.json is damaged .*nothing was imported"):
        History(other).import_json("runs.json")
    assert content(other) == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.update(created="yesterday"),
        lambda run: run.update(attempts=[1]),
        lambda run: run.update(workflow={"x": 1}),
        lambda run: run["checkpoints"][0].update(entry=3),
        lambda run: run["checkpoints"][0]["kept"].update(arguments={"argument `x`": ["not a digest"]}),
        lambda run: run["checkpoints"][0]["kept"].update(seconds="long"),
        lambda run: run["checkpoints"][1].update(state=["not a dict"]),
        lambda run: completed(run).update(seconds=None),
        lambda run: completed(run).update(fingerprint="../.."),
        lambda run: run["events"].pop(1),
        lambda run: run["events"][0].update(seq=10**15),
        lambda run: run["checkpoints"][0].update(stored_bytes=10**400),
        lambda run: run.update(attempts=1 << 63),
        lambda run: run["events"].append(7),
        lambda run: run.update(once=[{"call": "c", "time": 0.0, "identity": 3}]),
    ],
)
def test_json_with_a_value_of_another_type_brings_nothing(change: Callable[[dict[str, Any]], object]) -> None:
    store, other = store_url("memory"), store_url("memory", "other")
    flow(store)
    History(store).export_json("runs.json")
    planted(change)
    with pytest.raises(IntegrityError, match="runs.json is damaged .*nothing was imported"):
        History(other).import_json("runs.json")
    assert content(other) == {}


def test_a_run_from_json_that_names_shared_results_takes_none_of_them_away() -> None:
    store = store_url("memory")
    with checkpoint_scope("victim", store=store):
        common(1)
    flow(store)
    shared = [key for key in keys(store, "shared/") if "@" in key] or keys(store, "shared/")
    History(store).export_json("runs.json", runs=["r"])
    History(store).delete("r")
    planted(lambda run: completed(run).update(entry=shared[0]))
    before = content(store)
    History(store).import_json("runs.json")
    History(store).prune(keep_last(1), runs=["r"])
    History(store).delete("r")
    assert {key: content(store).get(key) for key in shared} == {key: before[key] for key in shared}


def test_json_nested_without_end_is_said_to_be_damaged() -> None:
    Path("runs.json").write_text("[" * 200_000)
    with pytest.raises(IntegrityError, match="runs.json is damaged"):
        History(store_url("memory")).import_json("runs.json")


def test_json_replaces_no_snapshot_of_generators_and_no_loop() -> None:
    store, other = store_url("memory"), store_url("memory", "other")
    flow(store)
    History(store).export_json("runs.json")
    uid = json.loads(Path("runs.json").read_text())["runs"][0]["uid"]
    planted(lambda run: run["checkpoints"][1].update(snapshot=f"state/{uid}/opening"))
    planted(lambda run: run["checkpoints"][0].update(entry=f"node/{uid}/$/loop/1.2.3."))
    History(other).import_json("runs.json")
    assert f"state/{uid}/opening" not in keys(other)
    assert not any("/$/" in key for key in keys(other))


def test_json_replaces_nothing_that_a_fork_has_from_a_deleted_run(store: str) -> None:
    fork(flow(store), "child")
    History(store).export_json("runs.json", runs=["r"])
    History(store).delete("r")
    before = content(store)
    planted(lambda run: run["checkpoints"][0].update(result="of a stranger"))
    History(store).import_json("runs.json")
    after = content(store)
    assert {key: after.get(key) for key in before if not key.startswith("gone/")} == {
        key: data for key, data in before.items() if not key.startswith("gone/")
    }
    assert ran(flow(store, "child")) == []


def test_json_of_a_run_whose_record_cannot_be_verified_here_is_refused(store: str) -> None:
    flow(store)
    History(store).export_json("runs.json")
    here = open_store(store)
    here.commit(put={"run/r": [b"damaged"]})
    before = content(store)
    planted(lambda run: run.update(id="another"))
    with pytest.warns(CheckpointWarning), pytest.raises(UsageError, match="its record there is missing or can't be"):
        History(store).import_json("runs.json")
    assert content(store) == before


@checkpointed(effect="once")
def pay(amount: int) -> int:
    raise SystemExit(amount)


def test_what_json_says_of_an_unknown_outcome_is_never_signed_when_it_is_settled() -> None:
    store, other = store_url("memory"), store_url("memory", "other")
    with pytest.raises(SystemExit), checkpoint_scope("r", store=store):
        pay(3)
    History(store).export_json("runs.json")
    planted(lambda run: run["once"][0].update(result="bytes of a stranger", effects=["globals"], roots=[["x"]]))
    History(other).import_json("runs.json")
    (unknown,) = History(other).unknown_outcomes("r")
    History(other).resolve("r", unknown.node, happened=False)
    assert History(other).unknown_outcomes("r") == []
    assert keys(other, "once/") == []


@checkpointed
def count_lines(path: str) -> int:
    return len(Path(path).read_text().splitlines())


def test_a_step_that_read_a_file_runs_again_after_json(store: str, other: str) -> None:
    Path("lines.txt").write_text("one\n")
    with checkpoint_scope("r", store=store):
        count_lines("lines.txt")
    History(store).export_json("runs.json")
    History(other).import_json("runs.json")
    Path("lines.txt").write_text("one\ntwo\n")
    with pytest.warns(CheckpointWarning, match="not in the file"), checkpoint_scope("r", store=other):
        assert count_lines("lines.txt") == 2


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("member", ["manifest.json", "signature", "entries/0"])
def test_an_archive_is_refused_before_a_member_is_unpacked(member: str, trust: bool) -> None:
    store, other = store_url("memory"), store_url("memory", "other")
    flow(store)
    History(store).export("runs.zip")
    with zipfile.ZipFile("runs.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile("runs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, bytes(48 << 20) if name == member else data)
    assert os.path.getsize("runs.zip") < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError, match="runs.zip is damaged .*compressed members.*nothing was imported"):
            History(other).import_("runs.zip", trust=trust)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert content(other) == {}


def test_an_archive_whose_members_share_their_bytes_is_refused() -> None:
    store, other = store_url("memory"), store_url("memory", "other")
    flow(store)
    History(store).export("runs.zip")
    with zipfile.ZipFile("runs.zip", "a") as archive:
        archive.writestr("long", bytes(1 << 16))
        for number in range(100):
            copy = zipfile.ZipInfo(f"copy {number}")
            known = archive.getinfo("long")
            copy.header_offset, copy.CRC = known.header_offset, known.CRC
            copy.file_size = copy.compress_size = known.file_size
            archive.filelist.append(copy)
    with pytest.raises(IntegrityError, match="members overlap"):
        History(other).import_("runs.zip", trust=True)


def test_a_trusted_archive_with_an_incomplete_record_is_refused() -> None:
    record = b"ONCE\x01" + json.dumps({"uid": "0123456789abcdef"}).encode() + bytes(32)
    listing = [{"key": "run/r", "digest": blake3(record).hexdigest()}]
    with zipfile.ZipFile("made.zip", "w") as packed:
        packed.writestr("entries/0", record)
        packed.writestr(
            "manifest.json", json.dumps({"format": "oncemore archive 1", "runs": ["r"], "entries": listing})
        )
        packed.writestr("signature", b"")
    history = History("memory://incomplete")
    with pytest.raises(IntegrityError, match="is damaged"):
        history.import_("made.zip", trust=True)
    assert list(history.runs()) == []


def test_an_import_that_waits_for_another_names_it_and_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rich("memory://waited-for")
    History("memory://waited-for").export("archive.zip")
    monkeypatch.setattr("oncemore.history.archive._LONGEST_WAIT", 0.0)
    store = open_store("other")
    hold = store.hold("gone/shared")  # as an import in another thread has it
    assert hold is not None
    with pytest.raises(StoreUnavailable, match=rf"another thread of this process \(pid {os.getpid()} on .+\) has been importing"):
        History(store).import_("archive.zip")
    hold.release()
    assert History(store).import_("archive.zip") == ["rich"]  # it had released the keys that it got
