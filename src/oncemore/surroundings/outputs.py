"""Files that a step declares as its outputs: kept with the result, put back when the step is skipped.

`outputs=["{out}/model.bin", "{out}/*.csv"]` are patterns over the step's parameters; wildcards match what is there
after the step. A pattern that leads to a folder means all that is in it. A symbolic link is kept as a link, what it
leads to only if that is an output, too. What matched before the step and is gone after it is removed again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ..blobs import Blobs, Drafts, StoredFile, compare, remove
from ..errors import CodecError, IntegrityError, OutputMissing, StoreError
from . import CallContext, Surrounding, inputs
from .output_patterns import Name, Place, declaration, found_at, kind_of, places_of
from .state_changes import around


class _Recorded(TypedDict):
    """What is kept with the result. Paths are in two parts, as the first may be another when they are put back."""

    declared: list[str] | str
    folders: list[tuple[Name, int]]  # with their modes
    files: list[tuple[Name, StoredFile]]
    links: list[tuple[Name, str, bool]]  # with what they lead to, and whether that was there
    gone: list[Name]


class Effect(_Recorded, total=False):
    ready: _Return  # never kept: from `verify` to `restore`


class _Paths:
    """Where the files of one call are. Declared paths count from the working directory in which the step is called."""

    def __init__(self, places: Iterable[Place], here: str) -> None:
        self._bases = {place.name: place.base for place in places}
        self._here = here

    def shown(self, name: Name) -> str:
        """As declared."""
        of, at = name
        base = of if isinstance(of, str) else self._bases[of]
        return os.path.join(base, at) if at else base

    def full(self, name: Name) -> str:
        return os.path.normpath(os.path.join(self._here, self.shown(name)))


class _Note:
    """What is there before a step and, once it has returned, what is to be kept."""

    def __init__(self, context: CallContext) -> None:
        self.here = os.getcwd()
        self.declared = declaration(context)
        self.effect: Effect | None = None
        self.trouble: Exception | None = None
        try:
            self.places = places_of(context)  # now: the step may change its arguments
        except FileNotFoundError:  # a callable that looks into a folder which the step is going to make
            self.places = []
        self.before = [name for place in self.places for name in found_at(place, self.here)]


class Files(Surrounding):
    name = "files"

    def before(self, context: CallContext) -> _Note | None:
        return _Note(context) if context.options["outputs"] else None

    def waits(self, note: _Note | None) -> bool:
        return note is not None

    def returned(self, context: CallContext, note: _Note) -> None:
        """Keep the files. OutputMissing if one was not produced."""
        places = places_of(context) if callable(context.options["outputs"]) else note.places
        paths = _Paths(places, note.here)
        there = [found_at(place, note.here) for place in places]
        found = {name: kind for each in there for name, kind in each.items()}
        gone = [name for name in note.before if name not in found and kind_of(paths.full(name)) is None]
        for place, names in zip(places, there, strict=True):
            if not names and not any(of == place.name for of, _ in gone):
                what = "nothing matches" if place.rest else "there is no"
                raise OutputMissing(f"step {context.step} did not produce its output: {what} {place.shown}")
        gone.sort(key=lambda name: paths.full(name).count(os.sep), reverse=True)  # a folder after what is in it
        try:
            note.effect = {"declared": note.declared, "folders": [], "files": [], "links": [], "gone": gone}
            _keep(found, paths, context, note.effect)
            for name, _ in note.effect["files"]:
                inputs.wrote(context.run, paths.full(name), now=True)
        except (CodecError, StoreError) as error:  # the step did its work all the same
            note.trouble = error

    def after(self, context: CallContext, note: _Note | None) -> Effect | None:
        if note is None and not context.inner_outputs:
            return None
        outer, paths = around(context), _Paths(*((note.places, note.here) if note else ((), "")))
        trouble = [each for each in (note and note.trouble, *context.inner_outputs) if isinstance(each, Exception)]
        if trouble:
            if outer is not None:
                outer.inner_outputs.append(trouble[0])
            raise trouble[0]
        effect = None if note is None else note.effect
        if context.inner_outputs:
            effect = _merged(context, effect, paths)
        if effect is not None and outer is not None:
            outer.inner_outputs.append(_anywhere(effect, paths))
        return effect

    def verify(self, context: CallContext, effect: Effect | None) -> str | None:
        """Make ready what is to be put back, or say why the step must run instead. CodecError for a damaged chunk."""
        if not context.options["outputs"] and effect is None:
            return None
        if effect is None or effect["declared"] != declaration(context):
            return "outputs= changed"
        try:
            ready = _Return(context, effect)
            why = ready.prepare()
        except IntegrityError as error:
            if context.run.strict:
                raise
            raise CodecError(f"a file that it wrote cannot be put back: {error}") from error
        except OSError as error:
            return f"an output cannot be put back: {error}"
        effect["ready"] = ready
        return why

    def restore(self, context: CallContext, effect: Effect) -> None:
        if "ready" not in effect:
            why = self.verify(context, effect)
            if why is not None:
                raise StoreError(f"step {context.step} cannot be skipped any more: {why}")
        ready = effect.pop("ready")
        ready.put()
        for name, _ in effect["files"]:
            inputs.wrote(context.run, ready.paths.full(name), now=False)
        self._tell_outer(context, effect, ready.paths)

    def repeat(self, context: CallContext, effect: Effect) -> None:
        """The files are what others have made of them since; to the steps around it they belong all the same."""
        self._tell_outer(context, effect, _Return(context, effect).paths)

    def _tell_outer(self, context: CallContext, effect: Effect, paths: _Paths) -> None:
        outer = around(context)
        if outer is not None:
            outer.inner_outputs.append(_anywhere(effect, paths))


def _anywhere(effect: Effect, paths: _Paths) -> Effect:
    """The effect with full paths, for the step around: its files are those of the steps inside it, too."""
    return {
        "declared": [],
        "folders": [((paths.full(name), ""), mode) for name, mode in effect["folders"]],
        "files": [((paths.full(name), ""), kept) for name, kept in effect["files"]],
        "links": [((paths.full(name), ""), target, lively) for name, target, lively in effect["links"]],
        "gone": [(paths.full(name), "") for name in effect["gone"]],
    }


def _merged(context: CallContext, own: Effect | None, paths: _Paths) -> Effect:
    """What the steps inside left, one after the other, and last the step's own."""
    last: dict[str, tuple[str, Any]] = {}
    for effect in (*context.inner_outputs, *(() if own is None else (own,))):
        for kind in ("gone", "folders", "files", "links"):
            entries: list[Any] = list(effect[kind])  # a name, or a tuple that begins with one
            for each in entries:
                last[paths.full(each if kind == "gone" else each[0])] = kind, each
    declared = declaration(context) if own is None else own["declared"]
    found = {kind: [each for of, each in last.values() if of == kind] for kind in ("folders", "files", "links", "gone")}
    found["gone"].sort(key=lambda name: paths.full(name).count(os.sep), reverse=True)
    return Effect(
        declared=declared, folders=found["folders"], files=found["files"], links=found["links"], gone=found["gone"]
    )


