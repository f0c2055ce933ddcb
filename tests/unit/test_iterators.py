"""Iterators as globals: where they are counts, and a skipped step leaves them where it left them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from oncemore import CheckpointWarning, checkpoint_scope, checkpointed
from tests.processes import Script

pytestmark = [
    pytest.mark.skipif(sys.version_info >= (3, 14), reason="itertools objects tell nothing of themselves"),
    pytest.mark.filterwarnings("ignore:Pickle, copy, and deepcopy support:DeprecationWarning"),
]

MAKERS: dict[str, Callable[[], Any]] = {
    "iter(list)": lambda: iter([5, 6, 7, 8]),
    "iter(tuple)": lambda: iter((5, 6, 7, 8)),
    "iter(range)": lambda: iter(range(5, 9)),
    "iter(str)": lambda: iter("abcd"),
    "iter(dict)": lambda: iter({"a": 1, "b": 2, "c": 3, "d": 4}),
    "iter(items)": lambda: iter({"a": 1, "b": 2, "c": 3, "d": 4}.items()),
    "reversed": lambda: reversed([5, 6, 7, 8]),
    "enumerate": lambda: enumerate("abcd"),
    "zip": lambda: zip("abcd", [1, 2, 3, 4]),
    "map": lambda: map(str.upper, "abcd"),
    "filter": lambda: filter(None, [1, 0, 2, 3, 4]),
    "cycle": lambda: itertools.cycle("abc"),
    "cycle of a zip": lambda: itertools.cycle(zip("ab", [[1], [2]])),
    "chain": lambda: itertools.chain("ab", [1, 2]),
    "chain.from_iterable": lambda: itertools.chain.from_iterable([["a"], ["b", "c"], ["d"]]),
    "islice": lambda: itertools.islice(itertools.cycle("ab"), 1, 9, 2),
    "repeat": lambda: itertools.repeat("x", 4),
    "product": lambda: itertools.product("ab", [1, 2]),
    "permutations": lambda: itertools.permutations("abc"),
    "combinations": lambda: itertools.combinations("abcd", 2),
}
items: Any = None


@checkpointed
def take(n: int) -> tuple[int, Any]:
    return n, next(items)


@checkpointed
def take_all() -> list[Any]:
    return list(items)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_step_that_takes_from_one_is_skipped_and_leaves_it_where_it_was(make: Callable[[], Any]) -> None:
    global items
    plain = [next(each) for each in [make()] for _ in range(4)]
    for runs in (2, 1, 0):
        items = make()
        with checkpoint_scope("taken") as run:
            found = [take(i)[1] for i in range(3 if runs == 1 else 2)]
            found.append(next(items))
        assert (found, run.ran.total()) == (plain[: len(found)], runs)


@pytest.mark.parametrize("make", [make for name, make in MAKERS.items() if "cycle" not in name and name != "islice"])
def test_one_that_a_step_used_up_is_used_up_when_it_is_skipped(make: Callable[[], Any]) -> None:
    global items
    for runs in (1, 0):
        items = make()
        with checkpoint_scope("used up") as run:
            assert (take_all(), list(items)) == (list(make()), [])
        assert run.ran.total() == runs


def test_it_counts_what_is_in_one_and_where_it_is() -> None:
    global items
    found = []
    for each in (itertools.cycle("abc"), itertools.cycle("abd"), itertools.cycle("abc")):
        items = each
        with checkpoint_scope("counts") as run:
            found.append((take(0)[1], run.ran.total()))
    items = itertools.cycle("abc")
    next(items)
    with checkpoint_scope("counts") as run:
        found.append((take(0)[1], run.ran.total()))
    assert found == [("a", 1), ("a", 1), ("a", 0), ("b", 1)]


def test_one_that_two_globals_lead_to_goes_on_for_both(script: Script) -> None:
    source = """
        import itertools
        from oncemore import checkpoint_scope, checkpointed
        letters = iter("abcdef")
        pairs = zip(letters, itertools.count())
        styles = {"line": itertools.cycle(["-", "--"])}
        @checkpointed
        def draw(n):
            print("RAN")
            return next(letters), next(pairs), next(styles["line"])
        with checkpoint_scope("run"):
            print([draw(n) for n in range(2)], next(pairs), next(letters), next(styles["line"]))
    """
    first, second = script(source), script(source)
    assert first.lines == ["RAN", "RAN", *second.lines]
    assert second.lines == ["[('a', ('b', 0), '-'), ('c', ('d', 1), '--')] ('e', 2) f -"]


def test_one_as_an_argument_is_left_where_the_step_left_it() -> None:
    @checkpointed
    def first_of(rows: Any) -> Any:
        return next(rows)

    for runs in (1, 0):
        rows = iter([1, 2, 3])
        with checkpoint_scope("argument") as run:
            assert (first_of(rows), next(rows), run.ran.total()) == (1, 2, runs)


@pytest.mark.parametrize("make", [enumerate, itertools.cycle, zip, itertools.chain, lambda each: map(str, each)])
def test_one_over_a_generator_is_named_with_what_to_do(make: Callable[[Any], Any]) -> None:
    global items
    items = make(n for n in range(3))
    with checkpoint_scope("generator"), pytest.warns(CheckpointWarning) as told:
        assert take(0) != take(0)
    [message, *_] = [str(each.message) for each in told if each.category is CheckpointWarning]
    assert "test_iterators.items` holds a generator" in message
    assert "Take items from it outside the step and pass them as an argument" in message


def test_where_warnings_are_errors_it_is_told_and_never_skipped(script: Script) -> None:
    source = """
        import itertools, warnings
        from oncemore import checkpoint_scope, checkpointed
        warnings.simplefilter("error", DeprecationWarning)
        colours = itertools.cycle("rgb")
        @checkpointed
        def pick(n):
            return next(colours)
        with checkpoint_scope("run"):
            print([pick(n) for n in range(2)], next(colours))
    """
    for _ in range(2):
        done = script(source)
        assert done.lines == ["['r', 'g'] b"]
    assert ("global `script.colours`" in done.err) == (sys.version_info >= (3, 12))
