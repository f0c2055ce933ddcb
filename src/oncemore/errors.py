"""Everything that oncemore raises or warns about.

    OncemoreError
     ├── UsageError (ValueError)           an option, a run id or a URL that cannot be right
     ├── FingerprintError (TypeError)      a value without a stable identity
     ├── NotRecorded (LookupError)         recall() of a node that has no checkpoint
     ├── UnknownOutcome                    an effect="once" step was cut off: nobody knows whether its effect took place
     ├── OutputMissing (FileNotFoundError) a step did not produce a file that it declares
     ├── CodecError                        bytes that do not become a value again, or a value that does not become bytes
     └── StoreError (OSError)              the store cannot be read or written
          ├── StoreUnavailable             the store is busy or out of reach now; later it may not be
          ├── StoreDamaged                 the store as a whole is unreadable
          ├── HoldLost                     a commit depended on holding a key that this process does not hold any more
          └── IntegrityError               one entry is not what was written there

    CheckpointWarning (UserWarning)        something was not kept, or not reused, and why

What a user's own function raises is never wrapped: it passes through untouched.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import warnings
from types import TracebackType
from typing import Any

_ITERATORS = frozenset(
    ["map", "filter", "zip", "enumerate", "reversed", "_csv.reader", "csv.DictReader"]
    + [f"itertools.{name}" for name in vars(itertools)]
)
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class OncemoreError(Exception):
    """The root of the tree."""


class UsageError(OncemoreError, ValueError):
    """An option, a run id or a URL that cannot be right."""


class FingerprintError(OncemoreError, TypeError):
    """A value that has no stable identity, so that no checkpoint can be found for it.

    `part` names what was being identified ("argument `rows`", "global `etl.client`"), `path` leads from there to the
    value ("[3].lock"), `kind` is the value's type.
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
        taken_from = self.kind.endswith(("generator", "iterator")) or self.kind in _ITERATORS
        if self.part.startswith(("global", "default", "closure", "class", "helper", "code", "wrapped")):
            if taken_from:
                return "Take from it outside the step and pass what you took as an argument, or make it a list"
            return f'Pass it as an argument with ignore=["{name}"]{self._register()}'
        if self.part == "key":
            return "Let key=... return something that has one"
        instead = ""
        if self.kind.startswith("_io."):
            instead = "Pass the file's path instead; or l"
        elif taken_from:
            instead = "Pass a list instead; or l"
        return (
            f'{instead or "L"}eave it out with ignore=["{name}"], or say what identifies it with '
            f'key={{"{name}": lambda {name}: ...}}{self._register()}'
        )

    def _register(self) -> str:
        """A type that can be named in a program can be taught."""
        module, _, name = self.kind.rpartition(".")
        if not isinstance(getattr(sys.modules.get(module), name, None), type):
            return ""
        return f", or teach the type with oncemore.register_identity({self.kind}, ...)"


class NotRecorded(OncemoreError, LookupError):
    """`recall()` was asked for a node that has no checkpoint."""


class UnknownOutcome(OncemoreError):
    """A step with effect="once" was cut off between its start and its checkpoint. `node` and `key` name it.

    Or it was edited in such a way that nobody can tell whether this call was performed already; then `doubt` says why.
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
                f"{self.node} may have been performed already: {self.doubt}. If this is the same call, say "
                f"run.resolve({self.key!r}, happened=True), and the recorded result counts; "
                f"if it is another, run.resolve({self.key!r}, happened=False) lets it run"
            )
        return (
            f"{self.node} was begun at {self.when} and never completed: its effect may or may not have taken place "
            f"(idempotency key {self.key}). Find out, then say run.resolve({self.key!r}, happened=True, result=...), "
            f"or run.resolve({self.key!r}, happened=False) to let it run"
        )


class OutputMissing(OncemoreError, FileNotFoundError):
    """A step returned without having produced a file that it declares with `outputs=`."""


class CodecError(OncemoreError):
    """Bytes that do not become a value again, or a value that does not become bytes."""


class StoreError(OncemoreError, OSError):
    """The store cannot be read or written; the message names it and the remedy."""


class StoreUnavailable(StoreError):
    """The store is busy or cannot be reached now; trying again later may help."""


class HoldLost(StoreError):
    """A commit was made under a hold that is gone. Nothing was written: whoever holds the key now may know better."""


class StoreDamaged(StoreError):
    """The store as a whole is unreadable."""


class IntegrityError(StoreError):
    """One entry is not what was written there: altered, cut short, moved or planted."""


class CheckpointWarning(UserWarning):
    """Something was not kept, or not reused; the message says what and why."""


logger = logging.getLogger("oncemore")


def log(message: str, *given: object) -> None:
    """Tell something in passing."""
    logger.info(message, *given)


def warn(message: str) -> None:
    """Warn at the line of the user's code that led here."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CheckpointWarning, stacklevel=level)


def trimmed(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback of an exception, without the frames of ours that lead to the user's function.

    An exception that comes from our own code keeps them all: there is nothing else to show where it comes from.
    """
    rest = traceback
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        rest = rest.tb_next
    return traceback if rest is None else rest


def is_terminal(stream: Any) -> bool:
    """Whether a stream leads to a terminal; a missing, closed or odd one does not."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False
