"""Surroundings: what a step can read or change besides its arguments and result.

Each kind is one small module that implements `Surrounding`. It notes how things are before a step, reports afterwards what
the step changed (its effect, or None), and applies that effect when the step is skipped. Effects are pickled together with
the result, so objects that they share stay shared. A step without effects costs nothing here when it is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ..errors import UsageError
from ..identity.display import Part
from .protocol import SKIP as SKIP  # first: the kinds below import the protocol from here
from .protocol import Before as Before
from .protocol import CallContext as CallContext
from .protocol import Surrounding as Surrounding

from . import inputs  # isort: skip
from . import arguments, figures, outputs, globals, output, process, rng, library_settings, state_changes  # isort: skip

_OURS: tuple[Surrounding, ...] = (
    output.Output(),  # first: it stops capturing before another kind emits a warning
    inputs.Inputs(),
    outputs.Files(),  # before the process: relative paths are those of the folder in which the step began
    arguments.Arguments(),
    globals.Globals(),
    state_changes.StateKind(),
    rng.Generators(),
    process.Process(),
    process.Calls(),
    library_settings.Settings(),  # before figures, which depend on them
    figures.Figures(),
)
_kinds: dict[str, Surrounding] = {kind.name: kind for kind in _OURS}
verifying: set[str] = set()  # registered kinds with a `verify` of their own, which is called before every skip


def kinds() -> tuple[Surrounding, ...]:
    """All kinds, ours first."""
    return tuple(_kinds.values())  # a copy: another thread may register one meanwhile


def register_surrounding(kind: Surrounding) -> None:
    """Watch a kind of surrounding in all steps of this process. It replaces an earlier one of the same name."""
    if not kind.name:
        raise UsageError(f"{kind!r} has no name, and its effects are stored under its name. Set `name` in its class")
    _kinds[kind.name] = kind
    if type(kind).verify is Surrounding.verify:
        verifying.discard(kind.name)
    else:
        verifying.add(kind.name)


class Watcher:
    """All surroundings of one running call."""

    def __init__(self, context: CallContext, *, per_item: bool | None = None) -> None:
        self.context = context
        self._notes: list[tuple[Surrounding, Any]] = []
        self.waiting: list[tuple[Surrounding, Any]] = []  # those to call when the step has returned
        try:
            for kind in kinds():
                if per_item is not None and kind.per_item is not per_item:
                    continue
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
        """What the step changed, by kind. If a kind raises, the others still finish before the error is raised."""
        found: dict[str, Any] = {}
        first_error: Exception | None = None
        self.context.roots.recorded.clear()
        for kind, note in self._notes:
            try:
                found[kind.name] = kind.after(self.context, note)
            except Exception as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return {name: effect for name, effect in found.items() if effect is not None}

    def failed(self) -> None:
        """The step has raised."""
        for kind, note in reversed(self._notes):
            kind.failed(self.context, note)


# -- reads: their names begin with the name of their kind, as in "state:x"


def _kind_of(read: str) -> tuple[Surrounding | None, str]:
    kind, _, name = read.partition(":")
    return _kinds.get(kind), name


def digest_of(run: Any, read: str) -> str:
    """The current digest of what a step has read. If its kind is not registered here, it equals no recorded digest."""
    kind, name = _kind_of(read)
    return "unknown" if kind is None else kind.digest(run, name)


def part_of(run: Any, read: str) -> Part:
    """The same digest, with the value as people see it."""
    kind, name = _kind_of(read)
    return Part("unknown") if kind is None else kind.part(run, name)


def label_of(read: str) -> str:
    """What messages call it."""
    kind, name = _kind_of(read)
    return read if kind is None else kind.label(name)


def change_of(read: str) -> str:
    """How messages describe a change of it. If empty, they show the old and the new value."""
    kind, name = _kind_of(read)
    return "" if kind is None else kind.change(name)


def depend(run: Any, reads: Iterable[str]) -> None:
    """A skipped step has read these: the enclosing steps depend on them, too."""
    for read in reads:
        kind, name = _kind_of(read)
        if kind is not None:
            kind.depend(run, name)


def obstacles(
    context: CallContext, effects: Mapping[str, Any], without: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """The kinds of effects that cannot be applied now, and why not. Kinds in `without` are not checked."""
    for name in effects:
        if name not in _kinds:
            yield name, f"it had an effect of kind {name!r}, and no such surrounding is registered in this process"
    for kind in kinds():
        why = None if kind.name in without else kind.verify(context, effects.get(kind.name))
        if why is not None:
            yield kind.name, why


def restore(context: CallContext, effects: Mapping[str, Any], *, repeated: Collection[str] = ()) -> None:
    """Apply a skipped step's effects. Those of the `repeated` kinds have been applied in this scope before."""
    for kind in kinds():
        if kind.name in effects:
            (kind.repeat if kind.name in repeated else kind.restore)(context, effects[kind.name])


def repeated(reads: Iterable[str]) -> set[str]:
    """The kinds whose effects are not simply applied again if a step is skipped twice in a scope.

    Random generators are not among them if the step read one: it was skipped because the generator is in the state that the
    step started from, so the effect has to advance it.
    """
    special = {kind.name for kind in kinds() if type(kind).repeat is not Surrounding.repeat}
    return special - {"random"} if any(read.startswith("random:") for read in reads) else special
