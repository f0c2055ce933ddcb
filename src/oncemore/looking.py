"""Runs that are looked at: nothing is written, and a step that would run is told instead.

Processes that the script starts look, too. What they see they write into a file of notes, so that it is known however the
script treats what comes back from them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from . import current
from .nodes import Node
from .runs import Run
from .stores import Store
from .stores.overlay import Overlay

LOOK = "ONCEMORE_LOOK"  # names the notes, in the environment of processes that a script starts while it is looked at


class WouldRun(BaseException):
    """A step would run now. No `Exception`: a script that is looked at must not take it for a failure of its own."""

    def __init__(self, run: str, step: str, node: str, why: str) -> None:
        super().__init__(run, step, node, why)
        self.run, self.step, self.node, self.why = run, step, node, why

    def __str__(self) -> str:
        return f"{self.node} would run: {self.why}"


class Look:
    """A script that is looked at: `runs` are those that its scopes open in process `pid`, made by `kind`."""

    def __init__(self, notes: str, kind: Callable[..., Looking], pid: int) -> None:
        self.notes, self.pid, self.runs = notes, pid, list[Looking]()
        self._kind, self._overlays = kind, dict[str, Overlay]()

    def new_run(self, run_id: str, store: Store, **options: Any) -> Looking:
        make = self._kind if self.pid == os.getpid() else Looking
        run = make(run_id, self.over(store), **options)
        self.runs.append(run)
        return run

    def over(self, store: Store) -> Overlay:
        """One overlay for each store: what a scope leaves there, the next finds."""
        if isinstance(store, Overlay):
            return store
        return self._overlays.setdefault(store.url, Overlay(store))

    def note(self, *facts: Any) -> None:
        with contextlib.suppress(FileNotFoundError):  # it is over, and nobody reads it any more
            file = os.open(self.notes, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(file, json.dumps(facts).encode() + b"\n")
            finally:
                os.close(file)

    def noted(self, kind: str) -> Iterator[list[Any]]:
        """What was noted under a word, in order."""
        with open(self.notes, encoding="utf-8") as file:
            yield from (fact[1:] for fact in map(json.loads, file) if fact[0] == kind)


class Looking(Run):
    """A run whose store is only read, and whose steps do not run."""

    def __init__(self, run_id: str, store: Overlay, **options: Any) -> None:
        options["retention"] = None
        super().__init__(run_id, store, **options)

    def will_run(self, node: Node, why: str, *, once: bool) -> None:
        shelf = self.shelf_of(node)
        intent = shelf.read(shelf.intent_key(node.idempotency_key)) if once else None
        if intent is not None and intent.meta.get("settled"):
            return  # its body does not run: somebody has said what came of it
        unknown = "it was cut off, and its outcome is unknown: say `oncemore resolve`"
        would_run(node.step, why if intent is None else unknown, run=self.id, node=node.id)

    def will_go(self, name: str, why: str) -> None:
        would_run(name, why, run=self.id)

    def count_reuse(self, step: str, key: str, seconds: float) -> None:
        super().count_reuse(step, key, seconds)
        if current.rehearsal is not None and current.rehearsal.pid != os.getpid():
            current.rehearsal.note("reused", step, seconds)


def would_run(step: str, why: str, *, run: str = "", node: str = "") -> NoReturn:
    """Stop the script that is looked at: here a step would run."""
    stop = WouldRun(run, step, node or step, why)
    if current.rehearsal is not None:
        current.rehearsal.note("would run", *stop.args)
    raise stop


def called_plainly(step: str) -> None:
    """A step is about to run outside a scope: not while a script is looked at."""
    if current.rehearsal is not None:
        would_run(step, "it is called outside a scope, where nothing is kept")


def new_run(run_id: str, store: Store, **options: Any) -> Run:
    """A run, or while a script is only looked at, one to look at."""
    look: Look | None = current.rehearsal
    return Run(run_id, store, **options) if look is None else look.new_run(run_id, store, **options)


def over(store: Store) -> Store:
    """The store, or while a script is only looked at, an overlay over it."""
    return store if current.rehearsal is None else current.rehearsal.over(store)


if os.environ.get(LOOK):  # started by a script that is looked at
    current.rehearsal = Look(os.environ[LOOK], Looking, 0)
    current.engage(current.rehearsal)
