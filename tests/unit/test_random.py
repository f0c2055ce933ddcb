"""Random generators: what is drawn after a skipped step is what would have been drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from oncemore import Run, checkpointed
from tests.processes import Script
from tests.unit.again import effects, scope, skipped_alike, twice


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    """Tests leave the generators as they were."""
    mine, numpys = random.getstate(), np.random.get_state()
    yield
    random.setstate(mine)
    np.random.set_state(numpys)


def seed(number: int = 1) -> None:
    random.seed(number)
    np.random.seed(number)


@checkpointed
def draw(times: int) -> list[float]:
    return [random.random() for _ in range(times)]


@checkpointed
def draw_numpy(times: int) -> list[float]:
    return np.random.rand(times).tolist()  # type: ignore[no-any-return]


@checkpointed
def draw_nothing(x: int) -> int:
    return x


def next_numbers() -> tuple[float, float, float, float]:
    """One of each, also those that the generators keep a second one of in store."""
    return random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn())


def test_after_a_skipped_step_the_script_draws_what_it_would_have_drawn(script: Script) -> None:
    skipped_alike(
        script,
        """
        import random
        import numpy as np
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def sample(n):
            print("RAN sample")
            random.shuffle(numbers := list(range(n)))
            return numbers, np.random.permutation(n).tolist(), random.gauss(0, 1), np.random.randn()

        @checkpointed
        def train(n):
            print("RAN train")
            return random.random() + np.random.rand()

        random.seed(7)
        np.random.seed(7)
        with checkpoint_scope("run"):
            print(sample(5))
            print(random.random(), random.gauss(0, 1), np.random.rand(3), np.random.randn())
            print(train(1))
            print(random.getrandbits(64), np.random.randint(1 << 30))
        """,
    )


def test_a_step_that_still_has_to_run_draws_what_it_would_have_drawn(script: Script) -> None:
    source = """
        import random, sys
        import numpy as np
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def one():
            print("RAN one")
            return random.random(), np.random.rand()

        @checkpointed
        def two():
            print("RAN two")
            return random.random(), np.random.rand()

        random.seed(3), np.random.seed(3)
        with checkpoint_scope("run", store=sys.argv[1]):
            one()
            print("between")
            print(two())
    """
    whole = script(source, "whole")
    script.kill_at("between", source, "killed")
    rest = script(source, "killed")
    assert whole.lines[-1] == rest.lines[-1]
    assert [line for line in rest.lines if line.startswith("RAN")] in (["RAN two"], [])


def test_without_a_seed_the_next_run_draws_on_where_the_step_had_left_off(script: Script) -> None:
    source = """
        import random
        import numpy as np
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def sample():
            print("RAN sample")
            return random.random(), np.random.rand()

        with checkpoint_scope("run"):
            print(sample(), random.random(), np.random.rand())
    """
    skipped_alike(script, source)


def test_a_step_that_seeds_leaves_its_seed() -> None:
    @checkpointed
    def seeding(number: int) -> None:
        seed(number)

    def body(run: Run) -> Any:
        seed(1)
        random.random()
        seeding(5)
        return next_numbers()

    assert twice(body)


def test_each_generator_is_restored_for_itself() -> None:
    def body(run: Run) -> Any:
        seed()
        draw(3)
        first = next_numbers()
        draw_numpy(3)
        return first, next_numbers(), effects(run, "draw"), effects(run, "draw_numpy")

    assert twice(body)[2:] == (["random"], ["random"])


def test_a_step_that_drew_from_one_generator_leaves_the_others_alone() -> None:
    def body(run: Run) -> float:
        draw(3)
        return float(np.random.rand())

    seed(1)
    first = scope(body)
    random.seed(1)
    np.random.seed(2)  # the script was changed: the step drew nothing from this one
    second = scope(body)
    np.random.seed(2)
    assert (second.ran, second.value) == ({}, float(np.random.rand()))
    assert first.value != second.value


def test_a_step_that_drew_nothing_records_nothing() -> None:
    def body(run: Run) -> list[str]:
        seed()
        draw_nothing(1)
        return effects(run, "draw_nothing")

    assert scope(body).value == []


def test_what_is_left_over_from_a_pair_counts_as_drawn() -> None:
    """The second of two normal numbers comes from a place beside the words."""

    @checkpointed
    def rest(kind: str) -> float:
        return random.gauss(0, 1) if kind == "python" else float(np.random.randn())

    @checkpointed
    def back(times: int) -> int:
        states = random.getstate(), np.random.get_state()
        np.random.binomial(5, 0.5, times)
        np.random.randn(3)
        random.gauss(0, 1)
        random.setstate(states[0])
        np.random.set_state(states[1])
        return times

    def body(run: Run) -> list[float]:
        seed()
        first = [random.gauss(0, 1), float(np.random.randn())]
        found = [*first, rest("python"), rest("numpy"), back(2), *next_numbers()]
        assert (effects(run, "rest"), effects(run, "back")) == (["random"], [])
        return found

    twice(body)


def test_a_step_that_put_the_generator_back_records_nothing() -> None:
    @checkpointed
    def careful() -> float:
        before = random.getstate()
        number = random.random()
        random.setstate(before)
        return number

    def body(run: Run) -> Any:
        seed()
        return careful(), random.random(), effects(run, "careful")

    value = twice(body)
    assert value[0] == value[1]
    assert value[2] == []


def test_neither_recording_nor_loading_draws() -> None:
    def body(run: Run) -> Any:
        seed()
        before = random.getstate(), np.random.get_state()[1].tolist()
        for i in range(5):
            draw_nothing(i)
        return before == (random.getstate(), np.random.get_state()[1].tolist())

    assert twice(body) is True


def test_opening_a_scope_draws_nothing() -> None:
    seed()
    expected = next_numbers()
    seed()
    scope(lambda run: None)
    assert next_numbers() == expected


def test_a_step_inside_another_leaves_the_generator_where_the_outer_one_left_it() -> None:
    @checkpointed
    def around() -> float:
        random.random()
        draw(2)
        return random.random()

    def body(run: Run) -> Any:
        seed()
        return around(), next_numbers()

    first, second = scope(body), scope(body)
    assert (first.ran, second.ran) == ({"draw": 1, "around": 1}, {})
    assert first.value == second.value


def test_an_inner_step_that_is_skipped_counts_for_the_step_around_it() -> None:
    @checkpointed
    def around() -> float:
        draw(2)
        return random.random()

    def body(run: Run) -> Any:
        seed()
        return around(), next_numbers()

    seed()
    scope(lambda run: draw(2))
    first, second = scope(body), scope(body)
    assert (first.ran, second.ran) == ({"around": 1}, {})
    assert first.value == second.value


def test_a_generator_step_draws_between_its_consumers_draws() -> None:
    @checkpointed
    def stream() -> Any:
        for _ in range(3):
            yield random.random(), float(np.random.rand())

    def body(run: Run) -> Any:
        seed()
        return [(item, next_numbers()) for item in stream()], next_numbers()

    assert twice(body)


def test_a_failed_step_is_tried_again_from_where_the_generator_is() -> None:
    @checkpointed
    def fails() -> None:
        random.random()
        raise ValueError

    def body(run: Run) -> float:
        seed()
        with pytest.raises(ValueError):
            fails()
        return random.random()

    assert scope(body).value == scope(body).value


def test_numpys_generator_may_be_of_another_kind() -> None:
    before = np.random.get_bit_generator()  # type: ignore[no-untyped-call]
    try:

        def body(run: Run) -> Any:
            np.random.set_bit_generator(np.random.PCG64(5))  # type: ignore[no-untyped-call]
            return draw_numpy(3), float(np.random.rand())

        assert twice(body)
    finally:
        np.random.set_bit_generator(before)  # type: ignore[no-untyped-call]


def test_a_library_that_the_step_itself_loads_is_restored_too(script: Script) -> None:
    skipped_alike(
        script,
        """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def sample():
            print("RAN sample")
            import numpy as np
            np.random.seed(5)
            return np.random.rand()

        with checkpoint_scope("run"):
            print(sample())
            import numpy as np
            print(np.random.rand(2))
        """,
    )


TORCH = """
    import torch
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def sample():
        print("RAN sample")
        return torch.rand(3).tolist()

    @checkpointed
    def nothing():
        return 1

    torch.manual_seed(5)
    with checkpoint_scope("run"):
        print(sample(), torch.rand(2).tolist(), nothing(), torch.rand(2).tolist())
"""


def test_torchs_generator_is_restored(script: Script) -> None:
    pytest.importorskip("torch")
    skipped_alike(script, TORCH)


def test_whatever_is_called_torch_and_has_a_generator_is_restored(script: Script) -> None:
    """Where torch is not installed, its place is taken by a module with the same five names."""
    script.write(
        """
        import numpy as np

        class Tensor(np.ndarray):
            pass

        _generator = np.random.RandomState(0)

        def manual_seed(number):
            _generator.seed(number)

        def rand(n):
            return _generator.rand(n).view(Tensor)

        def get_rng_state():
            _, words, place, *_ = _generator.get_state()
            return np.append(words, place).view(Tensor)

        def set_rng_state(state):
            _generator.set_state(("MT19937", np.asarray(state[:-1], "uint32"), int(state[-1]), 0, 0.0))
        """,
        "torch.py",
    )
    skipped_alike(script, TORCH)
