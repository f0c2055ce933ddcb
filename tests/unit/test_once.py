"""Side effects that must be neither repeated nor lost: idempotency keys and effect="once"."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from oncemore import (
    CheckpointWarning,
    History,
    Run,
    UnknownOutcome,
    UsageError,
    checkpoint_scope,
    checkpointed,
    idempotency_key,
)
from oncemore.effects_once import unknown
from oncemore.errors import IntegrityError
from oncemore.events import StepCompleted
from oncemore.retention import keep_last
from oncemore.stores import open_store
from tests.processes import Script
from tests.unit.again import scope
from tests.unit.pasts import store_url

# -- idempotency keys

pytestmark = pytest.mark.encrypted_too


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


def test_the_step_can_be_named_if_only_one_of_its_calls_is_unknown(killed: tuple[Script, str]) -> None:
    script, _ = killed
    assert script(PAY, "run.resolve('pay', happened=True, result=1)").lines == ["GOT 1"]


def test_a_step_with_several_unknown_calls_is_not_resolved_by_its_name() -> None:
    @checkpointed(effect="once", name="pay")
    def pay(invoice: str) -> str:
        raise KeyboardInterrupt

    for invoice in "ab":
        with pytest.raises(KeyboardInterrupt), checkpoint_scope("bill", store="store"):
            pay(invoice)
    history = History("store")
    nodes = sorted(each.node for each in history.unknown_outcomes("bill"))
    with pytest.raises(UsageError, match=f"step pay has 2 calls .*: {', '.join(nodes)}"):
        history.resolve("bill", "pay", happened=False)
    for node in nodes:
        history.resolve("bill", node, happened=False)
    assert history.unknown_outcomes("bill") == []


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
        return pay(1), unknown(run._session.entries)

    @checkpointed(effect="once", code="version", version="1")
    def pay(amount: int) -> int:
        paid.append(amount)
        return amount

    assert [scope(body).value for _ in range(3)] == [(1, [])] * 3
    assert paid == [1]


# -- performed means performed, whatever becomes of the checkpoint

POST = """
    import os, sys
    from oncemore import checkpoint_scope, checkpointed, current_run, idempotency_key

    RATE = 1

    def fee(amount):
        return amount * RATE

    @checkpointed(effect="once")
    def pay(invoice, amount):
        with open("paid", "a") as file:
            file.write(f"{invoice} {amount}\\n")
        current_run().state["paid"] = invoice
        return [invoice, fee(amount)]

    with checkpoint_scope("run") as run:
        if len(sys.argv) > 1:
            exec(sys.argv[1])
        print("GOT", pay("a-1", 5), run.state["paid"])
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return [invoice, fee(amount)]", "return [invoice, fee(amount), 'new']"),
        ("return amount * RATE", "return amount * RATE * 2"),
        ("RATE = 1", "RATE = 3"),
        ('effect="once")', 'effect="once", version="2")'),
        ('effect="once")', 'effect="once", expires=0)'),
    ],
)
def test_an_edit_does_not_perform_it_again_and_that_is_told(script: Script, before: str, after: str) -> None:
    assert script(POST).lines == ["GOT ['a-1', 5] a-1"]
    for _ in range(2):
        again = script(POST.replace(before, after))
        assert again.lines == ["GOT ['a-1', 5] a-1"]
        assert again.err.count("CheckpointWarning") == 1
        assert "step pay was performed on 20" in again.err
        assert "pay.refresh(...)" in again.err
    assert paid(script) == 1


def test_in_another_process_of_the_same_run_it_is_not_performed_again(script: Script) -> None:
    source = """
        import os
        from oncemore import checkpoint_scope, checkpointed

        RATE = 1

        @checkpointed(effect="once")
        def pay(invoice):
            with open("paid", "a") as file:
                file.write(f"{invoice}\\n")
            return RATE

        with checkpoint_scope("run"):
            print(pay("a"))
            RATE = 2
            print(pay("a"), flush=True)
            child = os.fork()
            if not child:
                RATE = 3
                print(pay("a"), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
    """
    assert script(source).lines == ["1", "1", "1"]
    assert paid(script) == 1


