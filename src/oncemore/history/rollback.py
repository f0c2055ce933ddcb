"""Changes to a run's history: rollback, fork, rename, delete. Each is one transaction; no value is copied.

A rollback or fork writes aliases of the entries that stay valid under a new prefix and closes the old prefix, so that an entry
with an alias is never overwritten. Entries are removed when no run can reach them any more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .. import keys, records
from ..codec import Decoded, alias, seal, tombstone, unseal
from ..errors import IntegrityError, UsageError
from ..events import Event, Forked, RollbackUndone, RolledBack, RunRenamed, StepCompleted
from ..files.blobs import listing, sweep
from ..keys import (
    ALIASES,
    BLOBS,
    DELETED,
    REMOVED,
    RUNS,
    SIGILS,
    closed,
    deleted_key,
    fork_mark,
    fork_marks_of,
    listing_key,
    prefix_of,
    record_key,
)
from ..node import ROLLED_BACK
from ..records import Record, checked, parse, prefixes, read, sealed, signed, stamp
from ..settings import secret
from ..stores import Bytes, Frames, Store
from .checkpoints import Checkpoint, checkpoints_of
from .timeline import Counted, timeline, totals

_BATCH = 5000  # entries removed per transaction: other writers wait a few hundredths of a second
_SMALL = 4096  # bytes; aliases and tombstones are smaller


def rollback(store: Store, run_id: str, *, to: str | None = None, before: str | None = None, own: str = "") -> Record:
    """Make everything after `to` (or from `before` on) invalid. `own` is the mark of the calling scope, if any."""
    if (to is None) == (before is None):
        raise UsageError("a rollback needs either to= (the last checkpoint to keep) or before= (the first to ignore)")
    put: dict[str, Frames] = {}

    def cut(record: Record) -> list[Event]:
        _refuse_open(store, run_id, record, own)
        target = checkpoints_of(store, run_id, record).find(to or before or "")
        number = target.number if to is not None else target.number - 1
        _close(store, record.prefix)
        line = timeline(store, record.log)
        record.undo.append(record.prefix)
        put.clear()
        put.update(_carry(store, record, record.prefix, line.until(target.log, number), left_out=ROLLED_BACK))
        record.counted = line.last
        return [RolledBack(to=number, log=target.log if target.log != record.log else "")]

    return records.change(store, run_id, cut, put=put)


def undo_rollback(store: Store, run_id: str) -> Record:
    """Undo the last rollback: what it made invalid is valid again, and what was done since is not."""

    def undo(record: Record) -> list[Event]:
        if not record.undo:
            raise UsageError(f"run {run_id} has no rollback to undo")
        _refuse_open(store, run_id, record)
        record.prefix, record.entries = record.undo.pop(), 0
        line = timeline(store, record.log)
        line.apply(RollbackUndone(seq=line.last))
        record.nodes, record.bytes = totals(line.counted())
        record.counted = line.last
        return [RollbackUndone()]

    return records.change(store, run_id, undo)


def reopen(store: Store, run_id: str, prefix: str) -> Record:
    """Move a run whose prefix was closed to a new one, unless another process has moved it already."""
    put: dict[str, Frames] = {}

    def move(record: Record) -> list[Event]:
        put.clear()
        if record.prefix == prefix:
            put.update(_carry(store, record, prefix, None))
        return []

    return records.change(store, run_id, move, put=put)


def _refuse_open(store: Store, run_id: str, record: Record, own: str = "") -> None:
    """Raise UsageError if another scope has the run open: it would go on with invalid checkpoints, and its work would be lost."""
    if any(mark != own and records.alive(store, record, mark) for mark in record.open):
        raise UsageError(
            f"run {run_id} is open{' elsewhere, too' if own else ''}: after a rollback, the work done there would be lost. "
            f"Stop it first, or call run.rollback() in its scope, or fork the run, which does not affect it"
        )


def _close(store: Store, prefix: str) -> None:
    """Close a prefix: nothing is written under it any more, and open scopes move to a new one. Harmless if nothing follows."""
    key = closed(prefix)
    if store.get(key) is None:
        store.commit(put={key: tombstone(key, secret(), "closed")})


def _carry(
    store: Store, record: Record, source: str, counted: Collection[Counted] | None, *, left_out: str = ""
) -> dict[str, Frames]:
    """Give a run a new prefix, and return what to write there: aliases of the valid entries under the closed prefix `source`.

    With `counted=None`, all entries are valid. Tombstones are carried along. A node that is no longer valid gets a tombstone
    with the reason `left_out`, if one is given.
    """
    record.prefix, record.entries = record.new_prefix(), 0
    suffixes = {each.suffix for each in counted or ()}
    nodes = {suffix.partition("@")[0] for suffix in suffixes}
    put: dict[str, Frames] = {}
    for old, data in store.scan(source, most=_SMALL):
        suffix = old[len(source) :]
        if suffix == "^":
            continue
        node, key = suffix.partition("@")[0], record.prefix + suffix
        entry = _decoded(old, data)
        stays = counted is None or suffix in suffixes or suffix in nodes
        if stays or (entry is not None and entry.is_tombstone):
            to, time = (old, 0.0) if entry is None else (entry.alias_of or old, entry.time)
            put[key] = alias(key, secret(), to, time)
        elif suffix[0] not in SIGILS and (left_out or (suffix != node and node in nodes)):
            put[key] = tombstone(key, secret(), left_out or ROLLED_BACK)
    record.entries = sum(1 for key in put if key[len(record.prefix)] not in SIGILS and "@" not in key)
    if counted is not None:
        record.nodes, record.bytes = totals(counted)
    put[ALIASES] = stamp()
    return put


def _decoded(key: str, data: Bytes | None) -> Decoded | None:
    """A small entry; None if it is too large or damaged, which is reported where the entry is used."""
    try:
        return None if data is None else Decoded(data, key=key, secret=secret())
    except IntegrityError:
        return None


def entry_of(store: Store, key: str) -> Decoded | None:
    """An entry; None if it is missing or damaged."""
    try:
        return _decoded(key, store.get(key))
    except IntegrityError:
        return None


def fork(
    store: Store, run_id: str, new_id: str, *, at: str | None = None, state: Mapping[str, Any] | None = None
) -> Record:
    """Create a run that starts from a checkpoint of `run_id` (default: its current state). The parent is not changed."""
    key, then = record_key(checked(new_id)), store.get(REMOVED)
    parent = read(store, run_id)
    if store.get(key) is not None:
        raise UsageError(f"a run {new_id!r} already exists; choose another id, or rename or delete that run")
    target: Checkpoint | None = checkpoints_of(store, run_id, parent).find(at) if at is not None else None
    _close(store, parent.prefix)
    line = timeline(store, parent.log)
    within, number = (target.log, target.number) if target else (parent.log, line.last)
    child = Record.new(parent.workflow)
    child.parent, child.state, child.forebears = (run_id, number), dict(state or {}), [*parent.forebears, parent.uid]
    put = _carry(store, child, parent.prefix, line.until(within, number))
    until = time.time() if target is None else target.time.timestamp()
    put.update(_performed(store, parent, child, line.cuts_at(within, number), until))
    opening, own_opening = entry_of(store, f"{keys.state_of(parent.uid)}opening"), f"{keys.state_of(child.uid)}opening"
    if opening is not None:
        put[own_opening] = alias(own_opening, secret(), opening.alias_of or opening.key)
    put.update({fork_mark(uid, child.uid): [b"1"] for uid in child.forebears})
    put[key] = sealed(key, child)
    event = Forked(
        parent=run_id, at=number, log=parent.log, until=line.last, within=within if within != parent.log else ""
    )
    append = {child.log: [signed(child.log, event, secret())]}
    if store.commit(put=put, append=append, expect={key: None, REMOVED: then}):
        return child
    # Entries were removed or the id was taken meanwhile: try again.
    return fork(store, run_id, new_id, at=at, state=state)


def _performed(store: Store, parent: Record, child: Record, cuts: Mapping[str, int], until: float) -> dict[str, Frames]:
    """Intents of effect="once" steps that were done, or of unknown outcome, at the fork, so that it does not repeat them."""
    found: list[tuple[Decoded, memoryview]] = []
    for key, data in store.scan(keys.intents_of(parent.uid)):
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
        done_by_then = (entry.meta["step"], entry.meta["given"]) in done
        if done_by_then or (entry.meta.get("settled") != "completed" and entry.time <= until):
            key = keys.intent_key(child.uid, entry.meta["call"])
            put.update({key: seal([body], key, secret()), **listing(key, entry.meta.get("blobs", ()))})
    return put


def rename(store: Store, run_id: str, new_id: str) -> None:
    """Change a run's id. Its entries stay where they are."""
    old, new = record_key(run_id), record_key(checked(new_id))
    while True:
        data = store.get(old)
        record = read(store, run_id)
        if records.status(store, record) == "running":
            raise UsageError(f"run {run_id} is running; stop it before renaming it")
        if store.get(new) is not None:
            raise UsageError(f"a run {new_id!r} already exists; choose another id, or rename or delete that run")
        event = signed(record.log, RunRenamed(before=run_id), secret())
        put, append = {new: sealed(new, record)}, {record.log: [event]}
        if store.commit(put=put, append=append, delete=[old], expect={old: data, new: None}):
            return


