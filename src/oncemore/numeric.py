"""Numbers, packed in blocks. Each block is made small by what numbers have in common, then compressed.

* Floats that are decimal fractions of few digits (prices, readings) become whole numbers.
* Numbers that grow evenly (times, counters, sorted keys) become their differences.
* The least is taken off, so that the leading bytes of all are zero, and left out.
* The bytes are laid in planes: all first bytes, then all second bytes... Zstandard compresses that several times as fast
  as the numbers themselves, since it need not search for what repeats.

A block is of a size that stays in the processor's cache. docs/explanation/format.md has the layout. It takes numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

BLOCK = 1 << 17  # numbers; a plane is then as long as what Zstandard compresses in one piece
_HEAD = struct.Struct("<BBBxIQQ")  # how, digits, planes, bytes here, the least, the first
_BYTES, _NUMBERS, _DIFFERENCES = 0, 1, 2
_BINARY = 255  # not known to be decimal fractions
_DIGITS = 6  # behind the point

Compress = Callable[[Any], bytes]
Inflate = Callable[[memoryview, memoryview], None]  # what is compressed, and where to


class Way(NamedTuple):
    """How to pack a block."""

    how: int
    digits: int = _BINARY


def ways(samples: Sequence[memoryview], item: int, decimal: bool) -> list[Way]:
    """What is worth a try with these. `decimal`: they are floats, and may be decimal fractions."""
    digits = _digits_of(_floats(b"".join(samples), item)) if decimal else _BINARY
    return [Way(_NUMBERS, digits), Way(_DIFFERENCES, digits)]


def pack(data: memoryview, item: int, way: Way, compress: Compress) -> Iterator[bytes]:
    """The blocks, one after the other: head and content."""
    for start in range(0, data.nbytes, BLOCK * item):
        yield from _pack(data[start : start + BLOCK * item], item, way, compress)


def unpack(data: memoryview, item: int, room: memoryview, inflate: Inflate) -> None:
    """Fill `room` with the numbers of these blocks."""
    import numpy as np

    offset = 0
    for start in range(0, room.nbytes, BLOCK * item):
        how, digits, planes, size, least, first = _HEAD.unpack_from(data, offset)
        offset += _HEAD.size
        content, target = data[offset : offset + size], room[start : start + BLOCK * item]
        offset += size
        if how == _BYTES:
            inflate(content, target)
            continue
        numbers = (
            np.frombuffer(target, f"<u{item}") if digits == _BINARY else np.empty(target.nbytes // item, f"<u{item}")
        )
        _lay(content, planes, numbers, inflate)
        numbers += numbers.dtype.type(least)
        if how == _DIFFERENCES:
            numbers[0] = first
            numbers.cumsum(dtype=numbers.dtype, out=numbers)
        if digits != _BINARY:
            _fractions(numbers.view(f"<i{item}"), digits, _floats(target, item))


def _pack(data: memoryview, item: int, way: Way, compress: Compress) -> tuple[bytes, bytes]:
    import numpy as np

    numbers = np.frombuffer(data, f"<i{item}")
    if way.digits != _BINARY:
        whole = _whole(_floats(data, item), way.digits)
        if whole is None:
            content = compress(data)
            return _HEAD.pack(_BYTES, _BINARY, 0, len(content), 0, 0), content
        numbers = whole
    first = int(numbers[0]) % (1 << 8 * item)
    if way.how == _DIFFERENCES:
        differences = np.zeros_like(numbers)
        np.subtract(numbers[1:], numbers[:-1], out=differences[1:])
        numbers = differences
    least = numbers.min()
    numbers = (numbers - least).view(f"<u{item}")
    planes = (int(numbers.max()).bit_length() + 7) // 8
    table = numbers.view("u1").reshape(-1, item)[:, :planes]
    content = compress(np.ascontiguousarray(table.T))
    return _HEAD.pack(way.how, way.digits, planes, len(content), int(least) % (1 << 8 * item), first), content


def _lay(content: memoryview, planes: int, numbers: Any, inflate: Inflate) -> None:
    """Put the planes back: they are the lowest bytes of the numbers."""
    import numpy as np

    laid = np.empty(planes * len(numbers), "u1")
    inflate(content, laid.data)
    numbers.fill(0)
    table = numbers.view("u1").reshape(len(numbers), -1)
    for plane in range(planes):  # one by one: numpy is slow at turning a whole table
        table[:, plane] = laid[plane * len(numbers) : (plane + 1) * len(numbers)]


# --- decimal fractions ----------------------------------------------------------------------------------------------


def _floats(data: bytes | memoryview, item: int) -> Any:
    import numpy as np

    return np.frombuffer(data, f"<f{item}")


def _digits_of(floats: Any) -> int:
    """How many digits behind the point these have at most, as far as a few of them tell."""
    import numpy as np

    powers = 10.0 ** np.arange(_DIGITS + 1)[:, None]
    with np.errstate(all="ignore"):  # whatever bits they are
        few = floats[:: len(floats) // 64 + 1].astype("<f8")
        fits = ((np.rint(few * powers) / powers).astype(floats.dtype) == few.astype(floats.dtype)).all(axis=1)
    return int(fits.argmax()) if fits.any() else _BINARY


def _whole(floats: Any, digits: int) -> Any:
    """The floats, times ten to the `digits`, as whole numbers, or None if they do not come back from that to the last bit."""
    import numpy as np

    item = floats.dtype.itemsize
    with np.errstate(all="ignore"):
        whole = np.rint(floats.astype("<f8") * 10.0**digits).astype(f"<i{item}")
    back = _fractions(whole, digits, np.empty_like(floats))
    return whole if np.array_equal(back.view(f"<i{item}"), floats.view(f"<i{item}")) else None


def _fractions(whole: Any, digits: int, floats: Any) -> Any:
    import numpy as np

    return np.divide(whole, 10.0**digits, out=floats, dtype="f8", casting="same_kind")
