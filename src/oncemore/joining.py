"""Runs without a scope of their own here: those that another process has opened, and the place of shared results."""

from __future__ import annotations

import os
from typing import Any

from . import current
from .looking import new_run
from .opening import default_store
from .records import Reference
from .runs import Run
from .shelf import Shelf
from .stores import open_store

_joined: dict[tuple[int, Any, Reference], Run] = {}


def join(reference: Reference) -> Run:
    """Take part in a run that another process has opened."""
    place = (os.getpid(), current.rehearsal, reference)
    if place not in _joined:
        run = new_run(reference.id, open_store(reference.store), strict=reference.strict)
        _joined[place] = run.open(announce=False)
    return _joined[place]


def outside() -> Run:
    """Where shared steps keep their results when they are called outside a scope: no history, only results."""
    store = default_store()
    place = (os.getpid(), current.rehearsal, Reference("", store.url, False))
    if place not in _joined:
        run = new_run("", store)
        run.shelf = run.shared = Shelf(run.store, "shared", "shared/", None)
        _joined[place] = run
    return _joined[place]
