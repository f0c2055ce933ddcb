"""The content hash of plain data and containers: what is equal, what is not, and what has no identity at all."""

from __future__ import annotations

import collections
import copy
import itertools
import pickle
import queue
import socket
import sqlite3
import struct
import sys
import threading
import time
from typing import Any, Callable

import pytest

from oncemore.errors import FingerprintError, OncemoreError, UsageError
from oncemore.identity import values
from oncemore.identity.values import digest, register_identity
from tests.processes import Script

Point = collections.namedtuple("Point", "x y")


def nested(depth: int, innermost: object = None) -> Any:
    value = innermost
    for _ in range(depth):
        value = [value]
    return value


def all_unequal(candidates: list[object]) -> bool:
    return len({digest(value) for value in candidates}) == len(candidates)


# --- equal ----------------------------------------------------------------------------------------------------------


def test_a_digest_is_sixteen_bytes() -> None:
    assert len(digest({"a": [1]})) == 16


def test_a_set_is_its_elements_whatever_their_order() -> None:
    one, other = set(), set()
    for i in range(0, 4000, 8):  # collisions make the order of insertion visible
        one.add((i, "x"))
    for i in reversed(range(0, 4000, 8)):
        other.add((i, "x"))
    assert list(one) != list(other)
    assert digest(one) == digest(other)


def test_a_set_inside_a_frozenset_inside_a_list_is_its_elements() -> None:
    assert digest([{frozenset({1, 8}), "a"}]) == digest([{"a", frozenset({8, 1})}])


def test_a_set_of_strings_is_the_same_under_every_hash_seed(script: Script) -> None:
    source = """
        from oncemore.identity.values import digest
        print(digest([{"a", "b", "c"}, {"x", 1, None, (2, "y")}, frozenset({"k": 1})]).hex())
    """
    seen = {script(source, env={"PYTHONHASHSEED": seed}).out for seed in ("0", "1", "77")}
    assert len(seen) == 1


def test_shared_and_copied_parts_are_equal() -> None:
    part = [1, {"a": 2}]
    assert digest([part, part]) == digest([part, copy.deepcopy(part)])


def test_shared_and_copied_parts_of_a_walked_value_are_equal() -> None:
    part = [1, {2, 3.0}]
    assert digest([part, part]) == digest([part, copy.deepcopy(part)])


def test_interned_and_built_strings_are_equal() -> None:
    built = "".join(["ab", "cd"])
    assert digest([sys.intern("abcd"), "abcd"]) == digest([built, "".join(["abc", "d"])])


def test_a_dict_that_lost_a_key_equals_one_that_never_had_it() -> None:
    value: dict[object, int] = {"a": 1, 5: 2, "b": 3}
    del value[5]
    assert digest([value]) == digest([{"a": 1, "b": 3}])


def test_nan_equals_itself() -> None:
    assert digest([float("nan")]) == digest([float("nan")])


def test_large_integers_have_an_identity() -> None:
    assert digest(10**5000) == digest(10**4999 * 10)
    assert digest(10**5000) != digest(10**5000 + 1)


def test_a_value_that_contains_itself_equals_its_copy() -> None:
    value: list[Any] = [1, {"k": "v"}]
    value.append(value)
    value[1]["me"] = value
    assert digest(value) == digest(copy.deepcopy(value))


def test_a_value_that_contains_itself_is_told_from_another_such_value() -> None:
    one: list[Any] = [1]
    one.append(one)
    other: list[Any] = [2]
    other.append(other)
    assert digest(one) != digest(other)


def test_a_shared_and_a_copied_recursive_part_are_equal() -> None:
    part: list[Any] = [1]
    part.append(part)
    assert digest([part, part]) == digest([part, copy.deepcopy(part)])


def test_where_a_cycle_leads_back_to_counts() -> None:
    outer: list[Any] = ["a", ["b"]]
    outer[1].append(outer)
    inner: list[Any] = ["a", ["b"]]
    inner[1].append(inner[1])
    assert digest(outer) != digest(inner)


def test_a_set_of_objects_that_know_each_other_is_the_same_in_every_process(script: Script) -> None:
    source = """
        import random
        from oncemore.identity.values import digest

        class Person:
            pass

        names = ["ann", "bob", "cid", "dan", "eve"]
        random.shuffle(names)
        people = {name: Person() for name in names}
        for name, person in people.items():
            person.name = name
            person.friends = {people[other] for other in names if (len(name) + ord(other[0]) + ord(name[0])) % 3}
        print(digest(set(people.values())).hex())
    """
    assert len({script(source).out for _ in range(3)}) == 1


