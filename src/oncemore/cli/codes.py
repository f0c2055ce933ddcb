"""The exit codes and their meanings."""

from __future__ import annotations

DONE, FAILED, MISUSED, PROBLEMS, DECLINED, NOT_INSTALLED, WOULD_RUN, INTERRUPTED, BROKEN_PIPE = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    130,
    141,
)

MEANINGS = {
    DONE: "success, and no problems found",
    FAILED: "the command failed; the message says why",
    MISUSED: "invalid command line",
    PROBLEMS: "a check found problems (`verify`, `doctor`, `key`, `repair`), or a node differs (`audit`, `adopt`)",
    DECLINED: "nothing was done: you answered no, or there was no terminal to ask on and no --yes",
    NOT_INSTALLED: "the command line's packages are not installed: pip install 'oncemore[cli]'",
    WOULD_RUN: "`plan`: at least one step would run",
    INTERRUPTED: "interrupted by Ctrl-C",
    BROKEN_PIPE: "the program reading the output closed the pipe",
}
