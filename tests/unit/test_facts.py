"""Our dataclasses are dataclasses in all that can be seen, though nothing of them is made before it is used."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from oncemore import events, facts
from oncemore.events import Event, StepCompleted
from tests.processes import Script


def make(kind: Any) -> dict[str, Any]:
    """The same classes, by `facts` or by `dataclasses`."""

    @kind.dataclass
    class Plain:
        first: int
        second: str = "b"
        many: list[int] = kind.field(default_factory=list)

        def twice(self) -> int:
            return 2 * self.first

    @kind.dataclass(frozen=True)
    class Frozen:
        first: Any
        hidden: int = kind.field(default=1, repr=False)
        unequal: int = kind.field(default=2, compare=False)

    @kind.dataclass(frozen=True, kw_only=True)
    class Base:
        known: ClassVar[int] = 3
        when: float = kind.field(default_factory=lambda: 4.0)
        number: int = 0

    @kind.dataclass(frozen=True, kw_only=True)
    class Heir(Base):
        name: str
        number: int = 5

    @kind.dataclass
    class Later:
        first: int
        total: int = kind.field(init=False)

        def __post_init__(self) -> None:
            self.total = self.first + 1

    @kind.dataclass
    class Empty:
        """Nothing."""

    return {each.__name__: each for each in (Plain, Frozen, Base, Heir, Later, Empty)}


def tried(work: Callable[[], Any]) -> str:
    try:
        return repr(work())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def raised(cls: Any, *args: Any, **kwargs: Any) -> str:
    """Which error a wrong call is; the texts name other things in every Python."""
    try:
        cls(*args, **kwargs)
    except TypeError as error:
        return type(error).__name__
    return "none"


def assign(obj: Any, name: str) -> Any:
    setattr(obj, name, 9)
    return obj


def heir(cls: Any, **options: Any) -> Any:
    return dataclasses.make_dataclass("Mine", ["own"], bases=(cls,), **options)


def fields(cls: Any) -> list[tuple[Any, ...]]:
    found = dataclasses.fields(cls)
    return [
        (f.name, f.type, f.init, f.repr, f.compare, f.kw_only, f.default is dataclasses.MISSING)
        + ((f.default_factory is dataclasses.MISSING),)
        for f in found
    ]


LOOKS: dict[str, Callable[[Any], Any]] = {
    "made by place": lambda c: c.Plain(1, "x", [2]),
    "made by name": lambda c: c.Plain(first=1, many=[2]),
    "defaults": lambda c: (c.Plain(1), c.Plain(1).many is c.Plain(1).many, c.Heir(name="n"), c.Empty()),
    "shown": lambda c: (c.Frozen(1), c.Frozen([c.Frozen(2)]), c.Later(1)),
    "too few": lambda c: (
        raised(c.Plain),
        raised(c.Heir),
        raised(c.Heir, name="n", other=1),
        raised(c.Plain, 1, 2, 3, 4),
    ),
    "by name only": lambda c: raised(c.Heir, 1),
    "not given": lambda c: raised(c.Later, 1, 2),
    "equal": lambda c: (
        c.Plain(1) == c.Plain(1),
        c.Plain(1) == c.Plain(2),
        c.Plain(1) == (1, "b", []),
        c.Plain(1) != 1,
    ),
    "equal but for": lambda c: (c.Frozen(1, 1, 3) == c.Frozen(1, 1, 4), c.Frozen(1, 1) == c.Frozen(1, 2)),
    "of other classes": lambda c: (c.Base() == c.Heir(name="n"), c.Heir(name="n") == c.Heir(name="n")),
    "hash": lambda c: (hash(c.Frozen(1, 1, 3)) == hash(c.Frozen(1, 1, 4)), len({c.Frozen(1), c.Frozen(1)})),
    "no hash": lambda c: hash(c.Plain(1)),
    "no hash inside": lambda c: hash(c.Frozen([])),
    "assigned": lambda c: assign(c.Plain(1), "first"),
    "assigned though frozen": lambda c: assign(c.Frozen(1), "first"),
    "deleted though frozen": lambda c: delattr(c.Frozen(1), "first"),
    "a frozen error": lambda c: issubclass(dataclasses.FrozenInstanceError, AttributeError),
    "fields": lambda c: [fields(cls) for cls in vars(c).values()],
    "fields of an object": lambda c: fields(c.Heir(name="n")),
    "is a dataclass": lambda c: [dataclasses.is_dataclass(cls) for cls in vars(c).values()],
    "replaced": lambda c: (dataclasses.replace(c.Frozen(1), first=2), dataclasses.replace(c.Heir(name="n"), number=7)),
    "replaced wrongly": lambda c: dataclasses.replace(c.Frozen(1), second=2),
    "as a dict": lambda c: dataclasses.asdict(c.Frozen({"a": [c.Frozen(1)]})),
    "as a tuple": lambda c: dataclasses.astuple(c.Heir(name="n")),
    "matched": lambda c: [cls.__match_args__ for cls in vars(c).values()],
    "parameters": lambda c: [
        (cls.__dataclass_params__.frozen, cls.__dataclass_params__.eq) for cls in vars(c).values()
    ],
    "signature": lambda c: [list(inspect.signature(cls).parameters) for cls in vars(c).values()],
    "kinds of parameters": lambda c: [p.kind for p in inspect.signature(c.Heir).parameters.values()],
    "annotations": lambda c: (c.Heir.__init__.__annotations__, c.Heir.__init__.__qualname__.rpartition(".")[2]),
    "attributes": lambda c: (vars(c.Heir(name="n")), c.Plain.second, hasattr(c.Plain, "many"), c.Plain(2).twice()),
    "copied": lambda c: (copy.copy(c.Frozen(1)), copy.deepcopy(c.Heir(name="n"))),
    "in itself": lambda c: (lambda found: (found.many.append(found), found)[1])(c.Plain(1)),
    "inherited by a dataclass": lambda c: heir(c.Frozen, frozen=True, kw_only=True)(1, own=2),
    "inherited by one that is not frozen": lambda c: heir(c.Frozen),
    "inherited plainly": lambda c: type("Mine", (c.Frozen,), {})(1),
}


@pytest.mark.parametrize("look", LOOKS)
def test_they_look_like_those_of_dataclasses(look: str) -> None:
    ours, theirs = (SimpleNamespace(**make(kind)) for kind in (facts, dataclasses))
    assert tried(lambda: LOOKS[look](ours)) == tried(lambda: LOOKS[look](theirs))


def test_our_own_replace_and_asdict_do_as_theirs() -> None:
    fact = StepCompleted(
        step="s", node="n", fingerprint="f", reason="r", seconds=1.0, raw_bytes=1, stored_bytes=1, entry="e"
    )
    assert facts.replace(fact, entry="x") == dataclasses.replace(fact, entry="x")
    assert facts.asdict(fact) == dataclasses.asdict(fact)
    assert facts.names(StepCompleted) == [each.name for each in dataclasses.fields(StepCompleted)]
    with pytest.raises(TypeError):
        facts.replace(fact, nothing=1)


@pytest.mark.parametrize("kind", sorted(Event.kinds))
def test_an_event_is_a_frozen_dataclass_that_can_be_pickled(kind: str) -> None:
    cls = Event.kinds[kind]
    required = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    fact = cls(**dict.fromkeys(required, "x"))
    assert pickle.loads(pickle.dumps(fact)) == fact
    assert dataclasses.replace(fact, seq=7).seq == 7
    assert repr(fact).startswith(f"{kind}(time=")
    with pytest.raises(dataclasses.FrozenInstanceError):
        fact.seq = 1  # type: ignore[misc]


def test_a_class_that_is_not_used_is_not_made(script: Script) -> None:
    done = script("""
        import sys
        from oncemore.events import Event, RunFinished
        assert "__init__" in vars(RunFinished) and type(vars(RunFinished)["__init__"]).__name__ == "_Init"
        RunFinished()
        print(type(vars(RunFinished)["__init__"]).__name__, type(vars(Event)["__init__"]).__name__)
        import dataclasses
        print([f.name for f in dataclasses.fields(RunFinished)])
    """)
    assert done.lines == ["function _Init", "['time', 'lane', 'seq']"]


@pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace came with 3.13")
def test_copy_can_replace() -> None:
    assert copy.replace(events.RunFailed(error="a", time=1.0), error="b").error == "b"  # type: ignore[attr-defined]


def test_ctrl_c_that_is_caught_while_a_class_is_finished_does_not_end_the_program(script: Script) -> None:
    """Python kills a program that ends after Ctrl-C hit what `exec` or `eval` made of a text, though it was caught."""
    done = script("""
        import signal
        from oncemore.facts import dataclass
        from oncemore.fingerprint.binding import Binder

        signal.signal(signal.SIGALRM, signal.default_int_handler)
        made = {"<fields>", "<parameters>", "<string>"}  # what came from a text
        for number in range(20_000):
            kind = dataclass(type("Kind", (), {"__annotations__": {"one": "int", "two": "int"}}))
            inside = set()
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + number % 100 * 3e-6)
                kind(1, 2)
                Binder(lambda one, two=2, *three: None)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt as error:
                trace = error.__traceback__
                while trace is not None:
                    code = trace.tb_frame.f_code
                    inside.add(code.co_filename if code.co_name == "<module>" else "")
                    trace = trace.tb_next
            if inside & made:
                break  # the next time would make up for it
        print("ended", bool(inside & made))
    """)
    assert (done.code, done.lines) == (0, ["ended True"])
