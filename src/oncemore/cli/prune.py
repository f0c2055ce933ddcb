"""Commands that remove something: `rm`, `prune`, and the little language that says what stays."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import reduce

import click

from .. import UsageError, retention
from ..durations import size
from ..retention import Policy
from . import options
from .names import alike, complete_run, find_run, opened
from .output import columns, plural, print_json, print_tables

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
    if not found or found[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is no size; write 500MB, 1GB or 1GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


_KEEP: dict[str, Callable[..., Policy]] = {
    "first": lambda count="1": retention.keep_first(int(count)),
    "last": lambda count="1": retention.keep_last(int(count)),
    "named": retention.keep_named,
    "newest-of-name": retention.keep_latest_of_each_name,
    "newer": lambda age: retention.keep_newer_than(age),
    "pinned": lambda: retention.pinned,
    "at-most": lambda count: retention.at_most(int(count)),
    "at-most-bytes": lambda limit: retention.at_most_bytes(_bytes(limit)),
}


def kept(text: str) -> list[tuple[str, Policy]]:
    """What stays: words with commas between them."""
    return [_kept(word.strip()) for word in text.split(",")]


def _kept(text: str) -> tuple[str, Policy]:
    word, colon, given = text.partition(":")
    if word not in _KEEP:
        raise click.BadParameter(f"{word!r} is none of {', '.join(_KEEP)}.{alike(word, _KEEP)}")
    try:
        return word, _KEEP[word](*([given] if colon else []))
    except TypeError:
        why = "stands alone" if colon else f"needs a number, as in {word}:20"
        raise click.BadParameter(f"{text!r}: {word} {why}") from None
    except (ValueError, UsageError) as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def policy(words: Sequence[tuple[str, Policy]]) -> Policy:
    """What any of the words keeps; of that, what the limits allow."""
    keeps = [keep for word, keep in words if not word.startswith("at-most")]
    limits = [keep for word, keep in words if word.startswith("at-most")]
    first = [reduce(Policy.__or__, keeps)] if keeps else []
    return reduce(Policy.__and__, [*first, *limits])


@click.command()
@click.argument("runs", shell_complete=complete_run, nargs=-1, metavar="[RUN]...")
@click.option("--keep", type=kept, multiple=True, required=True, metavar="WHAT", help="What stays, in the words above.")
@click.option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
@options.reading
@options.yes
def prune(
    runs: tuple[str, ...],
    keep: tuple[list[tuple[str, Policy]], ...],
    dry_run: bool,
    store: str | None,
    as_json: bool,
    yes: bool,
) -> None:
    """Remove checkpoints that need not be kept.

    Those of the runs that are named, or of all. WHAT is one or more of these, with commas between them; --keep can be said
    several times:

    \b
    first, first:3       the oldest of each run
    last, last:20        the newest
    named                those made by name
    newest-of-name       the newest of each name, or else step
    newer:30d            those not older (s, min, h, d, w)
    pinned               those that are pinned
    at-most:100          of all that the others keep, the newest so many
    at-most-bytes:1GB    of all that the others keep, the newest that fit

    A checkpoint stays if any word keeps it, and the limits allow it. What forks need, and runs that are running, are left
    alone.
    """
    history = opened(store)
    for run in runs:
        find_run(history, run)
    chosen, wanted = policy([word for words in keep for word in words]), list(runs) or None
    found = history.prune(chosen, runs=wanted, dry_run=True)
    if not dry_run and found.checkpoints:
        options.ask(f"Remove {plural(len(found.checkpoints), 'checkpoint')} ({size(found.bytes)})?", yes)
        found = history.prune(chosen, runs=wanted)
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    rows = [(checkpoint,) for checkpoint in found.checkpoints]
    done = "would be removed" if dry_run else "removed"
    skipped = [f"{run} is running: left alone" for run in found.skipped]
    total = f"{plural(len(rows), 'checkpoint')}, {size(found.bytes)} {done}"
    print_tables((columns("checkpoint"), rows), *skipped, total)


@click.command()
@click.argument("runs", shell_complete=complete_run, nargs=-1, required=True, metavar="RUN...")
@options.store
@options.yes
def rm(runs: tuple[str, ...], store: str | None, yes: bool) -> None:
    """Remove runs. What forks of them need stays."""
    history = opened(store)
    going = [find_run(history, run) for run in dict.fromkeys(runs)]
    count = sum(len(run.checkpoints) for run in going)
    what = f"run {going[0].id}" if len(going) == 1 else plural(len(going), "run")
    options.ask(f"Remove {what} with {plural(count, 'checkpoint')}? This cannot be undone.", yes)
    for run in going:
        history.delete(run.id)
        click.echo(f"run {run.id} removed")
