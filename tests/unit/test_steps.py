"""What can be decorated, what the decorated function still is, and what can be asked of it."""

from __future__ import annotations

import abc
import asyncio
import copy
import dataclasses
import doctest
import functools
import inspect
import os
import pickle
import pydoc
import traceback
import types
import typing
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import pytest

import oncemore
from oncemore import NotRecorded, Step, UsageError, checkpoint_scope, checkpointed
from tests.processes import Script

Ran = Callable[[], "list[str]"]


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Ran:
    """What was printed since it was last asked: every step here prints when its body runs."""
    return lambda: capsys.readouterr().out.split()


@checkpointed
def double(x: int, *, by: int = 2) -> int:
    """Twice as much."""
    print("double")
    return x * by


@checkpointed()
def triple(x: int) -> int:
    print("triple")
    return x * 3


@checkpointed
async def later(x: int) -> int:
    """Some time."""
    print("later")
    await asyncio.sleep(0)
    return x + 1


class Shop:
    def __init__(self, rate: int = 1) -> None:
        self.rate = rate

    @checkpointed
    def price(self, x: int) -> int:
        """What it costs."""
        print("price")
        return x * self.rate

    @checkpointed
    async def delivery(self, x: int) -> int:
        print("delivery")
        return x * self.rate

    @checkpointed
    @classmethod
    def step_of_classmethod(cls, x: int) -> tuple[str, int]:
        print("step_of_classmethod")
        return cls.__name__, x

    @classmethod
    @checkpointed
    def classmethod_of_step(cls, x: int) -> tuple[str, int]:
        print("classmethod_of_step")
        return cls.__name__, x

    @checkpointed
    @staticmethod
    def step_of_staticmethod(x: int) -> int:
        print("step_of_staticmethod")
        return x

    @staticmethod
    @checkpointed
    def staticmethod_of_step(x: int) -> int:
        print("staticmethod_of_step")
        return x


class Branch(Shop):
    pass


# --- a second run does not repeat what is done ----------------------------------------------------------------------


def test_a_script_that_is_run_again_skips_what_is_done(script: Script) -> None:
    source = """
        import asyncio, functools
        from oncemore import checkpointed, checkpoint_scope

        def plain(x): print("ran plain"); return x
        made = checkpointed(functools.partial(plain, 3))
        short = checkpointed(lambda x: print("ran lambda") or x + 10)

        @checkpointed
        def load(x):
            print("ran load")
            return x * 2

        @checkpointed
        async def label(x):
            print("ran label")
            return -x

        class Model:
            def __init__(self, rate): self.rate = rate
            @checkpointed
            def fit(self, x): print("ran fit"); return x * self.rate
            @checkpointed
            @classmethod
            def made(cls, x): print("ran made"); return x
            @classmethod
            @checkpointed
            def named(cls, x): print("ran named"); return x
            @checkpointed
            @staticmethod
            def check(x): print("ran check"); return x
            @staticmethod
            @checkpointed
            def clean(x): print("ran clean"); return x

        def main():
            @checkpointed
            def nested(x): print("ran nested"); return x
            return nested(8)

        with checkpoint_scope("all"):
            model = Model(5)
            print("=", load(1), asyncio.run(label(2)), model.fit(3), Model.made(4), model.named(5), Model.check(6),
                  model.clean(7), main(), made(), short(9))
    """
    first, second = script(source), script(source)
    assert second.lines == [first.lines[-1]] == ["= 2 -2 15 4 5 6 7 8 3 19"]
    assert sorted(first.lines[:-1]) == sorted(
        f"ran {name}" for name in "load label fit made named check clean nested plain lambda".split()
    )


def test_a_second_scope_of_the_run_is_a_second_run(ran: Ran) -> None:
    for expected in (["double", "triple"], []):
        with checkpoint_scope("again"):
            assert (double(4), triple(4)) == (8, 12)
        assert ran() == expected


