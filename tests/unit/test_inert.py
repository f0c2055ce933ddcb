"""What only coordinates or displays does not count; what has no identity otherwise is an error that helps."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import multiprocessing
import multiprocessing.pool
import re
import socket
import sqlite3
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncemore import FingerprintError, checkpoint_scope, checkpointed
from oncemore.identity.values import digest
from oncemore.identity.values.builtin_types import category
from oncemore.surroundings.references import walk_from

LOCKS: list[Callable[[], Any]] = [
    threading.Lock,
    threading.RLock,
    threading.Condition,
    threading.Event,
    threading.Semaphore,
    threading.BoundedSemaphore,
    lambda: threading.Barrier(1),
    multiprocessing.Lock,
    multiprocessing.RLock,
    multiprocessing.Event,
    multiprocessing.Condition,
    lambda: multiprocessing.Barrier(1),
    multiprocessing.BoundedSemaphore,
    asyncio.Lock,
    asyncio.Event,
    asyncio.Condition,
    asyncio.BoundedSemaphore,
]
OTHERS: list[Callable[[], Any]] = [
    lambda: concurrent.futures.ThreadPoolExecutor(1),
    lambda: concurrent.futures.ProcessPoolExecutor(1),
    lambda: logging.getLogger("any"),
    lambda: logging.LoggerAdapter(logging.getLogger("any"), {"a": 1}),
    logging.StreamHandler,
    lambda: contextvars.ContextVar("any"),
]


class Settings:
    def __init__(self, tool: object, limit: int) -> None:
        self.tool, self.limit = tool, limit


@pytest.mark.parametrize("make", LOCKS + OTHERS)
def test_it_does_not_count_as_an_argument_or_inside_one(make: Callable[[], Any]) -> None:
    one, other = make(), make()
    assert digest(one) == digest(other)
    assert digest([one, {"a": one}]) == digest([other, {"a": other}])
    assert digest(Settings(one, 1)) == digest(Settings(other, 1)) != digest(Settings(one, 2))
    assert digest(one) != digest(None)


def test_all_locks_are_the_same() -> None:
    assert len({digest(make()) for make in LOCKS}) == 1


def test_pools_and_proxies_of_locks_do_not_count() -> None:
    with multiprocessing.pool.ThreadPool(1) as one, multiprocessing.pool.ThreadPool(1) as other:
        assert digest(one) == digest(other)
    with multiprocessing.Manager() as manager:
        assert digest(manager.Lock()) == digest(manager.RLock()) == digest(manager.Event()) == digest(threading.Lock())
        assert digest(manager.Barrier(1)) == digest(manager.Condition()) == digest(manager.Semaphore())


def test_consoles_and_what_joblib_runs_do_not_count() -> None:
    console, progress, joblib = (pytest.importorskip(name) for name in ("rich.console", "rich.progress", "joblib"))
    assert digest(console.Console()) == digest(console.Console(width=20)) == digest(progress.Progress())
    assert digest(joblib.Parallel(2)) == digest(joblib.Parallel(4))
    assert walk_from(console.Console()).found == []
    assert len(walk_from(joblib.Parallel(2)).found) == 1


def test_a_progress_bar_counts_by_what_it_runs_over() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    assert digest(tqdm(total=3, disable=True)) == digest(tqdm(total=4, desc="x", disable=True))
    assert (
        digest(tqdm([1], disable=True)) == digest(tqdm([1], desc="x", disable=True)) != digest(tqdm([2], disable=True))
    )
    rows = [{"a": 1}]
    assert walk_from(tqdm(rows, disable=True)).found == [rows, rows[0]]


@pytest.mark.parametrize("make", LOCKS + OTHERS)
def test_it_is_not_looked_into(make: Callable[[], Any]) -> None:
    tool = make()
    assert walk_from([tool]).found[1:] == [tool]


def test_the_users_own_class_of_lock_counts_by_its_code() -> None:
    class Noisy(threading.Event):
        def set(self) -> None:
            print("set")

    assert category(Noisy) == "lock"
    assert digest(Noisy()) == digest(Noisy()) != digest(threading.Event())


def test_a_step_with_a_lock_a_logger_and_the_run_is_kept() -> None:
    ran: list[int] = []

    @checkpointed(ignore=["ran"])
    def step(n: int, lock: Any, log: logging.Logger, run: object, ran: list[int]) -> int:
        with lock:
            log.debug("%s", run)
            ran.append(n)
        return n

    for lock in (threading.Lock(), threading.RLock(), threading.Semaphore()):
        with checkpoint_scope("inert") as run:
            assert step(1, lock, logging.getLogger(str(len(ran))), run, ran) == 1
    assert ran == [1]


class Client:
    """Of a library: it says so below."""

    def __init__(self, url: str) -> None:
        self.url, self.pool = url, types.SimpleNamespace(lock=Inner())


class Inner:
    def __init__(self) -> None:
        self.mutex = threading.Lock()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes above as those of an installed package, whose folder is what tells them from the user's own."""
    module = types.ModuleType("somelibrary")
    module.__file__ = str(Path(pytest.__file__).parent.parent / "somelibrary.py")
    monkeypatch.setitem(__import__("sys").modules, "somelibrary", module)
    for kind in (Client, Inner):
        setattr(module, kind.__name__, kind)
        monkeypatch.setattr(kind, "__module__", "somelibrary")


