"""Everything that oncemore raises or warns about.

    OncemoreError
     ├── UsageError (ValueError)           an option, a run id or a URL is invalid
     ├── FingerprintError (TypeError)      a value has no stable identity
     ├── NotRecorded (LookupError)         recall() of a node that has no checkpoint
     ├── UnknownOutcome                    an effect="once" step was cut off: its effect may or may not have happened
     ├── OutputMissing (FileNotFoundError) a step did not produce a file that it declares
     ├── StepTimeout (TimeoutError)        a step took longer than its timeout
     ├── CodecError                        a value cannot be saved, or its bytes cannot be loaded
     └── StoreError (OSError)              the store cannot be read or written
          ├── StoreUnavailable             the store is busy or unreachable; trying again later may help
          ├── StoreDamaged                 the store as a whole is unreadable
          ├── HoldLost                     a commit was made under a hold that this process has lost
          └── IntegrityError               an entry is not what was written there

    RunPaused (BaseException)              a question of `run.ask` has no answer yet: the run ends until it has one

    CheckpointWarning (UserWarning)        something was not saved, or not reused, and why

An exception from the user's own function is never wrapped: it passes through unchanged.
"""

from __future__ import annotations

import difflib
import itertools
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .events import Asked

_ITERATORS = frozenset(
    ["map", "filter", "zip", "enumerate", "reversed", "_csv.reader", "csv.DictReader"]
    + [f"itertools.{name}" for name in vars(itertools)]
)
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class OncemoreError(Exception):
    """The base class of all errors that oncemore raises."""


class UsageError(OncemoreError, ValueError):
    """An option, a run id or a URL is invalid."""


class FingerprintError(OncemoreError, TypeError):
    """A value has no stable identity, so a checkpoint that depends on it could never be found again.

    `part` is what was being identified ("argument `rows`", "global `etl.client`"), `path` leads from there to the value
    ("[3].lock"), and `kind` is the value's type.
    """

    def __init__(self, kind: str, path: str = "", part: str = "", step: str = "") -> None:
        super().__init__(kind, path, part, step)
        self.kind = kind
        self.path = path
        self.part = part
        self.step = step

    def __str__(self) -> str:
        step = f"step {self.step}: " if self.step else ""
        part = self.part or "the value"
        what = f"{part} holds a {self.kind} at {self.path}, which" if self.path else f"{part} is a {self.kind}, which"
        return f"{step}{what} has no stable identity. {self._advice()}"

    def _advice(self) -> str:
        name = self.part.partition("`")[2].rstrip("`").rpartition(".")[2] or "name"
        is_iterator = self.kind.endswith(("generator", "iterator")) or self.kind in _ITERATORS
        if self.part.startswith(("global", "default", "closure", "class", "helper", "code", "wrapped")):
            if is_iterator:
                return "Take items from it outside the step and pass them as an argument, or make it a list"
            return f'Pass it as an argument with ignore=["{name}"]{self._register()}'
        if self.part.startswith("variable"):
            return f'Exclude it with ignore=["{name}"], or say what identifies it with {name}=...{self._register()}'
        if self.part == "key":
            return "Let key=... return a value that has one"
        instead = ""
        if self.kind.startswith("_io."):
            instead = "Pass the file's path instead; or "
        elif is_iterator:
            instead = "Pass a list instead; or "
        advice = (
            f'{instead}exclude it with ignore=["{name}"], or define what identifies it with '
            f'key={{"{name}": lambda {name}: ...}}{self._register()}'
        )
        return advice[0].upper() + advice[1:]

    def _register(self) -> str:
        """The advice to register the type, if a program can name it."""
        module, _, name = self.kind.rpartition(".")
        if not isinstance(getattr(sys.modules.get(module), name, None), type):
            return ""
        return f", or give the type an identity with oncemore.register_identity({self.kind}, ...)"


class NotRecorded(OncemoreError, LookupError):
    """`recall()` was called for a node that has no checkpoint."""


