"""effect="once" after edits that change how calls are told apart: the same call is not performed again, a doubtful one asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from oncemore import CheckpointWarning, History, Run, UnknownOutcome, checkpointed, idempotency_key
from tests.processes import Script
from tests.unit.again import scope

PERFORMED: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_performed() -> None:
    PERFORMED.clear()


def step(function: Callable[..., Any], **options: Any) -> Any:
    """A step called `pay` whose code does not count."""
    return checkpointed(effect="once", **{"name": "pay", "code": "version", "version": "1", **options})(function)


def make(signature: str, **options: Any) -> Any:
    """The same of a function with these parameters, which returns them all."""
    space: dict[str, Any] = {"PERFORMED": PERFORMED, "__name__": __name__}
    exec(f"def pay({signature}):\n    PERFORMED.append(dict(locals()))\n    return len(PERFORMED)", space)
    return step(space["pay"], **{"version": signature, **options})


def once(before: Any, after: Any) -> None:
    """Both calls are the same: the second returns what the first did, and says so."""
    assert scope(before).value == 1
    for _ in range(2):
        with pytest.warns(CheckpointWarning, match="was performed on .* and is not performed again"):
            assert scope(after).value == 1
    assert len(PERFORMED) == 1


def asked(before: Any, after: Any) -> None:
    """Whether both calls are the same is for the user to say, either way."""
    for same in (True, False):
        PERFORMED.clear()
        run_id = f"run {same}"
        assert scope(before, run_id).value == 1
        for _ in range(2):
            with pytest.raises(UnknownOutcome, match="may have been performed already") as caught:
                scope(after, run_id)
        key = caught.value.key
        scope(lambda run, key=key, same=same: run.resolve(key, happened=same), run_id)
        if same:
            with pytest.warns(CheckpointWarning, match="is not performed again"):
                assert scope(after, run_id).value == 1
        else:
            assert [scope(after, run_id).value for _ in range(2)] == [2, 2]
        assert len(PERFORMED) == 2 - same


def told_apart(before: Any, after: Any) -> None:
    """The second call is another one, beyond doubt."""
    assert [scope(before).value, scope(after).value, scope(after).value] == [1, 2, 2]


@pytest.mark.parametrize(
    ("was", "now", "call"),
    [
        ("invoice", "invoice, currency='EUR'", lambda pay: pay("a")),
        ("invoice", "invoice, currency='EUR'", lambda pay: pay(invoice="a")),
        ("invoice", "invoice, *, tags=()", lambda pay: pay("a")),
        ("invoice", "invoice, *more, **options", lambda pay: pay("a")),
        ("invoice, currency='EUR'", "invoice", lambda pay: pay("a")),
        ("invoice, currency='EUR'", "invoice, currency='USD'", lambda pay: pay("a")),
        ("invoice, amount", "amount, invoice", lambda pay: pay(invoice="a", amount=5)),
        ("invoice, amount", "invoice, *, amount", lambda pay: pay("a", amount=5)),
        ("invoice, amount", "bill, amount", lambda pay: pay("a", 5)),
        ("*what", "invoice, amount", lambda pay: pay("a", 5)),
        ("invoice, amount", "*what", lambda pay: pay("a", 5)),
        ("invoice, **options", "invoice, amount=0", lambda pay: pay("a", amount=5)),
    ],
)
def test_a_call_with_the_same_meaning_is_the_same_call(was: str, now: str, call: Any) -> None:
    once(lambda run: call(make(was)), lambda run: call(make(now)))


def test_that_an_edited_call_is_not_performed_again_says_as_what_it_was_recorded() -> None:
    old, new = make("invoice, amount"), make("bill, amount")
    scope(lambda run: old("a", 5))
    with pytest.warns(
        CheckpointWarning, match=r"it was recorded as pay\(invoice, amount\), before the step was edited"
    ):
        scope(lambda run: new("a", 5))


def test_a_default_that_is_now_spelled_out_is_the_same_call() -> None:
    old, new = make("invoice, currency='EUR'"), make("invoice, currency='USD'")
    once(lambda run: old("a"), lambda run: new("a", "EUR"))


def test_a_value_that_became_the_default_is_the_same_call() -> None:
    old, new = make("invoice, currency='EUR'"), make("invoice, currency='USD'")
    assert scope(lambda run: (old("a", "USD"), old("a"))).value == (1, 2)
    with pytest.warns(CheckpointWarning, match="is not performed again"):
        assert scope(lambda run: (new("a"), new("a", "EUR"))).value == (1, 2)


@pytest.mark.parametrize(
    ("was", "now", "first", "second"),
    [
        ("invoice, amount", "invoice", ("a", 5), ("a",)),
        ("invoice", "invoice, currency", ("a",), ("a", "EUR")),
        ("invoice", "invoice, currency='EUR'", ("a",), ("a", "USD")),
        ("src, dst", "to, by", ("x", "y"), ("x", "y")),
        ("src, dst", "to, by", ("x", "y"), ("y", "x")),
    ],
)
def test_a_call_that_may_be_the_same_is_asked_about(was: str, now: str, first: Any, second: Any) -> None:
    old, new = make(was), make(now)
    asked(lambda run: old(*first), lambda run: new(*second))


@pytest.mark.parametrize(
    ("was", "now", "first", "second"),
    [
        ("src, dst", "dst, src", ("x", "y"), ("x", "y")),
        ("invoice", "bill", ("a",), ("b",)),
        ("invoice, amount", "invoice", ("a", 5), ("b",)),
        ("invoice", "invoice, currency='EUR'", ("a",), ("b",)),
        ("src, dst", "to, by", ("x", "y"), ("x", "z")),
    ],
)
def test_a_call_with_other_values_is_another_call(was: str, now: str, first: Any, second: Any) -> None:
    old, new = make(was), make(now)
    told_apart(lambda run: old(*first), lambda run: new(*second))


def test_a_parameter_that_is_ignored_from_now_on_does_not_matter() -> None:
    old, new = make("invoice, retries"), make("invoice, retries", ignore=["retries"])
    once(lambda run: old("a", 3), lambda run: new("a", 4))


def test_a_parameter_that_was_ignored_does_not_matter() -> None:
    old, new = make("invoice, retries", ignore=["retries"]), make("invoice, retries")
    once(lambda run: old("a", 3), lambda run: new("a", 4))


def by_id(row: Any) -> Any:
    return row["id"]


def by_place(row: Any) -> Any:
    return row["id"], row["place"]


ROW = {"id": 1, "place": "x"}


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"key": {"row": by_id}}, {"key": {"row": by_place}}),
        ({}, {"key": {"row": by_id}}),
        ({"key": {"row": by_id}}, {}),
        ({"key": by_id}, {"key": by_place}),
        ({}, {"key": by_id}),
        ({"key": by_id}, {}),
    ],
)
def test_what_another_key_identifies_is_asked_about(was: Any, now: Any) -> None:
    old, new = make("row", **was), make("row", **now)
    asked(lambda run: old(ROW), lambda run: new(ROW))


def test_another_key_that_identifies_the_same_is_the_same_call() -> None:
    old, new = make("row", key={"row": lambda row: row["id"]}), make("row", key={"row": by_id}, version="2")
    once(lambda run: old(ROW), lambda run: new({**ROW, "place": "y"}))


def test_counting_every_call_from_now_on_the_first_is_the_same_call() -> None:
    old, new = make("invoice"), make("invoice", every_call=True)
    assert scope(lambda run: old("a")).value == 1
    with pytest.warns(CheckpointWarning, match="is not performed again"):
        assert scope(lambda run: [new("a"), new("a")]).value == [1, 2]


# -- objects as arguments


def bill(fields: dict[str, Any], **methods: Any) -> Any:
    """A class of the project, as it is after an edit."""
    made = dataclasses.make_dataclass("Bill", [(name, Any, value) for name, value in fields.items()], namespace=methods)
    made.__module__ = __name__
    return made


def test_an_edited_class_of_an_argument_is_no_other_call() -> None:
    pay = make("bill")
    old, new = bill({"id": 0}), bill({"id": 0}, total=lambda self: self.id)
    once(lambda run: pay(old(7)), lambda run: pay(new(7)))


def test_an_edited_method_of_the_object_that_performs_it_is_no_other_call(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        class Bank:
            def __init__(self, url):
                self.url = url

            def fee(self):
                return 1

            @checkpointed(effect="once")
            def pay(self, invoice):
                print("PAID", invoice)
                return self.fee()

        with checkpoint_scope("run"):
            print(Bank("x").pay("a"))
    """
    assert script(source).lines == ["PAID a", "1"]
    assert script(source.replace("return 1", "return 2")).lines == ["1"]
    other = script(source.replace("self.url = url", "self.url, self.retries = url, 3"), expect=1)
    assert other.lines == []
    assert "UnknownOutcome: Bank.pay" in other.err
    assert script(source.replace('Bank("x")', 'Bank("y")')).lines == ["PAID a", "1"]


