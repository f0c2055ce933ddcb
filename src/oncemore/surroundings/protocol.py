"""The protocol of a surrounding, and the call context that it gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..identity.code.data import Datum
from ..identity.display import Part
from ..identity.values import Digests
from .mutable_types import ATOMS
from .overlap import Member
from .references import Roots, Walk, walk_from

EXCUSED = "~"  # prefix of a digest: a difference to the recorded one is no reason to run the step again


@dataclass(slots=True)
class Before:
    """A state value as it was when the step began, and its digest when a generator last yielded."""

    value: Any
    part: Part
    digest_at_yield: bytes | None


@dataclass
class CallContext:
    """One call of a step, as its surroundings see it.

    The first fields describe the call. Those from `reads` on are filled in by the surroundings while the step runs.
    """

    step: str
    run: Any
    arguments: Mapping[str, Any]
    counted: Collection[str]  # the arguments that are identified by their content
    options: Mapping[str, Any]  # of the step
    data: Mapping[str, Datum] = field(default_factory=dict[str, Datum])  # what its code reads besides its arguments
    spaces: Mapping[str, Any] = field(default_factory=dict[str, Any])  # project modules and classes that it reaches
    digests: Digests | None = None  # from identifying the arguments, while these are unchanged
    node: str = ""  # the key of its checkpoint
    member: Member | None = None  # in the group of concurrent steps; None if it is skipped, or a generator
    per_item: bool = False  # a generator: kinds with `per_item` look around each item, the others around all of them
    roots: Roots = field(init=False)
    reads: dict[str, str] = field(default_factory=dict[str, str])  # digests of what it read, by "kind:name"
    shown: dict[str, str] = field(default_factory=dict[str, str])  # the same for people, by label
    sets: set[str] = field(default_factory=set[str])  # state keys that it set
    existed: dict[str, bool] = field(default_factory=dict[str, bool])  # whether a touched state key existed before
    before_step: dict[str, Before] = field(default_factory=dict[str, Before])  # values it may change without touching
    inner_outputs: list[Any] = field(default_factory=list[Any])  # output files of the steps that it called, or errors
    inputs: Any = None  # the files it opens, see inputs.py
    files: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])  # files it read: size, time and digest
    first: bool = True  # False while a generator computes any item but its first
    generators_before: dict[str, Any] = field(default_factory=dict[str, Any])  # random generators before the first item
    value: Any = None  # what the step returned

    def __post_init__(self) -> None:
        self.roots = Roots(self._root, self._is_loose, self.walk)

    def _root(self, kind: str, name: str) -> Any:
        if kind == "global":
            return self.data[name].now
        return self.arguments[name] if kind == "argument" else self.run.state.bare(name)

    def _is_loose(self, name: str) -> bool:
        """Whether an argument may differ when the step is skipped. A generator's may change while its items are replayed."""
        return name not in self.counted or self.per_item

    def walk(self, kind: str, name: str, value: Any) -> Walk:
        """The objects reachable from a root."""
        if kind == "argument" and name in self.options["ignore"]:
            return Walk([] if type(value) in ATOMS else [value])  # only the argument itself may be part of the result
        return walk_from(value, self.data[name].opaque if kind == "global" else ())


SKIP: Any = type("SKIP", (), {})  # returned by `before` if there is nothing of this kind to watch


class Surrounding:
    """One kind of surrounding. Subclass it and pass an instance to `register_surrounding`.

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
    per_item: bool = False  # for a generator: look around each item, not once around all of them

    def before(self, context: CallContext) -> Any:
        """Note how things are before the step runs."""
        raise NotImplementedError

    def waits(self, note: Any) -> bool:
        """Whether `returned` has to be called."""
        return type(self).returned is not Surrounding.returned

    def returned(self, context: CallContext, note: Any) -> None:
        """Called when the step has returned. An exception raised here becomes the step's."""

    def after(self, context: CallContext, note: Any) -> Any:
        """The effect: what the step changed since `note`, in a form that can be pickled. None if it changed nothing."""
        raise NotImplementedError

    def digest(self, run: Any, name: str) -> str:
        """The current digest of what a step has read under `name`. Required of kinds that add to `context.reads`.

        If the digest begins with `EXCUSED` and no checkpoint matches it, the value counts as unchanged.
        """
        raise NotImplementedError

    def part(self, run: Any, name: str) -> Part:
        """The same digest, with the value as people see it."""
        return Part(self.digest(run, name))

    def label(self, name: str) -> str:
        """What messages call the thing that was read under `name`."""
        return f"{self.name} {name}"

    def change(self, name: str) -> str:
        """How messages describe a change of it. If empty, they show the old and the new value."""
        return ""

    def depend(self, run: Any, name: str) -> None:
        """Called when a skipped step has read this: the enclosing steps depend on it, too."""

    def verify(self, context: CallContext, effect: Any) -> str | None:
        """Why the step cannot be skipped although it has a checkpoint; None if it can.

        `effect` is None if the step had no effect of this kind.
        """
        return None

    def restore(self, context: CallContext, effect: Any) -> None:
        """Apply the effect: the step is being skipped."""
        raise NotImplementedError

    def repeat(self, context: CallContext, effect: Any) -> None:
        """Called instead of `restore` if the step already ran or was skipped in this scope.

        By default the effect is applied again, as the step itself would do. Kinds that other code changes, too, must not
        undo what that code did since: they apply nothing and only let the enclosing steps know.
        """
        self.restore(context, effect)

    def failed(self, context: CallContext, note: Any) -> None:
        """Called when the step has raised."""
