"""Durations as people write them: "90s", "5min", "2h", "1d", "1w", a number of seconds, a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Union

from .errors import UsageError

Duration = Union[str, float, timedelta]

_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds(duration: Duration) -> float:
    """The duration in seconds; UsageError for what is none."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", duration.lower())
        if match and match[2] in _SECONDS:
            return float(match[1]) * _SECONDS[match[2]]
    elif not isinstance(duration, bool) and duration >= 0:
        return float(duration)
    raise UsageError(f"{duration!r} is not a duration; write '90s', '5min', '2h', '1d', '1w', seconds or a timedelta")
