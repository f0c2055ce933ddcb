"""What `tests/typing/accepted.py` shows to the type checkers is also true when it runs."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import pytest

from oncemore import checkpoint_scope

ACCEPTED = Path(__file__).resolve().parent.parent / "typing" / "accepted.py"


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file as a module, in which `assert_type` looks at the value."""
    pytest.importorskip("typing_extensions")
    spec = importlib.util.spec_from_file_location("accepted", ACCEPTED)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "accepted", module)
    spec.loader.exec_module(module)

    def has_type(value: Any, expected: Any) -> Any:
        assert isinstance(value, get_origin(expected) or expected), (value, expected)
        return value

    monkeypatch.setattr(module, "assert_type", has_type)
    return module


def test_values_have_the_types_that_the_checkers_see(accepted: ModuleType, tmp_path: Path) -> None:
    """In a new run and in a resumed one."""
    (tmp_path / "a").write_text("an input")
    for _ in range(2):
        with checkpoint_scope("typed"):
            accepted.results_keep_their_types()
            accepted.methods_are_bound()
            accepted.steps_are_callables()
            asyncio.run(accepted.awaiting_gives_the_result())
