"""The process: environment variables and the working directory."""

from __future__ import annotations

import os
from typing import Any

from . import Moment, Surrounding


class Process(Surrounding):
    name = "process"
    per_item = True

    def before(self, moment: Moment) -> tuple[dict[str, str], str]:
        return _environment(), _folder()

    def after(self, moment: Moment, note: tuple[dict[str, str], str]) -> dict[str, Any] | None:
        (was, folder), (now, here) = note, self.before(moment)
        effect: dict[str, Any] = {}
        if now != was:
            effect["set"] = {name: value for name, value in now.items() if was.get(name) != value}
            effect["unset"] = [name for name in was if name not in now]
        if here != folder:
            effect["folder"] = here
        return effect or None

    def verify(self, moment: Moment, effect: dict[str, Any] | None) -> str | None:
        folder = effect.get("folder") if effect else None
        return None if folder is None or os.path.isdir(folder) else f"the folder {folder} is gone"

    def restore(self, moment: Moment, effect: dict[str, Any]) -> None:
        os.environ.update(effect.get("set", {}))
        for name in effect.get("unset", ()):
            os.environ.pop(name, None)
        if "folder" in effect:
            os.chdir(effect["folder"])


def _environment() -> dict[str, str]:
    # not `dict(os.environ)`: a variable that another thread removes meanwhile would be a KeyError
    return {name: value for name in os.environ if (value := os.environ.get(name)) is not None}


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed under us
        return ""
