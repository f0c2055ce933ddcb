"""`History.verify`: a sound store is found sound, and each kind of damage is found and named."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncemore import CheckpointWarning, File, History, checkpoint_scope, checkpointed, current_run, records
from oncemore.history.verify import Verified
from oncemore.keys import OWNER
from oncemore.retention import keep_last
from oncemore.stores import Bytes
from tests.unit.pasts import Counting, both, flow, keys, store_url


@checkpointed
def numbers(n: int):
    yield from range(n)


@checkpointed
def written(name: str) -> File:
    Path(name).write_text(f"content of {name}")
    return File(name)


@checkpointed(share=True)
def shared(x: int) -> int:
    return x


def full(store: Any) -> History:
    """A store with something of every kind, and a past that was reshaped in every way."""
    flow(store, "r")
    flow(store, "gone", x=5)
    with checkpoint_scope("parts", store=store):
        list(numbers(3))
        written("a.txt")
        shared(7)
    history = History(store)
    history.fork("r", "fork", at="after-clean")
    history.fork("gone", "child")
    history.delete("gone")
    history.rollback("r", to="after-clean")
    flow(store, "r")
    history.rename("fork", "trial")
    flow(store, "trial", x=1)
    return history


def found(verified: Verified, kind: str) -> list[tuple[str, str]]:
    return [(finding.key, finding.run) for finding in verified.findings if finding.kind == kind]


@pytest.mark.parametrize("kind", both)
def test_a_store_with_a_long_past_is_well(kind: str) -> None:
    history = full(store_url(kind))
    assert history.verify().findings == ()
    history.prune(keep_last(1))
    verified = history.verify()
    assert verified.findings == ()
    assert verified.well
    assert verified.runs == 4
    assert verified.entries == len([*keys(history.store), OWNER])
    for run in history.run_ids():
        history.delete(run)
    assert history.verify().findings == ()


def test_a_forgotten_step_and_a_run_from_json_are_well(tmp_path: Path) -> None:
    history = full("one")
    with checkpoint_scope("parts", store="one"):
        shared.forget(7)
        written.forget("a.txt")
    assert found(history.verify(), "dangling") == []
    history.export_json("runs.json", ["r", "parts"])
    other = History("two")
    other.import_json("runs.json")
    assert other.verify().findings == ()
    history.export("runs.zip")
    third = History("three")
    third.import_("runs.zip")
    assert found(third.verify(), "dangling") == []


def test_a_shared_step_that_was_cut_off_leaves_no_orphan() -> None:
    @checkpointed(share=True, effect="once")
    def pay(x: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), checkpoint_scope("r", store="store"):
        pay(1)
    assert keys("store", "once/shared/")
    assert History("store").verify().findings == ()


@pytest.mark.parametrize("prefix", ["run/trial", "node/", "event/", "code/", "shared/", "blob/"])
def test_an_altered_entry_of_any_kind_is_damaged(prefix: str) -> None:
    history = full("store")
    key = next(key for key in keys("store", prefix))
    data = bytes(history.store.get(key) or b"")
    history.store.commit(put={key: [data[:-1] + bytes([data[-1] ^ 1])]})
    verified = history.verify()
    assert not verified.well
    assert key in [found for found, _ in found(verified, "damaged")]


def test_an_entry_under_another_key_is_damaged() -> None:
    history = full("store")
    one, two = [key for key in keys("store", "node/") if "/load/" in key][:2]
    history.store.commit(put={one: [history.store.get(two) or b""]})
    assert [key for key, _ in found(history.verify(), "damaged")] == [one]


def test_another_secret_damages_everything_that_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    history = full("store")
    monkeypatch.setenv("ONCEMORE_KEY", "somebody else's secret")
    verified = history.verify()
    unsigned = [key for key in keys("store") if key.startswith(("pending/", "changed/", "forks/", "gone/"))]
    assert len(found(verified, "damaged")) == verified.entries - len([*unsigned, OWNER])


def test_a_store_of_another_key_is_not_said_to_be_well(monkeypatch: pytest.MonkeyPatch) -> None:
    full("store")
    monkeypatch.setenv("ONCEMORE_KEY", "somebody else's secret")
    with pytest.warns(CheckpointWarning, match="made with another key"):
        verified = History("store").verify()
    assert not verified.well
    assert [finding.kind for finding in verified.findings] == ["foreign"]


def test_a_value_file_that_is_gone_is_damage() -> None:
    with checkpoint_scope("large", store="store"):
        checkpointed(os.urandom)(100_000)
    (file,) = Path("store").glob("??/??/*.val")
    file.unlink()
    assert [run for _, run in found(History("store").verify(), "damaged")] == ["large"]


@pytest.mark.parametrize("part", ["/load/", "state/", "items/", "blob/", "files/", "forks/"])
def test_what_is_referred_to_and_gone_is_dangling(part: str) -> None:
    history = full("store")
    key = next(key for key in reversed(keys("store")) if part in key or key.startswith(part))
    history.store.commit(delete=[key])
    verified = history.verify()
    assert key in [found for found, _ in found(verified, "dangling")]
    assert not verified.well


def test_a_gap_in_the_events_is_dangling() -> None:
    history = full("store")
    key = keys("store", records.read(history.store, "r").log)[2]
    history.store.commit(delete=[key])
    assert (key, "r") in found(history.verify(), "dangling")


def test_what_nothing_refers_to_is_an_orphan_and_does_no_harm() -> None:
    history = full("store")
    planted = ["node/0123456789abcdef/load/x", "event/0123456789abcdef/0000000000000001", "blob/00", "doctor/1"]
    for key in planted:
        same = history.store.get(next(iter(keys("store", "run/"))))
        history.store.commit(put={key: [same or b""]})
    stray = Path("store", "00", "00", "0" * 28 + "-1.val")
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"x")
    os.utime(stray, (0, 0))
    told = [key for key, _ in found(history.verify(), "orphan")]
    assert told == [
        "blob/00",
        "doctor/1",
        "event/0123456789abcdef",
        "node/0123456789abcdef",
        "00/00/" + "0" * 28 + "-1.val",
    ]


def test_orphans_alone_are_well() -> None:
    history = full("store")
    history.store.commit(put={"doctor/1": [b"1"]})
    verified = history.verify()
    assert len(verified.findings) == 1
    assert verified.well


def test_progress_is_told_for_every_entry() -> None:
    told: list[tuple[int, int]] = []
    verified = full("store").verify(lambda done, total: told.append((done, total)))
    assert told == [(number, verified.entries) for number in range(1, verified.entries + 1)]


class Meddling(Counting):
    """A store in which a job prunes a run at the worst moment: after its events were read."""

    meddled = False

    def scan(self, prefix: str, **options: Any) -> Iterator[tuple[str, Bytes | None]]:
        yield from super().scan(prefix, **options)
        if (
            not self.meddled
            and "late" in History(self.inner).run_ids()
            and prefix == records.read(self.inner, "late").log
        ):
            self.meddled = True
            History(self.inner).prune(keep_last(1), runs=["late"])


def test_what_a_job_removes_meanwhile_is_not_missed() -> None:
    store = Meddling(full("store").store)

    def begin(done: int, total: int) -> None:
        if done == total and "late" not in History("store").run_ids():
            flow("store", "late")

    verified = History(store).verify(begin)
    assert store.meddled
    assert verified.findings == ()


def test_a_store_that_is_in_use_is_found_well() -> None:
    """Runs are made, pruned and deleted all the time while it is verified."""
    stop, history = threading.Event(), full("store")

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            flow("store", f"busy-{number}", x=number)
            history.prune(keep_last(1), runs=[f"busy-{number}"])
            history.delete(f"busy-{number}")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(10):
            assert found(history.verify(), "damaged") == found(history.verify(), "dangling") == []
    finally:
        stop.set()
        worker.join()


@checkpointed(share=True)
def shared_numbers(n: int):
    yield from range(n)


@checkpointed(effect="once")
def posted(n: int) -> File:
    return written(f"posted{n}.txt")


@checkpointed(capture_output=True)
def printing(n: int) -> None:
    print(n)


@checkpointed
def stateful(n: int) -> int:
    run = current_run()
    assert run is not None
    run.state["n"] = run.state.get("n", 0) + n
    return n


@pytest.mark.parametrize("kind", both)
def test_a_store_with_entries_of_every_kind_is_verified(kind: str) -> None:
    store = store_url(kind)

    def everything(stop: int) -> None:
        with checkpoint_scope("r", store=store) as run:
            list(shared_numbers(3))
            posted(1)
            printing(1)
            run.map(stateful, range(3))
            run.checkpoint("middle")
            for i in run.loop("outer", range(4)):
                run.state["i"] = i
                for j in run.loop("inner", ["a", "b"]):
                    stateful(10 * i + len(j))
                if i == stop:
                    raise RuntimeError
            list(numbers(4))

    for stop in (1, 2):
        with pytest.raises(RuntimeError):
            everything(stop)
        assert History(store).verify().well
    everything(9)
    history = History(store)
    assert history.verify().findings == ()
    history.fork("r", "fork", at="middle")
    history.rollback("r", to="middle")
    everything(9)
    assert history.verify().well
    history.prune(keep_last(2))
    assert history.verify().well
    history.delete("r")
    assert history.verify().well


@pytest.mark.parametrize(
    "kind",
    ["blob", "calls", "changed", "code", "damaged", "event", "files", "forks", "gone", "items", "key", "node", "once"]
    + ["other", "pending", "reused", "run", "shared", "state", "waiting", "wrote", "", "strange"],
)
def test_keys_that_nobody_of_ours_has_written_are_findings_and_no_errors(kind: str) -> None:
    history = full("memory://of-strange-keys" + os.environ["HOME"])
    for rest in ("", "/", "/x", "/x/y", "/x/y/z@", "/0123456789abcdef/", "/0123456789abcdef/$", "/ü/\U0010ffff"):
        history.store.commit(put={kind + rest: [b"planted"]})
    assert history.verify().findings
