"""Opening a run: finds or creates its record, and notes in it that this scope has the run open."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from . import records
from .errors import IntegrityError, StoreError, warn
from .events import Event, RunFailed, RunFinished, RunInterrupted, RunResumed, RunStarted
from .identity.display import is_secret, masked
from .keys import damaged_key, record_key
from .records import Record, sealed, signed
from .secret import secret
from .stores import Bytes, Hold, Store, default_target, open_store

if TYPE_CHECKING:
    from .session import Session


def default_store() -> Store:
    """The store that `ONCEMORE_STORE` names, or `./.oncemore`."""
    return open_store(default_target())


def disabled() -> bool:
    """Whether `ONCEMORE_DISABLE` asks for plain calls."""
    return os.environ.get("ONCEMORE_DISABLE", "") not in ("", "0")


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
            return Opened(records.parse(record_key(run.id), data), resumed=True)
        return Opened(Record.new(run.workflow), resumed=False)


def _resume(run: Session, mark: str) -> Opened | None:
    """Open an existing run; None if there is none, or none with a sound record."""
    data = None
    try:
        data = run.store.get(record_key(run.id))
        if data is None:
            return None
        record = records.parse(record_key(run.id), data)
    except IntegrityError as error:
        if run.strict:
            raise
        _set_aside(run, data, error)
        return None
    if not mark:
        return Opened(record, resumed=True)
    hold = records.enter(run.store, record, mark)

    def resume(record: Record) -> list[Event]:
        record.attempts += 1
        record.ending, record.script = "", command()
        record.open = [*(other for other in record.open if records.alive(run.store, record, other)), mark]
        return [RunResumed()]

    return Opened(records.change(run.store, run.id, resume), True, mark, hold)


def _create(run: Session, mark: str) -> Opened | None:
    """Create a new run; None if another process has just created it."""
    record = Record.new(run.workflow)
    record.attempts, record.open, record.script = 1, [mark] if mark else [], command() if mark else []
    hold = records.enter(run.store, record, mark) if mark else None
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
