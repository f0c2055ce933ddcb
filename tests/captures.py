"""The sessions that the README shows, made by running them at a terminal: `make captures` writes them anew.

Each `console` block is a session in the folder of the quickstart: the commands after `$ `, and what a person sees of them.
The same session is an animated picture, `docs/images/quickstart.svg`: the output at the pace at which it came, the typing at
that of a quick typist. The inside of a traceback is left out of both.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Iterator, Sequence
from xml.sax.saxutils import escape

import pyte

from tests.terminal import Terminal

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "quickstart.svg"
CONSOLE = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def made_anew(text: str, folder: Path) -> str:
    """A page, the content of its console blocks replaced by what happens now."""
    shutil.copy(ROOT / "examples" / "quickstart.py", folder)
    return CONSOLE.sub(lambda block: _session(_commands(block[0]), folder), text)


def _commands(text: str) -> list[str]:
    return re.findall(r"^\$ (.*)$", text, re.MULTILINE)


def _session(commands: list[str], folder: Path) -> str:
    """Commands as typed, and what they leave on the screen."""
    shown = ""
    for command in commands:
        lines = _Recorded(command, folder, width=300).end().lines
        shown += "".join(f"{line}\n" for line in [f"$ {command}", *lines])
    return re.sub(r"(Traceback \(most recent call last\):\n)(?: .*\n)+", r"\1  ...\n", shown)


def timeless(text: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r" *\b\d+(?:\.\d)? m?s\b", " T", text)


# -- the animated picture

COLUMNS, ROWS = 80, 14
KEY, BEFORE_ENTER, AFTER_COMMAND, AT_END = 0.035, 0.3, 1.0, 2.5  # seconds
SHORTEST = 0.03  # seconds for which a row is shown; what is replaced sooner is seen by nobody
COLUMN, ROW, MARGIN = 8.4, 20, 16  # pixels
COLORS = {
    "green": "#56d364",
    "red": "#ff7b72",
    "brown": "#e3b341",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "blue": "#79c0ff",
}
WORDS = re.compile(r"\S+(?: \S+)*")  # of a row; wider gaps are lost on some that show pictures
SVG = "{http://www.w3.org/2000/svg}"
STYLE = f"""\
text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace;
  fill: #e6edf3; }}
{" ".join(f".{name} {{ fill: {color}; }}" for name, color in COLORS.items())} .bold {{ font-weight: bold; }}
.past {{ visibility: hidden; }}
@media (prefers-reduced-motion: reduce) {{ g {{ animation: none !important; }} }}"""

Run = tuple[int, str, str]  # the column at which it begins, its text and the classes of its style
Row = tuple[Run, ...]


class _Recorded(Terminal):
    """A command at a terminal, and what was on its screen when."""

    def __init__(self, command: str, folder: Path, *, width: int) -> None:
        self.frames: list[tuple[float, list[Row]]] = []
        self._begun = time.monotonic()
        real = re.sub(r"^python ", f"'{sys.executable}' ", command)
        env = {"ONCEMORE_STORE": None, "ONCEMORE_LOG": None}
        super().__init__(["/bin/sh", "-c", real], folder, width=width, env=env)

    def write(self, text: str) -> None:
        super().write(text)
        self.frames.append((time.monotonic() - self._begun, _rows(self.screen)))


@dataclass
class Shown:
    """A row of the picture and when it is shown, in seconds; until the end of the session if `end` is None."""

    number: int
    row: Row
    start: float
    end: float | None = None


def recorded(folder: Path) -> str:
    """README's sessions, run now one after the other, as an animated picture."""
    shutil.copy(ROOT / "examples" / "quickstart.py", folder)
    commands = [each for block in CONSOLE.findall(README.read_text(encoding="utf-8")) for each in _commands(block)]
    frames, above, clock = list[tuple[float, list[Row]]](), list[Row](), 0.0
    for command in commands:
        for typed in range(len(command) + 1):
            frames.append((clock, [*above, _prompt(f"{command[:typed]}█")]))
            clock += KEY
        clock += BEFORE_ENTER
        above.append(_prompt(command))
        frames.append((clock, list(above)))
        session = _Recorded(command, folder, width=COLUMNS)
        session.end()
        output = list[Row]()
        for at, rows in session.frames:
            output = _abridged(rows)
            frames.append((clock + at, [*above, *output]))
        above += output
        clock = frames[-1][0]
        frames.append((clock + SHORTEST, [*above, _prompt("█")]))
        clock += AFTER_COMMAND
    return _picture(frames, clock - AFTER_COMMAND + AT_END)


def _prompt(command: str) -> Row:
    return ((0, f"$ {command}", ""),)


