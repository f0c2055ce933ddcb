"""`repair`: make a damaged store usable again."""

from __future__ import annotations

import dataclasses

import click

from .. import History
from ..history.repair import Repaired, RepairedRun
from . import PROBLEMS, options
from .options import existing_store
from .output import columns, plural, print_result

_RUNS = columns("run", "is", "nodes", "lost", numbers=("nodes",), text="lost")


@click.command()
@options.reads
@click.pass_context
def repair(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Recover a store whose database is damaged.

    Builds a new database from all entries that can still be read and have valid signatures, and keeps the damaged one under
    another name in the same directory. Reports which runs are whole, and which nodes of the others will run again. No process
    may use the store meanwhile. An intact store is not changed.

    The exit code is 0 if nothing was lost, else 3.
    """
    found = History.repair(existing_store(store))
    runs = [{**dataclasses.asdict(run), "whole": run.whole} for run in found.runs]
    rows = [(run.id, "whole" if run.whole else "damaged", f"{len(run.nodes):,}", _lost(run)) for run in found.runs]
    fields = {**dataclasses.asdict(found), "runs": runs, "whole": found.whole}
    print_result(as_json, fields, (_RUNS, rows), *_verdict(found))
    ctx.exit(0 if found.whole else PROBLEMS)


def _lost(run: RepairedRun) -> str:
    parts = list(run.lost[:20])
    parts += [f"and {len(run.lost) - 20:,} more"] if len(run.lost) > 20 else []
    parts += [plural(run.events_lost, "event")] if run.events_lost else []
    parts += ["its id"] if run.renamed else []
    return ", ".join(parts)


def _verdict(found: Repaired) -> list[str]:
    if not found.aside and found.unsound:
        damaged = plural(len(found.unsound), "entry", "entries")
        verdict = f"nothing to repair: SQLite reports no damage, but {damaged} can't be verified"
        return [f"{verdict}; what they held is computed again when it is needed"]
    if not found.aside:
        return ["nothing to repair: the database and all its entries are intact"]
    lines = [f"{plural(found.entries, 'entry', 'entries')} recovered; the damaged database is now {found.aside}"]
    lines.append("runs of which nothing is left are not listed" if found.runs else "no run could be recovered")
    if found.unsound:
        lines.append(f"{plural(len(found.unsound), 'entry', 'entries')} left out: altered since written")
    if any(run.renamed for run in found.runs):
        lines.append("runs named recovered-... have lost their ids: rename them with `oncemore rename`")
    if found.unnamed:
        lines.append(f"{plural(len(found.unnamed), 'run')} could not be recovered: {', '.join(found.unnamed[:5])}")
    if not found.whole:
        lines.append("start the runs again: lost steps run again, everything else is reused")
    return lines
