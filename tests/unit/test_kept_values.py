"""Values: what comes back in a later run, and what happens where nothing can be kept."""

from __future__ import annotations

import asyncio
import collections
import csv
import datetime
import decimal
import enum
import itertools
import os
import re
import sys
import threading
import traceback
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oncemore import CheckpointWarning, IntegrityError, checkpoint_scope, checkpointed, events, open_store
from oncemore.codec import dumps, loads
from tests.processes import Script
from tests.unit.again import skipped_alike

Ran = Callable[[], "list[str]"]


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Ran:
    """What was printed since it was last asked: every step here prints when its body runs."""
    return lambda: capsys.readouterr().out.split()


Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


@dataclass
class Row:
    name: str
    tags: list[str]


def again(function: Callable[..., Any], *args: Any) -> Any:
    """What a second run gets for a call that the first one made."""
    step = checkpointed(name="again")(function)
    with checkpoint_scope("first and second"):
        step(*args)
    with checkpoint_scope("first and second") as run:
        value = step(*args)
        assert (run.ran, run.reused) == ({}, {"again": 1})
    return value


# --- what comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: (True, 1, 1.0, "1", b"1", 1j, ..., NotImplemented),
        lambda: [float("inf"), -0.0, 10**400, "\ud800", "é🙂"],
        lambda: {"a": {1, 2}, (1, 2): frozenset({3, 4}), None: bytearray(b"xy")},
        lambda: (Point(1, 2), Colour.RED, Row("a", ["b"]), Path("/tmp/x"), decimal.Decimal("1.10")),
        lambda: datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
        lambda: (range(3), slice(1, 2), int, len, ValueError("kept as a value")),
        lambda: [[]] * 3,
    ],
    ids=["none", "scalars", "odd scalars", "containers", "own types", "time", "ranges and types", "nested"],
)
def test_a_value_comes_back_as_it_was(make: Callable[[], Any]) -> None:
    value, expected = again(make), make()
    assert repr(value) == repr(expected)
    assert type(value) is type(expected)


def test_none_is_a_result(script: Script) -> None:
    source = """
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed
        def nothing():
            print("ran")
        with checkpoint_scope("none"):
            print(nothing(), nothing.is_done(), nothing.recall())
    """
    assert script(source).lines == ["ran", "None True None"]
    assert script(source).lines == ["None True None"]


def test_what_only_cloudpickle_can_pickle_comes_back() -> None:
    def made() -> Any:
        rate = 3

        class Local:
            def times(self, x: int) -> int:
                return x * rate

        return Local(), (lambda x: x + rate), np

    local, function, module = again(made)
    assert (local.times(2), function(2), module) == (6, 5, np)


def test_an_instance_of_a_class_of_the_script_is_one_of_that_class_again(script: Script) -> None:
    source = """
        from dataclasses import dataclass
        from oncemore import checkpointed, checkpoint_scope
        @dataclass
        class Model:
            rate: float
            def fit(self): return self.rate * 2
        @checkpointed
        def train():
            print("ran")
            return Model(1.5), Model, lambda x: Model(x)
        with checkpoint_scope("classes"):
            model, kind, make = train()
            print(type(model) is Model, kind is Model, type(make(2)) is Model, model.fit())
    """
    assert script(source).lines == ["ran", "True True True 3.0"]
    assert script(source).lines == ["True True True 3.0"]
    assert script(name="script.py", options=["-m", "script"]).lines == ["True True True 3.0"]
    assert script("import script", name="other.py").lines == ["True True True 3.0"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(12.0).reshape(3, 4),
        lambda: np.asfortranarray(np.arange(12).reshape(3, 4)),
        lambda: np.arange(100_000, dtype="<i4")[::-3],
        lambda: np.arange(6, dtype=">i2"),
        lambda: np.zeros((0, 3)),
        lambda: np.array(5.0),
        lambda: np.array(["a", "bc"]),
        lambda: np.array([{"a": 1}, None], dtype=object),
        lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        lambda: np.array(["2024-01-01", "NaT"], dtype="M8[D]"),
        lambda: np.ma.masked_array([1, 2], [True, False]),
        lambda: np.float32(1.5),
    ],
    ids="c f strided big-endian empty scalar-array text objects structured times masked scalar".split(),
)
def test_an_array_comes_back_as_it_was(make: Callable[[], Any]) -> None:
    value, expected = again(make), make()
    assert (type(value), value.dtype, value.shape) == (type(expected), expected.dtype, expected.shape)
    np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("noise", [False, True], ids=["compressible", "incompressible"])
