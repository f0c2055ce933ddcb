"""Commands that remove something: `rm`, and `prune` with the rules of its --keep option."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import reduce

import click

from .. import UsageError, retention
from ..errors import did_you_mean
from ..retention import Policy
from ..settings import size
from . import options
from .options import complete_run, open_history
from .output import columns, plural, print_result

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(text: str) -> int:
    """A number of bytes: "500MB", "1GiB"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
    if not match or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write 500MB, 1GB or 1GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


_KEEP: dict[str, Callable[..., Policy]] = {
    "first": lambda count="1": retention.keep_first(int(count)),
    "last": lambda count="1": retention.keep_last(int(count)),
    "named": retention.keep_named,
    "newest-of-name": retention.keep_latest_of_each_name,
    "newer": lambda age: retention.keep_newer_than(age),
    "pinned": lambda: retention.pinned,
    "at-most": lambda count: retention.at_most(int(count)),
    "at-most-bytes": lambda limit: retention.at_most_bytes(parse_size(limit)),
}
_EXAMPLES = {"newer": "newer:30d", "at-most": "at-most:100", "at-most-bytes": "at-most-bytes:1GB"}


def parse_rules(text: str) -> list[tuple[str, Policy]]:
    """The comma-separated rules of one --keep option, each with its name."""
    return [_parse_rule(rule.strip()) for rule in text.split(",")]


def _parse_rule(text: str) -> tuple[str, Policy]:
    name, colon, value = text.partition(":")
    if name not in _KEEP:
        raise click.BadParameter(f"{name!r} is not one of {', '.join(_KEEP)}.{did_you_mean(name, _KEEP)}")
    try:
        return name, _KEEP[name](*([value] if colon else []))
    except TypeError:
        problem = "takes no value" if colon else f"needs a value, as in {_EXAMPLES[name]}"
        raise click.BadParameter(f"{text!r}: {name} {problem}") from None
    except (ValueError, UsageError) as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def policy(rules: Sequence[tuple[str, Policy]]) -> Policy:
    """Keep what any rule keeps, within all the limits."""
    keeps = [each for name, each in rules if not name.startswith("at-most")]
    limits = [each for name, each in rules if name.startswith("at-most")]
    any_rule = [reduce(Policy.__or__, keeps)] if keeps else []
    return reduce(Policy.__and__, [*any_rule, *limits])


@click.command()
@click.argument("runs", shell_complete=complete_run, nargs=-1, metavar="[RUN]...")
@click.option(
    "--keep", type=parse_rules, multiple=True, required=True, metavar="RULES", help="What to keep; see above."
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, without removing it.")
@options.reads
@options.yes
def prune(
    runs: tuple[str, ...],
    keep: tuple[list[tuple[str, Policy]], ...],
    dry_run: bool,
    store: str | None,
    as_json: bool,
    yes: bool,
) -> None:
    """Remove checkpoints that no rule keeps.

    Prunes the named runs, or all runs. RULES is one or more of these, separated by commas; --keep can be given several times:

    \b
    first, first:3       the oldest checkpoint(s) of each run
    last, last:20        the newest checkpoint(s) of each run
    named                named checkpoints
    newest-of-name       the newest checkpoint of each name and of each step
    newer:30d            checkpoints of the last 30 days (s, min, h, d, w)
    pinned               pinned checkpoints
    at-most:100          limit: at most 100 checkpoints, the newest first
    at-most-bytes:1GB    limit: at most 1 GB, the newest first

    A checkpoint is kept if at least one rule keeps it and the limits allow it. Checkpoints that forks need are kept, and runs
    that are running are skipped.
    """
    history = open_history(store)
    chosen, run_ids = policy([rule for rules in keep for rule in rules]), list(runs) or None
    found = history.prune(chosen, runs=run_ids, dry_run=True)
    if not dry_run and found.checkpoints:
        options.confirm(f"Remove {plural(len(found.checkpoints), 'checkpoint')} ({size(found.bytes)})?", yes)
        found = history.prune(chosen, runs=run_ids)
    rows = [(checkpoint,) for checkpoint in found.checkpoints]
    verb = "would be removed" if dry_run else "removed"
    skipped = [f"{run} is running: left alone" for run in found.skipped]
    total = f"{plural(len(rows), 'checkpoint')}, {size(found.bytes)} {verb}"
    print_result(as_json, dataclasses.asdict(found), (columns("checkpoint"), rows), *skipped, total)


@click.command()
@click.argument("runs", shell_complete=complete_run, nargs=-1, required=True, metavar="RUN...")
@options.store
@options.yes
def rm(runs: tuple[str, ...], store: str | None, yes: bool) -> None:
    """Remove runs. Checkpoints that their forks need are kept."""
    history = open_history(store)
    doomed = [history.run(run) for run in dict.fromkeys(runs)]
    count = sum(len(run.checkpoints) for run in doomed)
    what = f"run {doomed[0].id}" if len(doomed) == 1 else plural(len(doomed), "run")
    options.confirm(f"Remove {what} with {plural(count, 'checkpoint')}? This cannot be undone.", yes)
    for run in doomed:
        history.delete(run.id)
        click.echo(f"run {run.id} removed")
