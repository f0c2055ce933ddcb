"""Where people read what a run does: whole lines in a pipe or a file; on a terminal also one line that is updated in place.

A terminal belongs to everybody. `Screen` therefore writes its own lines on rows of their own, whatever stands to the left of
the cursor. As long as its live line stands there it listens at the process's streams, and gives way before anything
else is written: what a script prints is never written over, and never glued to a line of ours. What other processes
and C code write to the terminal is not heard; it begins on a row of its own, because the live line fills its row.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
import unicodedata
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TextIO

from .errors import is_terminal
from .modules import loaded

_INTERVAL = 0.1  # seconds between two updates of the live line
_ASCII = str.maketrans({"●": "*", "✓": "+", "✗": "x", "←": "<-", "→": "->", "·": "-", "…": "..."})

Piece = tuple[str, str]  # text, and the number of its colour or ""


class Lines:
    """Whole lines to a stream. One that cannot be written to harms nobody: nothing more is tried."""

    def __init__(self, stream: TextIO, *, owned: bool = False) -> None:
        self.lock = threading.RLock()  # taken again by a signal handler or a finalizer that prints
        self._stream: TextIO | None = stream
        self._owned = owned
        self._plain = not _takes_marks(stream)
        self._coloured = False
        _all.add(self)

    def line(self, owner: object, pieces: Iterable[Piece]) -> None:
        """Write one line, for good."""
        with self.lock:
            self._put(f"{self._composed(pieces)}\n")

    def show(self, live: Live) -> None:
        """Show a line that may change. Only a screen can."""

    def hide(self) -> None:
        """Take the live line away."""

    def close(self) -> None:
        with self.lock:
            if self._owned and self._stream is not None:
                self._stream.close()
                self._stream = None

    def mute(self) -> None:
        """Nothing more from here: a forked child has its parent's objects, but not its place at the terminal."""
        self.lock, self._stream = threading.RLock(), None

    def _put(self, text: str) -> None:
        try:
            if self._stream is not None:
                self._write(self._stream, text)
        except Exception:  # a broken pipe, a closed file, whatever stands in for a stream
            self._stream = None

    def _write(self, stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()

    def _width(self) -> int:
        """The columns of the terminal; 0 if it is none, or does not say."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns if self._stream is not None else 0
        except (OSError, ValueError, AttributeError):
            return 0

    def _composed(self, pieces: Iterable[Piece]) -> str:
        width = self._width()
        room = width - 1 if width else sys.maxsize
        shown: list[str] = []
        for text, colour in pieces:
            text = _printable(text.translate(_ASCII) if self._plain else text)
            cut = _cut(text, room, "..." if self._plain else "…")
            room -= _columns(cut)
            shown.append(f"\x1b[{colour}m{cut}\x1b[0m" if colour and self._coloured and cut else cut)
            if cut != text:
                break
        return "".join(shown).rstrip()


class Live(NamedTuple):
    """A line that may change: whose it is, what it says now, and what to leave there for good if it has to give way."""

    owner: object
    now: Callable[[], Iterable[Piece]]
    left: Callable[[], Iterable[Piece] | None]


class Screen(Lines):
    """A terminal. There is one for all runs of the process, and it alone moves the cursor."""

    def __init__(self, stream: TextIO, *, alone: bool) -> None:
        super().__init__(stream)
        self._coloured = not os.environ.get("NO_COLOR")
        # Updating in place needs a stream that can be listened to, and no other process of ours on the terminal.
        self._updates = alone and type(stream) is io.TextIOWrapper
        self._live: Live | None = None
        self._standing = False  # the live line is on the terminal, and the cursor at its end
        self._quiet_until = 0.0
        self._timer: threading.Timer | None = None
        self._unlisten: list[Callable[[], None]] = []

    def line(self, owner: object, pieces: Iterable[Piece]) -> None:
        with self.lock:
            self._give_way(owner)
            self._put(f"{self._fresh()}{self._composed(pieces)}\x1b[K\n")

    def show(self, live: Live) -> None:
        if not self._updates:
            return
        with self.lock:
            if self._live is not None and self._live.owner is not live.owner:
                self._give_way(live.owner)
            self._live = live
            self._listen()
            wait = self._quiet_until - time.monotonic()
            if wait <= 0:
                self._draw()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._due)
                self._timer.daemon = True
                try:
                    self._timer.start()
                except RuntimeError:  # the interpreter is shutting down
                    self._timer = None

    def hide(self) -> None:
        with self.lock:
            if self._standing:
                self._put("\r\x1b[K")
            self._live, self._standing = None, False
            while self._unlisten:
                self._unlisten.pop()()

    def mute(self) -> None:
        super().mute()
        self.hide()

    def _due(self) -> None:
        with self.lock:
            self._timer = None
            if self._live is not None:
                self._draw()

    def _draw(self) -> None:
        live, width = self._live, self._width()
        if live is None or not width:  # a terminal that does not know its width gets whole lines only
            return
        start = "\r" if self._standing else self._fresh()
        # The blank in the last column leaves the cursor there: whatever comes next begins on the next row.
        self._put(f"{start}{self._composed(live.now())}\x1b[K\x1b[{width}G ")
        self._standing, self._quiet_until = True, time.monotonic() + _INTERVAL

    def _fresh(self) -> str:
        """Go to the beginning of an empty row: this one if the cursor is at its beginning, else the next.

        Blanks up to the last column but one wrap only if something stands to the left of them.
        """
        return " " * (self._width() - 1) + "\r" if self._width() else ""

    def _give_way(self, to: object = None) -> None:
        """Somebody else is about to write."""
        with self.lock:
            live = self._live
            if live is None:
                return
            stays = None if live.owner is to else live.left()
            if stays is not None and not self._standing:
                self._put(self._fresh())
                self._standing = True
            self.hide()
            if stays is not None:
                self._put(f"{self._composed(stays)}\x1b[K\n")
            self._quiet_until = time.monotonic() + _INTERVAL

    # -- listening

    def _write(self, stream: TextIO, text: str) -> None:
        if isinstance(stream, io.TextIOWrapper):  # past our own ears
            type(stream).write(stream, text)
            type(stream).flush(stream)
        else:
            super()._write(stream, text)

    def _listen(self) -> None:
        if not self._unlisten:
            streams: list[Any] = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
            for stream in dict.fromkeys(each for each in streams if type(each) is io.TextIOWrapper):
                if is_terminal(stream):
                    self._unlisten += [self._listen_at(stream, "write"), self._listen_at(stream, "flush")]

    def _listen_at(self, stream: Any, name: str) -> Callable[[], None]:
        """Hear of a method before it is called, for everybody who holds the stream: log handlers do. Returns the undoing."""
        before, method = vars(stream).get(name), getattr(stream, name)

        def heard(*args: Any) -> Any:
            self._give_way()
            return method(*args)

        def undo() -> None:
            if vars(stream).get(name) is heard:  # else somebody has put something over it, which goes on through it
                if before is None:
                    delattr(stream, name)
                else:
                    setattr(stream, name, before)

        setattr(stream, name, heard)
        return undo


def lines_on(stream: TextIO) -> Lines:
    """The process's screen if the stream is a terminal that can move its cursor, else plain lines."""
    global _screen
    if not is_terminal(stream) or os.environ.get("TERM", "dumb") == "dumb":
        return Lines(stream)
    if _screen is None or _screen[0] is not stream:
        family = loaded("multiprocessing")
        _screen = stream, Screen(stream, alone=not _forked and (family is None or family.parent_process() is None))
    return _screen[1]


_all: weakref.WeakSet[Lines] = weakref.WeakSet()
_screen: tuple[TextIO, Screen] | None = None
_forked = False


def _after_fork() -> None:
    global _screen, _forked
    _screen, _forked = None, True
    for lines in list(_all):
        lines.mute()


os.register_at_fork(after_in_child=_after_fork)


# -- text


def _takes_marks(stream: TextIO) -> bool:
    try:
        "●✓✗←→·…".encode(stream.encoding or "utf-8")
        return True
    except (AttributeError, LookupError, UnicodeEncodeError):
        return False


def _printable(text: str) -> str:
    """One line that does nothing to the terminal but be shown."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def _sizes(text: str) -> Iterator[int]:
    for c in text:
        yield 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1


def _columns(text: str) -> int:
    return len(text) if text.isascii() else sum(_sizes(text))


def _cut(text: str, room: int, mark: str) -> str:
    if _columns(text) <= room:
        return text
    kept, room = 0, room - len(mark)
    for size in _sizes(text):
        if (room := room - size) < 0:
            break
        kept += 1
    return f"{text[:kept]}{mark}"
