"""Commands that run a script to predict or compare results: `plan`, `adopt`, `audit`."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager

import click

from .. import UsageError
from ..errors import did_you_mean
from ..history.history import PastRun
from ..rehearsal import audit as rehearsal
from ..rehearsal.audit import Audit, Plan, Progress
from ..settings import duration
from . import DONE, FAILED, PROBLEMS, WOULD_RUN, options
from .options import complete_checkpoint, open_history
from .output import Part, columns, plural, print_result, print_tables

_PLAN = columns("step", "would", "times", "time", "why", numbers=("times",), text="why")
_DIFFERENCES = columns("node", "what differs", text="what differs")


class WithScript(click.Command):
    """A command whose last argument is a script. Arguments after the script's name are passed to it, options included.

    Two exceptions: `--json` belongs to the command, and so do all of the command's options before a `--`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = sum(isinstance(each, click.Argument) for each in self.params) - 1  # the arguments before the script
        options = [each for each in self.params if isinstance(each, click.Option)]
        takes = {name: 1 if each.is_flag else 2 for each in options for name in each.opts}
        at = found = 0
        while at < len(args) and found <= own and args[at] != "--":
            is_option = args[at].startswith("-")
            found += not is_option
            at += takes.get(args[at], 1) if is_option else 1
        if found <= own:
            return super().parse_args(ctx, args)
        script, rest = args[at - 1], args[at:]
        end = rest.index("--") if "--" in rest else len(rest)
        mine = takes if end < len(rest) else {name: 1 for name in takes if name == "--json"}
        before, words = args[: at - 1], list[str]()
        at = 0
        while at < end:
            count = mine.get(rest[at], 0)
            before += rest[at : at + count]
            words += rest[at : at + 1] if not count else []
            at += count or 1
        return super().parse_args(ctx, [*before, "--", script, *words, *rest[end + 1 :]])


