"""Arguments that a step changed in place: the caller's own objects get the same change when it is skipped."""

from __future__ import annotations

from ..identity.values import Digests
from . import SKIP, Moment, Surrounding
from .references import Contents, Note


class Arguments(Surrounding):
    name = "arguments"

    def before(self, moment: Moment) -> dict[str, Note]:
        note: dict[str, Note] = {}
        for name in moment.arguments:
            objects = moment.roots.add("argument", name)
            if objects and moment.options["mutates"] and name not in moment.options["ignore"]:
                note[name] = moment.roots.note("argument", name, moment.digests)
        moment.digests = None  # they hold all that the walk has met
        return note or SKIP

    def after(self, moment: Moment, note: dict[str, Note]) -> dict[str, Contents] | None:
        now = Digests()
        found = {name: moment.roots.changes("argument", name, before, now=now) for name, before in note.items()}
        return {name: contents for name, contents in found.items() if contents is not None} or None

    def restore(self, moment: Moment, effect: dict[str, Contents]) -> None:
        for name, contents in effect.items():
            moment.roots.assign("argument", name, contents)
