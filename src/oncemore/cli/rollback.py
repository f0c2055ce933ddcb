"""Commands that change a run's history without removing anything: `rollback`, `fork`, `rename`, `pin`, `resolve`, `answer`."""

from __future__ import annotations

import json
from typing import Any

import click

from .. import UsageError
from ..errors import did_you_mean
from . import options
from .options import complete_checkpoint, open_history
from .output import plural


@click.command()
@options.run
@click.option("--to", shell_complete=complete_checkpoint, metavar="CHECKPOINT", help="The last checkpoint to keep.")
@click.option(
    "--before",
    shell_complete=complete_checkpoint,
    metavar="CHECKPOINT",
    help="The first checkpoint to ignore.",
)
@click.option("--undo", is_flag=True, help="Undo the last rollback; checkpoints made since then are ignored.")
@options.store
@options.yes
def rollback(run: str, to: str | None, before: str | None, undo: bool, store: str | None, yes: bool) -> None:
    """Roll back to a checkpoint, ignoring everything after it.

    Nothing is removed. CHECKPOINT is an id, a name, a node or a step as `show` prints them; if several match, the newest is
    used.
    """
    if sum((to is not None, before is not None, undo)) != 1:
        raise click.UsageError("Give exactly one of --to, --before and --undo.")
    history = open_history(store)
    found = history.run(run)
    if undo:
        options.confirm(f"Undo the last rollback of {run}? Checkpoints made since then will be ignored.", yes)
        history.undo_rollback(run)
        click.echo(f"run {run}: rollback undone, {plural(len(found.checkpoints), 'checkpoint')} in use")
        return
    target = found.checkpoints.find(to or before or "")
    ignored = len(found.checkpoints) - target.index - (to is not None)
    options.confirm(f"Ignore {plural(ignored, 'checkpoint')} of {run} from now on?", yes)
    history.rollback(run, to=target.id if to else None, before=target.id if before else None)
    left = plural(len(found.checkpoints), "checkpoint")
    click.echo(f"run {run}: {left} left; to undo, run `oncemore rollback {run} --undo`")


def _setting(text: str) -> tuple[str, Any]:
    """`key=value`; a value that is not JSON is taken as text."""
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
    help="The last checkpoint to share with the fork; default all.",
)
@click.option(
    "--set",
    "settings",
    type=_setting,
    multiple=True,
    metavar="KEY=VALUE",
    help="An initial value in run.state, as JSON or plain text. Can be repeated.",
)
@options.store
def fork(run: str, new: str, at: str | None, settings: tuple[tuple[str, Any], ...], store: str | None) -> None:
    """Create a run NEW that starts from a checkpoint of RUN.

    RUN is not changed, and no values are copied.
    """
    history = open_history(store)
    forked = history.fork(run, new, at=at, state=dict(settings))
    click.echo(f"run {new}: shares {plural(len(forked.checkpoints), 'checkpoint')} with {run}")


@click.command()
@options.run
@click.argument("new")
@options.store
def rename(run: str, new: str, store: str | None) -> None:
    """Change a run's id."""
    open_history(store).rename(run, new)
    click.echo(f"run {run} renamed to {new}")


@click.command()
@options.run
@options.node
@click.option("--off", is_flag=True, help="Unpin it.")
@options.store
def pin(run: str, node: str, off: bool, store: str | None) -> None:
    """Pin a checkpoint, so that `prune --keep pinned` keeps it."""
    history = open_history(store)
    checkpoint = history.run(run).checkpoints.find(node)
    history.pin(run, checkpoint.id, not off)
    click.echo(f"checkpoint {checkpoint.id} {'unpinned' if off else 'pinned'}")


@click.command()
@options.run
@click.argument("which", metavar="NODE|KEY|STEP")
@click.option("--happened/--did-not", default=None, help="Whether the effect happened.")
@click.option("--result", metavar="JSON", help="With --happened: the step's return value; default null.")
@options.store
def resolve(run: str, which: str, happened: bool | None, result: str | None, store: str | None) -> None:
    """Settle an interrupted step with effect="once".

    oncemore cannot know whether the effect happened: find out, then say so here. `show` and the error UnknownOutcome name the
    NODE and the KEY; the name of the STEP is enough if only one of its calls is unknown. With --happened, the step does not run
    again and returns the given result; with --did-not, it runs again.
    """
    if happened is None:
        raise click.UsageError("Give --happened or --did-not.")
    if result is not None and not happened:
        raise click.UsageError("--result needs --happened.")
    try:
        value = None if result is None else json.loads(result)
    except ValueError as error:
        raise click.UsageError(f"--result is not JSON: {error}. Quote text twice: '\"text\"'") from error
    history = open_history(store)
    unknown = history.unknown_outcomes(run)
    if not any(which in (each.node, each.key, each.step) for each in unknown):
        hint = did_you_mean(which, [name for each in unknown for name in (each.node, each.key, each.step)])
        known = ", ".join(each.node for each in unknown) or "none"
        raise UsageError(f"run {run} has no unknown outcome {which!r}; unknown outcomes: {known}.{hint}")
    history.resolve(run, which, happened=happened, result=value)
    click.echo(
        f"run {run}: {which} {'is done and will not run again' if happened else 'will run again with the next start'}"
    )


@click.command()
@options.run
@click.argument("which", metavar="NAME|NODE")
@click.argument("value")
@options.store
def answer(run: str, which: str, value: str, store: str | None) -> None:
    """Answer a question of `run.ask`.

    `show` lists the questions that RUN waits for. The NAME is enough unless several have it. VALUE is one of the choices, or a
    text or number, as the script asks for. Then start the script again.
    """
    found = open_history(store).answer(run, which, value)
    click.echo(f"run {run}: {which} is answered with {found!r}; run the script again to continue")
