"""A run's entries in its store: found, verified, written, forgotten.

Small entries are cached in memory. After the second read from the store, or when an entry is missing, the rest are fetched
in one scan; from then on a miss asks the store for nothing before its lease.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .blobs import keeping, listed, listing, listing_key, release, waiting
from .codec import Decoded, Encoded, Naming, Packed, encode, pack, seal, tombstone, unseal
from .errors import IntegrityError, OncemoreError, StoreError
from .events import Event, SnapshotSaved, StepCompleted, StepForgotten
from .flight import Blocking, Completion, Path, Wait
from .history.timeline import timeline
from .identity import Part, code_of
from .node import FORGOTTEN, GONE, SIGILS, CheckpointData, Node, intents_of, items_of, quoted, state_of, variant_key
from .records import ALIASES, REMOVED, changed, closed, prefix_of, read_log, signed, stamp
from .secret import secret
from .stores import Bytes, Frames, Store
from .surroundings.protocol import EXCUSED

_SMALL = 1 << 15  # bytes of an entry that is cached; what is larger stands beside its node's own small entry
_ROOM = 1 << 26  # bytes of the cache
_OVERHEAD = 200  # bytes that a cached entry takes besides its own
_PATIENCE = 2  # reads of single entries before all small ones are fetched
_NEAREST = 16  # checkpoints of a step that a node is compared with to find out why it runs


class Lookup(NamedTuple):
    """A node's entry if it counts, or None and why not, if that is known."""

    entry: Decoded | None
    why: str | None = None


def _values_read(meta: Mapping[str, Any], now: Callable[[str], str]) -> Iterator[dict[str, str]]:
    """What a node that read something may have been kept under: each set of names, with their digests now.

    What is excused counts as it was when the node ran last, if nothing was kept for what it is now.
    """
    for names in meta.get("readings", ()):
        found = {name: now(name) for name in names}
        yield {name: digest.removeprefix(EXCUSED) for name, digest in found.items()}
        if any(digest.startswith(EXCUSED) for digest in found.values()):
            was = meta["reads"]
            yield {name: was.get(name, "") if found[name].startswith(EXCUSED) else found[name] for name in names}


