"""A terminal for tests: a command runs in it, and what a person finally sees is read off its screen."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Sequence

import pexpect
import pyte

from tests.processes import SRC

WIDTH, HEIGHT = 100, 200  # high enough that nothing scrolls away


@dataclass(frozen=True)
class Seen:
    """What was on the screen at the end, line by line; the bytes that led there; the exit code or -signal."""

    lines: list[str]
    written: str
    code: int

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Terminal:
    """A command at a terminal. `until` waits for a text in what it writes, `end` for its end."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        width: int = WIDTH,
        height: int = HEIGHT,
        env: Mapping[str, str | None] = {},
    ) -> None:
        merged: dict[str, str | None] = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH", "")])),
            "PYTHONIOENCODING": "utf-8",
            "TERM": "xterm-256color",
            "NO_COLOR": None,
            **env,
        }
        self.screen = pyte.Screen(width, height)
        self._stream, self._written = pyte.Stream(self.screen), ""
        self.process: pexpect.spawn[str] = pexpect.spawn(
            command[0],
            list(command[1:]),
            cwd=str(folder),
            env={name: value for name, value in merged.items() if value is not None},
            dimensions=(height, width),
            encoding="utf-8",
            codec_errors="replace",
            timeout=60,
        )
        self.process.logfile_read = self  # every byte, as it comes

    def write(self, text: str) -> None:
        self._written += text
        self._stream.feed(text)

    def flush(self) -> None:
        pass

    @property
    def lines(self) -> list[str]:
        """The screen as it is now, without the empty rows at its end."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip().splitlines()

    def until(self, text: str) -> None:
        self.process.expect_exact(text)

    def end(self) -> Seen:
        self.process.expect(pexpect.EOF)
        self.process.close()
        code = self.process.exitstatus
        return Seen(self.lines, self._written, -self.process.signalstatus if code is None else code)


def at_a_terminal(
    path: Path, *arguments: str, width: int = WIDTH, height: int = HEIGHT, env: Mapping[str, str | None] = {}
) -> Seen:
    """Run a Python script at a terminal to its end."""
    command = [sys.executable, str(path), *arguments]
    return Terminal(command, path.parent, width=width, height=height, env=env).end()
