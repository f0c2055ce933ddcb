"""The store contract: bytes under text keys, in key order. A store knows nothing of runs, pickles or Python.

The contract has few methods, and a database, a key-value server or an object store can implement it: nothing in it needs
local files or a full scan. `oncemore.testing.StoreContract` is the conformance suite. A store can be opened by URL once its
package registers the scheme in the entry-point group `oncemore.stores`.

Keys are text of at most 1,024 bytes in UTF-8; others raise UsageError. A store does not let errors of its driver escape: it
raises StoreError, StoreUnavailable (temporarily busy or unreachable), StoreDamaged or UsageError from the original error.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable
from urllib.parse import quote, unquote

from ..errors import UsageError
from ..modules import script_folder

if TYPE_CHECKING:
    from .repair import Salvaged

Bytes = bytes | bytearray | memoryview
Frames = Sequence[Bytes]  # an entry's bytes in pieces, so that large buffers need not be joined


class Hold(Protocol):
    """A key held for a computation, until released or until its process dies."""

    @property
    def entry(self) -> Bytes | None:
        """The entry under the key, read after the key was acquired, so that it includes an earlier holder's commit.

        None if there is no entry, or if it can't be read: a damaged entry must not prevent computing the value again.
        `get` tells the two apart.
        """
        ...

    def release(self) -> None:
        """Release the key. Calling it again has no effect."""
        ...


@runtime_checkable
class Store(Protocol):
    """Stores bytes under keys."""

    @property
    def url(self) -> str:
        """The URL with which `open_store` opens this store, in this or another process."""
        ...

    def get(self, key: str) -> Bytes | None:
        """The bytes under `key`, or None. A large entry is returned as a writable buffer that the caller owns."""
        ...

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        """The entries that exist under `keys`, by key, in a few round trips.

        The value is None for an entry of more than `most` bytes, and for a damaged one; `get` tells the two apart.
        """
        ...

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """The entries whose keys start with `prefix` and are greater than `after`, in key order, at most `limit`.

        The value is None for an entry of more than `most` bytes, and for a damaged one; `get` tells the two apart. Entries
        are read a page at a time, so that concurrent commits may or may not be seen.
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
        """Apply all changes in one transaction, or none.

        `append` adds entries to logs: each gets the key `log + 16 hex digits`, numbered on from the log's last entry
        without gaps. `expect` is a precondition: unless each of these keys now holds exactly these bytes (None: no entry),
        nothing is changed and the result is False. Once it returns True, the changes survive the death of this process.

        `under` is a hold of this store that the changes depend on. If it was lost (released, or acquired by another),
        HoldLost is raised and nothing is written, so that a stale holder never overwrites what a newer one wrote. A
        successful commit releases it; it stays held if the result is False or an error is raised.
        """
        ...

    def hold(self, key: str) -> Hold | None:
        """Acquire `key` against other processes and machines; None if another holds it. Never waits.

        The caller coordinates the threads of its own process. When a holder's process dies, the key is free at once.
        """
        ...

    def held(self, keys: Collection[str]) -> set[str]:
        """The keys among `keys` that are held, by this process or another. Acquires none, so that no other is refused."""
        ...

    def close(self) -> None:
        """Close connections. A later call opens them again."""
        ...


