"""Arguments changed in place: the caller's own objects get the same change when the step is skipped."""

from __future__ import annotations

import array
import copy
import enum
import functools
import io
import random
import threading
import types
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pytest

from oncemore import CheckpointWarning, Run, checkpointed
from oncemore.events import StepNotKept
from tests.processes import Script
from tests.unit.again import effects, scope, skipped_alike, twice

T = TypeVar("T")


class Plain:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("__hidden", "left", "right")

    def __init__(self) -> None:
        self.left = 1
        self.__hidden: Any = [0]

    def hide(self, value: Any) -> None:
        self.__hidden.append(value)
        self.__hidden = [*self.__hidden, "new"]

    @property
    def hidden(self) -> Any:
        return self.__hidden


@dataclass
class Record:
    name: str
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    x: int
    seen: list[int] = field(default_factory=list)


@dataclass
class Both(Plain):
    __slots__ = ("extra",)
    x: int


class Box(Generic[T]):
    def __init__(self, content: T) -> None:
        self.content = content


class Pair(NamedTuple):
    left: list[int]
    right: list[int]


class Color(enum.Enum):
    RED = 1


class Shelf(list):  # type: ignore[type-arg]
    label = "none"

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("a shelf is filled by its own methods")


class Folded(dict):  # type: ignore[type-arg]
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key.lower(), value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("not needed")


def change_list(obj: Any) -> None:
    obj.append(4)
    del obj[0]
    obj.reverse()


def change_plain(obj: Any) -> None:
    obj.x += 1
    obj.new = [obj.x]
    del obj.old


def change_frozen(obj: Any) -> None:
    object.__setattr__(obj, "x", 9)
    object.__setattr__(obj, "_cache", {"k": 1})
    obj.seen.append(2)


def change_slotted(obj: Any) -> None:
    del obj.left
    obj.right = "r"
    obj.hide(5)


def change_defaultdict(obj: Any) -> None:
    obj["new"].append(1)
    obj.default_factory = None


def change_ordered(obj: Any) -> None:
    obj.move_to_end("a")
    obj["c"] = 3
    obj.popitem(last=False)


def change_queue(obj: Any) -> None:
    obj.rotate(1)
    obj.append(9)


def change_nested(obj: Any) -> None:
    obj["rows"][1]["cells"].append(obj["tuple"][0])
    obj["tuple"][0].add(7)
    obj["object"].inner["deep"] = bytearray(b"x")
    obj["array"][1] = 5


