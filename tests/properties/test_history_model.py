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


Home = tuple[int, int]  # a stretch of a run's history, and the run that it is of


@dataclass(eq=False)
class Token:
    """One checkpoint: what its step returned, in whose log it stands and at which place there, and where it is kept.

    Or (`forgotten`) that there is none of that value any more.
    """

    value: int
    owner: int
    number: int
    home: Home
    forgotten: bool = False


@dataclass(eq=False)
class Modelled:
    """A run as what happened in it that counts, and the lists that rollbacks replaced."""

    uid: int
    homes: list[Home]
    parent: str | None = None
    done: list[Token] = field(default_factory=list)
    undo: list[tuple[list[Token], list[Home]]] = field(default_factory=list)
    needs: dict[int, int] = field(default_factory=dict)  # of each forebear: up to which place


class HistoryMachine(RuleBasedStateMachine):
    kind = "memory"

    @initialize()
    def begin(self) -> None:
        self.store = place(self.kind, secrets.token_hex(4))
        self.history = History(self.store)
        self.runs: dict[str, Modelled] = {}
        self.gone: set[Token] = set()
        self.kept: set[tuple[Home, int]] = set()  # what is there, be it that something is forgotten
        self.shared: set[Home] = set()  # a fork may need what is kept there
        self.clock = 0
        self.run_steps("a", [0, 1, 2, 3])

    def alive(self, run: Modelled) -> list[Token]:
        """The newest of each value; one that is gone hides those before it."""
        newest = {token.value: token for token in run.done}
        return [t for t in run.done if newest[t.value] is t and not t.forgotten and t not in self.gone]

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def home(self, uid: int) -> Home:
        return self.tick(), uid

    def keep(self, run: Modelled, value: int) -> None:
        """A step has run: its checkpoint takes the place of the one before, or stands beside it if a fork may need that."""
        if (run.homes[-1], value) in self.kept:
            if run.homes[-1] in self.shared:
                run.homes = [*run.homes, self.home(run.uid)]
            else:
                self.gone.update(t for t in run.done if (t.value, t.home) == (value, run.homes[-1]))
        self.kept.add((run.homes[-1], value))
        run.done.append(Token(value, run.uid, self.tick(), run.homes[-1]))

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
        if run_id not in self.runs:
            uid = self.tick()
            self.runs[run_id] = Modelled(uid, [self.home(uid)])
        run = self.runs[run_id]
        expected = 0
        with checkpoint_scope(run_id, store=self.store) as opened:
            for value in values:
                assert work(value) == value
                if value not in [token.value for token in self.alive(run)]:
                    self.keep(run, value)
                    expected += 1
        assert sum(opened.ran.values()) == expected

    @precondition(lambda self: self.runs)
    @rule(pick=picks, value=st.integers(0, 7))
    def refresh(self, pick: int, value: int) -> None:
        run_id = self.known(pick)
        with checkpoint_scope(run_id, store=self.store) as opened:
            assert work.refresh(value) == value
        assert sum(opened.ran.values()) == 1
        self.keep(self.runs[run_id], value)

    @precondition(lambda self: self.runs)
    @rule(pick=picks, value=st.integers(0, 7))
    def forget(self, pick: int, value: int) -> None:
        run_id = self.known(pick)
        run = self.runs[run_id]
        with checkpoint_scope(run_id, store=self.store):
            work.forget(value)
        if run.homes[-1] in self.shared:
            run.homes = [*run.homes, self.home(run.uid)]
        here = run.homes[-1]
        self.gone.update(t for t in run.done if (t.value, t.home) == (value, here))
        self.kept.discard((here, value))
        if len(run.homes) > 1:
            self.kept.add((here, value))
        run.done.append(Token(value, run.uid, self.tick(), here, forgotten=True))

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
        run.undo.append((run.done, run.homes))
        run.done = run.done[: run.done.index(token) + keep]
        run.homes = [*run.homes, self.home(run.uid)]

    @precondition(lambda self: self.runs)
    @rule(pick=picks)
    def undo(self, pick: int) -> None:
        run_id = self.known(pick)
        run = self.runs[run_id]
        if run.undo:
            self.history.undo_rollback(run_id)
            run.done, run.homes = run.undo.pop()
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
        self.shared.update(run.homes)
        uid = self.tick()
        self.runs[new_id] = Modelled(uid, [*run.homes, self.home(uid)], run_id, done, needs={**earlier, **cut})

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
            self.kept -= {(token.home, token.value) for token in going if not self.hides(run, token)}

    def hides(self, run: Modelled, token: Token) -> bool:
        """Whether an earlier one would come back if nothing were left of this."""
        every = [t for done in (run.done, *(done for done, _ in run.undo)) for t in done if not t.forgotten]
        return any(t.value == token.value and t is not token and t not in self.gone for t in every)

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
        inherited = [(run, home) for run in self.runs.values() for home in self.all_homes(run)]
        self.shared = {home for run, home in inherited if home[1] != run.uid}

    def all_homes(self, run: Modelled) -> set[Home]:
        return {home for homes in (run.homes, *(homes for _, homes in run.undo)) for home in homes}

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "runs"):
            return
        listed = {run.id: run for run in self.history.runs()}
        assert sorted(listed) == sorted(self.runs)
        for run_id, run in self.runs.items():
            past = self.history.run(run_id)
            assert [c.result() for c in past.checkpoints] == [token.value for token in self.alive(run)], run_id
            assert listed[run_id].nodes == len(self.alive(run)), run_id
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
