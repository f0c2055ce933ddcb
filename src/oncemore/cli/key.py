"""`key`: which key signs and verifies here, where it comes from, and whether the store was made with it."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from ..keyed import owner_of
from ..secret import key_id, key_source
from ..stores import default_target, open_store, store_exists
from . import options
from .codes import UNWELL
from .output import columns, print_json, print_tables

_ROWS = columns("what", "is", text="is")


@click.command()
@options.reading
@click.pass_context
def key(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Show which key is in use, and from where.

    Prints a short id of the key, never the key itself, and creates no key. The exit code is 3 if the store was created with
    another key: this key can't verify its runs, and new runs are stored next to them.
    """
    source, target = key_source(), store or default_target()
    made = source.given or os.path.exists(source.file)
    owner = owner_of(open_store(target)) if store_exists(target) else ""
    fields = {
        "key": key_id() if made else None,
        "from": "ONCEMORE_KEY" if source.given else source.file,
        "file": source.file,
        "home": os.environ.get("HOME"),
        "store": target,
        "store_key": owner or None,
        "same": not owner or (made and owner == key_id()),
    }
    if as_json:
        print_json(fields)
    else:
        print_tables((_ROWS, _told(fields)), *_advice(fields))
    ctx.exit(0 if fields["same"] else UNWELL)


def _told(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    return [
        ("key", str(fields["key"] or "none yet: it is made with the first checkpoint")),
        ("from", str(fields["from"])),
        ("HOME", str(fields["home"] or "not set")),
        ("store", str(fields["store"])),
        ("store made with", str(fields["store_key"] or "no key yet")),
    ]


def _advice(fields: Mapping[str, object]) -> list[str]:
    if fields["same"]:
        return ["the store was made with this key" if fields["store_key"] else "the store is empty, or there is none"]
    remedy = "run as the user who made it (HOME), set ONCEMORE_KEY as it was then"
    return [f"the store was made with another key: {remedy}, or copy that key file to {fields['file']}"]
