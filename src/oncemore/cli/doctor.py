"""`doctor`: whether oncemore can work here, and what may stand in its way."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

import click

from .. import History, OncemoreError
from ..durations import size
from ..history.verify import Littered
from ..keyed import another_key, owner_of
from ..secret import key_file, key_id
from ..stores import Store, default_target, open_store, store_exists
from ..stores.disk import DiskStore
from ..stores.filesystem import NETWORK_FILE_SYSTEMS, file_system
from . import options
from .codes import UNWELL
from .output import columns, plural, print_json, print_tables, version_of

_PACKAGES = ("blake3", "cloudpickle", "diskcache", "wrapt", "zstandard", "click", "rich")
_LITTLE = 1 << 30  # bytes free
_CHECKS = columns("check", "is", "what", text="what")


class Check(NamedTuple):
    """One thing that was looked at: ok, a note, or a problem."""

    name: str
    state: str
    message: str


@click.command()
@options.reading
@click.pass_context
def doctor(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Check whether oncemore can work here.

    Looks at the secret, the store, its permissions, its file system, free space, open runs and versions.
    """
    checks = [_secret(), *_store(store or default_target()), *_versions()]
    if as_json:
        print_json([check._asdict() for check in checks])
    else:
        print_tables((_CHECKS, checks))
    ctx.exit(UNWELL if any(check.state == "problem" for check in checks) else 0)


def _secret() -> Check:
    if given := os.environ.get("ONCEMORE_KEY"):
        if len(given) < 16:
            return Check("secret", "note", "in ONCEMORE_KEY, and short: easy to guess")
        return Check("secret", "ok", "in ONCEMORE_KEY")
    path = key_file()
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return Check("secret", "note", f"none yet: {path} is made when the first checkpoint is")
    except OSError as error:
        return Check("secret", "problem", f"{path} cannot be read: {error.strerror}")
    if found.st_mode & 0o077:
        return Check("secret", "problem", f"others can read {path} ({found.st_mode & 0o777:03o}): chmod 600 {path}")
    if found.st_size < 32:
        return Check("secret", "problem", f"{path} is cut short: put it back from a copy")
    if not os.access(path, os.R_OK):
        return Check("secret", "problem", f"{path} cannot be read by you")
    return Check("secret", "ok", f"in {path}, for your eyes only")


def _store(target: str) -> Iterator[Check]:
    try:
        if not store_exists(target):
            yield Check("store", "note", f"none yet: {target} is made by the first run that uses it")
            return
        store = open_store(target)
        yield Check("store", "ok", store.url)
        yield from _keys(store)
        yield from _entries(store)
    except OncemoreError as error:
        yield Check("store", "problem", str(error))
        return
    yield _written(store)
    if isinstance(store, DiskStore):
        yield from _folder(store.path)


def _keys(store: Store) -> Iterator[Check]:
    """Whether it is the store of the key in use."""
    owner = owner_of(store)
    if owner and owner != key_id():
        yield Check("key", "problem", another_key(store, owner))


def _entries(store: Store) -> Iterator[Check]:
    """What is in it."""
    runs = History(store).runs()
    damaged = set(History(store).run_ids()) - {run.id for run in runs}
    if damaged:
        yield Check("runs", "problem", f"records that cannot be trusted: {', '.join(sorted(damaged)[:5])}")
    else:
        yield Check("runs", "ok", f"{len(runs):,}")
    running = [run.id for run in runs if run.status == "running"]
    killed = [run.id for run in runs if run.status == "killed"]
    yield Check("running", "ok", ", ".join(running[:5]) + (" ..." if len(running) > 5 else "") if running else "none")
    if killed:
        yield Check("killed", "note", f"{plural(len(killed), 'run')} to start again: {', '.join(killed[:5])}")
    files = store.orphans() if isinstance(store, Littered) else []
    if files:
        tidy = "open_store(...).maintain() in Python removes them"
        yield Check("files", "note", f"{plural(len(files), 'orphan')}: {tidy}")
    else:
        yield Check("files", "ok", "no orphans")


def _written(store: Store) -> Check:
    """Write something and remove it again."""
    key = f"doctor/{secrets.token_hex(8)}"
    try:
        store.commit(put={key: [b"1"]})
        store.commit(delete=[key])
    except OncemoreError as error:
        return Check("writable", "problem", str(error))
    return Check("writable", "ok", "yes")


def _folder(path: str) -> Iterator[Check]:
    """A store on disk: who can read it, where it is, and how much room there is."""
    mode = os.stat(path).st_mode & 0o777
    if mode & 0o077:
        yield Check("permissions", "note", f"{mode:03o}: others can read it")
    else:
        yield Check("permissions", "ok", f"{mode:03o}")
    kind = file_system(path)
    bad = kind in NETWORK_FILE_SYSTEMS
    warning = ": a network file system, where only one machine may use it" if bad else ""
    yield Check("file system", "note" if bad or kind is None else "ok", (kind or "unknown") + warning)
    usage = shutil.disk_usage(path)
    yield Check("free space", "ok" if usage.free > _LITTLE else "note", f"{size(usage.free)} of {size(usage.total)}")


def _versions() -> Iterator[Check]:
    yield Check(
        "python", "ok", f"{platform.python_version()} ({platform.python_implementation()}, {platform.system()})"
    )
    yield Check("oncemore", "ok", version_of("oncemore"))
    yield Check("sqlite", "ok", sqlite3.sqlite_version)
    yield from (Check(name, "ok", version_of(name)) for name in _PACKAGES)
