"""Runs a script in this process as `python script.py` would, as a dry run, and restores the state of the process afterwards."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import runpy
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import thread as pools
from typing import Any, NamedTuple

from .. import current
from ..errors import UsageError
from ..stores import Store
from .dry_run import LOOK, DryRun, Look, StepPolicy, Stop, WouldRun

_NOT_THE_SCRIPTS = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), runpy.__file__, "<frozen runpy>")


class Rehearsal(NamedTuple):
    """The result of a dry run of a script.

    `elsewhere` lists the steps reused in processes that the script started, with when and how long they ran; `stop` is the first
    step that would have run; `end` says why the script ended early, None if it finished or did all that was needed; `failed` is
    whether that was its own doing.
    """

    runs: list[DryRun]
    elsewhere: list[list[Any]]
    stop: WouldRun | None
    end: str | None
    failed: bool

    def check(self, run_id: str, script: str, store: Store | None = None) -> None:
        """Raise UsageError unless the script opens this run (in this store)."""
        urls = [run.store.url for run in self.runs if run.id == run_id]
        if not urls:
            runs = ", ".join(sorted({run.id for run in self.runs if run.id})) or "none"
            why = f" ({self.end})" if self.end else ""
            raise UsageError(f"{script} does not open the run {run_id}; it opens: {runs}{why}")
        if store is not None and store.url not in urls:
            raise UsageError(f"{script} opens the run {run_id} in another store: {urls[0]}, not {store.url}")


def rehearse(script: str, arguments: Sequence[str], policy: StepPolicy) -> Rehearsal:
    """Run the script as a dry run. With "-m" as script, the first argument is the name of a module."""
    with tempfile.NamedTemporaryFile(prefix="oncemore-") as notes:
        look, threads = Look(notes.name, policy, os.getpid()), threading.enumerate()
        with _output_to_stderr(), _activated(look), _as_main(script, arguments) as main:
            end = _run(main)
            _join_threads_except(threads)
        stop = next((WouldRun(*fields) for fields in look.noted("would run")), None)
        over = next(look.noted("enough"), None)
        failed = end is not None and stop is None and over is None
        if stop is not None:
            end = str(stop)
        elif over is not None:
            end = over[0] or None
        return Rehearsal(look.runs, list(look.noted("reused")), stop, end, failed)


def _run(main: Callable[[], object]) -> str | None:
    """Run the script and return how it failed, None if it did not. Being stopped is noted elsewhere, even if it is caught.

    The traceback of a failure goes to standard error.
    """
    try:
        main()
    except KeyboardInterrupt:
        raise
    except SystemExit as end:
        return f"the script ended with exit code {end.code}" if end.code else None
    except BaseException as error:  # with tasks, an exception group
        if not _holds_stop(error):
            _print_traceback(error)
        return f"the script failed: {type(error).__name__}: {error}"
    return None


def _holds_stop(error: BaseException) -> bool:
    """Whether the dry run ended the script, also by way of a task."""
    inside: Sequence[BaseException] = getattr(error, "exceptions", ())
    return isinstance(error, Stop) or any(map(_holds_stop, inside))


def _print_traceback(error: BaseException) -> None:
    """Print the traceback as Python would, without the frames that run the script."""
    found = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = found
    while each is not None:
        each.stack[:] = [frame for frame in each.stack if not frame.filename.startswith(_NOT_THE_SCRIPTS)]
        each = each.__cause__ or each.__context__
    print("".join(found.format()), end="", file=sys.stderr)


def _join_threads_except(known: list[threading.Thread]) -> None:
    """Join the script's threads, as Python does at exit, because they may still reach a step. Idle pool threads never end."""
    for thread in threading.enumerate():
        if not (thread.daemon or thread in known or thread in pools._threads_queues):
            thread.join()


@contextlib.contextmanager
def _as_main(script: str, arguments: Sequence[str]) -> Generator[Callable[[], object], None, None]:
    """Yield a function that runs the script. Restores arguments, search path, directory and environment afterwards."""
    argv, path, folder, environment = sys.argv, sys.path[:], os.getcwd(), dict(os.environ)
    os.environ.pop("ONCEMORE_DISABLE", None)
    try:
        sys.path.insert(0, folder if script == "-m" else os.path.dirname(os.path.realpath(script)))
        if script == "-m":
            name, *arguments = arguments
            found = _is_module(name)
        else:
            name, found = os.path.abspath(script), os.path.isfile(script)
        if not found:
            raise UsageError(f"there is no {f'module {name}' if script == '-m' else f'script {script}'} in {folder}")
        sys.argv = [script, *arguments]
        run = functools.partial(runpy.run_module, alter_sys=True) if script == "-m" else runpy.run_path
        yield lambda: run(name, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its package does not exist, either
        return False


@contextlib.contextmanager
def _activated(look: Look) -> Generator[None, None, None]:
    """Turn on the dry run, in this process and those that it starts."""
    before, hook = current.rehearsal, threading.excepthook

    def print_failure(failed: threading.ExceptHookArgs) -> None:
        if not issubclass(failed.exc_type, Stop):  # internal to dry runs
            hook(failed)

    current.rehearsal, threading.excepthook, os.environ[LOOK] = look, print_failure, look.notes
    current.engage(look)
    try:
        yield
    finally:
        current.rehearsal, threading.excepthook = before, hook
        os.environ.pop(LOOK, None)


@contextlib.contextmanager
def _output_to_stderr() -> Generator[None, None, None]:
    """Redirect output of the script and its processes to standard error; standard output is for the results."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(out, 1)
        os.close(out)