def change_shelf(obj: Any) -> None:
    obj.append("z")
    obj.label = "full"


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [3, 1, 2], change_list, lambda o: o),
    "dict": (lambda: {"a": 1, "b": 2}, lambda o: (o.pop("a"), o.update(c=3, a=0)), lambda o: list(o.items())),
    "set": (lambda: {1, "a"}, lambda o: (o.discard(1), o.update(range(20, 40))), lambda o: o),
    "bytearray": (lambda: bytearray(b"abc"), lambda o: o.extend(b"de"), lambda o: o),
    "deque": (lambda: deque([1, 2, 3], maxlen=3), change_queue, lambda o: (o, o.maxlen)),
    "Counter": (lambda: Counter("aab"), lambda o: o.update("bbc"), lambda o: o),
    "OrderedDict": (lambda: OrderedDict(a=1, b=2), change_ordered, lambda o: list(o.items())),
    "defaultdict": (lambda: defaultdict(list, a=[1]), change_defaultdict, lambda o: (dict(o), o.default_factory)),
    "UserDict": (lambda: UserDict(a=1), lambda o: o.update(b=2), dict),
    "array.array": (lambda: array.array("i", [1]), lambda o: o.extend([2, 3]), list),
    "list subclass": (lambda: Shelf("ab"), change_shelf, lambda o: (list(o), o.label)),
    "dict subclass": (lambda: Folded(a=1), lambda o: o.__setitem__("B", 2), dict),
    "plain object": (lambda: Plain(x=1, old=0), change_plain, lambda o: list(vars(o).items())),
    "namespace": (lambda: types.SimpleNamespace(x=1, old=0), change_plain, lambda o: dict(vars(o))),
    "slots": (Slotted, change_slotted, lambda o: (hasattr(o, "left"), getattr(o, "right", None), o.hidden)),
    "dataclass": (lambda: Record("a"), lambda o: (o.tags.append("t"), setattr(o, "name", "b")), lambda o: o),
    "frozen dataclass": (lambda: Frozen(1), change_frozen, lambda o: dict(vars(o))),
    "slots and attributes": (
        lambda: Both(1),
        lambda o: (setattr(o, "extra", 2), setattr(o, "y", 3)),
        lambda o: (getattr(o, "extra", None), dict(vars(o))),
    ),
    "generic class": (lambda: Box([1]), lambda o: o.content.append(2), lambda o: dict(vars(o))),
    "named tuple": (lambda: Pair([1], [2]), lambda o: o.right.append(3), lambda o: o),
    "tuple in tuple": (lambda: (1, ([],)), lambda o: o[1][0].append(3), lambda o: o),
    "random.Random": (
        lambda: random.Random(5),
        lambda o: [o.gauss(0, 1) for _ in range(3)],
        lambda o: (o.random(), o.gauss(0, 1)),
    ),
    "Generator": (lambda: np.random.default_rng(5), lambda o: o.random(3), lambda o: o.random(3).tolist()),
    "RandomState": (lambda: np.random.RandomState(5), lambda o: o.randn(3), lambda o: (o.rand(), o.randn())),
    "nested": (
        lambda: {"rows": [1, {"cells": []}], "tuple": ({1},), "object": Plain(inner={}), "array": np.zeros(3)},
        change_nested,
        lambda o: (
            o["rows"],
            o["tuple"],
            vars(o["object"]),
            o["array"].tolist(),
            [c is o["tuple"][0] for c in o["rows"][1]["cells"]],
        ),
    ),
    "cycle": (lambda: _cycle(), lambda o: o[0].append(2), lambda o: (len(o), o[0][0] is o, o[0][1:])),
}


def _cycle() -> Any:
    ring: list[Any] = [[]]
    ring[0].append(ring)
    return ring


@checkpointed(code="version", version="1")
def apply(case: str, obj: Any) -> str:
    CASES[case][1](obj)
    return "done"


@pytest.mark.parametrize("case", CASES)
def test_the_callers_own_object_is_changed_when_the_step_is_skipped(case: str) -> None:
    make, _, look = CASES[case]

    def body(run: Run) -> Any:
        obj = make()
        assert apply(case, obj) == "done"
        assert effects(run, "apply") == ["arguments"]
        return look(obj)

    untouched = look(make())
    assert twice(body) != untouched


@pytest.mark.parametrize("case", CASES)
def test_what_is_inside_is_changed_in_place_too(case: str) -> None:
    make = CASES[case][0]

    def body(run: Run) -> Any:
        obj = make()
        inside = parts_of(obj)
        apply(case, obj)
        return [repr_of(each) for each in inside]

    twice(body)


def parts_of(obj: Any) -> list[Any]:
    """What the caller can hold on to inside of an object."""
    if isinstance(obj, (list, tuple, deque)):
        return [child for child in obj if not isinstance(child, int)]
    if isinstance(obj, dict):
        return list(obj.values())
    return list(getattr(obj, "__dict__", {}).values())


def repr_of(obj: Any) -> Any:
    return vars(obj) if isinstance(obj, Plain) else repr(obj)


def test_a_step_that_changes_nothing_records_nothing() -> None:
    @checkpointed
    def look(rows: list[int], obj: Any) -> int:
        rows.append(1)
        rows.pop()
        return len(rows)

    def body(run: Run) -> Any:
        look([1, 2], Plain(x=np.zeros(3)))
        return effects(run, "look")

    assert scope(body).value == []


