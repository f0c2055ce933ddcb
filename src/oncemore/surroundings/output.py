"""What a step shows: standard output and error, log records and warnings. Shown live, and again when it is skipped.

Only with `capture_output=True`.
"""

from __future__ import annotations

from typing import Any

from . import SKIP, Moment, Surrounding
from .capture import Recorder, Shown, show


class Output(Surrounding):
    name = "output"
    per_item = True

    def before(self, moment: Moment) -> Any:
        if not moment.options["capture_output"]:
            return SKIP
        return Recorder()

    def returned(self, moment: Moment, note: Recorder) -> None:
        note.open = False  # what we ourselves warn about from here on is not the step's

    def after(self, moment: Moment, note: Recorder) -> list[Shown] | None:
        return note.stop() or None

    def failed(self, moment: Moment, note: Recorder) -> None:
        note.stop()

    def restore(self, moment: Moment, effect: list[Shown]) -> None:
        for kind, content in effect:
            show(kind, content)
