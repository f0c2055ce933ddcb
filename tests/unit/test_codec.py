"""Values to bytes and back: the envelope, the frames, what is refused before it is looked at."""

from __future__ import annotations

import itertools
import pickle
import random
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oncemore import CodecError, IntegrityError
from oncemore.codec import (
    GLOBALS,
    MAGIC,
    MAIN,
    NAMES,
    TOMBSTONE,
    VALUE_ONLY,
    VERSION,
    Decoded,
    compression,
    dumps,
    encode,
    loads,
    offender,
    pack,
    seal,
    tombstone,
    unseal,
)
from tests.processes import Script

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
    decoded = Decoded(stored(Explosive(), step="load"), key="k", secret=SECRET)
    assert decoded.meta == {"step": "load"}
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
    head = MAGIC + bytes([VERSION])
    (entry,) = seal([b"cd"], "ab" + head.decode(), SECRET)
    assert bytes(entry).startswith(head + b"cd")
    mac = bytes(entry[-32:])
    for key, moved in (("ab", head + b"cd"), ("ab" + head.decode() * 2, b"cd"), ("ab" + head.decode() + "cd", b"")):
        with pytest.raises(IntegrityError):
            unseal(head + moved + mac, key, SECRET)
    assert bytes(unseal(entry, "ab" + head.decode(), SECRET)) == b"cd"


def test_another_secret_is_refused() -> None:
    with pytest.raises(IntegrityError, match="another secret"):
        Decoded(stored(Explosive()), key="k", secret=bytes(32))
    assert exploded == []


def test_a_plain_pickle_is_refused() -> None:
    with pytest.raises(IntegrityError, match="truncated or overwritten"):
        loaded(pickle.dumps(Explosive()) * 10)
    assert exploded == []


def test_a_later_format_is_refused_by_its_number() -> None:
    data = bytearray(stored(1))
    data[4] = 3
    with pytest.raises(IntegrityError, match="format 3"):
        loaded(data)


def test_a_signed_entry_that_is_no_value_is_refused() -> None:
    for content in (b"", b"{}", bytes(57)):
        with pytest.raises(IntegrityError, match="does not hold a value"):
            Decoded(b"".join(seal([content], "k", SECRET)), key="k", secret=SECRET)


@pytest.mark.parametrize("size", [1, 70_000, (1 << 21) + 5])
def test_a_packed_value_is_sealed_for_one_key_and_then_another(size: int) -> None:
    value = RNG.randbytes(size)
    packed = pack(value, {"step": "s"}, seconds=1.5, time=2.5)
    for key in ("one", "two"):
        entry = packed.seal(key, SECRET)
        data = b"".join(entry.frames)
        assert (entry.key, entry.raw_bytes, entry.stored_bytes) == (key, packed.raw_bytes, packed.stored_bytes)
        assert packed.stored_bytes == len(data)
        assert data == b"".join(encode(value, {"step": "s"}, key=key, secret=SECRET, seconds=1.5, time=2.5).frames)
        assert loaded(data, key) == value


# --- the header -----------------------------------------------------------------------------------------------------


def flags_of(value: object, **options: Any) -> int:
    entry = encode(value, options.pop("meta", {}), key="k", secret=SECRET, **options)
    return Decoded(b"".join(entry.frames), key="k", secret=SECRET).flags


