"""The verbs of steps: they take the arguments of the call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from typing_extensions import assert_type

from oncemore import Explanation, Fingerprint, Result, checkpointed


@checkpointed
def plain(path: str, limit: int = 10) -> list[int]:
    return [len(path)] * limit


@checkpointed
async def awaited(row: str) -> bytes:
    return row.encode()


@checkpointed
def items(count: int) -> Iterator[str]:
    yield from map(str, range(count))


@checkpointed
async def later_items(count: int) -> AsyncIterator[str]:
    yield str(count)


class Model:
    """Steps of every kind."""

    @checkpointed
    def fit(self, rows: list[int]) -> int:
        return len(rows)

    @checkpointed
    async def score(self, row: int) -> float:
        return float(row)

    @checkpointed
    @classmethod
    def load(cls, path: str) -> int:
        return len(path)

    @checkpointed
    @staticmethod
    def clean(row: int) -> str:
        return str(row)


def functions_have_verbs() -> None:
    assert_type(plain.refresh("a"), list[int])
    assert_type(plain.is_done("a"), bool)
    assert_type(plain.recall("a"), list[int])
    assert_type(plain.explain("a"), Explanation)
    assert_type(plain.fingerprint("a"), Fingerprint)
    assert_type(plain.reference("a"), Result)
    assert_type(plain.within("1h")("a", limit=3), list[int])
    assert_type(plain.within("1h").is_done("a", limit=3), bool)
    assert_type(plain.forget("a", limit=3), bool)
    plain.put([1], "a", limit=1)


def bound_steps_have_verbs() -> None:
    model = Model()
    assert_type(model.fit.refresh([1]), int)
    assert_type(model.fit.is_done([1]), bool)
    assert_type(model.fit.recall([1]), int)
    assert_type(model.fit.explain([1]), Explanation)
    assert_type(model.fit.within("1h")([1]), int)
    assert_type(model.fit.forget([1]), bool)
    model.fit.put(3, [1])
    assert_type(Model.fit.recall(model, [1]), int)
    assert_type(Model.load.refresh("a"), int)
    assert_type(model.load.recall("a"), int)
    assert_type(Model.clean.refresh(1), str)
    assert_type(model.clean.within("1h")(1), str)
    assert_type(model.clean.name, str)


async def recall_gives_what_awaiting_gives() -> None:
    assert_type(await awaited.refresh("a"), bytes)
    assert_type(awaited.recall("a"), bytes)
    assert_type(await Model().score.refresh(1), float)
    assert_type(Model().score.recall(1), float)


async def recall_gives_a_generator_of_the_items() -> None:
    assert_type(list(items(2)), list[str])
    assert_type(items.recall(2), Iterator[str])
    async for item in later_items(2):
        assert_type(item, str)
    assert_type(later_items.recall(2), AsyncIterator[str])


def wrong_arguments_are_found() -> None:
    plain.is_done(3)  # type: ignore[arg-type]
    plain.is_done()  # type: ignore[call-arg]
    plain.recall("a", depth=3)  # type: ignore[call-arg]
    plain.recall(3)  # type: ignore[arg-type]
    plain.forget(3)  # type: ignore[arg-type]
    plain.refresh()  # type: ignore[call-arg]
    plain.explain(3)  # type: ignore[arg-type]
    plain.put([1], 3)  # type: ignore[arg-type]
    plain.put([1])  # type: ignore[call-arg]
    plain.within(object())  # type: ignore[arg-type]
    plain.within("1h")(3)  # type: ignore[arg-type]
    Model().fit.recall("rows")  # type: ignore[arg-type]
    Model().fit.forget()  # type: ignore[call-arg]
    Model().fit.refresh("rows")  # type: ignore[arg-type]
    Model().fit.put(3, "rows")  # type: ignore[arg-type]
    Model().fit.explain("rows")  # type: ignore[arg-type]
    Model.load.refresh(3)  # type: ignore[arg-type]
    Model.clean.refresh("row")  # type: ignore[arg-type]
    Model.fit.is_done([1])  # type: ignore[call-arg, arg-type]