def test_a_long_chain_linked_both_ways_takes_no_longer_than_its_length() -> None:
    links: list[dict[str, Any]] = [{"value": 1} for _ in range(20_000)]
    for left, right in itertools.pairwise(links):
        left["next"], right["previous"] = right, left
    start = time.perf_counter()
    digest(links[0])
    assert time.perf_counter() - start < 30


def test_a_hundred_thousand_nested_lists_have_an_identity() -> None:
    assert digest(nested(100_000)) != digest(nested(10_000)) == digest(nested(10_000))


def test_sixty_levels_of_shared_pairs_take_no_time() -> None:
    value: Any = "leaf"
    for _ in range(60):
        value = [value, value]
    start = time.perf_counter()
    digest(value)
    assert time.perf_counter() - start < 20


def test_sixty_levels_of_shared_pairs_around_a_set_take_no_time() -> None:
    value: Any = {1.5, "leaf"}
    for _ in range(60):
        value = (value, value)
    start = time.perf_counter()
    digest(value)
    assert time.perf_counter() - start < 20


def test_looking_at_a_value_leaves_it_as_it_was() -> None:
    value = {"a": [1, {2}], "b": collections.deque([1])}
    before = pickle.dumps(value)
    digest(value)
    assert pickle.dumps(value) == before


# --- which scheme applies follows from the content ------------------------------------------------------------------


def walked(value: Any) -> bytes:
    """The digest by the walk alone: nothing is tried as plain data."""
    walk = values.Digests()
    walk._budget = 0
    return walk.of(value)


@pytest.mark.parametrize("depth", [1, 5, 63, 64, 65, 66, 130])
def test_plain_data_has_one_digest_whether_pickled_or_walked(depth: int) -> None:
    value = nested(depth, {"a": (1, [], {}), "b": "", 3: [b"x", bytearray()]})
    assert digest(value) == walked(value)


def test_plain_data_in_a_walked_value_has_one_digest_however_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    value = [{1.5, 2}, {"rows": [[i, {"x": (i, [i])}] for i in range(50)]}]
    usual = digest(value)
    monkeypatch.setattr(values.Digests, "_as_plain", lambda self, value: None)
    assert digest(value) == usual


def test_plain_data_beyond_the_limit_of_size_has_one_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_LARGEST", 100)
    part = [{i: "x"} for i in range(40)]
    value = [[part, part, part], part]
    assert digest(value) == digest([[part, copy.deepcopy(part), list(part)], list(part)]) == walked(value)


def test_one_list_many_times_equals_as_many_lists() -> None:
    row = [1, ["a", 2.5]]
    assert digest([row] * 30_000) == digest([[1, ["a", 2.5]] for _ in range(30_000)])


@pytest.mark.parametrize("spoiler", [1j, range(3), {1}, frozenset({"a"}), Point(1, 2), object, len, ..., type(None)])
@pytest.mark.parametrize("place", ["first", "last", "key"])
def test_a_foreign_value_deep_in_plain_data_is_noticed(spoiler: Any, place: str) -> None:
    try:
        hash(spoiler)
    except TypeError:
        place = "last"
    rows: list[Any] = [[i, str(i)] for i in range(3000)]
    rows.insert(0 if place == "first" else 2999, {spoiler: 1} if place == "key" else (spoiler,))
    assert digest(rows) == walked(rows)


# --- unequal --------------------------------------------------------------------------------------------------------


def test_one_is_not_true_nor_a_float_nor_a_text() -> None:
    assert all_unequal([1, True, 1.0, "1", b"1", bytearray(b"1"), 1 + 0j, [1], (1,), {1}, frozenset({1}), {1: 1}])


def test_one_is_not_true_inside_a_set() -> None:
    assert all_unequal([{1}, {True}, {1.0}, {"1"}, {b"1"}])


def test_none_is_not_false_nor_nothing() -> None:
    assert all_unequal([None, False, 0, "", b"", (), [], {}, set(), frozenset(), "None", ..., NotImplemented])


def test_minus_zero_is_not_zero() -> None:
    assert digest(-0.0) != digest(0.0)


def test_two_nans_of_different_bits_are_unequal() -> None:
    other = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]
    assert digest(other) != digest(float("nan"))


