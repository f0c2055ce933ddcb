"""`verify`: check that nothing is missing from a store and nothing was altered."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Generator
from contextlib import contextmanager

import click

from ..history.verify import Progress, Verified
from ..settings import size
from . import PROBLEMS, options
from .options import open_history
from .output import columns, plural, print_result

_FINDINGS = columns("found", "run", "what", "key", text="what")


@click.command()
@options.reads
@click.pass_context
def verify(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Check every signature and every reference.

    Changes nothing. Findings are of these kinds:

    \b
    damaged   an entry was altered since it was written
    dangling  something that a run refers to is missing
    orphan    nothing refers to this: harmless, but it takes up space
    foreign   the store was made with another key, so its entries were not checked; see `oncemore key`

    The exit code is 0 if nothing is damaged, missing or foreign, else 3.
    """
    history = open_history(store)
    with progress_bar("verifying") as progress:
        found = history.verify(progress)
    rows = [(each.kind, each.run, each.message, each.key) for each in found.findings]
    print_result(as_json, {**dataclasses.asdict(found), "well": found.well}, (_FINDINGS, rows), _verdict(found))
    ctx.exit(0 if found.well else PROBLEMS)


def _verdict(found: Verified) -> str:
    checked = f"{plural(found.entries, 'entry', 'entries')} of {plural(found.runs, 'run')}, {size(found.bytes)}"
    counts = {kind: sum(each.kind == kind for each in found.findings) for kind in ("damaged", "dangling", "orphan")}
    verdict = (
        f"{checked}: {counts['damaged']} damaged, {counts['dangling']} dangling, {plural(counts['orphan'], 'orphan')}"
    )
    if counts["damaged"] == found.entries > 0:
        verdict += ". Every entry fails: they were probably signed with another key; see `oncemore key`"
    return verdict


@contextmanager
def progress_bar(doing: str) -> Generator[Progress | None, None, None]:
    """A progress bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
