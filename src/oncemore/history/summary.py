"""Summaries of runs, computed from their events."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

from .. import events
from ..events import Event


class StepSummary(NamedTuple):
    """The totals of one step in a run, over all attempts."""

    step: str
    ran: int = 0
    reused: int = 0
    failed: int = 0
    retried: int = 0  # tries that failed and were followed by another
    seconds: float = 0.0
    seconds_saved: float = 0.0
    raw_bytes: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The totals of a run, over all attempts, workers included.

    `seconds_saved` is the time that reuse saved on the clock: less than the sum over the steps if they overlapped.
    """

    run: str
    status: str
    attempts: int
    first: datetime | None
    last: datetime | None
    steps: tuple[StepSummary, ...]
    names: Mapping[str, int]
    seconds_saved: float = 0.0

    @property
    def total(self) -> StepSummary:
        columns = list(zip(*(step[1:] for step in self.steps)))
        total = StepSummary("total", *(sum(column) for column in columns)) if columns else StepSummary("total")
        return total._replace(seconds_saved=self.seconds_saved)

    @property
    def duration(self) -> float:
        """Seconds from the first event to the last."""
        return (self.last - self.first).total_seconds() if self.first and self.last else 0.0

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        fields.update(
            first=self.first and self.first.isoformat(),
            last=self.last and self.last.isoformat(),
            duration=self.duration,
            steps=[step._asdict() for step in self.steps],
            total=self.total._asdict(),
        )
        return fields

    def _rows(self) -> list[tuple[str, ...]]:
        retried = ["retried"] if self.total.retried else []  # a column only if it says something
        rows: list[tuple[str, ...]] = [
            ("step", "ran", "reused", "failed", *retried, "spent", "saved", "bytes", "stored")
        ]
        for step in (*self.steps, self.total):
            spent = (
                f"{step.seconds:.1f} s",
                f"{step.seconds_saved:.1f} s",
                f"{step.raw_bytes:,}",
                f"{step.stored_bytes:,}",
            )
            counts = [str(step.ran), str(step.reused), str(step.failed), *([str(step.retried)] if retried else [])]
            rows.append((step.step, *counts, *spent))
        return rows

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = [f"run {self.run}: {self.status}, attempt {self.attempts}"]
        for first, *others in rows:
            cells = (cell.rjust(width) for cell, width in zip(others, widths[1:]))
            lines.append("  ".join((first.ljust(widths[0]), *cells)).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, *rows = self._rows()

        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        caption = f"<caption>run {html.escape(self.run)}: {self.status}</caption>"
        return f"<table>{caption}{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def summarize(run_id: str, status: str, attempts: int, log: Iterable[Event], also: Iterable[Event] = ()) -> Summary:
    """Compute a summary from events; `also` are events not written to the log yet."""
    steps: dict[str, StepSummary] = {}
    names: dict[str, int] = {}
    times: list[float] = []
    elsewhere = 0.0

    def add(step: str, **more: float) -> None:
        known = steps.setdefault(step, StepSummary(step))
        steps[step] = known._replace(**{name: getattr(known, name) + value for name, value in more.items()})

    for event in (*log, *also):
        times.append(event.time)
        if isinstance(event, events.StepCompleted):
            add(event.step, ran=1, seconds=event.seconds, raw_bytes=event.raw_bytes, stored_bytes=event.stored_bytes)
        elif isinstance(event, events.StepReused):
            add(event.step, reused=event.times, seconds_saved=event.seconds_saved)
            elsewhere += event.elsewhere
        elif isinstance(event, events.StepFailed):
            add(event.step, failed=1, seconds=event.seconds)
        elif isinstance(event, events.StepRetried):
            add(event.step, retried=1, seconds=event.seconds)
        elif isinstance(event, events.StepNotKept):
            add(event.step, ran=1, seconds=event.seconds)
        elif isinstance(event, events.CheckpointSaved):
            names[event.name] = names.get(event.name, 0) + 1
    first, last = (datetime.fromtimestamp(t, timezone.utc) for t in (times[0], times[-1])) if times else (None, None)
    return Summary(
        run=run_id,
        status=status,
        attempts=attempts,
        first=first,
        last=last,
        steps=tuple(steps.values()),
        names=names,
        seconds_saved=sum(step.seconds_saved for step in steps.values()) - elsewhere,
    )
