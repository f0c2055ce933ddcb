"""One call of a step: what was asked for, what was found, and which nodes are being computed around it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from .codec import Decoded
from .facts import dataclass
from .fingerprint import Arguments
from .nodes import Node
from .runs import Run
from .shelf import Shelf

_inside: ContextVar[tuple[Node, ...]] = ContextVar("oncemore_inside", default=())  # the nodes being computed around us


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


class Call:
    """Let the user's function run."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.now = functools.partial(function, *args, **kwargs)

    async def later(self) -> Any:
        return await self.now()


class Asked:
    """One call of a step: what was passed, what identifies that, and the node it is."""

    __slots__ = ("args", "arguments", "kwargs", "node", "run", "shelf")

    def __init__(
        self,
        run: Run,
        shelf: Shelf,
        node: Node,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: Arguments,
    ) -> None:
        self.run, self.shelf, self.node = run, shelf, node
        self.args, self.kwargs, self.arguments = args, kwargs, arguments


@dataclass
class Found:
    """What recall brought: an entry with its value and effects, or the reason why there is none."""

    entry: Decoded | None = None
    value: Any = None
    effects: Mapping[str, Any] = MappingProxyType({})
    moment: Any = None
    why: str | None = None


steps_around = _inside.get  # the nodes being computed around this call


def around(node: Node) -> bool:
    """Whether `node` is being computed around this very call."""
    nodes = _inside.get()
    return bool(nodes) and any(node.key == other.key for other in nodes)


def inside(node: Node) -> Callable[[], None]:
    """Make `node` the one being computed, until what is returned is called."""
    token = _inside.set((*_inside.get(), node))
    return lambda: _inside.reset(token)
