"""The scope that makes a run current, and how workers take part in one."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Union

from blake3 import blake3

from . import current, records
from .ask import PausedExit, instructions
from .codec.keyed import keyed
from .current import current_session, session_here
from .errors import RunPaused, StoreError, UsageError, is_terminal, log, logger, warn
from .flight import Blocking
from .identity import Packages
from .keys import changed, record_key
from .modules import about_to_open_run, loaded
from .records import Reference, checked, ending
from .run import Run
from .session import Session, shared_only
from .settings import disabled, report
from .stores import Store, default_folder, default_target, open_store
from .surroundings.inputs import enter as enter_files
from .surroundings.inputs import leave as leave_files
from .surroundings.snapshots import Snapshots
from .surroundings.state import State

if TYPE_CHECKING:
    from .retention import Policy

P = ParamSpec("P")
R = TypeVar("R")
StoreLike = Union[str, "os.PathLike[str]", Store]


class checkpoint_scope:
    """Make a run current: `with checkpoint_scope("churn-nov") as run:`, or `async with`.

    Steps called inside record checkpoints under this run id, and reuse those of earlier scopes with the same id. Without a
    run id, one is derived from the script's path and arguments. `store` is a path, a URL or a `Store` (default:
    `ONCEMORE_STORE`, else the folder `.oncemore` in the script's project). With `strict`, a damaged checkpoint raises
    `IntegrityError`; otherwise a warning names it and its step runs again. `state` gives initial values to `run.state`.
    With `inputs="observed"`, the content of every file that a step reads is part of its identity (see `checkpointed`).
    `retention` and `max_checkpoints` remove old checkpoints during the run; without them, nothing is ever removed. On a
    terminal, lines on standard error say what is reused, what runs and why, unless `quiet`. With `refresh=True`, every step
    and loop runs again, once in each scope, and its checkpoint is replaced; `refresh=["load", "train"]` does so for these
    steps. Steps with effect="once" are performed again only if they are named. With `packages="compare"`, the versions of
    the installed packages that a step's code uses are part of its identity, so that it runs again after an update (see
    `checkpointed`).

    As a decorator of a function or coroutine function, it opens a scope around each call; `current_run()` is the run.

    >>> from oncemore import checkpointed, checkpoint_scope
    >>> @checkpointed
    ... def double(x: int) -> int:
    ...     print("computing")
    ...     return 2 * x
    >>> with checkpoint_scope("demo", store="memory://demo"):
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
        retention: Policy | None = None,
        max_checkpoints: int | None = None,
        quiet: bool = False,
        inputs: Literal["observed"] | None = None,
        refresh: bool | Collection[str] = False,
        packages: Packages = "record",
    ) -> None:
        self._run_id = None if run_id is None else checked(run_id)
        if max_checkpoints is not None:
            from .retention import at_most

            limit = at_most(max_checkpoints)
            retention = limit if retention is None else retention & limit
        self._store, self._quiet = store, quiet
        self._options: dict[str, Any] = {"workflow": workflow, "strict": strict, "state": state, "retention": retention}
        self._options.update(inputs=inputs, refresh=refresh, packages=packages)
        self._entered: list[tuple[Session, Token[Session | None]]] = []

    def _open(self) -> Session:
        run_id, origin = (self._run_id, "") if self._run_id else _derived_id()
        asked = report()  # first of all: the word may be unknown
        if disabled():  # an empty store, so that reading the run's history works and finds nothing
            store = open_store(f"memory://disabled-{os.urandom(8).hex()}")
        else:
            store = open_store(default_target() if self._store is None else self._store)
            store = keyed(store, writing=current.rehearsal is None, strict=self._options["strict"], run_id=run_id)
        run = _new_session(run_id, store, **self._options).open()
        try:
            run.reject_unknown_refresh()
        except UsageError as error:
            _close(run, error)
            raise
        wanted = asked is not None or is_terminal(sys.stderr) or loaded("ipykernel") is not None
        if wanted and not self._quiet and current.rehearsal is None:
            from .report.progress import open_report

            found = self._store is None and default_target() == default_target(os.getcwd())  # by commands typed here
            run.report = open_report(run, asked, origin=origin, default=found)
        return run

    def _enter(self, run: Session) -> Run:
        run.group.thread = threading.get_ident()  # `async with` opens the run in another thread
        enter_files(run)
        current.opened[run] = current_session(), threading.get_ident()
        self._entered.append((run, current.enter(run)))
        return run.run

    def _exit(self) -> Session:
        # The last run that this thread or task entered: others may be inside the same scope object.
        mine = [i for i, (run, _) in enumerate(self._entered) if run is current_session()]
        run, token = self._entered.pop(mine[-1] if mine else -1)
        current.opened.pop(run, None)
        current.leave(token)
        return run

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Open the scope around each call of the function."""
        name: str = getattr(function, "__qualname__", repr(function))
        if isinstance(function, type) or not callable(function):
            raise UsageError(f"@checkpoint_scope is for functions, not for {name}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"@checkpoint_scope does not work on the generator {name}, whose body runs when items are taken; "
                "use `with checkpoint_scope(...)` around the loop that takes them"
            )
        target: Any = function
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_later(*args: Any, **kwargs: Any) -> Any:
                async with self:
                    return await target(*args, **kwargs)

            return call_later  # type: ignore[return-value]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return call

    def __enter__(self) -> Run:
        about_to_open_run()
        return self._enter(self._open())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _raise_pause(_close(self._exit(), error, default_store=self._store is None))

    async def __aenter__(self) -> Run:
        about_to_open_run()
        opened: list[Session] = []
        try:
            await Blocking(lambda: opened.append(self._open())).later()
        except BaseException as error:  # cancelled, but the run is open by now and must be closed
            for run in opened:
                await Blocking(_close, run, error).later()
            raise
        return self._enter(opened[0])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        close = functools.partial(_close, self._exit(), error, default_store=self._store is None)
        _raise_pause(await Blocking(close).later())


def _new_session(run_id: str, store: Store, **options: Any) -> Session:
    """A session for a run; during a dry run, one that writes nothing."""
    if current.rehearsal is not None:
        return current.rehearsal.new_run(run_id, store, **options)
    return Session(run_id, store, **options)


def _raise_pause(pause: RunPaused | None) -> None:
    """Raise a pause that leaves a scope, so that a script which does not catch it ends as by `sys.exit`."""
    if pause is not None:
        raise PausedExit(pause.run, pause.questions) from None


def _close(run: Session, error: BaseException | None, *, default_store: bool = False) -> RunPaused | None:
    """Close the scope that `error` leaves. Returns the pause to raise instead, if it is one."""
    pause = RunPaused.within(error)
    error = error if pause is None else pause
    if run.pid != os.getpid():
        return None  # a forked child leaves the block, but the run is its parent's
    try:
        try:
            leave_files(run)
        finally:
            run.leave(error)
    finally:
        if run.report is not None:
            run.report.close(ending(error), error)
        counts = (sum(counter.values()) for counter in (run.ran, run.reused, run.failed))
        how = "finished" if error is None else f"stopped by {type(error).__name__}"
        logger.info("run %s %s: %d steps ran, %d reused, %d failed", run.id, how, *counts)
    if pause is None or isinstance(pause, SystemExit):
        return None
    print(instructions(run.store, run.id, default_store=default_store), file=sys.stderr)
    return pause


def _derived_id() -> tuple[str, str]:
    """An id derived from the script's path and arguments, and the command line that they form."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    here = default_folder()
    script = os.path.realpath(path) if path else os.path.join(here, "interactive")
    if os.path.commonpath([script, here]) == here:
        script = os.path.relpath(script, here)  # so that the project's folder can be moved
    words = [script, *sys.argv[1:]] if path else [script]
    name = os.path.splitext(os.path.basename(script))[0][:60]
    run_id = f"{name}-{blake3(json.dumps(words).encode()).hexdigest()[:8]}"
    log("run %s: the id is derived from %s", run_id, words)
    return run_id, " ".join(words)


