"""The past of all runs in a store: list, read, reshape."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import Any, Union

from .. import effects_once, events, records
from ..dry_run import over
from ..effects_once import Unknown
from ..entries import RunEntries
from ..errors import UsageError
from ..keyed import claim, keyed
from ..keys import record_key
from ..opening import default_store
from ..records import Record
from ..retention import Policy, Pruned, give_back, prune
from ..run import RunView
from ..secret import secret
from ..stores import Store, default_target, open_store
from . import archive, json_exchange, repair, rollback, verify
from .checkpoints import When, aware
from .compare import Comparison, compare
from .repair import Repaired
from .timeline import count
from .verify import Progress, Verified

StoreLike = Union[str, "os.PathLike[str]", Store]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run in a list of runs."""

    id: str
    workflow: str | None
    status: str
    started: datetime
    updated: datetime
    attempts: int
    nodes: int
    bytes: int
    parent: str | None


class PastRun(RunView):
    """A run to read, not to run: events, checkpoints, summary."""

    def __init__(self, run_id: str, store: Store) -> None:
        self.id, self.store = run_id, store
        self.workflow = self._record().workflow  # UsageError now if there is no such run


class History:
    """What a store knows of its runs.

    >>> from oncemore import History, checkpoint_scope
    >>> with checkpoint_scope("nightly", store="memory://of-history", workflow="etl"):
    ...     pass
    >>> history = History("memory://of-history")
    >>> [(run.id, run.status) for run in history.runs(workflow="etl")]
    [('nightly', 'finished')]
    """

    def __init__(self, store: StoreLike | None = None) -> None:
        self.store = keyed(over(default_store() if store is None else open_store(store)), writing=False)

    def runs(
        self,
        *,
        workflow: str | None = None,
        status: str | None = None,
        since: When | None = None,
        limit: int | None = None,
    ) -> list[RunRecord]:
        """The runs, those updated last first, at most `limit`. Of those that are not listed only the record is read."""
        found = [
            (run_id, record)
            for run_id, record in records.scan(self.store)
            if (workflow is None or record.workflow == workflow)
            and (since is None or record.updated >= aware(since).timestamp())
        ]
        found.sort(key=lambda run: run[1].updated, reverse=True)
        states = ((run_id, record, records.status(self.store, record)) for run_id, record in found)
        return [self._listed(*run) for run in islice((r for r in states if status in (None, r[2])), limit)]

    def _listed(self, run_id: str, record: Record, status: str) -> RunRecord:
        if record.open:  # it runs, or was killed: nobody has counted yet
            count(self.store, record)
        return RunRecord(
            id=run_id,
            workflow=record.workflow,
            status=status,
            started=datetime.fromtimestamp(record.created, timezone.utc),
            updated=datetime.fromtimestamp(record.updated, timezone.utc),
            attempts=record.attempts,
            nodes=record.nodes,
            bytes=record.bytes,
            parent=record.parent[0] if record.parent else None,
        )

    def run(self, run_id: str) -> PastRun:
        """One run, to read."""
        return PastRun(run_id, self.store)

    def run_ids(self, start: str = "", limit: int | None = None) -> list[str]:
        """The ids that begin with `start`, in alphabetical order. No record is read."""
        return [records.run_id_of(key) for key, _ in self.store.scan(record_key(start), limit=limit, most=0)]

    def compare(self, run_id: str, other_id: str) -> Comparison:
        """Which nodes two runs share, and which differ and in what; the same node may have come out differently, too."""
        return compare(self.run(run_id), self.run(other_id))

    def delete(self, run_id: str) -> None:
        """Remove a run. What forks of it need stays."""
        rollback.delete(self.store, run_id)
        give_back(self.store)

    def rename(self, run_id: str, new_id: str) -> None:
        """Give a run another id."""
        rollback.rename(self.store, run_id, new_id)

    def rollback(self, run_id: str, *, to: str | None = None, before: str | None = None) -> None:
        """What came after `to` (or from `before` on) does not count any more; each is a name, id, node or step."""
        rollback.rollback(self.store, run_id, to=to, before=before)

    def undo_rollback(self, run_id: str) -> None:
        """Take the last rollback back."""
        rollback.undo_rollback(self.store, run_id)

    def fork(
        self, run_id: str, new_id: str, *, at: str | None = None, state: Mapping[str, Any] | None = None
    ) -> PastRun:
        """A new run that begins as `run_id` was at a checkpoint; `state` overrides initial state values."""
        rollback.fork(self.store, run_id, new_id, at=at, state=state)
        return self.run(new_id)

    def pin(self, run_id: str, checkpoint: str, pinned: bool = True) -> None:
        """Let the policy `pinned` keep a checkpoint, or no longer."""
        past = self.run(run_id)
        log, target = records.read(self.store, run_id).log, past.checkpoints.find(checkpoint)
        of = target.log if target.log != log else ""
        fact = events.CheckpointPinned(checkpoint=target.number, pinned=pinned, log=of)
        self.store.commit(append={log: [records.signed(log, fact, secret())]})

    def unknown_outcomes(self, run_id: str) -> list[Unknown]:
        """The steps with effect="once" that were cut off: whether their effects took place is for you to find out."""
        return [found for entries in self._shelves(run_id) for found in effects_once.unknown(entries)]

    def resolve(self, run_id: str, which: str, *, happened: bool, result: Any = None) -> None:
        """Say how a step with effect="once" ended that was cut off, by its node or key; see `Run.resolve`."""
        own, shared = self._shelves(run_id)
        theirs = any(which in (found.key, found.node) for found in effects_once.unknown(shared))
        running = self.runs(status="running") if theirs else [run_id] * (self.run(run_id).status == "running")
        if running:  # the step may be under way
            raise UsageError(f"answer for {which} when nothing runs that may be at it; there is {running[0]}")
        effects_once.resolve((own, shared), which, happened, result)

    def _shelves(self, run_id: str) -> tuple[RunEntries, RunEntries]:
        """Where intents stand: those of the run, and those of steps that runs share."""
        record = records.read(self.store, run_id)
        own = RunEntries(self.store, record.uid, record.prefix, record.log)
        return own, RunEntries(self.store, "shared", "shared/", None)

    def verify(self, progress: Progress | None = None) -> Verified:
        """Check the signature of every entry, and whether all is there that runs refer to. Changes nothing.

        `progress` is called with the number of entries checked, and of all.
        """
        return verify.verify(self.store, progress)

    @staticmethod
    def repair(store: str | os.PathLike[str] | None = None) -> Repaired:
        """Recover a store whose database is damaged. Give its path or URL, since a damaged store can't be opened.

        Builds a new database from all entries that can still be read and have valid signatures; the damaged one stays next
        to it under another name. Reports which runs are intact, and which nodes of the others have to run again. An undamaged
        store is left as it is. Raises StoreUnavailable while another process has the store open.
        """
        return repair.repair(default_target() if store is None else store)

    def prune(self, policy: Policy, *, runs: Sequence[str] | None = None, dry_run: bool = False) -> Pruned:
        """Remove the checkpoints that `policy` does not keep, run by run. Says what went, or with `dry_run` what would go."""
        return prune(self.store, policy, self._chosen(runs), dry_run=dry_run)

    def export(self, path: str | os.PathLike[str], runs: Sequence[str] | None = None) -> None:
        """Write runs (all, if none are named) with all they need into one file, signed with your secret."""
        archive.export(self.store, path, self._chosen(runs))

    def import_(self, path: str | os.PathLike[str], *, trust: bool = False) -> list[str]:
        """Bring the runs of such a file into this store; their ids. Importing twice changes nothing.

        `trust` admits a file that was signed with another secret: its values are pickles, which can run any code.
        """
        claim(self.store)
        return archive.import_(self.store, path, trust=trust)

    def export_json(self, path: str | os.PathLike[str], runs: Sequence[str] | None = None) -> None:
        """Write what JSON can hold of runs, for people and other languages: events, checkpoints, states and results."""
        json_exchange.export_json(self.store, path, self._chosen(runs))

    def import_json(self, path: str | os.PathLike[str]) -> list[str]:
        """Bring the runs of such a file into this store; their ids."""
        claim(self.store)
        return json_exchange.import_json(self.store, path)

    def _chosen(self, runs: Sequence[str] | None) -> list[str]:
        return [run_id for run_id, _ in records.scan(self.store)] if runs is None else list(runs)


def fork(run: RunView, new_id: str, *, at: str | None = None, state: Mapping[str, Any] | None = None) -> PastRun:
    """A new run that begins as `run` was at a checkpoint (now, if none is named); no value is copied."""
    return History(run.store).fork(run.id, new_id, at=at, state=state)
