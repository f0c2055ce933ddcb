"""The progress report of a run: a line when it opens, one for each step, one at the end.

The lines go to standard error if that is a terminal. `ONCEMORE_LOG` changes that: `on` (plain lines, terminal or not), the path
of a file (plain lines are appended) or `off`. A step has one line, however many nodes it has, which is printed when
another step begins. If the step continues later, it gets a second line with its totals when the scope ends. On a terminal, if
rich is installed, a live line at the bottom shows what is running and what is not printed yet.
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

from .. import events
from ..errors import is_terminal, logger, warn
from ..modules import loaded
from ..node import ASKED, NEW
from ..settings import Report as Destination
from ..settings import duration, size
from ..stores import shown_url
from ..surroundings.capture import _Hook

if TYPE_CHECKING:
    from rich.text import Text

    from ..session import Session

_LARGE = 1_000_000  # bytes; smaller sizes are not shown
_ASCII = str.maketrans({"●": "*", "✓": "+", "✗": "x", "←": "<-", "→": "->", "·": "-"})
_STYLES = {
    r"^[●✓]|(\b\d+ )?\bran\b": "green",
    r"^✗|(\b\d+ )?\b(failed|interrupted)\b": "red",
    r"(\b\d+ )?\bpaused\b": "yellow",
    r"(\b\d+ )?\breused\b|\brunning\b": "dim",
    r"← .*|not kept$": "yellow",
}
_process = os.getpid()
_lock = threading.RLock()  # for all reports; reentrant, because signal handlers and finalizers may print
_open: list[Report] = []
_terminal: Terminal | None = None


def open_report(run: Session, asked: Destination | None, *, origin: str, default: bool) -> Report | None:
    """Report that a run was opened, and return its report; None if no report is wanted.

    `asked` is what ONCEMORE_LOG asks for, if it is set; `origin` is what the run's id was derived from; `default` is True if
    commands find its store without being told.
    """
    lines = _lines(asked)
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
        lines.line(f"● run {run.id}" + f" ({about})" * bool(about) + f"  store {shown_url(run.store.url, os.getcwd())}")
        report = Report(run, lines, default, debug=asked is not None and asked.debug)
        _open.append(report)
        run.on(events.StepEvent, report.notify)
        return report


# -- where the lines go


def _lines(asked: Destination | None) -> Lines | None:
    """Where the lines go; None for no report."""
    global _terminal
    stream: Any = sys.stderr
    while hasattr(stream, "__wrapped__"):  # unwrap capturing streams: the report is not a step's output
        stream = stream.__wrapped__
    if asked is not None and asked.to not in ("stderr", "off"):
        try:
            return Lines(open(asked.to, "a", encoding="utf-8"), owned=True)
        except OSError as error:
            warn(f"ONCEMORE_LOG: {asked.to} cannot be written: {error}. Nothing is reported; set it to another path")
            return None
    if stream is None or (asked is None and not is_terminal(stream)) or (asked is not None and asked.to == "off"):
        return None
    multiprocessing = loaded("multiprocessing")
    is_child = multiprocessing is not None and multiprocessing.parent_process() is not None
    child = os.getpid() != _process or is_child
    dumb = type(stream) is not io.TextIOWrapper or os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    if asked is not None or child or dumb:
        return Lines(stream)
    with _lock:
        if _terminal is None or _terminal.stream is not stream or _terminal.broken:
            try:
                _terminal = Terminal(stream)
            except ImportError:
                return Lines(stream)
        return _terminal


class Lines:
    """Plain lines to a stream. After a failed write, nothing more is written; the script is not disturbed."""

    def __init__(self, stream: Any, *, owned: bool = False) -> None:
        self.stream: Any = stream
        self._owned, self._process, self.broken = owned, os.getpid(), False
        self._ascii = "●".encode(getattr(stream, "encoding", None) or "ascii", "replace") == b"?"

    def changed(self) -> None:
        """Called when the live line may have changed. Plain lines have none."""

    def line(self, text: str) -> None:
        self._try(lambda: self._put(self._clean(text)))

    def close(self) -> None:
        if self._owned:
            self._try(self.stream.close)

    def _put(self, text: str) -> None:
        self.stream.write(f"{text}\n")
        self.stream.flush()

    def _try(self, action: Callable[[], object]) -> None:
        if not self.broken and os.getpid() == self._process:  # a forked child does not report on its parent's runs
            try:
                action()
            except Exception:  # a broken pipe, a closed file, any error of a replaced stream
                self.broken = True

    def _clean(self, text: str) -> str:
        """The text as one line without control characters."""
        encodable = text.rstrip().translate(_ASCII if self._ascii else {})
        return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in encodable)


class Terminal(Lines):
    """A terminal that all reports of the process share, with a live line drawn by rich.

    The live line disappears when the script writes something, and reappears when a step makes progress, so that prompts,
    debuggers and progress bars have the terminal to themselves. Rich's own redirection is not used: it would break unfinished
    lines and hide what a step prints from `capture_output`.
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
        self._wrapped: list[tuple[Any, str, ScriptStream]] = []
        self._visible = self._drawing = False

    def close(self) -> None:
        if any(report.lines is self for report in _open):
            return
        self.clear()
        with _Hook._guard:
            for owner, name, wrapper in self._wrapped:
                # If it was replaced, the replacement may still use our wrapper.
                if getattr(owner, name) is wrapper:
                    setattr(owner, name, wrapper.__wrapped__)
            self._wrapped = []

    def clear(self) -> None:
        """Remove the live line until a step makes progress, because something else is about to write."""
        with _lock:
            self._visible = False
            self._try(self._live.stop)

    def changed(self) -> None:
        if not self._wrapped:
            self._wrap_streams()
        self._visible = bool(self._wrapped)
        if self._visible and not self._drawing:
            self._drawing = True
            self._try(threading.Thread(target=self._draw_repeatedly, name="oncemore-live", daemon=True).start)

    def _wrap_streams(self) -> None:
        """Wrap the script's output streams. If they were replaced already, there is no live line."""
        with _Hook._guard:  # other threads may be installing `capture_output`
            if not {type(sys.stdout), type(sys.stderr)} <= {io.TextIOWrapper, ScriptStream, type(None)}:
                return
            handlers = (each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler))
            for owner, name in ((sys, "stdout"), (sys, "stderr"), *((each, "stream") for each in handlers)):
                stream = getattr(owner, name)
                if type(stream) is io.TextIOWrapper and is_terminal(stream):
                    self._wrapped.append((owner, name, _script_stream(stream)))
                    setattr(owner, name, _script_stream(stream))

    def _draw_repeatedly(self) -> None:
        while self._drawing:
            time.sleep(0.1)
            with _lock:
                if self._visible:
                    self._try(self._draw)
                self._drawing = bool(self._wrapped)

    def _draw(self) -> None:
        now = "".join(report.now() for report in _open if report.lines is self)
        if now == self._shown and self._live.is_started:
            return
        self._shown, text = now, self._styled(self._clean(now))
        # It fills its row and the cursor stays at the end, so that output of a child process begins on the next row.
        text.pad_right(self._console.width - text.cell_len)
        if not self._live.is_started:
            self._start_row()
        with self._console:  # in one write, so that a killed process does not leave the cursor hidden
            self._live.start()
            self._live.update(text, refresh=True)
            self._console.show_cursor(True)

    def _put(self, text: str) -> None:
        self._live.stop()
        styled = self._styled(text)
        self._start_row()
        self._console.print(styled)

    def _start_row(self) -> None:
        """Go to the start of an empty row: these spaces wrap only if the row is not empty."""
        self.stream.write(" " * (self._console.width - 1) + "\r")

    def _styled(self, plain: str) -> Text:
        from rich.text import Text

        self._console.width = os.get_terminal_size(self.stream.fileno()).columns or 80  # regardless of COLUMNS
        text = Text(plain, no_wrap=True)
        for regex, style in _STYLES.items():
            text.highlight_regex(regex, style)
        text.truncate(self._console.width - 1, overflow="crop" if self._ascii else "ellipsis")
        return text


