"""What a user can ask of a step, besides calling it."""

from __future__ import annotations

import time
from typing import Any

from .asked import Asked
from .calls import Definition
from .errors import NotRecorded, UsageError
from .fingerprint import Fingerprint
from .reasons import Explanation
from .records import Reference


def asked(step: Definition, args: tuple[Any, ...], kwargs: dict[str, Any], reference: Reference | None) -> Asked:
    """Which node a call would be. UsageError outside a scope."""
    run = step.home(reference)
    if run is None:
        raise UsageError(f"step {step.name} has checkpoints only inside `with checkpoint_scope(...)`")
    found = step.ask(run, args, kwargs, take=False)
    if found is None:
        step.identity.bind(*args, **kwargs)
        step.identity.code()  # one of the two raises what went wrong
        raise AssertionError("a call without identity whose parts all have one")
    return found


def recalled(step: Definition, asked: Asked) -> Any:
    """What is kept of a call: the value, or a generator of the items."""
    entry, why = step.find(asked)
    if entry is None:
        raise NotRecorded(f"run {asked.run.id} has no checkpoint of {asked.node.id}" + (f" ({why})" if why else ""))
    return step.look(asked, entry)


def explained(step: Definition, asked: Asked) -> Explanation:
    """Whether the call would be skipped now, or why not."""
    entry, why = step.find(asked)
    if entry is None:
        return Explanation(step.name, asked.node.id, False, why) if why else step.compare(asked)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.meta["time"]))
    said = f"reused: kept on {when}, took {entry.meta['seconds']:.1f} s"
    return Explanation(step.name, asked.node.id, True, said)


def refreshed(step: Definition, args: tuple[Any, ...], kwargs: dict[str, Any], reference: Reference | None) -> Any:
    """The call, made whatever is kept of it."""
    run = step.home(reference)
    return step.plainly(args, kwargs) if run is None else step.enter(run, args, kwargs, fresh=True)


def fingerprint(step: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fingerprint:
    """What identifies the call, part by part."""
    identity = step.identity
    bound = identity.bind(*args, **kwargs)
    arguments = identity.identify(bound, args, kwargs)
    return Fingerprint(arguments.digest + identity.code(), {**arguments.parts, **identity.code_parts()})
