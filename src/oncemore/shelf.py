"""Where a run's entries stand in its store: found, verified, written, forgotten.

Small entries are read in bulk once a few have been asked for, and stay in memory as the bytes they are: each recall
makes a fresh value from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from blake3 import blake3

from .codec import Decoded, Encoded, Naming, encode, seal, unseal
from .errors import IntegrityError, OncemoreError, warn
from .events import Event
from .fingerprint import Part
from .secret import secret
from .stores import Bytes, Store

_SMALL = 1 << 15
_READ_AHEAD = 1 << 26  # bytes of small entries held in memory for one run
_PATIENCE = 2  # so many single reads before the rest is read in bulk


class Node:
    """One call of a step: the step's name, and the digests of its arguments and of its code."""

    __slots__ = ("_home", "arguments", "code", "key", "step")

    def __init__(self, home: str, step: str, arguments: str, code: str) -> None:
        self.step, self.arguments, self.code = step, arguments, code
        self._home = home
        self.key = f"{home}{quote(step, safe='')}/{arguments}.{code}"

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts at this node, also after its code was mended; another for every other node."""
        return blake3(f"{self._home}{quote(self.step, safe='')}/{self.arguments}".encode()).hexdigest(length=16)

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
    reads: Mapping[str, str] = field(default_factory=dict[str, str])
    name: Naming | None = None
    chunks: list[Encoded] | None = None
    items: str = ""
    once: bool = False


def _variant(node: Node, reads: Mapping[str, str]) -> str:
    return f"{node.key}@{blake3(json.dumps(reads, sort_keys=True).encode()).hexdigest(length=16)}"


class Shelf:
    """The entries of one run (`log` names its event log), or those shared between runs (no log)."""

    def __init__(self, store: Store, home: str, log: str | None) -> None:
        self.store, self.home = store, home
        self._log = log
        self._secret = secret()
        self._near: dict[str, bytes | Decoded] = {}
        self._reads = 0
        self._known_code: set[str] = set()

    def find(self, node: Node, state: Callable[[str], str]) -> tuple[Decoded | None, str | None]:
        """The node's entry, or None and the reason if that is known. `state` gives the digest of a state key now.

        The checkpoint of a step that read state is kept under what it read; the node's own key then only says which
        keys those were, so that going back to an earlier state finds the earlier checkpoint again.
        """
        entry = self.read(node.key)
        if entry is None or "readings" not in entry.meta:
            return entry, None
        for names in entry.meta["readings"]:
            found = self.read(_variant(node, {name: state(name) for name in names}))
            if found is not None:
                return found, None
        return None, "; ".join(f"state[{n!r}] changed" for n, was in entry.meta["reads"].items() if state(n) != was)

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
        key = _variant(node, kept.reads) if kept.reads else node.key
        return encode(kept.value, meta, key=key, secret=self._secret, name=kept.name)

    def write(self, node: Node, entry: Encoded, kept: Kept, event: Event) -> None:
        """The checkpoint and its event in one transaction; with it, once, what its code consists of."""
        put = {entry.key: entry.frames}
        if kept.reads:
            put[node.key] = self._pointer(node, kept)
        for number, chunk in enumerate(kept.chunks or ()):
            put[self._chunk_key(kept.items, number)] = chunk.frames
        if node.code not in self._known_code:
            manifest = f"code/{node.code}"
            facts = {name: [p.digest, p.where, p.shown, p.source] for name, p in kept.code.items()}
            put[manifest] = seal([json.dumps(facts).encode()], manifest, self._secret)
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
        """Remove the node's checkpoint; whether there was one."""
        known = self.store.get(node.key) is not None
        entries = [node.key, *(key for key, _ in self.store.scan(f"{node.key}@", most=0))]
        keys = [*entries, *(chunk for key in entries for chunk in self._chunks_of(key))]
        self.store.commit(delete=keys)
        for key in keys:
            self._near.pop(key, None)
        return known

    # -- the items of generators, kept in chunks

    def _chunk_key(self, items: str, number: int) -> str:
        return f"{self.home}#/{items}/{number:08x}"

    def encode_chunk(self, items: str, number: int, pickled: list[bytes]) -> Encoded:
        """Some items of a generator, each pickled already."""
        return encode(pickled, {}, key=self._chunk_key(items, number), secret=self._secret)

    def chunk(self, entry: Decoded, number: int) -> Decoded:
        """One chunk of the items that belong to an entry."""
        key = self._chunk_key(entry.meta["items"], number)
        found = self.read(key)
        if found is None:
            raise IntegrityError(f"entry {key} is gone")
        return found

    def _chunks_of(self, key: str) -> list[str]:
        entry = self._trusted(key)
        if entry is None or "items" not in entry.meta:
            return []
        return [self._chunk_key(entry.meta["items"], number) for number in range(entry.meta["chunks"])]

    # -- intents and snapshots

    def intent_key(self, idempotency_key: str) -> str:
        return f"{self.home}!/{idempotency_key}"

    def intents(self) -> Iterator[tuple[str, Decoded]]:
        """What steps with effect="once" have begun and not completed."""
        for key, data in self.store.scan(self.intent_key("")):
            if data is not None:
                yield key, Decoded(data, key=key, secret=self._secret)

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
        log = self._log
        return {log: [b"".join(seal([event.to_json()], log, self._secret)) for event in events]}

    def append(self, events: Sequence[Event]) -> None:
        """Write events that belong to no checkpoint."""
        if self._log is not None:
            self.store.commit(append=self._appended(events))

    def events(self, since: int = 0) -> Iterator[Event]:
        """The run's events in order, those after number `since`."""
        if self._log is None:
            return
        for key, data in self.store.scan(self._log, after=f"{self._log}{since:016x}"):
            try:
                body = unseal(data or b"", self._log, self._secret)
            except IntegrityError as error:
                warn(f"event {key} is left out: {error}")
                continue
            yield Event.from_json(bytes(body), int(key[len(self._log) :], 16))

    def others(self, node: Node, limit: int = 16) -> Iterator[tuple[Node, dict[str, Any]]]:
        """Other checkpoints of the node's step with their metadata: first those of the same arguments."""
        step = f"{self.home}{quote(node.step, safe='')}/"
        for prefix in (f"{step}{node.arguments}.", step):
            for key, data in self.store.scan(prefix, limit=limit, most=_SMALL):
                arguments, _, code = key[len(step) :].partition(".")
                if data is not None and key != node.key and "@" not in code:
                    try:
                        yield Node(self.home, node.step, arguments, code), Decoded(data, key=key, secret=self._secret).meta
                    except IntegrityError:
                        continue  # it will be told when it is asked for

    def code_parts(self, code: str) -> dict[str, Part]:
        """What the code behind a digest consisted of; empty if that is not known any more."""
        key = f"code/{code}"
        try:
            data = self.store.get(key)
            facts: dict[str, list[str]] = json.loads(bytes(unseal(data, key, self._secret))) if data is not None else {}
        except OncemoreError:
            return {}
        return {name: Part(*values) for name, values in facts.items()}
