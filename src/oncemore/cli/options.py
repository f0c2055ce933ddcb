"""Options and arguments that commands share: the store, runs and checkpoints by name, confirmations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .. import History, OncemoreError, UsageError
from ..stores import default_target, store_exists

_COMPLETIONS = 100


def existing_store(store: str | None) -> str:
    """The given or default store. UsageError if it does not exist: a command that reads must not create one."""
    target = store or default_target()
    if not store_exists(target):
        raise UsageError(f"there is no store at {target}; choose one with --store or ONCEMORE_STORE")
    return target


def open_history(store: str | None) -> History:
    """The history of the given or default store."""
    return History(existing_store(store))


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Run ids that start with `incomplete`."""
    try:
        return open_history(ctx.params.get("store")).run_ids(incomplete, _COMPLETIONS)
    except OncemoreError:  # an error message would disturb the command line being typed
        return []


def complete_checkpoint(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Checkpoints that start with `incomplete`, of the run given earlier on the command line."""
    try:
        run = open_history(ctx.params.get("store")).run(ctx.params["run"])
        names = dict.fromkeys(name for c in run.checkpoints for name in (c.name, c.step, c.node) if name)
        return [name for name in names if name.startswith(incomplete)][:_COMPLETIONS]
    except (OncemoreError, KeyError):
        return []


Command = TypeVar("Command", bound=Callable[..., Any])

store = click.option(
    "--store",
    metavar="PATH|URL",
    help="The store to use. Default: ONCEMORE_STORE, else .oncemore in the project that you are in.",
    is_eager=True,
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
yes = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
run = click.argument("run", shell_complete=complete_run)
node = click.argument("node", shell_complete=complete_checkpoint)


def reads(command: Command) -> Command:
    """Add --store and --json, the options of every command that reads."""
    return as_json(store(command))


class Declined(OncemoreError):
    """The user did not confirm."""


def confirm(question: str, yes: bool) -> None:
    """Raise Declined unless the user agrees, now or with --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Declined(f"{question} Confirmation required; rerun with --yes.")
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise Declined("nothing was done")


def confirm_replace(path: str, yes: bool) -> None:
    """Ask before an existing file is replaced."""
    if path != "-" and os.path.lexists(path):
        confirm(f"{path} exists. Replace it?", yes)
