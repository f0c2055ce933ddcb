"""Stores that were made with another key.

A store belongs to the key that it was made with; no other key can verify its entries. Other keys are used by accident: `sudo`,
`cron`, a container or another `HOME` each have a key file of their own. Their entries go under a prefix of their own, so that
the owner's are never replaced, removed or moved, and each key finds everything that it has written.
"""

from __future__ import annotations

from ..errors import IntegrityError, StoreError, warn
from ..keys import OTHERS, OWNER, RUNS
from ..settings import key_id, key_source, secret
from ..stores import Store
from ..stores.layered import Within
from . import unseal

UNKNOWN = "unknown"  # the id, if that entry is missing


def owner_of(store: Store) -> str:
    """The id of the key that the store was made with. Empty if the store is new, or if it lacks the id but the key in use
    verifies its first run.
    """
    try:
        owner = bytes(store.get(OWNER) or b"").decode("ascii", "replace")
        first = None if owner else next(store.scan(RUNS, limit=1), None)
        if first is not None and first[1] is not None:
            unseal(first[1], first[0], secret())
        return owner
    except IntegrityError:
        return UNKNOWN
    except StoreError:  # the next read raises it
        return ""


def claim(store: Store) -> str:
    """Make the key in use the owner of a store that has none. Returns the id of the owner."""
    own = key_id()
    owner = owner_of(store)
    if not owner:
        try:
            owner = own if store.commit(put={OWNER: [own.encode()]}, expect={OWNER: None}) else owner_of(store)
        except StoreError:
            pass  # the next write raises it
    return owner or own


def keyed(store: Store, *, writing: bool, strict: bool = False) -> Store:
    """The store as the key in use sees it: all of it if the key is the owner, otherwise what the key itself has written.

    `writing` makes the key in use the owner of a new store. `strict` raises IntegrityError if another key is.
    """
    owner = claim(store) if writing else owner_of(store)
    own = key_id()
    if owner in ("", own):
        return store
    problem = another_key(store, owner)
    if strict:
        raise IntegrityError(problem)
    warn(f"{problem}. Until then, new runs are stored separately and the existing ones stay unchanged")
    return Within(store, f"{OTHERS}{own}/")


def another_key(store: Store, owner: str) -> str:
    """The message for a store that was made with another key."""
    source = key_source()
    return (
        f"the store {store.url} was made with another key ({owner}). The key in use ({key_id()}) is from {source.text} and "
        f"can't verify its runs. If they are yours (sudo, cron, a container?), use the key that they were made with: set HOME "
        f"or ONCEMORE_KEY as it was then, or copy that key file to {source.file}. `oncemore key` shows which key is in use"
    )