def test_another_run_starts_from_nothing(ran: Ran) -> None:
    for run_id in ("one", "two"):
        with checkpoint_scope(run_id):
            double(1)
        assert ran() == ["double"]


def test_outside_a_scope_the_function_just_runs(ran: Ran) -> None:
    shop = Shop(3)
    assert [double(1), double(1), shop.price(2), asyncio.run(later(1))] == [2, 2, 6, 2]
    assert Branch.step_of_classmethod(1) == Branch().step_of_classmethod(1) == ("Branch", 1)
    assert Branch.classmethod_of_step(1) == Branch().classmethod_of_step(1) == ("Branch", 1)
    assert Shop.step_of_staticmethod(1) == shop.step_of_staticmethod(1) == 1
    assert Shop.staticmethod_of_step(1) == shop.staticmethod_of_step(1) == 1
    assert len(ran()) == 12


def test_outside_a_scope_nothing_is_written(tmp_path: Any) -> None:
    double(1)
    assert list(tmp_path.iterdir()) == []


def test_positional_keyword_and_default_are_one_call(ran: Ran) -> None:
    with checkpoint_scope("spelled"):
        assert double(3) == double(x=3) == double(3, by=2) == double(by=2, x=3) == 6
    assert ran() == ["double"]


def test_other_arguments_are_another_call(ran: Ran) -> None:
    with checkpoint_scope("other"):
        assert [double(1), double(1.0), double(True), double(1, by=3)] == [2, 2.0, 2, 3]
    assert ran() == ["double"] * 4


# --- methods --------------------------------------------------------------------------------------------------------


def test_the_instance_counts_as_an_argument(ran: Ran) -> None:
    with checkpoint_scope("method"):
        assert [Shop(2).price(5), Shop(3).price(5), Shop(2).price(5)] == [10, 15, 10]
    assert ran() == ["price", "price"]


def test_a_method_called_through_its_class_is_the_same_call(ran: Ran) -> None:
    with checkpoint_scope("unbound"):
        assert Shop.price(Shop(2), 5) == Shop(2).price(5) == 10
    assert ran() == ["price"]


def test_a_coroutine_method_is_a_step(ran: Ran) -> None:
    async def main() -> list[int]:
        return [await Shop(2).delivery(5), await Shop(2).delivery(5), await Shop(3).delivery(5)]

    with checkpoint_scope("async method"):
        assert asyncio.run(main()) == [10, 10, 15]
    assert ran() == ["delivery", "delivery"]


@pytest.mark.parametrize("name", ["step_of_classmethod", "classmethod_of_step"])
def test_the_class_of_a_classmethod_counts(name: str, ran: Ran) -> None:
    with checkpoint_scope("class"):
        for owner in (Shop, Branch, Branch(), Shop()):
            called = owner if isinstance(owner, type) else type(owner)
            assert getattr(owner, name)(1) == (called.__name__, 1)
    assert ran() == [name] * 2


@pytest.mark.parametrize("name", ["step_of_staticmethod", "staticmethod_of_step"])
def test_a_staticmethod_is_one_step_from_class_and_instance(name: str, ran: Ran) -> None:
    with checkpoint_scope("static"):
        assert [getattr(owner, name)(1) for owner in (Shop, Shop(), Branch)] == [1, 1, 1]
    assert ran() == [name]


def test_a_method_answers_the_questions_without_its_instance() -> None:
    shop = Shop(2)
    with checkpoint_scope("verbs"):
        assert not shop.price.is_done(5)
        shop.price(5)
        assert shop.price.is_done(5)
        assert not Shop(3).price.is_done(5)
        assert shop.price.recall(5) == 10
        assert shop.price.forget(5)
        assert not shop.price.is_done(5)


# --- lambdas, partials, closures ------------------------------------------------------------------------------------


