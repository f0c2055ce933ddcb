"""Command output: JSON, styled tables on a terminal, plain columns elsewhere."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple, Union

import click

_BATCH = 200  # rows laid out at a time, so that the first page of a long table appears at once
_NARROWEST = 16  # text columns are not folded below this width
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_STYLES = {
    "finished": "green",
    "running": "cyan",
    "failed": "red",
    "killed": "red",
    "interrupted": "yellow",
    "paused": "yellow",
    "forked": "magenta",
    "ok": "green",
    "note": "yellow",
    "problem": "red",
    "damaged": "red",
    "dangling": "red",
    "orphan": "yellow",
    "foreign": "red",
}


class Column(NamedTuple):
    """A column: its title, whether it holds numbers, and whether its text may be folded on a narrow terminal."""

    title: str
    number: bool = False
    text: bool = False


def columns(*titles: str, numbers: Collection[str] = (), text: str = "") -> list[Column]:
    """Columns with these titles. Those in `numbers` are right-aligned; `text` may be folded."""
    return [Column(title, title in numbers, title == text) for title in titles]


def print_result(as_json: bool, value: Any, *parts: Part) -> None:
    """Print the value as JSON, or the lines and tables that show it to people."""
    if as_json:
        print_json(value)
    else:
        print_tables(*parts)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=_jsonable))


def _jsonable(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def printable(text: str) -> str:
    """The text with control and bidirectional characters escaped, since it may come from untrusted data."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def on_terminal() -> bool:
    return sys.stdout.isatty()


Part = Union[str, "tuple[Sequence[Column], Sequence[Sequence[str]]]"]  # a line, or a table


def print_tables(*parts: Part) -> None:
    """Print lines, and tables that have rows; through a pager if they do not fit on the terminal."""
    parts = tuple(part for part in parts if isinstance(part, str) or part[1])
    lay_out = _styled if on_terminal() else _plain
    pieces = (
        piece for part in parts for piece in ([f"{printable(part)}\n"] if isinstance(part, str) else lay_out(*part))
    )
    height = sum(1 if isinstance(part, str) else len(part[1]) + 1 for part in parts)
    if on_terminal() and height >= shutil.get_terminal_size().lines:
        click.echo_via_pager(pieces)
    else:
        for piece in pieces:
            click.echo(piece, nl=False)


def _cleaned(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[printable(cell).replace("\n", " ") for cell in row] for row in rows]


def _widths(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(_width, cells)) for cells in zip([column.title for column in columns], *rows)]


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns separated by two spaces; nothing is cut off."""
    rows = _cleaned(rows)
    widths = _widths(columns, rows)
    for row in ([column.title for column in columns], *rows):
        cells = (
            " " * (width - _width(cell)) + cell if column.number else cell + " " * (width - _width(cell))
            for column, cell, width in zip(columns, row, widths)
        )
        yield "  ".join(cells).rstrip() + "\n"


def _styled(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A colored table. On a narrow terminal, text columns are folded; ids and numbers never are."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = _cleaned(rows)
    widths = _widths(columns, rows)
    min_width = sum(min(w, _NARROWEST) if c.text else w for c, w in zip(columns, widths)) + 2 * len(columns)
    table_width = max(shutil.get_terminal_size().columns, min_width)
    for start in range(0, max(len(rows), 1), _BATCH):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=start == 0)
        for column, width in zip(columns, widths):
            justify: Literal["left", "right"] = "right" if column.number else "left"
            table.add_column(column.title, justify=justify, overflow="fold", width=None if column.text else width)
        for row in rows[start : start + _BATCH]:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        page = io.StringIO()
        Console(file=page, force_terminal=True, width=table_width, highlight=False).print(table)
        yield page.getvalue()


def timestamp(time: datetime | None) -> str:
    """Local time, to the second."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time else ""


def version_of(package: str) -> str:
    """The installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def plural(count: int, word: str, several: str = "") -> str:
    return f"{count:,} {word if count == 1 else several or word + 's'}"
