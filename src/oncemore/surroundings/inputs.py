"""Files that a step reads: those that Python code opens while it runs, and those that its arguments name.

If such a file has changed when the step is skipped, a warning says so. With `inputs="observed"`, on the step or on the scope,
the file is one of the step's reads, and a change runs the step again. Two differences are no change: the file is missing, or
an earlier attempt at the same run was the last to write it (step B overwrites what step A read, and the next attempt reaches
A again). What the current attempt wrote is a change: the step would read it now.

An audit hook observes opens. For libraries that open files without Python (pyarrow, polars, HDF5), only the paths in the
step's arguments are known. Source files, installed packages, system files and the store's own files are not data.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple

from blake3 import blake3

from .. import current
from ..codec import encode
from ..current import Around
from ..errors import OncemoreError, log, warn
from ..files import File
from ..identity.input_files import fields_of, path_identity
from ..identity.values import digest
from ..keys import written_files_of
from ..stores import OURS, in_store
from ..stores.buffers import content_digest
from .process import listen
from .protocol import EXCUSED, CallContext, Surrounding

OBSERVED = "observed"

_UNKNOWN = "unknown"  # equals no recorded digest
_LARGE = 1 << 26  # bytes; of larger files only size and time are recorded, unless they are observed
# Changes further apart than this have different times on any file system (coarse: one that stores whole seconds), in ns.
_TICK, _COARSE_TICK = 50_000_000, 2_000_000_000
_MOST_VALUES = 100  # values in the arguments of a call that are searched for paths
_LONGEST = 4096  # characters of a path
_REMEMBERED = 16  # versions of one file that a run wrote
_PACKAGE = __name__.partition(".")[0]
_CODE_SUFFIXES = (".py", ".pyc", ".pyi", ".so", ".pth")


def _system_folders() -> tuple[str, ...]:
    """The folders of programs and libraries. Not all of `/usr`: projects can be there, too."""
    found = {path for name, path in sysconfig.get_paths().items() if name != "data"}
    for prefix in {sys.prefix, sys.base_prefix, "/usr", "/usr/local", ""}:
        found.update(f"{prefix}/{name}" for name in ("bin", "etc", "include", "lib", "lib64", "share"))
    found |= {"/dev", "/proc", "/run", "/sys", os.path.expanduser("~/.cache")}
    return tuple(f"{folder}{os.sep}" for folder in sorted(found))


_SYSTEM_FOLDERS = _system_folders()


class _Stamp(NamedTuple):
    """Shows without reading a file that it is unchanged."""

    size: int
    time: int


def _stamp(path: str) -> _Stamp | None:
    """None if the path is not a regular file."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    return _Stamp(about.st_size, about.st_mtime_ns) if stat.S_ISREG(about.st_mode) else None


@dataclass(slots=True)
class _Read:
    """A file that a step read, as it was then."""

    stamp: _Stamp | None
    observed: bool  # a change runs the step again
    opened: bool  # by Python code; else it is only named in an argument
    digest: str = ""


