"""What is known of the functions of a source text: what each compiles to, and what its syntax tree says (see tree.py)."""

from __future__ import annotations
import __future__

import functools
import marshal
import operator
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

from blake3 import blake3

FUTURES: int = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
EDITION = 1  # of what a listing says, and how `key_of` says it: listings of another edition don't count

# A function: its first and last line, decorators included, and what `digest_of_tree` says of it; plain values, to be kept.
Listed: TypeAlias = tuple[int, int, bytes, frozenset[str], tuple[tuple[str, int, str | None, bool], ...]]


class Import(NamedTuple):
    """`import module`, or `from module import name`, in a body.

    `escapes`: what it binds is used otherwise than in `bound.attribute`, as far as one can know.
    """

    module: str
    level: int
    name: str | None
    escapes: bool = True


class Listing(NamedTuple):
    """Functions by what they compile to (`key_of`), and for display the lines of classes by their qualified names."""

    functions: dict[bytes, list[Listed]]
    classes: dict[str, tuple[int, int]]

    def find(self, code: CodeType) -> Listed | None:
        """The function that compiles to exactly this code; of several, any would do, and the nearest is shown."""
        found = self.functions.get(key_of(code), ())
        return min(found, key=lambda each: abs(each[0] - code.co_firstlineno), default=None)


# --- what a code object does ----------------------------------------------------------------------------------------

COUNTING = (
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_flags",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_exceptiontable",
)
_all_of = operator.attrgetter(
    *(name for name in ("co_name", "co_qualname", "co_code", *COUNTING) if hasattr(CodeType, name))
)


def key_of(code: CodeType) -> bytes:
    """Equal for code objects that do the same. Lines and file names don't matter.

    ValueError if it has a constant that no compiler makes.
    """
    return hashed(marshal.dumps(_plain(code), 2))  # in this format, what is equal is written equally


def _plain(value: Any) -> Any:
    """Constants as they are written equally in every process. No constant is a list, so those stand for the others."""
    if isinstance(value, CodeType):
        return [*_all_of(value), *map(_plain, value.co_consts)]
    if isinstance(value, frozenset):
        return [None, *sorted(map(constant, value))]
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def hashed(*pieces: bytes | str) -> bytes:
    """16 bytes that stand for these pieces in this order."""
    encoded = [piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece for piece in pieces]
    return blake3(b"".join([b"%d:%b" % (len(piece), piece) for piece in encoded])).digest(length=16)


def constant(value: object) -> str:
    """A constant with its type; sets in an order of their own."""
    if isinstance(value, str):
        return f"(str {len(value)}:{value})"
    if type(value) is int:
        return f"(int {value:x})"  # in decimal, a large one would be refused
    if isinstance(value, (tuple, frozenset)):
        items = [constant(item) for item in value]
        return f"({type(value).__name__} {len(items)}{''.join(items if isinstance(value, tuple) else sorted(items))})"
    return f"({type(value).__name__} {value!r})"
