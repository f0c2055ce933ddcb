"""The variables that the body of a `run.block` assigns: a skipped block binds them as the body left them."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from ..codec import dumps
from ..errors import CodecError
from ..identity.code.blocks import Body, is_function, local_names
from ..identity.code.data import ABSENT
from .loop_variables import BINDS_LOCALS
from .protocol import CallContext, Surrounding


class Assigned:
    """The variables that one block assigns, in the frame that it is in, and whether its body set a value.

    Only variables that other code may read are saved. In a module the others are unbound when the block is skipped, so that
    code which reads them after all fails instead of finding an outdated value.
    """

    def __init__(self, body: Body, frame: FrameType) -> None:
        self._frame, self._body = frame, body
        self._local = local_names(frame)
        self._in_function = is_function(frame)
        if not self._in_function and frame.f_locals is not frame.f_globals:  # the body of a class
            self._local |= body.bound
        self._used = body.used | body.bound.intersection(frame.f_code.co_freevars)
        self.valued = False

    @property
    def lost(self) -> list[str]:
        """Local variables that other code reads, and that this version of Python can't set from outside."""
        return sorted(self._used & self._local) if self._in_function and not BINDS_LOCALS else []

    def keys(self) -> Iterator[tuple[int, str]]:
        """The global variables that the statement assigns, each as the id of its namespace and its name."""
        for name in (*self._body.bound, self._body.handle):
            if name not in self._local:
                yield id(self._frame.f_globals), name

    def effect(self) -> dict[str, Any] | None:
        """What to do when the block is skipped: the variables to set and to unset. `valued`: whether it has a value."""
        now = {name: self._space(name).get(name, ABSENT) for name in sorted(self._used)}
        to_set = {name: value for name, value in now.items() if value is not ABSENT and self._can_save(value)}
        fixed = self._local if self._in_function else frozenset[str]()  # can't be unset, and nobody else reads them
        to_unset = sorted(self._body.bound - fixed - to_set.keys())
        if self.valued and not to_set and not to_unset:
            return None
        labelled = {f"variable `{name}`": value for name, value in to_set.items()}  # as messages name them
        return {"set": labelled, "unset": to_unset, "valued": self.valued}

    def restore(self, effect: dict[str, Any]) -> None:
        for label, value in effect["set"].items():
            name = label.partition("`")[2].rstrip("`")
            self._space(name)[name] = value
        for name in effect["unset"]:
            self._space(name).pop(name, None)
        self.valued = effect["valued"]

    def _space(self, name: str) -> Any:
        return self._frame.f_locals if name in self._local else self._frame.f_globals

    def _can_save(self, value: Any) -> bool:
        """Whether to save a value. If it is certain that other code reads it, one that can't be saved is an error."""
        if self._body.certain:
            return True
        try:
            dumps(value)
        except CodecError:
            return False
        return True


class BlockVariables(Surrounding):
    name = "block"
    option = "block"

    def before(self, context: CallContext) -> None:
        return None

    def after(self, context: CallContext, note: None) -> dict[str, Any] | None:
        assigned: Assigned = context.options["block"]
        return assigned.effect()

    def restore(self, context: CallContext, effect: dict[str, Any]) -> None:
        assigned: Assigned = context.options["block"]
        assigned.restore(effect)
