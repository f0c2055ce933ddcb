"""Which penalty fits best? Each is tried in a pool of processes."""

from concurrent.futures import ProcessPoolExecutor

import numpy as np

from oncemore import checkpoint_scope, checkpointed

rng = np.random.default_rng(7)
X = rng.normal(size=(60, 4))
y = X @ np.array([1.0, -2.0, 0.0, 0.5]) + rng.normal(scale=0.3, size=60)
PENALTIES = [0.01, 0.1, 1.0, 10.0]
FOLDS = 3


class Ridge:
    def __init__(self, alpha):
        self.alpha = alpha

    def fit(self, X, y):
        self.coef_ = np.linalg.solve(X.T @ X + self.alpha * np.eye(X.shape[1]), X.T @ y)
        return self

    def score(self, X, y):
        return 1 - float(((y - X @ self.coef_) ** 2).sum() / ((y - y.mean()) ** 2).sum())


@checkpointed
def evaluate(alpha):
    print(f"... evaluate {alpha}\n", end="", flush=True)  # one write: the workers share the terminal
    scores = []
    for fold in range(FOLDS):
        test = np.arange(len(y)) % FOLDS == fold
        scores.append(Ridge(alpha).fit(X[~test], y[~test]).score(X[test], y[test]))
    return float(np.mean(scores))


@checkpointed
def refit(alpha):
    print(f"... refit {alpha}\n", end="", flush=True)
    return Ridge(alpha).fit(X, y)


if __name__ == "__main__":
    scores = {}
    with checkpoint_scope("sweep"), ProcessPoolExecutor(1) as pool:
        for alpha, score in zip(PENALTIES, pool.map(evaluate, PENALTIES)):
            scores[alpha] = score
            print(f"--- scored {alpha}\n", end="", flush=True)
        best = refit(max(scores, key=scores.get))
    print("scores:", scores)
    print("best:", best.alpha, best.coef_.tolist())