def test_partials_of_one_function_with_other_values_are_told_apart() -> None:
    def minus(a: int, b: int) -> int:
        return a - b

    with checkpoint_scope("partials"):
        two, three = checkpointed(functools.partial(minus, 2)), checkpointed(functools.partial(minus, 3))
        by_name = checkpointed(functools.partial(minus, b=1))
        assert [two(1), three(1), by_name(9)] == [1, 2, 8]


def test_two_lambdas_on_one_line_are_told_apart() -> None:
    with checkpoint_scope("lambdas"):
        add, times = checkpointed(lambda x: x + 1), checkpointed(lambda x: x * 5)
        assert [add(2), times(2), add(2), times(2)] == [3, 10, 3, 10]


def test_closures_of_one_factory_are_told_apart() -> None:
    def factory(rate: int) -> Callable[[int], int]:
        return checkpointed(lambda x: x * rate)

    with checkpoint_scope("closures"):
        assert [factory(2)(1), factory(3)(1), factory(2)(1)] == [2, 3, 2]


def test_a_partial_of_a_coroutine_function_is_awaited(ran: Ran) -> None:
    step = checkpointed(functools.partial(later.__wrapped__, 4))
    for _ in range(2):
        with checkpoint_scope("async partial"):
            assert asyncio.run(step()) == 5
    assert ran() == ["later"]


def test_a_wrapper_that_makes_a_coroutine_a_plain_function_stays_plain(ran: Ran) -> None:
    def at_once(function: Any) -> Any:
        return functools.wraps(function)(lambda *args: asyncio.run(function(*args)))

    step = checkpointed(at_once(later.__wrapped__))
    for _ in range(2):
        with checkpoint_scope("at once"):
            assert step(4) == 5
    assert ran() == ["later"]


def test_what_is_no_function_is_refused() -> None:
    for wrong in (Shop, 3, "double"):
        with pytest.raises(UsageError, match="for functions"):
            checkpointed(wrong)  # type: ignore[call-overload]


# --- what the function still is -------------------------------------------------------------------------------------


def test_name_docstring_signature_and_module_are_the_functions_own() -> None:
    assert (double.__name__, double.__qualname__, double.__doc__) == ("double", "double", "Twice as much.")
    assert double.__module__ == __name__
    assert inspect.signature(double) == inspect.signature(double.__wrapped__)
    assert str(inspect.signature(double)) == "(x: 'int', *, by: 'int' = 2) -> 'int'"
    assert str(inspect.signature(Shop(1).price)) == "(x: 'int') -> 'int'"
    assert Shop.price.__doc__ == "What it costs."
    assert double.__annotations__ == {"x": "int", "by": "int", "return": "int"}


def test_a_coroutine_function_is_still_one() -> None:
    assert inspect.iscoroutinefunction(later)
    assert inspect.iscoroutinefunction(Shop().delivery)
    assert not inspect.iscoroutinefunction(double)
    assert later.__doc__ == "Some time."


def test_generator_functions_are_still_ones() -> None:
    @checkpointed
    def items() -> Any:
        yield 1

    @checkpointed
    async def later_items() -> Any:
        yield 1

    assert inspect.isgeneratorfunction(items)
    assert inspect.isasyncgenfunction(later_items)


def test_repr_names_the_function() -> None:
    assert repr(double) == f"<step {__name__}.double>"
    assert repr(Shop.price) == repr(Shop(1).price) == f"<step {__name__}.Shop.price>"
    assert repr(Branch.step_of_classmethod) == f"<step {__name__}.Shop.step_of_classmethod>"
    assert repr(checkpointed(functools.partial(double.__wrapped__, 1))) == "<step double>"


def test_help_shows_the_functions_signature_and_docstring() -> None:
    shown = pydoc.plain(pydoc.render_doc(double))
    assert "double(x: 'int', *, by: 'int' = 2) -> 'int'" in shown
    assert "Twice as much." in shown
    assert "price(self, x: 'int') -> 'int'" in pydoc.plain(pydoc.render_doc(Shop))


