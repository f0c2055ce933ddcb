"""Pools of processes and threads: steps travel into them, take part in the run, and run once each."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import pytest

from oncemore import checkpoint_scope, checkpointed, current_run
from tests.processes import Script

PATIENCE = 60  # seconds

# Each kind maps `square` over NUMBERS, in which every number comes twice.
SOURCE = """
    import multiprocessing as mp
    import os, sys
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    from contextvars import copy_context

    from oncemore import checkpointed, checkpoint_scope, current_run

    NUMBERS = [*range(12), *range(12)]

    def log(text):
        file = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, (text + "\\n").encode())
        os.close(file)

    @checkpointed
    def inner(n):
        log(f"inner {n}")
        return n

    @checkpointed
    def square(n):
        log(f"square {n}")
        return inner(n) * n

    class Scale:
        def __init__(self, factor):
            self.factor = factor

        @checkpointed
        def times(self, n):
            log(f"times {n}")
            return self.factor * n

    def executor(kind):
        with ProcessPoolExecutor(2, mp_context=mp.get_context(kind)) as pool:
            return list(pool.map(square, NUMBERS))

    def pool(kind):
        with mp.get_context(kind).Pool(2) as pool:
            return pool.map(square, NUMBERS)

    def method(kind):
        with ProcessPoolExecutor(2, mp_context=mp.get_context(kind)) as pool:
            return list(pool.map(Scale(3).times, NUMBERS))

    def joblib(kind):
        from joblib import Parallel, delayed
        return Parallel(n_jobs=2, backend=kind)(delayed(square)(n) for n in NUMBERS)

    def threads(kind):
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(square, NUMBERS))

    def contexts(kind):
        with ThreadPoolExecutor(3) as pool:
            return [task.result() for task in [pool.submit(copy_context().run, square, n) for n in NUMBERS]]

    def method_joblib(kind):
        from joblib import Parallel, delayed
        return Parallel(n_jobs=2, backend=kind)(delayed(Scale(3).times)(n) for n in NUMBERS)

    def method_here(kind):
        return [Scale(3).times(n) for n in NUMBERS]

    def mapped(kind):
        return list(current_run().map(square, NUMBERS, concurrency=3))

    if __name__ == "__main__":
        way, kind = sys.argv[1:]
        with checkpoint_scope("pool", store="store"):
            print(globals()[way](kind))
"""
WAYS = [
    ("executor", "fork"),
    ("executor", "spawn"),
    ("executor", "forkserver"),
    ("pool", "fork"),
    ("method", "spawn"),
    ("method_joblib", "loky"),
    ("joblib", "loky"),
    ("joblib", "multiprocessing"),
    ("joblib", "threading"),
    ("threads", ""),
    ("contexts", ""),
    ("mapped", ""),
]
QUIET = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # Python 3.12 on fork in a process with threads


def log(folder: Path) -> list[str]:
    path = folder / "log"
    found = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(found)


@pytest.mark.parametrize(("way", "kind"), WAYS, ids=["-".join(filter(None, way)) for way in WAYS])
def test_a_step_mapped_over_a_pool_runs_once_for_each_argument_and_never_again(
    script: Script, way: str, kind: str
) -> None:
    expected = str([(3 if way.startswith("method") else n) * n for n in [*range(12), *range(12)]])
    first = script(SOURCE, way, kind, env=QUIET)
    assert (first.lines, first.err) == ([expected], "")
    steps = ["times"] if way.startswith("method") else ["square", "inner"]
    assert log(script.folder) == sorted(f"{step} {n}" for n in range(12) for step in steps)
    # Not even by another kind of pool, nor by the script itself.
    other = "method_here" if way.startswith("method") else "contexts"
    again = script(SOURCE, other, kind, env=QUIET)
    assert (again.lines, again.err) == ([expected], "")
    assert log(script.folder) == []


SENT = """
    import dataclasses, enum, sys
    from joblib import Parallel, delayed
    from oncemore import checkpointed, checkpoint_scope

    class Empty:
        pass

    class Kind(enum.Enum):
        ONE = 1

    @dataclasses.dataclass
    class Row:
        n: int = 1

    class Scaled:
        def __init__(self, n):
            self.n = n
        def twice(self):
            return 2 * self.n

    @checkpointed
    def seen(value):
        with open("log", "a") as file:
            file.write(f"{value}\\n")

    if __name__ == "__main__":
        values = [Empty(), Kind.ONE, Row(), Scaled(2), Row, [Scaled(1), Empty]]
        with checkpoint_scope("pool", store="store"):
            Parallel(n_jobs=2)(delayed(seen)(value) for value in values)
            for value in values:
                seen(value)
