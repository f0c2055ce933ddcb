"""Surroundings: what a step can read or change besides its arguments and result.

Each kind is one small module that follows `Surrounding`: it notes what is there before a step, says after it what the step
changed (an effect, or None), and applies an effect again when the step is skipped. Effects are pickled together with
the result, so what they share stays shared. All of this costs only when a step runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from .protocol import SKIP as SKIP  # first: the kinds take their protocol from here
from .protocol import Early as Early
from .protocol import Moment as Moment
from .protocol import Surrounding as Surrounding

from . import arguments, files, output, process, rng, watching  # isort: skip

_OURS: tuple[Surrounding, ...] = (
    output.Output(),  # first: it stops listening before another kind has something to warn about
    files.Files(),  # before the process: relative paths are those of the folder that the step began in
    arguments.Arguments(),
    watching.StateKind(),
    rng.Generators(),
    process.Process(),
)
_kinds: dict[str, Surrounding] = {kind.name: kind for kind in _OURS}
careful: set[str] = set()  # those of the user's that look at every step before it is skipped, also without effects


def kinds() -> tuple[Surrounding, ...]:
    """The kinds that count, ours first."""
    return tuple(_kinds.values())  # another thread may register one meanwhile


def register_surrounding(kind: Surrounding) -> None:
    """Make a kind of surrounding count for all steps of this process; the same name replaces an earlier one."""
    if not kind.name:
        raise UsageError(f"{kind!r} has no name; effects are kept under it")
    _kinds[kind.name] = kind
    (careful.discard if type(kind).verify is Surrounding.verify else careful.add)(kind.name)


class Scene:
    """All surroundings of one call that runs."""

    def __init__(self, moment: Moment, *, per_item: bool | None = None) -> None:
        self.moment = moment
        chosen = [kind for kind in kinds() if per_item is None or kind.per_item is per_item]
        self._notes: list[tuple[Surrounding, Any]] = []
        self.waiting: list[tuple[Surrounding, Any]] = []  # those that do something when the step has returned
        try:
            for kind in chosen:
                note = kind.before(moment)
                if note is not SKIP:
                    self._notes.append((kind, note))
                    if kind.waits(note):
                        self.waiting.append((kind, note))
        except BaseException:
            self.failed()
            raise

    def returned(self) -> None:
        """The step has returned."""
        for kind, note in self.waiting:
            kind.returned(self.moment, note)

    def effects(self) -> dict[str, Any]:
        """What the step changed, by kind. An error of one kind is raised after all have had their turn."""
        found: dict[str, Any] = {}
        trouble: Exception | None = None
        for kind, note in self._notes:
            try:
                found[kind.name] = kind.after(self.moment, note)
            except Exception as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble
        return {name: effect for name, effect in found.items() if effect is not None}

    def failed(self) -> None:
        """The step raised."""
        for kind, note in reversed(self._notes):
            kind.failed(self.moment, note)


def verify(moment: Moment, effects: Mapping[str, Any]) -> str | None:
    """Why a step cannot be skipped although it is kept, if that is so."""
    for name in effects:
        if name not in _kinds:
            return f"it had an effect of the kind {name!r}, which nobody has registered here"
    return next(filter(None, (kind.verify(moment, effects.get(kind.name)) for kind in kinds())), None)


def restore(moment: Moment, effects: Mapping[str, Any]) -> None:
    """Apply a skipped step's effects again."""
    for kind in kinds():
        if kind.name in effects:
            kind.restore(moment, effects[kind.name])
