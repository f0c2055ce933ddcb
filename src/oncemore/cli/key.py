"""`key`: show the key in use, its source, and whether the store was made with it; replace it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import click

from ..codec.keyed import is_encrypted, owner_of, rotation_of
from ..history import rotation
from ..settings import earlier_key, earlier_keys, key_id, key_in_use, key_source
from ..stores import default_target, open_store, store_exists
from . import PROBLEMS, options
from .options import existing_store
from .output import columns, plural, print_result
from .verify import progress_bar

_COLUMNS = columns("what", "is", text="is")


@click.group(invoke_without_command=True)
@options.reads
@click.pass_context
def key(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Show which key is in use and where it comes from.

    Prints a short id of the key, never the key itself, and never creates a key. The exit code is 3 if the store was made with
    another key: its runs can't be verified with this one, and new runs are stored separately. `oncemore key rotate` replaces
    the key and encrypts a store.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = store, as_json
        return
    source, target = key_source(), store or default_target()
    key_exists = source.given or os.path.exists(source.file)
    found = open_store(target) if store_exists(target) else None
    owner = "" if found is None else owner_of(found)
    fields = {
        "key": key_id() if key_exists else None,
        "from": "ONCEMORE_KEY" if source.given else source.file,
        "file": source.file,
        "home": os.environ.get("HOME"),
        "earlier": [each.id for each in earlier_keys()],
        "store": target,
        "store_key": owner or None,
        "encrypted": found is not None and key_exists and is_encrypted(found, [key_in_use(), *earlier_keys()]),
        "rotating": found is not None and key_exists and rotation_of(found) is not None,
        "same": not owner or (key_exists and owner == key_id()),
    }
    print_result(as_json, fields, (_COLUMNS, _rows(fields)), _advice(fields))
    ctx.exit(0 if fields["same"] else PROBLEMS)


def _rows(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    earlier = fields["earlier"]
    return [
        ("key", str(fields["key"] or "none yet: it is created with the first checkpoint")),
        ("from", str(fields["from"])),
        ("HOME", str(fields["home"] or "not set")),
        *([("earlier keys", ", ".join(map(str, earlier)))] if isinstance(earlier, list) and earlier else []),
        ("store", str(fields["store"])),
        ("store made with", str(fields["store_key"] or "no key yet")),
        ("encrypted", "yes" if fields["encrypted"] else "no"),
    ]


def _advice(fields: Mapping[str, object]) -> str:
    if fields["rotating"]:
        return "a rotation of the store's key is running or was interrupted: `oncemore key rotate` completes it"
    if fields["same"]:
        return "the store was made with this key" if fields["store_key"] else "the store is empty or does not exist"
    if earlier_key(str(fields["store_key"])) is not None:
        return "the store belongs to an earlier key of yours: `oncemore key rotate` moves it to the key in use"
    remedy = "run as the user who made it (see HOME), set the ONCEMORE_KEY it was made with"
    return f"the store was made with another key: {remedy}, or copy that key file to {fields['file']}"


@key.command()
@click.option("--encrypt", is_flag=True, help="Also encrypt the store, if it is not encrypted yet.")
@options.reads
@options.yes
@click.pass_context
def rotate(ctx: click.Context, encrypt: bool, store: str | None, as_json: bool, yes: bool) -> None:
    """Replace the key of a store, or encrypt the store.

    Makes a new key and rewrites every entry: signed with the new key and, if the store is encrypted, encrypted with it. An
    encrypted store stays encrypted. No run may be open. If the command is killed, nothing is lost: runs can go on, and running
    the command again completes it.

    The earlier key is kept beside the key file, as `key.<id>`, because your other stores still need it. Rotate each of
    them, too: they get the same new key. Then delete the earlier key. If the key is from ONCEMORE_KEY, first set ONCEMORE_OLD_KEY
    to it and ONCEMORE_KEY to a new one.

    The exit code is 3 if entries could not be verified with either key; they stay as they were.
    """
    before = ctx.obj or (None, False)
    store, as_json = store or before[0], as_json or before[1]
    plan = rotation.plan(open_store(existing_store(store)), encrypts=encrypt)
    new = "a new one" if plan.new_key else f"the key in use ({key_id()})"
    question = f"Replace the key {plan.before.id} of the store {plan.store.url} with {new}"
    options.confirm(f"{question}{' and encrypt the store' if plan.encrypts else ''}?", yes)
    with progress_bar("rewriting") as progress:
        done = rotation.rotate(plan, progress)
    fields = dataclasses.asdict(done)
    print_result(as_json, fields, *_report(done))
    ctx.exit(PROBLEMS if done.damaged else 0)


def _report(done: rotation.Rotated) -> list[str]:
    now = "has" if done.entries == 1 else "have"
    rewritten = f"{plural(done.entries, 'entry', 'entries')} of {done.store} now {now} the key {done.key}"
    lines = [f"{rewritten}; the store is encrypted" if done.encrypted else rewritten]
    if done.damaged:
        lines.append(
            f"{plural(len(done.damaged), 'entry', 'entries')} can't be verified: {', '.join(done.damaged[:5])}. "
            f"See `oncemore verify`"
        )
    if done.kept:
        lines.append(
            f"the earlier key is kept in {done.kept}: rotate your other stores, too, then delete it. Until then, whoever has "
            f"it can read and forge their entries"
        )
    return lines
