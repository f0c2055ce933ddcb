"""A step that leaves its process inside a scope takes its run along, and is checkpointed where it arrives."""

from __future__ import annotations

import pickle
import statistics
import textwrap

import cloudpickle
import pytest

from oncemore import checkpointed
from tests.processes import Script

pytestmark = pytest.mark.brief  # what a pickle takes along depends on Python and on wrapt

STEPS = """
    from oncemore import checkpointed

    @checkpointed
    def square(x):
        with open("ran", "a") as file:
            file.write(f"square {x}\\n")
        return x * x

    class Model:
        def __init__(self, rate): self.rate = rate

        @checkpointed
        def score(self, x):
            with open("ran", "a") as file:
                file.write(f"score {x}\\n")
            return x * self.rate
"""

POOLS = {
    "spawned processes": """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        def spread(*calls):
            with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
                return [each.result() for each in [pool.submit(step, item) for step, item in calls]]
    """,
    "forked processes": """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        def spread(*calls):
            with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
                return [each.result() for each in [pool.submit(step, item) for step, item in calls]]
    """,
    "a multiprocessing pool": """
        import multiprocessing
        def spread(*calls):
            with multiprocessing.Pool(2) as pool:
                return [each.get() for each in [pool.apply_async(step, (item,)) for step, item in calls]]
    """,
    "joblib's processes": """
        from joblib import Parallel, delayed
        def spread(*calls):
            return Parallel(n_jobs=2, backend="loky")(delayed(step)(item) for step, item in calls)
    """,
    "joblib's threads": """
        from joblib import Parallel, delayed
        def spread(*calls):
            return Parallel(n_jobs=2, backend="threading")(delayed(step)(item) for step, item in calls)
    """,
}

MAIN = """
    from oncemore import checkpoint_scope
    if __name__ == "__main__":
        with checkpoint_scope("pool"):
            print(spread((square, 1), (square, 2), (square, 3), (Model(2).score, 4)))
"""


def ran(script: Script) -> list[str]:
    """What the steps' bodies wrote since it was last asked, in whichever process."""
    file = script.folder / "ran"
    words = sorted(file.read_text().splitlines()) if file.exists() else []
    file.unlink(missing_ok=True)
    return words


@pytest.mark.parametrize("pool", POOLS)
def test_a_step_called_in_a_worker_is_not_called_in_the_next_run(pool: str, script: Script) -> None:
    _twice(_flat(STEPS) + _flat(POOLS[pool]) + _flat(MAIN), script)


def test_a_step_of_a_module_is_checkpointed_in_a_worker_as_well(script: Script) -> None:
    script.write(STEPS, "mine.py")
    _twice("from mine import Model, square\n" + _flat(POOLS["spawned processes"]) + _flat(MAIN), script)


def _twice(source: str, script: Script) -> None:
    assert script(source).out == "[1, 4, 9, 8]\n"
    assert ran(script) == ["score 4", "square 1", "square 2", "square 3"]
    assert script(source).out == "[1, 4, 9, 8]\n"
    assert ran(script) == []


def test_a_pool_that_was_made_in_another_run_works_for_the_one_that_sends(script: Script) -> None:
    source = _flat(STEPS) + _flat("""
        import multiprocessing
        from oncemore import checkpoint_scope
        with checkpoint_scope("first"), multiprocessing.get_context("fork").Pool(1) as pool:
            pool.map(square, [1])
            with checkpoint_scope("second") as run:
                print(pool.map(square, [1]), square.is_done(1))
    """)
    assert script(source).out == "[1] True\n"
    assert ran(script) == ["square 1", "square 1"]


def test_what_a_worker_recorded_is_found_in_the_scope_itself(script: Script) -> None:
    source = _flat(STEPS) + _flat(POOLS["spawned processes"]) + "from oncemore import checkpoint_scope\n"
    source += _flat("""
        if __name__ == "__main__":
            with checkpoint_scope("pool"):
                spread((square, 1), (square, 2))
                print(square.is_done(1), square.is_done(2), square.is_done(3), square(2))
    """)
    assert script(source).out == "True True False 4\n"
    assert ran(script) == ["square 1", "square 2"]


