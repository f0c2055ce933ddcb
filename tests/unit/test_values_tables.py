"""The content hash of frames and columns: pandas, polars, pyarrow."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from oncemore.codec import dumps, loads
from oncemore.errors import FingerprintError
from oncemore.identity.values import digest


def all_unequal(candidates: list[Any]) -> bool:
    return len({digest(value) for value in candidates}) == len(candidates)


def equal_to_its_copies(value: Any) -> bool:
    return digest(value) == digest(pickle.loads(pickle.dumps(value)))


# --- pandas ---------------------------------------------------------------------------------------------------------


def frame(**changes: Any) -> Any:
    columns: dict[str, Any] = {"i": [1, 2, 3], "f": [0.5, -0.0, float("nan")], "s": ["x", "y", None], "j": [4, 5, 6]}
    return pd.DataFrame({**columns, **changes})


def test_equal_frames_are_equal() -> None:
    assert digest(frame()) == digest(frame())
    assert equal_to_its_copies(frame())


def test_the_blocks_of_a_frame_do_not_count() -> None:
    grown = frame()[["i"]].copy()
    for name in ("f", "s", "j"):
        grown[name] = frame()[name]
    assert digest(grown) == digest(frame())


def test_a_frame_made_from_one_matrix_equals_one_made_from_columns() -> None:
    matrix = np.arange(12.0).reshape(4, 3)
    columns = pd.DataFrame({"a": matrix[:, 0].copy(), "b": matrix[:, 1].copy(), "c": matrix[:, 2].copy()})
    assert digest(pd.DataFrame(matrix, columns=["a", "b", "c"])) == digest(columns)


def test_a_frame_that_was_cut_out_of_another_equals_its_copy() -> None:
    part = pd.concat([frame(), frame()])[3:6]
    assert digest(part) == digest(part.copy())
    assert digest(part.reset_index(drop=True)) == digest(frame())


def test_what_makes_frames_unequal() -> None:
    other_cell, other_type = frame(i=[1, 2, 4]), frame(i=np.array([1, 2, 3], "i4"))
    named, renamed = frame().rename_axis(index="n"), frame().rename(columns={"i": "k"})
    reordered = frame()[["f", "i", "s", "j"]]
    indexed = [frame().set_axis(["a", "b", "c"]), frame().set_axis([5, 6, 7])]
    noted = frame()
    noted.attrs["source"] = "web"
    columns_named = frame().rename_axis(columns="c")
    rows, columns = frame()[:2], frame()[["i", "f"]]
    changed = [other_cell, other_type, named, renamed, reordered, *indexed, noted, columns_named, rows, columns]
    assert all_unequal([frame(), *changed])


def test_one_string_in_a_column_counts() -> None:
    assert digest(frame(s=["x", "y", "z"])) != digest(frame(s=["x", "y", "w"]))


def test_a_flag_of_a_frame_does_not_count() -> None:
    flagged = frame().set_flags(allows_duplicate_labels=False)
    assert digest(flagged) == digest(frame())


KINDS: dict[str, tuple[Any, Any]] = {
    "numbers": (pd.Series([1, 2]), pd.Series([1, 3])),
    "objects": (pd.Series(["a", 1], dtype=object), pd.Series(["a", 2], dtype=object)),
    "nullable integers": (pd.Series([1, None], dtype="Int64"), pd.Series([1, 0], dtype="Int64")),
    "nullable floats": (pd.Series([1, None], dtype="Float64"), pd.Series([1, 0], dtype="Float64")),
    "nullable booleans": (pd.Series([True, None], dtype="boolean"), pd.Series([True, False], dtype="boolean")),
    "strings": (pd.Series(["a", None], dtype="string[python]"), pd.Series(["a", ""], dtype="string[python]")),
    "arrow strings": (pd.Series(["a", None], dtype="string[pyarrow]"), pd.Series(["a", ""], dtype="string[pyarrow]")),
    "arrow integers": (pd.Series([1, None], dtype="int64[pyarrow]"), pd.Series([1, 0], dtype="int64[pyarrow]")),
    "moments": (pd.Series(pd.date_range("2024", periods=2)), pd.Series(pd.date_range("2025", periods=2))),
    "zones": (
        pd.Series(pd.date_range("2024", periods=2, tz="UTC")),
        pd.Series(pd.date_range("2024", periods=2, tz="Europe/Berlin")),
    ),
    "durations": (pd.Series(pd.to_timedelta([1, 2], "s")), pd.Series(pd.to_timedelta([1, 3], "s"))),
    "periods": (
        pd.Series(pd.period_range("2024", periods=2, freq="M")),
        pd.Series(pd.period_range("2024", periods=2, freq="D")),
    ),
    "intervals": (pd.Series(pd.interval_range(0, 2)), pd.Series(pd.interval_range(0, 2, closed="left"))),
    "sparse": (pd.Series([0, 0, 1], dtype="Sparse[int]"), pd.Series([0, 1, 0], dtype="Sparse[int]")),
    "categories": (pd.Series(["a", "b"], dtype="category"), pd.Series(["b", "a"], dtype="category")),
    "an index of moments": (pd.date_range("2024", periods=2), pd.date_range("2024", periods=2, freq="h")),
    "an index of ranges": (pd.RangeIndex(3), pd.RangeIndex(1, 4)),
    "a named index": (pd.Index([1, 2], name="a"), pd.Index([1, 2], name="b")),
    "an index of levels": (
        pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["x", "y"]),
        pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["x", "z"]),
    ),
    "a timestamp": (pd.Timestamp("2024", tz="UTC"), pd.Timestamp("2024")),
    "a timedelta": (pd.Timedelta("1s"), pd.Timedelta("2s")),
    "a period": (pd.Period("2024-01", "M"), pd.Period("2024-01-01", "D")),
    "an interval": (pd.Interval(0, 1), pd.Interval(0, 1, closed="both")),
    "what is missing": (pd.NaT, pd.NA),
    "an offset": (pd.offsets.MonthEnd(1), pd.offsets.MonthEnd(2)),
    "a kind of column": (pd.CategoricalDtype(["a", "b"]), pd.CategoricalDtype(["b", "a"])),
}


@pytest.mark.parametrize(("one", "other"), KINDS.values(), ids=KINDS)
def test_a_value_of_pandas_is_its_content(one: Any, other: Any) -> None:
    assert equal_to_its_copies(one)
    assert equal_to_its_copies([other])
    assert digest(one) != digest(other)


def test_columns_of_different_kinds_are_unequal() -> None:
    kinds = ["int64", "Int64", "int64[pyarrow]", "float64", "object", "category", "string[python]", "string[pyarrow]"]
    assert all_unequal([pd.Series([1, 2]).astype(kind) for kind in kinds])


def test_what_lies_under_a_missing_value_does_not_count() -> None:
    array = pd.arrays.IntegerArray
    mask = np.array([False, True])
    assert digest(array(np.array([1, 7]), mask)) == digest(array(np.array([1, 9]), mask))


def test_categories_and_their_order_count() -> None:
    values = ["a", "b"]
    kinds = [["a", "b"], ["b", "a"], ["a", "b", "c"]]
    frames = [pd.Categorical(values, categories=kind, ordered=ordered) for kind in kinds for ordered in (False, True)]
    assert all_unequal([*frames, values])


def test_levels_that_no_row_uses_do_not_count() -> None:
    whole = pd.MultiIndex.from_product([["a", "b"], [1, 2]])
    assert digest(whole[:2]) == digest(whole[:2].remove_unused_levels())


def test_arrow_strings_are_equal_however_they_are_cut() -> None:
    words = [f"word {i}" if i % 3 else None for i in range(100)]
    whole = pd.Series(words, dtype="string[pyarrow]")
    cut = pd.concat([whole[:10], whole[10:37], whole[37:]])
    assert digest(cut) == digest(whole)
    assert digest(pd.concat([whole, whole])[50:150].reset_index(drop=True)) == digest(
        pd.Series(words[50:] + words[:50], dtype="string[pyarrow]")
    )


class Survey(pd.DataFrame):
    _metadata = ["origin"]  # type: ignore[misc]

    @property
    def _constructor(self) -> Any:
        return Survey


@pytest.mark.filterwarnings("ignore:Pandas doesn't allow columns")
def test_a_frame_of_ones_own_is_its_class_and_what_it_carries_along() -> None:
    one, other = Survey({"a": [1]}), Survey({"a": [1]})
    one.origin, other.origin = "north", "south"
    assert all_unequal([one, other, pd.DataFrame({"a": [1]})])


def test_a_thread_in_a_frame_is_found() -> None:
    import threading

    with pytest.raises(FingerprintError, match=r"threading.Thread"):
        digest(pd.DataFrame({"a": [threading.Thread()]}))


# --- polars ---------------------------------------------------------------------------------------------------------

SERIES: dict[str, tuple[Any, Any]] = {
    "numbers": (pl.Series([1, None, 3]), pl.Series([1, 0, 3])),
    "floats": (pl.Series([0.0, None]), pl.Series([-0.0, None])),
    "strings": (pl.Series(["a", None]), pl.Series(["a", ""])),
    "booleans": (pl.Series([True, None]), pl.Series([True, False])),
    "bytes": (pl.Series([b"a", None]), pl.Series([b"b", None])),
    "dates": (pl.Series([dt.date(2024, 1, 1)]), pl.Series([dt.date(2024, 1, 2)])),
    "moments": (pl.Series([dt.datetime(2024, 1, 1), None]), pl.Series([dt.datetime(2024, 1, 2), None])),
    "durations": (pl.Series([dt.timedelta(1)]), pl.Series([dt.timedelta(2)])),
    "times": (pl.Series([dt.time(1)]), pl.Series([dt.time(2)])),
    "decimals": (pl.Series([decimal.Decimal("1.5")]), pl.Series([decimal.Decimal("1.6")])),
    "lists": (pl.Series([[1, 2], [], None]), pl.Series([[1], [2], None])),
    "lists of nothing": (pl.Series([[], None], dtype=pl.List(pl.Int8)), pl.Series([None, []], dtype=pl.List(pl.Int8))),
    "arrays": (pl.Series([[1, 2]], dtype=pl.Array(pl.Int8, 2)), pl.Series([[2, 1]], dtype=pl.Array(pl.Int8, 2))),
    "structures": (pl.Series([{"a": 1, "b": "x"}, None]), pl.Series([{"a": 1, "b": "y"}, None])),
    "lists of structures": (pl.Series([[{"a": [1]}], []]), pl.Series([[{"a": [2]}], []])),
    "categories": (pl.Series(["a", "b"], dtype=pl.Categorical), pl.Series(["b", "a"], dtype=pl.Categorical)),
    "enumerations": (
        pl.Series(["a"], dtype=pl.Enum(["a", "b"])),
        pl.Series(["a"], dtype=pl.Enum(["b", "a"])),
    ),
    "nothing": (pl.Series([None]), pl.Series([None, None])),
    "names": (pl.Series("a", [1]), pl.Series("b", [1])),
    "kinds": (pl.Series([1], dtype=pl.Int8), pl.Series([1], dtype=pl.Int16)),
    "zones": (
        pl.Series([dt.datetime(2024, 1, 1)]).dt.replace_time_zone("UTC"),
        pl.Series([dt.datetime(2024, 1, 1)]).dt.replace_time_zone("Europe/Berlin"),
    ),
}


@pytest.mark.parametrize(("one", "other"), SERIES.values(), ids=SERIES)
def test_a_series_of_polars_is_its_content(one: Any, other: Any) -> None:
    assert equal_to_its_copies(one)
    assert digest(one) == digest(pl.concat([one, one])[: len(one)])
    assert digest(one) != digest(other)


def test_the_chunks_of_a_polars_frame_do_not_count() -> None:
    one = pl.DataFrame({"i": [1, None, 3], "s": ["x", "y", None], "l": [[1], [], None]})
    pieces = pl.concat([one[:1], one[1:2], one[2:]], rechunk=False)
    assert pieces.n_chunks() == 3
    assert digest(pieces) == digest(pieces.rechunk()) == digest(one)


def test_a_category_is_its_text_whatever_its_number() -> None:
    one = pl.Series(["a", "b"], dtype=pl.Categorical)
    other = pl.Series(["b", "a", "b"], dtype=pl.Categorical)[1:]
    assert digest(one) == digest(other)


def test_names_and_order_of_columns_of_a_polars_frame_count() -> None:
    one = pl.DataFrame({"a": [1], "b": [2]})
    assert all_unequal([one, one.select("b", "a"), one.rename({"a": "c"}), one.head(0), one.select("a"), one.to_dict()])


def planned(least: int = 1, items: list[int] = [1, 2]) -> pl.LazyFrame:
    return pl.DataFrame({"a": items, "b": ["Python", None]}).lazy().filter(pl.col("a") > least).sort("b")


def test_a_lazy_frame_of_polars_is_its_plan() -> None:
    assert digest(planned()) == digest(planned())
    other = [planned(0), planned(items=[1, 3]), planned().reverse(), planned().collect(), pl.scan_csv("a.csv")]
    assert all_unequal([planned(), *other, pl.scan_csv("b.csv"), pl.col("a") > 1, pl.col("a") > 2])


def test_a_lazy_frame_of_polars_comes_back() -> None:
    assert loads(dumps(planned())).collect().equals(planned().collect())


@pytest.mark.parametrize(
    "make",
    [
        lambda: planned().map_batches(str),
        lambda: planned().map_batches(lambda frame: frame),
        lambda: planned().with_columns(pl.col("a").map_elements(abs, return_dtype=pl.Int64)),
        lambda: pl.col("a").map_batches(abs),
    ],
    ids=["named function", "lambda", "function of elements", "expression"],
)
def test_a_plan_that_calls_a_python_function_has_no_identity_as_it_does_not_tell_the_functions_code(
    make: Callable[[], Any],
) -> None:
    with pytest.raises(FingerprintError, match="which has no stable identity") as caught:
        digest(make())
    assert "Python function" in str(caught.value.__cause__)


# --- pyarrow --------------------------------------------------------------------------------------------------------

COLUMNS: dict[str, list[Any]] = {
    "integers": [1, None, 3, 4],
    "floats": [1.5, None, -0.0, 2.0],
    "booleans": [True, None, False, True],
    "strings": ["a", None, "", "long enough to be stored apart"],
    "moments": [dt.datetime(2024, 1, 1), None, dt.datetime(2025, 1, 1), None],
    "lists": [[1], None, [], [2, 3]],
    "structures": [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 2, "b": None}],
    "times": [dt.time(1, 2, 3), None, dt.time(4), None],
    "durations": [dt.timedelta(1), None, dt.timedelta(2), None],
}


@pytest.mark.parametrize("items", COLUMNS.values(), ids=COLUMNS)
def test_the_chunks_of_an_arrow_column_do_not_count(items: list[Any]) -> None:
    whole = pa.array(items)
    shifted = pa.array([items[-1], *items])[1:]
    cut = pa.chunked_array([whole[:1], whole[1:3], whole[3:]])
    assert digest(whole) == digest(shifted) == digest(cut)
    assert digest(whole) != digest(whole[::-1] if hasattr(whole, "step") else pa.array(items[::-1]))


def test_names_and_types_of_an_arrow_table_count() -> None:
    one = pa.table({"a": [1, None], "b": ["x", None]})
    assert digest(one) == digest(pa.concat_tables([one[:1], one[1:]]))
    others = [one.rename_columns(["a", "c"]), one.select(["b", "a"]), one[:1], one.replace_schema_metadata({"k": "v"})]
    assert all_unequal([one, *others, one.set_column(0, "a", one["a"].cast("int32"))])


KINDS = [
    pa.time32("s"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
    pa.duration("ns"),
    pa.date32(),
    pa.uint64(),
    pa.list_(pa.time64("ns")),
    pa.list_(pa.time64("ns"), 1),
    pa.large_list(pa.timestamp("ns")),
    pa.struct([("t", pa.time64("ns"))]),
    pa.map_(pa.string(), pa.timestamp("ns")),
    pa.dictionary(pa.int8(), pa.time64("ns")),
]


def column(kind: Any, number: int) -> Any:
    """Three values of an arrow type, one of them missing, the first as close to another `number`'s as the type can tell."""
    if pa.types.is_dictionary(kind):
        return pa.array([number, None, 0], kind.value_type).dictionary_encode().cast(kind)
    wrapped: Any = number
    if pa.types.is_struct(kind):
        wrapped = {"t": number}
    elif pa.types.is_map(kind):
        wrapped = [("k", number)]
    elif pa.types.is_nested(kind):
        wrapped = [number]
    return pa.array([wrapped, None, wrapped], kind)


