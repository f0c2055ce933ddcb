"""Whether a call of an effect="once" step is one that was recorded before the step was edited.

Equal calls are found by their keys (identity/calls.py). This module handles the rest: parameters that were renamed, removed or
added, changes of `ignore=` and `key=`, of defaults, of the fields of argument classes, and of the step's own name and module.
The answer is that it is the same call, that it is another one, or that it is unclear.
"""

from __future__ import annotations

import ast
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..codec import Decoded
from ..modules import canonical_name
from . import CallIdentity
from .calls import WHOLE_KEY, steps_made

if TYPE_CHECKING:
    from ..node import Node

SAME_AS, CLEARED = "the same", "another"  # what the user has decided about a call that may be an earlier one

_EQUAL, _SAME, _MAYBE, _OTHER = range(4)  # how two calls are related


@dataclass(frozen=True)
class Recorded:
    """A call that the run has recorded."""

    identity: CallIdentity
    meta: Mapping[str, Any]
    time: float


class Records:
    """All calls that a run has recorded."""

    def __init__(self, calls: Iterable[Recorded]) -> None:
        self.times: dict[str, list[float]] = {}  # by step
        self.apart: dict[str, set[str]] = {}  # by step: the steps that are others, as the user has decided
        self.by_digest: dict[str, Recorded] = {}
        self.by_kind: dict[tuple[Any, ...], list[Recorded]] = {}
        for each in calls:
            self.times.setdefault(each.identity.title, []).append(each.time)
            self.apart.setdefault(each.identity.title, set()).update(each.identity.apart)
            self.by_digest[each.identity.digest] = each
            self.by_kind.setdefault(_kind(each.identity), []).append(each)


def _kind(call: CallIdentity) -> tuple[Any, ...]:
    """Equal for calls of the same version of a step, whose arguments can be compared one by one."""
    return call.module, call.title, call.signature, tuple(sorted(call.closure.items()))


def recognise(exact: Decoded | None, node: Node, records: Callable[[], Records]) -> None:
    """Set `node.call` to the recorded call that the node is, or `node.doubt` if it may be one.

    `exact` is the intent under the node's own key, if there is one.
    """
    now = node.identity
    assert now is not None
    node.doubt = None
    if exact is not None and exact.meta.get("doubt") and not exact.meta.get("settled"):
        exact = None  # a question that the user has not answered; it is asked again
    if exact is not None:
        if exact.meta.get("settled") == SAME_AS:
            node.call = exact.meta["as"]
            return
        was = CallIdentity.from_json(exact.meta["identity"])
        if exact.meta.get("settled") == CLEARED:
            node.identity = was
        if was.values == now.values or exact.meta.get("settled") != "completed":
            return
    relation, found = _nearest(now, records(), node.variants.called(now) if node.variants else ())
    if found is None or (exact is not None and relation != _EQUAL):
        return
    if relation == _MAYBE:
        node.doubt = _doubt(now, found)
    else:
        node.call = found.meta["call"]


def _nearest(now: CallIdentity, records: Records, called: Sequence[Mapping[str, str]]) -> tuple[int, Recorded | None]:
    """The recorded call that is most similar to this one, and the latest of these; None if all are others."""
    least, nearest = _OTHER, records.by_digest.get(now.digest)  # under another key if it was repeated after an edit
    if nearest is not None and nearest.identity.values == now.values:
        return _EQUAL, nearest
    for kind, calls in records.by_kind.items():
        of_step = _OTHER if kind == _kind(now) else _relation_of_steps(calls[0].identity, now, records, called)
        for each in calls if of_step < _OTHER else ():
            relation = max(of_step, _relation_of_values(each.identity, now))
            if relation < _OTHER and relation <= least:
                least, nearest = relation, each
    return least, nearest if least < _OTHER else None


