"""What the logger `oncemore` gets, seen by a handler of the script's own: one line per scope at INFO, the rest at DEBUG."""

from __future__ import annotations

import pytest

from tests.processes import Script

SOURCE = """
    import logging, sys
    from oncemore import checkpoint_scope, checkpointed, memoized

    level = sys.argv[1]
    logging.basicConfig(level=level, format="%(levelname)s:%(name)s:%(message)s", stream=sys.stdout)

    @checkpointed
    def load(n):
        return inner(n)

    @checkpointed
    def inner(n):
        if n == 3:
            raise ValueError("three")
        return n

    @memoized
    def shared(n):
        return n

    with checkpoint_scope("outer") as run:
        for n in run.loop("turns", range(2)):
            load(n), load(n), shared(n)
        with checkpoint_scope("within") as other:
            other.map(load, [1, 2, 3], on_error="collect")
            other.checkpoint("here")
    try:
        with checkpoint_scope("broken"):
            load(3)
    except ValueError:
        pass
    with checkpoint_scope("empty", quiet=True):
        pass
    shared(7)
"""
FIRST = [
    "INFO:oncemore:run within finished: 4 steps ran, 0 reused, 2 failed",
    "INFO:oncemore:run outer finished: 6 steps ran, 2 reused, 0 failed",
    "INFO:oncemore:run broken stopped by ValueError: 0 steps ran, 0 reused, 2 failed",
    "INFO:oncemore:run empty finished: 0 steps ran, 0 reused, 0 failed",
]


@pytest.mark.parametrize("told", ["", "off", "on"])
def test_a_scope_is_one_line_at_info_whatever_is_shown(script: Script, told: str) -> None:
    """The lines on standard error and the records are two things: neither asks for the other."""
    assert script(SOURCE, "INFO", env={"ONCEMORE_LOG": told}).lines == FIRST
    assert [line.partition(" steps")[0] for line in script(SOURCE, "INFO", env={"ONCEMORE_LOG": told}).lines] == [
        "INFO:oncemore:run within finished: 0",
        "INFO:oncemore:run outer finished: 0",
        "INFO:oncemore:run broken stopped by ValueError: 0",
        "INFO:oncemore:run empty finished: 0",
    ]


def test_everything_else_is_at_debug(script: Script) -> None:
    lines = script(SOURCE, "DEBUG").lines
    assert [line for line in lines if not line.startswith("DEBUG:oncemore:")] == FIRST


def test_every_event_of_a_run_is_a_record(script: Script) -> None:
    stored = """
    print("STORED", *{type(event).__name__ for each in (run, other) for event in each.events()})
    """
    first, second = (script(SOURCE + stored, "DEBUG").lines for _ in range(2))
    names = second[-1].split()[1:]
    assert {"RunStarted", "RunResumed", "RunFinished", "StepCompleted", "StepReused", "SnapshotSaved"} <= {*names}
    assert [name for name in names if not any(f": {name}(" in line for line in first + second)] == []


def test_a_script_that_asks_for_warnings_gets_none(script: Script) -> None:
    assert script(SOURCE, "WARNING").out == ""


def test_a_script_that_has_not_configured_logging_sees_no_record(script: Script) -> None:
    done = script(SOURCE.replace("logging.basicConfig(", "dict("), "DEBUG")
    assert (done.out, done.err) == ("", "")
