"""Files that a step declares as its outputs: stored with the result, written again when the step is skipped.

`outputs=["{out}/model.bin", "{out}/*.csv"]` are patterns over the step's parameters. `{param}` is replaced as in `str.format`.
Only the pattern itself can have wildcards: a `*` in the value of a parameter is an ordinary character. Wildcards match what
exists after the step. A pattern that matches a folder includes everything in it. A symbolic link is stored as a link; its
target is stored only if it is an output, too. Files that matched before the step and not after it are removed on a skip.
"""

from __future__ import annotations

import glob
import inspect
import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple, TypedDict, Union

from ..errors import CodecError, FingerprintError, IntegrityError, OutputMissing, StoreError, UsageError
from ..files.blobs import Blobs, Drafts, StoredFile, compare, remove
from ..identity.values import digest
from ..stores import OURS, in_store, is_store
from . import inputs
from .protocol import CallContext, Surrounding
from .state import around

Declared = Union[str, "os.PathLike[str]"]
Outputs = Collection[Declared] | Callable[..., Declared | Iterable[Declared]]
Name = tuple[int | str, str]  # the output's name, and the path below its base

_WILDCARD = r"[*?[]"
_AFTER_NAME = r"[.[]"
_FORMATTER = Formatter()


class Output(NamedTuple):
    """One declared output of a call. `name` is its number, or its path if a callable returned it."""

    name: int | str
    base: str  # the path up to the first component with a wildcard
    rest: str  # the pattern below `base`; empty without wildcards
    shown: str  # as messages show it


def check_outputs(outputs: Outputs, parameter_names: Collection[str], step: str) -> None:
    """UsageError unless the patterns are valid and every placeholder names a parameter of the step."""
    if isinstance(outputs, (str, os.PathLike)):
        raise UsageError(f"step {step}: outputs={outputs!r} must be a list of paths: [{outputs!r}]")
    named = _parameters(outputs)[1] if callable(outputs) else [n for each in outputs for n in _placeholders(each, step)]
    for name in named:
        if name not in parameter_names:
            real = ", ".join(parameter_names) or "none"
            raise UsageError(f"step {step}: outputs names {name!r}, which is no parameter. There are: {real}")


def _placeholders(pattern: Declared, step: str) -> Iterator[str]:
    if not isinstance(pattern, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"step {step}: outputs has {pattern!r}, which is not a path")
    text = os.fspath(pattern)
    try:
        for _, field, spec, _ in _FORMATTER.parse(text):
            if field is not None:
                yield re.split(_AFTER_NAME, field, maxsplit=1)[0]
                yield from _placeholders(spec or "", step)
    except ValueError as error:
        raise UsageError(f"step {step}: outputs has {text!r}, which is not a valid pattern: {error}") from error


