"""Side effects that must be neither repeated nor lost: idempotency keys and effect="once"."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from oncemore import History, Run, UnknownOutcome, UsageError, checkpoint_scope, checkpointed, idempotency_key
from tests.processes import Script
from tests.unit.again import scope

# -- idempotency keys


@checkpointed
def key_of(invoice: str) -> str:
    return idempotency_key()


def test_the_key_is_the_same_in_every_attempt_at_a_node(script: Script) -> None:
    source = """
        import os
        from oncemore import checkpoint_scope, checkpointed, idempotency_key

        @checkpointed
        def pay(invoice):
            print(invoice, idempotency_key())
            if not os.path.exists("works"):
                raise OSError("the bank is closed")

        with checkpoint_scope("run"):
            for invoice in ("a", "b"):
                try:
                    pay(invoice)
                except OSError:
                    pass
    """
    first, second = script(source), script(source)
    (script.folder / "works").touch()
    edited = script(source.replace("the bank is closed", "no"))
    assert first.lines == second.lines == edited.lines
    keys = [line.split()[1] for line in first.lines]
    assert len(set(keys)) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", key) for key in keys)


def test_every_other_node_has_another_key() -> None:
    @checkpointed
    def also(invoice: str) -> str:
        return idempotency_key()

    keys = scope(lambda run: [key_of("a"), key_of("b"), also("a")]).value
    keys += scope(lambda run: [key_of("a")], "another run").value
    assert len(set(keys)) == 4


def test_a_step_refreshed_has_the_key_that_it_had() -> None:
    assert scope(lambda run: key_of("a") == key_of.refresh("a")).value is True


def test_identical_calls_that_count_for_themselves_have_their_own_keys() -> None:
    @checkpointed(every_call=True)
    def send() -> str:
        return idempotency_key()

    keys = scope(lambda run: [send(), send()]).value
    assert len(set(keys)) == 2


def test_inside_a_step_inside_another_it_is_the_inner_ones_key() -> None:
    @checkpointed
    def around() -> Any:
        return idempotency_key(), key_of("a"), idempotency_key()

    def body(run: Run) -> Any:
        return (*around(), key_of("a"))

    before, inner, after, again = scope(body).value
    assert before == after != inner == again


def test_coroutines_and_generators_have_keys_too() -> None:
    @checkpointed
    async def later() -> str:
        await asyncio.sleep(0)
        return idempotency_key()

    @checkpointed
    def items() -> Any:
        yield idempotency_key()
        yield idempotency_key()

    def body(run: Run) -> Any:
        return asyncio.run(later.refresh()), list(items.refresh())

    first, second = scope(body).value, scope(body).value
    assert first == second
    assert first[1][0] == first[1][1] != first[0]


def test_outside_of_a_step_every_key_is_new() -> None:
    assert idempotency_key() != idempotency_key()
    assert key_of("a") != key_of("a")


# -- effect="once"

PAY = """
    import os, sys, time
    from oncemore import UnknownOutcome, checkpoint_scope, checkpointed, idempotency_key

    @checkpointed(effect="once")
    def pay(invoice, amount):
        with open("paid", "a") as file:
            file.write(f"{invoice} {amount}\\n")
        print("KEY", idempotency_key())
        print("paying")
        time.sleep(0 if os.path.exists("quick") else 60)
        return f"receipt {amount}"

    with checkpoint_scope("run") as run:
        if len(sys.argv) > 1:
            exec(sys.argv[1])
        try:
            print("GOT", pay("a-1", amount=5))
        except UnknownOutcome as error:
            print("UNKNOWN", error.node, error.key)
            print(error)
