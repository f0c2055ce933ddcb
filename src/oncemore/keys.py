"""Every key of the store layout. docs/explanation/format.md lists them with what is stored under each.

`owner` is a run's uid, or "shared" for steps with `share=True`. What ends in `/` is a prefix, which the keys of several entries
begin with; the rest are whole keys.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote, unquote

from blake3 import blake3

SIGILS = "$^"  # after a run's prefix, these start keys that are no node's; in step names they are quoted

# What the keys of each kind begin with.
RUNS, EVENTS, NODES, SHARED, STATES, ITEMS, INTENTS = "run/", "event/", "node/", "shared/", "state/", "items/", "once/"
CHUNKS, LISTINGS, PENDING, CODES = "blob/", "files/", "pending/", "code/"
FORKS, DELETED = "forks/", "gone/"
FILES_OF_JOBLIB = "joblib/"  # what joblib.Memory writes into its store backend
THREADS = "langgraph/"  # threads of LangGraph graphs, see compat/langgraph.py
WAITING = "waiting/"  # marks of calls that wait for a lease
USED = "used/"  # marks of when a memoized function last had a hit

OWNER = "key/owner"  # holds the id of the key that the store was made with. Not signed, as other keys must read it
ENCRYPTION = "key/encryption"  # says that the store is encrypted; signed
ROTATION = "key/rotation"  # while a rotation of the key is unfinished: the earlier key; signed
OTHERS = "other/"  # what the keys of entries written with other keys begin with

# Stamps: random bytes, replaced whenever something happens, so that a commit can expect that it has not happened meanwhile.
ALIASES = "changed/aliases"  # aliases were created
REMOVED = "changed/removed"  # entries were removed
BLOBS = "changed/blobs"  # a step relies on a chunk of a file that existed already
GRAPHS = "changed/langgraph"  # checkpoints of graphs were removed

_UNSIGNED = (PENDING, "changed/", FORKS, DELETED, "key/", OTHERS, WAITING, USED)


def in_key(name: str, longest: int = 900) -> str:
    """Quote a name for use in a key: ASCII characters other than letters, digits and `_.-~` are percent-encoded.

    A key has at most 1,024 bytes. A name of more than `longest` bytes is truncated, and ends in its digest.
    """
    quoted = re.sub("[\0-\x7f]+", lambda found: quote(found[0], safe=""), name)
    data = quoted.encode("utf-8", "surrogatepass")
    if len(data) <= longest:
        return quoted
    return f"{data[: longest - 40].decode(errors='ignore')}!{blake3(data).hexdigest(length=16)}"


@lru_cache(10_000)
def quoted(name: str) -> str:
    """Quote the name of a step or loop. Leaves room for the rest of the key, and for keys that contain this one."""
    return in_key(name, 500)


# -- runs


def record_key(run_id: str) -> str:
    return RUNS + in_key(run_id)  # never truncated: an id has at most 200 characters


def run_id_of(key: str) -> str:
    """The id of the run whose record has this key."""
    return unquote(key.removeprefix(RUNS))


def damaged_key(record: str) -> str:
    """A new key for a record that failed verification."""
    return f"damaged/{record}/{os.urandom(4).hex()}"


def log_of(owner: str) -> str:
    """The run's events, by number."""
    return f"{EVENTS}{owner}/"


def alive_key(owner: str, token: str) -> str:
    """The lock that a scope holds while its process lives."""
    return f"alive/{owner}/{token}"


def intents_of(owner: str) -> str:
    """Intents of effect="once" steps, and the records that they were performed."""
    return f"{INTENTS}{owner}/"


def idempotency_key_of(owner: str, call: str) -> str:
    return blake3(f"{owner}/{call}".encode()).hexdigest(length=16)


def intent_key(owner: str, call: str) -> str:
    return intents_of(owner) + idempotency_key_of(owner, call)


def counters_of(owner: str) -> str:
    """Ordinals of identical calls, shared by the processes of a scope."""
    return f"calls/{owner}/"


def reused_of(owner: str) -> str:
    """What workers reused, by the mark of the scope that they work for, until it is written as events."""
    return f"reused/{owner}/"


def items_of(owner: str) -> str:
    """Chunks of generators' items."""
    return f"{ITEMS}{owner}/"


def state_of(owner: str) -> str:
    """Snapshots of state and generators by content, and the unseeded generators when the run began."""
    return f"{STATES}{owner}/"


def fork_marks_of(owner: str) -> str:
    """A mark for each fork that may have aliases of the run's entries."""
    return f"{FORKS}{owner}/"


def fork_mark(owner: str, fork: str) -> str:
    return fork_marks_of(owner) + fork


def deleted_key(owner: str) -> str:
    """Marks a run that was deleted, or is being imported while the key is held."""
    return DELETED + owner


def written_files_of(owner: str) -> str:
    """What a run knows about the files that its steps have written and read."""
    return f"wrote/{owner}/"


def changed(owner: str) -> str:
    """The stamp that changes whenever an entry of `owner` is replaced or forgotten: other processes' caches are stale."""
    return f"changed/{owner}"


