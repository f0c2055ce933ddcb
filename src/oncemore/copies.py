"""Results as they are read outside a call: `get`, `Checkpoint.result()`, `Result.get()`.

A step that returns its argument, a global or a state value, or part of one, is recorded with a reference: skipping it returns
the caller's own object. A reader of the checkpoint has no such object. So a copy of the result is stored, too, as it was when the
step ended. A small copy is part of the entry's metadata. A large one is stored like a file, in chunks by content:
several steps that return the same object store it once. Skipping a step does not read it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .codec import Decoded, Naming, loads
from .codec.pickling import from_pickle, to_pickle
from .errors import CodecError, NotRecorded
from .files.blobs import Blobs, keeping, not_keeping
from .modules import canonical_name
from .stores import Bytes, Store

_SMALL = 2048  # bytes; smaller copies are part of the metadata

Copy = dict[str, Any]  # in an entry's metadata, and next to a generator's item


def copy_of(value: Any, blobs: Blobs, note: Callable[[list[str]], object]) -> Copy:
    """A copy, for the metadata. `note` is called with the keys of the chunks that it needs."""
    found = _copied(value)
    if "frames" not in found:
        return found
    frames: list[Bytes] = found["frames"]
    if sum(map(len, frames)) <= _SMALL:
        return {**found, "frames": [base64.b64encode(frame).decode() for frame in frames]}
    stored = [blobs.keep_bytes(frame) for frame in frames]
    blobs.flush()
    note([key for keys in stored for key in keys])
    return {**found, "frames": stored}


def copy_here(value: Any) -> Copy:
    """A copy that can itself be pickled, to be stored next to the value."""
    found = _copied(value)
    return {**found, "frames": [bytearray(frame) for frame in found["frames"]]} if "frames" in found else found


def _copied(value: Any) -> Copy:
    """A copy by value: the pickle and its buffers. If that is impossible, why. Of a `File`, only the path is copied."""
    try:
        with not_keeping():
            stream, buffers, _, _ = to_pickle(value, lambda obj: None)  # as in effects, locks become new ones
    except CodecError as error:
        return {"missing": str(error)}
    return {"main": canonical_name("__main__"), "frames": [stream, *(buffer.raw() for buffer in buffers)]}


def refers(value: Any, name: Naming | None) -> bool:
    """Whether a pickle of the value refers to objects of the caller."""
    with not_keeping():
        return name is not None and to_pickle(value, name).has_names


def copied_chunks(meta: Mapping[str, Any]) -> set[str]:
    """The keys of the chunks of an entry's copy. Its other chunks are contents of files."""
    frames = meta.get("copy", {}).get("frames", ())
    return {key for keys in frames if not isinstance(keys, str) for key in keys}


def result_of(store: Store, entry: Decoded, step: str, read: Callable[[str], Decoded]) -> Any:
    """The value in a step's entry; for a generator, the list of its items. `read` reads another entry.

    NotRecorded if it contains an object of the caller's that could not be copied.
    """
    if "items" in entry.meta:
        return list(_items(store, entry, step, read))
    if "copy" in entry.meta:
        return _load(entry.meta["copy"], step, lambda frame: _frame(store, frame))
    with keeping(store, reading=True):
        loaded = entry.load(_nothing)  # the value has no names; effects may
    return loaded[0] if entry.meta.get("effects") else loaded


def _items(store: Store, entry: Decoded, step: str, read: Callable[[str], Decoded]) -> Iterator[Any]:
    for key in entry.chunks:
        chunk = read(key)
        for pickled in chunk.load():
            with keeping(store, reading=True):
                item, _, *copies = loads(pickled, chunk.meta.get("main", ""), _nothing)
            yield _load(copies[0], step, bytearray) if copies else item


def _load(copy: Copy, step: str, frame: Callable[[Any], bytearray]) -> Any:
    if "missing" in copy:
        raise NotRecorded(
            f"the result of {step} contains an object of its caller that could not be copied: {copy['missing']}. Call the step to "
            f"get its result"
        )
    try:
        stream, *buffers = map(frame, copy["frames"])
        return from_pickle(stream, buffers, main=copy["main"])
    except (CodecError, NotRecorded):
        raise
    except Exception as error:  # unpickling runs the user's classes, which may raise anything
        raise CodecError(
            f"the copy of the result of {step} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _frame(store: Store, stored: str | list[str]) -> bytearray:
    """A frame of a copy: from the metadata, or from its chunks."""
    if isinstance(stored, str):
        return bytearray(base64.b64decode(stored))  # the reader can change an array in it
    return bytearray().join(Blobs(store).chunks(stored))


def _nothing(name: Any) -> None:
    """Stands for an object of the caller's in the effects, which readers don't look at."""