def test_the_kind_of_sequence_counts() -> None:
    assert all_unequal([(1, 2), [1, 2], {1, 2}, frozenset({1, 2}), Point(1, 2), collections.deque([1, 2]), range(1, 3)])


def test_a_named_tuple_is_told_from_another_with_the_same_items() -> None:
    Pair = collections.namedtuple("Pair", "x y")
    assert digest(Point(1, 2)) != digest(Pair(1, 2))


def test_the_order_of_keys_counts() -> None:
    assert digest({"a": 1, "b": 2}) != digest({"b": 2, "a": 1})


def test_the_order_of_keys_counts_in_a_walked_dict() -> None:
    assert digest({"a": {1}, "b": {2}}) != digest({"b": {2}, "a": {1}})


def test_bytes_are_not_a_bytearray_nor_a_memoryview() -> None:
    assert all_unequal([b"x", bytearray(b"x"), memoryview(b"x")])


def test_where_one_string_ends_and_the_next_begins_counts() -> None:
    assert all_unequal([["ab", "c"], ["a", "bc"], ["abc"], ["ab", "", "c"], [["ab"], "c"], [["ab", "c"]]])


def test_how_walked_parts_are_nested_counts() -> None:
    s = {1.5}
    assert all_unequal([[s, s], [[s, s]], [[s], s], [s, [s]], (s, s), {"a": s}, [s], [s, s, s], ["a", s], [s, "a"]])


def test_a_digest_does_not_pass_for_the_value_it_stands_for() -> None:
    inner = {1.5, "a"}
    assert digest([inner]) != digest([digest(inner)])
    assert digest(["a", inner]) != digest(["a", digest(inner)])


def test_the_kind_of_dict_counts() -> None:
    plain = {"a": 1}
    candidates = [
        plain,
        collections.OrderedDict(plain),
        collections.defaultdict(int, plain),
        collections.Counter(plain),
    ]
    assert all_unequal([*candidates, collections.defaultdict(list, plain), collections.UserDict(plain)])


def test_moving_a_key_of_an_ordered_dict_to_the_end_counts() -> None:
    value = collections.OrderedDict(a=1, b=2)
    before = digest(value)
    value.move_to_end("a")
    assert digest(value) == digest(collections.OrderedDict(b=2, a=1)) != before


def test_the_bound_of_a_deque_counts() -> None:
    assert digest(collections.deque([1], 3)) != digest(collections.deque([1], 4))


# --- no identity ----------------------------------------------------------------------------------------------------


async def coroutine() -> None:
    pass


async def async_generator() -> Any:
    yield 1


def an_open_file() -> Any:
    return open(__file__)


NAMELESS: dict[str, tuple[Callable[[], Any], str]] = {
    "a generator": (lambda: (i for i in [1]), "generator"),
    "a coroutine": (coroutine, "coroutine"),
    "an async generator": (async_generator, "async_generator"),
    "an iterator of a list": (lambda: iter([1]), "list_iterator"),
    "a zip": (lambda: zip([1], "a"), "zip"),
    "a cycle": (lambda: itertools.cycle([1]), "itertools.cycle"),
    "an iterator of a set": (lambda: iter({1}), "set_iterator"),
    "an iterator of a function": (lambda: iter(int, 1), "callable_iterator"),
    "pairs": (lambda: itertools.pairwise([1]), "itertools.pairwise"),
    "groups": (lambda: itertools.groupby([1]), "itertools.groupby"),
    "a queue": (queue.Queue, "queue.Queue"),
    "a thread": (threading.Thread, "threading.Thread"),
    "thread-local data": (threading.local, "_thread._local"),
    "an open file": (an_open_file, "_io.TextIOWrapper"),
    "a socket": (socket.socket, "socket.socket"),
    "a connection": (lambda: sqlite3.connect(":memory:"), "sqlite3.Connection"),
    "a frame": (lambda: sys._getframe(), "frame"),
    "a bare object": (object, "object"),
}


@pytest.mark.parametrize(("make", "kind"), NAMELESS.values(), ids=NAMELESS)
def test_no_stable_identity(make: Callable[[], Any], kind: str) -> None:
    value = make()
    try:
        with pytest.raises(FingerprintError) as caught:
            digest(value)
    finally:
        getattr(value, "close", lambda: None)()
    assert (caught.value.kind, caught.value.path) == (kind, "")


