"""The store in a directory: small entries in a SQLite database, large ones in files of their own.

The directory holds `cache.db` (with its journal), `00` to `ff` (value files), `locks` and a `.gitignore`. It is
diskcache's layout, hardened: nothing is evicted, nothing is unpickled, and any number of threads and processes of one
machine may use it at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast
from weakref import WeakValueDictionary

from ..errors import IntegrityError, StoreError, UsageError
from ..modules import loading
from ..quoting import quote, unquote_to_bytes
from . import Bytes, Frames, Hold, Store, open_store
from .database import Database, fetch, opening
from .filesystem import describe, network_file_system
from .keys import above_prefix, first_key
from .locks import lock_file
from .transaction import CHUNK, COLUMNS, SELECT, Change
from .values import DBNAME, MODE_RAW, Row

if TYPE_CHECKING:
    from .maintenance import Maintenance

_RANGE = "FROM Cache WHERE key >= ? AND key < ? AND raw = 1 ORDER BY key LIMIT ?"
_SCAN = f"SELECT key, 1, {COLUMNS} {_RANGE}"
_SCAN_SMALL = (  # the second column: is it small enough
    "SELECT key, max(size, coalesce(length(value), 0)) <= ?, size, mode, filename,"
    f" CASE WHEN length(value) <= ? THEN value END {_RANGE}"
)
_DURABLE: dict[str, Literal["process", "power"]] = {"process": "process", "power": "power"}
_ABOVE_TEXT = b""  # SQLite sorts every blob above every text


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
        self._locks = lock_file(os.path.join(self._path, "locks"))
        self._database = Database(self._path, self._locks, durable=durable == "power")
        self._values = self._database.values
        self._last: dict[str, int] = {}
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
        row = self._row(key)
        if row is None:
            return None
        if row[1] == MODE_RAW and row[2] is None and type(row[3]) is bytes:
            return row[3]
        return self._read(key, row)

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, most: int | None = None
    ) -> Iterator[tuple[str, Bytes | None]]:
        """The entries whose keys start with `prefix`, in key order; see `Store.scan`."""
        start, end = first_key(prefix, after), above_prefix(prefix) or _ABOVE_TEXT
        remaining = limit
        while remaining is None or remaining > 0:
            page = CHUNK if remaining is None else min(CHUNK, remaining)
            if most is None:
                rows = self._database.use("read", fetch, _SCAN, (start, end, page))
            else:
                rows = self._database.use("read", fetch, _SCAN_SMALL, (most, most, start, end, page))
            for key, small, size, mode, filename, value in rows:
                if small and mode == MODE_RAW and filename is None and type(value) is bytes:
                    yield key, value
                else:
                    yield key, self._scanned(key, (size, mode, filename, value)) if small else None
            if len(rows) < page:
                return
            start = rows[-1][0] + "\0"
            remaining = None if remaining is None else remaining - page

    def commit(
        self,
        *,
        put: Mapping[str, Frames] = {},
        append: Mapping[str, Sequence[Bytes]] = {},
        delete: Collection[str] = (),
        expect: Mapping[str, Bytes | None] = {},
    ) -> bool:
        """Apply all of it in one transaction, or nothing; see `Store.commit`."""
        self._database.require_writable()
        change = Change(self._values, self._last)
        try:
            change.prepare(put, append)
            return self._database.use("write to", change.apply, delete, expect)
        except StoreError:
            raise
        except OSError as error:
            raise describe(error, "write to", self._path) from error
        finally:
            change.clean()

    def hold(self, key: str) -> Hold | None:
        """Hold `key` against other processes, or None while one holds it. Never waits."""
        return self._locks.acquire(key)

    def maintain(self, *, older_than: float = 600.0) -> Maintenance:
        """Remove value files that no entry refers to, untouched for `older_than` seconds, and give space back.

        Safe beside running jobs. Damaged entries are reported, not removed.
        """
        self._database.require_writable()
        with loading:
            from .maintenance import maintain
        return maintain(self._database, older_than)

    def orphans(self, *, older_than: float = 600.0) -> list[str]:
        """The names of the files that `maintain` would remove. Changes nothing."""
        with loading:
            from .maintenance import orphans
        return orphans(self._database, older_than)

    def shrink(self) -> None:
        """Give the space of removed entries back to the file system. Reads no entries."""
        self._database.require_writable()
        with loading:
            from .maintenance import shrink
        self._database.use("tidy", shrink)

    def close(self) -> None:
        """Close the connections of all threads. A later call opens them again."""
        self._database.close()

    def __reduce__(self) -> tuple[Callable[[str], Store], tuple[str]]:
        return open_store, (self.url,)

    def __repr__(self) -> str:
        return f"<DiskStore {self.url}>"

    def _row(self, key: str) -> Row | None:
        rows = self._database.use("read", fetch, SELECT, (key,))
        return cast(Row, rows[0]) if rows else None

    def _read(self, key: str, row: Row) -> Bytes | None:
        """The value behind a row. Its file may have been replaced since the row was read: then there is a newer row."""
        while True:
            size, mode, filename, value = row
            try:
                return self._values.fetch(mode, filename, value, size=size, key=key)
            except FileNotFoundError as error:
                newer = self._row(key)
                if newer is None:
                    return None
                if newer[2] == filename:
                    raise self._values.damaged(key, f"its file {filename} is missing") from error
                row = newer

    def _scanned(self, key: str, row: Row) -> Bytes | None:
        try:
            return self._read(key, row)
        except IntegrityError:
            return None

    def _reopened(self) -> DiskStore:
        if not self._database.present():
            self._database.renew()
        return self


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
