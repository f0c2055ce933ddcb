"""The fold that decides which checkpoints count agrees with lists that are cut and put back, whatever happened."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncemore import events
from oncemore.events import Event
from oncemore.history.timeline import timeline, totals
from oncemore.records import signed
from oncemore.settings import secret
from oncemore.stores import open_store

FULL = os.environ.get("ONCEMORE_TEST_CAMPAIGN") == "full"

nodes = st.sampled_from(["a/1.x", "a/2.x", "b/1.y"])
where = st.integers(0, 10)
happenings = st.one_of(
    st.tuples(st.just("complete"), nodes, st.sampled_from(["", "@p", "@q"])),
    st.tuples(st.just("save"), st.booleans()),
    st.tuples(st.just("loop"), st.sampled_from(["one", "two"])),
    st.tuples(st.just("forget"), nodes),
    st.tuples(st.just("prune"), st.lists(where, max_size=3)),
    st.tuples(st.just("pin"), where, st.booleans()),
    st.tuples(st.just("roll back"), where, st.booleans()),
    st.tuples(st.just("undo")),
    st.tuples(st.just("fork"), where, st.booleans()),
)


@dataclass(frozen=True)
class Item:
    log: str
    number: int
    suffix: str
    pinned: bool = False
    run: str = ""


@dataclass
class Naive:
    """A run as the list of what counts in it, and copies of the lists that rollbacks cut."""

    store: Any
    log: str = "event/0/"
    done: list[Item] = field(default_factory=list)
    undo: list[list[Item]] = field(default_factory=list)
    last: int = 0

    def tell(self, kind: type[Event], **fields: Any) -> int:
        self.store.commit(append={self.log: [signed(self.log, kind(**fields), secret())]})
        self.last += 1
        return self.last

    def checkpoints(self) -> list[Item]:
        return [item for item in self.done if not item.suffix.startswith("$")]

    def picked(self, index: int) -> Item | None:
        known = self.checkpoints()
        return known[index % len(known)] if known else None

    def before(self, item: Item, included: bool) -> list[Item]:
        """What was done before an item, in the order of the logs."""
        logs = list(dict.fromkeys([*(f"event/{n}/" for n in range(int(self.log.split("/")[1]) + 1))]))
        at = logs.index(item.log), item.number - (not included)
        return [other for other in self.done if (logs.index(other.log), other.number) <= at]

    def keep(self, item: Item) -> None:
        plain = item.suffix.partition("@")[0]
        self.done = [other for other in self.done if other.suffix not in (item.suffix, plain)] + [item]

    def happen(self, what: str, *given: Any) -> None:
        about = {"step": "s", "node": "n", "fingerprint": "f"}
        if what == "complete":
            suffix = "".join(given)
            made = {**about, "reason": "", "seconds": 0, "raw_bytes": 1, "stored_bytes": 7}
            number = self.tell(events.StepCompleted, **made, entry=f"node/{self.last % 3}/{suffix}")
            self.keep(Item(self.log, number, suffix))
        elif what == "save":
            saved = {"name": "c", "next_node": None, "metadata": {}, "state": "", "snapshot": "", "pinned": given[0]}
            number = self.tell(events.CheckpointSaved, **saved)
            self.keep(Item(self.log, number, f"{self.log}{number}", given[0]))
        elif what == "loop":
            number = self.tell(events.SnapshotSaved, loop=given[0], seen=1, entry=f"node/0/$/{given[0]}/1")
            self.keep(Item(self.log, number, f"$/{given[0]}/1"))
        elif what == "forget":
            self.tell(events.StepForgotten, **about, entry=f"node/0/{given[0]}")
            self.done = [item for item in self.done if item.suffix.partition("@")[0] != given[0]]
        elif what == "prune":
            gone = [item for item in map(self.picked, given[0]) if item is not None and item.log == self.log]
            self.tell(events.CheckpointsPruned, checkpoints=[item.number for item in gone])
            numbers = {(item.log, item.number) for item in gone}
            for done in (self.done, *self.undo):
                done[:] = [item for item in done if (item.log, item.number) not in numbers]
        elif what == "undo" and self.undo:
            self.tell(events.RollbackUndone)
            self.done = self.undo.pop()
        elif what in ("pin", "roll back", "fork") and (item := self.picked(given[0])) is not None:
            of = item.log if item.log != self.log else ""
            if what == "pin":
                self.tell(events.CheckpointPinned, checkpoint=item.number, pinned=given[1], log=of)
                for done in (self.done, *self.undo):
                    same = [other for other in done if (other.log, other.number) == (item.log, item.number)]
                    for other in same:
                        done[done.index(other)] = replace(other, pinned=given[1])
            elif what == "roll back":
                self.tell(events.RolledBack, to=item.number - (not given[1]), log=of)
                self.undo.append(self.done)
                self.done = self.before(item, given[1])
            else:
                parent, until, uid = self.log, self.last, int(self.log.split("/")[1])
                number = self.last if given[1] else item.number
                done = self.done if given[1] else self.before(item, True)
                self.done = [replace(other, run=other.run or f"run-{uid}") for other in done]
                self.undo, self.log, self.last = [], f"event/{uid + 1}/", 0
                forked = {"parent": f"run-{uid}", "at": number, "log": parent, "until": until}
                self.tell(events.Forked, **forked, within="" if given[1] else of)


@settings(max_examples=1500 if FULL else 200, deadline=None)
@given(st.lists(happenings, max_size=40))
def test_the_fold_agrees_with_lists_that_are_cut_and_put_back(what: list[tuple[Any, ...]]) -> None:
    run = Naive(open_store(f"memory://{secrets.token_hex(8)}"))
    for happening in what:
        run.happen(*happening)
        line = timeline(run.store, run.log)
        found = [Item(c.log, c.event.seq, c.suffix, c.pinned, c.run) for c in line.counted()]
        assert found == run.done
        assert [c.event.seq for c in line.checkpoints()] == [item.number for item in run.checkpoints()]
        ever = {(item.log, item.number) for done in (run.done, *run.undo) for item in done}
        assert {(c.log, c.event.seq) for c in line.ever()} == ever
        steps = [item.suffix for item in run.checkpoints() if not item.suffix.startswith("event/")]
        assert totals(line.counted()) == (len({suffix.partition("@")[0] for suffix in steps}), 7 * len(steps))


def test_a_run_that_was_imported_without_its_parent_has_only_its_own() -> None:
    store, log = open_store(f"memory://{secrets.token_hex(8)}"), "event/1/"
    own = events.StateSaved(snapshot="s")
    for fact in (events.Forked(parent="r", at=3, log="event/0/", until=3), own):
        store.commit(append={log: [signed(log, fact, secret())]})
    assert [c.event.seq for c in timeline(store, log).counted()] == [2]


@pytest.mark.parametrize("kind", [events.RollbackUndone, events.RunRenamed])
def test_an_event_that_undoes_nothing_changes_nothing(kind: Any) -> None:
    store, log = open_store(f"memory://{secrets.token_hex(8)}"), "event/1/"
    more = {"before": "x"} if kind is events.RunRenamed else {}
    for fact in (events.StateSaved(snapshot="s"), kind(**more)):
        store.commit(append={log: [signed(log, fact, secret())]})
    assert [c.event.seq for c in timeline(store, log).counted()] == [1]
