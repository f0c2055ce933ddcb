"""The command line, `oncemore`. It stands outside and uses the public surface; see docs/reference/cli.md.

Its libraries are an extra: without them it says how to get them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .codes import INTERRUPTED, NOT_INSTALLED

HINT = "oncemore: the command line needs two more packages: pip install 'oncemore[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. See `codes` for what it means."""
    try:
        from .app import run

        return run(arguments)
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(HINT, file=sys.stderr)
        return NOT_INSTALLED
    except KeyboardInterrupt:  # while it was still loading
        return INTERRUPTED
