"""Values to bytes and back: the envelope, the frames, what is refused before it is looked at."""

from __future__ import annotations

import itertools
import pickle
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oncemore import CodecError, IntegrityError, compression
from oncemore.codec import MAGIC, VERSION, Decoded, dumps, encode, glance, loads, offender, seal, took, unseal

SECRET = bytes(range(32))
RNG = random.Random(1)


def stored(value: object, key: str = "k", **meta: Any) -> bytes:
    """A value's entry as a store would give it back."""
    return b"".join(encode(value, meta, key=key, secret=SECRET).frames)


def loaded(data: Any, key: str = "k") -> Any:
    return Decoded(data, key=key, secret=SECRET).load()


class Explosive:
    """Says so when it is unpickled."""

    def __reduce__(self) -> Any:
        return _explode, ()


exploded: list[bool] = []


def _explode() -> None:
    exploded.append(True)


# --- the envelope ---------------------------------------------------------------------------------------------------


def test_an_entry_begins_with_magic_and_version() -> None:
    assert stored(1)[:5] == b"ONCE\x01" == MAGIC + bytes([VERSION])


def test_metadata_is_read_without_the_value() -> None:
    decoded = Decoded(stored(Explosive(), step="load", time=1.5), key="k", secret=SECRET)
    assert decoded.meta == {"step": "load", "time": 1.5}
    assert exploded == []
    decoded.load()
    assert exploded.pop()


def test_every_flipped_byte_is_found_before_anything_is_unpickled() -> None:
    data = stored([Explosive(), "text"])
    for place in range(len(data)):
        altered = bytearray(data)
        altered[place] ^= 0x40
        with pytest.raises(IntegrityError):
            loaded(altered)
    assert exploded == []


def test_every_shortened_or_lengthened_entry_is_refused() -> None:
    data = stored(Explosive())
    for cut in (*(data[:end] for end in range(len(data))), data + b"\0", data + data):
        with pytest.raises(IntegrityError):
            loaded(cut)
    assert exploded == []


def test_an_entry_counts_under_its_own_key_only() -> None:
    with pytest.raises(IntegrityError, match=r"other.*moved"):
        loaded(stored(Explosive(), key="one"), key="other")
    assert exploded == []


def test_keys_and_content_cannot_be_shifted_into_each_other() -> None:
    (envelope, body) = seal([b"cd"], "ab", SECRET)
    for key, moved in (("a", b"bcd"), ("abc", b"d"), ("abcd", b"")):
        with pytest.raises(IntegrityError):
            unseal(bytes(envelope) + moved, key, SECRET)
    assert bytes(unseal(bytes(envelope) + bytes(body), "ab", SECRET)) == b"cd"


def test_another_secret_is_refused() -> None:
    with pytest.raises(IntegrityError, match="another secret"):
        Decoded(stored(Explosive()), key="k", secret=bytes(32))
    assert exploded == []


def test_a_plain_pickle_is_refused() -> None:
    with pytest.raises(IntegrityError, match="not an entry"):
        loaded(pickle.dumps(Explosive()) * 10)
    assert exploded == []


def test_a_later_format_is_refused_by_its_number() -> None:
    data = bytearray(stored(1))
    data[4] = 2
    with pytest.raises(IntegrityError, match="format 2"):
        loaded(data)


# --- frames ---------------------------------------------------------------------------------------------------------


def test_arrays_leave_without_being_copied() -> None:
    array = np.frombuffer(RNG.randbytes(100_000), "u1")
    frames = encode(array, {}, key="k", secret=SECRET).frames
    assert any(np.shares_memory(array, np.frombuffer(frame, "u1")) for frame in frames)


def test_a_buffer_that_the_caller_owns_is_used_where_it_lies() -> None:
    array = np.frombuffer(RNG.randbytes(100_000), "u1")
    data = bytearray(stored(array))
    assert np.shares_memory(loaded(data), np.frombuffer(data, "u1"))


def test_two_loads_of_one_entry_share_nothing() -> None:
    decoded = Decoded(stored([np.zeros(10), np.zeros(10_000), [1]]), key="k", secret=SECRET)
    one, two = decoded.load(), decoded.load()
    for a, b in zip(one[:2], two[:2]):
        assert a.flags.writeable
        assert not np.shares_memory(a, b)
    assert one[2] is not two[2]


@pytest.mark.parametrize("name", ["u1", "i2", "f4", "f8", "c16"])
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 30_000])
def test_buffers_begin_where_arrays_like_to_lie(name: str, size: int) -> None:
    noise = [np.frombuffer(RNG.randbytes(size * width), "u1") for width in (1, 3)]
    last = np.frombuffer(RNG.randbytes(size * np.dtype(name).itemsize), name)
    data = bytearray(stored([*noise, last]))
    start = np.frombuffer(data, "u1").__array_interface__["data"][0]
    for array in loaded(data):
        assert (array.__array_interface__["data"][0] - start) % 64 == 0


