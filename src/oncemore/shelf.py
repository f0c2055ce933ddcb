"""Where a run's entries stand in its store: found, verified, written, forgotten."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .blobs import keeping, marks, parting, pending, release, use, waiting
from .codec import Decoded, Encoded, Naming, encode, seal, unseal
from .earlier import Older, cover, fates
from .errors import IntegrityError, OncemoreError
from .events import Event, SnapshotSaved, StepCompleted, StepForgotten
from .facts import replace
from .fingerprint import Part
from .near import Near
from .nodes import Kept, Node, step_in_key, variant_key
from .records import in_key, needed, read_log, signed
from .secret import secret
from .stores import Frames, Store

_SMALL = 1 << 15


class Shelf:
    """The entries of one run (`log` names its event log), or those shared between runs (no log).

    `owner` is the run's own mark, the same after a rollback, when `home` is a new one and what counts of the past is `older`.
    What a fork may need is never replaced or removed: `beside` is asked for another home, and a newer entry stands there.
    """

    def __init__(
        self,
        store: Store,
        owner: str,
        home: str,
        log: str | None,
        older: Sequence[Older] = (),
        beside: Callable[[str], Shelf] | None = None,
        adopted: Sequence[Sequence[str]] = (),
    ) -> None:
        self.store, self.owner, self.home = store, owner, home
        self._log = log
        self._adopted = adopted
        self._older = older
        self._beside = beside
        self.secret = secret()
        self.near = Near(store, home, log, self.secret)
        self._known_code: set[str] = set()
        self._fates: dict[str, str] | None = None

    def node(self, step: str, arguments: str, code: str) -> Node:
        return Node(self.home, self.owner, step, arguments, code)

    def find(self, node: Node, state: Callable[[str], str]) -> Decoded | None:
        """The node's entry. `state` gives the digest of a state key now.

        The checkpoint of a step that read state is kept under what it read; the node's own key then only says which
        keys those were, so that going back to an earlier state finds the earlier checkpoint again.
        """
        for key, older in self._known(node):
            entry = self.read(key)
            if entry is None:
                continue
            if entry.bare and older is None:
                return entry
            for names in entry.meta.get("readings", ()):
                variant = variant_key(key, {name: state(name) for name in names})
                found = self.read(variant) if older is None or older.counts(variant) else None
                if found is not None:
                    return None if "forgotten" in found.meta else found
                if older is not None and variant in older.replaced:
                    return None
            counts = older is None or older.counts(key)
            if counts and not entry.meta.keys() & {"readings", "forgotten"}:
                return entry
            if (counts and "forgotten" in entry.meta) or (older is not None and key in older.replaced):
                return None  # what is older does not count
        return None

    def readings(self, node: Node) -> dict[str, Any] | None:
        """What was noted at the last time that the node ran, if it read state then."""
        for key, _ in self._places(node.key):
            entry = self._trusted(key)
            if entry is not None:
                return entry.meta if "readings" in entry.meta else None
        return None

    def _known(self, node: Node) -> Iterator[tuple[str, Older | None]]:
        """Where the node's entry may stand: under its own code, then under codes whose checkpoints were adopted for that."""
        yield from self._places(node.key)
        codes = [node.code]
        for code in (
            codes if self._adopted else ()
        ):  # grows as it goes; a code may be adopted for the one that was adopted for it
            for step, before, after in self._adopted:
                if step == node.step and after == code and before not in codes:
                    codes.append(before)
                    yield from self._places(self.node(step, node.arguments, before).key)

    def _places(self, key: str) -> Iterator[tuple[str, Older | None]]:
        """Where an entry of the run may stand, the newest place first; None: where the run writes now."""
        yield key, None
        for older in reversed(self._older):
            yield older.home + key[len(self.home) :], older

    def fate(self, node: Node, state: Callable[[str], str]) -> str | None:
        """What became of the node's checkpoint that is not there (any more), if the run's events tell of one."""
        meta = self.readings(node)
        if meta is not None and any(state(name) != was for name, was in meta["reads"].items()):
            return None  # it is there, for another state
        if self._fates is None:
            self._fates = fates(self.store, self._log, self._counts) if self._log else {}
        return self._fates.get(node.key[len(node.home) :])

    def _counts(self, entry: str) -> bool:
        return entry.startswith(self.home) or any(o.counts(entry) for o in self._older if entry.startswith(o.home))

    def read(self, key: str) -> Decoded | None:
        """An entry, its signature verified, or None. IntegrityError if what is there cannot be trusted."""
        return self.near.get(key)

    def encode(self, node: Node, kept: Kept) -> Encoded:
        """What is kept of a completed node, as an entry that counts for this node only."""
        meta = dict(kept.meta)
        if kept.chunks is not None:
            meta["items"], meta["chunks"] = kept.items, len(kept.chunks)
        key = variant_key(node.key, kept.reads) if kept.reads else node.key
        with keeping(self.store, lambda keys: meta.update(blobs=sorted({*meta.get("blobs", ()), *keys})), node.key):
            entry = encode(kept.value, meta, key=key, secret=self.secret, name=kept.name)
        kept.blobs = meta.get("blobs", [])
        return entry

    def write(self, node: Node, entry: Encoded, kept: Kept, facts: dict[str, Any]) -> StepCompleted:
        """The checkpoint and its event in one transaction; with it, once, what its code consists of. The event as written."""
        before = self._trusted(node.key) if kept.reads else None
        event = StepCompleted(**facts, entry=entry.key, replaces=before is not None or self._is_older(node.key))
        put = self._written(node, entry, kept, before)
        obsolete = [mark for blob in kept.blobs for mark in pending(node.key, blob)]
        if kept.once:
            obsolete.append(self.intent_key(node.idempotency_key))
        new = {entry.key: None} if before is None or "readings" in before.meta else {node.key: None}
        if not self.store.commit(put=put, append=self._appended([event]), delete=obsolete, expect=new):
            event = replace(event, replaces=True)
            parted, marked = parting(self.store, node.home, entry.key, node.key, kept.blobs)
            put.update(parted)
            obsolete += [*self._chunks_of(entry.key), *marked]
            alone = {needed(node.home): None}
            if not self.store.commit(put=put, append=self._appended([event]), delete=obsolete, expect=alone):
                other, moved = self._moved(node)
                entry = other.encode(moved, kept)
                return other.write(moved, entry, kept, facts)
        self._known_code.add(node.code)
        if event.replaces or obsolete or len(put) > 1:
            self.near.drop(*put, *obsolete)
        if entry.small is not None:
            self.near.know(entry.key, entry.small)
        if kept.blobs or event.replaces:  # what the one before needed, or one who was cut off
            release(self.store, waiting(self.store, node.key))
        return event

    def _written(self, node: Node, entry: Encoded, kept: Kept, before: Decoded | None) -> dict[str, Frames]:
        put: dict[str, Frames] = {entry.key: entry.frames}
        if kept.reads:
            put[node.key] = self._pointer(node, kept, before)
        for extra in (*(kept.chunks or ()), *([kept.snapshot] if kept.snapshot else ())):
            put[extra.key] = extra.frames
        if node.code not in self._known_code:
            manifest = f"code/{node.code}"
            parts = {name: [p.digest, p.where, p.shown, p.source] for name, p in kept.code.items()}
            facts = {"parts": parts, "packages": kept.packages()}
            put[manifest] = seal([json.dumps(facts).encode()], manifest, self.secret)
        for blob in kept.blobs:
            put.update(marks(use(node.home, entry.key, blob), blob))
        return put

    def _is_older(self, key: str) -> bool:
        """Whether an earlier stretch has checkpoints of the node with this key."""
        if not self._older:
            return False
        places = [older.home + key[len(self.home) :] for older in self._older]
        return any(True for place in places for _ in self.store.scan(place, limit=1, most=0))

    def _moved(self, node: Node) -> tuple[Shelf, Node]:
        """Where the node stands from now on: a fork may need what is where it stood."""
        assert self._beside is not None  # there are forks of runs only
        other = self._beside(node.home)
        return other, other.node(node.step, node.arguments, node.code)

    def _pointer(self, node: Node, kept: Kept, before: Decoded | None) -> Frames:
        known: dict[str, Any] = {} if before is None else before.meta
        readings: list[list[str]] = known.get("readings", [])
        if sorted(kept.reads) not in readings:
            readings = [*readings, sorted(kept.reads)]
        covers = {"forgotten": True} if "forgotten" in known else {}
        meta = {**kept.meta, "readings": readings, "reads": kept.reads, **covers}
        return encode(None, meta, key=node.key, secret=self.secret).frames

    def _trusted(self, key: str) -> Decoded | None:
        try:
            return self.read(key)
        except IntegrityError:
            return None  # it is about to be replaced or removed

    def forget(self, node: Node) -> bool:
        """Remove the node's checkpoint; whether there was one. What belongs to an older stretch or code is only covered up."""
        known = any(self.store.get(key) is not None for key, _ in self._known(node))
        entries = [node.key, *(key for key, _ in self.store.scan(f"{node.key}@", most=0))]
        keys = [*entries, *(chunk for key in entries for chunk in self._chunks_of(key))]
        put = {node.key: cover(node.key)} if any(key != node.key for key, _ in self._known(node)) else {}
        for entry in entries:
            parted, marked = parting(self.store, node.home, entry, node.key)
            put.update(parted)
            keys += marked
        gone = [key for key in keys if key not in put]
        fact = StepForgotten(**node.about(), entry=node.key)
        append = self._appended([fact]) if known else {}
        if not self.store.commit(delete=gone, put=put, append=append, expect={needed(node.home): None}):
            other, node = self._moved(node)
            return other.forget(node)
        release(self.store, waiting(self.store, node.key))
        self._fates = None
        self.near.drop(*keys)
        return known

    # -- the items of generators, kept in chunks

    def new_items(self) -> str:
        """The beginning of the keys of one generator's chunks."""
        return f"{self.home}#/{os.urandom(8).hex()}/"

    def encode_chunk(self, items: str, number: int, pickled: list[bytes], roots: list[Any]) -> Encoded:
        """Some items of a generator, each pickled already, and the roots that each names objects under."""
        return encode(pickled, {"roots": roots} if any(roots) else {}, key=f"{items}{number:08x}", secret=self.secret)

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
        return f"{self.home}$/{in_key(name)}"

    def find_loop(self, name: str) -> Decoded | None:
        """The last snapshot of a loop that counts."""
        for key, older in self._places(self.loop_key(name)):
            entry = self.read(key) if older is None or older.counts(key) else None
            if entry is not None:
                return entry
        return None

    def write_loop(self, name: str, value: object, meta: dict[str, Any], roots: Naming, event: SnapshotSaved) -> None:
        """A loop's snapshot, in place of the one before."""
        key = self.loop_key(name)
        entry = encode(value, meta, key=key, secret=self.secret, name=roots)
        append = self._appended([replace(event, entry=key)])
        self.near.drop(key)
        if not self.store.commit(put={key: entry.frames}, append=append, expect={needed(self.home): None}):
            assert self._beside is not None
            self._beside(self.home).write_loop(name, value, meta, roots, event)

    def encode_snapshot(self, content: str, value: object) -> Encoded:
        """The run's state and generators, under the digest of their content."""
        return encode(value, {}, key=f"{self.home}=/{content}", secret=self.secret)

    def intents(self) -> Iterator[tuple[str, Decoded]]:
        """What steps with effect="once" have begun and not completed."""
        for key, data in self.store.scan(self.intent_key("")):
            if data is not None:
                yield key, Decoded(data, key=key, secret=self.secret)

    def write_snapshot(self, entry: Encoded | None, event: Event) -> None:
        """The event that names a snapshot, and the snapshot itself unless it is kept already."""
        self.store.commit(put={entry.key: entry.frames} if entry else {}, append=self._appended([event]))

    def put(self, key: str, value: object, meta: Mapping[str, Any]) -> None:
        """Write one entry of the run's own, durable when this returns."""
        entry = encode(value, meta, key=key, secret=self.secret)
        self.near.drop(key)
        self.store.commit(put={key: entry.frames})

    def remove(self, key: str) -> None:
        self.near.drop(key)
        self.store.commit(delete=[key])

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

    def others(self, node: Node, limit: int = 16) -> Iterator[tuple[Node, dict[str, Any]]]:
        """Other checkpoints of the node's step with their metadata: first those of the same arguments."""
        name = step_in_key(node.step)
        for home in (self.home, *(older.home for older in reversed(self._older))):
            step = f"{home}{name}/"
            for prefix in (f"{step}{node.arguments}.", step):
                for key, data in self.store.scan(prefix, limit=limit, most=_SMALL):
                    arguments, _, code = key[len(step) :].partition(".")
                    if data is None or key == node.key or "@" in code:
                        continue
                    try:
                        meta = Decoded(data, key=key, secret=self.secret).meta
                    except IntegrityError:
                        continue  # it will be told when it is asked for
                    yield Node(home, self.owner, node.step, arguments, code), meta

    def code_facts(self, code: str) -> tuple[dict[str, Part], dict[str, str]]:
        """What the code behind a digest consisted of, and the packages then; empty if that is not known any more."""
        key = f"code/{code}"
        try:
            data = self.store.get(key)
            facts: dict[str, Any] = json.loads(bytes(unseal(data, key, self.secret))) if data is not None else {}
        except OncemoreError:
            return {}, {}
        return {name: Part(*values) for name, values in facts.get("parts", {}).items()}, facts.get("packages", {})
