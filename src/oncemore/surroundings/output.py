"""What a step prints, logs and warns about, shown again when it is skipped. Only with `capture_output=True`."""

from __future__ import annotations

from typing import Any

from . import SKIP, CallContext, Surrounding
from .capture import Recorder, Shown, show


class Output(Surrounding):
    name = "output"
    per_item = True

    def before(self, context: CallContext) -> Any:
        return Recorder() if context.options["capture_output"] else SKIP

    def returned(self, context: CallContext, note: Recorder) -> None:
        note.open = False  # oncemore's own warnings from here on are not the step's

    def after(self, context: CallContext, note: Recorder) -> list[Shown] | None:
        return note.stop() or None

    def failed(self, context: CallContext, note: Recorder) -> None:
        note.stop()

    def restore(self, context: CallContext, effect: list[Shown]) -> None:
        for kind, content in effect:
            show(kind, content)
