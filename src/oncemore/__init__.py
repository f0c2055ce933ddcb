"""oncemore: run your script once more; what is done stays done."""

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
from .history import History, RunRecord, fork
from .loops import Failure, Results
from .past import Checkpoint, Checkpoints
from .reasons import Change, Explanation
from .runs import Run
from .scope import checkpoint_scope
from .steps import Step, checkpointed, memoized
from .stores import Store, open_store
from .summary import Summary
from .surroundings import Surrounding, register_surrounding

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