"""


def test_objects_of_the_scripts_own_classes_are_known_again_in_workers_that_cannot_import_it(script: Script) -> None:
    script(SENT, env=QUIET)
    assert len(log(script.folder)) == 6


@pytest.mark.parametrize(("way", "kind"), [("executor", "spawn"), ("joblib", "loky")])
def test_a_pool_of_processes_reuses_what_the_script_itself_recorded(script: Script, way: str, kind: str) -> None:
    script(SOURCE, "contexts", "")
    log(script.folder)
    assert script(SOURCE, way, kind, env=QUIET).err == ""
    assert log(script.folder) == []


def test_when_a_worker_is_killed_the_next_run_does_only_what_was_not_done(script: Script) -> None:
    source = """
        import os, signal, sys
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_context
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed
        def fragile(n):
            print("ran", n, flush=True)
            if n == 5 and os.path.exists("deadly"):
                os.kill(os.getpid(), signal.SIGKILL)
            return n

        if __name__ == "__main__":
            with checkpoint_scope("fragile", store="store"):
                with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
                    print(list(pool.map(fragile, range(8))))
    """
    (script.folder / "deadly").touch()
    broken = script(source, expect=1)
    assert broken.lines == [f"ran {n}" for n in range(6)]
    assert "BrokenProcessPool" in broken.err
    (script.folder / "deadly").unlink()
    assert script(source).lines == ["ran 5", "ran 6", "ran 7", str(list(range(8)))]


# -- fork


FORKED = """
    import os, sys, threading, time, warnings
    from oncemore import checkpointed, checkpoint_scope

    warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads

    @checkpointed
    def step(who, n):
        return [who, n, bytes(40_000)]

    def work(who, many):
        for n in range(many):
            assert step(who, n)[:2] == [who, n]

    def forked(who, many):
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            work(who, many)
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
"""


def test_a_fork_with_an_open_store_works_on_both_sides(script: Script) -> None:
    source = (
        FORKED
        + """
    with checkpoint_scope("fork", store="store") as run:
        work("both", 5)
        pids = [forked(f"child {k}", 20) for k in range(3)]
        work("parent", 20)
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
        work("both", 5)
        for k in range(3):
            assert all(step.is_done(f"child {k}", n) for n in range(20))
    print(sum(type(event).__name__ == "StepCompleted" for event in run.events()))
    """
    )
    done = script(source)
    assert (done.lines, done.err) == ([str(5 + 4 * 20)], "")


def test_forks_while_threads_end_lose_nothing(script: Script) -> None:
    """The connection of a thread that ends is closed without Python's lock: a fork must not come in between."""
    source = (
        FORKED
        + """
    from contextvars import copy_context

    with checkpoint_scope("fork", store="store") as run:
        for number in range(40):
            ending = [threading.Thread(target=copy_context().run, args=(work, f"{number} {k}", 1)) for k in range(3)]
            for thread in ending:
                thread.start()
            pids = [forked(f"child {number} {k}", 1) for k in range(6) if not time.sleep(0.002)]
            assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 6
            for thread in ending:
                thread.join()
            assert all(step.is_done(f"child {number} {k}", 0) for k in range(6)), number
    print("done")
    """
    )
    done = script(source, timeout=120)
    assert (done.lines, done.err) == (["done"], "")


def test_forks_while_threads_record_lose_nothing_and_never_hang(script: Script) -> None:
    source = (
        FORKED
        + """
    from contextvars import copy_context

    with checkpoint_scope("fork", store="store") as run:
        threads = [threading.Thread(target=copy_context().run, args=(work, f"thread {k}", 150)) for k in range(3)]
        for thread in threads:
            thread.start()
        pids = []
        while any(thread.is_alive() for thread in threads) and len(pids) < 25:
            pids.append(forked(f"child {len(pids)}", 2))
            time.sleep(0.01)
        for thread in threads:
            thread.join()
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)
        assert all(step.is_done(f"thread {k}", n) for k in range(3) for n in range(150))
        assert all(step.is_done(f"child {k}", n) for k in range(len(pids)) for n in range(2))
    assert len(pids) > 3, "no fork came in between"
    print("done")
    """
    )
    done = script(source, timeout=120)
    assert (done.lines, done.err) == (["done"], "")


def test_a_child_forked_inside_a_step_does_not_give_up_its_parents_seat(script: Script) -> None:
    source = """
        import os, sys, time
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed
        def other(n):
            return n

        @checkpointed
        def outer(n):
            print("outer", n)
            pid = os.fork()
            if not pid:
                other(n)
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            print("child ended")
            while not os.path.exists("go"):
                time.sleep(0.005)
            return n

        print("asking")
        with checkpoint_scope("fork", store="store") as run:
            print(outer(1), other(1), run.reused["other"])
    """
    owner = script.start(source)
    owner.wait_for("child ended")
    waiter = script.start(source)
    waiter.wait_for("asking")
    time.sleep(0.3)  # time to find the seat taken; with less the test would still pass
    (script.folder / "go").touch()
    assert owner.finish(0).lines[-1] == "1 1 1"
    assert waiter.finish(0).lines == ["asking", "1 1 1"]


