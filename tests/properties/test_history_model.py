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
from tests.unit.pasts import content, keys, store_url

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
    """One checkpoint: what its step returned, and the run that it is of."""

    value: int
    owner: int


@dataclass(eq=False)
class Modelled:
    """A run as the list of what counts, oldest first, and the lists that rollbacks replaced."""

    uid: int
    done: list[Token] = field(default_factory=list)
    undo: list[list[Token]] = field(default_factory=list)
    forebears: list[int] = field(default_factory=list)

    def lists(self) -> list[list[Token]]:
        return [self.done, *self.undo]

    def drop(self, value: int) -> None:
        self.done = [token for token in self.done if token.value != value]

    def keep(self, value: int) -> None:
        """A step has run: its checkpoint takes the place of the one before."""
        self.drop(value)
        self.done.append(Token(value, self.uid))


class HistoryMachine(RuleBasedStateMachine):
    kind = "memory"

    @initialize()
    def begin(self) -> None:
        self.store = store_url(self.kind, secrets.token_hex(4))
        self.history = History(self.store)
        self.runs: dict[str, Modelled] = {}
        self.clock = 0
        self.run_steps("a", [0, 1, 2, 3])

    def known(self, pick: int) -> str:
        return sorted(self.runs)[pick % len(self.runs)]

    def picked(self, run_id: str, where: int) -> tuple[Modelled, int, str] | None:
        """A checkpoint of a run: its place in the model and its id in the store."""
        run = self.runs.get(run_id)
        if run is None or not run.done:
            return None
        index = where % len(run.done)
        return run, index, self.history.run(run_id).checkpoints[index].id

    def new(self, done: list[Token]) -> Modelled:
        self.clock += 1
        return Modelled(self.clock, done)

    @rule(run_id=ids, values=st.lists(st.integers(0, 7), max_size=6))
    def run_steps(self, run_id: str, values: list[int]) -> None:
        run = self.runs.setdefault(run_id, self.new([]))
        expected = 0
        with checkpoint_scope(run_id, store=self.store) as opened:
            for value in values:
                assert work(value) == value
                if value not in [token.value for token in run.done]:
                    run.keep(value)
                    expected += 1
        assert sum(opened.ran.values()) == expected

    @precondition(lambda self: self.runs)
    @rule(pick=picks, value=st.integers(0, 7))
    def refresh(self, pick: int, value: int) -> None:
        run_id = self.known(pick)
        with checkpoint_scope(run_id, store=self.store) as opened:
            assert work.refresh(value) == value
        assert sum(opened.ran.values()) == 1
        self.runs[run_id].keep(value)

    @precondition(lambda self: self.runs)
    @rule(pick=picks, value=st.integers(0, 7))
    def forget(self, pick: int, value: int) -> None:
        run_id = self.known(pick)
        with checkpoint_scope(run_id, store=self.store):
            there = value in [token.value for token in self.runs[run_id].done]
            assert work.forget(value) == there
        run = self.runs[run_id]
        run.drop(value)
        if not any(run.uid in other.forebears for other in self.runs.values()):  # else a fork may need it
            run.undo = [[token for token in done if token.value != value] for done in run.undo]

    @precondition(lambda self: self.runs)
    @rule(pick=picks, where=places, keep=st.booleans())
    def roll_back(self, pick: int, where: int, keep: bool) -> None:
        run_id = self.known(pick)
        picked = self.picked(run_id, where)
        if picked is None:
            return
        run, index, checkpoint = picked
        self.history.rollback(run_id, **{"to" if keep else "before": checkpoint})
        run.undo.append(run.done)
        run.done = run.done[: index + keep]

    @precondition(lambda self: self.runs)
    @rule(pick=picks, value=st.integers(0, 7), keep=st.integers(0, 2))
    def roll_back_inside(self, pick: int, value: int, keep: int) -> None:
        """A scope goes back, and on from there."""
        run_id = self.known(pick)
        run = self.runs[run_id]
        with checkpoint_scope(run_id, store=self.store) as opened:
            if len(run.done) > keep:
                opened.rollback(before=opened.checkpoints[keep].id)
                run.undo.append(run.done)
                run.done = run.done[:keep]
            known = value in [token.value for token in run.done]
            assert work(value) == value
        assert sum(opened.ran.values()) == (not known)
        if not known:
            run.keep(value)

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
        self.runs[new_id] = self.new(list(run.done) if now else run.done[: index + 1])
        self.runs[new_id].forebears = [*run.forebears, run.uid]

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
        others = [other for other in self.runs.values() if other is not run]
        shared = {token for other in others for done in other.lists() for token in done}
        mine = [token for token in run.done if token.owner == run.uid]
        going = [token for token in mine[:-count] if token not in shared]
        assert len(pruned.checkpoints) == len(going)
        if not dry_run:
            for done in run.lists():
                done[:] = [token for token in done if token not in going]

    @precondition(lambda self: self.runs)
    @rule(kind=st.sampled_from(["memory", "disk"] if FULL else ["memory"]))
    def move(self, kind: str) -> None:
        """To another store and from there on in that one."""
        other = History(store_url(kind, secrets.token_hex(4)))
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
        listed = {run.id: run for run in self.history.runs()}
        assert sorted(listed) == sorted(self.runs)
        for run_id, run in self.runs.items():
            past = self.history.run(run_id)
            assert [c.result() for c in past.checkpoints] == [token.value for token in run.done], run_id
            assert listed[run_id].nodes == len(run.done), run_id
            numbers = [event.seq for event in past.events()]
            assert numbers == list(range(1, len(numbers) + 1))

    def teardown(self) -> None:
        if not hasattr(self, "runs"):
            return
        assert self.history.verify().well
        self.history.prune(keep_last(99))
        assert self.history.verify().findings == ()
        self.they_agree()
        for run_id in self.runs:
            self.history.delete(run_id)
        left = [key for key in keys(self.store) if not key.startswith("code/")]
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
