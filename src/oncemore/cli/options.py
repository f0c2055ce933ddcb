"""Options and arguments shared by several commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .. import OncemoreError
from .names import complete_checkpoint, complete_run

Command = TypeVar("Command", bound=Callable[..., Any])

store = click.option(
    "--store", metavar="PATH|URL", help="The store to use. Default: ONCEMORE_STORE, else ./.oncemore.", is_eager=True
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
