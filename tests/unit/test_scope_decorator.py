"""The scope as a decorator, and refresh= on a scope."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from oncemore import CheckpointWarning, Run, UsageError, checkpoint_scope, checkpointed, current_run
from tests.processes import Script
from tests.unit.again import scope

CALLS: list[Any] = []


@checkpointed(code="version", version="1")
def load(x: int) -> int:
    CALLS.append(x)
    return x + 1


@checkpointed(code="version", version="1")
def train(x: int) -> int:
    CALLS.append(f"train {x}")
    return 10 * x


@checkpointed(code="version", version="1", effect="once")
def pay(x: int) -> int:
    CALLS.append(f"pay {x}")
    return x


@pytest.fixture(autouse=True)
def calls() -> None:
    CALLS.clear()


# -- the decorator


def test_each_call_of_a_decorated_function_is_a_scope_of_the_run() -> None:
    @checkpoint_scope("run")
    def main(x: int, *, y: int = 1) -> tuple[int, str]:
        """What it does."""
        run = current_run()
        assert run is not None
        return load(x) + y, f"{run.id} {run.resumed}"

    assert main(1) == (3, "run False")
    assert main(1, y=5) == (7, "run True")
    assert CALLS == [1]
    assert current_run() is None
    assert (main.__name__, main.__doc__) == ("main", "What it does.")
    assert list(inspect.signature(main).parameters) == ["x", "y"]


def test_each_call_of_a_decorated_coroutine_function_is_a_scope_of_the_run() -> None:
    @checkpoint_scope("run")
    async def main(x: int) -> int:
        await asyncio.sleep(0)
        assert current_run() is not None
        return load(x)

    assert inspect.iscoroutinefunction(main)
    assert asyncio.run(main(1)) == asyncio.run(main(1)) == 2
    assert CALLS == [1]


def test_an_exception_leaves_a_decorated_function_and_the_run_has_failed() -> None:
    @checkpoint_scope("run")
    def main() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        main()
    with checkpoint_scope("run") as run:
        assert [type(event).__name__ for event in run.events()][:2] == ["RunStarted", "RunFailed"]


def test_a_method_can_be_decorated() -> None:
    class Pipeline:
        @checkpoint_scope("run")
        def go(self, x: int) -> int:
            return load(x)

    assert (Pipeline().go(1), Pipeline().go(1), CALLS) == (2, 2, [1])


def test_generators_and_classes_are_refused() -> None:
    def items() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for each in (items, later):
        with pytest.raises(UsageError, match=f"generator .*{each.__name__}.*around the loop"):
            checkpoint_scope("run")(each)
    with pytest.raises(UsageError, match="for functions, not for Script"):
        checkpoint_scope("run")(Script)


def test_a_decorated_script_that_was_killed_goes_on(script: Script) -> None:
    source = """
        import os, time
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def work(x):
            print("ran", x, flush=True)
            if x == 2 and not os.path.exists("go"):
                print("stuck", flush=True)
                time.sleep(600)
            return x

        @checkpoint_scope("nightly")
        def main():
            print(work(1) + work(2))

        main()
    """
    script.kill_at("stuck", source)
    (script.folder / "go").touch()
    assert script(source).lines == ["ran 2", "3"]


# -- refresh=


def test_refresh_runs_every_step_once_more_and_replaces_its_checkpoint() -> None:
    def main(run: Run) -> Any:
        return load(1), load(1), train(1)

    scope(main)
    refreshed = scope(main, refresh=True)
    assert CALLS == [1, "train 1"] * 2
    assert refreshed.reasons == {"load": "refreshed", "train": "refreshed"}
    assert scope(main).ran == {}


@pytest.mark.parametrize("named", ["train", ["train"], {"train"}])
def test_refresh_of_named_steps_leaves_the_others(named: Any) -> None:
    scope(lambda run: (load(1), train(1)))
    assert scope(lambda run: (load(1), train(1)), refresh=named).ran == {"train": 1}


def test_refresh_of_everything_performs_no_effect_again_unless_it_is_named() -> None:
    scope(lambda run: (load(1), pay(1)))
    assert scope(lambda run: (load(1), pay(1)), refresh=True).ran == {"load": 1}
    assert CALLS.count("pay 1") == 1
    assert scope(lambda run: (load(1), pay(1)), refresh=["pay"]).ran == {"pay": 1}


def test_refresh_starts_loops_over_and_a_later_run_continues_the_new_one() -> None:
    def main(run: Run, fails: bool = False) -> None:
        for x in run.loop("epochs", [1, 2, 3]):
            if fails and x == 3:
                raise ValueError("stopped")
            load.__wrapped__(x)

    scope(main)
    with pytest.raises(ValueError, match="stopped"):
        scope(lambda run: main(run, fails=True), refresh=True)
    scope(main)
    assert CALLS == [1, 2, 3, 1, 2, 3]


def test_workers_refresh_as_well(script: Script) -> None:
    source = """
        import sys
        from concurrent.futures import ProcessPoolExecutor
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def work(x):
            print("ran", x, flush=True)
            return x

        if __name__ == "__main__":
            with checkpoint_scope("run", refresh=len(sys.argv) > 1), ProcessPoolExecutor(1) as pool:
                print(list(pool.map(work, [1, 2])))
    """
    assert script(source).lines == ["ran 1", "ran 2", "[1, 2]"]
    assert script(source).lines == ["[1, 2]"]
    assert script(source, "again").lines == ["ran 1", "ran 2", "[1, 2]"]


def test_a_name_to_refresh_that_no_step_has_is_a_warning() -> None:
    checkpointed(name="zebra_crossing")(len)
    told = r"refresh=\['zebra_crosing'\]: no step or loop has this name. Did you mean zebra_crossing"
    with pytest.warns(CheckpointWarning, match=told):
        scope(lambda run: load(1), refresh=["zebra_crosing"])
