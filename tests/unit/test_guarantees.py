"""The sentences of docs/explanation/guarantees.md: each has a test, and the page names it. Here are those tested nowhere else."""

from __future__ import annotations

import asyncio
import copy
import os
import re
from pathlib import Path
from typing import Any

import pytest

from oncemore import History, checkpointed, current_run
from oncemore.stores import open_store
from tests.processes import Script
from tests.unit.again import scope

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Tests")[2]

pytestmark = pytest.mark.filterwarnings("ignore::oncemore.CheckpointWarning")


# -- the page and its tests


def test_every_promise_names_its_tests() -> None:
    promises = re.findall(r"(?m)^\*\*(.+?)\*\*", PAGE.partition("## Tests")[0])
    rows = re.findall(r"(?m)^\| \*\*(.+?)\*\* \|", TABLE)
    assert len(promises) > 30
    assert rows == promises


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(\S+\.py)::(\w+)`", TABLE)
    assert len(named) > 60
    absent = [f"{file}::{name}" for file, name in named if not _defines(ROOT / "tests" / file, name)]
    assert absent == []


def _defines(path: Path, name: str) -> bool:
    return path.is_file() and bool(
        re.search(rf"(?m)^(?:async )?(?:def|class) {name}\b", path.read_text(encoding="utf-8"))
    )


# -- what you can rely on


def test_a_step_killed_in_its_body_leaves_nothing_and_begins_again(script: Script) -> None:
    source = """
        import time
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def work():
            print("begun")
            if not open("go").read():
                time.sleep(60)
            print("ended")

        with checkpoint_scope("run") as run:
            print("done before:", work.is_done())
            work()
            print("done after:", work.is_done())
    """
    (script.folder / "go").write_text("")
    assert script.kill_at("begun", source).lines == ["done before: False", "begun"]
    (script.folder / "go").write_text("yes")
    assert script(source).lines == ["done before: False", "begun", "ended", "done after: True"]


@pytest.mark.parametrize(
    "edit",
    [('"once"', '"once", expires=0.001'), ("RATE = 1", "RATE = 2")],
    ids=["expired", "a changed global"],
)
def test_what_was_performed_once_is_not_performed_again_and_a_warning_says_so(
    script: Script, edit: tuple[str, str]
) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed
        RATE = 1

        @checkpointed(effect="once")
        def pay(amount):
            print("paid")
            return amount * RATE

        with checkpoint_scope("run"):
            print(pay(5))
    """
    assert script(source).lines == ["paid", "5"]
    again = script(source.replace(*edit))
    assert again.lines == ["5"]
    assert "CheckpointWarning" in again.err


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, ValueError])
def test_what_ends_a_step_passes_through_as_it_is(kind: type[BaseException]) -> None:
    error = kind("mine")

    @checkpointed
    def fail() -> None:
        raise error from OSError("why")

    with pytest.raises(kind) as caught:
        scope(lambda run: fail())
    assert caught.value is error
    assert isinstance(error.__cause__, OSError)


def test_a_forgotten_checkpoint_does_not_come_up_again_and_the_reason_says_so() -> None:
    @checkpointed
    def work() -> int:
        return 1

    scope(lambda run: work())
    scope(lambda run: work.refresh())
    scope(lambda run: work.forget())
    again = scope(lambda run: work())
    assert again.ran == {"work": 1}
    assert again.reasons == {"work": "forgotten"}


# -- what you cannot rely on


def test_code_between_steps_runs_every_time(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def work():
            print("step")
            return 1

        with checkpoint_scope("run"):
            print("before")
            value = work()
            print("after", value)
    """
    assert script(source).lines == ["before", "step", "after 1"]
    assert script(source).lines == ["before", "after 1"]


def test_the_world_outside_counts_only_as_an_argument(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @checkpointed
    def look(said: str = "") -> str:
        return os.environ["WEATHER"] + os.getcwd()

    monkeypatch.setenv("WEATHER", "sun")
    first = scope(lambda run: look())
    monkeypatch.setenv("WEATHER", "rain")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    second = scope(lambda run: look())
    assert (second.value, second.ran) == (first.value, {})
    assert scope(lambda run: look(os.environ["WEATHER"])).value == "rain" + os.getcwd()


def test_what_is_drawn_before_the_scope_without_a_seed_makes_its_steps_run_again(script: Script) -> None:
    source = """
        import random
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def given(number):
            print("given")

        @checkpointed
        def draw():
            print("drew")
            return random.random()

        number = random.random()
        with checkpoint_scope("run"):
            given(number)
            draw()
    """
    assert script(source).lines == script(source).lines == ["given", "drew"]
    seeded = source.replace("number = ", "random.seed(1); number = ")
    assert script(seeded).lines == ["given", "drew"]
    assert script(seeded).lines == []


def test_a_generator_without_a_seed_that_main_makes_is_another_one_in_the_next_process(script: Script) -> None:
    source = """
        import random
        from oncemore import checkpoint_scope, checkpointed

        class Dice:
            def __init__(self, random):
                self.random = random

        @checkpointed
        def roll(dice):
            print("rolled")
            return dice.random.random()

        def main():
            dice = Dice(random.Random())
            with checkpoint_scope("run"):
                roll(dice)

        main()
    """
    assert script(source).lines == script(source).lines == ["rolled"]
    seeded = source.replace("Random()", "Random(1)")
    assert [script(seeded).lines, script(seeded).lines] == [["rolled"], []]


def test_what_is_changed_in_a_module_that_is_found_by_a_text_is_not_seen(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpoint_scope, checkpointed
        import settings

        @checkpointed
        def change():
            sys.modules["sett" + "ings"].limit = 2

        with checkpoint_scope("run"):
            change()
        print(settings.limit)
    """
    script.write("limit = 1", "settings.py")
    assert [script(source).lines, script(source).lines] == [["2"], ["1"]]
    named = source.replace('sys.modules["sett" + "ings"]', "settings")
    assert [script(named).lines, script(named).lines] == [["2"], ["2"]]


def test_what_a_step_does_to_an_ignored_argument_is_lost_when_it_is_skipped() -> None:
    @checkpointed(ignore=["log"])
    def work(number: int, log: list[int]) -> int:
        log.append(number)
        return number

    def body(run: Any) -> list[int]:
        log: list[int] = []
        work(1, log)
        return log

    assert [scope(body).value, scope(body).value] == [[1], []]


def test_a_loop_goes_on_whatever_was_edited_in_its_body_and_its_files_are_not_put_back(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed(outputs=["out"])
        def write(number):
            open("out", "w").write(str(number))

        with checkpoint_scope("run") as run:
            for number in run.loop("x", range(ITEMS)):
                write(number)
                print("turn", number)
    """
    assert script(source.replace("ITEMS", "2")).lines == ["turn 0", "turn 1"]
    (script.folder / "out").unlink()
    assert script(source.replace("ITEMS", "2").replace('"turn"', '"edited"')).lines == []
    assert not (script.folder / "out").exists()
    assert script(source.replace("ITEMS", "3").replace('"turn"', '"edited"')).lines == ["edited 2"]


def test_a_variable_that_a_step_removes_though_it_is_not_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    @checkpointed
    def clean() -> None:
        os.environ.pop("COLOUR", None)

    monkeypatch.delenv("COLOUR", raising=False)
    scope(lambda run: clean())
    monkeypatch.setenv("COLOUR", "red")
    assert scope(lambda run: clean()).ran == {}
    assert os.environ["COLOUR"] == "red"


class Forgetful:
    """Its pickle leaves `lost` out."""

    def __init__(self) -> None:
        self.kept, self.lost = 1, 2

    def __getstate__(self) -> dict[str, int]:
        return {"kept": self.kept}


def test_what_the_pickling_of_a_class_loses_is_lost() -> None:
    @checkpointed
    def make() -> Forgetful:
        return Forgetful()

    scope(lambda run: make())
    assert vars(scope(lambda run: make()).value) == vars(copy.copy(Forgetful())) == {"kept": 1}


class Item:
    def __init__(self, count: int) -> None:
        self.count = count


rows: list[str] = []


def test_a_change_that_a_step_made_before_it_failed_may_be_kept_with_another_and_is_made_again() -> None:
    @checkpointed(ignore=["turn", "fails"])
    async def add(name: str, turn: asyncio.Event, fails: bool) -> None:
        rows.append(name)
        await turn.wait()
        if fails:
            raise ConnectionError(name)

    async def both(fails: bool) -> None:
        turn, now = asyncio.Event(), asyncio.Event()
        now.set()
        slow = asyncio.create_task(add("slow", turn, fails))
        while fails and not rows:
            await asyncio.sleep(0)
        await add("quick", now, False)
        turn.set()
        await asyncio.gather(slow, return_exceptions=True)

    def body(fails: bool) -> list[str]:
        rows.clear()
        asyncio.run(both(fails))
        return list(rows)

    assert scope(lambda run: body(True)).value == ["slow", "quick"]
    again = scope(lambda run: body(False))
    assert again.ran == {"add": 1}
    assert sorted(again.value) == ["quick", "slow", "slow"]


def test_an_object_in_a_set_of_the_state_is_as_the_step_left_it_whether_it_ran_or_not() -> None:
    @checkpointed
    def touch(item: Item) -> int:
        item.count += 1
        return sum(each.count for each in run_state()["items"])

    def run_state() -> Any:
        run = current_run()
        assert run is not None
        return run.state

    def body(run: Any) -> tuple[int, int, list[int]]:
        item = Item(0)
        run.state["items"] = {item, Item(5), Item(7)}
        return touch(item), item.count, sorted(each.count for each in run.state["items"])

    assert scope(body).value == scope(body).value == (13, 1, [1, 5, 7])


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_step_that_changes_an_object_in_a_set_of_equal_ones_runs_every_time(kind: type) -> None:
    @checkpointed
    def touch(item: Item) -> int:
        item.count += 1
        run = current_run()
        assert run is not None
        return sum(each.count for each in run.state["items"])

    def body(run: Any) -> tuple[int, int]:
        item = Item(0)
        run.state["items"] = kind([item, Item(5), Item(5)])
        return touch(item), item.count

    for _ in range(2):
        assert scope(body).value == (11, 1)
    last = scope(body)
    assert (last.value, last.ran) == ((11, 1), {"touch": 1})
    assert "state['items']" in last.reasons["touch"]


def test_a_rollback_undoes_nothing_that_steps_did_to_the_world(tmp_path: Path) -> None:
    @checkpointed(name="first")
    def first() -> None: ...

    @checkpointed(name="second")
    def second() -> None:
        (tmp_path / "posted").write_text("yes")

    def body(run: Any) -> None:
        first()
        second()

    scope(body)
    History(f"memory://{os.environ['HOME']}").rollback("run", to="first")
    assert (tmp_path / "posted").read_text() == "yes"
    assert scope(body).ran == {"second": 1}


def test_an_earlier_entry_that_is_put_back_under_its_key_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"memory://{os.environ['HOME']}")

    @checkpointed
    def look() -> str:
        return os.environ["WEATHER"]

    monkeypatch.setenv("WEATHER", "sun")
    scope(lambda run: look())
    before = {key: bytes(data) for key, data in store.scan("") if data is not None and "look" in key}
    monkeypatch.setenv("WEATHER", "rain")
    scope(lambda run: look.refresh())
    assert scope(lambda run: look()).value == "rain"
    store.commit(put={key: [data] for key, data in before.items()})
    assert scope(lambda run: look()).value == "sun"
