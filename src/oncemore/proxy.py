"""An object that stands for another one: what it does not have itself is asked of, and set on, the one behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_OF_ITS_CLASS = ("__doc__", "__module__")  # an object gets these from its class, unless it has its own


class Proxy:
    """Stands for `wrapped`."""

    # What inherits names its own attributes in `__slots__`, and annotates none in its body: that would hide the
    # `__annotations__` of the one behind.

    def __init__(self, wrapped: Any) -> None:
        object.__setattr__(self, "__wrapped__", wrapped)
        for name in _OF_ITS_CLASS:
            object.__setattr__(self, name, getattr(wrapped, name, None))

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "__wrapped__"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._has(name):
            object.__setattr__(self, name, value)
        if name in _OF_ITS_CLASS or not self._has(name):
            setattr(self.__wrapped__, name, value)

    def __delattr__(self, name: str) -> None:
        if self._has(name):
            object.__delattr__(self, name)
        else:
            delattr(self.__wrapped__, name)

    def _has(self, name: str) -> bool:
        return name == "__wrapped__" or any(name in vars(kind) for kind in type(self).__mro__)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        attributes: dict[str, Any] = self.__wrapped__.__dict__
        return attributes

    def __dir__(self) -> Iterable[str]:
        return {*dir(self.__wrapped__), *dir(type(self)), "__wrapped__"}

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == other)

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __str__(self) -> str:
        return str(self.__wrapped__)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {id(self):#x} for {type(self.__wrapped__).__name__} at {id(self.__wrapped__):#x}>"

    def __set_name__(self, owner: type, name: str) -> None:
        told = getattr(type(self.__wrapped__), "__set_name__", None)
        if told is not None:
            told(self.__wrapped__, owner, name)


class Lookalike(Proxy):
    """A proxy that `isinstance` takes for the one behind it."""

    @property
    def __class__(self) -> Any:
        return self.__wrapped__.__class__

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        self.__wrapped__.__class__ = kind

    def __enter__(self) -> Any:
        return self.__wrapped__.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self.__wrapped__.__exit__(*error)
