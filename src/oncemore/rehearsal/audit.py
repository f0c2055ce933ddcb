"""Runs a script to predict what it would do (`plan`), or to compare checkpoints with current results (`audit`, `adopt`).

The script runs in this process, on an overlay of its store: reused steps are restored as usual, and nothing is written to the
store. Code outside of steps does run. Output goes to standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from blake3 import blake3

from .. import records
from ..errors import CodecError, StoreError, UsageError
from ..events import Event, StepAdopted, StepCompleted, StepEvent, StepFailed, StepNotKept
from ..history.compare import difference, outcome
from ..identity import code_of
from ..keys import SHARED
from ..node import Node
from ..records import Record
from ..reuse import Reuse
from ..stores import Store
from ..surroundings import digest_of
from ..surroundings.state import ABSENT
from .dry_run import DryRun, StepPolicy, enough
from .script import rehearse

Progress = Callable[[str, str], object]  # called with a compared node and its difference, if any


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a script would do: the steps that would be reused (name, times, seconds saved), and the first that would run.

    `run` is the run that was opened last; `seconds_saved` is the time that all reused calls took on the clock; `took` is how
    long the step took when it last ran, None if it never ran. `trouble` says how the script itself failed.
    """

    run: str | None
    reused: Sequence[tuple[str, int, float]]
    seconds_saved: float = 0.0
    step: str | None = None
    node: str | None = None
    why: str | None = None
    took: float | None = None
    trouble: str | None = None


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of a comparison: equal nodes, and nodes that differ, and how.

    `stopped` says why it ended early, `failed` whether the script itself failed.
    """

    equal: list[str] = field(default_factory=list[str])
    differing: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    stopped: str | None = None
    failed: bool = False


def plan(script: str, arguments: Sequence[str] = ()) -> Plan:
    """Run a script up to the first step that would run, and tell what would be reused, what would run, and why.

    With `script="-m"`, the first argument is the name of a module, as for Python. No step's body runs.
    """
    rehearsal = rehearse(script, arguments, StepPolicy())
    reuse = Reuse()
    for run in rehearsal.runs:
        reuse.update(run.reuse)
    for step, ended, seconds in rehearsal.elsewhere:
        reuse.add(step, ended, seconds)
    reused = [(step, count, reuse.seconds(step)) for step, count in reuse.times.items()]
    stop, opened = rehearsal.stop, [run for run in rehearsal.runs if run.id]
    if stop is None:
        return Plan(
            run=opened[-1].id if opened else None, reused=reused, seconds_saved=reuse.seconds(), trouble=rehearsal.end
        )
    events = [event for run in opened[::-1] if run.id == stop.run for event in run.run.events()]
    took = [event.seconds for event in events if isinstance(event, StepCompleted) and event.step == stop.step]
    about = {**stop._asdict(), "run": stop.run or None}
    return Plan(reused=reused, seconds_saved=reuse.seconds(), took=took[-1] if took else None, **about)


def audit(
    run_id: str, script: str, arguments: Sequence[str] = (), *, sample: float = 1.0, progress: Progress | None = None
) -> Audit:
    """Run a script and, in it, a share of the steps that have checkpoints; compare the results with the checkpoints.

    Steps with effect="once", steps in other processes and finished `run.loop`s are not run again. The audit ends at a step that
    has no checkpoint, for instance because of a difference in an earlier step.
    """
    policy = _Auditing(run_id, progress, sample)
    rehearsal = rehearse(script, arguments, policy)
    rehearsal.check(run_id, script)
    return Audit(equal=policy.equal, differing=policy.differing, stopped=rehearsal.end, failed=rehearsal.failed)


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
    """Make the checkpoints of a step valid for its current code, if `verify` nodes give equal results when run again.

    The script is run to learn the step's current code and arguments. Of several earlier versions of the code, those are adopted
    for which every compared node was equal. Nothing is adopted if a node differs from all versions, or if there was too little
    to compare; `stopped` then says why.
    """
    policy = _Adopting(run_id, progress, step, verify)
    rehearsal = rehearse(script, arguments, policy)
    rehearsal.check(run_id, script, store)
    found = Audit(equal=policy.equal, differing=policy.differing)
    if found.differing:
        return found
    pairs = [[step, *pair] for pair, equal in sorted(policy.codes.items()) if equal]
    if not pairs or (rehearsal.end and len(found.equal) < verify):
        stopped = f"no call of {step} has a checkpoint from other code"
        if policy.codes:
            stopped = "no earlier version gives equal results for all calls"
        return Audit(equal=found.equal, stopped=rehearsal.end or stopped)

    def change(record: Record) -> list[Event]:
        record.adopted = [*(each for each in record.adopted if each not in pairs), *pairs]
        return [StepAdopted(step=s, before=b, after=a, compared=len(found.equal)) for s, b, a in pairs]

    records.change(store, run_id, change)
    return found


def command_of(store: Store, run_id: str) -> list[str]:
    """The script that last opened a run, with its arguments. UsageError if unknown."""
    script = records.read(store, run_id).script
    if not script:
        raise UsageError(f"the script that opened run {run_id} is not known; give it with its arguments")
    return script


class _Comparing(StepPolicy):
    """Compares results of one run's steps with their checkpoints.

    `codes` tells for each pair of an earlier version of the code and the current one whether all nodes were equal.
    """

    def __init__(self, run_id: str, progress: Progress | None) -> None:
        self.run_id, self._progress = run_id, progress
        self.equal: list[str] = []
        self.differing: list[tuple[str, str]] = []
        self.codes: dict[tuple[str, str], bool] = {}

    def counterparts(self, run: DryRun, node: Node) -> list[Node]:
        """The nodes whose checkpoints a node is compared with; it must be equal to one of them."""
        return [node]

    def heard(self, run: DryRun, event: StepEvent) -> None:
        if isinstance(event, StepCompleted):
            differs = self._compare(run, event)
        elif isinstance(event, StepNotKept):
            differs = f"its result can no longer be saved: {event.reason}"
        elif isinstance(event, StepFailed):
            differs = f"it fails: {event.error}"
        else:
            return
        if differs:
            self.differing.append((event.node, differs))
        else:
            self.equal.append(event.node)
        if self._progress is not None:
            self._progress(event.node, differs)

    def _compare(self, run: DryRun, event: StepCompleted) -> str:
        entries = run.shared if event.entry.startswith(SHARED) else run.entries
        node, new = entries.node(event.step, *event.fingerprint.split(".")), entries.read(event.entry)
        assert new is not None
        reads, result = new.meta.get("reads", {}), outcome(entries, new)
        found: list[str] = []
        for other in self.counterparts(run, node):
            try:
                old = run.stored(node).find(other, lambda name: reads.get(name, ABSENT)).entry
                other_state = "it reads different state than when its checkpoint was made"
                found.append(other_state if old is None else difference(outcome(run.stored(node), old), result))
            except (CodecError, StoreError) as error:
                found.append(f"it cannot be compared: {error}")
            pair = code_of(other.code), code_of(node.code)
            self.codes[pair] = self.codes.get(pair, True) and not found[-1]
        return "" if "" in found else found[0]


class _Auditing(_Comparing):
    """Runs a share of the nodes that have checkpoints."""

    def __init__(self, run_id: str, progress: Progress | None, sample: float) -> None:
        super().__init__(run_id, progress)
        self._sample = sample

    def wants_fresh(self, run: DryRun, node: Node, *, once: bool) -> bool:
        drawn = int.from_bytes(blake3(node.key.encode()).digest(length=4), "big") / 2**32  # the same every time
        return drawn < self._sample and node.key not in run.used_nodes and self.lets_run(run, node, once=once)

    def lets_run(self, run: DryRun, node: Node, *, once: bool) -> bool:
        try:
            return not once and run.stored(node).find(node, partial(digest_of, run)).entry is not None
        except StoreError:  # the damage is reported when the call looks it up
            return False


class _Adopting(_Comparing):
    """Runs calls of one step that have checkpoints from earlier versions of its code."""

    def __init__(self, run_id: str, progress: Progress | None, step: str, verify: int) -> None:
        super().__init__(run_id, progress)
        self._step, self._verify = step, verify

    def wants_fresh(self, run: DryRun, node: Node, *, once: bool) -> bool:
        """True for an effect="once" step that could be adopted, so that `lets_run` is called for it. It does not run again."""
        if not once or node.step != self._step:
            return False
        return run.stored(node).find(node, partial(digest_of, run)).entry is None and bool(self.counterparts(run, node))

    def lets_run(self, run: DryRun, node: Node, *, once: bool) -> bool:
        earlier = self.counterparts(run, node) if node.step == self._step else []
        if not earlier:
            return False
        if node.owner == "shared":
            enough(f"step {node.step} shares its results with all runs, so a single run cannot adopt them")
        if not self._verify:
            self.codes[code_of(earlier[0].code), code_of(node.code)] = True
        self._end()  # the script may have continued after enough nodes were compared
        if once:
            enough(f"step {node.step} has effect='once' and is not run again to compare; adopt it with --verify 0")
        return True

    def counterparts(self, run: DryRun, node: Node) -> list[Node]:
        """The same call under earlier versions of the code, newest first."""
        same_call = [each for each in run.stored(node).others(node) if each[0].arguments == node.arguments]
        newest = sorted(same_call, key=lambda each: each[1].time, reverse=True)
        return list({other.code: other for other, *_ in newest}.values())

    def heard(self, run: DryRun, event: StepEvent) -> None:
        super().heard(run, event)
        self._end()

    def _end(self) -> None:
        if self.differing or len(self.equal) >= self._verify:
            enough()