def test_in_new_processes_with_all_kinds_at_once(script: Script) -> None:
    skipped_alike(
        script,
        """
        from collections import deque
        from dataclasses import dataclass, field
        import numpy as np
        from oncemore import checkpoint_scope, checkpointed

        @dataclass
        class Config:
            rate: float
            seen: set = field(default_factory=set)

        class Model:
            def __init__(self):
                self.weights = np.zeros(3)
                self.history = []

            @checkpointed
            def fit(self, rows, config, *more, queue=None, **named):
                print("RAN fit")
                self.weights += len(rows)
                self.history.append(self.weights)
                rows.append(config)
                config.rate /= 2
                config.seen |= {"x", "y", "z"}
                queue.appendleft(rows)
                more[0]["k"] = named["extra"]
                named["extra"].append(self)
                return self

        with checkpoint_scope("run"):
            model, rows, config, queue, table, extra = Model(), [1, 2], Config(0.5), deque([3]), {}, []
            back = model.fit(rows, config, table, queue=queue, extra=extra)
            print(model.weights, model.history[0] is model.weights, back is model)
            print(len(rows), rows[2] is config, config.rate, sorted(config.seen))
            print(queue[0] is rows, table["k"] is extra, extra[0] is model)
        """,
    )


# -- arrays

ARRAYS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "elements": (lambda: np.zeros((2, 3)), lambda a: a.__setitem__((0, 1), 5)),
    "sorted": (lambda: np.array([3, 1, 2]), lambda a: a.sort()),
    "F order": (lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)), lambda a: np.negative(a, out=a)),
    "a view": (lambda: np.arange(10)[2:8:2], lambda a: a.__iadd__(100)),
    "a transposed view": (lambda: np.arange(6).reshape(2, 3).T, lambda a: a.__iadd__(100)),
    "a reversed view": (lambda: np.arange(6)[::-1], lambda a: a.__iadd__(100)),
    "nothing in it": (lambda: np.zeros(()), lambda a: a.fill(7)),
    "objects": (
        lambda: np.array([[1], "a", None], dtype=object),
        lambda a: (a[0].append(2), a.__setitem__(1, {"new": 1})),
    ),
    "structured": (lambda: np.zeros(2, dtype=[("x", "i4"), ("y", "f8")]), lambda a: a["y"].fill(0.5)),
    "masked": (lambda: np.ma.masked_equal([1, 2, 3], 2), lambda a: a.__setitem__(0, np.ma.masked)),
    "text": (lambda: np.array(["a", "b"]), lambda a: a.__setitem__(0, "z")),
    "dates": (lambda: np.array(["2020-01-01"], dtype="M8[D]"), lambda a: a.__iadd__(1)),
    "resized": (lambda: np.arange(3), lambda a: a.resize((2, 4), refcheck=False)),
}


@checkpointed(code="version", version="1")
def apply_array(case: str, obj: Any) -> None:
    ARRAYS[case][1](obj)


@pytest.mark.parametrize("case", ARRAYS)
def test_an_array_is_changed_in_the_callers_memory(case: str) -> None:
    def body(run: Run) -> Any:
        obj = ARRAYS[case][0]()
        base = obj.base
        apply_array(case, obj)
        return [repr(obj), obj.shape, obj.flags.f_contiguous, repr(base)]

    assert twice(body)[0] != repr(ARRAYS[case][0]())


def test_the_elements_of_an_array_of_objects_stay_the_callers() -> None:
    def body(run: Run) -> Any:
        first = [1]
        obj = np.array([first, "a", None], dtype=object)
        apply_array("objects", obj)
        return obj[0] is first, first

    assert twice(body) == (True, [1, 2])