# -- runs without a scope of their own: workers of another process's scope, and shared results

_process = os.getpid()
_joined: dict[tuple[int, Any, str, str], Session] = {}  # by process, dry run, run id and store


def find_run(reference: Reference | None, *, share: bool, store: StoreLike | None = None) -> Session | None:
    """The run a call belongs to: the current one, the one the step was sent from, or, with `share`, the default store.

    The results of a step with a `store` of its own belong to no run.
    """
    if store is not None:
        return None if disabled() else _shared_results_if_readable(store)
    run = session_here()
    forked = run is not None and run.pid != os.getpid()
    if run is None or (reference is not None and forked):  # a run inherited through a fork is the parent's
        if (reference is None and not share) or disabled():
            return None  # when disabled, no store is opened: not even one that would be refused
        run = _shared_results_if_readable() if reference is None else _join(reference)
    elif forked:
        _follow(run)
    return None if run is None or run.disabled else run


def _join(reference: Reference) -> Session:
    """Take part, for one call, in a run that another process has opened.

    The call starts with the state that the run had when the step was sent. Its changes to the state are recorded with the
    checkpoint and visible to the steps that it calls, but not to other calls in this process or to the sender.
    """
    key = (os.getpid(), current.rehearsal, reference.id, reference.store)
    run = _joined.get(key)
    if run is None or run.attempt != reference.attempt:  # ordinals are valid within one scope
        run = _joined[key] = _open_joined(reference)
    _follow(run)
    call = copy.copy(run)
    call.state, call.snapshots = State(reference.state.load()), Snapshots()
    return call


