"""Steps that run side by side: threads of `run.map`, tasks that are gathered.

What such steps read of shared data depends on timing, and so does what each of them finds changed when it ends. So two rules
hold for them. A step that overlaps with others counts the data as it was before any step of the run touched it, not what the
others have made of it meanwhile. And a change belongs to the step that ends next after it; when the steps are skipped, a map
makes the changes in the order in which they ended. A step whose changes may belong to others that ended while it ran is
skipped only if those are.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any


class Group:
    """The steps that are being computed under one step, or under none; `notes` is how the data was when one last ended."""

    def __init__(self, thread: int = 0) -> None:
        self._process, self._lock = os.getpid(), threading.RLock()
        self.thread = thread or threading.get_ident()  # of the step around them, or of the scope
        self.epochs = Epochs()
        self.notes: dict[str, Any] = {}
        self.generators: dict[str, Any] = {}  # how the random generators were when the first of them began
        self.pending: list[Any] = []  # changes that belong to the step that ends next
        self.changes: list[tuple[int, set[str]]] = []  # when one of them ended, and the data whose changes are its own
        self.entered = 0  # so many, so far
        self.maps = 0  # open ones: all that runs in them runs side by side, also if one happens to be alone
        self._running: set[object] = set()
        self._last: object = None

    def __bool__(self) -> bool:
        return bool(self._running)

    @property
    def lock(self) -> Any:
        """Of this process: in a forked child the parent's may be held by a thread that is not there."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.RLock()
        return self._lock

    @property
    def apart(self) -> bool:
        """Whether a call that is made here runs beside others, also if none happens to run now: in a map, a thread of a pool."""
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
        """Around steps that are to run side by side."""
        with self.lock:
            self.maps += 1
        try:
            yield
        finally:
            with self.lock:
                self.maps -= 1


class Member:
    """One of these steps. `overlapped`: another ran at the same time, which is certain only when it has ended."""

    def __init__(self, group: Group, *, alone: bool) -> None:
        self.group, self.overlapped = group, not alone
        self.ended = 0  # when its changes were looked at (see `Concurrent.stamp`), if it ran beside others
        self.began = len(group.changes)
        self.needs: list[int] = []  # when those ended that changes of this one may belong to

    def end(self, stamp: int, reached: set[str], changed: set[str]) -> None:
        """Its changes have been looked at, and are its own from now on; `reached` is the data that it can change."""
        self.ended = stamp
        self.needs = [ended for ended, names in self.group.changes[self.began :] if not names.isdisjoint(reached)]
        if changed:
            self.group.changes.append((stamp, changed))

    @property
    def shares(self) -> bool:
        """Whether another is running, or has been since this one began, or might have been."""
        return self.overlapped or self.group._last is not self

    def leave(self) -> None:
        self.group.leave(self)


class Concurrent:
    """Of all steps of a run: those that overlap with others, and the order in which they end."""

    def __init__(self) -> None:
        self.steps: set[str] = set()
        self.ended = 0  # when the last one ended that ran beside others, also in an earlier attempt if it was skipped
        self.made: set[int] = set()  # when those ended whose changes this scope has seen
        self.parted: set[str] = set()  # nodes that cannot be skipped: their changes belong to steps that are not

    def stamp(self) -> int:
        """The time, for a step that ends beside others: later than for all before it, whatever the clock says."""
        self.ended = max(time.time_ns(), self.ended + 1)
        self.made.add(self.ended)
        return self.ended

    def skipped(self, ended: int) -> None:
        """A step has been skipped that ended then."""
        self.ended = max(self.ended, ended)
        self.made.add(ended)


class Epochs:
    """The data that the steps under one step, or under none, read: what that step or the script made of it, and what they left."""

    def __init__(self) -> None:
        self._first: dict[str, bytes] = {}
        self._left: dict[str, bytes] = {}

    def first(self, data: Iterable[tuple[str, bytes]], *, busy: bool) -> list[bytes]:
        """What the script itself made of each; `busy`: steps are running, and may be changing it now."""
        found: list[bytes] = []
        for name, now in data:
            if name not in self._first or (not busy and self._left[name] != now):
                self._first[name] = self._left[name] = now
            found.append(self._first[name])
        return found

    def restart(self, data: Iterable[tuple[str, bytes]]) -> None:
        """The script has made this of it."""
        for name, now in data:
            self._first[name] = self._left[name] = now

    def leave(self, data: Iterable[tuple[str, bytes]]) -> None:
        """A step has changed some of it, or was skipped and has changed it again."""
        self._left.update(data)

    def known(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """All of it, for a loop that goes on in a later scope."""
        return dict(self._first), dict(self._left)

    def resume(self, known: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
        self._first.update(known[0])
        self._left.update(known[1])
