"""What a surrounding is, and what it sees of a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..fingerprint.shown import Part
from ..fingerprint.values import Digests
from .objects import Roots


@dataclass(slots=True)
class Early:
    """A state value as it was when the step began, and its digest when a generator handed over to its consumer."""

    value: Any
    part: Part
    left: bytes | None


@dataclass
class Moment:
    """One call of a step, as its surroundings see it.

    `counted` are the arguments that count by their content; `digests` are from the walk that identified them, as long as
    they have not changed since; `options` are the step's. `reads` fills while the step runs: the state keys that it read,
    with the digests of what it read; so do `sets`, the keys that it set itself, `existed`, whether keys that it touched
    were there before, `early`, how state values were that it can change without touching them, and `inside`, the files of
    steps that it called.
    """

    step: str
    run: Any
    arguments: Mapping[str, Any]
    counted: Collection[str]
    options: Mapping[str, Any]
    digests: Digests | None = None
    node: str = ""  # the key of its checkpoint
    per_item: bool = False  # a generator's: `state` looks around each item, `arguments` around all
    roots: Roots = field(init=False)
    reads: dict[str, str] = field(default_factory=dict[str, str])
    shown: dict[str, str] = field(default_factory=dict[str, str])
    sets: set[str] = field(default_factory=set[str])
    existed: dict[str, bool] = field(default_factory=dict[str, bool])
    early: dict[str, Early] = field(default_factory=dict[str, Early])
    inside: list[Any] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        self.roots = Roots(self._root, loose=lambda name: name not in self.counted)

    def _root(self, kind: str, name: str) -> Any:
        return self.arguments[name] if kind == "argument" else self.run.state.bare(name)


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
