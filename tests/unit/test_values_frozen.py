"""Digests that were written down once: every Python, every process and every later version gives the same.

`python -m tests.unit.test_values_frozen` prints the table anew. A digest that changes makes every checkpoint that was
ever recorded for such an argument a miss: that is a decision, never an accident.
"""

from __future__ import annotations

import array
import collections
import datetime as dt
import decimal
import fractions
import functools
import http
import ipaddress
import json
import operator
import pathlib
import random
import re
import sys
import time
import types
import typing
import urllib.parse
import uuid
import zoneinfo
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from oncemore.identity.values import digest
from tests.processes import Script

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "tests" / "formats" / "identity_digests.json"


def nested(depth: int) -> Any:
    value: Any = {"leaf": (1, 2.5)}
    for _ in range(depth):
        value = [value]
    return value


def recursive() -> Any:
    value: Any = {"name": "root", "children": []}
    value["children"] += [{"name": i, "parent": value} for i in range(3)]
    return value


def drawn(generator: Any) -> Any:
    generator.random()
    return generator


PLAIN: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "one": 1,
    "byte": 255,
    "word": 65535,
    "negative": -(2**31),
    "long": 2**31,
    "big": 3**5000,
    "float": 1.1,
    "minus zero": -0.0,
    "infinity": float("inf"),
    "nan": float("nan"),
    "text": "schön 🙂",
    "surrogate": "\ud800",
    "long text": "ab" * 50_000,
    "bytes": b"\x00\xff",
    "long bytes": bytes(range(256)) * 1000,
    "bytearray": bytearray(b"abc"),
    "empty tuple": (),
    "arguments": ("data.csv", 3, None, 0.5),
    "empty list": [],
    "list": [1, [2, [3]], "x"],
    "long list": list(range(3000)),
    "dict": {"b": 1, "a": [True, None], 3: (4, b"5")},
    "long dict": {str(i): i for i in range(2500)},
    "64 levels": nested(62),
    "65 levels": nested(63),
    "1000 levels": nested(1000),
}
WALKED: dict[str, Callable[[], Any]] = {
    "empty set": set,
    "set of numbers": lambda: {3, 1, 2},
    "set of texts": lambda: {"b", "a", "c"},
    "mixed frozenset": lambda: frozenset({1, "a", None, (2, 3), frozenset({4})}),
    "list with a set": lambda: [1, {2}, "x", [3, [4]]],
    "recursive list": lambda: (lambda value: value.append(value) or value)([1]),
    "recursive tree": recursive,
    "complex": lambda: 1.5 - 2j,
    "ellipsis": lambda: ...,
    "range": lambda: range(1, 10, 2),
    "slice": lambda: slice(None, 5),
    "memoryview": lambda: memoryview(b"abc"),
    "deque": lambda: collections.deque([1, 2], 5),
    "ordered dict": lambda: collections.OrderedDict(b=1, a=2),
    "default dict": lambda: collections.defaultdict(list, a=[1]),
    "counter": lambda: collections.Counter("abca"),
    "user dict": lambda: collections.UserDict(a=1),
    "namespace": lambda: types.SimpleNamespace(b=1, a=2),
    "array": lambda: array.array("d", [1.5, 2.5]),
    "date": lambda: dt.date(2024, 2, 29),
    "moment": lambda: dt.datetime(2024, 10, 27, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
    "utc": lambda: dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc),
    "time": lambda: dt.time(1, 2, 3, 4),
    "timedelta": lambda: dt.timedelta(days=-1, seconds=5),
    "timezone": lambda: dt.timezone(dt.timedelta(hours=5, minutes=30), "IST"),
    "decimal": lambda: decimal.Decimal("-1.50"),
    "decimal nan": lambda: decimal.Decimal("NaN"),
    "fraction": lambda: fractions.Fraction(-1, 3),
    "uuid": lambda: uuid.UUID("12345678123456781234567812345678"),
    "posix path": lambda: pathlib.PurePosixPath("a/b.csv"),
    "windows path": lambda: pathlib.PureWindowsPath("c:/a/b.csv"),
    "path class": lambda: pathlib.PurePath,
    "pattern": lambda: re.compile(r"a+", re.IGNORECASE),
    "random": lambda: drawn(random.Random(5)),
    "enum": lambda: http.HTTPStatus.NOT_FOUND,
    "flags": lambda: re.IGNORECASE | re.MULTILINE,
    "named tuple": lambda: urllib.parse.urlsplit("http://example.com/a?b"),
    "struct sequence": lambda: time.struct_time(range(9)),
    "ip address": lambda: ipaddress.ip_address("10.0.0.1"),
    "exception": lambda: KeyError("a", 1),
    "os error": lambda: FileNotFoundError(2, "No such file", "x.csv"),
    "class": lambda: dict,
    "builtin": lambda: len,
    "method of a value": lambda: "abc".upper,
    "library function": lambda: json.dumps,
    "partial": lambda: functools.partial(int, base=2),
    "itemgetter": lambda: operator.itemgetter(1, "a"),
    "constant lambda": lambda: lambda: 1,
    "constant lambda of two lines": lambda: lambda: "ab",
    "lambdas on one line": lambda: [lambda: None, lambda x: lambda: (1, -2), lambda x=(lambda: 5): 60 * 60],
    "alias": lambda: dict[str, list[int]],
    "optional": lambda: typing.Optional[int],
    "union": lambda: int | str,
    "module": lambda: json,
    "numbers": lambda: np.arange(6, dtype="<i4").reshape(2, 3).T,
    "big-endian numbers": lambda: np.arange(3, dtype=">f8"),
    "structure": lambda: np.array([(1, 2.5)], dtype=np.dtype([("a", "<i2"), ("b", "<f8")], align=True)),
    "array of objects": lambda: np.array([1, "a", None], dtype=object),
    "array of texts": lambda: np.array(["a", "bc"]),
    "array of strings": lambda: np.array(["a", "b" * 50], dtype=np.dtypes.StringDType()),
    "array of moments": lambda: np.array(["2024-01-01"], dtype="M8[s]"),
    "masked array": lambda: np.ma.array([1, 2], mask=[0, 1], dtype="<i8", fill_value=7),
    "numpy number": lambda: np.float32(1.5),
    "numpy generator": lambda: drawn(np.random.default_rng(5)),
    "numpy random state": lambda: np.random.RandomState(5),
    "frame": lambda: pd.DataFrame(
        {7: np.array([1, 2]), 8: np.array([0.5, None], object), 20: np.array([1.5, 2.5])},
        index=pd.Index([4, 6], name="n"),
    ),
    "nullable": lambda: pd.Series([1, None], dtype="Int64", name="x"),
    "polars frame": lambda: pl.DataFrame({"a": [1, None], "b": ["x", None], "c": [[1.5], []]}),
    "arrow times": lambda: pa.array([1, None], pa.time64("ns")),
    "arrow table": lambda: pa.table({"a": [1, None], "b": ["x", None]}),
}


def found() -> dict[str, str]:
    table = {name: digest(value).hex() for name, value in PLAIN.items()}
    return {**table, **{name: digest(make()).hex() for name, make in WALKED.items()}}


@pytest.mark.parametrize("name", [*PLAIN, *WALKED])
def test_a_digest_is_what_it_was(name: str) -> None:
    value = PLAIN[name] if name in PLAIN else WALKED[name]()
    assert digest(value).hex() == json.loads(TABLE.read_text())[name]


def test_no_two_digests_are_the_same() -> None:
    table = json.loads(TABLE.read_text())
    assert len(set(table.values())) == len(table) == len(PLAIN) + len(WALKED)


@pytest.mark.parametrize("seed", ["0", "1234"])
def test_another_process_under_another_hash_seed_finds_the_same(script: Script, seed: str) -> None:
    done = script(options=["-m", "tests.unit.test_values_frozen"], cwd=ROOT, env={"PYTHONHASHSEED": seed})
    assert json.loads(done.out) == json.loads(TABLE.read_text())


if __name__ == "__main__":
    json.dump(found(), sys.stdout, indent=1)
    print()
