"""The content hash of objects, code and the standard library's values."""

from __future__ import annotations

import array
import copy
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import io
import pathlib
import pickle
import random
import re
import struct
import types
import typing
import uuid
import zoneinfo
from typing import Any, Callable

import attrs
import pytest
import wrapt

from oncemore.errors import FingerprintError
from oncemore.identity import values
from oncemore.identity.values import digest, objects
from tests.processes import Script


def all_unequal(candidates: list[Any]) -> bool:
    return len({digest(value) for value in candidates}) == len(candidates)


def equal_to_its_copies(value: Any) -> bool:
    return digest(value) == digest(copy.deepcopy(value)) == digest(pickle.loads(pickle.dumps(value)))


class Plain:
    def __init__(self, a: Any, b: Any = 2) -> None:
        self.a = a
        self.b = b

    def method(self) -> Any:
        return self.a


class Twin:
    def __init__(self, a: Any, b: Any = 2) -> None:
        self.a = a
        self.b = b

    def other(self) -> Any:
        return self.b


class Slotted:
    __slots__ = ("__weakref__", "a", "unset")

    def __init__(self, a: Any) -> None:
        self.a = a


class SlottedChild(Slotted):
    __slots__ = ("__secret", "b")

    def __init__(self, a: Any, b: Any, secret: Any = 0) -> None:
        super().__init__(a)
        self.b = b
        self.__secret = secret


class Stated:
    def __init__(self, kept: Any, dropped: Any) -> None:
        self.kept = kept
        self.dropped = dropped

    def __getstate__(self) -> dict[str, Any]:
        return {"kept": self.kept}


class Reduced:
    def __init__(self, kept: Any, dropped: Any = None) -> None:
        self.kept = kept
        self.dropped = dropped

    def __reduce__(self) -> Any:
        return Reduced, (self.kept,)


@dataclasses.dataclass
class Data:
    a: Any
    b: Any = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class SlottedData:
    __slots__ = ("a", "b")
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenData:
    a: Any
    b: Any = 1


@attrs.define
class Attrs:
    a: Any
    b: Any = 1


@attrs.define(frozen=True, cache_hash=True)
class HashedAttrs:
    a: Any


@attrs.define(frozen=True, cache_hash=True, slots=False)
class HashedDictAttrs:
    a: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Row(typing.NamedTuple):
    a: int
    b: Any = 0


class MyList(list):  # type: ignore[type-arg]
    pass


class MyDict(dict):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise AssertionError("looking at a value must not run its methods")


class MyInt(int):
    pass


class MyStr(str):
    pass


class Countdown:
    def __init__(self, left: int) -> None:
        self.left = left

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        self.left -= 1
        return self.left


