"""A run's record, its event log, and which scopes have it open.

The run id leads to the record, and the record names the prefix of the run's entries. In one transaction, a rollback or a fork
writes aliases of the entries that stay valid under a new prefix, and the record that names that prefix. All changes of a
record go through `change`, which several processes may call at once.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from . import errors
from .codec import seal, unseal
from .errors import IntegrityError, StoreError, UsageError, did_you_mean, warn
from .events import Event, RunFailed, RunFinished, RunInterrupted, RunPaused, RunResumed, RunStarted
from .identity.display import is_secret, masked
from .keys import (
    NODES,
    RUNS,
    alive_key,
    damaged_key,
    first_prefix,
    log_of,
    new_prefix,
    prefix_of,
    record_key,
    run_id_of,
)
from .settings import secret
from .stores import Bytes, Frames, Hold, Store
from .surroundings.state import Sent

if TYPE_CHECKING:
    from .session import Session


@dataclass
class Record:
    """What is known about a run without reading its events."""

    uid: str
    prefix: str  # of the keys of its entries
    workflow: str | None = None
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    ending: str = ""  # "finished", "failed", "interrupted" or "paused"; empty until a scope has ended
    attempts: int = 0
    nodes: int = 0
    bytes: int = 0
    counted: int = 0  # the event up to which `nodes`, `bytes` and `entries` are correct
    entries: int = 0  # node entries under the prefix, including aliases and tombstones
    open: list[str] = field(default_factory=list[str])  # scopes that have the run open, or died with it open
    parent: tuple[str, int] | None = None  # of a fork: the parent's id, and the last event that they share
    state: dict[str, Any] = field(default_factory=dict[str, Any])  # of a fork: the state values that it sets
    forebears: list[str] = field(default_factory=list[str])  # of a fork: the runs it shares entries and events with
    # A step, one of its code digests, and the later code for which checkpoints of the former are valid.
    adopted: list[list[str]] = field(default_factory=list[list[str]])
    # The command that last opened the run, if nothing in it looks like a secret.
    script: list[str] = field(default_factory=list[str])
    undo: list[str] = field(default_factory=list[str])  # the prefixes before each rollback

    @property
    def log(self) -> str:
        """The prefix of the keys of its events."""
        return log_of(self.uid)

    @staticmethod
    def new(workflow: str | None) -> Record:
        uid = os.urandom(8).hex()
        return Record(uid, first_prefix(uid), workflow)

    def new_prefix(self) -> str:
        """Another prefix for the run's entries."""
        return new_prefix(self.uid)


_FIELDS = [each.name for each in fields(Record)]


class Reference(NamedTuple):
    """What another process needs to join a run."""

    id: str  # empty: no run, only shared results
    store: str
    strict: bool = False
    attempt: str = ""  # the token of the scope
    state: Sent = Sent()  # when the step was sent
    inputs: str | None = None  # "observed": the files that a step reads are part of its identity
    refresh: bool | tuple[str, ...] = False  # which steps run again: all, or those named
    packages: str = "record"  # "compare": the versions of packages are part of the identity of steps
    opened: float = 0.0  # when the scope was opened


