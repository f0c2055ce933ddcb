"""Values whose content lies elsewhere: in C, in shared memory, in a manager's process, in a mock's calls."""

from __future__ import annotations

import pytest

from tests.processes import Script
from tests.unit.again import skipped_alike

STEPS = """
    import ctypes, itertools, multiprocessing
    from unittest.mock import MagicMock, Mock
    from oncemore import checkpoint_scope, checkpointed

    class Point(ctypes.Structure):
        _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_double)]

    it = MAKE

    @checkpointed
    def change(n):
        print("RAN", n)
        CHANGE

    @checkpointed
    def given(it, n):
        print("RAN", n)
        CHANGE

    with checkpoint_scope("run"):
        print(change(1), change(2), given(it, 3))
    print(SHOW)
"""


@pytest.mark.parametrize(
    ("make", "change", "show", "last"),
    [
        ("multiprocessing.Value('i', 1)", "it.value += n; return it.value", "it.value", "7"),
        ("multiprocessing.Array('i', 3)", "it[0] += n; return it[:]", "it[:]", "[6, 0, 0]"),
        ("multiprocessing.RawArray('d', 2)", "it[1] += n; return it[:]", "it[:]", "[0.0, 6.0]"),
        ("ctypes.c_int(1)", "it.value += n; return it.value", "it.value", "7"),
        ("(ctypes.c_int * 2)(1, 2)", "it[1] += n; return it[:]", "it[:]", "[1, 8]"),
        ("Point(1, 2.5)", "it.x += n; return it.y", "it.x", "7"),
        ("itertools.count(10, 5)", "return next(it)", "next(it)", "25"),
        ("multiprocessing.Manager().dict()", "it[n] = n; return dict(it)", "dict(it)", "{1: 1, 2: 2, 3: 3}"),
        ("multiprocessing.Manager().list()", "it.append(n); return list(it)", "list(it)", "[1, 2, 3]"),
        ("Mock(return_value=4)", "return it(n)", "it(0)", "4"),
        ("MagicMock(**{'get.return_value': [4], 'size': 3})", "return it.get(n), it.size", "it.get()", "[4]"),
    ],
)
def test_what_a_step_does_to_it_is_done_when_it_is_skipped(
    script: Script, make: str, change: str, show: str, last: str
) -> None:
    source = STEPS.replace("MAKE", make).replace("CHANGE", change).replace("SHOW", show)
    assert skipped_alike(script, source).lines[-1] == last


@pytest.mark.parametrize(
    ("make", "edited"),
    [
        ("multiprocessing.Value('i', 1)", "multiprocessing.Value('i', 2)"),
        ("(ctypes.c_int * 2)(1, 2)", "(ctypes.c_int * 2)(1, 3)"),
        ("itertools.count(10)", "itertools.count(11)"),
        ("Mock(return_value=4)", "Mock(return_value=5)"),
        ("MagicMock(**{'get.return_value': 4})", "MagicMock(**{'get.return_value': 5})"),
    ],
)
def test_another_content_counts(script: Script, make: str, edited: str) -> None:
    source = STEPS.replace("CHANGE", "return str(type(it))").replace("SHOW", "1")
    script(source.replace("MAKE", make))
    assert script(source.replace("MAKE", edited)).lines[:2] == ["RAN 1", "RAN 2"]


def test_pointers_mean_nothing_elsewhere(script: Script) -> None:
    source = STEPS.replace("MAKE", "ctypes.pointer(ctypes.c_int(1))").replace("CHANGE", "return 1").replace("SHOW", "1")
    assert "argument `it` is a" in script(source, expect=1).err
