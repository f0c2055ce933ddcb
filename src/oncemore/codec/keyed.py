"""A store as the key in use sees it: the entries of other keys apart, encrypted if the store is, and rotations of the key.

A store belongs to the key that it was made with; no other key can verify its entries. Other keys are used by accident: `sudo`,
`cron`, a container or another `HOME` each have a key file of their own. Their entries go under a prefix of their own, so that
the owner's are never replaced, removed or moved, and each key finds everything that it has written.

Encryption is a layer around the store, `Keyed`, so nothing that is written through it can be forgotten. The same layer reads
entries of the earlier key while a rotation of the key is unfinished.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import IntegrityError, StoreError, UsageError, warn
from ..keys import ENCRYPTION, OTHERS, OWNER, ROTATION, RUNS, is_mark, record_key, sealed_as
from ..settings import Key, earlier_key, earlier_key_file, encrypt, key_id, key_in_use, key_source, secret
from ..stores import BaseStore, Bytes, Change, Frames, Hold, Store
from ..stores.layered import Overlay, Within
from . import encryption, resigned, seal, unseal

UNKNOWN = "unknown"  # the id, if that entry is missing


def owner_of(store: Store) -> str:
    """The id of the key that the store was made with. Empty if the store is new, or if it lacks the id but the key in use
    verifies its first run.
    """
    try:
        return _owner(store, store.get(OWNER))
    except IntegrityError:
        return UNKNOWN
    except StoreError:  # the next read raises it
        return ""


def _owner(store: Store, noted: Bytes | None) -> str:
    """See `owner_of`; `noted` is what the store says."""
    first = None if noted else next(store.scan(RUNS, limit=1), None)
    if first is not None and first[1] is not None:
        try:
            opened(first[0], first[1], [key_in_use()])
        except IntegrityError:
            return UNKNOWN
    return bytes(noted or b"").decode("ascii", "replace")


def opened(key: str, data: Bytes, keys: Collection[Key]) -> memoryview:
    """The body of an entry as it is in the store, encrypted or not; IntegrityError unless one of these keys verifies it."""
    plain = encryption.decrypt(data, key, keys) if encryption.is_encrypted(data) else data
    problem = IntegrityError(f"entry {key} cannot be verified")
    for each in keys:
        try:
            return unseal(plain, sealed_as(key) or key, each.signing)
        except IntegrityError as error:
            problem = error
    raise problem


def claim(store: Store) -> str:
    """Make the key in use the owner of a store that has none. Returns the id of the owner."""
    own = key_id()
    owner = owner_of(store)
    if not owner:
        try:
            owner = own if store.commit(put={OWNER: [own.encode()]}, expect={OWNER: None}) else owner_of(store)
        except StoreError:
            pass  # the next write raises it
    if isinstance(store, Keyed) and store.encrypts:
        store.declare()
    return owner or own


def keyed(store: Store, *, writing: bool, strict: bool = False, run_id: str = "") -> Store:
    """The store as the key in use sees it: all of it if the key is the owner, otherwise what the key itself has written.

    `writing` makes the key in use the owner of a new store. `strict` raises IntegrityError if another key is. An encrypted
    store is returned decrypted; UsageError if `ONCEMORE_ENCRYPT` asks for one and this one has plaintext. `run_id` is the run
    that is about to be opened, if any.
    """
    if isinstance(store, Keyed):
        return store
    own, wanted = key_id(), [ENCRYPTION, ROTATION, *([record_key(run_id)] if run_id else [])]
    notes = store.get_many([OWNER, *wanted])  # if this fails, whose store it is and whether it is encrypted are unknown
    owner = _owner(store, notes.get(OWNER)) or (claim(store) if writing else "")
    if owner not in ("", own):
        if earlier_key(owner) is not None:
            raise UsageError(earlier(store, owner))
        problem = another_key(store, owner)
        if strict:
            raise IntegrityError(problem)
        warn(f"{problem}. Until then, new runs are stored separately and the existing ones stay unchanged")
        store = Within(store, f"{OTHERS}{own}/")
        notes = store.get_many(wanted)
    return _with_key(store, notes, writing=writing)


def _with_key(store: Store, notes: Mapping[str, Bytes | None], *, writing: bool) -> Store:
    """The store itself if it is plain and its key is not being replaced; otherwise in a layer that does the rest."""
    own = [key_in_use()]
    declared = _signed(notes.get(ENCRYPTION), ENCRYPTION, own) is not None
    record = next((data for key, data in notes.items() if key.startswith(RUNS)), None)
    encrypted = declared or (_begins_encrypted(store) if record is None else encryption.is_encrypted(record))
    asked, rotation = encrypt(), _signed(notes.get(ROTATION), ROTATION, own)
    if not (asked or encrypted or rotation) or _is_keyed(store):
        return store
    if asked and not encrypted and not is_empty(store):
        raise UsageError(
            f"ONCEMORE_ENCRYPT is set, but the store {store.url} has entries that are not encrypted: "
            f"`oncemore key rotate --encrypt` encrypts them, or use another store"
        )
    found = Keyed(store, encrypts=asked or encrypted, rotation=rotation)
    if encrypted and not declared:
        warn(
            f"the store {store.url} is encrypted, but its note of that was altered or removed; it is still treated as "
            f"encrypted. Set ONCEMORE_ENCRYPT=1 where that must not depend on the store"
        )
    if found.encrypts and not declared and writing:
        found.declare()
    return found


def is_encrypted(store: Store, keys: Collection[Key]) -> bool:
    """Whether a store is encrypted: it says so, signed with one of `keys`, or at least its first run is."""
    return _signed(store.get(ENCRYPTION), ENCRYPTION, keys) is not None or _begins_encrypted(store)


def _begins_encrypted(store: Store) -> bool:
    first = next(store.scan(RUNS, limit=1), (RUNS, None))[1]
    return first is not None and encryption.is_encrypted(first)


def is_empty(store: Store) -> bool:
    """Whether a store has no entries but marks."""
    last = ""
    while (found := next(store.scan("", after=last, limit=1, most=0), None)) is not None:
        if not is_mark(found[0]):
            return False
        last = found[0][: found[0].index("/") + 1] + "\U0010ffff"
    return True


def _is_keyed(store: Store) -> bool:
    """Whether a store is an overlay over one that is decrypted already."""
    while isinstance(store, Overlay):
        store = store.below
    return isinstance(store, Keyed)


def _signed(data: Bytes | None, key: str, keys: Collection[Key]) -> dict[str, Any] | None:
    """What a note says; None if there is none, or one that was not signed with one of `keys`."""
    try:
        fields: dict[str, Any] | None = None if data is None else json.loads(bytes(opened(key, data, keys)))
        return fields
    except IntegrityError:
        return None


def note(key: str, **fields: Any) -> Frames:
    """A signed note about the store, as `_signed` reads it."""
    return seal([json.dumps(fields).encode()], key, secret())


def rotation_of(store: Store) -> dict[str, Any] | None:
    """The unfinished rotation of a store to the key in use: `before`, the id of the earlier key, and whether `plain` entries
    are accepted meanwhile.
    """
    return _signed(store.get(ROTATION), ROTATION, [key_in_use()])


def another_key(store: Store, owner: str) -> str:
    """The message for a store that was made with another key."""
    source = key_source()
    return (
        f"the store {store.url} was made with another key ({owner}). The key in use ({key_id()}) is from {source.text} and "
        f"can't verify its runs. If they are yours (sudo, cron, a container?), use the key that they were made with: set HOME "
        f"or ONCEMORE_KEY as it was then, or copy that key file to {source.file}. `oncemore key` shows which key is in use"
    )


def earlier(store: Store, owner: str) -> str:
    """The message for a store that was made with a key which has been replaced."""
    return (
        f"the store {store.url} was made with an earlier key of yours ({owner}), which the key in use ({key_id()}) has "
        f"replaced: `oncemore key rotate --store {shlex.quote(store.url)}` brings the store to the key in use"
    )


class Keyed(BaseStore):
    """The entries of the store `below`, decrypted and verified when they are read, and encrypted when they are written.

    While a rotation is unfinished, entries of the earlier key are given out as if the key in use had signed them. Marks, which
    hold no content, and entries of other keys are passed through. Needs no key to travel: another process uses its own.
    """

    def __init__(self, below: Store, *, encrypts: bool, rotation: Mapping[str, Any] | None = None) -> None:
        self.below, self.url, self.encrypts, self.rotation = below, below.url, encrypts, rotation
        self.key = key_in_use()
        self._before = None if rotation is None else _require_earlier(below, rotation["before"])
        self._keys = [self.key] if self._before is None else [self.key, self._before]
        self._accepts_plain = not encrypts or (rotation is not None and rotation["plain"])
        if encrypts:
            encryption.require_package()

    def __getattr__(self, name: str) -> Any:
        """Methods outside the contract, such as `maintain`, act on the underlying store."""
        if name.startswith("__") or name == "below":
            raise AttributeError(name)
        return getattr(self.below, name)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _restored, (self.below, self.encrypts, self.rotation)

    def declare(self) -> None:
        """Write the note that the store is encrypted, unless it is there."""
        if _signed(self.below.get(ENCRYPTION), ENCRYPTION, [self.key]) is None:
            self.below.commit(put={ENCRYPTION: note(ENCRYPTION, cipher="AES-256-GCM")})

    # -- entries as they are stored, and as they are read

    def read(self, key: str, data: Bytes) -> Bytes:
        """An entry as it was written, of the bytes that are stored. IntegrityError if it must not be used."""
        if is_mark(key):
            return data
        if encryption.is_encrypted(data):
            data = encryption.decrypt(data, key, self._keys)
        elif not self._accepts_plain:
            raise IntegrityError(
                f"entry {key} is not encrypted, but the store is: it was put there from outside, or is an old copy, and is not "
                f"used. If you trust everything in the store, `oncemore key rotate --encrypt` encrypts it"
            )
        name = sealed_as(key)
        return data if self._before is None or name is None else self._resigned(name, data, self._before)

    def _resigned(self, name: str, data: Bytes, before: Key) -> Bytes:
        """The entry signed with the key in use, if it was signed with the earlier one."""
        try:
            unseal(data, name, self.key.signing)
        except IntegrityError:
            try:
                return resigned(data, name, before.signing, self.key.signing)
            except IntegrityError:
                pass  # who reads it finds the damage
        return data

    def renewed(self, key: str, data: Bytes) -> Renewed:
        """How an entry has to be written anew, so that only the key in use is needed for it. IntegrityError if it is damaged."""
        if is_mark(key):
            return Renewed(data, None, True)
        name = sealed_as(key) or key
        current = self.encrypts == encryption.is_encrypted(data) and (
            not self.encrypts or encryption.encrypted_with(data) == self.key.id
        )
        plain = self.read(key, data if memoryview(data).readonly else bytearray(data))
        try:
            unseal(plain, name, self.key.signing)
            verified = True
        except IntegrityError:
            verified = False
        if current and (self.encrypts or not verified or memoryview(plain) == memoryview(data)):
            return Renewed(data, None, verified)
        return Renewed(data, self.written(name, [plain], log=name != key), verified)

    def written(self, key: str, frames: Frames, *, log: bool = False) -> Frames:
        """The frames as they are stored under `key`, or appended to the log `key`."""
        return encryption.encrypt(frames, key, self.key, log=log) if self.encrypts and not is_mark(key) else frames

    # -- the contract

    def get(self, key: str) -> Bytes | None:
        """See `Store.get`."""
        data = self.below.get(key)
        return None if data is None else self.read(key, data)

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        """See `Store.get_many`."""
        found = self.below.get_many(keys, most=self._most(most))
        return {key: self._read_if_sound(key, data, most) for key, data in found.items()}

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """See `Store.scan`."""
        for key, data in self.below.scan(prefix, after=after, limit=limit, most=self._most(most)):
            yield key, self._read_if_sound(key, data, most)

    def _most(self, most: int | None) -> int | None:
        return most if most is None or not self.encrypts else most + encryption.ADDED

    def _read_if_sound(self, key: str, data: Bytes | None, most: int | None) -> Bytes | None:
        """The entry; None if it is damaged, or larger than asked for."""
        try:
            found = None if data is None else self.read(key, data)
        except IntegrityError:
            return None
        return None if found is None or (most is not None and len(found) > most) else found

    def _commit(self, change: Change) -> bool:
        put = {key: self.written(key, frames) for key, frames in change.put.items()}
        append = {
            log: [b"".join(self.written(log, [entry], log=True)) for entry in entries]
            for log, entries in change.append.items()
        }
        under = change.under.hold if isinstance(change.under, _Hold) else change.under
        before: dict[str, Bytes | None] | None = None
        while True:
            expect = {key: None if data is None else self.below.get(key) for key, data in change.expect.items()}
            if expect == before or not all(map(self._same, expect, expect.values(), change.expect.values())):
                return False
            if self.below.commit(put=put, append=append, delete=change.delete, expect=expect, under=under):
                return True
            before = expect  # a rotation may have written an entry anew meanwhile

    def _same(self, key: str, stored: Bytes | None, expected: Bytes | None) -> bool:
        if stored is None or expected is None:
            return stored is expected
        return memoryview(self.read(key, stored)) == memoryview(expected).cast("B")

    def hold(self, key: str) -> Hold | None:
        """See `Store.hold`."""
        hold = self.below.hold(key)
        return None if hold is None else _Hold(hold, self._read_if_sound(key, hold.entry, None))

    def held(self, keys: Collection[str]) -> set[str]:
        """See `Store.held`."""
        return self.below.held(keys)

    def close(self) -> None:
        """Close the connections of the underlying store."""
        self.below.close()


class Renewed(NamedTuple):
    """An entry in a rotation: as it is stored, how it is to be stored (None: as it is), and whether its signature is valid."""

    before: Bytes
    frames: Frames | None
    verified: bool


class _Hold:
    """A hold of the underlying store, with the entry as it was written."""

    def __init__(self, hold: Hold, entry: Bytes | None) -> None:
        self.hold, self.entry = hold, entry

    def release(self) -> None:
        self.hold.release()


def _restored(below: Store, encrypts: bool, rotation: Mapping[str, Any] | None) -> Keyed:
    return Keyed(below, encrypts=encrypts, rotation=rotation)


def _require_earlier(store: Store, before: str) -> Key:
    found = earlier_key(before)
    if found is None:
        raise UsageError(
            f"the rotation of the key of the store {store.url} is unfinished, and the earlier key ({before}) is needed to finish "
            f"it: put it back to {earlier_key_file(before)}, or set ONCEMORE_OLD_KEY to it"
        )
    return found
