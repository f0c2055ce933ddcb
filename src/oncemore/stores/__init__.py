"""The store contract: bytes under text keys, in key order. A store knows nothing of runs, pickles or Python.

A few methods, small enough for a database, a key-value server or an object store. Nothing in the contract needs a
local file or a scan of everything. `oncemore.testing.StoreContract` is the conformance suite: a new store passes it by
naming itself, and is opened by URL once its package registers the scheme in the entry-point group `oncemore.stores`.

Keys are text of at most 1,024 bytes in UTF-8; another is a UsageError. Errors of drivers do not leave a store: they become
StoreError, StoreUnavailable (busy or out of reach now), StoreDamaged or UsageError, raised from the original.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable
from urllib.parse import quote

from ..errors import UsageError

if TYPE_CHECKING:
    from .repair import Salvaged

Bytes = bytes | bytearray | memoryview
Frames = Sequence[Bytes]  # one entry's bytes in pieces, so that large buffers are written without being joined


class Hold(Protocol):
    """A key held for a computation, until released or until its process dies."""

    @property
    def entry(self) -> Bytes | None:
        """What stood under the key, read after it was taken: what an earlier holder committed is there.

        None if there was nothing, or if it could not be read: a damaged entry does not keep anyone from computing it
        anew. `get` tells which.
        """
        ...

    def release(self) -> None:
        """Let go. A second time: no effect."""
        ...


@runtime_checkable
class Store(Protocol):
    """Keeps bytes under keys."""

    @property
    def url(self) -> str:
        """What `open_store` takes to open this store again, in this or another process."""
        ...

    def get(self, key: str) -> Bytes | None:
        """The bytes under `key`, or None. A large entry comes as a writable buffer that the caller owns."""
        ...

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        """Those of the entries that there are, by key, in a few round trips.

        An entry of more than `most` bytes comes as None, and so does a damaged one: `get` tells.
        """
        ...

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """The entries whose keys start with `prefix` and are greater than `after`, in key order, at most `limit`.

        An entry of more than `most` bytes comes as None, and so does a damaged one: `get` tells. Reads only the rows
        that it yields, a page at a time, so that what others commit meanwhile may or may not be seen.
        """
        ...

    def commit(
        self,
        *,
        put: Mapping[str, Frames] = {},
        append: Mapping[str, Sequence[Bytes]] = {},
        delete: Collection[str] = (),
        expect: Mapping[str, Bytes | None] = {},
        under: Hold | None = None,
    ) -> bool:
        """Apply all of it in one transaction, or nothing.

        `append` adds entries to logs: each gets the key `log + 16 hex digits`, one above the log's highest, no gaps.
        `expect`: unless each of these keys holds exactly these bytes now (None: is absent), nothing happens and False
        comes back. When True comes back, the change survives the death of this process.

        `under` is a hold of this store that the change depends on. If it is gone (released, or taken over by another),
        HoldLost is raised and nothing is written: a stale owner never replaces what a newer one wrote. Otherwise it is
        released together with the commit. It stays held when False comes back or an error is raised.
        """
        ...

    def hold(self, key: str) -> Hold | None:
        """Hold `key` against other processes and machines, or None while another holds it. Never waits.

        Threads of one process are told apart by the caller. A holder that dies lets go at once.
        """
        ...

    def held(self, keys: Collection[str]) -> set[str]:
        """Those of the keys that somebody holds, this process included. Takes none of them, so that nobody is refused."""
        ...

    def close(self) -> None:
        """Let go of connections. A later call opens them again."""
        ...


GROUP = "oncemore.stores"  # the entry points of other packages: `scheme = module:opener`
_SCHEMES = {  # imported when first used
    "disk": "oncemore.stores.disk:open_url",
    "memory": "oncemore.stores.memory:open_url",
}
_PLANNED = ("postgres", "postgresql", "redis", "rediss", "s3", "gs", "az")
_SCHEME = r"([A-Za-z][A-Za-z0-9+.-]+):"  # two characters or more: `C:` is a drive


def open_store(target: str | os.PathLike[str] | Store) -> Store:
    """The store at a path or URL; the same one for the same place in this process. A `Store` is returned as it is.

    `./.oncemore`, `~/runs` and `Path(...)` are directories, as are `disk:///abs/path?durable=power` and
    `disk:relative/path`; `memory://name` lives as long as the process. Other packages register schemes of their own in
    the entry-point group `oncemore.stores`.
    """
    if not isinstance(target, (str, os.PathLike)):
        return _checked(target)
    module, opener, url = _found(target)
    return cast("Callable[[str], Store]", getattr(import_module(module), opener))(url)


def _checked(store: Store) -> Store:
    if not isinstance(store, Store):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a store is a path, a URL or a Store, not {store!r}")
    return store


def default_target() -> str:
    """The path or URL of the store that is meant if none is named."""
    return os.environ.get("ONCEMORE_STORE") or "./.oncemore"


def store_exists(target: str | os.PathLike[str] | Store) -> bool:
    """Whether there is a store at a path or URL by now: `open_store` would make one where there is none. Makes nothing.

    Asks `exists(url)` of the module that opens the scheme; without such a function a store is taken to exist.
    """
    if not isinstance(target, (str, os.PathLike)):
        _checked(target)
        return True
    module, _, url = _found(target)
    exists: Callable[[str], bool] | None = getattr(import_module(module), "exists", None)
    return exists is None or exists(url)


def repair_store(
    target: str | os.PathLike[str],
    sound: Callable[[str, Bytes], bool],
    missing: Callable[[Mapping[str, Bytes]], Mapping[str, int]],
) -> Salvaged:
    """Repair the store at a path or URL, as its module's `repair(url, sound, missing)` does; see `repair.repair`."""
    module, _, url = _found(target)
    repair: Callable[..., Salvaged] | None = getattr(import_module(module), "repair", None)
    if repair is None:
        raise UsageError(f"{url} has no file that could be damaged: only stores on disk are repaired")
    return repair(url, sound, missing)


