"""Commands that move runs between stores: `export`, `import`."""

from __future__ import annotations

import click

from .. import History, UsageError
from ..stores import default_target
from . import options
from .get import importing_from_here
from .names import complete_run, find_run, opened
from .output import plural


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("runs", shell_complete=complete_run, nargs=-1, metavar="[RUN]...")
@click.option("--json", "as_json", is_flag=True, help="Write what JSON can hold, for people and other languages.")
@options.store
@options.yes
def export(file: str, runs: tuple[str, ...], as_json: bool, store: str | None, yes: bool) -> None:
    """Write runs with all they need into one FILE.

    All runs, if none is named. The file is signed with your secret.
    """
    history = opened(store)
    chosen = [find_run(history, run).id for run in dict.fromkeys(runs)] or history.run_ids()
    options.ask_to_replace(file, yes)
    if as_json:
        importing_from_here()  # values are unpickled for it
        history.export_json(file, chosen)
    else:
        history.export(file, chosen)
    click.echo(f"{plural(len(chosen), 'run')} written to {file}")


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--trust",
    is_flag=True,
    help="Admit an archive signed with another secret: its values are pickles, which can run any code.",
)
@options.store
def import_(file: str, trust: bool, store: str | None) -> None:
    """Bring the runs of a FILE into the store.

    The file is one that `export` wrote, as an archive or as JSON. The store is made if there is none. Importing twice changes
    nothing.
    """
    history = History(store or default_target())
    with open(file, "rb") as content:
        archive = content.read(2) == b"PK"
    if trust and not archive:
        raise UsageError(f"{file} is no archive: nothing in it needs trust, leave --trust out")
    ids = history.import_(file, trust=trust) if archive else history.import_json(file)
    click.echo(f"{plural(len(ids), 'run')} brought in: {', '.join(ids[:10])}{' ...' if len(ids) > 10 else ''}")
