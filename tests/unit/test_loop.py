"""run.loop: a long loop that continues where it was stopped."""

from __future__ import annotations

import itertools
import os
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oncemore import CheckpointWarning, Run, UsageError, checkpointed, current_run
from oncemore.events import SnapshotSaved
from tests.processes import Script
from tests.unit.again import scope

pytestmark = pytest.mark.encrypted_too


class Stop(Exception):
    pass


class Seen(threading.local):
    """The items that were seen in this process. A thread's own data is nothing that a loop brings back."""

    def __init__(self) -> None:
        self.items: list[Any] = []


def stopped_at(turn: int, run: Run, name: str, items: Any, **options: Any) -> list[Any]:
    """Loop, and fail in the turn of that number, counted in this scope."""
    seen = Seen()
    try:
        for item in run.loop(name, items, **options):
            seen.items.append(item)
            run.state["sum"] = run.state.get("sum", 0) + item
            if len(seen.items) == turn:
                raise Stop
    except Stop:
        pass
    return seen.items


TRAIN = """
    import random, sys, time
    import numpy as np
    from oncemore import checkpoint_scope, checkpointed

    class Model:
        def __init__(self):
            self.weights, self.history = np.zeros(4), []

    @checkpointed
    def load(n):
        return np.random.rand(n, 4)

    every, stop, store = eval(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    random.seed(1)
    np.random.seed(1)
    with checkpoint_scope("run", store=store, state={"best": None}) as run:
        data = load(8)
        run.state.model = model = Model()
        run.state.rng = np.random.default_rng(5)
        for epoch in run.loop("train", range(12), every=every):
            print("epoch", epoch)
            model.weights += data[random.randrange(8)] + np.random.randn(4) + run.state.rng.random(4)
            model.history.append((epoch, float(model.weights.sum())))
            if random.random() < 0.5:
                run.state.best = model.history[-1]
            if epoch == stop:
                print("STOP HERE", flush=True)
                time.sleep(60)
        assert run.state.model is model
        print("END", [x.hex() for x in model.weights], model.history, run.state.best)
        print("END", random.random(), np.random.rand(), run.state.rng.random())
"""


def ends(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("END")]


def epochs(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("epoch")]


def test_killed_in_the_middle_it_goes_on_with_the_next_unseen_item_and_ends_the_same_to_the_bit(script: Script) -> None:
    whole = script(TRAIN, "1", "-1", "whole")
    script.kill_at("STOP HERE", TRAIN, "1", "4", "killed")
    script.kill_at("STOP HERE", TRAIN, "1", "9", "killed")
    rest = script(TRAIN, "1", "-1", "killed")
    assert epochs(rest.lines) == [9, 10, 11]
    assert len(ends(whole.lines)) == 2
    assert ends(rest.lines) == ends(whole.lines)
    done = script(TRAIN, "1", "-1", "killed")
    assert epochs(done.lines) == []
    assert ends(done.lines) == ends(whole.lines)


def test_it_goes_on_from_the_last_snapshot(script: Script) -> None:
    whole = script(TRAIN, "10", "-1", "whole")
    script.kill_at("STOP HERE", TRAIN, "10", "11", "killed")
    rest = script(TRAIN, "10", "-1", "killed")
    assert epochs(rest.lines) == [10, 11]
    assert ends(rest.lines) == ends(whole.lines)


def test_before_the_first_snapshot_it_begins_at_the_beginning(script: Script) -> None:
    whole = script(TRAIN, "'5min'", "-1", "whole")
    script.kill_at("STOP HERE", TRAIN, "'5min'", "4", "killed")
    rest = script(TRAIN, "'5min'", "-1", "killed")
    assert epochs(rest.lines) == list(range(12))
    assert ends(rest.lines) == ends(whole.lines)


# -- how often


def snapshots(outcome: Any) -> list[int]:
    return [event.seen for event in outcome.events if isinstance(event, SnapshotSaved)]


