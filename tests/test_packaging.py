"""What gets published: the contents of wheel and sdist, the metadata, and README as a package index shows it.

`make test` also installs the wheel without this tree, and runs tests against it: see `tests/everywhere.py`.
"""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "https://github.com/oncemore/oncemore"
PUBLISHED = ["src/oncemore", "src/_oncemore_pytest.py", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"]


class Built(NamedTuple):
    """A wheel and an sdist, from one tree."""

    wheel: Path
    sdist: Path


def _build(tree: Path, *arguments: object) -> list[Path]:
    """What hatchling writes into `dist`, wheel first."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", "dist", *map(str, arguments)]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return sorted((tree / "dist").iterdir(), key=lambda path: path.suffix != ".whl")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from a tree in which somebody has worked: with caches, a store and tests."""
    tree = tmp_path_factory.mktemp("tree")
    for name in [*PUBLISHED, ".gitignore", "tests/conftest.py"]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    for left in (".oncemore/cache.db", "__pycache__/step.cpython-313.pyc", ".mypy_cache/x.json", ".hypothesis/example"):
        for folder in (tree, tree / "src", tree / "src" / "oncemore"):
            (folder / left).parent.mkdir(parents=True, exist_ok=True)
            (folder / left).write_bytes(b"left over")
    return Built(*_build(tree))


def _files() -> set[str]:
    """The files of the package in this repository, as a wheel names them."""
    source = ROOT / "src"
    return {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_the_package_its_license_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {re.sub(r"^oncemore-[\w.]+\.dist-info/", "dist-info/", name) for name in archive.namelist()}
    about = {f"dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    assert names == _files() | about
    assert "oncemore/py.typed" in names


def test_the_wheel_declares_the_command_and_the_pytest_plugin(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        text = archive.read(name).decode()
    assert "[console_scripts]\noncemore = oncemore.cli:main\n" in text
    assert "[pytest11]\noncemore = _oncemore_pytest\n" in text


def test_the_sdist_has_what_a_build_needs_and_nothing_else(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    about = {"PKG-INFO", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"}
    assert names == {f"src/{name}" for name in _files()} | about


def test_a_wheel_built_from_the_sdist_is_the_same(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    (again,) = _build(unpacked, "-t", "wheel")
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(built.wheel) as other:
        assert {each.filename: each.CRC for each in one.infolist()} == {
            each.filename: each.CRC for each in other.infolist()
        }


def test_the_metadata_is_complete(built: Built) -> None:
    metadata = _metadata(built.wheel)
    assert metadata["Name"] == "oncemore"
    assert metadata["Summary"] == "Run your script once more. What is done stays done."
    assert metadata["Author"] == "The oncemore authors"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Description-Content-Type"] == "text/markdown"
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert all(url == PROJECT or url.startswith(f"{PROJECT}/") for url in urls.values())


def test_readme_has_only_links_that_work_on_an_index_page() -> None:
    """Addresses in full; those of our own pages name files that exist."""
    text = re.sub(r"^```.*?^```", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)|(?:src|href)=[\"']([^\"']+)|^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    targets = ["".join(link) for link in links]
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    pages = re.compile(re.escape(PROJECT) + r"/(?:blob|raw)/main/([^#?]+)")
    named = [found.group(1) for found in map(pages.match, targets) if found]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_an_index_accepts_and_renders_what_is_published(built: Built) -> None:
    pytest.importorskip("twine")
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", built.wheel, built.sdist],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
