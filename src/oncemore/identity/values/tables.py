"""Frames, series and columns of pandas, polars and pyarrow: identified by name, type and content, whatever their layout.

If there is a value of such a type, its library is loaded; this module never imports one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from ...errors import FingerprintError
from ...modules import loaded
from ...stores.buffers import hasher
from .arrays import content
from .builtin_types import Describe, Parts, name_of


def describer(kind: type) -> Describe | None:
    """How to describe values of `kind`; None if it is not handled here."""
    for library, describers in (("pandas", _PANDAS), ("polars", _POLARS), ("pyarrow", _ARROW)):
        module = loaded(library)
        for path, describe in describers.items() if module is not None else ():
            base = module
            for name in path.split("."):
                base = getattr(base, name, None)
            if base is not None and issubclass(kind, base if isinstance(base, type) else type(base)):
                return describe
    return None


# --- pandas ---------------------------------------------------------------------------------------------------------


def _own(value: Any) -> object:
    """The class: by its bare name if it is pandas' own, because its module differs between versions."""
    kind = type(value)
    return kind.__name__ if kind.__module__.partition(".")[0] == "pandas" else kind


def _column(values: Any) -> Any:
    """The array of a column, as a numpy array if it is one."""
    array = values.array
    return array.to_numpy() if type(array).__name__ in ("NumpyExtensionArray", "PandasArray") else array


def _extras(frame: Any) -> list[Any]:
    """The attributes that a subclass declares in `_metadata`."""
    extras = [(name, getattr(frame, name, None)) for name in frame._metadata if name != "_name"]
    return [part for extra in extras for part in extra]


def _frame(frame: Any) -> Parts:
    columns = [_column(series) for _, series in frame.items()]
    about = [len(columns), _own(frame), frame.columns, frame.index, dict(frame.attrs), *_extras(frame)]
    return Parts("pandas.DataFrame", [*about, *columns], "column")


def _series(series: Any) -> Parts:
    children = [_own(series), series.name, series.index, _column(series), dict(series.attrs), *_extras(series)]
    return Parts("pandas.Series", children)


def _index(index: Any) -> Parts:
    names, kind = list(index.names), _own(index)
    if kind == "RangeIndex":
        return Parts("pandas.Index", [kind, names, index.start, index.stop, index.step])
    if hasattr(index, "levels"):  # a MultiIndex; unused level values are not part of the content
        return Parts("pandas.Index", [kind, names, [_column(index.get_level_values(at)) for at in range(len(names))]])
    return Parts("pandas.Index", [kind, names, _column(index), getattr(index, "freqstr", None)])


def _categorical(array: Any) -> Parts:
    return Parts("pandas.Categorical", [array.categories, array.ordered, array.codes])


def _numbered(array: Any) -> Parts:
    """Dates, durations and periods: integers, and a dtype with unit and time zone."""
    return Parts("pandas.array", [str(array.dtype), array.asi8])


def _nullable(array: Any) -> Parts:
    missing = array.isna()
    values = array.to_numpy(dtype=array.dtype.numpy_dtype, na_value=array.dtype.numpy_dtype.type(0))
    return Parts("pandas.array", [str(array.dtype), values, missing])


def _strings(array: Any) -> Parts:
    kind = [str(array.dtype), getattr(array.dtype, "storage", None), repr(getattr(array.dtype, "na_value", None))]
    stored = getattr(array, "__arrow_array__", None)
    if stored is not None and kind[1] != "python":
        return Parts("pandas.array", [*kind, *_arrow_content(stored())])
    return Parts("pandas.array", [*kind, array.astype(object).tolist()])


def _arrow_backed(array: Any) -> Parts:
    return Parts("pandas.array", [str(array.dtype), array.__arrow_array__()])


def _interval_array(array: Any) -> Parts:
    return Parts("pandas.array", ["interval", array.left, array.right, array.closed])


def _sparse(array: Any) -> Parts:
    indices = array.sp_index.to_int_index().indices
    return Parts("pandas.array", ["sparse", len(array), array.sp_values, indices, array.fill_value])


def _foreign_array(array: Any) -> Parts:
    """A third-party extension array, element by element."""
    return Parts("pandas.array", [type(array), str(array.dtype), list(array)])


def _instant(value: Any) -> Parts:
    return Parts(
        f"pandas.{type(value).__name__}",
        [value.asm8, getattr(value, "fold", None), getattr(value, "tzinfo", None)],
    )


def _pandas_dtype(dtype: Any) -> Parts:
    detail = [getattr(dtype, name, None) for name in ("storage", "categories", "ordered")]
    return Parts("pandas.dtype", [type(dtype).__name__, str(dtype), repr(dtype.na_value), *detail])


