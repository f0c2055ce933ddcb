"""Whatever is done to runs in whatever order, a store and its history agree with a plain model of them."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oncemore import History, UsageError, checkpoint_scope, checkpointed
from oncemore.retention import keep_last
from tests.unit.pasts import content, place

FULL = os.environ.get("ONCEMORE_TEST_CAMPAIGN") == "full"
IDS = ["a", "b", "c", "d"]

ids = st.sampled_from(IDS)
places = st.integers(0, 20)
picks = st.integers(0, 3)  # of the runs that there are


@checkpointed
def work(n: int) -> int:
    return n


@dataclass(eq=False)
class Token:
    """One checkpoint: what its step returned, in whose log it stands and at which place there."""

    value: int
    owner: int
    number: int


@dataclass(eq=False)
class Modelled:
    """A run as a list of checkpoints that count, and the lists that rollbacks replaced."""

    uid: int
    parent: str | None = None
    done: list[Token] = field(default_factory=list)
    undo: list[list[Token]] = field(default_factory=list)
    needs: dict[int, int] = field(default_factory=dict)  # of each forebear: up to which place


class HistoryMachine(RuleBasedStateMachine):
    kind = "memory"

    @initialize()
    def begin(self) -> None:
        self.store = place(self.kind, secrets.token_hex(4))
        self.history = History(self.store)
        self.runs: dict[str, Modelled] = {}
        self.gone: set[Token] = set()
        self.clock = 0
        self.run_steps("a", [0, 1, 2, 3])

    def alive(self, run: Modelled) -> list[Token]:
        return [token for token in run.done if token not in self.gone]

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def known(self, pick: int) -> str:
        return sorted(self.runs)[pick % len(self.runs)]

    def picked(self, run_id: str, where: int) -> tuple[Modelled, int, str] | None:
        """A checkpoint of a run: its place in the model and its id in the store."""
        run = self.runs.get(run_id)
        if run is None or not self.alive(run):
            return None
        index = where % len(self.alive(run))
        return run, index, self.history.run(run_id).checkpoints[index].id

    @rule(run_id=ids, values=st.lists(st.integers(0, 7), max_size=6))
    def run_steps(self, run_id: str, values: list[int]) -> None:
        run = self.runs.setdefault(run_id, Modelled(self.tick()))
        expected = 0
        with checkpoint_scope(run_id, store=self.store) as opened:
            for value in values:
                assert work(value) == value
                if value not in [token.value for token in self.alive(run)]:
                    run.done.append(Token(value, run.uid, self.tick()))
                    expected += 1
        assert sum(opened.ran.values()) == expected

    @precondition(lambda self: self.runs)
    @rule(pick=picks, where=places, keep=st.booleans())
    def roll_back(self, pick: int, where: int, keep: bool) -> None:
        run_id = self.known(pick)
        picked = self.picked(run_id, where)
        if picked is None:
            return
        run, index, checkpoint = picked
        self.history.rollback(run_id, **{"to" if keep else "before": checkpoint})
        token = self.alive(run)[index]
        run.undo.append(run.done)
        run.done = run.done[: run.done.index(token) + keep]

    @precondition(lambda self: self.runs)
    @rule(pick=picks)
    def undo(self, pick: int) -> None:
        run_id = self.known(pick)
        run = self.runs[run_id]
        if run.undo:
            self.history.undo_rollback(run_id)
            run.done = run.undo.pop()
        else:
            with pytest.raises(UsageError):
                self.history.undo_rollback(run_id)

    @precondition(lambda self: self.runs)
    @rule(pick=picks, new_id=ids, where=places, now=st.booleans())
    def fork(self, pick: int, new_id: str, where: int, now: bool) -> None:
        run_id = self.known(pick)
        picked = self.picked(run_id, where)
        if picked is None:
            return
        run, index, checkpoint = picked
        if new_id in self.runs:
            with pytest.raises(UsageError):
                self.history.fork(run_id, new_id)
            return
        self.history.fork(run_id, new_id, at=None if now else checkpoint)
        token = self.alive(run)[index]
        done = list(run.done) if now else run.done[: run.done.index(token) + 1]
        cut = {run.uid: self.tick()} if now else {token.owner: token.number}
        owners = {token.owner for token in done}
        earlier = {owner: place for owner, place in run.needs.items() if owner in owners}
        self.runs[new_id] = Modelled(self.tick(), run_id, done, needs={**earlier, **cut})

    @precondition(lambda self: self.runs)
    @rule(pick=picks, new_id=ids)
    def rename(self, pick: int, new_id: str) -> None:
        run_id = self.known(pick)
        if new_id in self.runs:
            with pytest.raises(UsageError):
                self.history.rename(run_id, new_id)
            return
        self.history.rename(run_id, new_id)
        self.runs[new_id] = self.runs.pop(run_id)

    @precondition(lambda self: self.runs)
    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        run_id = self.known(pick)
        del self.runs[run_id]
        self.history.delete(run_id)
        with pytest.raises(UsageError):
            self.history.delete(run_id)

    @precondition(lambda self: self.runs)
    @rule(pick=picks, count=st.integers(1, 3), dry_run=st.booleans())
    def prune(self, pick: int, count: int, dry_run: bool) -> None:
        run_id = self.known(pick)
        run = self.runs[run_id]
        pruned = self.history.prune(keep_last(count), runs=[run_id], dry_run=dry_run)
        needed = max((other.needs.get(run.uid, 0) for other in self.runs.values()), default=0)
        mine = [token for token in self.alive(run) if token.owner == run.uid]
        going = [token for token in mine[:-count] if token.number > needed]
        assert len(pruned.checkpoints) == len(going)
        if not dry_run:
            self.gone.update(going)

    @precondition(lambda self: self.runs)
    @rule(kind=st.sampled_from(["memory", "disk"] if FULL else ["memory"]))
    def move(self, kind: str) -> None:
        """To another store and from there on in that one."""
        other = History(place(kind, secrets.token_hex(4)))
        self.history.export("runs.zip")
        assert sorted(other.import_("runs.zip")) == sorted(self.runs)
        before = content(other.store)
        other.import_("runs.zip")
        assert content(other.store) == before
        self.history, self.store = other, other.store

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "runs"):
            return
        assert sorted(run.id for run in self.history.runs()) == sorted(self.runs)
        for run_id, run in self.runs.items():
            past = self.history.run(run_id)
            assert [c.result() for c in past.checkpoints] == [token.value for token in self.alive(run)], run_id
            numbers = [event.seq for event in past.events()]
            assert numbers == list(range(1, len(numbers) + 1))

    def teardown(self) -> None:
        if not hasattr(self, "runs"):
            return
        for run_id in self.runs:
            self.history.delete(run_id)
        left = [key for key in content(self.store) if not key.startswith("code/")]
        assert left == [], "deleting all runs leaves nothing"


class OnDisk(HistoryMachine):
    kind = "disk"


@pytest.mark.slow
@pytest.mark.parametrize("machine", [HistoryMachine, OnDisk], ids=["memory", "disk"])
def test_store_and_history_agree_with_a_plain_model(machine: type[HistoryMachine]) -> None:
    short = 40 if machine is HistoryMachine else 8
    run_state_machine_as_test(
        machine, settings=settings(max_examples=2 * short if FULL else short, stateful_step_count=25)
    )
