"""Library settings that a step changes: `pandas.options`, `matplotlib.rcParams`, numpy's and decimal's.

Their values before a step are part of its identity if its code names the library (see identity/library_settings.py).
"""

from __future__ import annotations

from typing import Any

from ..identity.library_settings import LIBRARIES, changed, put
from . import CallContext, Surrounding

Effect = dict[str, dict[str, Any]]  # by library: values that were "set", and names reset to their "default"


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
                new = {name: value for name, value in now.items() if name not in then or then[name] != value}
                effect[library] = {"set": new, "default": [name for name in then if name not in now]}
        return effect or None

    def restore(self, context: CallContext, effect: Effect) -> None:
        for library, change in effect.items():
            put(library, change["set"], change["default"])