# -- how a step travels


@checkpointed(code="version", version="1")
def travels(n: int) -> tuple[int, str | None]:
    run = current_run()
    return n, None if run is None else run.id


def test_a_pickled_step_is_the_step_itself_where_there_is_no_scope() -> None:
    assert pickle.loads(pickle.dumps(travels)) is travels
    assert pickle.loads(pickle.dumps(travels))(1) == (1, None)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_step_pickled_inside_a_scope_takes_part_in_its_run_elsewhere(dumps: object) -> None:
    with checkpoint_scope("home", store="store") as run:
        data = dumps(travels)  # type: ignore[operator]
        assert run.ran["travels"] == 0
    assert current_run() is None
    assert pickle.loads(data)(1) == (1, "home")
    with checkpoint_scope("home", store="store") as run:
        assert travels(1) == (1, "home")
        assert run.reused["travels"] == 1


def test_a_thread_that_entered_no_scope_takes_part_in_the_only_open_run() -> None:
    with checkpoint_scope("home", store="store") as run, ThreadPoolExecutor(1) as pool:
        assert pool.submit(travels, 1).result(PATIENCE) == (1, "home")
        assert travels(1) == (1, "home")
        assert (run.ran["travels"], run.reused["travels"]) == (1, 1)


def test_a_thread_that_entered_no_scope_chooses_none_of_two_open_runs() -> None:
    inside, go = threading.Event(), threading.Event()

    def other() -> None:
        with checkpoint_scope("other", store="store"):
            inside.set()
            go.wait(PATIENCE)

    with checkpoint_scope("home", store="store"), ThreadPoolExecutor(2) as pool:
        second = pool.submit(other)
        assert inside.wait(PATIENCE)
        assert pool.submit(travels, 1).result(PATIENCE) == (1, None)
        go.set()
        second.result(PATIENCE)


def test_scopes_of_threads_do_not_see_each_other() -> None:
    together = threading.Barrier(4)

    def one(name: str) -> tuple[str, object]:
        with checkpoint_scope(name, store="store"):
            together.wait(PATIENCE)
            return name, travels(1)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, "abcd"))
    assert found == [(name, (1, name)) for name in "abcd"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_pool_interrupted_by_ctrl_c_leaves_what_was_done(script: Script) -> None:
    source = """
        import os, time
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed
        def slow(n):
            print("ran", n, flush=True)
            if n == 7 and not os.path.exists("quick"):
                time.sleep(60)
            return n

        with checkpoint_scope("map", store="store") as run:
            for n in range(7):
                slow(n)
            print(run.map(slow, range(9), concurrency=1))
    """
    running = script.start(source)
    running.wait_for("ran 7")
    os.kill(running.pid, signal.SIGINT)
    time.sleep(0.2)
    running.kill()  # the thread in its long step is not waited for
    (script.folder / "quick").touch()
    assert script(source).lines == ["ran 7", "ran 8", str(list(range(9)))]


LEFT_BY_A_CHILD = """
    import os, sys, warnings
    from oncemore import History, checkpoint_scope, checkpointed

    warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads

    @checkpointed
    def work(x):
        return x

    def leave(how):
        if how == "exit": sys.exit(3)
        if how == "_exit": os._exit(3)
        if how == "error": raise ValueError("the child's own")

    def told():
        return [type(event).__name__ for event in History("store").run("forked").events()]

    with checkpoint_scope("forked", store="store", max_checkpoints=2) as run:
        for n in range(2):
            work(n)
        child = os.fork()
        if child == 0:
            for n in range(10, 50):  # enough to prune, were it the child's to do
                work(n)
            leave(sys.argv[1])
        if child:
            os.waitpid(child, 0)
            print(History("store").run("forked").summary().status, *sorted({*told()}))
            work(2)
    if child:
        print(told()[-1], History("store").run("forked").summary().status)
"""


@pytest.mark.parametrize("how", ["exit", "_exit", "error", "end"])
def test_a_forked_child_that_leaves_the_scope_neither_ends_nor_prunes_the_run_of_its_parent(
    script: Script, how: str
) -> None:
    done = script(LEFT_BY_A_CHILD, how)
    assert done.lines == ["running RunStarted StepCompleted", "RunFinished finished"]
