"""`repair`: make a damaged store usable again."""

from __future__ import annotations

import dataclasses

import click

from .. import History, UsageError
from ..history.repair import Repaired, RepairedRun
from ..stores import default_target, store_exists
from . import options
from .codes import UNWELL
from .output import columns, plural, print_json, print_tables

_RUNS = columns("run", "is", "nodes", "lost", numbers=("nodes",), text="lost")


@click.command()
@options.reading
@click.pass_context
def repair(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Recover a store whose database is damaged.

    Builds a new database from all entries that can still be read and have valid signatures, and keeps the damaged one next
    to it under another name. Reports which runs are intact, and which nodes of the others have to run again. No process may
    use the store during the repair. An undamaged store is left as it is.

    The exit code is 0 if nothing was lost.
    """
    target = store or default_target()
    if not store_exists(target):
        raise UsageError(f"there is no store at {target}; name one with --store or ONCEMORE_STORE")
    found = History.repair(target)
    if as_json:
        runs = [{**dataclasses.asdict(run), "whole": run.whole} for run in found.runs]
        print_json({**dataclasses.asdict(found), "runs": runs, "whole": found.whole})
    else:
        rows = [(run.id, "whole" if run.whole else "damaged", f"{len(run.nodes):,}", _lost(run)) for run in found.runs]
        print_tables((_RUNS, rows), *_verdict(found))
    ctx.exit(0 if found.whole else UNWELL)


def _lost(run: RepairedRun) -> str:
    parts = list(run.lost[:20])
    parts += [f"and {len(run.lost) - 20:,} more"] if len(run.lost) > 20 else []
    parts += [plural(run.events_lost, "event")] if run.events_lost else []
    parts += ["its id"] if run.renamed else []
    return ", ".join(parts)


def _verdict(found: Repaired) -> list[str]:
    if not found.aside:
        return ["nothing to repair: SQLite finds the database sound. `oncemore verify` checks every entry"]
    lines = [f"{plural(found.entries, 'entry', 'entries')} recovered; the damaged database is {found.aside}"]
    if found.unsound:
        lines.append(f"{plural(len(found.unsound), 'entry', 'entries')} found altered, and left out")
    if any(run.renamed for run in found.runs):
        lines.append("runs called recovered-... have lost their ids: `oncemore rename` gives them back")
    if found.unnamed:
        lines.append(
            f"of {plural(len(found.unnamed), 'run')} too little is left to go on with: {', '.join(found.unnamed[:5])}"
        )
    if not found.whole:
        lines.append("start the runs again: what was lost runs again, everything else is reused")
    return lines