def test_two_processes_with_different_code_perform_it_once(script: Script) -> None:
    source = """
        import os, sys, time
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed(effect="once")
        def pay(invoice):
            print("paying", flush=True)
            with open("paid", "a") as file:
                file.write(f"{invoice}\\n")
            while not os.path.exists("go"):
                time.sleep(0.01)
            return "first"

        with checkpoint_scope("run"):
            print("calls", flush=True)
            print("GOT", pay("a"))
    """
    one = script.start(source)
    one.wait_for("paying")
    other = script.start(source.replace("first", "second"), name="other.py")
    other.wait_for("calls")
    (script.folder / "go").touch()
    assert one.finish(0).lines[-1] == "GOT first"
    assert other.finish(0).lines == ["calls", "GOT first"]
    assert paid(script) == 1


EDIT = {"code": "1"}
PERFORMED: list[Any] = []


def billing(version: str = "1", **options: Any) -> Any:
    """A payment whose code is edited by giving it another version."""

    def pay(invoice: str) -> dict[str, Any]:
        PERFORMED.append(invoice)
        return {"receipt": invoice}

    return checkpointed(effect="once", name="pay", code="version", version=version, **options)(pay)


@pytest.fixture(autouse=True)
def nothing_performed() -> None:
    PERFORMED.clear()


def quietly(invoice: str, version: str = "2", run_id: str = "run", **options: Any) -> Any:
    """Call the payment in a scope; the result, and that it said that it does nothing."""
    with pytest.warns(CheckpointWarning, match="step pay was performed on .* and is not performed again"):
        return scope(lambda run: billing(version, **options)(invoice), run_id, store="store").value


def test_after_a_rollback_it_is_not_performed_again() -> None:
    scope(lambda run: (key_of("a"), billing()("a")), store="store")
    history = History("store")
    history.rollback("run", to="key_of")
    assert quietly("a", "1") == {"receipt": "a"}
    assert quietly("a", "2") == {"receipt": "a"}
    history.undo_rollback("run")
    assert scope(lambda run: billing()("a"), store="store").value == {"receipt": "a"}
    assert PERFORMED == ["a"]


def test_rolled_back_in_the_scope_it_is_not_performed_again() -> None:
    def body(run: Run) -> Any:
        billing()("a")
        run.rollback(before="pay")
        with pytest.warns(CheckpointWarning, match="rolled back"):
            return billing()("a")

    assert scope(body).value == {"receipt": "a"}
    assert PERFORMED == ["a"]


def test_removed_by_a_retention_policy_it_is_not_performed_again() -> None:
    scope(lambda run: (billing()("a"), billing()("b")), store="store", max_checkpoints=1)
    History("store").prune(keep_last(1))
    assert quietly("a", "1") == {"receipt": "a"}
    assert PERFORMED == ["a", "b"]


def test_a_damaged_checkpoint_does_not_perform_it_again() -> None:
    with checkpoint_scope("run", store=store_url("memory", "damaged-once")) as run:
        billing()("a")
    (event,) = (e for e in run.events() if isinstance(e, StepCompleted))
    run.store.commit(put={event.entry: [b"nonsense"]})
    with checkpoint_scope("run", store=store_url("memory", "damaged-once")):
        with pytest.warns(CheckpointWarning, match="not performed again .*damaged"):
            assert billing()("a") == {"receipt": "a"}
    assert PERFORMED == ["a"]


def test_a_damaged_record_of_what_was_performed_is_an_error_until_the_user_decides() -> None:
    with checkpoint_scope("run", store=store_url("memory", "damaged-record")) as run:
        billing()("a")
    ((key, _),) = run._session.entries.intents()
    run.store.commit(put={key: [b"nonsense"]})
    with checkpoint_scope("run", store=store_url("memory", "damaged-record")):
        assert billing("1")("a") == {"receipt": "a"}  # its checkpoint is well
        with pytest.raises(IntegrityError, match=r"cannot tell whether pay-.* was performed.*pay.refresh"):
            billing("2")("a")
        billing("2").refresh("a")
        assert billing("2")("a") == {"receipt": "a"}
    assert PERFORMED == ["a", "a"]


