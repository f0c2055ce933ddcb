"""`key`: show the key in use, its source, and whether the store was made with it."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from ..codec.keyed import owner_of
from ..settings import key_id, key_source
from ..stores import default_target, open_store, store_exists
from . import PROBLEMS, options
from .output import columns, print_result

_COLUMNS = columns("what", "is", text="is")


@click.command()
@options.reads
@click.pass_context
def key(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Show which key is in use and where it comes from.

    Prints a short id of the key, never the key itself, and never creates a key. The exit code is 3 if the store was made with
    another key: its runs can't be verified with this one, and new runs are stored separately.
    """
    source, target = key_source(), store or default_target()
    key_exists = source.given or os.path.exists(source.file)
    owner = owner_of(open_store(target)) if store_exists(target) else ""
    fields = {
        "key": key_id() if key_exists else None,
        "from": "ONCEMORE_KEY" if source.given else source.file,
        "file": source.file,
        "home": os.environ.get("HOME"),
        "store": target,
        "store_key": owner or None,
        "same": not owner or (key_exists and owner == key_id()),
    }
    print_result(as_json, fields, (_COLUMNS, _rows(fields)), _advice(fields))
    ctx.exit(0 if fields["same"] else PROBLEMS)


def _rows(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    return [
        ("key", str(fields["key"] or "none yet: it is created with the first checkpoint")),
        ("from", str(fields["from"])),
        ("HOME", str(fields["home"] or "not set")),
        ("store", str(fields["store"])),
        ("store made with", str(fields["store_key"] or "no key yet")),
    ]


def _advice(fields: Mapping[str, object]) -> str:
    if fields["same"]:
        return "the store was made with this key" if fields["store_key"] else "the store is empty or does not exist"
    remedy = "run as the user who made it (see HOME), set the ONCEMORE_KEY it was made with"
    return f"the store was made with another key: {remedy}, or copy that key file to {fields['file']}"