def test_every_so_many_items_and_at_the_end() -> None:
    assert snapshots(scope(lambda run: list(run.loop("x", range(25), every=10)))) == [10, 20, 25]
    assert snapshots(scope(lambda run: list(run.loop("x", range(3))), "each")) == [1, 2, 3, 3]


def test_every_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("oncemore.loop.time.monotonic", lambda: now[0])

    def body(run: Run) -> Any:
        for _ in run.loop("x", range(20), every="5min"):
            now[0] += 60

    assert snapshots(scope(body)) == [5, 10, 15, 20, 20]


@pytest.mark.parametrize("every", [0, -1, True, "often", "5 parsecs", -0.5])
def test_other_words_are_refused(every: Any) -> None:
    with pytest.raises(UsageError):
        scope(lambda run: list(run.loop("x", range(3), every=every)))


# -- items


def test_it_yields_what_it_is_given() -> None:
    assert scope(lambda run: list(run.loop("x", "abc"))).value == ["a", "b", "c"]
    assert scope(lambda run: list(run.loop("none", []))).value == []


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_a_second_run_has_nothing_left_to_do(kind: Any) -> None:
    assert scope(lambda run: list(run.loop("x", kind([1, 2, 3])))).value == [1, 2, 3]
    assert scope(lambda run: list(run.loop("x", kind([1, 2, 3])))).value == []


def test_stopped_by_an_exception_it_goes_on_with_the_item_that_failed() -> None:
    body = lambda run: (stopped_at(3, run, "x", range(10, 16)), run.state["sum"])
    assert scope(body).value == ([10, 11, 12], 33)
    assert scope(body).value == ([12, 13, 14], 10 + 11 + 12 + 13 + 14)
    assert scope(body).value == ([14, 15], sum(range(10, 16)))
    assert scope(body).value == ([], sum(range(10, 16)))


def test_tried_again_in_the_same_scope_it_goes_on_too() -> None:
    def body(run: Run) -> Any:
        return stopped_at(3, run, "x", range(6)), stopped_at(9, run, "x", range(6)), run.state["sum"]

    assert scope(body).value == ([0, 1, 2], [2, 3, 4, 5], 15)


def test_left_with_break_it_breaks_at_the_same_place_again() -> None:
    def body(run: Run) -> Any:
        for item in run.loop("x", range(10)):
            run.state["last"] = item
            if item == 4:
                break
        return run.state["last"]

    assert [scope(body).value for _ in range(3)] == [4, 4, 4]


def test_items_that_changed_are_told_and_the_loop_begins_anew() -> None:
    assert scope(lambda run: stopped_at(3, run, "x", [1, 2, 3, 4])).value == [1, 2, 3]

    def body(run: Run) -> Any:
        with pytest.warns(CheckpointWarning, match="loop x starts over: item 2 differs from that of the last run"):
            return stopped_at(9, run, "x", [1, 5, 3, 4]), run.state["sum"]

    assert scope(body).value == ([1, 5, 3, 4], 13)


def test_items_that_changed_after_the_last_snapshot_do_not_matter() -> None:
    assert scope(lambda run: stopped_at(3, run, "x", [1, 2, 3, 4])).value == [1, 2, 3]
    assert scope(lambda run: (stopped_at(9, run, "x", [1, 2, 5, 4]), run.state["sum"])).value == ([5, 4], 12)


# -- other items than last time

KINDS = [list, tuple, iter, lambda items: (item for item in items), lambda items: np.array(list(items))]


def total(items: Any, name: str = "x", every: Any = 1) -> Any:
    """Add the items up in the state: those that were seen in this scope, and the sum."""

    def body(run: Run) -> Any:
        seen = Seen()
        for item in run.loop(name, items() if callable(items) else items, every=every):
            seen.items.append(int(item))
            run.state["sum"] = run.state.get("sum", 0) + int(item)
        return seen.items, run.state.get("sum")

    return scope(body).value


