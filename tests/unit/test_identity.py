"""What identifies a call: every argument is looked at once, and what that found serves for all."""

from __future__ import annotations

import copy
import sys
import threading
from typing import Any

import numpy as np
import pytest

from oncemore import FingerprintError, checkpointed
from oncemore.identity import Identity
from oncemore.identity.values import Digests, digest
from oncemore.surroundings.references import Roots
from tests.unit.again import scope

# Counted in a library's module, out of sight: a list of ours would be data that the class reads, and changes.
library: Any = sys


class Counted:
    """Tells when something looks at its content."""

    def __init__(self, *content: Any) -> None:
        self.content = content

    def __checkpoint_identity__(self) -> object:
        setattr(library, "looks", library.looks + 1)
        return self.content


@checkpointed
def use(first: Any, second: Any = None) -> int:
    return 1


def looked(*args: Any) -> int:
    setattr(library, "looks", 0)
    scope(lambda run: use(*args))
    return int(library.looks)


@pytest.mark.parametrize("wrap", [lambda obj: obj, lambda obj: {"a": [obj, np.zeros(3)]}, lambda obj: [obj, obj]])
def test_an_argument_is_looked_at_once_on_a_hit_and_once_more_after_the_function_ran(wrap: Any) -> None:
    argument = wrap(Counted(1))
    assert looked(argument, 0) == 2
    assert looked(argument, 0) == 1


def test_what_two_arguments_share_is_looked_at_once() -> None:
    shared = Counted(1)
    assert looked([shared], {"b": shared}) == 2


def test_a_key_is_asked_for_once_per_call() -> None:
    asked: list[str] = []

    @checkpointed(key=lambda value: asked.append("whole") or value["id"])
    def by_whole(value: Any) -> int:
        return 1

    @checkpointed(key={"value": lambda value: asked.append("one") or value["id"]})
    def by_one(value: Any) -> int:
        return 1

    for _ in range(2):  # a miss, then a hit
        asked.clear()
        scope(lambda run: (by_whole({"id": 1}), by_one({"id": 1})))
        assert asked == ["whole", "one"]


def test_the_parts_are_those_of_the_digest() -> None:
    identity = Identity(lambda a, b, c=0: None, step="step")
    bound = ({"x": [1, {2.5}]}, np.arange(3), 5)
    found = identity.identify(bound, bound, {})
    assert {name: part.digest for name, part in found.parts.items()} == {
        f"argument `{name}`": digest(value).hex() for name, value in zip("abc", bound)
    }
    assert found.parts["argument `a`"].pieces["['x']"][0] == digest(bound[0]["x"]).hex()[:16]


@pytest.mark.parametrize("value", [1, [1, 2], {"a": 1}, [[1], {2.5}], np.arange(3)])
def test_the_digest_follows_from_content_alone(value: Any) -> None:
    identity = Identity(lambda a, b: None, step="step")
    found = [
        identity.identify(bound, bound, {}).digest for bound in ((value, 1), (copy.deepcopy(value), 1), (1, value))
    ]
    assert found[0] == found[1]
    assert value == 1 if type(value) is int else found[0] != found[2]


def test_an_argument_is_told_from_its_digest() -> None:
    identity = Identity(lambda a, b: None, step="step")
    value = [[1], {2.5}]
    bounds = [(value, [[]]), (digest(value), [[]]), (value, digest([[]])), (digest(value), digest([[]]))]
    assert len({identity.identify(bound, bound, {}).digest for bound in bounds}) == 4


def test_calls_are_numbered_without_another_look() -> None:
    identity = Identity(lambda a: None, step="step")
    bound = (Counted(1),)
    setattr(library, "looks", 0)
    found = identity.identify(bound, bound, {})
    numbered = []
    for number in range(3):
        found.number(number)
        numbered.append(found.digest)
    assert len({found.content, *numbered}) == 4
    assert "call" in found.parts
    assert library.looks == 1


def test_an_error_names_the_parameter_and_the_way_into_it() -> None:
    identity = Identity(lambda a, b: None, step="step")
    bound = ([1], {"x": [threading.Thread()]})
    with pytest.raises(FingerprintError, match=r"argument `b`.*\['x'\]\[0\]"):
        identity.identify(bound, bound, {})


def test_a_walk_that_failed_knows_nothing_wrong() -> None:
    """Also of values that contain each other, and were not finished when the thread came."""
    ring: list[Any] = [{1.5}]
    ring.append([ring, {"inner": ring}])
    good = copy.deepcopy(ring)
    ring[1].append(threading.Thread())
    digests = Digests()
    assert digests.get([good, ring]) is None
    ring[1].pop()
    assert digests.of(ring) == digest(ring) == digest(good) == digests.of(good)
    assert digests.of(ring[1]) == digest(good[1])


def test_the_columns_of_a_frame_are_known_from_the_walk() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": range(20_000), "b": 0.5})
    other = frame.assign(b=1.5)
    found, changed = Digests(), Digests()
    found.of({"frame": frame})
    changed.of(other)
    assert found.columns(frame)[0] == changed.columns(other)[0]
    assert found.columns(frame)[1] != changed.columns(other)[1]


def test_roots_are_listed_only_when_something_of_the_callers_is_named() -> None:
    rows = [[1]]
    roots = Roots(lambda kind, name: rows)
    roots.add("argument", "rows")
    assert [roots.name(other) for other in ([1], "text", {})] == [None] * 3
    assert roots.listed == []
    inner = rows.pop()  # names are those of before the step
    assert roots.name(inner) == ("argument", "rows", 1)
    assert [root[:2] for root in roots.listed] == [("argument", "rows")]