@runtime_checkable
class Measured(Protocol):
    """A store that knows the sizes of its entries without reading them."""

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The keys that start with `prefix`, in key order, and the sizes of their entries in bytes."""
        ...


GROUP = "oncemore.stores"  # entry points of other packages: `scheme = module:function`
_SCHEMES = {  # imported when first used
    "disk": "oncemore.stores.disk:open_url",
    "memory": "oncemore.stores.memory:open_url",
}
_PLANNED = ("postgres", "postgresql", "redis", "rediss", "s3", "gs", "az")
_SCHEME = r"([A-Za-z][A-Za-z0-9+.-]+):"  # at least two characters, because `C:` is a drive


def open_store(target: str | os.PathLike[str] | Store) -> Store:
    """Open the store at a path or URL. Opening the same one again in this process returns the same object.

    `./.oncemore`, `~/runs` and `Path(...)` are directories, as are `disk:///abs/path?durable=power` and
    `disk:relative/path`; `memory://name` lives as long as the process. Other packages can register schemes in the
    entry-point group `oncemore.stores`. A `Store` is returned unchanged.
    """
    if not isinstance(target, (str, os.PathLike)):
        return _require_store(target)
    module, opener, url = _resolve(target)
    return cast("Callable[[str], Store]", getattr(import_module(module), opener))(url)


def _require_store(store: Store) -> Store:
    if not isinstance(store, Store):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a store must be a path, a URL or a Store, not {store!r}")
    return store


def default_target(folder: str | None = None) -> str:
    """The path or URL of the default store: `ONCEMORE_STORE`, else `.oncemore` in the project that `folder` belongs to.

    By default, that is the folder of the running script; without a script, the working directory.
    """
    return os.environ.get("ONCEMORE_STORE") or os.path.join(default_folder(folder), OURS)


def default_folder(folder: str | None = None) -> str:
    """The folder of the default store: see `default_target`."""
    return _project(folder or script_folder() or os.getcwd(), os.path.realpath(os.path.expanduser("~")))


@lru_cache(maxsize=100)
def _project(start: str, home: str) -> str:
    """The nearest folder, from `start` upward, that has a store or is the root of a project; `start` if there is none.

    Stops at the user's home, which may be a repository of settings, and at folders that anybody can write to, like /tmp.
    """
    folder = start
    while folder not in (home, os.path.dirname(folder)) and not _is_open_to_all(folder):
        if any(os.path.exists(os.path.join(folder, name)) for name in (OURS, "pyproject.toml", ".git")):
            return folder
        folder = os.path.dirname(folder)
    return start


def _is_open_to_all(folder: str) -> bool:
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:  # inside a zip file, say
        return False


def shown_url(url: str, here: str = "") -> str:
    """A store's URL without passwords; for a directory its path, relative if it is inside the folder `here`."""
    scheme, _, rest = url.partition("://")
    if scheme == "disk":
        path = unquote(rest.partition("?")[0])
        return f".{path[len(here) :]}" if here and path.startswith(here + os.sep) else path
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}"


def store_exists(target: str | os.PathLike[str] | Store) -> bool:
    """Whether a store exists at a path or URL. Unlike `open_store`, it does not create one.

    Calls `exists(url)` of the scheme's module; if there is no such function, the store is assumed to exist.
    """
    if not isinstance(target, (str, os.PathLike)):
        _require_store(target)
        return True
    module, _, url = _resolve(target)
    exists: Callable[[str], bool] | None = getattr(import_module(module), "exists", None)
    return exists is None or exists(url)


def repair_store(
    target: str | os.PathLike[str],
    sound: Callable[[str, Bytes], bool],
    missing: Callable[[Mapping[str, Bytes]], Mapping[str, int]],
) -> Salvaged:
    """Repair the store at a path or URL with `repair(url, sound, missing)` of its module; see `repair.repair`."""
    module, _, url = _resolve(target)
    repair: Callable[..., Salvaged] | None = getattr(import_module(module), "repair", None)
    if repair is None:
        raise UsageError(f"cannot repair {url}: only stores on disk can be repaired")
    return repair(url, sound, missing)


def _resolve(target: str | os.PathLike[str]) -> tuple[str, str, str]:
    """The module and function that open the store at a path or URL, and its URL."""
    match = re.match(_SCHEME, target) if isinstance(target, str) and ":" in target else None
    if match is None:
        return *_opener("disk"), _disk_url(os.fspath(target))
    return *_opener(match[1].lower()), cast(str, target)


def _disk_url(path: str) -> str:
    if not path or "\0" in path:
        raise UsageError(f"{path!r} is not a valid path for a store")
    absolute = os.path.abspath(os.path.expanduser(path))
    return "disk:///" + quote(os.fsencode(absolute.lstrip("/")))  # as bytes, because a path need not be valid text


def _opener(scheme: str) -> tuple[str, str]:
    """The module and the function that open the URLs of a scheme."""
    target = _SCHEMES.get(scheme) or _registered().get(scheme)
    if target is None:
        known = ", ".join(f"{name}:" for name in {**_SCHEMES, **_registered()})
        if scheme in _PLANNED:
            raise UsageError(f"{scheme}: stores are not supported in this version; use {known} or a plain path")
        raise UsageError(f"unknown kind of store {scheme}: (known: {known}). For a path, write ./{scheme}:...")
    module, _, name = target.partition(":")
    return module, name


def _registered() -> dict[str, str]:
    """Schemes registered by other packages."""
    from importlib.metadata import entry_points  # slow to import, and not needed for built-in schemes

    return {each.name.lower(): each.value.replace(" ", "") for each in entry_points(group=GROUP)}