@pytest.mark.parametrize("kind", [range, *KINDS])
def test_a_longer_loop_goes_on_where_the_shorter_one_ended(kind: Any) -> None:
    some = lambda n: range(n) if kind is range else kind(range(n))
    assert total(some(20)) == (list(range(20)), sum(range(20)))
    assert total(some(30)) == (list(range(20, 30)), sum(range(30)))
    assert total(some(30)) == ([], sum(range(30)))


def test_a_range_and_a_list_of_the_same_items_are_the_same_items() -> None:
    total(range(5))
    assert total([0, 1, 2, 3, 4, 5]) == ([5], 15)


@pytest.mark.parametrize("kind", [range, *KINDS])
def test_a_shorter_loop_begins_anew_and_what_was_kept_stays(kind: Any) -> None:
    some = lambda n: range(n) if kind is range else kind(range(n))
    total(some(30), every=7)
    with pytest.warns(
        CheckpointWarning, match="starts over: there are only 20 items now, but the snapshot was taken after 30"
    ):
        assert total(some(20), every=7) == (list(range(20)), sum(range(20)))
    assert total(some(20)) == ([], sum(range(20)))
    assert total(some(30)) == ([], sum(range(30)))


def test_of_several_snapshots_the_furthest_that_fits_is_taken() -> None:
    total(range(8))
    total(range(20))
    with pytest.warns(CheckpointWarning, match="continues after 8 items: there are only 10 items now"):
        assert total(range(10)) == ([8, 9], 45)


@pytest.mark.parametrize("kind", KINDS)
def test_the_item_that_changed_is_named(kind: Any) -> None:
    total(kind([1, 2, 3]))
    with pytest.warns(CheckpointWarning, match="loop x starts over: item 2 differs from that of the last run"):
        assert total(kind([1, 7, 3, 4])) == ([1, 7, 3, 4], 15)
    assert total(kind([1, 2, 3])) == ([], 6)


def test_of_very_many_items_it_is_said_about_where_one_changed() -> None:
    total(range(5000), every=5000)
    items = [*range(3000), -1, *range(3001, 5000)]
    with pytest.warns(CheckpointWarning, match="one of the items 2977 to 3008 differs from that of the last run"):
        total(items, every=5000)


def test_an_endless_iterator_is_read_only_as_far_as_needed() -> None:
    read: list[int] = []

    def endless() -> Any:
        for number in itertools.count():
            read.append(number)
            yield number

    def body(stop: int) -> Any:
        def inside(run: Run) -> Any:
            for item in run.loop("x", endless()):
                run.state["last"] = item
                if item == stop:
                    break
            return run.state["last"]

        return inside

    scope(body(3))
    read.clear()
    assert scope(body(5)).value == 5
    assert read == [0, 1, 2, 3, 4, 5]


def test_an_iterator_that_is_used_up_and_has_to_begin_anew_is_an_error() -> None:
    total(iter(range(1500)), every=1500)
    with pytest.warns(CheckpointWarning, match="item"), pytest.raises(UsageError, match="used up. Pass a list"):
        total(iter([-1, *range(1499)]), every=1500)


def test_a_list_that_grows_in_the_loop_goes_on(script: Script) -> None:
    def body(stop: int) -> Any:
        def inside(run: Run) -> Any:
            queue = run.state["queue"] = [1]
            for item in run.loop("crawl", queue):
                if item == stop:
                    return None
                if item < 6:
                    queue.append(item + 1)
            return queue

        return inside

    scope(body(4))
    assert scope(body(-1)).value == [1, 2, 3, 4, 5, 6]
    assert scope(body(-1)).value == [1, 2, 3, 4, 5, 6]


def test_only_so_many_snapshots_are_kept() -> None:
    for number in range(30):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            total([-number, 1])
    assert scope(lambda run: len(run._session.entries.find_loops("x"))).value <= 10