def test_a_field_added_to_the_class_of_an_argument_is_asked_about() -> None:
    pay = make("bill")
    old, new = bill({"id": 0}), bill({"id": 0, "currency": "EUR"})
    asked(lambda run: pay(old(7)), lambda run: pay(new(7)))


def test_other_objects_of_an_edited_class_are_other_calls() -> None:
    pay = make("bill")
    old, new = bill({"id": 0}), bill({"id": 0, "currency": "EUR"})
    told_apart(lambda run: pay(old(7)), lambda run: pay(new(8)))


# -- the step itself

TWO = """
    from oncemore import checkpoint_scope
    import one, two

    with checkpoint_scope("run"):
        print(one.send(1), two.send(1))
"""
SEND = """
    from oncemore import checkpointed

    @checkpointed(effect="once")
    def send(n):
        print("SENT", NAME)
        return NAME
"""


def module(script: Script, name: str, source: str = SEND, word: str = "") -> None:
    script.write(source.replace("NAME", repr(word or name)), f"{name}.py")


def test_steps_of_one_name_in_two_modules_have_their_own_records(script: Script) -> None:
    module(script, "one")
    module(script, "two")
    assert script(TWO).lines == ["SENT one", "SENT two", "one two"]
    for name in ("one", "two"):
        module(script, name, SEND.replace("return NAME", "return NAME + '!'"), name)
    again = script(TWO)
    assert again.lines == ["one two"]
    late = script(TWO.replace("import one, two", "import two").replace("one.send(1), two.send(1)", "two.send(1)"))
    assert late.lines == ["two"]