def test_two_views_of_one_array_see_the_same_change() -> None:
    @checkpointed
    def shift(whole: Any, part: Any) -> None:
        part += 1
        whole *= 2

    def body(run: Run) -> Any:
        whole = np.ones(6)
        part = whole[2:4]
        shift(whole, part)
        return whole.tolist(), part.tolist(), part.base is whole

    assert twice(body) == ([2, 2, 4, 4, 2, 2], [4, 4], True)


def test_an_array_that_cannot_be_written_may_lie_beside_what_is_changed() -> None:
    @checkpointed
    def mark(config: Any) -> None:
        config["seen"] = True

    def body(run: Run) -> Any:
        fixed = np.arange(3)
        fixed.flags.writeable = False
        config = {"data": fixed, "wide": np.broadcast_to(fixed, (2, 3))}
        mark(config)
        return list(config), config["data"] is fixed

    assert twice(body) == (["data", "wide", "seen"], True)


def test_a_large_array_beside_what_is_changed_is_not_kept_again() -> None:
    @checkpointed
    def mark(config: Any) -> None:
        config["seen"] = True

    def body(run: Run) -> Any:
        mark({"data": np.random.default_rng(1).random(100_000)})

    event = next(event for event in scope(body).events if type(event).__name__ == "StepCompleted")
    assert event.stored_bytes < 10_000  # type: ignore[attr-defined]


# -- tables

FRAMES: dict[str, Callable[[Any], Any]] = {
    "a new column": lambda df: df.__setitem__("c", df["a"] * 2),
    "a column in front": lambda df: df.insert(0, "first", [True, False, True]),
    "a column less": lambda df: df.pop("b"),
    "rows dropped": lambda df: df.drop(index=[1], inplace=True),
    "rows sorted": lambda df: df.sort_values("a", ascending=False, inplace=True),
    "a cell": lambda df: df.loc.__setitem__((1, "a"), 99),
    "a row more": lambda df: df.loc.__setitem__(7, [5, "new"]),
    "index": lambda df: df.set_index("b", inplace=True),
    "index values": lambda df: df.__setattr__("index", [10, 20, 30]),
    "index name": lambda df: df.rename_axis("id", inplace=True),
    "columns renamed": lambda df: df.rename(columns={"a": "A"}, inplace=True),
    "column names": lambda df: df.__setattr__("columns", ["x", "y"]),
    "type of a column": lambda df: df.__setitem__("a", df["a"].astype("float32")),
    "category": lambda df: df.__setitem__("b", df["b"].astype("category")),
    "missing values filled": lambda df: df.__setitem__("b", None),
    "emptied": lambda df: df.drop(df.index, inplace=True),
}


@checkpointed(code="version", version="1")
def apply_frame(case: str, frame: Any) -> int:
    FRAMES[case](frame)
    return len(frame)


@pytest.mark.parametrize("case", FRAMES)
def test_a_data_frame_is_changed_in_place(case: str) -> None:
    pd = pytest.importorskip("pandas")

    def body(run: Run) -> Any:
        frame = pd.DataFrame({"a": [3, 1, 2], "b": ["x", "y", "z"]})
        held = {"frame": frame}
        apply_frame(case, frame)
        assert held["frame"] is frame
        frame.columns, frame.index, frame.sum(numeric_only=True)  # it works on
        return described(frame)

    assert twice(body) != described(pd.DataFrame({"a": [3, 1, 2], "b": ["x", "y", "z"]}))


def described(frame: Any) -> Any:
    index = frame.index
    return (
        frame.to_dict("split"),
        [str(kind) for kind in getattr(frame, "dtypes", ())],
        (list(index), index.name, str(index.dtype), list(getattr(frame, "columns", ()))),
    )


