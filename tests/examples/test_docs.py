"""The documentation is true: its code runs, its captures are what a run prints, its tables name what there is.

The Python blocks of one page are one script, run from top to bottom in a folder of its own. Besides:

* an `output` block says exactly what the Python block before it prints;
* a block whose first line is a file name (`# pool.py`) is a script of its own; one called `# test_*.py` is run by pytest;
* a block after a comment that names a file (`<!-- examples/quickstart.py -->`) is a part of that file, and not run;
* `console` blocks are sessions: README's at a terminal, made by tests/captures.py, as its
  picture is; those of docs/ are tested in test_sessions.py.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import xml.etree.ElementTree as xml
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

import oncemore
from oncemore.step import DEFAULTS
from tests import captures
from tests.processes import SRC, Script

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

# What pages and modules need besides: on the newest Python, everything is installed.
NEEDS = {
    "docs/how-to/joblib.md": "sklearn",
    "docs/how-to/langgraph.md": "langgraph.graph",
    "oncemore.compat.langgraph": "langgraph.graph",
}

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


def has_sessions(page: Path) -> bool:
    return any(block.kind == "console" for block in blocks_of(page))


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
    _require(str(page.relative_to(ROOT)))
    blocks = [block for block in blocks_of(page) if block.kind in ("python", "output") and block.source is None]
    session = [block for block in blocks if block.kind == "python" and block.file is None]
    if session:
        name = re.sub(r"\W", "_", page.stem) + ".py"  # a module's name, which messages mention
        if str(page.relative_to(ROOT)) in NEEDS:  # the library has the same name
            name = f"use_{name}"
        done = script(as_script(session), name=name, timeout=240)
        assert "Warning" not in done.err, done.err
        printed = done.out.split(f"{END}\n")
        for before, block in pairwise(blocks):
            if block.kind == "output":
                assert lines_of(printed[session.index(before)]) == lines_of(block.text), f"{page.name}:{block.line}"
    for block in blocks:
        if block.file and block.file.startswith("test_"):  # with our plugin, installed or not
            options, plain = ["-m", "pytest", "-q", "-p", "_oncemore_pytest"], {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            script(block.text, block.file, name=block.file, options=options, env=plain)
        elif block.file and not has_sessions(page):
            script(block.text, name=block.file)


def _require(what: str) -> None:
    if what in NEEDS:
        pytest.importorskip(NEEDS[what])


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


def test_the_picture_of_the_readme_is_what_a_terminal_shows(tmp_path: Path) -> None:
    shown, anew = (
        [captures.timeless(row) for row in captures.last_rows(picture)]
        for picture in (captures.PICTURE.read_text(encoding="utf-8"), captures.recorded(tmp_path))
    )
    assert anew == shown, "make captures"


def test_the_picture_ends_with_the_sessions_of_the_readme() -> None:
    sessions = captures.CONSOLE.findall(captures.README.read_text(encoding="utf-8"))
    *rows, prompt = captures.last_rows(captures.PICTURE.read_text(encoding="utf-8"))
    assert captures.timeless("\n".join(rows)) == captures.timeless("".join(sessions).rstrip())
    assert prompt == "$ █"
    assert len(rows) < captures.ROWS


def test_the_picture_moves_and_shows_what_is_running() -> None:
    text = captures.PICTURE.read_text(encoding="utf-8")
    assert {1, 2} <= {int(count) for count in re.findall(r">(\d) ran<", text)}
    assert ">1 running<" in text
    used = set(re.findall(r"<g class=\"(t\d+)[ \"]", text))
    assert used == set(re.findall(r"@keyframes (t\d+) ", text)) and len(used) > 20


def test_the_picture_is_small_and_needs_nothing_besides() -> None:
    text = captures.PICTURE.read_text(encoding="utf-8")
    assert len(text.encode()) < 100_000
    root = xml.fromstring(text)
    assert {element.tag for element in root.iter()} == {
        f"{captures.SVG}{tag}" for tag in ("svg", "title", "style", "rect", "g", "text")
    }
    assert (root.get("width"), root.get("height")) == tuple((root.get("viewBox") or "").split()[2:])
    assert re.findall(r"url|@import|https?://(?!www\.w3\.org/2000/svg\")|File |/tmp", text) == []


@pytest.mark.parametrize("page", PAGES[1:], ids=NAMES[1:])  # README's: tests/test_packaging.py
def test_links_lead_to_files(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if link and not (page.parent / link).exists()] == []


def test_the_entry_page_leads_to_every_page() -> None:
    linked = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))}
    assert [str(page.relative_to(DOCS)) for page in PAGES[1:] if page.resolve() not in linked] == ["index.md"]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(navigation) == sorted(str(page.relative_to(DOCS)) for page in PAGES[1:])


def test_the_reference_names_every_option_of_a_step() -> None:
    assert sorted(_rows_of("Options of a step")) == sorted(DEFAULTS)


def test_the_reference_names_every_option_of_a_scope() -> None:
    assert sorted(_rows_of("Options of a scope")) == sorted(_parameters(oncemore.checkpoint_scope))


def test_the_reference_names_every_environment_variable_that_the_code_reads() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in SRC.rglob("*.py"))
    read = set(re.findall(r"""(?:environ\b|\bget)[^\n"]*"(ONCEMORE_\w+)""", sources))
    assert read <= set(_rows_of("Environment"))


def _rows_of(title: str) -> list[str]:
    """The words in the first column of the tables under a title of the page of options."""
    text = (DOCS / "reference" / "options.md").read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)\b", section, re.MULTILINE)


def _parameters(function: Callable[..., object]) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_every_public_name_is_in_the_reference() -> None:
    """And nothing else is called public there. That each can be shown is seen when the site is built."""
    shown = re.findall(
        r"^::: oncemore\.(\w+)$", (DOCS / "reference" / "api.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted({*shown} - {"events", "retention"}) == sorted(oncemore.__all__)


MODULES = ["oncemore", *(module.name for module in pkgutil.walk_packages(oncemore.__path__, "oncemore."))]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _require(name)
    monkeypatch.setenv("ONCEMORE_KEY", "one for all: they share a store in memory")
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