def test_floats_of_any_bits_are_looked_at_without_a_word() -> None:
    bits = np.frombuffer(RNG.randbytes(120_000), "u4") & 0x003FFFFF
    signaling = (bits | 0x7F800001).view("f4")  # no numbers, and they want it to be told when they are touched
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded(stored(signaling)).tobytes() == signaling.tobytes()


def test_the_sizes_before_and_after_are_told() -> None:
    entry = encode(np.zeros(100_000), {}, key="k", secret=SECRET)
    assert entry.raw_bytes > 800_000
    assert entry.stored_bytes == len(b"".join(entry.frames)) < 10_000


# --- compression ----------------------------------------------------------------------------------------------------

BUFFERS: dict[str, tuple[Any, int]] = {
    "nothing": (b"", compression.RAW),
    "a little text": (b"a" * 500, compression.RAW),
    "text": (b"so it goes " * 1000, compression.ZSTD),
    "noise": (RNG.randbytes(100_000), compression.RAW),
    "a lot of text": (b"so it goes " * 1_000_000, compression.ZSTD),
    "counted numbers": (np.arange(100_000, dtype="i8"), compression.BLOCKS),
    "smooth numbers": (np.linspace(0, 1, 100_000), compression.BLOCKS),
    "several blocks of numbers": (np.arange(300_001, dtype="i4") * 3, compression.BLOCKS),
    "sorted numbers": (np.sort(np.array([RNG.getrandbits(40) for _ in range(20_000)])), compression.BLOCKS),
    "numbers on both sides of zero": (np.array([RNG.randint(-99, 99) for _ in range(9_000)]), compression.BLOCKS),
    "numbers that differ by more than they can count": (
        np.array([-(1 << 63), (1 << 63) - 1] * 999),
        compression.BLOCKS,
    ),
    "one number again and again": (np.full(9_000, 1 << 60), compression.BLOCKS),
    "prices": (np.array([RNG.randint(0, 99_999) / 100 for _ in range(20_000)]), compression.BLOCKS),
    "prices in half the size": (np.array([RNG.randint(0, 9999) / 100 for _ in range(9_000)], "f4"), compression.BLOCKS),
    "prices, and then none": (
        np.array([RNG.randint(0, 99_999) / 100 for _ in range(150_000)] + [-0.0, np.nan, np.inf]),
        compression.BLOCKS,
    ),
    "uniform floats": (np.array([RNG.random() for _ in range(20_000)]), compression.RAW),
    "few numbers": (np.arange(400), compression.ZSTD),
    "noise in numbers": (np.frombuffer(RNG.randbytes(800_000), "i8"), compression.RAW),
    "zeros": (np.zeros(100_000), compression.ZSTD),
    "numbers of an odd size": (np.zeros(100_000, "S3"), compression.ZSTD),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_is_packed_as_it_pays_and_comes_back(name: str) -> None:
    buffer, expected = BUFFERS[name]
    raw = bytes(buffer) if isinstance(buffer, bytes) else buffer.tobytes()
    packed = compression.pack(buffer if isinstance(buffer, bytes) else pickle.PickleBuffer(buffer))
    assert (packed.packing, packed.raw) == (expected, len(raw))
    assert packed.size <= len(raw)
    again = compression.unpack(packed.packing, packed.item, memoryview(b"".join(packed.pieces)), packed.raw)
    assert bytes(again) == raw
    assert not memoryview(again).readonly


def test_noise_with_a_smooth_beginning_is_judged_by_more_than_its_beginning() -> None:
    assert compression.pack(bytes(1 << 14) + RNG.randbytes(1 << 20)).packing in (compression.RAW, compression.ZSTD)
    assert compression.pack(RNG.randbytes(1 << 14) + bytes(1 << 20)).packing == compression.ZSTD


def test_a_frame_that_unpacks_to_less_than_was_said_is_refused() -> None:
    packed = compression.pack(b"so it goes " * 1000)
    with pytest.raises(CodecError, match="instead of"):
        compression.unpack(packed.packing, packed.item, memoryview(b"".join(packed.pieces)), packed.raw + 1)


def test_a_frame_never_unpacks_to_more_than_was_said() -> None:
    packed = compression.pack(bytes(1 << 24))
    assert len(compression.unpack(packed.packing, packed.item, memoryview(b"".join(packed.pieces)), 100)) == 100


def test_threads_compress_at_the_same_time() -> None:
    values = [bytes([i]) * 50_000 + RNG.randbytes(1000) for i in range(8)]
    found: dict[int, bool] = {}

    def work(number: int) -> None:
        found[number] = all(loaded(stored(values[number])) == values[number] for _ in range(20))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(8), True)