def test_a_series_is_changed_in_place(script: Script) -> None:
    pytest.importorskip("pandas")
    skipped_alike(
        script,
        """
        import pandas as pd
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def clean(series, table):
            print("RAN clean")
            series.fillna(0, inplace=True)
            series.loc["z"] = 9
            series.name = "cleaned"
            series.sort_index(ascending=False, inplace=True)
            table["frames"][0]["sum"] = series.sum()
            table["frames"][0].drop(columns="a", inplace=True)

        with checkpoint_scope("run"):
            series = pd.Series([1.0, None, 3.0], index=["x", "y", "w"])
            frame = pd.DataFrame({"a": [1, 2], "b": ["p", "q"]})
            table = {"frames": [frame]}
            clean(series, table)
            print(series, frame, table["frames"][0] is frame, sep="\\n")
        """,
    )


def test_a_polars_frame_is_changed_in_place() -> None:
    pl = pytest.importorskip("polars")

    @checkpointed
    def change(frame: Any) -> None:
        frame.insert_column(1, pl.Series("b", [4, 5]))
        frame[0, "a"] = 9

    def body(run: Run) -> Any:
        frame = pl.DataFrame({"a": [1, 2]})
        held = [frame]
        change(held[0])
        return frame.to_dict(as_series=False)

    assert twice(body) == {"a": [9, 2], "b": [4, 5]}


def test_a_tensor_is_changed_in_place() -> None:
    torch = pytest.importorskip("torch")

    @checkpointed
    def change(tensor: Any, model: Any) -> None:
        tensor.add_(1)
        with torch.no_grad():
            model["layer"].weight.mul_(2)

    def body(run: Run) -> Any:
        torch.manual_seed(1)
        tensor, layer = torch.zeros(3), torch.nn.Linear(2, 2)
        weight = layer.weight
        change(tensor, {"layer": layer})
        return tensor.tolist(), layer.weight.tolist(), layer.weight is weight

    assert twice(body)


# -- sharing


def test_two_arguments_that_are_one_object_are_changed_as_one() -> None:
    @checkpointed
    def both(a: list[int], b: list[int]) -> None:
        a.append(1)
        b.append(2)

    def body(run: Run) -> Any:
        mine: list[int] = []
        both(mine, mine)
        return mine

    assert twice(body) == [1, 2]


@checkpointed
def grow_first(a: list[int], b: list[int]) -> int:
    a.append(1)
    return len(b)


def test_objects_that_were_one_and_are_two_now_make_the_step_run_again() -> None:
    def alike(run: Run) -> Any:
        mine: list[int] = []
        return grow_first(mine, mine), mine

    def apart(run: Run) -> Any:
        a: list[int] = []
        b: list[int] = []
        with pytest.warns(
            CheckpointWarning, match="argument `b` consists of other objects, or shares them differently"
        ):
            return grow_first(a, b), a, b

    assert scope(alike).value == (1, [1])
    assert scope(apart).value == (0, [1], [])


def test_objects_that_were_two_and_are_one_now_make_the_step_run_again() -> None:
    def apart(run: Run) -> Any:
        return grow_first([], [])

    def alike(run: Run) -> Any:
        mine: list[int] = []
        with pytest.warns(CheckpointWarning, match="shares them differently"):
            return grow_first(mine, mine), mine

    assert scope(apart).value == 0
    assert scope(alike).value == (1, [1])


@checkpointed
def grow_last(rows: list[list[int]]) -> None:
    rows[2].append(1)


def test_parts_of_an_argument_that_are_shared_otherwise_make_the_step_run_again() -> None:
    def first_again(run: Run) -> Any:
        x: list[int] = []
        y: list[int] = []
        rows = [x, y, x]
        grow_last(rows)
        return rows

    def second_again(run: Run) -> Any:
        x: list[int] = []
        y: list[int] = []
        rows = [x, y, y]
        with pytest.warns(CheckpointWarning, match="shares them differently"):
            grow_last(rows)
        return rows

    assert scope(first_again).value == [[1], [], [1]]
    assert scope(second_again).value == [[], [1], [1]]


