"""The past of all runs in a store: list, read, reshape."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Union

from . import archive, events, exchange, records, reshape
from .opening import default_store
from .past import Past, When, aware, count
from .records import Record
from .retention import Policy, Pruned, give_back, prune
from .stores import Store, open_store

StoreLike = Union[str, "os.PathLike[str]", Store]


@dataclass(frozen=True)
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


class PastRun(Past):
    """A run to read, not to run: events, checkpoints, summary."""

    def __init__(self, run_id: str, store: Store) -> None:
        self.id, self.store = run_id, store
        self.workflow = self._record().workflow  # UsageError now if there is no such run


class History:
    """What a store knows of its runs.

    >>> from oncemore import History, checkpoint_scope
    >>> with checkpoint_scope("nightly", store="memory://doctest", workflow="etl"):
    ...     pass
    >>> history = History("memory://doctest")
    >>> [(run.id, run.status) for run in history.runs(workflow="etl")]
    [('nightly', 'finished')]
    """

    def __init__(self, store: StoreLike | None = None) -> None:
        self.store = default_store() if store is None else open_store(store)

    def runs(
        self, *, workflow: str | None = None, status: str | None = None, since: When | None = None
    ) -> list[RunRecord]:
        """The runs, those updated last first."""
        found = [
            self._listed(run_id, record)
            for run_id, record in records.scan(self.store)
            if (workflow is None or record.workflow == workflow)
            and (since is None or record.updated >= aware(since).timestamp())
        ]
        found.sort(key=lambda run: run.updated, reverse=True)
        return [run for run in found if status is None or run.status == status]

    def _listed(self, run_id: str, record: Record) -> RunRecord:
        if record.open:  # it runs, or was killed: nobody has counted yet
            count(self.store, run_id, record)
        return RunRecord(
            id=run_id,
            workflow=record.workflow,
            status=records.status(self.store, record),
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

    def delete(self, run_id: str) -> None:
        """Remove a run. What forks of it need stays."""
        reshape.delete(self.store, run_id)
        give_back(self.store)

    def rename(self, run_id: str, new_id: str) -> None:
        """Give a run another id."""
        reshape.rename(self.store, run_id, new_id)

    def rollback(self, run_id: str, *, to: str | None = None, before: str | None = None) -> None:
        """What came after `to` (or from `before` on) does not count any more; each is a name, id, node or step."""
        reshape.rollback(self.store, run_id, to=to, before=before)

    def undo_rollback(self, run_id: str) -> None:
        """Take the last rollback back."""
        reshape.undo_rollback(self.store, run_id)

    def fork(
        self, run_id: str, new_id: str, *, at: str | None = None, state: Mapping[str, Any] | None = None
    ) -> PastRun:
        """A new run that begins as `run_id` was at a checkpoint; `state` overrides initial state values."""
        reshape.fork(self.store, run_id, new_id, at=at, state=state)
        return self.run(new_id)

    def pin(self, run_id: str, checkpoint: str, pinned: bool = True) -> None:
        """Let the policy `pinned` keep a checkpoint, or no longer."""
        target = self.run(run_id).checkpoints.find(checkpoint)
        fact = events.CheckpointPinned(checkpoint=target.number, pinned=pinned)
        self.store.commit(append={target.log: [records.signed(target.log, fact)]})

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
        return archive.import_(self.store, path, trust=trust)

    def export_json(self, path: str | os.PathLike[str], runs: Sequence[str] | None = None) -> None:
        """Write what JSON can hold of runs, for people and other languages: events, checkpoints, states and results."""
        exchange.export_json(self.store, path, self._chosen(runs))

    def import_json(self, path: str | os.PathLike[str]) -> list[str]:
        """Bring the runs of such a file into this store; their ids."""
        return exchange.import_json(self.store, path)

    def _chosen(self, runs: Sequence[str] | None) -> list[str]:
        return [run_id for run_id, _ in records.scan(self.store)] if runs is None else list(runs)


def fork(run: Past, new_id: str, *, at: str | None = None, state: Mapping[str, Any] | None = None) -> PastRun:
    """A new run that begins as `run` was at a checkpoint (now, if none is named); no value is copied."""
    return History(run.store).fork(run.id, new_id, at=at, state=state)
