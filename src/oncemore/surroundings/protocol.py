"""The protocol of a surrounding, the call context that it gets, and what is done with all kinds of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import CodecError, UsageError
from ..identity.code.data import Datum
from ..identity.display import Part
from ..identity.values import Digests
from ..identity.values.builtin_types import ATOMS
from ..modules import loaded
from .overlap import Member
from .references import Backup, Roots, Walk, walk_from

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
    inner: dict[str, list[Any]] = field(
        default_factory=dict[str, list[Any]]
    )  # by kind: what the steps it called passed on
    inputs: Any = None  # the files it opens, see inputs.py
    files: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])  # files it read: size, time and digest
    first: bool = True  # False while a generator computes any item but its first
    generators_before: dict[str, Any] = field(default_factory=dict[str, Any])  # random generators before the first item
    backups: dict[str, list[Backup]] = field(
        default_factory=dict[str, list[Backup]]
    )  # by kind, for a step with `retries`
    value: Any = None  # what the step returned

    @property
    def retried(self) -> bool:
        """Whether what the step changes may have to be put back before another try."""
        return bool(self.options.get("retries"))

    @property
    def alone(self) -> bool:
        """Whether no other step has run at the same time: what changed in shared data, this one changed."""
        return self.member is None or not self.member.shares

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
    option: str = ""  # only steps with this option are watched
    library: str = ""  # steps are watched only if this module is loaded

    def before(self, context: CallContext) -> Any:
        """Note how things are before the step runs."""
        raise NotImplementedError

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

    def undo(self, context: CallContext, note: Any) -> None:
        """Put things back as they were before a step with `retries`, which has raised; `failed` was called before.

        CodecError if that is not possible: then the step is not tried again. By default, nothing is put back.
        """


_kinds: dict[str, Surrounding] = {}
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
        self._idle: list[Surrounding] = []  # kinds with nothing to watch, so far
        try:
            for kind in kinds():
                if per_item is not None and kind.per_item is not per_item:
                    continue
                if not self._concerns(kind):
                    self._idle.append(kind)
                elif (note := kind.before(context)) is not SKIP:
                    self._notes.append((kind, note))
        except BaseException:
            self.failed()
            raise
        # those to call when the step has returned
        self.waiting = [each for each in self._notes if type(each[0]).returned is not Surrounding.returned]

    def _concerns(self, kind: Surrounding) -> bool:
        """Whether the call can have effects of this kind."""
        if kind.name in self.context.inner:
            return True
        has_option = not kind.option or bool(self.context.options.get(kind.option))
        return has_option and (not kind.library or loaded(kind.library) is not None)

    def returned(self) -> None:
        """The step has returned."""
        for kind, note in self.waiting:
            kind.returned(self.context, note)

    def effects(self) -> dict[str, Any]:
        """What the step changed, by kind. If a kind raises, the others still finish before the error is raised.

        A kind that had nothing to watch when the step began gets None as its note if it is concerned now.
        """
        found: dict[str, Any] = {}
        first_error: Exception | None = None
        self.context.roots.recorded.clear()
        late = [(kind, None) for kind in self._idle if self._concerns(kind)]
        for kind, note in (*self._notes, *late):
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

    def undo(self) -> None:
        """Put back what the step changed before it raised. CodecError if something can't be put back; the rest is."""
        first_error: Exception | None = None
        for kind, note in reversed(self._notes):
            try:
                kind.undo(self.context, note)
            except CodecError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error


# -- reads: their names begin with the name of their kind, as in "state:x"


class _Unknown(Surrounding):
    """A kind that is not registered here: what was read equals no recorded digest."""

    def digest(self, run: Any, name: str) -> str:
        return "unknown"


def _kind_of(read: str) -> tuple[Surrounding, str]:
    kind, _, name = read.partition(":")
    return (_kinds[kind], name) if kind in _kinds else (_Unknown(), read)


def digest_of(run: Any, read: str) -> str:
    """The current digest of what a step has read."""
    kind, name = _kind_of(read)
    return kind.digest(run, name)


def part_of(run: Any, read: str) -> Part:
    """The same digest, with the value as people see it."""
    kind, name = _kind_of(read)
    return kind.part(run, name)


def label_of(read: str) -> str:
    """What messages call it."""
    kind, name = _kind_of(read)
    return kind.label(name).strip()


def change_of(read: str) -> str:
    """How messages describe a change of it. If empty, they show the old and the new value."""
    kind, name = _kind_of(read)
    return kind.change(name)


def depend(run: Any, reads: Iterable[str]) -> None:
    """A skipped step has read these: the enclosing steps depend on them, too."""
    for read in reads:
        kind, name = _kind_of(read)
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
