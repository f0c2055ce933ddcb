"""One prefix per run: aliases, closed prefixes, and removal of what no run reaches, also while others are at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncemore import CheckpointWarning, History, checkpoint_scope, checkpointed, fork, records
from oncemore.codec import Decoded
from oncemore.events import StepCompleted
from oncemore.history import rollback
from oncemore.retention import keep_last
from oncemore.settings import secret
from oncemore.stores import Bytes, open_store
from tests.unit.pasts import Counting, both, content, flow, keys, names, ran, store_url
from tests.unit.test_entries import Operations


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


@checkpointed
def work(n: int) -> int:
    return n * n


def prefix(store: Any, run_id: str = "r") -> str:
    return records.read(open_store(store), run_id).prefix


def aliases(store: Any, run_id: str = "r") -> dict[str, str]:
    """What the aliases under a run's prefix stand for."""
    rows = open_store(store).scan(prefix(store, run_id))
    entries = [Decoded(data or b"", key=key, secret=secret()) for key, data in rows]
    return {entry.key: entry.alias_of for entry in entries if entry.alias_of}


class Hooked(Counting):
    """A store in which something happens once, just before a certain commit."""

    def __init__(self, inner: str, when: Callable[[dict[str, Any]], bool], happens: Callable[[], Any]) -> None:
        super().__init__(inner)
        self.when, self.happens, self.happened = when, happens, False

    def commit(self, **change: Any) -> bool:  # type: ignore[override]
        if not self.happened and self.when(change):
            self.happened = True
            self.happens()
        return super().commit(**change)


