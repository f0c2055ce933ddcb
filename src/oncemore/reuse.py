"""What was reused in a scope, how much time that saved, and how workers report it to the scope that they work for.

The time saved is what the reused calls took on the clock, when they ran: calls that overlapped, or were called by one another,
do not count twice.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from .codec import Decoded, encode
from .errors import StoreError, log
from .events import StepReused
from .keys import reused_of
from .settings import secret
from .stores import Bytes, Store

_PROMPT = 100  # hits of a worker that are reported one by one
_GATHERED = 0.25  # seconds for which it then gathers hits before it reports them


class Reuse:
    """How often each step was reused, and when those calls had run."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self._spans: defaultdict[str, array[float]] = defaultdict(
            lambda: array("d")
        )  # by step: start, end, start, end ...

    def __bool__(self) -> bool:
        return bool(self.times)

    def add(self, step: str, ended: float, seconds: float, times: int = 1) -> None:
        """A call was reused that had taken `seconds` and had `ended` then."""
        self.times[step] += times
        self._spans[step].extend((ended - seconds, ended))

    def update(self, other: Reuse) -> None:
        self.times.update(other.times)
        for step, spans in list(other._spans.items()):
            self._spans[step].extend(spans)

    def only(self, step: str) -> Reuse:
        """When the calls of this step had run."""
        found = Reuse()
        found._spans[step] = self._spans[step]
        return found

    def seconds(self, step: str | None = None) -> float:
        """The time saved by reusing this step, or by all of them together."""
        steps = list(self._spans) if step is None else [step]
        return sum(_covered((each, self._spans[each]) for each in steps if each in self._spans).values())

    def events(self) -> list[StepReused]:
        """One event per step."""
        own = _covered(self._spans.items())
        found: list[StepReused] = []
        for step, times in sorted(self.times.items()):
            saved = self.seconds(step)
            found.append(
                StepReused(step=step, times=times, seconds_saved=saved, elsewhere=round(saved - own.get(step, 0.0), 6))
            )
        return found

    def write(self, store: Store, prefix: str) -> None:
        """Write it under a new key."""
        key = prefix + os.urandom(8).hex()
        value = dict(self.times), {step: spans.tobytes() for step, spans in self._spans.items()}
        store.commit(put={key: encode(value, {}, key=key, secret=secret()).frames})

    def read(self, key: str, data: Bytes) -> None:
        """Add what was written under this key."""
        times, spans = Decoded(data, key=key, secret=secret()).load()
        self.times.update(times)
        for step, stretch in spans.items():
            self._spans[step].frombytes(stretch)


def _covered(steps: Iterable[tuple[str, array[float]]]) -> dict[str, float]:
    """How much of the clock the calls of each step cover. What several steps cover counts for the one that began first."""
    spans = sorted((start, end, step) for step, each in steps for start, end in zip(each[::2], each[1::2]))
    covered, reached = dict[str, float](), 0.0
    for start, end, step in spans:
        covered[step] = covered.get(step, 0.0) + max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


# -- from workers to the scope that they work for


class Outbox:
    """Reports what this worker reuses, by way of the store.

    A worker may be terminated right after its last result, so its first hits are reported at once. The rest are gathered, as
    many hits must not cost a commit each.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix, self.process = store, prefix, os.getpid()
        self._lock, self._gathered, self._sent = threading.Lock(), Reuse(), 0
        self._timer: threading.Timer | None = None

    def add(self, step: str, ended: float, seconds: float) -> None:
        with self._lock:
            self._gathered.add(step, ended, seconds)
            if self._timer is not None:
                return
            if self._sent < _PROMPT:
                self._send()
                return
            self._timer = threading.Timer(_GATHERED, self._flush)
            try:
                self._timer.start()  # no daemon: a process that ends in the regular way waits for it
            except RuntimeError:  # it is ending already
                self._timer = None
                self._send()

    def _flush(self) -> None:
        with self._lock:
            self._timer = None
            self._send()

    def _send(self) -> None:
        try:
            self._gathered.write(self._store, self._prefix)
            self._gathered = Reuse()
        except StoreError as error:
            log("could not write what a worker reused, trying again at the next hit: %s", error)
        self._sent += 1


class Inbox:
    """What the workers of one run have reported."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store, self._owner = store, owner
        self._seen: set[str] = set()

    def take(self, wanted: Callable[[str], bool] = lambda scope: True) -> dict[str, Reuse]:
        """What has been reported since the last call, by the mark of the scope; only for `wanted` scopes."""
        prefix, found = reused_of(self._owner), defaultdict[str, Reuse](Reuse)
        for key, data in list(self._store.scan(prefix)):
            scope = key[len(prefix) :].partition("/")[0]
            if data is not None and key not in self._seen and wanted(scope):
                self._seen.add(key)
                found[scope].read(key, data)
        return found

    @property
    def keys(self) -> list[str]:
        """The keys of all that `take` has returned, to be deleted once it is recorded otherwise."""
        return sorted(self._seen)
