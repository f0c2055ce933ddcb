"""Exit codes, the one place where they are decided and explained."""

from __future__ import annotations

DONE, FAILED, MISUSED, UNWELL, DECLINED, NOT_INSTALLED, WOULD_RUN, INTERRUPTED, UNHEARD = 0, 1, 2, 3, 4, 5, 6, 130, 141

MEANINGS = {
    DONE: "done; all is well",
    FAILED: "it could not be done; the message says why",
    MISUSED: "the command line was not understood",
    UNWELL: "done, and something is wrong: `verify` or `doctor` found it, or `audit` or `adopt` a node that differs",
    DECLINED: "not done: you said no, or there was nobody to ask (no terminal, no --yes)",
    NOT_INSTALLED: "the packages of the command line are not installed: pip install 'oncemore[cli]'",
    WOULD_RUN: "`plan`: something would run",
    INTERRUPTED: "ended by Ctrl-C",
    UNHEARD: "whoever read the output has stopped reading (a closed pipe)",
}
