"""Arrays, tensors, frames, series and columns of numpy, torch, pandas, polars and pyarrow.

They are identified by name, type and content in logical order, whatever their layout in memory. If there is a value of such
a type, its library is loaded; this module never imports one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from ...errors import FingerprintError
from ...modules import global_generator, loaded
from ...stores.buffers import hasher
from .parts import Describe, Parts, attributes, name_of, refuse

_BUFFER = 1 << 20  # bytes copied at a time from an array that is not contiguous


def describer(kind: type) -> Describe | None:
    """How to describe values of `kind`; None if it is not handled here."""
    for library, describers in LIBRARIES.items():
        module = loaded(library)
        for path, describe in describers.items() if module is not None else ():
            base = module
            for name in path.split("."):
                base = getattr(base, name, None)
            if base is not None and issubclass(kind, base if isinstance(base, type) else type(base)):
                return describe
    return None


# --- numpy and torch ------------------------------------------------------------------------------------------------


def _array(array: Any) -> Parts:
    np: Any = sys.modules["numpy"]
    plain = np.asarray(array)
    children = [_dtype(array.dtype), content(plain), *array.shape]
    if type(array) in (np.ndarray, np.memmap):  # equal content, wherever the memory is
        return Parts("numpy.ndarray", children)
    return Parts("numpy.subclass", [type(array), len(children), *children, *attributes(array)], "attribute")


def _scalar(scalar: Any) -> Parts:
    dtype = scalar.dtype
    if dtype.kind in "biufcmMSU" and dtype.char not in "gG":
        return Parts("numpy.scalar", [_dtype(dtype), scalar.tobytes()])
    return Parts("numpy.scalar", [_dtype(dtype), content(sys.modules["numpy"].asarray(scalar))])


def _masked(array: Any) -> Parts:
    """Masked values are not part of the content."""
    np: Any = sys.modules["numpy"]
    if array is np.ma.masked:  # the constant that represents a masked element
        return Parts("numpy.masked constant")
    visible = np.asarray(array.filled(np.zeros((), array.dtype)))
    mask = np.asarray(np.ma.getmaskarray(array))
    children = [_dtype(array.dtype), array.shape, content(visible), content(mask), array.fill_value, array.hardmask]
    return Parts("numpy.masked", [type(array), *children])


def _random_state(rng: Any) -> Parts:
    return Parts("numpy.RandomState", [global_generator(rng) or rng.get_state(legacy=False)])


def _bit_generator(bits: Any) -> Parts:
    """The state and the seed sequence: spawning changes only the latter."""
    if shared := global_generator(bits):
        return Parts("numpy.BitGenerator", [shared])
    seeds = getattr(bits, "seed_seq", None) or getattr(bits, "_seed_seq", None)
    return Parts("numpy.BitGenerator", [type(bits).__name__, bits.state, seeds])


def _seeds(seeds: Any) -> Parts:
    return Parts("numpy.SeedSequence", [seeds.entropy, seeds.spawn_key, seeds.pool_size, seeds.n_children_spawned])


def _tensor(tensor: Any) -> Parts:
    torch, np = sys.modules["torch"], loaded("numpy")
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return refuse(tensor)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    # No copy. `plain.numpy()` would make the tensor non-resizable for the user.
    memory = bytes(plain.tolist()) if np is None else np.from_dlpack(plain)
    content = hasher(len(plain)).update(memory).digest(16)
    grad = [tensor.grad] if tensor.is_leaf and tensor.grad is not None else []
    return Parts(
        "torch.Tensor", [type(tensor), str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, content, *grad]
    )


# --- dtypes ---------------------------------------------------------------------------------------------------------


def _dtype(dtype: Any) -> str:
    if dtype.names is not None:
        fields = [(name, dtype.fields[name][1], _dtype(dtype.fields[name][0])) for name in dtype.names]
        return f"structure {dtype.type.__name__} {dtype.itemsize} {fields}"
    if dtype.subdtype is not None:
        return f"sub-array {_dtype(dtype.base)} {dtype.shape}"
    if dtype.kind == "T":
        return f"text {dtype!r}"
    return _simple_dtype(dtype)


@lru_cache(maxsize=256)  # not for structures: record and tuple dtypes are equal, but have different identities here
def _simple_dtype(dtype: Any) -> str:
    return f"{dtype.str} {dtype.name}"  # `str` has byte order and unit, `name` distinguishes third-party dtypes


def _is_packed(dtype: Any) -> bool:
    """Whether every byte of an element belongs to its value: no gaps between fields, no extended precision."""
    if dtype.names is not None:
        kinds = [dtype.fields[name][0] for name in dtype.names]
        return sum(kind.itemsize for kind in kinds) == dtype.itemsize and all(map(_is_packed, kinds))
    return _is_packed(dtype.base) if dtype.subdtype is not None else dtype.char not in "gGOT"


# --- content --------------------------------------------------------------------------------------------------------


def content(array: Any) -> object:
    """The content of an array in logical order, whatever its memory layout."""
    dtype = array.dtype
    if _is_packed(dtype):
        return _bytes_of(array)
    if dtype.names is not None:
        return [content(array[name]) for name in dtype.names]
    if dtype.char in "gG":
        return _bytes_of(_significant(array))
    return array.ravel().tolist()


def _significant(array: Any) -> Any:
    """The ten bytes of each extended float that hold its value; the other six are arbitrary."""
    np: Any = sys.modules["numpy"]
    if np.finfo(np.longdouble).nmant != 63:
        return array
    item = np.dtype(np.longdouble).itemsize
    return np.ascontiguousarray(array).reshape(-1).view("u1").reshape(-1, item)[:, :10]


def _bytes_of(array: Any) -> bytes:
    hash_of = hasher(array.nbytes)
    if array.nbytes:
        if array.flags.c_contiguous or array.nbytes <= _BUFFER:
            whole: Any = sys.modules["numpy"].ascontiguousarray(array)
            hash_of.update(whole.reshape(-1).view("u1"))
        else:
            for piece in _pieces(array):
                hash_of.update(piece.view("u1"))
    found: bytes = hash_of.digest(16)
    return found


def _pieces(array: Any) -> Iterator[Any]:
    """Contiguous copies of bounded size, in logical order."""
    flags = ["external_loop", "buffered", "zerosize_ok"]
    size = max(1, _BUFFER // array.dtype.itemsize)
    nditer: Any = sys.modules["numpy"].nditer
    return iter(nditer(array, flags, [["readonly", "contig"]], order="C", buffersize=size))


_NUMPY: dict[str, Describe] = {
    "ma.MaskedArray": _masked,
    "ndarray": _array,
    "generic": _scalar,
    "dtype": lambda dtype: Parts("numpy.dtype", [_dtype(dtype)]),
    "random.Generator": lambda rng: Parts("numpy.Generator", [rng.bit_generator]),
    "random.RandomState": _random_state,
    "random.BitGenerator": _bit_generator,
    "random.SeedSequence": _seeds,
}


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


def _foreign_array(array: Any) -> Parts:
    """Any other extension array, element by element."""
    return Parts("pandas.array", [_own(array), str(array.dtype), list(array)])


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


LIBRARIES: dict[str, dict[str, Describe]] = {
    "torch": {"Tensor": _tensor},
    "numpy": _NUMPY,
    "pandas": _PANDAS,
    "polars": _POLARS,
    "pyarrow": _ARROW,
}
