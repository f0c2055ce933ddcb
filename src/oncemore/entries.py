"""A run's entries in its store: found, verified, written, forgotten.

Small entries are cached in memory. After the second read from the store, or when an entry is missing, the rest are fetched
in one scan. From then on, a miss reads nothing from the store before it acquires its lease.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from .codec import (
    ALIAS,
    INSTEAD,
    TOMBSTONE,
    Decoded,
    Encoded,
    Naming,
    Packed,
    encode,
    header_of,
    pack,
    seal,
    tombstone,
    unseal,
)
from .copies import copy_of, refers
from .errors import IntegrityError, OncemoreError, StoreError
from .events import Event, SnapshotSaved, StepCompleted, StepForgotten
from .files.blobs import Blobs, keeping, listed, listing, release, waiting
from .flight import Blocking, Completion, Path, Wait
from .history.timeline import timeline
from .identity import Part, code_of
from .keys import (
    ALIASES,
    NODES,
    REMOVED,
    SIGILS,
    changed,
    closed,
    code_key,
    fork_marks_of,
    intents_of,
    items_of,
    listing_key,
    loop_snapshots_of,
    quoted,
    state_of,
    used_key,
    variant_key,
)
from .node import FORGOTTEN, GONE, CheckpointData, Node
from .records import prefixes, signed, stamp
from .settings import secret
from .stores import Bytes, Frames, Store
from .surroundings.protocol import EXCUSED

_SMALL = 1 << 15  # bytes; larger entries are not cached, and a node's own small entry points to them
_ROOM = 1 << 26  # bytes of the cache
_OVERHEAD = 200  # bytes of memory that a cached entry takes in addition to its content
_PATIENCE = 2  # reads of single entries before all small ones are fetched
_NEAREST = 16  # other checkpoints of a step that are compared with a node to find out why it runs


class Lookup(NamedTuple):
    """A node's entry if it is valid; otherwise None, and why not if that is known."""

    entry: Decoded | None
    why: str | None = None


def _values_read(meta: Mapping[str, Any], now: Callable[[str], str]) -> Iterator[dict[str, str]]:
    """The values read that a node's checkpoint may be stored under: each recorded set of names, with the digests of today.

    Where today's value is excused, the value from the node's last run is tried as well.
    """
    for names in meta.get("readings", ()):
        digests = {name: now(name) for name in names}
        yield {name: digest.removeprefix(EXCUSED) for name, digest in digests.items()}
        if any(digest.startswith(EXCUSED) for digest in digests.values()):
            before = meta["reads"]
            yield {name: before.get(name, "") if digests[name].startswith(EXCUSED) else digests[name] for name in names}


def _arguments_of(key: str) -> str:
    """The digest of the arguments in the key of a checkpoint."""
    return key.rpartition("/")[2].partition(".")[0]


class _Earlier(NamedTuple):
    """The checkpoints that a step had when this scope was opened.

    A place is where a call stood in the script: in the order in which the calls were first recorded. It has the keys of the
    checkpoints that stood there, oldest first.
    """

    by_arguments: dict[str, list[str]]
    places: list[list[str]]
    place_of: dict[str, int]

    def next_place(self, after: str, used: Container[str]) -> int | None:
        """The first place after a checkpoint of which no checkpoint is used in this scope.

        None if that is unknown: the checkpoint was compared with one that has other arguments and is not used now. Either it
        took that one's place, or it was inserted before it.
        """
        place = self.place_of[after] + 1 if after in self.place_of else 0
        earlier = self.places[place - 1][: self.places[place - 1].index(after)] if place else ()
        if any(key not in used and _arguments_of(key) != _arguments_of(after) for key in earlier):
            return None
        while place < len(self.places) and any(key in used for key in self.places[place]):
            place += 1
        return place


