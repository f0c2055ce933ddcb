"""Runs that are looked at: nothing is written, and a step that would run is told instead."""

from __future__ import annotations

import os
from typing import Any

from . import current
from .nodes import Node
from .runs import Run
from .stores import Store
from .stores.overlay import Overlay

LOOK = "ONCEMORE_LOOK"  # in the environment of processes that a script starts while it is looked at


class WouldRun(BaseException):
    """A step would run now. No `Exception`: a script that is looked at must not take it for a failure of its own."""

    def __init__(self, run: str, step: str, node: str, why: str) -> None:
        super().__init__(run, step, node, why)
        self.run, self.step, self.node, self.why = run, step, node, why

    def __str__(self) -> str:
        return f"{self.node} would run: {self.why}"


class Looking(Run):
    """A run whose store is only read, and whose steps do not run."""

    def __init__(self, run_id: str, store: Store, **options: Any) -> None:
        options["retention"] = None
        super().__init__(run_id, Overlay(store), **options)

    def will_run(self, node: Node, why: str, *, once: bool) -> None:
        raise WouldRun(self.id, node.step, node.id, why)


def new_run(run_id: str, store: Store, **options: Any) -> Run:
    """A run, or while a script is only looked at, one to look at."""
    rehearsal = current.rehearsal
    if rehearsal is not None and rehearsal.pid == os.getpid():
        found: Run = rehearsal.new_run(run_id, store, **options)
        return found
    return Looking(run_id, store, **options) if os.environ.get(LOOK) else Run(run_id, store, **options)