def test_values_that_cannot_change_may_be_shared_in_any_way() -> None:
    @checkpointed
    def tag(row: dict[str, Any]) -> Any:
        row["tag"] = row["a"]
        return row["b"]

    one, other = Path("x") / "y", Path("x") / "y"
    str(one), one.parts, hash(one)  # fills what a path remembers about itself
    scope(lambda run: tag({"a": one, "b": one, "color": Color.RED, "n": np.float64(1)}))
    again = scope(lambda run: tag({"a": one, "b": other, "color": Color.RED, "n": np.float64(1)}))
    assert (again.ran, again.value) == ({}, Path("x/y"))


def test_a_path_that_has_been_used_is_no_other_argument(script: Script) -> None:
    skipped_alike(
        script,
        """
        from pathlib import Path
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def use(path):
            print("RAN use")
            return path.name, str(path), path.parts, hash(path) and 0

        @checkpointed
        def save(path, log):
            print("RAN save")
            log.append(path)
            return {"path": path}

        with checkpoint_scope("run"):
            path, log = Path("a") / "b.txt", []
            print(use(path), save(path, log), log)
        """,
    )


def test_the_result_shares_with_the_arguments_what_it_shared() -> None:
    @checkpointed
    def pick(rows: list[Any], table: dict[str, Any]) -> Any:
        rows.append({"new": 1})
        return {"all": rows, "first": rows[0], "new": rows[-1], "table": table, "deep": table["k"]["array"]}

    def body(run: Run) -> Any:
        rows: list[Any] = [[1]]
        table = {"k": {"array": np.zeros(2)}}
        got = pick(rows, table)
        return [
            got["all"] is rows,
            got["first"] is rows[0],
            got["new"] is rows[1],
            got["table"] is table,
            got["deep"] is table["k"]["array"],
        ]

    assert twice(body) == [True] * 5


def test_what_was_taken_out_of_an_argument_is_still_the_callers() -> None:
    @checkpointed
    def take(rows: list[Any]) -> Any:
        taken = rows.pop()
        taken.append("taken")
        return taken

    def body(run: Run) -> Any:
        inner: list[Any] = []
        rows = [1, inner]
        return take(rows) is inner, inner, rows

    assert twice(body) == (True, ["taken"], [1])


def test_an_argument_moved_into_another_is_the_same_object_there() -> None:
    @checkpointed
    def move(into: dict[str, Any], what: list[int]) -> None:
        into["what"] = what
        what.append(into)  # type: ignore[arg-type]

    def body(run: Run) -> Any:
        into: dict[str, Any] = {}
        what: list[Any] = []
        move(into, what)
        return into["what"] is what, what[0] is into

    assert twice(body) == (True, True)


# -- methods, callbacks, generators


class Account:
    def __init__(self) -> None:
        self.balance, self.log = 0, Plain(lines=[])

    @checkpointed
    def pay(self, amount: int) -> int:
        self.balance += amount
        self.log.lines.append(amount)
        return self.balance

    @checkpointed
    async def pay_later(self, amount: int) -> int:
        self.balance += amount
        return self.balance


def test_self_is_an_argument_like_others() -> None:
    import asyncio

    def body(run: Run) -> Any:
        account = Account()
        log = account.log
        results = [account.pay(5), account.pay(5), asyncio.run(account.pay_later(1))]
        return results, account.balance, log.lines, account.log is log

    assert twice(body) == ([5, 10, 11], 11, [5, 5], True)


@checkpointed
def call(function: Callable[[int], Any]) -> None:
    function(1)


def test_what_a_callback_changes_is_changed_again() -> None:
    def body(run: Run) -> Any:
        seen: list[int] = []
        account = Account()
        noted: list[int] = []
        counted: dict[str, int] = {}
        call(seen.append)
        call(lambda n: noted.append(n))
        call(functools.partial(operate, counted))
        call(account.log.lines.append)
        return seen, noted, counted, account.log.lines

    assert twice(body) == ([1], [1], {"n": 1}, [1])


def operate(into: dict[str, int], n: int) -> None:
    into["n"] = n


