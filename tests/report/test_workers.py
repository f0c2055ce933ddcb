"""Steps that other processes run or reuse for a scope are counted in it: in its lines, its counters, the summary and `show`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from oncemore import History
from tests.processes import SRC, Script
from tests.report.test_terminal import timeless

SOURCE = """
    import multiprocessing, sys, warnings
    from concurrent.futures import ProcessPoolExecutor
    from oncemore import checkpoint_scope, checkpointed
    warnings.simplefilter("ignore")  # Python 3.12 on: of forking beside threads

    @checkpointed
    def work(n):
        if n == 7:
            raise ValueError("seven")
        return n

    def safely(n):
        try:
            return work(n)
        except ValueError:
            pass

    def call_all(how):
        if how in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(how).Pool(2) as pool:  # terminated as soon as it has the results
                pool.map(work, range(6))
        elif how == "inherited":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                pool.map(safely, range(8))
        elif how == "executor":
            with ProcessPoolExecutor(2) as pool:
                list(pool.map(work, range(6)))
        elif how == "joblib":
            import joblib
            joblib.Parallel(2)(joblib.delayed(work)(n) for n in range(6))
        elif how == "dask":
            from distributed import Client, LocalCluster
            options = dict(n_workers=2, threads_per_worker=1, dashboard_address=None)
            with LocalCluster(**options) as cluster, Client(cluster) as client:
                client.gather(client.map(work, range(6), pure=False))

    if __name__ == "__main__":
        with checkpoint_scope("pool") as run:
            call_all(sys.argv[1])
            inside = run.summary().total
        assert inside[1:4] == run.summary().total[1:4], (inside, run.summary().total)
        print(dict(run.ran), dict(run.reused), dict(run.failed))
"""
ENV = {"ONCEMORE_LOG": "on"}


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver", "executor", "joblib", "dask"])
def test_what_workers_ran_and_reused_is_counted(script: Script, how: str) -> None:
    if how == "dask":
        pytest.importorskip("distributed")
    first, second = (script(SOURCE, how, env=ENV, timeout=300) for _ in range(2))
    assert first.out == "{'work': 6} {} {}\n"
    assert second.out == "{} {'work': 6} {}\n"
    assert timeless(first.err.splitlines())[-2].startswith("  work      6 ran T")
    assert first.err.splitlines()[-1].startswith("✓ 6 results kept")
    assert timeless(second.err.splitlines())[-2:] == ["  work      6 reused T saved", "✓ T saved"]
    command = [sys.executable, "-m", "oncemore.cli", "show", "pool", "--json"]
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    shown = subprocess.run(command, cwd=script.folder, env=env, capture_output=True, check=True).stdout
    (step,) = json.loads(shown)["steps"]
    assert (step["ran"], step["reused"]) == (6, 6)


def test_children_of_a_fork_that_inherited_the_scope_are_counted(script: Script) -> None:
    first, second = (script(SOURCE, "inherited", env=ENV) for _ in range(2))
    assert first.out == "{'work': 7} {} {'work': 1}\n"
    assert second.out == "{} {'work': 7} {'work': 1}\n"


def test_many_hits_in_a_worker_are_all_counted_and_leave_nothing_in_the_store(script: Script) -> None:
    source = """
        import sys
        from concurrent.futures import ProcessPoolExecutor
        from oncemore import History, checkpoint_scope, checkpointed

        @checkpointed
        def work(n):
            return n

        @checkpointed
        def many(attempt):
            return [work(n % 10) for n in range(3000)]

        if __name__ == "__main__":
            with checkpoint_scope("many") as run, ProcessPoolExecutor(1) as pool:
                pool.submit(many, sys.argv[1]).result()
            print(run.ran["work"], run.reused["work"], run.summary().total.reused)
            print([key for key, _ in History().store.scan("reused/")])
    """
    assert script(source, "1").lines == ["10 2990 2990", "[]"]
    assert script(source, "2").lines == ["0 3000 5990", "[]"]


def test_what_workers_of_a_killed_scope_reused_is_counted_by_the_next(script: Script) -> None:
    source = """
        import os, signal, sys
        from concurrent.futures import ProcessPoolExecutor
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def work(n):
            return n

        if __name__ == "__main__":
            with checkpoint_scope("killed") as run, ProcessPoolExecutor(1) as pool:
                list(pool.map(work, range(3)))
                if sys.argv[1] == "kill":
                    os.killpg(0, signal.SIGKILL)
            print(dict(run.reused), run.summary().total.reused)
    """
    script(source, "on")
    script(source, "kill", expect=-9)
    history = History(script.folder / ".oncemore")
    assert list(history.store.scan("reused/"))
    assert history.verify().findings == ()
    assert script(source, "on").lines == ["{'work': 3} 6"]
