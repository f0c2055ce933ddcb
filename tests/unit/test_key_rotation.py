"""`oncemore key rotate`: every entry of a store gets another key, and the earlier one is refused afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oncemore import (
    CheckpointWarning,
    File,
    History,
    IntegrityError,
    UsageError,
    checkpoint_scope,
    checkpointed,
    memoized,
)
from oncemore.cli import main
from oncemore.codec.keyed import Keyed
from oncemore.history import rotation
from oncemore.keys import OWNER, ROTATION
from oncemore.settings import _derived, earlier_key_file, key_file, key_id
from oncemore.stores import open_store
from tests.processes import Script
from tests.unit.pasts import both, ran, store_url


@checkpointed
def load(x: int) -> int:
    return x


@checkpointed
def bulky() -> bytes:
    return os.urandom(100_000)


@checkpointed(outputs=["made.txt"])
def write() -> File:
    Path("made.txt").write_text("content")
    return File("made.txt")


@memoized
def shared(x: int) -> int:
    return x


def flow(store: str) -> list[str]:
    """Use the store; which steps ran."""
    with checkpoint_scope("r", store=store) as run:
        load(1), bulky(), write(), shared(1)
        run.state["n"] = 1
        run.checkpoint("named")
    return ran(run)


def rotate(store: str, *, encrypts: bool = False) -> rotation.Rotated:
    return rotation.rotate(rotation.plan(open_store(store), encrypts=encrypts))


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


@pytest.mark.parametrize("encrypted", [False, True])
def test_everything_is_reused_after_a_rotation_and_needs_only_the_new_key(
    encrypted: bool, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if encrypted:
        monkeypatch.setenv("ONCEMORE_ENCRYPT", "1")
    flow(store)
    before = key_id()
    done = rotate(store)
    assert (done.before, done.key, done.encrypted) == (before, key_id(), encrypted)
    assert key_id() != before
    assert not done.damaged
    os.unlink(done.kept)
    assert flow(store) == []
    assert not History(store).verify().findings
    assert open_store(store).get(ROTATION) is None
    History(store).rename("r", "again")
    assert History(store).run("again").status == "finished"


def test_the_earlier_key_is_refused_once_a_rotation_is_complete(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_KEY", "the present key, long enough to be one")
    flow(store)
    below = open_store(store)
    [key] = [key for key, _ in below.scan("node/") if "load" in key]
    old = below.get(key)
    assert old is not None
    monkeypatch.setenv("ONCEMORE_OLD_KEY", "the present key, long enough to be one")
    with pytest.raises(UsageError, match="only you can change"):
        rotate(store)
    monkeypatch.setenv("ONCEMORE_KEY", "the other key, long enough to be one")
    with pytest.raises(UsageError, match="oncemore key rotate --store"), checkpoint_scope("r", store=store):
        pass
    assert not rotate(store).kept
    assert flow(store) == []
    below.commit(put={key: [old]})
    with pytest.raises(IntegrityError, match="signed with another secret"):
        History(store).run("r").checkpoints[0].result()


@pytest.mark.parametrize("encrypts", [False, True])
def test_an_unfinished_rotation_accepts_both_keys(encrypts: bool, store: str) -> None:
    flow(store)
    plan = rotation.plan(open_store(store), encrypts=encrypts)
    rotation.replace_key(plan.before)
    rotation._begin(plan)
    assert flow(store) == []  # of entries of the earlier key, all of them
    with checkpoint_scope("r", store=store):
        load(2)
    assert not History(store).verify().findings
    again = rotation.plan(open_store(store))
    assert (again.unfinished, again.before, again.new_key) == (True, plan.before, False)
    assert rotation.rotate(again).encrypted == encrypts
    assert flow(store) == []
    assert not History(store).verify().findings


def test_without_the_earlier_key_an_unfinished_rotation_says_where_to_put_it(store: str) -> None:
    flow(store)
    plan = rotation.plan(open_store(store))
    rotation.replace_key(plan.before)
    rotation._begin(plan)
    os.rename(earlier_key_file(plan.before.id), "saved")
    with pytest.raises(UsageError, match="put it back at"):
        flow(store)
    os.rename("saved", earlier_key_file(plan.before.id))
    assert flow(store) == []


def test_other_stores_of_the_same_key_get_the_same_new_key() -> None:
    for name in ("one", "two"):
        flow(name)
    first = rotate("one")
    with pytest.raises(UsageError, match=f"earlier key of yours \\({first.before}\\)"):
        flow("two")
    with pytest.raises(UsageError, match="oncemore key rotate"):
        History("two")
    second = rotate("two")
    assert (second.before, second.key) == (first.before, first.key)
    os.unlink(second.kept)
    assert flow("one") == flow("two") == []


def test_a_key_is_not_replaced_while_a_run_is_running(store: str) -> None:
    before = key_id()
    with checkpoint_scope("busy", store=store):
        load(1)
        with pytest.raises(UsageError, match=r"while runs are open \(busy\)"):
            rotate(store)
    _derived.cache_clear()
    assert key_id() == before


def test_an_empty_store_and_one_of_another_key_are_left_alone(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is empty"):
        rotate(store)
    flow(store)
    monkeypatch.setenv("ONCEMORE_KEY", "the key of somebody else, long enough")
    with pytest.raises(UsageError, match="set ONCEMORE_OLD_KEY to it"):
        rotate(store)


def test_runs_that_the_new_key_has_stored_separately_are_not_hidden(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMORE_KEY", "the present key, long enough to be one")
    flow(store)
    monkeypatch.setenv("ONCEMORE_KEY", "the other key, long enough to be one")
    with pytest.warns(CheckpointWarning, match="stored separately"):
        flow(store)
    monkeypatch.setenv("ONCEMORE_OLD_KEY", "the present key, long enough to be one")
    with pytest.raises(UsageError, match="runs of its own"):
        rotate(store)


def test_entries_that_neither_key_verifies_stay_as_they_are_and_are_named(store: str) -> None:
    flow(store)
    below = open_store(store)
    [key] = [key for key, _ in below.scan("node/") if "load" in key]
    forged = bytes(below.get(key) or b"")[:-1] + b"?"
    below.commit(put={key: [forged]})
    assert rotate(store).damaged == (key,)
    assert bytes(below.get(key) or b"") == forged
    with pytest.warns(CheckpointWarning, match="its checkpoint is damaged"):
        assert flow(store) == ["load"]


@pytest.mark.parametrize("trusted", [False, True])
def test_plaintext_in_an_encrypted_store_is_not_accepted_by_a_rotation_unless_it_is_asked_to_encrypt(
    trusted: bool, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMORE_ENCRYPT", "1")
    flow(store)
    below = open_store(store)
    [key] = [key for key, _ in below.scan("node/") if "load" in key]
    plain = History(store).store.get(key)
    assert plain is not None
    below.commit(put={key: [plain]})
    assert rotate(store, encrypts=trusted).damaged == (() if trusted else (key,))


def test_a_store_of_a_process_with_a_forged_note_of_a_rotation_does_not_accept_the_earlier_key(store: str) -> None:
    flow(store)
    done = rotate(store)
    note = json.dumps({"before": done.before, "plain": True}).encode()
    open_store(store).commit(put={ROTATION: [note]})
    assert not isinstance(History(store).store, Keyed)


def test_the_key_file_is_private_and_the_earlier_one_is_kept() -> None:
    flow("store")
    before = Path(key_file()).read_bytes()
    done = rotate("store")
    assert Path(done.kept).read_bytes() == before != Path(key_file()).read_bytes()
    assert {os.stat(path).st_mode & 0o777 for path in (done.kept, key_file())} == {0o600}
    assert sorted(os.listdir(Path(key_file()).parent)) == ["key", f"key.{done.before}"]


# -- the command


def test_the_command_encrypts_a_store_and_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    flow("./.oncemore")
    owner = bytes(open_store("./.oncemore").get(OWNER) or b"").decode()
    assert main(["key", "rotate", "--encrypt"]) == 4  # nobody to ask
    assert f"Replace the key {owner}" in capsys.readouterr().err
    assert main(["key", "rotate", "--encrypt", "--yes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["before"], told["encrypted"], told["damaged"]) == (owner, True, [])
    assert main(["key", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["key"], shown["encrypted"], shown["earlier"]) == (told["key"], True, [owner])
    assert flow("./.oncemore") == []


def test_a_rotated_key_is_found_by_a_new_process(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def step():
            print("ran")

        with checkpoint_scope("r"):
            step()
    """
    assert script(source).lines == ["ran"]
    rotate(str(script.folder / ".oncemore"), encrypts=True)
    assert script(source).lines == []
