"""`why` explains why a step ran; `diff` compares two runs."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ..history.compare import Comparison, Pair
from ..history.explain import Change
from . import options
from .get import import_from_cwd
from .options import complete_run, open_history
from .output import Part, columns, plural, print_json, print_result, print_tables


@click.command()
@options.run
@options.node
@click.option("--diff", is_flag=True, help="Show the changes to the source code.")
@options.reads
def why(run: str, node: str, diff: bool, store: str | None, as_json: bool) -> None:
    """Explain why a step ran instead of being reused.

    NODE is a node or a step as `show` prints them. For a step, its most recent run is explained.
    """
    explained = open_history(store).run(run).why(node)
    if as_json:
        changes = [{**change.as_dict(), "diff": change.diff()} for change in explained.changes]
        print_json({**explained.as_dict(), "changes": changes})
        return
    diff_lines = [line for change in explained.changes for line in _diff(change)] if diff else []
    print_tables(*str(explained).splitlines(), *diff_lines)
    if diff and not diff_lines:
        click.echo("No changes in the source code were recorded.", err=True)


def _diff(change: Change) -> list[str]:
    text = change.diff()
    return ["", f"{change.part}:", *text.splitlines()] if text else []


@click.command()
@click.argument("run", shell_complete=complete_run, metavar="RUN_A")
@click.argument("other", shell_complete=complete_run, metavar="RUN_B")
@options.reads
def diff(run: str, other: str, store: str | None, as_json: bool) -> None:
    """Show which nodes of two runs differ, and how.

    Nodes of the same step are paired, first those with equal arguments, then the most similar ones, and compared part by
    part. A node with different results in the two runs is listed, too: its step is not deterministic. Results are unpickled
    only where the stored bytes differ.
    """
    history = open_history(store)
    import_from_cwd()
    found = history.compare(run, other)
    rows = [row for pair in found.differing for row in _rows(pair, found)]
    titles = columns("step", f"in {run}", f"in {other}", "what differs", text="what differs")
    table: list[Part] = [(titles, rows), ""] if rows else []
    print_result(as_json, found.as_dict(), *table, _verdict(found))


def _rows(pair: Pair, comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """One row for each difference; the first also names the nodes."""
    alone = f"only in {comparison.a if pair.b is None else comparison.b}"
    lines = [change.message for change in pair.changes] or [pair.result or alone]
    yield pair.step, pair.a or "", pair.b or "", lines[0]
    yield from (("", "", "", line) for line in lines[1:])


def _verdict(found: Comparison) -> str:
    alone = [pair for pair in found.differing if pair.a is None or pair.b is None]
    nondeterministic = sum(bool(pair.result) for pair in found.differing)
    parts = [
        f"{plural(found.same, 'node')} the same",
        f"{len(found.differing) - len(alone) - nondeterministic} different",
    ]
    parts += [f"{sum(pair.b is None for pair in alone)} only in {found.a}"]
    parts += [f"{sum(pair.a is None for pair in alone)} only in {found.b}"]
    parts += [f"{nondeterministic} the same but with different results"] if nondeterministic else []
    return ", ".join(parts)
