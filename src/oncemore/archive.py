"""Runs in one portable file, and out of it again, into any kind of store.

An archive is a zip file: `manifest.json` lists every entry with its digest and is signed by the exporter's secret in
`signature`; `entries/N` hold the bytes. On import every entry gets the importer's own signature, which is done only if the
manifest's signature is the importer's, or the importer says that the archive is to be trusted.
"""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from blake3 import blake3

from . import records
from .blobs import used
from .checkpoints import fold
from .codec import Decoded, seal, unseal, unsigned
from .errors import IntegrityError, UsageError
from .nodes import intents_of
from .records import parse, record_key, sealed_as
from .reshape import ever, owners
from .secret import secret
from .stores import Bytes, Frames, Hold, Store

FORMAT = "oncemore archive 1"
_SIGNED_AS = "archive/manifest"
_BATCH = 1 << 24  # bytes in one transaction
_POLL = 0.05


def export(store: Store, path: str | os.PathLike[str], runs: Sequence[str]) -> None:
    """Write the runs with all they need into a file. It replaces what was there only when it is complete."""
    draft = f"{os.fspath(path)}.part"
    listing: list[dict[str, Any]] = []
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, data in _entries(store, runs):
            archive.writestr(f"entries/{len(listing)}", bytes(data))
            listing.append({"key": key, "digest": blake3(data).hexdigest()})
        manifest = json.dumps({"format": FORMAT, "runs": list(runs), "entries": listing}).encode()
        archive.writestr("manifest.json", manifest)
        archive.writestr("signature", b"".join(seal([blake3(manifest).digest()], _SIGNED_AS, secret())))
    os.replace(draft, path)


def _entries(store: Store, runs: Sequence[str]) -> Iterator[tuple[str, Bytes]]:
    """Every entry that the runs need, each once; a run's record after all it refers to."""
    seen: set[str] = set()

    def each(prefix: str) -> Iterator[tuple[str, Bytes]]:
        for key, data in store.scan(prefix):
            if key not in seen and data is not None:
                seen.add(key)
                yield key, data

    once: dict[tuple[str, str], list[str]] = {}  # what shared steps with effect="once" have done, by step and arguments
    for key, data in store.scan(intents_of("shared")):
        if data is not None:
            meta = Decoded(data, key=key, secret=secret()).meta
            once.setdefault((meta["step"], meta["given"]), []).append(key)
    for run_id in runs:
        record = records.read(store, run_id)
        for owner in sorted(owners(record)):
            yield from each(f"node/{owner}")
            yield from each(f"event/{owner}/")
            yield from each(f"need/{owner}/{record.uid}")
        every = ever(record)  # a rollback can be undone there, too
        needs = [used(store, g.home) for g in every.generations]
        for checkpoint in fold(store, run_id, every, superseded=True):
            entry = checkpoint.entry
            if entry.startswith("shared/"):
                for part in _shared_parts(store, entry):
                    yield from each(part)
                needs.append(used(store, "shared/", entry))
                for intent in once.get((checkpoint.step or "", _arguments(entry)), ()):
                    yield from each(intent)
                    needs.append(used(store, records.home_of(intent), intent))
            if entry:
                yield from each(f"code/{entry.rpartition('.')[2].partition('@')[0]}")
        for blob, marks in (each_use for uses in needs for each_use in uses):
            for needed_key in (blob, *marks):
                yield from each(needed_key)
        for g in every.generations:
            if g.log != record.log:
                yield from each(records.needed(g.home))
        record = records.read(store, run_id)  # as it is now
        record.open = []
        yield record_key(run_id), b"".join(records.sealed(record_key(run_id), record))


def _arguments(entry: str) -> str:
    """The digest of the arguments in an entry's key."""
    return entry.rpartition("/")[2].partition(".")[0]


def _shared_parts(store: Store, entry: str) -> list[str]:
    """What keys of a shared step's checkpoint begin with: what says which state it read, itself, a generator's items."""
    data = store.get(entry)
    meta = {} if data is None else Decoded(data, key=entry, secret=secret()).meta
    return [entry.partition("@")[0], *([meta["items"]] if "items" in meta else [])]


def import_(store: Store, path: str | os.PathLike[str], *, trust: bool = False) -> list[str]:
    """Bring the runs of an archive into a store; their ids. A damaged archive brings nothing. Twice is once."""
    with open(path, "rb") as file:
        try:
            archive = _Archive(file, os.fspath(path), trust)
        except UsageError:
            raise
        except Exception as error:  # whatever a zip file can be damaged to
            raise IntegrityError(f"the archive {os.fspath(path)} is damaged ({error}); nothing was imported") from error
        holds = [_hold(store, f"gone/{uid}") for uid in sorted(archive.uids)]
        try:
            here = {record.uid: run_id for run_id, record in records.scan(store)}
            _bring(store, archive, here, _check_conflicts(store, archive, here))
        finally:
            for hold in holds:
                hold.release()
    return archive.runs