@pytest.mark.parametrize("value", [1, "x" * 5000, np.arange(1000)], ids=["small", "packed", "array"])
def test_a_hit_is_told_how_long_the_step_took_and_when_without_its_metadata(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = encode(value, {"step": "s"}, key="k", secret=SECRET, seconds=1.5, time=1.7e9)
    monkeypatch.setattr("oncemore.codec.json", None)  # nothing is parsed
    decoded = Decoded(b"".join(entry.frames), key="k", secret=SECRET)
    assert (decoded.seconds, decoded.time, decoded.value_only, decoded.is_tombstone) == (1.5, 1.7e9, True, False)
    assert np.array_equal(decoded.load(), value)


@pytest.mark.parametrize("more", ["effects", "roots", "reads", "readings", "items", "hides", "blobs"])
def test_an_entry_with_more_than_a_value_says_so(more: str) -> None:
    assert flags_of(1, meta={"step": "s"}) & VALUE_ONLY
    assert not flags_of(1, meta={"step": "s", more: ["x"]}) & VALUE_ONLY


def test_an_entry_says_whether_it_has_names_for_objects_of_the_caller() -> None:
    own = [1]
    assert flags_of([own], name=lambda obj: None) == VALUE_ONLY
    assert flags_of([own], name=lambda obj: "mine" if obj is own else None) == NAMES
    function = [own, lambda: 1]
    assert flags_of(function, name=lambda obj: "mine" if obj is own else None) & (NAMES | VALUE_ONLY) == NAMES
    assert flags_of(function, name=lambda obj: None) & (NAMES | VALUE_ONLY) == VALUE_ONLY


def test_an_entry_says_whether_its_pickle_names_classes() -> None:
    plain = (None, True, 147, 1.5, "\x93", b"\x93", [1, {"a": (2.5, b"x")}], {1, 2})
    assert [flags_of(value) for value in plain] == [VALUE_ONLY] * len(plain)
    assert flags_of(Path("x")) == flags_of([np.arange(3)]) == VALUE_ONLY | GLOBALS


def test_an_entry_says_whether_its_pickle_mentions_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemore.codec.canonical_name", lambda module: "the_script")
    for text, main in (("__main__", {"main": "the_script"}), ("__mp_main__", {"main": "the_script"}), ("main", {})):
        decoded = Decoded(stored([text]), key="k", secret=SECRET)
        assert (decoded.flags & MAIN != 0, decoded.meta) == (bool(main), main)
        assert decoded.load() == [text]


def test_a_tombstone_says_why() -> None:
    decoded = Decoded(b"".join(tombstone("k", SECRET, "forgotten")), key="k", secret=SECRET)
    assert (decoded.flags, decoded.is_tombstone, decoded.value_only) == (TOMBSTONE, True, False)
    assert decoded.meta == {"hides": "forgotten"}
    with pytest.raises(IntegrityError):
        Decoded(b"".join(tombstone("k", SECRET, "forgotten")), key="other", secret=SECRET)


def test_entries_that_differ_in_their_metadata_only_hold_the_same() -> None:
    for value in (1, [np.arange(2000), np.frombuffer(RNG.randbytes(999), "u1")], "x" * 5000):
        one, other = (
            Decoded(b"".join(encode(value, meta, key="k", secret=SECRET, time=time).frames), key="k", secret=SECRET)
            for meta, time in (({"a": 1}, 1.0), ({"a": "longer"}, 2.0))
        )
        assert one.holds(other)
        assert not one.holds(Decoded(stored([value]), key="k", secret=SECRET))


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
    "counted numbers": (np.arange(100_000, dtype="i8"), compression.SHUFFLED),
    "smooth numbers": (np.linspace(0, 1, 100_000), compression.SHUFFLED),
    "one block of numbers": (np.arange(1 << 19), compression.SHUFFLED),
    "several blocks of numbers": (np.arange((1 << 21) + 1, dtype="i4") * 3, compression.SHUFFLED),
    "short numbers": (np.arange(30_001, dtype="i2") // 9, compression.SHUFFLED),
    "complex numbers": (np.arange(30_001) * (1 + 2j), compression.SHUFFLED),
    "sorted numbers": (np.sort(np.array([RNG.getrandbits(40) for _ in range(20_000)])), compression.SHUFFLED),
    "numbers on both sides of zero": (np.array([RNG.randint(-99, 99) for _ in range(9_000)]), compression.ZSTD),
    "one number again and again": (np.full(9_000, 1 << 60), compression.SHUFFLED),
    "prices": (np.array([RNG.randint(0, 99_999) / 100 for _ in range(20_000)]), compression.ZSTD),
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


def test_no_memory_is_set_aside_for_more_than_zstd_can_make_of_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compression.pack(bytes(1 << 24))
    data = memoryview(b"".join(packed.pieces))
    assert bytes(compression.unpack(packed.packing, packed.item, data, packed.raw)) == bytes(1 << 24)
    monkeypatch.setattr(compression, "allocate", None)
    with pytest.raises(CodecError, match="cannot unpack to"):
        compression.unpack(packed.packing, packed.item, data, 1 << 50)


def test_without_numpy_numbers_are_compressed_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.arange(100_000)
    monkeypatch.delitem(sys.modules, "numpy")
    assert compression.pack(pickle.PickleBuffer(numbers)).packing == compression.ZSTD


def test_where_no_thread_can_be_had_large_buffers_are_compressed_without(script: Script) -> None:
    done = script(
        """
        import os, pickle, resource, threading
        import numpy
        from oncemore.codec import compression
        if os.getuid() == 0:
            os.setuid(65534)  # the limit is not for everybody
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        try:
            threading.Thread(target=print).start()
        except RuntimeError:
            print("no threads")
        for buffer in (b"so it goes " * 1_000_000, pickle.PickleBuffer(numpy.arange(1 << 20))):
            packed = compression.pack(buffer)
            again = compression.unpack(packed.packing, packed.item, memoryview(b"".join(packed.pieces)), packed.raw)
            assert bytes(again) == bytes(memoryview(buffer).cast("B"))
        print("done")
        """
    )
    assert done.lines == ["no threads", "done"], done.err


def test_a_forked_child_compresses_as_its_parent_did(script: Script) -> None:
    done = script(
        """
        import os, warnings
        from oncemore.codec import compression
        warnings.simplefilter("ignore")
        data = b"so it goes " * 1_000_000
        ours = b"".join(compression.pack(data).pieces)
        child = os.fork()
        if not child:
            os._exit(b"".join(compression.pack(data).pieces) != ours)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert done.out.split() == ["0"]


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

    with pytest.raises(CodecError, match=r"entry k cannot be loaded: ValueError.*not a number"):
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
