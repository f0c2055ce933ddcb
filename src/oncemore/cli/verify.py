"""`verify`: whether all is there that runs refer to, and nothing was altered."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Generator
from contextlib import contextmanager

import click

from ..durations import size
from ..history.verify import Progress, Verified
from . import options
from .codes import UNWELL
from .names import opened
from .output import columns, plural, print_json, print_tables

_FINDINGS = columns("found", "run", "what", "key", text="what")


@click.command()
@options.reading
@click.pass_context
def verify(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Check every signature and every reference.

    Changes nothing. What can be found:

    \b
    damaged   an entry is not what was written there
    dangling  something is referred to and not there
    orphan    something is there that nothing refers to: no harm, but it takes space
    foreign   the store was made with another key, see `oncemore key`: its entries were not checked

    The exit code is 0 if nothing is damaged and nothing is missing.
    """
    history = opened(store)
    with _progress() as progress:
        found = history.verify(progress)
    if as_json:
        print_json({**dataclasses.asdict(found), "well": found.well})
    else:
        rows = [(each.kind, each.run, each.message, each.key) for each in found.findings]
        print_tables((_FINDINGS, rows), _verdict(found))
    ctx.exit(0 if found.well else UNWELL)


def _verdict(found: Verified) -> str:
    looked = f"{plural(found.entries, 'entry', 'entries')} of {plural(found.runs, 'run')}, {size(found.bytes)}"
    counts = {kind: sum(each.kind == kind for each in found.findings) for kind in ("damaged", "dangling", "orphan")}
    parts = (
        f"{looked}: {counts['damaged']} damaged, {counts['dangling']} dangling, {plural(counts['orphan'], 'orphan')}"
    )
    if counts["damaged"] == found.entries > 0:
        parts += ". All of them: is this the key that they were signed with? See `oncemore key`"
    return parts


@contextmanager
def _progress() -> Generator[Progress | None, None, None]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verifying", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