def test_a_hit_after_a_rollback_asks_for_the_alias_and_what_it_stands_for(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with checkpoint_scope("r", store=store) as run:
        for n in range(3):
            work(n)
    History(store).rollback("r", to=run.checkpoints[1].id)
    counting = Counting(store)
    asked = Operations(counting, monkeypatch)
    with checkpoint_scope("r", store=counting) as run:
        asked()
        assert work(0) == 0
        assert asked() == ["get", "get"]
        assert work(0) == 0 and asked() == []
        assert work(1) == 1 and work(2) == 4
    assert (run.ran["work"], run.reused["work"]) == (1, 3)
    (event,) = [event for event in run.events() if isinstance(event, StepCompleted) and event.reason != "new node"]
    assert event.reason == "rolled back"


def test_an_alias_always_names_the_entry_itself(store: str) -> None:
    flow(store)
    first = prefix(store)
    for number in range(3):
        History(store).rollback("r", to="train")
        fork(History(store).run("r"), f"child-{number}")
    fork(History(store).run("child-2"), "grandchild")
    found = aliases(store, "grandchild")
    assert found and all(key.startswith(first) for key in found.values())


def test_a_run_goes_on_under_a_new_prefix_only_when_it_writes(store: str) -> None:
    flow(store)
    first = prefix(store)
    fork(History(store).run("r"), "child")
    assert ran(flow(store)) == [] and prefix(store) == first
    with checkpoint_scope("r", store=store) as run:
        assert work(3) == 9 and work(3) == 9
    assert prefix(store) != first and run.ran["work"] == 1
    assert ran(flow(store)) == []
    with checkpoint_scope("r", store=store) as run:
        work(3)
    assert run.reused["work"] == 1


def test_entries_that_no_run_reaches_any_more_go_with_the_next_prune(store: str) -> None:
    with checkpoint_scope("r", store=store):
        for n in range(3):
            work(n)
    first = prefix(store)
    fork(History(store).run("r"), "child")
    with checkpoint_scope("r", store=store):
        work.refresh(0)
    assert len([key for key in keys(store, first) if "work/" in key]) == 3
    History(store).prune(keep_last(9))
    assert len([key for key in keys(store, first) if "work/" in key]) == 3
    History(store).delete("child")
    History(store).prune(keep_last(9))
    left = [key for key in keys(store, first) if "work/" in key]
    assert len(left) == 2 and set(left) == set(aliases(store).values())
    assert History(store).verify().findings == ()


def test_a_scope_that_does_not_know_that_its_prefix_was_left_and_removed_loses_nothing(store: str) -> None:
    with checkpoint_scope("r", store=store):
        work(0)
        fork(History(store).run("r"), "child")
        with checkpoint_scope("r", store=store):
            work.refresh(0)
        History(store).delete("child")
        rollback.clear(open_store(store), records.read(open_store(store), "r").uid, "r")
        assert work(1) == 1
    with checkpoint_scope("r", store=store) as run:
        assert [work(n) for n in range(2)] == [0, 1]
    assert run.reused["work"] == 2
    assert History(store).verify().findings == ()


def test_a_fork_is_made_though_its_parent_goes_on_all_the_time(store: str) -> None:
    flow(store)

    def parent_goes_on() -> None:
        with checkpoint_scope("r", store=store):
            work(1)

    made = Hooked(store, lambda change: "run/child" in change.get("put", ()), parent_goes_on)
    History(made).fork("r", "child")
    assert made.happened and made.commits == 2  # closing the prefix, and the fork
    assert ran(flow(store, "child")) == [] == ran(flow(store))
    assert names(History(store).run("child").checkpoints) == ["load", "clean", "after-clean", "train", "report"]


def test_what_a_fork_is_made_of_in_the_moment_of_a_prune_stays(store: str) -> None:
    flow(store)
    pruning = Hooked(
        store,
        lambda change: any("/load/" in key for key in change.get("put", ())),
        lambda: History(store).fork("r", "child"),
    )
    History(pruning).prune(keep_last(1), runs=["r"])
    assert pruning.happened
    assert ran(flow(store, "child")) == []
    assert History(store).verify().well


def test_a_fork_has_nothing_that_is_pruned_in_the_moment_it_is_made(store: str) -> None:
    flow(store)
    forking = Hooked(
        store,
        lambda change: "run/child" in change.get("put", ()),
        lambda: History(store).prune(keep_last(1), runs=["r"]),
    )
    History(forking).fork("r", "child")
    assert forking.happened
    assert names(History(store).run("child").checkpoints) == ["report"]
    assert History(store).verify().well


def test_what_is_forked_in_the_moment_its_parent_is_deleted_is_whole_or_not_there(store: str) -> None:
    flow(store)
    deleting = Hooked(
        store,
        lambda change: any(key.startswith("node/") for key in change.get("delete", ())),
        lambda: History(store).fork("child", "grandchild"),
    )
    fork(History(store).run("r"), "child", at="train")
    History(deleting).delete("r")
    assert deleting.happened
    for run_id in ("child", "grandchild"):
        assert ran(flow(store, run_id)) == ["report"]
    assert History(store).verify().well


def test_what_a_rollback_makes_while_a_prune_looks_for_what_is_left_stays(store: str) -> None:
    flow(store)
    own = f"node/{records.read(open_store(store), 'r').uid}"

    class Late(Counting):
        happened = False

        def scan(self, prefix: str, **options: Any) -> Iterator[tuple[str, Bytes | None]]:
            if prefix == own and not self.happened:
                self.happened = True
                History(store).rollback("r", to="train")
            yield from super().scan(prefix, **options)

    late = Late(store)
    History(late).prune(keep_last(10))
    assert late.happened and ran(flow(store)) == ["report"]
    assert History(store).verify().well


def test_a_clean_up_leaves_the_runs_of_another_secret_alone(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow(store, "theirs")
    History(store).rollback("theirs", to="train")
    theirs = content(store)
    monkeypatch.setenv("ONCEMORE_KEY", "mine")
    with pytest.warns(CheckpointWarning, match="made with another key"):
        flow(store, "mine")
        History(store).delete("mine")
    assert content(store) == {
        **theirs,
        **{k: v for k, v in content(store).items() if k.startswith("other/") and "/code/" in k},
    }


def test_a_run_whose_record_is_damaged_keeps_what_it_has(store: str) -> None:
    flow(store, "other")
    before = keys(store, "node/")
    flow(store)
    whole = open_store(store).get("run/other")
    open_store(store).commit(put={"run/other": [b"no record"]})
    with pytest.warns(CheckpointWarning, match="left out"):
        History(store).prune(keep_last(1))
    History(store).delete("r")
    assert keys(store, "node/") == before
    open_store(store).commit(put={"run/other": [whole or b""]})
    assert ran(flow(store, "other")) == []


def test_pins_in_a_fork_are_its_own(store: str) -> None:
    fork(flow(store), "child")
    History(store).pin("child", "load")
    assert next(iter(History(store).run("child").checkpoints)).pinned
    assert not any(c.pinned for c in History(store).run("r").checkpoints)


def test_the_contents_of_files_stay_with_the_run_that_an_alias_reaches_them_from(store: str) -> None:
    @checkpointed(outputs=["{path}"])
    def write(path: str) -> None:
        Path(path).write_text(path)

    with checkpoint_scope("r", store=store):
        write("a.txt")
        write("b.txt")
    fork(History(store).run("r"), "child")
    History(store).rollback("r", to="r:2")
    History(store).delete("r")
    for name in ("a.txt", "b.txt"):
        Path(name).unlink()
    with checkpoint_scope("child", store=store) as run:
        write("a.txt")
        write("b.txt")
    assert run.ran == {} and Path("b.txt").read_text() == "b.txt"
    History(store).delete("child")
    assert keys(store, "blob/") == keys(store, "files/") == []
