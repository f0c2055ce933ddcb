"""A run opened once more: in this process, or in a new one as a user starts it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote

from oncemore import Run, checkpoint_scope
from oncemore.codec import Decoded
from oncemore.events import Event, StepCompleted
from oncemore.settings import secret
from tests.processes import Finished, Script

RAN = "RAN"  # what a step of a script prints when its body runs


class Outcome(NamedTuple):
    """One scope: what its body returned, which steps ran in it, and the events it left."""

    value: Any
    ran: dict[str, int]
    events: list[Event]

    @property
    def reasons(self) -> dict[str, str]:
        """Why each completed step ran, by step."""
        return {_short(event.step): event.reason for event in self.events if isinstance(event, StepCompleted)}


def scope(body: Callable[[Run], Any], run_id: str = "run", **options: Any) -> Outcome:
    """Open the run, let the body use it, leave it. The store is in memory, and each test has its own."""
    options.setdefault("store", f"memory://{os.environ['HOME']}")
    with checkpoint_scope(run_id, **options) as run:
        known = max((event.seq for event in run.events()), default=0)
        value = body(run)
        found = list(run.events(known))
    return Outcome(value, {_short(step): times for step, times in run.ran.items()}, found)


def _short(step: str) -> str:
    return step.rpartition(".")[2]


def effects(run: Run, step: str) -> list[str]:
    """The kinds of surroundings that checkpoints of a step have effects of."""
    found: set[str] = set()
    for key, data in run.store.scan(f"{run._session.entries.prefix}"):
        name = _short(unquote(key[len(run._session.entries.prefix) :].partition("/")[0]))
        if name == step and data is not None:
            found.update(Decoded(data, key=key, secret=secret()).meta.get("effects", ()))
    return sorted(found)


def twice(body: Callable[[Run], Any], **options: Any) -> Any:
    """What the body returns in a run whose steps are all skipped, after it was the same in the run that they ran in."""
    first, second = scope(body, **options), scope(body, **options)
    assert first.ran, "no step ran in the first scope"
    assert second.ran == {}, f"{second.ran} ran again: {second.reasons}"
    assert second.value == first.value
    return second.value


def skipped_alike(script: Script, source: str, **options: Any) -> Finished:
    """Run a script in two processes: in the second no step runs, and all else that it prints is the same."""
    first = script(source, **options)
    second = script(name="script.py", **options)
    assert any(line.startswith(RAN) for line in first.lines), "no step ran in the first process"
    assert [line for line in second.lines if line.startswith(RAN)] == []
    assert second.lines == [line for line in first.lines if not line.startswith(RAN)]
    assert "CheckpointWarning" not in first.err + second.err
    return second