def test_a_large_array_comes_back_writable_and_aligned(noise: bool) -> None:
    def made(noise: bool) -> Any:
        rng = np.random.default_rng(1)
        numbers = rng.integers(-(2**62), 2**62, 100_001) if noise else np.arange(100_001)
        return rng.integers(0, 256, 1003, "u1"), numbers  # the first one leaves the second at an odd place

    small, large = again(made, noise)
    assert large.flags.writeable
    assert large.flags.aligned
    assert (large == made(noise)[1]).all()
    assert (small == made(noise)[0]).all()


class Measured(np.ndarray):
    """An array with something to say about itself."""

    unit: str

    def __array_finalize__(self, made_from: Any) -> None:
        self.unit = getattr(made_from, "unit", "?")


def measured(dtype: str) -> Measured:
    array = np.arange(6).astype(dtype)[::2].view(Measured)
    array.unit = "km"
    return array


BIG_ENDIAN = {
    "strided": lambda: np.arange(6000).astype(">f8")[::2],
    "backwards": lambda: np.arange(6).astype(">i4")[::-1],
    "transposed part": lambda: np.arange(24).astype(">u2").reshape(4, 6)[:, ::2].T,
    "times": lambda: np.array(["2024-01-01", "NaT"], ">M8[ns]"),
    "strided durations": lambda: np.arange(6).astype(">m8[s]")[::2],
    "strided texts": lambda: np.array(["a", "bc", "d"]).astype(">U2")[::2],
    "strided structures": lambda: np.zeros(6, [("a", ">i4"), ("b", "<f8")])[::2],
    "matrix": lambda: np.arange(6).astype(">f8")[::2].view(np.matrix),
    "subclass": lambda: measured(">f4"),
    "masked": lambda: np.ma.array(np.arange(3).astype(">i4"), mask=[0, 1, 0]),
    "records": lambda: np.rec.array(np.zeros(6, [("a", ">i4")])[::2]),
    "number in an array": lambda: np.array(5, ">i4"),
}


@pytest.mark.parametrize(
    "around", [lambda v: v, lambda v: [{"a": (v, v)}], lambda v: Row("a", v)], ids="bare list object".split()
)
@pytest.mark.parametrize("make", BIG_ENDIAN.values(), ids=BIG_ENDIAN)
def test_a_big_endian_or_strided_array_comes_back_with_its_dtype(
    make: Callable[[], Any], around: Callable[[Any], Any]
) -> None:
    value, expected = again(lambda: around(make())), make()
    if isinstance(value, list):
        assert value[0]["a"][0] is value[0]["a"][1]
        value = value[0]["a"][0]
    value = value.tags if isinstance(value, Row) else value
    assert (type(value), value.dtype.str, value.shape) == (type(expected), expected.dtype.str, expected.shape)
    assert value.dtype == expected.dtype
    np.testing.assert_array_equal(value, expected)


def test_a_big_endian_column_comes_back_with_its_dtype() -> None:
    frame = again(lambda: pd.DataFrame({"a": np.arange(6).astype(">i4")[::2], "b": [1.5, 2.5, 3.5]}))
    assert frame["a"].dtype.str == ">i4"
    assert frame["a"].tolist() == [0, 2, 4]


def test_an_array_of_a_subclass_comes_back_with_its_attributes() -> None:
    value = again(lambda: measured("<f4"))
    assert (type(value), value.unit, value.tolist()) == (Measured, "km", [0.0, 2.0, 4.0])


