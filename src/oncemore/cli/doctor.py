"""`doctor`: check that oncemore can work here, and report what may get in its way."""

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
from ..codec.keyed import another_key, owner_of
from ..history.verify import Littered
from ..settings import key_file, key_id, size
from ..stores import Store, default_target, open_store, store_exists
from ..stores.disk import DiskStore
from ..stores.filesystem import NETWORK_FILE_SYSTEMS, file_system
from . import PROBLEMS, options
from .output import columns, plural, print_result, version_of

_PACKAGES = ("blake3", "cloudpickle", "diskcache", "wrapt", "zstandard", "click", "rich")
_LOW_SPACE = 1 << 30  # bytes
_CHECKS = columns("check", "is", "what", text="what")


class Check(NamedTuple):
    """The result of one check; its state is "ok", "note" or "problem"."""

    name: str
    state: str
    message: str


@click.command()
@options.reads
@click.pass_context
def doctor(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Check whether oncemore can work here.

    Checks the key, the store, its permissions and file system, free space, open runs and versions. The exit code is 3 if there
    is a problem.
    """
    checks = [_secret(), *_store(store or default_target()), *_versions()]
    print_result(as_json, [check._asdict() for check in checks], (_CHECKS, checks))
    ctx.exit(PROBLEMS if any(check.state == "problem" for check in checks) else 0)


def _secret() -> Check:
    if secret := os.environ.get("ONCEMORE_KEY"):
        if len(secret) < 16:
            return Check("secret", "note", "in ONCEMORE_KEY, but short enough to guess: use at least 16 characters")
        return Check("secret", "ok", "in ONCEMORE_KEY")
    path = key_file()
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return Check("secret", "note", f"none yet: {path} is created with the first checkpoint")
    except OSError as error:
        return Check("secret", "problem", f"cannot read {path}: {error.strerror}")
    if found.st_mode & 0o077:
        return Check(
            "secret", "problem", f"other users can read {path} (mode {found.st_mode & 0o777:03o}): run chmod 600 {path}"
        )
    if found.st_size < 32:
        return Check("secret", "problem", f"{path} is truncated: restore it from a backup")
    if not os.access(path, os.R_OK):
        return Check("secret", "problem", f"you have no permission to read {path}")
    return Check("secret", "ok", f"in {path}, readable only by you")


def _store(target: str) -> Iterator[Check]:
    try:
        if not store_exists(target):
            yield Check("store", "note", f"none yet: {target} is created by the first run that uses it")
            return
        store = open_store(target)
        yield Check("store", "ok", store.url)
        yield from _keys(store)
        yield from _entries(store)
    except OncemoreError as error:
        yield Check("store", "problem", str(error))
        return
    yield _writable(store)
    if isinstance(store, DiskStore):
        yield from _folder(store.path)


def _keys(store: Store) -> Iterator[Check]:
    """Report a store that was made with another key."""
    owner = owner_of(store)
    if owner and owner != key_id():
        yield Check("key", "problem", another_key(store, owner))


def _entries(store: Store) -> Iterator[Check]:
    """Runs, and files that belong to no entry."""
    runs = History(store).runs()
    damaged = set(History(store).run_ids()) - {run.id for run in runs}
    if damaged:
        yield Check("runs", "problem", f"records that cannot be verified: {', '.join(sorted(damaged)[:5])}")
    else:
        yield Check("runs", "ok", f"{len(runs):,}")
    running = [run.id for run in runs if run.status == "running"]
    killed = [run.id for run in runs if run.status == "killed"]
    yield Check("running", "ok", ", ".join(running[:5]) + (" ..." if len(running) > 5 else "") if running else "none")
    if killed:
        yield Check("killed", "note", f"{plural(len(killed), 'run')} can be resumed: {', '.join(killed[:5])}")
    files = store.orphans() if isinstance(store, Littered) else []
    if files:
        yield Check(
            "files", "note", f"{plural(len(files), 'orphan')}: remove with open_store(...).maintain() in Python"
        )
    else:
        yield Check("files", "ok", "no orphans")


def _writable(store: Store) -> Check:
    """Write an entry and remove it again."""
    key = f"doctor/{secrets.token_hex(8)}"
    try:
        store.commit(put={key: [b"1"]})
        store.commit(delete=[key])
    except OncemoreError as error:
        return Check("writable", "problem", str(error))
    return Check("writable", "ok", "yes")


def _folder(path: str) -> Iterator[Check]:
    """A store on disk: its permissions, file system and free space."""
    mode = os.stat(path).st_mode & 0o777
    if mode & 0o077:
        yield Check("permissions", "note", f"{mode:03o}: other users can read it")
    else:
        yield Check("permissions", "ok", f"{mode:03o}")
    kind = file_system(path)
    network = kind in NETWORK_FILE_SYSTEMS
    warning = ": a network file system; only one machine may use the store" if network else ""
    yield Check("file system", "note" if network or kind is None else "ok", (kind or "unknown") + warning)
    usage = shutil.disk_usage(path)
    yield Check("free space", "ok" if usage.free > _LOW_SPACE else "note", f"{size(usage.free)} of {size(usage.total)}")


def _versions() -> Iterator[Check]:
    yield Check(
        "python", "ok", f"{platform.python_version()} ({platform.python_implementation()}, {platform.system()})"
    )
    yield Check("oncemore", "ok", version_of("oncemore"))
    yield Check("sqlite", "ok", sqlite3.sqlite_version)
    yield from (Check(name, "ok", version_of(name)) for name in _PACKAGES)
