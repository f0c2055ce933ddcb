"""Encryption at rest: nothing that the user's program computes can be read in the store's files."""

from __future__ import annotations

import os
import sqlite3
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oncemore import (
    CheckpointWarning,
    File,
    History,
    IntegrityError,
    StoreUnavailable,
    UsageError,
    checkpoint_scope,
    checkpointed,
    memoized,
)
from oncemore.keys import ENCRYPTION, OWNER
from oncemore.stores import open_store
from oncemore.stores.memory import MemoryStore
from tests.processes import Script
from tests.unit.pasts import ran

GLOBAL = "MARK-in-a-global"


@checkpointed
def small(text: str) -> dict[str, str]:
    """MARK-in-the-source"""
    return {"result": "MARK-in-a-result", "length": str(len(text + GLOBAL))}


@checkpointed
def large(seed: int) -> Any:
    noise = np.random.default_rng(seed).integers(0, 256, 200_000, dtype=np.uint8)
    return bytes(noise[:100_000]) + b"MARK-in-a-large-value" + bytes(noise[100_000:])


@checkpointed(capture_output=True)
def loud() -> None:
    print("MARK-in-printed-output")


@checkpointed(outputs=["made.txt"])
def write() -> File:
    Path("made.txt").write_text("MARK-in-a-file")
    return File("made.txt")


@checkpointed
def items() -> Iterator[str]:
    yield "MARK-in-an-item"


@checkpointed(effect="once")
def pay(account: str) -> str:
    return "MARK-in-a-receipt"


@checkpointed
def fail() -> None:
    raise ValueError("MARK-in-an-error")


@memoized
def shared(x: int) -> str:
    return "MARK-in-a-memoized-result"


MARKS = [
    *(
        "in-an-argument",
        "in-the-source",
        "in-a-result",
        "in-a-global",
        "in-a-large-value",
        "in-printed-output",
        "in-a-file",
    ),
    *("in-an-item", "in-a-receipt", "in-an-error", "in-a-memoized-result", "in-a-state-key"),
    *("in-metadata", "in-a-workflow", "in-a-loop"),
]
COMPRESSED = [
    "in-an-account",
    "in-a-state-value",
]  # nobody can read these in a plain store either, without unpacking it


def everything(store: str = "./.oncemore", **options: Any) -> Any:
    """Use every kind of entry; the run, its scope left."""
    with checkpoint_scope("r", store=store, workflow="MARK-in-a-workflow", **options) as run:
        assert small("MARK-in-an-argument")["result"] == "MARK-in-a-result"
        assert b"MARK-in-a-large-value" in large(1)
        loud()
        assert write().path.read_text() == "MARK-in-a-file"
        assert list(items()) == ["MARK-in-an-item"]
        assert pay("MARK-in-an-account") == "MARK-in-a-receipt"
        assert shared(1) == "MARK-in-a-memoized-result"
        run.state["MARK-in-a-state-key"] = "MARK-in-a-state-value"
        run.checkpoint("named", metadata={"note": "MARK-in-metadata"})
        for each in run.loop("loop", ["MARK-in-a-loop", "b"]):
            run.state["last"] = each
        with pytest.raises(ValueError):
            fail()
    return run


def readable(folder: str) -> set[str]:
    """The marks that are in the files under a folder."""
    content = b"".join(path.read_bytes() for path in Path(folder).rglob("*") if path.is_file())
    return {mark for mark in MARKS + COMPRESSED if f"MARK-{mark}".encode() in content}


@pytest.fixture
def encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_ENCRYPT", "1")


@pytest.mark.usefixtures("encrypted")
def test_nothing_of_what_a_program_computes_can_be_read_in_an_encrypted_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything()
    assert readable(".oncemore") == set()
    monkeypatch.delenv("ONCEMORE_ENCRYPT")
    everything("plain")
    assert readable("plain") == set(MARKS)  # so that the test above can fail


def test_a_store_made_with_encryption_stays_encrypted_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_ENCRYPT", "on")
    with checkpoint_scope("other"):
        pass
    for asked in (None, "0"):
        if asked is None:
            monkeypatch.delenv("ONCEMORE_ENCRYPT")
        else:
            monkeypatch.setenv("ONCEMORE_ENCRYPT", asked)
        everything()
        assert readable(".oncemore") == set()


@pytest.mark.usefixtures("encrypted")
def test_everything_is_reused_and_verified_in_an_encrypted_store() -> None:
    everything()
    os.unlink("made.txt")
    again = everything()
    assert ran(again) == []
    assert not History().verify().findings
    run = History().run("r")
    assert run.status == "finished"
    assert any("MARK-in-an-error" in str(event) for event in run.events())
    assert run.checkpoints[-1].state()["MARK-in-a-state-key"] == "MARK-in-a-state-value"


