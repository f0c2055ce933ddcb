"""The documentation is true: its code runs, its captures are what a run prints, its tables name what there is.

The Python blocks of one page are one script, run from top to bottom in a folder of its own. Besides:

* an `output` block says exactly what the Python block before it prints;
* a block whose first line is a file name (`# pool.py`) is a script of its own;
* a block after a comment that names a file (`<!-- examples/quickstart.py -->`) is a part of that file, and not run;
* `console` blocks are sessions at a terminal; see tests/captures.py, which makes them.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

import oncemore
from tests import captures
from tests.processes import Script

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [page.stem for page in PAGES]

FENCE = re.compile(r"(?:^<!-- (?P<source>\S+) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
OWN_FILE = re.compile(r"# (\w+\.py)\n")
LINK = re.compile(r"\]\(([^)#\s]+)?(?:#[\w-]+)?\)")
END = "-- end of block --"


@dataclass
class Block:
    """A fenced block of a page."""

    kind: str
    text: str
    source: str | None
    line: int

    @property
    def file(self) -> str | None:
        """The file that the block is to be run from, if it names one."""
        found = OWN_FILE.match(self.text)
        return found[1] if found else None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["kind"], found["text"], found["source"], text.count("\n", 0, found.start("text")))
        for found in FENCE.finditer(text)
    ]


def as_script(blocks: list[Block]) -> str:
    """The blocks one after the other, each on the line that it has in its page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - len(lines))
        lines += [*block.text.splitlines(), f'print("{END}", flush=True)']
    return "\n".join(lines) + "\n"


def lines_of(text: str) -> list[str]:
    """The lines that are not blank, without what stands at their right end."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_code_of_a_page_runs(page: Path, script: Script) -> None:
    blocks = [block for block in blocks_of(page) if block.kind in ("python", "output") and block.source is None]
    session = [block for block in blocks if block.kind == "python" and block.file is None]
    if session:
        name = re.sub(r"\W", "_", page.stem) + ".py"  # a module's name, which messages mention
        done = script(as_script(session), name=name)
        assert "Warning" not in done.err, done.err
        printed = done.out.split(f"{END}\n")
        for before, block in pairwise(blocks):
            if block.kind == "output":
                assert lines_of(printed[session.index(before)]) == lines_of(block.text), f"{page.name}:{block.line}"
    for block in blocks:
        if block.file:
            script(block.text, name=block.file)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_code_that_is_quoted_from_a_file_is_there(page: Path) -> None:
    for block in blocks_of(page):
        if block.source:
            found, wanted = lines_of((ROOT / block.source).read_text(encoding="utf-8")), lines_of(block.text)
            start = found.index(wanted[0])
            assert found[start : start + len(wanted)] == wanted, f"{page.name} and {block.source} differ"


def test_the_captures_of_the_readme_are_what_a_terminal_shows(tmp_path: Path) -> None:
    text = captures.README.read_text(encoding="utf-8")
    shown = captures.CONSOLE.findall(captures.timeless(text))
    assert len(shown) == 2
    anew = captures.CONSOLE.findall(captures.timeless(captures.made_anew(text, tmp_path)))
    assert anew == shown, "make captures"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_files(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if link and not (page.parent / link).exists()] == []


def test_the_entry_page_leads_to_every_page() -> None:
    linked = set(LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    assert {page.name for page in PAGES[1:]} - {"index.md"} <= linked


def test_the_readme_names_every_option() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| .* \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    options = [name for name in inspect.signature(oncemore.checkpointed).parameters if name != "function"]
    assert sorted(rows) == sorted(options)


def test_the_readme_shows_the_signature_of_a_scope() -> None:
    words = re.search(r"`checkpoint_scope\((.*?)\)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert words
    named = re.findall(r"(\w+)=", words[1])
    assert named == list(inspect.signature(oncemore.checkpoint_scope).parameters)


def test_every_public_name_is_in_the_documentation() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in oncemore.__all__ if not re.search(rf"\b{name}\b", text)] == []


MODULES = ["oncemore", *(module.name for module in pkgutil.walk_packages(oncemore.__path__, "oncemore."))]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
