"""One call of a step, and what is to be kept of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from blake3 import blake3

from .codec import Encoded, Naming
from .facts import dataclass, field
from .fingerprint import Part
from .records import in_key

NEW = "new node"  # why one runs of which nothing is known


class _Quoted(dict[str, str]):
    """The names of steps as they stand in keys."""

    def __missing__(self, name: str) -> str:
        self[name] = quoted = in_key(name, 500)  # other keys contain this one
        return quoted


_quoted = _Quoted()


def step_in_key(step: str) -> str:
    """The name of a step as it stands in keys."""
    return _quoted[step]


def place(step: str, arguments: str, code: str) -> str:
    """Where the entry of a node stands under the home of its run."""
    return f"{_quoted[step]}/{arguments}.{code}"


class Node:
    """One call of a step: the step's name, and the digests of its arguments and of its code."""

    __slots__ = ("arguments", "code", "home", "key", "owner", "step")

    def __init__(self, home: str, owner: str, step: str, arguments: str, code: str) -> None:
        self.home, self.owner, self.step, self.arguments, self.code = home, owner, step, arguments, code
        self.key = home + place(step, arguments, code)

    @property
    def fingerprint(self) -> str:
        return f"{self.arguments}.{self.code}"

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts at this node, also after its code was mended; another for every other node."""
        return blake3(f"{self.owner}/{_quoted[self.step]}/{self.arguments}".encode()).hexdigest(length=16)

    @property
    def id(self) -> str:
        """What people see: enough to tell nodes of one step apart."""
        return f"{self.step}-{self.arguments[:8]}"

    def about(self) -> dict[str, Any]:
        """What events say of it."""
        return {"step": self.step, "node": self.id, "fingerprint": self.fingerprint}


@dataclass
class Kept:
    """What is to be kept of a completed node.

    `reads` are the state keys it depends on, `name` names objects that are the caller's own, `chunks` are a generator's items,
    `once` says that an intent is to be removed with it.
    """

    value: object
    meta: dict[str, Any]
    code: Mapping[str, Part]
    packages: Callable[[], Mapping[str, str]] = dict[str, str]
    reads: Mapping[str, str] = field(default_factory=dict[str, str])
    name: Naming | None = None
    chunks: list[Encoded] | None = None
    items: str = ""  # the beginning of the chunks' keys
    snapshot: Encoded | None = None  # the run's state after the step, unless it is kept already
    once: bool = False
    blobs: list[str] = field(default_factory=list[str])  # the entries that hold the contents of its files


def variant_key(key: str, reads: Mapping[str, str]) -> str:
    """Where the checkpoint stands of a node that has read this of the state."""
    return f"{key}@{blake3(json.dumps(reads, sort_keys=True).encode()).hexdigest(length=16)}"
