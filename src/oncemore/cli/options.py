"""Options and arguments that several commands have."""

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
    "--store", metavar="PATH|URL", help="The store; else that of ONCEMORE_STORE, else ./.oncemore.", is_eager=True
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
yes = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
run = click.argument("run", shell_complete=complete_run)
node = click.argument("node", shell_complete=complete_checkpoint)


def reading(command: Command) -> Command:
    """Of every command that reads: where from, and for whom."""
    return as_json(store(command))


class Declined(OncemoreError):
    """Something that the user did not agree to."""


def ask(question: str, yes: bool) -> None:
    """Go on only if the user says so, now or with --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Declined(f"{question} There is no terminal to ask on: say --yes")
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise Declined("nothing was done")


def ask_to_replace(path: str, yes: bool) -> None:
    """A file that is there already is replaced only if the user says so."""
    if path != "-" and os.path.lexists(path):
        ask(f"{path} exists. Replace it?", yes)