@pytest.mark.parametrize("mask", [[0, 1, 0], np.ma.nomask])
def test_a_masked_array_comes_back_with_all_that_it_is(mask: Any) -> None:
    value = again(lambda: np.ma.array([1, 2, 3], mask=mask, fill_value=7, hard_mask=True))
    assert (value.fill_value, value.hardmask, value.mask is np.ma.nomask) == (7, True, mask is np.ma.nomask)
    assert value.tolist() == ([1, None, 3] if isinstance(mask, list) else [1, 2, 3])
    assert value.data.tolist() == [1, 2, 3]


class Palette(enum.Enum):
    GREY = np.arange(3)


class Sizes(enum.Enum):
    ALL = [1, 2]


def test_a_member_of_an_enum_comes_back_whatever_its_value_is() -> None:
    assert loads(dumps([Palette.GREY, Sizes.ALL, Colour.RED])) == [Palette.GREY, Sizes.ALL, Colour.RED]


def test_an_object_that_holds_a_global_generator_holds_it_again() -> None:
    import random

    held = again(lambda: [Row("a", random._inst), Row("b", np.random.mtrand._rand), np.random.rand])  # type: ignore
    assert held[0].tags is random._inst  # type: ignore[attr-defined]
    assert held[1].tags is np.random.mtrand._rand  # type: ignore[attr-defined]
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    assert held[2]() == expected


def test_an_array_that_was_read_only_is_read_only_again() -> None:
    def frozen() -> Any:
        array = np.arange(1000)
        array.flags.writeable = False
        return array

    assert not again(frozen).flags.writeable


def test_a_frame_comes_back_as_it_was() -> None:
    def made() -> Any:
        times = pd.date_range("2024-01-01", periods=3, tz="Europe/Paris", name="day")
        frame = pd.DataFrame({"n": [1, 2, 3], "x": [1.5, None, 3], "s": ["a", None, "ü"]}, index=times)
        frame["c"] = pd.Categorical(["u", "v", "u"], categories=["v", "u"], ordered=True)
        return frame.assign(k=pd.array([1, None, 3], dtype="Int64"))

    frame = again(made)
    pd.testing.assert_frame_equal(frame, made(), check_freq=True)
    frame.loc[frame.index[0], "n"] = 7
    assert frame["n"].tolist() == [7, 2, 3]


# --- sharing, the caller's own objects ------------------------------------------------------------------------------


def test_sharing_inside_a_result_is_kept() -> None:
    def made() -> Any:
        row, array = [1], np.arange(1000)
        loop: list[Any] = [row, row, array, {"view": array}]
        loop.append(loop)
        return loop

    value = again(made)
    assert value[0] is value[1]
    assert value[2] is value[3]["view"]
    assert value[4] is value


def test_a_result_that_is_an_argument_is_the_callers_own_object() -> None:
    step = checkpointed(lambda rows, other: rows)
    for _ in range(2):
        with checkpoint_scope("own"):
            rows, other = [[1], [2]], [[1], [2]]
            assert step(rows, other) is rows
            assert step(rows, other=other) is rows


def test_a_result_that_holds_an_argument_holds_the_callers_own_object() -> None:
    step = checkpointed(lambda frame, more: {"frame": frame, "first": more[0], "fresh": [3]})
    for _ in range(2):
        with checkpoint_scope("holds own"):
            frame, more = pd.DataFrame({"a": [1]}), [[1], [2]]
            result = step(frame, more)
            assert result["frame"] is frame
            assert result["first"] is more[0]
            assert result["fresh"] == [3]


def test_a_method_that_returns_its_instance_does_so_when_skipped() -> None:
    class Model:
        rate = 0.0

        @checkpointed
        def fit(self, x: float) -> Any:
            self.rate = x
            return self

    for _ in range(2):
        with checkpoint_scope("fluent"):
            model = Model()
            assert model.fit(2.0) is model
            assert model.rate == 2.0


