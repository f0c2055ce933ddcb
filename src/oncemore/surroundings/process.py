"""What belongs to the process: environment variables, working directory, library settings; and ordinals of `every_call` steps.

An audit hook observes each change of the first two, in the step or in a thread that it started. So setting a variable to its
current value is noticed, what other code sets meanwhile is not attributed to the step, and a step that changes nothing costs
nothing. Settings are those of `pandas.options`, `matplotlib.rcParams`, numpy and decimal. Their values before a step are part
of its identity if its code names the library (see identity/library_settings.py).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from ..current import Around
from ..errors import CodecError
from ..identity.library_settings import LIBRARIES, changed, put
from .protocol import CallContext, Surrounding

Callback = Callable[[tuple[Any, ...]], None]

_listeners: dict[str, tuple[Callback, ...]] = {}


def listen(event: str, callback: Callback) -> None:
    """Call `callback` with the arguments of every audit event of that name, in the thread in which it happens.

    It must not raise: the exception would come out of the audited operation. A callback is registered once.
    """
    if not _listeners:
        sys.addaudithook(_hook)
    known = _listeners.get(event, ())
    if callback not in known:
        _listeners[event] = (*known, callback)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for callback in _listeners.get(event, ()):
        callback(arguments)


class Taken:
    """What calls of steps inside a step or a loop used: ordinals, by step and arguments, and entries."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = {}
        self.applied: set[str] = set()  # keys of entries whose effects the scope did not have before

    def drop(self, call: str, number: int) -> None:
        if number in self.numbers.get(call, ()):
            self.numbers[call].remove(number)

    def counts(self) -> dict[str, int]:
        return {call: len(numbers) for call, numbers in self.numbers.items() if numbers}


class Changes:
    """What one step does to the environment and the working directory."""

    def __init__(self) -> None:
        self.variables: dict[str, tuple[str | None, bool]] = {}  # value before, and whether it has differed since
        self.folder: tuple[str, bool] | None = None

    def set(self, name: str, value: str | None) -> None:
        """A variable is about to be set, or removed if the value is None."""
        was, differed = self.variables.get(name) or (os.environ.get(name), False)
        self.variables[name] = was, differed or value != was

    def go(self, target: str) -> None:
        """The working directory is about to change."""
        was, differed = self.folder or (_folder(), False)
        if os.path.realpath(target) != was:
            self.folder = was, True
        elif self.folder is not None or os.path.isabs(target):
            self.folder = was, differed

    def effect(self) -> dict[str, Any] | None:
        """What to set on a skip. A value that was changed and changed back is left out."""
        now = {name: os.environ.get(name) for name in self.variables}
        lasting = [name for name, (was, differed) in self.variables.items() if not (differed and now[name] == was)]
        effect: dict[str, Any] = {
            "set": {name: value for name in lasting if (value := now[name]) is not None},
            "unset": [name for name in lasting if now[name] is None],
        }
        if self.folder is not None and not (self.folder[1] and _folder() == self.folder[0]):
            effect["folder"] = _folder()
        return effect if any(effect.values()) else None


_changes, _taken = Around[Changes]("oncemore_process"), Around[Taken]("oncemore_calls")


def record(changes: Changes, taken: Taken) -> None:
    """Record what the code running here does, until `stop`."""
    _listen_to_changes()
    _changes.add(changes)
    _taken.add(taken)


def stop(changes: Changes, taken: Taken) -> None:
    _changes.remove(changes)
    _taken.remove(taken)


def took(call: str, number: int) -> None:
    """A call of an `every_call` step uses this ordinal."""
    for taken in _taken.get():
        taken.numbers.setdefault(call, []).append(number)


def applied(run: Any, entry: str) -> None:
    """A step has run or was skipped: from now on, the scope has the effects of its entry."""
    if entry not in run.applied:
        run.applied.add(entry)
        for taken in _taken.get():
            taken.applied.add(entry)


def gave_back(call: str, number: int) -> None:
    """The call failed: the next identical call uses this ordinal."""
    for taken in _taken.get():
        taken.drop(call, number)


@functools.cache  # once per process
def _listen_to_changes() -> None:
    listen("os.putenv", _set)
    listen("os.unsetenv", _set)
    listen("os.chdir", _go)