def test_a_generator_step_changes_its_arguments_by_its_end() -> None:
    @checkpointed
    def drain(queue: deque[int], done: list[Any]) -> Any:
        while queue:
            item = queue.popleft()
            done.append([item])
            yield item
        return done

    def body(run: Run) -> Any:
        queue, done = deque([1, 2, 3]), []  # type: ignore[var-annotated]
        items = list(drain(queue, done))
        return items, list(queue), done

    assert twice(body) == ([1, 2, 3], [], [[1], [2], [3]])


def test_items_of_a_generator_step_that_are_the_callers_own_stay_so() -> None:
    @checkpointed
    def each(rows: list[list[int]]) -> Any:
        for row in rows:
            row.append(0)
            yield row

    def body(run: Run) -> Any:
        rows = [[1], [2]]
        return [item is row for item, row in zip(each(rows), rows)], rows

    assert twice(body) == ([True, True], [[1, 0], [2, 0]])


def test_a_step_inside_another_changes_what_the_outer_one_was_given() -> None:
    @checkpointed
    def inner(rows: list[int]) -> None:
        rows.append(1)

    @checkpointed
    def outer(rows: list[int]) -> None:
        inner(rows)
        rows.append(2)

    def body(run: Run) -> Any:
        rows: list[int] = []
        outer(rows)
        return rows

    assert twice(body) == [1, 2]


def test_calls_with_the_object_in_each_of_its_states_are_calls_of_their_own() -> None:
    def body(run: Run) -> Any:
        rows = [1]
        return [grow_first(rows, []) for _ in range(3)], rows

    first, second = scope(body), scope(body)
    assert (first.ran, second.ran) == ({"grow_first": 3}, {})
    assert first.value == second.value == ([0, 0, 0], [1, 1, 1, 1])


# -- what cannot be changed again, and what need not be


def rigid(kind: str) -> Any:
    if kind == "BytesIO":
        return io.BytesIO()
    if kind == "set":
        return {Plain(x=1)}
    if kind == "set of equals":  # nothing tells its elements apart
        return {Plain(x=1), Plain(x=1)}
    if kind == "frozenset":
        return frozenset({Plain(x=1)})
    return np.random.PCG64(1)


@checkpointed
def change_rigid(kind: str, box: Any) -> None:
    [obj] = box
    if kind == "BytesIO":
        obj.write(b"x")
    elif kind == "PCG64":
        obj.random_raw()
    else:
        next(iter(obj)).x = 2


def content(kind: str, obj: Any) -> Any:
    if kind == "BytesIO":
        return obj.getvalue(), obj.tell()
    return int(obj.random_raw()) if kind == "PCG64" else [element.x for element in obj]


@pytest.mark.parametrize("kind", ["BytesIO", "set", "PCG64"])
def test_buffers_sets_of_objects_and_bit_generators_are_changed_in_place(kind: str) -> None:
    def body(run: Run) -> Any:
        obj = rigid(kind)
        inside = list(obj) if kind == "set" else []
        change_rigid(kind, [obj])
        return content(kind, obj), [element in obj for element in inside]

    assert twice(body)


@pytest.mark.parametrize("kind", ["set of equals", "frozenset"])
def test_a_change_that_cannot_be_made_again_is_told_and_the_step_runs_next_time(kind: str) -> None:
    def body(run: Run) -> Any:
        with pytest.warns(CheckpointWarning, match=f"argument `box` was changed in place, and a {kind.split()[0]}"):
            change_rigid(kind, [rigid(kind)])

    for _ in range(2):
        outcome = scope(body)
        assert outcome.ran == {"change_rigid": 1}
        assert any(isinstance(event, StepNotKept) and "`box`" in event.reason for event in outcome.events)


@pytest.mark.parametrize("kind", ["BytesIO", "set", "frozenset", "PCG64"])
def test_the_same_object_may_lie_beside_what_is_changed(kind: str) -> None:
    @checkpointed
    def add(box: list[Any]) -> None:
        box.append(1)

    def body(run: Run) -> Any:
        obj = rigid(kind)
        box = [obj]
        add(box)
        return box[0] is obj, box[1:]

    assert twice(body) == (True, [1])


