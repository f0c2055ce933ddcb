"""oncemore: run your script once more; what is done stays done."""

from .errors import (
    CheckpointWarning,
    CodecError,
    FingerprintError,
    IntegrityError,
    NotRecorded,
    OncemoreError,
    StoreDamaged,
    StoreError,
    UnknownOutcome,
    UsageError,
)
from .calls import idempotency_key
from .fingerprint import Fingerprint, register_identity
from .loops import Failure, Results
from .runs import Run, checkpoint_scope, current_run
from .steps import Step, checkpointed, memoized
from .stores import Store, open_store
from .surroundings import Surrounding, register_surrounding

__all__ = [
    "CheckpointWarning",
    "CodecError",
    "Failure",
    "Fingerprint",
    "FingerprintError",
    "IntegrityError",
    "NotRecorded",
    "OncemoreError",
    "Results",
    "Run",
    "Step",
    "Store",
    "StoreDamaged",
    "StoreError",
    "Surrounding",
    "UnknownOutcome",
    "UsageError",
    "checkpoint_scope",
    "checkpointed",
    "current_run",
    "idempotency_key",
    "memoized",
    "open_store",
    "register_identity",
    "register_surrounding",
]
