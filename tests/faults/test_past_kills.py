"""SIGKILL while the past of a run is reshaped: what is left is whole, and doing it again completes it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncemore import History, checkpoint_scope, checkpointed, current_run, fork
from oncemore.history import archive
from oncemore.history import rollback as rollbacks
from oncemore.retention import keep_last
from oncemore.stores.disk import DiskStore

STEPS, EVERY = 30, 5  # of a run, and of its named checkpoints


@checkpointed
def work(n: int) -> int:
    run = current_run()
    assert run is not None
    run.state["last"] = n
    return n * n


@checkpointed
def bulk(n: int) -> bytes:
    return bytes([n]) * 40_000


def whole(store: str, run_id: str = "r") -> int:
    """Run all of it; how many steps were executed."""
    with checkpoint_scope(run_id, store=store) as run:
        for n in range(STEPS):
            assert work(n) == n * n
            if n % EVERY == 0:
                assert bulk(n) == bytes([n]) * 40_000
                run.checkpoint(f"mark-{n}")
        assert run.state["last"] == STEPS - 1
    return sum(run.ran.values())


COMPLETE = STEPS + STEPS // EVERY


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run, its fork, and a bystander; with its secret, since each test has another home."""
    folder = tmp_path_factory.mktemp("template")
    secret, os.environ["ONCEMORE_KEY"] = os.environ.get("ONCEMORE_KEY"), "the same for all"
    try:
        for run_id in ("bystander", "r"):
            assert whole(str(folder / "store"), run_id) == COMPLETE
        History(folder / "store").export(folder / "r.zip", runs=["r"])
        fork(History(folder / "store").run("r"), "child", at="mark-15")
        History(folder / "store").store.close()
    finally:
        os.environ.pop("ONCEMORE_KEY")
        if secret is not None:
            os.environ["ONCEMORE_KEY"] = secret
    return folder


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same secret as the template, and many small transactions instead of few large ones."""
    monkeypatch.setenv("ONCEMORE_KEY", "the same for all")
    monkeypatch.setattr("oncemore.history.prune._BATCH", 8)
    monkeypatch.setattr(rollbacks, "_BATCH", 16)
    monkeypatch.setattr(archive, "_BATCH", 20_000)


def prune(store: str, template: Path) -> None:
    History(store).prune(keep_last(5), runs=["r"])


def delete(store: str, template: Path) -> None:
    History(store).delete("r")


def rollback(store: str, template: Path) -> None:
    History(store).rollback("r", to="mark-10")


def fork_(store: str, template: Path) -> None:
    History(store).fork("r", "second", at="mark-10")


def forget(store: str, template: Path) -> None:
    with checkpoint_scope("r", store=store):
        work.forget(1)
        bulk.forget(10)


def undo(store: str, template: Path) -> None:
    History(store).undo_rollback("r")


def import_(store: str, template: Path) -> None:
    History(store).import_(template / "r.zip")


def readable(store: str, run_id: str) -> None:
    """Everything that is listed can be had."""
    for checkpoint in History(store).run(run_id).checkpoints:
        checkpoint.state()
        if checkpoint.step:
            checkpoint.result()
    numbers = [event.seq for event in History(store).run(run_id).events()]
    assert numbers == list(range(1, len(numbers) + 1))


def after_prune(store: str, template: Path) -> None:
    readable(store, "r")
    left = len(History(store).run("r").checkpoints)
    needed = len([c for c in History(store).run("child").checkpoints if c.run == "r"])
    prune(store, template)
    assert len(History(store).run("r").checkpoints) == needed + 5 <= left
    readable(store, "r")
    assert whole(store, "child") == COMPLETE - needed + 4  # named ones are no steps


def after_delete(store: str, template: Path) -> None:
    there = "r" in [run.id for run in History(store).runs()]
    assert whole(store) == (0 if there else COMPLETE)
    History(store).delete("r")
    assert whole(store, "child") > 0
    History(store).delete("child")
    History(store).delete("bystander")
    assert [key for key, _ in History(store).store.scan("", most=0) if not key.startswith(("code/", "key/"))] == []


def after_rollback(store: str, template: Path) -> None:
    readable(store, "r")
    names = [checkpoint.name for checkpoint in History(store).run("r").checkpoints]
    done = "mark-25" not in names
    assert names.count("mark-10") == 1
    assert whole(store) == (COMPLETE - 11 - 3 if done else 0)
    assert whole(store) == 0


def after_fork(store: str, template: Path) -> None:
    there = "second" in [run.id for run in History(store).runs()]
    if not there:
        fork_(store, template)
    readable(store, "second")
    assert whole(store) == 0
    assert whole(store, "second") == COMPLETE - 11 - 3
    assert whole(store, "second") == whole(store) == 0
    History(store).delete("r")
    assert whole(store, "second") == 0
    assert History(store).verify().well


def after_forget(store: str, template: Path) -> None:
    readable(store, "r")
    assert whole(store) in (0, 1, 2)
    assert whole(store) == 0
    assert whole(store, "child") == COMPLETE - 16 - 4


def after_undo(store: str, template: Path) -> None:
    readable(store, "r")
    assert whole(store) in (0, COMPLETE - 11 - 3)


def after_import(store: str, template: Path) -> None:
    if "r" in [run.id for run in History(store).runs()]:
        readable(store, "r")
    assert History(store).import_(template / "r.zip") == ["r"]
    readable(store, "r")
    assert whole(store) == 0


def before_undo(store: str) -> None:
    History(store).rollback("r", to="mark-10")
    History(store).store.close()


def before_import(store: str) -> None:
    History(store).delete("child")
    History(store).delete("r")
    History(store).store.close()


DEEDS: dict[str, tuple[Any, ...]] = {
    "prune": (prune, after_prune, None),
    "delete": (delete, after_delete, None),
    "rollback": (rollback, after_rollback, None),
    "fork": (fork_, after_fork, None),
    "forget": (forget, after_forget, None),
    "undo": (undo, after_undo, before_undo),
    "import": (import_, after_import, before_import),
}


def in_child(deed: Callable[[], None], prepare: Callable[[], None] = lambda: None) -> int:
    child = os.fork()
    if child:
        return child
    try:
        prepare()
        deed()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying_at(number: int, after: bool) -> Callable[[], None]:
    """Have this process killed before or after its n-th transaction."""

    def prepare() -> None:
        commit, count = DiskStore.commit, iter(range(10_000))

        def counted(self: DiskStore, **change: Any) -> bool:
            mine = next(count) == number
            if mine and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            done = commit(self, **change)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        DiskStore.commit = counted  # type: ignore[method-assign,assignment]

    return prepare


def dying_before(number: int) -> Callable[[], None]:
    """Have this process killed before the n-th time that it asks its store for anything."""

    def prepare() -> None:
        count = iter(range(1_000_000))

        def counted(method: Callable[..., Any]) -> Callable[..., Any]:
            def ask(*given: Any, **named: Any) -> Any:
                if next(count) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return method(*given, **named)

            return ask

        for name in ("get", "get_many", "scan", "commit", "hold", "held"):
            setattr(DiskStore, name, counted(getattr(DiskStore, name)))

    return prepare


def copied(template: Path, folder: Path, before: Callable[[str], None] | None) -> str:
    store = folder / "store"
    shutil.copytree(template / "store", store)
    if before is not None:
        assert wait(in_child(lambda: before(str(store)))) == 0
    return str(store)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEDS)
def test_killed_between_any_two_transactions_nothing_is_half_done(
    name: str, template: Path, tmp_path: Path, campaign: Any
) -> None:
    deed, check, before = DEEDS[name]
    most = campaign(12, 4)
    for number in range(most):
        for after in (False, True):
            folder = tmp_path / f"{number}-{after}"
            folder.mkdir()
            store = copied(template, folder, before)
            code = wait(in_child(lambda: deed(store, template), dying_at(number, after)))
            assert code in (0, -signal.SIGKILL)
            assert wait(in_child(lambda: check(store, template))) == 0, f"after a kill at transaction {number}"
            shutil.rmtree(folder)
            if code == 0:
                assert number > 0
                return


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEDS)
def test_killed_at_any_operation_of_the_store_nothing_is_half_done(
    name: str, template: Path, tmp_path: Path, campaign: Any
) -> None:
    deed, check, before = DEEDS[name]
    number, step = 0, campaign(1, 17)
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        store = copied(template, folder, before)
        code = wait(in_child(lambda: deed(store, template), dying_before(number)))
        assert code in (0, -signal.SIGKILL)
        assert wait(in_child(lambda: check(store, template))) == 0, f"after a kill at operation {number}"
        shutil.rmtree(folder)
        if code == 0:
            assert number > 0
            return
        number += step


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEDS)
def test_killed_at_any_moment_nothing_is_half_done(name: str, template: Path, tmp_path: Path, campaign: Any) -> None:
    deed, check, before = DEEDS[name]
    chance = random.Random(name)
    took = 0.05
    for number in range(campaign(8, 3)):
        folder = tmp_path / str(number)
        folder.mkdir()
        store = copied(template, folder, before)
        child, began = in_child(lambda: deed(store, template)), time.monotonic()
        if number:
            time.sleep(chance.random() * took)
            os.kill(child, signal.SIGKILL)
        code = wait(child)
        took = took if number else time.monotonic() - began
        assert code in (0, -signal.SIGKILL) if number else code == 0
        assert wait(in_child(lambda: check(store, template))) == 0, f"after the kill number {number}"
        shutil.rmtree(folder)