@pytest.mark.usefixtures("encrypted")
def test_a_plaintext_store_is_refused_where_encryption_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEMORE_ENCRYPT")
    with checkpoint_scope("r"):
        small("x")
    monkeypatch.setenv("ONCEMORE_ENCRYPT", "1")
    with pytest.raises(UsageError, match="oncemore key rotate --encrypt"), checkpoint_scope("r"):
        pass
    with pytest.raises(UsageError, match="not encrypted"):
        History()


@pytest.mark.usefixtures("encrypted")
def test_a_plaintext_entry_in_an_encrypted_store_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed with the right key, for the right place: an old copy from before the store was encrypted."""
    with checkpoint_scope("r"):
        small("x")
    below = open_store("./.oncemore")
    [key] = [key for key, _ in below.scan("node/") if "small" in key]
    plain = History().store.get(key)
    assert plain is not None
    below.commit(put={key: [plain]})
    with pytest.warns(CheckpointWarning, match="is not encrypted, but the store is"), checkpoint_scope("r") as run:
        small("x")
    assert ran(run) == ["small"]
    below.commit(put={key: [plain]})
    with pytest.raises(IntegrityError, match="oncemore key rotate --encrypt"), checkpoint_scope("r", strict=True):
        small("x")
    assert [each.kind for each in History().verify().findings] == ["damaged"]


@pytest.mark.usefixtures("encrypted")
def test_removing_the_note_that_a_store_is_encrypted_turns_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    everything()
    monkeypatch.delenv("ONCEMORE_ENCRYPT")
    for forged in (None, b"plain", bytes(open_store("./.oncemore").get(OWNER) or b"")):
        put = {} if forged is None else {ENCRYPTION: [forged]}
        open_store("./.oncemore").commit(delete=[ENCRYPTION] if forged is None else [], put=put)
        with pytest.warns(CheckpointWarning, match="still treated as encrypted"):
            run = everything()
        assert ran(run) == []
        assert readable(".oncemore") == set()
    everything()  # the note was restored: no warning


@pytest.mark.usefixtures("encrypted")
def test_an_entry_that_was_altered_or_moved_is_not_used() -> None:
    with checkpoint_scope("r"):
        small("x")
        small("y")
    below = open_store("./.oncemore")
    one, other = [key for key, _ in below.scan("node/") if "small" in key]
    first, second = bytes(below.get(one) or b""), bytes(below.get(other) or b"")
    store = History().store
    for forged in (second, first[:-1] + bytes([first[-1] ^ 1]), first[:20] + b"?" + first[21:], first[:30]):
        below.commit(put={one: [forged]})
        with pytest.raises(IntegrityError):
            store.get(one)
    below.commit(put={one: [first[:6] + b"\0\0\0\0" + first[10:]]})
    with pytest.raises(IntegrityError, match=r"encrypted with another key \(00000000\): set ONCEMORE_KEY"):
        store.get(one)


@pytest.mark.usefixtures("encrypted")
def test_equal_entries_are_stored_as_different_bytes() -> None:
    store = History("memory://equal-entries").store
    store.commit(put={"a": [b"same"]})
    first = open_store(store.url).get("a")
    store.commit(put={"a": [b"same"]})
    assert first != open_store(store.url).get("a")
    assert store.get("a") == b"same"


def test_another_key_finds_nothing_and_leaves_the_owners_entries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_ENCRYPT", "1")
    everything()
    with monkeypatch.context() as patch:
        patch.setenv("ONCEMORE_KEY", "the key of somebody else, long enough")
        with pytest.warns(CheckpointWarning, match="made with another key"):
            beside = everything()
        assert "small" in ran(beside)
        assert readable(".oncemore") == set()
    assert ran(everything()) == []


def test_unknown_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_ENCRYPT", "maybe")
    with pytest.raises(UsageError, match="ONCEMORE_ENCRYPT=maybe is unknown"), checkpoint_scope("r"):
        pass


def test_without_the_package_nothing_is_written_and_the_error_names_it(script: Script) -> None:
    """A folder of that name that is no package stands for a machine without it."""
    Path(script.folder / "cryptography.py").write_text("raise ModuleNotFoundError('No module named cryptography')")
    source = """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def step():
            return 1

        with checkpoint_scope("r"):
            step()
    """
    done = script(source, env={"ONCEMORE_ENCRYPT": "1"}, cold=True, expect=1)
    assert "pip install 'oncemore[encrypt]'" in done.err
    assert not list(open_store(str(script.folder / ".oncemore")).scan("run/"))


@pytest.mark.usefixtures("encrypted")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_pool_read_and_write_encrypted_entries(method: str, script: Script) -> None:
    source = f"""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def step(x):
            print("ran", flush=True)
            return f"MARK-in-a-result {{x}}"

        if __name__ == "__main__":
            for _ in range(2):
                with checkpoint_scope("r") as run:
                    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("{method}")) as pool:
                        print(list(pool.map(step, range(3))) == [f"MARK-in-a-result {{x}}" for x in range(3)])
    """
    done = script(source)
    assert (done.out.count("True"), done.out.count("ran")) == (2, 3), done.err  # lines of two workers may run together
    assert readable(str(script.folder / ".oncemore")) == set()


@pytest.mark.usefixtures("encrypted")
def test_large_arrays_come_back_writable_and_are_used_in_the_memory_they_were_decrypted_into() -> None:
    @checkpointed
    def array() -> Any:
        return np.random.default_rng(0).random(500_000)

    with checkpoint_scope("r"):
        first = array()
    with checkpoint_scope("r") as run:
        found = array()
    assert sum(run.reused.values()) == 1
    assert (found == first).all()
    assert found.flags.writeable
    assert found.ctypes.data % 64 == 0


# -- archives


@pytest.mark.usefixtures("encrypted")
def test_an_archive_of_an_encrypted_store_is_encrypted_and_read_with_the_same_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything()
    History().export("runs.once")
    Path("unpacked").mkdir()
    with zipfile.ZipFile("runs.once") as archive:
        archive.extractall("unpacked")
    assert readable("unpacked") == set()
    monkeypatch.delenv("ONCEMORE_ENCRYPT")
    assert History("./there").import_("runs.once") == ["r"]
    assert ran(everything("./there")) == []
    assert "in-a-result" in readable("there")  # a plain store: the importer decides
    monkeypatch.setenv("ONCEMORE_ENCRYPT", "1")
    assert History("./encrypted").import_("runs.once") == ["r"]
    assert ran(everything("./encrypted")) == []
    assert readable("encrypted") == set()


@pytest.mark.usefixtures("encrypted")
def test_an_encrypted_archive_of_another_key_names_that_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_KEY", "the key of the exporter, long enough")
    everything()
    History().export("runs.once")
    monkeypatch.setenv("ONCEMORE_KEY", "the key of the importer, long enough")
    with pytest.raises(UsageError, match="ONCEMORE_OLD_KEY"):
        History("./there").import_("runs.once", trust=True)
    monkeypatch.setenv("ONCEMORE_OLD_KEY", "the key of the exporter, long enough")
    with pytest.raises(UsageError, match="not signed with your key"):
        History("./there").import_("runs.once")
    assert History("./there").import_("runs.once", trust=True) == ["r"]
    assert ran(everything("./there")) == []


# -- repair


@pytest.mark.usefixtures("encrypted")
def test_an_encrypted_store_is_repaired_with_its_large_values() -> None:
    everything()
    open_store("./.oncemore").close()
    path = Path(".oncemore/cache.db")
    data = bytearray(path.read_bytes())
    data[100:108] = bytes(8)  # the root page: SQLite finds no table any more
    path.write_bytes(data)
    found = History.repair("./.oncemore")
    assert found.aside
    assert not found.unsound
    again = everything()
    assert ran(again) == []
    assert readable(".oncemore") == set()


@pytest.mark.usefixtures("encrypted")
def test_a_lost_row_of_a_large_encrypted_value_is_found_again_by_its_file() -> None:
    with checkpoint_scope("r"):
        large(1)
    open_store("./.oncemore").close()
    with sqlite3.connect(".oncemore/cache.db") as database:
        database.execute("DELETE FROM Cache WHERE filename LIKE '%.val'")
    database.close()
    data = bytearray(Path(".oncemore/cache.db").read_bytes())
    data[100:108] = bytes(8)
    Path(".oncemore/cache.db").write_bytes(data)
    assert History.repair("./.oncemore").whole
    with checkpoint_scope("r") as run:
        large(1)
    assert sum(run.reused.values()) == 1


class Busy(MemoryStore):
    """A store that cannot be read once."""

    busy = False

    def get_many(self, keys: Any, *, most: int | None = None) -> Any:
        if self.busy:
            self.busy = False
            raise StoreUnavailable("the store is busy")
        return super().get_many(keys, most=most)


@pytest.mark.usefixtures("encrypted")
def test_a_store_that_is_busy_when_it_is_opened_is_not_taken_for_a_plain_one() -> None:
    store = Busy(os.environ["HOME"])
    with checkpoint_scope("run", store=store):
        small("MARK-in-an-argument")
    store.busy = True
    with pytest.raises(StoreUnavailable, match="busy"), checkpoint_scope("run", store=store):
        small("MARK-in-another-argument")

    @memoized(store=store)
    def answer() -> str:
        return "MARK-in-a-memoized-result"

    store.busy = True
    with pytest.warns(CheckpointWarning, match="runs, and its result is not saved: the store is busy"):
        answer()
    answer()
    assert not [key for key, data in store.scan("") if b"MARK" in bytes(data or b"")]
    assert History(store).run("run").status == "finished"
