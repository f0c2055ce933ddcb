"""docs/reference/cli.md is what the program says of itself."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from docs.cli_reference import page
from oncemore.cli import MEANINGS
from oncemore.cli.app import program

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "reference" / "cli.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    assert page() == TEXT, "python -m docs.cli_reference > docs/reference/cli.md"


@pytest.mark.parametrize("name", list(program.commands))
def test_every_command_and_every_option_is_on_the_page(name: str) -> None:
    section = re.search(rf"(?ms)^## {name}$(.*?)(?=^## |\Z)", TEXT)
    assert section
    options = [param for param in program.commands[name].params if isinstance(param, click.Option)]
    for option in options:
        for spelling in (*option.opts, *option.secondary_opts):
            assert re.search(rf"`[^`]*{spelling}\b[^`]*`", section[1]), spelling
        assert option.help
        assert option.help in section[1]


def test_every_exit_code_is_on_the_page() -> None:
    assert all(f"| {code} | {meaning} |" in TEXT for code, meaning in MEANINGS.items())
