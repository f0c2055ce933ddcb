"""The others, each as a small adapter: how it is opened, and how it makes the calls of a run.

`run(number, arguments)` makes a call with each of these arguments in the run of that number, and gives the seconds they took.
The first time they are misses, the next time hits. Peers that know no runs get other arguments in other runs. What a peer
opens before and closes after is not timed. Beside each stands what its number is worth: what a stored result survives, and
which of our promises it does not make.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from .harness import OURS, Bench, Contender, Seconds, bodies, body, clock

GET, JOBLIB, MEMOIZE = "diskcache get/set", "joblib.Memory", "diskcache.memoize"
PROCESS, POWER = "process", "power"  # what a kept result survives: the death of its process, that of the machine


class Peer:
    """A contender in tasks that make calls."""

    name = ""
    package = ""  # the distribution
    needs: tuple[str, ...] = ()  # modules to import
    durable = PROCESS
    lacks = ""
    slow = 1  # a peer that takes seconds for what takes others milliseconds makes so many times fewer calls
    limit = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        """Before every round: as a process that has imported everything and read nothing yet."""

    def close(self) -> None:
        """After every round."""

    def run(self, number: int, arguments: Sequence[Any]) -> Seconds:
        raise NotImplementedError

    def timed(self, function: Callable[[Any], object], arguments: Iterable[Any]) -> Seconds:
        start = clock()
        for argument in arguments:
            function(argument)
        return clock() - start


class Oncemore(Peer):
    name, package, needs = OURS, "oncemore", ("oncemore",)
    opening = False  # whether the opening and the end of the scope are timed, too

    def open(self) -> None:
        from oncemore import checkpointed

        self.step = checkpointed(body)
        self.run(-1, range(2))  # the store is open and the code known, as in a script that is under way

    def run(self, number: int, arguments: Sequence[Any]) -> Seconds:
        from oncemore import checkpoint_scope

        start = clock()
        with checkpoint_scope(f"run {number}", store=self.folder):
            inside = self.timed(self.step, arguments)
        return clock() - start if self.opening else inside


class OncemoreWithScope(Oncemore):
    opening = True


class RawDiskcache(Peer):
    name, package, needs, limit = GET, "diskcache", ("diskcache",), True
    lacks = "bare values under bare keys: no functions, no identity"

    def open(self) -> None:
        import diskcache

        self.cache = diskcache.Cache(str(self.folder), eviction_policy="none")
        self.cache.get("")

    def close(self) -> None:
        self.cache.close()

    def run(self, number: int, arguments: Sequence[Any]) -> Seconds:
        keys = [f"{number}/{at}" for at in range(len(arguments))]
        if keys[0] in self.cache:
            return self.timed(self.cache.get, keys)
        put = self.cache.set
        return self.timed(lambda key: put(key, 1), keys)


class RawSqlite(Peer):
    name, limit = "sqlite3 select/insert", True
    lacks = "bare values under bare keys: no functions, no identity"

    def open(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.connection = sqlite3.connect(self.folder / "raw.db", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=NORMAL")
        self.connection.execute("CREATE TABLE IF NOT EXISTS entry (key TEXT PRIMARY KEY, value BLOB)")

    def close(self) -> None:
        self.connection.close()

    def run(self, number: int, arguments: Sequence[Any]) -> Seconds:
        execute, value = self.connection.execute, pickle.dumps(1)
        keys = [f"{number}/{at}" for at in range(len(arguments))]
        if execute("SELECT 1 FROM entry WHERE key = ?", (keys[0],)).fetchone():
            return self.timed(
                lambda key: pickle.loads(execute("SELECT value FROM entry WHERE key = ?", (key,)).fetchone()[0]), keys
            )
        return self.timed(lambda key: execute("INSERT INTO entry VALUES (?, ?)", (key, value)), keys)


class Joblib(Peer):
    name, package, needs, slow = JOBLIB, "joblib", ("joblib",), 5
    lacks = "code of helpers, single flight, integrity, effects"

    def open(self) -> None:
        import joblib

        self.function = joblib.Memory(self.folder, verbose=0).cache(body)

    def run(self, number: int, arguments: Sequence[Any]) -> Seconds:
        return self.timed(self.function, arguments)


class DiskcacheMemoize(Joblib):
    name, package, needs, slow = MEMOIZE, "diskcache", ("diskcache",), 1
    lacks = "code, argument normalisation, single flight, integrity, effects; evicts beyond 1 GiB"

    def open(self) -> None:
        import diskcache

        self.cache = diskcache.Cache(str(self.folder))
        self.function = self.cache.memoize()(body)

    def close(self) -> None:
        self.cache.close()


class Cachier(Joblib):
    name, package, needs, slow = "cachier", "cachier", ("cachier",), 10
    lacks = "code, single flight between machines, integrity, effects"

    def open(self) -> None:
        import cachier

        self.function = cachier.cachier(cache_dir=str(self.folder), backend="pickle", separate_files=True)(body)


class Checkpointer(Joblib):
    name, package, needs = "checkpointer", "checkpointer", ("checkpointer",)
    lacks = "single flight between processes, integrity, effects"

    def open(self) -> None:
        import checkpointer

        self.function = checkpointer.Checkpointer(directory=self.folder, verbosity=0)(body)


class Charmonium(Joblib):
    name, package, needs, slow = "charmonium.cache", "charmonium.cache", ("charmonium.cache",), 20
    lacks = "single flight, integrity, effects; evicts beyond its size"

    def open(self) -> None:
        from charmonium.cache import DirObjStore, MemoizedGroup, memoize

        self.folder.mkdir(exist_ok=True)
        store = DirObjStore(str(self.folder))
        group = MemoizedGroup(obj_store=store, size="1GiB", fine_grain_persistence=True)  # else it writes at exit
        self.function = memoize(group=group)(body)


class Mandala(Peer):
    name, package, needs, slow = "mandala", "pymandala", ("mandala.imports",), 50
    durable = POWER
    lacks = "code (as used here), single flight, integrity, effects; returns references"

    def open(self) -> None:
        from mandala.imports import Storage, op

        self.folder.mkdir(exist_ok=True)
        self.storage, self.function = Storage(db_path=str(self.folder / "mandala.db")), op(body)

    def run(self, number: int, arguments: Sequence[Any]) -> Seconds:
        start = clock()
        with self.storage:
            self.timed(self.function, arguments)
        return clock() - start  # it writes when the block ends


class LangGraph(Peer):
    name, package, needs = "LangGraph SqliteSaver", "langgraph-checkpoint-sqlite", ("langgraph.checkpoint.sqlite",)
    durable, slow = POWER, 40
    lacks = "code, arguments (by position), single flight, integrity, effects"

    def open(self) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.func import entrypoint, task

        self.folder.mkdir(exist_ok=True)
        self.connection = sqlite3.connect(self.folder / "langgraph.db", check_same_thread=False)
        call = task(body)

        @entrypoint(checkpointer=SqliteSaver(self.connection))
        def flow(arguments: Sequence[Any]) -> None:
            start = clock()
            for argument in arguments:
                call(argument).result()
            self.took = clock() - start
            raise InterruptedError  # cut off after its last task: so it can be resumed

        self.flow = flow

    def close(self) -> None:
        self.connection.close()

    def run(self, number: int, arguments: Sequence[Any]) -> Seconds:
        config: Any = {"configurable": {"thread_id": str(number)}}
        begun = self.flow.get_state(config).created_at is not None
        try:
            self.flow.invoke(None if begun else list(arguments), config)
        except InterruptedError:
            pass
        return self.took


class Dbos(Peer):
    name, package, needs, slow = "DBOS on SQLite", "dbos", ("dbos",), 20
    durable = POWER
    lacks = "code (a version of the whole program), arguments (by position), integrity, effects"

    def __init__(self, folder: Path) -> None:
        from dbos import DBOS

        super().__init__(folder)
        step = DBOS.step()(body)

        @DBOS.workflow()
        def flow(arguments: Sequence[Any]) -> None:
            start = clock()
            for argument in arguments:
                step(argument)
            self.took = clock() - start

        self.flow = flow

    def open(self) -> None:
        from dbos import DBOS

        self.folder.mkdir(exist_ok=True)
        url = f"sqlite:///{self.folder / 'dbos.db'}"
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL", "run_admin_server": False})
        DBOS.launch()

    def close(self) -> None:
        from dbos import DBOS

        DBOS.destroy()  # its threads would take time from the others

    def run(self, number: int, arguments: Sequence[Any]) -> Seconds:
        from dbos import DBOS, SetWorkflowID

        if DBOS.get_workflow_status(f"run {number}") is None:
            with SetWorkflowID(f"run {number}"):
                self.flow(list(arguments))
        else:  # replays all steps; the copy that it makes of them is not timed
            DBOS.fork_workflow(f"run {number}", len(arguments) + 1).get_result()
        return self.took


LIMITS: list[type[Peer]] = [RawDiskcache, RawSqlite]
MEMOIZERS: list[type[Peer]] = [Joblib, DiskcacheMemoize, Cachier, Checkpointer, Charmonium, Mandala]
FLOWS: list[type[Peer]] = [LangGraph, Dbos]
ALL = [Oncemore, *LIMITS, *MEMOIZERS, *FLOWS]


def ready(peers: Iterable[type[Peer]], folder: Path) -> tuple[list[Peer], dict[str, str]]:
    """Those peers that were seen to skip the body of a call made before; the others by name, with the reason."""
    good: list[Peer] = []
    absent: dict[str, str] = {}
    for kind in peers:
        try:
            for module in kind.needs:
                importlib.import_module(module)
            peer = kind(folder / kind.package.replace(".", "-") / kind.__name__)
            peer.folder.parent.mkdir(parents=True, exist_ok=True)
            _verify(peer)
            good.append(peer)
        except Exception as error:
            absent[kind.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return good, absent


def _verify(peer: Peer) -> None:
    """A number counts only if the first call runs the body and the second does not."""
    arguments = [-1, -2, -3]
    for wanted in (len(arguments), 0):
        peer.open()
        bodies()
        peer.run(1_000_000, arguments)
        ran = bodies()
        peer.close()
        if not peer.limit and ran != wanted:
            raise AssertionError(f"the body ran {ran} times instead of {wanted}")


def contender(peer: Peer, calls: int, *, recorded: bool, make: Callable[[int], Any] = int) -> Contender:
    """In each round a run of so many calls: misses that nobody has made before, or first hits of one `recorded` earlier."""
    calls = max(2, calls // peer.slow)
    kept = [make(at) for at in range(calls)] if recorded else []
    arguments = kept
    if recorded:
        peer.open()
        peer.run(0, kept)
        peer.close()

    def before(number: int) -> None:
        nonlocal arguments
        arguments = kept or [make(number * calls + at) for at in range(calls)]
        peer.open()
        bodies()

    def work(number: int) -> Seconds:
        return peer.run(0 if recorded else number, arguments)

    def after(number: int) -> None:
        ran = bodies()
        peer.close()
        if not peer.limit and ran != (0 if recorded else calls):
            raise AssertionError(f"{peer.name}: {ran} bodies ran")

    return Contender(peer.name, work, calls, before, after, limit=peer.limit)


def among(
    bench: Bench, kinds: Iterable[type[Peer]], calls: int, *, recorded: bool, make: Callable[[int], Any] = int
) -> dict[str, Any]:
    """The contenders and the absent of a task."""
    good, absent = ready(kinds, bench.folder)
    return {
        "contenders": [contender(peer, calls, recorded=recorded, make=make) for peer in good],
        "absent": absent,
    }


def installed(package: str) -> str:
    """The version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def version(kind: type[Peer]) -> str:
    return installed(kind.package) if kind.package else sqlite3.sqlite_version


def quiet() -> None:
    """Peers that talk while they work."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
