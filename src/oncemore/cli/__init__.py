"""The command line, `oncemore`, built on the public API; see docs/reference/cli.md.

Its libraries are an optional extra. If they are missing, a message says how to install them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .codes import INTERRUPTED, NOT_INSTALLED

HINT = "oncemore: the command line needs two more packages. Install them with: pip install 'oncemore[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `codes` explains the codes."""
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
