"""Worker processes that live long: they see what the parent has done to the run since, and begin with its state."""

from __future__ import annotations

import textwrap

import pytest

from tests.processes import Script

QUIET = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # Python 3.12 on fork in a process with threads

# `call(step, *args)` calls a step in a worker process: always the same one.
SOURCE = """
    import multiprocessing as mp
    import os, sys, threading, warnings
    from concurrent.futures import ProcessPoolExecutor

    from oncemore import History, checkpointed, checkpoint_scope, current_run, memoized

    @checkpointed
    def token(n):
        return os.urandom(8).hex()

    @memoized
    def shared(n):
        return os.urandom(8).hex()

    @checkpointed
    def reading(key):
        return current_run().state[key]

    @checkpointed
    def adding(n):
        state = current_run().state
        state["list"].append(n)
        state["last"] = n
        return list(state["list"])

    @checkpointed
    def nested(key):
        return reading(key)

    class Point:
        def __init__(self, x):
            self.x = x

    @checkpointed
    def x_of(key):
        point = current_run().state[key]
        assert type(point) is Point
        return point.x

    ENDS = []

    def begin(kind):
        family, _, method = kind.partition("-")
        if family == "executor":
            pool = ProcessPoolExecutor(1, mp_context=mp.get_context(method))
            ENDS.append(pool.shutdown)
            return lambda step, *args: pool.submit(step, *args).result()
        if family == "pool":
            pool = mp.get_context(method).Pool(1)
            ENDS.extend([pool.close, pool.join])
            return lambda step, *args: pool.apply(step, args)
        if family == "loky":
            from joblib.externals.loky import get_reusable_executor
            ENDS.append(lambda: get_reusable_executor().shutdown())
            return lambda step, *args: get_reusable_executor(1, timeout=600).submit(step, *args).result()
        if family == "forked":  # knows the steps itself: none is sent
            here, there = mp.Pipe()
            if not os.fork():
                while (asked := there.recv()) is not None:
                    there.send(globals()[asked[0]](*asked[1]))
                os._exit(0)
            ENDS.extend([lambda: here.send(None), os.wait])
            def call(step, *args):
                here.send((step.__name__, args))
                return here.recv()
            return call
"""
KINDS = ["executor-fork", "executor-spawn", "pool-fork", "loky"]
every_kind = pytest.mark.parametrize("kind", KINDS)
with_forked = pytest.mark.parametrize("kind", [*KINDS, "forked"])


def check(script: Script, body: str, kind: str) -> None:
    """Run the body of a script that has a worker."""
    ending = """
        for end in ENDS:
            end()
        print("done")
    """
    main = textwrap.indent(textwrap.dedent(body) + textwrap.dedent(ending), " " * 8)
    done = script(f"{SOURCE}\n    if __name__ == '__main__':\n{main}", kind, env=QUIET)
    assert (done.lines[-1:], done.err) == (["done"], "")


@with_forked
def test_a_worker_sees_what_the_parent_forgot_refreshed_and_rolled_back(script: Script, kind: str) -> None:
    body = """
        with checkpoint_scope("run", store="store") as run:
            call = begin(sys.argv[1])
            first = call(token, 1)
            assert call(token, 1) == token(1) == first
            assert token.forget(1)
            second = call(token, 1)
            assert second != first
            assert call(token, 1) == token(1) == second
            third = token.refresh(1)
            assert third != second
            assert call(token, 1) == token(1) == third
            kept, gone = call(token, 2), call(token, 3)
            run.checkpoint("here")
            later = call(token, 4)
            run.rollback(to="here")
            assert (call(token, 2), call(token, 3)) == (kept, gone)
            assert call(token, 4) != later
            assert token(4) == call(token, 4)
    """
    check(script, body, kind)


@every_kind
def test_a_worker_sees_what_was_forgotten_between_two_scopes(script: Script, kind: str) -> None:
    body = """
        call = begin(sys.argv[1])
        with checkpoint_scope("run", store="store"):
            first = call(token, 1), call(token, 2)
            assert (call(token, 1), call(token, 2)) == first
        with checkpoint_scope("run", store="store"):
            assert (call(token, 1), call(token, 2)) == first
        with checkpoint_scope("run", store="store"):
            token.forget(2)
            assert call(token, 1) == first[0]
            assert call(token, 2) != first[1]
        History("store").delete("run")
        with checkpoint_scope("run", store="store"):
            assert call(token, 1) != first[0]
    """
    check(script, body, kind)


