"""Running a script to look at what it would do: `plan`, and to compare what is kept with what its code does now: `audit`, `adopt`.

The script runs in this process, on an overlay over its store: reused steps are restored as always, nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from . import current, records
from .codec import Decoded, dumps, loads
from .errors import FingerprintError, UsageError
from .events import Event, StepAdopted, StepCompleted
from .fingerprint.shown import short
from .fingerprint.values import digest
from .looking import LOOK, Looking, WouldRun
from .nodes import Kept, Node
from .past import CallersOwn
from .records import Record
from .shelf import Shelf
from .stores import Store
from .stores.overlay import Overlay
from .surroundings.state import ABSENT


@dataclass(frozen=True)
class Plan:
    """What a script would do: the steps that would be reused (name, times, seconds saved), and the first that would run.

    `took` is how long that step took when it last ran, None if it never did. `trouble` is how the script itself failed.
    """

    run: str | None
    reused: Sequence[tuple[str, int, float]]
    step: str | None = None
    node: str | None = None
    why: str | None = None
    took: float | None = None
    trouble: str | None = None


@dataclass(frozen=True)
class Audit:
    """What comparing brought: nodes that were equal, nodes that differ and how; `stopped` says why it went no further."""

    equal: list[str] = field(default_factory=list[str])
    differing: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    stopped: str | None = None


def plan(script: str, arguments: Sequence[str] = ()) -> Plan:
    """Run a script until the first step that would run, and say what would be reused, what would run and why."""
    rehearsal = _Rehearsal(Looking)
    stop, trouble = rehearsal.perform(script, arguments)
    runs: list[Looking] = [run for run in rehearsal.runs if run.id]
    reused = [(step, times, run._saved[step]) for run in rehearsal.runs for step, times in run.reused.items()]
    if not isinstance(stop, WouldRun):
        return Plan(runs[-1].id if runs else None, reused, trouble=trouble)
    here = next((run for run in runs if run.id == stop.run), None)
    past = [e.seconds for e in here.events() if isinstance(e, StepCompleted) and e.step == stop.step] if here else []
    return Plan(stop.run or None, reused, stop.step, stop.node, stop.why, past[-1] if past else None)


def audit(run_id: str, script: str, arguments: Sequence[str] = (), *, sample: float = 1.0) -> Audit:
    """Run a script again and with it a share of the steps that are kept; compare what they do with what is kept.

    Steps with effect="once" are not run. What a step that differs leads to cannot be compared: there it ends.
    """
    found = Audit()
    rehearsal = _Rehearsal(lambda *given, **options: _Auditing(found, sample, *given, **options))
    stop, trouble = rehearsal.perform(script, arguments)
    _check(rehearsal, run_id, script, trouble)
    return Audit(found.equal, found.differing, str(stop) if stop else trouble)


def adopt(
    store: Store, run_id: str, step: str, script: str, arguments: Sequence[str] = (), *, verify: int = 1
) -> Audit:
    """Let the checkpoints of a step count for its present code, if so many nodes that are run again come out equal.

    Which code it has now, and with which arguments it is called, the script tells.
    """
    found, codes = Audit(), set[tuple[str, str]]()
    rehearsal = _Rehearsal(lambda *given, **options: _Adopting(found, codes, step, verify, *given, **options))
    stop, trouble = rehearsal.perform(script, arguments)
    _check(rehearsal, run_id, script, trouble)
    if found.differing:
        return found
    if not codes:
        return Audit(stopped=str(stop) if stop else trouble or f"no call of {step} is kept under another code")
    pairs = [[step, before, after] for before, after in sorted(codes)]

    def change(record: Record) -> list[Event]:
        record.adopted = [*(each for each in record.adopted if each not in pairs), *pairs]
        return [StepAdopted(step=s, before=b, after=a, compared=len(found.equal)) for s, b, a in pairs]

    records.change(store, run_id, change)
    return found


def command_of(store: Store, run_id: str) -> list[str]:
    """The script and its arguments that opened a run last. UsageError if that is not known."""
    script = records.read(store, run_id).script
    if not script:
        raise UsageError(f"run {run_id}: it is not known which script it belongs to; name it, with its arguments")
    return script


def _check(rehearsal: _Rehearsal, run_id: str, script: str, trouble: str | None) -> None:
    if run_id not in [run.id for run in rehearsal.runs]:
        runs = ", ".join(sorted({run.id for run in rehearsal.runs if run.id})) or "none"
        raise UsageError(
            f"{script} does not open the run {run_id}; it opens: {runs}" + (f" ({trouble})" if trouble else "")
        )


class _Enough(BaseException):
    """Nothing more is to be learned."""


class _Rehearsal:
    """One script, run to look. `new_run` is asked for the runs that its scopes open."""

    def __init__(self, kind: Callable[..., Looking]) -> None:
        self.pid, self.runs, self._kind = os.getpid(), list[Looking](), kind

    def new_run(self, run_id: str, store: Store, **options: Any) -> Looking:
        run = self._kind(run_id, store, **options)
        self.runs.append(run)
        return run

    def perform(self, script: str, arguments: Sequence[str]) -> tuple[WouldRun | None, str | None]:
        """Run the script; what stopped it, if a step did, and how it failed by itself."""
        if not os.path.isfile(script):
            raise UsageError(f"there is no script {script}")
        with self._as_main(script, arguments), contextlib.redirect_stdout(sys.stderr):
            try:
                runpy.run_path(os.path.abspath(script), run_name="__main__")
            except WouldRun as stop:
                return stop, None
            except _Enough:
                pass
            except SystemExit as end:
                if end.code:
                    return None, f"the script ended with exit code {end.code}"
            except Exception as error:
                return None, f"the script failed: {type(error).__name__}: {error}"
        return None, None

    @contextlib.contextmanager
    def _as_main(self, script: str, arguments: Sequence[str]) -> Generator[None, None, None]:
        before = sys.argv, sys.path[:], {name: os.environ.get(name) for name in (LOOK, "ONCEMORE_DISABLE")}
        sys.argv = [script, *arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        os.environ[LOOK] = "1"
        os.environ.pop("ONCEMORE_DISABLE", None)
        current.rehearsal = self
        try:
            yield
        finally:
            current.rehearsal = None
            sys.argv, sys.path[:] = before[:2]
            for name, value in before[2].items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})


class _Comparing(Looking):
    """A run some of whose steps run, to be compared with what is kept of them."""

    def __init__(self, found: Audit, run_id: str, store: Store, **options: Any) -> None:
        super().__init__(run_id, store, **options)
        self._found = found

    def use(self, record: Record) -> None:
        super().use(record)
        assert isinstance(self.store, Overlay)
        self._kept, self._kept_shared = self.shelves(self.store.below, record)

    def kept_of(self, node: Node) -> Shelf:
        """Where the node's checkpoint is kept, whatever has been written over it since."""
        return self._kept_shared if node.owner == "shared" else self._kept

    def compared_with(self, node: Node) -> Node:
        """The node whose checkpoint a node that ran is compared with."""
        return node

    def record(self, node: Node, kept: Kept, *, reason: str, seconds: float) -> None:
        super().record(node, kept, reason=reason, seconds=seconds)

        def read(name: str) -> str:
            return kept.reads.get(name, ABSENT)

        shelf, below = self.shelf_of(node), self.kept_of(node)
        new, old = shelf.find(node, read), below.find(self.compared_with(node), read)
        if new is None:
            said = "its result cannot be kept any more"
        elif old is None:
            said = "it reads other state than when it was kept"
        else:
            said = _difference(_outcome(below, old), _outcome(shelf, new))
        if said:
            self._found.differing.append((node.id, said))
        else:
            self._found.equal.append(node.id)