MAKERS: dict[str, Callable[[Any], Any]] = {
    "a plain object": Plain,
    "a slotted object": Slotted,
    "a slotted child": lambda a: SlottedChild(1, a),
    "a private slot": lambda a: SlottedChild(1, 2, a),
    "an object with __getstate__": lambda a: Stated(a, 1),
    "an object with __reduce__": Reduced,
    "a dataclass": Data,
    "a dataclass with slots": lambda a: FrozenData(a),
    "an attrs class": Attrs,
    "a named tuple": Row,
    "a list of one's own": lambda a: MyList([a]),
    "a simple namespace": lambda a: types.SimpleNamespace(a=a),
    "an exception": lambda a: ValueError(a),
    "an operating system error": lambda a: FileNotFoundError(2, "no", str(a)),
    "an iterator of one's own": Countdown,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_equal_content_of_an_object(make: Callable[[Any], Any]) -> None:
    assert digest([make(1)]) == digest([make(1)])
    assert equal_to_its_copies(make(1))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_unequal_content_of_an_object(make: Callable[[Any], Any]) -> None:
    assert digest(make(1)) != digest(make(2))


def test_the_order_in_which_attributes_were_set_means_nothing() -> None:
    one, other = Plain(1), Plain(1)
    one.x, one.y = 1, 2  # type: ignore[attr-defined]
    other.y, other.x = 2, 1  # type: ignore[attr-defined]
    assert digest(one) == digest(other)


def test_which_attribute_holds_a_value_counts() -> None:
    assert digest(Plain(1, 2)) != digest(Plain(2, 1))


def test_the_class_of_an_object_counts() -> None:
    assert digest(Plain(1)) != digest(Twin(1))


def test_an_object_is_not_its_attributes() -> None:
    assert all_unequal([Plain(1, 2), {"a": 1, "b": 2}, ["a", 1, "b", 2], types.SimpleNamespace(a=1, b=2)])


def test_an_attribute_more_counts() -> None:
    one = Plain(1)
    one.c = None  # type: ignore[attr-defined]
    assert digest(one) != digest(Plain(1))


def test_what_getstate_leaves_out_does_not_count() -> None:
    assert digest(Stated(1, dropped=1)) == digest(Stated(1, dropped=2))


def test_what_reduce_leaves_out_does_not_count() -> None:
    assert digest(Reduced(1, dropped=1)) == digest(Reduced(1, dropped=2))


def test_a_slot_that_was_never_set_is_told_from_one_that_is_none() -> None:
    one = Slotted(1)
    one.unset = None
    assert digest(one) != digest(Slotted(1))


@pytest.mark.parametrize("kind", [HashedAttrs, HashedDictAttrs])
def test_the_hash_that_attrs_keeps_does_not_count(kind: Any) -> None:
    one = kind("x")
    hash(one)
    assert digest(one) == digest(kind("x"))


def test_subclasses_of_builtins_are_their_class_and_their_content() -> None:
    assert all_unequal([1, MyInt(1), MyInt(2), Number.ONE, "a", MyStr("a"), MyStr("b"), [1], MyList([1]), MyList([2])])


def test_attributes_of_a_subclass_of_a_builtin_count() -> None:
    one = MyList([1])
    one.note = "x"
    assert digest(one) != digest(MyList([1]))


def test_a_dict_of_ones_own_is_read_without_its_methods() -> None:
    assert digest(MyDict(a=1)) == digest(MyDict(a=1)) != digest(MyDict(a=2))


def test_a_subclass_that_contains_itself_has_an_identity() -> None:
    one, other = MyList([1]), MyList([1])
    one.append(one)
    other.append(other)
    assert digest(one) == digest(other)


def test_members_of_enums_are_told_apart() -> None:
    assert all_unequal([Colour.RED, Colour.BLUE, Number.ONE, Number.TWO, 1, "RED", Access.READ, Access.WRITE])


def test_combinations_of_flags_are_told_apart() -> None:
    assert digest(Access.READ | Access.WRITE) == digest(Access.WRITE | Access.READ) != digest(Access.READ)
    assert digest(Access(0)) != digest(Access.READ)


def test_an_error_with_an_attribute_is_told_from_one_without() -> None:
    error = ValueError("x")
    error.detail = 1  # type: ignore[attr-defined]
    assert digest(error) != digest(ValueError("x"))
    assert digest(ValueError("x")) != digest(TypeError("x"))


def test_a_getstate_that_fails_is_no_identity() -> None:
    class Stubborn:
        def __getstate__(self) -> Any:
            raise RuntimeError("never")

    with pytest.raises(FingerprintError) as caught:
        digest({"it": Stubborn()})
    assert caught.value.path == "['it']"
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_instances_of_main_are_the_same_however_the_script_is_started(script: Script) -> None:
    script.write(
        """
        import dataclasses, enum
        from oncemore.identity.values import digest

        @dataclasses.dataclass
        class Config:
            rate: float

        class Mode(enum.Enum):
            FAST = 1

        MISSING = object()

        def show():
            print(digest([Config(0.5), Mode.FAST, Config, show, {Config(1.0).rate: Mode}, MISSING]).hex())

        if __name__ == "__main__":
            show()
        """,
        "job.py",
    )
    started = [script(name="job.py").out, script(options=["-m", "job"]).out]
    started.append(script("import job; job.show()", name="other.py").out)
    assert len(set(started)) == 1


# --- code -----------------------------------------------------------------------------------------------------------


def make_adder(n: int) -> Callable[[int], int]:
    return lambda x: x + n


def function(x: int) -> int:
    return x + 1


def test_two_lambdas_on_one_line_are_told_apart() -> None:
    pair = [lambda x: x + 1, lambda x: x + 2]
    assert digest(pair[0]) != digest(pair[1])


def test_closures_of_one_factory_are_told_apart_by_what_they_close_over() -> None:
    assert digest(make_adder(2)) == digest(make_adder(2)) != digest(make_adder(3))


def test_two_functions_of_one_name_are_told_apart() -> None:
    def first() -> Any:
        def same() -> int:
            return 1

        return same

    def second() -> Any:
        def same() -> int:
            return 2

        return same

    assert digest(first()) != digest(second())


def test_a_bound_method_is_its_function_and_its_object() -> None:
    assert digest(Plain(2).method) == digest(Plain(2).method) != digest(Plain(3).method)


def test_partials_are_told_apart_by_function_and_arguments() -> None:
    partial = functools.partial
    equal = partial(function, 1), partial(function, 1)
    assert digest(equal[0]) == digest(equal[1])
    assert all_unequal([partial(function, 1), partial(function, 2), partial(function, x=1), partial(len, 1), function])


def test_a_cached_function_is_the_function_it_caches() -> None:
    one, other = functools.lru_cache(make_adder(1)), functools.lru_cache(make_adder(2))
    assert digest(one) == digest(functools.lru_cache(make_adder(1))) != digest(other)


def test_a_wrapped_function_is_wrapper_and_function() -> None:
    @wrapt.decorator
    def loud(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    assert digest(loud(make_adder(1))) == digest(loud(make_adder(1))) != digest(loud(make_adder(2)))


def test_functions_of_libraries_are_known_by_name() -> None:
    assert all_unequal(
        [len, abs, str.upper, str.lower, "a".upper, "b".upper, [].append, dict.fromkeys, copy.copy, re.sub]
    )


def test_classes_are_told_apart() -> None:
    assert all_unequal([int, bool, dict, Plain, Twin, Colour, decimal.Decimal, type(None), type])


def test_modules_are_known_by_name() -> None:
    assert digest(copy) == digest(copy) != digest(re)


def test_types_as_written_in_annotations_are_told_apart() -> None:
    T = typing.TypeVar("T")
    forms = [list[int], list[str], typing.List[int], typing.Optional[int], typing.Union[int, str], int | None]
    forms += [typing.Any, typing.Literal[1], typing.Literal[True], typing.Annotated[int, 1], typing.Annotated[int, 2]]
    assert all_unequal([*forms, typing.Callable[[int], str], dict[str, list[int]], T, typing.List])


# --- the standard library -------------------------------------------------------------------------------------------

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2024, 10, 27, 2, 30)


def test_moments_are_told_apart_by_zone_and_fold() -> None:
    hour = dt.timedelta(hours=1)
    zones = [BERLIN, zoneinfo.ZoneInfo("Europe/Paris"), dt.timezone.utc, dt.timezone(hour), dt.timezone(hour, "X")]
    moments = [NOON.replace(tzinfo=zone) for zone in zones]
    assert all_unequal([NOON, NOON.time(), *zones, *moments, moments[0].replace(fold=1)])
    assert equal_to_its_copies(moments[0])


def test_a_date_that_is_a_moment_is_no_date() -> None:
    assert digest(dt.date(2024, 1, 1)) != digest(dt.datetime(2024, 1, 1))


def test_decimals_are_their_digits() -> None:
    D = decimal.Decimal
    assert digest(D("1.50")) == digest(D("1.50"))
    assert all_unequal(
        [D("1.5"), D("1.50"), D("NaN"), D("sNaN"), D("NaN1"), D("-0"), D("0"), D("Infinity"), 1.5, "1.5"]
    )


def test_paths_are_their_text_and_flavour() -> None:
    paths = [
        pathlib.PurePosixPath("a/b"),
        pathlib.PureWindowsPath("a/b"),
        pathlib.Path("a/b"),
        pathlib.Path("a/c"),
        "a/b",
    ]
    assert all_unequal(paths)
    assert digest(pathlib.Path("a") / "b") == digest(pathlib.Path("a/b"))


def test_a_path_that_was_used_equals_one_that_was_not() -> None:
    used = pathlib.Path("a/b")
    hash(used), used.parts, str(used), used.parent
    assert digest(used) == digest(pathlib.Path("a/b"))


def test_ranges_and_slices_are_told_apart() -> None:
    assert all_unequal([range(3), range(0, 3, 2), range(1, 3), slice(3), slice(0, 3), slice(0, 3, 2), [0, 1, 2]])


def test_other_values_of_the_standard_library_are_told_apart() -> None:
    assert all_unequal([fractions.Fraction(1, 2), fractions.Fraction(1, 3), 0.5, uuid.UUID(int=1), uuid.UUID(int=2)])
    assert all_unequal([array.array("b", [1]), array.array("h", [1]), array.array("b", [2]), b"\1"])
    assert all_unequal([re.compile("a"), re.compile("a", re.I), re.compile("b"), re.compile(b"a")])
    assert all_unequal([io.BytesIO(b"a"), io.BytesIO(b"b"), io.StringIO("a")])
    assert all_unequal([types.MappingProxyType({1: 2}), {1: 2}, {1: 2}.keys(), {1: 2}.values(), {1: 2}.items()])


def test_a_pattern_is_not_its_address() -> None:
    pattern = re.compile("a+")
    re.purge()
    assert digest(pattern) == digest(re.compile("a+"))


def test_random_generators_are_their_state() -> None:
    one, other = random.Random(5), random.Random(5)
    assert digest(one) == digest(other)
    other.random()
    assert digest(one) != digest(other)
    one.random()
    assert digest(one) == digest(other)


def test_a_pending_gauss_of_a_random_generator_counts() -> None:
    one = random.Random(5)
    one.gauss(0, 1)
    other = random.Random()
    other.setstate((*one.getstate()[:2], None))
    assert digest(one) != digest(other)


def test_the_random_generator_of_the_system_has_no_identity() -> None:
    with pytest.raises(FingerprintError):
        digest(random.SystemRandom())


def test_a_zone_without_a_name_has_no_identity() -> None:
    utc = b"TZif" + bytes(16) + struct.pack(">6L", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\0"
    with pytest.raises(FingerprintError):
        digest(zoneinfo.ZoneInfo.from_file(io.BytesIO(utc)))


class Endless:
    def __reduce__(self) -> Any:
        return Endless, (), None, iter(int, 1)


class Deeper:
    def __reduce__(self) -> Any:
        return Deeper, (), {"next": Deeper()}


class Wider:
    def __reduce__(self) -> Any:
        return Wider, (), {"left": Wider(), "right": Wider()}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Endless(), "Endless with more than 1,000 items"),
        (Deeper(), r"nested more than 1,000 levels deep at .* \.\.\. , which has no stable identity"),
        (Wider(), "nested more than 1,000 levels deep"),
    ],
)
def test_an_object_that_never_ends_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, value: object, message: str
) -> None:
    monkeypatch.setattr(objects, "_MOST_ITEMS", 1000)
    monkeypatch.setattr(values, "_MOST_LEVELS", 1000)
    with pytest.raises(FingerprintError, match=message):
        digest([value])


class Recursive:
    def __getstate__(self) -> Any:
        return self.__getstate__()


def inside_each_other(count: int) -> Any:
    function: Any = len
    for _ in range(count):

        def outer(inner: Any = function) -> Any:
            return inner

        function = outer
    return function


@pytest.mark.parametrize("value", [Recursive(), inside_each_other(5_000)], ids=["a method", "functions"])
def test_what_exceeds_the_recursion_limit_is_an_error_that_names_it(value: object) -> None:
    with pytest.raises(FingerprintError, match=r"Recursive|function that exceeds Python's recursion limit"):
        digest({"a": [value]})


def test_an_object_that_never_ends_is_an_error_also_where_things_without_identity_are_taken_by_their_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values, "_MOST_LEVELS", 100)
    monkeypatch.setattr(values, "_MOST_OBJECTS", 5000)
    with pytest.raises(FingerprintError, match="after more than 5,000 other objects"):
        values.Digests(tolerant=True).of([Wider()])
