"""`get`: the value that a step returned."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click
import cloudpickle

from .. import Checkpoint, UsageError
from ..durations import size
from ..history.json_exchange import exact
from . import options
from .names import find_checkpoint, find_run, opened
from .output import printable, timestamp


@click.command()
@options.run
@options.node
@options.store
@click.option("--json", "as_json", is_flag=True, help="Print the value as JSON, if JSON gives exactly it back.")
@click.option(
    "--pickle", "pickle_to", metavar="FILE", help="Write the value to a file, as a pickle ('-': standard output)."
)
@options.yes
def get(run: str, node: str, store: str | None, as_json: bool, pickle_to: str | None, yes: bool) -> None:
    """Print the value that a checkpoint keeps.

    That is what a step returned; of a checkpoint made by name, the state. NODE is a node, a step, a name or an id as `show`
    prints them; where several fit, the newest is meant. Unpickling imports the modules that the value's classes are in, from
    the installed packages or the current folder.
    """
    if as_json and pickle_to:
        raise click.UsageError("--json and --pickle are two ways to have it: choose one.")
    checkpoint = find_checkpoint(find_run(opened(store), run), node)
    if pickle_to:
        options.ask_to_replace(pickle_to, yes)
    value = _load(checkpoint)
    if pickle_to:
        _write(pickle_to, value)
    elif not as_json:
        click.echo(printable(repr(value)))
    elif exact(value):
        click.echo(json.dumps(value, indent=2))
    else:
        raise UsageError(f"JSON cannot hold this {type(value).__name__} exactly; have it with --pickle FILE")


def importing_from_here() -> None:
    """Let pickles find the modules of the project in the current folder; installed ones come first."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def _load(checkpoint: Checkpoint) -> Any:
    """The value, after it was said what is about to be unpickled."""
    key, stored = checkpoint.proof()
    meta = checkpoint.meta()
    click.echo(f"unpickling {key}: {size(stored)}, written {timestamp(checkpoint.time)}, signature verified", err=True)
    if "main" in meta:
        click.echo(f"its classes come from the script {meta['main']}, which is imported for it", err=True)
    if meta.get("blobs"):
        click.echo("files in it are left as they are on disk: only their paths are shown", err=True)
    importing_from_here()
    return checkpoint.result() if checkpoint.entry else checkpoint.state()


def _write(path: str, value: Any) -> None:
    with click.open_file(path, "wb", atomic=path != "-") as file:
        file.write(cloudpickle.dumps(value))