class ScriptStream:
    """Wraps an output stream of the script. Removes the live line before the stream is used."""

    def __init__(self, stream: Any) -> None:
        self.__wrapped__ = stream

    def __getattr__(self, name: str) -> Any:
        if _terminal is not None and not name.startswith("__"):  # special attributes are inspected, not used
            _terminal.clear()
        return getattr(self.__wrapped__, name)


# Never discarded: `print` in another thread may still use a wrapper after the stream was unwrapped.
_script_stream = cache(ScriptStream)


def _before_fork() -> None:
    _lock.acquire()  # nothing is drawn meanwhile, and the child can acquire the lock
    if _terminal is not None:
        _terminal.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_lock.release, after_in_child=_lock.release)


# -- what the lines say


@dataclass(eq=False)
class Line:
    """The totals of one step in this scope, or of one map of a step over items."""

    name: str
    total: int = 0  # items of a map
    done: int = 0  # items of a map that are finished
    counts: Counter[str] = field(default_factory=Counter[str])  # nodes by outcome
    running: int = 0
    since: float = 0.0  # when the first of the running nodes began
    seconds: float = 0.0
    saved: float = 0.0
    raw: int = 0
    stored: int = 0
    retries: int = 0  # attempts that failed and were followed by another
    attempt: str = ""  # about the attempt that is being waited for, or made, after one that failed
    error: str = ""  # about the last node that failed
    why: str = ""  # why the last node ran although there was a checkpoint
    printed: str = ""

    def text(self) -> str:
        """The line without the name."""
        one = self.counts.total() == 1 and not self.total
        words = [f"{self.done}/{self.total}"] * bool(self.total)
        for word in ("reused", "ran", "failed", "interrupted", "paused"):
            if self.counts[word]:
                words.append(word if one else f"{self.counts[word]} {word}")
        text = f"{'  '.join(words):<6}"
        if self.counts.total() > self.counts["reused"]:
            text += f"  {duration(self.seconds, milliseconds=True):>6}"
        if self.counts["reused"]:
            text += f"  {duration(self.saved, milliseconds=True):>6} saved"
        if self.retries:
            text += f"  {self.retries} {'retry' if self.retries == 1 else 'retries'}"
        if self.raw >= _LARGE:
            text += f"  {size(self.raw)} -> {size(self.stored)}"
        return text + (self.attempt or self.error) + self.why


