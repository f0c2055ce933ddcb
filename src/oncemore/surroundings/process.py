"""The process: environment variables and the working directory."""

from __future__ import annotations

import os
from typing import Any

from . import Moment, Surrounding


class Process(Surrounding):
    name = "process"
    per_item = True

    def before(self, moment: Moment) -> tuple[dict[str, str], str]:
        return dict(os.environ), os.getcwd()

    def after(self, moment: Moment, note: tuple[dict[str, str], str]) -> dict[str, Any] | None:
        (was, folder), (now, here) = note, self.before(moment)
        effect: dict[str, Any] = {}
        if now != was:
            effect["set"] = {name: value for name, value in now.items() if was.get(name) != value}
            effect["unset"] = [name for name in was if name not in now]
        if here != folder:
            effect["folder"] = here
        return effect or None

    def restore(self, moment: Moment, effect: dict[str, Any]) -> None:
        os.environ.update(effect.get("set", {}))
        for name in effect.get("unset", ()):
            os.environ.pop(name, None)
        if "folder" in effect:
            os.chdir(effect["folder"])
