"""`get`: print or save the value of a checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import click
import cloudpickle

from .. import Checkpoint, UsageError
from ..copies import copied_chunks
from ..history.json_exchange import exact
from ..settings import size
from . import options
from .options import open_history
from .output import printable, timestamp


@click.command()
@options.run
@options.node
@options.store
@click.option(
    "--json", "as_json", is_flag=True, help="Print the value as JSON; refused if JSON cannot represent it exactly."
)
@click.option(
    "--pickle", "pickle_to", metavar="FILE", help="Write the value to a file as a pickle ('-' for standard output)."
)
@options.yes
def get(run: str, node: str, store: str | None, as_json: bool, pickle_to: str | None, yes: bool) -> None:
    """Print the value stored in a checkpoint.

    For a step, this is the value it returned; for a named checkpoint, the run's state. NODE is a node, a step, a name or an id
    as `show` prints them; if several checkpoints match, the newest is used. Unpickling imports the modules that define the
    value's classes, from installed packages or the current directory. If that is the script of a run, it is imported up to
    where it opens the run; what it prints goes to standard error.
    """
    if as_json and pickle_to:
        raise click.UsageError("--json and --pickle cannot be combined.")
    checkpoint = open_history(store).run(run).checkpoints.find(node)
    if pickle_to:
        options.confirm_replace(pickle_to, yes)
    value = _load(checkpoint)
    if pickle_to:
        _write(pickle_to, value)
    elif not as_json:
        click.echo(printable(repr(value)))
    elif exact(value):
        click.echo(json.dumps(value, indent=2))
    else:
        raise UsageError(f"JSON cannot represent this {type(value).__name__} exactly; use --pickle FILE")


def import_from_cwd() -> None:
    """Let pickles import modules from the current directory; installed packages take precedence."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def _load(checkpoint: Checkpoint) -> Any:
    """Announce what is about to be unpickled, then load the value."""
    key, stored = checkpoint.proof()
    meta = checkpoint.meta()
    click.echo(f"unpickling {key}: {size(stored)}, written {timestamp(checkpoint.time)}, signature verified", err=True)
    if "main" in meta:
        click.echo(
            f"its classes come from the script {meta['main']}, which is imported up to where it opens a run", err=True
        )
    if {*meta.get("blobs", ())} - copied_chunks(meta):
        click.echo("it contains files: only their paths are shown, and the files on disk are left alone", err=True)
    import_from_cwd()
    with contextlib.redirect_stdout(sys.stderr):  # an imported module may print
        return checkpoint.result() if checkpoint.entry else checkpoint.state()


def _write(path: str, value: Any) -> None:
    with click.open_file(path, "wb", atomic=path != "-") as file:
        file.write(cloudpickle.dumps(value))
