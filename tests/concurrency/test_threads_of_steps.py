"""Threads that a step uses: what they do to the state, print and call is the step's."""

from __future__ import annotations

import _thread
import asyncio
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.pool import ThreadPool
from queue import SimpleQueue
from typing import Any

import pytest
from joblib import Parallel, delayed

from oncemore import Run, checkpoint_scope, checkpointed, current_run, idempotency_key

PATIENCE = 60  # seconds
Work = Callable[[], Any]
Way = Callable[..., Any]  # does all of its arguments, each in a thread that is not the caller's


def by_thread(*works: Work) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)


class Own(threading.Thread):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def run(self) -> None:
        self.work()


def by_subclass(*works: Work) -> None:
    for thread in [Own(work) for work in works]:
        thread.start()
        thread.join(PATIENCE)


def by_timer(*works: Work) -> None:
    for thread in [threading.Timer(0, work) for work in works]:
        thread.start()
        thread.join(PATIENCE)


def by_a_thread_of_a_thread(*works: Work) -> None:
    by_thread(lambda: by_thread(*works))


def by_executor(*works: Work) -> None:
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result(PATIENCE)


ONE_FOR_ALL = ThreadPoolExecutor(2)


def by_one_executor_for_all(*works: Work) -> None:
    list(ONE_FOR_ALL.map(lambda work: work(), works))


def by_to_thread(*works: Work) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*(asyncio.to_thread(work) for work in works))

    asyncio.run(all_of_them())


def by_run_in_executor(*works: Work) -> None:
    async def all_of_them() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(None, work) for work in works))

    asyncio.run(all_of_them())


def by_thread_pool(*works: Work) -> None:
    with ThreadPool(2) as pool:
        pool.map(lambda work: work(), works)


def by_joblib(*works: Work) -> None:
    Parallel(n_jobs=2, backend="threading")(delayed(work)() for work in works)


def by_a_loop_in_a_thread(*works: Work) -> None:
    by_thread(lambda: by_to_thread(*works))


def by_bare_thread(*works: Work) -> None:
    for work in works:
        done = threading.Event()

        def do(work: Work = work, done: threading.Event = done) -> None:
            work()
            done.set()

        _thread.start_new_thread(do, ())
        assert done.wait(PATIENCE)


QUEUE: SimpleQueue[tuple[Work, threading.Event]] = SimpleQueue()


def serve() -> None:
    while True:
        work, done = QUEUE.get()
        try:
            work()
        finally:
            done.set()


threading.Thread(target=serve, daemon=True).start()


def by_a_server_for_all(*works: Work) -> None:
    done = [threading.Event() for _ in works]
    for each in zip(works, done):
        QUEUE.put(each)
    assert all(each.wait(PATIENCE) for each in done)


# Those of which it is known for which step they work, and those where it is only known which steps there are.
KNOWN = [
    *(by_thread, by_subclass, by_timer, by_a_thread_of_a_thread, by_executor, by_one_executor_for_all),
    *(by_to_thread, by_run_in_executor, by_thread_pool, by_joblib, by_a_loop_in_a_thread),
]
UNKNOWN = [by_bare_thread, by_a_server_for_all]
every_way = pytest.mark.parametrize("way", [*KNOWN, *UNKNOWN], ids=lambda way: way.__name__)
known_way = pytest.mark.parametrize("way", KNOWN, ids=lambda way: way.__name__)


def state() -> Any:
    """The current run's: to be asked for where the step begins, since not every thread is in its run."""
    run = current_run()
    assert run is not None
    return run.state


@checkpointed(ignore=["way"])
def reading(way: Way) -> list[Any]:
    found: list[Any] = []
    here = state()
    way(lambda: found.append(here["n"]))
    return found


@every_way
def test_state_read_in_a_thread_of_a_step_counts(way: Way) -> None:
    found = []
    for n in (1, 2, 1):
        with checkpoint_scope("reads", state={"n": n}) as run:
            found.append((reading(way), run.reused["reading"]))
    assert found == [([1], 0), ([2], 0), ([1], 1)]


