"""Surroundings: what a step can read or change besides its arguments and result.

Each kind is one small module that follows `Surrounding`: it notes what is there before a step, says after it what the step
changed (an effect, or None), and applies an effect again when the step is skipped. Effects are pickled together with
the result, so what they share stays shared. All of this costs only when a step runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..facts import dataclass, field
from ..fingerprint.shown import Part
from ..modules import loading

if TYPE_CHECKING:
    from .objects import Roots


@dataclass
class Early:
    """A state value as it was when the step began, and its digest when a generator handed over to its consumer."""

    value: Any
    part: Part
    left: bytes | None


@dataclass
class Moment:
    """One call of a step, as its surroundings see it.

    `digests` are the content digests of those arguments that have one already; `options` are the step's. `reads` fills
    while the step runs: the state keys that it read, with the digests of what it read; so do `sets`, the keys that it set
    itself, `existed`, whether keys that it touched were there before, `early`, how state values were that it can change
    without touching them, and `inside`, the files of steps that it called.
    """

    step: str
    run: Any
    arguments: Mapping[str, Any]
    digests: Mapping[str, bytes]
    options: Mapping[str, Any]
    roots: Roots = field(init=False)
    reads: dict[str, str] = field(default_factory=dict[str, str])
    shown: dict[str, str] = field(default_factory=dict[str, str])
    sets: set[str] = field(default_factory=set[str])
    existed: dict[str, bool] = field(default_factory=dict[str, bool])
    per_item: bool = False  # a generator's: `state` looks around each item, `arguments` around all
    early: dict[str, Early] = field(default_factory=dict[str, Early])
    inside: list[Any] = field(default_factory=list[Any])
    node: str = ""  # the key of its checkpoint

    def __post_init__(self) -> None:
        self.roots = _roots()(self._root, loose=lambda name: name not in self.digests)

    def _root(self, kind: str, name: str) -> Any:
        return self.arguments[name] if kind == "argument" else self.run.state.bare(name)


@cache
def _roots() -> type[Roots]:
    """Loaded with the first step that runs, or did more than return."""
    with loading:
        from .objects import Roots
    return Roots


SKIP: Any = type("SKIP", (), {})  # what `before` gives where a step has nothing of the kind to look at


class Surrounding:
    """One kind of surrounding. Subclass it and give it to `register_surrounding`.

    >>> from oncemore import Surrounding
    >>> class Locale(Surrounding):
    ...     name = "locale"
    ...     def before(self, moment):
    ...         import locale
    ...         return locale.setlocale(locale.LC_ALL)
    ...     def after(self, moment, note):
    ...         now = self.before(moment)
    ...         return None if now == note else now
    ...     def restore(self, moment, effect):
    ...         import locale
    ...         locale.setlocale(locale.LC_ALL, effect)
    """

    name: str = ""
    per_item: bool = False  # in a generator: look around each item, not once around all

    def before(self, moment: Moment) -> Any:
        """Note what is there before the step runs."""
        raise NotImplementedError

    def waits(self, note: Any) -> bool:
        """Whether `returned` is to be called."""
        return type(self).returned is not Surrounding.returned

    def returned(self, moment: Moment, note: Any) -> None:
        """The step has returned. An error raised here is an error of the step. Nothing to do for most kinds."""

    def after(self, moment: Moment, note: Any) -> Any:
        """What the step changed since `note`, in a form that can be pickled; None if nothing."""
        raise NotImplementedError

    def verify(self, moment: Moment, effect: Any) -> str | None:
        """Why the step cannot be skipped although it is kept, if that is so; `effect` is None if it had none of this kind."""
        return None

    def restore(self, moment: Moment, effect: Any) -> None:
        """Make the change again: the step is being skipped."""
        raise NotImplementedError

    def failed(self, moment: Moment, note: Any) -> None:
        """The step raised. Nothing to do for most kinds."""


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
    known = kinds()
    for name in effects:
        if all(kind.name != name for kind in known):
            return f"it had an effect of the kind {name!r}, which nobody has registered here"
    return next(filter(None, (kind.verify(moment, effects.get(kind.name)) for kind in known)), None)


def restore(moment: Moment, effects: Mapping[str, Any]) -> None:
    """Apply a skipped step's effects again."""
    for kind in kinds():
        if kind.name in effects:
            kind.restore(moment, effects[kind.name])


_kinds: dict[str, Surrounding] = {}
careful: set[str] = set()  # those of the user's that look at every step before it is skipped, also without effects


def register_surrounding(kind: Surrounding) -> None:
    """Make a kind of surrounding count for all steps of this process; the same name replaces an earlier one."""
    if not kind.name:
        raise UsageError(f"{kind!r} has no name; effects are kept under it")
    kinds()
    _kinds[kind.name] = kind
    (careful.discard if type(kind).verify is Surrounding.verify else careful.add)(kind.name)


def kinds() -> Iterable[Surrounding]:
    """The kinds that count, ours first."""
    if not _kinds:
        with loading:
            from . import arguments, files, output, process, rng, watching
        ours = (
            output.Output(),  # first: it stops listening before another kind has something to warn about
            files.Files(),  # before the process: relative paths are those of the folder that the step began in
            arguments.Arguments(),
            watching.StateKind(),
            rng.Generators(),
            process.Process(),
        )
        _kinds.update({kind.name: kind for kind in ours})  # all at once: another thread may look meanwhile
    return tuple(_kinds.values())
