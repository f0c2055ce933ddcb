"""The history of all runs in a store: list, read and change them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import Any, Union

from .. import ask, current, effects_once, events, records
from ..codec.keyed import claim, keyed
from ..effects_once import Unknown
from ..entries import RunEntries
from ..errors import UsageError
from ..keys import SHARED, record_key, run_id_of
from ..records import Record
from ..retention import Policy, Pruned
from ..run import RunView
from ..settings import Duration, secret
from ..stores import Store, default_target, open_store
from . import archive, json_exchange, memo, repair, rollback, verify
from .checkpoints import When, aware
from .compare import Comparison, compare
from .memo import MemoizedCall, MemoizedFunction
from .prune import free_space, prune
from .repair import Repaired
from .sizes import Sizes
from .timeline import count
from .verify import Progress, Verified

StoreLike = Union[str, "os.PathLike[str]", Store]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run in a list of runs.

    `bytes` is what it takes in the store, with its state snapshots, events and files. Files that several runs share count for
    each of them; what a fork has inherited counts for its parent.
    """

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
    """A read-only view of a run: events, checkpoints, summary."""

    def __init__(self, run_id: str, store: Store) -> None:
        self.id, self.store = run_id, store
        record = self._record()  # raises UsageError if there is no such run
        self.workflow = record.workflow
        self.script = tuple(record.script)  # the command that opened it last; empty if that is unknown, or looks secret