def test_changing_a_returned_object_never_reaches_the_store() -> None:
    @checkpointed
    def made() -> dict[str, Any]:
        return {"list": [1], "array": np.zeros(3), "big": np.zeros(100_000)}

    for _ in range(3):
        with checkpoint_scope("mutation"):
            for _ in range(2):
                value = made()
                assert (value["list"], value["array"].sum(), value["big"].sum()) == ([1], 0, 0)
                value["list"].append(2)
                value["array"] += 1
                value["big"] += 1


def test_two_recalls_share_nothing() -> None:
    with checkpoint_scope("fresh"):
        step = checkpointed(lambda: [np.zeros(100_000), [1]])
        step()
        one, two = step(), step()
        assert one[1] is not two[1]
        assert not np.shares_memory(one[0], two[0])


# --- what cannot be kept --------------------------------------------------------------------------------------------


@dataclass
class Session:
    name: str
    handle: Any


def test_an_unpicklable_result_is_returned_with_one_warning_that_names_the_inner_object(ran: Ran) -> None:
    @checkpointed
    def connect() -> Any:
        print("ran")
        return {"sessions": [Session("a", 1), Session("b", threading.Lock())]}

    for _ in range(2):
        with checkpoint_scope("unpicklable") as run:
            with pytest.warns(CheckpointWarning) as told:
                value = connect()
            assert value["sessions"][1].handle.acquire(blocking=False)
            assert not connect.is_done()
        (message,) = [str(warning.message) for warning in told]
        assert "connect" in message
        assert "['sessions'][1].handle is a lock" in message
    assert ran() == ["ran", "ran"]
    unkept = [fact for fact in run.events() if isinstance(fact, events.StepNotKept)]
    assert len(unkept) == 2
    assert "lock" in unkept[0].reason


class Reader:
    """An iterator written in Python is an object like any other."""

    def __init__(self) -> None:
        self.left = [1, 2]

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop()


ITERATORS: dict[str, Callable[[], Any]] = {
    "list": lambda: iter([1, 2]),
    "tuple": lambda: iter((1, 2)),
    "text": lambda: iter("ab"),
    "bytes": lambda: iter(b"ab"),
    "range": lambda: iter(range(2)),
    "set": lambda: iter({1, 2}),
    "dict": lambda: iter({1: 2}),
    "dict items": lambda: iter({1: 2}.items()),
    "ordered dict": lambda: iter(collections.OrderedDict(a=1)),
    "deque": lambda: iter(collections.deque([1])),
    "reversed": lambda: reversed([1, 2]),
    "reversed dict": lambda: reversed({1: 2}),
    "array": lambda: iter(np.arange(3)),
    "function": lambda: iter(int, 1),
    "map": lambda: map(str, [1]),
    "filter": lambda: filter(None, [1]),
    "zip": lambda: zip([1], [2], strict=True),
    "enumerate": lambda: enumerate([1]),
    "generator": lambda: (x for x in [1]),
    "chain": lambda: itertools.chain([1], [2]),
    "count": lambda: itertools.count(3),
    "islice": lambda: itertools.islice([1, 2], 1),
    "groupby": lambda: itertools.groupby([1, 2]),
    "csv": lambda: csv.reader(["a,b"]),
    "folder": lambda: os.scandir("."),
    "matches": lambda: re.finditer("a", "aa"),
}


def refused(make: Callable[[], Any]) -> tuple[Any, str]:
    """The result of a step that cannot be kept, and what the user is told."""

    @checkpointed
    def step() -> Any:
        return make()

    with checkpoint_scope("refused"), pytest.warns(CheckpointWarning) as told:
        value = step()
        assert not step.is_done()
    (message,) = [str(warning.message) for warning in told if warning.category is CheckpointWarning]
    return value, message


@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS)
def test_an_iterator_is_returned_and_not_kept_and_the_message_says_what_to_return(make: Callable[[], Any]) -> None:
    value, message = refused(make)
    assert type(value) is type(make())
    assert next(value) is not None
    assert f"the result is an iterator ({type(value).__name__})" in message
    assert "Return a list instead" in message


