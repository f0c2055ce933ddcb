"""Which run is current: one per thread and per task."""

from __future__ import annotations

import threading
import weakref
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runs import Run

_current: ContextVar[Run | None] = ContextVar("oncemore_run")  # not set in a thread that has entered no scope
here = _current.get  # `here(None)` is what `current_run` gives, with one call less
rehearsal: Any = None  # a `Look`, while a script is run to look, not to do (see looking.py)
opened: dict[Run, tuple[Run | None, int]] = {}  # the runs open in this process: the run around each, and its thread
engaged: set[object] = set()  # references to runs that keep something, and to rehearsals: without any, calls are plain


def engage(keeper: object) -> None:
    """From now on calls may be more than plain ones, as long as `keeper` exists: a task may go on in a scope that was left."""
    engaged.add(weakref.ref(keeper, engaged.discard))


def current_run() -> Run | None:
    """The run whose scope this thread or task is in, or None."""
    return _current.get(None)


def run_here() -> Run | None:
    """The run that a step called or pickled here belongs to.

    Threads of pools enter no scope. While one run is open in the process (or one inside the others), theirs is that.
    """
    try:
        return _current.get()
    except LookupError:
        pass
    runs = dict(opened)
    around = {outer for outer, _ in runs.values()}
    here = [run for run in runs if run not in around]
    if threading.get_ident() in {thread for _, thread in runs.values()} or len({run.reference for run in here}) != 1:
        return None
    return here[-1]


def enter(run: Run | None) -> Token[Run | None]:
    """Make `run` current in this thread or task."""
    return _current.set(run)


def leave(token: Token[Run | None]) -> None:
    _current.reset(token)
