"""Scopes and runs: what they give."""

from __future__ import annotations

from typing_extensions import assert_type

from oncemore import Results, Run, checkpoint_scope, checkpointed, current_run


@checkpointed
def plain(path: str, limit: int = 10) -> list[int]:
    return [len(path)] * limit


@checkpointed
async def awaited(row: str, *, client: object = None) -> bytes:
    return row.encode()


async def scopes_give_their_run() -> None:
    with checkpoint_scope("a", workflow="churn", strict=True) as run:
        assert_type(run, Run)
        assert_type(run.id, str)
        assert_type(current_run(), "Run | None")
    async with checkpoint_scope() as other:
        assert_type(other, Run)


async def maps_give_results() -> None:
    with checkpoint_scope("maps") as run:
        assert_type(run.map(plain, ["a"], [1], concurrency=2), Results)
        assert_type(run.starmap(plain, [("a", 1)], rate="10/s"), Results)
        assert_type(await run.map(awaited, ["a"], client=None, rate="600/min"), Results)
        assert_type(await run.starmap(awaited, [("EUR",)]), Results)


def wrong_arguments_are_found() -> None:
    checkpoint_scope(3)  # type: ignore[arg-type]
    checkpoint_scope("a", "./.oncemore")  # type: ignore[call-arg]
