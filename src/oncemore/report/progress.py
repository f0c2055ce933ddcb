"""What the lines of a report say: one when a scope opens, one for each step, map and loop, one at the end.

A step has one line, however many nodes it has, which is printed when another step begins. If the step continues later, it gets a
second line with its totals when the scope ends. What is in progress is shown as `terminal.py` says.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import events
from ..errors import logger
from ..node import ASKED, NEW, Node
from ..reuse import Reuse
from ..settings import Report as Destination
from ..settings import duration, size
from ..stores import shown_url
from .terminal import Lines, _lock, _open, lines_for

if TYPE_CHECKING:
    from ..session import Session

_LARGE = 1_000_000  # bytes; smaller sizes are not shown
_BAR = 20  # columns
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0  # seconds without a line, after which one says what is in progress


def open_report(run: Session, asked: Destination | None, *, origin: str, default: bool) -> Report | None:
    """Report that a run was opened, and return its report; None if no report is wanted.

    `asked` is what ONCEMORE_LOG asks for, if it is set; `origin` is what the run's id was derived from; `default` is True if
    commands find its store without being told.
    """
    lines = lines_for(asked)
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
        run.on(events.SnapshotSaved, report.snapshot)
        return report


class Pace:
    """How fast something goes on, and when it will end."""

    def __init__(self) -> None:
        self._begun, self._first = time.monotonic(), 0

    def restart(self, done: int) -> None:
        """What was done so far does not count: it was reused."""
        self._begun, self._first = time.monotonic(), done

    def text(self, done: int, total: int) -> str:
        took, more = time.monotonic() - self._begun, done - self._first
        if took < 1 or more <= 0:
            return ""
        left = f"  {_rough((total - done) * took / more)} left" if total > done else ""
        return f"  {_rate(more / took)}{left}"


@dataclass(eq=False)
class Line:
    """The totals of one step in this scope, or of one map of a step over items."""

    name: str
    total: int = 0  # items of a map
    done: int = 0  # items of a map that are finished
    counts: Counter[str] = field(default_factory=Counter[str])  # nodes by outcome
    running: dict[str, float] = field(default_factory=dict[str, float])  # nodes in progress, and when they began
    seconds: float = 0.0
    reuse: Reuse = field(default_factory=Reuse)
    raw: int = 0
    stored: int = 0
    retries: int = 0  # tries that failed and were followed by another
    next_try: str = ""  # the try that is being waited for, or running, after one that failed
    error: str = ""  # about the last node that failed
    why: str = ""  # why the last node ran although there was a checkpoint
    printed: str = ""
    pace: Pace = field(default_factory=Pace)

    def text(self) -> str:
        """The line without the name, as it is printed when the step is over."""
        one = self.counts.total() == 1 and not self.total
        text = f"{'  '.join(self._counts(one)):<6}"
        if self.counts.total() > self.counts["reused"]:
            text += f"  {duration(self.seconds, milliseconds=True):>6}"
        if self.counts["reused"]:
            text += f"  {duration(self.reuse.seconds(), milliseconds=True):>6} saved"
        if self.retries:
            text += f"  {self.retries} {'retry' if self.retries == 1 else 'retries'}"
        if self.raw >= _LARGE:
            text += f"  {size(self.raw)} -> {size(self.stored)}"
        return text + (self.next_try or self.error) + self.why

    def now(self, *, bars: bool) -> str:
        """The same while it goes on."""
        words = self._counts()
        if bars and self.total:
            words.insert(1, _bar(self.done, self.total))
        longest = time.time() - min(self.running.values(), default=0.0)
        if len(self.running) > 1 or (self.running and (words or self.total)):
            words.append(f"{len(self.running)} running" + f", longest {_rough(longest)}" * (longest >= 1))
        elif self.running and longest >= 1:
            words.append(f"running {_rough(longest)}")
        return f"{'  '.join(words):<6}{self.pace.text(self.done, self.total)}"

    def _counts(self, one: bool = False) -> list[str]:
        words = [f"{self.done}/{self.total}"] * bool(self.total)
        outcomes = [word for word in ("reused", "ran", "failed", "interrupted", "paused") if self.counts[word]]
        return words + [word if one else f"{self.counts[word]} {word}" for word in outcomes]


@dataclass(eq=False)
class Loop:
    """All loops of one name in this scope, and how far the last of them is."""

    name: str
    first: int = 0  # items that it did not have to repeat
    saved: float = 0.0  # seconds that they had taken
    at: int = 0  # the number of the current item
    total: int = 0  # 0: not known
    snapshot: int = 0  # items before the last snapshot
    snapshot_time: float = 0.0
    begun: float | None = None  # when its first item began; None before and after
    complete: bool = False
    loops: int = 0
    iterations: int = 0
    seconds: float = 0.0
    printed: str = ""
    pace: Pace = field(default_factory=Pace)

    def text(self) -> str:
        """The line without the name, as it is printed when the loop is over."""
        if not self.iterations:
            return f"{self._of(self.first)} reused  {duration(self.saved, milliseconds=True)} saved"
        text = self._of(self.at) if self.loops == 1 else f"{self.iterations} iterations in {self.loops} loops"
        seconds = self.seconds + (0.0 if self.begun is None else time.monotonic() - self.begun)
        left_early = not self.complete and self.snapshot > 0
        return f"{text:<6}  {duration(seconds, milliseconds=True):>6}" + f"  snapshot at {self.snapshot}" * left_early

    def now(self) -> str:
        """The same while it goes on."""
        text = self._of(self.at) + self.pace.text(self.at - 1, self.total)
        if self.snapshot > self.first:
            text += f"  snapshot at {self.snapshot}, {_rough(time.time() - self.snapshot_time)} ago"
        return text

    def _of(self, number: int) -> str:
        return f"{number}/{self.total}" if self.total else str(number)


class Report:
    """The report on one run, from the opening of its scope to its end."""

    def __init__(self, run: Session, lines: Lines, default: bool, *, debug: bool = False) -> None:
        self._run, self.lines, self._default = run, lines, default
        self._records = _Records(self) if debug else None  # until the scope ends, log records are lines, too
        self._every: list[Line | Loop] = []
        self._steps: dict[str, Line] = {}
        self._maps: list[tuple[str, Line]] = []  # step and line of those in progress
        self._loops: dict[str, Loop] = {}
        self._current: list[Line] = []  # not printed yet: one, or several if workers are at work
        self._failures: set[str] = set()  # errors already shown in the line of a step
        self._explain = ""  # the node or step for the suggested `oncemore why`
        self._unkept = 0
        self._last_line, self._pause = time.monotonic(), _FIRST_PAUSE

    # -- what happens

    def notify(self, event: events.StepEvent) -> None:
        with _lock:
            line = self._line(event.step)
            if isinstance(event, events.StepStarted):
                if not (line.running or line.counts["ran"]):
                    line.pace.restart(line.done)
                line.running[event.fingerprint] = event.time
                if line not in self._current and not event.scope:
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
                self._ended(line, event.fingerprint, "ran", event.seconds, bool(event.scope))
            elif isinstance(event, events.StepNotKept):
                self._unkept += 1
                line.why = "  not kept"
                self._ended(line, event.fingerprint, "ran", event.seconds, bool(event.scope))
            elif isinstance(event, events.StepRetried):
                line.retries += 1
                line.seconds += event.seconds
                line.next_try = f"  {event.line}"
                if not line.total:  # of many calls, only the number is of interest
                    self._put(self._row(line.name, event.line))
                self.lines.changed()
            elif isinstance(event, events.StepFailed):
                self._failures.add(event.error)
                line.error = f"  {event.error}" + ("" if line.total else "  → fix it and run again")
                self._ended(line, event.fingerprint, "failed", event.seconds, bool(event.scope))

    def interrupted(self, node: Node, seconds: float, *, paused: bool = False) -> None:
        """A node was interrupted by Ctrl-C or cancellation, or `paused` by a question."""
        with _lock:
            how = "paused" if paused else "interrupted"
            self._ended(self._line(node.step), node.fingerprint, how, seconds)

    def reused(self, step: str, ended: float, seconds: float) -> None:
        """A call was reused that had taken `seconds` and had `ended` then."""
        with _lock:
            line = self._line(step)
            line.counts["reused"] += 1
            line.reuse.add(step, ended, seconds)
            self._changed(line)

    def reused_by_workers(self, reuse: Reuse) -> None:
        with _lock:
            for step, times in reuse.times.items():
                line = self._line(step)
                line.counts["reused"] += times
                line.reuse.update(reuse.only(step))
                self._changed(line, in_worker=True)

    def look_at_workers(self) -> None:
        """Show what workers did since the last look."""
        workers = self._run.workers
        if workers is not None:
            workers.look()

    def _ended(self, line: Line, fingerprint: str, how: str, seconds: float, in_worker: bool = False) -> None:
        line.next_try = ""
        line.counts[how] += 1
        line.seconds += seconds
        line.running.pop(fingerprint, None)  # none for generators, and for short steps of workers
        self._changed(line, in_worker=in_worker)

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
            self.lines.changed()
        try:
            yield advance
        finally:
            with _lock:
                self._maps.remove((step, line))
                if line in self._current:
                    self.settle()

    @contextmanager
    def loop(self, name: str, first: int, total: int, saved: float) -> Generator[Callable[[int], None], None, None]:
        """Show a loop that begins after `first` items, which `saved` so many seconds.

        Yields a function to be called with the number of each item.
        """
        with _lock:
            if name not in self._loops:
                self._loops[name] = Loop(name)
                self._every.append(self._loops[name])
            loop = self._loops[name]
            loop.first = loop.at = loop.snapshot = first
            loop.saved, loop.total, loop.complete = saved, total, False

        def begin_item(number: int) -> None:
            with _lock:
                if loop.begun is None:
                    self._begin_loop(loop)
                loop.iterations += 1
                loop.at = number
                self.lines.changed()

        try:
            yield begin_item
            loop.complete = True
        finally:
            with _lock:
                self._leave_loop(loop)

    def _begin_loop(self, loop: Loop) -> None:
        loop.begun = time.monotonic()
        loop.loops += 1
        loop.pace.restart(loop.first)
        if loop.first:
            self.settle()
            where = f"{loop.first + 1} of {loop.total}" if loop.total else str(loop.first + 1)
            self._put(self._row(loop.name, f"continued at {where}  {duration(loop.saved, milliseconds=True)} saved"))

    def _leave_loop(self, loop: Loop) -> None:
        if loop.begun is not None:
            loop.seconds += time.monotonic() - loop.begun
            loop.begun = None
        if not loop.printed and (loop.iterations or loop.first):
            self.settle()
            self._print(loop)

    def snapshot(self, event: events.SnapshotSaved) -> None:
        """A loop has saved a snapshot."""
        with _lock:
            loop = self._loops.get(event.loop)
            if loop is not None:
                loop.snapshot, loop.snapshot_time = event.seen, time.time()
                self.lines.changed()

    def _line(self, step: str) -> Line:
        for mapped, line in reversed(self._maps):
            if mapped == step:
                return line
        if step not in self._steps:
            self._steps[step] = Line(step)
            self._every.append(self._steps[step])
        return self._steps[step]

    # -- what is shown

    def _changed(self, line: Line, *, in_worker: bool = False) -> None:
        if line not in self._current:
            if not in_worker:
                self.settle()
            self._current.append(line)
        self.lines.changed()

    def settle(self) -> None:
        """End the current lines, and print those of steps that have no printed line yet."""
        lines, self._current = self._current, []
        for line in lines:
            if not line.printed:
                self._print(line)

    def _print(self, line: Line | Loop) -> None:
        line.printed = line.text()
        self._put(self._row(line.name, line.printed))

    def _put(self, row: str) -> None:
        self.lines.line(row)
        self._last_line, self._pause = time.monotonic(), _FIRST_PAUSE

    def _row(self, name: str, text: str) -> str:
        width = max(8, *(min(len(each.name), 30) for each in self._every))
        return f"  {name:<{width}}  {text}".rstrip()

    def now(self, *, bars: bool = False) -> str:
        """What is in progress, in one line: loops, maps, running steps, and the step whose line is not printed yet."""
        rows = [self._row(each.name, each.now()) for each in self._loops.values() if each.begun is not None]
        maps = [line for _, line in self._maps]
        steps = [each for each in self._steps.values() if each.running or each in self._current]
        rows += [self._row(each.name, each.now(bars=bars)) for each in (*maps, *steps)]
        return " ·".join(rows)

    def overdue(self) -> str:
        """What is in progress, if nothing has been printed for a while. Each time, the while is twice as long."""
        running = any(each.running for each in self._steps.values())
        looping = any(each.begun is not None for each in self._loops.values())
        if not (self._maps or running or looping) or time.monotonic() - self._last_line < self._pause:
            return ""
        self._last_line, self._pause = time.monotonic(), min(2 * self._pause, _LONGEST_PAUSE)
        return self.now()

    def close(self, end: events.Event, error: BaseException | None) -> None:
        with _lock:
            self.settle()
            for line in self._every:
                started = line.iterations or line.first if isinstance(line, Loop) else line.counts or line.done
                if started and line.text() != line.printed:
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
        iterations = sum(times for name, times in run.reused.items() if name in self._loops)
        kept = run.ran.total() + run.reused.total() - iterations - self._unkept
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


# -- text


def _rough(seconds: float) -> str:
    """A duration without fractions: 12 s, 4 min, 3 h 20 min."""
    if seconds < 90:
        return f"{max(0, seconds):.0f} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else duration(seconds)


def _rate(per_second: float) -> str:
    for factor, unit in ((1, "s"), (60, "min")):
        if per_second * factor >= 1:
            return f"{per_second * factor:.{1 if per_second * factor < 10 else 0}f}/{unit}"
    return f"{per_second * 3600:.1f}/h"


def _bar(done: int, total: int) -> str:
    full = _BAR * done // max(total, 1)
    return "━" * full + "─" * (_BAR - full)
