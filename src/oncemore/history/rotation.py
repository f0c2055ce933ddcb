"""Replaces the key of a store: every entry is signed, and if the store is encrypted also encrypted, with the new key.

The store first says, in one transaction, that the new key owns it and that the earlier one is being replaced. From then on both
are accepted, and entries are rewritten in batches. When none is left, that note is removed and the earlier key is refused. So a
rotation can be killed anywhere: runs can go on at once, and the next rotation of the store finishes the first one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from .. import records
from ..codec import encryption
from ..codec.keyed import (
    Keyed,
    Renewed,
    another_key,
    is_empty,
    is_encrypted,
    keyed,
    note,
    opened,
    owner_of,
    rotation_of,
)
from ..errors import IntegrityError, UsageError
from ..keys import ENCRYPTION, OTHERS, OWNER, ROTATION, RUNS, run_id_of
from ..settings import Key, earlier_key, earlier_key_file, encrypt, key_in_use, key_source, replace_key
from ..stores import Store
from .prune import free_space

_BATCH = 1 << 24  # bytes of entries that are rewritten in one transaction

Progress = Callable[[int, int], object]


@dataclass(frozen=True, kw_only=True)
class Rotated:
    """The result of a rotation. `damaged` are the keys of entries that neither key verifies; they stay as they were."""

    store: str
    before: str  # the id of the earlier key
    key: str  # the id of the key that the store belongs to now
    encrypted: bool
    entries: int  # that were rewritten
    damaged: tuple[str, ...]
    kept: str  # the path of the earlier key; empty if it is not in a file


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """What `rotate` is about to do with a store. `new_key`: it begins by making a new key."""

    store: Store  # as it is, without the layer that decrypts
    before: Key
    unfinished: bool
    new_key: bool
    encrypts: bool
    accepts_plain: bool  # until it is done


def plan(store: Store, *, encrypts: bool = False) -> Rotation:
    """Find out what a rotation has to do. UsageError if it can't be done, or if a run is running. Changes nothing.

    The store stays encrypted if it is; `encrypts` also encrypts one that is not.
    """
    own, owner = key_in_use(), owner_of(store)
    unfinished = rotation_of(store) if owner == own.id else None
    if unfinished is None and owner in ("", own.id):
        before = _own(store, own)
    else:
        before = _earlier(store, owner if unfinished is None else unfinished["before"], own)
    was_encrypted = is_encrypted(store, [own, before])
    rotation = Rotation(
        store=store,
        before=before,
        unfinished=unfinished is not None,
        new_key=before == own,
        encrypts=encrypts or encrypt() or was_encrypted,
        accepts_plain=encrypts or not was_encrypted or (unfinished is not None and unfinished["plain"]),
    )
    if rotation.encrypts:
        encryption.require_package()
    _require_idle(rotation)
    return rotation


def _own(store: Store, own: Key) -> Key:
    """The key in use, if a new one can replace it."""
    if is_empty(store):
        raise UsageError(f"the store {store.url} is empty: there is nothing to sign with another key")
    if key_source().given:
        raise UsageError(
            "the key in use is from ONCEMORE_KEY, which only you can change: set ONCEMORE_OLD_KEY to the present key and "
            "ONCEMORE_KEY to the new one, and run this again"
        )
    return own


def _earlier(store: Store, owner: str, own: Key) -> Key:
    """The earlier key with the id `owner`, which the key in use is to replace."""
    found = earlier_key(owner)
    if found is None:
        raise UsageError(
            f"{another_key(store, owner)}. To replace that key, set ONCEMORE_OLD_KEY to it and ONCEMORE_KEY to the new one"
        )
    separate = f"{OTHERS}{own.id}/"
    if next(store.scan(separate, limit=1, most=0), None) is not None:
        raise UsageError(
            f"the key in use ({own.id}) has runs of its own in the store {store.url}, stored separately: without "
            f"ONCEMORE_OLD_KEY, export them (`oncemore export`) and remove them (`oncemore rm`); import them after the rotation"
        )
    return found


def _require_idle(rotation: Rotation) -> None:
    store, keys = rotation.store, [rotation.before, key_in_use()]
    running: list[str] = []
    for key, data in store.scan(RUNS):
        try:
            record = records.from_json(bytes(opened(key, data or b"", keys)))
        except IntegrityError:
            continue
        if records.status(store, record) == "running":
            running.append(run_id_of(key))
    if running:
        raise UsageError(f"the key can't be replaced while runs are open ({', '.join(running[:5])}): stop them first")


def rotate(rotation: Rotation, progress: Progress | None = None) -> Rotated:
    """Do what was planned. If killed, it is completed by planning and rotating again; meanwhile, both keys are accepted."""
    store, before = rotation.store, rotation.before
    if rotation.new_key:
        replace_key(before)
    if not rotation.unfinished or (rotation.encrypts and not is_encrypted(store, [key_in_use()])):
        _begin(rotation)
    layer = keyed(store, writing=True)
    assert isinstance(layer, Keyed)
    rewritten, damaged = _rewrite(layer, progress or (lambda done, total: None))
    _require_idle(rotation)  # a run that began just before, with the earlier key, must not lose it
    store.commit(delete=[ROTATION])
    free_space(store)
    kept = earlier_key_file(before.id)
    return Rotated(
        store=store.url,
        before=before.id,
        key=layer.key.id,
        encrypted=layer.encrypts,
        entries=rewritten,
        damaged=tuple(damaged),
        kept=kept if os.path.exists(kept) else "",
    )


def _begin(rotation: Rotation) -> None:
    """Make the key in use the owner, with the note that the earlier one is still accepted."""
    store = rotation.store
    put = {
        OWNER: [key_in_use().id.encode()],
        ROTATION: note(ROTATION, before=rotation.before.id, plain=rotation.accepts_plain),
    }
    if rotation.encrypts:
        put[ENCRYPTION] = note(ENCRYPTION, cipher="AES-256-GCM")
    owner = store.get(OWNER)
    if owner_of(store) not in ("", rotation.before.id, key_in_use().id) or not store.commit(
        put=put, expect={OWNER: owner}
    ):
        raise UsageError(
            f"another process has just changed the key of the store {store.url}: run `oncemore key rotate` again"
        )


def _rewrite(layer: Keyed, progress: Progress) -> tuple[int, list[str]]:
    """Rewrite every entry that needs it. Returns how many, and the keys of those that neither key verifies."""
    store, count, size = layer.below, 0, 0
    batch: dict[str, Renewed] = {}
    damaged: list[str] = []
    total = sum(1 for _ in store.scan("", most=0))
    for done, (key, data) in enumerate(store.scan(""), 1):
        progress(done, max(done, total))
        try:
            if data is None and (data := store.get(key)) is None:  # raises if the entry is damaged
                continue  # removed meanwhile
            renewed = layer.renewed(key, data)
        except IntegrityError:
            damaged.append(key)
            continue
        if not renewed.verified and not key.startswith("damaged/"):
            damaged.append(key)
        if renewed.frames is not None:
            count, size = count + 1, size + len(data)
            batch[key] = renewed
            if size > _BATCH:
                _write(layer, batch)
                batch, size = {}, 0
    _write(layer, batch)
    return count, damaged


def _write(layer: Keyed, batch: dict[str, Renewed]) -> None:
    """Write entries anew, one by one if any of them was changed meanwhile."""
    if _commit(layer, batch):
        return
    for key in batch:
        while (data := layer.below.get(key)) is not None:
            renewed = layer.renewed(key, data)
            if renewed.frames is None or _commit(layer, {key: renewed}):
                break


def _commit(layer: Keyed, batch: dict[str, Renewed]) -> bool:
    put = {key: each.frames for key, each in batch.items() if each.frames is not None}
    return layer.below.commit(put=put, expect={key: each.before for key, each in batch.items()})
