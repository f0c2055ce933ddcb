"""One audit hook for the whole process, shared by all listeners. A hook can't be removed, so it does as little as possible."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Callback = Callable[[tuple[Any, ...]], None]

_listeners: dict[str, tuple[Callback, ...]] = {}


def listen(event: str, callback: Callback) -> None:
    """Call `callback` with the arguments of every audit event of that name, in the thread in which it happens.

    It must not raise: the exception would come out of the audited operation. A callback is registered once.
    """
    if not _listeners:
        sys.addaudithook(_hook)
    known = _listeners.get(event, ())
    if callback not in known:
        _listeners[event] = (*known, callback)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for callback in _listeners.get(event, ()):
        callback(arguments)