# --- what cannot be pickled, or not read back -----------------------------------------------------------------------


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda lock: lock, "the result"),
        (lambda lock: [1, lock], "the result[1]"),
        (lambda lock: {"a": (0, {"b": lock})}, "the result['a'][1]['b']"),
        (lambda lock: Holder(x=1, inner=Holder(lock=lock)), "the result.inner.lock"),
    ],
)
def test_the_object_that_cannot_be_pickled_is_named_by_its_place(make: Any, path: str) -> None:
    with pytest.raises(CodecError) as error:
        stored(make(threading.Lock()))
    assert str(error.value).startswith(f"{path} is a lock, which cannot be pickled")
    assert offender(make(threading.Lock())) == (path, "lock")


def test_what_fails_only_inside_a_class_of_its_own_is_named_by_its_type() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("never")

    with pytest.raises(CodecError, match=r"the result\[0\] is a Stubborn.*never"):
        stored([Stubborn()])


def test_a_value_that_holds_itself_and_cannot_be_pickled_is_told() -> None:
    loop: list[Any] = [threading.Lock()]
    loop.append(loop)
    with pytest.raises(CodecError, match="lock"):
        stored(loop)


def test_what_cannot_be_read_back_names_entry_and_error() -> None:
    class Fickle:
        def __reduce__(self) -> Any:
            return (int, ("not a number",))

    with pytest.raises(CodecError, match=r"entry k cannot be read back: ValueError.*not a number"):
        loaded(stored(Fickle()))


def test_a_value_deeper_than_the_recursion_limit_is_told_and_not_fatal() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(CodecError, match="deeper than pickle"):
        stored(deep)
    while deep:  # taken apart gently: freeing it is recursive, too
        deep = deep.pop()


# --- names of objects, values inside others -------------------------------------------------------------------------


def test_objects_with_a_name_are_kept_as_their_name() -> None:
    own = [1]
    entry = encode({"own": own, "copy": [1]}, {}, key="k", secret=SECRET, name=lambda o: "mine" if o is own else None)
    decoded = Decoded(b"".join(entry.frames), key="k", secret=SECRET)
    other = [2]
    value = decoded.load({"mine": other}.__getitem__)
    assert value["own"] is other
    assert value["copy"] == [1]
    with pytest.raises(CodecError, match="no call"):
        decoded.load()


def test_functions_can_be_kept_beside_named_objects() -> None:
    own = [1]
    entry = encode([own, lambda: 5], {}, key="k", secret=SECRET, name=lambda o: "mine" if o is own else None)
    first, function = Decoded(b"".join(entry.frames), key="k", secret=SECRET).load(lambda name: own)
    assert first is own
    assert function() == 5


def test_values_inside_others_come_back() -> None:
    value = {"array": np.arange(3), "f": max}
    again = loads(dumps(value))
    assert again["array"].tolist() == [0, 1, 2]
    assert again["f"] is max


def test_the_same_value_gives_the_same_bytes() -> None:
    one, two = (stored({"a": np.arange(1000), "b": list(range(100))}) for _ in range(2))
    assert one == two
    assert all(a != b for a, b in itertools.pairwise([stored(i) for i in range(4)]))


def test_a_glance_takes_small_bare_entries_and_leaves_all_others() -> None:
    def entry(value: object, meta: dict[str, Any] = {"seconds": 1.5, "step": "s"}, **options: Any) -> bytes:
        return b"".join(encode(value, meta, key="k", secret=SECRET, **options).frames)

    for value in (1, None, "text", [1, {"a": (2.5, b"x")}], 147):
        small = glance(entry(value), "k", SECRET)
        assert small is not None and small == encode(value, {"seconds": 1.5}, key="k", secret=SECRET).small
        assert (pickle.loads(small), took(small)) == (value, 1.5)
    others = (
        entry(Path("x")),
        entry(1, {"seconds": 1.5, "effects": []}),
        entry(1, {"step": "s", "seconds": 1.5}),
        entry(1, name=lambda obj: None),
        entry("x" * 10_000),
        entry(bytes(5000)),
    )
    assert [glance(data, "k", SECRET) for data in others] == [None] * len(others)


def test_a_glance_believes_nothing_that_is_not_signed() -> None:
    data = b"".join(encode(1, {"seconds": 1.5, "step": "s"}, key="k", secret=SECRET).frames)
    assert glance(data, "other", SECRET) is None
    assert glance(data, "k", bytes(32)) is None
    for place in range(len(data)):
        assert glance(data[:place], "k", SECRET) is None
        assert glance(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], "k", SECRET) is None