def delete(store: Store, run_id: str) -> None:
    """Remove a run. Its id is free at once; entries that its forks need stay until those are deleted, too.

    If this is killed midway, the run is gone, and the next `delete` or `clean` removes what is left of it.
    """
    key = record_key(run_id)
    then = store.get(key)
    record = read(store, run_id) if then is None else parse(key, then)
    if records.status(store, record) == "running":
        raise UsageError(f"run {run_id} is running; stop it before deleting it")
    gone: dict[str, Frames] = {deleted_key(record.uid): [b"1"], REMOVED: stamp()}
    shares = [fork_mark(uid, record.uid) for uid in record.forebears]
    if not store.commit(put=gone, delete=[key, *shares], expect={key: then}):
        return delete(store, run_id)  # it changed meanwhile
    clean(store)


# -- removal of what no run reaches. `forks/<uid>/<uid of a fork>` marks a fork that may have aliases of a run's entries.
#    `gone/<uid>` marks a run that was deleted, or is being imported while the key is held.


def clean(store: Store) -> None:
    """Remove unneeded leftovers of deleted runs and of interrupted imports and steps."""
    for mark, _ in list(store.scan(DELETED, most=0)):
        clear(store, mark.partition("/")[2])
    sweep(store)
    if next(store.scan(RUNS, limit=1, most=0), None) is None:
        store.commit(delete=[ALIASES, REMOVED, BLOBS])