class History:
    """The runs in a store.

    >>> from oncemore import History, checkpoint_scope
    >>> with checkpoint_scope("nightly", store="memory://of-history", workflow="etl"):
    ...     pass
    >>> history = History("memory://of-history")
    >>> [(run.id, run.status) for run in history.runs(workflow="etl")]
    [('nightly', 'finished')]
    """

    def __init__(self, store: StoreLike | None = None) -> None:
        opened = keyed(open_store(default_target() if store is None else store), writing=False)
        self.store = opened if current.rehearsal is None else current.rehearsal.over(opened)

    def runs(
        self,
        *,
        workflow: str | None = None,
        status: str | None = None,
        since: When | None = None,
        limit: int | None = None,
    ) -> list[RunRecord]:
        """The runs, most recently updated first, at most `limit`. Reads only the records of runs that are filtered out."""
        found = [
            (run_id, record)
            for run_id, record in records.scan(self.store)
            if (workflow is None or record.workflow == workflow)
            and (since is None or record.updated >= aware(since).timestamp())
        ]
        found.sort(key=lambda run: run[1].updated, reverse=True)
        states = ((run_id, record, records.status(self.store, record)) for run_id, record in found)
        sizes = Sizes(self.store)
        return [
            self._listed(*run, sizes.of(run[1])) for run in islice((r for r in states if status in (None, r[2])), limit)
        ]

    def _listed(self, run_id: str, record: Record, status: str, size: int) -> RunRecord:
        if record.open:  # running or killed, so that its record is not up to date
            count(self.store, record)
        return RunRecord(
            id=run_id,
            workflow=record.workflow,
            status=status,
            started=datetime.fromtimestamp(record.created, timezone.utc),
            updated=datetime.fromtimestamp(record.updated, timezone.utc),
            attempts=record.attempts,
            nodes=record.nodes,
            bytes=size,
            parent=record.parent[0] if record.parent else None,
        )

    def run(self, run_id: str) -> PastRun:
        """A read-only view of one run."""
        return PastRun(run_id, self.store)

    def run_ids(self, start: str = "", limit: int | None = None) -> list[str]:
        """The run ids that start with `start`, in alphabetical order. Reads no records."""
        return [run_id_of(key) for key, _ in self.store.scan(record_key(start), limit=limit, most=0)]

    def compare(self, run_id: str, other_id: str) -> Comparison:
        """Compare two runs: the nodes they share, including those with different results, and the nodes that differ, and how."""
        return compare(self.run(run_id), self.run(other_id))

    def delete(self, run_id: str) -> None:
        """Remove a run. Entries that its forks need are kept."""
        rollback.delete(self.store, run_id)
        free_space(self.store)

    def rename(self, run_id: str, new_id: str) -> None:
        """Change a run's id."""
        rollback.rename(self.store, run_id, new_id)

    def rollback(self, run_id: str, *, to: str | None = None, before: str | None = None) -> None:
        """Ignore everything after `to` (or from `before` on); each is a name, id, node or step."""
        rollback.rollback(self.store, run_id, to=to, before=before)

    def undo_rollback(self, run_id: str) -> None:
        """Undo the last rollback."""
        rollback.undo_rollback(self.store, run_id)

    def fork(
        self, run_id: str, new_id: str, *, at: str | None = None, state: Mapping[str, Any] | None = None
    ) -> PastRun:
        """Create a run that starts from a checkpoint of `run_id`; `state` overrides initial state values."""
        rollback.fork(self.store, run_id, new_id, at=at, state=state)
        return self.run(new_id)

    def pin(self, run_id: str, checkpoint: str, pinned: bool = True) -> None:
        """Pin or unpin a checkpoint, for the retention policy `pinned`."""
        past = self.run(run_id)
        log, target = records.read(self.store, run_id).log, past.checkpoints.find(checkpoint)
        inherited_from = target.log if target.log != log else ""
        event = events.CheckpointPinned(checkpoint=target.number, pinned=pinned, log=inherited_from)
        self.store.commit(append={log: [records.signed(log, event, secret())]})

    def questions(self, run_id: str) -> list[events.Asked]:
        """The questions of `run.ask` that the run waits for."""
        return ask.pending(self.store, records.read(self.store, run_id))

    def answer(self, run_id: str, which: str, value: Any) -> Any:
        """Answer a question, given by its name or node. `value` is the answer or its text; returns the answer.

        The run uses it when the script is started again. It is a checkpoint, which can be rolled back or forgotten like others.
        """
        return ask.answer(self.store, run_id, which, value)

    def unknown_outcomes(self, run_id: str) -> list[Unknown]:
        """The interrupted steps with effect="once". Whether their effects happened is for you to find out."""
        return [found for entries in self._intent_entries(run_id) for found in effects_once.unknown(entries)]

    def resolve(self, run_id: str, which: str, *, happened: bool, result: Any = None) -> None:
        """Settle an interrupted step with effect="once", named by its node, key or step; see `Run.resolve`."""
        own, shared = self._intent_entries(run_id)
        is_shared = any(which in (found.key, found.node, found.step) for found in effects_once.unknown(shared))
        if is_shared:
            running = [run.id for run in self.runs(status="running")]
        else:
            running = [run_id] if self.run(run_id).status == "running" else []
        if running:  # the step may still be in progress
            raise UsageError(
                f"cannot resolve {which} while a run that may be executing it is running: {running[0]}. Wait for its end or stop it"
            )
        effects_once.resolve((own, shared), which, happened, result)

    def _intent_entries(self, run_id: str) -> tuple[RunEntries, RunEntries]:
        """The entries with the intents of the run, and those of steps that runs share."""
        record = records.read(self.store, run_id)
        own = RunEntries(self.store, record.uid, record.prefix, record.log)
        return own, RunEntries(self.store, "shared", SHARED, None)

    def verify(self, progress: Progress | None = None) -> Verified:
        """Check the signature of every entry, and that everything runs refer to exists. Changes nothing.

        `progress(done, total)` is called with the numbers of entries.
        """
        return verify.verify(self.store, progress)

    @staticmethod
    def repair(store: str | os.PathLike[str] | None = None) -> Repaired:
        """Recover a store whose database is damaged. `store` is a path or URL, because such a store cannot be opened.

        Builds a new database from all entries that can still be read and have valid signatures; the damaged one stays in the
        directory under another name. Returns which runs are whole, and which nodes of the others are lost and will run again.
        An intact store is not changed. StoreUnavailable if another process has the store open.
        """
        return repair.repair(default_target() if store is None else store)

    def prune(self, policy: Policy, *, runs: Sequence[str] | None = None, dry_run: bool = False) -> Pruned:
        """Remove the checkpoints of each run that `policy` does not keep. With `dry_run`, only report them."""
        return prune(self.store, policy, self._chosen(runs), dry_run=dry_run)

    def memo(self) -> list[MemoizedFunction]:
        """The memoized functions with results in the store: how many, how large, how old, and last used when.

        Reads every memoized result. That a function had a hit is noted at most once a day, so `used` is exact to the day.
        """
        return memo.functions(self.store)

    def memo_calls(
        self,
        function: str | None = None,
        *,
        call: str | None = None,
        older_than: Duration | None = None,
        down_to: int | None = None,
    ) -> list[MemoizedCall]:
        """The memoized calls, oldest first: of one function, one call by its node, or those recorded earlier than
        `older_than` ("30d") ago. With `down_to`, the oldest of these, without which the rest take at most so many bytes.
        """
        return memo.calls(self.store, function, call, older_than, down_to)

    def memo_clear(
        self,
        function: str | None = None,
        *,
        call: str | None = None,
        older_than: Duration | None = None,
        down_to: int | None = None,
    ) -> list[MemoizedCall]:
        """Remove the memoized calls that `memo_calls` lists for the same arguments, and return them. They will run again.

        A call with effect="once" that was performed is still not performed again.
        """
        doomed = memo.calls(self.store, function, call, older_than, down_to)
        memo.clear(self.store, doomed)
        return doomed

    def export(self, path: str | os.PathLike[str], runs: Sequence[str] | None = None) -> None:
        """Write runs (default: all) and everything they need to one file, signed with your key."""
        archive.export(self.store, path, self._chosen(runs))

    def import_(self, path: str | os.PathLike[str], *, trust: bool = False) -> list[str]:
        """Import the runs of an exported file into this store; returns their ids. Importing twice changes nothing.

        `trust` accepts a file signed with another key: its values are pickles, which can run any code.
        """
        claim(self.store)
        return archive.import_(self.store, path, trust=trust)

    def export_json(self, path: str | os.PathLike[str], runs: Sequence[str] | None = None) -> None:
        """Write events, checkpoints, states and results as JSON. Values that JSON can't represent are left out."""
        json_exchange.export_json(self.store, path, self._chosen(runs))

    def import_json(self, path: str | os.PathLike[str]) -> list[str]:
        """Import the runs of an exported JSON file into this store; returns their ids."""
        claim(self.store)
        return json_exchange.import_json(self.store, path)

    def _chosen(self, runs: Sequence[str] | None) -> list[str]:
        return [run_id for run_id, _ in records.scan(self.store)] if runs is None else list(runs)


def fork(run: RunView, new_id: str, *, at: str | None = None, state: Mapping[str, Any] | None = None) -> PastRun:
    """Create a run that starts from a checkpoint of `run` (default: its current state). No values are copied."""
    return History(run.store).fork(run.id, new_id, at=at, state=state)
