"""Concurrent steps: in threads of `run.map`, or in tasks that are gathered.

What such steps read of shared data depends on timing, and so do the changes that each of them finds when it ends. Two rules
make them deterministic enough to be skipped. First, a step that overlaps with others is identified by the data as it was
before any step touched it, not as the others have left it meanwhile. Second, a change belongs to the first step that ends
after it; when the steps are skipped, a map applies the changes in the order in which the steps ended. A step whose changes
may belong to others that ended while it ran is skipped only if those are, too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any


class Group:
    """The running steps that one step, or the script itself, has called. `notes` has the data when one of them last ended."""

    def __init__(self, thread: int = 0) -> None:
        self._process, self._lock = os.getpid(), threading.RLock()
        self.thread = thread or threading.get_ident()  # of the enclosing step, or of the scope
        self.epochs = Epochs()
        self.notes: dict[str, Any] = {}
        self.generators: dict[str, Any] = {}  # states of the random generators when the first of them began
        self.pending: list[Any] = []  # changes that belong to the next step to end
        self.changes: list[tuple[int, set[str]]] = []  # for each that ended: the time, and the data that it changed
        self.entered = 0  # number of steps so far
        self.maps = 0  # number of open maps: their steps count as concurrent, even if only one is running
        self._running: set[object] = set()
        self._last: object = None

    def __bool__(self) -> bool:
        return bool(self._running)

    @property
    def lock(self) -> Any:
        """The lock of this process: in a forked child, a thread that does not exist there may hold the parent's."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.RLock()
        return self._lock

    @property
    def apart(self) -> bool:
        """Whether a call made here counts as concurrent even if no other runs now: in a map, or in a thread of a pool."""
        return self.maps > 0 or threading.get_ident() != self.thread

    def enter(self) -> Member:
        with self.lock:
            member = Member(self, alone=not self._running and not self.apart)
            self._running.add(member)
            self._last, self.entered = member, self.entered + 1
            return member

    def leave(self, member: Member) -> None:
        with self.lock:
            self._running.discard(member)
            member.overlapped = member.shares
            if not self._running:
                self.notes, self.generators, self.pending, self.changes = {}, {}, [], []

    @contextmanager
    def map(self) -> Generator[None]:
        """The steps inside this block run concurrently."""
        with self.lock:
            self.maps += 1
        try:
            yield
        finally:
            with self.lock:
                self.maps -= 1


class Member:
    """One of these steps. `overlapped`, if another ran at the same time, is final only when the step has ended."""

    def __init__(self, group: Group, *, alone: bool) -> None:
        self.group, self.overlapped = group, not alone
        self.ended = 0  # when its changes were collected (see `Concurrent.stamp`), if it overlapped with others
        self.began = len(group.changes)
        self.needs: list[int] = []  # end times of steps to which its changes may belong

    def end(self, stamp: int, reached: set[str], changed: set[str]) -> None:
        """Its changes have been collected. `reached` is the data that it can change."""
        self.ended = stamp
        self.needs = [ended for ended, names in self.group.changes[self.began :] if not names.isdisjoint(reached)]
        if changed:
            self.group.changes.append((stamp, changed))

    @property
    def shares(self) -> bool:
        """Whether another step is running, or has or might have run since this one began."""
        return self.overlapped or self.group._last is not self

    def leave(self) -> None:
        self.group.leave(self)


class Concurrent:
    """The steps of a run that overlap with others, and the order in which they end."""

    def __init__(self) -> None:
        self.steps: set[str] = set()
        self.ended = 0  # when the last of them ended, in an earlier attempt if it was skipped
        self.made: set[int] = set()  # end times of the steps whose changes have been made in this scope
        self.parted: set[str] = set()  # nodes that must run, because steps with their changes are not skipped

    def stamp(self) -> int:
        """An end time that is later than all before it, even if the clock goes back."""
        self.ended = max(time.time_ns(), self.ended + 1)
        self.made.add(self.ended)
        return self.ended

    def skipped(self, ended: int) -> None:
        """A step with this end time has been skipped."""
        self.ended = max(self.ended, ended)
        self.made.add(ended)


class Epochs:
    """Digests of data that the steps of a group read: as the script or enclosing step made it, and as the steps left it."""

    def __init__(self) -> None:
        self._first: dict[str, bytes] = {}
        self._left: dict[str, bytes] = {}

    def first(self, data: Iterable[tuple[str, bytes]], *, busy: bool) -> list[bytes]:
        """The digest of each as the script made it. If `busy`, a difference may be due to running steps."""
        found: list[bytes] = []
        for name, now in data:
            if name not in self._first or (not busy and self._left[name] != now):
                self._first[name] = self._left[name] = now
            found.append(self._first[name])
        return found

    def restart(self, data: Iterable[tuple[str, bytes]]) -> None:
        """The script has changed the data to this."""
        for name, now in data:
            self._first[name] = self._left[name] = now

    def leave(self, data: Iterable[tuple[str, bytes]]) -> None:
        """A step has changed the data to this, by running or by being skipped."""
        self._left.update(data)

    def known(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """All digests, for a loop that is resumed in a later scope."""
        return dict(self._first), dict(self._left)

    def resume(self, known: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
        self._first.update(known[0])
        self._left.update(known[1])