def test_wrapping_a_step_again_keeps_its_name_and_leads_to_it(ran: Ran) -> None:
    @functools.wraps(double)
    def loud(*args: Any, **kwargs: Any) -> int:
        return double(*args, **kwargs)

    assert (loud.__name__, loud.__doc__, loud.__wrapped__) == ("double", "Twice as much.", double)
    assert loud.__wrapped__ is double
    assert inspect.signature(loud) == inspect.signature(double)
    with checkpoint_scope("wrapped again"):
        assert loud(1) == loud(1) == 2
    assert ran() == ["double"]


def test_a_partial_of_a_step_calls_the_step(ran: Ran) -> None:
    half = functools.partial(double, by=0)
    with checkpoint_scope("partial"):
        assert half(3) == half(3) == 0
    assert ran() == ["double"]


def test_a_parameter_may_be_called_self() -> None:
    @checkpointed
    def named(x: int, **more: Any) -> Any:
        return x, more

    for _ in range(2):
        with checkpoint_scope("self"):
            assert named(1, self=2, args=3) == (1, {"self": 2, "args": 3})  # type: ignore[call-arg]
            assert named.is_done(1, self=2, args=3)  # type: ignore[call-arg]


def test_the_function_itself_is_there_without_checkpoints(ran: Ran) -> None:
    with checkpoint_scope("wrapped"):
        double(1)
        assert double.__wrapped__(1) == 2
    assert ran() == ["double", "double"]
    assert inspect.isfunction(double.__wrapped__)


def test_copying_a_step_gives_the_step_as_copying_a_function_does() -> None:
    assert copy.copy(double) is double
    assert copy.deepcopy({"step": double})["step"] is double


def test_a_step_pickles_to_itself() -> None:
    assert pickle.loads(pickle.dumps(double)) is double
    assert pickle.loads(pickle.dumps(Shop.staticmethod_of_step)) is Shop.staticmethod_of_step


def test_cloudpickle_gives_a_step_back_as_a_step() -> None:
    def made(rate: int) -> Any:
        return checkpointed(version="2")(lambda x: x * rate)

    step = made(3)
    copied = cloudpickle.loads(cloudpickle.dumps(step))
    assert isinstance(copied, Step)
    assert copied(2) == 6
    assert copied.fingerprint(2) == step.fingerprint(2) != made(4).fingerprint(2)
    assert cloudpickle.loads(cloudpickle.dumps(double)) is double


def test_a_step_that_no_module_has_by_name_is_refused_by_plain_pickle() -> None:
    with pytest.raises(UsageError, match=r"<lambda> can only be pickled by cloudpickle"):
        pickle.dumps(checkpointed(lambda x: x))


def test_a_step_of_a_partial_or_a_builtin_can_be_pickled() -> None:
    for step, expected in (
        (checkpointed(functools.partial(_of_int, 1)), "int"),
        (checkpointed(os.getpid), os.getpid()),
    ):
        for pickler in (pickle, cloudpickle):
            copied = pickler.loads(pickler.dumps(step))
            assert isinstance(copied, Step)
            assert copied() == expected


def test_a_bound_step_pickles_with_its_instance() -> None:
    assert pickle.loads(pickle.dumps(Shop(7).price))(2) == 14
    assert pickle.loads(pickle.dumps(Branch.step_of_classmethod))(2) == ("Branch", 2)
    assert pickle.loads(pickle.dumps(Branch.classmethod_of_step))(2) == ("Branch", 2)
    assert pickle.loads(pickle.dumps(Branch.step_of_staticmethod))(2) == 2


def test_a_step_of_a_class_or_static_method_can_be_pickled_by_value(script: Script) -> None:
    done = script("""
        import cloudpickle
        from oncemore import checkpointed

        class Shop:
            @checkpointed
            @classmethod
            def named(cls, x): return cls.__name__, x
            @checkpointed
            @staticmethod
            def checked(x): return -x
            @checkpointed
            def price(self, x): return x + 1

        shop = cloudpickle.loads(cloudpickle.dumps(Shop))
        print(shop.named(1), shop.checked(2), shop().price(3), cloudpickle.loads(cloudpickle.dumps(Shop().price))(4))
    """)
    assert done.out == "('Shop', 1) -2 4 5\n"


