"""What is in progress: on a terminal in the live line, elsewhere in a line of its own now and then."""

from __future__ import annotations

import re
import time

from tests.processes import Script
from tests.report.test_terminal import live

BUSY = """
    import os, threading, time
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def work(n):
        while n >= 2 and not os.path.exists("go"):
            time.sleep(0.01)
        return n

    with checkpoint_scope("busy") as run:
        for epoch in run.loop("epochs", [1, 2, 3]):
            if epoch == 2:
                run.map(work, range(4), concurrency=2)
"""


def test_without_a_terminal_a_line_says_what_takes_long(script: Script) -> None:
    running = script.start(BUSY, env={"ONCEMORE_LOG": str(script.folder / "log.txt")})
    log = script.folder / "log.txt"
    while not (log.exists() and "longest" in log.read_text(encoding="utf-8")):
        assert running.process.poll() is None
        time.sleep(0.05)
    (script.folder / "go").touch()
    running.finish(expect=0)
    (line,) = [line for line in log.read_text(encoding="utf-8").splitlines() if "longest" in line]
    pattern = r"  epochs    2/3  .* snapshot at 1, \d+ s ago ·  work      2/4  2 ran  2 running, longest \d+ s  .* left"
    assert re.fullmatch(pattern, line), line


def test_the_live_line_has_a_bar_and_the_time_left(script: Script) -> None:
    source = """
        @checkpointed
        def work(n):
            time.sleep(0.3)
            return n

        with checkpoint_scope("bar") as run:
            run.map(work, range(8), concurrency=2)
            print(run.seconds_saved)
    """
    (script.folder / "go").touch()
    written = live(script, source, " left").end().written
    assert re.search(r"work      \d/8  ━+─+  \d ran  \d running  [\d.]+/s  \d s left", written), written


def test_the_live_line_returns_after_a_whole_line_of_output(script: Script) -> None:
    source = """
        @checkpointed
        def train():
            print("epoch 1")
            wait()

        with checkpoint_scope("printing"):
            train()
    """
    lines = live(script, source, "running 2 s").end().lines
    assert lines[1] == "epoch 1"