def _parameters(function: Callable[..., Any]) -> tuple[list[str] | None, list[str]]:
    """The names of the arguments that a callable takes (None for any), and of those that it requires."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature
        return None, []
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    any_name = any(p.kind == p.VAR_KEYWORD for p in parameters)
    return None if any_name else [p.name for p in named], [p.name for p in named if p.default is p.empty]


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = _parameters(function)[0]
    return {name: value for name, value in arguments.items() if names is None or name in names}


def outputs_of(context: CallContext) -> list[Output]:
    """The declared outputs of one call."""
    declared: Outputs = context.options["outputs"]
    if callable(declared):
        returned = declared(**_accepted(declared, context.arguments))
        paths = [returned] if isinstance(returned, (str, os.PathLike)) else returned
        outputs = [Output(path, path, "", path) for path in (os.fspath(path) for path in paths)]
    else:
        outputs = [_output(i, os.fspath(pattern), context) for i, pattern in enumerate(declared)]
    for output in outputs:
        if not output.base and not output.rest:  # this would be the working directory with everything in it
            raise UsageError(f"step {context.step}: outputs has an empty path: {output.shown}")
    return outputs


def _output(number: int, pattern: str, context: CallContext) -> Output:
    base, rest = "", ""
    for literal, field, spec, conversion in _FORMATTER.parse(pattern):
        wild = re.search(_WILDCARD, literal)
        if rest or wild is None:
            base, rest = (base, rest + literal) if rest else (base + literal, "")
        else:
            upto = base + literal[: wild.start()]
            base, first = upto[: upto.rfind(os.sep) + 1], upto[upto.rfind(os.sep) + 1 :]
            rest = glob.escape(first) + literal[wild.start() :]
        if field is not None:
            text = _filled_in(pattern, field, spec or "", conversion, context)
            base, rest = (base, rest + glob.escape(text)) if rest else (base + text, "")
    shown = pattern if pattern == base + rest else f"{pattern} ({base + rest})"
    return Output(number, base, rest, shown)


def _filled_in(pattern: str, field: str, spec: str, conversion: Any, context: CallContext) -> str:
    try:
        value = _FORMATTER.convert_field(_FORMATTER.get_field(field, (), context.arguments)[0], conversion)
        spec = _FORMATTER.vformat(spec, (), context.arguments)
        return os.fspath(value) if isinstance(value, os.PathLike) and not spec else format(value, spec)
    except Exception as error:  # attributes and formatting of the user's objects can raise anything
        raise UsageError(f"step {context.step}: outputs={pattern!r}: {type(error).__name__}: {error}") from error


def declaration(context: CallContext) -> list[str] | str:
    """What determines which files are stored: the patterns, or the digest of the callable and its arguments."""
    outputs: Outputs = context.options["outputs"]
    if not callable(outputs):
        return [os.fspath(pattern) for pattern in outputs]
    try:
        return digest((outputs, _accepted(outputs, context.arguments))).hex()
    except FingerprintError:
        return ""


# -- existing files


def files_of(output: Output, here: str) -> dict[Name, str]:
    """The files, folders and links that an output consists of, each with its kind."""
    top = os.path.join(here, output.base)
    if not output.rest:
        starts = [""]
    else:
        found = glob.glob(output.rest, root_dir=top, recursive=True)
        starts = [os.path.normpath(path) for path in found if not in_store(os.path.join(top, path))]
    return {(output.name, path): kind for start in starts for path, kind in _below(top, start, not output.rest)}


def _below(top: str, start: str, declared: bool) -> Iterator[tuple[str, str]]:
    path = os.path.join(top, start) if start else top
    kind = kind_of(path)
    if kind == "link" and declared and os.path.isdir(path):
        kind = "folder"  # an output folder may be a link to a folder elsewhere
    if kind is not None:
        yield start, kind
    if kind == "folder" and not is_store(path):
        for folder, folders, files in os.walk(path):
            ours = {name for name in folders if name.startswith(OURS) or is_store(os.path.join(folder, name))}
            folders[:] = [name for name in folders if name not in ours]
            for name in (*folders, *files):
                each = os.path.join(folder, name)
                if not name.startswith(OURS) and (kind := kind_of(each)) is not None:
                    yield os.path.relpath(each, top), kind


def kind_of(path: str) -> str | None:
    """What exists at `path`; None if nothing does."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    known = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
    return known.get(stat.S_IFMT(mode), "neither a file nor a link")


# -- storing and restoring them


class _Recorded(TypedDict):
    """What is stored with the result. A path has two parts: its base may differ when the files are restored."""

    declared: list[str] | str
    folders: list[tuple[Name, int]]  # with their modes
    files: list[tuple[Name, StoredFile]]
    links: list[tuple[Name, str, bool]]  # with their targets, and whether these existed
    gone: list[Name]


class Effect(_Recorded, total=False):
    ready: _Restoration  # not stored: passed from `verify` to `restore`


