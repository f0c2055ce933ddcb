"""A run as users see it: the documented names and no others. The inside of an open run is in session.py."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import current, effects_once, records
from .ask import ask
from .block import Block
from .events import Event
from .history.explain import Explanation, why
from .history.summary import Summary, summarize
from .keys import log_of
from .loop import Every, loop
from .map import OnError, Results, call_with, map_items
from .records import Record, read_log
from .reuse import Inbox
from .session import Session
from .stores import Store
from .surroundings.rng import put_back
from .surroundings.state import State

if TYPE_CHECKING:
    from .history.checkpoints import Checkpoint, Checkpoints

T = TypeVar("T")
E = TypeVar("E", bound=Event)


class RunView:
    """What can be read from a run, whether or not it is open in this process."""

    id: str
    store: Store
    workflow: str | None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} in {self.store.url}>"

    def _record(self) -> Record:
        return records.read(self.store, self.id)

    def events(self, since: int = 0) -> Iterator[Event]:
        """The run's events in order, from all processes; only those after number `since`."""
        return read_log(self.store, self._record().log, since)

    def follow(self, since: int = 0, *, interval: float = 0.2) -> Iterator[Event]:
        """Yield events as they happen, from all processes, until no process has the run open."""
        log = self._record().log
        while True:
            over = self.status != "running"  # before reading, so that the last events are not missed
            for event in read_log(self.store, log, since):
                since = event.seq
                yield event
            if over:
                return
            time.sleep(interval)

    @property
    def status(self) -> str:
        """running, finished, failed, interrupted, paused, killed, or forked (not run yet)."""
        return records.status(self.store, self._record())

    @property
    def checkpoints(self) -> Checkpoints:
        """The run's valid checkpoints, oldest first, as of now."""
        from .history.checkpoints import checkpoints_of

        return checkpoints_of(self.store, self.id, self._record())

    def summary(self) -> Summary:
        """What happened in all scopes of the run so far."""
        record = self._record()
        return summarize(self.id, records.status(self.store, record), record.attempts, self.events(), self._unwritten())

    def why(self, node: str) -> Explanation:
        """Why a node, or the last node of a step, last ran: what had changed since an earlier checkpoint."""
        record = self._record()
        logs = [*(log_of(uid) for uid in record.forebears), record.log]
        return why(self.store, self.id, [event for log in logs for event in read_log(self.store, log)], node)

    def _unwritten(self) -> Iterable[Event]:
        """Events of open scopes that are only written when they end."""
        reported = Inbox(self.store, self._record().uid).take()
        return [event for reuse in reported.values() for event in reuse.events()]


