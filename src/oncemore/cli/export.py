"""Commands that move runs between stores: `export`, `import`."""

from __future__ import annotations

import click

from .. import History, UsageError
from ..stores import default_target
from . import options
from .get import import_from_cwd
from .options import complete_run, open_history
from .output import plural


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("runs", shell_complete=complete_run, nargs=-1, metavar="[RUN]...")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Write JSON; values that JSON can't represent are left out.",
)
@options.store
@options.yes
def export(file: str, runs: tuple[str, ...], as_json: bool, store: str | None, yes: bool) -> None:
    """Write runs and everything they need to one FILE.

    Exports all runs unless some are named. An archive is signed with your key; JSON is not signed.
    """
    history = open_history(store)
    chosen = [history.run(run).id for run in dict.fromkeys(runs)] or history.run_ids()
    options.confirm_replace(file, yes)
    if as_json:
        import_from_cwd()  # values are unpickled
        history.export_json(file, chosen)
    else:
        history.export(file, chosen)
    click.echo(f"{plural(len(chosen), 'run')} written to {file}")


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--trust",
    is_flag=True,
    help="Accept an archive signed with another key. Its values are pickles, which can run any code.",
)
@options.store
def import_(file: str, trust: bool, store: str | None) -> None:
    """Import runs from a FILE into the store.

    FILE is an archive or JSON file written by `export`. The store is created if it does not exist. Importing a file twice
    changes nothing.
    """
    history = History(store or default_target())
    with open(file, "rb") as content:
        archive = content.read(2) == b"PK"
    if trust and not archive:
        raise UsageError(f"{file} is not an archive and runs no code; leave out --trust")
    ids = history.import_(file, trust=trust) if archive else history.import_json(file)
    click.echo(f"{plural(len(ids), 'run')} imported: {', '.join(ids[:10])}{' ...' if len(ids) > 10 else ''}")