def test_a_step_called_before_its_namesake_is_imported_has_its_own_record(script: Script) -> None:
    module(script, "one")
    module(script, "two")
    only = TWO.replace("import one, two", "import one").replace(", two.send(1)", "")
    assert script(only).lines == ["SENT one", "one"]
    only = TWO.replace("import one, two", "import two").replace("one.send(1), ", "")
    assert script(only).lines == ["SENT two", "two"]


def test_a_step_moved_to_another_module_is_the_same_step(script: Script) -> None:
    module(script, "one")
    module(script, "two", "")
    only = TWO.replace(", two.send(1)", "")
    assert script(only).lines == ["SENT one", "one"]
    module(script, "one", "")
    module(script, "two", SEND, "one")
    moved = script(only.replace("one.send", "two.send"))
    assert moved.lines == ["one"]
    assert "is not performed again" in moved.err
    (script.folder / "one.py").unlink()
    edited = only.replace("one.send", "two.send").replace("import one, two", "import two")
    assert script(edited).lines == ["one"]


def test_a_script_under_another_name_is_the_same_script(script: Script) -> None:
    source = (
        SEND.replace("NAME", "'it'")
        + "\n    from oncemore import checkpoint_scope\n"
        + ("    with checkpoint_scope('run'):\n        print(send(1))\n")
    )
    assert script(source).lines == ["SENT it", "it"]
    assert script(source, name="renamed.py").lines == ["it"]
    assert script("import script", name="other.py").lines == ["it"]