def _keep(found: Mapping[Name, str], paths: _Paths, context: CallContext, effect: Effect) -> None:
    blobs = Blobs(context.run.store, context.node)
    seen: set[str] = set()  # two patterns may lead to the same file
    for name, kind in found.items():
        path = paths.full(name)
        try:
            if path in seen:
                continue
            seen.add(path)
            if kind == "file":
                with open(path, "rb", buffering=0) as file:
                    effect["files"].append((name, blobs.keep(file, content=context.options["outputs_keep"])))
            elif kind == "link":
                effect["links"].append((name, os.readlink(path), os.path.exists(path)))
            elif kind == "folder":
                effect["folders"].append((name, stat.S_IMODE(os.stat(path).st_mode)))
            else:
                raise CodecError(f"output `{paths.shown(name)}` is {kind}")
        except StoreError:
            raise
        except OSError as error:
            raise CodecError(f"output `{paths.shown(name)}` cannot be read: {error}") from error
    blobs.flush()


class _Return:
    """The files of a skipped step on their way back. All are written before the first takes its place."""

    def __init__(self, context: CallContext, effect: Effect) -> None:
        self._effect = effect
        # what a callable said is in the names; asked before its files are there, it might say something else
        places = [] if callable(context.options["outputs"]) else places_of(context)
        self.paths = self._paths = _Paths(places, os.getcwd())
        self._drafts = Drafts(Blobs(context.run.store))
        self._modes: list[tuple[str, int]] = []

    def prepare(self) -> str | None:
        """Write what is missing or changed beside its place. The reason if that is not enough."""
        full, effect = self._paths.full, self._effect
        outputs = {full(name) for name, _ in effect["files"]} | {full(name) for name, _ in effect["folders"]}
        for name, mode in effect["folders"]:
            if (why := self._folder(full(name), mode)) is not None:
                return f"output `{self._paths.shown(name)}` {why}"
        for name, kept in effect["files"]:
            if (why := self._file(full(name), kept)) is not None:
                return f"output `{self._paths.shown(name)}` {why}"
        for name, target, lively in effect["links"]:
            end = os.path.normpath(os.path.join(os.path.dirname(full(name)), target))
            if lively and end not in outputs and not os.path.exists(end):
                return f"output `{self._paths.shown(name)}` is a link to {target}, which is missing"
            if (why := self._link(full(name), target)) is not None:
                return f"output `{self._paths.shown(name)}` {why}"
        return None

    def _folder(self, path: str, mode: int) -> str | None:
        if os.path.isdir(path):
            return None
        if os.path.lexists(path):
            return "is not a folder"
        os.makedirs(path)
        self._modes.append((path, mode))  # later: it may forbid writing
        return None

    def _file(self, path: str, kept: StoredFile) -> str | None:
        state = compare(path, kept)
        if state == "a folder" or (state != "same" and kept.chunks is None):
            return f"is {state}"
        if state != "same":
            self._drafts.add(path, kept)
        elif stat.S_IMODE(os.stat(path).st_mode) != kept.mode:
            self._modes.append((path, kept.mode))
        return None

    def _link(self, path: str, target: str) -> str | None:
        kind = kind_of(path)
        if kind == "folder":
            return "is a folder"
        if kind != "link" or os.readlink(path) != target:
            self._drafts.add_link(path, target)
        return None

    def put(self) -> None:
        """Let everything take its place."""
        self._drafts.put()
        for path, mode in reversed(self._modes):
            os.chmod(path, mode)
        for name in self._effect["gone"]:
            remove(self._paths.full(name))
