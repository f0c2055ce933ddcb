"""The scope that makes a run current."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Union

from blake3 import blake3

from . import current
from .current import current_session
from .dry_run import DryRun, new_run
from .errors import is_terminal, log
from .flight import Blocking
from .keyed import keyed
from .opening import default_store, disabled, ending
from .records import checked
from .run import Run
from .session import Session
from .stores import Store, open_store
from .surroundings.inputs import enter as enter_files
from .surroundings.inputs import leave as leave_files

if TYPE_CHECKING:
    from .retention import Policy

StoreLike = Union[str, "os.PathLike[str]", Store]


class checkpoint_scope:
    """Make a run current: `with checkpoint_scope("churn-nov") as run:`, or `async with`.

    Steps called inside leave checkpoints under this run id and find those of earlier scopes with the same id. Without
    a run id, one is derived from the script's path and arguments. `store` is a path, a URL or a `Store`
    (default: `ONCEMORE_STORE`, else `./.oncemore`). With `strict`, a damaged checkpoint is an `IntegrityError` instead
    of a warning and another run of its step. `state` gives initial values to `run.state`. With `inputs="observed"`, the
    content of every file that a step reads counts (see `checkpointed`).
    `retention` and `max_checkpoints` remove old checkpoints of the run as it goes; without them nothing is ever removed.
    On a terminal, lines on standard error say what is reused, what runs and why; not with `quiet`.

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
        retention: Policy | None = None,
        max_checkpoints: int | None = None,
        quiet: bool = False,
        inputs: Literal["observed"] | None = None,
    ) -> None:
        self._run_id = None if run_id is None else checked(run_id)
        if max_checkpoints is not None:
            from .retention import at_most

            limit = at_most(max_checkpoints)
            retention = limit if retention is None else retention & limit
        self._store, self._quiet = store, quiet
        self._options: dict[str, Any] = {"workflow": workflow, "strict": strict, "state": state, "retention": retention}
        self._options["inputs"] = inputs
        self._entered: list[tuple[Session, Token[Session | None]]] = []

    def _open(self) -> Session:
        run_id, origin = (self._run_id, "") if self._run_id else _derived()
        if disabled():  # nothing is kept, and what asks the run for its past finds it empty
            store = open_store(f"memory://disabled-{os.urandom(8).hex()}")
        else:
            store = default_store() if self._store is None else open_store(self._store)
            store = keyed(store, writing=current.rehearsal is None, strict=self._options["strict"])
        run = new_run(run_id, store, **self._options).open()
        heard = bool(os.environ.get("ONCEMORE_LOG")) or is_terminal(sys.stderr)
        if heard and not self._quiet and not isinstance(run, DryRun):
            from .report.terminal import open_report

            run.report = open_report(run, origin=origin, default=self._store is None)
        return run

    def _enter(self, run: Session) -> Run:
        run.group.thread = threading.get_ident()  # another thread may have opened it
        enter_files(run)
        current.opened[run] = current_session(), threading.get_ident()
        self._entered.append((run, current.enter(run)))
        return run.run

    def _exit(self) -> Session:
        # the latest that this thread or task entered: others may be inside the same object
        mine = [i for i, (run, _) in enumerate(self._entered) if run is current_session()]
        run, token = self._entered.pop(mine[-1] if mine else -1)
        current.opened.pop(run, None)
        current.leave(token)
        return run

    def __enter__(self) -> Run:
        return self._enter(self._open())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _leave(self._exit(), error)

    async def __aenter__(self) -> Run:
        opened: list[Session] = []
        try:
            await Blocking(lambda: opened.append(self._open())).later()
        except BaseException as error:  # cancelled: the run is open by now, and nobody else would leave it
            for run in opened:
                await Blocking(_leave, run, error).later()
            raise
        return self._enter(opened[0])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await Blocking(_leave, self._exit(), error).later()


def _leave(run: Session, error: BaseException | None) -> None:
    if run.pid != os.getpid():
        return  # a forked child leaves the block; the run is its parent's, which goes on
    try:
        try:
            leave_files(run)
        finally:
            run.leave(error)
    finally:
        if run.report is not None:
            run.report.close(ending(error), error)


def _derived() -> tuple[str, str]:
    """An id from the script's path and arguments, the same for the same command line in the same folder; and that line."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    here = os.getcwd()
    script = os.path.abspath(path) if path else os.path.join(here, "interactive")
    if os.path.commonpath([script, here]) == here:
        script = os.path.relpath(script, here)  # so that the project folder can be moved
    words = [script, *sys.argv[1:]] if path else [script]
    run_id = (
        f"{os.path.splitext(os.path.basename(script))[0][:60]}-{blake3(json.dumps(words).encode()).hexdigest()[:8]}"
    )
    log("run %s: the id is derived from %s", run_id, words)
    return run_id, " ".join(words)
