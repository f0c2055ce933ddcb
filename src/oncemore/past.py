"""What can be read of a run: its events, its checkpoints, its summary.

A script that resumes asks for none of it; what folds the events is loaded by the first question.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from . import records
from .events import Event
from .history.summary import Summary, summarize
from .reasons import Explanation, why
from .records import Record, read_log
from .stores import Store

if TYPE_CHECKING:
    from .history.checkpoints import Checkpoints


class Past:
    """What can be read of a run, open in this process or not."""

    id: str
    store: Store
    workflow: str | None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} in {self.store.url}>"

    def _record(self) -> Record:
        return records.read(self.store, self.id)

    @property
    def log(self) -> str:
        """Where the run's events stand in the store."""
        return self._record().log

    def events(self, since: int = 0) -> Iterator[Event]:
        """The run's events in order, those after number `since`; other processes' too."""
        return read_log(self.store, self._record().log, since)

    def follow(self, since: int = 0, *, interval: float = 0.2) -> Iterator[Event]:
        """Events as they come, of all processes, until nobody has the run open any more."""
        log = self._record().log
        while True:
            over = self.status != "running"  # before reading: what is written until then is read
            for event in read_log(self.store, log, since):
                since = event.seq
                yield event
            if over:
                return
            time.sleep(interval)

    @property
    def status(self) -> str:
        """running, finished, failed, interrupted, killed, or forked: not run yet."""
        return records.status(self.store, self._record())

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints that count, oldest first, as they are now."""
        from .history.checkpoints import checkpoints_of

        return checkpoints_of(self.store, self.id, self._record())

    def summary(self) -> Summary:
        """What happened in all scopes of the run so far."""
        record = self._record()
        return summarize(self.id, records.status(self.store, record), record.attempts, self.events(), self._unwritten())

    def why(self, node: str) -> Explanation:
        """Why a node (or, of a step, its last node) ran when it last did: what had changed since an earlier checkpoint of it."""
        record = self._record()
        logs = [*(f"event/{uid}/" for uid in record.forebears), record.log]
        return why(self.store, self.id, [event for log in logs for event in read_log(self.store, log)], node)

    def _unwritten(self) -> Iterable[Event]:
        """Events of the scope that is open here, which are written when it ends."""
        return ()