class _Note:
    """The files of one running step. That of a generator lasts from its first item to its last."""

    def __init__(self, context: CallContext) -> None:
        self.context, self.files = context, files_of(context.run)
        self.observed = observes(context.run, context.options)
        self.reads: dict[str, _Read] = {}
        self.written: set[str] = set()
        self.declared = declared(context.options, context.arguments)
        self._below = tuple(f"{path}{os.sep}" for path in self.declared)
        ignored = context.options["ignore"]
        for path in _paths_in(value for name, value in context.arguments.items() if name not in ignored):
            self.read(path, opened=False)
        self.token: Any  # while it runs
        self.stack: tuple[_Note, ...]  # the enclosing steps, and itself

    def read(self, path: str, *, observed: bool = False, opened: bool = True) -> None:
        """A file is about to be read. Ignored: files that the step wrote itself, and those identified as arguments."""
        if path in self.written or path in self.declared or path.startswith(self._below):
            return
        found = self.reads.get(path)
        if found is None:
            self.reads[path] = _Read(_stamp(path), observed=observed or self.observed, opened=opened)
        else:
            found.observed, found.opened = found.observed or observed, found.opened or opened

    def depend(self, name: str) -> None:
        """A step that this one called depends on a file or folder."""
        path = self.files.path(name)
        if path not in self.written and path not in self.declared and path not in self.reads:
            stamp = _stamp(path)
            now = self.files.now(name).removeprefix(EXCUSED)
            self.reads[path] = _Read(stamp, observed=True, opened=True, digest=now or _UNKNOWN)
        elif path in self.reads:
            self.reads[path].observed = True

    def write(self, path: str) -> None:
        """A file is about to be written: what the step read of it has to be identified now."""
        found = self.reads.get(path)
        if found is not None and path not in self.written:
            if found.opened:
                found.digest = found.digest or self.files.digest(path, found.stamp, observed=found.observed)
            else:
                del self.reads[path]
        self.written.add(path)

    def finish(self, around: tuple[_Note, ...]) -> None:
        """The step has returned: record what it read, for the enclosing steps, too."""
        seen: list[tuple[str, _Stamp, str]] = []
        for path, read in list(self.reads.items()):
            if not read.digest and path not in self.written and _stamp(path) != read.stamp:
                if not read.opened:  # written, but not by Python code
                    self.write(path)
                    self.files.write(path)
                    continue
                read.digest = _UNKNOWN
            if read.stamp is not None:
                read.digest = read.digest or self.files.digest(path, read.stamp, observed=read.observed)
            elif not read.digest:
                continue  # it did not exist, or is not a file
            if self.files.is_in_store(path):
                continue
            # a shared result is recorded with full paths: another run may start in another folder
            name = path if self.context.options["share"] else self.files.name(path)
            if read.observed:
                self.context.reads[f"{Inputs.name}:{name}"] = read.digest
                if read.stamp is not None and read.digest != _UNKNOWN and not _is_fresh(read.stamp):
                    seen.append((path, read.stamp, read.digest))
            elif read.stamp is not None:
                content = "" if read.digest == _UNKNOWN else read.digest
                mtime = 0 if content and _is_fresh(read.stamp) else read.stamp.time  # 0: compare the content
                self.context.files[name] = [read.stamp.size, mtime, content]
            for note in around:
                note.read(path, observed=read.observed)
        for note in around:
            for path in self.declared:
                note.depend(self.files.name(path))
        self.files.save(seen)


def declared(options: Mapping[str, Any], arguments: Mapping[str, Any]) -> frozenset[str]:
    """The files and folders that are identified as arguments: those that `inputs=` names, and `File` values."""
    named = () if options["inputs"] == OBSERVED else options["inputs"]
    found = {path for name in named for path in _paths_in([arguments[name]], folders=True)}
    return frozenset(found.union(_paths_in(arguments.values(), files=True)))


def _paths_in(values: Iterable[Any], *, folders: bool = False, files: bool = False) -> Iterator[str]:
    """The files named in some values, and with `folders` the folders, too. With `files`, those of `File` values instead."""
    pending, searched = deque(values), 0
    while pending and searched < _MOST_VALUES:
        value = pending.popleft()
        searched += 1
        if isinstance(value, (str, PurePath, File)):  # not any PathLike: a remote file may be downloaded to get a path
            text = str(value)
            if len(text) <= _LONGEST and "\0" not in text and isinstance(value, File) == files:
                path = _data_path(os.fspath(value) if isinstance(value, File) else text)
                if path is not None and (os.path.isfile(path) or (folders and os.path.isdir(path))):
                    yield path
        elif isinstance(value, Mapping):
            pending.extend(islice(value.values(), _MOST_VALUES))
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending.extend(islice(value, _MOST_VALUES))
        elif (fields := fields_of(value)) is not None:
            pending.extend(fields.values())


_notes = Around[_Note]("oncemore_inputs")