def test_an_iterator_inside_a_result_is_refused_where_it_is() -> None:
    value, message = refused(lambda: {"rows": [Row("a", map(str, [1]))]})  # type: ignore[arg-type]
    assert "the result['rows'][0].tags is an iterator (map)" in message
    assert list(value["rows"][0].tags) == ["1"]


def test_an_iterator_written_in_python_comes_back_where_it_was() -> None:
    assert list(again(lambda: Reader())) == [2, 1]


def test_the_views_of_a_dict_come_back() -> None:
    keys, values, items = again(lambda: ({1: 2}.keys(), {1: 2}.values(), {1: 2}.items()))
    assert (list(keys), list(values), list(items)) == ([1], [2], [(1, 2)])
    assert [type(view) for view in (keys, values, items)] == [
        type(view) for view in ({}.keys(), {}.values(), {}.items())
    ]


def test_a_counter_inside_an_object_goes_on_where_it_was() -> None:
    def made() -> Any:
        numbers = itertools.count(5)
        next(numbers)
        return Row("ids", numbers)  # type: ignore[arg-type]

    assert next(again(made).tags) == 6


@pytest.mark.parametrize("mode", ["r", "w", "rb", "wb", "r+"])
def test_an_open_file_is_returned_and_not_kept_and_the_message_says_what_to_return(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("one line\n")
    value, message = refused(lambda: path.open(mode))
    with value:
        assert value.name == str(path)
    assert f"the result is an open file ({type(value).__name__})" in message
    assert "Return its path or its content instead" in message


def test_the_output_of_the_program_is_no_file_of_a_step() -> None:
    assert again(lambda: [sys.__stdout__, sys.__stderr__]) == [sys.__stdout__, sys.__stderr__]


def test_a_view_of_memory_does_not_come_back_as_bytes() -> None:
    value, message = refused(lambda: memoryview(bytearray(b"ab")))
    assert value == b"ab"
    assert "the result is a memoryview" in message
    assert "Return bytes instead" in message


# --- classes and functions that a step makes --------------------------------------------------------------------------

MADE = """
    import dataclasses, enum, functools, typing
    from oncemore import checkpoint_scope, checkpointed

    RATE = 3

    @checkpointed
    def make():
        print("RAN make")
        rate = 2

        class Base:
            def score(self, x):
                return x * rate

            @functools.cached_property
            def twice(self):
                return self.value * 2

        class Model(Base):
            class Inner:
                kind = 1

            def __init__(self):
                super().__init__()
                self.value = 1

            def score(self, x):
                return super().score(x) + self.value

        class Slotted:
            __slots__ = ("left", "__hidden")

            def __init__(self):
                self.left, self.__hidden = 1, 2

        @dataclasses.dataclass(frozen=True, slots=True)
        class Point:
            x: int = 1

        class Pair(typing.NamedTuple):
            x: int = 1

        class Colour(enum.Enum):
            RED = 1

        def grow(x, *, by=[1]):
            return x * rate * RATE + by[0]

        def repeat(n):
            return 0 if n == 0 else repeat(n - 1)

        @functools.lru_cache(maxsize=5)
        def cached(x):
            return grow(x)

        model = Model()
        parts = [model, Model, Model.Inner(), Slotted(), Point(), Pair(), Colour.RED, grow, repeat, cached]
        return [*parts, model.score, lambda: 5, functools.partial(grow, 1)]

    @checkpointed
    def take(number, value):
        print("RAN take", number)

    with checkpoint_scope("made"):
        made = make()
        for number, value in enumerate(made):
            take(number, value)
        print(made[0].score(2), made[7](1), made[8](3), made[9](1), made[10](2), made[12]())
        RATE = 4
        print(made[7](1), made[3].left, hasattr(made[3], "__dict__"), made[1].__qualname__)
"""


def test_what_a_step_made_a_class_or_a_function_for_is_the_same_argument_in_the_next_process(script: Script) -> None:
    done = skipped_alike(script, MADE)
    assert done.lines == ["5 7 0 7 5 7", "9 1 False make.<locals>.Model"]


def test_the_warning_stands_at_the_line_of_the_user(script: Script) -> None:
    source = """
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed
        def numbers():
            return (x for x in (1, 2))
        with checkpoint_scope("line"):
            print(list(numbers()))  # here
    """
    done = script(source)
    assert done.out == "[1, 2]\n"
    assert "script.py:6: CheckpointWarning: step numbers" in done.err


def test_an_earlier_checkpoint_stays_when_a_new_result_cannot_be_kept(ran: Ran) -> None:
    @checkpointed
    def load(lock: bool) -> Any:
        print("ran")
        return threading.Lock() if Path("locked").exists() else "kept"

    with checkpoint_scope("stays"):
        load(True)
        Path("locked").touch()
        with pytest.warns(CheckpointWarning, match="not saved"):
            load.refresh(True)
        assert load(True) == "kept"


# --- exceptions are no results --------------------------------------------------------------------------------------


class Refused(Exception):
    def __init__(self, code: int, *, server: Any) -> None:  # cannot be pickled: two reasons
        super().__init__(f"code {code}")
        self.server = server


@pytest.mark.parametrize("when", ["now", "awaited"])
def test_an_exception_is_raised_as_it_is_and_the_step_runs_next_time(when: str, ran: Ran) -> None:
    def fetch(error: Exception) -> str:
        print("ran")
        if not Path("up").exists():
            raise error
        return "page"

    async def fetch_later(error: Exception) -> str:
        return fetch(error)

    decorate, error = checkpointed(ignore=["error"]), Refused(3, server=threading.Lock())
    now, later = decorate(fetch), decorate(fetch_later)
    call = (lambda: now(error)) if when == "now" else lambda: asyncio.run(later(error))
    for _ in range(2):
        with checkpoint_scope("refused"), pytest.raises(Refused) as caught:
            call()
        assert caught.value is error
        assert caught.value.__cause__ is None
    Path("up").touch()
    with checkpoint_scope("refused") as run:
        assert call() == "page"
    assert ran() == ["ran"] * 3
    failed = [fact for fact in run.events() if isinstance(fact, events.StepFailed)]
    assert [fact.error for fact in failed] == ["Refused: code 3"] * 2
    assert all("raise error" in fact.traceback and __file__ in fact.traceback for fact in failed)


def test_the_users_line_is_in_the_traceback_that_the_user_sees() -> None:
    step = checkpointed(lambda: 1 // 0)
    with checkpoint_scope("traceback"), pytest.raises(ZeroDivisionError) as caught:
        step()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "step = checkpointed(lambda: 1 // 0)"


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, GeneratorExit, RuntimeError])
def test_exceptions_that_mean_something_to_generators_pass_untouched(kind: type[BaseException]) -> None:
    error = kind("mine")

    @checkpointed
    def stop() -> None:
        raise error

    with checkpoint_scope("stop"), pytest.raises(kind) as caught:
        stop()
    assert caught.value is error


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_interruption_is_not_recorded_as_failure(kind: type[BaseException], ran: Ran) -> None:
    @checkpointed
    def work() -> str:
        print("ran")
        if not Path("go").exists():
            raise kind
        return "done"

    with checkpoint_scope("interruption") as run:
        with pytest.raises(kind):
            work()
        assert run.failed == {}
        Path("go").touch()
        assert work() == "done"
        assert [type(fact).__name__ for fact in run.events()] == ["RunStarted", "StepCompleted"]


