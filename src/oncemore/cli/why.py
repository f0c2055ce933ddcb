"""Commands that tell why: `why` a step ran, and what makes the `diff`erence between two runs."""

from __future__ import annotations

from collections.abc import Iterator

import click

from .. import UsageError
from ..events import StepEvent
from ..history.compare import Comparison, Pair
from ..reasons import Change
from . import options
from .get import importing_from_here
from .names import alike, complete_run, find_run, opened
from .output import Part, columns, plural, print_json, print_tables


@click.command()
@options.run
@options.node
@click.option("--diff", is_flag=True, help="Show how the source changed.")
@options.reading
def why(run: str, node: str, diff: bool, store: str | None, as_json: bool) -> None:
    """Say why a step ran, though there may be checkpoints of it.

    NODE is a node or a step as `show` prints them; of a step, the node is meant that ran last.
    """
    found = find_run(opened(store), run)
    try:
        explained = found.why(node)
    except UsageError as error:
        ran = [name for event in found.events() if isinstance(event, StepEvent) for name in (event.step, event.node)]
        known = f" There are: {', '.join(dict.fromkeys(ran[::2]))}." if ran else ""
        raise UsageError(f"run {run}: no step or node {node!r} ran.{alike(node, ran) or known}") from error
    if as_json:
        changes = [{**change.as_dict(), "diff": change.diff()} for change in explained.changes]
        print_json({**explained.as_dict(), "changes": changes})
        return
    shown = [line for change in explained.changes for line in _diff(change)] if diff else []
    print_tables(*str(explained).splitlines(), *shown)
    if diff and not shown:
        click.echo("No source that is known changed.", err=True)


def _diff(change: Change) -> list[str]:
    text = change.diff()
    return ["", f"{change.part}:", *text.splitlines()] if text else []


@click.command()
@click.argument("run", shell_complete=complete_run, metavar="RUN_A")
@click.argument("other", shell_complete=complete_run, metavar="RUN_B")
@options.reading
def diff(run: str, other: str, store: str | None, as_json: bool) -> None:
    """Say which nodes of two runs differ, and in what.

    Nodes of the same step are compared part by part: first those with the same arguments, then the nearest. The same node with
    another result is named, too: its step is not deterministic. Results are unpickled only where what is stored differs.
    """
    history = opened(store)
    for each in (run, other):
        find_run(history, each)
    importing_from_here()
    found = history.compare(run, other)
    if as_json:
        print_json(found.as_dict())
        return
    rows = [row for pair in found.differing for row in _rows(pair, found)]
    titles = columns("step", f"in {run}", f"in {other}", "what differs", text="what differs")
    table: list[Part] = [(titles, rows), ""] if rows else []
    print_tables(*table, _verdict(found))


def _rows(pair: Pair, of: Comparison) -> Iterator[tuple[str, ...]]:
    """A line for each difference; the nodes stand in the first."""
    alone = f"only in {of.a if pair.b is None else of.b}"
    lines = [change.message for change in pair.changes] or [pair.result or alone]
    yield pair.step, pair.a or "", pair.b or "", lines[0]
    yield from (("", "", "", line) for line in lines[1:])


def _verdict(found: Comparison) -> str:
    alone = [pair for pair in found.differing if pair.a is None or pair.b is None]
    unsteady = sum(bool(pair.result) for pair in found.differing)
    parts = [f"{plural(found.same, 'node')} the same", f"{len(found.differing) - len(alone) - unsteady} different"]
    parts += [f"{sum(pair.b is None for pair in alone)} only in {found.a}"]
    parts += [f"{sum(pair.a is None for pair in alone)} only in {found.b}"]
    return ", ".join(parts) + (f", {unsteady} the same with another result" if unsteady else "")
