"""The command line, `oncemore`, built on the public API; see docs/reference/cli.md.

Its libraries are an optional extra. If they are missing, a message says how to install them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

DONE, FAILED, MISUSED, PROBLEMS, DECLINED, NOT_INSTALLED, WOULD_RUN = range(7)
INTERRUPTED, BROKEN_PIPE = 130, 141
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
HINT = "oncemore: the command line needs two more packages. Install them with: pip install 'oncemore[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `MEANINGS` explains the codes."""
    try:
        from .app import run

        return run(arguments)
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(HINT, file=sys.stderr)
        return NOT_INSTALLED
    except KeyboardInterrupt:  # while the program was still loading
        return INTERRUPTED
