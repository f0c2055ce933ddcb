"""The content hash of frames and columns: pandas, polars, pyarrow."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from oncemore.errors import FingerprintError
from oncemore.fingerprint.values import digest


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


def test_a_lock_in_a_frame_is_found() -> None:
    import threading

    with pytest.raises(FingerprintError, match=r"_thread.lock"):
        digest(pd.DataFrame({"a": [threading.Lock()]}))


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


def test_a_plan_of_polars_has_no_identity() -> None:
    with pytest.raises(FingerprintError):
        digest(pl.DataFrame({"a": [1]}).lazy())


# --- pyarrow --------------------------------------------------------------------------------------------------------

COLUMNS: dict[str, list[Any]] = {
    "integers": [1, None, 3, 4],
    "floats": [1.5, None, -0.0, 2.0],
    "booleans": [True, None, False, True],
    "strings": ["a", None, "", "long enough to be stored apart"],
    "moments": [dt.datetime(2024, 1, 1), None, dt.datetime(2025, 1, 1), None],
    "lists": [[1], None, [], [2, 3]],
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