def test_killed_while_it_goes_on_a_longer_training_ends_like_an_uninterrupted_one(script: Script) -> None:
    longer = TRAIN.replace("range(12)", "range(20)")
    whole = script(longer, "1", "-1", "whole")
    script(TRAIN, "1", "-1", "extended")
    script.kill_at("STOP HERE", longer, "1", "15", "extended")
    rest = script(longer, "1", "-1", "extended")
    assert epochs(rest.lines) == [15, 16, 17, 18, 19]
    assert ends(rest.lines) == ends(whole.lines)
    short = script(TRAIN, "1", "-1", "extended")
    assert epochs(short.lines) == []
    assert ends(short.lines) == ends(script(TRAIN, "1", "-1", "short").lines)


# -- what a completed loop brings back


def test_what_the_turns_left_alone_is_as_the_script_has_made_it() -> None:
    def body(config: str) -> Any:
        def inside(run: Run) -> Any:
            run.state.update(config=config, rows=[], n=0)
            for item in run.loop("x", range(3)):
                run.state["rows"].append(item)
                run.state["n"] += 1
            return dict(run.state)

        return inside

    scope(body("old"))
    expected = {"config": "new", "rows": [0, 1, 2], "n": 3}
    assert scope(body("new")).value == expected
    assert list(scope(body("new")).value) == list(expected)


def test_a_key_that_came_before_the_loop_since_stays() -> None:
    def body(more: bool) -> Any:
        def inside(run: Run) -> Any:
            if more:
                run.state["more"] = [1]
            run.state["rows"] = []
            for item in run.loop("x", range(3)):
                run.state["rows"].append(item)
                run.state["last"] = item
            return dict(run.state)

        return inside

    scope(body(False))
    found = scope(body(True)).value
    assert list(found.items()) == [("more", [1]), ("rows", [0, 1, 2]), ("last", 2)]


def test_a_key_that_the_turns_set_to_what_it_was_is_set() -> None:
    def body(best: Any) -> Any:
        def inside(run: Run) -> Any:
            run.state["best"] = [best]
            for _ in run.loop("x", range(3)):
                run.state["best"] = [0]
            return run.state["best"]

        return inside

    assert scope(body(0)).value == [0]
    assert scope(body(5)).value == [0]


def test_a_generator_that_the_turns_left_alone_is_not_wound_back() -> None:
    def body(run: Run) -> Any:
        drawn = np.random.rand() if run.resumed else None
        for _ in run.loop("x", range(3)):
            random.random()
        return drawn, np.random.rand()

    np.random.seed(1)
    scope(body)
    np.random.seed(1)
    first, second = scope(body).value
    assert first != second


def test_environment_and_folder_come_back_as_the_turns_left_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "deep").mkdir()
    monkeypatch.setenv("TURN", "none")
    monkeypatch.chdir(tmp_path)

    def body(run: Run) -> Any:
        os.chdir(tmp_path)
        os.environ.update(TURN="none", OTHER="kept")
        for item in run.loop("x", range(3)):
            os.environ["TURN"] = str(item)
            os.chdir(tmp_path / "deep")
        return os.environ["TURN"], os.environ.pop("OTHER"), os.getcwd()

    assert scope(body).value == scope(body).value == ("2", "kept", str(tmp_path / "deep"))


def test_calls_that_count_for_themselves_go_on_after_a_completed_loop() -> None:
    @checkpointed(every_call=True)
    def draw() -> float:
        return random.random()

    def body(n: int) -> Any:
        def inside(run: Run) -> Any:
            random.seed(1)
            found = run.state["found"] = [draw()]
            for _ in run.loop("x", range(n)):
                found.append(draw())
            return [*found, draw()]

        return inside

    first = scope(body(3)).value
    second = scope(body(3))
    assert (second.ran, second.value) == ({}, first)
    assert scope(body(4)).value[:5] == first


def test_tried_again_in_the_same_scope_nothing_of_the_turn_that_failed_is_left() -> None:
    @checkpointed(every_call=True)
    def draw() -> float:
        return random.random()

    def turns(run: Run, stop: int) -> Any:
        for item in run.loop("x", range(4)):
            run.state["drawn"].append(draw())
            if item == stop:
                run.state["half"] = True
                run.state["config"]["broken"] = 1
                raise Stop
        return dict(run.state)

    def body(stop: int) -> Any:
        def inside(run: Run) -> Any:
            random.seed(1)
            run.state.update(drawn=[], config={})
            try:
                return turns(run, stop)
            except Stop:
                return turns(run, -1)

        return inside

    assert scope(body(2)).value == scope(body(-1), "whole").value


