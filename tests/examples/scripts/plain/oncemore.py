"""The names that a script takes from oncemore, without oncemore: what the script does by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


def checkpointed(function: Any = None, **options: Any) -> Any:
    return function if function is not None else lambda function: function


class _Run:
    def __init__(self, state: dict[str, Any]) -> None:
        self.state = SimpleNamespace(**state)

    def loop(self, name: str, items: Iterable[Any], **options: Any) -> Iterator[Any]:
        return iter(items)


@contextmanager
def checkpoint_scope(*args: Any, state: dict[str, Any] = {}, **options: Any) -> Iterator[_Run]:
    yield _Run(state)