def _here() -> tuple[_Note, ...]:
    """The steps that run in this thread or task, outermost first.

    A thread of unknown origin belongs to the running step if there is only one, or if all are nested.
    """
    notes = _notes.get()
    if notes or current.known() or threading.get_ident() in {thread for _, thread in list(current.opened.values())}:
        return notes
    running = [note.stack for note in list(_notes.open)]
    longest = max(running, key=len, default=())
    return longest if all(each == longest[: len(each)] for each in running) else ()


# -- audit events


class _Busy(threading.local):
    now = False  # handling an event: files opened meanwhile are opened by this module


_busy = _Busy()


def _opened(arguments: tuple[Any, ...]) -> None:
    name, _, flags = arguments
    if not (_notes.open or current.opened) or type(name) is int or not isinstance(flags, int):
        return
    access = flags & os.O_ACCMODE
    if access == os.O_RDONLY:
        if _notes.open:
            _event(name, read=True)
    else:
        _event(name, read=access == os.O_RDWR and not flags & os.O_TRUNC, write=True)


def _connected(arguments: tuple[Any, ...]) -> None:
    """An SQLite database. Whether the step changes it is seen at the end of the step."""
    if _notes.open and isinstance(arguments[0], (str, bytes, os.PathLike)):
        _event(arguments[0], read=True, opened=False)


def _renamed(arguments: tuple[Any, ...]) -> None:
    before, after, *folders = arguments
    if (_notes.open or current.opened) and folders == [-1, -1]:  # else the paths are relative to unknown folders
        _event(before, write=True)
        _event(after, write=True)


def _removed(arguments: tuple[Any, ...]) -> None:
    path, folder = arguments
    if (_notes.open or current.opened) and folder == -1:
        _event(path, write=True)


def _event(name: Any, *, read: bool = False, opened: bool = True, write: bool = False) -> None:
    if _busy.now:
        return
    _busy.now = True
    try:
        path = _data_path(name)
        if path is None or _is_ours():
            return
        notes = _here()
        for note in notes if read else ():
            note.read(path, opened=opened)
        if write:
            for note in notes:
                note.write(path)
            run = notes[-1].context.run if notes else current.session_here()
            if run is not None and not run.disabled:
                files_of(run).write(path)
    except Exception as error:
        log("failed to note that file %s was opened: %r", name, error)  # the open itself must succeed
    finally:
        _busy.now = False


def _is_ours() -> bool:
    """Whether oncemore or its store opens the file. `File.open` is called by the user."""
    name = str(sys._getframe(4).f_globals.get("__name__", ""))
    return name.partition(".")[0] in (_PACKAGE, "diskcache") and name != File.__module__


def _data_path(name: Any) -> str | None:
    """The full path of a file; None if it cannot be data."""
    path = os.path.abspath(os.fsdecode(name))
    if path.endswith(_CODE_SUFFIXES) or path.startswith(_SYSTEM_FOLDERS) or os.path.basename(path).startswith(OURS):
        return None
    return path


# -- the files of a run