class Job:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([0, 1, 2, Job(lock=threading.Thread())], "[3].lock"),
        ({"a": Job(conn=threading.Thread())}, "['a'].conn"),
        ({"a": {"b": (1, [threading.Thread()])}}, "['a']['b'][1][0]"),
        ({threading.Thread(): 1}, ".keys()[0]"),
        ([{threading.Thread()}], "[0]{*}"),
        (collections.deque([threading.Thread()]), "[0]"),
        (Point(1, threading.Thread()), "[1]"),
        (Job(a=Job(b=[threading.Thread()])), ".a.b[0]"),
        (collections.defaultdict(list, {"k": threading.Thread()}), "['k']"),
        ([[1]] * 5000 + [[threading.Thread()]], "[5000][0]"),
    ],
)
def test_the_error_says_where_the_nameless_value_is(value: Any, path: str) -> None:
    with pytest.raises(FingerprintError) as caught:
        digest(value)
    assert (caught.value.kind, caught.value.path) == ("threading.Thread", path)


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(FingerprintError, match=r"holds a generator at \[1\].*Pass a list.*ignore=.*key="):
        digest([1, (i for i in [])])


def test_after_an_error_other_values_have_their_usual_digest() -> None:
    before = digest([1, {"a": [2]}])
    for _ in range(3):
        with pytest.raises(FingerprintError):
            digest([1, {"a": [threading.Thread()]}])
    assert digest([1, {"a": [2]}]) == before


def test_a_sentinel_is_known_by_the_name_its_module_gives_it() -> None:
    from dataclasses import MISSING
    from inspect import _empty

    assert all_unequal([MISSING, _empty, SENTINEL, OTHER])
    assert digest(SENTINEL) == digest([SENTINEL][0])


SENTINEL = object()
OTHER = object()


# --- taught by the user ---------------------------------------------------------------------------------------------


class Client:
    def __init__(self, host: str) -> None:
        self.host = host
        self.thread = threading.Thread()


class SpecialClient(Client):
    pass


class Model:
    def __init__(self, name: str) -> None:
        self.name = name
        self.thread = threading.Thread()

    def __checkpoint_identity__(self) -> object:
        return ["model", self.name]


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore.identity.values import objects

    monkeypatch.setattr(objects, "_registered", {})
    monkeypatch.setattr(objects, "_chosen", {})
    register_identity(Client, lambda client: client.host)


@pytest.mark.usefixtures("taught")
def test_a_registered_identity_is_used() -> None:
    assert digest([Client("a")]) == digest([Client("a")]) != digest([Client("b")])


@pytest.mark.usefixtures("taught")
def test_a_registered_identity_applies_to_subclasses_and_tells_them_apart() -> None:
    assert digest(SpecialClient("a")) == digest(SpecialClient("a")) != digest(Client("a"))


@pytest.mark.usefixtures("taught")
def test_the_nearest_registered_identity_wins() -> None:
    register_identity(SpecialClient, lambda client: "any")
    assert digest(SpecialClient("a")) == digest(SpecialClient("b"))


@pytest.mark.usefixtures("taught")
def test_an_identity_may_be_registered_after_a_refusal() -> None:
    thread = threading.Thread()
    with pytest.raises(FingerprintError):
        digest(thread)
    register_identity(threading.Thread, lambda thread: thread.is_alive())
    assert digest(thread) == digest(threading.Thread())


@pytest.mark.usefixtures("taught")
def test_an_identity_that_is_the_value_itself_is_refused() -> None:
    register_identity(Client, lambda client: client)
    with pytest.raises(FingerprintError):
        digest(Client("a"))


@pytest.mark.usefixtures("taught")
def test_what_a_registered_function_raises_passes_through() -> None:
    register_identity(Client, lambda client: client.nothing)
    with pytest.raises(AttributeError):
        digest(Client("a"))


@pytest.mark.parametrize("kind", [int, str, list, dict, object, set])
def test_the_identity_of_plain_data_cannot_be_replaced(kind: type) -> None:
    with pytest.raises(UsageError) as caught:
        register_identity(kind, str)
    assert isinstance(caught.value, OncemoreError)


def test_an_object_may_say_itself_what_identifies_it() -> None:
    assert digest(Model("a")) == digest(Model("a")) != digest(Model("b"))


def test_an_identity_that_an_object_gives_is_not_the_object() -> None:
    assert digest(Model("a")) != digest(["model", "a"])
