"""Which files a step declares as its outputs, and which of them are there.

`{param}` in a pattern is filled in as `str.format` does it. Wildcards are those of the pattern itself: a `*` in the
value of a parameter is a character like any other.
"""

from __future__ import annotations

import glob
import inspect
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from string import Formatter
from typing import Any, NamedTuple, Union

from ..errors import FingerprintError, UsageError
from ..identity.values import digest
from ..stores.folders import OURS, in_store, is_store
from . import CallContext

Declared = Union[str, "os.PathLike[str]"]
Outputs = Collection[Declared] | Callable[..., Declared | Iterable[Declared]]
Name = tuple[int | str, str]  # the place's name, and the path below its base

_MAGIC = r"[*?[]"
_AFTER_NAME = r"[.[]"
_FORM = Formatter()


class Place(NamedTuple):
    """One declared output, its parameters filled in. `name` is its number, or the path itself if a callable gave it."""

    name: int | str
    base: str  # the path, up to the first component with a wildcard
    rest: str  # what is matched below `base`; empty without wildcards
    shown: str


def check_outputs(outputs: Outputs, parameter_names: Collection[str], step: str) -> None:
    """UsageError unless every placeholder names a parameter of the step."""
    if isinstance(outputs, (str, os.PathLike)):
        raise UsageError(f"step {step}: outputs={outputs!r} must be a list of paths: [{outputs!r}]")
    named = _wanted(outputs)[1] if callable(outputs) else [n for each in outputs for n in _placeholders(each, step)]
    for name in named:
        if name not in parameter_names:
            real = ", ".join(parameter_names) or "none"
            raise UsageError(f"step {step}: outputs names {name!r}, which is no parameter. There are: {real}")


def _placeholders(pattern: Declared, step: str) -> Iterator[str]:
    if not isinstance(pattern, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"step {step}: outputs has {pattern!r}, which is not a path")
    text = os.fspath(pattern)
    try:
        for _, field, spec, _ in _FORM.parse(text):
            if field is not None:
                yield re.split(_AFTER_NAME, field, maxsplit=1)[0]
                yield from _placeholders(spec or "", step)
    except ValueError as error:
        raise UsageError(f"step {step}: outputs has {text!r}, which is no pattern: {error}") from error


def _wanted(function: Callable[..., Any]) -> tuple[list[str] | None, list[str]]:
    """The parameters that a callable takes (None: whatever there is), and those that it cannot do without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin that does not tell
        return None, []
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    whatever = any(p.kind == p.VAR_KEYWORD for p in parameters)
    return None if whatever else [p.name for p in named], [p.name for p in named if p.default is p.empty]


def _taken(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = _wanted(function)[0]
    return {name: value for name, value in arguments.items() if names is None or name in names}


def places_of(context: CallContext) -> list[Place]:
    """The declared outputs of one call."""
    outputs: Outputs = context.options["outputs"]
    if callable(outputs):
        given = outputs(**_taken(outputs, context.arguments))
        paths = [given] if isinstance(given, (str, os.PathLike)) else given
        places = [Place(path, path, "", path) for path in (os.fspath(path) for path in paths)]
    else:
        places = [_place(i, os.fspath(pattern), context) for i, pattern in enumerate(outputs)]
    for place in places:
        if not place.base and not place.rest:  # it would be the working directory with all that is in it
            raise UsageError(f"step {context.step}: outputs has an empty path: {place.shown}")
    return places


def _place(number: int, pattern: str, context: CallContext) -> Place:
    base, rest = "", ""
    for literal, field, spec, conversion in _FORM.parse(pattern):
        wild = re.search(_MAGIC, literal)
        if rest or wild is None:
            base, rest = (base, rest + literal) if rest else (base + literal, "")
        else:
            upto = base + literal[: wild.start()]
            base, first = upto[: upto.rfind(os.sep) + 1], upto[upto.rfind(os.sep) + 1 :]
            rest = glob.escape(first) + literal[wild.start() :]
        if field is not None:
            text = _filled_in(pattern, field, spec or "", conversion, context)
            base, rest = (base, rest + glob.escape(text)) if rest else (base + text, "")
    shown = pattern if pattern == base + rest else f"{pattern} ({base + rest})"
    return Place(number, base, rest, shown)


def _filled_in(pattern: str, field: str, spec: str, conversion: Any, context: CallContext) -> str:
    try:
        value = _FORM.convert_field(_FORM.get_field(field, (), context.arguments)[0], conversion)
        spec = _FORM.vformat(spec, (), context.arguments)
        return os.fspath(value) if isinstance(value, os.PathLike) and not spec else format(value, spec)
    except Exception as error:  # the attributes and the formatting of the user's own objects
        raise UsageError(f"step {context.step}: outputs={pattern!r}: {type(error).__name__}: {error}") from error


def declaration(context: CallContext) -> list[str] | str:
    """What the files depend on that are kept: other patterns, or a callable asked otherwise, mean other files."""
    outputs: Outputs = context.options["outputs"]
    if not callable(outputs):
        return [os.fspath(pattern) for pattern in outputs]
    try:
        return digest((outputs, _taken(outputs, context.arguments))).hex()
    except FingerprintError:
        return ""


# -- what is there


def found_at(place: Place, here: str) -> dict[Name, str]:
    """The files, folders and links under a place, each with its kind."""
    top = os.path.join(here, place.base)
    if not place.rest:
        starts = [""]
    else:
        found = glob.glob(place.rest, root_dir=top, recursive=True)
        starts = [os.path.normpath(at) for at in found if not in_store(os.path.join(top, at))]
    return {(place.name, at): kind for start in starts for at, kind in _below(top, start, not place.rest)}


def _below(top: str, start: str, declared: bool) -> Iterator[tuple[str, str]]:
    path = os.path.join(top, start) if start else top
    kind = kind_of(path)
    if kind == "link" and declared and os.path.isdir(path):
        kind = "folder"  # an output folder that lies elsewhere is as good as one that lies here
    if kind is not None:
        yield start, kind
    if kind == "folder" and not is_store(path):
        for folder, folders, files in os.walk(path):
            ours = {name for name in folders if name.startswith(OURS) or is_store(os.path.join(folder, name))}
            folders[:] = [name for name in folders if name not in ours]
            for name in (*folders, *files):
                each = os.path.join(folder, name)
                if not name.startswith(OURS) and (kind := kind_of(each)) is not None:
                    yield os.path.relpath(each, top), kind


def kind_of(path: str) -> str | None:
    """What is at `path`; None if nothing is."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    known = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
    return known.get(stat.S_IFMT(mode), "neither a file nor a link")
