"""The store in a directory: a `diskcache.Cache`, with small entries in its SQLite database and large ones in its value files.

The directory holds `cache.db` (with its journal), `00` to `ff` (value files), `cache.db-locks` and a `.gitignore`. Any number
of threads and processes of one machine may use it at once. diskcache itself can open it: it finds every entry under its key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal
from urllib.parse import quote, unquote_to_bytes
from weakref import WeakValueDictionary

from diskcache.core import DBNAME, MODE_RAW

from ..errors import IntegrityError, StoreError, UsageError
from . import LAST, Bytes, Frames, Hold, Store, check_change, checked, key_range, last_number, log_key, open_store
from .cache import CHUNK, Cache, Unreadable, gate
from .filesystem import network_file_system
from .locks import lock_file
from .repair import Missing, Salvaged, Sound
from .repair import repair as repair_folder
from .upkeep import Maintenance, maintain, orphans, shrink

_ROWS = (  # the second column: is it small enough
    "SELECT key, max(size, coalesce(length(value), 0)) <= ?, mode, filename, CASE WHEN length(value) <= ? THEN value END"
    " FROM Cache WHERE raw = 1 AND "
)
_LAST = "SELECT key FROM Cache WHERE key BETWEEN ? AND ? AND raw = 1 ORDER BY key DESC"
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
        self.path = _real_path(path)
        kind = None if allow_network_filesystem else network_file_system(self.path)
        if kind is not None:
            raise StoreError(
                f"the store {self.path} would be on a network file system ({kind}), where locks do not hold between "
                f"machines: put it on a local disk, or add ?network=allow if only one machine uses it"
            )
        options = [f"durable={durable}"] * (durable != "process") + ["network=allow"] * allow_network_filesystem
        self.url = f"disk://{quote(os.fsencode(self.path))}" + ("?" + "&".join(options) if options else "")
        # Named so that diskcache takes it for its own: `Cache.check` reports, and may remove, files it does not know.
        self._locks = lock_file(os.path.join(self.path, f"{DBNAME}-locks"))
        self._cache = Cache(self.path, self._locks, durable=durable == "power")

    def get(self, key: str) -> Bytes | None:
        """See `Store.get`."""
        return self._cache.use("read", self._get, checked(key))

    def _get(self, key: str) -> Bytes | None:
        before = ""
        while True:
            try:
                found: Bytes | None = self._cache.get(key)
                return found
            except Unreadable as error:
                problem: StoreError = error.args[0]
                if not isinstance(problem, IntegrityError):
                    raise problem from error.__cause__
                # Its file may have been removed since the row was read: then there is a newer row, or none.
                if str(problem) == before:
                    raise IntegrityError(
                        f"the entry {key!r} of the store {self.path} is damaged: {problem}"
                    ) from error.__cause__
                before = str(problem)

    def get_many(self, keys: Collection[str], *, most: int | None = None) -> dict[str, Bytes | None]:
        """See `Store.get_many`."""
        found: dict[str, Bytes | None] = {}
        asked = iter(keys)
        while chunk := [checked(key) for key in islice(asked, CHUNK)]:
            found.update(self._values(self._rows(f"key IN ({','.join('?' * len(chunk))})", chunk, most)))
        return found

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """See `Store.scan`."""
        start, end = key_range(prefix, after)
        remaining = sys.maxsize if limit is None else limit
        while remaining > 0:
            page = min(CHUNK, remaining)
            rows = self._rows("key >= ? AND key < ? ORDER BY key LIMIT ?", (start, end or _ABOVE_TEXT, page), most)
            yield from self._values(rows)
            if len(rows) < page:
                return
            start, remaining = rows[-1][0] + "\0", remaining - page

    def _rows(self, which: str, given: Sequence[object], most: int | None) -> list[tuple[Any, ...]]:
        """All rows of a query: a statement left open would keep its thread from committing."""
        most = sys.maxsize if most is None else most
        return self._cache.use("read", lambda: self._cache._sql(_ROWS + which, (most, most, *given)).fetchall())

    def _values(self, rows: list[tuple[Any, ...]]) -> Iterator[tuple[str, Bytes | None]]:
        """Keys and values; None for what is too large or damaged."""
        for key, small, mode, filename, value in rows:
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
        """See `Store.commit`."""
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
                keys = (key for (key,) in cache._sql(_LAST, (log_key(log, 0), log_key(log, LAST))))
                for number, row in enumerate(rows, last_number(log, keys) + 1):
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
        finally:
            cache.tidy()
        if under is not None:
            under.release()
        return True

    def hold(self, key: str) -> Hold | None:
        """See `Store.hold`."""
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
        """See `Store.held`."""
        return self._locks.held([checked(key) for key in keys])

    def maintain(self, *, older_than: float = 600.0) -> Maintenance:
        """Remove value files that no entry refers to, untouched for `older_than` seconds, and give space back.

        Safe beside running jobs. Damaged entries are reported, not removed.
        """
        self._cache.require_writable()
        return maintain(self._cache, older_than)

    def orphans(self, *, older_than: float = 600.0) -> list[str]:
        """The names of the files that `maintain` would remove. Changes nothing."""
        return orphans(self._cache, older_than)

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


def _same(found: Bytes | None, wanted: Bytes | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return memoryview(found) == memoryview(wanted).cast("B")


def _real_path(path: str | os.PathLike[str]) -> str:
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
    return _real_path(os.fsdecode(unquote_to_bytes(place))), durable, network == "allow"


def open_url(url: str) -> DiskStore:
    """The store at a `disk:` URL; the same one for the same place and options in this process."""
    path, durable, network = _parsed(url)
    with gate:
        store = _open.get((path, durable, network))
        if store is None:
            store = DiskStore(path, durable=_DURABLE[durable], allow_network_filesystem=network)
            _open[path, durable, network] = store
        else:
            store._cache.renew()
        return store


def repair(url: str, sound: Sound, missing: Missing) -> Salvaged:
    """Repair the store at a `disk:` URL; see `repair.repair`."""
    return repair_folder(_parsed(url)[0], sound, missing)


def exists(url: str) -> bool:
    """Whether there is a store at a `disk:` URL by now."""
    return os.path.lexists(os.path.join(_parsed(url)[0], DBNAME))