_PANDAS: dict[str, Describe] = {
    "DataFrame": _frame,
    "Series": _series,
    "Index": _index,
    "Categorical": _categorical,
    "arrays.DatetimeArray": _numbered,
    "arrays.TimedeltaArray": _numbered,
    "arrays.PeriodArray": _numbered,
    "arrays.IntegerArray": _nullable,
    "arrays.FloatingArray": _nullable,
    "arrays.BooleanArray": _nullable,
    "arrays.StringArray": _strings,
    "arrays.ArrowStringArray": _strings,
    "arrays.ArrowExtensionArray": _arrow_backed,
    "arrays.IntervalArray": _interval_array,
    "arrays.SparseArray": _sparse,
    "arrays.NumpyExtensionArray": lambda array: Parts("pandas.array", ["numpy", array.to_numpy()]),
    "api.extensions.ExtensionArray": _foreign_array,
    "api.extensions.ExtensionDtype": _pandas_dtype,
    "NaT": lambda value: Parts("pandas.NaT"),
    "NA": lambda value: Parts("pandas.NA"),
    "Timestamp": _instant,
    "Timedelta": _instant,
    "Period": lambda value: Parts("pandas.Period", [value.ordinal, value.freqstr]),
    "Interval": lambda value: Parts("pandas.Interval", [value.left, value.right, value.closed]),
}


# --- polars ---------------------------------------------------------------------------------------------------------


def _polars_frame(frame: Any) -> Parts:
    columns = frame.get_columns()  # with their names
    return Parts("polars.DataFrame", [len(columns), frame.height, *columns], "column")


def _polars_series(series: Any) -> Parts:
    """The positions of nulls, and the content with nulls replaced, because the memory behind a null is arbitrary."""
    missing = series.is_null()
    nulls = content(missing.to_numpy()) if series.null_count() else None
    kind = [series.name, *_polars_dtype(series.dtype), len(series), nulls]
    return Parts("polars.Series", [*kind, *_polars_content(series)])


def _polars_dtype(dtype: Any) -> list[Any]:
    categories = getattr(dtype, "categories", None)
    return [str(dtype), list(categories) if str(dtype).startswith("Enum") and categories is not None else None]


def _polars_content(series: Any) -> list[Any]:
    pl: Any = sys.modules["polars"]
    dtype = series.dtype
    if dtype == pl.Struct:
        return [series.struct.field(field.name) for field in dtype.fields]
    if dtype == pl.Array:
        return _polars_content(series.cast(pl.List(dtype.inner)))
    if dtype == pl.List:
        lengths = series.list.len().fill_null(0)
        return [lengths, series.filter(lengths > 0).explode()]
    if dtype.is_temporal():
        return _polars_content(series.to_physical())
    if dtype in (pl.Categorical, pl.Enum, pl.Decimal, getattr(pl, "Int128", None), getattr(pl, "UInt128", None)):
        return _polars_content(series.cast(pl.String))
    if dtype.is_numeric() or dtype == pl.Boolean:
        return [content(series.fill_null(False if dtype == pl.Boolean else 0).to_numpy())]
    return [series.to_list()]


def _polars_plan(plan: Any) -> Parts:
    """A query plan, not its result. Files that it will read are identified by name."""
    pl: Any = sys.modules["polars"]
    try:
        serialized = plan.serialize() if isinstance(plan, pl.LazyFrame) else plan.meta.serialize()
    except Exception as error:
        raise FingerprintError(name_of(type(plan))) from error
    if any(marker in serialized for marker in _PYTHON_IN_PLAN):
        cause = TypeError("its plan calls a Python function, whose code is not part of the plan")
        raise FingerprintError(name_of(type(plan))) from cause
    return Parts("polars plan", [type(plan).__name__, serialized])


# How serialized plans mark a Python function: polars' names for one, or the start of a pickle, also as a list of numbers.
_PYTHON_IN_PLAN = (
    b"PLPYFN",
    b"PLPYUDF",
    b"\xacOpaquePython",
    b"\xaaPythonScan",
    b"\x80\x05\x95",
    b"\xcc\x80\x05\xcc\x95",
)


_POLARS: dict[str, Describe] = {
    "DataFrame": _polars_frame,
    "Series": _polars_series,
    "LazyFrame": _polars_plan,
    "Expr": _polars_plan,
}


# --- pyarrow --------------------------------------------------------------------------------------------------------


def _arrow_table(table: Any) -> Parts:
    schema = [table.schema.metadata, *map(_arrow_field, table.schema)]
    return Parts("pyarrow.Table", [type(table).__name__, table.num_rows, schema, *table.columns])


def _arrow_field(field: Any) -> list[Any]:
    return [field.name, *_arrow_type(field.type), field.nullable, field.metadata]