class _Paths:
    """The paths of one call's files. Declared paths are relative to the working directory in which the step is called."""

    def __init__(self, outputs: Iterable[Output], here: str) -> None:
        self._bases = {output.name: output.base for output in outputs}
        self._here = here

    def shown(self, name: Name) -> str:
        """The path as declared."""
        output, below = name
        base = output if isinstance(output, str) else self._bases[output]
        return os.path.join(base, below) if below else base

    def full(self, name: Name) -> str:
        return os.path.normpath(os.path.join(self._here, self.shown(name)))


class _Note:
    """Which files exist before a step and, once it has returned, its effect."""

    def __init__(self, context: CallContext) -> None:
        self.here = os.getcwd()
        self.declared = declaration(context)
        self.effect: Effect | None = None
        self.error: Exception | None = None
        try:
            self.outputs = outputs_of(context)  # now: the step may change its arguments
        except FileNotFoundError:  # a callable that lists a folder which the step is going to create
            self.outputs = []
        found = [(output, files_of(output, self.here)) for output in self.outputs]
        self.before = [name for _, names in found for name in names]
        self.backup = _Backup(self, found, context.options["outputs_keep"]) if context.retried else None


class _Backup:
    """The declared files as they are before a step with `retries`: copies, in a folder of their own."""

    def __init__(self, note: _Note, found: Sequence[tuple[Output, Mapping[Name, str]]], keep: bool) -> None:
        self._outputs, self._paths, self._here = note.outputs, _Paths(note.outputs, note.here), note.here
        self._folder = ""
        self._links: dict[str, str] = {}
        self._folders: set[str] = set()
        self._files: dict[
            str, tuple[str, os.stat_result]
        ] = {}  # copies, empty without `outputs_keep`, and what they were
        self._matched = {self._paths.full(name) for output, names in found if output.rest for name in names}
        self._trouble = ""  # why there is no backup
        try:
            for path, kind in [(self._paths.full(name), kind) for _, names in found for name, kind in names.items()]:
                if kind == "folder":
                    self._folders.add(path)
                elif kind == "link":
                    self._links[path] = os.readlink(path)
                elif kind == "file":
                    copy, about = "", os.stat(path)
                    if keep:
                        if not self._folder:
                            self._folder = tempfile.mkdtemp(prefix="oncemore-")
                            weakref.finalize(self, _discard, self._folder, os.getpid())
                        copy = shutil.copy2(path, os.path.join(self._folder, str(len(self._files))))
                    self._files[path] = copy, about
        except OSError as error:
            self._trouble = f"an output could not be copied: {error}"

    def put_back(self, *, alone: bool) -> None:
        """Remove what is new, and restore the rest. If other steps ran meanwhile, what a wildcard matches may be theirs."""
        if self._trouble:
            raise CodecError(self._trouble)
        own = [output for output in self._outputs if alone or not output.rest]
        now = {self._paths.full(name) for output in own for name in files_of(output, self._here)}
        before = {*self._folders, *self._links, *self._files} - (set() if alone else self._matched)
        for path in sorted(now - before, key=lambda path: path.count(os.sep), reverse=True):
            remove(path)
        for path in sorted(before):  # folders first
            if path in self._folders:
                os.makedirs(path, exist_ok=True)
            elif path in self._links:
                if kind_of(path) != "link" or os.readlink(path) != self._links[path]:
                    remove(path)
                    os.symlink(self._links[path], path)
            else:
                self._put_back_file(path, *self._files[path])

    def _put_back_file(self, path: str, copy: str, was: os.stat_result) -> None:
        if kind_of(path) == "file" and _stamp(os.stat(path)) == _stamp(was):
            return
        if not copy:
            raise CodecError(f"its output {path} was changed, and with outputs_keep=False there is no copy to put back")
        remove(path)
        shutil.copy2(copy, path)


def _discard(folder: str, process: int) -> None:
    if os.getpid() == process:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)


def _stamp(about: os.stat_result) -> tuple[int, ...]:
    """Differs if a file was written."""
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


