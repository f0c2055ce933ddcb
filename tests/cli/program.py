"""The command line as tests use it: a store to look at, and output without what differs from time to time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oncemore import History, RunPaused, checkpoint_scope, checkpointed, current_run
from tests import warm
from tests.processes import SRC, Finished, Running
from tests.unit.pasts import flow

COMMAND = [sys.executable, "-m", "oncemore.cli"]


@checkpointed
def divide(x: int, by: int) -> float:
    return x / by


@checkpointed(effect="once")
def mail(address: str) -> str:
    raise KeyboardInterrupt  # nobody knows whether the mail was sent


def sample() -> History:
    """Runs that ended in different ways, in the store that is meant if none is named."""
    flow(None, "nightly", workflow="etl")
    flow(None, "nightly", workflow="etl")
    with pytest.raises(ZeroDivisionError), checkpoint_scope("broken", workflow="etl"):
        divide(divide(6, 3), 0)
    with pytest.raises(KeyboardInterrupt), checkpoint_scope("mailing"):
        mail("a@example.com")
    history = History()
    history.fork("nightly", "trial", at="after-clean", state={"factor": 2})
    return history


def question() -> None:
    """A run that waits for the answers to three questions."""
    with pytest.raises(RunPaused), checkpoint_scope("report") as run:
        run.map(approve, ["draft", "summary", "cover"], concurrency=1)


@checkpointed
def approve(text: str) -> object:
    run = current_run()
    assert run is not None
    if text == "cover":
        return run.ask("How many pages?", name="pages", type=int)
    return run.ask(f"Is the {text} good?", name="approve", choices=["yes", "no"])


ORDERS = """\
import sys
from oncemore import checkpoint_scope, checkpointed

@checkpointed
def load(day):
    return [5, 20, -1]

def valid(price):
    return price > 0

@checkpointed
def clean(prices):
    print("cleaning")
    return [price for price in prices if valid(price)]

with checkpoint_scope(sys.argv[1]):
    print("average:", sum(clean(load("monday"))) / 2)
"""


LUCK = """\
from pathlib import Path
from oncemore import checkpoint_scope, checkpointed

@checkpointed
def draw():
    Path("drawn").write_text(str(int(Path("drawn").read_text() if Path("drawn").exists() else 0) + 1))
    return Path("drawn").read_text()

@checkpointed
def use(number):
    return int(number)

with checkpoint_scope("luck"):
    use(draw())
"""


def project() -> None:
    """A script, orders.py, that runs were made with; it was edited meanwhile, and once more since."""
    edited = ORDERS.replace("> 0", "> 10")
    for run_id, source in (("earlier", ORDERS), ("orders", ORDERS), ("orders", edited), ("later", edited)):
        Path("orders.py").write_text(source)
        _run("orders.py", run_id)
    Path("orders.py").write_text(ORDERS.replace("> 0", ">= 11"))
    Path("done.py").write_text("print('done')")
    Path("luck.py").write_text(LUCK)
    _run("luck.py")


def _run(*script: str) -> None:
    with Running(warm.Process(script[0], script[1:], Path.cwd(), environment())) as running:
        running.finish(expect=0)


def environment(**more: str) -> dict[str, str]:
    """That of a program to start. The size of its terminal is the terminal's, not that of the one the tests run on."""
    mine = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
    return {**mine, "PYTHONPATH": str(SRC), "PYTHONWARNINGS": "default", "TERM": "xterm-256color", **more}


def oncemore(*arguments: str, timeout: float = 60, **more: Any) -> Finished:
    """The program in a process of its own, its output piped."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        **more,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def settled(text: str, folder: Path) -> str:
    """Without what differs from run to run: places, times, digests, sizes, and the columns' widths that follow from them."""
    text = text.replace(str(folder), "FOLDER").replace(str(Path(os.environ["HOME"])), "HOME")
    text = re.sub(
        r'"(time|first|last|duration|took|seconds|seconds_saved|\w*bytes|lane)": ("[^"]*"|[\d.e-]+)', r'"\1": ...', text
    )
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{16}\b|(?<=-)[0-9a-f]{8}\b", "HEX", text)
    text = re.sub(r"(\d+\.)?\d+ ([kMGT]?B)\b", "SIZE", text)
    text = re.sub(r"\d+\.\d+ s\b|seconds=[\d.]+|(?<=seconds_saved=)[\d.]+", "N s", text)
    text = re.sub(r"\w*bytes=\d+", "bytes=N", text)
    return re.sub(r"  +", "  ", text)