@pytest.mark.usefixtures("library")
def test_a_librarys_object_that_holds_a_lock_has_no_identity_and_is_named_itself() -> None:
    with pytest.raises(FingerprintError) as caught:
        digest([Client("x")])
    assert (caught.value.kind, caught.value.path) == ("somelibrary.Client", "[0]")
    with pytest.raises(FingerprintError) as caught:
        digest(Settings(Client("x"), 1))
    assert (caught.value.kind, caught.value.path) == ("somelibrary.Client", ".tool")


# --- errors whose advice works ----------------------------------------------------------------------------------------


def numbers() -> Iterator[int]:
    yield 1


def refused(make: Callable[[], Any], **options: Any) -> str:
    @checkpointed(**options)
    def load(conn: object, n: int = 1) -> int:
        return n

    value = make()
    try:
        with checkpoint_scope("refused"):
            load(value)
            return ""
    except FingerprintError as error:
        return str(error)
    finally:
        getattr(value, "close", lambda: None)()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: sqlite3.connect(":memory:"), "sqlite3.Connection"),
        (socket.socket, "socket.socket"),
        (lambda: open(__file__), "_io.TextIOWrapper"),
        (numbers, "generator"),
        (lambda: iter({1}), "set_iterator"),
        (threading.Thread, "threading.Thread"),
    ],
)
def test_the_advice_for_an_argument_works_when_followed_literally(make: Callable[[], Any], kind: str) -> None:
    message = refused(make)
    assert re.match(rf".*load: argument `conn` is a {re.escape(kind)}, which has no stable identity\. ", message)
    assert "\n" not in message and len(message) < 320
    [ignore] = re.findall(r"ignore=\[.*?\]", message)
    [key] = re.findall(r"key=\{.*?\}", message)
    assert refused(make, **eval(f"dict({ignore})")) == ""
    assert refused(make, **eval(f"dict({key})")) == "" or "..." in key
    taught = re.findall(r"register_identity\((.*), \.\.\.\)", message)
    assert ("." not in kind or kind.startswith("_")) or taught == [kind]


@pytest.mark.parametrize(("make", "instead"), [(numbers, "Pass a list"), (lambda: open(__file__), "the file's path")])
def test_what_to_pass_instead_comes_first(make: Callable[[], Any], instead: str) -> None:
    assert instead in refused(make)


def test_a_figure_as_an_argument_is_a_short_error() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    for value in (figure, axes, axes.plot([1])[0]):
        message = refused(lambda value=value: value)
        assert f"argument `conn` is a {type(value).__module__}.{type(value).__qualname__}, which has no" in message
    assert refused(lambda: axes, ignore=["conn"]) == ""
    assert walk_from(axes).found == [axes]


def test_a_simulation_as_an_argument_is_a_short_error() -> None:
    simpy = pytest.importorskip("simpy")
    environment = simpy.Environment()
    for value in (
        environment,
        environment.event(),
        simpy.Resource(environment),
        environment.process(numbers_of(environment)),
    ):
        message = refused(lambda value=value: value)
        assert f"argument `conn` is a {type(value).__module__}.{type(value).__qualname__}, which has no" in message
        assert walk_from(value).found == [value]


def numbers_of(environment: Any) -> Iterator[Any]:
    yield environment.timeout(1)
