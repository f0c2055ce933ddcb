"""Kinds of the standard library whose content lies elsewhere: in C, in shared memory, in a manager's process.

They are known by name, as those in builtin_types.py. How they are changed is in surroundings/mutable_types.py.
"""

from __future__ import annotations

import sys
from typing import Any

from .builtin_types import WHOLE, Parts, refuse


def memory_of(value: Any) -> bytes | None:
    """The content of an object of ctypes; None if it holds pointers, which mean nothing elsewhere."""
    ctypes: Any = sys.modules["ctypes"]
    if _has_pointers(type(value)):
        return None
    found: bytes = ctypes.string_at(ctypes.addressof(value), ctypes.sizeof(value))
    return found


def _has_pointers(kind: Any) -> bool:
    inner = getattr(kind, "_type_", None)
    if isinstance(inner, str):  # a number or character: "i"; pointers are these
        return inner in "PzZOX"
    if isinstance(inner, type):
        return not hasattr(kind, "_length_") or _has_pointers(inner)
    fields = [field for base in kind.__mro__ for field in vars(base).get("_fields_", ())]
    return not hasattr(kind, "_fields_") or any(_has_pointers(field[1]) for field in fields)


def _ctypes(value: Any) -> Parts:
    content = memory_of(value)
    return refuse(value) if content is None else Parts("ctypes", [type(value), content])


def _of_manager(proxy: Any) -> Parts:
    try:
        return Parts("managed", [type(proxy).__name__, proxy._getvalue()])
    except Exception:  # the manager is gone, or its process
        return refuse(proxy)


def is_mock(kind: type) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" == "unittest.mock.NonCallableMock" for base in kind.__mro__)


def _mock(value: Any) -> Parts:
    return Parts("mock", [type(value).__name__, *(_configured(value, set()) or ())], "attribute")


def _configured(mock: Any, seen: set[int]) -> list[Any] | None:
    """What a mock was told to be: not its calls, nor what it made up when it was asked. None if nothing."""
    if id(mock) in seen:
        return None
    seen.add(id(mock))
    space, default = vars(mock), sys.modules["unittest.mock"].DEFAULT
    found: list[Any] = []
    configured = {"return_value": space.get("_mock_return_value"), "side_effect": space.get("_mock_side_effect")}
    configured |= {name: each for name, each in sorted(space.get("_mock_children", {}).items()) if is_mock(type(each))}
    hidden = ("_mock_", "_spec_", "method_calls")
    configured |= {name: each for name, each in sorted(space.items()) if not name.startswith(hidden)}
    for name, each in configured.items():
        if is_mock(type(each)):
            each = _configured(each, seen)
        if each is not None and each is not default:
            found += [name, each]
    spec = space.get("_spec_class")
    return [*(["spec", spec] if spec is not None else []), *found] or None


WHOLE["multiprocessing.sharedctypes.SynchronizedBase"] = lambda v: Parts("shared", [type(v).__name__, v.get_obj()])
WHOLE.update(dict.fromkeys([f"_ctypes.{name}" for name in ("_SimpleCData", "Array", "Structure", "Union")], _ctypes))
WHOLE.update(dict.fromkeys([f"multiprocessing.managers.{name}Proxy" for name in ("Dict", "List")], _of_manager))
WHOLE["unittest.mock.NonCallableMock"] = _mock