RENAMED = """
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed(effect="once")
    def send(n):
        print("SENT", n)
        return n

    with checkpoint_scope("run") as run:
        print([send(n) for n in range(2)])
"""


def test_a_step_renamed_is_the_same_step(script: Script) -> None:
    assert script(RENAMED).lines == ["SENT 0", "SENT 1", "[0, 1]"]
    renamed = RENAMED.replace("send(", "post(")
    assert script(renamed).lines == ["[0, 1]"]
    assert script(renamed.replace("range(2)", "(0, 2)")).lines == ["SENT 2", "[0, 2]"]
    assert script(renamed.replace("range(2)", "range(3)")).lines == ["[0, 1, 2]"]


def test_a_step_renamed_and_edited_is_asked_about_until_it_is_named(script: Script) -> None:
    script(RENAMED)
    renamed = RENAMED.replace("send(", "post(").replace("return n", "return n + 1")
    unknown = script(renamed, expect=1)
    assert unknown.lines == []
    assert "that step no longer exists; if post is that step, give it the option name='send'" in unknown.err
    assert script(renamed.replace('effect="once"', 'effect="once", name="send"')).lines == ["[0, 1]"]


def test_a_step_that_is_another_one_is_asked_about_once(script: Script) -> None:
    script(RENAMED)
    other = RENAMED.replace("send(", "archive(").replace("return n", "return -n")
    script(other, expect=1)
    history = History(script.folder / ".oncemore")
    (question,) = history.unknown_outcomes("run")
    history.resolve("run", question.key, happened=False)
    assert script(other).lines == ["SENT 0", "SENT 1", "[0, -1]"]


def test_a_step_beside_another_with_the_same_arguments_is_never_asked_about() -> None:
    def body(run: Run) -> Any:
        return [make("n", name=name)(1) for name in ("send", "archive")]

    assert scope(body).value == [1, 2]
    assert scope(lambda run: make("n", name="log")(1)).value == 3


def sender(url: str) -> Any:
    @checkpointed(effect="once", code="version", version=url)
    def send(n: int) -> str:
        PERFORMED.append(url)
        return url

    return send


def test_steps_made_by_one_function_have_their_own_records() -> None:
    def body(run: Run) -> Any:
        return [sender(url)(1) for url in ("a", "b")]

    assert scope(body).value == ["a", "b"]
    scope(lambda run: run.rollback(before=next(iter(run.checkpoints)).id))
    with pytest.warns(CheckpointWarning, match="is not performed again"):
        assert scope(body).value == ["a", "b"]
    assert PERFORMED == ["a", "b"]