# -- keys, for all stores. They are ordered by their characters, and a log is a range of keys

LONGEST = 1024  # bytes of a key in UTF-8, the limit of object stores
LAST = (1 << 64) - 1  # the highest possible number of a log entry


def key_range(prefix: str, after: str = "") -> tuple[str, str | None]:
    """The range [start, end) of the keys with `prefix` that are greater than `after`. End None: no upper limit."""
    start, stem = max(prefix, after + "\0") if after else prefix, prefix.rstrip("\U0010ffff")
    if not stem:
        return start, None
    following = ord(stem[-1]) + 1
    return start, stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # skip the surrogates


def log_key(log: str, number: int) -> str:
    """The key of an entry in a log."""
    return f"{log}{number:016x}"


def last_number(log: str, keys: Iterable[str]) -> int:
    """The number of a log's last entry, 0 if none. `keys` are those with its prefix, in descending order; others are skipped."""
    for key in keys:
        digits = key[len(log) :]
        if len(digits) == 16 and not digits.strip("0123456789abcdef"):
            return int(digits, 16)
    return 0


def checked(key: str) -> str:
    """Return the key if it is valid, else raise UsageError."""
    try:
        size = len(key.encode()) if len(key) > LONGEST // 4 or not key.isascii() else 0
    except UnicodeEncodeError:
        raise UsageError(f"the key {key!r} cannot be encoded in UTF-8") from None
    if size > LONGEST:
        raise UsageError(f"the key {key[:40]!r}... has {size} bytes; at most {LONGEST} are allowed")
    return key


# -- what the stores here have in common


def sizes_in(store: Store, prefix: str) -> Iterator[tuple[str, int]]:
    """The keys with this prefix, and the sizes of their entries; see `Measured.sizes`."""
    if isinstance(store, Measured):
        return store.sizes(prefix)
    return ((key, len((store.get(key) if data is None else data) or b"")) for key, data in store.scan(prefix))


PAGE = 500  # entries that a scan reads at a time


class Change(NamedTuple):
    """The arguments of a commit, with valid keys."""

    put: Mapping[str, Frames]
    append: Mapping[str, Sequence[Bytes]]
    delete: Collection[str]
    expect: Mapping[str, Bytes | None]
    under: Hold | None


class BaseStore:
    """Base class of stores: scans in pages, commits as one object, pickles as a URL."""

    url: str

    def get(self, key: str) -> Bytes | None:
        """See `Store.get`."""
        raise NotImplementedError

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """See `Store.scan`."""
        start, end = key_range(prefix, after)
        remaining, last = sys.maxsize if limit is None else limit, ""
        while remaining > 0:
            size, found = min(PAGE, remaining), 0
            for last, data in self._page(start, end, size, most):
                yield last, data
                found += 1
            if found < size:
                return
            start, remaining = last + "\0", remaining - size

    def commit(
        self,
        *,
        put: Mapping[str, Frames] = {},
        append: Mapping[str, Sequence[Bytes]] = {},
        delete: Collection[str] = (),
        expect: Mapping[str, Bytes | None] = {},
        under: Hold | None = None,
    ) -> bool:
        """See `Store.commit`."""
        for key in (*put, *delete, *expect, *(log_key(log, 0) for log in append)):
            checked(key)
        done = self._commit(Change(put, append, delete, expect, under))
        if done and under is not None:
            under.release()
        return done

    def _page(self, start: str, end: str | None, size: int, most: int | None) -> Iterator[tuple[str, Bytes | None]]:
        """The first `size` entries from key `start` on and before `end`. Large values are read one at a time."""
        raise NotImplementedError

    def _commit(self, change: Change) -> bool:
        """Apply the change, or return False if its expectations are not met. The caller releases the hold."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open_store, (self.url,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


# -- stores among the user's files, recognized without opening a file or importing the database

OURS = ".oncemore"  # prefix of the names that oncemore creates among the user's files: stores and drafts
_DATABASE = "cache.db"  # diskcache's name for it


def is_store(folder: str) -> bool:
    """Whether the folder is a store. Opens no file: closing one of a store's files may drop the locks on it."""
    return all(os.path.lexists(os.path.join(folder, name)) for name in (_DATABASE, f"{_DATABASE}-locks"))


def in_store(path: str) -> bool:
    """Whether a path is a store or inside one, with symbolic links resolved."""
    folder = os.path.realpath(path)
    while not is_store(folder):
        if (outer := os.path.dirname(folder)) == folder:
            return False
        folder = outer
    return True
