"""What a surrounding is, and what it sees of a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..identity.code.data import Datum
from ..identity.display import Part
from ..identity.values import Digests
from ..overlap import Member
from .mutable_types import ATOMS
from .references import Roots, Walk, walk_from

EXCUSED = "~"  # before the digest of what is another now, and no reason to run a step again


@dataclass(slots=True)
class Before:
    """A state value as it was when the step began, and its digest when a generator handed over to its consumer."""

    value: Any
    part: Part
    left: bytes | None


@dataclass
class CallContext:
    """One call of a step, as its surroundings see it.

    `counted` are the arguments that count by their content; `data` is what its code reads besides them, `spaces` are the
    modules and classes of the project that it reaches; `digests` are from the walk that identified the arguments, as long as
    they have not changed since; `options` are the step's. `reads` fills while the step runs: what it read, under names like
    "state:x" that begin with the surrounding's own, with the digests of what it read. So do `sets`, the state keys that it
    set itself, `existed`, whether keys that it touched were there before, `early`, how state values were that it can change
    without touching them, and `inside`, the files of steps that it called.
    """

    step: str
    run: Any
    arguments: Mapping[str, Any]
    counted: Collection[str]
    options: Mapping[str, Any]
    data: Mapping[str, Datum] = field(default_factory=dict[str, Datum])
    spaces: Mapping[str, Any] = field(default_factory=dict[str, Any])
    digests: Digests | None = None
    node: str = ""  # the key of its checkpoint
    member: Member | None = None  # of the steps that run side by side; nobody if it is skipped, or yields
    per_item: bool = False  # a generator's: `state` looks around each item, `arguments` around all
    roots: Roots = field(init=False)
    reads: dict[str, str] = field(default_factory=dict[str, str])
    shown: dict[str, str] = field(default_factory=dict[str, str])
    sets: set[str] = field(default_factory=set[str])
    existed: dict[str, bool] = field(default_factory=dict[str, bool])
    before_step: dict[str, Before] = field(default_factory=dict[str, Before])
    inside: list[Any] = field(default_factory=list[Any])
    inputs: Any = None  # what the step has to do with files, see inputs.py
    files: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])  # that it read: size, time and digest
    first: bool = True  # of a generator's stretches; the only one of any other step
    begun: dict[str, Any] = field(default_factory=dict[str, Any])  # where the random generators were before that
    value: Any = None  # what the step returned

    def __post_init__(self) -> None:
        self.roots = Roots(self._root, self._is_loose, self.walk)

    def _root(self, kind: str, name: str) -> Any:
        if kind == "global":
            return self.data[name].now
        return self.arguments[name] if kind == "argument" else self.run.state.bare(name)

    def _is_loose(self, name: str) -> bool:
        """Whether an argument may be another when the step is skipped; a generator's changes while its items are replayed."""
        return name not in self.counted or self.per_item

    def walk(self, kind: str, name: str, value: Any) -> Walk:
        """Where a root leads to."""
        if kind == "argument" and name in self.options["ignore"]:
            return Walk([] if type(value) in ATOMS else [value])  # only the argument itself may be found in the result
        return walk_from(value, self.data[name].opaque if kind == "global" else ())


SKIP: Any = type("SKIP", (), {})  # what `before` gives where a step has nothing of the kind to look at


class Surrounding:
    """One kind of surrounding. Subclass it and give it to `register_surrounding`.

    >>> from oncemore import Surrounding
    >>> class Locale(Surrounding):
    ...     name = "locale"
    ...     def before(self, context):
    ...         import locale
    ...         return locale.setlocale(locale.LC_ALL)
    ...     def after(self, context, note):
    ...         now = self.before(context)
    ...         return None if now == note else now
    ...     def restore(self, context, effect):
    ...         import locale
    ...         locale.setlocale(locale.LC_ALL, effect)
    """

    name: str = ""
    per_item: bool = False  # in a generator: look around each item, not once around all

    def before(self, context: CallContext) -> Any:
        """Note what is there before the step runs."""
        raise NotImplementedError

    def waits(self, note: Any) -> bool:
        """Whether `returned` is to be called."""
        return type(self).returned is not Surrounding.returned

    def returned(self, context: CallContext, note: Any) -> None:
        """The step has returned. An error raised here is an error of the step. Nothing to do for most kinds."""

    def after(self, context: CallContext, note: Any) -> Any:
        """What the step changed since `note`, in a form that can be pickled; None if nothing."""
        raise NotImplementedError

    def digest(self, run: Any, name: str) -> str:
        """What identifies, now, what a step has read under that name. For kinds that put something into `context.reads`.

        If it begins with `EXCUSED`, it counts as unchanged where nothing was kept for what it is now.
        """
        raise NotImplementedError

    def part(self, run: Any, name: str) -> Part:
        """The same, with what people see of it."""
        return Part(self.digest(run, name))

    def label(self, name: str) -> str:
        """What people call what was read under that name."""
        return f"{self.name} {name}"

    def change(self, name: str) -> str:
        """What people are told if it is another now; if nothing, what it was and is."""
        return ""

    def depend(self, run: Any, name: str) -> None:
        """A step that is skipped has read this: the steps around it depend on it, too."""

    def verify(self, context: CallContext, effect: Any) -> str | None:
        """Why the step cannot be skipped although it is kept, if that is so; `effect` is None if it had none of this kind."""
        return None

    def restore(self, context: CallContext, effect: Any) -> None:
        """Make the change again: the step is being skipped."""
        raise NotImplementedError

    def repeat(self, context: CallContext, effect: Any) -> None:
        """The step is skipped again in the scope in which it ran or was skipped. The change is made again, as the step would.

        Kinds that others change, too, must not undo what these did since: they make nothing again, and only let the steps
        around the skipped one know.
        """
        self.restore(context, effect)

    def failed(self, context: CallContext, note: Any) -> None:
        """The step raised. Nothing to do for most kinds."""