@checkpointed(ignore=["way"])
def changing(way: Way) -> None:
    here = state()

    def change() -> None:
        here["new"] = 1
        here["list"].append(2)
        here.pop("old")

    way(change)


@every_way
def test_state_changed_in_a_thread_of_a_step_is_changed_when_it_is_skipped(way: Way) -> None:
    for reused in (0, 1):
        with checkpoint_scope("writes", state={"list": [1], "old": 0}) as run:
            changing(way)
            assert (dict(run.state), run.reused["changing"]) == ({"list": [1, 2], "new": 1}, reused)


@every_way
def test_state_changed_in_a_thread_of_a_step_that_fails_is_put_back(way: Way) -> None:
    @checkpointed(ignore=["way"])
    def failing(way: Way) -> None:
        here = state()
        way(lambda: here.update(n=here["n"] + 1))
        raise ValueError("no")

    with checkpoint_scope("fails", state={"n": 1}) as run:
        with pytest.raises(ValueError, match="no"):
            failing(way)
        assert dict(run.state) == {"n": 1}


@checkpointed
def inner() -> int:
    return 10 * int(state()["n"])


@checkpointed(ignore=["way"])
def outer(way: Way) -> list[int]:
    found: list[int] = []
    way(lambda: found.append(inner()))
    return found


@every_way
def test_a_step_read_what_the_steps_in_its_threads_read(way: Way) -> None:
    found = []
    for n in (1, 2, 1):
        with checkpoint_scope("nested", state={"n": n}) as run:
            inner()  # so that the outer step finds it done
            found.append((outer(way), run.ran["outer"]))
    assert found == [([10], 1), ([20], 1), ([10], 0)]


@checkpointed(ignore=["way", "found"])
def asking(way: Way, found: list[Any]) -> None:
    way(lambda: found.append((current_run(), idempotency_key())))
    found.append((current_run(), idempotency_key()))


@known_way
def test_a_thread_of_a_step_is_in_the_run_and_in_the_step(way: Way) -> None:
    found: list[Any] = []
    with checkpoint_scope("inside") as run:
        asking(way, found)
    assert [each is run for each, _ in found] == [True, True]
    assert found[0][1] == found[1][1]


@checkpointed(ignore=["way", "again"])
def recursive(way: Way, again: bool) -> int:
    if again:
        way(lambda: recursive(way, False))
    return 1


@known_way
def test_a_step_that_calls_itself_in_a_thread_does_not_wait_for_itself(way: Way) -> None:
    with checkpoint_scope("recursion"):
        assert recursive(way, True) == 1


@known_way
def test_what_threads_of_a_step_print_is_shown_again(way: Way, capsys: pytest.CaptureFixture[str]) -> None:
    @checkpointed(capture_output=True, ignore=["way"])
    def saying(way: Way) -> None:
        print("here")
        way(lambda: print("there"))

    for _ in range(2):
        with checkpoint_scope("output"):
            saying(way)
        assert capsys.readouterr().out == "here\nthere\n"


def test_what_other_threads_print_meanwhile_is_not_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    @checkpointed(capture_output=True, code="own")
    def saying() -> None:
        by_a_server_for_all(lambda: print("there"))

    for shown in ("there\n", ""):
        with checkpoint_scope("output"):
            saying()
        assert capsys.readouterr().out == shown


OWN: ContextVar[str] = ContextVar("own", default="unset")


@known_way
def test_the_scripts_own_context_variables_are_as_python_has_them(way: Way) -> None:
    def seen(way: Way) -> list[str]:
        found: list[str] = []
        way(lambda: found.append(OWN.get()))
        return found

    token = OWN.set("set")
    plain = seen(way)
    with checkpoint_scope("context"):
        assert checkpointed(ignore=["way"], code="own")(seen)(way) == plain
    OWN.reset(token)


# -- several steps at a time


