"""Commands that run a script to look or to compare: `plan`, `adopt`, `audit`."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager

import click

from .. import UsageError
from ..durations import duration
from ..history.history import PastRun
from ..rehearsal import audit as rehearsal
from ..rehearsal.audit import Audit, Plan, Progress
from . import options
from .codes import DONE, FAILED, UNWELL, WOULD_RUN
from .names import alike, complete_checkpoint, find_run, opened
from .output import Part, columns, plural, print_json, print_tables

_PLAN = columns("step", "would", "times", "time", "why", numbers=("times",), text="why")
_DIFFERING = columns("node", "what differs", text="what differs")


class WithScript(click.Command):
    """A command whose last argument is a script: what stands after that belongs to the script, options included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = sum(isinstance(each, click.Argument) for each in self.params) - 1  # the arguments before the script
        options = [each for each in self.params if isinstance(each, click.Option)]
        valued = {name for each in options if not each.is_flag for name in each.opts}
        at = found = 0
        while at < len(args) and found <= own and args[at] != "--":
            is_option = args[at].startswith("-")
            found += not is_option
            at += 2 if is_option and args[at] in valued else 1
        return super().parse_args(ctx, [*args[:at], *(["--"] if found > own else []), *args[at:]])


def _share(text: str) -> float:
    """A part of all: "1%" or "0.01"."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise click.BadParameter(f"{text!r} is no share: write '1%' or '0.01'")
    return share


_script = click.argument("script", nargs=-1, type=click.UNPROCESSED, required=True, metavar="SCRIPT [ARGS]...")
_known_script = click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]...]")
_module = click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in `python -m`.")


@click.command(cls=WithScript)
@_script
@_module
@options.reading
@click.pass_context
def plan(ctx: click.Context, script: tuple[str, ...], module: bool, store: str | None, as_json: bool) -> None:
    """Say what a script would reuse, what would run and why.

    Runs SCRIPT until the first step that would run, and no step. What SCRIPT does outside of steps, it does; what it prints
    goes to standard error. Nothing is written to its store. A `run.loop` that is not finished counts as a step that would run.

    The exit code is 0 if everything would be reused, 6 if something would run, 1 if SCRIPT failed by itself.
    """
    command = _command(script, module)
    with _default_store(store):
        found = rehearsal.plan(command[0], command[1:])
    if as_json:
        steps = [dict(zip(("step", "times", "seconds_saved"), each)) for each in found.reused]
        print_json({**dataclasses.asdict(found), "reused": steps})
    else:
        print_tables(*_planned(found))
    if found.trouble:
        click.echo(f"oncemore: {found.trouble}", err=True)
    ctx.exit(FAILED if found.trouble else WOULD_RUN if found.step else DONE)


def _planned(found: Plan) -> list[Part]:
    rows = [(step, "be reused", f"{times:,}", f"{duration(saved)} saved", "") for step, times, saved in found.reused]
    if found.step:
        took = "" if found.took is None else f"took {duration(found.took)}"
        rows.append((found.step, "run", "", took, found.why or ""))
    parts: list[Part] = [f"run {found.run}", "", (_PLAN, rows), ""] if rows else []
    if found.step:
        return [*parts, f"{found.node} would run; what comes after it is not known before."]
    saved = sum(each[2] for each in found.reused)
    if found.trouble:
        return parts[:-1]
    return [*parts, f"Everything would be reused: {duration(saved)} saved." if rows else "No step would run."]


@click.command(cls=WithScript)
@options.run
@click.argument("step", shell_complete=complete_checkpoint)
@_known_script
@click.option(
    "--verify", type=click.IntRange(min=0), default=1, metavar="N", help="How many calls to compare; 1 if not said."
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
    """Let the checkpoints of a step count for its present code.

    For an edit that is known to change no result. Runs SCRIPT (if none is said, that which opened RUN last) to see the present
    code, and with it N calls of STEP that are kept under an earlier code. If they do what they did, the checkpoints of that
    code count from now on, and an event of RUN tells so. If one differs, nothing is adopted.
    """
    history = opened(store)
    found = find_run(history, run)
    steps = list(dict.fromkeys(each.step for each in found.checkpoints if each.step))
    if step not in steps:
        raise UsageError(f"run {run} has no checkpoint of a step {step!r}.{alike(step, steps)}")
    command = _command(script, module, found)
    compare = (
        f"Run {shlex.join(command)} and {plural(verify, 'call')} of {step} to compare, then let its checkpoints count?"
    )
    adopt = f"Let the checkpoints of {step} count for its present code, without comparing?"
    options.ask(compare if verify else adopt, yes)
    with _default_store(store), _progress() as progress:
        done = rehearsal.adopt(history.store, run, step, command[0], command[1:], verify=verify, progress=progress)
    if done.differing:
        print_tables((_DIFFERING, done.differing), "", f"{_counted(done)}: nothing was adopted")
        ctx.exit(UNWELL)
    if done.stopped:
        raise UsageError(f"nothing was adopted: {done.stopped}")
    click.echo(f"run {run}: checkpoints of {step} count for its present code ({_counted(done)})")


@click.command(cls=WithScript)
@options.run
@_known_script
@click.option(
    "--sample", type=_share, default="100%", metavar="SHARE", help="How many of the nodes to compare; all if not said."
)
@_module
@options.reading
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
    """Run steps again and compare what they do with what is kept.

    Finds steps that are not deterministic, and checkpoints that are stale. Runs SCRIPT (if none is said, that which opened RUN
    last), and with it the steps that are kept, or a SHARE of them ("1%"). They do what they do, files included; nothing is
    written to the store. Steps with effect="once" are not run, nor those in other processes, nor what a finished `run.loop`
    did. It ends at the first step that would run anyway.

    The exit code is 3 if something differs, 1 if nothing could be compared.
    """
    found = find_run(opened(store), run)
    command = _command(script, module, found)
    with _default_store(store), _progress() as progress:
        done = rehearsal.audit(run, command[0], command[1:], sample=sample, progress=progress)
    if as_json:
        differing = [dict(zip(("node", "difference"), each)) for each in done.differing]
        print_json({**dataclasses.asdict(done), "differing": differing})
    else:
        ended = [f"It went no further: {done.stopped}"] if done.stopped else []
        table: list[Part] = [(_DIFFERING, done.differing), ""] if done.differing else []
        print_tables(*table, _counted(done), *ended)
    ctx.exit(UNWELL if done.differing else FAILED if done.stopped and not done.equal else DONE)


def _counted(done: Audit) -> str:
    compared = len(done.equal) + len(done.differing)
    return f"{plural(compared, 'node')} compared: {len(done.equal)} equal, {len(done.differing)} different"


def _command(script: tuple[str, ...], module: bool, run: PastRun | None = None) -> list[str]:
    """What was said, or what opened the run last."""
    if script:
        return ["-m"] * module + list(script)
    if run is None or module:
        raise click.UsageError("-m needs the name of a module.")
    return rehearsal.command_of(run.store, run.id)


@contextmanager
def _default_store(store: str | None) -> Generator[None, None, None]:
    """Let the script take that store, unless it names one itself."""
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
    """A line on standard error that counts, if that is a terminal. It has no thread of its own: the script may fork."""
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