def test_a_file_that_cannot_be_put_back_does_not_perform_it_again() -> None:
    @checkpointed(effect="once", outputs=["{path}"], outputs_keep=False, code="version", version="1")
    def post(path: str) -> str:
        PERFORMED.append(path)
        Path(path).write_text("posted")
        return "done"

    scope(lambda run: post("receipt"), store="store")
    Path("receipt").unlink()
    with pytest.warns(CheckpointWarning, match="not performed again, but its effects cannot be restored: .*missing"):
        assert scope(lambda run: post("receipt"), store="store").value == "done"
    assert PERFORMED == ["receipt"]


def test_files_that_it_wrote_come_back_after_retention_took_the_checkpoint() -> None:
    def post(path: str) -> str:
        Path(path).write_text("posted")
        return "done"

    step = checkpointed(effect="once", outputs=["{path}"])(post)
    scope(lambda run: (step("receipt"), key_of("b")), store="store")
    History("store").prune(keep_last(1))
    Path("receipt").unlink()
    with pytest.warns(CheckpointWarning, match="removed by a retention policy"):
        scope(lambda run: step("receipt"), store="store")
    assert Path("receipt").read_text() == "posted"
    assert History("store").verify().findings == ()
    History("store").delete("run")
    assert {key.partition("/")[0] for key, _ in open_store("store").scan("", most=0)} == {"code", "key"}


def test_a_call_that_is_told_once_for_each_step_in_a_scope() -> None:
    scope(lambda run: [billing()(invoice) for invoice in "abc"])

    def body(run: Run) -> Any:
        with pytest.warns(CheckpointWarning) as told:
            found = [billing("2")(invoice) for invoice in "abc"], run.reused["pay"], run.ran["pay"]
        return found, len(told)

    assert scope(body).value == (([{"receipt": invoice} for invoice in "abc"], 3, 0), 1)


def test_what_can_be_asked_of_a_step_knows_what_was_performed() -> None:
    scope(lambda run: billing()("a"))

    def body(run: Run) -> Any:
        pay = billing("2")
        return pay.is_done("a"), pay.recall("a"), pay.explain("a").reuses, pay.is_done("b")

    assert scope(body).value == (True, {"receipt": "a"}, True, False)


def test_the_user_asks_for_it_and_it_is_performed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scope(lambda run: billing()("a"))
    scope(lambda run: billing("2").refresh("a"))
    assert PERFORMED == ["a"] * 2
    monkeypatch.setenv("ONCEMORE_REFRESH", "pay")
    scope(lambda run: (billing("3")("a"), billing("3")("a")))
    assert PERFORMED == ["a"] * 3
    monkeypatch.delenv("ONCEMORE_REFRESH")
    assert scope(lambda run: (billing("4").forget("a"), billing("4").forget("a"), billing("4")("a"))).value[:2] == (
        True,
        False,
    )
    assert PERFORMED == ["a"] * 4


def test_asked_for_again_and_failed_it_still_has_been_performed() -> None:
    scope(lambda run: billing()("a"))

    def refuse(invoice: str) -> Any:
        raise Refused

    def body(run: Run) -> Any:
        step = checkpointed(effect="once", name="pay", code="version", version="2")(refuse)
        with pytest.raises(Refused):
            step.refresh("a")
        with pytest.warns(CheckpointWarning, match="not performed again"):
            return step("a")

    assert scope(body).value == {"receipt": "a"}


def test_asked_for_again_and_cut_off_it_is_unknown_until_resolved() -> None:
    scope(lambda run: billing()("a"), store="store")

    def stop(invoice: str) -> Any:
        raise KeyboardInterrupt

    def body(run: Run) -> Any:
        step = checkpointed(effect="once", name="pay", code="version", version="2")(stop)
        with pytest.raises(KeyboardInterrupt):
            step.refresh("a")
        with pytest.raises(UnknownOutcome):
            step("a")

    scope(body, store="store")
    (asked,) = History("store").unknown_outcomes("run")
    History("store").resolve("run", asked.key, happened=False)
    assert quietly("a", "2") == {"receipt": "a"}


