"""Arguments that a step changes in place. When it is skipped, the caller's own objects are changed in the same way."""

from __future__ import annotations

from ..identity.values import Digests
from . import SKIP, CallContext, Surrounding
from .references import Contents, Note


class Arguments(Surrounding):
    name = "arguments"

    def before(self, context: CallContext) -> dict[str, Note]:
        note: dict[str, Note] = {}
        for name in context.arguments:
            objects = context.roots.add("argument", name)
            if objects and context.options["mutates"] and name not in context.options["ignore"]:
                note[name] = context.roots.note("argument", name, context.digests)
        context.digests = None  # releases the objects that they keep alive
        return note or SKIP

    def after(self, context: CallContext, note: dict[str, Note]) -> dict[str, Contents] | None:
        now = Digests()
        found = {name: context.roots.changes("argument", name, before, now=now) for name, before in note.items()}
        return {name: contents for name, contents in found.items() if contents is not None} or None

    def restore(self, context: CallContext, effect: dict[str, Contents]) -> None:
        for name, contents in effect.items():
            context.roots.assign("argument", name, contents)
