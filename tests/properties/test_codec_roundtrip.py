"""Whatever value, whatever bytes: what was encoded is decoded to the same, and nothing else is decoded at all."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oncemore import IntegrityError
from oncemore.codec import Decoded, compression, dumps, encode, loads, seal, unseal

SECRET = bytes(32)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | st.datetimes()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.uuids()
)
hashable = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
anything = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(hashable, inner, max_size=5)
        | st.sets(hashable, max_size=5)
        | st.tuples(inner, inner)
        | st.binary().map(bytearray)
    ),
    max_leaves=20,
)
numbers = arrays.arrays(
    arrays.boolean_dtypes()
    | arrays.integer_dtypes(endianness="?")
    | arrays.floating_dtypes(endianness="?")
    | arrays.complex_number_dtypes()
    | arrays.datetime64_dtypes(endianness="=")  # numpy's own pickles lose the other order
    | arrays.unicode_string_dtypes(max_len=3),
    arrays.array_shapes(min_dims=0, min_side=0, max_side=40),
)


def round_trip(value: Any, key: str = "k") -> Any:
    data = b"".join(encode(value, {}, key=key, secret=SECRET).frames)
    return Decoded(data, key=key, secret=SECRET).load()


def same(a: Any, b: Any) -> bool:
    """Equal in type and content, all the way down; NaN is itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (math.isnan(a) and math.isnan(b)))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    return repr(a) == repr(b)


@given(anything)
def test_a_value_comes_back_the_same(value: Any) -> None:
    assert same(round_trip(value), value)
    assert same(loads(dumps(value)), value)


@given(numbers, st.booleans())
def test_an_array_comes_back_the_same(array: Any, transposed: bool) -> None:
    array = array.T if transposed else array
    again = round_trip({"array": array, "view": array[..., :1] if array.ndim else array})
    assert again["array"].dtype == array.dtype
    assert again["array"].shape == array.shape
    assert again["array"].tobytes() == array.tobytes()
    assert again["array"].flags.writeable
    assert again["array"].flags.aligned


@given(st.lists(st.integers(0, 2), max_size=6), anything)
def test_sharing_comes_back_the_same(pattern: list[int], value: Any) -> None:
    parts = [[value], {"value": value}, [None]]
    again = round_trip([parts[i] for i in pattern])
    for i, a in enumerate(pattern):
        for j, b in enumerate(pattern):
            assert (again[i] is again[j]) == (a == b)


@given(st.binary(max_size=3000), st.integers(0, 40), st.sampled_from(["u1", "i2", "f4", "f8", "c16", "S3"]))
def test_a_buffer_comes_back_whatever_packing_was_chosen(noise: bytes, repeated: int, kind: str) -> None:
    whole = noise * (repeated + 1)
    item = np.dtype(kind).itemsize
    array = np.frombuffer(whole[: len(whole) // item * item], kind)
    packed = compression.pack(pickle.PickleBuffer(array))
    assert (
        bytes(compression.unpack(packed.packing, packed.item, memoryview(b"".join(packed.pieces)), packed.raw))
        == array.tobytes()
    )


@given(arrays.arrays(st.sampled_from(["i2", "f4", "f8"]), st.integers(1, 3000)), st.sampled_from([64, 1 << 10]))
def test_numbers_come_back_from_blocks_of_any_number(array: Any, block: int) -> None:
    before, compression._BLOCK = compression._BLOCK, block
    try:
        data = b"".join(compression._compress(memoryview(array.tobytes()), array.itemsize))
        again = compression.unpack(compression.SHUFFLED, array.itemsize, memoryview(data), array.nbytes)
    finally:
        compression._BLOCK = before
    assert bytes(again) == array.tobytes()


@given(
    st.lists(st.binary(max_size=50), min_size=1, max_size=4), st.text(max_size=10), st.binary(min_size=32, max_size=32)
)
def test_what_was_sealed_is_unsealed(frames: list[bytes], key: str, secret: bytes) -> None:
    assert bytes(unseal(b"".join(seal(frames, key, secret)), key, secret)) == b"".join(frames)


@given(anything, st.data())
def test_altered_bytes_are_never_a_value(value: Any, data: st.DataObject) -> None:
    entry = bytearray(b"".join(encode(value, {}, key="k", secret=SECRET, seconds=1.5, time=2.5).frames))
    place = data.draw(st.integers(0, len(entry) - 1))
    entry[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(IntegrityError):
        Decoded(entry, key="k", secret=SECRET)


@given(st.binary(max_size=300), st.text(max_size=10))
def test_arbitrary_bytes_are_never_a_value(junk: bytes, key: str) -> None:
    for data in (junk, b"ONCE\x01" + junk):
        with pytest.raises(IntegrityError):
            Decoded(data, key=key, secret=SECRET)


@given(anything, st.text(max_size=10), st.text(max_size=10))
def test_an_entry_is_a_value_under_its_own_key_only(value: Any, key: str, other: str) -> None:
    entry = b"".join(encode(value, {}, key=key, secret=SECRET).frames)
    if key != other:
        with pytest.raises(IntegrityError):
            Decoded(entry, key=other, secret=SECRET)
    assert same(Decoded(entry, key=key, secret=SECRET).load(), value)