class _Auditing(_Comparing):
    def __init__(self, found: Audit, sample: float, run_id: str, store: Store, **options: Any) -> None:
        super().__init__(found, run_id, store, **options)
        self._sample = sample

    def wants_fresh(self, node: Node, *, once: bool) -> bool:
        drawn = int.from_bytes(blake3(node.key.encode()).digest(length=4), "big") / 2**32  # the same whenever asked
        return not once and drawn < self._sample and node.key not in self.passed and self._is_kept(node)

    def will_run(self, node: Node, why: str, *, once: bool) -> None:
        if once or not self._is_kept(node):
            super().will_run(node, why, once=once)

    def _is_kept(self, node: Node) -> bool:
        return self.kept_of(node).find(node, self.state.digest) is not None


class _Adopting(_Comparing):
    def __init__(
        self,
        found: Audit,
        codes: set[tuple[str, str]],
        step: str,
        verify: int,
        run_id: str,
        store: Store,
        **options: Any,
    ) -> None:
        super().__init__(found, run_id, store, **options)
        self._codes, self._step, self._verify = codes, step, verify

    def will_run(self, node: Node, why: str, *, once: bool) -> None:
        earlier = self.compared_with(node)
        if node.step != self._step or earlier is node:
            super().will_run(node, why, once=once)
        self._codes.add((earlier.code, node.code))
        if len(self._found.equal) >= self._verify:
            raise _Enough
        if once:
            raise UsageError(f"step {node.step} has effect='once': it is not run again to compare; adopt with verify 0")

    def compared_with(self, node: Node) -> Node:
        others = [pair for pair in self.kept_of(node).others(node) if pair[0].arguments == node.arguments]
        return max(others, key=lambda pair: pair[1].get("time", 0), default=(node, {}))[0]

    def record(self, node: Node, kept: Kept, *, reason: str, seconds: float) -> None:
        super().record(node, kept, reason=reason, seconds=seconds)
        if self._found.differing or len(self._found.equal) >= self._verify:
            raise _Enough


def _outcome(shelf: Shelf, entry: Decoded) -> dict[str, Any]:
    """What a step returned, yielded and did."""
    loaded = entry.load(CallersOwn._make)
    value, effects = loaded if entry.meta.get("effects") else (loaded, {})
    found: dict[str, Any] = {"result": value, "items": [], **effects}
    for number in range(entry.meta.get("chunks", 0)):
        chunk = shelf.chunk(entry, number)
        found["items"] += [loads(item, chunk.meta.get("main", ""), CallersOwn._make) for item in chunk.load()]
    found.pop("output", None)  # times of log records are in it
    if "files" in found:  # when they were written does not count
        files = [(name, kept.size, kept.mode, kept.digest) for name, kept in found["files"]["files"]]
        found["files"] = {**found["files"], "files": files}
    return found


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    for name in {**old, **new}:
        try:
            same = name in old and name in new and digest(old[name]) == digest(new[name])
        except FingerprintError:  # no identity of its own: its pickle has to do
            same = name in old and name in new and dumps(old[name]) == dumps(new[name])
        if not same:
            then, now = short(old.get(name)), short(new.get(name))
            return f"{name}: {then} -> {now}" if then != now else f"{name} differs"
    return ""
