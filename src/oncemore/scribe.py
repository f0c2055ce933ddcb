"""Writes down that a step has begun, if it takes a while: so that others see what runs, and a dead run shows where it died."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from .errors import StoreError
from .events import StepStarted

PATIENCE = 0.5  # seconds; a step that is over by then leaves one event instead of two


class Scribe:
    """One thread for all steps of a run, started when the first step is, idle while none runs."""

    def __init__(self, write: Callable[[StepStarted], None]) -> None:
        self._write = write
        self._begun: dict[int, StepStarted] = {}
        self._wake = threading.Condition()
        self._owner = 0

    def begin(self, event: StepStarted) -> None:
        if (
            self._owner != os.getpid()
        ):  # also in a forked child: it has no thread of ours, and our lock may be held there
            self._owner, self._begun, self._wake = os.getpid(), {}, threading.Condition()
            threading.Thread(target=self._watch, name="oncemore-scribe", daemon=True).start()
        with self._wake:
            if not self._begun:
                self._wake.notify()
            self._begun[id(event)] = event

    def end(self, event: StepStarted) -> None:
        with self._wake:
            self._begun.pop(id(event), None)

    def _watch(self) -> None:
        while True:
            with self._wake:
                while not self._begun:
                    self._wake.wait()
            time.sleep(PATIENCE)
            with self._wake:
                due = [event for event in self._begun.values() if time.time() - event.time >= PATIENCE]
                for event in due:
                    del self._begun[id(event)]
            for event in due:
                try:
                    self._write(event)
                except StoreError:
                    pass  # the step's own end will tell of a store that cannot be written