def _set(arguments: tuple[Any, ...]) -> None:
    name, value = (*map(os.fsdecode, arguments), None)[:2]  # there is no value if a variable is removed
    for changes in _changes.get():
        changes.set(str(name), value)


def _go(arguments: tuple[Any, ...]) -> None:
    [target] = arguments
    for changes in _changes.get():
        changes.go(f"/dev/fd/{target}" if isinstance(target, int) else os.fsdecode(target))


class Process(Surrounding):
    name = "process"
    per_item = True

    def before(self, context: CallContext) -> Changes:
        _listen_to_changes()
        return _changes.add(Changes())

    def after(self, context: CallContext, note: Changes) -> dict[str, Any] | None:
        self.failed(context, note)
        return note.effect()

    def failed(self, context: CallContext, note: Changes) -> None:
        _changes.remove(note)

    def verify(self, context: CallContext | None, effect: dict[str, Any] | None) -> str | None:
        folder = effect.get("folder") if effect else None
        return None if folder is None or os.path.isdir(folder) else f"the folder {folder} is gone"

    def restore(self, context: CallContext | None, effect: dict[str, Any]) -> None:
        os.environ.update(effect.get("set", {}))
        for name in effect.get("unset", ()):
            os.environ.pop(name, None)
        if "folder" in effect:
            os.chdir(effect["folder"])

    def undo(self, context: CallContext, note: Changes) -> None:
        for name, (was, _) in note.variables.items():
            if was is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = was
        if note.folder is not None and note.folder[0] != _folder():
            try:
                os.chdir(note.folder[0])
            except OSError as error:
                raise CodecError(f"the working directory cannot be set back to {note.folder[0]}: {error}") from error

    def repeat(self, context: CallContext, effect: dict[str, Any]) -> None:
        """For the enclosing steps: these are set, to whatever values they have now."""
        for changes in _changes.get():
            for name in (*effect["set"], *effect["unset"]):
                changes.set(name, os.environ.get(name))
            if "folder" in effect:
                changes.go(_folder())


class Calls(Surrounding):
    """The ordinals that `every_call` steps used inside a step: skipping the step uses as many."""

    name = "calls"
    per_item = True

    def before(self, context: CallContext) -> Taken:
        return _taken.add(Taken())

    def after(self, context: CallContext, note: Taken) -> dict[str, int] | None:
        _taken.remove(note)
        return note.counts() or None

    def failed(self, context: CallContext, note: Taken) -> None:
        """Give the ordinals back: the next try makes the same calls."""
        self.after(context, note)
        for call, numbers in note.numbers.items():
            for number in numbers:
                context.run.give_back(call, number)

    def undo(self, context: CallContext, note: Taken) -> None:
        """The effects of the steps it called have been put back: the next try applies them again."""
        context.run.applied.difference_update(note.applied)

    def restore(self, context: CallContext, effect: dict[str, int]) -> None:
        for call, times in effect.items():
            for _ in range(times):
                context.run.take(call)


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return ""


Effect = dict[str, dict[str, Any]]  # by library: values that were "set", and names reset to their "default"


class Settings(Surrounding):
    name = "settings"
    per_item = True

    def before(self, context: CallContext) -> dict[str, dict[str, Any]]:
        return {library: changed(library) for library in LIBRARIES}

    def after(self, context: CallContext, note: dict[str, dict[str, Any]]) -> Effect | None:
        effect: Effect = {}
        for library, then in note.items():
            now = changed(library)
            if now is not then and now != then:
                new = {name: value for name, value in now.items() if name not in then or then[name] != value}
                effect[library] = {"set": new, "default": [name for name in then if name not in now]}
        return effect or None

    def undo(self, context: CallContext, note: dict[str, dict[str, Any]]) -> None:
        """Nothing is put back if other steps ran at the same time: it would undo what they did."""
        for library, then in note.items() if context.alone else ():
            now = changed(library)
            if now is not then and now != then:
                put(library, then, now)

    def restore(self, context: CallContext, effect: Effect) -> None:
        for library, change in effect.items():
            put(library, change["set"], change["default"])
