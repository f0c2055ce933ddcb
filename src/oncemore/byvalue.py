"""Pickles of what plain pickle refuses: lambdas, local classes, modules."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle


class Pickler(cloudpickle.Pickler):
    """cloudpickle, but what the script itself defines goes by name, so that a recalled object is of the script's own class."""

    def __init__(self, *args: Any, name: Callable[[Any], Any] | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._name = name

    def persistent_id(self, obj: Any, /) -> Any:
        return None if self._name is None else self._name(obj)

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__" and isinstance(getattr(obj, "__qualname__", None), str):
            try:
                if pickle.loads(pickle.dumps(obj)) is obj:
                    return NotImplemented
            except Exception:  # not reachable by name: by value then
                pass
        return super().reducer_override(obj)