class RunFiles:
    """What one attempt at a run knows about files. Paths are relative to the folder in which it began, if they are inside it."""

    def __init__(self, run: Any) -> None:
        self._run = run
        try:
            self.root = os.getcwd()
        except FileNotFoundError:  # the folder was removed
            self.root = os.sep
        self._digests: dict[str, tuple[_Stamp, str]] = {}
        self._pending: set[str] = set()  # written, but not stored yet
        self.written: set[str] = set()  # in this attempt
        self.checked: set[str] = set()  # keys of checkpoints whose files have been compared
        self.warned: set[tuple[str, str]] = set()
        self._known: dict[str, dict[str, Any]] = {}  # what is stored about each file
        self._store_folders: dict[str, bool] = {}  # by folder

    def is_in_store(self, path: str) -> bool:
        folder = os.path.dirname(path)
        if folder not in self._store_folders:
            self._store_folders[folder] = in_store(folder)
        return self._store_folders[folder]

    def name(self, path: str) -> str:
        inside = path.startswith(self.root.rstrip(os.sep) + os.sep)
        return os.path.relpath(path, self.root) if inside else path

    def path(self, name: str) -> str:
        return os.path.normpath(os.path.join(self.root, name))

    def write(self, path: str) -> None:
        """A file is about to be written."""
        self._pending.add(path)
        self.written.add(path)
        self.checked.clear()

    def digest(self, path: str, stamp: _Stamp | None, *, observed: bool) -> str:
        """Of the content; empty for a large file, unless it is observed. Unknown if the file no longer matches `stamp`."""
        if stamp is None or (stamp.size > _LARGE and not observed):
            return ""
        known = self._digests.get(path)
        if known is None or known[0] != stamp:
            if in_store(path):
                return _UNKNOWN
            try:
                content = self._stored_digest(path, stamp) or (
                    content_digest(path).hex() if _stamp(path) == stamp else ""
                )
            except OSError:
                content = ""
            if not content or _stamp(path) != stamp:
                return _UNKNOWN
            if _is_fresh(stamp):
                return content
            known = self._digests[path] = stamp, content
        return known[1]

    def now(self, name: str) -> str:
        """The current digest of a file or folder. It is excused if it is missing, or if an earlier attempt wrote it."""
        path = self.path(name)
        if os.path.isdir(path):
            return digest(path_identity(path)).hex()
        stamp = _stamp(path)
        found = self.digest(path, stamp, observed=True)
        return f"{EXCUSED}{found}" if stamp is None or self.by_earlier_attempt(path, stamp) else found

    def has_changed(self, name: str, was: list[Any]) -> bool:
        """Whether a file no longer has that size, time and digest. A missing file has not changed."""
        size, mtime, content = was
        path = self.path(name)
        stamp = _stamp(path)
        if stamp is None or stamp == (size, mtime):
            return False
        now = self.digest(path, stamp, observed=False) if content else ""
        return not (content and now == content) and not self.by_earlier_attempt(path, stamp)

    def by_earlier_attempt(self, path: str, stamp: _Stamp) -> bool:
        """Whether an earlier attempt at this run was the last to write the file. Equal content alone may be an edit."""
        if path in self.written:
            return False
        attempt = self._stored(path).get("wrote", {}).get(_version(stamp))
        return attempt is not None and attempt < self._run.attempt_number

    # In the store, by file: "wrote", which versions the run wrote; "seen", the digest that belongs to a size and time.

    def _key(self, path: str) -> str:
        return written_files_of(self._run.entries.owner) + blake3(os.fsencode(self.name(path))).hexdigest(length=16)

    def _stored(self, path: str) -> dict[str, Any]:
        if path not in self._known:
            found = None
            with suppress(OncemoreError):  # damaged: as if nothing were stored
                found = self._run.entries.read(self._key(path)) if self._run.resumed else None
            self._known[path] = {} if found is None else dict(found.meta)
        return self._known[path]

    def _stored_digest(self, path: str, stamp: _Stamp) -> str:
        size, mtime, content = self._stored(path).get("seen", (0, 0, ""))
        return str(content) if (size, mtime) == stamp else ""

    def save(self, seen: Iterable[tuple[str, _Stamp, str]] = ()) -> None:
        """Store what was written since the last time, and what observed files were read."""
        changed: dict[str, dict[str, Any]] = {}
        pending, self._pending = self._pending, set()
        run = self._run
        for path in pending:
            stamp = _stamp(path)
            if stamp is None or self.is_in_store(path):
                continue
            version, wrote = _version(stamp), dict[str, int](self._stored(path).get("wrote", {}))
            if wrote.pop(version, None) != run.attempt_number:
                wrote = dict([*wrote.items(), (version, run.attempt_number)][-_REMEMBERED:])
                changed[path] = {**self._stored(path), "wrote": wrote}
        for path, stamp, content in seen:
            if self._stored_digest(path, stamp) != content:
                changed[path] = {**changed.get(path, self._stored(path)), "seen": [*stamp, content]}
        if changed and run.id:
            self._known.update(changed)
            entries = [
                encode(None, note, key=self._key(path), secret=run.entries.secret) for path, note in changed.items()
            ]
            run.store.commit(put={entry.key: entry.frames for entry in entries})


