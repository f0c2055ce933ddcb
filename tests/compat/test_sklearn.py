"""scikit-learn with our Memory: `Pipeline(memory=...)`, alone and inside `GridSearchCV` with processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("joblib")

from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_memory

from oncemore import History
from oncemore.compat.joblib import Memory
from tests.processes import Script


class Centred(TransformerMixin, BaseEstimator):
    """A transformer that notes its fits in a file."""

    def __init__(self, power: int = 1) -> None:
        self.power = power

    def fit(self, X: Any, y: Any = None) -> Centred:
        with open("fits", "a") as file:
            file.write(f"{self.power} ")
        self.mean_ = X.mean(axis=0)
        return self

    def transform(self, X: Any) -> Any:
        return (X - self.mean_) ** self.power


def fits(folder: Path) -> list[str]:
    path = folder / "fits"
    return sorted(path.read_text().split()) if path.exists() else []


def pipeline(memory: Memory) -> Any:
    return Pipeline([("centred", Centred()), ("model", LogisticRegression(max_iter=300))], memory=memory)


def test_a_pipeline_fits_a_transformer_once(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    memory = Memory(tmp_path / "cache", verbose=0)
    assert check_memory(memory) is memory
    first = pipeline(memory).fit(X, y)
    second = clone(first).fit(X, y)
    assert second.memory is not memory and fits(tmp_path) == ["1"]
    assert (second["centred"].mean_ == first["centred"].mean_).all()  # the transformer comes back fitted
    assert (second.predict(X) == first.predict(X)).all()
    second.set_params(centred__power=2).fit(X, y)
    first.set_params(model__C=10).fit(X, y)
    assert fits(tmp_path) == ["1", "2"]
    pipeline(memory).fit(X[:100], y[:100])
    assert fits(tmp_path) == ["1", "1", "2"]


def test_an_edited_transformer_is_fitted_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = load_iris(return_X_y=True)
    memory = Memory(tmp_path / "cache", verbose=0)
    pipeline(memory).fit(X, y)
    with monkeypatch.context() as edited:
        edited.setattr(Centred, "transform", lambda self, X: X)
        pipeline(memory).fit(X, y)
    assert fits(tmp_path) == ["1", "1"]
    pipeline(memory).fit(X, y)
    assert fits(tmp_path) == ["1", "1"]


SEARCH = """
    import os, time
    from pathlib import Path
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import Pipeline
    from oncemore.compat.joblib import Memory

    class Centred(TransformerMixin, BaseEstimator):
        def __init__(self, power=1):
            self.power = power

        def fit(self, X, y=None):
            while Path("stop").exists() and len(Path("fits").read_text().split()) >= 3:
                time.sleep(0.05)  # until somebody kills this process
            with open("fits", "a") as file:
                file.write(f"{self.power} ")
            self.mean_ = X.mean(axis=0)
            return self

        def transform(self, X):
            return (X - self.mean_) ** self.power

    if __name__ == "__main__":
        X, y = load_iris(return_X_y=True)
        steps = [("centred", Centred()), ("model", LogisticRegression(max_iter=300))]
        pipeline = Pipeline(steps, memory=Memory("cache", verbose=0))
        grid = {"centred__power": [1, 2], "model__C": [1, 10]}
        search = GridSearchCV(pipeline, grid, n_jobs=2, cv=3)
        print("searching", flush=True)
        search.fit(X, y)
        print(search.best_params_, round(search.best_score_, 3))
"""


def test_a_grid_search_in_processes_fits_each_transformer_once_even_if_it_is_killed(
    script: Script, tmp_path: Path
) -> None:
    (tmp_path / "stop").touch()
    (tmp_path / "fits").touch()
    running = script.start(SEARCH)
    running.wait_for("searching", 300)
    recorded: set[str] = set()
    while len(recorded) < 3:
        assert running.process.poll() is None
        recorded = {item.path for item in Memory(tmp_path / "cache", verbose=0).store_backend.get_items()}
    running.kill(family=True)
    (tmp_path / "stop").unlink()
    resumed = script(name="script.py", timeout=300)
    # Two powers and three folds, and the best one on all data. Neither the kill nor the second process cost a fit.
    assert len(fits(tmp_path)) == 7
    assert script(SEARCH, timeout=300).lines == resumed.lines
    assert len(fits(tmp_path)) == 7
    assert History(tmp_path / "cache").verify().findings == ()