# --- what changed since ---------------------------------------------------------------------------------------------


def test_a_class_that_was_renamed_since_is_a_miss_with_a_reason(script: Script) -> None:
    step = """
        from oncemore import checkpointed, checkpoint_scope
        import shapes
        @checkpointed(code="version", version="1")
        def draw():
            print("ran")
            return shapes.make()
        with checkpoint_scope("renamed") as run:
            print(type(draw()).__name__)
            print([fact.reason for fact in run.events() if hasattr(fact, "reason")][-1])
    """
    script.write("class Round: pass\ndef make(): return Round()", "shapes.py")
    assert script(step).lines == ["ran", "Round", "new node"]
    script.write("class Circle: pass\ndef make(): return Circle()", "shapes.py")
    done = script(step)
    assert done.lines[:2] == ["ran", "Circle"]
    assert "Round" in done.lines[2]
    assert "Round" in done.err
    assert script(step).lines[0] == "Circle"


def test_a_damaged_checkpoint_is_a_miss_with_a_warning_and_in_strict_mode_an_error(ran: Ran) -> None:
    store = open_store("memory://damaged")

    @checkpointed
    def load() -> int:
        print("ran")
        return 1

    with checkpoint_scope("damaged", store=store):
        load()
    (key,) = [key for key, _ in store.scan("node/")]
    whole = bytes(store.get(key))
    store.commit(put={key: [whole[:-1] + bytes([whole[-1] ^ 1])]})
    with checkpoint_scope("damaged", store=store, strict=True), pytest.raises(IntegrityError, match="altered"):
        load()
    with checkpoint_scope("damaged", store=store) as run:
        with pytest.warns(CheckpointWarning, match=r"load.*damaged"):
            assert load() == 1
        (*_, last) = [fact.reason for fact in run.events() if isinstance(fact, events.StepCompleted)]
        assert last.startswith("entry damaged")
    with checkpoint_scope("damaged", store=store, strict=True):
        assert load() == 1
    assert ran() == ["ran", "ran"]


