"""A run's checkpoints in its store: found, verified, written, forgotten.

Small entries are read in bulk once a few have been asked for, and stay in memory as the bytes they are: each recall
makes a fresh value from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from .codec import Decoded, Encoded, encode, seal, unseal
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

    __slots__ = ("arguments", "code", "home", "step")

    def __init__(self, home: str, step: str, arguments: str, code: str) -> None:
        self.home, self.step, self.arguments, self.code = home, step, arguments, code

    @property
    def key(self) -> str:
        return f"{self.home}{quote(self.step, safe='')}/{self.arguments}.{self.code}"

    @property
    def id(self) -> str:
        """What people see: enough to tell nodes of one step apart."""
        return f"{self.step}-{self.arguments[:8]}"


def chunk_key(node: Node, number: int) -> str:
    """Where the items of a generator are kept, in chunks beside its checkpoint."""
    return f"{node.key}#{number:08x}"


class Checkpoints:
    """The entries of one run (`log` names its event log), or those shared between runs (no log)."""

    def __init__(self, store: Store, home: str, log: str | None) -> None:
        self.store, self.home = store, home
        self._log = log
        self._secret = secret()
        self._near: dict[str, bytes | Decoded] = {}
        self._reads = 0
        self._known_code: set[str] = set()

    def find(self, key: str) -> Decoded | None:
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

    def write(
        self,
        node: Node,
        entry: Encoded,
        code: Mapping[str, Part],
        event: Event,
        chunks: Sequence[Encoded] | None = None,
    ) -> None:
        """The checkpoint and its event in one transaction; with it, once, what its code consists of."""
        put = {node.key: entry.frames}
        obsolete: list[str] = []
        if chunks is not None:
            put.update((chunk_key(node, number), chunk.frames) for number, chunk in enumerate(chunks))
            obsolete = [key for key in self._chunk_keys(node) if key not in put]
        if node.code not in self._known_code:
            manifest = f"code/{node.code}"
            facts = {name: [p.digest, p.where, p.shown, p.source] for name, p in code.items()}
            put[manifest] = seal([json.dumps(facts).encode()], manifest, self._secret)
        self.store.commit(put=put, append=self._appended([event]), delete=obsolete)
        self._known_code.add(node.code)
        for key in (*put, *obsolete):
            self._near.pop(key, None)

    def encode(self, key: str, value: object, meta: Mapping[str, Any]) -> Encoded:
        """The value as an entry that counts under this key only."""
        return encode(value, meta, key=key, secret=self._secret)

    def forget(self, node: Node) -> bool:
        """Remove the node's checkpoint; whether there was one."""
        known = self.store.get(node.key) is not None
        keys = [node.key, *self._chunk_keys(node)]
        self.store.commit(delete=keys)
        for key in keys:
            self._near.pop(key, None)
        return known

    def chunk(self, node: Node, number: int) -> Decoded:
        """One chunk of a generator's items."""
        key = chunk_key(node, number)
        found = self.find(key)
        if found is None:
            raise IntegrityError(f"entry {key} is gone")
        return found

    def _chunk_keys(self, node: Node) -> list[str]:
        return [key for key, _ in self.store.scan(f"{node.key}#", most=0)]

    def _appended(self, events: Sequence[Event]) -> dict[str, list[bytes]]:
        if self._log is None:
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
                if data is not None and key != node.key and "#" not in code:
                    try:
                        yield Node(self.home, node.step, arguments, code), Decoded(data, key=key, secret=self._secret).meta
                    except IntegrityError:
                        continue  # it will be told when it is asked for

    def code_parts(self, code: str) -> dict[str, Part]:
        """What the code behind a digest consisted of; empty if that is not known any more."""
        key = f"code/{code}"
        data = self.store.get(key)
        try:
            facts: dict[str, list[str]] = json.loads(bytes(unseal(data, key, self._secret))) if data is not None else {}
        except OncemoreError:
            return {}
        return {name: Part(*values) for name, values in facts.items()}
