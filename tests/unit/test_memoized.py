"""What memoized functions can do besides: ages, validation, values put, references, members of **kwargs."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import oncemore
from oncemore import (
    CheckpointWarning,
    CodecError,
    History,
    NotRecorded,
    Recorded,
    UsageError,
    checkpoint_scope,
    checkpointed,
    memoized,
)
from tests.processes import Script

pytestmark = pytest.mark.encrypted_too


class Calls:
    """What was printed so far: the functions here print when they run."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._lines = capsys, list[str]()

    def __len__(self) -> int:
        self._lines += self._capsys.readouterr().out.split()
        return len(self._lines)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def counted(**options: Any) -> Any:
    @memoized(name="counted", **options)
    def work(x: Any) -> Any:
        print(x)
        return [x, x]

    return work


def aged(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let time be later than it is."""
    now = time.time
    monkeypatch.setattr("oncemore.call.time.time", lambda: now() + seconds)


def refreshed() -> None:
    """Wait for the refreshes that run behind."""
    for thread in threading.enumerate():
        if thread.name.startswith("oncemore-refresh"):
            thread.join(60)


# --- name, version --------------------------------------------------------------------------------------------------


def test_a_step_tells_its_name() -> None:
    class Model:
        @checkpointed(name="training")
        def train(self) -> int:
            return 1

    assert counted().name == "counted"
    assert Model.train.name == "training" and Model().train.name == "training"


def test_the_package_tells_its_version() -> None:
    assert oncemore.__version__ == version("oncemore")


# --- ages -----------------------------------------------------------------------------------------------------------


def test_a_call_may_ask_for_a_younger_result(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    work = counted()
    work(1)
    aged(monkeypatch, 7200)
    assert work(1) == [1, 1] and len(calls) == 1
    assert work.within("3h").is_done(1) and not work.within("1h").is_done(1)
    assert work.within("1h")(1) == [1, 1] and len(calls) == 2
    assert "expired" in str(work.within(0).explain(1))


def test_a_call_may_accept_an_older_result(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    work = counted(expires="1h")
    work(1)
    aged(monkeypatch, 7200)
    assert work.within("3h")(1) == [1, 1] and len(calls) == 1
    assert not work.is_done(1)


def test_an_age_goes_with_the_step_into_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    work = counted()
    work(1)
    aged(monkeypatch, 7200)
    again = cloudpickle.loads(cloudpickle.dumps(work.within("1h")))
    assert work.is_done(1) and not again.is_done(1)


class Shop:
    @memoized
    def price(self, item: str) -> int:
        return len(item)


def test_an_age_works_on_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    assert shop.price("tea") == 3
    aged(monkeypatch, 7200)
    assert shop.price.is_done("tea") and not shop.price.within("1h").is_done("tea")
    assert not pickle.loads(pickle.dumps(shop.price.within("1h"))).is_done("tea")
    assert shop.price.within("1h")("tea") == 3
    monkeypatch.undo()


# --- stale now, fresh behind ----------------------------------------------------------------------------------------


def test_a_stale_result_comes_at_once_and_is_refreshed_behind(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    gate = threading.Event()

    @memoized(expires="1h", stale="1d", ignore=["wait"])
    def work(x: int, wait: Any) -> int:
        wait(60)
        print("ran")
        return x

    gate.set()
    work(1, gate.wait)
    gate.clear()
    aged(monkeypatch, 7200)
    assert work(1, gate.wait) == 1 and work(1, gate.wait) == 1  # neither waits for the gate
    assert len(calls) == 1
    gate.set()
    refreshed()
    assert len(calls) == 2
    assert work.within("1h").is_done(1, None)
    work(1, gate.wait)
    refreshed()
    assert len(calls) == 2


def test_a_result_that_is_too_stale_is_computed_at_once(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    work = counted(expires="1h", stale="1h")
    work(1)
    aged(monkeypatch, 7201)
    work(1)
    assert len(calls) == 2


def test_a_refresh_has_the_arguments_that_the_call_had(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    @memoized(expires="1h", stale="1d", ignore=["wait"])
    def total(numbers: list[int], wait: Any) -> int:
        wait(60)
        return sum(numbers)

    gate.set()
    total([1, 2], gate.wait)
    gate.clear()
    aged(monkeypatch, 7200)
    numbers = [1, 2]
    assert total(numbers, gate.wait) == 3
    numbers.append(100)
    gate.set()
    refreshed()
    assert total.within("1h").recall([1, 2], None) == 3


def test_a_refresh_that_fails_warns_and_leaves_the_stale_result(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = threading.Event()

    @memoized(expires="1h", stale="1d", ignore=["failing"])
    def work(x: int, failing: Any) -> int:
        if failing():
            raise OSError("offline")
        return x

    work(1, fail.is_set)
    aged(monkeypatch, 7200)
    fail.set()
    with pytest.warns(CheckpointWarning, match="could not be refreshed: OSError: offline"):
        assert work(1, fail.is_set) == 1
        refreshed()
    assert work.recall(1, None) == 1


def test_a_coroutine_is_refreshed_by_a_task(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    @memoized(expires="1h", stale="1d")
    async def work(x: int) -> int:
        await asyncio.sleep(0)
        print(x)
        return x

    asyncio.run(work(1))
    aged(monkeypatch, 7200)

    async def main() -> None:
        assert await work(1) == 1
        assert len(calls) == 1
        while len(calls) < 2:
            await asyncio.sleep(0.01)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    asyncio.run(main())
    assert work.within("1s").is_done(1)


def test_a_step_with_effects_is_never_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    @memoized(expires="1h", stale="1d")
    def work(seen: list[int]) -> int:
        seen.append(1)
        return len(seen)

    work([])
    aged(monkeypatch, 7200)
    assert not work.is_done([])


def test_stale_needs_a_shared_result_that_expires() -> None:
    with pytest.raises(UsageError, match="stale="):
        checkpointed(expires="1h", stale="1d")(len)
    with pytest.raises(UsageError, match="stale="):
        memoized(stale="1d")(len)


# --- validation -----------------------------------------------------------------------------------------------------


def test_validate_decides_whether_a_result_is_valid() -> None:
    seen: list[Recorded] = []

    def valid(recorded: Recorded) -> bool:
        seen.append(recorded)
        return recorded.arguments["x"] != 2

    work = memoized(name="work", validate=valid)(lambda x, y=0: x)
    assert [work(1), work(1), work(2), work(2)] == [1, 1, 2, 2]
    assert work.is_done(1) and not work.is_done(2)
    assert "rejected by validate=" in str(work.explain(2))
    assert seen[0].arguments == {"x": 1, "y": 0} and 0 <= seen[0].age < 600
    assert seen[0].step == "work" and seen[0].seconds >= 0


def test_an_error_in_validate_is_the_callers() -> None:
    work = memoized(validate=lambda recorded: 1 / 0)(lambda x: x)
    work(1)
    with pytest.raises(ZeroDivisionError):
        work(1)


# --- put ------------------------------------------------------------------------------------------------------------


def test_a_value_that_was_put_is_the_result(calls: Calls) -> None:
    work = counted()
    work.put("given", 1)
    assert work(1) == "given" and len(calls) == 0
    work.put("other", 1)
    assert work(1) == "other"
    assert work(2) == [2, 2]


def test_a_value_put_in_a_run_is_a_checkpoint_that_did_not_run() -> None:
    step = checkpointed(name="step")(lambda x: x)
    with checkpoint_scope("puts") as run:
        step.put("given", 1)
        assert step(1) == "given"
        assert not run.ran and run.reused == {"step": 1}
    assert History().run("puts").checkpoints[0].result() == "given"


def test_a_value_that_cannot_be_saved_cannot_be_put() -> None:
    with pytest.raises(CodecError):
        counted().put(threading.Lock(), 1)


def test_nothing_is_put_for_generators_and_effects() -> None:
    @memoized
    def items() -> Any:
        yield 1

    once = memoized(effect="once")(lambda: 1)
    for step in (items, once):
        with pytest.raises(UsageError, match="put"):
            step.put([1])


# --- references -----------------------------------------------------------------------------------------------------


def test_a_reference_stands_for_a_result(calls: Calls) -> None:
    work = counted()
    reference = work.reference(1)
    assert len(calls) == 1 and reference.get() == [1, 1]
    assert work.reference(1) == reference and len(calls) == 1
    assert pickle.loads(pickle.dumps(reference)) == reference
    assert pickle.loads(pickle.dumps(reference)).get() == [1, 1]
    work.forget(1)
    with pytest.raises(NotRecorded, match="counted"):
        reference.get()


def test_a_reference_is_read_in_another_process(script: Script, tmp_path: Path) -> None:
    script("""
        import pickle
        from oncemore import memoized

        @memoized
        def work(x):
            return list(range(x)) * 20_000

        with open("reference", "wb") as file:
            pickle.dump(work.reference(3), file)
    """)
    done = script("""
        import pickle
        with open("reference", "rb") as file:
            print(len(pickle.load(file).get()))
    """)
    assert done.lines == ["60000"]


def test_a_reference_to_the_items_of_a_generator() -> None:
    @memoized
    def items() -> Any:
        yield from "ab"

    with pytest.raises(NotRecorded):
        items.reference()
    list(items())
    assert items.reference().get() == ["a", "b"]


def test_a_result_that_is_an_object_of_the_callers_can_be_had_by_reference() -> None:
    same = memoized(name="same")(lambda x: x)
    reference = same.reference([1])
    assert reference.get() == [1]


# --- members of **kwargs --------------------------------------------------------------------------------------------


def test_one_member_of_the_keyword_arguments_can_be_ignored(calls: Calls) -> None:
    @memoized(ignore=["verbose"])
    def work(x: int, **options: Any) -> tuple[int, list[str]]:
        print(x)
        return x, sorted(options)

    assert work(1, verbose=True, depth=2) == (1, ["depth", "verbose"])
    assert work(1, verbose=False, depth=2) == (1, ["depth", "verbose"]) and len(calls) == 1
    assert work(1, depth=2)[0] == 1 and len(calls) == 1
    work(1, verbose=True, depth=3)
    assert len(calls) == 2


def test_without_keyword_arguments_an_unknown_name_is_an_error() -> None:
    with pytest.raises(UsageError, match="verbose"):
        memoized(ignore=["verbose"])(lambda x: x)