def _found(target: str | os.PathLike[str]) -> tuple[str, str, str]:
    """The module of the store at a path or URL, the name of its opener, and the URL."""
    found = re.match(_SCHEME, target) if isinstance(target, str) and ":" in target else None
    if found is None:
        return *_opener("disk"), _disk_url(os.fspath(target))
    return *_opener(found[1].lower()), cast(str, target)


def _disk_url(path: str) -> str:
    if not path or "\0" in path:
        raise UsageError(f"{path!r} is not the path of a store")
    absolute = os.path.abspath(os.path.expanduser(path))
    return "disk:///" + quote(os.fsencode(absolute.lstrip("/")))  # as bytes: a path need not be valid text


def _opener(scheme: str) -> tuple[str, str]:
    """The module and the name of the function that opens the URLs of a scheme."""
    target = _SCHEMES.get(scheme) or _registered().get(scheme)
    if target is None:
        known = ", ".join(f"{name}:" for name in {**_SCHEMES, **_registered()})
        if scheme in _PLANNED:
            raise UsageError(f"{scheme}: stores are not in this version; known are {known} and plain paths")
        raise UsageError(f"{scheme}: is no known kind of store; known are {known} (a path: write ./{scheme}:...)")
    module, _, name = target.partition(":")
    return module, name


def _registered() -> dict[str, str]:
    """The schemes of other packages."""
    from importlib.metadata import entry_points  # not loaded for our own: it takes as long as a small run

    return {found.name.lower(): found.value.replace(" ", "") for found in entry_points(group=GROUP)}


# -- keys: what the stores agree on. Their order is that of their characters, and a log is a range of them

LONGEST = 1024  # bytes of a key in UTF-8; what object stores take
LAST = (1 << 64) - 1  # the highest number of a log's entry


def key_range(prefix: str, after: str = "") -> tuple[str, str | None]:
    """The smallest key with `prefix` that is greater than `after`, and what is above all with it; None: nothing is."""
    start, stem = max(prefix, after + "\0") if after else prefix, prefix.rstrip("\U0010ffff")
    if not stem:
        return start, None
    following = ord(stem[-1]) + 1
    return start, stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # surrogates are no characters


def log_key(log: str, number: int) -> str:
    """The key of a log's entry."""
    return f"{log}{number:016x}"


def last_number(log: str, keys: Iterable[str]) -> int:
    """The number of a log's last entry, given the keys that start with it from the last on. Not all of them need be entries."""
    for key in keys:
        digits = key[len(log) :]
        if len(digits) == 16 and not digits.strip("0123456789abcdef"):
            return int(digits, 16)
    return 0


def checked(key: str) -> str:
    """The key, if a store can have it."""
    try:
        size = len(key.encode()) if len(key) > LONGEST // 4 or not key.isascii() else 0
    except UnicodeEncodeError:
        raise UsageError(f"the key {key!r} is not valid text") from None
    if size > LONGEST:
        raise UsageError(f"a key has at most {LONGEST} bytes, not {size}: {key[:40]!r}...")
    return key


def check_change(put: Iterable[str], append: Iterable[str], delete: Iterable[str], expect: Iterable[str]) -> None:
    """Raise UsageError unless all keys of a commit are keys."""
    for keys in (put, delete, expect):
        for key in keys:
            checked(key)
    for log in append:
        checked(log_key(log, 0))
