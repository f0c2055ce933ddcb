"""The small values of a run stand in one entry besides: it is read in place of them, and never after one was replaced."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncemore import History, checkpoint_scope, checkpointed, open_store
from oncemore.retention import keep_last

MANY = 120


@checkpointed
def told(number: int) -> tuple[int, str]:
    """What the file says now: it is no part of the identity."""
    return number, Path("word").read_text()


def ask(many: int = MANY, run: str = "run", then: Callable[[], object] = lambda: None) -> list[tuple[int, str]]:
    with checkpoint_scope(run, store="store"):
        found = [told(number) for number in range(many)]
        then()
        return found


def word(text: str) -> None:
    Path("word").write_text(text)


def sheet() -> bytes | None:
    store = open_store("store")
    keys = [key for key, _ in store.scan("node/") if key.endswith("/+")]
    assert len(keys) <= 1
    found = store.get(keys[0]) if keys else None
    return None if found is None else bytes(found)


@pytest.fixture(autouse=True)
def recorded() -> None:
    word("then")
    ask()
    word("now")


class Reads:
    """What is asked of the store meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: Counter[str] = Counter()
        store: Any = type(open_store("store"))
        for name in ("get", "scan"):
            monkeypatch.setattr(store, name, self._counting(name, getattr(store, name)))

    def _counting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(store: Any, key: str, **options: Any) -> Any:
            self.asked[name] += key.startswith("node/")
            return method(store, key, **options)

        return counted


def test_a_finished_run_is_read_by_its_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    assert ask() == [(number, "then") for number in range(MANY)]
    assert reads.asked == {"get": 3, "scan": 0}  # two steps, the sheet


def test_a_hit_writes_no_new_sheet() -> None:
    before = sheet()
    ask()
    assert sheet() == before is not None


def test_a_small_run_has_none() -> None:
    ask(20, run="small")
    store = open_store("store")
    assert sum(key.endswith("/+") for key, _ in store.scan("node/")) == 1


def test_steps_that_came_later_are_found_beside_the_sheet() -> None:
    assert ask(MANY + 5)[MANY:] == [(MANY + number, "now") for number in range(5)]
    word("later")
    assert ask(MANY + 5)[MANY - 1 :] == [(MANY - 1, "then"), *((MANY + number, "now") for number in range(5))]


def test_a_sheet_grows_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ask(2 * MANY)  # 147 has a byte in its pickle that looks like a class
    reads = Reads(monkeypatch)
    assert len(ask(2 * MANY)) == 2 * MANY
    assert reads.asked == {"get": 4, "scan": 0}


@pytest.mark.parametrize("how", [told.refresh, told.forget])
def test_what_was_replaced_or_forgotten_does_not_come_back_from_it(how: Callable[[int], Any]) -> None:
    with checkpoint_scope("run", store="store"):
        how(7)
    for _ in range(3):
        assert [text for _, text in ask()] == ["now" if number == 7 else "then" for number in range(MANY)]


def test_what_another_scope_replaced_meanwhile_does_not_get_into_it() -> None:
    def meanwhile() -> None:
        with checkpoint_scope("run", store="store"):
            told.refresh(7)

    ask(2 * MANY, then=meanwhile)
    for _ in range(2):
        assert ask()[6:9] == [(6, "then"), (7, "now"), (8, "then")]


def test_what_was_replaced_in_a_scope_that_never_ended_does_not_come_back() -> None:
    child = os.fork()
    if not child:
        with checkpoint_scope("run", store="store"):
            told.refresh(7)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ask()[7] == (7, "now")


def test_what_was_pruned_does_not_come_back_from_it() -> None:
    History("store").prune(keep_last(10))
    assert {text for _, text in ask()} == {"then", "now"}


def test_what_was_rolled_back_does_not_come_back_from_it() -> None:
    with checkpoint_scope("run", store="store") as run:
        run.rollback(before=run.checkpoints[7].id)
        assert told(7) == (7, "now")
    assert ask()[7] == (7, "now")


def test_a_damaged_sheet_is_left_aside() -> None:
    store = open_store("store")
    key = next(key for key, _ in store.scan("node/") if key.endswith("/+"))
    data = bytes(store.get(key) or b"")
    for bad in (b"", data[:-1], data[:60] + bytes([data[60] ^ 1]) + data[61:]):
        store.commit(put={key: [bad]})
        assert ask() == [(number, "then") for number in range(MANY)]


def test_a_deleted_run_leaves_none() -> None:
    History("store").delete("run")
    assert sheet() is None
    assert ask()[0] == (0, "now")
