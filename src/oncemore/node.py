"""One call of a step, what is saved of it, and which calls are being computed around the current one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .codec import Encoded, Naming
from .current import Around
from .identity import CallIdentity, Part
from .identity.calls import Variants
from .keys import idempotency_key_of, intent_key, node_key
from .stores import Bytes, Hold
from .surroundings import CallContext
from .surroundings.objects import InOrder
from .surroundings.overlap import Group

if TYPE_CHECKING:
    from .history.explain import Dependencies

# Why a node runs that has no valid checkpoint.
NEW = "new node"
GONE = "the checkpoint is gone from the store"
FORGOTTEN = "forgotten"
ROLLED_BACK = "rolled back"
PRUNED = "removed by a retention policy"
PUT = "put by the user"
LEFT_OUT = "not in the file that the run was imported from"

ASKED = ("refreshed", "ONCEMORE_REFRESH")  # why a node with a valid checkpoint runs all the same: the user asked for it


class Node:
    """One call of a step: the step's name, and the digests of its arguments and of its code.

    `call` is another digest of the call, one that survives edits of the code (see identity/calls.py). An effect="once" step
    has it from the start, with `identity`, which it was computed from, and `doubt`, if the node may be a call that was
    recorded before an edit. Other steps compute it with `name` when it is needed.
    """

    __slots__ = (
        *("__weakref__", "arguments", "call", "code", "doubt", "group", "identity", "key", "name", "owner", "prefix"),
        *("step", "thread", "variants"),
    )

    def __init__(self, prefix: str, owner: str, step: str, arguments: str, code: str) -> None:
        self.prefix, self.owner, self.step, self.arguments, self.code = prefix, owner, step, arguments, code
        self.key = node_key(prefix, step, arguments, code)
        self.call = ""
        self.name: Callable[[], str] | None = None
        self.identity: CallIdentity | None = None
        self.doubt: Mapping[str, str] | None = None
        self.variants: Variants | None = None
        self.group: Group | None = None  # the steps that it calls
        self.thread = 0  # the thread that computes it

    @property
    def fingerprint(self) -> str:
        return f"{self.arguments}.{self.code}"

    @property
    def idempotency_key(self) -> str:
        """Equal whenever this node runs, even after its code was fixed, and different for every other node."""
        if not self.call and self.name is not None:
            self.call = self.name()
        return idempotency_key_of(self.owner, self.call)

    @property
    def intent(self) -> str:
        """The key of the intent of an `effect="once"` step, later of the record that it was performed."""
        return intent_key(self.owner, self.call)

    @property
    def id(self) -> str:
        """What users see: enough to tell the nodes of a step apart."""
        return f"{self.step}-{self.arguments[:8]}"

    def about(self) -> dict[str, Any]:
        """The fields of an event that identify the node."""
        return {"step": self.step, "node": self.id, "fingerprint": self.fingerprint}


@dataclass
class CheckpointData:
    """What is saved of a completed node."""

    value: Any  # what the step returned; with effects, a pair of the two
    meta: dict[str, Any]
    code: Mapping[str, Part]
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    reads: Mapping[str, str] = field(default_factory=dict[str, str])  # digests of what it read besides its arguments
    name: Naming | None = None  # names objects of the caller's, which are not saved by value
    chunks: list[Encoded] | None = None  # a generator's items
    items: str = ""  # the prefix of the chunks' keys
    snapshot: Encoded | None = None  # the run's state after the step, unless it is stored already
    opening: Encoded | None = None  # the unseeded generators when the scope opened, unless they are stored already
    once: bool = False  # the intent becomes the record that the step was performed
    hold: Hold | None = None  # the lease that it was computed under
    seen: Bytes | None = None  # what was stored under the node's key when the lease was acquired
    damaged: bool = False  # `seen` could not be read
    owner: str = ""  # the key that its files' chunks are marked as pending for; by default the node's
    blobs: list[str] = field(default_factory=list[str])  # the keys of its files' chunks

    @staticmethod
    def of(
        value: Any, effects: dict[str, Any], context: CallContext, dependencies: Dependencies, *, once: bool
    ) -> CheckpointData:
        """What to save of a call that returned `value`. `dependencies` are as they were before it ran."""
        arguments, code, packages, data = dependencies
        shown = {name: part.to_json() for name, part in {**arguments, **data}.items() if part.shown}
        meta: dict[str, Any] = {"arguments": {name: part.digest for name, part in arguments.items()}, "shown": shown}
        if context.roots.routes:
            in_order = InOrder(value, effects, context.roots.name_in_order)
            effects["globals"] = {**effects.get("globals", {}), "in order": in_order}
        if data:
            meta["data"] = {name: part.digest for name, part in data.items()}
        if context.reads:
            meta["reads"] = context.reads
            shown.update(context.shown)
        if context.files:
            meta["files"] = context.files
        if effects:
            meta["effects"] = sorted(effects)
        name = None
        if context.roots or "globals" in effects:
            name, meta["roots"] = context.roots.name, context.roots.listed
        recorded = (value, effects) if effects else value
        return CheckpointData(recorded, meta, code, packages, context.reads, name, once=once)


_inside = Around[Node]("oncemore_inside")  # the nodes being computed around us
steps_around = _inside.get


def idempotency_key() -> str:
    """A key for this node to pass to an API: equal whenever it runs, and different for every other node.

    Outside a step, and in a step called without a run, each call returns a new key.

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
    """The group that a step called here joins: that of the step around it, or `top` if there is none."""
    nodes = _inside.get()
    if not nodes:
        return top
    nodes[-1].group = nodes[-1].group or Group(nodes[-1].thread)
    return nodes[-1].group


def inside(node: Node) -> Callable[[], None]:
    """Make `node` the one being computed, until the returned function is called."""
    node.thread = threading.get_ident()
    token = _inside.set((*_inside.get(), node))
    return lambda: _inside.reset(token)