@pytest.mark.parametrize("kind", KINDS, ids=map(str, KINDS))
def test_one_nanosecond_in_an_arrow_column_counts(kind: Any) -> None:
    one = column(kind, 1)
    assert digest(one) == digest(column(kind, 1)) == digest(pa.chunked_array([one[:1], one[1:]]))
    assert all_unequal([one, column(kind, 2), one[:2], one[0], column(kind, 2)[0]])
    assert digest(one[0]) == digest(column(kind, 1)[0])


def test_an_arrow_time_is_told_from_the_same_number_in_another_unit() -> None:
    kinds = [
        pa.time64("us"),
        pa.time64("ns"),
        pa.timestamp("us"),
        pa.timestamp("ns"),
        pa.timestamp("ns", "UTC"),
        pa.int64(),
    ]
    assert all_unequal([pa.array([1], kind) for kind in kinds])


def fields(**options: Any) -> list[Any]:
    """A column `a` described in one way, in all the places that can say so."""
    field = pa.field("a", pa.int64(), **options)
    struct, lists = pa.struct([field]), pa.list_(field)
    table = pa.table({"a": [1]}, schema=pa.schema([field]))
    return [table, table.to_batches()[0], table.schema, field, pa.array([{"a": 1}], struct), pa.array([[1]], lists)]


