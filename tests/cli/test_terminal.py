"""The program on a real terminal: colours, questions, paging, progress."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from oncemore import History, checkpoint_scope, checkpointed
from oncemore.cli import DECLINED, DONE, INTERRUPTED, WOULD_RUN
from tests.cli.program import environment, project, sample
from tests.unit.pasts import content, flow

GREEN, RED, ESCAPE = "\x1b[32m", "\x1b[31m", "\x1b["
Start = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def terminal() -> Iterator[Start]:
    """Starts a command on a terminal of its own."""
    started = []

    def start(command: str, columns: int = 100, lines: int = 40, **more: str) -> pexpect.spawn[str]:
        it = pexpect.spawn(
            sys.executable,
            ["-m", "oncemore.cli", *command.split()],
            env=environment(LESS="", **more),
            encoding="utf-8",
            dimensions=(lines, columns),
            timeout=60,
        )
        started.append(it)
        return it

    yield start
    for it in started:
        it.close(force=True)


def ended(it: pexpect.spawn[str], code: int = DONE) -> str:
    """All that it printed until its end."""
    it.expect(pexpect.EOF)
    it.close()
    assert it.exitstatus == code, it.before
    return it.before or ""


def shown(text: str) -> str:
    """What a person sees: without colours."""
    return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text).replace("\r", "")


def test_a_table_has_colours_and_the_same_words_as_in_a_pipe(terminal: Start) -> None:
    sample()
    text = ended(terminal("runs"))
    assert GREEN + "finished" in text
    assert RED + "failed" in text
    assert [line.split()[0] for line in shown(text).splitlines()] == ["run", "trial", "mailing", "broken", "nightly"]


def test_no_color_is_respected(terminal: Start) -> None:
    sample()
    text = ended(terminal("runs", NO_COLOR="1"))
    assert GREEN not in text
    assert "finished" in text


def test_ids_are_not_cut_on_a_narrow_terminal(terminal: Start) -> None:
    name = "a-run-with-a-rather-long-name-" * 3
    with checkpoint_scope(name) as run:
        run.checkpoint("kept", metadata={"why": "a long text that has to be folded " * 3})
    for command in ("runs", f"show {name}"):
        assert name in shown(ended(terminal(command, columns=40)))


def test_what_a_run_said_cannot_write_to_the_terminal(terminal: Start) -> None:
    with pytest.raises(ValueError), checkpoint_scope("rude"):
        raise ValueError("\x1b[2J\x1b]0;owned\x07 [red]markup[/red]")
    text = ended(terminal("show rude")) + ended(terminal("events rude"))
    assert "\x1b[2J" not in text
    assert "\x07" not in text
    assert "[red]markup[/red]" in text


@pytest.mark.parametrize(
    ("answer", "code"), [("y", DONE), ("n", DECLINED), ("", DECLINED), ("\x04", DECLINED), ("\x03", DECLINED)]
)
def test_it_asks_before_it_removes_a_run(answer: str, code: int, terminal: Start) -> None:
    history = sample()
    it = terminal("rm broken")
    it.expect_exact("Remove run broken with 1 checkpoint? This cannot be undone. [y/N]: ")
    assert "broken" in history.run_ids()
    it.sendline(answer) if answer not in ("\x03", "\x04") else it.send(answer)
    text = ended(it, code)
    assert ("nothing was done" in text) == (code == DECLINED)
    assert ("broken" in history.run_ids()) == (code == DECLINED)


@pytest.mark.parametrize("command", ["rollback nightly --to load", "prune --keep first", "export there.zip"])
def test_it_asks_before_it_takes_anything_away(command: str, terminal: Start) -> None:
    sample()
    Path("there.zip").write_text("mine")
    before = content("./.oncemore")
    it = terminal(command)
    it.expect_exact("[y/N]: ")
    it.sendline("n")
    ended(it, DECLINED)
    assert content("./.oncemore") == before
    assert Path("there.zip").read_text() == "mine"


def test_yes_asks_nothing(terminal: Start) -> None:
    history = sample()
    assert "[y/N]" not in ended(terminal("rm broken --yes"))
    assert "broken" not in history.run_ids()


def test_a_long_list_goes_through_a_pager_and_a_short_one_does_not(terminal: Start) -> None:
    for number in range(60):
        with checkpoint_scope(f"run-{number:02}"):
            pass
    Path("pager").write_text("#!/bin/sh\necho FIRST\ncat\necho LAST\n")
    Path("pager").chmod(0o755)
    lines = shown(ended(terminal("runs", lines=20, PAGER="./pager"))).split("\n")
    assert [line.split()[0] for line in lines if line] == [
        *("FIRST", "run"),
        *(f"run-{number:02}" for number in reversed(range(60))),
        "LAST",
    ]
    assert "FIRST" not in ended(terminal("runs", lines=62, PAGER="./pager"))


def test_less_shows_the_first_page_and_the_last(terminal: Start) -> None:
    for number in range(60):
        with checkpoint_scope(f"run-{number:02}"):
            pass
    it = terminal("runs", lines=20, PAGER="less")
    it.expect_exact("run-59")
    it.send("G")
    it.expect_exact("run-00")
    it.send("q")
    ended(it)


def test_a_pager_that_is_left_early_ends_it_quietly(terminal: Start) -> None:
    @checkpointed
    def step(n: int) -> int:
        return n

    with checkpoint_scope("long"):
        for n in range(1500):
            step(n)
    it = terminal("show long --limit 0", lines=20, PAGER="less")
    it.expect_exact("long:5")
    it.send("q")
    it.expect(pexpect.EOF)
    it.close()
    assert "Traceback" not in (it.before or "")


def test_ctrl_c_ends_it_quietly(terminal: Start) -> None:
    with checkpoint_scope("busy"):
        it = terminal("events busy --follow")
        it.expect_exact("RunStarted")
        it.sendintr()
        assert shown(ended(it, INTERRUPTED)).strip() in ("", "^C")


def test_verify_shows_how_far_it_is_on_a_terminal(terminal: Start) -> None:
    flow(None, "r")
    it = terminal("verify")
    text = ended(it)
    assert "verifying" in text
    assert re.search(r"\d+/\d+", shown(text))
    assert "0 damaged, 0 dangling, 0 orphans" in shown(text)


def test_it_asks_before_it_adopts_and_counts_what_it_compares(terminal: Start) -> None:
    project()
    before = content("./.oncemore")
    it = terminal("adopt later clean")
    it.expect_exact(
        "Run orders.py later, compare 1 call of clean, and adopt its checkpoints if the results are the same? [y/N]: "
    )
    it.sendline("n")
    ended(it, DECLINED)
    assert content("./.oncemore") == before
    it = terminal("adopt later clean")
    it.expect_exact("[y/N]: ")
    it.sendline("y")
    text = shown(ended(it))
    assert "compared 1 (0 different), last clean-" in text
    assert "adopted for its current code (1 node compared: 1 equal, 0 different)" in text
    assert [type(event).__name__ for event in History().run("later").events()][-1] == "StepAdopted"


def test_a_difference_is_shown_on_a_terminal_as_in_a_pipe(terminal: Start) -> None:
    project()
    text = shown(ended(terminal("diff earlier later")))
    assert re.search(r"clean +clean-\w+ +clean-\w+ +code of helper `valid` changed", text)
    assert "-    return price > 0" in shown(ended(terminal("why orders clean --diff")))
    assert "would run" in shown(ended(terminal("plan orders.py later"), WOULD_RUN))


def test_the_progress_bar_stays_out_of_a_pipe(terminal: Start) -> None:
    flow(None, "r")
    it = pexpect.spawn(
        "/bin/sh",
        ["-c", f"{sys.executable} -m oncemore.cli verify > out.txt"],
        env=environment(),
        encoding="utf-8",
        timeout=60,
    )
    text = ended(it)
    assert "verifying" in text
    assert ESCAPE not in Path("out.txt").read_text()
    assert Path("out.txt").read_text().startswith(f"{History().verify().entries} entries of 1 run")
