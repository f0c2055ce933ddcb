"""Where a run's entries stand in its store: found, verified, written, forgotten.

Small entries are read in bulk once a few have been asked for, and stay in memory as the bytes they are: each recall
makes a fresh value from them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from blake3 import blake3

from .blobs import keeping, uses
from .codec import Decoded, Encoded, Naming, encode, seal, unseal
from .errors import IntegrityError, OncemoreError
from .events import Event, StepForgotten
from .fingerprint import Part
from .records import read_log, signed, told_of
from .secret import secret
from .stores import Bytes, Store

_SMALL = 1 << 15
_READ_AHEAD = 1 << 26  # bytes of small entries held in memory for one run
_PATIENCE = 2  # so many single reads before the rest is read in bulk


class Node:
    """One call of a step: the step's name, and the digests of its arguments and of its code."""

    __slots__ = ("arguments", "code", "key", "owner", "step")

    def __init__(self, home: str, owner: str, step: str, arguments: str, code: str) -> None:
        self.step, self.arguments, self.code, self.owner = step, arguments, code, owner
        self.key = f"{home}{quote(step, safe='')}/{arguments}.{code}"

    @property
    def fingerprint(self) -> str:
        return f"{self.arguments}.{self.code}"

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts at this node, also after its code was mended; another for every other node."""
        return blake3(f"{self.owner}/{quote(self.step, safe='')}/{self.arguments}".encode()).hexdigest(length=16)

    @property
    def id(self) -> str:
        """What people see: enough to tell nodes of one step apart."""
        return f"{self.step}-{self.arguments[:8]}"


@dataclass
class Kept:
    """What is to be kept of a completed node.

    `reads` are the state keys it depends on, `name` names objects that are the caller's own, `chunks` are a generator's items,
    `once` says that an intent is to be removed with it.
    """

    value: object
    meta: dict[str, Any]
    code: Mapping[str, Part]
    packages: Callable[[], Mapping[str, str]] = dict[str, str]
    reads: Mapping[str, str] = field(default_factory=dict[str, str])
    name: Naming | None = None
    chunks: list[Encoded] | None = None
    items: str = ""  # the beginning of the chunks' keys
    snapshot: Encoded | None = None  # the run's state after the step, unless it is kept already
    once: bool = False
    blobs: list[str] = field(default_factory=list[str])  # the entries that hold the contents of its files


def _variant(key: str, reads: Mapping[str, str]) -> str:
    return f"{key}@{blake3(json.dumps(reads, sort_keys=True).encode()).hexdigest(length=16)}"


class Older(NamedTuple):
    """An earlier stretch of the run's history: where its entries stand, and which of them still count."""

    home: str
    entries: frozenset[str]


