"""Nothing is said to be gone that another process has replaced, forgotten or computed meanwhile; strict runs do not fail by it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from oncemore import CheckpointWarning, File, IntegrityError, checkpoint_scope, checkpointed
from oncemore.stores import open_store
from tests.unit.pasts import keys, ran

LARGE = 60_000


@checkpointed
def small(n: int) -> int:
    return n


@checkpointed
def large(n: int) -> bytes:
    return random.Random(n).randbytes(LARGE)


@checkpointed
def stream(n: int):  # type: ignore[no-untyped-def]
    for item in range(n):
        yield random.Random(item).randbytes(LARGE)


@checkpointed
def written(n: int) -> File:
    Path("written.bin").write_bytes(random.Random(n).randbytes(LARGE))
    return File("written.bin")


def everything() -> None:
    with checkpoint_scope("r", store="store"):
        for n in range(5):
            small(n)
        large(1)
        list(stream(2))
        written(3)


def elsewhere(work: Callable[[], object]) -> None:
    """Do it in a scope of its own that knows nothing of the others: as another process would."""

    def run() -> None:
        with checkpoint_scope("r", store="store"):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def warm() -> None:
    """Let a scope fetch all that is small."""
    for n in range(3):
        small(n)


def test_a_result_that_another_process_forgets_is_not_said_to_be_gone() -> None:
    everything()
    with checkpoint_scope("r", store="store", strict=True) as run:
        warm()
        elsewhere(lambda: large.forget(1))
        assert large(1) == random.Random(1).randbytes(LARGE)
    assert ran(run) == ["large"]


def test_a_generator_that_another_process_refreshes_is_not_said_to_be_gone() -> None:
    everything()
    with checkpoint_scope("r", store="store", strict=True) as run:
        warm()
        elsewhere(lambda: list(stream.refresh(2)))
        assert [len(item) for item in stream(2)] == [LARGE] * 2
    assert ran(run) == []


def test_a_file_whose_step_another_process_forgets_is_not_said_to_be_gone() -> None:
    everything()
    with checkpoint_scope("r", store="store", strict=True) as run:
        warm()
        elsewhere(lambda: written.forget(3))
        Path("written.bin").unlink()
        assert written(3).path.stat().st_size == LARGE
    assert ran(run) == ["written"]


def lose(step: str) -> None:
    """Remove the entry of a node from the store behind everybody's back."""
    store = open_store("store")
    (key,) = [key for key in keys("store", "node/") if f"/{step}/" in key and "@" not in key]
    store.commit(delete=[key])


def test_a_lost_result_that_another_process_computes_again_is_not_said_to_be_gone() -> None:
    everything()
    lose("large")
    with checkpoint_scope("r", store="store", strict=True) as run:
        warm()
        with pytest.warns(CheckpointWarning, match="gone from the store"):
            elsewhere(lambda: large(1))
        assert large(1) == random.Random(1).randbytes(LARGE)
    assert ran(run) == []


def test_a_result_that_another_process_adds_beside_a_lost_one_is_not_said_to_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything()
    lose("large")
    store = open_store("store")
    scan = store.scan
    waiting = [True]

    def racing(prefix: str, **options: object):  # type: ignore[no-untyped-def]
        yield from scan(prefix, **options)  # type: ignore[arg-type]
        if prefix.startswith("node/") and threading.current_thread() is threading.main_thread() and waiting:
            waiting.clear()
            elsewhere(lambda: small(77))

    with checkpoint_scope("r", store="store", strict=True) as run:
        monkeypatch.setattr(store, "scan", racing)
        warm()
        assert not waiting
        assert small(77) == 77
    assert ran(run) == []


def test_what_is_gone_is_still_said_to_be_gone() -> None:
    everything()
    lose("large")
    with checkpoint_scope("r", store="store", strict=True):
        warm()
        with pytest.raises(IntegrityError, match="gone from the store"):
            large(1)
