"""The short way of a call that is skipped: from what is in memory, without a look into the store.

Only for checkpoints that are bare (see codec.py) and small, of steps whose arguments count as they are and of which nothing
is kept but their results. Then this is all that the long way would do.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from .asked import Asked, steps_around
from .codec import glance, took
from .errors import FingerprintError
from .nodes import place
from .runs import Run
from .surroundings import careful

if TYPE_CHECKING:
    from .calls import Definition


UNKNOWN: Any = type("UNKNOWN", (), {})  # a call that has no identity: `Definition.ask` knows what to say


def recall(step: Definition, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A fresh value of the call; `Asked`, as `Definition.ask` gives it, if it takes more to find it; or `UNKNOWN`."""
    identity = step.identity
    try:
        bound = identity.bind(*args, **kwargs)
        code, arguments = identity.code(), identity.identify(bound, args, kwargs)
    except (TypeError, FingerprintError):
        return UNKNOWN
    shelf = run.shared if step.share else run.shelf
    where = place(step.name, arguments.digest, code)
    value = shelf.near.values.get(where)
    if value is None and isinstance(data := shelf.near.entries.get(where), bytes):
        value = glance(data, shelf.home + where, shelf.secret)
        if value is not None:
            shelf.near.learn(shelf.home + where, value)
    if value is None or careful or steps_around():
        return Asked(run, shelf, shelf.node(step.name, arguments.digest, code), args, kwargs, arguments)
    run.count_reuse(step.name, shelf.home + where, took(value))
    return pickle.loads(value)
