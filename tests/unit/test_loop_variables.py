"""run.loop and the variables of the script: a resumed loop ends with those that an uninterrupted one has."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from oncemore import CheckpointWarning, Run
from tests.processes import Script
from tests.unit.again import scope
from tests.unit.test_loop import Seen, Stop, snapshots

BINDS_LOCALS = sys.version_info >= (3, 13)

HELPERS = """
    calls, log = 0, []

    def helper(x):
        global calls
        calls = calls + 1
        log.append(("helper", x))
"""

MODULE = """
    import os, sys
    from collections import Counter, defaultdict, deque
    import numpy as np
    import helpers
    from oncemore import checkpoint_scope, checkpointed

    many, stop, every = map(int, sys.argv[1:4])
    results, best, seen, kinds, last = [], float("-inf"), {}, Counter(), deque(maxlen=3)
    pairs, kept, weights, rows, gone = defaultdict(list), {1, 2}, np.zeros(3), [[0], [0]], "here"
    untouched = {"big": list(range(10))}

    class Model:
        fitted = 0

        def __init__(self):
            self.history, self.best = [], None

    @checkpointed
    def work(x):
        seen[x] = Model.fitted
        return x * 7 % 11

    model = Model()
    with checkpoint_scope("run", store="store") as run:
        for x in run.loop("train", range(many), every=every):
            if x == stop:
                os._exit(9)
            print("TURN", x)
            y = work(x)
            results.append({"x": x, "y": y})
            best = max(best, y)
            kinds[y % 3] += 1
            last.append(results[-1])
            pairs[y].append(x)
            kept.add(y)
            kept.discard(x)
            weights[x % 3] += y
            rows[x % 2][0] += 1
            model.history.append(y)
            model.best = results[-1]
            Model.fitted += 1
            helpers.helper(x)
            if x == 2:
                del gone
    print(results, best, seen, kinds, list(last), dict(pairs), sorted(kept), weights, rows, model.history, Model.fitted)
    print(helpers.calls, helpers.log, x, y, "gone" in globals(), untouched)
    print(model.best is results[-1], last[-1] is results[-1])
"""


def ends(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("TURN")]


def turns(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("TURN")]


@pytest.mark.parametrize("every", [1, 3])
def test_killed_resumed_finished_and_extended_it_ends_with_the_globals_of_plain_python(
    script: Script, every: int
) -> None:
    script.write(HELPERS, "helpers.py")
    plain = {many: script(MODULE, str(many), "-1", "1", env={"ONCEMORE_DISABLE": "1"}) for many in (20, 30)}
    for many, stop, seen in (
        (20, 4, range(4)),
        (20, 10, range(4 - 4 % every, 10)),
        (20, -1, range(10 - 10 % every, 20)),
    ):
        run = script(MODULE, str(many), str(stop), str(every), expect=9 if stop > 0 else 0)
        assert turns(run.lines) == list(seen)
    assert ends(run.lines) == ends(plain[20].lines)
    again = script(MODULE, "20", "-1", str(every))
    assert again.lines == ends(plain[20].lines)
    longer = script(MODULE, "30", "-1", str(every))
    assert turns(longer.lines) == list(range(20, 30))
    assert ends(longer.lines) == ends(plain[30].lines)
    assert "Warning" not in again.err + longer.err


FUNCTION = """
    import os, sys
    from oncemore import checkpoint_scope

    class Trainer:
        def __init__(self):
            self.losses = []

        def train(self, run, many, stop):
            best, results, table = 0, [], {"n": 0}

            def count(x):
                table["n"] += 1

            for x in run.loop("train", range(many)):
                if x == stop:
                    os._exit(9)
                self.losses.append(x)
                results.append({"x": x})
                best = max(best, 100 - x)
                count(x)
            return self.losses, results, table, best

    def main(many, stop):
        with checkpoint_scope("run", store="store") as run:
            *held, best = Trainer().train(run, many, stop)
            print(held)
            print(best)

    main(*map(int, sys.argv[1:]))
