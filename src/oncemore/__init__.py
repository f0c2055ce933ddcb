"""oncemore: run your script once more; what is done stays done."""

from importlib import import_module as _import_module
from os import environ as _environ
from typing import TYPE_CHECKING

from .block import Block
from .call import Recorded
from .errors import (
    CheckpointWarning,
    CodecError,
    FingerprintError,
    HoldLost,
    IntegrityError,
    NotRecorded,
    OncemoreError,
    OutputMissing,
    RunPaused,
    StepTimeout,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
    UsageError,
)
from .files import File
from .history.explain import Change, Explanation
from .history.summary import Summary
from .identity import Fingerprint, register_identity
from .map import Failure, Results
from .node import idempotency_key
from .result import Result
from .run import Run, current_run
from .scope import checkpoint_scope
from .step import Step, checkpointed, memoized
from .stores import Store, open_store
from .surroundings import Surrounding, register_surrounding

if TYPE_CHECKING:
    from .history.checkpoints import Checkpoint, Checkpoints
    from .history.history import History, RunRecord, fork

    __version__: str

__all__ = [
    "Block",
    "Change",
    "Checkpoint",
    "CheckpointWarning",
    "Checkpoints",
    "CodecError",
    "Explanation",
    "Failure",
    "File",
    "Fingerprint",
    "FingerprintError",
    "History",
    "HoldLost",
    "IntegrityError",
    "NotRecorded",
    "OncemoreError",
    "OutputMissing",
    "Recorded",
    "Result",
    "Results",
    "Run",
    "RunPaused",
    "RunRecord",
    "Step",
    "StepTimeout",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreUnavailable",
    "Summary",
    "Surrounding",
    "UnknownOutcome",
    "UsageError",
    "checkpoint_scope",
    "checkpointed",
    "current_run",
    "fork",
    "idempotency_key",
    "memoized",
    "open_store",
    "register_identity",
    "register_surrounding",
]


if "ONCEMORE_LOOK" in _environ:  # this process was started by a script in a dry run
    _import_module(".rehearsal.dry_run", __name__)


if not TYPE_CHECKING:  # a checker would take any name for one of ours
    # Scripts rarely read the history of runs, so what does is imported on first use.
    _LAZY = {
        "Checkpoint": "history.checkpoints",
        "Checkpoints": "history.checkpoints",
        "History": "history.history",
        "RunRecord": "history.history",
        "fork": "history.history",
    }

    def __getattr__(name):
        if name == "__version__":
            return _import_module("importlib.metadata").version(__name__)
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_import_module(f".{_LAZY[name]}", __name__), name)

    def __dir__():
        return sorted({*globals(), *__all__})
