"""One call of a step, what is to be kept of it, and which calls are being computed around the current one."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from blake3 import blake3

from .codec import Encoded, Naming
from .current import Around
from .identity import CallIdentity, Part
from .identity.calls import Variants
from .overlap import Group
from .records import in_key
from .stores import Bytes, Hold

# Why a node runs that has no checkpoint, or none that counts.
NEW = "new node"
GONE = "the checkpoint is gone from the store"
FORGOTTEN = "forgotten"
ROLLED_BACK = "rolled back"
PRUNED = "removed by a retention policy"
LEFT_OUT = "not in the file that the run was imported from"

ASKED = ("refreshed", "ONCEMORE_REFRESH")  # why a node runs again though it has a checkpoint: the user asks for it


SIGILS = "$^"  # entries under a run's home that are no nodes': names of steps are quoted


@lru_cache(10_000)
def quoted(name: str) -> str:
    """A name as it stands in keys."""
    return in_key(name, 500)  # other keys contain this one


def place(step: str, arguments: str, code: str) -> str:
    """Where the entry of a node stands under the home of its run."""
    return f"{quoted(step)}/{arguments}.{code}"


def idempotency_key_of(owner: str, call: str) -> str:
    return blake3(f"{owner}/{call}".encode()).hexdigest(length=16)


# -- what belongs to a run whatever becomes of its nodes. Each gives what the keys begin with


def intents_of(owner: str) -> str:
    """What effect="once" steps have begun, and what came of it."""
    return f"once/{owner}/"


def counters_of(owner: str) -> str:
    """Where the processes of a scope count identical calls."""
    return f"calls/{owner}/"


def items_of(owner: str) -> str:
    """The items of generators, in chunks."""
    return f"items/{owner}/"


def state_of(owner: str) -> str:
    """Snapshots of the state, by content, and the unseeded generators when the run began."""
    return f"state/{owner}/"


def intent_key(owner: str, call: str) -> str:
    return intents_of(owner) + idempotency_key_of(owner, call)


class Node:
    """One call of a step: the step's name, and the digests of its arguments and of its code.

    `call` is another digest, which does not change with the code: see identity/calls.py. For effect="once" it is known
    together with what it was made of, and with the earlier call that it may be (`doubt`); others `name` it if it is needed.
    """

    __slots__ = (
        *("__weakref__", "arguments", "call", "code", "doubt", "group", "identity", "key", "name", "owner", "prefix"),
        *("step", "thread", "variants"),
    )

    def __init__(self, prefix: str, owner: str, step: str, arguments: str, code: str) -> None:
        self.prefix, self.owner, self.step, self.arguments, self.code = prefix, owner, step, arguments, code
        self.key = prefix + place(step, arguments, code)
        self.call = ""
        self.name: Callable[[], str] | None = None
        self.identity: CallIdentity | None = None
        self.doubt: Mapping[str, str] | None = None
        self.variants: Variants | None = None
        self.group: Group | None = None  # the steps that are computed under it
        self.thread = 0  # in which it is computed

    @property
    def fingerprint(self) -> str:
        return f"{self.arguments}.{self.code}"

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts at this node, also after its code was mended; another for every other node."""
        if not self.call and self.name is not None:
            self.call = self.name()
        return idempotency_key_of(self.owner, self.call)

    @property
    def intent(self) -> str:
        """Where it stands that an `effect="once"` step was begun, and what came of it: the same whatever its code."""
        return intent_key(self.owner, self.call)

    @property
    def id(self) -> str:
        """What people see: enough to tell nodes of one step apart."""
        return f"{self.step}-{self.arguments[:8]}"

    def about(self) -> dict[str, Any]:
        """What events say of it."""
        return {"step": self.step, "node": self.id, "fingerprint": self.fingerprint}


@dataclass
class CheckpointData:
    """What is to be kept of a completed node.

    `reads` are the state keys it depends on, `name` names objects that are the caller's own, `chunks` are a generator's items,
    `once` says that its intent becomes the record that it was performed. `hold` is the lease it was computed under, `seen`
    what stood under the node's key then, and `damaged` says that it could not be read.
    """

    value: object
    meta: dict[str, Any]
    code: Mapping[str, Part]
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    reads: Mapping[str, str] = field(default_factory=dict[str, str])
    name: Naming | None = None
    chunks: list[Encoded] | None = None
    items: str = ""  # the beginning of the chunks' keys
    snapshot: Encoded | None = None  # the run's state after the step, unless it is kept already
    opening: Encoded | None = None  # the unseeded generators when the scope opened, unless they are kept already
    once: bool = False
    hold: Hold | None = None
    seen: Bytes | None = None
    damaged: bool = False
    owner: str = ""  # for whom the contents of its files wait; if not said, the node
    blobs: list[str] = field(default_factory=list[str])  # the entries that hold the contents of its files


def variant_key(key: str, reads: Mapping[str, str]) -> str:
    """Where the checkpoint stands of a node that has read this of the state."""
    return f"{key}@{blake3(json.dumps(reads, sort_keys=True).encode()).hexdigest(length=16)}"


_inside = Around[Node]("oncemore_inside")  # the nodes being computed around us
steps_around = _inside.get


def idempotency_key() -> str:
    """A word for this node to hand to an API: the same in every attempt at it, another for every other node.

    Outside a step, or where the step runs without a run, every call gives a new one.

    >>> from oncemore import checkpointed, checkpoint_scope, idempotency_key
    >>> @checkpointed
    ... def pay(invoice):
    ...     return idempotency_key()
    >>> with checkpoint_scope("payments", store="memory://doctest"):
    ...     pay("a") == pay.refresh("a"), pay("a") == pay("b")
    (True, False)
    """
    nodes = _inside.get()
    return nodes[-1].idempotency_key if nodes else os.urandom(16).hex()


def group_of(top: Group) -> Group:
    """The steps that run beside one that is called here; `top` are those that run under no other."""
    nodes = _inside.get()
    if not nodes:
        return top
    nodes[-1].group = nodes[-1].group or Group(nodes[-1].thread)
    return nodes[-1].group


def inside(node: Node) -> Callable[[], None]:
    """Make `node` the one being computed, until what is returned is called."""
    node.thread = threading.get_ident()
    token = _inside.set((*_inside.get(), node))
    return lambda: _inside.reset(token)
