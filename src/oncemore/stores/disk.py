"""The store in a directory: a `diskcache.Cache`, with small entries in its SQLite database and large ones in its value files.

The directory holds `cache.db` (with its journal), `00` to `ff` (value files), `cache.db-locks` and a `.gitignore`. Any number
of threads and processes of one machine may use it at once. diskcache itself can open it: it finds every entry under its key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal
from urllib.parse import quote, unquote_to_bytes
from weakref import WeakValueDictionary

from diskcache.core import DBNAME, MODE_RAW

from ..errors import IntegrityError, StoreError, UsageError
from . import Bytes, Frames, Hold, Store, open_store
from .cache import CHUNK, COLUMNS, Cache, Damaged, Missing, opening
from .filesystem import describe, network_file_system
from .keys import DIGITS, LONGEST, above_prefix, check_change, checked, first_key, log_key, log_number
from .locks import lock_file
from .upkeep import Maintenance, maintain, orphans, shrink

_RANGE = "FROM Cache WHERE key >= ? AND key < ? AND raw = 1 ORDER BY key LIMIT ?"
_ALL = f"SELECT key, 1, {COLUMNS}"
_SMALL = (  # the second column: is it small enough
    "SELECT key, max(size, coalesce(length(value), 0)) <= ?, size, mode, filename,"
    " CASE WHEN length(value) <= ? THEN value END"
)
_LAST = "SELECT key FROM Cache WHERE key >= ? AND key <= ? AND raw = 1 ORDER BY key DESC"
_DURABLE: dict[str, Literal["process", "power"]] = {"process": "process", "power": "power"}
_ABOVE_TEXT = b""  # SQLite sorts every blob above every text


class _Unexpected(Exception):
    """Something else than expected is there: the transaction is undone."""


class DiskStore:
    """Keeps bytes under keys in the directory `path`.

    `durable="process"` survives the death of processes, `"power"` that of the machine (each commit waits for the
    disk). On a network file system it refuses to work unless told to: locks do not hold there between machines.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: Literal["process", "power"] = "process",
        allow_network_filesystem: bool = False,
    ) -> None:
        if durable not in _DURABLE:
            raise UsageError(f"durable={durable!r} is unknown; known are 'process' and 'power'")
        self._path = real_path(path)
        kind = None if allow_network_filesystem else network_file_system(self._path)
        if kind is not None:
            raise StoreError(
                f"the store {self._path} would be on a network file system ({kind}), where locks do not hold between "
                f"machines: put it on a local disk, or add ?network=allow if only one machine uses it"
            )
        # Named so that diskcache takes it for its own: `Cache.check` reports, and may remove, files it does not know.
        self._locks = lock_file(os.path.join(self._path, f"{DBNAME}-locks"))
        self._cache = Cache(self._path, self._locks, durable=durable == "power")
        options = [f"durable={durable}"] * (durable != "process") + ["network=allow"] * allow_network_filesystem
        self._url = f"disk://{quote(os.fsencode(self._path))}" + ("?" + "&".join(options) if options else "")

    @property
    def path(self) -> str:
        """The directory."""
        return self._path

    @property
    def url(self) -> str:
        """What `open_store` takes to open this store again, in this or another process."""
        return self._url

    def get(self, key: str) -> Bytes | None:
        """The bytes under `key`, or None. A large entry comes as a writable buffer that the caller owns."""
        return self._cache.use("read", self._get, key)

    def _get(self, key: str) -> Bytes | None:
        if len(key) > LONGEST // 4:
            checked(key)
        missing = None
        while True:
            try:
                found: Bytes | None = self._cache.get(key)
                return found
            except Missing as error:
                # Its file was removed since the row was read: then there is a newer row, or none.
                if error.args[0] == missing:
                    raise self._damaged(key, f"its file {missing} is missing") from error
                missing = error.args[0]
            except Damaged as error:
                raise self._damaged(key, str(error)) from error

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        """Those of the entries that there are; see `Store.get_many`."""
        found: dict[str, Bytes | None] = {}
        asked = iter(keys)
        while chunk := [checked(key) for key in islice(asked, CHUNK)]:
            among = f"FROM Cache WHERE key IN ({','.join('?' * len(chunk))}) AND raw = 1"
            found.update(self._values(self._rows(among, chunk, most)))
        return found

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """The entries whose keys start with `prefix`, in key order; see `Store.scan`."""
        start, end = first_key(prefix, after), above_prefix(prefix) or _ABOVE_TEXT
        remaining = limit
        while remaining is None or remaining > 0:
            page = CHUNK if remaining is None else min(CHUNK, remaining)
            rows = self._rows(_RANGE, (start, end, page), most)
            yield from self._values(rows)
            if len(rows) < page:
                return
            start = rows[-1][0] + "\0"
            remaining = None if remaining is None else remaining - page

    def _rows(self, which: str, given: Sequence[object], most: int | None) -> list[tuple[Any, ...]]:
        """All rows of a query: a statement left open would keep its thread from committing."""
        query = (f"{_ALL} {which}", given) if most is None else (f"{_SMALL} {which}", (most, most, *given))
        return self._cache.use("read", lambda: self._cache._sql(*query).fetchall())

    def _values(self, rows: list[tuple[Any, ...]]) -> Iterator[tuple[str, Bytes | None]]:
        """Keys and values; None for what is too large or damaged."""
        for key, small, _, mode, filename, value in rows:
            if not small:
                yield key, None
            elif mode == MODE_RAW and filename is None and type(value) is bytes:
                yield key, value
            else:
                try:
                    yield key, self.get(key)
                except IntegrityError:
                    yield key, None

    def commit(
        self,
        *,
        put: Mapping[str, Frames] = {},
        append: Mapping[str, Sequence[Bytes]] = {},
        delete: Collection[str] = (),
        expect: Mapping[str, Bytes | None] = {},
        under: Hold | None = None,
    ) -> bool:
        """Apply all of it in one transaction, or nothing; see `Store.commit`."""
        check_change(put, append, delete, expect)
        cache, values = self._cache, self._cache.values
        cache.require_writable()

        def apply() -> None:
            if under is not None:
                self._locks.require(under)
            for key, wanted in expect.items():
                if (wanted is not None or key not in puts) and not _same(self._get(key), wanted):
                    raise _Unexpected
            for log, rows in appends.items():
                for number, row in enumerate(rows, self._last_number(log) + 1):
                    cache.set(log_key(log, number), row)
            for key, row in puts.items():
                if key not in expect or expect[key] is not None:
                    cache.set(key, row)
                elif not cache.add(key, row):
                    raise _Unexpected
            for key in delete:
                cache.delete(key)

        try:
            # Large values are written here, not while others wait for the end of the transaction.
            puts = {key: values.prepare(frames) for key, frames in put.items()}
            appends = {log: [values.prepare((entry,)) for entry in entries] for log, entries in append.items()}
            cache.use("write to", cache.change, apply)
        except _Unexpected:
            return False
        except StoreError:
            raise
        except OSError as error:
            raise describe(error, "write to", self._path) from error
        finally:
            if values.files.written:  # by a commit that did not come to its transaction
                written, values.files.written = values.files.written, []
                values.discard([row[2] for row in written])
        if under is not None:
            under.release()
        return True

    def _last_number(self, log: str) -> int:
        for (key,) in self._cache._sql(_LAST, (log + "0" * DIGITS, log + "f" * DIGITS)):
            number = log_number(log, key)
            if number is not None:  # a key inside the range need not be an entry
                return number
        return 0

    def hold(self, key: str) -> Hold | None:
        """Hold `key` against other processes, or None while one holds it; see `Store.hold`."""
        hold = self._locks.acquire(checked(key))
        if hold is not None:
            try:
                hold.entry = self.get(key)
            except StoreError:
                pass  # `get` tells
            except BaseException:
                hold.release()
                raise
        return hold

    def held(self, keys: Collection[str]) -> set[str]:
        """Those of the keys that somebody holds; see `Store.held`."""
        return self._locks.held([checked(key) for key in keys])

    def maintain(self, *, older_than: float = 600.0) -> Maintenance:
        """Remove value files that no entry refers to, untouched for `older_than` seconds, and give space back.

        Safe beside running jobs. Damaged entries are reported, not removed.
        """
        self._cache.require_writable()
        try:
            return maintain(self._cache, older_than)
        except StoreError:
            raise
        except OSError as error:
            raise describe(error, "tidy", self._path) from error

    def orphans(self, *, older_than: float = 600.0) -> list[str]:
        """The names of the files that `maintain` would remove. Changes nothing."""
        try:
            return orphans(self._cache, older_than)
        except StoreError:
            raise
        except OSError as error:
            raise describe(error, "look into", self._path) from error

    def shrink(self) -> None:
        """Give the space of removed entries back to the file system. Reads no entries."""
        self._cache.require_writable()
        shrink(self._cache)

    def close(self) -> None:
        """Close the connections of all threads. A later call opens them again."""
        self._cache.close()

    def __reduce__(self) -> tuple[Callable[[str], Store], tuple[str]]:
        return open_store, (self.url,)

    def __repr__(self) -> str:
        return f"<DiskStore {self.url}>"

    def _damaged(self, key: str, what: str) -> IntegrityError:
        return IntegrityError(f"the entry {key!r} of the store {self._path} is damaged: {what}")

    def _reopened(self) -> DiskStore:
        if not self._cache.present():
            self._cache.renew()
        return self


