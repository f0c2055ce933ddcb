"""Scripts run in processes of their own, as a user runs them, and killed where a test says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Mapping, Sequence

from tests import warm

SRC = Path(__file__).resolve().parent.parent / "src"


def either_case(*words: str) -> list[str]:
    """Words of an environment variable as people write them: in lower and in upper case."""
    return list(dict.fromkeys(spelled for word in words for spelled in (word, word.upper())))


@dataclass(frozen=True)
class Finished:
    """A process that has ended: its exit code (negative: the signal that ended it) and what it printed."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Standard output, line by line."""
        return self.out.splitlines()


class Running:
    """A process under way; its output is collected while it runs, so that it never waits for a reader."""

    def __init__(self, process: subprocess.Popen[str] | warm.Process) -> None:
        self.process = process
        self._news = threading.Condition()
        self._out: list[str] = []
        self._err: list[str] = []
        self._readers = [
            threading.Thread(target=self._collect, args=(self.process.stdout, self._out), daemon=True),
            threading.Thread(target=self._collect, args=(self.process.stderr, self._err), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, text: str, timeout: float = 30) -> str:
        """The first line of standard output that contains `text`, as soon as it is printed."""
        deadline, seen = time.monotonic() + timeout, 0
        with self._news:
            while True:
                for line in self._out[seen:]:
                    if text in line:
                        return line.rstrip("\n")
                seen = len(self._out)
                over = not self._readers[0].is_alive() and self.process.poll() is not None
                left = deadline - time.monotonic()
                if over or left <= 0:
                    why = f"ended with code {self.process.returncode}" if over else f"took over {timeout} s"
                    raise AssertionError(f"{text!r} was not printed: the script {why}\n{self._output()}")
                self._news.wait(min(left, 0.05))

    def signal(self, number: int) -> None:
        """Send a signal to the process itself."""
        self.process.send_signal(number)

    def kill(self, family: bool = False) -> Finished:
        """SIGKILL, to the process alone or with all its children, as it would go in a power cut."""
        if family:
            self._kill_family()
        else:
            self.process.kill()
        return self.finish()

    def finish(self, expect: int | None = None, timeout: float = 60) -> Finished:
        """Wait for the end; with `expect`, the exit code has to be that one."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._kill_family()
            raise AssertionError(f"the script did not end within {timeout} s\n{self._output()}") from None
        for reader in self._readers:
            reader.join(5)  # a child that outlives the script may hold the pipe
        if expect is not None:
            assert code == expect, f"exit code {code}, expected {expect}\n{self._output()}"
        return Finished(code, "".join(self._out), "".join(self._err))

    def end(self) -> None:
        """Whatever is left of it goes, children included."""
        self._kill_family()
        self.process.wait()
        for reader, pipe in zip(self._readers, (self.process.stdout, self.process.stderr)):
            reader.join(5)
            if pipe and not reader.is_alive():
                pipe.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    def _collect(self, pipe: object, into: list[str]) -> None:
        for line in pipe:  # type: ignore[attr-defined]
            with self._news:
                into.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _kill_family(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)  # a session of its own, so the group is the script and its children
        except (ProcessLookupError, PermissionError):
            pass

    def _output(self) -> str:
        return f"--- standard output\n{''.join(self._out)}\n--- standard error\n{''.join(self._err)}"


def _start(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _read_at_start(env: Mapping[str, str | None]) -> bool:
    """Whether there is a variable among these that Python reads once, when it starts."""
    return any(name.startswith(("PYTHON", "LANG", "LC_", "LD_", "TZ", "MALLOC")) for name in env)


class Script:
    """Writes Python source into one folder and runs it there; see the fixture `script`.

    >>> done = script("print('hello')")                      # writes script.py, runs it, expects exit code 0
    >>> done = script(source, "--fast", env={"SEED": "1"}, expect=1)
    >>> done = script(name="script.py")                      # runs what is there once more
    >>> done = script.kill_at("half way", source)            # SIGKILL as soon as that is printed
    >>> with script.start(source) as running: running.wait_for("ready")
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Running] = []

    def write(self, source: str, name: str = "script.py") -> Path:
        """Write one file, its source shifted to the left margin."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source).lstrip("\n"), encoding="utf-8")
        return path

    def start(
        self,
        source: str | None = None,
        *args: str,
        name: str = "script.py",
        env: Mapping[str, str | None] | None = None,
        options: Sequence[str] = (),
        python: str = sys.executable,
        cwd: Path | None = None,
        cold: bool = False,
    ) -> Running:
        """Start it and go on. `options` are the interpreter's; a None in `env` takes a variable away.

        It is a fork of an interpreter that is warm (see `tests.warm`), unless `cold` or another interpreter is asked for.
        """
        if source is not None:
            self.write(source, name)
        target = [] if "-m" in options or "-c" in options else [str(self.folder / name)]
        paths = [str(SRC), os.environ.get("PYTHONPATH", "")]
        merged: dict[str, str | None] = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            "PYTHONIOENCODING": "utf-8",
            **(env or {}),
        }
        settled = {key: value for key, value in merged.items() if value is not None}
        if cold or options or python != sys.executable or _read_at_start(env or {}):
            running = Running(_start([python, *options, *target, *args], cwd or self.folder, settled))
        else:
            running = Running(warm.Process(str(self.folder / name), args, cwd or self.folder, settled))
        self.started.append(running)
        return running

    def __call__(
        self,
        source: str | None = None,
        *args: str,
        expect: int | None = 0,
        timeout: float = 60,
        name: str = "script.py",
        env: Mapping[str, str | None] | None = None,
        options: Sequence[str] = (),
        python: str = sys.executable,
        cwd: Path | None = None,
        cold: bool = False,
    ) -> Finished:
        """Run it to its end; the exit code has to be `expect` (None: any)."""
        running = self.start(source, *args, name=name, env=env, options=options, python=python, cwd=cwd, cold=cold)
        return running.finish(expect, timeout)

    def kill_at(
        self,
        text: str,
        source: str | None = None,
        *args: str,
        timeout: float = 60,
        name: str = "script.py",
        env: Mapping[str, str | None] | None = None,
        family: bool = False,
    ) -> Finished:
        """Run it, and SIGKILL it as soon as it has printed a line that contains `text`."""
        running = self.start(source, *args, name=name, env=env)
        running.wait_for(text, timeout)
        return running.kill(family)

    def end(self) -> None:
        """Nothing that was started here outlives the test."""
        for running in self.started:
            running.end()