def test_a_loop_that_is_left_early_and_closed_late_disturbs_nobody() -> None:
    @checkpointed(code="version", version="1")
    def put() -> None:
        turns.clear()  # closes the loop here
        os.environ["TURN"] = "put"

    turns: list[Any] = []

    def body(run: Run) -> Any:
        turns.append(run.loop("x", range(3)))
        next(turns[0])
        put()
        return os.environ.pop("TURN")

    assert scope(body).value == "put"
    assert scope(body).value == "put"


def test_loops_of_other_names_have_their_own_snapshots() -> None:
    def body(run: Run) -> Any:
        return stopped_at(2, run, "x", range(4)), list(run.loop("y", range(2)))

    assert scope(body).value == ([0, 1], [0, 1])
    assert scope(body).value == ([1, 2], [])


def test_a_loop_inside_another_runs_in_each_turn_of_it() -> None:
    def body(stop: tuple[int, int] | None) -> Any:
        def inside(run: Run) -> Any:
            seen = Seen()
            log = run.state.setdefault("log", [])
            try:
                for epoch in run.loop("epochs", range(3)):
                    for batch in run.loop("batches", range(3)):
                        seen.items.append((epoch, batch))
                        log.append((epoch, batch))
                        if (epoch, batch) == stop:
                            raise Stop
            except Stop:
                pass
            return seen.items, list(log)

        return inside

    every = [(epoch, batch) for epoch in range(3) for batch in range(3)]
    assert scope(body(None), "whole").value == (every, every)
    assert scope(body((1, 1))).value == (every[:5], every[:5])
    assert scope(body(None)).value == (every[4:], every)
    assert scope(body(None)).value == ([], every)


def test_a_name_used_for_a_second_loop_is_an_error_rather_than_a_loop_left_out() -> None:
    def body(run: Run) -> Any:
        list(run.loop("x", range(3)))
        list(run.loop("x", range(3)))

    with pytest.raises(UsageError, match="loop 'x' has already been completed"):
        scope(body)


# -- state and generators


def test_state_is_as_it_was_after_the_last_item_kept() -> None:
    def body(stop: int) -> Any:
        def inside(run: Run) -> Any:
            run.state.update(rows=[], old=1, n=0)
            rows = run.state["rows"]
            try:
                for item in run.loop("x", range(6), every=2):
                    rows.append([item])
                    run.state["n"] += 1
                    run.state.pop("old", None)
                    run.state[f"new {item}"] = rows[-1]
                    if item == stop:
                        raise Stop
            except Stop:
                pass
            shared = [run.state[f"new {i}"] is row for i, row in enumerate(rows)]
            return rows, rows is run.state["rows"], list(run.state), run.state["n"], shared

        return inside

    whole = scope(body(-1), "whole").value
    scope(body(3))
    assert scope(body(-1)).value == whole
    assert scope(body(-1)).value == whole
    assert whole[1] is True
    assert all(whole[4])


def test_what_the_script_holds_of_the_state_is_what_the_loop_goes_on_with() -> None:
    def body(stop: int) -> Any:
        def inside(run: Run) -> Any:
            weights = run.state["weights"] = np.zeros(2)
            config = run.state["config"] = {"inner": [0]}
            inner = config["inner"]
            try:
                for item in run.loop("x", range(5)):
                    if item == stop:
                        raise Stop
                    weights += item
                    inner[0] += 1
            except Stop:
                pass
            return weights.tolist(), inner, config["inner"] is inner, run.state["weights"] is weights

        return inside

    scope(body(3))
    assert scope(body(-1)).value == ([10, 10], [5], True, True)


