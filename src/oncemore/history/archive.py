"""Exports runs to one portable file, and imports them into any kind of store.

An archive is a zip file: `manifest.json` lists every entry with its digest, `signature` signs the manifest with the exporter's
key, and `entries/N` contain the bytes. An import signs every entry with the importer's key. It does so only if the manifest is
signed with that key, too, or if the importer explicitly trusts the archive.
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

from .. import records
from ..codec import Decoded, seal, unseal, unsigned
from ..errors import IntegrityError, StoreUnavailable, UsageError
from ..events import SnapshotSaved, StepCompleted
from ..flight import holder_of
from ..identity import code_of
from ..keys import (
    ALIASES,
    BLOBS,
    CHUNKS,
    EVENTS,
    FORKS,
    INTENTS,
    ITEMS,
    NODES,
    RUNS,
    SHARED,
    STATES,
    closed,
    code_key,
    deleted_key,
    fork_mark,
    intents_of,
    listing_key,
    log_of,
    pending,
    record_key,
    run_id_of,
    sealed_as,
    state_of,
    written_files_of,
)
from ..records import parse, stamp
from ..settings import secret
from ..stores import Bytes, Frames, Hold, Store
from .rollback import targets
from .timeline import timeline

FORMAT = "oncemore archive 1"
_SIGNED_AS = "archive/manifest"
_BATCH = 1 << 24  # bytes per transaction
_POLL, _LONGEST_WAIT = 0.05, 60.0  # seconds


def export(store: Store, path: str | os.PathLike[str], runs: Sequence[str]) -> None:
    """Write the runs and everything they need. An existing file is replaced only once the new one is complete."""
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
    """Every entry that the runs need, each once. A run's record comes after everything it refers to."""
    seen: set[str] = set()

    def each(prefix: str) -> Iterator[tuple[str, Bytes]]:
        for key, data in store.scan(prefix):
            if key not in seen and data is not None:
                seen.add(key)
                yield key, data

    def entry(key: str) -> Iterator[tuple[str, Bytes]]:
        """An entry with its items and file contents, if it exists and is valid."""
        try:
            data = store.get(key) if key not in seen else None
            meta = {} if data is None else Decoded(data, key=key, secret=secret()).meta
        except IntegrityError:
            return
        if data is not None:
            seen.add(key)
            yield key, data
            for prefix in (*([meta["items"]] if "items" in meta else ()), listing_key(key), *meta.get("blobs", ())):
                yield from each(prefix)

    once: dict[tuple[str, str], list[str]] = {}  # keys of intents of shared effect="once" steps, by step and arguments
    for key, data in store.scan(intents_of("shared")):
        if data is not None:
            meta = Decoded(data, key=key, secret=secret()).meta
            once.setdefault((meta["step"], meta["given"]), []).append(key)
    for run_id in runs:
        record = records.read(store, run_id)
        own = (record.prefix, *record.undo)  # so that rollbacks can be undone after the import, too
        for prefix in own:
            for key, _ in store.scan(prefix, most=0):
                yield from entry(key)
        for prefix, keys in targets(store, own).items():
            yield from each(closed(prefix))
            for key in sorted(keys):
                yield from entry(key)
        for uid in (*record.forebears, record.uid):
            yield from each(log_of(uid))
            yield from each(f"{state_of(uid)}opening")
            yield from each(fork_mark(uid, record.uid))
        for key, _ in store.scan(intents_of(record.uid), most=0):
            yield from entry(key)
        yield from each(written_files_of(record.uid))
        for counted in timeline(store, record.log).ever():
            event = counted.event
            if not isinstance(event, SnapshotSaved) and event.snapshot:
                yield from each(event.snapshot)
            if isinstance(event, StepCompleted):
                if event.entry.startswith(SHARED):
                    yield from entry(event.entry.partition("@")[0])  # the node's own entry, which says what it read
                    yield from entry(event.entry)
                    for intent in once.get((event.step, _arguments(event.entry)), ()):
                        yield from entry(intent)
                yield from each(code_key(code_of(event.fingerprint.partition(".")[2])))
        record = records.read(store, run_id)  # its current version
        record.open = []
        yield record_key(run_id), b"".join(records.sealed(record_key(run_id), record))


def _arguments(entry: str) -> str:
    """The digest of the arguments in an entry's key."""
    return entry.rpartition("/")[2].partition(".")[0]


def import_(store: Store, path: str | os.PathLike[str], *, trust: bool = False) -> list[str]:
    """Import the runs of an archive; returns their ids. Imports nothing from a damaged one. Repeating it changes nothing."""
    with open(path, "rb") as file:
        try:
            archive = _Archive(file, os.fspath(path), trust)
        except UsageError:
            raise
        except Exception as error:  # damage can cause any kind of error
            raise IntegrityError(f"the archive {os.fspath(path)} is damaged ({error}); nothing was imported") from error
        holds: list[Hold] = []
        try:
            for uid in sorted(archive.uids):
                holds.append(_hold(store, deleted_key(uid)))
            here = {record.uid: run_id for run_id, record in records.scan(store)}
            _write(store, archive, here, _check_conflicts(store, archive, here))
        finally:
            for hold in holds:
                hold.release()
    return archive.runs