def test_whether_an_arrow_field_may_be_missing_counts_wherever_it_stands() -> None:
    for plain, required, noted in zip(fields(), fields(nullable=False), fields(metadata={"k": "v"}), strict=True):
        assert all_unequal([plain, required, noted])
    assert [digest(each) for each in fields()] == [digest(each) for each in fields()]


def test_an_arrow_dictionary_is_its_values_and_its_types() -> None:
    def coded(codes: list[int], texts: list[str], width: Any = None, *, ordered: bool = False) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(codes, width or pa.int8()), texts, ordered=ordered)

    one = coded([0, 1, 0], ["a", "b"])
    assert digest(one) == digest(coded([1, 0, 1], ["b", "a"])) == digest(coded([0, 1, 0], ["a", "b", "unused"]))
    wide = coded([0, 1, 0], ["a", "b"], pa.int32())
    orders = [coded([0, 1, 0], ["a", "b"], ordered=True), coded([1, 0, 1], ["b", "a"], ordered=True)]
    assert all_unequal([one, wide, pa.array(["a", "b", "a"]), coded([0, 1, 1], ["a", "b"]), *orders])


def test_levels_of_a_multi_index_are_told_apart_by_name_type_and_content() -> None:
    one = pd.MultiIndex.from_arrays([["a", "b"], [1, 2]], names=["x", "y"])
    longer = pd.MultiIndex.from_arrays([["a", "b", "c"], [1, 2, 3]], names=["x", "y"])
    turned = pd.MultiIndex(levels=[["b", "a"], [2, 1]], codes=[[1, 0], [1, 0]], names=["x", "y"])
    assert digest(one) == digest(longer[:2]) == digest(turned)
    others = [one.set_names(["x", "z"]), one.set_names([None, None]), one[::-1], one[:1], one.swaplevel()]
    kinds = [["a", "b"], np.array([1, 2], "i4")], [pd.Categorical(["a", "b"]), [1, 2]], [["a", None], [1, 2]]
    assert all_unequal([one, *others, *(pd.MultiIndex.from_arrays(kind, names=["x", "y"]) for kind in kinds)])


def test_what_pandas_remembers_of_a_frame_does_not_count() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    before = digest(frame), digest(frame.index)
    assert frame["a"].is_unique and frame.b.iloc[0] == "x" and frame.index.get_loc(1) == 1
    assert frame.columns.get_indexer(["b"])[0] == 1 and frame.index.is_monotonic_increasing
    assert (digest(frame), digest(frame.index)) == before
