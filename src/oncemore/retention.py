"""Policies that say which checkpoints to keep. `keep_first() | keep_last(20)` keeps what either keeps, `&` what both keep.

Nothing is ever removed unless you ask for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .errors import UsageError
from .history.checkpoints import Checkpoint
from .settings import Duration, seconds


class Policy:
    """Decides which of a run's checkpoints to keep; they are passed oldest first."""

    def __init__(self, name: str, keep: Callable[[Sequence[Checkpoint]], Iterable[Checkpoint]]) -> None:
        self._name, self._keep = name, keep

    def __repr__(self) -> str:
        return self._name

    def keeps(self, checkpoints: Sequence[Checkpoint]) -> set[str]:
        """The ids of the checkpoints to keep."""
        return {checkpoint.id for checkpoint in self._keep(checkpoints)}

    def __or__(self, other: Policy) -> Policy:
        def either(all: Sequence[Checkpoint]) -> Iterable[Checkpoint]:
            kept = self.keeps(all) | other.keeps(all)
            return (c for c in all if c.id in kept)

        return Policy(f"{self} | {other}", either)

    def __and__(self, other: Policy) -> Policy:
        """Keep what both keep. A limit on the right applies to what the left side keeps."""

        def both(all: Sequence[Checkpoint]) -> Iterable[Checkpoint]:
            kept = self.keeps(all)
            return other._keep([c for c in all if c.id in kept])

        return Policy(f"({self}) & {other}", both)


def keep_first(count: int = 1) -> Policy:
    """Keep the oldest checkpoints of each run."""
    return Policy(f"keep_first({count})", lambda all: all[: _positive(count)])


def keep_last(count: int = 1) -> Policy:
    """Keep the newest checkpoints of each run."""
    return Policy(f"keep_last({count})", lambda all: all[-_positive(count) :])


def keep_latest_of_each_name() -> Policy:
    """Keep the newest checkpoint of each name, and of each step."""
    return Policy("keep_latest_of_each_name()", lambda all: {c.name or c.step: c for c in all}.values())


def keep_newer_than(age: Duration) -> Policy:
    """Keep the checkpoints of the last "30d", "12h"..."""
    limit = seconds(age)
    return Policy(
        f"keep_newer_than({age!r})", lambda all: [c for c in all if time.time() - c.time.timestamp() <= limit]
    )


def keep_named() -> Policy:
    """Keep named checkpoints."""
    return Policy("keep_named()", lambda all: [c for c in all if c.name is not None])


def at_most(count: int) -> Policy:
    """Keep at most `count` checkpoints, the newest."""
    return Policy(f"at_most({count})", lambda all: all[-_positive(count) :])


def at_most_bytes(limit: int) -> Policy:
    """Keep the newest checkpoints that together have at most `limit` stored bytes."""

    def fitting(all: Sequence[Checkpoint]) -> Iterable[Checkpoint]:
        remaining = limit
        for checkpoint in reversed(all):
            remaining -= checkpoint.stored_bytes
            if remaining < 0:
                return
            yield checkpoint

    return Policy(f"at_most_bytes({limit})", fitting)


pinned = Policy("pinned", lambda all: [c for c in all if c.pinned])


def _positive(count: int) -> int:
    if count < 1:
        raise UsageError(f"a policy must keep at least 1 checkpoint, not {count}")
    return count


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What a policy removed, or would remove."""

    checkpoints: tuple[str, ...]
    bytes: int
    dry_run: bool
    skipped: tuple[str, ...] = ()  # running ones, which may be about to reuse what would be removed