class RunEntries:
    """The entries of one run (`log` names its event log), or those shared between runs (no log).

    `owner` is the run's own mark, `home` the prefix of its entries: another one after a rollback, which has aliases of what
    stays valid. Where others have aliases of what is under a prefix, that is closed: nothing is written there any more, and
    `moved` is asked where the run goes on. `expected` entries were under `home` when the run was last left.
    """

    def __init__(
        self,
        store: Store,
        owner: str,
        prefix: str,
        log: str | None,
        moved: Callable[[str], RunEntries] | None = None,
        adopted: Sequence[Sequence[str]] = (),
        expected: int = 0,
    ) -> None:
        self.store, self.owner, self.prefix = store, owner, prefix
        self._log, self._moved, self._adopted, self._expected = log, moved, adopted, expected
        self.secret = secret()
        self._known_code: set[str] = set()
        self._cache: dict[str, bytes | Decoded] = {}  # as they are stored, or verified
        self._touched: set[str] = set()  # written or removed by this process: what a scan brings of them may be old
        self._room, self._reads = _ROOM, 0
        self._fetched: tuple[str, ...] = ()  # the prefixes under which all that is small is in the cache
        self._tried: set[str] = set()  # those and the ones that had more than there is room for
        self._lost: set[str] = set()  # nodes whose entries are gone from the store
        self._by_step: dict[str, tuple[dict[str, list[str]], list[str]]] = {}
        self.performed: Any = None  # what is known of effect="once" calls, see effects_once.py
        self._codes: dict[str, tuple[dict[str, Part], dict[str, str]]] = {}  # what each code consisted of
        self._fetching: dict[str, tuple[int, Completion]] = {}  # by prefix: the process that fetches

    def node(self, step: str, arguments: str, code: str) -> Node:
        return Node(self.prefix, self.owner, step, arguments, code)

    # -- finding

    @property
    def has_aliases(self) -> bool:
        """Whether there may be entries that this process did not write, though the run is a new one."""
        return "." in self.prefix

    def has(self, node: Node) -> bool:
        """Whether the node's own entry is in memory."""
        return node.key in self._cache

    def at_hand(self, node: Node) -> bool:
        """Whether it is known without reading more that the node has an entry which is nothing but a value, or none at all."""
        known = self._cache.get(node.key)
        if known is None:
            return node.key.startswith(self._fetched) and not self._adopted
        try:
            return (known if isinstance(known, Decoded) else self._learn(node.key, known)).value_only
        except IntegrityError:
            return False

    def find(self, node: Node, now: Callable[[str], str], *, again: bool = True) -> Lookup:
        """The node's entry. `now` gives the digest of something that was read, as it is now.

        The checkpoint of a step that read more than its arguments is kept under what it read; the node's own entry then
        only says what that was, so that going back to an earlier state finds the earlier checkpoint again. `again`: what
        was missing when all small entries were fetched is asked for again; another process may have written it since.
        """
        cached = self._cache.get(node.key)
        if type(cached) is Decoded and cached.value_only:
            return Lookup(cached)
        why, now = None, functools.cache(now)  # one answer each: another thread may change it meanwhile
        for key in self._known(node):
            entry = self._read_node(key, again)
            if entry is None:
                continue
            if entry.is_tombstone:  # forgotten, pruned, rolled back
                return Lookup(None, why or entry.meta["hides"])
            if entry.value_only or "readings" not in entry.meta:
                return Lookup(entry)
            for today in _values_read(entry.meta, now):
                found = self.read(variant_key(key, today))
                if found is not None:
                    return Lookup(None, found.meta["hides"]) if found.is_tombstone else Lookup(found)
                if today == entry.meta["reads"]:
                    if self.replaced(entry) or self._exists(variant_key(key, today)):
                        return self.find(node, now)
                    why = why or f"entry damaged: {GONE}"
        if why is None and node.key in self._lost:
            if self._exists(node.key):  # another process has computed it since
                self._lost.discard(node.key)
                return self.find(node, now)
            why = f"entry damaged: {GONE}"
        return Lookup(None, why)

    def replaced(self, entry: Decoded) -> bool:
        """Whether another process has replaced or removed an entry since it was read: then nothing that is cached counts.

        What such an entry needs may be missing, and nothing is wrong with that.
        """
        try:
            data = self.store.get(entry.key)
        except StoreError:
            return False  # who reads it again will meet it
        if data is not None and entry.is_stored_as(data):
            return False
        self.drop_cache()
        return True

    def readings(self, node: Node) -> dict[str, Any] | None:
        """What was noted at the last time that the node ran, if it read state then: of what `find` has just read."""
        entry = self._cache.get(node.key)
        return entry.meta if isinstance(entry, Decoded) and entry.meta.get("reads") else None

    def _known(self, node: Node) -> Iterator[str]:
        """Where the node's entry may stand: under its own code, then under codes whose checkpoints were adopted for that."""
        yield node.key
        codes = [code_of(node.code)]
        data = node.code[len(codes[0]) :]
        for code in codes if self._adopted else ():  # grows: a code may be adopted for one that was adopted itself
            for step, before, after in self._adopted:
                if step == node.step and after == code and before not in codes:
                    codes.append(before)
                    yield self.node(step, node.arguments, before + data).key

    def _find_lost(self) -> set[str]:
        """Nodes that count and whose entries are not there. The log is read only if entries are missing."""
        there = sum(1 for key in self._cache if self._is_node(key))
        if self._log is None or there >= self._expected:
            return set()
        counted = timeline(self.store, self._log).counted()
        steps = [
            each for each in counted if isinstance(each.event, StepCompleted) and each.event.entry.startswith("node/")
        ]
        return {self.prefix + each.place.partition("@")[0] for each in steps} - self._cache.keys()

    def _is_node(self, key: str) -> bool:
        """Whether this is the key of a node's own entry under the run's home."""
        return key.startswith(self.prefix) and key[len(self.prefix)] not in SIGILS and "@" not in key

    # -- reading

    def read(self, key: str) -> Decoded | None:
        """An entry, or the one it stands for, its signature verified, or None. IntegrityError if it cannot be trusted."""
        entry = self._read(key)
        if entry is None or not entry.alias_of:
            return entry
        if self._prefix(key) in self._tried:  # then what its aliases stand for is fetched together, too
            self._fetch(self._prefix(entry.alias_of))
        found = self._read(entry.alias_of)
        if found is None:
            if self.replaced(entry):
                return self.read(key)
            raise IntegrityError(f"entry {entry.alias_of} is gone")
        if self._cache.get(key) is entry and self._cache.get(found.key) is found:
            self._cache[key] = found  # for the next time
        return found

    def _read(self, key: str) -> Decoded | None:
        """The same, but an alias is an alias."""
        known = self._cache.get(key)
        if isinstance(known, Decoded):
            return known
        data: Bytes | None = known
        if data is None:
            data = self.store.get(key)
            if data is None:
                return None
        return self._learn(key, data)

    def _read_node(self, key: str, again: bool) -> Decoded | None:
        """The same of a node's own entry: once two were read, or one was missing, all that is small is fetched."""
        if key in self._cache or not key.startswith(self._fetched):
            entry = self.read(key)
            self._reads += 1
            if entry is None or self._reads >= _PATIENCE:
                self._fetch(self._prefix(key))
            return entry
        return self.read(key) if again else None

    def learn(self, node: Node, data: Bytes | None) -> None:
        """What stands under the node's key now, as its lease found it."""
        if data is not None:
            self._cache[node.key] = bytes(data)

    def _learn(self, key: str, data: Bytes) -> Decoded:
        entry = Decoded(data, key=key, secret=self.secret)
        if self._cache.get(key) is data:
            self._cache[key] = entry  # need not be verified again
        elif key not in self._touched and len(data) <= _SMALL:
            self._cache[key] = entry
            if key in self._touched:  # by another thread, meanwhile
                self._cache.pop(key, None)
        return entry

    @staticmethod
    def _prefix(key: str) -> str:
        """What is fetched together: a run's entries, or those of one shared step."""
        return key[: key.index("/", len("node/")) + 1] if key.startswith("node/") else key[: key.rindex("/") + 1]

    def fetch(self, node: Node) -> Path[None]:
        """Fetch all that is small: coroutines ask for much at once, and each would wait for a thread of its own."""
        prefix, process = self._prefix(node.key), os.getpid()
        if prefix in self._tried and prefix not in self._fetching:
            return
        if prefix in self._fetching and self._fetching[prefix][0] == process:
            wait = Wait(self._fetching[prefix][1])
            while not (yield wait):
                pass
            return
        work = Blocking(self._fetch, prefix)
        completion = Completion(work)
        self._fetching[prefix] = process, completion
        try:
            yield work
        finally:
            completion.end()
            self._fetching.pop(prefix, None)

    def _fetch(self, prefix: str) -> None:
        if prefix in self._tried:
            return
        self._tried.add(prefix)
        try:
            for key, data in self.store.scan(prefix, most=_SMALL):
                if isinstance(data, bytes) and key not in self._touched:
                    self._cache.setdefault(key, data)
                    if key in self._touched:
                        self._cache.pop(key, None)
                    self._room -= len(data) + _OVERHEAD
                    if self._room < 0:
                        return
        except StoreError:
            return  # who needs an entry will meet it
        self._fetched = (*self._fetched, prefix)
        if prefix == self.prefix:
            self._lost = self._find_lost()

    def drop_cache(self) -> None:
        """Other processes have replaced or forgotten entries, and may go on to: from now on each is read when it is needed."""
        self._cache, self._fetched, self._room = {}, (), _ROOM

    def _forget_cached(self, keys: Iterable[str]) -> None:
        self._touched.update(keys)
        for key in keys:
            self._cache.pop(key, None)

    def _cache_written(self, put: Mapping[str, Frames], removed: Iterable[str]) -> None:
        """The cache follows what was written and removed."""
        self._forget_cached([*put, *removed])
        for key, frames in put.items():
            size = sum(map(len, frames))
            if size <= _SMALL and self._room > 0:
                self._room -= size + _OVERHEAD
                self._cache[key] = b"".join(frames)

    # -- writing

    def pack(self, node: Node, kept: CheckpointData, *, seconds: float, time: float) -> Packed:
        """What is kept of a completed node, not signed yet."""
        meta = kept.meta
        if kept.chunks is not None:
            meta["items"], meta["chunks"] = kept.items, len(kept.chunks)
        kept.owner = kept.owner or node.key
        with keeping(self.store, lambda keys: meta.update(blobs=sorted({*meta.get("blobs", ()), *keys})), kept.owner):
            packed = pack(kept.value, meta, name=kept.name, seconds=seconds, time=time)
        kept.blobs = meta.get("blobs", [])
        return packed

    def write(
        self, node: Node, packed: Packed, kept: CheckpointData, fields: Mapping[str, Any]
    ) -> StepCompleted | None:
        """The checkpoint and its event in one transaction; with it, once, what its code consists of. The event as written.

        A large result, or one of a step that read state, stands beside the node's own small entry, which points to it.
        None if another attempt has kept its result since this one began: that one stays.
        """
        before = self._about(node, kept.seen)
        points = "readings" in before
        beside = bool(kept.reads) or packed.stored_bytes > _SMALL or points
        entry = packed.seal(variant_key(node.key, kept.reads) if beside else node.key, self.secret)
        put: dict[str, Frames] = {entry.key: entry.frames, **listing(entry.key, kept.blobs)}
        if beside:
            put[node.key] = self._pointer(node, kept, before)
        for extra in (*(kept.chunks or ()), kept.snapshot, kept.opening):
            if extra is not None:
                put[extra.key] = extra.frames
        code = code_of(node.code)
        if code not in self._known_code:
            put[f"code/{code}"] = self._manifest(code, kept)
        marks: dict[str, str] = {}  # of this attempt, and of one at the same node that was cut off
        if kept.blobs:
            marks = {**waiting(self.store, node.key), **waiting(self.store, kept.owner)}
        removed, parted = list(marks), set(marks.values())
        expect = self._open()
        if kept.once:  # a copy: retention and rollbacks leave it alone
            put.update({node.intent: packed.seal(node.intent, self.secret).frames, **listing(node.intent, kept.blobs)})
            parted.update(listed(self.store, node.intent))
            removed.append(listing_key(node.intent))
        replaces = kept.damaged or (self._exists(entry.key) if points else kept.seen is not None)
        if replaces:
            parted.update(listed(self.store, entry.key))
            removed += [listing_key(entry.key), *self._chunks_of(node.key), *self._chunks_of(entry.key)]
            put[changed(self.owner)] = stamp()
        if not kept.damaged:
            expect[node.key] = kept.seen
        event = StepCompleted(
            **fields,
            raw_bytes=entry.raw_bytes,
            stored_bytes=entry.stored_bytes,
            entry=entry.key,
            replaces=replaces or points or node.key in self._lost,
        )
        removed = [key for key in removed if key not in put]
        self._touched.update(put, removed)
        if not self.store.commit(
            put=put, append=self._appended([event]), delete=removed, expect=expect, under=kept.hold
        ):
            other = self._elsewhere()
            if other is not None:
                moved = other.node(node.step, node.arguments, node.code)
                kept.seen, kept.damaged, kept.hold = other.store.get(moved.key), False, None
                return other.write(moved, packed, kept, fields)
            self._forget_cached(put)
            return None
        self._known_code.add(code)
        self._cache_written(put, removed)
        release(self.store, parted.difference(kept.blobs))
        return event

    def _open(self) -> dict[str, Bytes | None]:
        """What a commit expects that writes under the run's prefix."""
        return {closed(self.prefix): None} if self._moved is not None else {}

    def _elsewhere(self) -> RunEntries | None:
        """Where the run goes on if its prefix was closed; None if it was not."""
        if self._moved is None or self.store.get(closed(self.prefix)) is None:
            return None
        return self._moved(self.prefix)

    def _manifest(self, code: str, kept: CheckpointData) -> Frames:
        parts = {name: [p.digest, p.where, p.shown, p.source] for name, p in kept.code.items()}
        fields = {"parts": parts, "packages": dict(kept.packages)}
        return seal([json.dumps(fields).encode()], f"code/{code}", self.secret)

    def _about(self, node: Node, data: Bytes | None) -> Mapping[str, Any]:
        """What the node's own entry says of its checkpoints, as it was before this one."""
        if data is not None:
            try:
                entry = Decoded(data, key=node.key, secret=self.secret)
                found = self.read(entry.alias_of) if entry.alias_of else entry
                return found.meta if found is not None else {}
            except IntegrityError:
                pass  # it is about to be replaced
        return dict[str, Any]()

    def _pointer(self, node: Node, kept: CheckpointData, known: Mapping[str, Any]) -> Frames:
        readings: list[list[str]] = known.get("readings", [])
        if sorted(kept.reads) not in readings:
            readings = [*readings, sorted(kept.reads)]
        meta: dict[str, Any] = {name: kept.meta[name] for name in ("arguments", "shown", "data") if name in kept.meta}
        meta.update(readings=readings, reads=dict(kept.reads))
        return encode(None, meta, key=node.key, secret=self.secret).frames

    def _exists(self, key: str) -> bool:
        return key in self.store.get_many([key], most=0)

    def _trusted(self, key: str) -> Decoded | None:
        try:
            return self.read(key)
        except IntegrityError:
            return None  # it is about to be replaced or removed

    def forget(self, node: Node) -> bool:
        """Remove the node's checkpoint; whether there was one. A tombstone stays, which says that it was forgotten.

        No copy of it stays: what was adopted for it goes as well, and what a rollback has put aside, unless a fork needs that.
        """
        expect = {**self._open(), ALIASES: self.store.get(ALIASES)}  # no fork is made meanwhile
        counted = list(filter(self._has, self._known(node)))
        put_aside = self._put_aside(node)
        nodes = list(dict.fromkeys([node.key, *counted, *filter(self._has, put_aside or ())]))
        if nodes == [node.key] and not counted:
            return False
        variants = [key for each in nodes for key, _ in self.store.scan(f"{each}@", most=0)]
        entries = [*nodes, *variants]
        removed = [*variants, *map(listing_key, entries), *(c for key in entries for c in self._chunks_of(key))]
        parted = {blob for entry in entries for blob in listed(self.store, entry)}
        put: dict[str, Frames] = {key: tombstone(key, self.secret, FORGOTTEN) for key in nodes}
        put.update({changed(self.owner): stamp(), REMOVED: stamp()})
        self._touched.update(put, removed)
        event = StepForgotten(**node.about(), entry=node.key, everywhere=put_aside is not None)
        if not self.store.commit(delete=removed, put=put, append=self._appended([event]), expect=expect):
            other = self._elsewhere() or self
            return other.forget(other.node(node.step, node.arguments, node.code))
        release(self.store, parted)
        self._cache_written(put, removed)
        return bool(counted)

    def _put_aside(self, node: Node) -> list[str] | None:
        """Where the node's entry may stand under prefixes that rollbacks of the run have replaced. None: forks may need it."""
        if self._log is None or next(self.store.scan(f"forks/{self.owner}/", limit=1, most=0), None) is not None:
            return None
        keys: list[str] = []
        after = ""
        while (found := next(self.store.scan(f"node/{self.owner}", after=after, limit=1, most=0), None)) is not None:
            prefix = prefix_of(found[0])
            after = f"{prefix}\U0010ffff"
            if prefix != self.prefix:
                keys.append(prefix + node.key[len(self.prefix) :])
        return keys

    def _has(self, key: str) -> bool:
        """Whether an entry is there, sound or not, that is no tombstone."""
        try:
            entry = self.read(key)
        except IntegrityError:
            return True
        return entry is not None and not entry.is_tombstone

    # -- the items of generators, kept in chunks

    def new_items(self) -> str:
        """The beginning of the keys of one generator's chunks."""
        return f"{items_of(self.owner)}{os.urandom(8).hex()}/"

    def encode_chunk(self, items: str, number: int, pickled: list[bytes], roots: list[Any]) -> Encoded:
        """Some items of a generator, each pickled already, and the roots that each names objects under."""
        return encode(pickled, {"roots": roots} if any(roots) else {}, key=f"{items}{number:08x}", secret=self.secret)

    def chunk(self, entry: Decoded, number: int) -> Decoded:
        """One chunk of the items that belong to an entry."""
        key = entry.chunks[number]
        found = self.read(key)
        if found is None:
            raise IntegrityError(f"entry {key} is gone")
        return found

    def _chunks_of(self, key: str) -> list[str]:
        """The keys of the items of an entry of the run's own; what an alias stands for has others."""
        try:
            entry = self._read(key)
        except IntegrityError:
            entry = None
        return entry.chunks if entry is not None and entry.key == key else []

    # -- intents and snapshots

    def find_loops(self, name: str) -> list[str]:
        """The keys of the snapshots of a loop."""
        return [key for key, _ in self.store.scan(f"{self.prefix}$/{quoted(name)}/", most=0)]

    def write_loop(
        self,
        name: str,
        kind: str,
        value: object,
        meta: dict[str, Any],
        roots: Naming,
        event: SnapshotSaved,
        replaces: Collection[str],
    ) -> tuple[str, int]:
        """A loop's snapshot, in place of some of the earlier ones; its key, and how many bytes it has."""
        key = f"{self.prefix}$/{quoted(name)}/{kind}"
        entry = encode(value, meta, key=key, secret=self.secret, name=roots)
        append = self._appended([replace(event, entry=key)])
        gone = [other for other in replaces if other != key]
        self._forget_cached([key, *gone])
        if self.store.commit(put={key: entry.frames}, append=append, delete=gone, expect=self._open()):
            return key, entry.raw_bytes
        other = self._elsewhere() or self
        there = [other.prefix + key[len(self.prefix) :] for key in replaces]
        return other.write_loop(name, kind, value, meta, roots, event, there)

    def encode_snapshot(self, content: str, value: object) -> Encoded:
        """The run's state and generators, under the digest of their content."""
        return encode(value, {}, key=f"{state_of(self.owner)}{content}", secret=self.secret)

    def encode_opening(self, states: Mapping[str, Any]) -> Encoded:
        """The unseeded generators, as they were when the first scope of the run opened."""
        return encode(dict(states), {}, key=f"{state_of(self.owner)}opening", secret=self.secret)

    def opening(self) -> dict[str, Any] | None:
        """What that was."""
        entry = self._trusted(f"{state_of(self.owner)}opening")
        return None if entry is None else entry.load()

    def intents(self) -> Iterator[tuple[str, Decoded]]:
        """What steps with effect="once" have begun, and what came of it."""
        for key, data in self.store.scan(intents_of(self.owner)):
            if data is not None:
                yield key, Decoded(data, key=key, secret=self.secret)

    def write_snapshot(self, entry: Encoded | None, event: Event) -> None:
        """The event that names a snapshot, and the snapshot itself unless it is kept already."""
        self.store.commit(put={entry.key: entry.frames} if entry else {}, append=self._appended([event]))

    def put(self, key: str, value: object, meta: Mapping[str, Any], *, time: float) -> None:
        """Write one entry of the run's own, durable when this returns."""
        entry = encode(value, meta, key=key, secret=self.secret, time=time)
        self._forget_cached([key])
        self.store.commit(put={key: entry.frames})

    def remove(self, *keys: str) -> None:
        self._forget_cached(keys)
        self.store.commit(delete=keys)

    # -- events

    def _appended(self, events: Sequence[Event]) -> dict[str, list[bytes]]:
        if self._log is None or not events:
            return {}
        return {self._log: [signed(self._log, event, self.secret) for event in events]}

    def append(self, events: Sequence[Event]) -> None:
        """Write events that belong to no checkpoint."""
        if self._log is not None:
            self.store.commit(append=self._appended(events))

    def events(self, since: int = 0) -> Iterator[Event]:
        """The run's events in order, those after number `since`."""
        return iter(()) if self._log is None else read_log(self.store, self._log, since)

    def others(self, node: Node) -> Iterator[tuple[Node, Decoded]]:
        """Other checkpoints of the node's step: first those of the same arguments. A handful, from memory."""
        step = f"{self.prefix}{quoted(node.step)}/"
        self._fetch(self._prefix(step))
        alike, some = self._nodes_of(step)
        for key in (*alike.get(node.arguments, ())[:_NEAREST], *some):
            entry = self._trusted(key) if key != node.key else None
            if entry is not None and not entry.is_tombstone:
                yield self.node(node.step, *key[len(step) :].split(".", 1)), entry

    def _nodes_of(self, step: str) -> tuple[dict[str, list[str]], list[str]]:
        """The nodes of a step that were there when one was first missed: by arguments, and some of them."""
        if step not in self._by_step:
            keys = [key for key in list(self._cache) if key.startswith(step) and "@" not in key]
            alike: dict[str, list[str]] = {}
            for key in keys:
                alike.setdefault(key[len(step) :].partition(".")[0], []).append(key)
            self._by_step[step] = alike, keys[:_NEAREST]
        return self._by_step[step]

    def code_parts_of(self, code: str) -> tuple[dict[str, Part], dict[str, str]]:
        """What the code behind a digest consisted of, and the packages then; empty if that is not known any more."""
        code = code_of(code)
        if code not in self._codes:
            key, fields = f"code/{code}", dict[str, Any]()
            try:
                data = self.store.get(key)
                if data is not None:
                    fields = json.loads(bytes(unseal(data, key, self.secret)))
            except OncemoreError:
                pass
            parts = {name: Part(*values) for name, values in fields.get("parts", {}).items()}
            self._codes[code] = parts, fields.get("packages", {})
        return self._codes[code]
