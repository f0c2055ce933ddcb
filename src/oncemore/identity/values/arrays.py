"""NumPy arrays and torch tensors: identified by dtype, shape, and content in logical order.

If there is a value of such a type, its library is loaded; this module never imports one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ...modules import global_generator, loaded
from ...stores.buffers import hasher
from .builtin_types import Describe, Parts, attributes, refuse

_BUFFER = 1 << 20  # bytes copied at a time from an array that is not contiguous


def describer(kind: type) -> Describe | None:
    """How to describe values of `kind`; None if it is not handled here."""
    torch = loaded("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        return _tensor
    np = loaded("numpy")
    if np is None:  # torch works without numpy
        return None
    for base, describe in (
        (np.ma.MaskedArray, _masked),
        (np.ndarray, _array),
        (np.generic, _scalar),
        (np.dtype, lambda dtype: Parts("numpy.dtype", [_dtype(dtype)])),
        (np.random.Generator, lambda rng: Parts("numpy.Generator", [rng.bit_generator])),
        (np.random.RandomState, _random_state),
        (np.random.BitGenerator, _bit_generator),
        (np.random.SeedSequence, _seeds),
    ):
        if issubclass(kind, base):
            return describe
    return None


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
