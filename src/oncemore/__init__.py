"""oncemore: run your script once more; what is done stays done."""

from typing import TYPE_CHECKING

from .asked import idempotency_key
from .current import current_run
from .errors import (
    CheckpointWarning,
    CodecError,
    FingerprintError,
    IntegrityError,
    NotRecorded,
    OncemoreError,
    OutputMissing,
    StoreDamaged,
    StoreError,
    UnknownOutcome,
    UsageError,
)
from .file import File
from .fingerprint import Fingerprint, register_identity
from .loops import Failure, Results
from .modules import loading as _loading
from .past import Checkpoint, Checkpoints
from .reasons import Change, Explanation
from .runs import Run
from .scope import checkpoint_scope
from .steps import Step, checkpointed, memoized
from .stores import Store, open_store
from .summary import Summary
from .surroundings import Surrounding, register_surrounding

if TYPE_CHECKING:
    from .history import History, RunRecord, fork

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

    def __getattr__(name):
        # A script that only runs does not read the past: what does is loaded when it is asked for.
        if name not in ("History", "RunRecord", "fork"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _loading:
            from . import history
        return getattr(history, name)

    def __dir__():
        return sorted({*globals(), *__all__})