def _error_of(work: Callable[[], Any]) -> str:
    with pytest.raises(AttributeError) as error:
        work()
    return str(error.value)


def _refused(work: Callable[[Any], Any], given: Any) -> bool:
    with pytest.raises(TypeError):
        work(given)
    return True


LIKE_ITS_FUNCTION: dict[str, Callable[[Any], Any]] = {
    "name": lambda f: (f.__name__, f.__qualname__, f.__module__, f.__doc__),
    "annotations": lambda f: (f.__annotations__, typing.get_type_hints(f), inspect.get_annotations(f)),
    "code": lambda f: (f.__code__, f.__defaults__, f.__kwdefaults__, f.__closure__, f.__globals__ is globals()),
    "attributes": lambda f: f.__dict__,
    "signature": inspect.signature,
    "full arguments": inspect.getfullargspec,
    "source": lambda f: (inspect.getsource(f), inspect.getsourcelines(f)),
    "documentation": inspect.getdoc,
    "module": inspect.getmodule,
    "kind": lambda f: (inspect.isroutine(f), inspect.iscoroutinefunction(f), inspect.isgeneratorfunction(f)),
    "kind for asyncio": asyncio.iscoroutinefunction,
    "hash": hash,
    "truth": bool,
    "text": str,
    "partial": lambda f: inspect.signature(functools.partial(f, 1)),
    "wraps": lambda f: {k: v for k, v in vars(functools.wraps(f)(lambda: None)).items() if k != "__wrapped__"},
    "no container": lambda f: [_refused(work, f) for work in (len, iter, list)],
    "no such attribute": lambda f: _error_of(lambda: f.nothing),
    "weak reference": lambda f: weakref.ref(f)() is f,
    "doctests": lambda f: [test.docstring for test in doctest.DocTestFinder().find(f, "f")],
    "a default of a dataclass": lambda f: dataclasses.make_dataclass("D", [("f", Any, f)])().f is f,
    "bound": lambda f: (inspect.signature(f.__get__(3)), f.__get__(3).__self__, f.__get__(None, int) is f),
    "a method": lambda f: inspect.signature(types.MethodType(f, 3)),
}


@pytest.mark.parametrize("look", LIKE_ITS_FUNCTION)
def test_a_step_is_seen_as_its_function(look: str) -> None:
    for step in (double, later):
        assert LIKE_ITS_FUNCTION[look](step) == LIKE_ITS_FUNCTION[look](step.__wrapped__)


def test_a_step_taken_from_a_class_is_the_step_itself() -> None:
    assert Shop.price is vars(Shop)["price"]
    assert isinstance(Branch.price, Step)


class Alike(Shop):
    cost = Shop.price  # under another name


def test_a_step_is_bound_whatever_its_name_in_the_class(ran: Ran) -> None:
    assert Alike(3).cost(2) == Alike.cost(Alike(3), 2) == 6


def test_what_is_bound_already_stays_bound() -> None:
    class Other:
        price = Shop(5).price
        named = Branch.step_of_classmethod

    assert (Other().price(2), Other().named(1)) == (10, ("Branch", 1))