def shows(part: Any, whole: Any) -> bool:
    return bool(np.shares_memory(part, whole))


@pytest.mark.parametrize("first", ["whole", "part"])
@pytest.mark.parametrize(
    "cut",
    {
        "rows": lambda a: a[1:],
        "one row": lambda a: a[1],
        "a column": lambda a: a[:, 1],
        "turned": lambda a: a.T,
        "backwards": lambda a: a[::-1, ::2],
        "other numbers": lambda a: a.view("u1"),
        "a part of a part": lambda a: a[1:][:, 1:],
    }.items(),
    ids=lambda each: each[0],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_and_a_part_of_it_share_memory_when_they_come_back(
    first: str, cut: tuple[str, Callable[[Any], Any]], order: Any
) -> None:
    if (cut[0], order) == ("other numbers", "F"):
        pytest.skip("numpy has no such view")

    @checkpointed
    def make() -> Any:
        whole = np.asarray(np.arange(12, dtype="f8").reshape(3, 4), order=order)
        part = cut[1](whole)
        return (whole, part) if first == "whole" else (part, whole)

    found = []
    for _ in range(2):
        with checkpoint_scope("parts", store="store") as run:
            one, other = make()
        whole, part = (one, other) if first == "whole" else (other, one)
        part[...] = 7
        found.append((whole.tolist(), part.tolist(), part.dtype, whole.flags.f_contiguous, shows(part, whole)))
    assert run.ran == {}
    assert found[0] == found[1]


def test_parts_of_an_array_that_is_not_kept_share_memory_and_a_small_part_does_not_bring_all_of_it() -> None:
    @checkpointed
    def make(n: int) -> Any:
        whole = np.arange(n)
        return whole[:3], whole[1:5]

    @checkpointed
    def small() -> Any:
        return np.zeros(1_000_000)[:3]

    for _ in range(2):
        with checkpoint_scope("parts", store="store") as run:
            (one, other), (far, farther), few = make(6), make(1_000_000), small()
        one[1] = 9
        assert (other[0], shows(one, other), few.tolist()) == (9, True, [0, 0, 0])
    assert not shows(far, farther)  # kept as they are: a million numbers for seven
    assert max(checkpoint.stored_bytes for checkpoint in run.checkpoints) < 10_000