def _version(stamp: _Stamp) -> str:
    return f"{stamp.size} bytes at {stamp.time}"


def _is_fresh(stamp: _Stamp) -> bool:
    """Whether another change might leave size and time the same."""
    return time.time_ns() - stamp.time < (_TICK if stamp.time % 1_000_000_000 else _COARSE_TICK)


def files_of(run: Any) -> RunFiles:
    """What this process knows about the run's files."""
    if run.files is None:
        run.files = RunFiles(run)
    found: RunFiles = run.files
    return found


@functools.cache  # once per process
def listen_to_opens() -> None:
    """Start to observe what steps read, and what is written by them or between them."""
    listen("open", _opened)
    listen("os.remove", _removed)
    listen("os.rename", _renamed)
    listen("sqlite3.connect", _connected)


def enter(run: Any) -> None:
    """A scope has been opened: relative paths start from the current folder."""
    files_of(run)
    listen_to_opens()


def leave(run: Any) -> None:
    """The scope is about to close: store what was written since its last step."""
    with suppress(OncemoreError):  # recording the end of the run raises the same error
        files_of(run).save()


def note_output(run: Any, path: str, *, ran: bool) -> None:
    """A file is an output of a step, which `ran` or was skipped."""
    for note in _here():
        if path in note.reads and not note.reads[path].opened:
            del note.reads[path]
        note.written.add(path)
    files = files_of(run)
    files.written.add(path)
    if ran:
        files.write(path)


class Inputs(Surrounding):
    name = "inputs"
    per_item = True

    def before(self, context: CallContext) -> _Note:
        listen_to_opens()
        note: _Note = context.inputs or _Note(context)
        context.inputs, note.stack = note, (*_notes.get(), note)
        note.token = _notes.set(note.stack)
        return note

    def after(self, context: CallContext, note: _Note) -> None:
        self.failed(context, note)
        note.finish(_notes.get())

    def failed(self, context: CallContext, note: _Note) -> None:
        _notes.reset(note.token)

    def digest(self, run: Any, name: str) -> str:
        return files_of(run).now(name)

    def label(self, name: str) -> str:
        return f"file {name}"

    def depend(self, run: Any, name: str) -> None:
        for note in _here():
            note.depend(name)


def observes(run: Any, options: Mapping[str, Any]) -> bool:
    """Whether the files that a step reads are observed: the step, the scope or an enclosing step says so."""
    return options["inputs"] == OBSERVED or run.observes or any(note.observed for note in _here())


def changed(run: Any, read: Mapping[str, list[Any]]) -> str | None:
    """The reason to run a step again if a file that it read has changed. `read` has `[size, time, digest]` by name."""
    files = files_of(run)
    return next((f"{Inputs().label(name)} changed" for name, was in read.items() if files.has_changed(name, was)), None)


def reused(run: Any, step: str, key: str, options: Mapping[str, Any], arguments: Mapping[str, Any], read: Any) -> None:
    """A step is skipped: warn about files that changed since it read them. The enclosing steps have read them, too."""
    files, around = files_of(run), _here()
    for note in around:
        for path in declared(options, arguments):
            note.depend(files.name(path))
        for name in read:
            note.read(files.path(name))
    if key in files.checked:
        return
    files.checked.add(key)
    for name, was in read.items():
        if (step, name) in files.warned or not files.has_changed(name, was):
            continue
        files.warned.add((step, name))
        path = files.path(name)
        parameter = next((name for name, value in arguments.items() if path in _paths_in([value])), None)
        remedy = 'inputs="observed"' if parameter is None else f'inputs=["{parameter}"] or inputs="observed"'
        warn(
            f"step {step} was skipped, but file {name} has changed since the step read it. "
            f"To run the step again after such a change, give it {remedy}"
        )