class Report:
    """The report on one run, from the opening of its scope to its end."""

    def __init__(self, run: Session, lines: Lines, default: bool, *, debug: bool = False) -> None:
        self._run, self.lines, self._default = run, lines, default
        self._records = _Records(self) if debug else None  # until the scope ends, log records are lines, too
        self._every: list[Line] = []
        self._steps: dict[str, Line] = {}
        self._maps: list[tuple[str, Line]] = []  # step and line of those in progress
        self._iterations: list[str] = []  # current iterations of loops
        self._current: Line | None = None
        self._failures: set[str] = set()  # errors already shown in the line of a step
        self._explain = ""  # the node or step for the suggested `oncemore why`
        self._unkept = 0

    def notify(self, event: events.StepEvent) -> None:
        with _lock:
            line = self._line(event.step)
            if isinstance(event, events.StepStarted):
                if not line.running:
                    line.since = time.monotonic()
                line.running += 1
                if line is not self._current:
                    self.settle()
                self.lines.changed()
            elif isinstance(event, events.StepCompleted):
                line.raw += event.raw_bytes
                line.stored += event.stored_bytes
                if event.reason != NEW:
                    damaged = event.reason.startswith("entry damaged")  # a warning gave the details
                    line.why = f"  ← {'entry damaged' if damaged else event.reason}"
                    if event.reason not in ASKED:
                        self._explain = event.node if line.counts else event.step
                self._ended(line, "ran", event.seconds)
            elif isinstance(event, events.StepNotKept):
                self._unkept += 1
                line.why = "  not kept"
                self._ended(line, "ran", event.seconds)
            elif isinstance(event, events.StepRetried):
                line.retries += 1
                line.seconds += event.seconds
                line.attempt = f"  {event.line}"
                if not line.total:  # of many calls, only the number is of interest
                    self.lines.line(f"  {line.name:<{self._width()}}  {event.line}")
                self.lines.changed()
            elif isinstance(event, events.StepFailed):
                self._failures.add(event.error)
                line.error = f"  {event.error}" + ("" if line.total else "  → fix it and run again")
                self._ended(line, "failed", event.seconds)

    def interrupted(self, step: str, seconds: float, *, paused: bool = False) -> None:
        """A node was interrupted by Ctrl-C or cancellation, or `paused` by a question."""
        with _lock:
            self._ended(self._line(step), "paused" if paused else "interrupted", seconds)

    def reused(self, step: str, seconds: float, times: int = 1) -> None:
        with _lock:
            line = self._line(step)
            line.counts["reused"] += times
            line.saved += seconds
            self._changed(line)

    def _ended(self, line: Line, how: str, seconds: float) -> None:
        line.attempt = ""
        line.counts[how] += 1
        line.seconds += seconds
        line.running = max(0, line.running - 1)  # a generator does not report its start
        self._changed(line)

    @contextmanager
    def progress(self, name: str, step: str, total: int) -> Generator[Callable[[], None], None, None]:
        """Give a map of `step` over `total` items its own line. Yields a function to be called for each finished item."""
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
    def iteration(self, name: str, number: int, total: int) -> Generator[None, None, None]:
        """Show an iteration of a loop, only in the live line."""
        text = f"  {name} {number}" + f"/{total}" * bool(total)
        with _lock:
            self._iterations.append(text)
            self.lines.changed()
        try:
            yield
        finally:
            with _lock:
                self._iterations.remove(text)

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
        """End the current line, and print it unless the step already has a printed line."""
        line, self._current = self._current, None
        if line is not None and not line.printed:
            self._print(line)

    def _print(self, line: Line) -> None:
        line.printed = line.text()
        self.lines.line(self._row(line))

    def _width(self) -> int:
        return max(8, *(min(len(each.name), 30) for each in self._every))

    def _row(self, line: Line) -> str:
        return f"  {line.name:<{self._width()}}  {line.text()}"

    def now(self) -> str:
        """The text of the live line: iterations of loops, and steps that are running or not printed yet."""
        shown = "".join(self._iterations)
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
                mark = "✓" if isinstance(end, events.RunFinished) else "●" if isinstance(end, events.RunPaused) else "✗"
                self.lines.line(f"{mark} {' · '.join(last)}")
            _open.remove(self)
            if self._records is not None:
                self._records.close()
            self.lines.close()

    def _last(self, end: events.Event, error: BaseException | None) -> list[str]:
        run, interrupted = self._run, isinstance(end, events.RunInterrupted)
        kept = run.ran.total() + run.reused.total() - self._unkept
        paused = isinstance(end, events.RunPaused)
        parts = ["interrupted"] * interrupted + ["paused"] * paused
        if run.reused:
            parts.append(f"{duration(run.seconds_saved, milliseconds=True)} saved")
        if kept and (interrupted or paused or not run.reused):
            parts.append(f"{kept} result{'s' * (kept != 1)} kept")
        if isinstance(end, events.RunFailed):
            parts = parts or ["failed"]
            if f"{type(error).__name__}: {error}" not in self._failures:
                parts.append("fix it and run again")
        if interrupted:
            parts.append("run again to continue")
        if self._explain:
            where = [] if self._default else ["--store", run.store.url]
            parts.append(f"`{shlex.join(['oncemore', 'why', run.id, self._explain, *where])}`")
        return parts


class _Records(logging.Handler):
    """Prints oncemore's log records as lines of a report, whatever the script has configured."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.DEBUG)
        self._report, self._level = report, logger.level
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        with _lock:
            self._report.lines.line(f"    {record.getMessage()}")

    def close(self) -> None:
        logger.removeHandler(self)
        logger.setLevel(self._level)
        super().close()
