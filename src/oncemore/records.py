"""A run's record: what its id stands for, and who has it open.

The id leads to the record, the record to the one prefix under which the run's entries are. A rollback or a fork writes aliases of
what stays valid under a new prefix, and the record that names it, in one transaction. All changes go through `change`, which
several processes may call at once.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from blake3 import blake3

from .codec import seal, unseal
from .errors import IntegrityError, UsageError, warn
from .events import Event
from .secret import secret
from .stores import Bytes, Frames, Hold, Store
from .surroundings.state import Sent


@dataclass
class Record:
    """What is known of a run without reading its events.

    `prefix` is what the keys of its entries begin with. `counted` says up to which event `nodes`, `bytes` and `entries` are
    right.
    """

    uid: str
    prefix: str
    workflow: str | None = None
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    ending: str = ""  # "finished", "failed", "interrupted"; empty while it never ended
    attempts: int = 0
    nodes: int = 0
    bytes: int = 0
    counted: int = 0
    entries: int = 0  # of nodes under the prefix, aliases and tombstones included
    open: list[str] = field(default_factory=list[str])  # scopes that have the run open, or died with it
    parent: tuple[str, int] | None = None  # the run that it was forked from, and the event up to which
    state: dict[str, Any] = field(default_factory=dict[str, Any])  # initial values that a fork set
    forebears: list[str] = field(default_factory=list[str])  # of a fork: the runs it shares entries and events with
    adopted: list[list[str]] = field(
        default_factory=list[list[str]]
    )  # step, its code then, the code that it counts for
    script: list[str] = field(
        default_factory=list[str]
    )  # the command that opened it last, if nothing in it looks secret
    undo: list[str] = field(default_factory=list[str])  # the prefixes that rollbacks replaced

    @property
    def log(self) -> str:
        return f"event/{self.uid}/"

    @staticmethod
    def new(workflow: str | None) -> Record:
        uid = os.urandom(8).hex()
        return Record(uid, f"node/{uid}/", workflow)

    def new_prefix(self) -> str:
        """Another prefix for the run's entries."""
        return f"node/{self.uid}.{os.urandom(4).hex()}/"


_FIELDS = [each.name for each in fields(Record)]


class Reference(NamedTuple):
    """What another process needs to take part in a run."""

    id: str  # empty: no run, only the results that are shared
    store: str
    strict: bool = False
    attempt: str = ""  # the mark of the scope
    state: Sent = Sent()  # as it is when the step is sent
    inputs: str | None = None  # "observed": the files that steps read count


