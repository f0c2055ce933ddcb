"""Which files a step declares as its outputs, and which of them exist.

`{param}` in a pattern is replaced as in `str.format`. Only the pattern itself can have wildcards: a `*` in the value of a
parameter is an ordinary character.
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
from ..stores import OURS, in_store, is_store
from . import CallContext

Declared = Union[str, "os.PathLike[str]"]
Outputs = Collection[Declared] | Callable[..., Declared | Iterable[Declared]]
Name = tuple[int | str, str]  # the output's name, and the path below its base

_WILDCARD = r"[*?[]"
_AFTER_NAME = r"[.[]"
_FORMATTER = Formatter()


class Output(NamedTuple):
    """One declared output of a call. `name` is its number, or its path if a callable returned it."""

    name: int | str
    base: str  # the path up to the first component with a wildcard
    rest: str  # the pattern below `base`; empty without wildcards
    shown: str  # as messages show it


def check_outputs(outputs: Outputs, parameter_names: Collection[str], step: str) -> None:
    """UsageError unless the patterns are valid and every placeholder names a parameter of the step."""
    if isinstance(outputs, (str, os.PathLike)):
        raise UsageError(f"step {step}: outputs={outputs!r} must be a list of paths: [{outputs!r}]")
    named = _parameters(outputs)[1] if callable(outputs) else [n for each in outputs for n in _placeholders(each, step)]
    for name in named:
        if name not in parameter_names:
            real = ", ".join(parameter_names) or "none"
            raise UsageError(f"step {step}: outputs names {name!r}, which is no parameter. There are: {real}")


def _placeholders(pattern: Declared, step: str) -> Iterator[str]:
    if not isinstance(pattern, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"step {step}: outputs has {pattern!r}, which is not a path")
    text = os.fspath(pattern)
    try:
        for _, field, spec, _ in _FORMATTER.parse(text):
            if field is not None:
                yield re.split(_AFTER_NAME, field, maxsplit=1)[0]
                yield from _placeholders(spec or "", step)
    except ValueError as error:
        raise UsageError(f"step {step}: outputs has {text!r}, which is not a valid pattern: {error}") from error


def _parameters(function: Callable[..., Any]) -> tuple[list[str] | None, list[str]]:
    """The names of the arguments that a callable takes (None for any), and of those that it requires."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature
        return None, []
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    any_name = any(p.kind == p.VAR_KEYWORD for p in parameters)
    return None if any_name else [p.name for p in named], [p.name for p in named if p.default is p.empty]


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = _parameters(function)[0]
    return {name: value for name, value in arguments.items() if names is None or name in names}


def outputs_of(context: CallContext) -> list[Output]:
    """The declared outputs of one call."""
    declared: Outputs = context.options["outputs"]
    if callable(declared):
        returned = declared(**_accepted(declared, context.arguments))
        paths = [returned] if isinstance(returned, (str, os.PathLike)) else returned
        outputs = [Output(path, path, "", path) for path in (os.fspath(path) for path in paths)]
    else:
        outputs = [_output(i, os.fspath(pattern), context) for i, pattern in enumerate(declared)]
    for output in outputs:
        if not output.base and not output.rest:  # this would be the working directory with everything in it
            raise UsageError(f"step {context.step}: outputs has an empty path: {output.shown}")
    return outputs


def _output(number: int, pattern: str, context: CallContext) -> Output:
    base, rest = "", ""
    for literal, field, spec, conversion in _FORMATTER.parse(pattern):
        wild = re.search(_WILDCARD, literal)
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
    return Output(number, base, rest, shown)


def _filled_in(pattern: str, field: str, spec: str, conversion: Any, context: CallContext) -> str:
    try:
        value = _FORMATTER.convert_field(_FORMATTER.get_field(field, (), context.arguments)[0], conversion)
        spec = _FORMATTER.vformat(spec, (), context.arguments)
        return os.fspath(value) if isinstance(value, os.PathLike) and not spec else format(value, spec)
    except Exception as error:  # attributes and formatting of the user's objects can raise anything
        raise UsageError(f"step {context.step}: outputs={pattern!r}: {type(error).__name__}: {error}") from error


def declaration(context: CallContext) -> list[str] | str:
    """What determines which files are stored: the patterns, or the digest of the callable and its arguments."""
    outputs: Outputs = context.options["outputs"]
    if not callable(outputs):
        return [os.fspath(pattern) for pattern in outputs]
    try:
        return digest((outputs, _accepted(outputs, context.arguments))).hex()
    except FingerprintError:
        return ""


# -- existing files


def files_of(output: Output, here: str) -> dict[Name, str]:
    """The files, folders and links that an output consists of, each with its kind."""
    top = os.path.join(here, output.base)
    if not output.rest:
        starts = [""]
    else:
        found = glob.glob(output.rest, root_dir=top, recursive=True)
        starts = [os.path.normpath(path) for path in found if not in_store(os.path.join(top, path))]
    return {(output.name, path): kind for start in starts for path, kind in _below(top, start, not output.rest)}


def _below(top: str, start: str, declared: bool) -> Iterator[tuple[str, str]]:
    path = os.path.join(top, start) if start else top
    kind = kind_of(path)
    if kind == "link" and declared and os.path.isdir(path):
        kind = "folder"  # an output folder may be a link to a folder elsewhere
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
    """What exists at `path`; None if nothing does."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    known = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
    return known.get(stat.S_IFMT(mode), "neither a file nor a link")
