"""Names that the user gives: runs and checkpoints, found, completed, or nearly right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import click

from .. import Checkpoint, History, OncemoreError, UsageError
from ..history.history import PastRun
from ..stores import default_target, store_exists

_COMPLETIONS = 100


def alike(name: str, known: Iterable[str]) -> str:
    """A question that names what the user may have meant; empty if nothing comes near."""
    candidates = list(dict.fromkeys(known))
    near = [each for each in candidates if each.lower() == name.lower() or each.rpartition(".")[2] == name]
    near += [each for each in difflib.get_close_matches(name, candidates, 3) if each not in near]
    return f" Did you mean {' or '.join(near[:3])}?" if near else ""


def opened(store: str | None) -> History:
    """The history in the store that the user means. A command that reads does not make a store."""
    target = store or default_target()
    if not store_exists(target):
        raise UsageError(f"there is no store at {target}; name one with --store or ONCEMORE_STORE")
    return History(target)


def find_run(history: History, run_id: str) -> PastRun:
    """The run of that id."""
    try:
        return history.run(run_id)
    except UsageError as error:
        ids = history.run_ids()
        if run_id in ids:
            raise
        raise UsageError(f"{error}.{alike(run_id, ids)}") from error


def find_checkpoint(run: PastRun, which: str) -> Checkpoint:
    """The newest checkpoint that is meant: by its id, name, node or step."""
    checkpoints = run.checkpoints
    found = checkpoints.get(which) or checkpoints.latest(which)
    if found is None:
        known = [name for c in checkpoints for name in (c.name, c.step, c.node, c.id) if name]
        hint = alike(which, known) or f" `oncemore show {run.id}` lists them."
        raise UsageError(f"run {run.id} has no checkpoint called {which!r}.{hint}")
    return found


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The ids of runs that begin so."""
    try:
        return opened(ctx.params.get("store")).run_ids(incomplete, _COMPLETIONS)
    except OncemoreError:  # nobody wants to read it between two keys
        return []


def complete_checkpoint(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of checkpoints that begin so, of the run that was named before."""
    try:
        run = opened(ctx.params.get("store")).run(ctx.params["run"])
        names = dict.fromkeys(name for c in run.checkpoints for name in (c.name, c.step, c.node) if name)
        return [name for name in names if name.startswith(incomplete)][:_COMPLETIONS]
    except (OncemoreError, KeyError):
        return []