def _same(found: Bytes | None, wanted: Bytes | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return memoryview(found) == memoryview(wanted).cast("B")


def real_path(path: str | os.PathLike[str]) -> str:
    """Where a store is, however it is written."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise UsageError(f"{text!r} is not the path of a store")
    return "/" + os.path.realpath(os.path.expanduser(text)).lstrip("/")


_open: WeakValueDictionary[tuple[str, str, bool], DiskStore] = WeakValueDictionary()


def _parsed(url: str) -> tuple[str, str, bool]:
    """Where the store at a `disk:` URL is, and its options."""
    place, _, query = url.partition(":")[2].partition("?")
    if place.startswith("//"):
        place = place[2:]
        if not place.startswith("/"):
            raise UsageError(f"{url!r}: write disk:///absolute/path or disk:relative/path")
    options = {name: value for name, _, value in (pair.partition("=") for pair in query.split("&") if pair)}
    durable, network = options.pop("durable", "process"), options.pop("network", "refuse")
    if options or durable not in _DURABLE or network not in ("allow", "refuse"):
        raise UsageError(f"{url!r}: known options are durable=process or power, network=allow or refuse")
    return real_path(os.fsdecode(unquote_to_bytes(place))), durable, network == "allow"


def open_url(url: str) -> DiskStore:
    """The store at a `disk:` URL; the same one for the same place and options in this process."""
    path, durable, network = _parsed(url)
    with opening:
        store = _open.get((path, durable, network))
        if store is not None:
            return store._reopened()
        store = DiskStore(path, durable=_DURABLE[durable], allow_network_filesystem=network)
        _open[path, durable, network] = store
        return store


def exists(url: str) -> bool:
    """Whether there is a store at a `disk:` URL by now."""
    return os.path.lexists(os.path.join(_parsed(url)[0], DBNAME))
