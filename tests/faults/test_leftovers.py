"""What processes leave that were killed midway: it goes with the next clean-up, and what others are about to need stays."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from oncemore import File, History, checkpoint_scope, checkpointed, memoized
from oncemore.files import blobs
from oncemore.files.blobs import Blobs
from oncemore.history import archive, rollback
from oncemore.retention import keep_last
from oncemore.stores import open_store
from oncemore.stores.disk import DiskStore
from tests.faults.test_past_kills import dying_at, in_child, wait
from tests.processes import Script
from tests.unit.pasts import Counting, both, content, flow, keys, ran, store_url


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


WRITING = """
import os, sys
from pathlib import Path
from oncemore import File, checkpoint_scope, checkpointed, memoized, stores
from oncemore.stores.disk import DiskStore

commit = DiskStore.commit
def slow(self, **change):
    if any(key.startswith("code/") for key in change.get("put", ())):  # the checkpoint itself
        print("ready", flush=True)
        while not os.path.exists("go"): __import__("time").sleep(0.01)
    return commit(self, **change)
DiskStore.commit = slow

@checkpointed(outputs=["out.bin"])
def outputs(x):
    Path("out.bin").write_bytes(os.urandom(100_000) if x < 0 else bytes([x]) * 100_000)

@checkpointed
def value(x):
    Path("out.bin").write_bytes(bytes([x]) * 100_000)
    return File("out.bin")

@memoized(outputs=["out.bin"])
def shared(x):
    Path("out.bin").write_bytes(bytes([x]) * 100_000)

@checkpointed
def items(x):
    for _ in range(2):
        yield value.__wrapped__(x)

kind, x = sys.argv[1], int(sys.argv[2])
with checkpoint_scope("r", store="store") as run:
    found = globals()[kind](x)
    if kind == "items": list(found)
    print("ran", sum(run.ran.values()))
