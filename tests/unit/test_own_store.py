"""A memoized function with a store of its own: its results are there, inside scopes and outside."""

from __future__ import annotations

import pickle
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from oncemore import History, UsageError, checkpoint_scope, checkpointed, current_run, memoized, open_store

CALLS = "calls.txt"


def _note(name: str) -> None:
    with open(CALLS, "a") as file:
        file.write(f"{name}\n")


def _calls() -> int:
    return len(Path(CALLS).read_text().splitlines()) if Path(CALLS).exists() else 0


@memoized(store="own")
def double(x: int) -> int:
    _note("double")
    return 2 * x


@checkpointed
def inner(x: int) -> int:
    return x + 1


@memoized(store="own")
def around(x: int) -> int:
    return inner(x)


@memoized(store="own", inputs="observed")
def color() -> str:
    return Path("color.txt").read_text()


@checkpointed(inputs="observed")
def loud_color() -> str:
    return color().upper()


@memoized(store="own")
def drawn() -> float:
    return random.random()


@checkpointed
def drawn_inside() -> float:
    return drawn()


@memoized(store="own")
def knows_a_run() -> bool:
    return current_run() is not None


def _functions(store: str) -> list[str]:
    return [each.function for each in History(store).memo()]


def test_results_are_in_its_store_inside_a_scope_and_outside() -> None:
    assert double(1) == 2
    with checkpoint_scope("a"):
        assert double(1) == 2
        assert double(2) == 4
    with checkpoint_scope("b", store="another"):
        assert double(2) == 4
    assert _calls() == 2
    assert _functions("own") == ["double"]
    assert not History().memo() and not History("another").memo()


@pytest.mark.parametrize("kind", [str, Path, open_store])
def test_a_store_is_a_path_a_url_or_a_store(kind: type, tmp_path: Path) -> None:
    square = memoized(store=kind(str(tmp_path / "own")), name="square")(lambda x: x * x)
    assert square(3) == 9
    assert _functions(str(tmp_path / "own")) == ["square"]


def test_the_steps_that_it_calls_are_recorded_in_no_run() -> None:
    with checkpoint_scope("a") as run:
        assert around(1) == 2
        assert not run.ran
    assert _functions("own") == ["around"]


def test_it_cannot_depend_on_the_run_that_it_is_called_in() -> None:
    with checkpoint_scope("a"):
        assert not knows_a_run()


def test_a_step_that_calls_it_depends_on_the_files_that_it_read() -> None:
    Path("color.txt").write_text("red")
    color()
    with checkpoint_scope("a"):
        assert loud_color() == "RED"  # in which the inner one is skipped
    Path("color.txt").write_text("blue")
    with checkpoint_scope("a"):
        assert loud_color() == "BLUE"


def test_a_step_that_calls_it_depends_on_the_random_numbers_that_it_drew() -> None:
    def scope(seed: int) -> tuple[float, float]:
        with checkpoint_scope("a"):
            random.seed(seed)
            return drawn_inside(), random.random()

    random.seed(1)
    drawn()
    random.seed(1)
    expected = random.random(), random.random()
    assert [scope(1), scope(1)] == [expected] * 2
    random.seed(2)
    assert scope(2) == (random.Random(2).random(), scope(2)[1])
    assert scope(2)[0] != expected[0]


def test_workers_use_its_store() -> None:
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(double, 5).result() == 10
    assert pickle.loads(pickle.dumps(double))(5) == 10
    assert double(5) == 10
    assert _calls() == 1


def test_the_store_is_not_part_of_the_identity() -> None:
    def triple(x: int) -> int:
        _note("triple")
        return 3 * x

    def outer(step: object) -> None:
        @checkpointed(name="outer")
        def calling(x: int) -> int:
            return step(x)  # type: ignore[operator]

        calling(1)

    with checkpoint_scope("a"):
        outer(memoized(store="one")(triple))
    with checkpoint_scope("a") as run:
        outer(memoized(store="two")(triple))
        assert not run.ran


def test_a_step_of_a_run_has_no_store_of_its_own() -> None:
    with pytest.raises(UsageError, match=r"store= is for results that are shared; use @memoized\(store=...\)"):
        checkpointed(store="own")(inner.__wrapped__)
