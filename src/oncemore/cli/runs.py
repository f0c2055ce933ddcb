"""Commands that show what happened: `runs`, `show`, `events`."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from datetime import datetime, timezone

import click

from .. import Checkpoint, NotRecorded, RunRecord, StoreError, Summary, UsageError
from ..ask import shown
from ..events import Asked, Event, RunFailed
from ..settings import duration, seconds, size
from ..stores import shown_url
from . import options
from .options import open_history
from .output import Part, columns, on_terminal, plural, print_json, print_tables, printable, timestamp

_STATUSES = ("running", "finished", "failed", "interrupted", "paused", "killed", "forked")
_RUNS = columns(
    *("run", "status", "updated", "nodes", "size", "attempts", "workflow", "parent"),
    numbers=("nodes", "size", "attempts"),
)
_COUNTS = ("ran", "reused", "failed", "spent", "saved", "size", "stored")
_STEPS = columns("step", *_COUNTS, numbers=_COUNTS)
_COUNTS_WITH_RETRIES = (*_COUNTS[:3], "retried", *_COUNTS[3:])
_STEPS_WITH_RETRIES = columns("step", *_COUNTS_WITH_RETRIES, numbers=_COUNTS_WITH_RETRIES)
_CHECKPOINTS = columns(
    *("checkpoint", "name or node", "arguments", "time", "stored", "pinned", "metadata"),
    numbers=("stored",),
    text="arguments",
)
_QUESTIONS = columns("question", "node", "asked", "choices or type", text="question")
_SHOWN = 20  # checkpoints that `show` prints unless it is told how many
_LONGEST = 80  # characters of a call's arguments
_UNKNOWN = columns("unknown outcome", "begun", "key")
_FOR_PROGRAMS = {
    "seq",
    "scope",
    "elsewhere",
    "time",
    "lane",
    "traceback",
    "fingerprint",
    "entry",
    "snapshot",
    "behind",
    "replaces",
}


def _since(text: str) -> datetime:
    """A point in time: an age ("2h", "30d") or a date."""
    try:
        return datetime.fromtimestamp(time.time() - seconds(text), timezone.utc)
    except UsageError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time; write '2h' or '30d' (ago), '2026-11-16' or '2026-11-16T08:30'"
        ) from None


@click.command()
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only runs with this status.")
@click.option(
    "--since", type=_since, metavar="TIME", help="Only runs updated since then: '2h' or '30d' ago, or a date."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N runs.")
@options.reads
def runs(
    workflow: str | None,
    status: str | None,
    since: datetime | None,
    limit: int | None,
    store: str | None,
    as_json: bool,
) -> None:
    """List the runs, most recently updated first."""
    history = open_history(store)
    found = history.runs(workflow=workflow, status=status, since=since, limit=limit)
    if as_json:
        print_json([dataclasses.asdict(run) for run in found])
    elif found:
        paused = [run.id for run in found if run.status == "paused"]
        questions = [(run_id, asked) for run_id in paused for asked in history.questions(run_id)]
        print_tables(
            (_RUNS, [_run_row(run) for run in found]),
            *(f"{run_id} waits for an answer: {shown(asked.question, asked.choices)}" for run_id, asked in questions),
        )
    else:
        click.echo(f"No runs found in {shown_url(history.store.url)}.", err=True)


def _run_row(run: RunRecord) -> tuple[str, ...]:
    counts = (f"{run.nodes:,}", size(run.bytes), str(run.attempts))
    return (run.id, run.status, timestamp(run.updated), *counts, run.workflow or "", run.parent or "")


@click.command()
@options.run
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"At most the N newest checkpoints, 0 for all. Default: {_SHOWN}; with --json, all.",
)
@options.reads
def show(run: str, limit: int | None, store: str | None, as_json: bool) -> None:
    """Show a run's status, script, steps and checkpoints.

    The script is the command that opened the run last. Of the checkpoints, the newest are shown.
    """
    history = open_history(store)
    found = history.run(run)
    summary, every = found.summary(), found.checkpoints
    most = limit if limit is not None or as_json else _SHOWN
    checkpoints = every[-most:] if most else every
    questions = history.questions(run)
    unknown = [] if summary.status == "running" else history.unknown_outcomes(run)  # its steps may still be in progress
    error = next((e.error for e in reversed(list(found.events())) if isinstance(e, RunFailed)), "")
    error = error if summary.status == "failed" else ""
    if as_json:
        fields = {**summary.as_dict(), "workflow": found.workflow, "script": list(found.script), "error": error}
        fields["checkpoints"] = [{**each.as_dict(), "arguments": _arguments(each)} for each in checkpoints]
        fields["unknown_outcomes"] = [dataclasses.asdict(each) for each in unknown]
        fields["questions"] = [_fields(each) for each in questions]
        print_json(fields)
        return
    parts: list[Part] = [_headline(summary, found.workflow)]
    if found.script:
        parts.append(f"script: {shlex.join(found.script)}")
    if error:
        parts.append(f"error: {error}".replace("\n", " "))
    if unknown:
        rows = [(each.node, timestamp(each.begun), each.key) for each in unknown]
        advice = f"Find out what happened, then run: oncemore resolve {run} NODE --happened | --did-not"
        parts += ["", (_UNKNOWN, rows), advice]
    if questions:
        advice = f"Answer with: oncemore answer {run} NODE VALUE, then run the script again"
        parts += ["", (_QUESTIONS, [_question_row(each) for each in questions]), advice]
    if summary.steps:
        parts += ["", (_STEPS_WITH_RETRIES if summary.total.retried else _STEPS, _step_rows(summary))]
    if checkpoints:
        parts += ["", (_CHECKPOINTS, [_checkpoint_row(checkpoint) for checkpoint in checkpoints])]
    if len(checkpoints) < len(every):
        earlier = plural(len(every) - len(checkpoints), "earlier checkpoint")
        parts += ["", f"{earlier} not shown; --limit 0 shows all"]
    print_tables(*parts)


def _question_row(asked: Asked) -> tuple[str, ...]:
    when = timestamp(datetime.fromtimestamp(asked.time, timezone.utc))
    return (asked.question, asked.node, when, ", ".join(map(str, asked.choices)) or asked.type)


def _headline(summary: Summary, workflow: str | None) -> str:
    parts = [f"run {summary.run}: {summary.status}", plural(summary.attempts, "attempt")]
    parts += [f"workflow {workflow}"] if workflow else []
    parts += [f"{timestamp(summary.first)} to {timestamp(summary.last)}"] if summary.first else []
    return " · ".join(parts)


def _step_rows(summary: Summary) -> list[tuple[str, ...]]:
    return [
        (
            *(each.step, f"{each.ran:,}", f"{each.reused:,}", f"{each.failed:,}"),
            *([f"{each.retried:,}"] if summary.total.retried else []),
            *(duration(each.seconds), duration(each.seconds_saved), size(each.raw_bytes), size(each.stored_bytes)),
        )
        for each in (*summary.steps, *([summary.total._replace(step="(all)")] if len(summary.steps) > 1 else []))
    ]


def _checkpoint_row(checkpoint: Checkpoint) -> tuple[str, ...]:
    stored = size(checkpoint.stored_bytes) if checkpoint.entry else ""
    metadata = json.dumps(dict(checkpoint.metadata)) if checkpoint.metadata else ""
    name, pinned = checkpoint.name or checkpoint.node or "(end of scope)", "pinned" if checkpoint.pinned else ""
    arguments = _arguments(checkpoint)
    return (checkpoint.id, name, arguments, timestamp(checkpoint.time), stored, pinned, metadata)


def _arguments(checkpoint: Checkpoint) -> str:
    try:
        text = checkpoint.arguments()
    except (NotRecorded, StoreError):
        return "(the entry is gone or damaged)"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


@click.command()
@options.run
@click.option("--since", type=click.IntRange(min=0), default=0, metavar="N", help="Only events after event number N.")
@click.option("--follow", is_flag=True, help="Keep printing new events until the run is closed everywhere.")
@click.option("--jsonl", is_flag=True, help="Print one JSON object per line.")
@options.reads
def events(run: str, since: int, follow: bool, jsonl: bool, store: str | None, as_json: bool) -> None:
    """Print the events of a run, in order."""
    if as_json and (follow or jsonl):
        raise click.UsageError("--json prints a single list; for a stream or one event per line, use --jsonl.")
    found = open_history(store).run(run)
    stream = found.follow(since) if follow else found.events(since)
    if as_json:
        print_json([_fields(event) for event in stream])
        return
    lines = (f"{json.dumps(_fields(event)) if jsonl else _line(event)}\n" for event in stream)
    if follow or jsonl or not on_terminal():
        for line in lines:
            click.echo(line, nl=False)  # flushes, so that a reader sees each event at once
    else:
        print_tables(*(line[:-1] for line in lines))


def _fields(event: Event) -> dict[str, object]:
    return {"seq": event.seq, **json.loads(event.to_json())}


def _line(event: Event) -> str:
    """One readable line: number, time, kind and fields."""
    when = timestamp(datetime.fromtimestamp(event.time, timezone.utc))
    shown = (
        (name, value)
        for name, value in vars(event).items()
        if name not in _FOR_PROGRAMS and value not in ("", None, [])
    )
    fields = "  ".join(f"{name}={f'{value:.3f}' if isinstance(value, float) else value}" for name, value in shown)
    return printable(f"{event.seq:6}  {when}  {type(event).__name__:16} {fields}".rstrip().replace("\n", " "))