def _rows(screen: pyte.Screen) -> list[Row]:
    """What is on a screen, without the empty rows at its end."""
    rows = list[Row]()
    for number in range(screen.lines):
        cells = [(column, screen.buffer[number][column]) for column in range(screen.columns)]
        runs = list[Run]()
        for style, same in groupby(cells, lambda cell: _style(cell[1])):
            run = list(same)
            text = "".join(char.data for _, char in run)
            for words in WORDS.finditer(text):
                runs.append((run[0][0] + words.start(), words[0], style))
        rows.append(tuple(runs))
    while rows and not rows[-1]:
        rows.pop()
    return rows


def _style(char: pyte.screens.Char) -> str:
    return " ".join([char.fg] * (char.fg in COLORS) + ["bold"] * char.bold)


def _text(row: Row) -> str:
    text = ""
    for column, part, _ in row:
        text = text.ljust(column) + part
    return text


def _abridged(rows: list[Row]) -> list[Row]:
    """Without the inside of a traceback."""
    starts = [number for number, row in enumerate(rows) if _text(row).startswith("Traceback (")]
    if not starts:
        return rows
    inside = [number for number, row in enumerate(rows) if number > starts[0] and _text(row).startswith(" ")]
    return [*rows[: starts[0] + 1], ((2, "...", ""),), *rows[max(inside, default=starts[0]) + 1 :]]


def _spans(frames: Sequence[tuple[float, list[Row]]]) -> Iterator[Shown]:
    """Each content of each row, with the time from which and until which it is shown."""
    lasting = [frame for frame, later in pairwise(frames) if later[0] - frame[0] >= SHORTEST] + [frames[-1]]
    for number in range(max(len(rows) for _, rows in frames)):
        shown: Shown | None = None
        for at, rows in lasting:
            row = rows[number] if number < len(rows) else ()
            if shown is not None and shown.row == row:
                continue
            if shown is not None and shown.row:
                shown.end = at
                yield shown
            shown = Shown(number, row, at)
        if shown is not None and shown.row:
            yield shown


def _picture(frames: Sequence[tuple[float, list[Row]]], seconds: float) -> str:
    """Rows that are still there at the end are shown where nothing moves; the others are of class `past`."""
    width, height = round(COLUMNS * COLUMN) + 2 * MARGIN, ROWS * ROW + 2 * MARGIN
    timings, parts = dict[tuple[float, float | None], str](), list[str]()
    for shown in _spans(frames):
        name = timings.setdefault((shown.start, shown.end), f"t{len(timings)}")
        parts.append(f'<g class="{name}{" past" if shown.end else ""}">')
        for column, text, style in shown.row:
            kind = f' class="{style}"' if style else ""
            x, y = round(MARGIN + column * COLUMN, 1), MARGIN + ROW * shown.number + 15
            length = round(len(text) * COLUMN, 1)
            parts.append(f'<text x="{x}" y="{y}" textLength="{length}"{kind}>{escape(text)}</text>')
        parts.append("</g>")
    rules = [
        f".{name} {{ animation: {name} {seconds:.1f}s step-end infinite; }}\n@keyframes {name} {_steps(start, end, seconds)}"
        for (start, end), name in timings.items()
    ]
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            "<title>quickstart.py fails; run again, it reuses three results</title>",
            f"<style>\n{STYLE}\n" + "\n".join(rules) + "\n</style>",
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="#0d1117" stroke="#6e7681"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _steps(start: float, end: float | None, seconds: float) -> str:
    """Keyframes of what is visible only from `start` to `end`."""
    steps = {
        0.0: "hidden",
        100 * start / seconds: "visible",
        **({} if end is None else {100 * end / seconds: "hidden"}),
    }
    return "{ " + " ".join(f"{at:.2f}% {{ visibility: {how}; }}" for at, how in steps.items()) + " }"


def last_rows(picture: str) -> list[str]:
    """What a picture shows at its end, row by row."""
    rows = dict[int, list[Run]]()
    for group in xml.fromstring(picture).iter(f"{SVG}g"):
        if "past" not in group.get("class", "").split():
            for part in group.iter(f"{SVG}text"):
                column = round((float(part.get("x", "")) - MARGIN) / COLUMN)
                number = (int(part.get("y", "")) - MARGIN) // ROW
                rows.setdefault(number, []).append((column, part.text or "", ""))
    return [_text(tuple(runs)) for _, runs in sorted(rows.items())]


def main() -> int:
    before = README.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        after = made_anew(before, Path(folder))
    if timeless(after) != timeless(before):  # other times alone are no reason to
        README.write_text(after, encoding="utf-8")
        print("README.md has new captures")
    with tempfile.TemporaryDirectory() as folder:
        picture = recorded(Path(folder))
    PICTURE.write_text(picture, encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)} is recorded anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