def checked(run_id: str) -> str:
    """The run id; UsageError if it is not a valid one."""
    if not isinstance(run_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a run id must be a string, not {run_id!r}")
    if not run_id or len(run_id) > 200:
        raise UsageError(f"a run id must have 1 to 200 characters, not {len(run_id)}")
    if not run_id.isprintable() and re.search("[\0-\x1f\x7f-\x9f\ud800-\udfff]", run_id):
        raise UsageError(f"the run id {run_id!r} contains a control character; use printable ones")
    return run_id


def parse(key: str, data: Bytes) -> Record:
    """The record that an entry holds; IntegrityError if the entry fails verification."""
    return from_json(bytes(unseal(data, key, secret())))


def from_json(text: bytes) -> Record:
    """The record in the body of an entry."""
    fields: dict[str, Any] = json.loads(text)
    known = {name: fields[name] for name in _FIELDS if name in fields}
    known["parent"] = tuple(known["parent"]) if known.get("parent") else None
    return Record(**known)


def sealed(key: str, record: Record) -> Frames:
    """The record as a signed entry."""
    return seal([json.dumps(asdict(record), separators=(",", ":")).encode()], key, secret())


def read(store: Store, run_id: str) -> Record:
    """The run's record; UsageError if there is no such run."""
    key = record_key(run_id)
    data = store.get(key)
    if data is None:
        raise _no_run(store, run_id)
    return parse(key, data)


def _no_run(store: Store, run_id: str) -> UsageError:
    known = (run_id_of(key) for key, _ in store.scan("run/", most=0))
    return UsageError(f"there is no run {run_id!r} in {store.url}.{did_you_mean(run_id, known)}")


def scan(store: Store) -> Iterator[tuple[str, Record]]:
    """All runs in a store, except those whose records fail verification: a warning names them."""
    damaged: list[str] = []
    for key, data in store.scan(RUNS):
        try:
            yield run_id_of(key), parse(key, data or b"")
        except IntegrityError:
            damaged.append(run_id_of(key))
    if damaged:
        more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
        warn(
            f"runs in {store.url} are left out because their records were altered or signed with another key: "
            f"{', '.join(damaged[:5])}{more}. `oncemore verify` checks the store, `oncemore key` shows the key in use"
        )


def prefixes(store: Store, uid: str) -> Iterator[str]:
    """All prefixes under which a run has entries: the current one, and those that rollbacks have replaced."""
    after = ""
    while (found := next(store.scan(NODES + uid, after=after, limit=1, most=0), None)) is not None:
        yield prefix_of(found[0])
        after = f"{prefix_of(found[0])}\U0010ffff"


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

    `edit` may also fill `put`. It is called again if another process changed the record meanwhile. Raises Outdated if an
    entry in `expect` has changed.
    """
    key = record_key(run_id)
    while True:
        data = store.get(key)
        if data is None:
            raise _no_run(store, run_id)
        record = parse(key, data)
        events = edit(record)
        record.updated = time.time()
        append = {record.log: [signed(record.log, event, secret()) for event in events]} if events else {}
        expected = {key: data, **expect}
        if store.commit(put={key: sealed(key, record), **put}, append=append, delete=delete, expect=expected):
            return record
        if any(store.get(other) != then for other, then in expect.items()):
            raise Outdated


class Outdated(Exception):
    """An entry that a change depends on was changed by another process."""


def signed(log: str, event: Event, secret: bytes) -> bytes:
    """An event as it is stored in a log."""
    return b"".join(seal([event.to_json()], log, secret))


def read_log(store: Store, log: str, since: int = 0) -> Iterator[Event]:
    """The events of a log, in order, from after number `since`."""
    return (Event.from_json(data, number) for number, data in _bodies(store, log, since))


def read_events(store: Store, log: str, since: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Like `read_log`, but with each event as a number and a dict: faster if few fields are needed."""
    return ((number, json.loads(data)) for number, data in _bodies(store, log, since))


def _bodies(store: Store, log: str, since: int) -> Iterator[tuple[int, bytes]]:
    signing_key = secret()
    for key, data in store.scan(log, after=f"{log}{since:016x}"):
        try:
            yield int(key[len(log) :], 16), bytes(unseal(data or b"", log, signing_key))
        except (IntegrityError, ValueError) as error:  # signed with another secret, or not the key of an event
            warn(f"event {key} is left out: {error}")


# -- which scopes have a run open: each holds a lock that the operating system releases when the process dies


def enter(store: Store, record: Record, token: str) -> Hold | None:
    """Hold the lock which shows that the scope with this token has the run open."""
    return store.hold(alive_key(record.uid, token))


def alive(store: Store, record: Record, token: str) -> bool:
    """Whether the process of the scope with this token still lives."""
    return bool(store.held([alive_key(record.uid, token)]))


def status(store: Store, record: Record) -> str:
    """running, finished, failed, interrupted, paused; killed: its processes died with it open; forked: has not run yet."""
    if store.held([alive_key(record.uid, token) for token in record.open]):
        return "running"
    if not record.attempts:
        return "forked"
    return "killed" if record.open or not record.ending else record.ending


def stamp() -> Frames:
    """A new value for one of the stamps, see keys.py."""
    return [os.urandom(8)]


# -- opening a run: finds or creates its record, and notes in it that this scope has the run open


class Opened(NamedTuple):
    """An open run: its record, and the lock which shows that this scope has it open. `mark` is the scope's token."""

    record: Record
    resumed: bool
    mark: str = ""
    hold: Hold | None = None

    def close(self) -> None:
        if self.hold is not None:
            self.hold.release()


def open_run(run: Session, *, announce: bool) -> Opened:
    """Find or create the run in its store. `announce` is off for workers that join another process's scope."""
    mark = os.urandom(4).hex() if announce else ""
    try:
        while True:
            opened = _resume(run, mark) or _create(run, mark)
            if opened is not None:
                return opened
    except StoreError as error:
        if isinstance(error, IntegrityError):
            raise
        warn(f"run {run.id}: nothing will be saved: {error}")
        data = run.store.get(record_key(run.id))
        if data is not None:  # the store can be read, but not written
            return Opened(parse(record_key(run.id), data), resumed=True)
        return Opened(Record.new(run.workflow), resumed=False)


def _resume(run: Session, mark: str) -> Opened | None:
    """Open an existing run; None if there is none, or none with a sound record."""
    data = None
    try:
        data = run.store.get(record_key(run.id))
        if data is None:
            return None
        record = parse(record_key(run.id), data)
    except IntegrityError as error:
        if run.strict:
            raise
        _set_aside(run, data, error)
        return None
    if not mark:
        return Opened(record, resumed=True)
    hold = enter(run.store, record, mark)

    def resume(record: Record) -> list[Event]:
        record.attempts += 1
        record.ending, record.script = "", command()
        record.open = [*(other for other in record.open if alive(run.store, record, other)), mark]
        return [RunResumed()]

    return Opened(change(run.store, run.id, resume), True, mark, hold)


def _create(run: Session, mark: str) -> Opened | None:
    """Create a new run; None if another process has just created it."""
    record = Record.new(run.workflow)
    record.attempts, record.open, record.script = 1, [mark] if mark else [], command() if mark else []
    hold = enter(run.store, record, mark) if mark else None
    key, started = record_key(run.id), signed(record.log, RunStarted(workflow=run.workflow), secret())
    if run.store.commit(put={key: sealed(key, record)}, append={record.log: [started]}, expect={key: None}):
        return Opened(record, False, mark, hold)
    if hold is not None:
        hold.release()
    return None


def _set_aside(run: Session, data: Bytes | None, error: IntegrityError) -> None:
    """Move a damaged record to another key, so that the run can start over and nothing is lost."""
    key = record_key(run.id)
    if data is None:  # not even the store can read it
        warn(f"run {run.id} starts over, its record was unreadable and is removed: {error}")
        run.store.commit(delete=[key])
    else:
        aside = damaged_key(key)
        warn(f"run {run.id} starts over, its record is damaged and moved to {aside}: {error}")
        run.store.commit(put={aside: [data]}, delete=[key], expect={key: data})


def ending(error: BaseException | None) -> Event:
    """The event for the end of a scope; `error` is the exception that left it, if any."""
    if isinstance(error, errors.RunPaused):
        return RunPaused()
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return RunFinished()
    if isinstance(error, Exception):
        return RunFailed(error=f"{type(error).__name__}: {error}")
    return RunInterrupted()


def command() -> list[str]:
    """The arguments that Python was started with, for dry runs. Empty without a script, or if one looks like a secret."""
    main = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if not path or any(is_secret(word.partition("=")[0].lstrip("-").replace("-", "_")) for word in sys.argv[1:]):
        return []
    script = [os.path.relpath(path)] if spec is None else ["-m", spec.name.removesuffix(".__main__")]
    words = [*script, *sys.argv[1:]]
    return words if masked(" ".join(words)) == " ".join(words) else []