class _Archive:
    """An archive whose bytes have all been checked against its manifest.

    `uids` are the uids of all runs with entries in it; `records` maps the key of each run's record to its uid.
    """

    def __init__(self, file: BinaryIO, path: str, trust: bool) -> None:
        self._zip = zipfile.ZipFile(file)
        self._require_stored(os.fstat(file.fileno()).st_size)
        text = self._zip.read("manifest.json")
        manifest: dict[str, Any] = json.loads(text)
        if manifest["format"] != FORMAT:
            raise UsageError(f"{path} has the format {manifest['format']!r}; this version reads {FORMAT!r}")
        try:
            signed = bytes(unseal(self._zip.read("signature"), _SIGNED_AS, secret())) == blake3(text).digest()
        except IntegrityError:
            signed = False
        if not signed and not trust:
            raise UsageError(
                f"{path} was not signed with your key. Its values are pickles, which can run any code when loaded. "
                f"If you trust its author, import it with trust=True (--trust)"
            )
        self.runs: list[str] = manifest["runs"]
        self.keys: dict[str, int] = {entry["key"]: number for number, entry in enumerate(manifest["entries"])}
        self.records: dict[str, str] = {}
        for entry in manifest["entries"]:
            key, data = entry["key"], self.read(entry["key"])
            if blake3(data).hexdigest() != entry["digest"]:
                raise ValueError(f"entry {key} was altered")
            if key.startswith(RUNS):
                self.records[key] = records.from_json(bytes(unsigned(data))).uid
        of_runs = (key for key in self.keys if key.startswith((NODES, EVENTS, STATES, ITEMS, INTENTS)))
        self.uids = {"shared", *self.records.values(), *(re.split("[/.]", key)[1] for key in of_runs)}

    def _require_stored(self, size: int) -> None:
        """Refuse members that are compressed or overlap, which could unpack to any size. `export` never writes such members."""
        members = self._zip.infolist()
        if any(each.compress_type != zipfile.ZIP_STORED or each.file_size != each.compress_size for each in members):
            raise ValueError("it has compressed members, which `export` never writes")
        if sum(each.file_size for each in members) > size or len(set(self._zip.namelist())) < len(members):
            raise ValueError("its members overlap")

    def read(self, key: str) -> bytes:
        return self._zip.read(f"entries/{self.keys[key]}")


def _hold(store: Store, key: str) -> Hold:
    """Acquire a key once removals and other imports of the run have released it. StoreUnavailable after a minute."""
    deadline = time.monotonic() + _LONGEST_WAIT
    while (hold := store.hold(key)) is None:
        if time.monotonic() > deadline:
            uid = key.rpartition("/")[2]
            raise StoreUnavailable(
                f"could not import into {store.url}: {holder_of(store, key)} has been importing or removing run {uid} "
                f"for {_LONGEST_WAIT:.0f} s (find and stop it, or try again)"
            )
        time.sleep(_POLL)
    return hold


def _check_conflicts(store: Store, archive: _Archive, here: Mapping[str, str]) -> dict[str, Bytes | None]:
    """The current records of runs of which the archive has a newer version, by key.

    UsageError if an id belongs to a different run here, or if a run has continued differently here and in the archive.
    """
    newer: dict[str, Bytes | None] = {}
    for key in archive.keys:
        if key.startswith(RUNS):
            present = store.get(key)
            if present is not None and parse(key, present).uid != archive.records[key]:
                raise UsageError(f"a different run {run_id_of(key)!r} exists in {store.url}; rename or delete it first")
        elif key.startswith(EVENTS) and key.split("/")[1] in here:
            run_id, present = here[key.split("/")[1]], store.get(key)
            if present is None:
                newer.setdefault(record_key(run_id), store.get(record_key(run_id)))
            elif unsigned(present) != unsigned(archive.read(key)):
                raise UsageError(
                    f"run {run_id!r} has continued differently in {store.url} and in the archive; import it into another store"
                )
    return newer


def _write(store: Store, archive: _Archive, here: Mapping[str, str], newer: Mapping[str, Bytes | None]) -> None:
    """Write entries in batches, then the records: if killed midway, no run is visible, and `clean` removes the entries."""
    marks = {pending(deleted_key(min(archive.uids)), key): [b"1"] for key in archive.keys if key.startswith(CHUNKS)}
    gone = {deleted_key(uid): [b"1"] for uid in archive.uids - here.keys() - {"shared"}}
    if gone or marks:  # protects the file contents it needs from removal
        store.commit(put={**gone, **marks, BLOBS: stamp()})
    present = store.get_many(archive.keys, most=0)
    last: dict[str, Frames] = {}
    batch: dict[str, Frames] = {}
    expect: dict[str, Bytes | None] = {}
    size = 0
    for key in archive.keys:
        if key in present and not key.startswith(RUNS):
            continue
        data = archive.read(key)
        if key.startswith(RUNS):
            uid = archive.records[key]
            key = record_key(here[uid]) if uid in here else key
            if uid not in here or key in newer:
                last[key], expect[key] = _signed(key, data), newer.get(key)
        elif key.startswith(FORKS):
            last[key] = [data]
        else:
            batch[key] = _signed(key, data)
            size += len(data)
            if size > _BATCH:
                store.commit(put=batch)
                batch, size = {}, 0
    # Entries of a run that is not here stay marked as `gone`, and are removed with the last fork that needs them.
    whole = [deleted_key(uid) for uid in archive.uids if uid in here or uid in archive.records.values()]
    if not store.commit(put={**batch, **last, ALIASES: stamp()}, delete=[*whole, *marks], expect=expect):
        raise UsageError(f"runs of the archive changed in {store.url} during the import; import it again")


def _signed(key: str, data: bytes) -> Frames:
    """An entry signed with our key. Its old signature is not checked, because the manifest covers it."""
    name = sealed_as(key)
    return [data] if name is None else seal([unsigned(data)], name, secret())
