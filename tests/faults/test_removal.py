"""Kept means removable: what was forgotten or deleted is in no byte of the store's files any more."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from oncemore import File, History, Run, checkpoint_scope, checkpointed, memoized
from oncemore.stores import open_store
from oncemore.stores.disk import DiskStore
from tests.processes import Script

SIZES = {"in its row": 40, "on several pages": 20_000, "in a file": 100_000}


def marker(size: int) -> bytes:
    """Bytes that no compressor can shorten, the same for the same size."""
    return random.Random(size).randbytes(size)


@checkpointed
def secret(size: int) -> bytes:
    return marker(size)


@checkpointed
def others(n: int) -> str:
    return "x" * 300


@checkpointed
def items(size: int):  # type: ignore[no-untyped-def]
    yield marker(size)
    yield "end"


@checkpointed
def written(size: int) -> File:
    Path("written.bin").write_bytes(marker(size))
    return File("written.bin")


@checkpointed(effect="once")
def once(size: int) -> bytes:
    return marker(size)


@memoized
def shared(size: int) -> bytes:
    return marker(size)


def found(size: int) -> list[str]:
    """The files of the store that have some of the marker in them."""
    piece = marker(size)[-24:]
    return sorted(path.name for path in Path("store").rglob("*") if path.is_file() and piece in path.read_bytes())


def run(work: Callable[[], object], run_id: str = "r") -> Run:
    with checkpoint_scope(run_id, store="store") as opened:
        for n in range(30):
            others(n)
        work()
        for n in range(30, 60):
            others(n)
    return opened


STEPS: dict[str, tuple[Callable[[int], object], Callable[[int], bool]]] = {
    "a result": (lambda size: secret(size), lambda size: secret.forget(size)),
    "items": (lambda size: list(items(size)), lambda size: items.forget(size)),
    "a file": (lambda size: written(size), lambda size: written.forget(size)),
    "once": (lambda size: once(size), lambda size: once.forget(size)),
    "shared": (lambda size: shared(size), lambda size: shared.forget(size)),
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("kind", STEPS)
def test_what_was_forgotten_is_in_no_file_once_the_store_is_closed(kind: str, size: int) -> None:
    make, forget = STEPS[kind]
    run(lambda: make(size))
    open_store("store").close()
    assert found(size)
    with checkpoint_scope("r", store="store"):
        assert forget(size)
    open_store("store").close()
    assert found(size) == []


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_what_was_forgotten_is_in_no_file_after_compaction_though_the_store_is_open(size: int) -> None:
    run(lambda: secret(size))
    store = open_store("store")
    assert isinstance(store, DiskStore)
    with checkpoint_scope("r", store="store"):
        assert secret.forget(size)
        store.shrink()
        assert found(size) == []


OPEN = """
    import sys
    from oncemore import open_store

    store = open_store("store")
    print(len(list(store.scan(""))) > 0, flush=True)
    sys.stdin.readline()
    store.close()
"""


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_what_was_forgotten_while_another_process_has_the_store_open_is_gone_once_it_closes(
    script: Script, size: int
) -> None:
    run(lambda: secret(size))
    other = script.start(OPEN)
    other.wait_for("True")
    with checkpoint_scope("r", store="store"):
        assert secret.forget(size)
    open_store("store").close()
    other.finish(0)
    assert found(size) == []


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("kind", [kind for kind in STEPS if kind != "shared"])
def test_what_a_deleted_run_kept_is_in_no_file(kind: str, size: int) -> None:
    run(lambda: STEPS[kind][0](size))
    run(lambda: None, "another")
    assert found(size)
    History("store").delete("r")
    assert found(size) == []


def test_what_a_rollback_put_aside_is_forgotten_too() -> None:
    size = SIZES["on several pages"]
    for to in ("secret", "others"):
        run(lambda: secret(size))
        History("store").rollback("r", to=to if to == "secret" else History("store").run("r").checkpoints[3].id)
        with checkpoint_scope("r", store="store"):
            secret.forget(size)
        open_store("store").close()
        assert found(size) == [], to


def test_a_value_that_was_replaced_is_in_no_file() -> None:
    size = SIZES["on several pages"]
    chosen = [marker(size)]

    @checkpointed(code="version", version="1", ignore=["values"])
    def take(values: list[bytes]) -> bytes:
        return values[0]

    with checkpoint_scope("r", store="store"):
        take(chosen)
        take.refresh([b"short"])
    open_store("store").close()
    assert found(size) == []


def test_a_fork_keeps_what_it_shares_until_both_have_forgotten_it() -> None:
    size = SIZES["on several pages"]
    run(lambda: secret(size))
    History("store").fork("r", "child")
    with checkpoint_scope("r", store="store"):
        assert secret.forget(size)
    with checkpoint_scope("child", store="store") as child:
        assert secret(size) == marker(size)
    assert not child.ran
    History("store").delete("child")
    History("store").delete("r")
    assert found(size) == []
