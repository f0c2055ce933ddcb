"""What must not be in a committed file: marks of unfinished work, paths of a machine, addresses of package registries."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = Path.home()  # while it is still the real one: each test gets its own

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
ME = Path(__file__).resolve()


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line of a file with the location to name in a message."""
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        yield f"{path.relative_to(ROOT)}:{number}", line


def test_there_is_something_to_look_at() -> None:
    assert ME in FILES
    assert ROOT / "src" / "oncemore" / "__init__.py" in FILES


def test_nothing_is_left_open() -> None:
    found = [
        f"{location} {line.strip()}" for path in FILES for location, line in _lines(path) if LEFT_OPEN.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_path_of_a_machine_is_in_a_file() -> None:
    own = [f"{HOME}/"]
    temporary = Path(tempfile.gettempdir()).resolve()
    if not temporary.is_relative_to(ROOT.parent):  # a clone right under a common folder has no telling parent
        own.append(f"{ROOT.parent}/")
    found = [
        f"{location} {line.strip()}"
        for path in FILES
        for location, line in _lines(path)
        if HOMES.search(line) or any(path in line for path in own)
    ]
    assert not found, "\n".join(found)


def test_no_package_registry_is_named_in_a_file() -> None:
    found = [
        f"{location} {line.strip()}"
        for path in FILES
        if path != ME
        for location, line in _lines(path)
        if REGISTRY.search(line) or any(not KNOWN_HOSTS.match(host) for host in ADDRESS.findall(line))
    ]
    assert not found, "An address that belongs there goes into KNOWN_HOSTS:\n" + "\n".join(found)


def test_every_folder_of_tests_is_a_package() -> None:
    """Two files of one name in two folders stay two modules, in processes that a test starts as well."""
    folders = {path.parent for path in FILES if path.is_relative_to(ROOT / "tests") and path.name.startswith("test_")}
    assert [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_what_contributing_names_is_there() -> None:
    """Each file and folder in backquotes, from the root or from the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([\w./-]+)`", text) if name.endswith((".py", ".md", ".toml", "/"))}
    named -= {".venvs/"}
    assert "call.py" in named
    absent = [name for name in named if not any((base / name).exists() for base in (ROOT, ROOT / "src" / "oncemore"))]
    assert absent == []