def _arrow_type(kind: Any) -> list[Any]:
    """The type, with details that its text omits: nested fields, and whether they are nullable."""
    pa: Any = sys.modules["pyarrow"]
    if pa.types.is_dictionary(kind):
        return ["dictionary", str(kind.index_type), kind.ordered, *_arrow_type(kind.value_type)]
    if isinstance(kind, pa.BaseExtensionType):
        return [str(kind), type(kind), kind.extension_name, *_arrow_type(kind.storage_type)]
    if pa.types.is_run_end_encoded(kind):
        return ["run ends", str(kind.run_end_type), *_arrow_type(kind.value_type)]
    return [str(kind), *(_arrow_field(kind.field(at)) for at in range(kind.num_fields))]


def _arrow_array(array: Any) -> Parts:
    return Parts("pyarrow.Array", [_arrow_type(array.type), *_arrow_content(array)])


def _arrow_scalar(scalar: Any) -> Parts:
    pa: Any = sys.modules["pyarrow"]
    if isinstance(scalar.type, pa.BaseExtensionType):
        return Parts("pyarrow.Scalar", [_arrow_type(scalar.type), scalar.value])
    return Parts("pyarrow.Scalar", [pa.repeat(scalar, 1)])


def _arrow_content(array: Any) -> list[Any]:
    """The content of a (chunked) array, as numbers where possible: Python's times would lose nanoseconds."""
    pa: Any = sys.modules["pyarrow"]
    types, kind = pa.types, array.type
    chunks = getattr(array, "chunks", [array]) or [pa.nulls(0, kind)]
    if isinstance(kind, pa.BaseExtensionType):
        return _arrow_content(_of_chunks([chunk.storage for chunk in chunks]))
    if types.is_dictionary(kind):
        order = [chunk.dictionary for chunk in chunks] if kind.ordered else []
        order = [each for at, each in enumerate(order) if each not in order[:at]]
        return [order, *_arrow_content(_of_chunks([chunk.dictionary_decode() for chunk in chunks]))]
    if types.is_run_end_encoded(kind):
        decode = sys.modules["pyarrow.compute"].run_end_decode
        return _arrow_content(_of_chunks([decode(chunk) for chunk in chunks]))
    nulls = content(array.is_null().to_numpy(**({} if hasattr(array, "chunks") else {"zero_copy_only": False})))
    if types.is_string(kind) or types.is_large_string(kind):
        return [len(array), nulls, *_arrow_text((chunk.cast(pa.large_string()) for chunk in chunks), array.nbytes)]
    if types.is_temporal(kind) and not types.is_interval(kind):
        kind = pa.int32() if kind.bit_width == 32 else pa.int64()
        chunks = [chunk.cast(kind) for chunk in chunks]
    if types.is_integer(kind) or types.is_floating(kind):
        numbers = hasher(array.nbytes)
        for chunk in chunks:
            numbers.update(chunk.fill_null(0).to_numpy(zero_copy_only=False).view("u1"))
        return [len(array), nulls, numbers.digest(16)]
    if types.is_struct(kind):
        fields = zip(*(chunk.flatten() for chunk in chunks), strict=True)
        return [len(array), nulls, *(_of_chunks(list(field)) for field in fields)]
    if types.is_map(kind):
        pairs = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _arrow_content(_of_chunks([chunk.cast(pa.list_(pairs)) for chunk in chunks]))
    if types.is_union(kind):
        return [[part for value in array for part in (value.type_code, value.value)]]
    if hasattr(chunks[0], "value_lengths"):  # a list type
        lengths = _of_chunks([chunk.value_lengths() for chunk in chunks])
        return [len(array), nulls, lengths, _of_chunks([chunk.flatten() for chunk in chunks])]
    return [len(array), nulls, array.to_pylist()]


def _of_chunks(chunks: list[Any]) -> Any:
    pa: Any = sys.modules["pyarrow"]
    return pa.chunked_array(chunks, chunks[0].type)


def _arrow_text(chunks: Iterable[Any], size: int) -> tuple[bytes, bytes]:
    """Digests of the strings' lengths and of all their bytes. Neither depends on how the array is chunked."""
    np: Any = sys.modules["numpy"]
    lengths, text = hasher(size), hasher(size)
    for chunk in chunks:
        filled = chunk.fill_null("")
        _, offsets, data = filled.buffers()
        if len(filled):
            ends = np.frombuffer(offsets, "i8")[filled.offset : filled.offset + len(filled) + 1]
            lengths.update(np.diff(ends).view("u1"))
            text.update(memoryview(data or b"")[ends[0] : ends[-1]])
    return lengths.digest(16), text.digest(16)


_ARROW: dict[str, Describe] = {
    "Table": _arrow_table,
    "RecordBatch": _arrow_table,
    "Array": _arrow_array,
    "ChunkedArray": _arrow_array,
    "Scalar": _arrow_scalar,
}
