"""Settings of libraries that a step changes: `pandas.options`, `matplotlib.rcParams`, numpy's and decimal's.

What they are before a step counts for code that names the library (see identity/library_settings.py).
"""

from __future__ import annotations

from typing import Any

from ..identity.library_settings import LIBRARIES, changed, put
from . import CallContext, Surrounding

Effect = dict[str, dict[str, Any]]  # by library: "set" to values, and the names that are "default" again


class Settings(Surrounding):
    name = "settings"
    per_item = True

    def before(self, context: CallContext) -> dict[str, dict[str, Any]]:
        return {library: changed(library) for library in LIBRARIES}

    def after(self, context: CallContext, note: dict[str, dict[str, Any]]) -> Effect | None:
        effect: Effect = {}
        for library, then in note.items():
            now = changed(library)
            if now is not then and now != then:
                given = {name: value for name, value in now.items() if name not in then or then[name] != value}
                effect[library] = {"set": given, "default": [name for name in then if name not in now]}
        return effect or None

    def restore(self, context: CallContext, effect: Effect) -> None:
        for library, change in effect.items():
            put(library, change["set"], change["default"])