def test_other_decorators_take_a_step_for_a_function() -> None:
    class Kinds(abc.ABC):
        @property
        @checkpointed
        def value(self) -> int:
            return 1

        @functools.cached_property
        @checkpointed
        def kept(self) -> int:
            return 2

        @checkpointed
        @abc.abstractmethod
        def one(self) -> int: ...

        @abc.abstractmethod
        @checkpointed
        def other(self) -> int: ...

        @checkpointed
        def add(self, x: int, y: int) -> int:
            return x + y

        more = functools.partialmethod(add, 1)  # type: ignore[arg-type]

    class Real(Kinds):
        def one(self) -> int:
            return 3

        def other(self) -> int:
            return 4

    assert Kinds.__abstractmethods__ == {"one", "other"}
    real = Real()
    assert (real.value, real.kept, real.more(2)) == (1, 2, 3)

    @functools.singledispatch
    def kind(x: object) -> str:
        return "object"

    kind.register(checkpointed(_of_int))
    assert (kind(1), kind("")) == ("int", "object")


def _of_int(x: int) -> str:
    return "int"


def test_a_step_can_be_patched_like_a_function() -> None:
    with mock.patch.object(double, "label", 1, create=True):
        assert double.label == 1  # type: ignore[attr-defined]
    assert not hasattr(double, "label")
    with mock.patch.object(double, "recall", return_value=9):
        assert double.recall(1) == 9
    with pytest.raises(UsageError):
        double.recall(1)
    with mock.patch.object(Shop, "price", autospec=True, return_value=7):
        assert Shop().price(1) == 7


def test_attributes_that_are_set_on_a_step_are_its_functions() -> None:
    step: Any = checkpointed(lambda x: x)
    for name in ("__name__", "__qualname__", "label"):
        setattr(step, name, "mine")
        assert getattr(step, name) == getattr(step.__wrapped__, name) == "mine"
    for name, value in {"__doc__": "mine", "__module__": "mine", "__annotations__": {"x": int}}.items():
        setattr(step, name, value)
        assert getattr(step, name) == value  # wrapt 1 does not hand these on to the function
    del step.label
    assert not hasattr(step.__wrapped__, "label")


def test_attributes_can_be_set_as_on_a_function() -> None:
    step = checkpointed(lambda x: x)
    step.label = "mine"  # type: ignore[attr-defined]
    assert step.__wrapped__.label == "mine"  # type: ignore[attr-defined]


def test_a_step_is_hashable_and_equal_to_itself() -> None:
    assert {double: 1}[double] == 1
    assert double != triple


def test_wrong_arguments_give_the_functions_own_error() -> None:
    with pytest.raises(TypeError) as plain:
        double.__wrapped__(1, 2, 3)  # type: ignore[call-arg]
    with checkpoint_scope("wrong"), pytest.raises(TypeError) as decorated:
        double(1, 2, 3)  # type: ignore[call-arg]
    assert str(plain.value) == str(decorated.value)
    assert not isinstance(decorated.value, oncemore.OncemoreError)


def test_a_function_with_every_kind_of_parameter_is_called_as_written() -> None:
    @checkpointed
    def everything(a: Any, /, b: Any, c: Any = 3, *rest: Any, d: Any, e: Any = 5, **more: Any) -> Any:
        return a, b, c, rest, d, e, more

    for _ in range(2):
        with checkpoint_scope("kinds"):
            assert everything(1, 2, d=4) == (1, 2, 3, (), 4, 5, {})
            assert everything(1, 2, 0, 8, 9, d=4, e=6, f=7) == (1, 2, 0, (8, 9), 4, 6, {"f": 7})
            assert everything(1, b=2, d=4, a=0) == (1, 2, 3, (), 4, 5, {"a": 0})


def test_taking_the_decorators_out_leaves_a_working_script(script: Script) -> None:
    source = """
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed
        def load(x):
            return x * 2
        with checkpoint_scope("plain"):
            print(load(4))
    """
    with_steps = script(source).out
    assert script(source.replace("@checkpointed", "")).out == with_steps == "8\n"


# --- what can be asked of a step ------------------------------------------------------------------------------------


def test_is_done_says_whether_the_call_would_be_skipped(ran: Ran) -> None:
    with checkpoint_scope("done"):
        assert not double.is_done(1)
        double(1)
        assert double.is_done(1)
        assert double.is_done(x=1, by=2)
        assert not double.is_done(2)
    assert ran() == ["double"]


