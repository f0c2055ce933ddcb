"""Writes down that a step has begun, if it takes a while: so that others see what runs, and a dead run shows where it died."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from .errors import StoreError
from .events import StepStarted, lane
from .nodes import Node

PATIENCE = 0.5  # seconds; a step that is over by then leaves one event instead of two


class Begun:
    """A step that is under way: when and where it began."""

    __slots__ = ("lane", "node", "time")

    def __init__(self, node: Node) -> None:
        self.node, self.time, self.lane = node, time.time(), lane()

    def event(self) -> StepStarted:
        return StepStarted(**self.node.about(), time=self.time, lane=self.lane)


class Scribe:
    """One thread for all steps of a run, from the first step to the end of the scope. Steps never wait for it."""

    def __init__(self, write: Callable[[StepStarted], None]) -> None:
        self._write = write
        self._begun: dict[int, Begun] = {}
        self._owner = 0  # the process that has the thread: a forked child needs one of its own

    def begin(self, node: Node) -> Begun:
        if self._owner != os.getpid():
            self._owner, self._begun = os.getpid(), {}
            threading.Thread(target=self._watch, args=(self._begun,), name="oncemore-scribe", daemon=True).start()
        begun = Begun(node)
        self._begun[id(begun)] = begun
        return begun

    def end(self, begun: Begun) -> None:
        self._begun.pop(id(begun), None)

    def stop(self) -> None:
        """The scope ends; a step after this begins anew."""
        self._owner = 0

    def _watch(self, begun: dict[int, Begun]) -> None:
        while self._owner == os.getpid() and self._begun is begun:
            time.sleep(PATIENCE)
            for key, each in list(begun.items()):
                if time.time() - each.time >= PATIENCE and begun.pop(key, None) is not None:
                    try:
                        self._write(each.event())
                    except StoreError:
                        pass  # the step's own end will tell of a store that cannot be written
