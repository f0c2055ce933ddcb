"""A progress line on a terminal; nothing elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runs import Run

_INTERVAL = 0.1


class Progress:
    """How far a map has come: reused, ran, failed, and the time that was saved."""

    def __init__(self, run: Run, name: str, total: int) -> None:
        self._run, self._name, self._total = run, name, total
        self._before = self._counts()
        self._done, self._shown = 0, 0.0
        self._lock = threading.Lock()
        self._visible = sys.stderr.isatty() and total > 0

    def _counts(self) -> tuple[int, int, int, float]:
        run = self._run
        return run.reused.total(), run.ran.total(), run.failed.total(), run.seconds_saved

    def step(self) -> None:
        """One more is finished."""
        with self._lock:
            self._done += 1
            if self._visible and time.monotonic() - self._shown > _INTERVAL:
                self._show("\r")

    def _show(self, start: str, end: str = "") -> None:
        self._shown = time.monotonic()
        reused, ran, failed, saved = (now - then for now, then in zip(self._counts(), self._before))
        text = f"{self._name} {self._done}/{self._total}  reused {reused:.0f}  ran {ran:.0f}  failed {failed:.0f}"
        if saved >= 1:
            text += f"  {saved:.0f} s saved"
        sys.stderr.write(f"{start}{text}\x1b[K{end}")
        sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._visible:
            self._show("\r", "\n")
