"""What a step prints, logs and warns about, shown again when it is skipped. Only with `capture_output=True`.

Streams are captured in Python, in the step and in the threads and tasks that it starts. What other code prints meanwhile is
not attributed to the step. What child processes or C code write is not captured.
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
from .protocol import CallContext, Surrounding

if TYPE_CHECKING:

    class _ObjectProxy:
        __wrapped__: Any

        def __init__(self, wrapped: object) -> None: ...

else:
    from wrapt import ObjectProxy as _ObjectProxy


# "stdout" or "stderr" with text or bytes, "log" with a record's attributes, "warning" with arguments of warn_explicit
Shown = tuple[str, Any]


class Recorder:
    """Records what one step shows, in order, until `stop`."""

    def __init__(self) -> None:
        self.shown: list[Shown] = []
        self.open = True  # False when the step has ended: a task that outlives it still has its context
        self.layers = {hook: hook.start() for hook in _hooks}
        self._token: Token[Any] = _recorders.set((*_recorders.get(), self))

    def stop(self) -> list[Shown]:
        """Stop recording, and return what was shown."""
        self.open = False
        _recorders.reset(self._token)
        for hook, layer in self.layers.items():
            hook.stop(layer)
        return list(_joined(self.shown))


_recorders = Around[Recorder]("oncemore_recorders")


class _Layer:
    """A replacement for a stream or function of the process, as long as any recorder needs it."""

    def __init__(self, hook: _Hook, original: Any) -> None:
        self._hook, self.original = hook, original
        self.replacement = hook.wrap(original, self)
        self.recorders = 0

    def note(self, content: Callable[[], Any]) -> None:
        """Add to the recorders of this layer. If one stream writes to another, each step records only one of them."""
        recorders = [each for each in _recorders.get() if each.open and each.layers[self._hook] is self]
        if recorders:
            shown = self._hook.kind, content()
            for recorder in recorders:
                recorder.shown.append(shown)


class _Hook:
    """An attribute through which output of one kind passes, and which a layer can replace."""

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
            layer = next((layer for layer in self._layers if layer.replacement is now), None)
            if layer is None:
                layer = _Layer(self, now)
                self._layers.append(layer)
                setattr(self._owner, self._name, layer.replacement)
            layer.recorders += 1
            return layer

    def stop(self, layer: _Layer | None) -> None:
        with self._guard:
            if layer is not None:
                layer.recorders -= 1
                if not layer.recorders:
                    self._layers.remove(layer)
                    if getattr(self._owner, self._name) is layer.replacement:  # else somebody has replaced ours since
                        setattr(self._owner, self._name, layer.original)


@contextmanager
def _not_recorded() -> Generator[None, None, None]:
    """While a log record or warning is shown: it has been recorded as such, not as the text that it becomes."""
    token = _recorders.set(())
    try:
        yield
    finally:
        _recorders.reset(token)


class _Tee(_ObjectProxy):
    """A stream that records what is written to it. Everything else is passed on to the stream."""

    def __init__(self, stream: Any, layer: _Layer) -> None:
        super().__init__(stream)
        self._self_layer = layer  # the prefix makes it an attribute of the proxy

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


def _recording_logger(original: Callable[[logging.Logger, logging.LogRecord], None], layer: _Layer) -> Any:
    # Not a handler: that would change how logging works (basicConfig, the handler of last resort).
    def callHandlers(self: logging.Logger, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] != "oncemore":  # oncemore's own records are not the step's
            layer.note(lambda: _attributes(record))
        with _not_recorded():
            original(self, record)

    return callHandlers


def _recording_warning(original: Callable[..., None], layer: _Layer) -> Any:
    def showwarning(
        message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
    ) -> None:
        if not issubclass(category, CheckpointWarning):
            layer.note(lambda: (_copied(message, str), _copied(category, lambda _: UserWarning), filename, lineno))
        with _not_recorded():
            original(message, category, filename, lineno, file, line)

    return showwarning


_hooks = (
    _Hook("stdout", sys, "stdout", _Tee),
    _Hook("stderr", sys, "stderr", _Tee),
    _Hook("log", logging.Logger, "callHandlers", _recording_logger),
    _Hook("warning", warnings, "showwarning", _recording_warning),
)


# -- what is stored


def _joined(shown: Iterable[Shown]) -> Iterator[Shown]:
    """Join successive writes to the same stream: a single `print` makes two."""
    for (kind, form), group in groupby(shown, lambda each: (each[0], type(each[1]))):
        contents = [content for _, content in group]
        if form in (str, bytes):
            yield kind, form().join(contents)
        else:
            yield from ((kind, content) for content in contents)


def _attributes(record: logging.LogRecord) -> dict[str, Any]:
    """The attributes of a log record in a form that can be pickled: message and exception as text."""
    found = {**record.__dict__, "args": None, "exc_info": None}
    try:
        found["msg"] = record.getMessage()
    except Exception:  # arguments that do not match: the handlers report that
        found["msg"] = str(record.msg)
    if record.exc_info and not record.exc_text:
        found["exc_text"] = logging.Formatter().formatException(record.exc_info)
    return {name: _copied(value, repr) for name, value in found.items()}


def _copied(value: Any, otherwise: Callable[[Any], Any]) -> Any:
    """A copy of the value, or a substitute if it cannot be pickled."""
    try:
        return pickle.loads(pickle.dumps(value))
    except Exception:  # pickling runs code of the user's classes, which can raise anything
        return otherwise(value)


def show(kind: str, content: Any) -> None:
    """Show again what was recorded."""
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
        stream.flush()  # keeps the order with text printed before
        stream.buffer.write(content)


class Output(Surrounding):
    name = "output"
    per_item = True
    option = "capture_output"

    def before(self, context: CallContext) -> Recorder:
        return Recorder()

    def returned(self, context: CallContext, note: Recorder) -> None:
        note.open = False  # oncemore's own warnings from here on are not the step's

    def after(self, context: CallContext, note: Recorder) -> list[Shown] | None:
        return note.stop() or None

    def failed(self, context: CallContext, note: Recorder) -> None:
        note.stop()

    def restore(self, context: CallContext, effect: list[Shown]) -> None:
        for kind, content in effect:
            show(kind, content)
