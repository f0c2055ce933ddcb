"""Running a script to look at what it would do: `plan`, and to compare what is kept with what its code does now: `audit`, `adopt`.

The script runs in this process, on an overlay over its store: reused steps are restored as always, nothing is written there.
What it does outside of steps, it does. What it prints goes to standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from . import records
from .errors import UsageError
from .events import Event, StepAdopted, StepCompleted
from .looking import Looking
from .nodes import Kept, Node
from .outcomes import difference, outcome
from .reasons import Reason
from .records import Record
from .shelf import Shelf
from .stage import Rehearsal, enough
from .stores import Store
from .stores.overlay import Overlay
from .surroundings.state import ABSENT

Progress = Callable[[str, str], object]  # a node that was compared, and how it differs if it does


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a script would do: the steps that would be reused (name, times, seconds saved), and the first that would run.

    `run` is the run that was opened last, `took` how long that step took when it last ran, None if it never did. `trouble` is
    how the script itself failed.
    """

    run: str | None
    reused: Sequence[tuple[str, int, float]]
    step: str | None = None
    node: str | None = None
    why: str | None = None
    took: float | None = None
    trouble: str | None = None


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What comparing brought: nodes that were equal, nodes that differ and how; `stopped` says why it went no further."""

    equal: list[str] = field(default_factory=list[str])
    differing: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    stopped: str | None = None


def plan(script: str, arguments: Sequence[str] = ()) -> Plan:
    """Run a script until the first step that would run, and say what would be reused, what would run and why.

    With `script="-m"` the first argument is the name of a module, as for Python. No step's body runs.
    """
    rehearsal = Rehearsal(Looking)
    rehearsal.perform(script, arguments)
    counts: dict[str, tuple[int, float]] = {}
    here = [(step, times, run._saved[step]) for run in rehearsal.runs for step, times in run.reused.items()]
    for step, times, saved in (*here, *((step, 1, saved) for step, saved in rehearsal.elsewhere)):
        before = counts.get(step, (0, 0.0))
        counts[step] = before[0] + times, before[1] + saved
    reused = [(step, *told) for step, told in counts.items()]
    stop, opened = rehearsal.stop, [run for run in rehearsal.runs if run.id]
    if stop is None:
        return Plan(run=opened[-1].id if opened else None, reused=reused, trouble=rehearsal.end)
    events = [event for run in opened[::-1] if run.id == stop.run for event in run.events()]
    took = [event.seconds for event in events if isinstance(event, StepCompleted) and event.step == stop.step]
    return Plan(
        run=stop.run or None,
        reused=reused,
        step=stop.step,
        node=stop.node,
        why=stop.why,
        took=took[-1] if took else None,
    )


def audit(
    run_id: str, script: str, arguments: Sequence[str] = (), *, sample: float = 1.0, progress: Progress | None = None
) -> Audit:
    """Run a script again and with it a share of the steps that the run keeps; compare what they do with what is kept.

    Steps with effect="once" are not run, nor what a finished `run.loop` did. What a step that differs leads to cannot be compared:
    there it ends. Steps in other processes are not compared.
    """
    found = Audit()

    def kind(opened: str, *given: Any, **options: Any) -> Looking:
        if opened != run_id:
            return Looking(opened, *given, **options)
        return _Auditing(sample, found, progress, opened, *given, **options)

    rehearsal = Rehearsal(kind)
    rehearsal.perform(script, arguments)
    rehearsal.check(run_id, script)
    return Audit(equal=found.equal, differing=found.differing, stopped=rehearsal.end)


def adopt(
    store: Store,
    run_id: str,
    step: str,
    script: str,
    arguments: Sequence[str] = (),
    *,
    verify: int = 1,
    progress: Progress | None = None,
) -> Audit:
    """Let the checkpoints of a step count for its present code, if so many nodes that are run again come out equal.

    Which code it has now, and with which arguments it is called, the script tells. Of several earlier codes, those count
    with which every node came out equal. Nothing is adopted if a node differs from all, or if `stopped` says why there was
    too little to compare.
    """
    found, codes = Audit(), dict[tuple[str, str], bool]()

    def kind(opened: str, *given: Any, **options: Any) -> Looking:
        if opened != run_id:
            return Looking(opened, *given, **options)
        return _Adopting(step, verify, codes, found, progress, opened, *given, **options)

    rehearsal = Rehearsal(kind)
    rehearsal.perform(script, arguments)
    rehearsal.check(run_id, script, store)
    if found.differing:
        return found
    pairs = [[step, *pair] for pair, equal in sorted(codes.items()) if equal]
    if not pairs or (rehearsal.end and len(found.equal) < verify):
        none = f"no {'single earlier code does the same' if codes else f'call of {step} is kept under another code'}"
        return Audit(equal=found.equal, stopped=rehearsal.end or none)

    def change(record: Record) -> list[Event]:
        record.adopted = [*(each for each in record.adopted if each not in pairs), *pairs]
        return [StepAdopted(step=s, before=b, after=a, compared=len(found.equal)) for s, b, a in pairs]

    records.change(store, run_id, change)
    return found


def command_of(store: Store, run_id: str) -> list[str]:
    """The script and its arguments that opened a run last, as said to Python. UsageError if that is not known."""
    script = records.read(store, run_id).script
    if not script:
        raise UsageError(f"run {run_id}: it is not known which script it belongs to; name it, with its arguments")
    return script


class _Comparing(Looking):
    """A run some of whose steps run, to be compared with what is kept of them."""

    def __init__(self, found: Audit, progress: Progress | None, run_id: str, store: Overlay, **options: Any) -> None:
        super().__init__(run_id, store, **options)
        self._found, self._progress = found, progress

    def use(self, record: Record) -> None:
        super().use(record)
        assert isinstance(self.store, Overlay)
        self._kept, self._kept_shared = self.shelves(self.store.below, record)

    def kept_of(self, node: Node) -> Shelf:
        """Where the node's checkpoint is kept, whatever has been written over it since."""
        return self._kept_shared if node.owner == "shared" else self._kept

    def compared_with(self, node: Node) -> list[Node]:
        """The nodes whose checkpoints a node that ran is compared with; it has to be equal to one."""
        return [node]

    def record(self, node: Node, kept: Kept, *, reason: Reason, seconds: float) -> None:
        super().record(node, kept, reason=reason, seconds=seconds)

        def read(name: str) -> str:
            return kept.reads.get(name, ABSENT)

        shelf, below = self.shelf_of(node), self.kept_of(node)
        new = shelf.find(node, read).entry
        if new is None:
            return  # that is told already
        came, found = outcome(shelf, new), dict[Node, str]()
        for other in self.compared_with(node):
            old = below.find(other, read).entry
            unlike = "it reads other state than when it was kept"
            found[other] = unlike if old is None else difference(outcome(below, old), came)
        self.compared(node, found)
        self.judge(node, "" if "" in found.values() else next(iter(found.values())))

    def compared(self, node: Node, found: Mapping[Node, str]) -> None:
        """How a node differs from each of those that it was compared with."""

    def not_kept(self, node: Node, why: str, *, seconds: float) -> None:
        super().not_kept(node, why, seconds=seconds)
        self.judge(node, f"its result cannot be kept any more: {why}")

    def record_failure(self, node: Node, error: Exception, *, reason: Reason, seconds: float) -> None:
        super().record_failure(node, error, reason=reason, seconds=seconds)
        self.judge(node, f"it fails: {type(error).__name__}: {error}")

    def judge(self, node: Node, said: str) -> None:
        """A node was compared, and is equal or differs as `said`."""
        if said:
            self._found.differing.append((node.id, said))
        else:
            self._found.equal.append(node.id)
        if self._progress is not None:
            self._progress(node.id, said)


