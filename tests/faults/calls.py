"""Builds calls.c, which makes a process die or fail in a chosen system call."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("calls.c")


def available() -> bool:
    """Whether it can be built here: on Linux, with a C compiler."""
    return sys.platform == "linux" and shutil.which("cc") is not None


def build(folder: Path) -> Path:
    """The library to load with LD_PRELOAD."""
    library = folder / "calls.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library