def test_a_step_pickled_outside_a_scope_just_runs_where_it_arrives(script: Script) -> None:
    source = _flat(STEPS) + _flat(POOLS["spawned processes"])
    source += _flat("""
        if __name__ == "__main__":
            print(spread((square, 5), (square, 5)))
    """)
    assert script(source).out == "[25, 25]\n"
    assert ran(script) == ["square 5", "square 5"]
    assert not (script.folder / ".oncemore").exists()


def test_a_step_that_only_cloudpickle_can_carry_is_checkpointed_in_the_worker(script: Script) -> None:
    source = """
        from joblib import Parallel, delayed
        from oncemore import checkpoint_scope, checkpointed

        def made(rate):
            @checkpointed
            def times(x):
                with open("ran", "a") as file:
                    file.write(f"times {x}\\n")
                return x * rate
            return times

        with checkpoint_scope("closure"):
            print(Parallel(n_jobs=2, backend="loky")(delayed(made(3))(x) for x in (1, 2)))
    """
    assert script(source).out == "[3, 6]\n"
    assert ran(script) == ["times 1", "times 2"]
    assert script(source).out == "[3, 6]\n"
    assert ran(script) == []


def test_questions_to_a_step_in_a_worker_are_about_its_run(script: Script) -> None:
    source = _flat(STEPS) + _flat("""
        import pickle
        from oncemore import checkpoint_scope
        with checkpoint_scope("sent"):
            square(3)
            sent = pickle.dumps(square)
        step = pickle.loads(sent)
        print(step.is_done(3), step.recall(3), step.is_done(4), step.refresh(3))
    """)
    assert script(source).out == "True 9 False 9\n"
    assert ran(script) == ["square 3", "square 3"]


def test_inside_a_worker_the_run_is_current_for_the_steps_that_a_step_calls(script: Script) -> None:
    source = _flat(STEPS) + _flat("""
        @checkpointed
        def outer(x):
            return square(x) + 1
    """)
    source += _flat(POOLS["spawned processes"]) + "from oncemore import checkpoint_scope\n"
    source += _flat("""
        if __name__ == "__main__":
            with checkpoint_scope("nested"):
                print(spread((outer, 2)), square.is_done(2))
    """)
    assert script(source).out == "[5] True\n"
    assert ran(script) == ["square 2"]


def _flat(source: str) -> str:
    """Source shifted to the left margin, so that pieces can be joined."""
    return textwrap.dedent(source).lstrip("\n")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_step_made_of_a_function_with_a_name_of_its_own_can_be_sent_to_a_pool(method: str, script: Script) -> None:
    source = f"""
        import multiprocessing, statistics
        from concurrent.futures import ProcessPoolExecutor
        from oncemore import checkpoint_scope, checkpointed, memoized

        def plain(x):
            with open("ran", "a") as file:
                file.write(f"plain {{x}}\\n")
            return x * 2

        median, double = memoized(statistics.median), checkpointed(plain)
        if __name__ == "__main__":
            with checkpoint_scope("named"), ProcessPoolExecutor(1, multiprocessing.get_context("{method}")) as pool:
                print(pool.submit(median, [1, 2, 5]).result(), list(pool.map(double, [3])), plain(1))
    """
    assert script(source).out == "2 [6] 2\n"
    assert ran(script) == ["plain 1", "plain 3"]
    assert script(source).out == "2 [6] 2\n"
    assert ran(script) == ["plain 1"]


def test_a_step_made_of_a_librarys_function_is_carried_by_pickle_and_cloudpickle() -> None:
    median = checkpointed(statistics.median)
    for library in (pickle, cloudpickle):
        again = library.loads(library.dumps(median))
        assert again.__wrapped__ is statistics.median
        assert repr(again) == repr(median) == "<step statistics.median>"
