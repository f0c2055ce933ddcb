"""Finding the Pythons of a machine, which `make test` starts with."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from tests import pythons
from tests.everywhere import plan
from tests.pythons import Python, Trouble


def program(path: Path, text: str) -> Path:
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch):
    """Make some paths all that there is to be found."""
    return lambda *paths: monkeypatch.setattr(pythons, "_candidates", lambda: iter(map(str, paths)))


def test_the_running_python_is_found_with_its_real_version(only) -> None:
    only(sys.executable)
    assert [python.version for python in pythons.find.__wrapped__().values()] == [platform.python_version()]


def test_a_stand_in_that_refuses_or_a_broken_file_is_passed_over(tmp_path: Path, only) -> None:
    refusing = program(tmp_path / "shims" / "python3.10", "#!/bin/sh\necho 'not selected' >&2\nexit 127\n")
    broken = program(tmp_path / "python3.11", "\0")
    only(refusing, broken, tmp_path / "absent", sys.executable)
    assert len(pythons.find.__wrapped__()) == 1


def test_of_two_pythons_of_one_version_the_complete_one_is_taken(tmp_path: Path, only) -> None:
    answer = '{"path": "%s", "version": "3.12.9", "usable": true, "lacks": [%s]}'
    poor = program(tmp_path / "a" / "python3", "#!/bin/sh\necho '" + answer % ("poor", '"sqlite3"') + "'\n")
    good = program(tmp_path / "b" / "python3", "#!/bin/sh\necho '" + answer % ("good", "") + "'\n")
    only(poor, good)
    assert pythons.find.__wrapped__() == {"3.12": Python("good", "3.12.9", ())}
    only(poor)
    assert pythons.find.__wrapped__() == {"3.12": Python("poor", "3.12.9", ("sqlite3",))}


def test_a_python_without_what_is_needed_is_an_error_that_says_so() -> None:
    with pytest.raises(Trouble, match=r"3\.12\.9.* comes without sqlite3"):
        pythons.environment(Python("/somewhere/python3", "3.12.9", ("sqlite3",)), "never-made", [])


def test_a_linters_option_is_no_reason_to_install_again() -> None:
    text = pythons._packaging()
    assert "blake3" in text
    assert "tool.hatch" in text
    assert "tool.ruff" not in text


def test_a_later_python_than_those_supported_is_found_and_is_the_newest(tmp_path: Path, only) -> None:
    answer = '{"path": "%s", "version": "%s", "usable": true, "lacks": []}'
    for version in ("3.9.1", "3.10.4", "3.14.0", "3.13.2"):
        program(tmp_path / version / "python3", "#!/bin/sh\necho '" + answer % (version, version) + "'\n")
    only(*(tmp_path / version / "python3" for version in ("3.9.1", "3.14.0", "3.10.4", "3.13.2")))
    assert list(pythons.find.__wrapped__()) == ["3.10", "3.13", "3.14"]


def _planned(*versions: str) -> list[tuple[str, bool, bool]]:
    """For each round: its environment, whether it is brief, whether it has wrapt 1."""
    rounds = plan([Python(f"/python{version}", f"{version}.1", ()) for version in versions])
    return [(each.environment, each.brief, "wrapt<2" in each.requirements) for each in rounds]


def test_the_newest_python_is_tested_in_full_the_others_in_brief_and_the_oldest_with_wrapt_1() -> None:
    assert _planned("3.10", "3.11", "3.12", "3.13") == [
        ("3.13", False, False),
        ("3.12-brief", True, False),
        ("3.11-brief", True, False),
        ("3.10-wrapt1", True, True),
    ]


def test_a_python_that_is_alone_is_tested_with_both_versions_of_wrapt() -> None:
    assert _planned("3.12") == [("3.12", False, False), ("3.12-wrapt1", True, True)]
