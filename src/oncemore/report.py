"""What a person sees of a run: a line when it opens, one for each step, one at the end.

The lines go to standard error if that is a terminal. `ONCEMORE_LOG` says otherwise: `stderr` (plain lines, terminal or not),
the path of a file (plain lines are appended), `quiet`. A step has one line, however many nodes it has: it stands on
the terminal and is updated until another step's turn comes, and is then left there. A step that has its turn
again later gets a second line when the scope ends, with all that it did.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from . import events
from .durations import duration, size
from .errors import is_terminal, warn
from .nodes import NEW
from .screen import Lines, Live, Piece, lines_on

if TYPE_CHECKING:
    from .runs import Run

_ASKED_FOR = ("refreshed", "ONCEMORE_REFRESH")  # reasons that nobody needs explained
_LARGE = 1_000_000  # bytes; the size of less is of no interest
_FADED, _GOOD, _BAD, _NOTE = "2", "32", "31", "33"


def open_report(run: Run, *, origin: str, default: bool) -> Report | None:
    """Tell of a run that has just been opened, and go on telling; None if nobody wants to hear.

    `origin` is what its id was derived from, `default` says whether its store is the default store.
    """
    lines = _lines()
    if lines is None:
        return None
    report = Report(run, lines, default)
    report.head(origin)
    if run.disabled:
        lines.close()
        return None
    run.on(events.StepEvent, report.told)
    return report


def _lines() -> Lines | None:
    """Where the environment wants the lines."""
    wanted = os.environ.get("ONCEMORE_LOG", "")
    stream: Any = sys.stderr
    while hasattr(stream, "__wrapped__"):  # what a step prints is listened to: ours is not the step's
        stream = stream.__wrapped__
    if wanted == "quiet" or (wanted in ("", "stderr") and stream is None):
        return None
    if wanted == "":
        return lines_on(stream) if is_terminal(stream) else None
    if wanted == "stderr":
        return Lines(stream)
    try:
        return Lines(open(wanted, "a", encoding="utf-8"), owned=True)
    except OSError as error:
        warn(f"ONCEMORE_LOG: {wanted} cannot be written: {error}")
        return None


@dataclass
class _Line:
    """What one step did in this scope, or one map of a step over items."""

    name: str
    total: int = 0  # the items of a map, and how many of them are through
    done: int = 0
    reused: int = 0
    ran: int = 0
    failed: int = 0
    interrupted: int = 0
    under_way: int = 0
    seconds: float = 0.0
    saved: float = 0.0
    raw: int = 0
    stored: int = 0
    error: tuple[Piece, ...] = ()  # what is to be said about the last node that failed
    why: tuple[Piece, ...] = ()  # and about the last that ran though there was a checkpoint
    left: list[Piece] = field(default_factory=list[Piece])  # what was printed of it for good

    @property
    def nodes(self) -> int:
        return self.reused + self.ran + self.failed + self.interrupted

    def pieces(self) -> list[Piece]:
        """All but the name."""
        words = [(_FADED, "reused"), (_GOOD, "ran"), (_BAD, "failed"), (_BAD, "interrupted")]
        counts = [(getattr(self, word), word, colour) for colour, word in words]
        one = self.nodes == 1 and not self.total
        said = [(word if one else f"{count} {word}", colour) for count, word, colour in counts if count]
        if self.total:
            said = [(f"{self.done}/{self.total}", ""), *said]
        shown = [piece for text, colour in said for piece in (("  ", ""), (text, colour))][1:]
        if len(said) == 1:
            shown.append((" " * (6 - len(said[0][0])), ""))
        if self.ran or self.failed or self.interrupted:
            shown.append((f"  {duration(self.seconds, milliseconds=True):>6}", ""))
        if self.reused:
            shown.append((f"  {duration(self.saved, milliseconds=True):>6} saved", ""))
        if self.raw >= _LARGE:
            shown.append((f"  {size(self.raw)} -> {size(self.stored)}", ""))
        return [*shown, *self.error, *self.why]


class Report:
    """Tells people of one run, from when its scope opens until it is left."""

    def __init__(self, run: Run, lines: Lines, default: bool) -> None:
        self._run, self._lines, self._default = run, lines, default
        self._every: list[_Line] = []
        self._steps: dict[str, _Line] = {}
        self._maps: list[tuple[str, _Line]] = []  # those under way
        self._current: _Line | None = None
        self._failures: set[str] = set()  # errors that the line of a step tells
        self._explain = ""  # what `oncemore why` could tell more of
        self._unkept = 0

    def head(self, origin: str) -> None:
        run = self._run
        said = ["resumed"] * run.resumed + [f"from {origin}"] * bool(origin)
        if run.disabled:
            said = ["disabled by ONCEMORE_DISABLE"]
        about = f" ({', '.join(said)})" if said else ""
        place = "" if run.disabled else f"  store {_place(run.store.url)}"
        self._lines.line(self, [("●", _GOOD), (f" run {run.id}", "1"), (f"{about}{place}", "")])

    # -- what happens

    def reused(self, step: str, seconds: float, times: int = 1) -> None:
        with self._lines.lock:
            line = self._line(step)
            line.reused += times
            line.saved += seconds
            self._changed(line)

    def told(self, fact: events.StepEvent) -> None:
        with self._lines.lock:
            line = self._line(fact.step)
            if isinstance(fact, events.StepStarted):
                line.under_way += 1
                if line is not self._current:
                    self._settle()
            elif isinstance(fact, events.StepCompleted):
                line.raw += fact.raw_bytes
                line.stored += fact.stored_bytes
                line.why = self._because(fact, line) or line.why
                self._ended(line, "ran", fact.seconds)
            elif isinstance(fact, events.StepNotKept):
                self._unkept += 1
                line.why = (("  not kept", _NOTE),)
                self._ended(line, "ran", fact.seconds)
            elif isinstance(fact, events.StepFailed):
                self._failures.add(fact.error)
                line.error = (f"  {fact.error}", _BAD), ("" if line.total else "  → fix it and run again", "")
                self._ended(line, "failed", fact.seconds)

    def interrupted(self, step: str, seconds: float) -> None:
        """A node was stopped from outside: Ctrl-C, cancellation."""
        with self._lines.lock:
            self._ended(self._line(step), "interrupted", seconds)

    def _ended(self, line: _Line, how: str, seconds: float) -> None:
        setattr(line, how, getattr(line, how) + 1)
        line.under_way = max(0, line.under_way - 1)  # a generator does not say when it begins
        line.seconds += seconds
        self._changed(line)

    def _because(self, fact: events.StepCompleted, line: _Line) -> tuple[Piece, ...]:
        if fact.reason == NEW:
            return ()
        if fact.reason not in _ASKED_FOR:
            self._explain = fact.node if line.nodes else fact.step
        why = "entry damaged" if fact.reason.startswith("entry damaged") else fact.reason  # a warning said how
        return ((f"  ← {why}", _NOTE),)

    @contextmanager
    def progress(self, name: str, step: str, total: int) -> Generator[Callable[[], None], None, None]:
        """A map of `step` over so many items has a line of its own; what is yielded is called for each that is through."""
        line = _Line(name, total)
        mapping = step, line

        def advance() -> None:
            with self._lines.lock:
                line.done += 1
                self._changed(line)

        with self._lines.lock:
            self._every.append(line)
            self._maps.append(mapping)
        try:
            yield advance
        finally:
            with self._lines.lock:
                self._maps.remove(mapping)
                if line is self._current:
                    self._settle()

    # -- lines

    def _line(self, step: str) -> _Line:
        for mapped, line in reversed(self._maps):
            if mapped == step:
                return line
        found = self._steps.get(step)
        if found is None:
            found = self._steps[step] = _Line(step)
            self._every.append(found)
        return found

    def _changed(self, line: _Line) -> None:
        if line is not self._current:
            self._settle()
            self._current = line
        self._lines.show(Live(self, lambda: self._row(line), lambda: self._leave_behind(line)))

    def _row(self, line: _Line) -> list[Piece]:
        longest = max(len(each.name) for each in self._every)
        return [(f"  {line.name:<{max(8, min(longest, 30))}}  ", ""), *line.pieces()]

    def _leave_behind(self, line: _Line) -> list[Piece] | None:
        """What stays of a live line when the script prints something: the line of one node, once that is over."""
        if line.left or line.nodes != 1 or line.under_way or line.total:
            return None
        line.left = line.pieces()
        return self._row(line)

    def _settle(self) -> None:
        """The current line's turn is over. It stays, if it is the step's first."""
        line, self._current = self._current, None
        if line is None:
            return
        if line.left:
            self._lines.hide()
        else:
            self._print(line)

    def _print(self, line: _Line) -> None:
        line.left = line.pieces()
        self._lines.line(self, self._row(line))

    # -- the end

    def close(self, end: events.Event, error: BaseException | None) -> None:
        with self._lines.lock:
            self._settle()
            for line in self._every:
                if (line.nodes or line.done) and line.pieces() != line.left:
                    self._print(line)
            said = self._last(end, error)
            if said:
                good = isinstance(end, events.RunFinished)
                mark: Piece = ("✓", _GOOD) if good else ("✗", _BAD)
                self._lines.line(self, [mark, (f" {' · '.join(said)}", "")])
            self._lines.close()

    def _last(self, end: events.Event, error: BaseException | None) -> list[str]:
        run = self._run
        kept = run.ran.total() + run.reused.total() - self._unkept
        said: list[str] = []
        if isinstance(end, events.RunInterrupted):
            said.append("interrupted")
        if run.reused:
            said.append(f"{duration(run.seconds_saved, milliseconds=True)} saved")
        if not run.reused or said[0] == "interrupted":
            said += [f"{kept} result{'s' * (kept != 1)} kept"] * bool(kept)
        if isinstance(end, events.RunFailed):
            said = said or ["failed"]
            if f"{type(error).__name__}: {error}" not in self._failures:
                said.append("fix it and run again")
        elif isinstance(end, events.RunInterrupted):
            said.append("run again to go on")
        if self._explain:
            where = [] if self._default else ["--store", run.store.url]
            said.append(f"`{shlex.join(['oncemore', 'why', run.id, self._explain, *where])}`")
        return said


# -- text


def _place(url: str) -> str:
    """A store's URL for people: a path if it is one, seen from here if it is below; never a password."""
    scheme, _, rest = url.partition("://")
    if scheme == "disk":
        path, here = unquote(rest.partition("?")[0]), os.getcwd()
        return f".{path[len(here) :]}" if path.startswith(here + os.sep) else path
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}"