def test_what_was_performed_goes_with_its_run() -> None:
    scope(lambda run: billing()("a"), store="store")
    History("store").delete("run")
    scope(lambda run: billing("2")("a"), store="store")
    assert PERFORMED == ["a", "a"]


def test_a_fork_does_not_do_what_its_parent_did_before_it() -> None:
    scope(lambda run: (key_of("a"), billing()("a"), key_of("b"), billing()("b")), store="store")
    history = History("store")
    history.fork("run", "half", at=next(c.id for c in history.run("run").checkpoints if c.index == 2))
    history.fork("half", "again")
    history.delete("run")
    for run_id in ("half", "again"):
        assert quietly("a", "2", run_id) == {"receipt": "a"}
        assert PERFORMED == ["a", "b"]
    scope(lambda run: billing("2")("b"), "half", store="store")
    assert PERFORMED == ["a", "b", "b"]


def test_a_fork_asks_about_what_was_unknown_in_its_parent() -> None:
    def stop(invoice: str) -> Any:
        raise KeyboardInterrupt

    def body(run: Run) -> Any:
        with pytest.raises(KeyboardInterrupt):
            checkpointed(effect="once", name="pay", code="version", version="1")(stop)("a")

    scope(body, store="store")
    History("store").fork("run", "child")
    with pytest.raises(UnknownOutcome):
        scope(lambda run: billing()("a"), "child", store="store")


@pytest.mark.parametrize("share", [False, True])
def test_an_exported_run_knows_what_it_performed(share: bool) -> None:
    scope(lambda run: billing(share=share)("a"), store="store")
    History("store").export("file")
    History("there").import_("file")
    with pytest.warns(CheckpointWarning, match="not performed again"):
        assert scope(lambda run: billing("2", share=share)("a"), store="there").value == {"receipt": "a"}
    assert PERFORMED == ["a"]


def test_a_run_imported_from_json_does_not_perform_anything_again() -> None:
    @checkpointed(effect="once", name="odd", code="version", version="1")
    def odd() -> Any:
        PERFORMED.append("odd")
        return (1, 2)

    scope(lambda run: (billing()("a"), odd()), store="store")
    History("store").export_json("file")
    History("there").import_json("file")
    with pytest.warns(CheckpointWarning, match="not performed again"):
        assert scope(lambda run: billing("2")("a"), store="there").value == {"receipt": "a"}
    with pytest.raises(UnknownOutcome):  # JSON could not hold its result
        scope(lambda run: odd(), store="there")
    assert PERFORMED == ["a", "odd"]


def test_every_call_of_a_step_that_counts_every_call_is_performed_once() -> None:
    scope(lambda run: [billing(every_call=True)("a") for _ in range(2)])
    with pytest.warns(CheckpointWarning, match="not performed again"):
        scope(lambda run: [billing("2", every_call=True)("a") for _ in range(3)])
    assert PERFORMED == ["a"] * 3


def test_killed_right_after_the_commit_an_edit_does_not_perform_it_again(script: Script) -> None:
    script.kill_at("COMMITTED", POST, "pay('a-1', 5); print('COMMITTED', flush=True); __import__('time').sleep(60)")
    assert script(POST.replace("RATE = 1", "RATE = 2")).lines == ["GOT ['a-1', 5] a-1"]
    assert paid(script) == 1


def test_the_intent_is_durable_before_the_body_starts() -> None:
    seen: list[Any] = []

    @checkpointed(effect="once", code="version", version="1")
    def look() -> None:
        with checkpoint_scope("run", store="store") as other:  # as another process would see it
            seen.extend(found.meta["step"] for _, found in other._session.entries.intents())

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
        return iter([1])

    with pytest.warns(match="kept"):  # at once, and when the scope ends
        scope(lambda run: pay())
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


@pytest.mark.parametrize("share", [False, True])
def test_nobody_answers_for_a_step_that_may_be_under_way(share: bool) -> None:
    @checkpointed(effect="once", share=share)
    def pay(invoice: str) -> str:
        (unknown,) = History("store").unknown_outcomes("bill")
        with pytest.raises(UsageError, match=r"may be executing it is running: bill\. "):
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