def test_a_step_made_with_another_value_is_asked_about(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed

        def sender(url):
            @checkpointed(effect="once")
            def send(n):
                print("SENT", url)
                return url
            return send

        with checkpoint_scope("run"):
            print([sender(url)(1) for url in ("a", "b")])
    """
    assert script(source).lines == ["SENT a", "SENT b", "['a', 'b']"]
    edited = script(source.replace('("a", "b")', '("a", "b2")'), expect=1)
    assert "UnknownOutcome" in edited.err
    assert edited.lines == []
    more = script(source.replace('("a", "b")', '("a", "b", "c")'))
    assert more.lines == ["SENT c", "['a', 'b', 'c']"]


def test_a_cell_that_makes_the_step_anew_does_not_perform_it_again() -> None:
    assert scope(lambda run: sender("a")(1)).value == "a"
    with pytest.warns(CheckpointWarning, match="is not performed again"):
        assert scope(lambda run: sender("b")(1)).value == "a"
    assert PERFORMED == ["a"]


def test_what_the_only_step_was_made_with_may_be_another_in_every_process(script: Script) -> None:
    source = """
        import os
        from oncemore import checkpoint_scope, checkpointed, idempotency_key

        def main(process):
            @checkpointed(effect="once")
            def send(n):
                print("SENT", n)
                return [process, idempotency_key()]

            @checkpointed
            def key(n):
                return process and idempotency_key()

            with checkpoint_scope("run"):
                print(send(1)[1], key(1))

        main(os.getpid())
    """
    first, second = script(source), script(source)
    assert second.lines == first.lines[1:]
    assert "is not performed again" in second.err


# -- asking


def test_a_dry_look_says_that_it_may_have_been_performed() -> None:
    old, new = make("invoice, amount"), make("invoice")
    scope(lambda run: old("a", 5))
    reason = scope(lambda run: new.explain("a").reason).value
    assert "may have been performed: pay(invoice='a', amount=5) was performed on 20" in reason


def test_a_doubtful_call_is_performed_if_the_user_asks_for_it() -> None:
    old, new = make("invoice, amount"), make("invoice")
    scope(lambda run: old("a", 5))
    assert scope(lambda run: (new.refresh("a"), new("a"))).value == (2, 2)


def test_what_happened_can_be_said_with_another_result() -> None:
    old, new = make("invoice, amount"), make("invoice")
    scope(lambda run: old("a", 5))
    with pytest.raises(UnknownOutcome) as caught:
        scope(lambda run: new("a"))
    scope(lambda run: run.resolve(caught.value.key, happened=True, result="by hand"))
    assert scope(lambda run: new("a")).value == "by hand"


def test_forgetting_an_edited_call_forgets_what_was_performed_before_the_edit() -> None:
    old, new = make("invoice"), make("bill, currency='EUR'")
    scope(lambda run: old("a"))
    assert scope(lambda run: (new.forget("a"), new("a"))).value == (True, 2)


def test_cut_off_before_the_edit_it_is_unknown_after_it() -> None:
    def stop(invoice: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scope(lambda run: step(stop)("a"))
    new = make("bill, currency='EUR'")
    with pytest.raises(UnknownOutcome, match="never completed") as caught:
        scope(lambda run: new("a"))
    scope(lambda run: run.resolve(caught.value.key, happened=False))
    assert scope(lambda run: new("a")).value == 1


def test_a_fork_and_an_import_recognise_edited_calls() -> None:
    scope(lambda run: make("invoice")("a"), store="store")
    history = History("store")
    history.fork("run", "child")
    history.export_json("json")
    History("there").import_json("json")
    for run_id, store in (("child", "store"), ("run", "there")):
        with pytest.warns(CheckpointWarning, match="is not performed again"):
            assert scope(lambda run: make("bill, currency='EUR'")("a"), run_id, store=store).value == 1


# -- keys for APIs


def test_a_key_stays_the_same_when_a_parameter_with_a_default_is_added() -> None:
    def first(invoice: str) -> str:
        return idempotency_key()

    def second(invoice: str, currency: str = "EUR") -> str:
        return idempotency_key()

    def call(function: Any, *args: Any) -> Any:
        return scope(lambda run: checkpointed(name="pay", version=function.__name__)(function)(*args)).value

    assert call(first, "a") == call(second, "a") != call(second, "a", "USD")


def test_namesakes_in_two_modules_have_keys_of_their_own(script: Script) -> None:
    source = SEND.replace('effect="once"', "").replace('print("SENT", NAME)', "from oncemore import idempotency_key")
    for name in ("one", "two"):
        script.write(source.replace("return NAME", "return idempotency_key()"), f"{name}.py")
    (line,) = script(TWO).lines
    first, second = line.split()
    assert first != second
