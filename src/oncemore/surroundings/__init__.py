"""Surroundings: what a step can read or change besides its arguments and result.

Each kind is one small module that follows `Surrounding`: it notes what is there before a step, says after it what the step
changed (an effect, or None), and applies an effect again when the step is skipped. Effects are pickled together with
the result, so what they share stays shared. All of this costs only when a step runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ..errors import UsageError
from ..identity.display import Part
from .protocol import SKIP as SKIP  # first: the kinds take their protocol from here
from .protocol import Before as Before
from .protocol import CallContext as CallContext
from .protocol import Surrounding as Surrounding

from . import inputs  # isort: skip
from . import arguments, figures, outputs, globals, output, process, rng, library_settings, state_changes  # isort: skip

_OURS: tuple[Surrounding, ...] = (
    output.Output(),  # first: it stops listening before another kind has something to warn about
    inputs.Inputs(),
    outputs.Files(),  # before the process: relative paths are those of the folder that the step began in
    arguments.Arguments(),
    globals.Globals(),
    state_changes.StateKind(),
    rng.Generators(),
    process.Process(),
    process.Calls(),
    library_settings.Settings(),  # before figures, which are drawn by them
    figures.Figures(),
)
_kinds: dict[str, Surrounding] = {kind.name: kind for kind in _OURS}
verifying: set[str] = set()  # those of the user's that look at every step before it is skipped, also without effects


def kinds() -> tuple[Surrounding, ...]:
    """The kinds that count, ours first."""
    return tuple(_kinds.values())  # another thread may register one meanwhile


def register_surrounding(kind: Surrounding) -> None:
    """Make a kind of surrounding count for all steps of this process; the same name replaces an earlier one."""
    if not kind.name:
        raise UsageError(f"{kind!r} has no name; effects are kept under it")
    _kinds[kind.name] = kind
    (verifying.discard if type(kind).verify is Surrounding.verify else verifying.add)(kind.name)


class Watcher:
    """All surroundings of one call that runs."""

    def __init__(self, context: CallContext, *, per_item: bool | None = None) -> None:
        self.context = context
        chosen = [kind for kind in kinds() if per_item is None or kind.per_item is per_item]
        self._notes: list[tuple[Surrounding, Any]] = []
        self.waiting: list[tuple[Surrounding, Any]] = []  # those that do something when the step has returned
        try:
            for kind in chosen:
                note = kind.before(context)
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
            kind.returned(self.context, note)

    def effects(self) -> dict[str, Any]:
        """What the step changed, by kind. An error of one kind is raised after all have had their turn."""
        found: dict[str, Any] = {}
        trouble: Exception | None = None
        self.context.roots.recorded.clear()
        for kind, note in self._notes:
            try:
                found[kind.name] = kind.after(self.context, note)
            except Exception as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble
        return {name: effect for name, effect in found.items() if effect is not None}

    def failed(self) -> None:
        """The step raised."""
        for kind, note in reversed(self._notes):
            kind.failed(self.context, note)


# -- what steps read: names like "state:x", which begin with the kind's own


def _kind_of(read: str) -> tuple[Surrounding | None, str]:
    kind, _, name = read.partition(":")
    return _kinds.get(kind), name


def digest_of(run: Any, read: str) -> str:
    """What identifies, now, what a step has read under that name; nothing equals what nobody knows any more."""
    kind, name = _kind_of(read)
    return "unknown" if kind is None else kind.digest(run, name)


def part_of(run: Any, read: str) -> Part:
    """The same, with what people see of it."""
    kind, name = _kind_of(read)
    return Part("unknown") if kind is None else kind.part(run, name)


def label_of(read: str) -> str:
    """What people call it."""
    kind, name = _kind_of(read)
    return read if kind is None else kind.label(name)


def change_of(read: str) -> str:
    """What people are told if it is another now; if nothing, what it was and is."""
    kind, name = _kind_of(read)
    return "" if kind is None else kind.change(name)


def depend(run: Any, reads: Iterable[str]) -> None:
    """A step that is skipped has read these: the steps around it depend on them, too."""
    for read in reads:
        kind, name = _kind_of(read)
        if kind is not None:
            kind.depend(run, name)


def verify(context: CallContext, effects: Mapping[str, Any]) -> str | None:
    """Why a step cannot be skipped although it is kept, if that is so."""
    return next((why for _, why in obstacles(context, effects)), None)


def obstacles(
    context: CallContext, effects: Mapping[str, Any], without: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """The kinds of effects that cannot be applied now, and why; those `without` interest are not asked about."""
    for name in effects:
        if name not in _kinds:
            yield name, f"it had an effect of the kind {name!r}, which nobody has registered here"
    for kind in kinds():
        why = None if kind.name in without else kind.verify(context, effects.get(kind.name))
        if why is not None:
            yield kind.name, why


def restore(context: CallContext, effects: Mapping[str, Any], *, repeated: Collection[str] = ()) -> None:
    """Apply a skipped step's effects again; of the `repeated` kinds only what repeating the step in its scope changes."""
    for kind in kinds():
        if kind.name in effects:
            (kind.repeat if kind.name in repeated else kind.restore)(context, effects[kind.name])


def repeated(reads: Iterable[str]) -> set[str]:
    """The kinds of effects that are not simply applied again when a step is skipped a second time in a scope.

    A step that read a generator was skipped because the generator was as it is now: it goes on as if the step had run.
    """
    apart = {kind.name for kind in kinds() if type(kind).repeat is not Surrounding.repeat}
    return apart - {"random"} if any(read.startswith("random:") for read in reads) else apart
