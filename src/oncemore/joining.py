"""Runs without a scope of their own here: those that another process has opened, and the place of shared results."""

from __future__ import annotations

import copy
import os
from typing import Any

from . import current, records
from .dry_run import new_run
from .entries import RunEntries
from .errors import StoreError
from .keyed import keyed
from .keys import changed, record_key
from .modules import loaded
from .opening import default_store
from .records import Reference
from .session import Session
from .snapshots import Snapshots
from .stores import Store, open_store
from .surroundings.state import State

_process = os.getpid()
_joined: dict[tuple[int, Any, str, str], Session] = {}


def join(reference: Reference) -> Session:
    """Take part in a run that another process has opened, for one call.

    The call begins with the state that the run had when the step was sent. What it does to the state is recorded with the
    checkpoint, and seen by the steps that it calls; other calls in this process do not see it, and neither does the sender.
    """
    place = (os.getpid(), current.rehearsal, reference.id, reference.store)
    run = _joined.get(place)
    if run is None or run.attempt != reference.attempt:  # each scope counts its calls anew
        run = _open(reference)
        _joined[place] = run
    follow(run)
    call = copy.copy(run)
    call.state, call.snapshots = State(reference.state.load()), Snapshots()
    return call


def _open(reference: Reference) -> Session:
    store = keyed(open_store(reference.store), writing=False)
    if not reference.id:
        return _shared_only(store)
    run = new_run(reference.id, store, strict=reference.strict, inputs=reference.inputs)
    run.attempt, run.spread = reference.attempt, bool(reference.attempt)
    return run.open(announce=False)


def follow(run: Session) -> None:
    """Another process has opened this run: look whether any process has replaced or forgotten entries of it since.

    A rollback changes the record, and with it where entries are.
    """
    record, own, shared = record_key(run.id), changed(run.entries.owner), changed("shared")
    try:
        seen = run.store.get_many({record, own, shared} if run.id else {shared})
        data, before = seen.get(record), run.seen
        if data is not None and data != before.get(record):
            run.use(records.parse(record, data))
    except StoreError:
        return  # who needs an entry will meet it
    run.seen = seen
    for entries, mark in ((run.entries, own), (run.shared, shared)):
        if seen.get(mark) != before.get(mark):
            entries.drop_cache()


def outside() -> Session:
    """Where shared steps keep their results when they are called outside a scope: no history, only results."""
    store = default_store()
    place = (os.getpid(), current.rehearsal, "", store.url)
    if place not in _joined:
        _joined[place] = _shared_only(keyed(store, writing=current.rehearsal is None))
    if _is_worker():
        follow(_joined[place])
    return _joined[place]


def _is_worker() -> bool:
    """Whether another Python process has started this one to work for it."""
    family = loaded("multiprocessing")
    return os.getpid() != _process or (family is not None and family.parent_process() is not None)


def _shared_only(store: Store) -> Session:
    run = new_run("", store)
    run.entries = run.shared = RunEntries(run.store, "shared", "shared/", None)
    return run