# -- entries


def first_prefix(owner: str) -> str:
    """The prefix of the entries of a new run."""
    return f"{NODES}{owner}/"


def new_prefix(owner: str) -> str:
    """Another prefix for the entries of a run, after a rollback."""
    return f"{NODES}{owner}.{os.urandom(4).hex()}/"


def prefix_of(entry: str) -> str:
    """The run's prefix, or "shared/", that the key of an entry begins with."""
    kind, _, rest = entry.partition("/")
    return SHARED if kind == "shared" else f"{kind}/{rest.partition('/')[0]}/"


def closed(prefix: str) -> str:
    """The mark that closes a prefix: there are aliases of its entries, so nothing is written under it any more."""
    return f"{prefix}^"


def node_key(prefix: str, step: str, arguments: str, code: str) -> str:
    return f"{prefix}{quoted(step)}/{arguments}.{code}"


def variant_key(key: str, reads: Mapping[str, str]) -> str:
    """The key of a node's checkpoint for these values read. The node's own entry, under `key`, points to it."""
    return f"{key}@{blake3(json.dumps(reads, sort_keys=True).encode()).hexdigest(length=16)}"


def used_key(step: str) -> str:
    """The mark of when a memoized function last had a hit."""
    return USED + quoted(step)


def loop_snapshots_of(prefix: str, loop: str) -> str:
    return f"{prefix}$/{quoted(loop)}/"


def code_key(code: str) -> str:
    """The parts of the code behind a digest."""
    return CODES + code


# -- files of joblib.Memory


def joblib_key(path: str) -> str:
    """The key of a file; for a folder, what the keys of the files in it begin with, but for a "/"."""
    return FILES_OF_JOBLIB + "/".join(in_key(part, 1024) for part in path.split("/"))  # never truncated: read back


# -- threads of LangGraph graphs. A namespace belongs to a subgraph; that of the graph itself is empty


def channels_of(thread: str) -> str:
    """The values of a thread's channels."""
    return f"{THREADS}channel/{in_key(thread, 200)}/"


def channel_key(thread: str, namespace: str, channel: str, version: object) -> str:
    return f"{channels_of(thread)}{in_key(namespace, 250)}/{in_key(channel, 100)}/{in_key(repr(version), 100)}"


def graph_checkpoints_of(thread: str | None, namespace: str | None = None) -> str:
    """The checkpoints of a thread's namespace, of all its namespaces, or of all threads."""
    if thread is None:
        return f"{THREADS}checkpoint/"
    under = f"{THREADS}checkpoint/{in_key(thread, 200)}/"
    return under if namespace is None else f"{under}{in_key(namespace, 250)}/"


def graph_checkpoint_key(thread: str, namespace: str, checkpoint: str) -> str:
    return graph_checkpoints_of(thread, namespace) + newest_first(checkpoint)


def newest_first(checkpoint: str) -> str:
    """The id of a checkpoint in a form whose order is reversed: a store scans upward, and the newest one is wanted first."""
    return bytes(255 - byte for byte in checkpoint.encode()).hex() + "~"  # "~", so that "ab" comes before "a"


def writes_of(checkpoint: str) -> str:
    """What tasks have written since the checkpoint with this key, or since those whose keys begin with it."""
    return f"{THREADS}write/{checkpoint.removeprefix(graph_checkpoints_of(None))}" + (
        "" if checkpoint.endswith("/") else "/"
    )


def write_key(checkpoint: str, task: str, index: int) -> str:
    return f"{writes_of(checkpoint)}{in_key(task, 100)}/{index}"


def written_since(write: str) -> str:
    """The key of the checkpoint since which this was written."""
    return graph_checkpoints_of(None) + write.removeprefix(f"{THREADS}write/").rsplit("/", 2)[0]


def thread_stamp(thread: str) -> str:
    """The stamp that changes with every new checkpoint of a thread, so that none is created while others are removed."""
    return changed(THREADS + in_key(thread, 200))


# -- contents of files


def blob_key(digest: bytes) -> str:
    """One chunk of a file."""
    return CHUNKS + digest.hex()


def listing_key(entry: str) -> str:
    """The list of an entry's chunks."""
    return LISTINGS + entry


def pending_of(node: str) -> str:
    """Marks for the chunks that a node needs before it has a checkpoint."""
    return f"{PENDING}{node}/"


def pending(node: str, blob: str) -> str:
    return pending_of(node) + blob


def pending_blob(mark: str) -> str:
    """The key of the chunk that such a mark is for."""
    return CHUNKS + mark.rpartition(f"/{CHUNKS}")[2]


# -- signatures


def sealed_as(key: str) -> str | None:
    """The key an entry is signed for: an event's is that of its log. None for marks and stamps, which are not signed."""
    if key.startswith(EVENTS):
        return key[: key.rindex("/") + 1]
    return None if key.startswith(_UNSIGNED) else key


def is_mark(key: str) -> bool:
    """Whether the key is that of a mark or stamp, or another key's. These are neither signed nor encrypted by this key."""
    return key.startswith(_UNSIGNED)
