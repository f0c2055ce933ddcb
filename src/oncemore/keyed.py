"""Which key a store was made with, and what becomes of those who come with another one.

A key that did not make a store can't verify anything in it. This happens by accident: `sudo`, a container, `cron` and another
`HOME` each have a key file of their own. Such a key works beside the owner's entries, under a prefix of its own. Nothing of the
owner's is replaced, removed or set aside, and each key finds everything that it has made.
"""

from __future__ import annotations

from .codec import unseal
from .errors import IntegrityError, StoreError, warn
from .secret import key_id, key_source, secret
from .stores import Store
from .stores.within import Within

OWNER = "key/owner"  # the id of the key that the store was made with. Not signed: others have to read it
UNKNOWN = "unknown"  # what stands for the id where the mark is missing
OTHERS = "other/"  # what the keys begin with under which others work


def owner_of(store: Store) -> str:
    """The id of the key that the store was made with; empty if nobody has written to it yet, or the present key has.

    Where the mark is missing, the first run tells whether it was the present key.
    """
    try:
        owner = bytes(store.get(OWNER) or b"").decode("ascii", "replace")
        first = None if owner else next(store.scan("run/", limit=1), None)
        if first is not None and first[1] is not None:
            unseal(first[1], first[0], secret())
        return owner
    except IntegrityError:
        return UNKNOWN
    except StoreError:  # who needs an entry will meet it
        return ""


def claim(store: Store) -> str:
    """Make it the store of the present key if it is nobody's. The id of the key that it belongs to."""
    own = key_id()
    owner = owner_of(store)
    if not owner:
        try:
            owner = own if store.commit(put={OWNER: [own.encode()]}, expect={OWNER: None}) else owner_of(store)
        except StoreError:
            pass  # who is about to write will meet it
    return owner or own


def keyed(store: Store, *, writing: bool, strict: bool = False) -> Store:
    """The store as the present key finds it: as it is if the key is its own, else what that key has in it.

    `writing` makes a new store the present key's. `strict`: IntegrityError with another key.
    """
    owner = claim(store) if writing else owner_of(store)
    own = key_id()
    if owner in ("", own):
        return store
    problem = another_key(store, owner)
    if strict:
        raise IntegrityError(problem)
    warn(f"{problem}. Until then, runs are kept beside them; the others stay as they are")
    return Within(store, f"{OTHERS}{own}/")


def another_key(store: Store, owner: str) -> str:
    """What is wrong, and what helps."""
    source = key_source()
    return (
        f"the store {store.url} was made with another key ({owner}). The key in use here ({key_id()}) is from {source.text} "
        f"and can't verify its runs. If they are yours (sudo, cron, a container?), use the key that they were made with: set HOME "
        f"or ONCEMORE_KEY as it was then, or copy that key file to {source.file}. `oncemore key` shows which key is in use"
    )
