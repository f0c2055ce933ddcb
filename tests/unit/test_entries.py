"""What a call asks of its store: as little as it takes to be right, whatever the arguments are and however old the run is."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oncemore import History, checkpoint_scope, checkpointed, current_run, entries, memoized, open_store
from oncemore.codec import Decoded
from oncemore.events import StepCompleted
from oncemore.retention import keep_last
from oncemore.settings import secret
from tests.processes import Script
from tests.unit.pasts import Counting, both, store_url

LARGE = 100_000  # bytes: more than an entry that is cached


@dataclass
class Point:
    x: int
    tags: list[str]


ARGUMENTS: dict[str, Callable[[int], Any]] = {
    "int": lambda n: n,
    "dict": lambda n: {"n": n, "more": [1, 2, {"deep": 3}]},
    "list": lambda n: [n] * 10,
    "dataclass": lambda n: Point(n, ["a", "b"]),
    "array": lambda n: np.arange(n, n + 100),
    "frame": lambda n: pd.DataFrame({"a": [n, 2], "b": [0.5, 1.5]}),
}


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(str(tmp_path / "store"))


@checkpointed
def busy(value: Any) -> int:
    print("ran")
    return 1


@checkpointed
def bulky(number: int, size: int = LARGE) -> bytes:
    print("ran")
    return random.Random(number).randbytes(size)


class Operations:
    """What is asked of a store meanwhile, in order."""

    def __init__(self, store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        for name in ("get", "get_many", "scan", "commit", "hold", "held"):
            monkeypatch.setattr(store, name, self._counted(name, getattr(store, name)))

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self.asked.append(name)
            return method(*given, **named)

        return counted

    def __call__(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_a_miss_is_a_hold_and_a_commit_and_a_hit_from_memory_asks_for_nothing(
    store: Counting, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    make, asked = ARGUMENTS[kind], Operations(store, monkeypatch)
    for attempt in range(3):
        with checkpoint_scope("run", store=store) as run:
            for number in (-1, -2, -3):  # by then, all that is small is in memory
                busy(make(number))
            busy(make(100 * attempt))
            asked()
            busy(make(100 * attempt + 1))
            assert asked() == ["hold", "commit"]
            busy(make(100 * attempt + 1))
            assert asked() == []
    assert run.reused["busy"] == 4


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_a_hit_parses_no_json_and_writes_nothing(store: Counting, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for _ in range(2):
        with checkpoint_scope("run", store=store) as run:
            busy(ARGUMENTS[kind](1))
            commits = store.commits
            with monkeypatch.context() as patched:
                patched.setattr(json, "loads", lambda *given: pytest.fail("parsed JSON"))
                busy(ARGUMENTS[kind](1))
            assert store.commits == commits
    assert run.reused["busy"] == 2


def test_an_entry_that_names_none_of_the_callers_objects_is_nothing_but_a_value(store: Counting) -> None:
    with checkpoint_scope("run", store=store) as run:
        busy({"a": [1]})
        ((key, data),) = [each for each in store.scan(run._session.entries.prefix) if "/busy/" in each[0]]
    assert Decoded(data or b"", key=key, secret=secret()).value_only


def test_neither_opening_nor_missing_in_a_resumed_run_reads_the_events_of_the_past(store: Counting) -> None:
    with checkpoint_scope("run", store=store):
        for number in range(50):
            busy(number)
    store.kinds.clear()
    with checkpoint_scope("run", store=store) as run:
        busy(0)
        busy(100)
        busy([1])
        assert store.kinds["event"] == 0
    assert store.kinds["event"] <= 5  # what was written since the run was last left, to count it
    assert (run.ran["busy"], run.reused["busy"]) == (2, 1)


def test_a_run_that_was_rolled_back_is_opened_without_reading_its_events(store: Counting) -> None:
    with checkpoint_scope("run", store=store) as run:
        for number in range(20):
            busy(number)
        run.rollback(before=run.checkpoints[10].id)
    store.kinds.clear()
    with checkpoint_scope("run", store=store) as run:
        for number in range(20):
            busy(number)
        assert store.kinds["event"] == 0
        assert (run.ran["busy"], run.reused["busy"]) == (10, 10)
    assert {e.reason for e in run.events() if isinstance(e, StepCompleted)} == {"new node", "rolled back"}


@pytest.mark.parametrize("size", [10, LARGE])
def test_why_a_step_runs_is_found_whatever_the_size_of_its_results(store: Counting, size: int) -> None:
    for number in (1, 2):
        with checkpoint_scope("run", store=store) as run:
            bulky(number, size)
    *_, event = (e for e in run.events() if isinstance(e, StepCompleted))
    assert event.reason == "argument `number`: 1 -> 2"
    assert [change["part"] for change in event.changes] == ["argument `number`"]
    assert event.compared_with.startswith(run._session.entries.prefix)
    assert run.why("bulky").changes[0].before == "1"


def test_a_large_result_stands_beside_its_nodes_small_entry_and_both_go_when_it_is_forgotten(store: Counting) -> None:
    with checkpoint_scope("run", store=store) as run:
        value = bulky(1)
        assert bulky(1) == value
        keys = [key for key, _ in store.scan(run._session.entries.prefix) if "/bulky/" in key]
        assert len(keys) == 2 and keys[1].startswith(f"{keys[0]}@")
        assert bulky.forget(1)
        assert not bulky.forget(1)
        ((key, data),) = [each for each in store.scan(run._session.entries.prefix) if "/bulky/" in each[0]]
        assert Decoded(data or b"", key=key, secret=secret()).is_tombstone
        assert bulky.explain(1).reason == "forgotten"
        assert bulky(1) == value
    with checkpoint_scope("run", store=store) as run:
        assert bulky(1) == value
        assert run.reused["bulky"] == 1


def test_what_a_policy_removed_runs_again_and_says_so(store: Counting) -> None:
    with checkpoint_scope("run", store=store):
        bulky(1)
        busy(1)
    History(store).prune(keep_last(1))
    with checkpoint_scope("run", store=store) as run:
        bulky(1)
    *_, event = (e for e in run.events() if isinstance(e, StepCompleted))
    assert event.reason == "removed by a retention policy"


def test_a_large_result_is_read_again_in_the_scope_that_made_it_without_a_lease(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with checkpoint_scope("run", store=store):
        value, asked = bulky(1), Operations(store, monkeypatch)
        assert bulky(1) == value
        assert asked() == ["get"]


def test_entries_that_there_is_no_room_for_in_memory_are_read_one_by_one(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "_ROOM", 20_000)
    with checkpoint_scope("run", store=store):
        for number in range(50):
            bulky(number, 1_000)
    asked = Operations(store, monkeypatch)
    with checkpoint_scope("run", store=store) as run:
        asked()
        for number in range(50):
            bulky(number, 1_000)
        assert asked().count("scan") == 1
        bulky(50, 1_000)
        asked()
        bulky(51, 1_000)
        assert asked() == ["get", "hold", "commit"]
    assert run.reused["bulky"] == 50


def test_shared_entries_of_other_steps_are_not_fetched(store: Counting) -> None:
    steps = [memoized(name=f"shared {number}")(lambda n: n) for number in range(5)]
    with checkpoint_scope("run", store=store):
        for step in steps:
            for number in range(20):
                step(number)
    store.kinds.clear()
    with checkpoint_scope("run", store=store):
        for number in range(20):
            steps[0](number)
    assert 20 <= store.kinds["shared"] <= 25


# --- leases -----------------------------------------------------------------------------------------------------------

STALE = """
    import os, subprocess, sys
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def busy(number):
        if len(sys.argv) == 1:
            os.unlink("store/cache.db-locks")  # as somebody does who "cleans up": our lease is lost
            subprocess.run([sys.executable, __file__, "newer"], check=True)
            return "older"
        return sys.argv[1]

    with checkpoint_scope("run", store="store") as run:
        print(busy(1), run.ran["busy"], run.reused["busy"])
