"""Reshaping the past of a run: rollback, fork, rename, delete. Each is one change of a record; no value is copied."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import records
from .blobs import marks, release, sweep, use, used
from .checkpoints import Checkpoint, fold, recount
from .codec import Decoded, seal, unseal
from .earlier import list_cut
from .errors import UsageError
from .events import Event, Forked, RollbackUndone, RolledBack, RunRenamed, StepCompleted
from .nodes import intent_key, intents_of
from .records import Record, changed, checked, needed, parse, read, record_key, sealed, signed
from .secret import secret
from .stores import Frames, Store

_BATCH = 5000  # entries removed in one transaction: others wait some hundredths of a second


def rollback(store: Store, run_id: str, *, to: str | None = None, before: str | None = None, own: str = "") -> Record:
    """What came after `to` (or from `before` on) does not count any more. `own` is the mark of the scope that asks for it."""
    if (to is None) == (before is None):
        raise UsageError("a rollback needs either to= (that stays) or before= (that goes, too)")

    lists: dict[str, Frames] = {}

    def cut(record: Record) -> list[Event]:
        _refuse_open(store, run_id, record, own)
        target = fold(store, run_id, record).find(to or before or "")
        number = target.number if to is not None else target.number - 1
        record.undo.append(list(record.generations))
        record.branch(target.log, number)
        lists.update(_list_cuts(store, record))
        recount(store, run_id, record)
        return [RolledBack(to=number)]

    return records.change(store, run_id, cut, put=lists)


def _list_cuts(store: Store, record: Record) -> dict[str, Frames]:
    """What counts of the stretches that were cut just now, as entries: a scope that opens the run does not read their logs."""
    lists: dict[str, Frames] = {}
    home = record.generations[-1].home
    for number, g in enumerate(record.generations):
        if g.cut is not None and not g.listed:
            key = f"{home}^/{number}"
            lists[key] = list_cut(store, g, key).frames
            record.generations[number] = replace(g, listed=key)
    return lists


def undo_rollback(store: Store, run_id: str) -> Record:
    """Take the last rollback back: what it had put aside counts again, what came since does not."""

    def undo(record: Record) -> list[Event]:
        if not record.undo:
            raise UsageError(f"run {run_id} has no rollback to undo")
        _refuse_open(store, run_id, record)
        record.generations, record.entries = record.undo.pop(), 0
        recount(store, run_id, record)
        return [RollbackUndone()]

    return records.change(store, run_id, undo)


def _refuse_open(store: Store, run_id: str, record: Record, own: str = "") -> None:
    """Others that have the run open would go on with what no longer counts, and their work would not count, either."""
    if any(mark != own and records.alive(store, record, mark) for mark in record.open):
        raise UsageError(
            f"run {run_id} is open{' elsewhere, too' if own else ''}: after a rollback, nothing that is done there would count. "
            f"Stop it first, or call run.rollback() in its scope, or fork the run, which leaves it as it is"
        )


def fork(
    store: Store, run_id: str, new_id: str, *, at: str | None = None, state: Mapping[str, Any] | None = None
) -> Record:
    """A new run that begins as `run_id` was at a checkpoint (now, if none is named). The parent is left as it is."""
    key, origin = record_key(checked(new_id)), record_key(run_id)
    then = store.get(origin)
    parent = read(store, run_id) if then is None else parse(origin, then)
    if store.get(key) is not None:
        raise UsageError(f"there is a run {new_id!r} already")
    target: Checkpoint | None = fold(store, run_id, parent).find(at) if at is not None else None
    # From here on, who has the parent open writes beside what is there instead of replacing it.
    store.commit(put={needed(g.home): [b"1"] for g in parent.generations})
    last = max((event.seq for event in records.read_log(store, parent.log)), default=0)
    log, number = (target.log, target.number) if target else (parent.log, last)
    child = Record.new(parent.workflow)
    child.generations = _until(run_id, parent, log, number) + child.generations
    child.parent, child.state = (run_id, number), dict(state or {})
    lists = _list_cuts(store, child)
    recount(store, new_id, child)
    cuts: dict[str, int] = {}  # up to which event of each log the fork needs what is there
    for g in child.generations[:-1]:
        cuts[g.log] = max(cuts.get(g.log, 0), g.cut or 0)
    needs = {f"need/{log.split('/')[1]}/{child.uid}": [str(cut).encode()] for log, cut in cuts.items()}
    until = time.time() if target is None else target.time.timestamp()
    lists.update(_performed(store, child, cuts, until))
    begun = signed(child.log, Forked(parent=run_id, at=number), secret())
    put: dict[str, Frames] = {key: sealed(key, child), **needs, **lists}
    append = {child.log: [begun]}
    if store.commit(put=put, append=append, expect={key: None, origin: then}):
        return child
    return fork(store, run_id, new_id, at=at, state=state)  # one of them changed meanwhile


def _performed(store: Store, child: Record, cuts: Mapping[str, int], until: float) -> dict[str, Frames]:
    """What effect="once" steps had done up to the fork, and what was unknown then: the fork does not do it again, either."""
    found: list[tuple[Decoded, memoryview]] = []
    for log in cuts:
        for key, data in store.scan(intents_of(log.split("/")[1])):
            if data is not None:
                found.append((Decoded(data, key=key, secret=secret()), unseal(data, key, secret())))
    done: set[tuple[str, str]] = set()
    for log, cut in cuts.items() if found else ():
        done.update(
            (event.step, event.fingerprint.partition(".")[0])
            for event in records.read_log(store, log)
            if isinstance(event, StepCompleted) and event.seq <= cut
        )
    put: dict[str, Frames] = {}
    for entry, body in found:
        if (entry.meta["step"], entry.meta["given"]) in done or (
            entry.meta.get("settled") != "completed" and entry.time <= until
        ):
            key = intent_key(child.uid, entry.meta["call"])
            put[key] = seal([body], key, secret())
            for blob in entry.meta.get("blobs", ()):
                put.update(marks(use(records.home_of(key), key, blob), blob))
    return put


def _until(run_id: str, parent: Record, log: str, number: int) -> list[records.Generation]:
    last = max(i for i, g in enumerate(parent.generations) if g.log == log)
    kept = [g.until(number) if g.log == log else g for g in parent.generations[: last + 1]]
    return [replace(g, run=g.run or run_id) for g in kept]


def ever(record: Record) -> Record:
    """The record as if what rollbacks put aside still counted."""
    return replace(record, generations=[*(g for past in record.undo for g in past), *record.generations])


def owners(record: Record) -> set[str]:
    """The runs whose entries a record refers to, by their marks."""
    return {g.log.split("/")[1] for g in ever(record).generations}


def rename(store: Store, run_id: str, new_id: str) -> None:
    """Give a run another id. What it holds stays where it is."""
    old, new = record_key(run_id), record_key(checked(new_id))
    while True:
        data = store.get(old)
        record = read(store, run_id)
        if records.status(store, record) == "running":
            raise UsageError(f"run {run_id} is running; stop it before you rename it")
        if store.get(new) is not None:
            raise UsageError(f"there is a run {new_id!r} already")
        fact = signed(record.log, RunRenamed(before=run_id), secret())
        put, append = {new: sealed(new, record)}, {record.log: [fact]}
        if store.commit(put=put, append=append, delete=[old], expect={old: data, new: None}):
            return


def delete(store: Store, run_id: str) -> None:
    """Remove a run. Its id is free at once; what forks of it need stays until they are deleted, too.

    Killed midway, nothing of it counts any more; the next `delete` or `clean` removes the rest.
    """
    key = record_key(run_id)
    then = store.get(key)
    record = read(store, run_id) if then is None else parse(key, then)
    if records.status(store, record) == "running":
        raise UsageError(f"run {run_id} is running; stop it before you delete it")
    gone = {f"gone/{record.uid}": [b"1"]}
    needs = [f"need/{owner}/{record.uid}" for owner in owners(record)]
    if not store.commit(put=gone, delete=[key, *needs], expect={key: then}):
        return delete(store, run_id)  # it changed meanwhile
    clean(store)


def clean(store: Store) -> None:
    """Remove what deleted runs, and imports and steps that were cut off, left and nobody needs any more."""
    for mark, _ in list(store.scan("gone/")):
        hold = store.hold(mark)
        if hold is None:
            continue  # it is being imported, or another removes it
        try:
            uid = mark.partition("/")[2]
            if store.get(mark) is not None and next(store.scan(f"need/{uid}/", limit=1), None) is None:
                _clear(store, uid)
                store.commit(delete=[mark])
        finally:
            hold.release()
    sweep(store)


def _clear(store: Store, uid: str) -> None:
    """Remove all entries of a run that is no more."""
    for home in {key.split("/")[1] for key, _ in store.scan(f"node/{uid}", most=0)}:
        release(store, used(store, f"node/{home}/"))
    for prefix in (f"node/{uid}", f"event/{uid}", f"need/{uid}", changed(uid)):
        while keys := [key for key, _ in store.scan(prefix, limit=_BATCH, most=0)]:
            store.commit(delete=keys)
