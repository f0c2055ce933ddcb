"""The short way for a call that was skipped in this scope before: no digest, no look into the store.

Only for calls of plain arguments whose checkpoint is a plain value and nothing else. All that the long way would find is
known to be the same: the arguments and their types, the code, and that nobody here has replaced or removed the entry.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from .asked import Asked, around
from .codec import Decoded
from .errors import FingerprintError
from .runs import Run
from .surroundings import indifferent

if TYPE_CHECKING:
    from .calls import Definition

MISSING: Any = object()
_EXACT = frozenset(
    [int, str, bytes, bool, type(None)]
)  # equal and of one type: one digest. Not floats: 0.0 equals -0.0
_LONGEST = 200  # characters of an argument
_MOST = 100_000  # calls of a run


def recall(step: Definition, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A fresh value of the call, or MISSING: then the long way has to be gone."""
    try:
        bound = step.identity.bind(*args, **kwargs)
    except TypeError:  # not the function's parameters
        return MISSING
    kinds = tuple(map(type, bound))
    known = run.quick.get((step, bound, kinds)) if _EXACT.issuperset(kinds) else None  # no hash of the user's own
    if known is None:
        return MISSING
    stamp, asked, entry, stream = known
    try:
        now = step.identity.stamp()
    except FingerprintError:  # the long way tells
        return MISSING
    if now is not stamp or asked.shelf.near(entry.key) is not entry or around(asked.node):
        return MISSING
    if run.wants_fresh(asked.node, once=step.once) or not indifferent():
        return MISSING
    if asked.shelf is not (run.shared if step.share else run.shelf):  # rolled back
        return MISSING
    run.count_reuse(asked.node, entry)
    return pickle.loads(stream)


def remember(step: Definition, asked: Asked, entry: Decoded) -> None:
    """Know the call again, if it is one of those that can go the short way."""
    run, kinds = asked.run, tuple(map(type, asked.bound))
    if not _EXACT.issuperset(kinds) or len(run.quick) >= _MOST:
        return
    if any(len(value) > _LONGEST for value in asked.bound if isinstance(value, (str, bytes))):
        return
    try:
        stream, stamp, code = entry.bare(), step.identity.stamp(), step.identity.code()
    except FingerprintError:
        return
    if stream is not None and code == asked.node.code:  # it may have changed since the call began
        run.quick[step, asked.bound, kinds] = stamp, asked, entry, stream
