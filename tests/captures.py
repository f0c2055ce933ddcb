"""The sessions that the README shows, made by running them at a terminal: `make captures` writes them anew.

Each `console` block is a session in the folder of the quickstart: the commands after `$ `, and what a person sees of them.
The inside of a traceback is left out.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from tests.terminal import Terminal

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
CONSOLE = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def made_anew(text: str, folder: Path) -> str:
    """A page, the content of its console blocks replaced by what happens now."""
    shutil.copy(ROOT / "examples" / "quickstart.py", folder)
    return CONSOLE.sub(lambda block: _session(re.findall(r"^\$ (.*)$", block[0], re.MULTILINE), folder), text)


def _session(commands: list[str], folder: Path) -> str:
    """Commands as typed, and what they leave on the screen."""
    shown = ""
    for command in commands:
        real = re.sub(r"^python ", f"'{sys.executable}' ", command)
        lines = (
            Terminal(["/bin/sh", "-c", real], folder, width=300, env={"ONCEMORE_STORE": None, "ONCEMORE_LOG": None})
            .end()
            .lines
        )
        shown += "".join(f"{line}\n" for line in [f"$ {command}", *lines])
    return re.sub(r"(Traceback \(most recent call last\):\n)(?: .*\n)+", r"\1  ...\n", shown)


def timeless(text: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r" *\b\d+(?:\.\d)? m?s\b", " T", text)


def main() -> int:
    before = README.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        after = made_anew(before, Path(folder))
    if timeless(after) != timeless(before):  # other times alone are no reason to
        README.write_text(after, encoding="utf-8")
        print("README.md has new captures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
