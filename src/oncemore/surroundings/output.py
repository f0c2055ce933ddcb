"""What a step shows: standard output and error, log records and warnings. Shown live, and again when it is skipped.

Only with `capture_output=True`.
"""

from __future__ import annotations

from typing import Any

from . import SKIP, CallContext, Surrounding
from .capture import Recorder, Shown, show


class Output(Surrounding):
    name = "output"
    per_item = True

    def before(self, context: CallContext) -> Any:
        if not context.options["capture_output"]:
            return SKIP
        return Recorder()

    def returned(self, context: CallContext, note: Recorder) -> None:
        note.open = False  # what we ourselves warn about from here on is not the step's

    def after(self, context: CallContext, note: Recorder) -> list[Shown] | None:
        return note.stop() or None

    def failed(self, context: CallContext, note: Recorder) -> None:
        note.stop()

    def restore(self, context: CallContext, effect: list[Shown]) -> None:
        for kind, content in effect:
            show(kind, content)