class Files(Surrounding):
    name = "files"
    option = "outputs"

    def before(self, context: CallContext) -> _Note:
        return _Note(context)

    def returned(self, context: CallContext, note: _Note) -> None:
        """Store the files. OutputMissing if one was not produced."""
        outputs = outputs_of(context) if callable(context.options["outputs"]) else note.outputs
        paths = _Paths(outputs, note.here)
        files = [files_of(output, note.here) for output in outputs]
        found = {name: kind for each in files for name, kind in each.items()}
        gone = [name for name in note.before if name not in found and kind_of(paths.full(name)) is None]
        for output, names in zip(outputs, files, strict=True):
            if not names and not any(removed == output.name for removed, _ in gone):
                what = "nothing matches" if output.rest else "there is no"
                raise OutputMissing(f"step {context.step} did not produce its output: {what} {output.shown}")
        gone.sort(key=lambda name: paths.full(name).count(os.sep), reverse=True)  # a folder after its contents
        try:
            note.effect = {"declared": note.declared, "folders": [], "files": [], "links": [], "gone": gone}
            _store(found, paths, context, note.effect)
            for name, _ in note.effect["files"]:
                inputs.note_output(context.run, paths.full(name), ran=True)
        except (CodecError, StoreError) as error:  # raised later: the step itself has succeeded
            note.error = error

    def after(self, context: CallContext, note: _Note | None) -> Effect | None:
        paths = _Paths(*((note.outputs, note.here) if note else ((), "")))
        inner = context.inner.get(self.name, [])  # effects, or errors
        errors = [each for each in (note and note.error, *inner) if isinstance(each, Exception)]
        if errors:
            self._pass_on(context, errors[0])
            raise errors[0]
        effect = None if note is None else note.effect
        if inner:
            effect = _merged(context, inner, effect, paths)
        if effect is not None:
            self._pass_on(context, _with_full_paths(effect, paths))
        return effect

    def verify(self, context: CallContext, effect: Effect | None) -> str | None:
        """Prepare the files, or return why the step must run instead. CodecError for a damaged chunk."""
        if not context.options["outputs"] and effect is None:
            return None
        if effect is None or effect["declared"] != declaration(context):
            return "outputs= changed"
        try:
            ready = _Restoration(context, effect)
            why = ready.prepare()
        except IntegrityError as error:
            if context.run.strict:
                raise
            raise CodecError(f"a file that it wrote cannot be restored: {error}") from error
        except OSError as error:
            return f"an output cannot be restored: {error}"
        effect["ready"] = ready
        return why

    def restore(self, context: CallContext, effect: Effect) -> None:
        if "ready" not in effect:
            why = self.verify(context, effect)
            if why is not None:
                raise StoreError(f"step {context.step} can no longer be skipped: {why}. Run the script again")
        ready = effect.pop("ready")
        ready.put()
        for name, _ in effect["files"]:
            inputs.note_output(context.run, ready.paths.full(name), ran=False)
        self._pass_on(context, _with_full_paths(effect, ready.paths))

    def repeat(self, context: CallContext, effect: Effect) -> None:
        """Leave the files alone: other code may have changed them since. They are outputs of the enclosing steps, too."""
        self._pass_on(context, _with_full_paths(effect, _Restoration(context, effect).paths))

    def undo(self, context: CallContext, note: _Note) -> None:
        assert note.backup is not None
        try:
            note.backup.put_back(alone=context.alone)
        except OSError as error:
            raise CodecError(f"an output cannot be put back: {error}") from error

    def _pass_on(self, context: CallContext, effect: Effect | Exception) -> None:
        outer = around(context)
        if outer is not None:
            outer.inner.setdefault(self.name, []).append(effect)


def _with_full_paths(effect: Effect, paths: _Paths) -> Effect:
    """The effect with full paths, for the enclosing step: its outputs include those of the steps it calls."""
    return {
        "declared": [],
        "folders": [((paths.full(name), ""), mode) for name, mode in effect["folders"]],
        "files": [((paths.full(name), ""), stored) for name, stored in effect["files"]],
        "links": [((paths.full(name), ""), target, existed) for name, target, existed in effect["links"]],
        "gone": [(paths.full(name), "") for name in effect["gone"]],
    }