def test_recall_gives_the_result_without_running(ran: Ran) -> None:
    with checkpoint_scope("recall"):
        double(1)
        later_one = later.recall
        with pytest.raises(NotRecorded, match="later"):
            later_one(1)
    ran()
    with checkpoint_scope("recall"):
        assert double.recall(1) == 2
        with pytest.raises(LookupError, match="double") as error:
            double.recall(2)
    assert isinstance(error.value, NotRecorded)
    assert ran() == []


def test_recall_of_a_coroutine_function_gives_the_awaited_value() -> None:
    with checkpoint_scope("recall async"):
        asyncio.run(later(1))
        assert later.recall(1) == 2


def test_forget_makes_the_step_run_again(ran: Ran) -> None:
    with checkpoint_scope("forget"):
        double(1)
        double(2)
        assert double.forget(1)
        assert not double.forget(1)
        assert not double.is_done(1)
        assert double.is_done(2)
        double(1)
    assert ran() == ["double"] * 3


def test_refresh_runs_it_again_and_keeps_the_new_result(ran: Ran) -> None:
    @checkpointed
    def read() -> str:
        print("read")
        with open("value") as file:
            return file.read()

    Path("value").write_text("old")
    with checkpoint_scope("refresh"):
        read()
    Path("value").write_text("new")
    with checkpoint_scope("refresh"), pytest.warns(match="file value has changed"):
        assert read() == "old"
    with checkpoint_scope("refresh"):
        assert read.refresh() == "new"
        assert read() == "new"
    with checkpoint_scope("refresh"):
        assert read() == "new"
    assert ran() == ["read", "read"]


def test_refresh_of_a_coroutine_function_is_awaited(ran: Ran) -> None:
    async def main() -> int:
        await later(1)
        return await later.refresh(1)

    with checkpoint_scope("refresh async"):
        assert asyncio.run(main()) == 2
    assert ran() == ["later", "later"]


def test_refresh_outside_a_scope_just_runs(ran: Ran) -> None:
    assert double.refresh(2) == 4
    assert ran() == ["double"]


def test_questions_about_checkpoints_need_a_scope() -> None:
    for verb in (double.is_done, double.recall, double.forget):
        with pytest.raises(UsageError, match="checkpoint_scope"):
            verb(1)


def test_a_fingerprint_has_named_parts_with_digests() -> None:
    one, other = double.fingerprint(1), double.fingerprint(2)
    assert {"argument `x`", "argument `by`"} <= one.parts.keys()
    assert one.parts["argument `x`"].digest != other.parts["argument `x`"].digest
    assert one.parts["argument `by`"].digest == other.parts["argument `by`"].digest
    assert one.digest != other.digest
    assert one == double.fingerprint(x=1, by=2)


def test_a_fingerprint_names_the_code_behind_the_step() -> None:
    parts = double.fingerprint(1).parts
    code = [part for name, part in parts.items() if not name.startswith("argument")]
    assert any("test_steps.py" in part.where for part in code)


def test_a_step_is_of_a_public_type() -> None:
    assert isinstance(double, Step)
    assert isinstance(later, Step)


# --- what a step does besides returning -----------------------------------------------------------------------------


def test_a_nested_step_is_reused_though_the_outer_one_failed(ran: Ran) -> None:
    @checkpointed
    def outer(fail: str) -> int:
        print("outer")
        value = triple(2)
        with open(fail) as file:
            return value + len(file.read())

    with pytest.raises(FileNotFoundError), checkpoint_scope("nested"):
        outer("there")
    open("there", "w").close()
    with checkpoint_scope("nested"):
        assert outer("there") == 6
    assert ran() == ["outer", "triple", "outer"]


def test_a_recursive_step_keeps_every_level(ran: Ran) -> None:
    @checkpointed
    def factorial(n: int) -> int:
        print(n)
        return 1 if n == 0 else n * factorial(n - 1)

    with checkpoint_scope("recursion"):
        assert factorial(4) == 24
        assert factorial(3) == 6
    assert ran() == ["4", "3", "2", "1", "0"]


