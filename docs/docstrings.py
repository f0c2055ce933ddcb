"""Docstrings are written for `help()`. For the site, two things in them are converted to Markdown:

examples (`>>>`) become fenced blocks, and lists of `name   meaning` become tables.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
OPTIONS = re.compile(r"(?:^\w+ {2,}\S.*\n(?: {4,}.*\n)*){2,}", re.MULTILINE)
OPTION = re.compile(r"^(\w+) {2,}(.*\n(?: {4,}.*\n)*)", re.MULTILINE)


def as_markdown(text: str) -> str:
    """Fence the examples, and turn the lists into tables."""
    text = OPTIONS.sub(_table, text + "\n")
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text).rstrip()


def _table(found: re.Match[str]) -> str:
    rows = (f"| `{name}` | {' '.join(said.split())} |\n" for name, said in OPTION.findall(found[0]))
    return f"| option | meaning |\n|---|---|\n{''.join(rows)}"


class Docstrings(griffe.Extension):
    """Extension that mkdocstrings calls for each object it reads."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