"""


def test_an_owner_who_lost_the_lease_does_not_replace_a_newer_checkpoint(script: Script) -> None:
    assert script(STALE).lines == ["newer 1 0", "older 1 0"]
    assert script(None, "again").lines == ["newer 0 1"]


@pytest.mark.parametrize("kind", both)
def test_of_two_consumers_of_one_generator_both_run_and_the_first_to_finish_is_kept(kind: str) -> None:
    turns: list[int] = []

    @checkpointed(name="numbers", code="version", version="1")
    def numbers(n: int) -> Iterator[int]:
        turns.append(len(turns))
        mine = len(turns)
        for number in range(n):
            yield 10 * mine + number

    with checkpoint_scope("run", store=store_url(kind)) as run:
        one, other = numbers(2), numbers(2)
        assert (next(one), next(other)) == (10, 20)
        assert list(other) == [21]
        assert list(one) == [11]
        assert list(numbers(2)) == [20, 21]
    assert (run.ran["numbers"], run.reused["numbers"]) == (2, 1)
    assert len([e for e in run.events() if isinstance(e, StepCompleted)]) == 1


def test_a_step_whose_lease_cannot_be_had_runs_and_is_told(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore import CheckpointWarning, StoreUnavailable

    def refuse(key: str) -> Any:
        raise StoreUnavailable("the server is away")

    @checkpointed(effect="once")
    def pay() -> None:
        pytest.fail("it ran")

    with checkpoint_scope("run", store=store) as run:
        monkeypatch.setattr(store, "hold", refuse)
        with pytest.warns(CheckpointWarning, match="the server is away"):
            assert busy(1) == 1
        with pytest.raises(StoreUnavailable):
            pay()
        assert current_run() is run


def test_other_threads_may_write_entries_while_lost_ones_are_looked_for() -> None:
    found = entries.RunEntries(open_store("memory://threads"), "o", "node/o/", "event/o/")
    found._cache.update({f"node/o/step/{n}": b"" for n in range(50_000)})
    done, interval = threading.Event(), sys.getswitchinterval()

    def write() -> None:
        for n in range(1_000_000):
            if done.is_set():
                break
            found._cache[f"node/o/other/{n}"] = b""

    writer = threading.Thread(target=write)
    sys.setswitchinterval(1e-5)
    writer.start()
    try:
        for _ in range(5):
            assert found._find_lost() == set()
    finally:
        done.set()
        writer.join()
        sys.setswitchinterval(interval)


class _Switching(dict[str, Any]):
    """An empty cache; when a key is first looked up or added, another thread gets its turn."""

    def __init__(self, key: str, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile = {key: meanwhile}

    def _switch(self, key: Any, found: Any) -> Any:
        self._meanwhile.pop(key, lambda: None)()
        return found

    def __contains__(self, key: object) -> bool:
        return bool(self._switch(key, super().__contains__(key)))

    def setdefault(self, key: str, default: Any = None) -> Any:
        return self._switch(key, super().setdefault(key, default))


@pytest.fixture
def resumed(store: Counting) -> Iterator[tuple[Any, Any]]:
    """The entries of a resumed run, and the node of its one step."""
    with checkpoint_scope("r", store=store):
        busy(1)
    with checkpoint_scope("r", store=store) as run:
        session = run._session
        yield session.entries, busy._self_definition.identify(session, (1,), {}).node


def test_a_checkpoint_is_found_while_another_thread_fetches_the_small_entries(resumed: tuple[Any, Any]) -> None:
    known, node = resumed
    known._cache = _Switching(node.key, lambda: known._fetch(known.prefix))
    assert known.find(node, str, again=False).entry is not None


def test_a_checkpoint_is_found_if_another_thread_drops_the_cache_during_a_fetch(resumed: tuple[Any, Any]) -> None:
    known, node = resumed
    known._expected = 0  # as after an attempt that was killed
    known._cache = _Switching(node.key, known.drop_cache)
    known._fetch(known.prefix)
    assert known.find(node, str, again=False).entry is not None
