"""Repairs a store whose database is damaged: recovers the entries with valid signatures and reports which runs are whole."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from .. import records
from ..codec import MAGIC, Decoded, encode, unseal
from ..codec.keyed import claim
from ..errors import CheckpointWarning, IntegrityError, UsageError
from ..events import Event, Forked, RunFailed, RunFinished, RunInterrupted, RunResumed, RunStarted, StepCompleted
from ..keys import (
    EVENTS,
    FORKS,
    NODES,
    OTHERS,
    OWNER,
    SIGILS,
    closed,
    deleted_key,
    first_prefix,
    record_key,
    sealed_as,
    variant_key,
)
from ..records import Record, prefixes, read_log, sealed
from ..settings import key_id, key_source, secret
from ..stores import Bytes, Store, open_store, repair_store
from .timeline import count, timeline

_ENDINGS: dict[type[Event], str] = {RunFinished: "finished", RunFailed: "failed", RunInterrupted: "interrupted"}
_SMALL = 1 << 15  # bytes; a node's own entry that points to a variant is smaller


@dataclass(frozen=True, kw_only=True)
class RepairedRun:
    """A run after a repair. `nodes` are intact; `lost` nodes are recorded in events but have to run again.

    `events_lost` is the number of missing events: steps recorded only there run again as well, unless they are among `nodes`.
    `renamed` means that the record with the run's id was lost, and the run has a new id; `oncemore rename` can change it back.
    """

    id: str
    nodes: tuple[str, ...]
    lost: tuple[str, ...]
    events_lost: int
    renamed: bool

    @property
    def whole(self) -> bool:
        """Whether the run has lost nothing."""
        return not self.lost and not self.events_lost and not self.renamed


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """The result of a repair. `aside` is the new path of the damaged database; empty if nothing was wrong."""

    store: str
    aside: str
    entries: int
    unsound: tuple[str, ...]  # keys of altered entries, which were left out
    unnamed: tuple[str, ...]  # uids of runs with too little left to recover them
    runs: tuple[RepairedRun, ...]

    @property
    def whole(self) -> bool:
        """Whether no known run has lost anything. A run of which nothing is left is not known; without any run, it is False."""
        if self.aside and not self.runs:
            return False
        return not self.unsound and not self.unnamed and all(run.whole for run in self.runs)


class _Signatures:
    """Checks which entries were signed with the key in use."""

    def __init__(self) -> None:
        self.valid = self.invalid = 0
        self.owner = ""

    def sound(self, key: str, data: Bytes) -> bool:
        """Whether these bytes were written under this key. Marks and entries of other owners can't be checked, and are kept."""
        if key == OWNER:
            self.owner = bytes(data).decode("ascii", "replace")
        if key.startswith(OTHERS):
            return bytes(memoryview(data)[:4]) == MAGIC or sealed_as(key.split("/", 2)[2]) is None
        name = sealed_as(key)
        if name is None:
            return True
        try:
            unseal(data, name, secret())
        except IntegrityError:
            self.invalid += 1
            return False
        self.valid += 1
        return True

    def missing(self, small: Mapping[str, Bytes]) -> dict[str, int]:
        """The keys and sizes of entries that events refer to but are missing. Called after all rows have been checked."""
        if self.owner not in ("", key_id()) or (self.invalid and not self.valid):
            raise UsageError(
                f"nothing was repaired: the store was made with another key than the one in use ({key_id()}, from "
                f"{key_source().text}), and only that key can verify its entries. See `oncemore key`"
            )
        sizes: dict[str, int] = {}
        for key, data in small.items():
            if key.startswith(EVENTS):
                event = Event.from_json(bytes(unseal(data, sealed_as(key) or "", secret())), 0)
                if isinstance(event, StepCompleted) and event.entry not in small:
                    sizes[event.entry] = event.stored_bytes
        return sizes


def repair(target: str | os.PathLike[str]) -> Repaired:
    """See `History.repair`."""
    signatures = _Signatures()
    done = repair_store(target, signatures.sound, signatures.missing)
    store = open_store(target)
    claim(store)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # the report covers them
        _restore_pointers(store, done.adopted)
        before = {record.uid for _, record in records.scan(store)}
        unnamed = list(_rebuild_records(store, before)) if done.aside else []
        runs = tuple(_report(store, run_id, record, before) for run_id, record in records.scan(store))
    return Repaired(
        store=store.url,
        aside=done.aside,
        entries=done.recovered,
        unsound=tuple(done.unsound),
        unnamed=tuple(unnamed),
        runs=runs,
    )