def test_after_such_a_step_the_state_is_watched_by_nobody() -> None:
    def body(run: Run) -> Any:
        with pytest.warns(CheckpointWarning):
            change_rigid("frozenset", [rigid("frozenset")])
        run.state["lock"] = threading.Lock()  # a watch that was left behind would look at it
        return [watch for watch in run.state._watching()]

    assert scope(body).value == []


def test_with_mutates_false_arguments_are_neither_compared_nor_changed() -> None:
    looked: list[int] = []

    class Counted:
        def __reduce__(self) -> Any:
            looked.append(1)
            return Counted, ()

    @checkpointed(mutates=False)
    def pure(obj: Any, rows: list[int]) -> int:
        return len(rows)

    @checkpointed
    def compared(obj: Any, rows: list[int]) -> int:
        return len(rows)

    def times(step: Any) -> int:
        looked.clear()
        scope(lambda run: step(Counted(), [1]))
        return len(looked)

    assert 0 < times(pure) < times(compared)


def test_with_mutates_false_a_change_is_not_made_again() -> None:
    @checkpointed(mutates=False)
    def lies(rows: list[int]) -> None:
        rows.append(1)

    def body(run: Run) -> Any:
        rows: list[int] = []
        lies(rows)
        return rows, effects(run, "lies")

    assert [scope(body).value for _ in range(2)] == [([1], []), ([], [])]


def test_an_ignored_argument_is_not_looked_at() -> None:
    @checkpointed(ignore=["client"])
    def fetch(url: str, client: Any) -> Any:
        client.requests.append(url)
        return {"client": client}

    def body(run: Run) -> Any:
        client = Plain(requests=[], lock=threading.Lock())
        return fetch("u", client)["client"] is client, client.requests

    assert [scope(body).value for _ in range(2)] == [(True, ["u"]), (True, [])]


def test_an_ignored_argument_may_be_made_of_anything_in_the_next_run() -> None:
    @checkpointed(ignore=["client"])
    def fetch(rows: list[Any], client: Any) -> None:
        rows.append(1)

    def body(client: Any) -> Any:
        def inside(run: Run) -> Any:
            rows: list[Any] = []
            fetch(rows, client)
            return rows

        return inside

    assert scope(body(Plain(a=[[]]))).value == [1]
    again = scope(body({"other": {}}))
    assert (again.ran, again.value) == ({}, [1])


def test_a_failed_step_leaves_what_it_did_to_its_arguments_to_the_caller() -> None:
    @checkpointed
    def fails(rows: list[int]) -> None:
        rows.append(1)
        raise ValueError

    def body(run: Run) -> Any:
        rows: list[int] = []
        with pytest.raises(ValueError):
            fails(rows)
        return rows

    assert [scope(body).value for _ in range(2)] == [[1], [1]]


def test_a_copy_of_the_argument_is_a_copy() -> None:
    @checkpointed
    def duplicate(rows: list[Any]) -> Any:
        return copy.deepcopy(rows)

    def body(run: Run) -> Any:
        rows = [[1]]
        got = duplicate(rows)
        return got == rows, got is rows, got[0] is rows[0]

    assert twice(body) == (True, False, False)


def test_a_result_that_shows_the_memory_of_an_argument_does_so_again() -> None:
    @checkpointed
    def parts(x: Any) -> list[Any]:
        x[1, 1] = 7
        return [x[1], x[::2, 1::2], x.T, x.reshape(-1)[3:5]]

    def body(run: Run) -> Any:
        array = np.zeros((3, 4))
        found = parts(array)
        array[:] += np.arange(12).reshape(3, 4)
        return [each.tolist() for each in found], [np.shares_memory(each, array) for each in found]

    assert twice(body)[1] == [True] * 4
