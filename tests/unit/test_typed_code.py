"""What `tests/typing` shows to the type checkers is also true when it runs."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_origin

import pytest

from oncemore import checkpoint_scope

FILES = sorted((Path(__file__).resolve().parent.parent / "typing").glob("*.py"))


def _has_type(value: Any, expected: Any) -> Any:
    """An `assert_type` that looks at the value."""
    if not isinstance(expected, str):  # the name of a union
        assert isinstance(value, get_origin(expected) or expected), (value, expected)
    return value


def _load(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"typed_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "assert_type", _has_type)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_values_have_the_types_that_the_checkers_see(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a new run and in a resumed one. Functions without parameters are the examples; a wrong one is for the checkers."""
    pytest.importorskip("typing_extensions")
    module = _load(path, monkeypatch)
    examples = [
        each
        for name, each in vars(module).items()
        if type(each) is FunctionType and not inspect.signature(each).parameters and not name.startswith("wrong_")
    ]
    assert examples
    (tmp_path / "a").write_text("an input")
    for _ in range(2):
        with checkpoint_scope("typed"):
            for example in examples:
                result = example()
                if inspect.iscoroutine(result):
                    asyncio.run(result)
