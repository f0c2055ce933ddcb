"""Short texts for values and statements: no memory addresses, no secrets, and no user code runs to make them."""

from __future__ import annotations

import ast
import base64
import copy
import enum
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ..modules import loaded
from .code.syntax import UNREADABLE, hashed

if TYPE_CHECKING:
    from .values import Digests

_LONGEST = 60
_MOST_PIECES = 50
_MOST_ROWS = 10_000
_PLAIN = frozenset([type(None), bool, int, float, complex, str, bytes])
_BY_TEXT = frozenset(["datetime", "date", "time", "timedelta", "Decimal", "Fraction", "UUID", "ZoneInfo", "range"])
_SECRET = (
    r"passw(or)?d|passphrase|(^|_)pwd|secret|credential|(^|_)token$|(^|_)auth(orization)?($|_)|bearer|cookie|(^|_)dsn$"
    r"|(api|access|private|signing|encryption|account|storage)_?key|connection_?string"
)
_IN_URL = r"(\w+://[^/\s:@]*):[^/\s@]+@"
_IN_SOURCE = r"""(?P<name>\b\w+)(?P<gap>['"]?\s*(:[^=,()\n]+)?[=:]\s*[rbuf]*)(?P<text>"[^"\n]*"|'[^'\n]*')"""


@dataclass(frozen=True)
class Part:
    """One named part of an identity: its digest, and for people its location, display text and source.

    `pieces` maps what it consists of, one level deep (the keys of a dict, the columns of a frame), to digest and text.
    `rows` has one byte of hash for each row of a small frame.
    """

    digest: str
    where: str = ""
    shown: str = ""
    source: str = ""
    pieces: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    rows: str = ""

    def to_json(self) -> Any:
        """Everything stored of a part besides its digest."""
        return [self.shown, self.pieces, self.rows] if self.pieces or self.rows else self.shown

    @staticmethod
    def from_json(digest: str, stored: Any = "") -> Part:
        """A part from its digest and the output of `to_json`."""
        if isinstance(stored, str):
            return Part(digest, shown=stored)
        shown, pieces, rows = stored
        return Part(digest, shown=shown, pieces={name: (d, text) for name, (d, text) in pieces.items()}, rows=rows)


@functools.lru_cache(1000)
def is_secret(name: str) -> bool:
    """Whether something with this name is probably a credential."""
    return re.search(_SECRET, name, re.IGNORECASE) is not None


def masked(source: str) -> str:
    """Source code with `***` for strings assigned to names that look like credentials."""

    def hide(found: re.Match[str]) -> str:
        return f"{found['name']}{found['gap']}'***'" if is_secret(found["name"]) else found[0]

    return _without_password(re.sub(_IN_SOURCE, hide, source) if '"' in source or "'" in source else source)


def _without_password(text: str) -> str:
    return re.sub(_IN_URL, r"\1:***@", text) if "://" in text else text


def part_of(name: str, value: object, digests: Digests, secret: bool = False) -> Part:
    """The part for a value. FingerprintError if the value has no identity."""
    whole = digests.of(value).hex()
    if secret or is_secret(name):
        return Part(whole, shown=f"#{whole[:8]}")
    try:
        pieces, rows = _taken_apart(value, digests)
    except Exception:  # it has an identity, but raises when its attributes are read
        pieces, rows = {}, ""
    return Part(whole, shown=short(value), pieces=pieces, rows=rows)


def short(value: object) -> str:
    """A text for a value: the value itself if that is short, else its type and size."""
    try:
        text = _without_password(_text(value, 3))
    except Exception:  # a display text must never make a run fail
        return f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _text(value: Any, depth: int) -> str:
    kind: Any = type(value)
    if kind is str or kind is bytes:
        return repr(value if len(value) <= _LONGEST else value[:_LONGEST])
    if kind is int and value.bit_length() > 200:
        return f"<int of {value.bit_length()} bits>"
    if kind in _PLAIN:
        return repr(value)
    if (
        kind.__module__ in ("datetime", "decimal", "fractions", "uuid", "zoneinfo", "builtins")
        and kind.__name__ in _BY_TEXT
    ):
        return str(value)
    if kind in (list, tuple, set, frozenset, dict):
        return _container(value, depth)
    if kind.__module__.startswith("pathlib"):
        return repr(str(value))
    shape = _shape(value, kind)
    if shape is not None:
        return shape
    if issubclass(kind, type):
        return f"{value.__module__}.{value.__qualname__}"
    name = ""  # an attribute of anything else might run the user's code
    if issubclass(kind, enum.Enum):
        name = f" {value._name_}"
    elif kind in (FunctionType, MethodType, BuiltinFunctionType):
        name = f" {value.__qualname__}"
    return f"<{kind.__name__}{name}>"