class _Archive:
    """An archive in a file, after every byte of it has been checked against its manifest.

    `uids` are those of the runs of which there is something in it, `records` gives that of each run's record.
    """

    def __init__(self, file: BinaryIO, path: str, trust: bool) -> None:
        self._zip = zipfile.ZipFile(file)
        text = self._zip.read("manifest.json")
        manifest: dict[str, Any] = json.loads(text)
        if manifest["format"] != FORMAT:
            raise UsageError(f"{path} is a {manifest['format']!r}; this oncemore reads {FORMAT!r}")
        try:
            signed = bytes(unseal(self._zip.read("signature"), _SIGNED_AS, secret())) == blake3(text).digest()
        except IntegrityError:
            signed = False
        if not signed and not trust:
            raise UsageError(
                f"{path} was not signed with your secret. Its values are pickles, which can run any code when "
                f"loaded: import it only if you trust who made it, with trust=True"
            )
        self.runs: list[str] = manifest["runs"]
        self.keys: dict[str, int] = {entry["key"]: number for number, entry in enumerate(manifest["entries"])}
        self.records: dict[str, str] = {}
        for entry in manifest["entries"]:
            key, data = entry["key"], self.read(entry["key"])
            if blake3(data).hexdigest() != entry["digest"]:
                raise ValueError(f"entry {key} is altered")
            if key.startswith("run/"):
                self.records[key] = json.loads(bytes(unsigned(data)))["uid"]
        of_runs = (key for key in self.keys if key.startswith(("node/", "event/")))
        self.uids = {*self.records.values(), *(re.split("[/.]", key)[1] for key in of_runs)}

    def read(self, key: str) -> bytes:
        return self._zip.read(f"entries/{self.keys[key]}")


def _hold(store: Store, key: str) -> Hold:
    """Keep away those who remove what a run left, and others who import it."""
    while (hold := store.hold(key)) is None:
        time.sleep(_POLL)
    return hold


def _check_conflicts(store: Store, archive: _Archive, here: Mapping[str, str]) -> dict[str, Bytes | None]:
    """The records that are to be replaced, of runs that the archive knows more of, as they are now.

    UsageError if an id stands for another run here, or a run went on here and there in different ways.
    """
    newer: dict[str, Bytes | None] = {}
    for key in archive.keys:
        if key.startswith("run/"):
            present = store.get(key)
            if present is not None and parse(key, present).uid != archive.records[key]:
                raise UsageError(
                    f"there is another run {records.run_id_of(key)!r} in {store.url}: rename or delete it first"
                )
        elif key.startswith("event/") and key.split("/")[1] in here:
            run_id, present = here[key.split("/")[1]], store.get(key)
            if present is None:
                newer.setdefault(record_key(run_id), store.get(record_key(run_id)))
            elif unsigned(present) != unsigned(archive.read(key)):
                raise UsageError(f"run {run_id!r} has gone on in {store.url} since, and so has that of the archive")
    return newer


def _bring(store: Store, archive: _Archive, here: Mapping[str, str], newer: Mapping[str, Bytes | None]) -> None:
    """Entries first, in batches, then the records: killed midway, no half run is seen, and `clean` removes what was brought."""
    store.commit(put={f"gone/{uid}": [b"1"] for uid in archive.uids - here.keys()})
    present = store.get_many(archive.keys, most=0)
    last: dict[str, Frames] = {}
    batch: dict[str, Frames] = {}
    expect: dict[str, Bytes | None] = {}
    size = 0
    for key in archive.keys:
        if key in present and not key.startswith("run/"):
            continue
        data = archive.read(key)
        if key.startswith("run/"):
            uid = archive.records[key]
            key = record_key(here[uid]) if uid in here else key
            if uid not in here or key in newer:
                last[key], expect[key] = _signed(key, data), newer.get(key)
        elif key.startswith("need/"):
            last[key] = [data]
        else:
            batch[key] = _signed(key, data)
            size += len(data)
            if size > _BATCH:
                store.commit(put=batch)
                batch, size = {}, 0
    # What is shared with a run that is not here keeps its mark: it goes with the last that needs it.
    whole = [f"gone/{uid}" for uid in archive.uids if uid in here or uid in archive.records.values()]
    if not store.commit(put={**batch, **last}, delete=whole, expect=expect):
        raise UsageError(f"runs of the archive were changed in {store.url} meanwhile; import it again")


def _signed(key: str, data: bytes) -> Frames:
    """An entry under our own signature. What it was signed with is not checked: the manifest vouches for it."""
    name = sealed_as(key)
    return [data] if name is None else seal([unsigned(data)], name, secret())
