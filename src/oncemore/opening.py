"""Opening and leaving a run: its record is found or made, and shows who has it open."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from . import records
from .errors import IntegrityError, StoreError, warn
from .events import Event, RunFailed, RunFinished, RunInterrupted, RunResumed, RunStarted
from .identity.display import is_secret, masked
from .keys import record_key
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
    """A run's record as it was found or made, and the mark that shows in it that this scope has the run open."""

    record: Record
    resumed: bool
    mark: str = ""
    hold: Hold | None = None

    def close(self) -> None:
        if self.hold is not None:
            self.hold.release()


def open_run(run: Session, *, announce: bool) -> Opened:
    """Find or make the run in its store. `announce` is off for workers that take part in another's scope."""
    mark = os.urandom(4).hex() if announce else ""
    try:
        while True:
            opened = _found(run, mark) or _made(run, mark)
            if opened is not None:
                return opened
    except StoreError as error:
        if isinstance(error, IntegrityError):
            raise
        warn(f"run {run.id}: nothing will be kept: {error}")
        data = run.store.get(record_key(run.id))
        if data is not None:  # the store can be read but not written
            return Opened(records.parse(record_key(run.id), data), resumed=True)
        return Opened(Record.new(run.workflow), resumed=False)


def _found(run: Session, mark: str) -> Opened | None:
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


def _made(run: Session, mark: str) -> Opened | None:
    """A new record; None if another process was quicker: its record counts."""
    record = Record.new(run.workflow)
    record.attempts, record.open, record.script = 1, [mark] if mark else [], command() if mark else []
    hold = records.enter(run.store, record, mark) if mark else None
    key, begun = record_key(run.id), signed(record.log, RunStarted(workflow=run.workflow), secret())
    made = run.store.commit(put={key: sealed(key, record)}, append={record.log: [begun]}, expect={key: None})
    if made:
        return Opened(record, False, mark, hold)
    if hold is not None:
        hold.release()
    return None


def _set_aside(run: Session, data: Bytes | None, error: IntegrityError) -> None:
    """A damaged record does not count, and is not lost."""
    key = record_key(run.id)
    aside = f"damaged/{key}/{os.urandom(4).hex()}"
    if data is None:  # not even the store can read it
        warn(f"run {run.id} starts anew, its record is removed: {error}")
        run.store.commit(delete=[key])
    else:
        warn(f"run {run.id} starts anew, its record is set aside as {aside}: {error}")
        run.store.commit(put={aside: [data]}, delete=[key], expect={key: data})


def ending(error: BaseException | None) -> Event:
    """How a scope ended that was left by `error`, or by none."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return RunFinished()
    if isinstance(error, Exception):
        return RunFailed(error=f"{type(error).__name__}: {error}")
    return RunInterrupted()


def command() -> list[str]:
    """What was said to Python, so that it can be run again to look; nothing if no script was, or a word looks like a secret."""
    main = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if not path or any(is_secret(word.partition("=")[0].lstrip("-").replace("-", "_")) for word in sys.argv[1:]):
        return []
    script = [os.path.relpath(path)] if spec is None else ["-m", spec.name.removesuffix(".__main__")]
    words = [*script, *sys.argv[1:]]
    return words if masked(" ".join(words)) == " ".join(words) else []