def _merged(context: CallContext, inner: list[Effect], own: Effect | None, paths: _Paths) -> Effect:
    """The effects of the steps it called, in order, then its own. For each path, the last one wins."""
    last: dict[str, tuple[str, Any]] = {}
    for effect in (*inner, *(() if own is None else (own,))):
        for kind in ("gone", "folders", "files", "links"):
            entries: list[Any] = list(effect[kind])  # a name, or a tuple that begins with one
            for each in entries:
                last[paths.full(each if kind == "gone" else each[0])] = kind, each
    declared = declaration(context) if own is None else own["declared"]
    kinds = ("folders", "files", "links", "gone")
    found = {kind: [each for last_kind, each in last.values() if last_kind == kind] for kind in kinds}
    found["gone"].sort(key=lambda name: paths.full(name).count(os.sep), reverse=True)
    return Effect(
        declared=declared, folders=found["folders"], files=found["files"], links=found["links"], gone=found["gone"]
    )


def _store(found: Mapping[Name, str], paths: _Paths, context: CallContext, effect: Effect) -> None:
    blobs = Blobs(context.run.store, context.node)
    seen: set[str] = set()  # two patterns may match the same file
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


class _Restoration:
    """Restores the files of a skipped step. All are written to temporary names before the first is renamed."""

    def __init__(self, context: CallContext, effect: Effect) -> None:
        self._effect = effect
        # a callable's paths are in the names; called before its files exist, it might return others
        outputs = [] if callable(context.options["outputs"]) else outputs_of(context)
        self.paths = _Paths(outputs, os.getcwd())
        self._drafts = Drafts(Blobs(context.run.store))
        self._modes: list[tuple[str, int]] = []

    def prepare(self) -> str | None:
        """Write what is missing or changed to temporary names. Returns the reason if a file cannot be restored."""
        full, shown, effect = self.paths.full, self.paths.shown, self._effect
        outputs = {full(name) for name, _ in effect["files"]} | {full(name) for name, _ in effect["folders"]}
        for name, mode in effect["folders"]:
            if (why := self._folder(full(name), mode)) is not None:
                return f"output `{shown(name)}` {why}"
        for name, stored in effect["files"]:
            if (why := self._file(full(name), stored)) is not None:
                return f"output `{shown(name)}` {why}"
        for name, target, existed in effect["links"]:
            end = os.path.normpath(os.path.join(os.path.dirname(full(name)), target))
            if existed and end not in outputs and not os.path.exists(end):
                return f"output `{shown(name)}` is a link to {target}, which is missing"
            if (why := self._link(full(name), target)) is not None:
                return f"output `{shown(name)}` {why}"
        return None

    def _folder(self, path: str, mode: int) -> str | None:
        if os.path.isdir(path):
            return None
        if os.path.lexists(path):
            return "is not a folder"
        os.makedirs(path)
        self._modes.append((path, mode))  # set later: it may forbid writing
        return None

    def _file(self, path: str, stored: StoredFile) -> str | None:
        state = compare(path, stored)
        if state == "a folder" or (state != "same" and stored.chunks is None):
            return f"is {state}"
        if state != "same":
            self._drafts.add(path, stored)
        elif stat.S_IMODE(os.stat(path).st_mode) != stored.mode:
            self._modes.append((path, stored.mode))
        return None

    def _link(self, path: str, target: str) -> str | None:
        kind = kind_of(path)
        if kind == "folder":
            return "is a folder"
        if kind != "link" or os.readlink(path) != target:
            self._drafts.add_link(path, target)
        return None

    def put(self) -> None:
        """Rename the files to their final names, set modes, and remove what the step removed."""
        self._drafts.put()
        for path, mode in reversed(self._modes):
            os.chmod(path, mode)
        for name in self._effect["gone"]:
            remove(self.paths.full(name))