# --- tracebacks -----------------------------------------------------------------------------------------------------

OURS = os.path.dirname(oncemore.__file__) + os.sep


def _frames(error: BaseException) -> list[str]:
    """The functions in an error's traceback from the first step on, "ours" for each frame of oncemore."""
    summary = traceback.extract_tb(error.__traceback__)
    names = ["ours" if frame.filename.startswith(OURS) else frame.name for frame in summary]
    return names[names.index("ours") :]


@checkpointed
def failing(error: BaseException) -> None:
    raise error


@checkpointed
def around_failing(error: BaseException) -> None:
    failing(error)


class Failing:
    @checkpointed
    def method(self, error: BaseException) -> None:
        failing(error)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, StopIteration, GeneratorExit])
def test_at_most_two_frames_of_a_traceback_are_ours_for_each_step(kind: type[BaseException]) -> None:
    error = kind("why")
    with checkpoint_scope("tracebacks"):
        for step, expected in {
            failing: ["ours", "failing"],
            failing.refresh: ["ours", "failing"],
            around_failing: ["ours", "around_failing", "ours", "failing"],
            Failing().method: ["ours", "ours", "method", "ours", "failing"],
        }.items():
            with pytest.raises(kind) as caught:
                step(error.with_traceback(None))
            assert caught.value is error
            assert _frames(error) == expected


def test_cause_and_context_of_an_error_pass_through_untouched() -> None:
    @checkpointed
    def with_context() -> None:
        try:
            {}["key"]
        except KeyError:
            raise ValueError("second")

    @checkpointed
    def with_cause() -> None:
        raise ValueError("second") from KeyError("first")

    with checkpoint_scope("causes"):
        for step in (with_context, with_cause):
            with pytest.raises(ValueError, match="second") as plain:
                step.__wrapped__()
            try:
                raise LookupError("around")
            except LookupError as error:
                around = error
                with pytest.raises(ValueError, match="second") as stepped:
                    step()
            for one, other in ((plain.value, stepped.value),):
                assert repr(one.__cause__) == repr(other.__cause__)
                assert one.__suppress_context__ == other.__suppress_context__
            context = stepped.value.__context__
            assert repr(context) == ("KeyError('key')" if step is with_context else repr(around))
            assert "in with_c" in "".join(traceback.format_exception(stepped.value))


def test_an_error_of_ours_keeps_its_traceback_and_says_what_is_wrong() -> None:
    with checkpoint_scope("ours"), pytest.raises(oncemore.FingerprintError, match="no stable identity") as error:
        double(iter({"x"}))  # type: ignore[arg-type]
    frames = traceback.extract_tb(error.value.__traceback__)
    assert frames[-1].filename.startswith(OURS)
    assert len([frame for frame in frames if frame.filename.startswith(OURS)]) > 2


def test_tracebacks_of_coroutines_and_generators_have_one_frame_of_ours_for_each_step() -> None:
    @checkpointed
    async def awaited() -> None:
        raise ValueError("why")

    @checkpointed
    async def around_awaited() -> None:
        await awaited()

    @checkpointed
    def items() -> Any:
        yield 1
        raise ValueError("why")

    @checkpointed
    async def later_items() -> Any:
        yield 1
        raise ValueError("why")

    async def drained() -> list[Any]:
        return [item async for item in later_items()]

    for work, expected in (
        (lambda: asyncio.run(around_awaited()), ["ours", "around_awaited", "ours", "awaited"]),
        (lambda: list(items()), ["ours", "items"]),
        (lambda: asyncio.run(drained()), ["ours", "later_items"]),
    ):
        with checkpoint_scope("awaited tracebacks"), pytest.raises(ValueError, match="why") as error:
            work()
        assert _frames(error.value) == expected