def _share(text: str) -> float:
    """A fraction, written as "1%" or "0.01"."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise click.BadParameter(f"{text!r} is not a share; write '1%' or '0.01'")
    return share


_script = click.argument("script", nargs=-1, type=click.UNPROCESSED, required=True, metavar="SCRIPT [ARGS]...")
_known_script = click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]...]")
_module = click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in `python -m`.")


@click.command(cls=WithScript)
@_script
@_module
@options.reads
@click.pass_context
def plan(ctx: click.Context, script: tuple[str, ...], module: bool, store: str | None, as_json: bool) -> None:
    """Predict what a script would reuse, what would run, and why.

    Runs SCRIPT up to the first step that would run, without running any step. Code outside of steps does run; its output goes
    to standard error. Nothing is written to the store. An unfinished `run.loop` is treated as a step that would run.

    What follows SCRIPT is passed to it, except --json. If SCRIPT has options of these names, put -- before them: all options
    of this command come before it, all of SCRIPT's after it.

    The exit code is 0 if everything would be reused, 6 if a step would run, 1 if SCRIPT itself failed.
    """
    command = _command(script, module)
    with _default_store(store):
        found = rehearsal.plan(command[0], command[1:])
    steps = [dict(zip(("step", "times", "seconds_saved"), each)) for each in found.reused]
    print_result(as_json, {**dataclasses.asdict(found), "reused": steps}, *_plan_lines(found))
    if found.trouble:
        click.echo(f"oncemore: {found.trouble}", err=True)
    ctx.exit(FAILED if found.trouble else WOULD_RUN if found.step else DONE)


def _plan_lines(found: Plan) -> list[Part]:
    rows = [(step, "be reused", f"{times:,}", f"{duration(saved)} saved", "") for step, times, saved in found.reused]
    if found.step:
        took = "" if found.took is None else f"took {duration(found.took)}"
        rows.append((found.step, "run", "", took, found.why or ""))
    parts: list[Part] = [f"run {found.run}", "", (_PLAN, rows), ""] if rows else []
    if found.step:
        return [*parts, f"{found.node} would run. Later steps can't be predicted until it has run."]
    if found.trouble:
        return parts[:-1]
    return [
        *parts,
        f"Everything would be reused: {duration(found.seconds_saved)} saved." if rows else "No step would run.",
    ]


@click.command(cls=WithScript)
@options.run
@click.argument("step", shell_complete=complete_checkpoint)
@_known_script
@click.option(
    "--verify", type=click.IntRange(min=0), default=1, metavar="N", help="How many calls to compare; default 1."
)
@_module
@options.store
@options.yes
@click.pass_context
def adopt(
    ctx: click.Context,
    run: str,
    step: str,
    script: tuple[str, ...],
    verify: int,
    module: bool,
    store: str | None,
    yes: bool,
) -> None:
    """Reuse a step's checkpoints although its code changed.

    For edits that do not change any result. Runs SCRIPT (default: the script that last opened RUN) with the current code, and
    runs N calls of STEP again that have checkpoints from earlier code. If their results are the same, the checkpoints are valid
    for the current code from now on, and RUN records an event. If one differs, nothing is adopted.
    """
    history = open_history(store)
    found = history.run(run)
    steps = list(dict.fromkeys(each.step for each in found.checkpoints if each.step))
    if step not in steps:
        raise UsageError(f"run {run} has no checkpoint of step {step!r}.{did_you_mean(step, steps)}")
    command = _command(script, module, found)
    if verify:
        rerun = f"Run {shlex.join(command)}, compare {plural(verify, 'call')} of {step}"
        question = f"{rerun}, and adopt its checkpoints if the results are the same?"
    else:
        question = f"Adopt the checkpoints of {step} for its current code without comparing?"
    options.confirm(question, yes)
    with _default_store(store), _progress() as progress:
        done = rehearsal.adopt(history.store, run, step, command[0], command[1:], verify=verify, progress=progress)
    if done.differing:
        print_tables((_DIFFERENCES, done.differing), "", f"{_counted(done)}; nothing was adopted")
        ctx.exit(PROBLEMS)
    if done.stopped:
        raise UsageError(f"nothing was adopted: {done.stopped}")
    click.echo(f"run {run}: checkpoints of {step} adopted for its current code ({_counted(done)})")


@click.command(cls=WithScript)
@options.run
@_known_script
@click.option(
    "--sample", type=_share, default="100%", metavar="SHARE", help="What share of the nodes to compare; default all."
)
@_module
@options.reads
@click.pass_context
def audit(
    ctx: click.Context,
    run: str,
    script: tuple[str, ...],
    sample: float,
    module: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Run steps again and compare them with their checkpoints.

    Finds steps that are not deterministic and checkpoints that are stale. Runs SCRIPT (default: the script that last opened
    RUN) and, in it, the steps that have checkpoints, or a SHARE of them ("1%"). They really run and may write files; nothing is
    written to the store. Not run again: steps with effect="once", steps in other processes, and finished `run.loop`s. The audit
    ends at the first step that would run anyway.

    The exit code is 3 if a node differs, 1 if SCRIPT itself failed or nothing could be compared.
    """
    found = open_history(store).run(run)
    command = _command(script, module, found)
    with _default_store(store), _progress() as progress:
        done = rehearsal.audit(run, command[0], command[1:], sample=sample, progress=progress)
    differing = [dict(zip(("node", "difference"), each)) for each in done.differing]
    stopped = [f"Stopped early: {done.stopped}"] if done.stopped else []
    table: list[Part] = [(_DIFFERENCES, done.differing), ""] if done.differing else []
    print_result(as_json, {**dataclasses.asdict(done), "differing": differing}, *table, _counted(done), *stopped)
    incomplete = done.failed or (done.stopped and not done.equal)
    ctx.exit(PROBLEMS if done.differing else FAILED if incomplete else DONE)


def _counted(done: Audit) -> str:
    compared = len(done.equal) + len(done.differing)
    return f"{plural(compared, 'node')} compared: {len(done.equal)} equal, {len(done.differing)} different"


def _command(script: tuple[str, ...], module: bool, run: PastRun | None = None) -> list[str]:
    """The script and its arguments: those given, or those that last opened the run."""
    if script:
        return ["-m"] * module + list(script)
    if run is None or module:
        raise click.UsageError("-m needs a module name.")
    return rehearsal.command_of(run.store, run.id)


@contextmanager
def _default_store(store: str | None) -> Generator[None, None, None]:
    """Make this the default store of the script; one that the script names takes precedence."""
    before = dict(os.environ)
    if store is not None:
        os.environ["ONCEMORE_STORE"] = store if "://" in store else os.path.abspath(store)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _progress() -> Generator[Progress | None, None, None]:
    """A progress line on standard error, if that is a terminal. Uses no thread, because the script may fork."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    counts = [0, 0]
    with Live("comparing", console=Console(stderr=True), auto_refresh=False, transient=True) as line:

        def compared(node: str, difference: str) -> None:
            counts[bool(difference)] += 1
            line.update(f"compared {sum(counts):,} ({counts[1]:,} different), last {node}", refresh=True)

        yield compared
