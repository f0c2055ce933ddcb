"""Tensors, models and generators of torch as arguments, in the state and as results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncemore import CheckpointWarning, Run, checkpointed, current_run
from oncemore.errors import FingerprintError
from oncemore.identity.values import data_libraries, digest
from oncemore.modules import loaded
from tests.processes import Script
from tests.unit.again import effects, scope, skipped_alike, twice

torch: Any = pytest.importorskip("torch")


# -- the global generator


def test_a_step_that_draws_nothing_records_no_generator_and_advances_none() -> None:
    @checkpointed
    def nothing(tensor: Any) -> Any:
        return tensor * 2

    def body(run: Run) -> Any:
        torch.manual_seed(3)
        before = torch.get_rng_state()
        nothing(torch.ones(2))
        return effects(run, "nothing"), bool((torch.get_rng_state() == before).all())

    assert twice(body) == ([], True)


def test_a_skipped_step_puts_the_generator_where_it_left_it() -> None:
    @checkpointed
    def draw() -> list[float]:
        return torch.rand(3).tolist()  # type: ignore[no-any-return]

    def body(run: Run) -> Any:
        torch.manual_seed(3)
        return draw(), torch.rand(2).tolist(), draw(), torch.randn(2).tolist()

    assert twice(body)


# -- changed in place


def test_a_view_of_a_changed_tensor_sees_the_change() -> None:
    @checkpointed
    def change(tensor: Any) -> None:
        tensor[0] = 7

    def body(run: Run) -> Any:
        tensor = torch.zeros(2, 2)
        view = tensor[0]
        change(tensor)
        return tensor.tolist(), view.tolist()

    assert twice(body) == ([[7, 7], [0, 0]], [7, 7])


def test_a_tensor_may_be_resized_by_the_step() -> None:
    @checkpointed
    def grow(tensor: Any) -> None:
        tensor.resize_(4).fill_(2)

    def body(run: Run) -> Any:
        tensor = torch.zeros(2)
        grow(tensor)
        return tensor.tolist()

    assert twice(body) == [2, 2, 2, 2]


def test_a_tensor_that_wants_a_gradient_from_now_on_does_so_again() -> None:
    @checkpointed
    def track(tensor: Any) -> None:
        tensor.requires_grad_(True)

    def body(run: Run) -> Any:
        tensor = torch.zeros(2)
        track(tensor)
        return tensor.requires_grad

    assert twice(body) is True


def test_gradients_that_one_step_left_are_there_for_the_next() -> None:
    @checkpointed
    def backward(weights: Any) -> None:
        (weights * 2).sum().backward()

    @checkpointed
    def descend(weights: Any) -> None:
        with torch.no_grad():
            weights -= weights.grad

    def body(run: Run) -> Any:
        weights = torch.ones(2, requires_grad=True)
        backward(weights)
        left = weights.grad.tolist()
        descend(weights)
        return left, weights.tolist()

    assert twice(body) == ([2, 2], [-1, -1])


def test_an_equal_tensor_with_another_gradient_is_another_argument() -> None:
    @checkpointed
    def look(weights: Any) -> Any:
        return weights.grad.tolist()

    def body(run: Run) -> Any:
        found = []
        for factor in (2, 3):
            weights = torch.ones(2, requires_grad=True)
            (weights * factor).sum().backward()
            found.append(look(weights))
        return found

    assert twice(body) == [[2, 2], [3, 3]]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_training_step_leaves_model_optimizer_and_generator_as_if_it_had_run(script: Script, optimizer: str) -> None:
    skipped_alike(
        script,
        f"""
        import torch
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def train(model, optimizer, data):
            print("RAN train")
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(data).pow(2).mean()
                loss.backward()
                optimizer.step()
            return loss.item()

        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(), torch.nn.Linear(3, 1)
        )
        weights = list(model.parameters())
        optimizer = torch.optim.{optimizer}(weights, lr=0.1)
        data = torch.rand(4, 2)
        with checkpoint_scope("run"):
            print(train(model, optimizer, data), train(model, optimizer, data))
        print([p is q for p, q in zip(weights, model.parameters())], optimizer.param_groups[0]["params"][0] is weights[0])
        print([(p.tolist(), p.grad.tolist()) for p in weights], [b.tolist() for b in model.buffers()])
        print(optimizer.state_dict(), torch.rand(2).tolist())
        """,
    )


def test_a_generator_object_is_advanced_by_a_skipped_step() -> None:
    @checkpointed
    def draw(generator: Any) -> Any:
        return torch.rand(2, generator=generator).tolist()

    def body(run: Run) -> Any:
        generator = torch.Generator().manual_seed(3)
        return draw(generator), draw(generator), torch.rand(2, generator=generator).tolist()

    first, second, _ = twice(body)
    assert first != second


def test_a_tensor_in_the_state_is_changed_where_it_lies_and_shared_with_the_result() -> None:
    @checkpointed
    def scale() -> Any:
        run = current_run()
        assert run is not None
        run.state["weights"].mul_(3)
        return run.state["weights"]

    def body(run: Run) -> Any:
        weights = run.state["weights"] = torch.ones(2)
        return scale() is weights, weights.tolist()

    assert twice(body) == (True, [3, 3])


def test_a_tensor_of_overlapping_numbers_that_was_changed_is_told_and_the_step_runs_each_time() -> None:
    @checkpointed
    def change(wide: Any, narrow: Any) -> None:
        narrow.add_(1)

    def body(run: Run) -> Any:
        narrow = torch.zeros(1)
        with pytest.warns(CheckpointWarning, match="`wide` was changed in place"):
            change(narrow.expand(3), narrow)
        return narrow.tolist()

    assert [scope(body)[:2] for _ in range(2)] == [([1], {"change": 1})] * 2


# -- identity


def test_content_counts_and_where_it_lies_does_not() -> None:
    table = torch.arange(6).reshape(2, 3)
    assert digest(table.t()) == digest(table.t().contiguous()) != digest(table)
    complex_numbers = torch.tensor([1 + 2j])
    assert digest(complex_numbers.conj()) == digest(torch.tensor([1 - 2j]))
    assert len({digest(torch.zeros(2, dtype=kind)) for kind in (torch.float32, torch.int32, torch.bfloat16)}) == 3
    assert digest(torch.empty(0)) != digest(torch.empty(0, 1))


def test_a_tensor_that_was_looked_at_can_still_be_resized() -> None:
    tensor = torch.zeros(2)
    digest(tensor)
    assert tensor.resize_(3).shape == (3,)


@pytest.mark.parametrize(
    "make", [lambda: torch.eye(2).to_sparse(), lambda: torch.empty(2, device="meta")], ids=["sparse", "meta"]
)
def test_a_tensor_that_is_not_plain_numbers_has_no_identity(make: Callable[[], Any]) -> None:
    with pytest.raises(FingerprintError, match="Tensor"):
        digest(make())


def test_such_a_tensor_may_be_an_ignored_argument() -> None:
    @checkpointed(ignore=["tensor"])
    def total(tensor: Any) -> Any:
        return tensor.to_dense().sum().item()

    assert twice(lambda run: total(torch.eye(2).to_sparse())) == 2


def test_without_numpy_a_tensor_has_the_same_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.rand(3, 2), torch.tensor(2.5, dtype=torch.bfloat16), torch.empty(0), torch.tensor([True, False])]
    expected = [digest(tensor) for tensor in tensors]
    monkeypatch.setattr(data_libraries, "loaded", lambda name: loaded(name) if name == "torch" else None)
    assert [digest(tensor) for tensor in tensors] == expected