class _Auditing(_Comparing):
    def __init__(self, sample: float, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._sample = sample

    def wants_fresh(self, node: Node, *, once: bool) -> bool:
        drawn = int.from_bytes(blake3(node.key.encode()).digest(length=4), "big") / 2**32  # the same whenever asked
        return not once and drawn < self._sample and node.key not in self.passed and self._is_kept(node)

    def will_run(self, node: Node, why: str, *, once: bool) -> None:
        if once or not self._is_kept(node):
            super().will_run(node, why, once=once)

    def _is_kept(self, node: Node) -> bool:
        return self.kept_of(node).find(node, self.state.digest).entry is not None


class _Adopting(_Comparing):
    def __init__(self, step: str, verify: int, codes: dict[tuple[str, str], bool], *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._step, self._verify, self._codes = step, verify, codes

    def will_run(self, node: Node, why: str, *, once: bool) -> None:
        earlier = self.compared_with(node) if node.step == self._step else []
        if not earlier:
            super().will_run(node, why, once=once)
        elif node.owner == "shared":
            enough(f"step {node.step} keeps results for all runs: what one run adopts cannot count for the others")
        elif len(self._found.equal) >= self._verify:  # also if the script went on though that was enough
            self._codes.update({} if self._verify else {(earlier[0].code, node.code): True})
            enough()
        elif once:
            enough(f"step {node.step} has effect='once': it is not run again to compare; adopt it with --verify 0")

    def compared_with(self, node: Node) -> list[Node]:
        """The same call under earlier codes, the newest first."""
        alike = [pair for pair in self.kept_of(node).others(node) if pair[0].arguments == node.arguments]
        newest = sorted(alike, key=lambda pair: pair[1].time, reverse=True)
        return list({other.code: other for other, _ in newest}.values())

    def compared(self, node: Node, found: Mapping[Node, str]) -> None:
        for other, said in found.items():
            pair = other.code, node.code
            self._codes[pair] = self._codes.get(pair, True) and not said

    def judge(self, node: Node, said: str) -> None:
        super().judge(node, said)
        if said or len(self._found.equal) >= self._verify:
            enough()
