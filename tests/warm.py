"""Interpreters that have loaded what oncemore imports, and fork for each script that a test starts.

A script gets a process, a session and a `__main__` of its own, its arguments, environment, folder and pipes; it imports oncemore
itself, and ends as any process does, by itself or by a signal. Saved are the start of Python and half of the import. What differs:
the libraries are in `sys.modules` from the beginning, and one more frame lies below the script. Tests of these say `cold=True`.

Two interpreters take turns, so two processes of one script differ in hash seed and addresses, as they do for a user.
"""

from __future__ import annotations

import atexit
import importlib
import itertools
import json
import os
import select
import signal
import site
import socket
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

LIBRARIES = [
    *(
        "asyncio",
        "concurrent.futures.thread",
        "difflib",
        "hmac",
        "html",
        "importlib.metadata",
        "sysconfig",
        "urllib.parse",
    ),
    *("blake3", "cloudpickle", "diskcache", "wrapt", "zstandard"),
]


class Process:
    """A script in a fork of a warm interpreter, with as much of `subprocess.Popen` as `tests.processes` needs."""

    def __init__(
        self, script: str, args: Sequence[str], cwd: Path, env: Mapping[str, str], load: Sequence[str] = ()
    ) -> None:
        """Start it. `script` is what one would type; `load` names libraries that the interpreter has besides."""
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        status_pipe, status_end = os.pipe()
        request = json.dumps({"script": script, "args": [*args], "cwd": str(cwd), "env": dict(env)})
        ends = [out_end, err_end, status_end]
        socket.send_fds(next(_interpreters(tuple(load))).socket, [request.encode()], ends)
        for end in ends:
            os.close(end)
        self.stdout = open(out, encoding="utf-8", errors="replace")
        self.stderr = open(err, encoding="utf-8", errors="replace")
        self._status = open(status_pipe, "rb", buffering=0)
        self.pid = self._number()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code (negative: the signal that ended it), or None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("script", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = self._number()
            self._status.close()
        return self.returncode

    def _number(self) -> int:
        line = self._status.readline()
        assert line, "a warm interpreter has died"
        return int(line)


class _Interpreter:
    """A process that forks on request, and ends when this one does: then its socket is closed."""

    def __init__(self, load: Sequence[str]) -> None:
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
        env.pop("PYTHONPATH", None)  # each script has its own
        with other:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno()), *load],
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end, os.getpid())

    def _end(self, owner: int) -> None:
        self.socket.close()
        if os.getpid() == owner:  # not a fork of it
            self.process.wait()


@lru_cache(maxsize=None)
def _interpreters(load: tuple[str, ...]) -> Iterator[_Interpreter]:
    """Two of them, in turn, for ever."""
    return itertools.cycle([_Interpreter(load), _Interpreter(load)])


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. In the fork that is to run a script, this returns; here, when nobody will ask any more: None."""
    minders: set[int] = set()
    while True:
        message, ends, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not message:
            return None
        minder = os.fork()
        if not minder:
            script = os.fork()
            if not script:
                _become(*ends[:2])
                os.closerange(3, max(*ends, control.detach()) + 1)
                return json.loads(message)
            _mind(script, *ends)
        minders = {each for each in {*minders, minder} if not os.waitpid(each, os.WNOHANG)[0]}
        for end in ends:
            os.close(end)


def _become(out: int, err: int) -> None:
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)


def _mind(script: int, out: int, err: int, status_pipe: int) -> NoReturn:
    """Tell the process id of a script, and its exit code once it has ended."""
    os.close(out)
    os.close(err)
    os.write(status_pipe, b"%d\n" % script)
    _, status = os.waitpid(script, 0)
    os.write(status_pipe, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _main_module(script: str, args: list[str], cwd: str, env: dict[str, str]) -> types.ModuleType:
    """Make this process what it would be if Python had been started with that script."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [script, *args]
    sys.orig_argv = [sys.executable, script, *args]
    sys.path[:1] = [
        os.path.dirname(os.path.realpath(script)),
        *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    site.execsitecustomize()  # there may be one among these paths
    path = os.path.abspath(script)
    main = types.ModuleType("__main__")
    main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
    sys.modules["__main__"] = main
    return main


if __name__ == "__main__":
    for library in [*LIBRARIES, *sys.argv[2:]]:
        importlib.import_module(library)
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if (
        request
    ):  # what the script raises goes up from here to Python itself, which ends the process as it ends any other
        warm, main = sys.modules["__main__"], _main_module(**request)
        with open(main.__file__, "rb") as source:
            code = compile(source.read(), main.__file__, "exec", dont_inherit=True)
        exec(code, main.__dict__)
