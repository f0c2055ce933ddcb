"""Surroundings: what a step can read or change besides its arguments and result.

Each kind is one small module that implements `Surrounding`. It notes how things are before a step, reports afterwards what
the step changed (its effect, or None), and applies that effect when the step is skipped. Effects are pickled together with
the result, so objects that they share stay shared. A step without effects costs nothing here when it is skipped.
"""

from __future__ import annotations

from . import block_variables, capture, figures, inputs, objects, outputs, process, rng, state
from .protocol import CallContext as CallContext
from .protocol import Surrounding as Surrounding
from .protocol import Watcher as Watcher
from .protocol import _kinds
from .protocol import change_of as change_of
from .protocol import depend as depend
from .protocol import digest_of as digest_of
from .protocol import kinds as kinds
from .protocol import label_of as label_of
from .protocol import obstacles as obstacles
from .protocol import part_of as part_of
from .protocol import register_surrounding as register_surrounding
from .protocol import repeated as repeated
from .protocol import restore as restore
from .protocol import verifying as verifying

_OURS: tuple[Surrounding, ...] = (
    capture.Output(),  # first: it stops capturing before another kind emits a warning
    inputs.Inputs(),
    outputs.Files(),  # before the process: relative paths are those of the folder in which the step began
    objects.Arguments(),
    objects.Globals(),
    block_variables.BlockVariables(),
    state.StateKind(),
    rng.Generators(),
    process.Process(),
    process.Calls(),
    process.Settings(),  # before figures, which depend on them
    figures.Figures(),
)
_kinds.update({kind.name: kind for kind in _OURS})
