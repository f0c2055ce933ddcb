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
    UsageError,
)
from .fingerprint import Fingerprint, register_identity
from .runs import Run, checkpoint_scope, current_run
from .steps import Step, checkpointed, memoized
from .stores import Store, open_store

__all__ = [
    "CheckpointWarning",
    "CodecError",
    "Fingerprint",
    "FingerprintError",
    "IntegrityError",
    "NotRecorded",
    "OncemoreError",
    "Run",
    "Step",
    "Store",
    "StoreDamaged",
    "StoreError",
    "UsageError",
    "checkpoint_scope",
    "checkpointed",
    "current_run",
    "memoized",
    "open_store",
    "register_identity",
]