"""


def test_what_local_variables_hold_comes_back_and_they_themselves_do_or_it_is_told(script: Script) -> None:
    plain = script(FUNCTION, "20", "-1", env={"ONCEMORE_DISABLE": "1"})
    script(FUNCTION, "20", "13", expect=9)
    for many, stop in ((20, -1), (20, -1)):
        run = script(FUNCTION, str(many), str(stop))
        assert run.lines[0] == plain.lines[0]
        assert (run.lines[1] == plain.lines[1]) == BINDS_LOCALS
        assert run.err.count("loop train: `best` of train() will not be restored") == (0 if BINDS_LOCALS else 1)


def test_state_globals_and_local_variables_share_what_they_shared() -> None:
    def body(stop: int) -> Any:
        def inside(run: Run) -> Any:
            rows = run.state["rows"] = []
            index = {"rows": rows}
            try:
                for x in run.loop("x", range(5)):
                    if x == stop:
                        raise Stop
                    rows.append([x])
                    index[x] = rows[-1]
                    run.state[f"row {x}"] = rows[-1]
            except Stop:
                pass
            same = [index[x] is rows[x] is run.state[f"row {x}"] for x in range(len(rows))]
            return rows, index["rows"] is rows is run.state["rows"], same

        return inside

    whole = scope(body(-1), "whole").value
    scope(body(3))
    assert scope(body(-1)).value == whole == ([[0], [1], [2], [3], [4]], True, [True] * 5)
    assert scope(body(-1)).value == whole


def test_what_shows_the_memory_of_an_array_does_so_again() -> None:
    def body(run: Run) -> Any:
        weights, held = np.zeros(4), {}
        for x in run.loop("x", range(3)):
            weights[x] = x
            held["part"] = weights[1:]
        weights[3] = 7
        return held["part"].tolist()

    assert scope(body).value == scope(body).value == [1, 2, 7]


def test_tried_again_in_the_same_scope_it_goes_on_with_the_variables_of_the_new_call() -> None:
    def attempt(run: Run, stop: int) -> list[int]:
        found: list[int] = []
        for x in run.loop("x", range(5)):
            found.append(x)
            if x == stop:
                raise Stop
        return found

    def body(run: Run) -> Any:
        for stop in (2, 3):
            with pytest.raises(Stop):
                attempt(run, stop)
        return attempt(run, -1)

    assert scope(body).value == [0, 1, 2, 3, 4]


def test_what_cannot_come_back_is_told_once_and_the_rest_does() -> None:
    def body(run: Run) -> Any:
        numbers, chunks = enumerate(x for x in range(3)), []
        opened: dict[str, Any] = {}
        for x in run.loop("x", range(3)):
            chunks.append(next(numbers)[0])
            opened["it"] = (each for each in ())
        return chunks

    with pytest.warns(CheckpointWarning) as told:
        assert scope(body).value == [0, 1, 2]
    assert scope(body).value == [0, 1, 2]
    said = sorted(str(each.message).partition(" when ")[0] for each in told)
    assert said == [f"loop x: local variable `{name}` is not restored" for name in ("numbers", "opened")]


def test_a_list_that_lacks_what_it_had_before_the_turns_begins_the_loop_anew() -> None:
    def body(first: list[int]) -> Any:
        def inside(run: Run) -> Any:
            found = list(first)
            for x in run.loop("x", range(3)):
                found.append(x)
            return found

        return inside

    assert scope(body([7, 8])).value == [7, 8, 0, 1, 2]
    assert scope(body([7, 9])).value == [7, 9, 0, 1, 2]
    with pytest.warns(
        CheckpointWarning, match="loop x starts over: local variable `found` was initialized differently"
    ):
        assert scope(body([7])).value == [7, 0, 1, 2]


class Slow:
    """Pickling it takes ten seconds, by our clock."""

    clock = Seen()

    def __init__(self) -> None:
        self.data = b""

    def __getstate__(self) -> Any:
        self.clock.items.append(10)
        return vars(self)


def test_a_large_snapshot_waits_until_the_turns_took_as_long_as_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemore.loop.time.perf_counter", lambda: sum(Slow.clock.items))

    def body(size: int) -> Any:
        def inside(run: Run) -> Any:
            slow = run.state["slow"] = Slow()
            for x in run.loop("x", range(6)):
                slow.data += bytes(size)
                if x == 3:
                    Slow.clock.items.append(1000)  # a turn that takes its time

        return inside

    assert snapshots(scope(body(10), "small")) == [1, 2, 3, 4, 5, 6, 6]
    assert snapshots(scope(body(1 << 20), "large")) == [1, 4, 6]
