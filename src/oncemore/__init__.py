"""oncemore: run your script once more; what is done stays done."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from .asked import idempotency_key
from .current import current_run
from .errors import (
    CheckpointWarning,
    CodecError,
    FingerprintError,
    HoldLost,
    IntegrityError,
    NotRecorded,
    OncemoreError,
    OutputMissing,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
    UsageError,
)
from .file import File
from .fingerprint import Fingerprint, register_identity
from .modules import loading as _loading
from .runs import Run
from .scope import checkpoint_scope
from .steps import Step, checkpointed, memoized
from .stores import Store, open_store
from .surroundings import Surrounding, register_surrounding

if TYPE_CHECKING:
    from .checkpoints import Checkpoint, Checkpoints
    from .history import History, RunRecord, fork
    from .loops import Failure, Results
    from .reasons import Change, Explanation
    from .summary import Summary

__all__ = [
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
    "Results",
    "Run",
    "RunRecord",
    "Step",
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


if not TYPE_CHECKING:  # else every name would be one of ours
    # A script that only runs does not read the past: what does is loaded when it is asked for.
    _LATER = {
        **dict.fromkeys(("Checkpoint", "Checkpoints"), "checkpoints"),
        **dict.fromkeys(("History", "RunRecord", "fork"), "history"),
        **dict.fromkeys(("Failure", "Results"), "loops"),
        **dict.fromkeys(("Change", "Explanation"), "reasons"),
        "Summary": "summary",
    }

    def __getattr__(name):
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _loading:
            module = _import_module(f".{_LATER[name]}", __name__)
        return getattr(module, name)

    def __dir__():
        return sorted({*globals(), *__all__})