class Shelf:
    """The entries of one run (`log` names its event log), or those shared between runs (no log).

    `owner` is the run's own mark, the same after a rollback, when `home` is a new one and what counts of the past is `older`.
    """

    def __init__(self, store: Store, owner: str, home: str, log: str | None, older: Sequence[Older] = ()) -> None:
        self.store, self.owner, self.home = store, owner, home
        self._log = log
        self._older = older
        self._secret = secret()
        self._near: dict[str, bytes | Decoded] = {}
        self._reads = 0
        self._known_code: set[str] = set()
        self._told: frozenset[str] | None = None

    def node(self, step: str, arguments: str, code: str) -> Node:
        return Node(self.home, self.owner, step, arguments, code)

    def find(self, node: Node, state: Callable[[str], str]) -> Decoded | None:
        """The node's entry. `state` gives the digest of a state key now.

        The checkpoint of a step that read state is kept under what it read; the node's own key then only says which
        keys those were, so that going back to an earlier state finds the earlier checkpoint again.
        """
        for key, counts in self._places(node.key):
            entry = self.read(key)
            if entry is None:
                continue
            if entry.meta.get("forgotten"):
                return None
            if "readings" not in entry.meta:
                if counts(key):
                    return entry
                continue
            for names in entry.meta["readings"]:
                variant = _variant(key, {name: state(name) for name in names})
                found = self.read(variant) if counts(variant) else None
                if found is not None:
                    return found
        return None

    def readings(self, node: Node) -> dict[str, Any] | None:
        """What was noted at the last time that the node ran, if it read state then."""
        for key, _ in self._places(node.key):
            entry = self._trusted(key)
            if entry is not None:
                return entry.meta if "readings" in entry.meta else None
        return None

    def _places(self, key: str) -> Iterator[tuple[str, Callable[[str], bool]]]:
        """Where an entry of the run may stand, the newest place first, and what tells whether it counts there."""
        yield key, lambda key: True
        for older in reversed(self._older):
            yield older.home + key[len(self.home) :], older.entries.__contains__

    def lost(self, node: Node, state: Callable[[str], str]) -> bool:
        """Whether the run's events tell of a checkpoint of the node that is not there any more, and was not removed by us."""
        meta = self.readings(node)
        if meta is not None and any(state(name) != was for name, was in meta["reads"].items()):
            return False  # it is there, for another state
        if self._told is None:
            self._told = told_of(self.store, self._log, self.home) if self._log else frozenset[str]()
        return node.key in self._told

    def read(self, key: str) -> Decoded | None:
        """An entry, its signature verified, or None. IntegrityError if what is there cannot be trusted."""
        near = self._near.get(key)
        if isinstance(near, Decoded):
            return near
        data: Bytes | None = near
        if data is None:
            data = self.store.get(key)
            if data is None:
                return None
            self._read_ahead()
        entry = Decoded(data, key=key, secret=self._secret)
        if isinstance(data, bytes) and len(data) <= _SMALL:
            self._near[key] = entry
        return entry

    def _read_ahead(self) -> None:
        self._reads += 1
        if self._reads != _PATIENCE:
            return
        room = _READ_AHEAD
        for key, data in self.store.scan(self.home, most=_SMALL):
            if data is not None:
                self._near.setdefault(key, bytes(data))
                room -= len(data)
            if room < 0:
                break

    def encode(self, node: Node, kept: Kept) -> Encoded:
        """What is kept of a completed node, as an entry that counts for this node only."""
        meta = dict(kept.meta)
        if kept.chunks is not None:
            meta["items"], meta["chunks"] = kept.items, len(kept.chunks)
        key = _variant(node.key, kept.reads) if kept.reads else node.key
        with keeping(self.store, lambda keys: meta.update(blobs=sorted({*meta.get("blobs", ()), *keys}))):
            entry = encode(kept.value, meta, key=key, secret=self._secret, name=kept.name)
        kept.blobs = meta.get("blobs", [])
        return entry

    def write(self, node: Node, entry: Encoded, kept: Kept, event: Event) -> None:
        """The checkpoint and its event in one transaction; with it, once, what its code consists of."""
        put = {entry.key: entry.frames}
        if kept.reads:
            put[node.key] = self._pointer(node, kept)
        for extra in (*(kept.chunks or ()), *([kept.snapshot] if kept.snapshot else ())):
            put[extra.key] = extra.frames
        if node.code not in self._known_code:
            manifest = f"code/{node.code}"
            parts = {name: [p.digest, p.where, p.shown, p.source] for name, p in kept.code.items()}
            facts = {"parts": parts, "packages": kept.packages()}
            put[manifest] = seal([json.dumps(facts).encode()], manifest, self._secret)
        for blob in kept.blobs:
            put.update((mark, [b"1"]) for mark in uses(self.home, blob))
        obsolete = [] if kept.chunks is None else self._chunks_of(entry.key)
        if kept.once:
            obsolete.append(self.intent_key(node.idempotency_key))
        self.store.commit(put=put, append=self._appended([event]), delete=obsolete)
        self._known_code.add(node.code)
        for key in (*put, *obsolete):
            self._near.pop(key, None)

    def _pointer(self, node: Node, kept: Kept) -> list[Bytes]:
        before = self._trusted(node.key)
        readings: list[list[str]] = [] if before is None else before.meta.get("readings", [])
        if sorted(kept.reads) not in readings:
            readings = [*readings, sorted(kept.reads)]
        meta = {**kept.meta, "readings": readings, "reads": kept.reads}
        return encode(None, meta, key=node.key, secret=self._secret).frames

    def _trusted(self, key: str) -> Decoded | None:
        try:
            return self.read(key)
        except IntegrityError:
            return None  # it is about to be replaced or removed

    def forget(self, node: Node) -> bool:
        """Remove the node's checkpoint; whether there was one. What belongs to an older stretch is only covered up."""
        known = any(self.store.get(key) is not None for key, _ in self._places(node.key))
        entries = [node.key, *(key for key, _ in self.store.scan(f"{node.key}@", most=0))]
        keys = [*entries, *(chunk for key in entries for chunk in self._chunks_of(key))]
        cover = encode(None, {"forgotten": True}, key=node.key, secret=self._secret)
        put = {node.key: cover.frames} if self._older else {}
        fact = StepForgotten(step=node.step, node=node.id, fingerprint=node.fingerprint, entry=node.key)
        self.store.commit(delete=keys, put=put, append=self._appended([fact]) if known else {})
        self._told = None
        for key in keys:
            self._near.pop(key, None)
        return known

    # -- the items of generators, kept in chunks

    def new_items(self) -> str:
        """The beginning of the keys of one generator's chunks."""
        return f"{self.home}#/{secrets.token_hex(8)}/"

    def encode_chunk(self, items: str, number: int, pickled: list[bytes], roots: list[Any]) -> Encoded:
        """Some items of a generator, each pickled already, and the roots that each names objects under."""
        return encode(pickled, {"roots": roots} if any(roots) else {}, key=f"{items}{number:08x}", secret=self._secret)

    def chunk(self, entry: Decoded, number: int) -> Decoded:
        """One chunk of the items that belong to an entry."""
        key = f"{entry.meta['items']}{number:08x}"
        found = self.read(key)
        if found is None:
            raise IntegrityError(f"entry {key} is gone")
        return found

    def _chunks_of(self, key: str) -> list[str]:
        entry = self._trusted(key)
        if entry is None or "items" not in entry.meta:
            return []
        return [f"{entry.meta['items']}{number:08x}" for number in range(entry.meta["chunks"])]

    # -- intents and snapshots

    def intent_key(self, idempotency_key: str) -> str:
        return f"node/{self.owner}/!/{idempotency_key}"

    def loop_key(self, name: str) -> str:
        return f"{self.home}$/{quote(name, safe='')}"

    def find_loop(self, name: str) -> Decoded | None:
        """The last snapshot of a loop that counts."""
        for key, counts in self._places(self.loop_key(name)):
            entry = self.read(key) if counts(key) else None
            if entry is not None:
                return entry
        return None

    def encode_snapshot(self, content: str, value: object) -> Encoded:
        """The run's state and generators, under the digest of their content."""
        return encode(value, {}, key=f"{self.home}=/{content}", secret=self._secret)

    def intents(self) -> Iterator[tuple[str, Decoded]]:
        """What steps with effect="once" have begun and not completed."""
        for key, data in self.store.scan(self.intent_key("")):
            if data is not None:
                yield key, Decoded(data, key=key, secret=self._secret)

    def write_snapshot(self, entry: Encoded | None, event: Event) -> None:
        """The event that names a snapshot, and the snapshot itself unless it is kept already."""
        self.store.commit(put={entry.key: entry.frames} if entry else {}, append=self._appended([event]))

    def put(
        self,
        key: str,
        value: object,
        meta: Mapping[str, Any],
        events: Sequence[Event] = (),
        name: Naming | None = None,
    ) -> None:
        """Write one entry of the run's own, durable when this returns."""
        entry = encode(value, meta, key=key, secret=self._secret, name=name)
        self._near.pop(key, None)
        self.store.commit(put={key: entry.frames}, append=self._appended(events))

    def remove(self, key: str) -> None:
        self._near.pop(key, None)
        self.store.commit(delete=[key])

    # -- events

    def _appended(self, events: Sequence[Event]) -> dict[str, list[bytes]]:
        if self._log is None or not events:
            return {}
        return {self._log: [signed(self._log, event) for event in events]}

    def append(self, events: Sequence[Event]) -> None:
        """Write events that belong to no checkpoint."""
        if self._log is not None:
            self.store.commit(append=self._appended(events))

    def events(self, since: int = 0) -> Iterator[Event]:
        """The run's events in order, those after number `since`."""
        return iter(()) if self._log is None else read_log(self.store, self._log, since)

    def others(self, node: Node, limit: int = 16) -> Iterator[tuple[Node, dict[str, Any]]]:
        """Other checkpoints of the node's step with their metadata: first those of the same arguments."""
        name = quote(node.step, safe="")
        for home in (self.home, *(older.home for older in reversed(self._older))):
            step = f"{home}{name}/"
            for prefix in (f"{step}{node.arguments}.", step):
                for key, data in self.store.scan(prefix, limit=limit, most=_SMALL):
                    arguments, _, code = key[len(step) :].partition(".")
                    if data is None or key == node.key or "@" in code:
                        continue
                    try:
                        meta = Decoded(data, key=key, secret=self._secret).meta
                    except IntegrityError:
                        continue  # it will be told when it is asked for
                    yield Node(home, self.owner, node.step, arguments, code), meta

    def code_facts(self, code: str) -> tuple[dict[str, Part], dict[str, str]]:
        """What the code behind a digest consisted of, and the packages then; empty if that is not known any more."""
        key = f"code/{code}"
        try:
            data = self.store.get(key)
            facts: dict[str, Any] = json.loads(bytes(unseal(data, key, self._secret))) if data is not None else {}
        except OncemoreError:
            return {}, {}
        return {name: Part(*values) for name, values in facts.get("parts", {}).items()}, facts.get("packages", {})
