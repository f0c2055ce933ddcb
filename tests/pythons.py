"""The CPythons of this machine from 3.10 on, and an environment for each.

Needs nothing but the standard library, and runs on any Python 3.8 or later: it is what a fresh clone starts with.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Iterator, Sequence  # as plain as this file has to be for an old Python

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / ".venvs"
SUPPORTED = ("3.10", "3.11", "3.12", "3.13")  # what a release promises; later ones are tested where they are found
OLDEST = (3, 10)
NEEDED = ("ensurepip", "sqlite3", "ssl", "venv")

_PROBE = f"""
import importlib.util, json, platform, sys, sysconfig
print(json.dumps({{
    "path": getattr(sys, "_base_executable", None) or sys.executable,
    "version": platform.python_version(),
    "usable": sys.implementation.name == "cpython" and sys.version_info.releaselevel == "final"
        and not sysconfig.get_config_var("Py_GIL_DISABLED"),
    "lacks": [name for name in {NEEDED!r} if importlib.util.find_spec(name) is None],
}}))
"""


class Trouble(Exception):
    """Something the person at the keyboard has to mend; the message says what."""


@dataclass(frozen=True)
class Python:
    """One interpreter: where it is, its full version, and which needed modules it was built or packaged without."""

    path: str
    version: str
    lacks: tuple[str, ...]

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def age(self) -> tuple[int, int]:
        """What sorts versions: 3.9 comes before 3.10."""
        major, minor = self.minor.split(".")
        return int(major), int(minor)


def _candidates() -> Iterator[str]:
    """Paths that may be a Python; on the path first, then where installers put them."""
    names = [f"python3.{minor}" for minor in range(30, 9, -1)] + ["python3", "python"]
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    yield from (os.path.join(folder, name) for folder in folders for name in names)
    pyenv = os.environ.get("PYENV_ROOT", "~/.pyenv")
    data = os.environ.get("XDG_DATA_HOME", "~/.local/share")
    patterns = [
        f"{pyenv}/versions/*/bin/python3",
        f"{os.environ.get('UV_PYTHON_INSTALL_DIR', data + '/uv/python')}/*/bin/python3",
        "~/.asdf/installs/python/*/bin/python3",
        "~/.local/share/mise/installs/python/*/bin/python3",
        "~/.local/bin/python3.[1-9]?",
        "/usr/bin/python3.[1-9]?",
        "/usr/local/bin/python3.[1-9]?",
        "/usr/local/opt/python@3.[1-9]?/bin/python3.[1-9]?",
        "/opt/python*/bin/python3",
        "/opt/python/*/bin/python3",
        "/opt/homebrew/bin/python3.[1-9]?",
        "/Library/Frameworks/Python.framework/Versions/3.[1-9]?/bin/python3",
    ]
    for pattern in patterns:
        yield from sorted(glob.glob(os.path.expanduser(pattern)), reverse=True)


def _probe(path: str) -> Python | None:
    """What runs behind `path`, or None: a version manager's stand-in may be there and refuse."""
    try:
        answer = subprocess.run(
            [path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
        answered = json.loads(answer.stdout) if answer.returncode == 0 else {"usable": False}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Python(answered["path"], answered["version"], tuple(answered["lacks"])) if answered["usable"] else None


@lru_cache(maxsize=None)
def find() -> dict[str, Python]:
    """One Python for each version from 3.10 on found here, oldest first; the complete one where there are several."""
    found: dict[str, Python] = {}
    seen: set[str] = set()
    for path in _candidates():
        real = os.path.realpath(path)
        shim = os.path.basename(os.path.dirname(path)) == "shims"  # all of them are one file that looks at its name
        if (path if shim else real) in seen or not os.access(path, os.X_OK):
            continue
        seen.add(path if shim else real)
        python = _probe(path)
        if python and python.age >= OLDEST:
            known = found.get(python.minor)
            if known is None or len(python.lacks) < len(known.lacks):
                found[python.minor] = python
    return dict(sorted(found.items(), key=lambda each: each[1].age))


def _complete(python: Python) -> None:
    """Make sure that an environment can be made: on Debian `venv` is a package of its own."""
    if not python.lacks:
        return
    lacks = " and ".join(python.lacks)
    if set(python.lacks) <= {"ensurepip", "venv"} and shutil.which("apt-get") and python.path.startswith("/usr/bin/"):
        package = f"python{python.minor}-venv"
        if os.geteuid() != 0:
            raise Trouble(f"{python.path} comes without {lacks}. Remedy: sudo apt-get install {package}")
        say(f"{python.path} comes without {lacks}: installing {package}")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        _run(["apt-get", "update", "-q"], f"apt-get update, needed for {package},", env=env)
        _run(["apt-get", "install", "-q", "-y", package], f"installing {package}", env=env)
        return
    raise Trouble(f"{python.path} (Python {python.version}) comes without {lacks}: install or build it with {lacks}")


def environment(python: Python, name: str, requirements: list[str], optional: Sequence[list[str]] = ()) -> str:
    """The interpreter of the environment `.venvs/<name>`, made new unless it is there as asked for.

    What is `optional` is left out where it cannot be installed.
    """
    folder = VENVS / name
    inside = str(folder / "bin" / "python")
    wanted = "\n".join([str(ROOT), python.path, python.version, *requirements, *map(str, optional), _packaging()])
    stamp = folder / "stamp"
    digest = hashlib.sha256(wanted.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest and os.access(inside, os.X_OK):
        return inside
    say(f"making .venvs/{name} with Python {python.version}")
    _complete(python)
    _make(python, folder)
    install(python, inside, requirements, f"installing into .venvs/{name}")
    for each in optional:
        try:
            install(python, inside, each, f"installing {each[0]}")
        except Trouble as trouble:
            say(f"left out: {str(trouble)[:2000]}")
    stamp.write_text(digest)
    return inside


def _make(python: Python, folder: Path) -> None:
    _run([python.path, "-m", "venv", "--clear", str(folder)], f"making .venvs/{folder.name} with {python.path}")


def install(python: Python, inside: str, requirements: Sequence[str], what: str) -> None:
    """With uv, which takes a minute less for four Pythons; with pip where uv cannot be had or fails."""
    uv, env = _uv(python)
    if uv:
        try:
            # compiled: tests start some thousand processes, which import these packages and must not write
            _run([uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", inside, *requirements], what, env)
            return
        except Trouble as trouble:
            say(f"{str(trouble)[:2000]}\npip tries")
    pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    _run([*pip, *requirements], what)


_one_at_a_time = threading.Lock()


def _uv(python: Python) -> tuple[str, dict[str, str]]:
    """The path of uv, installed on first use, and its environment. It does not read the settings of pip: where those are
    needed, it fails soon and pip tries."""
    folder = VENVS / "uv"
    path = folder / "bin" / "uv"
    with _one_at_a_time:
        try:
            if not path.exists():
                _make(python, folder)
                _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"], "installing uv")
            settings = {"UV_CACHE_DIR": str(VENVS / "cache"), "UV_HTTP_TIMEOUT": "20", "UV_NATIVE_TLS": "1"}
            return str(path), {**os.environ, **settings}
        except Trouble as trouble:
            say(str(trouble)[:2000])
            return "", {}


def _packaging() -> str:
    """The part of pyproject.toml that decides what gets installed: a change of a linter's option is no reason to."""
    lines, keep = [], True
    for line in (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            keep = not line.startswith("[tool.") or line.startswith("[tool.hatch")
        if keep:
            lines.append(line)
    return "\n".join(lines)


def _run(command: list[str], what: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise Trouble(f"{what} failed:\n{done.stdout[-4000:]}")


def say(text: str) -> None:
    """Progress: on standard error, so that standard output stays what was asked for."""
    print(text, file=sys.stderr, flush=True)