def test_a_shuffled_iterator_does_not_disturb_the_generator() -> None:
    def shuffled() -> Any:
        for _ in range(6):
            yield random.randrange(100)

    def body(stop: int) -> Any:
        def inside(run: Run) -> Any:
            random.seed(1)
            seen = run.state.setdefault("seen", [])
            for item in run.loop("x", shuffled()):
                seen.append((item, random.random()))
                if len(seen) == stop:
                    return None
            return seen

        return inside

    whole = scope(body(-1), "whole").value
    scope(body(3))
    again = scope(body(-1)).value
    assert [drawn for _, drawn in again[:2]] == [drawn for _, drawn in whole[:2]]
    assert len(again) == 6


def test_steps_in_a_loop_that_count_every_call_go_on_counting() -> None:
    @checkpointed(every_call=True)
    def draw() -> float:
        return random.random()

    def body(stop: int) -> Any:
        def inside(run: Run) -> Any:
            random.seed(1)
            seen = run.state.setdefault("seen", [])
            for item in run.loop("x", range(5), every=2):
                seen.append(draw())
                if item == stop:
                    return None
            return seen

        return inside

    whole = scope(body(-1), "whole").value
    scope(body(3))
    assert scope(body(-1)).value == whole
    assert len(set(whole)) == 5


def test_steps_done_since_the_last_snapshot_are_not_done_again() -> None:
    @checkpointed(code="version", version="1")
    def work(item: int) -> int:
        current_run().state["last"] = item  # type: ignore[union-attr]
        return item * 2

    def body(stop: int) -> Any:
        def inside(run: Run) -> Any:
            out = run.state.setdefault("out", [])
            for item in run.loop("x", range(6), every=3):
                out.append(work(item))
                if item == stop:
                    return None
            return out, run.state["last"]

        return inside

    assert scope(body(4)).ran == {"work": 5}
    second = scope(body(-1))
    assert (second.ran, second.value) == ({"work": 1}, ([0, 2, 4, 6, 8, 10], 5))


def test_a_loop_inside_a_step_counts_as_what_the_step_did() -> None:
    @checkpointed(code="version", version="1")
    def train(stop: int | None = None) -> None:
        run = current_run()
        assert run is not None
        for item in run.loop("x", range(4)):
            run.state["n"] = run.state.get("n", 0) + 1
            run.state["rows"].append(item)
            if random.random() < 0:
                raise Stop

    def body(run: Run) -> Any:
        random.seed(1)
        run.state["rows"] = rows = []
        train()
        return run.state["n"], rows

    first, second = scope(body), scope(body)
    assert second.ran == {}
    assert first.value == second.value == (4, [0, 1, 2, 3])


def test_a_loop_inside_a_step_that_was_stopped_counts_as_what_the_step_did() -> None:
    @checkpointed(code="version", version="1")
    def train() -> None:
        run = current_run()
        assert run is not None
        for item in run.loop("x", range(4)):
            run.state[f"turn {item}"] = item
            run.state["rows"].append(item)
            if item == WORLD["stop"]:
                raise Stop

    def body(run: Run) -> Any:
        run.state["rows"] = []
        train()
        return dict(run.state)

    WORLD["stop"] = 2
    with pytest.raises(Stop):
        scope(body)
    WORLD["stop"] = -1
    expected = {"rows": [0, 1, 2, 3], **{f"turn {i}": i for i in range(4)}}
    assert scope(body).value == expected
    third = scope(body)
    assert (third.ran, third.value) == ({}, expected)


WORLD: dict[str, int] = {}


def test_what_cannot_be_kept_is_told_and_the_loop_goes_on() -> None:
    def body(run: Run) -> Any:
        run.state["it"] = (number for number in ())
        with pytest.warns(CheckpointWarning, match="loop x: the snapshot after . items was not saved"):
            return list(run.loop("x", range(2)))

    assert scope(body).value == [0, 1]


def test_with_checkpoints_disabled_it_is_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_DISABLE", "1")
    from oncemore import checkpoint_scope

    with checkpoint_scope("run") as run:
        assert list(run.loop("x", range(3))) == [0, 1, 2]
        assert list(run.loop("x", range(3))) == [0, 1, 2]