class UnknownOutcome(OncemoreError):
    """A step with effect="once" was cut off between its start and its checkpoint. `node` and `key` identify it.

    Or the step was edited in such a way that this call may be one that was performed before; then `doubt` says why.
    """

    def __init__(self, node: str, key: str, when: str, doubt: str = "") -> None:
        super().__init__(node, key, when, doubt)
        self.node = node
        self.key = key
        self.when = when
        self.doubt = doubt

    def __str__(self) -> str:
        if self.doubt:
            return (
                f"{self.node} may have been performed already: {self.doubt}. If this is the same call, use its recorded "
                f"result with run.resolve({self.key!r}, happened=True); if it is another, let it run with "
                f"run.resolve({self.key!r}, happened=False)"
            )
        return (
            f"{self.node} started at {self.when} and never completed: its effect may or may not have happened "
            f"(idempotency key {self.key}). Find out, then call run.resolve({self.key!r}, happened=True, result=...), "
            f"or run.resolve({self.key!r}, happened=False) to let it run"
        )


class OutputMissing(OncemoreError, FileNotFoundError):
    """A step returned without producing a file that it declares with `outputs=`."""


class StepTimeout(OncemoreError, TimeoutError):
    """A step took longer than its `timeout`. `node` is the call, `limit` the number of seconds."""

    def __init__(self, node: str, limit: float) -> None:
        super().__init__(node, limit)
        self.node = node
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.node} took longer than its timeout of {self.limit:g} s"


class CodecError(OncemoreError):
    """A value cannot be saved, or its stored bytes cannot be loaded."""


class StoreError(OncemoreError, OSError):
    """The store cannot be read or written. The message names the store and the remedy."""


class StoreUnavailable(StoreError):
    """The store is busy or unreachable. Trying again later may help."""


class HoldLost(StoreError):
    """A commit was made under a hold that this process has lost. Nothing was written."""


class StoreDamaged(StoreError):
    """The store as a whole is unreadable."""


class IntegrityError(StoreError):
    """An entry is not what was written there: it was altered, truncated, moved or forged."""


class RunPaused(BaseException):
    """A question of `run.ask` has no answer yet. `questions` are the events `Asked`, of which `run.map` may collect several.

    Like KeyboardInterrupt it is no `Exception`, so that no handler takes it for a failure. A scope that it leaves turns it into
    a SystemExit as well: a script that does not catch it ends without a traceback, with the exit code `exit_code`.
    """

    exit_code = 75  # EX_TEMPFAIL, by the convention of sysexits.h

    def __init__(self, run: str, questions: Sequence[Asked]) -> None:
        super().__init__(run, tuple(questions))
        self.run, self.questions = run, tuple(questions)

    def __str__(self) -> str:
        asked = "; ".join(f"{each.node}: {' '.join(each.question.split())}" for each in self.questions)
        return f"run {self.run} is paused until this is answered: {asked}. Answer it with `oncemore answer`, then run again"

    @staticmethod
    def within(error: BaseException | None) -> RunPaused | None:
        """The pause that an error is: itself, or all that a group consists of."""
        if isinstance(error, RunPaused) or error is None:
            return error
        inside = getattr(error, "exceptions", ()) if type(error).__name__.endswith("ExceptionGroup") else ()
        found = [pause for each in inside if (pause := RunPaused.within(each)) is not None]
        return RunPaused.joined(found) if found and len(found) == len(inside) else None

    @staticmethod
    def joined(pauses: Sequence[RunPaused]) -> RunPaused:
        """One for all of them."""
        return RunPaused(pauses[0].run, [question for each in pauses for question in each.questions])


class CheckpointWarning(UserWarning):
    """Something was not saved, or not reused. The message says what and why."""


logger = logging.getLogger("oncemore")


def log(message: str, *args: object) -> None:
    """Log something that users rarely need to know."""
    logger.debug(message, *args)


def warn(message: str) -> None:
    """Issue a warning that points to the line of the user's code that led here."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CheckpointWarning, stacklevel=level)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion for a mistyped name, to append to a message; empty if no known name is similar."""
    candidates = list(dict.fromkeys(known))
    similar = [each for each in candidates if each.lower() == name.lower() or each.rpartition(".")[2] == name]
    similar += [each for each in difflib.get_close_matches(name, candidates, 3) if each not in similar]
    return f" Did you mean {' or '.join(similar[:3])}?" if similar else ""


def trimmed(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without oncemore's frames that lead to the user's function.

    If the exception comes from oncemore itself, all frames stay.
    """
    rest = traceback
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        rest = rest.tb_next
    return rest or traceback


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal. False for one that is missing, closed or has no `isatty`."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False
