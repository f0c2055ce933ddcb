"""Runs and the scope that makes one current."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
import threading
import time
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextvars import ContextVar, Token
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, Union, overload
from urllib.parse import quote

from blake3 import blake3

from . import events, intents
from .shelf import Shelf, Kept, Node
from .codec import Decoded, seal, unseal
from .errors import CodecError, IntegrityError, StoreError, UsageError, warn
from .events import Event
from .loops import Every, OnError, Results, loop, map_items
from .secret import secret
from .stores import Bytes, Store, open_store
from .surroundings.state import State

T = TypeVar("T")

logger = logging.getLogger("oncemore")

_current: ContextVar[Run | None] = ContextVar("oncemore_run")  # not set in a thread that has entered no scope
_open: dict[Run, tuple[Run | None, int]] = {}  # the runs open in this process: the run around each, and its thread

StoreLike = Union[str, "os.PathLike[str]", Store]


def current_run() -> Run | None:
    """The run whose scope this thread or task is in, or None."""
    return _current.get(None)


def run_here() -> Run | None:
    """The run that a step called or pickled here belongs to.

    Threads of pools enter no scope. While one run is open in the process (or one inside the others), theirs is that.
    """
    try:
        return _current.get()
    except LookupError:
        pass
    opened = dict(_open)
    around = {outer for outer, _ in opened.values()}
    here = [run for run in opened if run not in around]
    if threading.get_ident() in {thread for _, thread in opened.values()} or len({run.reference for run in here}) != 1:
        return None
    return here[-1]


def entered(run: Run) -> Token[Run | None]:
    """Make `run` current for the body of a step; a step that is shared outside any scope stays outside."""
    return _current.set(run if run.id else current_run())


def left(token: Token[Run | None]) -> None:
    _current.reset(token)


def default_store() -> Store:
    """The store that `ONCEMORE_STORE` names, or `./.oncemore`."""
    return open_store(os.environ.get("ONCEMORE_STORE") or "./.oncemore")


class Reference(NamedTuple):
    """What another process needs to take part in a run."""

    id: str
    store: str
    strict: bool


class Run:
    """One resumable history. Made by `checkpoint_scope`.

    `state` is a mapping that steps may read and change; a resumed run rebuilds it step by step. `ran`, `reused` and
    `failed` count, by step, what happened in this scope.
    """

    def __init__(
        self,
        run_id: str,
        store: Store,
        *,
        workflow: str | None = None,
        strict: bool = False,
        state: Mapping[str, Any] = {},
    ) -> None:
        self.id, self.store, self.workflow, self.strict = run_id, store, workflow, strict
        self.pid = os.getpid()
        self.resumed = False
        self.disabled = os.environ.get("ONCEMORE_DISABLE", "") not in ("", "0")
        self.ran: Counter[str] = Counter()
        self.reused: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._saved: Counter[str] = Counter()
        self._refresh = set(map(str.strip, os.environ.get("ONCEMORE_REFRESH", "").split(",")))
        self._refreshed: set[str] = set()
        self.calls: dict[str, Ordinals] = {}  # of steps that count every call
        self.loops: dict[str, Any] = {}  # those begun in this scope, with what they know of the state; None for those completed
        self.state = State(state)
        self.shelf: Shelf

    def __repr__(self) -> str:
        return f"<Run {self.id!r} in {self.store.url}>"

    @property
    def reference(self) -> Reference:
        return Reference(self.id, self.store.url, self.strict)

    # -- opening and leaving

    def open(self, *, announce: bool = True) -> Run:
        """Find or make the run in its store. `announce` is off for workers that take part in another's scope."""
        if self.disabled:
            return self
        key = f"run/{quote(self.id, safe='')}"
        record = self._read(key)
        if record is None:
            record = {"uid": secrets.token_hex(8), "workflow": self.workflow, "created": time.time()}
            sealed = seal([json.dumps(record).encode()], key, secret())
            try:
                made = self.store.commit(put={key: sealed}, expect={key: None})
            except StoreError as error:
                warn(f"run {self.id}: nothing will be kept: {error}")
                made = True
            if not made:
                return self.open(announce=announce)  # another process was quicker: its record counts
        uid = record["uid"]
        self.shelf = Shelf(self.store, f"node/{uid}/", f"event/{uid}/")
        if announce:
            self.emit(events.RunResumed() if self.resumed else events.RunStarted(workflow=self.workflow))
        return self

    def _read(self, key: str) -> dict[str, Any] | None:
        """The run's record, if there is one that can be trusted. A damaged one is set aside, not lost."""
        data = None
        try:
            data = self.store.get(key)
            if data is None:
                return None
            record: dict[str, Any] = json.loads(bytes(unseal(data, key, secret())))
        except IntegrityError as error:
            if self.strict:
                raise
            self._set_aside(key, data, error)
            return None
        self.resumed = True
        return record

    def _set_aside(self, key: str, data: Bytes | None, error: IntegrityError) -> None:
        aside = f"damaged/{key}/{secrets.token_hex(4)}"
        if data is None:  # not even the store can read it
            warn(f"run {self.id} starts anew, its record is removed: {error}")
            self.store.commit(delete=[key])
        else:
            warn(f"run {self.id} starts anew, its record is set aside as {aside}: {error}")
            self.store.commit(put={aside: [data]}, delete=[key], expect={key: data})

    def leave(self, error: BaseException | None) -> None:
        """Record how the scope ended, and what was reused in it."""
        if self.disabled:
            return
        summary: list[Event] = [
            events.StepReused(step=step, times=times, seconds_saved=self._saved[step])
            for step, times in sorted(self.reused.items())
        ]
        self.emit(*summary, _ending(error))

    def emit(self, *facts: Event) -> None:
        """Write events; a store that cannot take them does not stop the program."""
        for fact in facts:
            logger.info("run %s: %s", self.id, fact)
        try:
            self.shelf.append(facts)
        except StoreError as error:
            warn(f"run {self.id}: {type(facts[-1]).__name__} could not be written: {error}")

    def events(self, since: int = 0) -> Iterator[Event]:
        """The run's events in order, those after number `since`."""
        return self.shelf.events(since)

    # -- what a script can do with a run

    @property
    def seconds_saved(self) -> float:
        """How long the steps that were reused in this scope took when they ran."""
        return sum(self._saved.values())

    @overload
    def map(
        self,
        step: Callable[[Any], Coroutine[Any, Any, Any]],
        items: Iterable[Any],
        *,
        concurrency: int = 8,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Coroutine[Any, Any, Results]: ...
    @overload
    def map(
        self,
        step: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        concurrency: int = 8,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Results: ...
    def map(
        self,
        step: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        concurrency: int = 8,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Results | Coroutine[Any, Any, Results]:
        """`step(item)` for every item, several at a time; the results in the order of the items.

        Await it if the step is a coroutine function. With `on_error="collect"` a call that fails leaves a `Failure` in its
        place and the others go on; the next run tries it again. On a terminal a progress line shows how far it is.
        """
        return map_items(self, step, items, concurrency, on_error, name)

    def loop(self, name: str, items: Iterable[T], *, every: Every = 1) -> Iterator[T]:
        """Iterate over items; a later run goes on after the last item that was kept.

        After every so many items, or every so often ("5min"), `state` and the random generators are kept; a resumed loop
        has them back as they were then.
        """
        return loop(self, name, items, every)

    def resolve(self, which: str, *, happened: bool, result: Any = None) -> None:
        """Say how a step with effect="once" ended that was cut off: by the node or the key that `UnknownOutcome` names."""
        intents.resolve(self.shelf, which, happened, result)

    # -- nodes

    def node(self, step: str, arguments: str, code: str, *, shared: bool) -> Node:
        return Node("shared/" if shared else self.shelf.home, step, arguments, code)

    def ordinals(self, step: str, arguments: str) -> Ordinals:
        """Which of the identical calls of a step are under way or done in this scope."""
        return self.calls.setdefault(f"{step}/{arguments}", Ordinals())

    def wants_fresh(self, node: Node) -> bool:
        """Whether `ONCEMORE_REFRESH` asks for this node to run again; once in a scope."""
        return node.step in self._refresh and node.key not in self._refreshed

    def count_reuse(self, node: Node, entry: Decoded) -> None:
        self.reused[node.step] += 1
        self._saved[node.step] += entry.meta.get("seconds", 0)

    def record(self, node: Node, kept: Kept, *, reason: str, seconds: float) -> None:
        """Keep the result of a completed node. What cannot be kept is told, and the program goes on."""
        self._refreshed.add(node.key)
        kept.meta.update(step=node.step, time=time.time(), seconds=seconds, reason=reason)
        token = _current.set(None)  # a step inside the value is kept as itself, not as part of this run
        try:
            entry = self.shelf.encode(node, kept)
            fact = events.StepCompleted(
                step=node.step,
                node=node.key,
                reason=reason,
                seconds=seconds,
                raw_bytes=entry.raw_bytes,
                stored_bytes=entry.stored_bytes,
            )
            self.shelf.write(node, entry, kept, fact)
            self.ran[node.step] += 1
            logger.info("run %s: %s", self.id, fact)
        except CodecError as error:
            self.not_kept(node, f"{error}. It will run again next time", seconds=seconds)
        except StoreError as error:
            self.not_kept(node, f"{error}", seconds=seconds)
        finally:
            _current.reset(token)

    def not_kept(self, node: Node, why: str, *, seconds: float) -> None:
        """Say that a step's result is returned but will not be there next time."""
        self.ran[node.step] += 1
        warn(f"step {node.step}: the result was not kept: {why}")
        try:
            self.shelf.append([events.StepNotKept(step=node.step, node=node.key, reason=why, seconds=seconds)])
        except StoreError:
            pass  # the same store that could not take the result; the warning above said so

    def record_failure(self, node: Node, error: Exception, *, reason: str, seconds: float) -> None:
        """Keep what went wrong; the step runs again next time."""
        self.failed[node.step] += 1
        self.emit(
            events.StepFailed(
                step=node.step,
                node=node.key,
                reason=reason,
                seconds=seconds,
                error=f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(type(error), error, error.__traceback__)),
            )
        )


class Ordinals:
    """Numbers for identical calls. A failed call gives its number back, so that a retry is the same call."""

    def __init__(self, first: int = 0, free: Iterable[int] = ()) -> None:
        self._numbers, self._next, self._free = count(first), first, list(free)

    def __reduce__(self) -> tuple[Any, ...]:  # kept with the snapshots of loops
        return Ordinals, (self._next, list(self._free))

    def peek(self) -> int:
        return min(self._free, default=self._next)

    def take(self) -> int:
        # Threads take numbers at once. No lock, which a fork could copy while held: each of these is one operation.
        try:
            return heappop(self._free)
        except IndexError:
            number = next(self._numbers)
            self._next = max(self._next, number + 1)
            return number

    def give_back(self, number: int) -> None:
        heappush(self._free, number)


def _ending(error: BaseException | None) -> Event:
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return events.RunFinished()
    if isinstance(error, Exception) and not isinstance(error, asyncio.CancelledError):
        return events.RunFailed(error=f"{type(error).__name__}: {error}")
    return events.RunInterrupted()


class checkpoint_scope:
    """Make a run current: `with checkpoint_scope("churn-nov") as run:`, or `async with`.

    Steps called inside leave checkpoints under this run id and find those of earlier scopes with the same id. Without
    a run id, one is derived from the script's path and arguments, and printed. `store` is a path, a URL or a `Store`
    (default: `ONCEMORE_STORE`, else `./.oncemore`). With `strict`, a damaged checkpoint is an `IntegrityError` instead
    of a warning and another run of its step. `state` gives initial values to `run.state`.

    >>> from oncemore import checkpointed, checkpoint_scope
    >>> @checkpointed
    ... def double(x: int) -> int:
    ...     print("computing")
    ...     return 2 * x
    >>> with checkpoint_scope("demo", store="memory://doctest"):
    ...     double(4), double(4)
    computing
    (8, 8)
    """

    def __init__(
        self,
        run_id: str | None = None,
        *,
        store: StoreLike | None = None,
        workflow: str | None = None,
        strict: bool = False,
        state: Mapping[str, Any] = {},
    ) -> None:
        self._run_id = None if run_id is None else _checked(run_id)
        self._store, self._options = store, {"workflow": workflow, "strict": strict, "state": state}
        self._entered: list[tuple[Run, Token[Run | None]]] = []

    def _open(self) -> Run:
        run_id = self._run_id or _derived()
        store = default_store() if self._store is None else open_store(self._store)
        return Run(run_id, store, **self._options).open()

    def _enter(self, run: Run) -> Run:
        _open[run] = current_run(), threading.get_ident()
        self._entered.append((run, _current.set(run)))
        return run

    def _exit(self) -> Run:
        # the latest that this thread or task entered: others may be inside the same object
        mine = [i for i, (run, _) in enumerate(self._entered) if run is current_run()]
        run, token = self._entered.pop(mine[-1] if mine else -1)
        _open.pop(run, None)
        _current.reset(token)
        return run

    def __enter__(self) -> Run:
        return self._enter(self._open())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._exit().leave(error)

    async def __aenter__(self) -> Run:
        return self._enter(await asyncio.to_thread(self._open))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await asyncio.to_thread(self._exit().leave, error)


def _checked(run_id: str) -> str:
    if not isinstance(run_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a run id is a string, not {run_id!r}")
    if not run_id or len(run_id) > 200:
        raise UsageError(f"a run id has 1 to 200 characters, not {len(run_id)}")
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in run_id):
        raise UsageError(f"the run id {run_id!r} has a character that cannot be printed")
    return run_id


def _derived() -> str:
    """An id from the script's path and arguments, the same for the same command line in the same folder."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    here = os.getcwd()
    script = os.path.abspath(path) if path else os.path.join(here, "interactive")
    if Path(script).is_relative_to(here):
        script = os.path.relpath(script, here)  # so that the project folder can be moved
    words = [script, *sys.argv[1:]] if path else [script]
    run_id = f"{Path(script).stem[:60]}-{blake3(json.dumps(words).encode()).hexdigest()[:8]}"
    print(f"oncemore: run {run_id} (from {' '.join(words)})", file=sys.stderr)
    return run_id


_joined: dict[tuple[int, Reference], Run] = {}


def join(reference: Reference) -> Run:
    """Take part in a run that another process has opened."""
    place = (os.getpid(), reference)
    if place not in _joined:
        _joined[place] = Run(reference.id, open_store(reference.store), strict=reference.strict).open(announce=False)
    return _joined[place]


def outside() -> Run:
    """Where shared steps keep their results when they are called outside a scope: no history, only results."""
    store = default_store()
    place = (os.getpid(), Reference("", store.url, False))
    if place not in _joined:
        run = Run("", store)
        run.shelf = Shelf(store, "shared/", None)
        _joined[place] = run
    return _joined[place]
