"""Durations and sizes, as users write and read them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Union

from .errors import UsageError

Duration = Union[str, float, timedelta]

_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds(duration: Duration) -> float:
    """A duration in seconds: from "90s", "5min", "2h", "1d", "1w", a number or a timedelta. UsageError if it is invalid."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", duration.lower())
        if match and match[2] in _SECONDS:
            return float(match[1]) * _SECONDS[match[2]]
    elif not isinstance(duration, bool) and duration >= 0:
        return float(duration)
    raise UsageError(
        f"{duration!r} is not a duration; use '90s', '5min', '2h', '1d', '1w', a number of seconds or a timedelta"
    )


def duration(seconds: float, *, milliseconds: bool = False) -> str:
    """Format a duration: 2.1 s, 12 min 5 s, 3 h 20 min. With `milliseconds`, 3 ms instead of 0.0 s."""
    if milliseconds and seconds < 0.95:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(count: float) -> str:
    """Format a number of bytes: 512 B, 9 MB, 1.2 GB."""
    power = 0
    while count >= 999.5 and power < 4:
        count, power = count / 1000, power + 1
    return f"{count:.{int(count < 9.95 and power > 0)}f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