def _restore_pointers(store: Store, adopted: list[str]) -> None:
    """Rewrite lost small entries of nodes, through which their large results are found."""
    for key in adopted:
        node = key.partition("@")[0]
        data = store.get(key) if key == variant_key(node, {}) and store.get(node) is None else None
        if data is not None:
            meta = Decoded(data, key=key, secret=secret()).meta
            about: dict[str, Any] = {name: meta[name] for name in ("arguments", "shown", "data") if name in meta}
            about.update(readings=[[]], reads={})
            pointer = encode(None, about, key=node, secret=secret())
            store.commit(put={node: pointer.frames}, expect={node: None})


def _rebuild_records(store: Store, known: set[str]) -> Iterator[str]:
    """Rebuild lost records of runs from their events; yields the uids of runs for which that is not possible."""
    uids = {key.split("/")[1] for key, _ in store.scan(EVENTS, most=0)}
    for uid in sorted(uids - known):
        if store.get(deleted_key(uid)) is not None:
            continue  # deleted; forks need some of its entries
        open_prefixes = [prefix for prefix in prefixes(store, uid) if store.get(closed(prefix)) is None]
        record = Record(uid, open_prefixes[0] if open_prefixes else first_prefix(uid))
        log = list(read_log(store, record.log))
        if len(open_prefixes) != 1 or not log:
            yield uid
            continue
        record.created, record.updated = log[0].time, log[-1].time
        record.attempts = max(1, sum(isinstance(event, (RunStarted, RunResumed)) for event in log))
        record.ending = _ENDINGS.get(type(log[-1]), "")
        started, forked = log[0], next((event for event in log if isinstance(event, Forked)), None)
        record.workflow = started.workflow if isinstance(started, RunStarted) else None
        record.parent = (forked.parent, forked.at) if forked is not None else None
        record.forebears = [key.split("/")[1] for key, _ in store.scan(FORKS, most=0) if key.endswith(f"/{uid}")]
        count(store, record)
        key = record_key(f"recovered-{uid}")
        store.commit(put={key: sealed(key, record)}, expect={key: None})


def _report(store: Store, run_id: str, record: Record, known: set[str]) -> RepairedRun:
    needed: list[tuple[str, set[str]]] = []  # by node: the entries that a look-up reads
    for each in timeline(store, record.log).counted():
        event = each.event
        if isinstance(event, StepCompleted) and each.result:
            own = {each.suffix, each.suffix.partition("@")[0]} if event.entry.startswith(NODES) else ()
            needed.append((event.node, {event.entry, *(record.prefix + suffix for suffix in own)}))
    existing = store.get_many({key for _, keys in needed for key in keys}, most=0)
    lost = [node for node, keys in needed if not keys <= existing.keys()]
    numbers = [event.seq for event in read_log(store, record.log)]
    gaps = max([record.counted, *numbers]) - len(numbers)
    nodes = tuple(node for node in _whole(store, record.prefix) if node not in lost)
    return RepairedRun(id=run_id, nodes=nodes, lost=tuple(lost), events_lost=gaps, renamed=record.uid not in known)


def _whole(store: Store, prefix: str) -> Iterator[str]:
    """The complete nodes under a prefix, whether or not events record them."""
    existing: set[str] = set()
    is_pointer: dict[str, bool] = {}
    for key, data in store.scan(prefix, most=_SMALL):
        existing.add(key)
        if key[len(prefix)] not in SIGILS and "@" not in key:
            entry = Decoded(data, key=key, secret=secret()) if data is not None else None
            if entry is None or not entry.is_tombstone:
                is_pointer[key] = entry is not None and "readings" in entry.meta
    with_value = {key.partition("@")[0] for key in existing if "@" in key}
    for key, needs_value in is_pointer.items():
        if not needs_value or key in with_value:
            step, _, digests = key[len(prefix) :].partition("/")
            yield f"{unquote(step)}-{digests[:8]}"
