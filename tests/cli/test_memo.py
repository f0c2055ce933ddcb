"""`oncemore memo` and `History.memo...`: what memoized functions have stored, and removing it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oncemore import History, UsageError, checkpoint_scope, memoized
from oncemore.cli import main
from tests.processes import Script


def ran() -> list[str]:
    """What ran since the last time."""
    found = Path("ran").read_text().split() if Path("ran").exists() else []
    Path("ran").unlink(missing_ok=True)
    return found


def note(what: object) -> None:
    with Path("ran").open("a") as file:
        print(what, file=file)


@memoized(mutates=False)
def rate(currency: str, secret_token: str = "") -> str:
    note(currency)
    return currency * 1000


@memoized
def pages(count: int):  # type: ignore[no-untyped-def]
    note(count)
    for page in range(count):
        yield os.urandom(5000)


@pytest.fixture(autouse=True)
def results() -> History:
    for currency in ("EUR", "USD", "CHF"):
        rate(currency, secret_token="hush")
    list(pages(10))
    ran()
    return History()


def test_results_are_listed_by_function_with_count_size_age_and_last_use(results: History) -> None:
    found = {each.function: each for each in results.memo()}
    assert {name: each.calls for name, each in found.items()} == {"rate": 3, "pages": 1}
    assert found["pages"].bytes > 50_000  # with the items, which are entries of their own
    assert found["rate"].oldest <= found["rate"].newest <= found["rate"].used


def test_the_calls_of_a_function_are_listed_with_their_arguments(results: History) -> None:
    calls = results.memo_calls("rate")
    assert [each.arguments.split(",")[0] for each in calls] == ["currency='EUR'", "currency='USD'", "currency='CHF'"]
    assert "hush" not in str(calls)


def test_one_function_is_cleared_and_the_others_stay(results: History) -> None:
    assert len(results.memo_clear("rate")) == 3
    assert [each.function for each in results.memo()] == ["pages"]
    rate("EUR", secret_token="hush")
    list(pages(10))
    assert ran() == ["EUR"]
    assert results.verify().findings == ()


def test_items_of_a_cleared_generator_are_gone_from_the_store(results: History) -> None:
    results.memo_clear("pages")
    assert list(results.store.scan("items/", most=0)) == []
    list(pages(10))
    assert ran() == ["10"]


def test_one_call_is_cleared(results: History) -> None:
    node = results.memo_calls("rate")[1].node
    assert [each.node for each in results.memo_clear(call=node)] == [node]
    for currency in ("EUR", "USD", "CHF"):
        rate(currency, secret_token="hush")
    assert ran() == ["USD"]


def test_results_older_than_an_age_are_cleared(results: History) -> None:
    assert results.memo_clear(older_than="1h") == []
    assert len(results.memo_clear("rate", older_than=0)) == 3


def test_the_oldest_are_cleared_down_to_a_size(results: History) -> None:
    calls = results.memo_calls("rate")
    room = calls[1].bytes + calls[2].bytes
    assert [each.node for each in results.memo_clear("rate", down_to=room)] == [calls[0].node]
    assert results.memo_clear("rate", down_to=room) == []


def test_results_recorded_inside_a_scope_are_memoized_results_too(results: History) -> None:
    with checkpoint_scope("job"):
        rate("JPY")
    assert len(results.memo_clear("rate")) == 4


def test_a_damaged_result_is_listed_and_can_be_cleared(results: History) -> None:
    key = results.memo_calls("rate")[1].key
    results.store.commit(put={key: [b"planted"]})
    assert len(results.memo_calls("rate")) == 3
    assert [each.key for each in results.memo_clear("rate", older_than="99w")] == [key]


def test_an_unknown_function_or_call_is_an_error_that_names_a_close_one(results: History) -> None:
    with pytest.raises(UsageError, match="Did you mean rate"):
        results.memo_calls("rat")
    with pytest.raises(UsageError, match="no memoized call"):
        results.memo_clear(call="rate-00000000")


def test_a_hit_of_another_day_is_noted_as_the_last_use(results: History, script: Script) -> None:
    """One mark per function and day: the second hit of a day writes nothing."""
    source = "from oncemore import memoized\n@memoized\ndef later(n):\n    return n\nlater(1)\nlater(1)"
    script(source)
    key = "used/later"
    first = bytes(results.store.get(key) or b"")
    assert first
    script(source)
    assert results.store.get(key) == first
    results.store.commit(put={key: [b"2020-01-01T00:00:00+00:00"]})
    script(source)
    assert bytes(results.store.get(key) or b"")[:10] == first[:10]
    results.store.commit(put={key: [b"2099-01-01T00:00:00+00:00"]})
    assert {each.function: each.used.year for each in results.memo()}["later"] == 2099
    assert results.verify().findings == ()
    results.memo_clear("later")
    assert results.store.get(key) is None


def test_the_command_lists_and_asks_before_it_clears(results: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memo", "--json"]) == 0
    assert {each["function"] for each in json.loads(capsys.readouterr().out)} == {"rate", "pages"}
    assert main(["memo", "rate", "--clear"]) != 0
    assert "rerun with --yes" in capsys.readouterr().err
    assert len(results.memo_calls("rate")) == 3
    assert main(["memo", "rate", "--older-than", "0s", "--clear", "--yes"]) == 0
    assert "3 memoized results" in capsys.readouterr().out
    assert main(["memo", "--down-to", "1kB", "--clear", "--yes", "--json"]) == 0
    assert [each["function"] for each in json.loads(capsys.readouterr().out)] == ["pages"]
    assert main(["memo"]) == 0
    assert capsys.readouterr().out.startswith("No memoized results found in ")
    assert not Path("memo").exists()