@contextmanager
def told() -> Iterator[list[str]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found: list[str] = []
        yield found
    found += [str(each.message) for each in heard]


class Together:
    """Waits until as many as there are to be have come; none, if they were reused."""

    barrier = threading.Barrier(1)


@checkpointed(ignore=["way"], code="own")
def own(n: int, way: Way) -> int:
    here = state()
    Together.barrier.wait()  # so that each runs while the others do

    def work() -> None:
        here[f"k{n}"] = here.get(f"k{n}", 0) + here["base"]

    way(work)
    Together.barrier.wait()
    return int(here[f"k{n}"])


@known_way
def test_mapped_steps_have_each_their_own_threads(way: Way) -> None:
    for reused in (0, 3):
        Together.barrier = threading.Barrier(3, timeout=PATIENCE)
        with told() as messages, checkpoint_scope("mapped", state={"base": 5}) as run:
            assert run.map(lambda n: own(n, way), range(3), concurrency=3) == [5, 5, 5]
            assert dict(run.state) == {"base": 5, "k0": 5, "k1": 5, "k2": 5}
            assert run.reused["own"] == reused
        assert messages == []


@checkpointed(ignore=["work"], code="own")
def beside(name: str, work: Callable[[Any], Any]) -> Any:
    here, found = state(), list[Any]()
    Together.barrier.wait()
    by_a_server_for_all(lambda: found.append(work(here)))
    Together.barrier.wait()
    return found[0]


def both(run: Run, **works: Callable[[Any], Any]) -> list[Any]:
    return run.map(lambda name: beside(name, works[name]), works, concurrency=2)


def test_what_a_thread_for_all_reads_counts_for_all_that_run() -> None:
    found = []
    for n in (1, 2, 1):
        Together.barrier = threading.Barrier(2, timeout=PATIENCE)
        with told() as messages, checkpoint_scope("beside", state={"n": n}) as run:
            found.append((both(run, a=lambda here: here["n"], b=lambda here: 0), run.ran["beside"]))
        assert messages == []
    assert found == [([1, 0], 2), ([2, 0], 2), ([1, 0], 0)]


def test_if_it_is_not_known_whose_change_it_is_none_is_kept_and_that_is_told() -> None:
    for _ in range(2):
        Together.barrier = threading.Barrier(2, timeout=PATIENCE)
        with told() as messages, checkpoint_scope("beside", state={"list": []}) as run:
            both(run, a=lambda here: here.update(k=1), b=lambda here: here["list"].append(1))
            assert (dict(run.state), run.ran["beside"]) == ({"list": [1], "k": 1}, 2)
        assert len(messages) == 2
        assert all("was changed in a thread that may work for another step" in each for each in messages)


GO, DONE = threading.Event(), threading.Event()


@checkpointed(code="own")
def leaving() -> None:
    here = state()

    def later() -> None:
        GO.wait(PATIENCE)
        here["late"] = 1
        DONE.set()

    threading.Thread(target=later).start()


def test_a_thread_that_outlives_its_step_belongs_to_no_step() -> None:
    for late in (True, False):
        with checkpoint_scope("left") as run:
            leaving()
            if late:
                GO.set()
                assert DONE.wait(PATIENCE)
            assert ("late" in run.state) is late


MANY = 16


@checkpointed
def filling() -> None:
    here, together = state(), threading.Barrier(MANY, timeout=PATIENCE)

    def add(n: int) -> None:
        together.wait()
        here["list"].append(n)

    with ThreadPoolExecutor(MANY) as pool:
        list(pool.map(add, range(MANY)))


def test_threads_that_touch_a_key_at_once_lose_nothing() -> None:
    for reused in (0, 1):
        with checkpoint_scope("at once", state={"list": list(range(2000))}) as run:
            filling()
            assert sorted(run.state["list"]) == sorted([*range(2000), *range(MANY)])
            assert run.reused["filling"] == reused


class Large:
    """Something that is to go with the step that had it."""

    living: weakref.WeakSet[Large] = weakref.WeakSet()

    def __init__(self) -> None:
        self.living.add(self)


@checkpointed(ignore=["large"], code="own")
def using(large: Large) -> None:
    by_one_executor_for_all(lambda: None)


def test_threads_that_outlive_a_step_do_not_keep_its_arguments() -> None:
    with checkpoint_scope("memory"), ThreadPoolExecutor(1) as pool:
        checkpointed(ignore=["large", "pool"])(lambda large, pool: pool.submit(int).result())(Large(), pool)
        using(Large())
        gc.collect()
        assert len(Large.living) == 0
