"""Commands that reshape the past of a run, and remove nothing: `rollback`, `fork`, `rename`, `pin`, `resolve`."""

from __future__ import annotations

import json
from typing import Any

import click

from .. import UsageError
from . import options
from .names import alike, complete_checkpoint, find_checkpoint, find_run, opened
from .output import plural


@click.command()
@options.run
@click.option("--to", shell_complete=complete_checkpoint, metavar="CHECKPOINT", help="The last one that still counts.")
@click.option(
    "--before",
    shell_complete=complete_checkpoint,
    metavar="CHECKPOINT",
    help="The first one that does not count any more.",
)
@click.option("--undo", is_flag=True, help="Take the last rollback back; what came since then does not count any more.")
@options.store
@options.yes
def rollback(run: str, to: str | None, before: str | None, undo: bool, store: str | None, yes: bool) -> None:
    """Let what came after a checkpoint not count any more.

    Nothing is removed. CHECKPOINT is an id, a name, a node or a step as `show` prints them; where several fit, the newest.
    """
    if sum((to is not None, before is not None, undo)) != 1:
        raise click.UsageError("Say one of --to, --before and --undo.")
    history = opened(store)
    found = find_run(history, run)
    if undo:
        options.ask(f"Take the last rollback of {run} back? What came since then does not count any more.", yes)
        history.undo_rollback(run)
        click.echo(f"run {run}: {plural(len(found.checkpoints), 'checkpoint')} count again")
        return
    target = find_checkpoint(found, to or before or "")
    counting = found.checkpoints
    going = len(counting) - target.index - (to is not None)
    options.ask(f"{plural(going, 'checkpoint')} of {run} will not count any more. Go on?", yes)
    history.rollback(run, to=target.id if to else None, before=target.id if before else None)
    click.echo(
        f"run {run}: {plural(len(found.checkpoints), 'checkpoint')} left; `oncemore rollback {run} --undo` takes it back"
    )


def _setting(text: str) -> tuple[str, Any]:
    """`key=value`; the value is JSON, or else the text itself."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not of the form key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


@click.command()
@options.run
@click.argument("new")
@click.option(
    "--at",
    shell_complete=complete_checkpoint,
    metavar="CHECKPOINT",
    help="The last checkpoint that the fork shares; else all.",
)
@click.option(
    "--set",
    "settings",
    type=_setting,
    multiple=True,
    metavar="KEY=VALUE",
    help="An initial value of run.state; JSON, else the text itself. As often as needed.",
)
@options.store
def fork(run: str, new: str, at: str | None, settings: tuple[tuple[str, Any], ...], store: str | None) -> None:
    """Make a run NEW that begins as RUN was at a checkpoint.

    RUN is left as it is, and no value is copied.
    """
    history = opened(store)
    found = find_run(history, run)
    target = find_checkpoint(found, at).id if at else None
    made = history.fork(run, new, at=target, state=dict(settings))
    click.echo(f"run {new}: shares {plural(len(made.checkpoints), 'checkpoint')} with {run}")


@click.command()
@options.run
@click.argument("new")
@options.store
def rename(run: str, new: str, store: str | None) -> None:
    """Give a run another id."""
    history = opened(store)
    find_run(history, run)
    history.rename(run, new)
    click.echo(f"run {run} is called {new} now")


@click.command()
@options.run
@options.node
@click.option("--off", is_flag=True, help="Take the pin away.")
@options.store
def pin(run: str, node: str, off: bool, store: str | None) -> None:
    """Pin a checkpoint: `prune --keep pinned` keeps it."""
    history = opened(store)
    checkpoint = find_checkpoint(find_run(history, run), node)
    history.pin(run, checkpoint.id, not off)
    click.echo(f"checkpoint {checkpoint.id} is {'not pinned any more' if off else 'pinned'}")


@click.command()
@options.run
@click.argument("which", metavar="NODE|KEY")
@click.option("--happened/--did-not", default=None, help="Whether the effect took place.")
@click.option("--result", metavar="JSON", help="What the step would have returned, if it happened; null if not said.")
@options.store
def resolve(run: str, which: str, happened: bool | None, result: str | None, store: str | None) -> None:
    """Answer for a step with effect="once" that was cut off.

    Nobody knows whether its effect took place: find out, then say so. NODE or KEY is what `show` and the error UnknownOutcome
    name. With --happened the step is not run again, and returns the result; with --did-not it runs.
    """
    if happened is None:
        raise click.UsageError("Say --happened or --did-not.")
    if result is not None and not happened:
        raise click.UsageError("What did not happen has no --result.")
    try:
        value = None if result is None else json.loads(result)
    except ValueError as error:
        raise click.UsageError(f"--result is not JSON: {error} (a text needs quotes of its own: '\"text\"')") from error
    history = opened(store)
    find_run(history, run)
    unknown = history.unknown_outcomes(run)
    if not any(which in (each.node, each.key) for each in unknown):
        hint = alike(which, [name for each in unknown for name in (each.node, each.key)])
        known = ", ".join(each.node for each in unknown) or "none"
        raise UsageError(f"run {run} has no unknown outcome called {which!r} (there are: {known}).{hint}")
    history.resolve(run, which, happened=happened, result=value)
    click.echo(f"run {run}: {which} {'counts as done' if happened else 'runs again'} when the run is started again")
