"""Where the lines of a report go: a terminal, a notebook, a file, or standard error as plain text.

They go to standard error if that is a terminal, and to the output of the cell in a notebook. `ONCEMORE_LOG` changes that: `on`
(plain lines, terminal or not), the path of a file (plain lines are appended) or `off`. On a terminal, if rich is installed, a
live line at the bottom shows what is in progress; in a notebook, it is the last line of the output. Elsewhere, a line says so
when nothing has been printed for a while.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import is_terminal, warn
from ..modules import loaded
from ..settings import Report as Destination
from ..surroundings.capture import _Hook

if TYPE_CHECKING:
    from rich.text import Text

    from .progress import Report

_ASCII = str.maketrans({"●": "*", "✓": "+", "✗": "x", "←": "<-", "→": "->", "·": "-", "━": "#", "─": "."})
_LOOK_EVERY = 1.0  # seconds between looks at what workers do
_BARS_FROM = 72  # columns
_QUIET = 1.0  # seconds without output of the script, after which the live line returns
_STYLES = {
    r"^[●✓]|(\b\d+ )?\bran\b": "green",
    r"^✗|(\b\d+ )?\b(failed|interrupted)\b": "red",
    r"(\b\d+ )?\bpaused\b": "yellow",
    r"(\b\d+ )?\breused\b|\brunning\b": "dim",
    r"← .*|not kept$": "yellow",
    r"━+": "green",
    r"─+": "dim",
}
_process = os.getpid()
_lock = threading.RLock()  # for all reports; reentrant, because signal handlers and finalizers may print
_open: list[Report] = []  # the reports of open scopes
_terminal: Terminal | None = None


# -- where the lines go


def in_notebook(stream: Any) -> bool:
    """Whether a stream is the one that Jupyter's kernel shows below a cell."""
    kernel = loaded("ipykernel.iostream")
    return kernel is not None and isinstance(stream, kernel.OutStream)


def lines_for(asked: Destination | None) -> Lines | None:
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
    if asked is None and in_notebook(stream):
        return Notebook()
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

    _pause = 1.0  # seconds between updates

    def __init__(self, stream: Any, *, owned: bool = False) -> None:
        self.stream: Any = stream
        self._owned, self._process, self.broken = owned, os.getpid(), False
        self._watched: threading.Event | None = None  # set when the thread is to end
        self._ascii = "●".encode(getattr(stream, "encoding", None) or "ascii", "replace") == b"?"

    def changed(self) -> None:
        """Called when something begins or goes on. From the first time on, a thread shows what is in progress."""
        if self._watched is None and not self.broken and os.getpid() == self._process:
            self._watched = threading.Event()
            self._try(
                threading.Thread(target=self._watch, args=[self._watched], name="oncemore-lines", daemon=True).start
            )

    def _watch(self, ended: threading.Event) -> None:
        looked = time.monotonic()
        while not ended.wait(self._pause):
            if time.monotonic() - looked >= _LOOK_EVERY:
                for report in [each for each in _open if each.lines is self]:
                    report.look_at_workers()
                looked = time.monotonic()
            with _lock:
                if not ended.is_set():
                    self._try(self._update)

    def _update(self) -> None:
        """Show what is in progress: here, in a line of its own now and then."""
        for report in [each for each in _open if each.lines is self]:
            text = report.overdue()
            if text:
                self._put(self._clean(text))

    def _stop_watching(self) -> None:
        if self._watched is not None:
            self._watched.set()
            self._watched = None

    def line(self, text: str) -> None:
        self._try(lambda: self._put(self._clean(text)))

    def close(self) -> None:
        self._stop_watching()
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

    The live line disappears when the script writes something. It reappears when a step makes progress, or a second after the
    script has finished a line, so that prompts, debuggers and progress bars have the terminal to themselves. It has one row,
    because the cursor must never move up into what a child process has printed below. Rich's own redirection is not used: it
    would break unfinished lines and hide what a step prints from `capture_output`.
    """

    _pause = 0.1

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
        self._visible = False
        self._cleared: float | None = None  # when the script finished a line, if the live line may return after it

    def close(self) -> None:
        if any(report.lines is self for report in _open):
            return
        self._stop_watching()
        self.clear()
        with _Hook._guard:
            for owner, name, wrapper in self._wrapped:
                # If it was replaced, the replacement may still use our wrapper.
                if getattr(owner, name) is wrapper:
                    setattr(owner, name, wrapper.__wrapped__)
            self._wrapped = []

    def clear(self, *, whole_line: bool = False) -> None:
        """Remove the live line, because something else is about to write: a `whole_line`, or who knows what."""
        with _lock:
            self._visible = False
            self._cleared = time.monotonic() if whole_line else None
            self._try(self._live.stop)

    def changed(self) -> None:
        if not self._wrapped:
            self._wrap_streams()
        self._visible = bool(self._wrapped)
        super().changed()

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

    def _update(self) -> None:
        if not self._visible and self._cleared is not None and time.monotonic() - self._cleared >= _QUIET:
            self._visible = bool(self._wrapped)
        if not self._visible:
            return
        bars = self._columns() >= _BARS_FROM
        now = " · ".join(filter(None, (report.now(bars=bars) for report in _open if report.lines is self)))
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

    def _columns(self) -> int:
        return os.get_terminal_size(self.stream.fileno()).columns or 80

    def _styled(self, plain: str) -> Text:
        from rich.text import Text

        self._console.width = self._columns()  # regardless of COLUMNS
        text = Text(plain, no_wrap=True)
        for regex, style in _STYLES.items():
            text.highlight_regex(regex, style)
        text.truncate(self._console.width - 1, overflow="crop" if self._ascii else "ellipsis")
        return text


class Notebook(Lines):
    """All lines of one scope as one output of a notebook's cell, which is updated in place."""

    _pause = 0.5

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self._ascii = False
        self._lines: list[str] = []
        self._shown = ""
        self._handle: Any = None  # of the output, once it is shown

    def _put(self, text: str) -> None:
        self._lines.append(text)
        self._show(self._lines)

    def _update(self) -> None:
        now = [self._clean(report.now()) for report in _open if report.lines is self]
        self._show([*self._lines, *filter(None, now)])

    def _show(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        if self._handle is None:
            self._handle = loaded("IPython.display").display({"text/plain": text}, raw=True, display_id=True)
        elif text != self._shown:
            self._handle.update({"text/plain": text}, raw=True)
        self._shown = text


class ScriptStream:
    """Wraps an output stream of the script. Removes the live line before the stream is used."""

    def __init__(self, stream: Any) -> None:
        self.__wrapped__ = stream
        self._whole_line = False  # whether what was written last ended a line

    def write(self, text: str) -> int:
        self._whole_line = text.endswith("\n")
        if _terminal is not None:
            _terminal.clear(whole_line=self._whole_line)
        count: int = self.__wrapped__.write(text)
        return count

    def flush(self) -> None:
        if _terminal is not None:
            _terminal.clear(whole_line=self._whole_line)
        self.__wrapped__.flush()

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
