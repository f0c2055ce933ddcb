"""What a person sees of a run: a line when it opens, one for each step, one at the end.

The lines go to standard error if that is a terminal. `ONCEMORE_LOG` says otherwise: `stderr` (plain lines, terminal or not),
the path of a file (plain lines are appended), `quiet`. A step has one line, however many nodes it has. It is printed when
another step's turn comes; a step that has its turn again later gets a second line when the scope ends, with all that it did.
On a terminal, if rich is installed, a live line at the bottom shows what runs and what is not printed yet.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from .. import events
from ..durations import duration, size
from ..errors import is_terminal, warn
from ..modules import loaded
from ..node import NEW
from ..surroundings.capture import _Hook

if TYPE_CHECKING:
    from rich.text import Text

    from ..session import Session

_ASKED_FOR = ("refreshed", "ONCEMORE_REFRESH")  # reasons that nobody needs explained
_LARGE = 1_000_000  # bytes; the size of less is of no interest
_ASCII = str.maketrans({"●": "*", "✓": "+", "✗": "x", "←": "<-", "→": "->", "·": "-"})
_STYLES = {
    r"^[●✓]|(\b\d+ )?\bran\b": "green",
    r"^✗|(\b\d+ )?\b(failed|interrupted)\b": "red",
    r"(\b\d+ )?\breused\b|\brunning\b": "dim",
    r"← .*|not kept$": "yellow",
}
_process = os.getpid()
_lock = threading.RLock()  # for all reports; a signal handler or a finalizer that prints takes it again
_open: list[Report] = []
_terminal: Terminal | None = None


def open_report(run: Session, *, origin: str, default: bool) -> Report | None:
    """Tell of a run that has just been opened, and go on telling; None if nobody wants to hear.

    `origin` is what its id was derived from, `default` says whether its store is the default store.
    """
    lines = _lines()
    if lines is None:
        return None
    with _lock:
        if run.disabled:
            lines.line(f"● run {run.id} (disabled by ONCEMORE_DISABLE)")
            lines.close()
            return None
        for other in _open:
            other.settle()
        about = ", ".join(["resumed"] * run.resumed + [f"from {origin}"] * bool(origin))
        lines.line(f"● run {run.id}" + f" ({about})" * bool(about) + f"  store {_place(run.store.url)}")
        report = Report(run, lines, default)
        _open.append(report)
        run.on(events.StepEvent, report.notify)
        return report


# -- where the lines go


def _lines() -> Lines | None:
    """Where the environment wants the lines."""
    global _terminal
    wanted = os.environ.get("ONCEMORE_LOG", "")
    stream: Any = sys.stderr
    while hasattr(stream, "__wrapped__"):  # what a step prints is listened to: ours is not the step's
        stream = stream.__wrapped__
    if wanted == "quiet" or (wanted == "" and not is_terminal(stream)) or (wanted == "stderr" and stream is None):
        return None
    if wanted not in ("", "stderr"):
        try:
            return Lines(open(wanted, "a", encoding="utf-8"), owned=True)
        except OSError as error:
            warn(f"ONCEMORE_LOG: {wanted} cannot be written: {error}")
            return None
    family = loaded("multiprocessing")
    child = os.getpid() != _process or (family is not None and family.parent_process() is not None)
    dumb = type(stream) is not io.TextIOWrapper or os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    if wanted == "stderr" or child or dumb:
        return Lines(stream)
    with _lock:
        if _terminal is None or _terminal.stream is not stream or _terminal.broken:
            try:
                _terminal = Terminal(stream)
            except ImportError:
                return Lines(stream)
        return _terminal


class Lines:
    """Plain lines to a stream. One that cannot be written to harms nobody: nothing more is tried."""

    def __init__(self, stream: Any, *, owned: bool = False) -> None:
        self.stream: Any = stream
        self._owned, self._process, self.broken = owned, os.getpid(), False
        self._ascii = "●".encode(getattr(stream, "encoding", None) or "ascii", "replace") == b"?"

    def changed(self) -> None:
        """There is something new for a live line."""

    def line(self, text: str) -> None:
        self._try(lambda: self._put(self._clean(text)))

    def close(self) -> None:
        if self._owned:
            self._try(self.stream.close)

    def _put(self, text: str) -> None:
        self.stream.write(f"{text}\n")
        self.stream.flush()

    def _try(self, action: Callable[[], object]) -> None:
        if not self.broken and os.getpid() == self._process:  # a forked child says nothing of its parent's runs
            try:
                action()
            except Exception:  # a broken pipe, a closed file, whatever stands in for a stream
                self.broken = True

    def _clean(self, text: str) -> str:
        """One line that does nothing to a terminal but be shown."""
        known = text.rstrip().translate(_ASCII if self._ascii else {})
        return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in known)


class Terminal(Lines):
    """A terminal that all reports of the process share, with a live line drawn by rich.

    The live line gives way to whatever the script writes, and comes back when something happens to a step: prompts, debuggers
    and progress bars have the terminal to themselves. Rich's own redirection would end each unfinished line, and keep
    what a step prints from `capture_output`.
    """

    def __init__(self, stream: Any) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(stream)
        self._console = Console(file=stream, color_system=None if os.environ.get("NO_COLOR") else "auto")
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._shown = ""
        self._heard: list[tuple[Any, str, Aside]] = []
        self._wanted = self._watching = False

    def close(self) -> None:
        if any(report.lines is self for report in _open):
            return
        self.clear()
        with _Hook._guard:
            for owner, name, aside in self._heard:
                if getattr(owner, name) is aside:  # else somebody has put something over it, which goes on through it
                    setattr(owner, name, aside.__wrapped__)
            self._heard = []

    def clear(self) -> None:
        """Somebody else is about to write: no live line until something changes."""
        with _lock:
            self._wanted = False
            self._try(self._live.stop)

    def changed(self) -> None:
        if not self._heard:
            self._listen()
        self._wanted = bool(self._heard)
        if self._wanted and not self._watching:
            self._watching = True
            self._try(threading.Thread(target=self._watch, name="oncemore-live", daemon=True).start)

    def _listen(self) -> None:
        """Hear of what the script writes. If somebody has replaced its streams, there is no live line."""
        with _Hook._guard:  # other threads may begin to listen for `capture_output`
            if not {type(sys.stdout), type(sys.stderr)} <= {io.TextIOWrapper, Aside, type(None)}:
                return
            handlers = (each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler))
            for owner, name in ((sys, "stdout"), (sys, "stderr"), *((each, "stream") for each in handlers)):
                stream = getattr(owner, name)
                if type(stream) is io.TextIOWrapper and is_terminal(stream):
                    self._heard.append((owner, name, _aside(stream)))
                    setattr(owner, name, _aside(stream))

    def _watch(self) -> None:
        while self._watching:
            time.sleep(0.1)
            with _lock:
                if self._wanted:
                    self._try(self._draw)
                self._watching = bool(self._heard)

    def _draw(self) -> None:
        now = "".join(report.now() for report in _open if report.lines is self)
        if now == self._shown and self._live.is_started:
            return
        self._shown, text = now, self._styled(self._clean(now))
        # It fills its row, and the cursor stays at the end: what a child process prints begins on the next row.
        text.pad_right(self._console.width - text.cell_len)
        if not self._live.is_started:
            self._start_row()
        with self._console:  # all at once: if the process is killed, the cursor is not lost
            self._live.start()
            self._live.update(text, refresh=True)
            self._console.show_cursor(True)

    def _put(self, text: str) -> None:
        self._live.stop()
        styled = self._styled(text)
        self._start_row()
        self._console.print(styled)

    def _start_row(self) -> None:
        """Go to the beginning of an empty row: these blanks wrap only if something stands to the left of them."""
        self.stream.write(" " * (self._console.width - 1) + "\r")

    def _styled(self, plain: str) -> Text:
        from rich.text import Text

        self._console.width = os.get_terminal_size(self.stream.fileno()).columns or 80  # whatever COLUMNS says
        text = Text(plain, no_wrap=True)
        for regex, style in _STYLES.items():
            text.highlight_regex(regex, style)
        text.truncate(self._console.width - 1, overflow="crop" if self._ascii else "ellipsis")
        return text


class Aside:
    """Stands in for a stream of the script. Before the stream is used, the live line is taken away."""

    def __init__(self, stream: Any) -> None:
        self.__wrapped__ = stream

    def __getattr__(self, name: str) -> Any:
        if _terminal is not None and not name.startswith("__"):  # which is looked at, not used
            _terminal.clear()
        return getattr(self.__wrapped__, name)


_aside = cache(Aside)  # for good: `print` in another thread may still use it when it is no longer in its place


def _before_fork() -> None:
    _lock.acquire()  # so that nobody draws meanwhile, and the child can take the lock
    if _terminal is not None:
        _terminal.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_lock.release, after_in_child=_lock.release)


# -- what they say


@dataclass(eq=False)
class Line:
    """What one step did in this scope, or one map of a step over items."""

    name: str
    total: int = 0  # the items of a map, and how many of them are through
    done: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])  # nodes by what became of them
    running: int = 0
    since: float = 0.0  # when the first of those that are running began
    seconds: float = 0.0
    saved: float = 0.0
    raw: int = 0
    stored: int = 0
    error: str = ""  # what is to be said about the last node that failed
    why: str = ""  # and about the last that ran though there was a checkpoint
    printed: str = ""

    def text(self) -> str:
        """All but the name."""
        one = self.counts.total() == 1 and not self.total
        words = [f"{self.done}/{self.total}"] * bool(self.total)
        for word in ("reused", "ran", "failed", "interrupted"):
            if self.counts[word]:
                words.append(word if one else f"{self.counts[word]} {word}")
        text = f"{'  '.join(words):<6}"
        if self.counts.total() > self.counts["reused"]:
            text += f"  {duration(self.seconds, milliseconds=True):>6}"
        if self.counts["reused"]:
            text += f"  {duration(self.saved, milliseconds=True):>6} saved"
        if self.raw >= _LARGE:
            text += f"  {size(self.raw)} -> {size(self.stored)}"
        return text + self.error + self.why


class Report:
    """Tells people of one run, from when its scope opens until it is left."""

    def __init__(self, run: Session, lines: Lines, default: bool) -> None:
        self._run, self.lines, self._default = run, lines, default
        self._every: list[Line] = []
        self._steps: dict[str, Line] = {}
        self._maps: list[tuple[str, Line]] = []  # those under way
        self._turns: list[str] = []  # of loops
        self._current: Line | None = None
        self._failures: set[str] = set()  # errors that the line of a step tells
        self._explain = ""  # what `oncemore why` could tell more of
        self._unkept = 0

    def notify(self, fact: events.StepEvent) -> None:
        with _lock:
            line = self._line(fact.step)
            if isinstance(fact, events.StepStarted):
                if not line.running:
                    line.since = time.monotonic()
                line.running += 1
                if line is not self._current:
                    self.settle()
                self.lines.changed()
            elif isinstance(fact, events.StepCompleted):
                line.raw += fact.raw_bytes
                line.stored += fact.stored_bytes
                if fact.reason != NEW:
                    damaged = fact.reason.startswith("entry damaged")  # a warning said how
                    line.why = f"  ← {'entry damaged' if damaged else fact.reason}"
                    if fact.reason not in _ASKED_FOR:
                        self._explain = fact.node if line.counts else fact.step
                self._ended(line, "ran", fact.seconds)
            elif isinstance(fact, events.StepNotKept):
                self._unkept += 1
                line.why = "  not kept"
                self._ended(line, "ran", fact.seconds)
            elif isinstance(fact, events.StepFailed):
                self._failures.add(fact.error)
                line.error = f"  {fact.error}" + ("" if line.total else "  → fix it and run again")
                self._ended(line, "failed", fact.seconds)

    def interrupted(self, step: str, seconds: float) -> None:
        """A node was stopped from outside: Ctrl-C, cancellation."""
        with _lock:
            self._ended(self._line(step), "interrupted", seconds)

    def reused(self, step: str, seconds: float, times: int = 1) -> None:
        with _lock:
            line = self._line(step)
            line.counts["reused"] += times
            line.saved += seconds
            self._changed(line)

    def _ended(self, line: Line, how: str, seconds: float) -> None:
        line.counts[how] += 1
        line.seconds += seconds
        line.running = max(0, line.running - 1)  # a generator does not say when it begins
        self._changed(line)

    @contextmanager
    def progress(self, name: str, step: str, total: int) -> Generator[Callable[[], None], None, None]:
        """A map of `step` over so many items has a line of its own; what is yielded is called for each that is through."""
        line = Line(name, total)

        def advance() -> None:
            with _lock:
                line.done += 1
                self._changed(line)

        with _lock:
            self._every.append(line)
            self._maps.append((step, line))
        try:
            yield advance
        finally:
            with _lock:
                self._maps.remove((step, line))
                if line is self._current:
                    self.settle()

    @contextmanager
    def turn(self, name: str, number: int, total: int) -> Generator[None, None, None]:
        """A turn of a loop. Only the live line shows it."""
        text = f"  {name} {number}" + f"/{total}" * bool(total)
        with _lock:
            self._turns.append(text)
            self.lines.changed()
        try:
            yield
        finally:
            with _lock:
                self._turns.remove(text)

    def _line(self, step: str) -> Line:
        for mapped, line in reversed(self._maps):
            if mapped == step:
                return line
        if step not in self._steps:
            self._steps[step] = Line(step)
            self._every.append(self._steps[step])
        return self._steps[step]

    def _changed(self, line: Line) -> None:
        if line is not self._current:
            self.settle()
            self._current = line
        self.lines.changed()

    def settle(self) -> None:
        """The current line's turn is over. It is printed, if it is the step's first."""
        line, self._current = self._current, None
        if line is not None and not line.printed:
            self._print(line)

    def _print(self, line: Line) -> None:
        line.printed = line.text()
        self.lines.line(self._row(line))

    def _row(self, line: Line) -> str:
        width = max(8, *(min(len(each.name), 30) for each in self._every))
        return f"  {line.name:<{width}}  {line.text()}"

    def now(self) -> str:
        """The turns of loops, and the lines of what is running or not printed yet."""
        shown = "".join(self._turns)
        for line in self._every:
            if line.running or line is self._current:
                shown += self._row(line)
            if line.running and (took := time.monotonic() - line.since) >= 1:
                shown += f"  running {duration(int(took)).replace('.0', '')}"
        return shown

    def close(self, end: events.Event, error: BaseException | None) -> None:
        with _lock:
            self.settle()
            for line in self._every:
                if (line.counts or line.done) and line.text() != line.printed:
                    self._print(line)
            if self._run.unkept:
                self.lines.line(f"! {self._run.unkept_line}")
            if last := self._last(end, error):
                self.lines.line(f"{'✓' if isinstance(end, events.RunFinished) else '✗'} {' · '.join(last)}")
            _open.remove(self)
            self.lines.close()

    def _last(self, end: events.Event, error: BaseException | None) -> list[str]:
        run, interrupted = self._run, isinstance(end, events.RunInterrupted)
        kept = run.ran.total() + run.reused.total() - self._unkept
        parts = ["interrupted"] * interrupted
        if run.reused:
            parts.append(f"{duration(run.seconds_saved, milliseconds=True)} saved")
        if kept and (interrupted or not run.reused):
            parts.append(f"{kept} result{'s' * (kept != 1)} kept")
        if isinstance(end, events.RunFailed):
            parts = parts or ["failed"]
            if f"{type(error).__name__}: {error}" not in self._failures:
                parts.append("fix it and run again")
        if interrupted:
            parts.append("run again to go on")
        if self._explain:
            where = [] if self._default else ["--store", run.store.url]
            parts.append(f"`{shlex.join(['oncemore', 'why', run.id, self._explain, *where])}`")
        return parts


# -- text


def _place(url: str) -> str:
    """A store's URL for people: a path if it is one, seen from here if it is below; never a password."""
    scheme, _, rest = url.partition("://")
    if scheme == "disk":
        path, here = unquote(rest.partition("?")[0]), os.getcwd()
        return f".{path[len(here) :]}" if path.startswith(here + os.sep) else path
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}"
