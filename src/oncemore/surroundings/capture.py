"""Listening to what a step shows, and showing it again.

Streams are listened to at the level of Python, in the step and in the threads and tasks that it starts: what others print
meanwhile is not taken for the step's, and what child processes or C code write is not seen.
"""

from __future__ import annotations

import logging
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Token
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..current import Around
from ..errors import CheckpointWarning

if TYPE_CHECKING:

    class _ObjectProxy:
        __wrapped__: Any

        def __init__(self, wrapped: object) -> None: ...

else:
    from wrapt import ObjectProxy as _ObjectProxy

# "stdout" or "stderr" with text or bytes, "log" with a record's attributes, "warning" with what warn_explicit takes
Shown = tuple[str, Any]


class Recorder:
    """What one step shows, in order, from when this is made until `stop`."""

    def __init__(self) -> None:
        self.shown: list[Shown] = []
        self.open = True  # until the step ends: a task that it leaves behind still has its context
        self.layers = {hook: hook.start() for hook in _hooks}
        self._token: Token[Any] = _recorders.set((*_recorders.get(), self))

    def stop(self) -> list[Shown]:
        """Listen no longer: what was shown."""
        self.open = False
        _recorders.reset(self._token)
        for hook, layer in self.layers.items():
            hook.stop(layer)
        return list(_joined(self.shown))


_recorders = Around[Recorder]("oncemore_recorders")


class _Layer:
    """Something of ours in the place of something of the process, as long as anybody listens."""

    def __init__(self, hook: _Hook, original: Any) -> None:
        self._hook, self.original = hook, original
        self.ours = hook.wrap(original, self)
        self.listeners = 0

    def note(self, content: Callable[[], Any]) -> None:
        """Let those know that listen here: where streams lead into each other, each step hears one of them."""
        heard = [each for each in _recorders.get() if each.open and each.layers[self._hook] is self]
        if heard:
            shown = self._hook.kind, content()
            for recorder in heard:
                recorder.shown.append(shown)


class _Hook:
    """Where something of one kind is shown: an attribute that a layer can take the place of."""

    _guard = threading.Lock()

    def __init__(self, kind: str, owner: Any, name: str, wrap: Callable[[Any, _Layer], Any]) -> None:
        self.kind, self.wrap = kind, wrap
        self._owner, self._name = owner, name
        self._layers: list[_Layer] = []

    def start(self) -> _Layer | None:
        with self._guard:
            now = getattr(self._owner, self._name)
            if now is None:  # a process without standard streams
                return None
            layer = next((layer for layer in self._layers if layer.ours is now), None)
            if layer is None:
                layer = _Layer(self, now)
                self._layers.append(layer)
                setattr(self._owner, self._name, layer.ours)
            layer.listeners += 1
            return layer

    def stop(self, layer: _Layer | None) -> None:
        with self._guard:
            if layer is not None:
                layer.listeners -= 1
                if not layer.listeners:
                    self._layers.remove(layer)
                    if getattr(self._owner, self._name) is layer.ours:  # else something was put over it: it passes on
                        setattr(self._owner, self._name, layer.original)


@contextmanager
def _unnoticed() -> Generator[None, None, None]:
    """While a record or a warning is shown: it is noted as what it is, not as the text that it becomes."""
    token = _recorders.set(())
    try:
        yield
    finally:
        _recorders.reset(token)


class _Tee(_ObjectProxy):
    """A stream, listened to. In all else it is the stream itself."""

    def __init__(self, stream: Any, layer: _Layer) -> None:
        super().__init__(stream)
        self._self_layer = layer  # what begins so is the proxy's own, not the stream's

    def write(self, text: Any) -> Any:
        count = self.__wrapped__.write(text)
        self._self_layer.note(lambda: str(text) if isinstance(text, str) else bytes(text))
        return count

    def writelines(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> Any:
        return _Tee(self.__wrapped__.buffer, self._self_layer)


def _listening_logger(original: Callable[[logging.Logger, logging.LogRecord], None], layer: _Layer) -> Any:
    # Not a handler: with one, logging would no longer be the same (basicConfig, the handler of last resort).
    def callHandlers(self: logging.Logger, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] != "oncemore":  # ours tell about this run, not about the step
            layer.note(lambda: _attributes(record))
        with _unnoticed():
            original(self, record)

    return callHandlers


def _listening_warning(original: Callable[..., None], layer: _Layer) -> Any:
    def showwarning(
        message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
    ) -> None:
        if not issubclass(category, CheckpointWarning):
            layer.note(lambda: _warning(message, category, filename, lineno))
        with _unnoticed():
            original(message, category, filename, lineno, file, line)

    return showwarning


_hooks = (
    _Hook("stdout", sys, "stdout", _Tee),
    _Hook("stderr", sys, "stderr", _Tee),
    _Hook("log", logging.Logger, "callHandlers", _listening_logger),
    _Hook("warning", warnings, "showwarning", _listening_warning),
)


# -- what is kept


def _joined(shown: Iterable[Shown]) -> Iterator[Shown]:
    """Neighbours that go to the same stream as one text: `print` alone writes twice."""
    for (kind, form), group in groupby(shown, lambda each: (each[0], type(each[1]))):
        contents = [content for _, content in group]
        if form in (str, bytes):
            yield kind, form().join(contents)
        else:
            yield from ((kind, content) for content in contents)


def _attributes(record: logging.LogRecord) -> dict[str, Any]:
    """A log record that can be kept: its message complete, its exception as text."""
    found = {**record.__dict__, "args": None, "exc_info": None}
    try:
        found["msg"] = record.getMessage()
    except Exception:  # arguments that do not fit: the handlers say so
        found["msg"] = str(record.msg)
    if record.exc_info and not record.exc_text:
        found["exc_text"] = logging.Formatter().formatException(record.exc_info)
    return {name: _copied(value, repr) for name, value in found.items()}


def _warning(message: Any, category: type[Warning], filename: str, lineno: int) -> tuple[Any, ...]:
    return _copied(message, str), _copied(category, lambda _: UserWarning), filename, lineno


def _copied(value: Any, otherwise: Callable[[Any], Any]) -> Any:
    """The value as it is now, or what stands for it if it cannot be pickled."""
    try:
        return pickle.loads(pickle.dumps(value))
    except Exception:  # a pickle runs the user's classes: anything can come out of it
        return otherwise(value)


def show(kind: str, content: Any) -> None:
    if kind == "warning":
        warnings.warn_explicit(*content)
    elif kind == "log":
        logger = logging.getLogger(content["name"])
        if logger.isEnabledFor(content["levelno"]):
            logger.handle(logging.makeLogRecord(content))
    elif (stream := getattr(sys, kind)) is None:
        return  # a process without standard streams
    elif isinstance(content, str):
        stream.write(content)
    else:
        stream.flush()  # what was printed before comes before
        stream.buffer.write(content)