@with_forked
def test_a_worker_sees_what_was_forgotten_of_a_shared_step_outside_a_scope(script: Script, kind: str) -> None:
    body = """
        call = begin(sys.argv[1])
        first = call(shared, 1)
        assert call(shared, 1) == shared(1) == first
        shared.forget(1)
        second = call(shared, 1)
        assert second != first
        assert call(shared, 1) == shared(1) == second
        third = shared.refresh(1)
        assert call(shared, 1) == third
        with checkpoint_scope("run"):
            assert call(shared, 1) == third
            fourth = shared.refresh(1)
            assert call(shared, 1) == fourth
    """
    check(script, body, kind)


@every_kind
def test_a_worker_begins_each_call_with_the_state_of_the_run(script: Script, kind: str) -> None:
    body = """
        call = begin(sys.argv[1])
        for attempt in (1, 2):
            with checkpoint_scope("run", store="store", state={"n": 1, "list": [attempt]}) as run:
                assert call(reading, "n") == call(nested, "n") == 1
                run.state["n"] = 2
                run.state["list"].append(0)
                assert call(reading, "n") == call(nested, "n") == 2
                assert call(reading, "list") == [attempt, 0]
                # What a call does there is seen neither by the next one nor here, ...
                assert call(adding, 5) == [attempt, 0, 5]
                assert call(adding, 6) == [attempt, 0, 6]
                assert call(reading, "list") == [attempt, 0]
                assert dict(run.state) == {"n": 2, "list": [attempt, 0]}
                # ... but by who calls the step again here.
                assert adding(5) == [attempt, 0, 5]
                assert dict(run.state) == {"n": 2, "list": [attempt, 0, 5], "last": 5}
                assert run.ran["adding"] == 0
        with checkpoint_scope("other", store="store") as run:
            try:
                call(reading, "n")
            except KeyError:
                pass
            else:
                raise AssertionError("the worker has the state of another run")
    """
    check(script, body, kind)


@pytest.mark.parametrize("kind", ["executor-fork", "executor-spawn", "loky"])
def test_a_step_that_uses_a_pool_depends_on_the_state(script: Script, kind: str) -> None:
    body = """
        call = begin(sys.argv[1])

        @checkpointed(code="own", ignore=["call"])
        def outer(call):
            return call(reading, "n")

        found = []
        for n in (1, 2, 1):
            with checkpoint_scope("run", store="store", state={"n": n}) as run:
                found.append((outer(call), run.ran["outer"]))
        assert found == [(1, 1), (2, 1), (1, 0)], found
    """
    check(script, body, kind)


@every_kind
def test_objects_of_the_scripts_own_classes_travel_in_the_state(script: Script, kind: str) -> None:
    body = """
        call = begin(sys.argv[1])
        with checkpoint_scope("run", store="store", state={"a": Point(1), "step": token}) as run:
            assert call(x_of, "a") == 1
            run.state["a"].x = 2
            assert call(x_of, "a") == 2
            assert call(x_of, "a") == 2
    """
    check(script, body, kind)


@pytest.mark.parametrize("kind", ["executor-fork", "executor-spawn", "loky"])
def test_what_cannot_be_pickled_in_the_state_stays_and_that_is_told_once(script: Script, kind: str) -> None:
    body = """
        call = begin(sys.argv[1])
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with checkpoint_scope("run", store="store", state={"n": 1, "lock": threading.Lock()}) as run:
                assert call(reading, "n") == call(reading, "n") == 1
        told = [str(each.message) for each in heard if "oncemore" in each.category.__module__]
        assert len(told) == 1, told
        assert "Worker processes do not get state['lock']: it is a " in told[0]
    """
    check(script, body, kind)


def test_a_forked_child_has_the_state_of_then_and_its_own_from_there(script: Script) -> None:
    body = """
        with checkpoint_scope("run", store="store", state={"list": [1]}) as run:
            run.state["n"] = 1
            call = begin("forked")
            run.state["n"] = 2
            assert call(reading, "n") == 1
            assert call(adding, 2) == [1, 2]
            assert dict(run.state) == {"list": [1], "n": 2}
    """
    check(script, body, "forked")