def checked(run_id: str) -> str:
    """The id, if a run can have it."""
    if not isinstance(run_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a run id is a string, not {run_id!r}")
    if not run_id or len(run_id) > 200:
        raise UsageError(f"a run id has 1 to 200 characters, not {len(run_id)}")
    if not run_id.isprintable() and re.search("[\0-\x1f\x7f-\x9f\ud800-\udfff]", run_id):
        raise UsageError(f"the run id {run_id!r} has a character that cannot be printed")
    return run_id


def in_key(name: str, longest: int = 900) -> str:
    """A name as it stands in a key: ASCII characters other than letters, digits and `_.-~` are quoted.

    One of more than `longest` bytes is cut, and ends in its digest: a key has at most 1,024 bytes.
    """
    quoted = re.sub("[\0-\x7f]+", lambda found: quote(found[0], safe=""), name)
    data = quoted.encode("utf-8", "surrogatepass")
    if len(data) <= longest:
        return quoted
    return f"{data[: longest - 40].decode(errors='ignore')}!{blake3(data).hexdigest(length=16)}"


def record_key(run_id: str) -> str:
    return f"run/{in_key(run_id)}"  # not cut: an id has at most 200 characters


def run_id_of(key: str) -> str:
    return unquote(key.removeprefix("run/"))


def sealed_as(key: str) -> str | None:
    """Under which name an entry is signed: events under that of their log, marks not at all."""
    if key.startswith("event/"):
        return key[: key.rindex("/") + 1]
    return None if key.startswith(("pending/", "changed/", "forks/", "gone/", "key/", "other/", "waiting/")) else key


def parse(key: str, data: Bytes) -> Record:
    """The record in an entry; IntegrityError if the entry cannot be trusted."""
    fields: dict[str, Any] = json.loads(bytes(unseal(data, key, secret())))
    known = {name: fields[name] for name in _FIELDS if name in fields}
    known["parent"] = tuple(known["parent"]) if known["parent"] else None
    return Record(**known)


def sealed(key: str, record: Record) -> Frames:
    return seal([json.dumps(asdict(record), separators=(",", ":")).encode()], key, secret())


def read(store: Store, run_id: str) -> Record:
    """The run's record; UsageError if there is no such run."""
    key = record_key(run_id)
    data = store.get(key)
    if data is None:
        raise UsageError(f"there is no run {run_id!r} in {store.url}")
    return parse(key, data)


def scan(store: Store) -> Iterator[tuple[str, Record]]:
    """All runs of a store. Those whose records cannot be trusted are left out, with a warning."""
    damaged: list[str] = []
    for key, data in store.scan("run/"):
        try:
            yield run_id_of(key), parse(key, data or b"")
        except IntegrityError:
            damaged.append(run_id_of(key))
    if damaged:
        names = ", ".join(damaged[:5]) + (" ..." if len(damaged) > 5 else "")
        warn(
            f"runs of {store.url} that were altered or signed with another secret are left out ({len(damaged)}): {names}"
        )


def change(
    store: Store,
    run_id: str,
    edit: Callable[[Record], Sequence[Event]],
    *,
    put: Mapping[str, Frames] = {},
    delete: Sequence[str] = (),
    expect: Mapping[str, Bytes | None] = {},
) -> Record:
    """Read the record, let `edit` change it, and write it with the events that `edit` returns, in one transaction.

    `edit` may also fill `put`; it is asked again if another process changed the record meanwhile. Outdated if what is
    under the keys of `expect` is something else by now.
    """
    key = record_key(run_id)
    while True:
        data = store.get(key)
        if data is None:
            raise UsageError(f"there is no run {run_id!r} in {store.url}")
        record = parse(key, data)
        fields = edit(record)
        record.updated = time.time()
        append = {record.log: [signed(record.log, fact, secret()) for fact in fields]} if fields else {}
        expected = {key: data, **expect}
        if store.commit(put={key: sealed(key, record), **put}, append=append, delete=delete, expect=expected):
            return record
        if any(store.get(other) != then for other, then in expect.items()):
            raise Outdated


class Outdated(Exception):
    """What a change was based on is no longer so."""


def signed(log: str, event: Event, secret: bytes) -> bytes:
    """An event as it stands in a log."""
    return b"".join(seal([event.to_json()], log, secret))


def read_log(store: Store, log: str, since: int = 0) -> Iterator[Event]:
    """The events of a log in order, those after number `since`."""
    return (Event.from_json(data, number) for number, data in _bodies(store, log, since))


def read_events(store: Store, log: str, since: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same as they are stored, with their numbers: for who needs little of each."""
    return ((number, json.loads(data)) for number, data in _bodies(store, log, since))


def _bodies(store: Store, log: str, since: int) -> Iterator[tuple[int, bytes]]:
    known = secret()
    for key, data in store.scan(log, after=f"{log}{since:016x}"):
        try:
            yield int(key[len(log) :], 16), bytes(unseal(data or b"", log, known))
        except (IntegrityError, ValueError) as error:  # signed with another secret, or under a key that is no event's
            warn(f"event {key} is left out: {error}")


# -- who has a run open: a lock that the operating system frees when its owner dies


def enter(store: Store, record: Record, token: str) -> Hold | None:
    """Show that this process has the run open."""
    return store.hold(f"alive/{record.uid}/{token}")


def alive(store: Store, record: Record, token: str) -> bool:
    """Whether the scope with that token is still there."""
    return bool(store.held([f"alive/{record.uid}/{token}"]))


def status(store: Store, record: Record) -> str:
    """running, finished, failed, interrupted; killed if the run was open and its processes are gone; forked: not run yet."""
    if store.held([f"alive/{record.uid}/{token}" for token in record.open]):
        return "running"
    if not record.attempts:
        return "forked"
    return "killed" if record.open or not record.ending else record.ending


# -- the prefixes of runs

ALIASES = "changed/aliases"  # another whenever aliases are made: who removes entries sees that none was meanwhile
REMOVED = (
    "changed/removed"  # another whenever entries are removed: who makes aliases of them sees that none was meanwhile
)


def closed(prefix: str) -> str:
    """The key of the entry that closes a prefix: nothing is written there any more, since there are aliases of what is there."""
    return f"{prefix}^"


def stamp() -> Frames:
    """What to put under a key that is to be another one now."""
    return [os.urandom(8)]


def changed(owner: str) -> str:
    """The key of a mark that is another whenever an entry of `owner` is replaced or forgotten: what others remember is old."""
    return f"changed/{owner}"


def prefix_of(entry: str) -> str:
    """Under which home an entry stands."""
    kind, _, rest = entry.partition("/")
    return "shared/" if kind == "shared" else f"{kind}/{rest.partition('/')[0]}/"