def _open_joined(reference: Reference) -> Session:
    store = keyed(open_store(reference.store), writing=False, run_id=reference.id)
    if not reference.id:
        return _shared_only(store)
    options = {name: getattr(reference, name) for name in ("strict", "inputs", "refresh", "packages")}
    run = _new_session(reference.id, store, **options)
    run.attempt, run.distributed, run.opened = reference.attempt, bool(reference.attempt), reference.opened
    return run.open(announce=False)


def _follow(run: Session) -> None:
    """Catch up with a run that another process has open: drop cached entries if any were replaced or forgotten.

    A rollback changes the record, and with it the prefix of the entries.
    """
    record, own, shared = record_key(run.id), changed(run.entries.owner), changed("shared")
    try:
        now = run.store.get_many({record, own, shared} if run.id else {shared})
        data, before = now.get(record), run.followed
        if data is not None and data != before.get(record):
            run.use(records.parse(record, data))
    except StoreError:
        return  # reading an entry will report the problem
    run.followed = now
    for entries, mark in ((run.entries, own), (run.shared, shared)):
        if now.get(mark) != before.get(mark):
            entries.drop_cache()


def shared_results(target: StoreLike | None = None) -> Session:
    """The session for shared results in a store (default: the default store), without a history.

    Steps with `share=True` use it outside a scope; so do steps with a `store` of their own, and functions that
    `oncemore.compat` records at a place of their own.
    """
    store = open_store(default_target() if target is None else target)
    key = (os.getpid(), current.rehearsal, "", store.url)
    if key not in _joined:
        _joined[key] = _shared_only(keyed(store, writing=current.rehearsal is None))
    if _is_worker():
        _follow(_joined[key])
    return _joined[key]


def _shared_results_if_readable(target: StoreLike | None = None) -> Session | None:
    """The same for a call, which runs without the store if that can't be read."""
    try:
        return shared_results(target)
    except StoreError as error:
        warn(f"a memoized function runs, and its result is not saved: {error}")
        return None


def drop_shared_caches() -> None:
    """Shared results were removed by other means than a step's own: what this process has of them in memory is outdated."""
    for run in (*_joined.values(), *current.opened):
        run.shared.drop_cache()


def _is_worker() -> bool:
    """Whether another Python process has started this one to work for it."""
    multiprocessing = loaded("multiprocessing")
    return os.getpid() != _process or (multiprocessing is not None and multiprocessing.parent_process() is not None)


def _shared_only(store: Store) -> Session:
    return shared_only(_new_session("", store))