def clear(store: Store, uid: str, run_id: str | None = None) -> None:
    """Remove the entries of a run that neither it nor its forks reach; everything, if it was deleted and has no forks."""
    hold = store.hold(deleted_key(uid))
    if hold is None:
        return  # another process imports or removes it
    try:
        while not _clear(store, uid, run_id):
            pass  # an alias was created meanwhile: try again
    finally:
        hold.release()


def _clear(store: Store, uid: str, run_id: str | None) -> bool:
    then, mark = store.get(ALIASES), deleted_key(uid)
    record = None if run_id is None else read(store, run_id)
    if record is None and store.get(mark) is None:
        return True
    own = set() if record is None else {record.prefix, *record.undo}
    forks = forks_of(store, uid)
    reached = targets(store, (*own, *(prefix for fork in forks for prefix in prefixes(store, fork))))
    unreached: list[str] = []
    for prefix in set(prefixes(store, uid)) - own:
        stay = reached.get(prefix, set[str]())
        if stay or record is not None:  # an open scope may not know yet that the run has moved to another prefix
            stay = {*stay, closed(prefix)}
        for key in [key for key, _ in store.scan(prefix, most=0) if key not in stay]:
            # If the run was deleted and has no forks, all its items are removed below.
            entry = entry_of(store, key) if record is not None or forks else None
            unreached += [key, listing_key(key), *(entry.chunks if entry is not None else ())]
    kinds = (
        ()
        if record is not None
        else ("once", "calls", "reused", "wrote", *(() if forks else ("items", "state", "event")))
    )
    rest = [key for kind in kinds for key, _ in store.scan(f"{kind}/{uid}/", most=0)]
    unreached += [*map(listing_key, rest), *rest]
    if record is None and not forks:
        unreached += [keys.changed(uid), mark]
    batches = [unreached[start : start + _BATCH] for start in range(0, len(unreached), _BATCH)]
    return all(store.commit(put={REMOVED: stamp()}, delete=batch, expect={ALIASES: then}) for batch in batches)


def forks_of(store: Store, uid: str) -> list[str]:
    """The uids of the runs that may share entries with a run."""
    return [key.rpartition("/")[2] for key, _ in store.scan(fork_marks_of(uid), most=0)]


def targets(store: Store, prefixes: Iterable[str]) -> dict[str, set[str]]:
    """The keys that aliases under these prefixes refer to, grouped by prefix. Signatures are not checked."""
    found: dict[str, set[str]] = {}
    for prefix in prefixes:
        for _, data in store.scan(prefix, most=_SMALL):
            match = re.search(rb'\{"to":("[^"]+")\}', data or b"")
            if match is not None:
                key: str = json.loads(match[1])
                found.setdefault(prefix_of(key), set()).add(key)
    return found
