"""What the type checkers have to see in code that uses oncemore. Read by mypy and pyright (`make lint`), never run.

`assert_type` is what has to be inferred; a line with `type: ignore[...]` is an error that has to be found, since an
ignore without an error is itself reported. This folder is no package: it would hide the standard library's `typing`
from programs started in `tests`.
"""

from __future__ import annotations

from typing_extensions import assert_type

from oncemore import checkpointed


@checkpointed
def plain(path: str, limit: int = 10) -> list[int]:
    """A step without options."""
    return [len(path)] * limit


@checkpointed(version="2")
def with_options(path: str) -> dict[str, float]:
    """A step with options."""
    return {path: 1.0}


def results_keep_their_types() -> None:
    assert_type(plain("a"), list[int])
    assert_type(plain("a", limit=3), list[int])
    assert_type(with_options("a"), dict[str, float])


def wrong_calls_are_found() -> None:
    plain(3)  # type: ignore[arg-type]
    plain("a", depth=3)  # type: ignore[call-arg]
    with_options()  # type: ignore[call-arg]
