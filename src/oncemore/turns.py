"""Single flight for generators: one runs and is recorded, the others wait and replay.

A generator stops at every item until its consumer asks for the next, and may never be asked again. So whoever has the
turn shows by marks (holds of the store, which go when their process dies) whether the generator runs or waits for its
consumer, and the mark for waiting is another one after every item. Those who see the same item waited for too long stop
waiting and run the generator themselves: twice is better than never.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from .errors import warn
from .flight import Blocking, Holds, Path, Pause

_POLL = 0.05
_PATIENCE = 10.0  # seconds that a consumer may take for one item while others wait
_RUNS = "runs"


def whoami(asynchronous: bool) -> object:
    """Who would wait for himself: the task; where waiting stops the whole thread, the thread."""
    if not asynchronous:
        return threading.get_ident()
    import asyncio

    return asyncio.current_task()


class Turn:
    """The right to run and record one node's generator; also of one who stopped waiting for it, who holds nothing."""

    def __init__(self, store: Holds, key: str, who: object) -> None:
        self._store, self._key = store, key
        self.who = who
        self._hold: Any = None
        self._word = ""
        self._mark: Any = None
        self._items = 0

    def take(self) -> bool:
        """Whether it is ours now."""
        if self._hold is None:
            self._hold = self._store.hold(self._key)
            if self._hold is not None:
                _turns[self._place] = self
                self.runs()
        return self._hold is not None

    def runs(self) -> None:
        """The generator is about to go on."""
        self._show(_RUNS)

    def waits(self) -> None:
        """The generator has yielded."""
        self._items += 1
        self._show(f"waits{self._items % 2}")

    def _show(self, word: str) -> None:
        if self._hold is None or word == self._word:
            return
        before, self._mark, self._word = self._mark, None, word
        while self._mark is None:  # one who looks holds it for a moment
            self._mark = self._store.hold(f"{self._key}~{word}")
        if before is not None:
            before.release()

    def seen(self) -> str:
        """What the one who has the turn shows."""
        for word in (_RUNS, "waits0", "waits1"):
            hold = self._store.hold(f"{self._key}~{word}")
            if hold is None:
                return word
            hold.release()
        return _RUNS  # between two marks

    @property
    def _place(self) -> tuple[str, str]:
        return self._store.url, self._key

    @property
    def own(self) -> bool:
        """Whether the one who has the turn is the one who asks."""
        other = _turns.get(self._place)
        return other is not None and other.who == self.who

    def release(self) -> None:
        """Let the next one have it."""
        mark, hold, self._mark, self._hold = self._mark, self._hold, None, None
        if hold is not None and _turns.get(self._place) is self:
            del _turns[self._place]
        for each in (mark, hold):
            if each is not None:
                each.release()


_turns: dict[tuple[str, str], Turn] = {}  # those of this process


os.register_at_fork(after_in_child=_turns.clear)  # a forked child has none of its parent's turns


def take_turn(turn: Turn, step: str) -> Path[None]:
    """Wait until the turn is ours, or would only come when we go on ourselves, or seems never to come."""
    seen, since, look = _RUNS, time.monotonic(), 0.0
    while not (yield Blocking(turn.take)) and not turn.own:
        now = time.monotonic()
        if now >= look:
            shows = yield Blocking(turn.seen)
            if shows != seen or shows == _RUNS:
                seen, since = shows, now
            elif now - since > _PATIENCE:
                warn(
                    f"step {step}: somebody is in the midst of its items and has not asked for the next in "
                    f"{now - since:.0f} s; it runs here, too"
                )
                return
            # not in step with a consumer who takes as long for every two items
            look = now + _PATIENCE / 20 * (1 + os.urandom(1)[0] / 256)
        yield Pause(_POLL)