class Run(RunView):
    """One resumable history. Made by `checkpoint_scope`.

    `state` is a mapping that steps may read and change; a resumed run rebuilds it step by step. `ran`, `reused` and
    `failed` count what happened in this scope, by step: in this process, and once the scope has ended, in its workers, too.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.id, self.store, self.workflow = session.id, session.store, session.workflow

    @property
    def state(self) -> State:
        return self._session.state

    @property
    def resumed(self) -> bool:
        """Whether the run existed before this scope was opened."""
        return self._session.resumed

    @property
    def ran(self) -> Counter[str]:
        return self._session.ran

    @property
    def reused(self) -> Counter[str]:
        return self._session.reused

    @property
    def failed(self) -> Counter[str]:
        return self._session.failed

    @property
    def seconds_saved(self) -> float:
        """The time that the steps reused in this scope took on the clock when they ran. Calls that overlapped count once."""
        return self._session.seconds_saved

    def on(self, kind: type[E], callback: Callable[[E], object]) -> None:
        """Call `callback` with every event of that kind in this scope (`Event`: every event)."""
        self._session.on(kind, callback)

    @overload
    def map(  # pyright: ignore[reportOverlappingOverload]
        self,
        step: Callable[..., Coroutine[Any, Any, Any]],
        items: Iterable[Any],
        /,
        *more: Iterable[Any],
        concurrency: int = 8,
        on_error: OnError = "raise",
        name: str | None = None,
        rate: str | None = None,
        **constants: Any,
    ) -> Coroutine[Any, Any, Results]: ...
    @overload
    def map(
        self,
        step: Callable[..., Any],
        items: Iterable[Any],
        /,
        *more: Iterable[Any],
        concurrency: int = 8,
        on_error: OnError = "raise",
        name: str | None = None,
        rate: str | None = None,
        **constants: Any,
    ) -> Results: ...
    def map(
        self,
        step: Callable[..., Any],
        items: Iterable[Any],
        /,
        *more: Iterable[Any],
        concurrency: int | None = None,
        on_error: OnError | None = None,
        name: str | None = None,
        rate: str | None = None,
        **constants: Any,
    ) -> Results | Coroutine[Any, Any, Results]:
        """Call `step(item)` for every item, several at a time, and return the results in the order of the items.

        With more iterables, the step gets one item of each: `run.map(step, xs, ys)`. Further keywords are passed to every
        call: `run.map(step, items, model="x")`; bind one that `map` has itself with `functools.partial`. At most
        `concurrency` calls (default: 8) run at a time. Await it if the step is a coroutine function. With
        `on_error="collect"`, a call that fails yields a `Failure` and the others continue; the next run tries it again.
        `name` is shown in the progress line. With a `rate` like "10/s" or "600/min", calls that really run begin at most so
        often, evenly spaced; recorded ones don't count.
        """
        return map_items(self._session, step, (items, *more), constants, concurrency, on_error, name, rate)

    @overload
    def starmap(  # pyright: ignore[reportOverlappingOverload]
        self,
        step: Callable[..., Coroutine[Any, Any, Any]],
        arguments: Iterable[Iterable[Any]],
        /,
        *,
        concurrency: int = 8,
        on_error: OnError = "raise",
        name: str | None = None,
        rate: str | None = None,
        **constants: Any,
    ) -> Coroutine[Any, Any, Results]: ...
    @overload
    def starmap(
        self,
        step: Callable[..., Any],
        arguments: Iterable[Iterable[Any]],
        /,
        *,
        concurrency: int = 8,
        on_error: OnError = "raise",
        name: str | None = None,
        rate: str | None = None,
        **constants: Any,
    ) -> Results: ...
    def starmap(
        self,
        step: Callable[..., Any],
        arguments: Iterable[Iterable[Any]],
        /,
        *,
        concurrency: int | None = None,
        on_error: OnError | None = None,
        name: str | None = None,
        rate: str | None = None,
        **constants: Any,
    ) -> Results | Coroutine[Any, Any, Results]:
        """Like `map`, with the arguments of each call as a tuple: `run.starmap(step, [(1, "a"), (2, "b")])`."""
        todo = [tuple(each) for each in arguments]
        return call_with(self._session, step, todo, constants, concurrency, on_error, name, rate)

    def loop(self, name: str, items: Iterable[T], *, every: Every = 1) -> Iterator[T]:
        """Iterate over items; a resumed run continues after the last snapshot.

        After `every` so many items, or so often ("5min"), a snapshot saves what the iterations changed: `state`, the random
        generators, the globals that the loop uses, and local variables. A resumed loop restores them.
        """
        return loop(self._session, name, items, every, sys._getframe(1))

    def block(self, name: str, /, *, ignore: Collection[str] = (), **values: Any) -> Block:
        """Make a piece of a script a step: `with run.block("clean") as b:`, with the body under `if b.todo:`.

        The body runs unless it is recorded, and its result is `b.value`. What it reads counts: its code and the code it
        reaches, and all variables, except those that `ignore` lists. `values` count as well; one with the name of a variable
        says what identifies it (`raw=raw.version`). Variables that the body assigns are restored when it is skipped; before
        Python 3.13 not those of a function, whose body returns them in `b.value`.
        """
        return Block(self._session, name, values, ignore, sys._getframe(1))

    @overload
    def ask(self, question: str, *, name: str = ..., choices: Sequence[T], prompt: bool = ...) -> T: ...
    @overload
    def ask(self, question: str, *, name: str = ..., type: type[T], prompt: bool = ...) -> T: ...
    @overload
    def ask(self, question: str, *, name: str = ..., prompt: bool = ...) -> str: ...
    def ask(
        self,
        question: str,
        *,
        name: str = "question",
        choices: Sequence[Any] | None = None,
        type: type[Any] = str,
        prompt: bool = False,
    ) -> Any:
        """Return a human's answer to a question; without one, the run ends here until it has been answered.

        `RunPaused` leaves the scope, and a script that does not catch it ends with exit code 75. `oncemore answer RUN NAME VALUE`
        or `History.answer` records the answer, and the script goes on when it is started again. It is one of `choices`, or of
        this `type`: str, int, float or bool. With `prompt`, the question is asked on the terminal, if there is one.
        """
        return ask(self._session, question, name, choices, type, prompt)

    def resolve(self, which: str, *, happened: bool, result: Any = None) -> None:
        """Say whether an interrupted step with effect="once" took effect.

        `which` is the node or key from `UnknownOutcome`, or the step's name if only one of its calls is unknown.
        """
        effects_once.resolve((self._session.entries, self._session.shared), which, happened, result)

    def checkpoint(
        self,
        name: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        next_node: str | None = None,
        pinned: bool = False,
    ) -> Checkpoint:
        """Save the run's state and generators under a name, with JSON-able `metadata`; `restore` goes back to them.

        A resumed run that gets here with the same state returns the existing checkpoint.
        """
        from .history.named import SeenCheckpoints

        session = self._session
        session.seen_checkpoints = session.seen_checkpoints or SeenCheckpoints()
        return session.seen_checkpoints.find_or_save(session, name, metadata or {}, next_node, pinned)

    def restore(self, which: str | None = None) -> Checkpoint:
        """Reset `state` and the random generators to a checkpoint: a name, id, node or step; by default the newest.

        Returns the checkpoint, with its `next_node`, for programs that jump instead of replaying. If its snapshot is damaged
        (with a warning), or if a large state was not saved after that step, the one before is restored and returned.
        """
        from .history.checkpoints import usable

        checkpoint, snapshot = usable(self.checkpoints, which)
        session, record = self._session, self._session.record
        overrides = {} if checkpoint.log == record.log else record.state
        session.applied.clear()
        session.state.replace({**snapshot["state"], **overrides})
        put_back(snapshot["generators"])
        session.snapshots.replaced()
        return checkpoint

    def rollback(self, *, to: str | None = None, before: str | None = None) -> None:
        """Roll back to the checkpoint `to`, or to just before `before`, ignoring everything after it.

        Each is a name, id, node or step. Nothing is removed: the log records it, and `History.undo_rollback` undoes it.
        """
        from .history.rollback import rollback

        session = self._session
        session.use(rollback(self.store, self.id, to=to, before=before, own=session.mark))
        session.seen_checkpoints, session.loops = None, {}
        session.applied.clear()

    def _unwritten(self) -> Iterable[Event]:
        return [*self._session.unwritten(), *super()._unwritten()]


Session.public = Run


def current_run() -> Run | None:
    """The run whose scope this thread or task is in, or None."""
    session = current.current_session()
    return None if session is None else session.run