"""


def paid(script: Script) -> int:
    return len((script.folder / "paid").read_text().splitlines())


@pytest.fixture
def killed(script: Script) -> tuple[Script, str]:
    """A script that was killed while it paid, and the idempotency key of the payment."""
    died = script.kill_at("paying", PAY)
    (script.folder / "quick").touch()
    assert died.code == -9
    assert paid(script) == 1
    return script, next(line.split()[1] for line in died.lines if line.startswith("KEY"))


def test_killed_in_the_body_the_next_run_stops_and_names_node_and_key(killed: tuple[Script, str]) -> None:
    script, key = killed
    for _ in range(2):  # asking is no answer
        done = script(PAY)
        unknown = next(line for line in done.lines if line.startswith("UNKNOWN"))
        assert re.fullmatch(rf"UNKNOWN pay-[0-9a-f]+ {key}", unknown)
        assert "GOT" not in done.out
        assert f"run.resolve({key!r}, happened=True" in done.out
        assert paid(script) == 1


def test_it_happened_with_this_result(killed: tuple[Script, str]) -> None:
    script, key = killed
    done = script(PAY, f"run.resolve({key!r}, happened=True, result='receipt by phone')")
    assert done.lines == ["GOT receipt by phone"]
    assert script(PAY).lines == ["GOT receipt by phone"]
    assert paid(script) == 1


def test_it_did_not_happen_so_it_runs(killed: tuple[Script, str]) -> None:
    script, key = killed
    done = script(PAY, f"run.resolve({key!r}, happened=False)")
    assert done.lines[-1] == "GOT receipt 5"
    assert f"KEY {key}" in done.lines
    assert paid(script) == 2
    assert script(PAY).lines == ["GOT receipt 5"]


def test_the_node_can_be_named_instead_of_the_key(killed: tuple[Script, str]) -> None:
    script, _ = killed
    node = script(PAY).lines[0].split()[1]
    assert script(PAY, f"run.resolve({node!r}, happened=True, result=1)").lines == ["GOT 1"]


EDITED = PAY.replace("receipt {amount}", "receipt of {amount}")


def test_after_the_code_was_edited_it_is_still_unknown(killed: tuple[Script, str]) -> None:
    script, key = killed
    assert f" {key}" in script(EDITED).lines[0]
    assert script(EDITED, f"run.resolve({key!r}, happened=True, result=7)").lines == ["GOT 7"]
    assert paid(script) == 1


def test_after_the_code_was_edited_it_can_be_told_to_run(killed: tuple[Script, str]) -> None:
    script, key = killed
    assert script(EDITED, f"run.resolve({key!r}, happened=False)").lines[-1] == "GOT receipt of 5"
    assert paid(script) == 2


def test_resolved_in_one_process_it_counts_in_the_next(killed: tuple[Script, str]) -> None:
    script, key = killed
    resolve = """
        from oncemore import checkpoint_scope
        with checkpoint_scope("run") as run:
            run.resolve(KEY, happened=True, result={"by": "hand"})
    """
    script(resolve.replace("KEY", repr(key)), name="resolve.py")
    assert script(PAY).lines == ["GOT {'by': 'hand'}"]
    assert paid(script) == 1


def test_completed_it_is_never_asked_about() -> None:
    paid: list[int] = []

    def body(run: Run) -> Any:
        return pay(1), [key for key, _ in run.shelf.intents()]

    @checkpointed(effect="once", code="version", version="1")
    def pay(amount: int) -> int:
        paid.append(amount)
        return amount

    assert [scope(body).value for _ in range(3)] == [(1, [])] * 3
    assert paid == [1]


def test_the_intent_is_durable_before_the_body_starts() -> None:
    seen: list[Any] = []

    @checkpointed(effect="once", code="version", version="1")
    def look() -> None:
        with checkpoint_scope("run", store="store") as other:  # as another process would see it
            seen.extend(found.meta["step"] for _, found in other.shelf.intents())

    scope(lambda run: look(), store="store")
    assert [name.rpartition(".")[2] for name in seen] == ["look"]


class Refused(Exception):
    pass


def test_an_exception_of_the_body_says_that_nothing_happened() -> None:
    attempts: list[int] = []

    @checkpointed(effect="once", code="version", version="1")
    def pay(amount: int) -> str:
        attempts.append(amount)
        if len(attempts) < 3:
            raise Refused
        return "paid"

    def body(run: Run) -> Any:
        with pytest.raises(Refused):
            pay(1)

    scope(body)
    scope(body)
    assert scope(lambda run: pay(1)).value == "paid"
    assert attempts == [1, 1, 1]


def test_an_interruption_says_nothing_so_the_outcome_is_unknown() -> None:
    @checkpointed(effect="once", code="version", version="1")
    def pay() -> None:
        raise KeyboardInterrupt

    def body(run: Run) -> Any:
        with pytest.raises(KeyboardInterrupt):
            pay()

    scope(body)
    with pytest.raises(UnknownOutcome, match="pay-"):
        scope(lambda run: pay())


def test_a_result_that_could_not_be_kept_leaves_the_outcome_to_be_settled() -> None:
    paid: list[int] = []

    @checkpointed(effect="once", code="version", version="1")
    def pay() -> Any:
        paid.append(1)
        return threading.Lock()

    def body(run: Run) -> Any:
        with pytest.warns(match="not kept"):
            pay()

    scope(body)
    with pytest.raises(UnknownOutcome):
        scope(lambda run: pay())
    assert paid == [1]


def test_unknown_outcomes_of_different_nodes_are_settled_one_by_one() -> None:
    @checkpointed(effect="once", code="version", version="1")
    def pay(invoice: str, *, live: bool = False) -> str:
        raise KeyboardInterrupt

    errors: list[UnknownOutcome] = []

    def body(run: Run) -> Any:
        for invoice in ("a", "b"):
            with pytest.raises(KeyboardInterrupt):
                pay(invoice)

    def ask(run: Run) -> Any:
        for invoice in ("a", "b"):
            with pytest.raises(UnknownOutcome) as caught:
                pay(invoice)
            errors.append(caught.value)

    scope(body)
    scope(ask)
    assert errors[0].key != errors[1].key
    scope(lambda run: run.resolve(errors[1].key, happened=True, result="b is paid"))
    assert scope(lambda run: pay("b")).value == "b is paid"
    with pytest.raises(UnknownOutcome):
        scope(lambda run: pay("a"))


def test_a_coroutine_cut_off_is_unknown_too(script: Script) -> None:
    source = """
        import asyncio, os
        from oncemore import UnknownOutcome, checkpoint_scope, checkpointed

        @checkpointed(effect="once")
        async def pay():
            print("paying")
            await asyncio.sleep(0 if os.path.exists("quick") else 60)

        async def main():
            async with checkpoint_scope("run"):
                await pay()

        try:
            asyncio.run(main())
        except UnknownOutcome as error:
            print("UNKNOWN")
    """
    script.kill_at("paying", source)
    (script.folder / "quick").touch()
    assert script(source).lines == ["UNKNOWN"]


def test_resolving_what_nobody_asked_about_is_an_error() -> None:
    with checkpoint_scope("run") as run, pytest.raises(UsageError, match="no unknown outcome called 'nothing'"):
        run.resolve("nothing", happened=False)


def test_other_words_than_once_are_refused() -> None:
    with pytest.raises(UsageError, match="'twice'"):

        @checkpointed(effect="twice")  # type: ignore[call-overload, untyped-decorator]
        def pay() -> None: ...


def test_generators_are_refused() -> None:
    with pytest.raises(UsageError, match="generators"):

        @checkpointed(effect="once")
        def pay() -> Any:
            yield 1


def test_outside_of_a_scope_it_just_runs(tmp_path: Path) -> None:
    @checkpointed(effect="once")
    def pay() -> str:
        return "paid"

    assert pay() == "paid"
    assert list(tmp_path.iterdir()) == []


# -- from outside


@pytest.mark.parametrize("share", [False, True])
def test_an_unknown_outcome_is_listed_and_answered_for_from_outside(share: bool) -> None:
    """Ctrl-C inside the body: nobody knows."""
    ran: list[str] = []

    @checkpointed(effect="once", share=share)
    def pay(invoice: str) -> str:
        ran.append(invoice)
        raise KeyboardInterrupt

    def attempt() -> str:
        with checkpoint_scope("bill", store="store"):
            return pay("a")

    with pytest.raises(KeyboardInterrupt):
        attempt()
    history = History("store")
    (unknown,) = history.unknown_outcomes("bill")
    assert unknown.node.startswith("pay-") or unknown.node.rpartition(".")[2].startswith("pay-")
    with pytest.raises(UnknownOutcome):
        attempt()
    with pytest.raises(UsageError, match="no unknown outcome called 'pya'"):
        history.resolve("bill", "pya", happened=False)
    history.resolve("bill", unknown.node, happened=True, result="receipt")
    assert history.unknown_outcomes("bill") == []
    assert attempt() == "receipt"
    assert ran == ["a"]


def test_nobody_answers_for_a_step_that_may_be_under_way() -> None:
    @checkpointed(effect="once")
    def pay(invoice: str) -> str:
        (unknown,) = History("store").unknown_outcomes("bill")
        with pytest.raises(UsageError, match="when nothing runs"):
            History("store").resolve("bill", unknown.key, happened=False)
        return "paid"

    with checkpoint_scope("bill", store="store"):
        assert pay("a") == "paid"


def test_a_shared_step_is_answered_for_in_the_run_that_asked() -> None:
    @checkpointed(effect="once", share=True)
    def pay(invoice: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), checkpoint_scope("bill", store="store"):
        pay("a")
    (unknown,) = History("store").unknown_outcomes("bill")
    with checkpoint_scope("bill", store="store") as run:
        run.resolve(unknown.key, happened=True, result=5)
        assert pay("a") == 5