def _container(value: Any, depth: int) -> str:
    name = type(value).__name__
    if len(value) > 6 or depth == 0:
        return f"<{name} of {len(value):,}>"
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())
        return "{" + ", ".join(f"{_text(k, depth - 1)}: {_hidden(k, v, depth - 1)}" for k, v in items) + "}"
    texts: Iterable[str] = [_text(each, depth - 1) for each in value]
    if isinstance(value, (set, frozenset)):  # sorted, so that the text is the same in every process
        inside = f"{{{', '.join(sorted(texts))}}}"
        return f"frozenset({inside})" if name == "frozenset" else inside
    inside = ", ".join(texts)
    return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"


def _hidden(key: object, value: object, depth: int) -> str:
    return "***" if isinstance(key, str) and is_secret(key) else _text(value, depth)


def _shape(value: Any, kind: type) -> str | None:
    library = kind.__module__.partition(".")[0]
    if library in ("numpy", "torch") and hasattr(value, "shape") and hasattr(value, "dtype"):
        if not value.shape and library == "numpy":
            return str(value)
        return f"<{kind.__name__} {'x'.join(map(str, value.shape))} {value.dtype}>"
    if library in ("pandas", "polars", "pyarrow") and hasattr(value, "shape"):
        return f"<{kind.__name__} {'x'.join(f'{n:,}' for n in value.shape)}>"
    return None


# --- one level deep -------------------------------------------------------------------------------------------------


def _taken_apart(value: Any, digests: Digests) -> tuple[dict[str, tuple[str, str]], str]:
    kind: Any = type(value)
    for library, hashes_of in (("pandas", _pandas_rows), ("polars", _polars_rows)):
        module = loaded(library)
        if module is not None and isinstance(value, module.DataFrame):
            return _columns(value, digests.columns(value)), _rows(value, hashes_of)
    if kind is dict and all(type(key) is str for key in value):
        return _pieces(value, "[{!r}]", digests), ""
    fields: Any = value.__dict__ if type(getattr(value, "__dict__", None)) is dict and not callable(value) else {}
    return _pieces(fields, ".{}", digests), ""


def _pieces(found: Mapping[str, Any], label: str, digests: Digests) -> dict[str, tuple[str, str]]:
    if len(found) > _MOST_PIECES:
        return {}
    pieces: dict[str, tuple[str, str]] = {}
    for name, each in found.items():
        known = digests.get(each)
        if known is not None:  # a registered identity may leave out attributes that have none
            identity = known.hex()
            pieces[label.format(name)] = (identity[:16], f"#{identity[:8]}" if is_secret(name) else short(each))
    return pieces


def _columns(frame: Any, digests: list[bytes]) -> dict[str, tuple[str, str]]:
    if not len(digests) == len(frame.columns) <= _MOST_PIECES:
        return {}
    return {f"column `{name}`": (known.hex()[:16], "") for name, known in zip(frame.columns, digests)}


def _rows(frame: Any, hashes_of: Callable[[Any], Any]) -> str:
    """One byte of hash for each row of a small frame."""
    if not 0 < len(frame) <= _MOST_ROWS or not 0 < len(frame.columns) <= _MOST_PIECES:
        return ""
    try:
        rows = hashes_of(frame)
    except Exception:  # a cell may hold anything
        return ""
    return base64.b85encode((rows >> 56).astype("uint8").tobytes()).decode()


def _pandas_rows(frame: Any) -> Any:
    return loaded("pandas").util.hash_pandas_object(frame, index=False).to_numpy()


def _polars_rows(frame: Any) -> Any:
    return frame.hash_rows().to_numpy()


def rows_differing(before: str, after: str) -> tuple[int, int] | None:
    """How many rows differ, and of how many; None unless both frames have hashes and equally many rows.

    With one byte for each row, about one difference in 256 is missed.
    """
    then, now = base64.b85decode(before), base64.b85decode(after)
    if not then or len(then) != len(now):
        return None
    return sum(a != b for a, b in zip(then, now)), len(now)


# --- statements -----------------------------------------------------------------------------------------------------

_LONGEST_STATEMENT = 200


def statement_text(template: str, parts: Sequence[ast.AST]) -> str:
    """A statement as people may see it: a template with a `{}` for each part.

    Any text in it may be, or may hold, a secret, so texts are shown as digests.
    """
    try:
        text = template.format(*(ast.unparse(_Hiding().visit(copy.deepcopy(each))) for each in parts))
        text = " ".join(text.split())
    except UNREADABLE:
        text = template.replace("{}", "...")
    return text if len(text) <= _LONGEST_STATEMENT else f"{text[: _LONGEST_STATEMENT - 3]}..."


class _Hiding(ast.NodeTransformer):
    """Replaces texts by digests."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return _digest_of(node) if isinstance(node.value, (str, bytes)) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return _digest_of(node)


def _digest_of(node: ast.AST) -> ast.Name:
    return ast.Name(f"#{hashed('text', ast.dump(node)).hex()[:8]}")