class RunEntries:
    """The entries of one run, or those shared between runs. `log` is the event log to append to; without one, events are
    not written.

    `owner` is the run's uid, `prefix` what the keys of its entries begin with. A rollback gives the run a new prefix, with
    aliases of the entries that stay valid. A prefix whose entries have aliases elsewhere is closed: nothing is written under
    it any more, and `moved` returns the entries under the run's new prefix. `adopted` is that of the run's record.
    `expected` is how many node entries there were when the run was last left.
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
        self._cache: dict[str, bytes | Decoded] = {}  # raw bytes, or verified
        self._touched: set[str] = set()  # keys written or removed by this process: a scan may return older entries
        self._room, self._reads = _ROOM, 0
        self._fetched: tuple[str, ...] = ()  # prefixes whose small entries are all in the cache
        self._tried: set[str] = set()  # these, and prefixes whose small entries did not all fit
        self._lost: set[str] = set()  # nodes whose entries are gone from the store
        self._by_step: dict[str, _Earlier] = {}
        self.performed: Any = None  # the known effect="once" calls, see effects_once.py
        self._codes: dict[str, tuple[dict[str, Part], dict[str, str]]] = {}  # parts and packages by code digest
        self._used: set[str] = set()  # memoized functions whose last use is marked
        self._fetching: dict[str, tuple[int, Completion]] = {}  # by prefix: the process that is fetching it

    def node(self, step: str, arguments: str, code: str) -> Node:
        return Node(self.prefix, self.owner, step, arguments, code)

    # -- finding

    @property
    def has_aliases(self) -> bool:
        """Whether the run has had a rollback or is a fork, so that even a new one may have entries."""
        return "." in self.prefix

    def has(self, node: Node) -> bool:
        """Whether the node's own entry is in memory."""
        return node.key in self._cache

    def at_hand(self, node: Node) -> bool:
        """Whether a look-up needs no read: the node's entry is cached and only a value, or the node is known to have none."""
        known = self._cache.get(node.key)
        if known is None:
            return self._known_absent(node.key) and not self._adopted
        try:
            return (known if isinstance(known, Decoded) else self._learn(node.key, known)).value_only
        except IntegrityError:
            return False

    def find(self, node: Node, now: Callable[[str], str], *, again: bool = True) -> Lookup:
        """Look up the node's entry. `now` returns today's digest of a value that the step read.

        A step that reads more than its arguments has one checkpoint per set of values read, so that returning to an earlier
        state finds the earlier checkpoint. The node's own entry then only lists what was read. With `again`, an entry that
        was missing when all small ones were fetched is read again, as another process may have written it since.
        """
        cached = self._cache.get(node.key)
        if type(cached) is Decoded and cached.value_only:
            return Lookup(cached)
        why, now = None, functools.cache(now)  # consistent, even if another thread changes a value meanwhile
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
        """Whether another process has replaced or removed an entry since it was read. If so, the cache is dropped.

        Something that an outdated entry refers to may be missing; that is no damage.
        """
        try:
            data = self.store.get(entry.key)
        except StoreError:
            return False  # the next read raises it
        if data is not None and entry.is_stored_as(data):
            return False
        self.drop_cache()
        return True

    def readings(self, node: Node) -> Decoded | None:
        """The node's own entry, if the node read something when it last ran. Only looks at the cache."""
        entry = self._cache.get(node.key)
        return entry if isinstance(entry, Decoded) and entry.meta.get("reads") else None

    def drew_numbers(self, node: Node) -> bool:
        """Whether the node drew from a random generator when it last ran. Only looks at the cache."""
        entry = self.readings(node)
        return entry is not None and any(read.startswith("random:") for read in entry.meta["reads"])

    def _known(self, node: Node) -> Iterator[str]:
        """The keys of the node under its own code, then under codes whose checkpoints were adopted for it."""
        yield node.key
        codes = [code_of(node.code)]
        data = node.code[len(codes[0]) :]
        for code in codes if self._adopted else ():  # grows, as an adopted code may itself have adopted another
            for step, before, after in self._adopted:
                if step == node.step and after == code and before not in codes:
                    codes.append(before)
                    yield self.node(step, node.arguments, before + data).key

    def _find_lost(self) -> set[str]:
        """Valid nodes whose entries are gone. Reads the log only if there are fewer entries than expected."""
        size = len(self.prefix)
        cached = list(self._cache)  # other threads add to it meanwhile
        nodes = [key for key in cached if key.startswith(self.prefix) and key[size] not in SIGILS and "@" not in key]
        if self._log is None or len(nodes) >= self._expected:
            return set()
        counted = timeline(self.store, self._log).counted()
        steps = [
            each for each in counted if isinstance(each.event, StepCompleted) and each.event.entry.startswith(NODES)
        ]
        return {self.prefix + each.suffix.partition("@")[0] for each in steps}.difference(list(self._cache))

    # -- reading

    def read(self, key: str) -> Decoded | None:
        """The verified entry under a key, or the target of an alias; None if there is none. IntegrityError if it is damaged."""
        entry = self._read(key)
        if entry is None or not entry.alias_of:
            return entry
        if self._prefix(key) in self._tried:  # then the targets of its aliases are fetched together, too
            self._fetch(self._prefix(entry.alias_of))
        target = self._read(entry.alias_of)
        if target is None:
            if self.replaced(entry):
                return self.read(key)
            raise IntegrityError(f"entry {entry.alias_of} is gone")
        if self._cache.get(key) is entry and self._cache.get(target.key) is target:
            self._cache[key] = target
        return target

    def _read(self, key: str) -> Decoded | None:
        """Like `read`, but does not follow aliases."""
        cached = self._cache.get(key)
        if isinstance(cached, Decoded):
            return cached
        data = cached or self.store.get(key)
        return None if data is None else self._learn(key, data)

    def _read_node(self, key: str, again: bool) -> Decoded | None:
        """Like `read`, for a node's own entry. After the second read, or if it is missing, fetches all small entries."""
        if self._known_absent(key):
            return self.read(key) if again else None
        entry = self.read(key)
        self._reads += 1
        if entry is None or self._reads >= _PATIENCE:
            self._fetch(self._prefix(key))
        return entry

    def _known_absent(self, key: str) -> bool:
        """Whether all small entries under the key's prefix were fetched, and this was not among them."""
        fetched = self._fetched  # first: another thread may finish a fetch, or drop the cache, between these lines
        return key.startswith(fetched) and key not in self._cache and fetched is self._fetched

    def learn(self, node: Node, data: Bytes | None) -> None:
        """Cache what is stored under the node's key, as read when its lease was acquired."""
        if data is not None:
            self._cache[node.key] = bytes(data)

    def _learn(self, key: str, data: Bytes) -> Decoded:
        """Verify an entry and cache it, if it is small."""
        entry = Decoded(data, key=key, secret=self.secret)
        if self._cache.get(key) is data:
            self._cache[key] = entry
        elif key not in self._touched and len(data) <= _SMALL:
            self._cache[key] = entry
            if key in self._touched:  # by another thread, meanwhile
                self._cache.pop(key, None)
        return entry

    @staticmethod
    def _prefix(key: str) -> str:
        """The prefix of the entries that are fetched together: those of a run, or of one shared step."""
        return key[: key.index("/", len(NODES)) + 1] if key.startswith(NODES) else key[: key.rindex("/") + 1]

    def fetch(self, node: Node) -> Path[None]:
        """Fetch all small entries for a coroutine. Many run at once, and each read would take a thread of its own."""
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
        """Fetch all small entries under a prefix into the cache, once."""
        if prefix in self._tried:
            return
        self._tried.add(prefix)
        cache = self._cache
        try:
            for key, data in self.store.scan(prefix, most=_SMALL):
                if isinstance(data, bytes) and key not in self._touched:
                    cache.setdefault(key, data)
                    if key in self._touched:  # by another thread, meanwhile
                        cache.pop(key, None)
                    self._room -= len(data) + _OVERHEAD
                    if self._room < 0:
                        return
        except StoreError:
            return  # the read of a single entry raises it
        if cache is not self._cache:
            return  # another thread has dropped it
        self._fetched = (*self._fetched, prefix)
        if prefix == self.prefix:
            self._lost = self._find_lost()

    def drop_cache(self) -> None:
        """Empty the cache, because another process has replaced or forgotten entries. Nothing is fetched in bulk again."""
        self._fetched = ()  # first: see `_known_absent`
        self._cache, self._room = {}, _ROOM

    def _forget_cached(self, keys: Iterable[str]) -> None:
        self._touched.update(keys)
        for key in keys:
            self._cache.pop(key, None)

    def _cache_written(self, put: Mapping[str, Frames], removed: Iterable[str]) -> None:
        """Update the cache after a commit."""
        self._forget_cached([*put, *removed])
        for key, frames in put.items():
            size = sum(map(len, frames))
            if size <= _SMALL and self._room > 0:
                self._room -= size + _OVERHEAD
                self._cache[key] = b"".join(frames)

    # -- writing

    def pack(self, node: Node, checkpoint: CheckpointData, *, seconds: float, time: float) -> Packed:
        """Encode the checkpoint of a completed node. It is not signed yet."""
        meta = checkpoint.meta
        if checkpoint.chunks is not None:
            meta["items"], meta["chunks"] = checkpoint.items, len(checkpoint.chunks)
        checkpoint.owner = checkpoint.owner or node.key

        def note(keys: list[str]) -> None:
            meta["blobs"] = sorted({*meta.get("blobs", ()), *keys})

        with keeping(self.store, note, checkpoint.owner):
            packed = pack(
                checkpoint.value,
                meta,
                name=checkpoint.name,
                seconds=seconds,
                time=time,
                named=lambda: self._copy(checkpoint, note),
            )
        checkpoint.blobs = meta.get("blobs", [])
        return packed

    def _copy(self, checkpoint: CheckpointData, note: Callable[[list[str]], None]) -> dict[str, Any]:
        """Metadata with a copy of the result, if it refers to objects of the caller's; see copies.py."""
        effects = checkpoint.meta.get("effects")
        result = checkpoint.value[0] if effects else checkpoint.value
        if effects and not refers(result, checkpoint.name):
            return {}  # only the effects do
        return {"copy": copy_of(result, Blobs(self.store, checkpoint.owner), note)}

    def write(
        self, node: Node, packed: Packed, checkpoint: CheckpointData, fields: Mapping[str, Any]
    ) -> StepCompleted | None:
        """Write the checkpoint, its event and, the first time, the parts of its code, in one transaction. Returns the event.

        The checkpoint of a step that read something, or a large one, is stored under a variant key; the node's own entry is
        then a pointer. Returns None, and writes nothing, if another attempt has written its result since this one began.
        """
        before = self._meta_before(node, checkpoint.seen)
        was_pointer = "readings" in before
        is_pointer = bool(checkpoint.reads) or packed.stored_bytes > _SMALL or was_pointer
        entry = packed.seal(variant_key(node.key, checkpoint.reads) if is_pointer else node.key, self.secret)
        put: dict[str, Frames] = {entry.key: entry.frames, **listing(entry.key, checkpoint.blobs)}
        if is_pointer:
            put[node.key] = self._pointer(node, checkpoint, before)
        for extra in (*(checkpoint.chunks or ()), checkpoint.snapshot, checkpoint.opening):
            if extra is not None:
                put[extra.key] = extra.frames
        code = code_of(node.code)
        if code not in self._known_code:
            put[code_key(code)] = self._manifest(code, checkpoint)
        marks: dict[str, str] = {}  # of this attempt, and of one at the same node that was killed
        if checkpoint.blobs:
            marks = {**waiting(self.store, node.key), **waiting(self.store, checkpoint.owner)}
        removed, unused = list(marks), set(marks.values())
        expect = self._expect_open()
        if checkpoint.once:  # a copy, which retention and rollbacks leave alone
            put.update(
                {node.intent: packed.seal(node.intent, self.secret).frames, **listing(node.intent, checkpoint.blobs)}
            )
            unused.update(listed(self.store, node.intent))
            removed.append(listing_key(node.intent))
        replaces = checkpoint.damaged or (self._exists(entry.key) if was_pointer else checkpoint.seen is not None)
        if replaces:
            unused.update(listed(self.store, entry.key))
            removed += [listing_key(entry.key), *self._chunks_of(node.key), *self._chunks_of(entry.key)]
            put[changed(self.owner)] = stamp()
        if not checkpoint.damaged:
            expect[node.key] = checkpoint.seen
        event = StepCompleted(
            **fields,
            raw_bytes=entry.raw_bytes,
            stored_bytes=entry.stored_bytes,
            entry=entry.key,
            replaces=replaces or was_pointer or node.key in self._lost,
        )
        removed = [key for key in removed if key not in put]
        self._touched.update(put, removed)
        append = self._appended([event])
        if not self.store.commit(put=put, append=append, delete=removed, expect=expect, under=checkpoint.hold):
            other = self._elsewhere()
            if other is not None:
                moved = other.node(node.step, node.arguments, node.code)
                checkpoint.seen, checkpoint.damaged, checkpoint.hold = other.store.get(moved.key), False, None
                return other.write(moved, packed, checkpoint, fields)
            self._forget_cached(put)
            return None
        self._known_code.add(code)
        self._cache_written(put, removed)
        release(self.store, unused.difference(checkpoint.blobs))
        return event

    def _expect_open(self) -> dict[str, Bytes | None]:
        """What a commit under the run's prefix expects: that the prefix is not closed."""
        return {closed(self.prefix): None} if self._moved is not None else {}

    def _elsewhere(self) -> RunEntries | None:
        """The entries under the run's new prefix, if this one was closed; None if it was not."""
        if self._moved is None or self.store.get(closed(self.prefix)) is None:
            return None
        return self._moved(self.prefix)

    def _manifest(self, code: str, checkpoint: CheckpointData) -> Frames:
        """The entry that lists the parts of a code digest."""
        parts = {name: [p.digest, p.where, p.shown, p.source] for name, p in checkpoint.code.items()}
        fields = {"parts": parts, "packages": dict(checkpoint.packages)}
        return seal([json.dumps(fields).encode()], code_key(code), self.secret)

    def _meta_before(self, node: Node, data: Bytes | None) -> Mapping[str, Any]:
        """The metadata of the node's own entry before this checkpoint; `data` is that entry."""
        if data is not None:
            try:
                entry = Decoded(data, key=node.key, secret=self.secret)
                found = self.read(entry.alias_of) if entry.alias_of else entry
                return found.meta if found is not None else {}
            except IntegrityError:
                pass  # it is about to be replaced
        return dict[str, Any]()

    def _pointer(self, node: Node, checkpoint: CheckpointData, before: Mapping[str, Any]) -> Frames:
        """The node's own entry, if the checkpoint is stored under a variant key. `before` is its metadata so far."""
        readings: list[list[str]] = before.get("readings", [])
        if sorted(checkpoint.reads) not in readings:
            readings = [*readings, sorted(checkpoint.reads)]
        shared = ("arguments", "shown", "data", "instead")
        meta: dict[str, Any] = {name: checkpoint.meta[name] for name in shared if name in checkpoint.meta}
        meta.update(readings=readings, reads=dict(checkpoint.reads))
        return encode(None, meta, key=node.key, secret=self.secret, time=time.time()).frames

    def _exists(self, key: str) -> bool:
        return key in self.store.get_many([key], most=0)

    def _read_if_sound(self, key: str) -> Decoded | None:
        try:
            return self.read(key)
        except IntegrityError:
            return None

    def forget(self, node: Node) -> bool:
        """Remove the node's checkpoint and leave a tombstone. Returns whether there was a checkpoint.

        No copy stays: checkpoints adopted for the node are removed as well, and those under prefixes that a rollback has
        replaced, unless a fork may need them.
        """
        expect = {**self._expect_open(), ALIASES: self.store.get(ALIASES)}  # no fork is made meanwhile
        valid = list(filter(self._has_checkpoint, self._known(node)))
        replaced = self._under_replaced_prefixes(node)
        nodes = list(dict.fromkeys([node.key, *valid, *filter(self._has_checkpoint, replaced or ())]))
        if nodes == [node.key] and not valid:
            return False
        variants = [key for each in nodes for key, _ in self.store.scan(f"{each}@", most=0)]
        entries = [*nodes, *variants]
        removed = [*variants, *map(listing_key, entries), *(c for key in entries for c in self._chunks_of(key))]
        unused = {blob for entry in entries for blob in listed(self.store, entry)}
        put: dict[str, Frames] = {key: tombstone(key, self.secret, FORGOTTEN) for key in nodes}
        put.update({changed(self.owner): stamp(), REMOVED: stamp()})
        self._touched.update(put, removed)
        event = StepForgotten(**node.about(), entry=node.key, everywhere=replaced is not None)
        if not self.store.commit(delete=removed, put=put, append=self._appended([event]), expect=expect):
            other = self._elsewhere() or self
            return other.forget(other.node(node.step, node.arguments, node.code))
        release(self.store, unused)
        self._cache_written(put, removed)
        return bool(valid)

    def mark_used(self, step: str) -> None:
        """Note that a memoized function had a hit: one look per process, and one write per day."""
        if step in self._used:
            return
        self._used.add(step)
        key, now = used_key(step), datetime.now(timezone.utc).isoformat(timespec="seconds").encode()
        with contextlib.suppress(StoreError):  # a store that cannot be written to still serves hits
            before = self.store.get(key)
            if before is None or bytes(before)[:10] != now[:10]:
                self.store.commit(put={key: [now]})

    def _under_replaced_prefixes(self, node: Node) -> list[str] | None:
        """The keys of the node under prefixes that rollbacks of the run have replaced. None if forks may need the entries."""
        if self._log is None or next(self.store.scan(fork_marks_of(self.owner), limit=1, most=0), None) is not None:
            return None
        others = [prefix for prefix in prefixes(self.store, self.owner) if prefix != self.prefix]
        return [prefix + node.key[len(self.prefix) :] for prefix in others]

    def _has_checkpoint(self, key: str) -> bool:
        """Whether there is an entry, even a damaged one, other than a tombstone."""
        try:
            entry = self.read(key)
        except IntegrityError:
            return True
        return entry is not None and not entry.is_tombstone

    # -- the items of generators, stored in chunks

    def new_items(self) -> str:
        """A new prefix for the keys of one generator's chunks."""
        return f"{items_of(self.owner)}{os.urandom(8).hex()}/"

    def encode_chunk(self, items: str, number: int, pickled: list[bytes], roots: list[Any]) -> Encoded:
        """Encode some items of a generator, each pickled already. `roots`: the caller's objects that each item refers to."""
        return encode(pickled, {"roots": roots} if any(roots) else {}, key=f"{items}{number:08x}", secret=self.secret)

    def chunk(self, entry: Decoded, number: int) -> Decoded:
        """One chunk of the items of an entry."""
        key = entry.chunks[number]
        chunk = self.read(key)
        if chunk is None:
            raise IntegrityError(f"entry {key} is gone")
        return chunk

    def _chunks_of(self, key: str) -> list[str]:
        """The keys of the chunks of an entry; none for an alias, whose target's chunks belong to the target."""
        try:
            entry = self._read(key)
        except IntegrityError:
            entry = None
        return entry.chunks if entry is not None and entry.key == key else []

    # -- snapshots and intents

    def find_loops(self, name: str) -> list[str]:
        """The keys of a loop's snapshots."""
        return [key for key, _ in self.store.scan(loop_snapshots_of(self.prefix, name), most=0)]

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
        """Write a loop's snapshot in place of earlier ones. Returns its key and its size in bytes, uncompressed."""
        key = loop_snapshots_of(self.prefix, name) + kind
        entry = encode(value, meta, key=key, secret=self.secret, name=roots)
        append = self._appended([replace(event, entry=key)])
        gone = [other for other in replaces if other != key]
        self._forget_cached([key, *gone])
        if self.store.commit(put={key: entry.frames}, append=append, delete=gone, expect=self._expect_open()):
            return key, entry.raw_bytes
        other = self._elsewhere() or self
        moved = [other.prefix + key[len(self.prefix) :] for key in replaces]
        return other.write_loop(name, kind, value, meta, roots, event, moved)

    def encode_snapshot(self, content: str, value: object) -> Encoded:
        """Encode a snapshot of the run's state and generators; `content` is its digest."""
        return encode(value, {}, key=f"{state_of(self.owner)}{content}", secret=self.secret)

    def encode_opening(self, states: Mapping[str, Any]) -> Encoded:
        """Encode the unseeded generators, as they were when the run's first scope opened."""
        return encode(dict(states), {}, key=f"{state_of(self.owner)}opening", secret=self.secret)

    def opening(self) -> dict[str, Any] | None:
        """The unseeded generators when the run's first scope opened, if they are stored."""
        entry = self._read_if_sound(f"{state_of(self.owner)}opening")
        return None if entry is None else entry.load()

    def intents(self) -> Iterator[tuple[str, Decoded]]:
        """The intents of effect="once" steps, and the records that they were performed."""
        for key, data in self.store.scan(intents_of(self.owner)):
            if data is not None:
                yield key, Decoded(data, key=key, secret=self.secret)

    def write_snapshot(self, entry: Encoded | None, event: Event) -> None:
        """Write an event that names a snapshot and, unless it is stored already, the snapshot."""
        self.store.commit(put={entry.key: entry.frames} if entry else {}, append=self._appended([event]))

    def put(self, key: str, value: object, meta: Mapping[str, Any], *, time: float) -> None:
        """Write one entry. It is durable when this returns."""
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

    # -- what a node is compared with, to explain why it runs

    def others(
        self, node: Node, opened: float = inf, after: str | None = "", used: Container[str] = ()
    ) -> Iterator[tuple[Node, Decoded, bool]]:
        """A few other checkpoints of the node's step from the cache, and whether each stood at the node's place.

        None were recorded since the scope was `opened`. First come those with the same arguments. Then, leaving out those that
        are `used` in this scope: the one that stood where the node stands now, which is next after the checkpoint `after`; and
        some from places before it that were left out. If `after` is None, the place is unknown.
        """
        step = f"{self.prefix}{quoted(node.step)}/"
        self._fetch(self._prefix(step))
        known = self._nodes_of(step, opened)
        place = None if after is None else known.next_place(after, used)
        there = known.places[place][-1:] if place is not None and place < len(known.places) else []
        before = known.places[: place or 0]
        passed = (key for keys in reversed(before) if not any(key in used for key in keys) for key in keys[-1:])
        some = dict.fromkeys(known.by_arguments.get(node.arguments, ())[:_NEAREST], False)
        some |= dict.fromkeys(islice(passed, _NEAREST), False) | dict.fromkeys(there, True)
        for key, stood_there in some.items():
            entry = self._read_if_sound(key) if key != node.key else None
            if entry is not None and not entry.is_tombstone:
                yield self.node(node.step, *key[len(step) :].split(".", 1)), entry, stood_there

    def _nodes_of(self, step: str, opened: float) -> _Earlier:
        """The nodes that a step had when the scope was opened."""
        if step not in self._by_step:
            cached = dict(self._cache)  # other threads add to it meanwhile
            found = {key: entry for key, entry in cached.items() if key.startswith(step) and "@" not in key}
            headers = {key: (e.flags, e.time) if isinstance(e, Decoded) else header_of(e) for key, e in found.items()}
            headers = {key: header for key, header in headers.items() if header[1] < opened}
            by_arguments: dict[str, list[str]] = {}
            for key in headers:
                by_arguments.setdefault(_arguments_of(key), []).append(key)
            times = {key: time for key, (flags, time) in headers.items() if time and not flags & TOMBSTONE}
            places, place_of = list[list[str]](), dict[str, int]()
            for key in sorted(times, key=lambda key: times[key]):
                before = self._replaced_by(key) if headers[key][0] & (INSTEAD | ALIAS) else ""
                place = place_of.get(before, len(places))
                if place == len(places):
                    places.append([])
                places[place].append(key)
                place_of[key] = place
            self._by_step[step] = _Earlier(by_arguments, places, place_of)
        return self._by_step[step]

    def _replaced_by(self, key: str) -> str:
        """The key of the checkpoint that this one was compared with when its step ran again; empty if there is none."""
        found = self._read_if_sound(key)
        return "" if found is None or "instead" not in found.meta else self.prefix + found.meta["instead"]

    def code_parts_of(self, code: str) -> tuple[dict[str, Part], dict[str, str]]:
        """The parts of the code behind a digest, and the versions of the packages it used; empty if they are unknown."""
        code = code_of(code)
        if code not in self._codes:
            key, fields = code_key(code), dict[str, Any]()
            try:
                data = self.store.get(key)
                if data is not None:
                    fields = json.loads(bytes(unseal(data, key, self.secret)))
            except OncemoreError:
                pass
            parts = {name: Part(*values) for name, values in fields.get("parts", {}).items()}
            self._codes[code] = parts, fields.get("packages", {})
        return self._codes[code]