def _relation_of_steps(
    was: CallIdentity, now: CallIdentity, records: Records, called: Sequence[Mapping[str, str]]
) -> int:
    if was.step == now.step and (was.module == now.module or was.file == now.file):
        if was.closure == now.closure:
            return _EQUAL
        return _OTHER if not was.closure or was.closure in called else _MAYBE
    if was.title in now.apart or was.title in records.apart.get(now.title, ()) or not _is_gone(was.file, was.step):
        return _OTHER
    if min(records.times.get(now.title, [sys.float_info.max])) < max(records.times[was.title]):
        return _OTHER  # both steps existed at the same time
    return _SAME if was.step == now.step or (was.code and was.code == now.code) else _MAYBE


def _relation_of_values(was: CallIdentity, now: CallIdentity) -> int:
    if was.ordinal != now.ordinal:
        return _OTHER
    if was.values == now.values and was.keys == now.keys:
        return _EQUAL
    if (WHOLE_KEY in was.values) != (WHOLE_KEY in now.values):
        return _MAYBE
    found, ignored = _SAME, {*was.ignored, *now.ignored}
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for name in {**was.values, **now.values}:
        if name in ignored:
            continue
        if name not in now.values:
            before[name] = was.values[name]
        elif name not in was.values:
            after[name] = now.values[name]
        else:
            found = max(found, _relation_of_value(was, now, name))
    gone = [value for name, value in before.items() if name not in was.defaults]
    new = [value for name, value in after.items() if name not in now.defaults]
    if gone == new and (len(new) < 2 or _all_starred(before) or _all_starred(after)):
        return found
    fewer, more = sorted((Counter(gone), Counter(new)), key=lambda each: each.total())
    return max(found, _MAYBE) if fewer <= more else _OTHER


def _relation_of_value(was: CallIdentity, now: CallIdentity, name: str) -> int:
    if was.keys.get(name) != now.keys.get(name):
        return _MAYBE
    if was.values[name] == now.values[name] or (name in was.defaults and name in now.defaults):
        return _SAME
    then, today = was.pieces.get(name), now.pieces.get(name)
    if then is None or today is None or was.classes.get(name) == now.classes.get(name):
        return _OTHER
    return _MAYBE if all(then[piece] == today[piece] for piece in then.keys() & today.keys()) else _OTHER


def _all_starred(names: Iterable[str]) -> bool:
    return all(name.startswith("*") for name in names)


def _doubt(now: CallIdentity, recorded: Recorded) -> dict[str, str]:
    """The metadata of an intent whose call may be the recorded one."""
    was, meta = recorded.identity, recorded.meta
    shown = {name.removeprefix("argument ").strip("`"): text for name, text in meta.get("shown", {}).items()}
    given = ", ".join(f"{name}={_text(shown.get(name))}" for name in was.values)
    done = "performed" if meta.get("settled") else "started"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(recorded.time))
    message = f"{was.step}({given}) was {done} on {when}"
    if was.title == now.title:
        message += ", before an edit of the step changed what identifies its calls"
    else:
        message += f", and that step no longer exists; if {now.step} is that step, give it the option name={was.step!r}"
    return {"doubt": message, "as": meta["call"], "of": was.title}


def _text(shown: Any) -> str:
    return "..." if not shown else shown if isinstance(shown, str) else str(shown[0])


# -- steps that no longer exist


def _is_gone(module: str, step: str) -> bool:
    """Whether a step is neither defined in this process nor mentioned in the source of its module."""
    if (module, step) in steps_made:
        return False
    path = _file_of(module)
    return path is None or _names_in(path).isdisjoint([step, step.rpartition(".")[2]])


def _file_of(module: str) -> str | None:
    for alias in ("__main__", "__mp_main__"):
        if alias in sys.modules and canonical_name(alias) == module:
            return getattr(sys.modules[alias], "__file__", None)
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None)
    try:
        spec = find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


@lru_cache(100)
def _names_in(path: str) -> frozenset[str]:
    """The functions that a file defines, and its string constants, as `name=` may be one."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    names: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(each.name)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            names.add(each.value)
    return frozenset(names)
