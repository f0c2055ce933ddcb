"""The content hash of numpy's arrays, scalars and generators."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oncemore.errors import FingerprintError
from oncemore.identity.values import digest

GRID = np.arange(24, dtype="i4").reshape(4, 6)


def all_unequal(candidates: list[Any]) -> bool:
    return len({digest(value) for value in candidates}) == len(candidates)


# --- equal ----------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "a copy": GRID.copy(),
    "in Fortran order": np.asfortranarray(GRID),
    "every second column of a wider one": np.repeat(GRID, 2, axis=1)[:, ::2],
    "reversed twice": np.ascontiguousarray(GRID[::-1])[::-1],
    "a transposed transpose": np.ascontiguousarray(GRID.T).T,
    "read-only": np.frombuffer(GRID.tobytes(), "i4").reshape(4, 6),
    "spelled in native order": GRID.astype("=i4"),
    "a part of a larger one": np.pad(GRID, 3)[3:-3, 3:-3],
    "pickled": pickle.loads(pickle.dumps(GRID)),
}


@pytest.mark.parametrize("array", LAYOUTS.values(), ids=LAYOUTS)
def test_the_layout_in_memory_does_not_count(array: Any) -> None:
    assert digest(array) == digest(GRID)


def test_an_array_in_a_file_equals_one_in_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", GRID)
    assert digest(np.load(tmp_path / "a.npy", mmap_mode="r")) == digest(GRID)


@pytest.mark.parametrize(
    "dtype", ["f8", "c16", "M8[ns]", "S3", "U2", "V3", "?", "f2", "g", "G", [("a", "i1"), ("b", "f8")]]
)
def test_a_strided_array_of_any_kind_equals_its_copy(dtype: Any) -> None:
    raw = np.zeros(600, dtype)
    raw[::7] = np.ones((), dtype)
    strided = raw.reshape(20, 30)[::3, ::2]
    assert digest(strided) == digest(strided.copy()) == digest(np.asfortranarray(strided))


def test_a_strided_array_larger_than_the_buffer_equals_its_copy() -> None:
    wide = np.arange(1_000_000, dtype="f8").reshape(1000, 1000)
    assert digest(wide.T) == digest(np.ascontiguousarray(wide.T)) != digest(wide)


def test_what_lies_between_the_fields_of_a_structure_does_not_count() -> None:
    dtype = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    one, other = np.frombuffer(bytes(32), dtype), np.frombuffer(b"\0" + b"\xff" * 7 + bytes(24), dtype)
    assert one.tobytes() != other.tobytes()
    assert digest(one) == digest(other)


def test_the_unused_bytes_of_an_extended_float_do_not_count() -> None:
    one = np.ones(4, np.longdouble)
    raw = bytearray(one.tobytes())
    if np.finfo(np.longdouble).nmant == 63:
        raw[10:16] = b"\xaa" * 6
    other = np.frombuffer(bytes(raw), np.longdouble)
    assert digest(one) == digest(other) != digest(one * 2)
    assert digest(one[0]) == digest(other[0])


def test_what_lies_under_a_mask_does_not_count() -> None:
    one = np.ma.array([1, 2, 3], mask=[0, 1, 0])
    other = np.ma.array([1, 9, 3], mask=[0, 1, 0])
    assert digest(one) == digest(other)


def test_shared_and_copied_arrays_are_equal() -> None:
    assert digest([GRID, GRID]) == digest([GRID, GRID.copy()])


def test_arrays_of_objects_are_equal_by_their_elements() -> None:
    one = np.array([1, "a", None, {2, 3}], dtype=object)
    assert digest(one) == digest(copy.deepcopy(one))
    assert digest(np.array([[1, "a"], [2, "b"]], object).T) == digest(np.array([[1, 2], ["a", "b"]], object))


def test_an_array_that_contains_itself_has_an_identity() -> None:
    one, other = np.array([1, None], object), np.array([1, None], object)
    one[1], other[1] = one, other
    assert digest(one) == digest(other)


# --- unequal --------------------------------------------------------------------------------------------------------


def test_one_cell_among_fifty_million_counts() -> None:
    array = np.zeros(50_000_000, "i1")
    before = digest(array)
    array[31_415_926] = 1
    assert digest(array) != before


def test_the_kind_of_element_counts() -> None:
    kinds = ["i1", "u1", "?", "S1", "i2", "i4", "i8", "u8", "f4", "f8", "c8", "M8[s]", "M8[ns]", "m8[s]", "U1", "O"]
    assert all_unequal([np.zeros(3, kind) for kind in kinds])


def test_byte_order_counts() -> None:
    assert all_unequal([np.arange(3, dtype="<i4"), np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4").byteswap()])


def test_shape_counts() -> None:
    shapes = [(6,), (2, 3), (3, 2), (1, 6), (6, 1)]
    assert all_unequal(
        [*(np.zeros(shape) for shape in shapes), np.zeros(()), np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(0)]
    )


def test_minus_zero_counts() -> None:
    assert digest(np.array([0.0])) != digest(np.array([-0.0]))


def test_names_offsets_and_size_of_a_structure_count() -> None:
    kinds: list[Any] = [
        [("a", "i4"), ("b", "i4")],
        [("a", "i4"), ("c", "i4")],
        [("b", "i4"), ("a", "i4")],
        {"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]},
        {"names": ["a", "b"], "formats": ["i4", "i4"], "itemsize": 12},
        [("a", "i4", (1,)), ("b", "i4")],
    ]
    assert all_unequal([np.zeros(2, kind) for kind in kinds])


def test_the_content_of_a_field_of_objects_counts() -> None:
    dtype = [("n", "i4"), ("o", object)]
    assert (
        digest(np.array([(1, "x")], dtype))
        == digest(np.array([(1, "x")], dtype))
        != digest(np.array([(1, "y")], dtype))
    )


def test_masks_and_fill_values_count() -> None:
    array = np.ma.array
    masks: list[Any] = [array([1, 2]), array([1, 2], mask=[0, 1]), array([1, 2], mask=[1, 0])]
    assert all_unequal([*masks, array([1, 2], mask=[0, 1], fill_value=7), np.array([1, 2]), np.ma.masked])


def test_the_content_of_a_text_array_counts() -> None:
    text = np.dtypes.StringDType()
    words = ["a", "a longer string that does not fit into the array itself"]
    assert digest(np.array(words, text)) == digest(np.array([*words, "x"], text)[:2])
    assert all_unequal([np.array(words, text), np.array(words[::-1], text), np.array(words), np.array(words, object)])


def test_missing_values_of_a_text_array_count() -> None:
    text = np.dtypes.StringDType(na_object=None)
    assert all_unequal([np.array(["a", None], text), np.array(["a", ""], text), np.array(["a", "None"], text)])


def test_a_transposed_text_array_equals_its_copy() -> None:
    words = np.array([str(i) * 9 for i in range(600)], np.dtypes.StringDType()).reshape(20, 30)
    assert digest(words.T) == digest(words.T.copy()) != digest(words)


def test_subclasses_of_arrays_are_told_apart() -> None:
    records = np.zeros(2, [("a", "i4")])
    assert all_unequal([np.zeros(2), np.zeros(2).view(Annotated), np.ma.array(np.zeros(2))])
    assert digest(records) != digest(records.view(np.recarray))


def test_an_array_of_records_is_told_from_one_of_structures_which_numpy_calls_equal() -> None:
    structure = np.dtype([("a", "i4")])
    record = np.dtype((np.record, structure))
    assert structure == record
    assert digest(np.zeros(2, structure)) != digest(np.zeros(2, record))


class Annotated(np.ndarray):
    note: Any


def test_attributes_of_a_subclass_count() -> None:
    one, other = np.zeros(2).view(Annotated), np.zeros(2).view(Annotated)
    one.note, other.note = "a", "b"
    assert digest(one) != digest(other)


def test_scalars_of_numpy_are_no_numbers_of_python() -> None:
    numbers = [1, 1.0, True, "1", b"1", 1j, np.int64(1), np.int32(1), np.float64(1), np.float32(1), np.bool_(True)]
    others = [np.str_("1"), np.bytes_(b"1"), np.complex128(1), np.datetime64(1, "s"), np.timedelta64(1, "s")]
    assert all_unequal([*numbers, *others, np.array(1), np.longdouble(1), np.datetime64(1, "ns"), np.void(b"1")])


def test_kinds_of_element_are_values_too() -> None:
    assert digest(np.dtype("i4")) == digest(np.dtype(np.int32)) != digest(np.dtype(">i4"))


def test_a_thread_in_an_array_of_objects_is_found() -> None:
    import threading

    with pytest.raises(FingerprintError) as caught:
        digest({"a": np.array([1, threading.Thread()], object)})
    assert (caught.value.kind, caught.value.path) == ("threading.Thread", "['a'][1]")


# --- random generators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_a_generator_is_its_state(bits: Any) -> None:
    one, other = np.random.Generator(bits(5)), np.random.Generator(bits(5))
    assert digest(one) == digest(other) == digest(pickle.loads(pickle.dumps(one)))
    one.random()
    assert digest(one) != digest(other)
    other.random()
    assert digest(one) == digest(other)


def test_generators_of_different_seeds_are_unequal() -> None:
    assert digest(np.random.default_rng(1)) != digest(np.random.default_rng(2))


def test_a_generator_that_has_spawned_another_is_no_longer_the_same() -> None:
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    one.spawn(1)
    assert one.bit_generator.state == other.bit_generator.state
    assert digest(one) != digest(other)


def test_an_old_random_state_is_its_state() -> None:
    one, other = np.random.RandomState(5), np.random.RandomState(5)
    assert digest(one) == digest(other)
    one.standard_normal()
    assert digest(one) != digest(other)
