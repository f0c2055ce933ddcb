"""What a step shows: standard output and error, log records and warnings. Shown live, and again when it is skipped.

Only with `capture_output=True`; until then, what listens (and `logging`) is not loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..modules import loading
from . import SKIP, Moment, Surrounding

if TYPE_CHECKING:
    from .listening import Recorder, Shown


class Output(Surrounding):
    name = "output"
    per_item = True

    def before(self, moment: Moment) -> Any:
        if not moment.options["capture_output"]:
            return SKIP
        with loading:
            from .listening import Recorder
        return Recorder()

    def returned(self, moment: Moment, note: Recorder) -> None:
        note.open = False  # what we ourselves warn about from here on is not the step's

    def after(self, moment: Moment, note: Recorder) -> list[Shown] | None:
        return note.stop() or None

    def failed(self, moment: Moment, note: Recorder) -> None:
        note.stop()

    def restore(self, moment: Moment, effect: list[Shown]) -> None:
        with loading:
            from .listening import show
        for kind, content in effect:
            show(kind, content)
