"""Dry runs: nothing is written, and the first step that would run ends the script instead.

This also holds in processes that the script starts. They report through a file of notes, so nothing is lost whatever the
script does with their results.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from .. import current, effects_once
from ..entries import RunEntries
from ..events import StepEvent
from ..node import ASKED, Node
from ..records import Record
from ..session import Session
from ..stores import Store
from ..stores.layered import Overlay

LOOK = "ONCEMORE_LOOK"  # environment variable: names the file of notes for processes that the script starts


class WouldRun(NamedTuple):
    """A step that would run now."""

    run: str
    step: str
    node: str
    why: str

    def __str__(self) -> str:
        return f"{self.node} would run: {self.why}"


class Stop(BaseException):
    """Ends the script of a dry run. Not an `Exception`, so that the script does not handle it as a failure of its own."""


class StepPolicy:
    """Which steps run in the dry run of the run `run_id`: none. Subclasses let some run, and receive their events."""

    run_id = ""

    def wants_fresh(self, run: DryRun, node: Node, *, once: bool) -> bool:
        """Whether a step should run even if it has a checkpoint."""
        return False

    def lets_run(self, run: DryRun, node: Node, *, once: bool) -> bool:
        return False

    def heard(self, run: DryRun, event: StepEvent) -> None: ...


class Look:
    """The dry run of one script. `runs` are those that its scopes open; `policy` applies in process `pid` only."""

    def __init__(self, notes: str, policy: StepPolicy, pid: int) -> None:
        self.notes, self.policy, self.pid = notes, policy, pid
        self.runs: list[DryRun] = []
        self._overlays: dict[str, Overlay] = {}

    def new_run(self, run_id: str, store: Store, **options: Any) -> DryRun:
        applies = self.pid == os.getpid() and run_id == self.policy.run_id
        run = DryRun(run_id, self.over(store), self.policy if applies else StepPolicy(), **options)
        self.runs.append(run)
        return run

    def over(self, store: Store) -> Overlay:
        """The overlay over a store. Scopes share it, so each finds what the ones before it wrote."""
        if isinstance(store, Overlay):
            return store
        return self._overlays.setdefault(store.url, Overlay(store))

    def forbid_plain_call(self, step: str) -> NoReturn:
        """A step is about to run outside a scope: end the script."""
        would_run(step, "it is called outside a scope, where nothing is recorded")

    def note(self, *fields: Any) -> None:
        with contextlib.suppress(FileNotFoundError):  # the dry run is over
            file = os.open(self.notes, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(file, json.dumps(fields).encode() + b"\n")
            finally:
                os.close(file)

    def noted(self, kind: str) -> Iterator[list[Any]]:
        """The notes of one kind, in order."""
        with open(self.notes, encoding="utf-8") as file:
            yield from (note[1:] for note in map(json.loads, file) if note[0] == kind)


class DryRun(Session):
    """A run that is opened in a dry run: its store is only read, and its steps run only if `policy` lets them."""

    def __init__(self, run_id: str, store: Overlay, policy: StepPolicy, **options: Any) -> None:
        options["retention"] = None
        super().__init__(run_id, store, **options)
        self._below, self._policy = store.below, policy
        self.on(StepEvent, lambda event: policy.heard(self, event))

    def use(self, record: Record) -> None:
        super().use(record)
        self._stored = self.entries_in(self._below, record)

    def stored(self, node: Node) -> RunEntries:
        """The entries that a node belongs to, in the store itself, without what the dry run has written."""
        return self._stored[node.owner == "shared"]

    def wants_fresh(self, node: Node, *, once: bool) -> bool:
        return super().wants_fresh(node, once=once) or self._policy.wants_fresh(self, node, once=once)

    def will_run(self, node: Node, why: str, *, once: bool) -> None:
        if self._policy.lets_run(self, node, once=once):
            return
        entries = self.entries_of(node)
        intent = effects_once.find(entries, node) if once else None
        settled = intent is None or intent.meta.get("settled")
        if intent is not None and settled and why not in ASKED:
            return  # its body does not run: the outcome is known from `resolve`
        unknown = "it was interrupted and its outcome is unknown; answer with `oncemore resolve`"
        would_run(node.step, why if settled else unknown, run=self.id, node=node.id)

    def will_run_without_node(self, name: str, why: str) -> None:
        would_run(name, why, run=self.id)

    def count_reuse(self, step: str, key: str, ended: float, seconds: float) -> None:
        super().count_reuse(step, key, ended, seconds)
        if current.rehearsal is not None and current.rehearsal.pid != os.getpid():
            current.rehearsal.note("reused", step, ended, seconds)


def would_run(step: str, why: str, *, run: str = "", node: str = "") -> NoReturn:
    """End the script of a dry run, because a step would run."""
    found = WouldRun(run, step, node or step, why)
    if current.rehearsal is not None:
        current.rehearsal.note("would run", *found)
    raise Stop(str(found))


def enough(why: str = "") -> NoReturn:
    """End the script of a dry run, because enough is known, or because of a problem (`why`)."""
    assert current.rehearsal is not None
    current.rehearsal.note("enough", why)
    raise Stop(why)


if os.environ.get(LOOK):  # started by a script in a dry run
    current.rehearsal = Look(os.environ[LOOK], StepPolicy(), 0)
    current.engage(current.rehearsal)
