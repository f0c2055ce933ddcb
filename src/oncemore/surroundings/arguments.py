"""Arguments that a step changed in place: the caller's own objects get the same change when it is skipped."""

from __future__ import annotations

from typing import Any

from ..errors import CodecError, FingerprintError
from ..fingerprint.values import digest
from . import Moment, Surrounding
from .objects import way


class Arguments(Surrounding):
    name = "arguments"

    def before(self, moment: Moment) -> dict[str, tuple[bytes, dict[int, bytes | None]]]:
        """Each argument's digest, and those of the objects in it that could not be changed back."""
        note: dict[str, tuple[bytes, dict[int, bytes | None]]] = {}
        for name in moment.arguments:
            objects = moment.roots.add("argument", name)
            if not objects or not moment.options["mutates"] or name in moment.options["ignore"]:
                continue
            whole = moment.digests.get(name) or _digest(moment.arguments[name])
            if whole is not None:
                rigid = {i: _digest(obj) for i, obj in enumerate(objects) if way(obj) is None}
                note[name] = whole, rigid
        return note

    def after(self, moment: Moment, note: dict[str, tuple[bytes, dict[int, bytes | None]]]) -> Any:
        changed: dict[str, dict[int, Any]] = {}
        for name, (whole, rigid) in note.items():
            if _digest(moment.arguments[name]) == whole:
                continue
            objects = moment.roots.add("argument", name)
            for i, was in rigid.items():
                if _digest(objects[i]) != was:
                    raise CodecError(
                        f"argument `{name}` was changed in place, and a {type(objects[i]).__name__} cannot be changed "
                        f"again when the step is skipped; return it instead, or say mutates=False if that does not matter"
                    )
            changed[name] = moment.roots.contents("argument", name)
        return changed or None

    def restore(self, moment: Moment, effect: dict[str, dict[int, Any]]) -> None:
        for name, contents in effect.items():
            moment.roots.assign("argument", name, contents)


def _digest(value: Any) -> bytes | None:
    try:
        return digest(value)
    except FingerprintError:
        return None