"""


def blobs_left() -> list[str]:
    return [key for key in keys("store") if key.startswith(("blob/", "files/", "pending/"))]


@pytest.mark.parametrize("kind", ["outputs", "value", "shared", "items"])
def test_the_content_of_a_file_whose_step_was_killed_goes_with_the_next_clean_up(script: Script, kind: str) -> None:
    os.chdir(script.folder)
    script.kill_at("ready", WRITING, kind, "1")
    assert len([key for key in blobs_left() if key.startswith("blob/")]) == 1
    History("store").prune(keep_last(1))
    assert blobs_left() == []


@pytest.mark.parametrize("kind", ["outputs", "value", "shared", "items"])
def test_a_running_step_keeps_the_content_it_is_about_to_need(script: Script, kind: str) -> None:
    os.chdir(script.folder)
    flow("store", "other")
    running = script.start(WRITING, kind, "1")
    running.wait_for("ready")
    before = blobs_left()
    History("store").prune(keep_last(1))
    History("store").delete("other")
    assert blobs_left() == before
    Path("go").touch()
    assert running.finish(0).lines[-1] == "ran 1"
    assert not keys("store", "pending/")
    Path("out.bin").unlink()
    assert script(None, kind, "1").lines[-1] == "ran 0"
    assert Path("out.bin").read_bytes() == bytes([1]) * 100_000


def test_a_step_that_is_run_again_takes_what_the_killed_one_left_and_removes_the_rest(script: Script) -> None:
    os.chdir(script.folder)
    script.kill_at("ready", WRITING, "outputs", "-1")
    Path("go").touch()
    script(None, "outputs", "-1")
    assert len(keys("store", "blob/")) == 1 and not keys("store", "pending/")
    History("store").delete("r")
    assert blobs_left() == []


@checkpointed(outputs=["{path}"])
def make(path: str, byte: int) -> None:
    Path(path).write_bytes(bytes([byte]) * 50_000)


@memoized(outputs=["{path}"])
def make_shared(path: str, byte: int) -> File:
    Path(path).write_bytes(bytes([byte]) * 50_000)
    return File(path)


@memoized
def shared_items(n: int) -> Any:
    yield from range(n)


@pytest.mark.parametrize("how", ["refresh", "forget", "prune"])
def test_what_a_checkpoint_needed_that_was_replaced_or_removed_goes_with_it(store: str, how: str) -> None:
    @checkpointed(outputs=["out.bin"])
    def noise(n: int) -> None:
        Path("out.bin").write_bytes(os.urandom(50_000))

    with checkpoint_scope("r", store=store):
        noise(1)
        make("same", 7)
        if how == "refresh":
            noise.refresh(1)
        elif how == "forget":
            noise.forget(1)
    if how == "prune":
        History(store).prune(keep_last(1))
    assert len(keys(store, "blob/")) == {"refresh": 2, "forget": 1, "prune": 1}[how]
    assert not keys(store, "pending/")


class Meeting(Counting):
    """A store in which something happens just before a chunk is removed."""

    happens: Any = None

    def commit(self, **change: Any) -> bool:
        if self.happens and any(key.startswith("blob/") for key in change.get("delete", ())):
            self.happens, happens = None, self.happens
            happens()
        return super().commit(**change)


def test_a_chunk_that_is_wanted_in_the_moment_of_its_removal_stays(store: str) -> None:
    with checkpoint_scope("r", store=store):
        make("a", 1)
    meeting = Meeting(store)

    def another_wants_it() -> None:
        with open("a", "rb") as file:
            chunks = Blobs(meeting.inner, "another")
            chunks.keep(file)
            chunks.flush()

    meeting.happens = another_wants_it
    History(meeting).prune(keep_last(1), runs=["r"])
    with checkpoint_scope("r", store=store):
        make("b", 2)
    hold = meeting.hold("another")  # it is being computed
    History(meeting).prune(keep_last(1), runs=["r"])
    assert len(keys(store, "blob/")) == 2 and meeting.happens is None
    hold.release()
    blobs.sweep(meeting)
    assert len(keys(store, "blob/")) == 1


def test_a_chunk_that_was_removed_just_before_it_was_wanted_is_written_anew(store: str) -> None:
    with checkpoint_scope("r", store=store):
        make("a", 1)
    looked = threading.Event()

    class Late(Counting):
        def commit(self, **change: Any) -> bool:
            if not looked.is_set() and any(key.startswith("pending/") for key in change.get("put", ())):
                looked.set()  # it has seen the chunk; now that goes
                History(store).delete("r")
            return super().commit(**change)

    with checkpoint_scope("other", store=Late(store)):
        make("a", 1)
    Path("a").unlink()
    with checkpoint_scope("other", store=store) as run:
        make("a", 1)
    assert looked.is_set() and run.ran == {} and Path("a").read_bytes() == b"\1" * 50_000


@pytest.mark.slow
def test_processes_that_write_and_remove_the_same_files_never_lose_one_that_is_needed(campaign: Any) -> None:
    store, rounds = store_url("disk"), campaign(60, 12)

    def writer(number: int) -> None:
        os.makedirs(f"w{number}", exist_ok=True)
        os.chdir(f"w{number}")
        for turn in range(rounds):
            with checkpoint_scope(f"w{number}-{turn}", store=store):
                make("file", turn % 3)
            if turn:
                History(store).delete(f"w{number}-{turn - 1}")

    children = [in_child(lambda number=number: writer(number)) for number in range(3)]
    assert [wait(child) for child in children] == [0, 0, 0]
    for number in range(3):
        os.chdir(f"w{number}")
        Path("file").unlink()
        with checkpoint_scope(f"w{number}-{rounds - 1}", store=store) as run:
            make("file", (rounds - 1) % 3)
        assert run.ran == {}
        os.chdir("..")
    assert len(keys(store, "blob/")) == 1 and not keys(store, "pending/")


# -- imports


def test_an_import_that_was_killed_leaves_nothing_behind_after_the_next_clean_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_BATCH", 2_000)
    source = str(tmp_path / "source")
    flow(source)
    with checkpoint_scope("r", store=source):
        for number in range(3):
            make(f"f{number}", number)
    History(source).fork("r", "child", at="after-clean")
    for runs in (["r"], ["child"], ["r", "child"]):
        History(source).export("runs.zip", runs=runs)
        for number in range(20):
            for after in (False, True):
                store = str(tmp_path / f"{'-'.join(runs)}-{number}-{after}")
                flow(store, "other")
                History(store).store.close()
                before = {key: data for key, data in content(store).items() if not key.startswith(("code/", "run/"))}
                History(store).store.close()
                code = wait(in_child(lambda: History(store).import_("runs.zip"), dying_at(number, after)))
                complete = [run.id for run in History(store).runs() if run.id != "other"]
                assert sorted(complete) in ([], sorted(runs))
                History(store).prune(keep_last(10))
                if not complete:
                    left = {k: v for k, v in content(store).items() if not k.startswith(("code/", "run/"))}
                    assert left == before, f"killed at transaction {number}"
                History(store).import_("runs.zip")
                for run_id in runs:
                    assert ran(flow(store, run_id)) == ([] if run_id == "r" else ["report", "train"])
                if code == 0:
                    break
            if code == 0:
                break
        assert number > 1 and code == 0


def test_a_clean_up_leaves_alone_what_is_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_BATCH", 100)
    source, store = str(tmp_path / "source"), str(tmp_path / "store")
    flow(source)
    with checkpoint_scope("r", store=source):
        make("file", 1)
    History(source).export("runs.zip")
    (blob,) = keys(source, "blob/")
    open_store(store).commit(put={blob: [open_store(source).get(blob) or b""]})  # which nobody needs
    for each in (source, store):
        open_store(each).close()
    commits = DiskStore.commit

    def cleaned(self: DiskStore, **change: Any) -> bool:
        done = commits(self, **change)
        if any(key.startswith(("node/", "event/")) for key in change.get("put", ())):  # some of it is there
            assert wait(in_child(lambda: rollback.clean(open_store(store)), undo)) == 0
        return done

    def undo() -> None:
        DiskStore.commit = commits  # type: ignore[method-assign]

    def importing() -> None:
        DiskStore.commit = cleaned  # type: ignore[method-assign,assignment]
        History(store).import_("runs.zip")

    assert wait(in_child(importing)) == 0
    assert ran(flow(store)) == [] and len(History(store).run("r").checkpoints) == 6
    assert keys(store, "blob/") == [blob] and History(store).verify().findings == ()
    assert not keys(store, "gone/") and not keys(store, "pending/")


def test_two_that_import_the_same_at_once_bring_it_once(tmp_path: Path) -> None:
    source, store = str(tmp_path / "source"), str(tmp_path / "store")
    flow(source)
    History(source).export("runs.zip")
    History(source).store.close()
    children = [in_child(lambda: History(store).import_("runs.zip")) for _ in range(4)]
    assert [wait(child) for child in children] == [0] * 4
    assert ran(flow(store)) == []
    assert [run.id for run in History(store).runs()] == ["r"]


# -- archives carry all that can count there


def test_a_rollback_can_be_undone_where_the_run_was_imported(store: str) -> None:
    other = store_url("memory", "other")
    with checkpoint_scope("r", store=store):
        make("a", 1)
        make("b", 2)
        make_shared("c", 3)
    History(store).rollback("r", to="r:2")
    History(store).export("r.zip")
    History(other).import_("r.zip")
    History(other).undo_rollback("r")
    for path in "abc":
        Path(path).unlink()
    with checkpoint_scope("r", store=other) as run:
        make("a", 1)
        make("b", 2)
        make_shared("c", 3)
    assert run.ran == {} and Path("b").read_bytes() == b"\2" * 50_000 and Path("c").read_bytes() == b"\3" * 50_000


def test_what_is_shared_between_runs_comes_along_with_its_files_and_items(store: str) -> None:
    other = store_url("memory", "other")
    with checkpoint_scope("r", store=store):
        make_shared("a", 1)
        assert list(shared_items(3)) == [0, 1, 2]
    History(store).export("r.zip")
    History(other).import_("r.zip")
    Path("a").unlink()
    with checkpoint_scope("r", store=other) as run:
        make_shared("a", 1)
        assert list(shared_items(3)) == [0, 1, 2]
    assert run.ran == {} and Path("a").read_bytes() == b"\1" * 50_000
