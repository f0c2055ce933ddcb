"""A training loop that survives being killed: weights, momentum and shuffling continue bit for bit.

python examples/training.py            # kill it, run it again
"""

import sys

import numpy as np

from oncemore import checkpoint_scope, checkpointed

EPOCHS = 40


@checkpointed
def make_data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, 20))
    target = (features @ generator.normal(size=20) + generator.normal(size=rows) > 0).astype(float)
    return features, target


def train_epoch(state, features, target) -> float:
    """One pass in random order, with momentum. Everything that must survive a crash is in the run's state."""
    order = np.random.permutation(len(target))
    for batch in np.array_split(order, 50):
        guess = 1 / (1 + np.exp(-features[batch] @ state.weights))
        gradient = features[batch].T @ (guess - target[batch]) / len(batch)
        state.momentum = 0.9 * state.momentum + gradient
        state.weights = state.weights - 0.1 * state.momentum
    guess = 1 / (1 + np.exp(-features @ state.weights))
    return float(-np.mean(target * np.log(guess) + (1 - target) * np.log(1 - guess)))


def main() -> None:
    np.random.seed(7)
    with checkpoint_scope("training", state={"weights": np.zeros(20), "momentum": np.zeros(20), "losses": []}) as run:
        features, target = make_data(20_000, seed=1)
        for epoch in run.loop("train", range(EPOCHS), every=5):
            run.state.losses.append(train_epoch(run.state, features, target))
            print(f"epoch {epoch}: loss {run.state.losses[-1]:.6f}", file=sys.stderr, flush=True)
        print(
            run.state.weights.tobytes().hex(), len(run.state.losses), run.state.losses[-1].hex(), np.random.rand().hex()
        )


if __name__ == "__main__":
    main()
