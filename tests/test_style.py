"""What keeps the code readable, and the repository free of the machine it was written on."""

from __future__ import annotations

import ast
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOME = Path.home()  # while it is still the real one: each test gets its own
LONGEST_FILE = 400
LONGEST_FUNCTION = 60  # without its docstring; most have less than half of it

LEFT_OPEN = re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X)\b")  # spelled so that this line is none
HOMES = re.compile(r"(?<![\w.~-])/(?:root|work|home/\w+|Users/\w+)/")
# Where packages come from is a setting of each machine.
REGISTRY = re.compile(r"(?:extra-)?index-url|find-links|trusted-host|--registry|registry\s*=", re.IGNORECASE)
ADDRESS = re.compile(r"https?://([\w.-]+)", re.IGNORECASE)
KNOWN_HOSTS = re.compile(
    r"^(?:localhost|127\.0\.0\.1|(?:.*\.)?example\.(?:com|org)|keepachangelog\.com|semver\.org|(?:docs|peps)\.python\.org"
    r"|(?:www\.)?sqlite\.org|github\.com|[\w-]+\.readthedocs\.io|arxiv\.org|json-schema\.org|www\.w3\.org)\.?$"
)


def _files() -> list[Path]:
    """Every text file that is, or is about to be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # not a git checkout
        paths = [
            path for part in ("src", "tests", "docs", "examples", "benchmarks") for path in (ROOT / part).rglob("*")
        ]
        paths += [path for path in ROOT.iterdir() if path.is_file()]
    return sorted(path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:4096])


FILES = _files()
SOURCES = [path for path in FILES if path.suffix == ".py" and path.is_relative_to(ROOT / "src")]
PYTHON = [path for path in FILES if path.suffix == ".py"]
ME = Path(__file__).resolve()


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line of a file with the place to name in a message."""
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        yield f"{path.relative_to(ROOT)}:{number}", line


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring."""
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and isinstance(first, ast.Expr):
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def test_there_is_something_to_look_at() -> None:
    assert SOURCES
    assert ME in FILES


@pytest.mark.parametrize("path", SOURCES, ids=[path.name for path in SOURCES])
def test_a_source_file_is_short_enough_to_read(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_FILE, f"{lines} lines: would two names say it better?"


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {_length(node)} lines"
        for path in PYTHON
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _length(node) > LONGEST_FUNCTION
    ]
    assert not long, "\n".join(long)


def test_nothing_is_left_open() -> None:
    found = [f"{place} {line.strip()}" for path in FILES for place, line in _lines(path) if LEFT_OPEN.search(line)]
    assert not found, "\n".join(found)


def test_no_path_of_a_machine_is_in_a_file() -> None:
    own = [f"{HOME}/"]
    temporary = Path(tempfile.gettempdir()).resolve()
    if not temporary.is_relative_to(ROOT.parent):  # a clone right under a common folder has no telling parent
        own.append(f"{ROOT.parent}/")
    found = [
        f"{place} {line.strip()}"
        for path in FILES
        for place, line in _lines(path)
        if HOMES.search(line) or any(path in line for path in own)
    ]
    assert not found, "\n".join(found)


def test_no_package_registry_is_named_in_a_file() -> None:
    found = [
        f"{place} {line.strip()}"
        for path in FILES
        if path != ME
        for place, line in _lines(path)
        if REGISTRY.search(line) or any(not KNOWN_HOSTS.match(host) for host in ADDRESS.findall(line))
    ]
    assert not found, "An address that belongs there goes into KNOWN_HOSTS:\n" + "\n".join(found)


def test_every_folder_of_tests_is_a_package() -> None:
    """Two files of one name in two folders stay two modules, in processes that a test starts as well."""
    folders = {path.parent for path in FILES if path.is_relative_to(ROOT / "tests") and path.name.startswith("test_")}
    assert [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []
